import csv
import dataclasses
import json

import numpy as np
import pytest

from dd_jax import cli
from dd_jax.baselines import fixed_model
from dd_jax.intervals import Estimate, Mean
from experiments.__main__ import PROGRAM
from experiments.compare import measure, systems
from experiments.compare.measure import Comparison, Costs, Row
from experiments.compare.scene import Reference
from experiments.compare.sequential import SYSTEMS
from experiments.figures import sequential


def test_list_names_every_system(capsys):
    assert cli.main(["compare", "--list", "--json"], PROGRAM) == 0
    assert json.loads(capsys.readouterr().out)["systems"] == list(systems.CONTESTANTS)


def made_up(low: float) -> Row:
    """A row with a data-deletion claim of 0 and this lower limit against an adaptive requester."""
    found, fine = (Estimate(edge + 0.1, edge, edge + 0.2, 70, 0.99) for edge in (low, -0.1))
    return Row(
        data="synthetic",
        system="fixed-model",
        setting="θ = 0",
        guarantee=fixed_model.GUARANTEE,
        costs=Costs(0.0, 0.0, 0.0, 0.0, 0.0, seconds=1e-3, secret_bytes=0),
        excess_risk=Mean(0.1, 0.09, 0.11),
        accuracy="θ = 0 names no class",
        advantages=(fine, fine, found),
        allowed=(0.0, 0.0, 0.0),
        seeds=100,
        releases=3,
        copies=4,
        reference=Reference(0.9, 0.6, 100.0),
        dim=11,
    )


@pytest.mark.parametrize(("low", "status"), [(-0.1, 0), (0.1, 1)])
def test_a_run_is_saved_and_its_status_says_whether_a_certificate_is_refuted(
    low, status, capsys, tmp_path, monkeypatch
):
    asked = []
    left_out = {("synthetic", "sekhari"): "its noise is too small."}

    def run(config, say):
        asked.append(config)
        return Comparison([made_up(low)], left_out)

    monkeypatch.setattr(measure, "run", run)
    options = ["--data", "synthetic", "--systems", "fixed-model", "--records", "30"]
    options += ["--seeds", "100", "--epsilon", "0.5", "--results", str(tmp_path)]
    assert cli.main(["compare", *options], PROGRAM) == status
    assert (asked[0].records, asked[0].epsilon, asked[0].seeds) == (30, 0.5, 100)
    out = capsys.readouterr().out
    for word in ("fixed-model", "names no class", "too small"):
        assert word in " ".join(out.split())
    assert (".00 !" in out) == bool(status)
    found = sorted(path.name for path in tmp_path.glob("[!.]*"))
    assert found == [f"compare.{suffix}" for suffix in ("csv", "json", "pdf", "png", "svg")]
    saved = json.loads((tmp_path / "compare.json").read_text())
    assert [row["system"] for row in saved["rows"]] == ["fixed-model"]


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (["--systems", "oracle"], "oracle"),
        (["--data", "nowhere"], "nowhere"),
        (["--epsilon", "-1"], "epsilon"),
        (["--sequential", "--data", "synthetic"], "synthetic"),
        (["--sequential", "--epsilon", "0"], "epsilon"),
        (["--sequential", "--systems", "sisa"], "systems"),
        (["--results", __file__], "results"),
    ],
)
def test_bad_input_is_one_line_and_status_2(options, word, capsys, tmp_path):
    assert cli.main(["compare", "--results", str(tmp_path / "none"), *options], PROGRAM) == 2
    assert word in capsys.readouterr().err.strip().splitlines()[-1]
    assert not (tmp_path / "none").exists()


def test_sequential_prints_and_saves_the_table_of_the_authors_data(capsys, tmp_path, monkeypatch):
    asked = []

    def compute(config, runner):
        asked.append(config)
        shown = {"n": 10, "held_out": 5, "noise": [1.0, 2.0], "private_noise": 1.0}
        results = {name: np.array(value) for name, value in shown.items()}
        for name, system in SYSTEMS.items():
            points = 1 if system.passes is None else 2
            results[f"passes: {name}"] = np.full(points, 100.0)
            results[f"accuracy: {system.steps}"] = np.tile([0.9, 0.9001], (points, 1))
        return results

    monkeypatch.setattr(sequential, "compute", compute)
    options = ["--sequential", "--data", "mnist-3-vs-8", "--epsilon", "0.5"]
    assert cli.main(["compare", *options, "--results", str(tmp_path)], PROGRAM) == 0
    assert asked == [dataclasses.replace(sequential.FULL, epsilon=0.5)]
    assert "mnist-3-vs-8" in capsys.readouterr().out
    names = sorted(path.name for path in tmp_path.glob("[!.]*"))
    suffixes = ("csv", "json", "pdf", "png", "svg")
    assert names == [f"sequential-mnist-3-vs-8.{suffix}" for suffix in suffixes]
    rows = list(csv.DictReader((tmp_path / names[0]).read_text().splitlines()))
    assert [row["system"] for row in rows] == list(SYSTEMS)
    # Two systems set their own noise; an empty cell holds the reason.
    assert sum(row["σ²"].startswith("[") for row in rows) == 2
    saved = json.loads((tmp_path / names[1]).read_text())
    assert saved["rows"][0]["gradients"] == 1000
