"""Every adversary against Noisy-GD: inside the certificate, and beyond it with half the noise."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from problems import soak
from scipy import stats

from dd_jax.attacks import against_noisy_gd as against
from dd_jax.attacks import find
from dd_jax.ensemble import Pair
from dd_jax.interaction import Observation
from dd_jax.intervals import advantage

N = 20


def test_there_are_enough_configurations_and_few_games_to_compile():
    settings = against.configurations(N)
    assert len(set(settings)) == len(settings) >= 30
    assert {s.observed for s in settings} == {0, 1, 2, 3}
    assert {s.edits for s in settings} == {1, 2, N - 1}
    assert len({s.condition for s in settings}) == 3
    cases = [against.make_case(name, s, N, 2.0) for s in settings for name in against.FAMILIES]
    assert len({case.moves for case in cases}) == len(against.REQUESTERS)


@pytest.mark.parametrize("index", [0, 30])
@pytest.mark.parametrize("name", against.FAMILIES)
@pytest.mark.parametrize("batches", [1, 3])
def test_the_certificate_is_the_optimal_one_for_these_budgets(index, name, batches):
    setting = against.configurations(N, batches)[index]
    case = against.make_case(name, setting, N, 2.0)
    assert case.plan.accountant == "optimal"
    assert case.plan.step_size * case.plan.problem.l2 == pytest.approx(1 / setting.condition)
    bound, tightest = against.certified(case, 2.0)
    mu = np.sqrt(setting.eps_dd + setting.observed * setting.eps_dp)
    assert bound == pytest.approx(2 * stats.norm.cdf(mu / 2) - 1)
    assert tightest <= bound * (1 + 1e-9)
    # The planner finds the steps that the budgets were made from, and the target is used last.
    assert case.plan.delete_steps == against.REQUESTERS[index // 12][2]
    last = case.moves.learn_steps + setting.observed * case.moves.delete_steps - 1
    assert last % batches == 0
    assert case.plan.batches == case.moves.batches == batches


@pytest.mark.parametrize("name", against.FAMILIES)
def test_the_target_and_its_opposite_have_opposite_gradients(name):
    family = against.FAMILIES[name]
    database = family.database(N)
    target = jax.tree.map(lambda leaf: leaf[against.TARGET_ROW], database)
    opposite = jax.tree.map(lambda leaf: leaf[0], family.opposite().record)
    null = jax.tree.map(lambda leaf: leaf[0], family.encode(jnp.zeros(1)))
    slope = jax.grad(family.loss.value)
    theta = 0.0 * family.loss.template(database)
    np.testing.assert_allclose(slope(theta, target), -slope(theta, opposite))
    np.testing.assert_allclose(slope(theta + 1, null), 0)
    family.loss.domain.check(database)


def acts(strategy, releases, *, edits=2, deletion=3, n=6):
    """Rows and weights of every request, for a requester shown these releases."""
    requester = against.requester(
        against.FAMILIES["linear"], n, edits, deletion, jnp.int32(strategy)
    )
    memory, requests = requester.init(jax.random.key(0)), []
    for request in range(1, deletion + 1):
        shown = releases[request - 1]
        release = jnp.full(1, shown if shown is not None else 0.0)
        seen = Observation(release, jnp.asarray(shown is not None), jnp.int32(request))
        memory, edit = requester.act(jax.random.key(1), memory, seen)
        requests.append((edit.index.tolist(), edit.record[:, 0].tolist()))
    return requests


@pytest.mark.parametrize(
    ("strategy", "weights"),
    [
        # The sign of all that it saw, in all rows.
        (against.RECODING, [[-1.0, -1.0], [1.0, 1.0], [0.0, 1.0]]),
        # The sign of φ_0, in row 1.
        (against.NECESSITY, [[-1.0, 0.0], [0.0, 0.0], [0.0, -1.0]]),
        (against.BLIND, [[0.0, 0.0]] * 3),
        # Odd rows are x, even ones -x: φ_0 says -x, so the even ones leave.
        (against.GROUP, [[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]),
    ],
)
def test_what_each_requester_writes_and_the_target_goes_last(strategy, weights):
    requests = acts(strategy, [-0.1, 0.3, None])
    assert [rows for rows, _ in requests] == [[1, 2], [3, 4], [0, 1]]
    assert [written for _, written in requests] == weights


def test_the_median_like_requester_copies_the_first_release():
    first, second, third = acts(against.COPY, [-0.1, 0.3, None])
    assert first[1] == second[1] == pytest.approx([-0.6, -0.6])
    assert 0 not in first[0] + second[0]
    assert third[0][0] == 0
    assert third[1] == pytest.approx([0, -0.6])


def test_the_group_that_left_is_the_one_the_release_leans_away_from():
    positive = np.arange(100)[:, None] < np.array([[80]])
    pair = Pair(np.where(positive, 1.0, -1.0), np.where(positive, -1.0, 1.0))
    assert against.sign_attack(pair, against.RECODING, 0.9).value == pytest.approx(0.6)
    assert against.sign_attack(pair, against.GROUP, 0.9).value == pytest.approx(-0.6)


def test_the_shadow_test_is_judged_on_runs_it_was_not_fitted_on():
    rng = np.random.default_rng(0)
    samples = rng.normal(size=(2, 4_000, 2))
    samples[0, :, 1] += 1.0
    found = against.shadow_attack(Pair(*samples), 0.999)
    assert found.trials == 2_000
    assert found.contains(2 * stats.norm.cdf(0.5) - 1)
    noise = rng.normal(size=(2, 60, 40))
    assert against.shadow_attack(Pair(*noise), 0.9).low < 0


def test_with_batches_the_likelihood_ratio_test_is_at_the_bound():
    """Where nobody looks, and the target is used last, what is certified is the exact value."""
    for setting in against.configurations(N, 3)[:12]:
        case = against.make_case("linear", setting, N, 2.0)
        exact = against.exact_likelihood_ratio(case)
        assert exact == pytest.approx(against.certified(case, 2.0)[1], rel=2e-3)


def test_the_exact_advantage_of_the_likelihood_ratio_test():
    case = against.make_case("linear", against.configurations(N)[5], N, 2.0)
    plan, c = case.plan, 0.75
    shift = 2 / N * (1 - c**30) * c**2
    spread = c**64 * plan.init_variance + 2 * plan.noise_variance / 4 * (1 - c**64) / (1 - c**2)
    expected = 2 * stats.norm.cdf(shift / np.sqrt(spread) / 2) - 1
    assert against.exact_likelihood_ratio(case) == pytest.approx(expected)


def test_all_intervals_share_the_risk(monkeypatch):
    asked = []

    def score(key, setting, n, order, seeds, confidence, noise=1.0):
        asked.append((seeds, confidence, noise))
        estimates = dict.fromkeys(["likelihood ratio"], advantage(50, 50, 100, confidence))
        return against.Scores(setting, estimates, 0.1, 0.1, 0.0)

    monkeypatch.setattr(against, "score", score)
    result = find("noisy-gd").run(jax.random.key(0), seeds=64, confidence=0.9)
    # Six attacks in 48 configurations and 12 controls.
    assert [c for _, c, _ in asked] == pytest.approx([1 - 0.1 / (6 * 60)] * 60)
    assert [(s, noise) for s, _, noise in asked] == [(64, 1.0)] * 48 + [(256, 0.5)] * 12
    assert [finding.refuted for finding in result.findings] == [False, False, False]


@pytest.mark.parametrize("bounds", [(0.1, 0.9), (0.9, 0.1)])
def test_a_limit_above_either_bound_counts_against_us(bounds):
    estimates = {"likelihood ratio": advantage(90, 10, 100, 0.9)}
    beaten = against.Scores(against.configurations(N)[0], estimates, *bounds, 0.8)
    claim, control, _ = against._findings([beaten], [beaten])
    assert claim.refuted
    assert claim.claim.owner == "ours"
    assert control.refuted == (bounds[0] < 0.5)


@pytest.mark.slow
@pytest.mark.parametrize("batches", [1, 3])
def test_no_attack_beats_the_certificate_and_half_the_noise_is_caught(monkeypatch, batches):
    # At 1024 seeds the control's lower limit is seven deviations above the certificate already.
    monkeypatch.setattr(against, "CONTROL_SEEDS", 1)
    few = ((against.REQUESTERS[1],), (2.0,), (4.0,))
    few = few if batches > 1 else (against.REQUESTERS[:2], (2.0, 10.0), (4.0,))
    tried = soak(few, (against.REQUESTERS, against.CONDITIONS, against.BUDGETS))
    for name, values in zip(("REQUESTERS", "CONDITIONS", "BUDGETS"), tried, strict=True):
        monkeypatch.setattr(against, name, values)
    result = find("noisy-gd").run(jax.random.key(0), seeds=1_024, batches=batches)
    assert [finding.refuted for finding in result.findings] == [False, True, False]
    assert [finding.claim.owner for finding in result.findings] == ["ours", "control", "ours"]
    assert len(result.rows) == np.prod([len(values) for values in tried])
    for row in result.rows:
        assert row["low"] <= min(row["tightest"], row["certified"])
    assert result.estimate.low <= result.bound
    assert result.theory["at_half_the_noise"] > 0


@pytest.mark.slow
def test_half_the_noise_would_count_against_us():
    setting = against.configurations(N)[15]
    assert (setting.observed, setting.edits, setting.eps_dp) == (1, N - 1, 4.0)
    weak = against.score(jax.random.key(1), setting, N, 2.0, 4_096, 1 - 1e-5, noise=0.5)
    assert against._findings([weak], [weak])[0].refuted
    # The group that left is named too: its traces outlast the deletion.
    assert weak.estimates["re-encoding"].low > weak.certified
    # The shadow test, on the loss without a closed form, has learned something too.
    assert weak.estimates[against.SHADOW].low > 0.1
