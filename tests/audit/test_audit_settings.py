"""The audit's settings: exact numbers, honest requesters, verdicts that can go either way."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from problems import soak
from scipy import special

import dd_jax as dd
from dd_jax import ensemble
from dd_jax.audit import audit, claims
from dd_jax.audit.controls import CONTROLS
from dd_jax.audit.settings import base as audits
from dd_jax.audit.settings import find
from dd_jax.audit.settings import linear as audit_linear
from dd_jax.audit.settings import logistic as audit_logistic
from dd_jax.audit.settings.base import Keep
from dd_jax.audit.settings.logistic import loss_chaser, recoder, worst_record
from dd_jax.errors import InputError
from dd_jax.interaction import Observation

SEEDS = 20_000
LUCKY, UNLUCKY = 3, 11
NOWHERE = Keep(None)
NAMED = ("dp", "adaptive-3-loss", "deletion-1", "deletion-20", "null-1", "null-adaptive-1-recoding")


def quiet(text):
    del text


@pytest.fixture(scope="module")
def linear():
    return find("linear", 2.0)


def run(setting, key, seeds=SEEDS, **options):
    """`audits.run` that keeps and prints nothing, by name of the claim."""
    options = {"confidence": 0.95, "keep": NOWHERE, "say": quiet} | options
    found = audits.run(setting, jax.random.key(key), seeds, **options)
    return {one.audited.name: one for one in found}


@pytest.fixture(scope="module")
def judged(linear):
    # Numbers at 95% exceed the truth for one key in twenty; see UNLUCKY.
    return run(linear, LUCKY)


@pytest.mark.parametrize(
    ("name", "batches"),
    [("linear", 1), ("linear", 3), ("logistic", 1), ("logistic", 4), ("nonconvex", 1)],
)
def test_every_setting_has_a_mistake_and_a_null_for_a_gate_of_its_claims(name, batches):
    setting = find(name, 2.0, batches)
    mutant, null = (CONTROLS[control] for control in setting.controls)
    assert (mutant.is_null, null.is_null) == (False, True)
    assert mutant.gate == null.gate
    assert any(mutant.gate in case.gates for case in setting.audited)


def test_exact_and_certified_numbers_of_the_linear_setting(linear):
    cases = {case.name: case for case in linear.audited}
    assert cases["dp"].exact == pytest.approx(1, rel=1e-5)
    assert cases["deletion-1"].exact == pytest.approx(0.1, rel=1e-5)
    assert linear.plan.delete_steps == 5
    # ε_dp [(1-c^K_L)/(1+c^K_L) + i (1-c^K_U)/(1+c^K_U)], with c^K_L = 0.
    kept = (1 - linear.plan.step_size) ** linear.plan.delete_steps
    joint = 1 + 3 * (1 - kept) / (1 + kept)
    assert cases["dp-joint"].exact == pytest.approx(joint, rel=1e-4)
    # What is left against the empty row is a quarter.
    assert cases["null-1"].exact == cases["deletion-1"].exact / 4
    assert cases["null-1"].claim.claimed == pytest.approx(0.025)
    for case in linear.audited:
        assert case.exact is not None
        assert case.exact <= case.claim.claimed * (1 + 1e-9) < case.paper
    assert cases["adaptive-1"].claim.claimed == pytest.approx(1.1)


def test_stated_law_of_the_releases_is_that_of_the_chain(linear):
    """Mean, covariance and divergence agree with each other: R_q = q/2 · Δᵀ Σ⁻¹ Δ."""
    up, down, covariance = audit_linear._law_of_releases(linear.plan, 0, 4)
    shift = up - down
    (case,) = [case for case in linear.audited if case.name == "dp-joint"]
    assert shift @ np.linalg.solve(covariance, shift) == pytest.approx(case.exact, rel=1e-9)


def test_audited_is_below_exact_and_close_to_it(judged):
    least = {"dp": 0.85, "dp-joint": 0.85, "deletion-1": 0.5, "adaptive-1": 0.75}
    least |= {"null-1": 0.2, "null-adaptive-1": 0.5}
    for name, found in judged.items():
        row = found.to_dict()
        assert row["verdict"] == "consistent"
        assert least[name] * row["exact"] < row["audited"] < row["exact"]
        assert row["certified"] < row["detectable"] < 3 * row["certified"]
        assert row["paper_over_certified"] == pytest.approx(row["paper"] / row["certified"])
        assert row["audited_over_exact"] == pytest.approx(row["audited"] / row["exact"])
        assert (row["seeds"], row["seeds_judged"]) == (SEEDS, 0.9 * SEEDS)


def test_a_verdict_takes_less_risk_than_a_number(linear, judged):
    """With this key four joint releases look more different than they are."""
    del judged  # its run compiled the program that is used here
    found = run(linear, UNLUCKY, names=["dp-joint"])["dp-joint"]
    assert found.numbers.refuted
    assert found.verdict.consistent
    assert found.to_dict()["verdict"] == "consistent"
    assert found.verdict.confidence == pytest.approx(1 - 0.05 / 50)
    assert found.verdict.detectable > found.numbers.detectable


def test_stated_power_of_a_stated_event_is_the_simulated_one(linear):
    """The recoded claim is judged by one event: coins at `detectable` are caught 9 times in 10."""
    (case,) = [case for case in linear.audited if case.name == "adaptive-1"]
    caught = audits.gates_for(case.claim, case.gates, independent=True)[0].detectable(
        seeds=1800,
        confidence=0.975,
        one_event=True,  # two directions share the risk
    )
    grid = np.linspace(0, 4, 4001)
    means = special.ndtr(grid / 2)
    truth = np.log(means**2 / (1 - means) + (1 - means) ** 2 / means)
    mean = means[np.searchsorted(truth, caught)]
    present, absent = np.random.default_rng(0).binomial(1, [[[mean]], [[1 - mean]]], (2, 300, 2000))
    verdicts = [
        audit(
            (2.0 * ones[:, None] - 1, 2.0 * zeros[:, None] - 1),
            case.claim,
            scores=case.score,
            gates=case.gates,
            independent=True,
        ).verdicts[0]
        for ones, zeros in zip(present, absent, strict=True)
    ]
    assert verdicts[0].detectable == pytest.approx(caught)
    assert 0.8 < np.mean([verdict.refuted for verdict in verdicts]) < 0.97


def test_a_claim_below_the_truth_is_refuted(linear, judged):
    """The same samples, against a promise of two thirds of what is true."""
    del judged  # its run compiled the program that is used here
    (case,) = [case for case in linear.audited if case.name == "dp"]
    claim = case.claim
    assert isinstance(claim, claims.RenyiClaim)
    assert claim.mu is not None
    false = replace(claim, eps=claim.eps / 1.5, mu=claim.mu / 1.5**0.5)
    wrong = linear._replace(audited=(case._replace(claim=false),))
    found = run(wrong, 0)["dp"]
    assert found.verdict.refuted
    assert found.verdict.lower_bound.value > false.eps


def test_the_same_seeds_are_used_whichever_claims_are_asked_for(linear, judged):
    name = "deletion-1"
    shared = judged[name].numbers.lower_bound.value
    alone = run(linear, LUCKY, names=[name])[name]
    # One claim alone does not share its risk.
    assert alone.numbers.lower_bound.value > shared
    each = dd.intervals.simultaneous(0.95, 6)
    again = run(linear, LUCKY, names=[name], confidence=each)[name]
    assert again.numbers.lower_bound.value == shared


def test_every_interaction_has_its_own_seeds(linear, monkeypatch):
    keys = {}

    def sample(setting, name, key, *rest):
        keys[name] = tuple(np.asarray(jax.random.key_data(key)).tolist())

    monkeypatch.setattr(audits, "sample", sample)
    monkeypatch.setattr(audits, "judge", lambda *args: None)
    audits.run(linear, jax.random.key(0), 100, confidence=0.95, keep=NOWHERE, say=quiet)
    assert len(set(keys.values())) == len(keys) == len(linear.interactions)


def test_chunks_on_disk_change_nothing_and_are_used(linear, judged, tmp_path, monkeypatch):
    def value(keep):
        found = run(linear, LUCKY, keep=keep, confidence=dd.intervals.simultaneous(0.95, 6))
        return found["dp"].numbers.lower_bound.value

    linear = linear._replace(audited=linear.audited[:1])
    assert value(Keep(tmp_path, True)) == judged["dp"].numbers.lower_bound.value
    assert len(list(tmp_path.rglob("*.npz"))) == 2
    monkeypatch.setattr(ensemble, "over_seeds", None)
    assert value(Keep(tmp_path, True)) == judged["dp"].numbers.lower_bound.value
    with pytest.raises(TypeError):
        value(Keep(tmp_path, False))


def test_a_record_that_was_not_deleted_is_found_out(linear):
    stays = linear.interactions["stays"]
    wrong = linear._replace(interactions={"stays": stays._replace(deleted_by=1)})
    with pytest.raises(InputError, match="not deleted"):
        audits.sample(wrong, "stays", jax.random.key(0), SEEDS, NOWHERE, quiet)


def test_bad_input_is_refused_before_anything_is_run(linear):
    with pytest.raises(InputError, match="cubic"):
        find("cubic", 2.0)
    for word, wrong in (
        ("dpp", {"names": ["dpp"]}),
        ("seeds", {"seeds": 6}),
        ("confidence", {"confidence": 1.5}),
    ):
        with pytest.raises(InputError, match=word):
            run(linear, 0, say=pytest.fail, **({"seeds": 100} | wrong))


# --- batches ------------------------------------------------------------------------------------


@pytest.mark.parametrize("batches", [2, 3, 5, 7])
def test_exact_numbers_with_batches_are_below_those_of_the_row_and_of_the_plan(batches):
    setting = find("linear", 2.0, batches)
    plan, ends = setting.plan, setting.plan.learn_steps
    # The batch that comes next matters: no number of steps is a multiple of m, nor is n.
    assert all(number % batches for number in (plan.n, ends, plan.delete_steps))
    cases = {case.name: case for case in setting.audited}
    rows = audits.targets(plan.n, batches)
    whole_life = dd.plans.settings.stream(plan)
    for where, row in rows.items():
        batch = dd.guarantees.schedules.batch_of_row(plan.n, batches, row)
        of_row = {
            f"dp{where}": whole_life.privacy_at(0, batch=batch),
            f"dp-joint{where}": whole_life.joint(3, batch=batch),
            f"deletion-2{where}": whole_life.deletion_at(2, batch=batch),
            f"adaptive-1{where}": whole_life.deletion_at(1, (0,), batch=batch),
            f"null-2{where}": whole_life.deletion_at(2, batch=batch) / 4,
            f"null-adaptive-1{where}": whole_life.deletion_at(1, (0,), batch=batch) / 4,
        }
        for name, number in of_row.items():
            case = cases.pop(name)
            assert 0 < case.exact <= number * (1 + 1e-9) <= case.claim.claimed * (1 + 2e-9)
            assert case.paper is None
    assert not cases
    assert {*rows.values()} >= {0, plan.n - 1}


def test_samples_with_batches_have_the_exact_laws():
    """Audited at 99.9%: below what is exact, and not far below."""
    setting = find("linear", 2.0, 3)
    names = ["dp-joint-last", "deletion-2-middle", "adaptive-1-first", "null-adaptive-1-first"]
    for found in run(setting, LUCKY, soak(SEEDS, 100_000), names=names, confidence=0.999).values():
        row = found.to_dict()
        assert row["verdict"] == "consistent"
        assert 0.5 * row["exact"] < row["audited"] < row["exact"] < row["certified"]


def test_a_recoded_release_with_one_batch_is_the_closed_form(linear):
    numbers = (2.0, 1.0, 1.0, linear.plan.noise_variance, linear.plan.n, linear.plan.step_size)
    steps = {"delete_steps": 5, "init_variance": linear.plan.init_variance}
    oracle = dd.oracles.linear
    closed = oracle.recoding_renyi(*numbers, 60, **steps)
    assert oracle.recoding_renyi_of_steps(*numbers, 60, **steps) == pytest.approx(closed, rel=1e-9)


# --- the logistic setting -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def digits():
    return dd.data.load(audit_logistic.DATASET).train


@pytest.fixture(scope="module")
def target(digits):
    return worst_record(dd.Problem(dd.losses.logistic(), audit_logistic.L2), digits)


def test_the_worst_record_pulls_the_model_both_ways(digits, target):
    """Their gradients at the optimum differ by more than a change of label could, along v."""
    problem = dd.Problem(dd.losses.logistic(), audit_logistic.L2)
    problem.loss.domain.check(target.record)
    # The first pixel is blank in every digit; so are others, and no processor may choose.
    np.testing.assert_allclose(target.direction, np.eye(64)[0], atol=1e-6)
    optimum = dd.erm.minimise(problem, digits).params
    slope = jax.grad(problem.loss.value)
    first, second = (
        np.asarray(slope(optimum, jax.tree.map(lambda leaf: leaf[0], record)))
        for record in (target.record, target.other)
    )
    apart = second - first
    assert np.linalg.norm(apart) > 1.05
    assert apart @ target.direction == pytest.approx(np.linalg.norm(apart), rel=1e-2)


def observe(release, request, visible=True):
    return Observation(jnp.asarray(release), jnp.asarray(visible), jnp.int32(request))


def test_the_recoder_watches_and_then_recodes_by_the_side_of_the_mean(digits, target):
    loss = dd.losses.logistic()
    curious = recoder(loss, digits, target, deleted_by=2)
    v = jnp.asarray(target.direction, jnp.float32)
    key = jax.random.key(0)
    for side in (1, -1):
        memory = curious.init(key)
        memory, edit = curious.act(key, memory, observe((target.centre + 3 * side) * v, 1))
        watched = dd.apply_edit(digits, edit)
        np.testing.assert_array_equal(watched.features, digits.features)
        # The second look says the other side, but less loudly: the mean decides.
        memory, edit = curious.act(key, memory, observe((target.centre - 1 * side) * v, 2))
        recoded = dd.apply_edit(digits, edit)
        np.testing.assert_allclose(recoded.features[1:-1], jnp.tile(side * v, (265, 1)), atol=1e-6)
        np.testing.assert_array_equal(recoded.features[0], jnp.zeros(64))
        assert float(memory.count) == 2


def test_the_loss_chaser_deletes_the_worst_other_row_and_then_the_target(digits, target):
    loss = dd.losses.logistic()
    chaser = loss_chaser(loss, digits, target, deleted_by=2)
    key, model = jax.random.key(0), jnp.ones(64)
    memory, edit = chaser.act(key, chaser.init(key), observe(model, 1))
    losses = jax.vmap(loss.value, in_axes=(None, 0))(model, digits)
    assert int(edit.index[0]) == int(jnp.argmax(losses.at[0].set(-jnp.inf)))
    _, edit = chaser.act(key, memory, observe(jnp.zeros(64), 2, visible=False))
    assert int(edit.index[0]) == 0


@pytest.mark.parametrize("batches", [1, 4])
def test_logistic_claims_name_their_samples(batches):
    setting = find("logistic", 2.0, batches)
    cases = {case.name: case for case in setting.audited}
    for case in setting.audited:
        run = setting.interactions[case.interaction]
        assert set(case.releases) <= set(run.kept)
        # Nothing from before the deletion is ever shown to a claim about a deleted record.
        assert min(case.releases) >= run.deleted_by
        assert (run.deleted_by == 0) == case.name.startswith("dp")
    rows = audits.targets(setting.plan.n, batches)
    for where, row in rows.items():
        certified = {name: cases[name + where].claim.claimed for name in NAMED}
        assert certified["dp"] == pytest.approx(1)
        assert certified["adaptive-3-loss"] == pytest.approx(certified["deletion-20"] + 3)
        assert certified["null-1"] == pytest.approx(certified["deletion-1"] / 4)
        adaptive = (certified["deletion-1"] + 1) / 4
        assert certified["null-adaptive-1-recoding"] == pytest.approx(adaptive)
        for name in ("null-1", "null-adaptive-1-recoding"):
            # The other world never held the record: its row is null from the start.
            absent = setting.interactions[name + where].alternative
            assert absent.index.tolist() == [row]
            assert not np.any(absent.record.features)
    if batches == 1:
        assert min(case.paper / case.claim.claimed for case in setting.audited) > 1.3
    else:
        assert setting.plan.n % batches
        assert setting.plan.delete_steps % batches


@pytest.mark.slow
def test_a_recoding_requester_leaves_more_than_deletion_alone_allows(monkeypatch):
    """On real data, three releases seen: beyond ε_dd, within ε_dd + 3 ε_dp.

    On 40 records the lower bound is .24 ± .04 over keys, where deletion alone allows .085.
    """
    records, seeds = soak((40, 2000), (267, 8000))
    digits = dd.data.load(audit_logistic.DATASET)
    few = digits._replace(train=jax.tree.map(lambda leaf: leaf[:records], digits.train))
    monkeypatch.setattr(audit_logistic.data, "load", lambda name: few)
    setting, name = find("logistic", 2.0), "adaptive-3-recoding"
    found = run(setting, 0, seeds, names=[name], confidence=0.9)[name]
    alone = setting.plan.certificate().eps_dd
    assert not found.verdict.refuted
    assert alone < found.numbers.lower_bound.value < found.audited.claim.claimed
