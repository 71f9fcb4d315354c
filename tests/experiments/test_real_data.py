import math

import jax.numpy as jnp
import numpy as np
import pytest
from problems import soak
from scipy import optimize
from shown import column, shown

import dd_jax as dd
from dd_jax import data
from dd_jax.guarantees import renyi, risk
from dd_jax.guarantees.convex import Descent
from experiments.cache import Runner
from experiments.figures import real_data
from experiments.figures.real_data import TARGETS, Audited, Cost

DIGITS = "digits-3-vs-8"
MNIST = "mnist-3-vs-8"
L2 = 1e-3
KAPPA = 1 + 0.25 / L2
ASKED = real_data.Asked(dd.Problem(dd.losses.logistic(), L2), 11_982, 784, 1.0, 100)
CONFIG = real_data.Config(datasets=(DIGITS,), deletions=12, seeds=6, audit_seeds=400, judged=5)


@pytest.fixture(scope="module")
def run():
    """(the figure's arrays, the releases of the stream)."""
    kept = []
    original = real_data.releases

    def releases(*args):
        kept.append(original(*args))
        return kept[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(real_data, "releases", releases)
        return real_data.compute(CONFIG, Runner()), kept[0]


@pytest.fixture(scope="module")
def results(run):
    return run[0]


# --- costs: no data needed ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def mnist_costs():
    return [real_data.cost(ASKED, target) for target in TARGETS]


def test_targets_are_shares_of_a_divergence_or_of_epsilon():
    half, tenth, half_epsilon, tenth_epsilon = (target.mu(ASKED) for target in TARGETS)
    for order in (2, 30):
        private = renyi.renyi_from_gdp(order, ASKED.mu_dp)
        assert math.isclose(renyi.renyi_from_gdp(order, half), private / 2)
        assert math.isclose(renyi.renyi_from_gdp(order, tenth), private / 10)
    for mu, epsilon in ((ASKED.mu_dp, 1.0), (half_epsilon, 0.5), (tenth_epsilon, 0.1)):
        assert math.isclose(renyi.gdp_epsilon(mu, 1 / 11_982), epsilon, rel_tol=1e-9)


def test_deletion_on_mnist_is_ten_and_three_times_cheaper_than_retraining(mnist_costs):
    """By hand: c = 1 - 1/κ, K_U = ⌈log(μ_dp/μ_dd) / -log c⌉."""
    rate = -math.log1p(-1 / KAPPA)
    for target, found in zip(TARGETS, mnist_costs, strict=True):
        assert found.delete == math.ceil(math.log(ASKED.mu_dp / target.mu(ASKED)) / rate)
        assert found.delete < found.langevin_first <= found.langevin
    half, tenth, half_epsilon, tenth_epsilon = mnist_costs
    assert half.delete == 87
    assert half.retrain / half.delete >= 10
    assert tenth.retrain / tenth.delete >= 3
    # A share of ε is a smaller μ: there it needs the bound of the last release.
    assert half_epsilon.retrain_last / half_epsilon.delete >= 10
    assert tenth_epsilon.retrain_last / tenth_epsilon.delete >= 3


def test_retraining_is_the_least_that_has_the_bound(mnist_costs):
    found = mnist_costs[0]
    plan = real_data.make_plan(ASKED, TARGETS[0])
    loss = plan.problem.loss
    numbers = (plan.noise_variance, plan.n, plan.step_size)
    run = Descent(2, loss.lipschitz, L2, loss.smoothness, *numbers)

    def bound(steps, request=0):
        return risk.excess_risk_convex(run, plan.dim, steps, 87, request, plan.init_variance)

    for steps, reached in (
        (found.retrain, found.risk_bound),
        (found.retrain_last, found.risk_bound_last),
    ):
        assert bound(steps) <= reached * (1 + 1e-9) < bound(steps - 1) * (1 + 1e-9)
    every = [bound(plan.learn_steps, request) for request in range(101)]
    assert max(every) <= found.risk_bound * (1 + 1e-12)
    assert math.isclose(every[-1], found.risk_bound_last)


def test_the_paper_s_steps_are_its_theorem_s(mnist_costs):
    half, tenth, half_epsilon, _ = mnist_costs
    assert half.paper_delete == math.ceil(4 * KAPPA * math.log(2))
    assert tenth.paper_delete == math.ceil(4 * KAPPA * math.log(10))
    assert half.paper_delete_risk == math.ceil(4 * KAPPA * math.log(5 * KAPPA))
    ratio = ASKED.mu_dp**2 * ASKED.n**2 / (8 * ASKED.dim)
    assert half.paper_learn == math.ceil(4 * KAPPA * math.log(ratio))
    assert math.isnan(half_epsilon.paper_delete)


# --- runs ---------------------------------------------------------------------------------------


def objective(theta, features, label):
    margins = features @ theta * label
    return np.mean(np.logaddexp(0, -margins)) + real_data.L2[DIGITS] / 2 * theta @ theta


def test_risks_are_judged_on_the_database_that_is_left():
    """Against SciPy's minimiser in float64, on arrays that were blanked by hand."""
    train = data.load(DIGITS).train
    problem = dd.Problem(dd.losses.logistic(), real_data.L2[DIGITS])
    models = np.random.default_rng(1).standard_normal((2, 13, 64)).astype(np.float32)
    edits = real_data.stream(problem, train, 12)
    found = real_data.risks(problem, models[:, [0, 12]], train, edits, (0, 12))
    features, label = np.asarray(train.features, float).copy(), np.asarray(train.label, float)
    for place, request in ((0, 0), (-1, 12)):
        features[:request] = 0
        least = optimize.minimize(
            objective, np.zeros(64), (features, label), options={"gtol": 1e-9}
        )
        expected = [objective(model, features, label) - least.fun for model in models[:, request]]
        np.testing.assert_allclose(found[:, place], expected, rtol=1e-3)


@pytest.mark.skipif(soak(True, False), reason="`make report` runs it; judged in `make soak`")
def test_a_tiny_run_on_digits_learns_and_stays_within_its_bounds(run):
    results, models = run
    found = {key.removeprefix(f"{DIGITS}: "): value for key, value in results.items()}
    assert found["accuracy"].shape == (6, 13)
    assert found["accuracy"].mean() > found["majority"] + 0.1
    assert found["judged"].tolist() == [0, 3, 6, 9, 12]
    assert (found["risk"] > 0).all()
    assert (found["risk"].mean(axis=0) <= found["risk bound"]).all()
    np.testing.assert_allclose(found["epsilon"][0], 1.0, rtol=1e-9)
    assert 0.5 < found["epsilon"][1] < 1.0  # half of the divergence is more than half of ε
    assert found["checkpoints"][-1] == Cost(*found["costs"][0]).learn
    # Learning ends in the law that the stream starts from.
    assert abs(found["learning risk"][:, -1].mean() / found["risk"][:, 0].mean() - 1) < 0.5
    # The stream blanks one row after another and is judged on held-out rows.
    loaded = data.load(DIGITS)
    edits = real_data.stream(dd.Problem(dd.losses.logistic(), 0.02), loaded.train, 12)
    np.testing.assert_array_equal(edits.index[:, 0], np.arange(12))
    assert not jnp.any(edits.record.features)
    right = np.sign(models @ np.asarray(loaded.test.features).T) == np.asarray(loaded.test.label)
    np.testing.assert_allclose(right.mean(axis=-1), found["accuracy"], atol=1e-6)


def test_the_audit_is_of_the_plan_s_own_numbers(results):
    asked = real_data.make_asked(CONFIG, DIGITS, data.load(DIGITS).train)
    stays, deleted = (Audited(*row) for row in results[f"{DIGITS}: audit"])
    assert math.isclose(stays.certified_mu, asked.mu_dp, rel_tol=1e-9)
    assert deleted.certified_mu <= TARGETS[0].mu(asked) < stays.certified_mu
    for found in (stays, deleted):
        assert found.audited <= found.certified < found.detectable
        assert math.isclose(found.certified, found.certified_mu**2)
    assert math.isclose(stays.certified_epsilon, 1.0, rel_tol=1e-9)


# --- tables -------------------------------------------------------------------------------------


def test_tables_say_what_came_out_and_how_to_get_what_is_missing(results):
    ran, costed, audited = shown(real_data, CONFIG, results)
    assert len(ran) == len(real_data.L2)
    assert any("fetch mnist" in name for name in column(ran, "data"))
    assert ran[0]["verdict on all risks"] == "within"
    assert costed[0]["gradients"] == 267 * (42 + 12 * costed[0]["K_U"])
    assert costed[0]["gradients, retraining"] == 267 * (42 + 12 * costed[0]["retraining"])
    assert column(audited, "verdict") == ["consistent"] * 2
    bad = results | {f"{DIGITS}: risk": 100 * results[f"{DIGITS}: risk"]}
    bad[f"{DIGITS}: audit"] = results[f"{DIGITS}: audit"].copy()
    bad[f"{DIGITS}: audit"][0, Audited._fields.index("refuted")] = 1
    ran, _, audited = shown(real_data, CONFIG, bad)
    assert ran[0]["verdict on all risks"] == "ABOVE"
    assert column(audited, "verdict") == ["refuted", "consistent"]


def test_fetched_data_wait_for_the_full_scale_with_their_costs_known(monkeypatch, results):
    monkeypatch.setattr(real_data, "_is_fetched", lambda name: True)
    found = real_data.compute(CONFIG, Runner())
    assert set(found) == {f"{DIGITS}: size", f"{DIGITS}: costs"}
    np.testing.assert_array_equal(found[f"{DIGITS}: costs"], results[f"{DIGITS}: costs"])
    waiting = {key.replace(DIGITS, MNIST): value for key, value in found.items()}
    ran, costed, audited = shown(real_data, CONFIG, results | waiting)
    assert column(costed, "data") == [DIGITS] * 4 + [MNIST] * 4
    assert any(MNIST in name and "full" in name for name in column(ran, "data"))
    assert len(audited) == 2


def test_measured_retraining_is_the_first_checkpoint_that_arrives():
    made = {
        f"{DIGITS}: risk": np.array([[9.0, 1.0, 1.0]]),
        f"{DIGITS}: learning risk": np.array([[5.0, 1.11, 1.09, 2.0]]),
        f"{DIGITS}: checkpoints": np.array([1, 4, 9, 20]),
    }
    assert real_data.measured_retraining(made, DIGITS) == 9
    made[f"{DIGITS}: learning risk"] += 1
    assert real_data.measured_retraining(made, DIGITS) == math.inf
