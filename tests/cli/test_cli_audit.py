"""`dd-jax audit` as a person uses it."""

import json
from types import SimpleNamespace

import pytest

from dd_jax import cli
from dd_jax.audit import controls, power
from dd_jax.audit.settings import base as audits
from dd_jax.cli import audit
from dd_jax.intervals import proportion

SEEDS = "5000"


def run(capsys, *arguments):
    status = cli.main(["audit", *arguments])
    out, err = capsys.readouterr()
    return status, out, err


def test_json_then_resumed_table(tmp_path, capsys):
    options = ("linear", "--claim", "dp", "--seeds", SEEDS, "--results", str(tmp_path))
    status, out, err = run(capsys, *options, "--json")
    found = json.loads(out)
    assert status == 0
    assert found["verdict"] == "consistent"
    assert 0.7 < found["audited"] < found["exact"] <= found["certified"] < found["paper"]
    assert (found["seeds"], found["confidence"], found["claim"]) == (5000, 0.95, "dp")
    (row,) = found["claims"]
    assert row["audited"] == found["audited"]
    lines = err.splitlines()
    assert lines[0] == "dd-jax audit: starting JAX …"
    assert lines[1] == "linear-stays: 5,000 seeds in each of two worlds …"
    assert lines[-2].startswith("linear-stays: 10,000 of 10,000 runs")
    files = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert files
    status, out, err = run(capsys, *options)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == files
    assert status == 0
    for words in (
        "dp: one release",
        "consistent",
        "would catch",
        "paper/certified",
        "0.95 confidence",
    ):
        assert words in out


def test_nothing_is_kept_where_that_is_asked(tmp_path, capsys):
    options = ("--claim", "dp", "--seeds", SEEDS, "--results", str(tmp_path), "--no-save", "--json")
    status, out, _ = run(capsys, *options)
    assert status == 0
    assert json.loads(out)["setting"] == "linear"
    assert not list(tmp_path.iterdir())


def test_a_refuted_claim_is_status_1(capsys, monkeypatch):
    def refuted(*args, **options):
        row = {
            "name": "dp",
            "words": "one release",
            "audited": 2.0,
            "exact": None,
            "certified": 1.0,
            "paper": 3.0,
            "verdict": "refuted",
            "detectable": None,
            "blind": False,
            "seeds_needed": None,
            "power": 0.9,
            "seeds": 10,
            "audited_over_exact": None,
            "paper_over_certified": 3.0,
        }
        fine = row | {"name": "other", "audited": 0.1, "verdict": "consistent"}
        return [SimpleNamespace(to_dict=lambda row=row: row) for row in (fine, row)]

    monkeypatch.setattr(audits, "run", refuted)
    status, out, _ = run(capsys, "linear", "--no-save", "--json")
    assert status == 1
    assert json.loads(out)["claim"] == "dp"
    status, out, _ = run(capsys, "linear", "--no-save")
    assert status == 1
    assert "refuted" in out


def test_an_audit_that_could_not_have_noticed_says_so_first_and_names_the_seeds(capsys):
    options = ("--claim", "deletion-1", "--no-save")
    status, out, _ = run(capsys, *options, "--seeds", "500", "--json")
    found = json.loads(out)
    assert status == 0
    (warning,) = found["warnings"]
    (row,) = found["claims"]
    assert row["blind"]
    assert row["detectable"] > 3 * row["certified"]
    assert f"--seeds {row['seeds_needed']}" in warning
    status, out, _ = run(capsys, *options, "--seeds", "500")
    first = out.splitlines()[0]
    assert first.startswith("WARNING")
    assert "deletion-1" in first
    status, out, _ = run(capsys, *options, "--seeds", str(row["seeds_needed"]), "--json")
    found = json.loads(out)
    assert found["warnings"] == []
    assert found["claims"][0]["certified"] < found["claims"][0]["detectable"]
    assert found["claims"][0]["detectable"] <= 3 * found["claims"][0]["certified"]


def test_an_audit_that_would_notice_nothing_says_so():
    row = {"name": "dp", "blind": True, "detectable": None, "seeds_needed": 900, "certified": 1.0}
    (text,) = audit._blind([row])
    assert "nothing" not in text
    assert "--seeds 900" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["cubic"], "no setting 'cubic'; choose one of linear, logistic."),
        (["--claim", "dpp"], "linear has no claim 'dpp'"),
        (["--seeds", "3"], "seeds per arm are too few"),
        (["--confidence", "2"], "confidence = 2"),
        (["--order", "1"], "order = 1"),
        (["--controls", "--coverage"], "give one of a setting"),
        (["linear", "--controls"], "give one of a setting"),
        (["--replays", "3"], "--replays belongs to"),
        (["--controls", "--replays", "0"], "replays = 0"),
    ],
)
def test_bad_input_is_one_line_and_status_2(arguments, message, capsys, tmp_path):
    status, out, err = run(capsys, *arguments, "--results", str(tmp_path))
    assert (status, out) == (2, "")
    *started, complaint = err.splitlines()
    assert started in ([], ["dd-jax audit: starting JAX …"])
    assert complaint.startswith("dd-jax audit: ")
    assert message in complaint
    assert not list(tmp_path.iterdir())


def test_a_file_in_the_place_of_the_folder(capsys, tmp_path):
    taken = tmp_path / "taken"
    taken.write_text("mine")
    status, _, err = run(capsys, "--results", str(taken))
    assert status == 2
    assert "is a file; name a folder." in err


def test_list_names_settings_and_claims(capsys):
    status, out, _ = run(capsys, "--list")
    assert status == 0
    assert "deletion-20" in out
    status, out, _ = run(capsys, "--list", "--json")
    found = {setting["name"]: setting for setting in json.loads(out)["settings"]}
    assert set(found) == {"linear", "logistic"}
    assert found["linear"]["seeds"] == 100_000


def control_row(flagged, correct_flagged):
    rate = proportion(3, 4, 0.95)
    return controls.ControlRow(
        control="half noise",
        kind="mutant",
        broken="σ²/2",
        setting="linear",
        gate="gaussian_mu",
        seeds=100,
        flagged=flagged,
        correct_flagged=correct_flagged,
        power=rate if flagged is not None else None,
        false_alarms=rate,
        evidence=None,
        correct_evidence="",
        confidence=0.999,
    )


@pytest.mark.parametrize(
    ("flagged", "correct_flagged", "status"),
    [(True, False, 0), (False, False, 1), (True, True, 1), (None, False, 0), (None, True, 1)],
)
def test_controls_that_fail_are_status_1(flagged, correct_flagged, status, capsys, monkeypatch):
    given = {}

    def run_controls(key, **options):
        given.update(options)
        options["progress"](1, 1)
        return [control_row(flagged, correct_flagged)]

    monkeypatch.setattr(controls, "run_controls", run_controls)
    found, out, err = run(capsys, "--controls", "--replays", "4")
    assert found == status
    assert "half noise" in out
    assert "0.75 [0.19, 0.99]" in out
    assert "controls: 1 of 1" in err
    assert given["replays"] == 4
    assert "confidence" not in given
    found, out, _ = run(capsys, "--controls", "--json")
    assert found == status
    assert json.loads(out)["passed"] == (status == 0)


@pytest.mark.parametrize(("alarms", "status"), [(50, 0), (200, 1)])
def test_coverage_that_fails_is_status_1(alarms, status, capsys, monkeypatch):
    def rows(**options):
        rate = proportion(alarms, 1000, 0.999)
        return [power.Row("advantage", "one law twice", 0.0, rate, 0.1, 0.05)]

    monkeypatch.setattr(power, "table", rows)
    found, out, _ = run(capsys, "--coverage")
    assert found == status
    assert "1,000 replays; 0.05 is allowed" in out
    found, out, _ = run(capsys, "--coverage", "--json")
    assert found == status
    assert json.loads(out)["sound"] == (status == 0)
