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
from dd_jax.data.own_file import CAVEAT, OwnData
from dd_jax.guarantees import risk
from dd_jax.intervals import mean_over_seeds
from dd_jax.plans import arithmetic
from dd_jax.plans.settings import edited_descent

ROWS = [3, 17, 25, 8]


def table(n=40):
    """A CSV file of two features and a class that follows the first."""
    values = np.cos(np.arange(2 * n)).reshape(n, 2)
    lines = [f"{a:.6f},{b:.6f},{'up' if a > 0 else 'down'}\n" for a, b in values]
    return "a,b,y\n" + "".join(lines)


@pytest.fixture(scope="module")
def answer(tmp_path_factory):
    """(JSON, certificate, what was said, folder) of one small run with measured ranges."""
    folder = tmp_path_factory.mktemp("run")
    (folder / "my.csv").write_text(table())
    out, err = io.StringIO(), io.StringIO()
    options = ["--data", str(folder / "my.csv"), "--label", "y", "--intercept", "--seeds", "3"]
    options += ["--edits-per-request", "2", "--adaptivity", "2", "--delta", "1e-3", "--l2", "0.2"]
    options += ["--rows", *map(str, ROWS), "--json", "--save", str(folder / "out"), "--seed", "0"]
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        assert cli.main(["run", *options]) == 0
    values = json.loads(out.getvalue())
    certificate = dd.Certificate.from_json((folder / "out" / "certificate.json").read_text())
    return values, certificate, err.getvalue(), folder / "out"


def test_the_answer_names_the_data_and_what_was_done_to_them(answer):
    values, certificate, said, _ = answer
    assert said.startswith("dd-jax run: reading ")
    data = values["data"]
    assert data["training_rows"] + data["held_out_rows"] == 40
    assert (values["rehearsal"], values["seed"]) == (True, 0)
    assert (data["features"], data["parameters"]) == (2, 3)
    assert data["classes"] == {"-1": "down", "1": "up"}
    assert [line["rows"] for line in values["requests"]] == [[], [3, 17], [25, 8]]
    assert certificate.plan.problem.loss.lipschitz == pytest.approx(np.sqrt(2))
    grid = arithmetic.publication_grid(certificate.plan)
    assert values["kept"] == {"model": 3, "grid": grid, "rows": data["training_rows"]}
    assert min(values["seconds"].values()) > 0


def test_measured_ranges_are_flagged_wherever_one_can_look(answer):
    values, certificate, said, _ = answer
    assert values["data"]["measured_bounds"]
    assert "MEASURED" in values["data"]["preprocessing"]
    assert CAVEAT in values["warnings"]
    assert CAVEAT in certificate.warnings
    assert f"WARNING: {CAVEAT}." in said
    assert any("MEASURED" in a.statement for a in certificate.assumptions)


def test_every_line_says_what_the_plan_certifies(answer):
    values, certificate, _, _ = answer
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
    values, _, _, _ = answer
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
    values, certificate, _, _ = answer
    plan = certificate.plan
    for line in values["requests"][1:]:
        steps = round(line["same_risk_ratio"] * plan.delete_steps)
        assert learned_risk(plan, steps) <= line["risk_bound"] * (1 + 1e-9)
        assert steps == 1 or learned_risk(plan, steps - 1) > line["risk_bound"]
        assert line["relearn_ratio"] == plan.learn_steps / plan.delete_steps
        assert line["ratio"] == min(line["relearn_ratio"], line["same_risk_ratio"])


def test_the_files_hold_the_same_answer(answer):
    values, _, _, folder = answer
    assert sorted(path.name for path in folder.iterdir()) == [
        "certificate.json",
        "run.csv",
        "run.json",
    ]
    saved = json.loads((folder / "run.json").read_text())
    assert saved == {key: item for key, item in values.items() if key != "files"}
    with (folder / "run.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["rows"] for row in rows] == ["", "3 17", "25 8"]
    assert {(row["rehearsal"], row["seed"]) for row in rows} == {("True", "0")}
    assert float(rows[2]["excess_risk"]) == values["requests"][2]["excess_risk"]


def test_the_text_answers_the_question(answer, capsys):
    values, certificate, _, _ = answer
    run.show(values, certificate)
    text = capsys.readouterr().out
    n, steps = values["data"]["training_rows"], values["plan"]["delete_steps"]
    assert f"{n} training rows, {40 - n} held out, 2 features; class 'down' is -1, 'up'" in text
    assert CAVEAT in " ".join(text.split())
    assert f"A request costs {n * steps:,} gradients of one record ({steps} steps), " in text
    assert "× less than retraining" in text
    assert "ε at δ = 0.001" in text
    assert "saw at most 2 releases" in text
    assert "data deletion" in text
    # The two numbers of one request, the table's and the certificate's, stand side by side.
    assert f"begins with {certificate.eps_dd_adaptive:.4g}" in text
    assert values["requests"][-1]["eps_dd_so_far"] < certificate.eps_dd_adaptive
    assert "25, 8" in text
    worse = [line | {"ratio": 0.5} for line in values["requests"]]
    without = [line | {"accuracy": None, "same_risk_ratio": None} for line in worse]
    run.show(values | {"requests": without}, certificate)
    text = capsys.readouterr().out
    assert "NOT less than retraining, which takes 0.5 of that; learning took" in text
    assert "no row is held out" in text
    assert "those of the request; learning again as planned" in text


def test_long_streams_are_shown_in_part():
    requests = [{"request": i} for i in range(1001)]
    shown = [line["request"] for line in run._shown(requests)]
    assert (shown[0], shown[-1], len(shown)) == (0, 1000, 21)
    assert run._shown(requests[:21]) == requests[:21]


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
    seconds = serving.Seconds(0.0, 0.0, 0.0)
    judged = serving._judged(served, models, stream, seconds)
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


def test_the_error_of_the_risks_is_that_of_the_worst_minimiser(monkeypatch):
    served = made_up(np.random.default_rng(0))
    norms = np.array([1e-3, 3e-3, 2e-3])
    found = (np.zeros((3, 2)), norms, np.array(0.5), np.zeros((2, 3)), np.zeros(3), np.zeros(5))
    monkeypatch.setattr(serving, "_judge", lambda *_: found)
    judged = serving._judged(served, None, None, serving.Seconds(0.0, 0.0, 0.0))
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
    served = serving.Served(np.ones((2, 3)), None, None, 1.0, 0.0, serving.Seconds(0.0, 0.0, 0.0))
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
    served = serving.Served(risk, None, None, 0.41, 0.0, serving.Seconds(0.0, 0.0, 0.0))
    assert serving._about_risk(served, None) == []
    assert serving._about_risk(served, 0.409) == []
    (text,) = serving._about_risk(served._replace(zero_risk=0.39), None)
    assert "0.4 is not below that of the model 0 (0.39)" in text
    (text,) = serving._about_risk(served, 0.42)
    assert "bound 0.42 is above the excess risk of the model 0 (0.41)" in text


def test_models_that_are_no_better_than_one_class_are_said_to_be():
    """Judged by the held-out rows: a gain that chance explains is none."""
    label = np.array([1.0] * 60 + [-1.0] * 40)
    train = dd.Labelled(np.zeros((2, 1)), np.array([-1.0, 1.0]))
    data = OwnData(
        train, dd.Labelled(np.zeros((100, 1)), label), np.arange(2), (), ("n", "y"), "", ""
    )
    none = serving.Served(np.ones((4, 1)), None, None, 1.0, 0.0, serving.Seconds(0.0, 0.0, 0.0))

    def warned(right, exact=0.6, intercept=False, spread=0.0):
        right = np.asarray(right, float)
        accuracy = right.mean() + spread * np.array([[-1.0], [1.0], [-1.0], [1.0]])
        served = none._replace(accuracy=accuracy, right=right, exact_accuracy=np.array([exact]))
        return serving._about_accuracy(data, served, intercept)

    assert serving._about_accuracy(data, none, False) == []
    (same,) = warned(label > 0)
    assert same.startswith("NO BETTER")
    assert "0.600 of the held-out rows" in same
    assert "smaller l2, an intercept" in same
    assert "chance" not in same
    assert "intercept" not in warned(label > 0, intercept=True)[0]
    assert "more records, larger budgets" in warned(label > 0, exact=0.9)[0]
    assert warned(label < 0)[0].startswith("NO BETTER")
    # Three more rows than one class gets: perhaps chance. All rows: none, unless seeds differ much.
    few = label > 0
    few[60:63] = True
    assert warned(few)[0].startswith("NOT SHOWN")
    assert warned(np.ones(100)) == []
    (unsure,) = warned(np.ones(100), spread=0.4)
    assert unsure.startswith("NOT SHOWN")
    assert "more seeds" in unsure


def test_a_gain_too_small_to_matter_is_none_however_many_rows_there_are():
    label = np.array([1.0] * 60_000 + [-1.0] * 40_000)
    test = dd.Labelled(np.zeros((100_000, 1)), label)
    data = OwnData(test, test, np.arange(2), (), ("n", "y"), "", "")
    right = np.where(np.arange(100_000) % 60_000 == 0, 1.0, label > 0)  # one row more
    served = serving.Served(np.ones((4, 1)), None, None, 1.0, 0.0, serving.Seconds(0.0, 0.0, 0.0))
    served = served._replace(
        accuracy=np.full((4, 1), right.mean()), right=right, exact_accuracy=np.array([0.6])
    )
    (text,) = serving._about_accuracy(data, served, False)
    assert text.startswith("NO BETTER")


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


def run_on_coins(folder, *options):
    """(values, certificate, lines of run.csv) of one small run without anything to learn."""
    (folder / "my.csv").write_text(coin_table())
    out = io.StringIO()
    shared = ["run", "--data", str(folder / "my.csv"), "--label", "y", "--requests", "1", "--json"]
    shared += ["--seeds", "3", "--lower", "-1", "--upper", "1", "--save", str(folder / "out")]
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        assert cli.main([*shared, *options]) == 0
    certificate = dd.Certificate.from_json((folder / "out" / "certificate.json").read_text())
    with (folder / "out" / "run.csv").open(newline="") as file:
        return json.loads(out.getvalue()), certificate, list(csv.DictReader(file))


@pytest.fixture(scope="module")
def secret(tmp_path_factory):
    return run_on_coins(tmp_path_factory.mktemp("secret"))


def test_a_useless_model_is_said_to_be_before_anything_else(secret, capsys):
    values, certificate, _ = secret
    useless, nothing = values["warnings"][:2]
    assert "ONE CLASS" in useless
    assert "model 0" in nothing
    run.show(values, certificate)
    assert capsys.readouterr().out.startswith(f"WARNING: {useless[:20]}")


def test_a_run_takes_a_secret_key_unless_a_seed_is_given(secret, tmp_path):
    values, certificate, rows = secret
    assert (values["rehearsal"], values["seed"]) == (False, None)
    assert {(row["rehearsal"], row["seed"]) for row in rows} == {("False", "")}
    assert not any("REHEARSAL" in text for text in (*values["warnings"], *certificate.warnings))
    again, _, _ = run_on_coins(tmp_path)
    assert again["requests"][0]["excess_risk"] != values["requests"][0]["excess_risk"]


def test_a_run_with_a_seed_is_a_rehearsal_wherever_one_can_look(tmp_path, capsys):
    values, certificate, rows = run_on_coins(tmp_path, "--seed", "7")
    assert (values["rehearsal"], values["seed"]) == (True, 7)
    (warning,) = (text for text in values["warnings"] if "REHEARSAL" in text)
    assert "seed 7" in warning
    assert warning in certificate.warnings
    assert {(row["rehearsal"], row["seed"]) for row in rows} == {("True", "7")}
    run.show(values, certificate)
    assert "WARNING: REHEARSAL" in capsys.readouterr().out
    again, _, _ = run_on_coins(tmp_path, "--seed", "7")
    assert again["requests"] == values["requests"]


def test_intervals_are_students():
    values = np.array([3.0, 4.0, 6.0])
    expected = stats.t.interval(0.9, 2, np.mean(values), stats.sem(values))
    np.testing.assert_allclose(mean_over_seeds(values, 0.9)[1:], expected)
    seconds = serving.Seconds(0.0, 0.0, 0.0)
    alone = serving.Served(values[:1, None], None, None, 1.0, 0.0, seconds)
    line = serving._measured(alone, 0, [])
    risks = [line[name] for name in ("excess_risk", "excess_risk_low", "excess_risk_high")]
    assert risks == [3.0, None, None]


def test_the_limits_of_an_accuracy_are_accuracies():
    mean, low, high = mean_over_seeds(np.array([0.05, 0.95]), 0.99, least=0.0, most=1.0)
    assert (mean, low, high) == (0.5, 0.0, 1.0)


def test_rows_of_the_file_become_places_among_the_training_records():
    config = run.Config("my.csv", rows=(9, 2, 7, 4), edits_per_request=2)
    data = OwnData(None, None, np.array([2, 4, 5, 7, 9]), (), ("0", "1"), "", "")
    assert run._stream(config, data, 2).tolist() == [[4, 0], [3, 1]]
    first = run.Config("my.csv", edits_per_request=2)
    assert run._stream(first, data, 2).tolist() == [[0, 1], [2, 3]]


# --- the guide -----------------------------------------------------------------------------------

GUIDE = (Path(__file__).parents[2] / "docs" / "own-data.md").read_text(encoding="utf-8")


def test_the_guide_names_every_key_and_no_other(answer):
    values, _, _, _ = answer
    listed = GUIDE.split("| key | meaning |")[1].split("## ")[0]
    named = set(re.findall(r"`(\w+)`", listed))
    inner = [values[key] for key in ("data", "plan", "kept", "seconds")]
    keys = set(values).union(*inner, values["requests"][1]) | {"files"}
    assert named == keys


def test_the_guides_numbers_are_those_of_its_command():
    problem = ProblemConstants(constants.logistic(feature_norm=np.sqrt(2)), 0.01)
    n = int(re.search(r"my.csv: ([\d,]+) training rows", GUIDE)[1].replace(",", ""))
    plan = dd.plan_convex(problem, n=n, dim=3, delta=1e-4, eps_dp=1.0, eps_dd=0.2)
    assert (
        f"A request costs {plan.delete_gradients:,} gradients of one record ({plan.delete_steps} "
        f"steps), {plan.learn_steps / plan.delete_steps:.3g}× less than retraining; learning took "
        f"{plan.learn_gradients:,} ({plan.learn_steps} steps)."
    ) in GUIDE
    issued = plan.certificate(request=3)
    assert f"│ {issued.risk_bound_request:>10.4g} │" in GUIDE
    assert f"│ {issued.eps_dd_request:>11.4g} │ {issued.advantage_bound:>11.4g} │" in GUIDE


# --- bad input ------------------------------------------------------------------------------------

OWN = ["--data", "my.csv", "--label", "y"]
TASK = ["--data", "digits-3-vs-8"]
BAD = [
    ([*OWN, "--requests", "0"], "--requests = 0 is not a whole number ≥ 1; give one."),
    ([*OWN, "--seeds", "0"], "--seeds = 0 is not"),
    ([*OWN, "--adaptivity", "-1"], "--adaptivity = -1 is not a whole number ≥ 0; give one."),
    ([*OWN, "--rows", "1", "2", "3", "--edits-per-request", "2"], "--rows names 3 rows, but 1"),
    ([*OWN, "--rows", "1", "2", "--requests", "3"], "names 2 rows, but 3 requests of 1 delete 3"),
    ([*OWN, "--save", "my.csv"], "--save my.csv is a file; name a folder."),
    ([*OWN, "--save", "my.csv/out"], "Not a directory: 'my.csv/out'; name another place."),
    ([*OWN, "--rows", "40"], "there is no row 40; name one of 0 to 39."),
    ([*OWN, "--rows", "1", "1"], "--rows 1 is named twice"),
    ([*OWN, "--rows", "1", "7"], "row 7 is held out"),
    ([*OWN, "--rows", "1", "0", "--seed", "1"], "row 0 is held out"),
    ([*OWN, "--rows", "-1"], "there is no row -1; name one of 0 to 39."),
    ([*OWN, "--test-fraction", "1.5"], "test_fraction = 1.5 is not in (0, 1)"),
    ([*OWN, "--requests", "29"], "31 must train (those to be deleted, and 2 that stay); give"),
    ([*OWN, "--lower", "0"], "lower and upper belong together"),
    ([*OWN, "--lower", "0", "--upper", "1"], "beyond the declared [0, 1]"),
    ([*OWN, "--bound", "0.1"], "row 0 has norm"),
    ([*OWN, "--ranges", "none.json"], "ranges none.json: no such file"),
    ([*OWN, "--drop", "z"], "no column 'z' of my.csv to drop; there are 'a', 'b', 'y'."),
    ([*OWN, "--l2", "-1"], "l2 = -1.0 is not a positive finite number"),
    ([*OWN, "--eps-dp", "0"], "eps_dp"),
    ([*OWN, "--eps-dd", "-1"], "eps_dd"),
    ([*OWN, "--order", "1"], "order"),
    ([*OWN, "--order", "2", "--delta", "1e-5"], "and not both"),
    ([*OWN, "--delta", "2"], "delta"),
    ([*OWN, "--delta", "1e-5", "--accountant", "paper"], "accountant='optimal'"),
    ([*OWN, "--l2", "1e-12", "--unit-rows"], "too many for 20 seeds; give a larger l2"),
    (["--data", "my.csv"], "label is missing"),
    (["--data", "my.csv", "--label", "x"], "my.csv has no column 'x'; there are 'a', 'b', 'y'."),
    (["--data", "none.csv", "--label", "y"], "no file none.csv; check the name."),
    (["--data", ".", "--label", "y"], "is a folder; name a CSV or NPZ file in it."),
    (["--data", "/dev/null", "--label", "y"], "/dev/null is a pipe or device, and files are read"),
    (["--data", "digits"], "no data set and no file 'digits'; choose one of adult, breast-cancer"),
    ([*TASK, "--label", "y"], "--label is for a file of your own, not digits-3-vs-8; drop it."),
    ([*TASK, "--bound", "1"], "--bound is for a file of your own"),
    ([*TASK, "--rows", "267"], "there is no row 267; name one of 0 to 266."),
    ([*TASK, "--requests", "266"], "has 267 training rows, but 268 are needed"),
    ([*TASK, "--test-fraction", "0"], "is not in (0, 1)"),
    ([*TASK, "--loss", "squared"], "squared"),
    ([*TASK, "--seed", "-1"], "--seed = -1"),
    ([], "--data"),
]
CONTENTS = [
    ("", "my.csv is empty; give a header line"),
    ("a,y\n", "my.csv holds a header and no records"),
    ("a,y\n1,0\n,1\n3,1\n", "1 missing value, the first in row 1 (line 3), column 'a'"),
    ("a,y\n1,0\nred,1\n", "column 'a' of my.csv holds text (row 1 (line 3) holds 'red')"),
    ("a;y\n1,5;0\n2,5;1\n", "(row 0 (line 2) holds '1,5'); write numbers with a decimal point."),
    ("a,y\n1,0\ninf,1\n", "1 infinite value, the first in row 1 (line 3), column 'a'"),
    ("a,y\n1,1\n2,1\n", "label 'y' of my.csv is '1' in every row; two classes are needed."),
    ("a,y\n1,1\n2,2\n3,3\n", "has 3 values ('1', '2', '3'); two classes are needed"),
    ("a,y\n1,1\n2,2\n3,1\n", "my.csv has 3 rows, 3 to train and 0 to hold out, too few: 12"),
    ("a,y\n1,1\n2\n", "row 1 (line 3) of my.csv has 1 fields, the header 2"),
    ("a,a,y\n1,1,0\n", "my.csv has two columns named 'a'"),
]


@pytest.fixture
def refused(tmp_path, monkeypatch, capsys):
    """Run with these options in a folder with my.csv; the one line that it is refused with."""

    def never(*args, **kwargs):
        raise AssertionError("bad input was computed with")

    def check(options, text):
        (tmp_path / "my.csv").write_text(text)
        assert cli.main(["run", *options]) == 2
        done = capsys.readouterr()
        lines = [line for line in done.err.splitlines() if "starting JAX" not in line]
        assert len(lines) == 1, lines
        assert lines[0].startswith("dd-jax run: ")
        assert done.out == ""
        return lines[0]

    monkeypatch.setattr(serving, "_timed", never)
    monkeypatch.chdir(tmp_path)
    return check


@pytest.mark.parametrize(("options", "words"), BAD)
def test_a_bad_request_is_one_line_and_status_2(refused, options, words):
    assert words in refused(options, table())


@pytest.mark.parametrize(("text", "words"), CONTENTS)
def test_a_bad_file_is_one_line_and_status_2(refused, text, words):
    assert words in refused(OWN, text)
