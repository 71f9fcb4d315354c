import dataclasses
import os
import signal

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from problems import deleting, signed

import dd_jax as dd
from dd_jax import interaction, types
from dd_jax.keys import tagged
from dd_jax.noisy_gd import Schedule, mechanism
from dd_jax.requesters import fixed_stream, stack_edits

LOSS = dd.losses.logistic()
PROBLEM = dd.Problem(LOSS, 0.1)
CURATOR = mechanism(PROBLEM, Schedule(0.5, 1e-3, 1.0, 4, 2))


def blanking(database, rows):
    return stack_edits([dd.deletion(LOSS, database, [row]) for row in rows])


def test_interact_follows_the_algorithm_step_by_step():
    """Learn on 𝒟_0, then for each request delete on 𝒟_{i-1} with u_i, publish, and edit."""
    database = signed(20, 4)
    stream = blanking(database, [3, 5, 7])
    key = jax.random.key(0)
    curator, transcript = dd.interact(
        jax.random.clone(key), CURATOR, fixed_stream(stream), database, num_requests=3
    )

    model = CURATOR.learn(tagged(key, "learn"), database)
    expected = [model]
    current = database
    for i in range(3):
        edit = jax.tree.map(lambda leaf, i=i: leaf[i], stream)
        request_key = jax.random.fold_in(tagged(key, "request"), i + 1)
        model = deleting(CURATOR)(tagged(request_key, "delete"), current, edit, model)
        current = dd.apply_edit(current, edit)
        expected.append(model)
    np.testing.assert_allclose(transcript.releases, jnp.stack(expected), rtol=1e-5)
    np.testing.assert_allclose(curator.params, expected[-1], rtol=1e-5)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), curator.database, current
    )
    np.testing.assert_array_equal(transcript.edits.index, stream.index)


@pytest.mark.parametrize("observe", [(), (0, 2)])
def test_a_requester_sees_only_the_releases_it_is_named_for(observe):
    def act(key, memory, observation):
        """Writes what it sees into row 0, where the transcript shows it."""
        record = dd.Labelled(observation.release, observation.visible.astype(jnp.float32))
        edit = dd.Edit(jnp.zeros(1, jnp.int32), jax.tree.map(lambda leaf: leaf[None], record))
        return memory, edit

    curator = CURATOR._replace(domain=types.ANY_RECORD)
    requester, database = dd.Requester(lambda key: (), act), signed(20, 4)
    _, transcript = dd.interact(
        jax.random.key(1), curator, requester, database, num_requests=3, observe=observe
    )
    shown = np.isin(np.arange(3), observe)
    seen = np.where(shown[:, None], transcript.releases[:3], 0)
    np.testing.assert_array_equal(transcript.edits.record.features[:, 0], seen)
    np.testing.assert_array_equal(transcript.edits.record.label[:, 0], shown)
    np.testing.assert_array_equal(transcript.observed, shown)


def test_drive_equals_interact_and_leaves_the_database_alone():
    database = signed(20, 4)
    before = jax.tree.map(np.array, database)
    stream = blanking(database, [3, 5, 7])
    key = jax.random.key(2)
    one = dd.interact(
        jax.random.clone(key), CURATOR, fixed_stream(stream), database, num_requests=3, observe=(1,)
    )
    shown = []

    def respond(request, release):
        shown.append(None if release is None else np.asarray(release))
        return jax.tree.map(lambda leaf: leaf[request - 1], stream)

    other = dd.drive(key, CURATOR, respond, database, num_requests=3, observe=(1,))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7), one, other)
    jax.tree.map(np.testing.assert_array_equal, database, before)
    assert [release is not None for release in shown] == [False, True, False]
    np.testing.assert_array_equal(shown[1], other[1].releases[1])


BAD_EDITS = {
    "r": lambda rows: dd.deletion(LOSS, rows, [5, 6]),
    "99": lambda rows: dd.deletion(LOSS, rows, [99]),
    "norm": lambda rows: dd.replacement([0], dd.Labelled(jnp.ones((1, 4)), jnp.ones(1))),
}


@pytest.mark.parametrize("word", BAD_EDITS)
def test_a_refused_edit_loses_nothing_and_the_stream_goes_on(word):
    database = signed(20, 4)
    good, key = dd.deletion(LOSS, database, [3]), jax.random.key(8)
    edits = [good, BAD_EDITS[word](database)]
    with pytest.raises(dd.EditRefused, match=word) as refused:
        dd.drive(key, CURATOR, lambda request, _: edits[request - 1], database, num_requests=2)
    served = dd.drive(key, CURATOR, lambda *_: good, database, num_requests=1)
    jax.tree.map(
        np.testing.assert_array_equal, (refused.value.curator, refused.value.transcript), served
    )
    other = dd.deletion(LOSS, database, [5])
    resumed, transcript = dd.resume(
        jax.random.key(9), CURATOR, lambda *_: other, refused.value.curator, num_requests=1
    )
    np.testing.assert_allclose(transcript.releases[0], served[0].params, rtol=1e-6)
    assert (int(transcript.served_before), int(resumed.served)) == (1, 2)
    assert not np.asarray(resumed.database.features)[[3, 5]].any()


@pytest.mark.parametrize("error", [KeyError, KeyboardInterrupt])
def test_an_error_of_the_requester_loses_nothing(error):
    database = signed(20, 4)
    edit = dd.deletion(LOSS, database, [3])

    def respond(request, release):
        if request == 2:
            raise error
        return edit

    with pytest.raises(error) as raised:
        dd.drive(jax.random.key(8), CURATOR, respond, database, num_requests=2)
    served = dd.drive(jax.random.key(8), CURATOR, lambda *_: edit, database, num_requests=1)
    jax.tree.map(
        np.testing.assert_array_equal, (raised.value.curator, raised.value.transcript), served
    )


def test_an_interrupt_while_a_request_is_served_loses_nothing(request):
    """The state is donated to the step: a Ctrl-C in the middle must wait for the new one."""
    armed = []
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))

    def publish(key, state):
        def report(model):
            if armed:
                os.kill(os.getpid(), signal.SIGINT)
            return model

        return jax.pure_callback(report, state, state)

    database = signed(20, 4)
    edit = dd.deletion(LOSS, database, [3])

    def respond(request, release):
        armed.append(request)
        return edit

    with pytest.raises(KeyboardInterrupt) as raised:
        dd.drive(
            jax.random.key(1), CURATOR._replace(publish=publish), respond, database, num_requests=5
        )
    assert 1 <= int(raised.value.curator.served) == raised.value.transcript.rejected.shape[0]
    assert np.isfinite(np.asarray(raised.value.curator.params)).all()


def test_a_resumed_stream_draws_new_noise_under_the_same_key():
    database, key = signed(20, 4), jax.random.key(3)
    edits = [dd.deletion(LOSS, database, [row]) for row in range(4)]

    def respond(request, release):
        return edits[request - 1]

    whole, all_at_once = dd.drive(key, CURATOR, respond, database, num_requests=4)
    half, first = dd.drive(key, CURATOR, respond, database, num_requests=2)
    rest, second = dd.resume(key, CURATOR, respond, half, num_requests=2, observe=(3,))
    jax.tree.map(np.testing.assert_array_equal, rest, whole)
    np.testing.assert_array_equal(second.releases[1:], all_at_once.releases[3:])
    assert second.observed.tolist() == [False, True]
    assert (int(first.served_before), int(second.served_before)) == (0, 2)
    jax.tree.map(np.asarray, half)  # not donated


def test_a_resumed_curator_publishes_its_last_release_again():
    database, key = signed(5, 4), jax.random.key(3)

    def respond(request, release):
        return dd.deletion(LOSS, database, [request])

    half, first = dd.drive(key, PROBE, respond, database, num_requests=2)
    _, second = dd.resume(key, PROBE, respond, half, num_requests=1)
    for before, again in zip(first.releases, second.releases, strict=True):
        np.testing.assert_array_equal(again[0], before[-1])


def test_a_look_is_remembered_until_a_request_is_served():
    def stop(*_):
        raise RuntimeError

    database, key = signed(20, 4), jax.random.key(3)
    with pytest.raises(RuntimeError) as stopped:
        dd.drive(key, CURATOR, stop, database, num_requests=1, observe=(0,))
    with pytest.raises(RuntimeError) as again:
        dd.resume(key, CURATOR, stop, stopped.value.curator, num_requests=1)
    blank = dd.deletion(LOSS, database, [3])
    state, transcript = dd.resume(
        key, CURATOR, lambda *_: blank, again.value.curator, num_requests=1
    )
    assert transcript.observed.tolist() == [True]
    assert not bool(state.looked)


def test_an_interrupt_after_the_last_request_loses_nothing(monkeypatch):
    database, stacked, calls = signed(20, 4), interaction.stack, []

    def broken(trees):
        calls.append(trees)
        if len(calls) == 1:
            raise KeyboardInterrupt
        return stacked(trees)

    monkeypatch.setattr(interaction, "stack", broken)
    edit = dd.deletion(LOSS, database, [3])
    with pytest.raises(KeyboardInterrupt) as raised:
        dd.drive(jax.random.key(0), CURATOR, lambda *_: edit, database, num_requests=1)
    assert int(raised.value.curator.served) == 1


@pytest.mark.parametrize(
    ("form", "error"), [(lambda rows: rows, None), (dd.compress, None), (dd.compress, RuntimeError)]
)
def test_the_state_of_an_error_holds_nothing_of_a_deleted_record(form, error):
    database = signed(20, 4)
    gone = np.asarray(database.features[3]).tobytes()

    def respond(request, release):
        if request == 1:
            return dd.deletion(LOSS, database, [3])
        if error is not None:
            raise error
        return dd.deletion(LOSS, database, [4, 4])

    with pytest.raises((RuntimeError, dd.EditRefused)) as raised:
        dd.drive(jax.random.key(0), CURATOR, respond, form(database), num_requests=2)
    leaves = jax.tree.leaves(raised.value.curator)
    assert not any(gone in np.asarray(leaf).tobytes() for leaf in leaves)
    assert any(gone in np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(form(database)))


def test_a_state_of_something_else_is_not_resumed():
    database = signed(20, 4)
    curator, other = (
        mechanism(PROBLEM, dd.plan_convex(PROBLEM, n=20, dim=4, order=2, eps_dp=eps, eps_dd=0.1))
        for eps in (1.0, 2.0)
    )
    state, _ = dd.drive(jax.random.key(0), curator, lambda *_: None, database, num_requests=0)

    def refuses(word, curator=curator, observe=(), **change):
        wrong = state._replace(**change)
        with pytest.raises(dd.InputError, match=word):
            dd.resume(
                jax.random.key(1), curator, lambda *_: None, wrong, num_requests=1, observe=observe
            )

    refuses("plan", other)
    refuses("n = 20", database=signed(10, 4))
    refuses("NaN", params=state.params.at[1].set(jnp.nan))
    refuses("params", params=jnp.zeros(5))
    refuses("params", params=jnp.zeros((2, 2)))
    refuses("row 6", database=outside(database))
    refuses("served", served=-1)
    refuses("observe", observe=(1,))
    with pytest.raises(dd.InputError, match="CuratorState"):
        dd.resume(jax.random.key(1), curator, lambda *_: None, database, num_requests=1)


def outside(database):
    """With row 6 outside the domain."""
    return database._replace(features=database.features.at[6].multiply(50.0))


def test_a_transcript_tells_what_was_replaced_by_itself():
    """A row that is deleted twice is reported; so is which part of a record an edit left alone."""
    database = signed(20, 4)
    label = dd.Labelled(database.features[5:6], -database.label[5:6])
    edits = [
        dd.deletion(LOSS, database, [3, 4]),
        dd.deletion(LOSS, database, [4, 7]),
        # Of the same value as row 0, which a row out of range must not be compared with.
        dd.replacement(
            [5, 25], jax.tree.map(lambda a, b: jnp.concatenate([a, b[:1]]), label, database)
        ),
    ]
    stream, key = fixed_stream(stack_edits(edits)), jax.random.key(0)
    for overlay in (False, True):
        _, transcript = dd.interact(key, CURATOR, stream, database, num_requests=3, overlay=overlay)
        both = [[False, False], [True, False]]
        assert transcript.unchanged.features.tolist() == [*both, [True, False]]
        assert transcript.unchanged.label.tolist() == [*both, [False, False]]
        assert int(transcript.n) == 20
    with pytest.warns(UserWarning, match="row 4"):
        dd.drive(key, CURATOR, lambda request, _: edits[request - 1], database, num_requests=2)


def test_drive_copies_a_database_that_its_domain_leaves_as_it_is():
    """With an identity projection only the copy stands between donation and the caller's arrays."""
    mean = dd.Mechanism(
        learn=lambda key, database: database.mean(axis=0),
        delete=lambda key, before, edit, after, state: after.mean(axis=0),
        domain=dd.Domain("anything", lambda r: None, lambda r: (r, jnp.ones(r.shape[0], bool))),
    )
    database = signed(6, 2).features
    edits = [dd.replacement([row], jnp.zeros((1, 2))) for row in (0, 1)]
    dd.drive(jax.random.key(0), mean, lambda i, _: edits[i - 1], database, num_requests=2)
    assert not database.is_deleted()
    assert bool(jnp.isfinite(database).all())


def key_words(key):
    return jax.random.key_data(key)


def children(words):
    """The keys that its holder could split from a key: the curator's must not be among them."""
    halves = jax.random.split(jax.random.wrap_key_data(jnp.asarray(words)))
    return {tuple(half.tolist()) for half in np.asarray(key_words(halves))}


# Reports every key it is given and the database it is shown, as its state and release.
PROBE = dd.Mechanism(
    domain=dd.Domain("anything", lambda r: None, lambda r: (r, jnp.ones(r.label.shape[0], bool))),
    learn=lambda key, database: (key_words(key), jnp.zeros(2, jnp.uint32), database.label),
    delete=lambda key, before, edit, after, state: (state[0], key_words(key), before.label),
    publish=lambda key, state: (*state, key_words(key)),
)


def test_every_purpose_has_a_key_of_its_own():
    """Learning, deletion, publishing, the requester's memory and its moves: no key twice."""

    def act(key, memory, observation):
        # The requester's keys travel out in the record's features, bit by bit.
        bits = jnp.concatenate([memory, key_words(key)]).view(jnp.float32)
        record = dd.Labelled(bits[None], jnp.zeros(1))
        return memory, dd.Edit(jnp.array([0], jnp.int32), record)

    requester = dd.Requester(key_words, act)
    _, transcript = dd.interact(jax.random.key(1), PROBE, requester, signed(5, 4), num_requests=3)
    learned, deleted, _, published = transcript.releases
    moves = np.asarray(transcript.edits.record.features[:, 0]).view(np.uint32)
    requesters = [moves[0, :2], *moves[:, 2:]]
    curators = [learned[0], *deleted[1:], *published]
    keys = [*requesters, *curators, key_words(jax.random.key(1))]
    assert len({tuple(np.asarray(key).tolist()) for key in keys}) == len(keys)
    curators = {tuple(np.asarray(key).tolist()) for key in curators}
    assert not curators & set().union(*map(children, requesters))


def test_deletion_is_shown_the_database_before_the_edit():
    database = signed(5, 2)
    edits = [
        dd.replacement([row], dd.Labelled(jnp.zeros((1, 2)), jnp.full(1, 0.25))) for row in (1, 2)
    ]
    _, transcript = dd.interact(
        jax.random.key(1), PROBE, fixed_stream(stack_edits(edits)), database, num_requests=2
    )
    shown = transcript.releases[2]
    np.testing.assert_array_equal(shown[1], database.label)
    np.testing.assert_array_equal(shown[2], database.label.at[1].set(0.25))


def test_drive_without_requests_is_learning():
    database, key = signed(20, 4), jax.random.key(3)
    learned = CURATOR.learn(tagged(key, "learn"), database)
    state, transcript = dd.drive(key, CURATOR, lambda *_: None, database, num_requests=0)
    np.testing.assert_allclose(state.params, learned, rtol=1e-6)
    assert transcript.releases.shape == (1, 4)
    assert transcript.projected.shape == (0,)


def test_inadmissible_records_are_refused_on_the_host_and_projected_inside_jit():
    database = signed(20, 4)
    bad = outside(database)
    with pytest.raises(dd.InputError, match="row 6"):
        dd.interact(
            jax.random.key(0), CURATOR, fixed_stream(blanking(database, [0])), bad, num_requests=1
        )
    with pytest.raises(dd.InputError, match="row 6"):
        dd.drive(jax.random.key(0), CURATOR, lambda *_: None, bad, num_requests=0)

    def serve(database, edits):
        return dd.interact(
            jax.random.key(0), CURATOR, fixed_stream(edits), database, num_requests=2
        )

    huge = dd.Labelled(100.0 * jnp.ones((1, 4)), jnp.full(1, 3.0))
    edits = stack_edits(
        [dd.replacement([1], huge), dd.replacement([25], jax.tree.map(jnp.zeros_like, huge))]
    )
    curator, transcript = jax.jit(serve)(bad, edits)
    assert int(transcript.projected_initially) == 1
    assert transcript.projected.tolist() == [1, 0]
    assert transcript.rejected.tolist() == [0, 1]
    LOSS.domain.check(curator.database)
    np.testing.assert_allclose(curator.database.features[1], 0.5, rtol=1e-6)
    np.testing.assert_allclose(transcript.edits.record.features[0, 0], 0.5, rtol=1e-6)


@pytest.mark.parametrize("adaptive", [False, True])
def test_a_fixed_streams_database_is_not_copied_per_seed(adaptive):
    """An adaptive requester is the control: the test can see a copy where there is one."""
    database = signed(37, 4)
    requester = fixed_stream(blanking(database, [3, 5, 7]))
    if adaptive:
        requester = dd.requesters.largest_loss(LOSS, database)

    def last(key):
        served = dd.interact(key, CURATOR, requester, database, num_requests=3, observe=(0,))
        return served[1].releases[-1]

    program = str(jax.make_jaxpr(jax.vmap(last))(jax.random.split(jax.random.key(0), 11)))
    assert "f32[37,4]" in program
    assert ("[11,37,4]" in program) == adaptive


def test_plain_calls_are_traced_once_for_keys_databases_and_equal_plans():
    """A mechanism made anew from an equal problem and plan is the same object."""
    database = signed(20, 4)
    requester = fixed_stream(blanking(database, [3, 5]))
    made = []

    def curator():
        problem = dd.Problem(dd.losses.logistic(), 0.1)
        plan = dd.plan_convex(problem, n=20, dim=4, order=2, eps_dp=1.0, eps_dd=0.1)
        made.append(mechanism(problem, plan))
        return made[-1]

    before = interaction._interact._cache_size()
    for seed in range(3):
        rows = jax.tree.map(lambda leaf, seed=seed: leaf * (1 - 0.1 * seed), database)
        dd.interact(jax.random.key(seed), curator(), requester, rows, num_requests=2)
    assert interaction._interact._cache_size() == before + 1
    assert made[0] is made[2]


def test_a_requester_that_has_no_hash_is_served():
    @dataclasses.dataclass
    class Blank:
        row: int

        def __call__(self, key, memory, observation):
            return memory, dd.deletion(LOSS, database, [self.row])

    database = signed(6, 4)
    act = Blank(2)
    for row in (2, 5):
        act.row = row
        requester = dd.Requester(lambda key: (), act)
        _, seen = dd.interact(jax.random.key(0), CURATOR, requester, database, num_requests=1)
        assert seen.edits.index.tolist() == [[row]]


def test_a_stream_of_edits_traces_each_function_once():
    database = signed(30, 4)
    stream = blanking(database, range(30))
    delete = chex.assert_max_traces(CURATOR.delete, n=1)
    learn = chex.assert_max_traces(CURATOR.learn, n=1)
    counted = CURATOR._replace(learn=learn, delete=delete)

    def respond(request, release):
        return jax.tree.map(lambda leaf: leaf[request - 1], stream)

    dd.drive(jax.random.key(0), counted, respond, database, num_requests=30)


def test_adversary_view_is_the_releases_from_the_deletion_on():
    releases, none = jnp.arange(16.0).reshape(4, 4), jnp.zeros(3, jnp.int32)
    edits = blanking(signed(20, 4), [3, 5, 7])
    transcript = dd.Transcript(releases, edits, jnp.zeros(3, bool), none, none, jnp.int32(0))
    np.testing.assert_array_equal(dd.adversary_view(transcript, 2), releases[2:])
    for request in (0, 4):
        with pytest.raises(dd.InputError, match="request"):
            dd.adversary_view(transcript, request)
    assert [bool(interaction.replaces(transcript, i, 5)) for i in (1, 2, 4)] == [0, 1, 0]
    assert [bool(interaction.replaces(transcript, i, 7)) for i in (-1, 0, 3)] == [0, 0, 1]


@pytest.mark.parametrize(
    ("word", "arguments"),
    [
        ("observe", {"num_requests": 2, "observe": (2,)}),
        *(("observe", {"num_requests": 1, "observe": bad}) for bad in (0, None, (True,), (0.5,))),
        ("observe", {"num_requests": 1, "observe": "0"}),
        ("num_requests", {"num_requests": 2.5}),
        ("num_requests", {"num_requests": -1}),
    ],
)
def test_bad_arguments_are_refused(word, arguments):
    database = signed(5, 4)
    requester = fixed_stream(blanking(database, [0, 1]))
    with pytest.raises(dd.InputError, match=word):
        dd.interact(jax.random.key(0), CURATOR, requester, database, **arguments)


def test_databases_without_rows_or_with_nan_are_refused():
    database = signed(5, 4)
    empty = jax.tree.map(lambda leaf: leaf[:0], database)
    nan = database._replace(label=database.label.at[2].set(jnp.nan))
    for word, bad in {"empty": empty, "row 2": nan}.items():
        with pytest.raises(dd.InputError, match=word):
            interaction.check_database(bad, CURATOR)


def test_a_secret_state_stays_with_the_curator():
    """publish decides what is released; the curator's state goes on unpublished."""
    database = signed(20, 4)
    rounding = CURATOR._replace(publish=lambda key, state: jnp.round(state))
    stream = fixed_stream(blanking(database, [3, 5]))
    plain = dd.interact(jax.random.key(5), CURATOR, stream, database, num_requests=2)
    rounded = dd.interact(jax.random.key(5), rounding, stream, database, num_requests=2)
    np.testing.assert_array_equal(rounded[1].releases, jnp.round(plain[1].releases))
    np.testing.assert_array_equal(rounded[0].params, plain[0].params)
