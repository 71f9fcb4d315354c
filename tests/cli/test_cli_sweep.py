"""The command around a sweep; the runs themselves are tested in tests/sweeps."""

import csv
import json

import numpy as np
import pytest

from dd_jax import cli
from dd_jax.sweeps import deletion as deletion_sweep
from dd_jax.sweeps import runner

OPTIONS = ["--l2", "0.05", "0.1", "--eps-dp", "0.5", "1", "--seeds", "3", "--requests", "4"]


def outcome(risk, accuracy):
    """Made-up runs: the risk after the deletions is twice that after learning."""
    nothing = np.zeros_like(risk)
    return deletion_sweep.Outcome(risk, 2 * risk, accuracy, accuracy, risk, risk, nothing)


@pytest.fixture
def ran(monkeypatch):
    """What `sweeps.run` was asked for; setting k has a mean risk of 0.01 k after learning."""
    asked = []

    def run(stream, fn, key, num_seeds, settings, *, arguments, progress, **options):
        train, test = arguments(settings[0])
        asked.append((stream, fn, num_seeds, settings, train, test, options))
        spread = np.array([0.9, 1.0, 1.1])[:num_seeds]
        progress(1, 2)
        return [outcome(0.01 * k * spread, 0.9 * spread) for k in range(1, len(settings) + 1)]

    monkeypatch.setattr(runner, "run", run)
    return asked


def saved_rows(folder):
    with (folder / "results.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_grid_is_planned_run_saved_and_printed(ran, capsys, tmp_path):
    assert cli.main(["sweep", *OPTIONS, "--results", str(tmp_path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    asked = [(row["l2"], row["eps_dp_asked"]) for row in found["rows"]]
    assert asked == [(0.05, 0.5), (0.05, 1.0), (0.1, 0.5), (0.1, 1.0)]
    ((stream, fn, seeds, settings, train, _, options),) = ran
    assert fn is deletion_sweep.judged
    assert (seeds, options["traced"], options["at_once"]) == (3, deletion_sweep.TRACED, 1)
    assert stream.results == tmp_path / "sweep"
    assert train.features.shape == (267, 64)
    plan = deletion_sweep.Question("digits-3-vs-8", 267, 64, 0.1, 1.0, 0.1, requests=4).plan()
    row = found["rows"][3]
    assert settings[3].learn_steps == plan.learn_steps == row["learn_steps"]
    assert row["risk_bound_request"] == plan.certificate(request=4).risk_bound_request
    assert row["request_gradients"] == 267 * plan.delete_steps
    assert row["retraining_ratio"] == plan.learn_steps / plan.delete_steps
    assert row["risk_edited"] == pytest.approx(0.08)
    # Student's t with two degrees of freedom, 24 intervals at 95% together.
    half = 21.886 * 0.008 / 3**0.5
    assert row["risk_edited_high"] - row["risk_edited"] == pytest.approx(half, rel=1e-3)
    assert row["risk_edited_low"] == pytest.approx(max(0.08 - half, 0.0), abs=1e-4)
    assert 0 <= row["accuracy_edited_low"] <= row["accuracy_edited_high"] <= 1
    written = saved_rows(tmp_path)
    assert [float(line["risk_edited"]) for line in written] == [
        row["risk_edited"] for row in found["rows"]
    ]
    with np.load(tmp_path / "results.npz") as arrays:
        assert {*written[0]} < {*arrays}
        np.testing.assert_array_equal(arrays["l2"], [0.05, 0.05, 0.1, 0.1])
        np.testing.assert_allclose(
            arrays["risk_edited_by_seed"].mean(axis=1), arrays["risk_edited"]
        )


def test_a_setting_without_a_plan_is_listed_with_the_reason(ran, capsys, tmp_path):
    options = "--noise-variance 0.01 1e-9 --eps-dp 0.5 1 --seeds 3 --results"
    assert cli.main(["sweep", *options.split(), str(tmp_path)]) == 0
    assert capsys.readouterr().out
    assert len(ran[0][3]) == 1  # two budgets, one plan
    refused = [row for row in saved_rows(tmp_path) if row["refused"]]
    assert [float(row["noise_variance"]) for row in refused] == [1e-9, 1e-9]
    assert all("noise_variance" in row["refused"] for row in refused)
    with np.load(tmp_path / "results.npz") as arrays:
        assert np.isnan(arrays["risk_edited"]).sum() == 2


def test_a_file_of_ones_own_and_every_option_reach_the_settings(ran, capsys, tmp_path):
    lines = [f"{np.cos(i):.6f},{np.sin(3 * i):.6f},{'ab'[i % 2]}\n" for i in range(60)]
    (tmp_path / "my file.csv").write_text("u,v,y\n" + "".join(lines))
    options = (
        "--label y --unit-rows --intercept --loss huber --threshold 0.5 --clip-norm 0.4 --delta "
        "1e-3 --edits-per-request 2 --requester largest_loss --adaptivity 0 3 --requests 3 "
        "--precision bfloat16x3 --seeds 3 --results"
    )
    file = str(tmp_path / "my file.csv")
    assert cli.main(["sweep", "--data", file, *options.split(), str(tmp_path), "--json"]) == 0
    ((stream, _, _, settings, train, _, _),) = ran
    assert [setting.adaptivity for setting in settings] == [0, 3]
    assert {(s.edits_per_request, s.threshold, s.precision) for s in settings} == {
        (2, 0.5, "bfloat16x3")
    }
    assert train.features.shape[1] == 3
    assert stream.name == "my-file.csv"
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert rows[1]["eps_dd_adaptive"] > rows[0]["eps_dd_adaptive"] == rows[0]["eps_dd"]


def test_ranges_that_were_measured_are_said_to_be(ran, capsys, tmp_path):
    lines = [f"{np.cos(i):.6f},{'ab'[i % 2]}\n" for i in range(60)]
    (tmp_path / "my.csv").write_text("u,y\n" + "".join(lines))
    options = ["--label", "y", "--seeds", "3", "--requests", "2", "--results", str(tmp_path)]
    assert cli.main(["sweep", "--data", str(tmp_path / "my.csv"), *options]) == 0
    assert "WARNING" in capsys.readouterr().err
    assert all("MEASURED" in row["caveat"] for row in saved_rows(tmp_path))


def test_a_mean_beyond_its_bound_is_status_1(monkeypatch, capsys, tmp_path):
    def run(*args, **options):
        del options
        high, accuracy = np.array([9.0, 9.1]), np.array([0.5, 0.6])
        return [outcome(high, accuracy) for _ in args[4]]

    monkeypatch.setattr(runner, "run", run)
    options = ["--seeds", "2", "--results", str(tmp_path), "--json"]
    assert cli.main(["sweep", *options, "--confidence", "0.5"]) == 1
    assert json.loads(capsys.readouterr().out)["verdict"] == "refuted"
    # Two seeds prove nothing at a high confidence.
    assert cli.main(["sweep", *options, "--confidence", "0.9999"]) == 0


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ("--seeds 1", "--seeds"),
        ("--requests 0", "--requests"),
        ("--requests 1000", "--requests"),
        ("--requests 100 --edits-per-request 1 3", "--requests"),
        ("--records 500", "267"),
        ("--records 10", "requests"),
        ("--adaptivity 11", "adaptivity"),
        ("--loss hinge", "--loss"),
        ("--loss huber --smoothing 1", "smoothing"),
        ("--loss bounded_network", "hidden"),
        ("--loss squared", "lipschitz"),
        ("--loss tanh_margin", "steps"),
        ("--loss tanh_margin --delta 1e-5", "order"),
        ("--accountant sharp", "accountant"),
        ("--label y", "--label"),
        ("--data none.csv --label y", "none.csv"),
        ("--l2 0.1 0.1", "twice"),
        ("--eps-dp 0", "eps_dp"),
        ("--data nowhere", "nowhere"),
        ("--confidence 2", "confidence"),
        ("--order 2 --delta 1e-5", "delta"),
    ],
)
def test_bad_input_is_status_2_and_leaves_nothing(options, word, capsys, tmp_path):
    assert cli.main(["sweep", "--results", str(tmp_path / "none"), *options.split()]) == 2
    assert word in capsys.readouterr().err.splitlines()[-1]
    assert not (tmp_path / "none").exists()


def test_a_folder_that_cannot_be_written_is_refused_first(capsys):
    assert cli.main(["sweep", "--results", "/proc/nope"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
