"""Real sweeps, small: every loss against NumPy, what is traced, and what is refused."""

from types import SimpleNamespace

import jax
import numpy as np
import pytest
from problems import signed, soak
from scipy import stats

import dd_jax as dd
from dd_jax import sweeps
from dd_jax.interaction import interact
from dd_jax.sweeps import deletion as deletion_sweep
from dd_jax.sweeps import results, runner

RECORDS = SimpleNamespace(name="small", train=signed(40, 3), test=signed(30, 3, seed=5))
KEY = jax.random.key(2)
EASY = {"l2": 0.5, "eps_dp": 1.0, "eps_dd": 0.5, "requests": 2}
# Losses of the score t = ⟨a, θ⟩ and the label y = ±1, in double precision.
VALUES = {
    "logistic": lambda t, y: np.logaddexp(0, -y * t),
    "smoothed_hinge": lambda t, y: np.where(
        y * t > 0, np.maximum(1 - y * t, 0) ** 2 / 2, 0.5 - y * t
    ),
    "huber": lambda t, y: np.where(abs(t - y) < 1, (t - y) ** 2 / 2, abs(t - y) - 0.5),
    "linear": lambda t, y: -y * t,
    "tanh_margin": lambda t, y: -np.tanh(y * t),
}


def sweep(**axes):
    return sweeps.deletions(jax.random.clone(KEY), RECORDS, **{"seeds": 3} | EASY | axes)


def ran(loss, **numbers):
    """One run with few steps and the numbers that it was judged by."""
    steps = {"step_size": 0.3, "noise_variance": 0.01, "init_variance": 0.1}
    question = deletion_sweep.Question("small", 40, 3, **EASY | {"loss": loss} | numbers)
    plan = SimpleNamespace(**steps, learn_steps=6, delete_steps=2)
    run = deletion_sweep.planned_run(question, plan)
    train, test = (deletion_sweep.records_for(run, part) for part in (RECORDS.train, RECORDS.test))
    return run, train, test


@pytest.mark.parametrize("loss", soak(["logistic", "tanh_margin"], VALUES))
def test_objective_and_accuracy_are_those_of_the_releases(loss):
    """Against NumPy on the releases of the same interaction."""
    run, train, test = ran(loss)
    found = deletion_sweep.judged(jax.random.clone(KEY), run, train, test)
    problem = deletion_sweep.problem_of(run)
    curator = dd.noisy_gd.mechanism(problem, dd.noisy_gd.Schedule.of(run))
    stream = dd.requesters.deletions(problem.loss, train, (0, 1))
    served = interact(jax.random.clone(KEY), curator, stream, train, num_requests=2)[1]
    first, last = np.asarray(served.releases, float)[[0, -1]]
    features, label = (np.array(part, float) for part in RECORDS.train)
    value = VALUES[loss]
    for model, got in ((first, found.objective_learned), (last, found.objective_edited)):
        objective = value(features @ model, label).mean() + 0.25 * model @ model
        np.testing.assert_allclose(got, objective, rtol=1e-5)
        features[:2], label[:2] = 0, 0  # for the second: two rows are blank
    scores = np.asarray(RECORDS.test.features, float) @ last
    right = np.mean(scores * np.asarray(RECORDS.test.label) > 0)
    np.testing.assert_allclose(found.accuracy_edited, right, rtol=1e-6)
    assert np.isnan(found.risk_edited) == (loss == "tanh_margin")
    assert found.outside == 0


def test_an_adaptive_requester_sees_the_first_p_releases_and_no_more():
    """Against a host loop that looks at p releases; each p deletes other records."""
    features, label = (np.asarray(part, float) for part in RECORDS.train)
    deleted = []
    for p in (0, 1, 2):
        run, train, test = ran("logistic", requests=3, requester="largest_loss", adaptivity=p)
        problem, rows, model = deletion_sweep.problem_of(run), [], np.zeros(3)

        def respond(request, release, p=p, rows=rows, problem=problem, train=train):
            nonlocal model
            model = np.asarray(release, float) if request <= p else model
            order = np.argsort(-np.logaddexp(0, -label * (features @ model)), kind="stable")
            rows.append(next(int(row) for row in order if row not in rows))
            return dd.deletion(problem.loss, train, rows[-1:])

        curator = dd.noisy_gd.mechanism(problem, dd.noisy_gd.Schedule.of(run))
        served = dd.drive(
            jax.random.clone(KEY), curator, respond, train, num_requests=3, observe=range(3)
        )[1]
        found = deletion_sweep.judged(jax.random.clone(KEY), run, train, test)
        last, kept = np.asarray(served.releases, float)[-1], np.ones(40)
        kept[rows] = 0
        values = np.logaddexp(0, -kept * label * (features @ last))
        objective = values.mean() + 0.25 * last @ last
        np.testing.assert_allclose(found.objective_edited, objective, rtol=1e-4)
        deleted.append(rows)
    assert len(set(map(tuple, deleted))) == 3


@pytest.mark.parametrize(
    ("loss", "numbers"),
    [
        ("softmax", {}),
        ("one_vs_rest", {}),
        ("squared", {"clip_norm": 0.5}),
        ("bounded_network", {"hidden": 2}),
    ],
)
@pytest.mark.parametrize("intercept", soak([True], [False, True]))
def test_models_of_other_shapes_are_judged_too(loss, numbers, intercept):
    run, train, test = ran(loss, intercept=intercept, **numbers)
    found = deletion_sweep.judged(jax.random.clone(KEY), run, train, test)
    assert 0 < found.accuracy_learned < 1
    assert np.isfinite(found.objective_edited)
    assert found.outside == 0


def compiled_by(call):
    """How many programs a call compiles for the runs."""
    found = []

    def listen(event, seconds, *, fun_name="", **details):
        del seconds, details
        if event.endswith("backend_compile_duration") and "one_chunk" in fun_name:
            found.append(fun_name)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        return call(), len(found)
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)


@pytest.mark.slow
def test_budgets_orders_accountants_and_what_is_seen_share_one_program():
    axes = {
        "requester": "largest_loss",
        "adaptivity": (0, 2),
        "order": (2.0, 4.0),
        "accountant": ("optimal", "paper"),
        "eps_dp": (0.5, 1.0),
    }
    found, programs = compiled_by(lambda: sweep(**axes))
    assert len(found.rows) == 16
    assert programs == 1
    assert all(row["refused"] is None for row in found.rows)
    assert found.above_bound == []
    for row, by_seed in zip(found.rows, found.by_seed["risk_edited"], strict=True):
        assert row["eps_dp"] <= row["eps_dp_asked"] * (1 + 1e-9)
        assert row["eps_dd"] <= row["eps_dd_asked"]
        assert row["risk_edited_low"] <= row["risk_edited"] <= row["risk_edited_high"]
        assert row["risk_edited"] == pytest.approx(by_seed.mean())
    assert {row["seeds"] for row in found.rows} == {3}


@pytest.mark.parametrize(
    ("axes", "word"),
    [
        ({"seeds": 1}, "seeds"),
        ({"height": 1}, "height"),
        ({"dim": 3}, "dim"),
        ({"n": 41}, "n"),
        ({"requests": 0}, "requests"),
        ({"requests": 20, "edits_per_request": 2}, "38"),
        ({"adaptivity": 3}, "adaptivity"),
        ({"requester": "nobody"}, "requester"),
        ({"precision": "half"}, "precision"),
        ({"loss": ("logistic", "hinge")}, "loss"),
        ({"loss": "logistic", "hidden": 3}, "hidden"),
        ({"eps_dp": ()}, "eps_dp"),
        ({"confidence": 2.0}, "confidence"),
    ],
)
def test_bad_input_is_refused_before_anything_is_run(axes, word, monkeypatch):
    monkeypatch.setattr(runner, "run", None)
    with pytest.raises(dd.InputError, match=word):
        sweep(**axes)


def test_every_loss_of_a_grid_gets_the_records_that_it_takes(monkeypatch):
    shapes = {}

    def run(stream, fn, key, seeds, settings, *, arguments, **_):
        shapes.update({one.loss: jax.tree.map(np.shape, arguments(one)[0]) for one in settings})
        return [[np.zeros(seeds)] * 7 for _ in settings]

    monkeypatch.setattr(runner, "run", run)
    sweep(loss=("linear", "logistic", "softmax"), intercept=True)
    assert shapes["linear"] == (40, 4)
    assert shapes["logistic"] == shapes["softmax"] == dd.Labelled((40, 4), (40,))


def test_a_row_counts_the_worst_seed_and_joins_its_intervals():
    asked = deletion_sweep.Question("small", 40, 3, **EASY)
    plan = asked.plan()
    numbers = [np.array([0.2, 0.4, 0.9])] * 6
    outcome = deletion_sweep.Outcome(*numbers, outside=np.array([0, 2, 1]))
    ran = deletion_sweep.Answer(asked, plan, plan.certificate(0, 2), outcome)
    refused = deletion_sweep.Answer(asked, refused="too hard")
    one, none = results._table([ran, refused], 0.95, 3, "").rows
    assert one["outside"] == 2
    assert none["outside"] is None
    width = stats.t.ppf(1 - 0.05 / 6 / 2, 2) * np.std(numbers[0], ddof=1) / np.sqrt(3)
    assert one["objective_edited_high"] == pytest.approx(0.5 + width)
    assert (one["accuracy_edited_low"], one["accuracy_edited_high"]) == (0, 1)
    assert one["risk_edited_high"] == pytest.approx(0.5 + width)


def test_records_outside_the_domain_are_refused(monkeypatch):
    monkeypatch.setattr(runner, "run", None)
    large = SimpleNamespace(train=signed(40, 3, norm=2.0), test=RECORDS.test)
    with pytest.raises(dd.InputError, match="norm"):
        sweeps.deletions(jax.random.clone(KEY), large, **EASY)
