import math
import os
from types import SimpleNamespace

import drawn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize

import dd_jax as dd
from dd_jax import data
from dd_jax.data import fetch
from dd_jax.guarantees import renyi, risk
from dd_jax.guarantees.convex import Descent
from dd_jax.intervals import mean_over_seeds
from experiments.cache import Runner
from experiments.figures import real_data
from experiments.real_data import costs, runs, words

DIGITS = "digits-3-vs-8"
MNIST = "mnist-3-vs-8"
L2 = 1e-3
KAPPA = 1 + 0.25 / L2
SETTING = costs.Setting(dd.Problem(dd.losses.logistic(), L2), 11_982, 784, 1.0, 100)
CONFIG = real_data.Config(datasets=(DIGITS,), deletions=12, seeds=6, audit_seeds=400)


@pytest.fixture(scope="module")
def run():
    """(the figure's arrays, the releases of the stream)."""
    kept = []
    original = runs.releases

    def releases(*args):
        kept.append(original(*args))
        return kept[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runs, "releases", releases)
        return real_data.compute(CONFIG, Runner()), kept[0]


@pytest.fixture(scope="module")
def results(run):
    return run[0]


# --- costs: no data needed ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def mnist_costs():
    return {target.words: costs.cost(SETTING, target) for target in SETTING.targets}


def test_targets_are_shares_of_a_divergence_or_of_epsilon():
    half, tenth, half_epsilon, tenth_epsilon = SETTING.targets
    for order in (2, 30):
        private = renyi.renyi_from_gdp(order, SETTING.mu_dp)
        assert math.isclose(renyi.renyi_from_gdp(order, half.mu), private / 2)
        assert math.isclose(renyi.renyi_from_gdp(order, tenth.mu), private / 10)
    assert math.isclose(renyi.gdp_epsilon(SETTING.mu_dp, 1 / 11_982), 1.0, rel_tol=1e-9)
    assert math.isclose(renyi.gdp_epsilon(half_epsilon.mu, 1 / 11_982), 0.5, rel_tol=1e-9)
    assert math.isclose(renyi.gdp_epsilon(tenth_epsilon.mu, 1 / 11_982), 0.1, rel_tol=1e-9)


def test_deletion_on_mnist_is_ten_and_three_times_cheaper_than_retraining(mnist_costs):
    """By hand: c = 1 - 1/κ, K_U = ⌈log(μ_dp/μ_dd) / -log c⌉."""
    rate = -math.log1p(-1 / KAPPA)
    for target in SETTING.targets:
        by_hand = math.ceil(math.log(SETTING.mu_dp / target.mu) / rate)
        assert mnist_costs[target.words].delete == by_hand
    half, tenth, half_epsilon, tenth_epsilon = mnist_costs.values()
    assert half.delete == 87
    assert half.retrain / half.delete >= 10
    assert tenth.retrain / tenth.delete >= 3
    # A share of ε is a smaller μ: there it needs the bound of the last release.
    assert half_epsilon.retrain_last / half_epsilon.delete >= 10
    assert tenth_epsilon.retrain_last / tenth_epsilon.delete >= 3


def test_retraining_is_the_least_that_has_the_bound(mnist_costs):
    found = next(iter(mnist_costs.values()))
    plan = costs.make_plan(SETTING, SETTING.targets[0])
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
    half, tenth, half_epsilon, _ = mnist_costs.values()
    assert half.paper_delete == math.ceil(4 * KAPPA * math.log(2))
    assert tenth.paper_delete == math.ceil(4 * KAPPA * math.log(10))
    assert half.paper_delete_risk == math.ceil(4 * KAPPA * math.log(5 * KAPPA))
    ratio = SETTING.mu_dp**2 * SETTING.n**2 / (8 * SETTING.dim)
    assert half.paper_learn == math.ceil(4 * KAPPA * math.log(ratio))
    assert math.isnan(half_epsilon.paper_delete)
    for found in mnist_costs.values():
        assert found.delete < found.langevin_first <= found.langevin


def test_langevin_s_steps_are_the_first_request_s_and_the_mean_of_all(monkeypatch):
    served = SimpleNamespace(request_steps=[3, 5, 10])
    monkeypatch.setattr(costs.langevin, "calibrate", lambda *_, **__: served)
    found = costs.cost(SETTING, SETTING.targets[0])
    assert (found.langevin_first, found.langevin) == (3, 6)


# --- runs ---------------------------------------------------------------------------------------


def objective(theta, features, label):
    margins = features @ theta * label
    return np.mean(np.logaddexp(0, -margins)) + real_data.L2[DIGITS] / 2 * theta @ theta


def test_risks_are_judged_on_the_database_that_is_left():
    """Against SciPy's minimiser in float64, on arrays that were blanked by hand."""
    train = data.load(DIGITS).train
    problem = dd.Problem(dd.losses.logistic(), real_data.L2[DIGITS])
    models = np.random.default_rng(1).standard_normal((2, 13, 64)).astype(np.float32)
    edits = runs.stream(problem, train, 12)
    found = runs.stream_risks(problem, models, train, edits, np.array([0, 12]))
    features, label = np.asarray(train.features, float).copy(), np.asarray(train.label, float)
    for place, request in ((0, 0), (-1, 12)):
        features[:request] = 0
        least = optimize.minimize(
            objective, np.zeros(64), (features, label), options={"gtol": 1e-9}
        )
        expected = [objective(model, features, label) - least.fun for model in models[:, request]]
        np.testing.assert_allclose(found[:, place], expected, rtol=1e-3)


def test_a_run_on_digits_learns_and_stays_within_its_bounds(results):
    found = {key.removeprefix(f"{DIGITS}: "): value for key, value in results.items()}
    assert found["size"].tolist() == [267, 64, 90]
    assert found["accuracy"].shape == (6, 13)
    assert found["accuracy"].mean() > found["majority"] + 0.1
    assert found["judged"].tolist() == [0, 1, 2, 4, 5, 6, 7, 8, 10, 11, 12]
    assert (found["risk"] > 0).all()
    assert (found["risk"].mean(axis=0) <= found["risk bound"]).all()
    np.testing.assert_allclose(found["epsilon"][0], 1.0, rtol=1e-9)
    assert 0.5 < found["epsilon"][1] < 1.0  # half of the divergence is more than half of ε
    assert found["checkpoints"][-1] == costs.Cost(*found["costs"][0]).learn
    # Learning ends in the law that the stream starts from.
    assert abs(found["learning risk"][:, -1].mean() / found["risk"][:, 0].mean() - 1) < 0.5


def test_the_stream_blanks_one_row_after_another_and_is_judged_on_held_out_rows(run):
    results, models = run
    loaded = data.load(DIGITS)
    edits = runs.stream(dd.Problem(dd.losses.logistic(), 0.02), loaded.train, 12)
    np.testing.assert_array_equal(edits.index[:, 0], np.arange(12))
    assert not jnp.any(edits.record.features)
    right = np.sign(models @ np.asarray(loaded.test.features).T) == np.asarray(loaded.test.label)
    np.testing.assert_allclose(right.mean(axis=-1), results[f"{DIGITS}: accuracy"], atol=1e-6)


def test_the_audit_is_of_the_plan_s_own_numbers(results):
    setting = real_data.make_setting(CONFIG, DIGITS, data.load(DIGITS).train)
    stays, deleted = (words.Audited(*row) for row in results[f"{DIGITS}: audit"])
    assert math.isclose(stays.certified_mu, setting.mu_dp, rel_tol=1e-9)
    assert deleted.certified_mu <= setting.targets[0].mu < stays.certified_mu
    for found in (stays, deleted):
        assert not found.refuted
        assert found.audited <= found.certified < found.detectable
        assert math.isclose(found.certified, found.certified_mu**2)
    assert math.isclose(stays.certified_epsilon, 1.0, rel_tol=1e-9)


# --- words --------------------------------------------------------------------------------------


def test_missing_data_are_named_with_the_command_that_gets_them(results):
    text = real_data.caption(CONFIG, results)
    shown = real_data.tables(CONFIG, results)[0].rows
    for name, command in (
        (MNIST, "dd-jax data fetch mnist"),
        ("adult", "dd-jax data fetch adult"),
        ("cifar-cat-vs-ship", "dd-jax data fetch cifar-10-cat-ship"),
    ):
        assert f"{name} is not there: run `{command}`." in text
        assert f"{name}: run `{command}`" in [row[0] for row in shown]
    picture = real_data.plot(CONFIG, results)
    assert "dd-jax data fetch mnist" in picture.get_supxlabel()


def test_fetched_data_wait_for_the_full_scale_with_their_costs_known(monkeypatch, results):
    monkeypatch.setattr(real_data, "_is_fetched", lambda name: True)
    found = real_data.compute(CONFIG, Runner())
    assert set(found) == {f"{DIGITS}: size", f"{DIGITS}: costs"}
    np.testing.assert_array_equal(found[f"{DIGITS}: costs"], results[f"{DIGITS}: costs"])
    text = real_data.caption(CONFIG, found)
    assert f"real_data`): {DIGITS}." in text
    ran, costed, audited = real_data.tables(CONFIG, found)
    assert [row[0] for row in costed.rows] == [DIGITS] * 4
    assert DIGITS not in [row[0] for row in ran.rows]
    assert not audited.rows
    waiting = {key.replace(DIGITS, MNIST): value for key, value in found.items()}
    picture = real_data.plot(CONFIG, results | waiting)
    rows = [text.get_text() for text in picture.axes[2].get_yticklabels()]
    assert [row.split(",")[0] for row in rows] == [DIGITS] * 2 + [MNIST] * 2


def test_the_settings_say_what_is_there(monkeypatch):
    monkeypatch.setattr(fetch, "is_cached", lambda name: name == "adult")
    assert real_data.Config().datasets == (DIGITS, "adult")


def test_the_caption_says_what_came_out(results):
    text = real_data.caption(CONFIG, results)
    assert "none is refuted" in text
    assert "ABOVE" not in text
    bad = dict(results)
    bad[f"{DIGITS}: risk"] = 100 * results[f"{DIGITS}: risk"]
    bad[f"{DIGITS}: audit"] = results[f"{DIGITS}: audit"].copy()
    bad[f"{DIGITS}: audit"][0, words.Audited._fields.index("refuted")] = 1
    text = real_data.caption(CONFIG, bad)
    assert "ABOVE the certified" in text
    assert "1 REFUTED" in text
    verdicts = [row[4] for row in real_data.tables(CONFIG, bad)[2].rows]
    assert verdicts == ["refuted", "consistent"]


def test_measured_retraining_is_the_first_checkpoint_that_arrives():
    made = {
        f"{DIGITS}: risk": np.array([[9.0, 1.0, 1.0]]),
        f"{DIGITS}: learning risk": np.array([[5.0, 1.11, 1.09, 2.0]]),
        f"{DIGITS}: checkpoints": np.array([1, 4, 9, 20]),
    }
    assert words.measured_retraining(made, DIGITS) == 9
    made[f"{DIGITS}: learning risk"] += 1
    assert words.measured_retraining(made, DIGITS) == math.inf


def made_up():
    """A run of three seeds and two deletions, no two numbers alike."""
    rng = np.random.default_rng(0)
    found = {
        "size": np.array([267, 64, 90]),
        "costs": rng.uniform(2, 1e3, (4, len(costs.Cost._fields))),
        "majority": np.array(0.51),
        "accuracy": rng.uniform(0.6, 0.9, (3, 3)),
        "judged": np.arange(3),
        "risk": rng.uniform(0.01, 0.02, (3, 3)),
        "risk bound": np.array([0.05, 0.04, 0.03]),
        "checkpoints": np.array([1, 4]),
        "learning risk": rng.uniform(0.01, 0.02, (3, 2)),
        "epsilon": np.array([0.9, 0.6]),
        "audit": rng.uniform(0.1, 1, (2, len(words.Audited._fields))),
    }
    return {f"{DIGITS}: {what}": values for what, values in found.items()}


def test_the_table_of_runs_says_what_it_heads():
    found = made_up()
    accuracy, risk = found[f"{DIGITS}: accuracy"], found[f"{DIGITS}: risk"]
    table = real_data.tables(CONFIG, found)[0]
    last = mean_over_seeds(accuracy[:, 2], 0.95)
    assert dict(zip(table.columns, table.rows[0], strict=True)) == {
        "data": DIGITS,
        "n": 267,
        "d": 64,
        "λ": 0.02,
        "ε_dp (δ = 1/n)": 0.9,
        "ε_dd (δ = 1/n)": 0.6,
        "seeds": 3,
        "deletions": 2,
        "accuracy learned": pytest.approx(accuracy[:, 0].mean()),
        "accuracy at the end": pytest.approx(accuracy[:, 2].mean()),
        "95% interval": f"{last.low:.4f} to {last.high:.4f}",
        "always one class": 0.51,
        "reported by Langevin": None,
        "excess risk at the end": pytest.approx(risk[:, 2].mean()),
        "certified": 0.03,
    }


def test_every_number_is_drawn_under_its_own_name():
    found = made_up()
    accuracy, risk, cost, audit = real_data.plot(CONFIG, found).axes
    for axes, what in ((accuracy, "accuracy"), (risk, "risk")):
        mean = found[f"{DIGITS}: {what}"].mean(axis=0)
        np.testing.assert_allclose(drawn.curve(axes, DIGITS), [[0, 1, 2], mean])
    _, bound = drawn.marks(risk, "o")
    np.testing.assert_array_equal(bound, [[0, 1, 2], found[f"{DIGITS}: risk bound"]])
    priced = [costs.Cost(*row) for row in found[f"{DIGITS}: costs"][:2]]
    for field, label in (
        ("delete", "ours"),
        ("paper_delete", "the paper's"),
        ("langevin_first", "Langevin, first deletion"),
        ("retrain", "retraining"),
    ):
        steps = [getattr(row, field) for row in priced]
        np.testing.assert_array_equal(drawn.curve(cost, label), [steps, [0, 1]])
    audited = [words.Audited(*row) for row in found[f"{DIGITS}: audit"]]
    for field, label in (("certified_mu", "certified"), ("audited_mu", "audited (at least)")):
        heights = [getattr(row, field) for row in audited]
        np.testing.assert_array_equal(drawn.curve(audit, label), [heights, [0, 1]])


def test_gradients_are_passes_times_records(results):
    table = real_data.tables(CONFIG, results)[1]
    first = dict(zip(table.columns, table.rows[0], strict=True))
    assert first["gradients"] == 267 * (42 + 12 * first["K_U"])
    assert first["gradients, retraining"] == 267 * (42 + 12 * first["retraining"])
    assert first["retraining / K_U"] == first["retraining"] / first["K_U"]


# --- MNIST --------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.skipif(
    not (fetch.is_cached("mnist") and os.environ.get("DD_JAX_TEST_MNIST")),
    reason="takes minutes: run `dd-jax data fetch mnist` and set DD_JAX_TEST_MNIST=1",
)
def test_mnist_keeps_its_accuracy_through_a_hundred_deletions():
    loaded = data.load(MNIST)
    setting = real_data.make_setting(real_data.FULL, MNIST, loaded.train)
    assert (setting.n, setting.dim) == (11_982, 784)
    plan = costs.make_plan(setting, setting.targets[0])
    certificate = plan.certificate(request=100, delta=1 / setting.n)
    assert certificate.epsilon_dp is not None
    assert certificate.epsilon_dp <= 1 + 1e-9
    edits = runs.stream(setting.problem, loaded.train, 100)
    arguments = (setting.problem, plan, loaded.train, edits, 1, jax.random.key(7))
    models = runs.releases(Runner(), MNIST, *arguments)
    accuracy = runs.accuracies(models, loaded.test)[0]
    assert accuracy[0] >= 0.945
    assert accuracy[-1] >= 0.945
