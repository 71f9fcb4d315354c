"""`dd-jax run` as a person uses it: one real run seen from all sides, and every bad request."""

import contextlib
import csv
import io
import json
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import optimize, stats

import dd_jax as dd
from dd_jax import cli, constants
from dd_jax.cli import run, serving
from dd_jax.constants import ProblemConstants
from dd_jax.data import models
from dd_jax.data.encoding import Bounds
from dd_jax.data.own_file import OwnData, load_file
from dd_jax.guarantees import risk
from dd_jax.plans import arithmetic
from dd_jax.plans.settings import edited_descent

ROWS = [3, 17, 25, 8]
NO_TIME = serving.Seconds(0.0, 0.0, 0.0)


def table(n=40):
    """A CSV file of two features and a class that follows the first."""
    values = np.cos(np.arange(2 * n)).reshape(n, 2)
    lines = [f"{a:.6f},{b:.6f},{'up' if a > 0 else 'down'}\n" for a, b in values]
    return "a,b,y\n" + "".join(lines)


def ran(folder, *options):
    """(JSON, certificate, lines of run.csv) of `dd-jax run` on my.csv in this folder."""
    out, saved = io.StringIO(), folder / "out"
    words = ["run", "--data", str(folder / "my.csv"), "--label", "y", "--json", "--seeds", "3"]
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        assert cli.main([*words, "--save", str(saved), *options]) == 0
    certificate = dd.Certificate.from_json((saved / "certificate.json").read_text())
    with (saved / "run.csv").open(newline="") as file:
        return json.loads(out.getvalue()), certificate, list(csv.DictReader(file))


OPTIONS = "--intercept --edits-per-request 2 --adaptivity 2 --delta 1e-3 --l2 0.2 --seed 0 --rows"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    (folder / "my.csv").write_text(table())
    return folder


@pytest.fixture(scope="module")
def answer(folder):
    """One small rehearsal with measured ranges."""
    return ran(folder, *OPTIONS.split(), *map(str, ROWS))


def test_the_answer_names_the_data_and_what_was_done_to_them(answer):
    values, certificate, _ = answer
    data = values["data"]
    assert data["training_rows"] + data["held_out_rows"] == 40
    assert (data["features"], data["parameters"]) == (2, 3)
    assert data["classes"] == {"-1": "down", "1": "up"}
    assert [line["rows"] for line in values["requests"]] == [[], [3, 17], [25, 8]]
    assert certificate.plan.problem.loss.lipschitz == pytest.approx(np.sqrt(2))
    grid = arithmetic.publication_grid(certificate.plan)
    assert values["kept"] == {"model": 3, "grid": grid, "rows": data["training_rows"]}
    assert min(values["seconds"].values()) > 0


def test_measured_ranges_are_flagged_in_the_answer_and_the_certificate(answer):
    values, certificate, _ = answer
    assert values["data"]["measured"] == ["ranges"]
    (caveat,) = (text for text in values["warnings"] if "MEASURED" in text)
    assert caveat in certificate.warnings
    assert any(values["data"]["preprocessing"] in a.statement for a in certificate.assumptions)


def test_every_line_says_what_the_plan_certifies(answer):
    values, certificate, _ = answer
    plan = certificate.plan
    n = values["data"]["training_rows"]
    assert (plan.eps_dp_asked, plan.eps_dd_asked, plan.delta) == (1.0, 0.1, 1e-3)
    assert (plan.n, plan.dim, plan.edits_per_request) == (n, 3, 2)
    assert (certificate.adaptivity, certificate.request) == (2, 2)
    learned, *requests = values["requests"]
    assert learned["risk_bound"] == certificate.risk_bound_learned
    assert learned["gradients"] == n * plan.learn_steps
    worst = 0.0
    for i, line in enumerate(requests, start=1):
        issued = plan.certificate(i, i)  # two may be seen, but no more than there were
        worst = max(worst, issued.eps_dd_request)
        assert line["request"] == i
        assert line["eps_dd_so_far"] == worst
        assert line["eps_dd"] == issued.eps_dd_adaptive
        assert line["advantage_bound"] == issued.advantage_bound
        assert line["risk_bound"] == issued.risk_bound_request
        assert line["gradients"] == n * plan.delete_steps
    assert values["requests"][-1]["eps_dd_so_far"] > plan.certificate(0, 2).eps_dd


def test_risk_is_positive_within_its_interval_and_below_its_bound(answer):
    values, _, _ = answer
    assert values["seeds"] == 3
    for line in values["requests"]:
        assert 0 < line["excess_risk"] < line["risk_bound"]
        assert 0 <= line["excess_risk_low"] < line["excess_risk"] < line["excess_risk_high"]
        assert 0 <= line["accuracy_low"] <= line["accuracy"] <= line["accuracy_high"] <= 1
    assert values["risk_error"] < 1e-6


def learned_risk(plan, steps):
    run, rest = edited_descent(plan), (plan.delete_steps, 0, plan.init_variance)
    return risk.excess_risk_convex(run, plan.dim, steps, *rest)


def test_the_ratio_is_the_smaller_of_two_ways_to_retrain(answer):
    values, certificate, _ = answer
    plan = certificate.plan
    for line in values["requests"][1:]:
        steps = round(line["same_risk_ratio"] * plan.delete_steps)
        assert learned_risk(plan, steps) <= line["risk_bound"] * (1 + 1e-9)
        assert steps == 1 or learned_risk(plan, steps - 1) > line["risk_bound"]
        assert line["relearn_ratio"] == plan.learn_steps / plan.delete_steps
        assert line["ratio"] == min(line["relearn_ratio"], line["same_risk_ratio"])


def test_the_files_hold_the_same_answer(answer, folder):
    values, _, rows = answer
    names = {"certificate.json", "model.npz", "run.csv", "run.json"}
    assert {path.name for path in (folder / "out").glob("[a-z]*")} == names
    saved = json.loads((folder / "out" / "run.json").read_text())
    assert saved == {key: item for key, item in values.items() if key != "files"}
    assert [row["rows"] for row in rows] == ["", "3 17", "25 8"]
    assert float(rows[2]["excess_risk"]) == values["requests"][2]["excess_risk"]


def test_the_text_begins_with_the_warnings_and_shows_both_numbers_of_a_request(answer, capsys):
    values, certificate, _ = answer
    assert values["requests"][-1]["eps_dd_so_far"] < certificate.eps_dd_adaptive
    worse = [line | {"ratio": 0.5} for line in values["requests"]]
    without = [line | {"accuracy": None, "same_risk_ratio": None} for line in worse]
    for shown in (values, values | {"requests": without}):
        run.show(shown, certificate)
        text = capsys.readouterr().out
        assert text.startswith("WARNING")
        assert f"{values['requests'][-1]['eps_dd_so_far']:.3g}" in text
        assert f"{certificate.eps_dd_adaptive:.4g}" in text


@pytest.mark.parametrize(
    ("mean", "half", "shown"),
    [
        (2.74e-5, 3.1e-6, "2.7e-05 ± 3e-06"),
        (0.00193, 0.0011, "0.0019 ± 0.001"),
        (0.08147, 2.2e-5, "0.08147 ± 2e-05"),
        (0.0, 0.0, "0 ± 0"),
        (0.5, float("inf"), "0.5 ± inf"),
    ],
)
def test_a_mean_has_the_digits_that_its_interval_leaves_it(mean, half, shown):
    assert run._with_interval(mean, half) == shown


# --- the numbers, against other ways to get them -------------------------------------------------


def made_up(rng):
    features = rng.uniform(-0.5, 0.5, (12, 2)).astype(np.float32)
    label = np.where(np.arange(12) % 2, 1.0, -1.0).astype(np.float32)
    train, test = dd.Labelled(features, label), dd.Labelled(features[:5], label[:5])
    data = OwnData(train, test, np.arange(12), ("a", "b"), ("0", "1"), "as they are", "")
    budgets = {"order": 2.0, "eps_dp": 1.0, "eps_dd": 0.5}
    stream = np.array([[4], [0]])
    return serving.make(data, stream, loss="logistic", l2=0.1, intercept=True, **budgets)


def test_releases_are_judged_on_the_database_they_were_trained_on():
    rng = np.random.default_rng(0)
    served = made_up(rng)
    models = rng.normal(size=(2, 3, 3)).astype(np.float32)
    edits = [dd.deletion(served.problem.loss, served.train, rows) for rows in served.stream]
    stream = dd.requesters.stack_edits(edits)
    judged = serving._judged(served, models, stream, NO_TIME)
    features = np.asarray(served.train.features, np.float64)
    np.testing.assert_array_equal(features[:, 2], 1)
    alive = np.ones(12, bool)
    for release, gone in enumerate((None, 4, 0)):
        if gone is not None:
            alive[gone] = False

        def risk(theta, alive=alive):
            margins = np.asarray(served.train.label)[alive] * (features[alive] @ theta)
            # Deleted rows lose log 2 whatever the model, and still count in n.
            return np.sum(np.logaddexp(0, -margins)) / 12 + 0.05 * theta @ theta

        least = optimize.minimize(risk, np.zeros(3), tol=1e-12)
        expected = [risk(model) - least.fun for model in models[:, release].astype(float)]
        np.testing.assert_allclose(judged.risk[:, release], expected, rtol=1e-4)
        right = (features[:5] @ models[:, release].T) * served.test.label[:5, None] > 0
        np.testing.assert_allclose(judged.accuracy[:, release], right.mean(axis=0))
        if gone is None:
            constant = np.log(2) - least.fun
            assert judged.zero_risk == pytest.approx(constant, rel=1e-4)


@pytest.mark.parametrize("loss", [None, "one_vs_rest"])
def test_releases_of_more_than_two_classes_are_judged_by_their_largest_score(loss):
    rng = np.random.default_rng(0)
    features = rng.uniform(-0.5, 0.5, (12, 2)).astype(np.float32)
    label = np.arange(12, dtype=np.int32) % 3
    train, test = dd.Labelled(features, label), dd.Labelled(features[:5], label[:5])
    names = ("a", "b", "c")
    data = OwnData(train, test, np.arange(12), ("a", "b"), names, "as they are", "")
    budgets = {"order": 2.0, "eps_dp": 1.0, "eps_dd": 0.5}
    options = {"loss": loss, "l2": 0.1, "intercept": True}
    served = serving.make(data, np.array([[4]]), **options, **budgets)
    assert served.plan.dim == 9
    models = rng.normal(size=(2, 2, 3, 3)).astype(np.float32)
    edits = [dd.deletion(served.problem.loss, served.train, rows) for rows in served.stream]
    judged = serving._judged(served, models, dd.requesters.stack_edits(edits), NO_TIME)
    rows = np.asarray(served.train.features, np.float64)
    alive = np.arange(12) != 4

    def risk(theta):
        scores = rows[alive] @ theta.reshape(3, 3)
        own = scores[np.arange(11), label[alive]]
        if loss is None:
            values = np.log(np.exp(scores).sum(axis=1)) - own
            gone = np.log(3)
        else:
            signs = np.where(label[alive, None] == np.arange(3), 1.0, -1.0)
            values, gone = np.logaddexp(0, -signs * scores).sum(axis=1), 3 * np.log(2)
        return (values.sum() + gone) / 12 + 0.05 * theta.ravel() @ theta.ravel()

    least = optimize.minimize(risk, np.zeros(9), tol=1e-12)
    expected = [risk(model.astype(float)) - least.fun for model in models[:, 1]]
    np.testing.assert_allclose(judged.risk[:, 1], expected, rtol=1e-4)
    right = (rows[:5] @ models[:, 1].astype(float)).argmax(axis=-1) == label[:5]
    np.testing.assert_allclose(judged.accuracy[:, 1], right.mean(axis=-1))
    np.testing.assert_allclose(judged.right, right.mean(axis=0))


def test_the_error_of_the_risks_is_that_of_the_worst_minimiser(monkeypatch):
    served = made_up(np.random.default_rng(0))
    norms = np.array([1e-3, 3e-3, 2e-3])
    found = (np.zeros((3, 2)), norms, np.array(0.5), np.zeros((2, 3)), np.zeros(3), np.zeros(5))
    monkeypatch.setattr(serving, "_judge", lambda *_: found)
    judged = serving._judged(served, None, None, NO_TIME)
    assert judged.risk_error == pytest.approx(3e-3**2 / (2 * 0.1))


def test_what_may_remain_so_far_is_the_most_of_all_requests():
    issued = [
        SimpleNamespace(
            eps_dd_request=eps,
            eps_dd_adaptive=1.0,
            risk_bound_request=None,
            risk_bound_learned=1.0,
            advantage_bound=0.1,
        )
        for eps in (0.0, 0.3, 0.2)
    ]
    plan = SimpleNamespace(
        certificate=lambda adaptivity=0, request=0: issued[request],
        learn_steps=4,
        delete_steps=2,
        learn_gradients=40,
        delete_gradients=20,
    )
    served = serving.Served(np.ones((2, 3)), None, None, 1.0, 0.0, NO_TIME)
    stream = SimpleNamespace(plan=plan, stream=np.array([[4], [0]]), adaptivity=0)
    found = serving.lines(stream, served)
    assert [line["eps_dd_so_far"] for line in found] == [None, 0.3, 0.3]


def test_the_larger_class_is_that_of_the_held_out_records():
    train = dd.Labelled(np.zeros((3, 1)), np.array([-1.0, -1.0, 1.0]))
    test = dd.Labelled(np.zeros((4, 1)), np.array([-1.0, 1.0, 1.0, 1.0]))
    data = OwnData(train, test, np.arange(3), ("a",), ("0", "1"), "", "")
    assert serving._majority(data) == 0.75
    assert serving._majority(data._replace(test=test._replace(label=-test.label))) == 0.75
    none = dd.Labelled(np.zeros((0, 1)), np.zeros(0))
    assert serving._majority(data._replace(test=none)) is None


def test_models_that_are_no_better_than_zero_are_said_to_be():
    risk = np.array([[0.1, 0.3], [0.2, 0.5]])
    served = serving.Served(risk, None, None, 0.41, 0.0, NO_TIME)
    assert serving._about_risk(served, None) == []
    assert serving._about_risk(served, 0.409) == []
    assert "LEARNED" in serving._about_risk(served._replace(zero_risk=0.39), None)[0]
    assert "PROMISED" in serving._about_risk(served, 0.42)[0]


def judged_on(label, right, exact=0.6, intercept=False, spread=0.0):
    """The warnings on models that classify these held-out rows rightly, over four seeds."""
    right, none = np.asarray(right, float), dd.Labelled(np.zeros((2, 1)), np.array([-1.0, 1.0]))
    test = dd.Labelled(np.zeros((len(label), 1)), label)
    accuracy = right.mean() + spread * np.array([[-1.0], [1.0], [-1.0], [1.0]])
    served = serving.Served(
        np.ones((4, 1)), accuracy, np.array([exact]), 1.0, 0.0, NO_TIME, right=right
    )
    data = OwnData(none, test, np.arange(2), (), ("n", "y"), "", "")
    return serving._about_accuracy(data, served, intercept)


def test_models_that_are_no_better_than_one_class_are_said_to_be():
    """Judged by the held-out rows: a gain that chance explains is none."""
    label = np.array([1.0] * 60 + [-1.0] * 40)
    one_class = label > 0
    for right in (one_class, ~one_class):
        assert judged_on(label, right)[0].startswith("NO BETTER")
    assert "intercept" in judged_on(label, one_class)[0]
    assert "intercept" not in judged_on(label, one_class, intercept=True)[0]
    assert "budgets" in judged_on(label, one_class, exact=0.9)[0]
    # Three more rows than one class gets: perhaps chance. All rows: none, unless seeds differ much.
    few = one_class.copy()
    few[60:63] = True
    assert judged_on(label, few)[0].startswith("NOT SHOWN")
    assert judged_on(label, np.ones(100)) == []
    assert judged_on(label, np.ones(100), spread=0.4)[0].startswith("NOT SHOWN")


def test_a_gain_too_small_to_matter_is_none_however_many_rows_there_are():
    label = np.array([1.0] * 60_000 + [-1.0] * 40_000)
    right = np.where(np.arange(100_000) % 60_000 == 0, 1.0, label > 0)  # one row more
    assert judged_on(label, right)[0].startswith("NO BETTER")


def test_the_gain_over_one_class_is_judged_by_rows_and_by_seeds():
    by_row, by_seed = np.array([1.0, 0.0, 0.0, -1.0, 1.0]), np.array([0.6, 0.8, 0.7])
    gain, margin = serving._gain(by_row, by_seed)
    error = np.hypot(stats.sem(by_row), stats.sem(by_seed))
    assert gain == pytest.approx(0.2)
    assert margin == pytest.approx(stats.t.ppf(0.95, 2) * error)
    assert serving._gain(by_row, by_seed[:1])[1] == pytest.approx(
        stats.t.ppf(0.95, 4) * stats.sem(by_row)
    )
    assert serving._gain(by_row[:1], by_seed) == (1.0, np.inf)


# --- useless results, seeds and secret keys -------------------------------------------------------


def coin_table(n=60):
    """A CSV file whose class has nothing to do with its one feature."""
    return "a,y\n" + "".join(f"{np.cos(i):.6f},{'no' if i % 3 else 'yes'}\n" for i in range(n))


@pytest.fixture(scope="module")
def useless(tmp_path_factory):
    """A run that has nothing to learn, with a secret key; its folder."""
    folder = tmp_path_factory.mktemp("coins")
    (folder / "my.csv").write_text(coin_table())
    return ran(folder, *COINS.split()), folder


COINS = "--requests 1 --lower -1 --upper 1"


def test_a_useless_model_is_said_to_be_before_anything_else(useless):
    (values, _, _), _ = useless
    first, second = values["warnings"][:2]
    assert "ONE CLASS" in first
    assert "NOTHING" in second


def test_a_run_takes_a_secret_key_unless_a_seed_is_given(useless):
    (values, certificate, rows), folder = useless
    assert (values["rehearsal"], values["seed"]) == (False, None)
    assert {(row["rehearsal"], row["seed"]) for row in rows} == {("False", "")}
    assert not any("REHEARSAL" in text for text in (*values["warnings"], *certificate.warnings))
    again, _, _ = ran(folder, *COINS.split())
    assert again["requests"][0]["excess_risk"] != values["requests"][0]["excess_risk"]


def test_a_run_with_a_seed_is_a_rehearsal_wherever_one_can_look(answer, folder):
    values, certificate, rows = answer
    assert (values["rehearsal"], values["seed"]) == (True, 0)
    (warning,) = (text for text in values["warnings"] if "REHEARSAL" in text)
    assert warning in certificate.warnings
    assert {(row["rehearsal"], row["seed"]) for row in rows} == {("True", "0")}
    again, _, _ = ran(folder, *OPTIONS.split(), *map(str, ROWS))
    assert again["requests"] == values["requests"]


def test_one_seed_has_no_interval():
    alone = serving.Served(np.array([[3.0]]), None, None, 1.0, 0.0, NO_TIME)
    line = serving._measured(alone, 0, [])
    risks = [line[name] for name in ("excess_risk", "excess_risk_low", "excess_risk_high")]
    assert risks == [3.0, None, None]


PEOPLE = "who,a,city,y\n" + "".join(
    f"P{i // 2},{'' if i % 9 == 4 else round(np.cos(i), 6)},{'Bern' if i % 4 else 'Rome'},"
    f"{'low' if np.cos(i) < -0.5 else 'mid' if np.cos(i) < 0.5 else 'top'}\n"
    for i in range(120)
)


def test_people_with_several_rows_text_gaps_and_three_classes(tmp_path, capsys):
    (tmp_path / "my.csv").write_text(PEOPLE)
    words = "--id who --fill-missing --loss one_vs_rest --seed 0 --delete-ids P1 P7"
    values, certificate, lines = ran(tmp_path, *words.split())
    assert values["data"]["classes"] == {"0": "low", "1": "mid", "2": "top"}
    assert values["data"]["measured"] == ["ranges", "categories"]
    assert [line["ids"] for line in values["requests"]] == [[], ["P1"] * 2, ["P7"] * 2]
    assert [line["rows"] for line in values["requests"]] == [[], [2, 3], [14, 15]]
    assert (lines[2]["ids"], certificate.plan.edits_per_request) == ("P7 P7", 2)
    assert certificate.plan.problem.loss.lipschitz == pytest.approx(np.sqrt(3))
    assert any("2 rows" in text for text in values["warnings"])
    for by_id, deleted in ((True, "P1"), (False, "2, 3")):
        run.show(values, certificate, by_id=by_id)
        assert re.search(rf"^1 +{deleted} ", capsys.readouterr().out, re.MULTILINE)
    # The saved model is the published one, and knows no record and no id.
    model = models.load(tmp_path / "out" / "model.npz")
    assert dd.Certificate.from_json(model.certificate) == certificate
    grid = arithmetic.publication_grid(certificate.plan)
    np.testing.assert_array_equal(model.weights / grid, np.round(model.weights / grid))
    assert b"P17" not in model.pack()
    table = models.read_rows(model, tmp_path / "my.csv", label=None, ids=None)
    bounds = Bounds(fill=True)
    data = load_file(tmp_path / "my.csv", label="y", ids="who", bounds=bounds)
    np.testing.assert_array_equal(table.ids, data.ids)
    encoded = model.encoding.encode(table)[data.rows].astype(np.float32)
    np.testing.assert_array_equal(encoded, data.train.features)


def test_rows_of_the_file_become_places_among_the_training_records():
    config = run.Config("my.csv", rows=(9, 2, 7, 4), edits_per_request=2)
    data = OwnData(None, None, np.array([2, 4, 5, 7, 9]), (), ("0", "1"), "", "")
    assert run._stream(config, data, 2).tolist() == [[4, 0], [3, 1]]
    first = run.Config("my.csv", edits_per_request=2)
    assert run._stream(first, data, 2).tolist() == [[0, 1], [2, 3]]


# --- the guide -----------------------------------------------------------------------------------

GUIDE = (Path(__file__).parents[2] / "docs" / "own-data.md").read_text(encoding="utf-8")


def test_the_guide_names_every_key_and_no_other(answer):
    values, _, _ = answer
    listed = GUIDE.split("| key | meaning |")[1].split("## ")[0]
    named = set(re.findall(r"`(\w+)`", listed))
    inner = [values[key] for key in ("data", "plan", "kept", "seconds")]
    keys = set(values).union(*inner, values["requests"][1]) | {"files"}
    assert named == keys


def test_the_guides_numbers_are_those_of_its_command():
    problem = ProblemConstants(constants.logistic(feature_norm=np.sqrt(2)), 0.01)
    n = int(re.search(r"my.csv: ([\d,]+) training rows", GUIDE)[1].replace(",", ""))
    plan = dd.plan_convex(problem, n=n, dim=3, delta=1e-4, eps_dp=1.0, eps_dd=0.2)
    issued = plan.certificate(request=3)
    promised = (issued.risk_bound_request, issued.eps_dd_request, issued.advantage_bound)
    for number in (
        *(f"{gradients:,}" for gradients in (plan.delete_gradients, plan.learn_gradients)),
        *(f"({steps} steps)" for steps in (plan.delete_steps, plan.learn_steps)),
        f"{plan.learn_steps / plan.delete_steps:.3g}×",
        *(f"  {bound:.3g}" for bound in promised),
    ):
        assert number in GUIDE


# --- bad input ------------------------------------------------------------------------------------

OWN, TASK = "--data my.csv --label y", "--data digits-3-vs-8"
BAD = [
    (f"{OWN} --requests 0", "--requests"),
    (f"{OWN} --seeds 0", "--seeds"),
    (f"{OWN} --adaptivity -1", "--adaptivity"),
    (f"{OWN} --rows 1 2 3 --edits-per-request 2", "--rows"),
    (f"{OWN} --rows 1 2 --requests 3", "--rows"),
    (f"{OWN} --rows 1 1", "twice"),
    (f"{OWN} --rows 1 7", "held out"),
    (f"{OWN} --rows 1 0 --seed 1", "held out"),
    (f"{OWN} --rows 40", "no row 40"),
    (f"{OWN} --delete-ids C1", "--id"),
    (f"{OWN} --id a --delete-ids C1 --rows 3", "--rows"),
    (f"{OWN} --id a --delete-ids C1 C1", "twice"),
    (f"{OWN} --id a --delete-ids C1", "'C1'"),
    (f"{OWN} --loss softmax", "classes"),
    (f"{OWN} --save my.csv", "--save"),
    (f"{OWN} --save my.csv/out", "my.csv/out"),
    (f"{OWN} --test-fraction 1.5", "test_fraction"),
    (f"{OWN} --requests 29", "31"),
    (f"{OWN} --lower 0", "upper"),
    (f"{OWN} --lower 0 --upper 1", "[0, 1]"),
    (f"{OWN} --bound 0.1", "norm"),
    (f"{OWN} --ranges none.json", "none.json"),
    (f"{OWN} --drop z", "'z'"),
    (f"{OWN} --delimiter ;", "delimiter"),
    (f"{OWN} --l2 -1", "l2"),
    (f"{OWN} --eps-dp 0", "eps_dp"),
    (f"{OWN} --eps-dd -1", "eps_dd"),
    (f"{OWN} --order 1", "order"),
    (f"{OWN} --order 2 --delta 1e-5", "both"),
    (f"{OWN} --l2 1e-12 --unit-rows", "l2"),
    ("--data my.csv", "label"),
    ("--data digits", "digits-3-vs-8"),
    (f"{TASK} --label y", "--label"),
    (f"{TASK} --rows 267", "no row 267"),
    (f"{TASK} --requests 266", "267"),
    (f"{TASK} --test-fraction 0", "(0, 1)"),
    (f"{TASK} --loss squared", "squared"),
    (f"{TASK} --seed -1", "--seed"),
]


@pytest.mark.parametrize(("options", "word"), BAD)
def test_a_bad_request_is_one_line_and_status_2(options, word, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(serving, "_timed", None)  # nothing is computed
    monkeypatch.chdir(tmp_path)
    Path("my.csv").write_text(table())
    assert cli.main(["run", *options.split()]) == 2
    done = capsys.readouterr()
    lines = [line for line in done.err.splitlines() if "starting JAX" not in line]
    assert (len(lines), done.out) == (1, "")
    assert word in lines[0]


# --- a loss that is not convex --------------------------------------------------------------------

NONCONVEX = "--loss tanh_margin --l2 0.77 --noise-variance 20 --eps-dd 0.5 --requests 2 --seed 0"


def test_a_bounded_loss_is_served_under_a_certificate_of_the_gibbs_law(folder):
    values, certificate, lines = ran(folder, *NONCONVEX.split())
    plan = certificate.plan
    assert (plan.kind, plan.noise_variance, plan.accountant) == ("nonconvex", 20.0, "sharp")
    assert certificate.eps_dd <= 0.5
    # The honest cost: learning is one step from a start that is close enough by itself.
    assert plan.learn_steps == 1 < plan.delete_steps
    assert values["request_gradients"] == plan.n * plan.delete_steps
    assert values["requests"][-1]["ratio"] == 1 / plan.delete_steps
    assert values["requests"][-1]["same_risk_ratio"] is None
    assert values["risk_error"] is None
    assert len(lines) == 3


def test_where_a_release_was_seen_the_run_sum_is_shown(folder):
    values, certificate, _ = ran(folder, *NONCONVEX.split(), "--adaptivity", "1")
    last = values["requests"][-1]
    assert last["eps_dd"] == certificate.plan.certificate(1, 2).eps_dd_adaptive
    assert last["eps_dd"] < certificate.eps_dd


@pytest.mark.parametrize(
    "option",
    [
        "--delta 1e-3",
        "--batches 2",
        "--reference null",
        "--learn-steps 5",
        "--accountant unrelaxed",
    ],
)
def test_options_of_convex_losses_are_refused_for_others(folder, option, capsys):
    words = ["run", "--data", str(folder / "my.csv"), "--label", "y", *NONCONVEX.split()]
    assert cli.main([*words, *option.split()]) == 2
    assert option.split()[0] in capsys.readouterr().err
