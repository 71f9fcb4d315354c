"""The command around a sweep; the runs themselves are tested in tests/sweeps."""

import csv
import json

import numpy as np
import pytest

from dd_jax import cli, sweeps
from dd_jax.sweeps import deletion as deletion_sweep

OPTIONS = ["--l2", "0.05", "0.1", "--eps-dp", "0.5", "1", "--seeds", "3", "--requests", "4"]


@pytest.fixture
def ran(monkeypatch):
    """What `sweep.run` was asked for; every setting has risk 0.01 · its number ± a little."""
    asked = []

    def run(stream, fn, key, num_seeds, settings, *, arguments, progress, **options):
        train, test = arguments(settings[0])
        asked.append((stream, fn, num_seeds, settings, train, test, options))
        spread = np.array([0.9, 1.0, 1.1])[:num_seeds]
        progress(1, 2)
        return [
            deletion_sweep.Outcome(0.01 * k * spread, 0.02 * k * spread, 0.9 * spread, 0.8 * spread)
            for k in range(1, len(settings) + 1)
        ]

    monkeypatch.setattr(sweeps, "run", run)
    return asked


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
    # Student's t with two degrees of freedom, 16 intervals at 95% together.
    half = 17.849 * 0.008 / 3**0.5
    assert row["risk_edited_high"] - row["risk_edited"] == pytest.approx(half, rel=1e-3)
    assert row["risk_edited_low"] == pytest.approx(max(0.08 - half, 0.0), abs=1e-4)
    assert 0 <= row["accuracy_edited_low"] <= row["accuracy_edited_high"] <= 1
    saved = json.loads((tmp_path / "sweep.json").read_text())
    assert saved["rows"] == found["rows"]
    with (tmp_path / "sweep.csv").open() as file:
        table = list(csv.DictReader(file))
    assert [float(line["risk_edited"]) for line in table] == [
        row["risk_edited"] for row in found["rows"]
    ]


def test_a_setting_without_a_plan_is_listed_with_the_reason(ran, capsys, tmp_path):
    options = "--noise-variance 0.01 1e-9 --eps-dp 0.5 1 --seeds 3 --results"
    assert cli.main(["sweep", *options.split(), str(tmp_path)]) == 0
    assert capsys.readouterr().out
    assert len(ran[0][3]) == 1  # two budgets, one plan
    rows = json.loads((tmp_path / "sweep.json").read_text())["rows"]
    refused = [row for row in rows if row["refused"]]
    assert [row["noise_variance"] for row in refused] == [1e-9, 1e-9]
    assert all("noise_variance" in row["refused"] for row in refused)
    assert "refused" in (tmp_path / "sweep.csv").read_text().splitlines()[0]


def test_a_mean_beyond_its_bound_is_status_1(monkeypatch, capsys, tmp_path):
    def run(*args, **options):
        del options
        high, accuracy = np.array([9.0, 9.1]), np.array([0.5, 0.6])
        return [deletion_sweep.Outcome(high, high, accuracy, accuracy) for _ in args[4]]

    monkeypatch.setattr(sweeps, "run", run)
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
        ("--records 500", "267"),
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
