"""A certificate of what happened is made from the transcript, and refused where that is not so."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dd_jax as dd
from dd_jax.errors import CertificateRefused, InputError

N = 12


def rows(seed=0):
    features = np.random.default_rng(seed).uniform(-0.4, 0.4, (N, 2)).astype(np.float32)
    return dd.Labelled(jnp.asarray(features), jnp.where(jnp.arange(N) % 2, 1.0, -1.0))


PROBLEM = dd.Problem(dd.losses.logistic(), l2=0.1)
PLAN = dd.plan_convex(PROBLEM, n=N, dim=2, order=2, eps_dp=1.0, eps_dd=0.1, edits_per_request=2)
MECHANISM = dd.noisy_gd.mechanism(PROBLEM, PLAN)


def null(index):
    return dd.deletion(PROBLEM.loss, rows(), index)


def write(index, size=0.3):
    records = dd.Labelled(jnp.full((len(index), 2), size), jnp.ones(len(index)))
    return dd.replacement(index, records)


def drive(edits, observe=(), mechanism=MECHANISM, database=None, key=0):
    def respond(request, release):
        del release
        return edits[request - 1]

    database = rows() if database is None else database
    return dd.drive(
        jax.random.key(key),
        mechanism,
        respond,
        database,
        num_requests=len(edits),
        observe=observe,
    )


@functools.cache
def served():
    """Rows 3 and 5 written, row 3 nulled with row 7, row 3 nulled again with row 1."""
    with pytest.warns(UserWarning, match="row 3"):
        return drive([write([3, 5]), null([3, 7]), null([3, 1])], observe=(0, 2))


def test_it_reads_the_history_from_the_transcript():
    _, transcript = served()
    issued = PLAN.certify(transcript, request=2, row=3, problem=PROBLEM)
    assert issued.basis == "transcript"
    assert (issued.request, issued.row, issued.first_inserted) == (2, 3, 0)
    assert issued.observed == (0,)  # release 2 was shown after the deletion
    assert issued.adaptivity == 1
    assert issued.records == 2
    promised = PLAN.certificate(request=2, observed=(0,), records=2)
    assert promised.basis == "promise"
    assert promised.row is None
    for field in dataclasses.fields(promised):
        value = getattr(promised, field.name)
        if isinstance(value, float):
            assert getattr(issued, field.name) == value
    assert str(issued) != str(promised)


def test_grounds_are_those_that_the_transcript_gives():
    issued = PLAN.certify(served()[1], request=2, row=3)
    promised = PLAN.certificate(request=2)

    def domain(certificate):
        (how,) = (a.established for a in certificate.assumptions if f"all {N}" in a.statement)
        return how

    assert domain(issued) == "checked on the data"
    assert domain(promised) == "declared by the user"
    assert "checked on the data" not in {a.established for a in promised.assumptions}
    (shown,) = (a for a in issued.assumptions if "was shown" in a.statement)
    assert shown.established == "by construction"
    assert shown.statement.endswith(": 0")


def test_it_is_recomputed_and_told_from_a_forgery():
    _, transcript = served()
    issued = PLAN.certify(transcript, request=2, row=3)
    assert issued.recomputed() == issued
    assert issued.is_genuine()
    read = dd.Certificate.from_json(issued.to_json(), PROBLEM)
    assert read == issued
    assert read.loaded
    assert read.is_genuine(PROBLEM)
    assert not dataclasses.replace(read, eps_dd=read.eps_dd / 2).is_genuine()
    assert not dataclasses.replace(read, basis="promise", row=None).is_genuine()


def test_an_insertion_that_is_known_shortens_the_clock_of_one_row():
    _, transcript = served()
    first = PLAN.certify(transcript, request=2, row=3, first_inserted=1)
    start = PLAN.certify(transcript, request=2, row=3)
    assert first.first_inserted == 1
    assert first.records == 1  # the insertion of the other row is not known
    assert first.adaptivity == 0  # release 0 was made before the insertion
    assert first.eps_dd_request < start.eps_dd_request
    assert PLAN.certify(transcript, request=2, row=3, first_inserted=0) == start
    declared = {a.statement for a in first.assumptions if a.established == "declared by the user"}
    assert any("before request 1" in statement for statement in declared)


def test_transcripts_of_several_calls_count_as_one_history():
    state, first = drive([write([3, 5])], observe=(0,))
    edits = [null([3, 7]), null([1, 2])]
    state, second = dd.resume(
        jax.random.key(1),
        MECHANISM,
        lambda request, release: edits[request - 2],
        state,
        num_requests=2,
        observe=(1,),
    )
    issued = PLAN.certify([first, second], request=2, row=3)
    assert issued.observed == (0, 1)
    assert PLAN.certify((first, second), request=3, row=1).observed == (0, 1)
    for wrong in ([second], [second, first], [first, first], [first, second, second]):
        with pytest.raises(CertificateRefused, match="every transcript"):
            PLAN.certify(wrong, request=1, row=3)
    for wrong in ([], [state], None, 3, "text"):
        with pytest.raises(InputError, match="transcript"):
            PLAN.certify(wrong, request=1, row=3)


def test_a_scripted_interaction_is_certified_and_many_seeds_are_not():
    def act(key, memory, observation):
        del key, observation
        return memory, null([4, 6])

    requester = dd.Requester(lambda key: (), act)

    def play(key):
        return dd.interact(key, MECHANISM, requester, rows(), num_requests=1, observe=(0,))[1]

    one = play(jax.random.key(0))
    assert PLAN.certify(one, request=1, row=6).observed == (0,)
    many = jax.vmap(play)(jax.random.split(jax.random.key(0), 3))
    with pytest.raises(CertificateRefused, match="many seeds"):
        PLAN.certify(many, request=1, row=6)


def other_plan(transcript):
    return dataclasses.replace(PLAN, delete_steps=9).certify(transcript, request=2, row=3)


def other_problem(transcript):
    problem = dd.Problem(dd.losses.logistic(), l2=0.2)
    return PLAN.certify(transcript, request=2, row=3, problem=problem)


def asked(request=2, row=3, first_inserted=None, **changes):
    """A certificate of the transcript with some of its fields changed."""

    def make(transcript):
        history = transcript._replace(**changes)
        return PLAN.certify(history, request=request, row=row, first_inserted=first_inserted)

    return make


REFUSALS = {
    "another plan": (other_plan, "plan"),
    "another problem": (other_problem, "problem"),
    "no plan": (asked(plan=None), "plan"),
    "another n": (asked(n=13), "n = 13"),
    "a request to come": (asked(request=4), "request 4"),
    "another row": (asked(row=5), "row 5"),
    "a row that does not exist": (asked(row=N), "range"),
    "a row that was null": (asked(request=3), "already held"),
    "an insertion that changed nothing": (asked(row=7, first_inserted=1), "row 7"),
    "a record outside the domain": (asked(projected_initially=1), "domain"),
    "an edit outside the domain": (asked(projected=np.array([1, 0, 0])), "request 1"),
    "a transcript made by hand": (asked(unchanged=None), "changed"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_refused(name):
    make, word = REFUSALS[name]
    with pytest.raises(CertificateRefused, match=word):
        make(served()[1])


def test_projections_after_the_deletion_do_not_matter():
    transcript = served()[1]._replace(projected=np.array([0, 0, 1]))
    assert PLAN.certify(transcript, request=2, row=3).is_genuine()


def test_a_row_that_came_null_in_the_database_was_deleted_by_nobody():
    blanked = dd.apply_edit(rows(), null([4, 6]))
    with pytest.warns(UserWarning, match="row 4"):
        _, transcript = drive([null([4, 7])], database=blanked)
    with pytest.raises(CertificateRefused, match="database"):
        PLAN.certify(transcript, request=1, row=4)
    assert PLAN.certify(transcript, request=1, row=7).row == 7


@pytest.mark.parametrize("wrong", [True, -1, 1.5, "two", None])
def test_requests_and_rows_are_whole_numbers(wrong):
    transcript = served()[1]
    with pytest.raises(InputError, match="request"):
        PLAN.certify(transcript, request=wrong, row=3)
    with pytest.raises(InputError, match="row"):
        PLAN.certify(transcript, request=2, row=wrong)
    for count in (0, 2):
        with pytest.raises(InputError, match="request"):
            PLAN.certify(transcript, request=count, row=3, first_inserted=2)


def test_a_rejected_deletion_is_not_certified():
    """A row out of range is counted in a scan, not refused; nothing was deleted."""

    def act(key, memory, observation):
        del key, observation
        return memory, null([4, 6])._replace(index=jnp.array([N, 4]))

    requester = dd.Requester(lambda key: (), act)
    _, transcript = dd.interact(jax.random.key(0), MECHANISM, requester, rows(), num_requests=1)
    assert transcript.rejected.tolist() == [1]
    with pytest.raises(CertificateRefused, match="range"):
        PLAN.certify(transcript, request=1, row=N)
    assert PLAN.certify(transcript, request=1, row=4).row == 4


def test_a_label_plan_refuses_edits_of_features():
    """One changed feature of one row of two is enough."""
    problem = dd.Problem(dd.losses.squared(label_bound=1.0), l2=0.1)
    options = {"order": 2, "eps_dp": 1.0, "eps_dd": 0.1, "edits_per_request": 2}
    plan = dd.plan_convex(problem, n=N, dim=2, protects="label", **options)
    mechanism = dd.noisy_gd.mechanism(problem, plan)
    kept = jax.tree.map(lambda leaf: leaf[jnp.array([3, 5])], rows())
    labels = kept._replace(label=-kept.label)
    moved = kept._replace(features=kept.features.at[1, 0].add(0.01))
    edits = [dd.replacement([3, 5], labels), dd.replacement([3, 5], moved)]
    _, transcript = drive(edits, mechanism=mechanism)
    issued = plan.certify(transcript, request=1, row=3)
    (how,) = (a.established for a in issued.assumptions if "labels only" in a.statement)
    assert how == "checked on the data"
    with pytest.raises(CertificateRefused, match="features"):
        plan.certify(transcript, request=2, row=3)


def test_a_non_convex_history_counts_every_look_since_the_start():
    problem = dd.Problem(dd.losses.tanh_margin(), l2=2.0)
    plan = dd.plan_nonconvex(
        problem, n=N, dim=2, order=2, eps_dp=50.0, eps_dd=0.5, noise_variance=4.0
    )
    short = dataclasses.replace(plan, learn_steps=2, delete_steps=1)
    mechanism = dd.noisy_gd.mechanism(problem, short)
    _, transcript = drive([write([1], 0.1), write([2]), null([2])], (0,), mechanism)
    issued = short.certify(transcript, request=3, row=2, first_inserted=2)
    assert issued.observed == (0,)
    assert issued.adaptivity == 1
    assert "Gibbs" not in issued.comparator


def test_a_row_that_is_written_again_ends_what_is_covered():
    """The record may have come back with request 3; releases from then on are not covered."""
    _, transcript = drive([write([3]), null([3]), write([3]), null([3])])
    issued = PLAN.certify(transcript, request=2, row=3)
    assert issued.rewritten == 3
    assert any("request 3" in warning for warning in issued.warnings)
    assert PLAN.certify(transcript, request=4, row=3).rewritten is None
    # A record of the initial database is not known: whatever is written may be it.
    unknown = drive([null([3]), write([3])])[1]
    assert PLAN.certify(unknown, request=1, row=3).rewritten == 2
    assert issued.is_genuine()
    assert not dataclasses.replace(issued, rewritten=None).is_genuine()


def test_a_record_that_is_seen_to_come_back_elsewhere_ends_it_too():
    _, transcript = drive([write([3]), null([3]), write([5])])
    assert PLAN.certify(transcript, request=2, row=3).rewritten == 3
    other = drive([write([3]), null([3]), write([5], size=0.2)])[1]
    assert PLAN.certify(other, request=2, row=3).rewritten is None


def test_a_first_insertion_that_the_transcript_contradicts_is_refused():
    """Inserted by 1, deleted by 2, back with 3, deleted by 4: request 3 was not the first."""
    _, transcript = drive([write([3]), null([3]), write([3]), null([3])])
    with pytest.raises(CertificateRefused, match="first_inserted=1"):
        PLAN.certify(transcript, request=4, row=3, first_inserted=3)
    assert PLAN.certify(transcript, request=4, row=3, first_inserted=1).first_inserted == 1
    other = drive([write([3], size=0.1), null([3]), write([3]), null([3])])[1]
    assert PLAN.certify(other, request=4, row=3, first_inserted=3).first_inserted == 3


def test_a_record_that_is_seen_in_two_batches_counts_as_two_rows():
    plan = dd.plan_convex(PROBLEM, n=N, dim=2, order=2, eps_dp=1.0, eps_dd=0.1, batches=2)
    mechanism = dd.noisy_gd.mechanism(PROBLEM, plan)
    edits = [write([3]), null([3]), write([N - 1]), null([N - 1])]
    _, transcript = drive(edits, mechanism=mechanism)
    assert plan.certify(transcript, request=2, row=3).row == 3
    with pytest.raises(CertificateRefused, match="records=2"):
        plan.certify(transcript, request=4, row=N - 1)
    issued = plan.certify(transcript, request=4, row=N - 1, records=2)
    assert issued.eps_dd_records == pytest.approx(4 * issued.eps_dd_adaptive)
    edits[2:] = [write([4]), null([4])]
    _, transcript = drive(edits, mechanism=mechanism)
    assert plan.certify(transcript, request=4, row=4).records == 1


def test_transcripts_of_two_curators_are_not_one_history():
    edits = [write([3]), null([3])]
    (_, unseen), (state, seen) = drive(edits), drive(edits, observe=(0, 1), key=1)
    _, later = dd.resume(jax.random.key(2), MECHANISM, lambda *_: null([5]), state, num_requests=1)
    assert PLAN.certify([seen, later], request=3, row=5).observed == (0, 1)
    with pytest.raises(CertificateRefused, match="curators"):
        PLAN.certify([unseen, later], request=3, row=5)


@pytest.mark.parametrize("how", ["error", "refused"])
def test_a_look_that_led_to_no_request_is_counted(how):
    """Shown release 0, the requester stops; whoever goes on may use what was seen."""

    def respond(request, release):
        assert release is not None
        if how == "error":
            raise RuntimeError
        return write([3, 3])

    with pytest.raises((RuntimeError, dd.EditRefused)) as stopped:
        dd.drive(jax.random.key(0), MECHANISM, respond, rows(), num_requests=2, observe=(0,))
    state = stopped.value.curator
    assert bool(state.looked)
    edits = [write([3]), null([3])]
    _, transcript = dd.resume(
        jax.random.key(1), MECHANISM, lambda request, _: edits[request - 1], state, num_requests=2
    )
    assert PLAN.certify(transcript, request=2, row=3).observed == (0,)
    idle, _ = dd.resume(jax.random.key(1), MECHANISM, respond, state, num_requests=0)
    assert bool(idle.looked)


def test_only_the_first_mention_of_a_row_is_applied():
    """Inside jit a row named twice gets its first record: here what it held already."""
    held = jax.tree.map(lambda leaf: leaf[3:4], rows())
    blank = jax.tree.map(jnp.zeros_like, held)
    record = jax.tree.map(lambda a, b: jnp.concatenate([a, b]), held, blank)
    edit = dd.Edit(jnp.array([[3, 3]], jnp.int32), jax.tree.map(lambda leaf: leaf[None], record))
    _, transcript = dd.interact(
        jax.random.key(0), MECHANISM, dd.requesters.fixed_stream(edit), rows(), num_requests=1
    )
    with pytest.raises(CertificateRefused, match="already held"):
        PLAN.certify(transcript, request=1, row=3)


def test_a_request_that_left_the_row_alone_brought_nothing_in():
    held = jax.tree.map(lambda leaf: leaf[3:4], rows())
    with pytest.warns(UserWarning, match="row 3"):
        _, transcript = drive([dd.replacement([3], held), null([3])])
    with pytest.raises(CertificateRefused, match="row 3"):
        PLAN.certify(transcript, request=2, row=3, first_inserted=1)


# --- plans with batches and without ---------------------------------------------------------------


def test_a_history_with_batches_is_certified_by_no_other_plan():
    """The same settings but for the number of batches: neither certifies what the other did."""
    plans = {m: dataclasses.replace(PLAN, batches=m) for m in (1, 5)}
    lives = {
        m: drive([null([3])], mechanism=dd.noisy_gd.mechanism(PROBLEM, plan))
        for m, plan in plans.items()
    }
    for batches, other in ((1, 5), (5, 1)):
        state, transcript = lives[batches]
        assert plans[batches].certify(transcript, request=1, row=3).row == 3
        with pytest.raises(CertificateRefused, match="plan"):
            plans[other].certify(transcript, request=1, row=3)
        mechanism = dd.noisy_gd.mechanism(PROBLEM, plans[other])
        with pytest.raises(InputError, match="another plan"):
            dd.resume(jax.random.key(1), mechanism, lambda *_: null([4]), state, num_requests=1)
        # The mechanism itself, without a driver.
        with pytest.raises(InputError, match="batches"):
            mechanism.delete(jax.random.key(1), rows(), null([4]), rows(), state.params)


def test_the_number_for_a_row_is_that_of_its_batch():
    """Only a transcript knows the row; a promise is for every row."""
    plan = dataclasses.replace(PLAN, batches=5)
    _, transcript = drive([null([3])], mechanism=dd.noisy_gd.mechanism(PROBLEM, plan))
    found = plan.certify(transcript, request=1, row=3, records=1)
    batch = dd.guarantees.schedules.batch_of_row(N, 5, 3)
    whole_life = dd.plans.settings.stream(plan)
    assert found.eps_dd_request == whole_life.deletion_at(1, batch=batch)
    several = plan.certify(transcript, request=1, row=3, records=2)  # of whatever batches
    assert several.eps_dd_request == whole_life.deletion_at(1)
    assert found.eps_dd_request < plan.certificate().eps_dd_request <= plan.certificate().eps_dd
