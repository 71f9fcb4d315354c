"""`dd-jax audit` as a person uses it."""

import json
from types import SimpleNamespace

import pytest

from dd_jax import cli, ensemble
from dd_jax.audit import controls, power
from dd_jax.audit.controls import ControlRow
from dd_jax.audit.notions import NOTIONS
from dd_jax.audit.settings import base as audits
from dd_jax.baselines import notions
from dd_jax.cli import audit
from dd_jax.intervals import proportion

SEEDS = "5000"


def run(capsys, *arguments):
    status = cli.main(["audit", *arguments])
    out, err = capsys.readouterr()
    return status, out, err


def narrow(out):
    return max(map(len, out.splitlines())) <= 80


def kept_in(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_json_then_the_same_from_what_was_kept(tmp_path, capsys, monkeypatch):
    options = ("linear", "--claim", "dp", "--seeds", SEEDS, "--results", str(tmp_path))
    status, out, _ = run(capsys, *options, "--json")
    found = json.loads(out)
    assert status == 0
    assert found["verdict"] == "consistent"
    assert 0.7 < found["audited"] < found["exact"] <= found["certified"] < found["paper"]
    assert (found["seeds"], found["confidence"], found["claim"]) == (5000, 0.95, "dp")
    (row,) = found["claims"]
    assert row["audited"] == found["audited"]
    before = kept_in(tmp_path)
    assert before
    monkeypatch.setattr(ensemble, "over_seeds", None)  # no claim's runs are computed again
    monkeypatch.setattr(controls, "run_controls", lambda *args, **options: [])
    assert run(capsys, *options)[0] == 0
    assert kept_in(tmp_path) == before


def test_nothing_is_kept_where_that_is_asked(tmp_path, capsys):
    options = ("--claim", "dp", "--seeds", "500", "--results", str(tmp_path), "--no-save", "--json")
    status, out, _ = run(capsys, *options)
    assert status == 0
    assert json.loads(out)["setting"] == "linear"
    assert not list(tmp_path.iterdir())


def test_a_refuted_claim_is_status_1(capsys, monkeypatch):
    keeps = []

    def refuted(*args, keep, **options):
        keeps.append(keep)
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
            "through_mu": False,
        }
        fine = row | {"name": "other", "audited": 0.1, "verdict": "consistent"}
        fine |= {"words": "a long story " * 9, "through_mu": True}
        return [SimpleNamespace(to_dict=lambda row=row: row) for row in (fine, row)]

    monkeypatch.setattr(audits, "run", refuted)
    monkeypatch.setattr(controls, "run_controls", lambda *args, **options: [])
    status, out, _ = run(capsys, "linear", "--no-save", "--json")
    found = json.loads(out)
    assert (status, found["claim"], found["verdict"]) == (1, "dp", "refuted")
    status, out, _ = run(capsys, "linear", "--mesh", "1", "1")
    assert status == 1
    assert narrow(out)
    assert (keeps[0].mesh, keeps[1].mesh.size) == (None, 1)


@pytest.mark.parametrize("batches", ["1", "3"])
def test_an_audit_shows_a_mistake_that_it_flags_and_a_null_that_it_does_not(batches, capsys):
    options = ("--claim", "dp" if batches == "1" else "dp-first", "--no-save", "--seeds", "500")
    found = json.loads(run(capsys, *options, "--batches", batches, "--json")[1])
    mutant, null = found["controls"]
    assert found["controls_passed"]
    assert (mutant["flagged"], mutant["correct_flagged"]) == (True, False)
    assert (null["flagged"], null["correct_flagged"]) == (None, False)


@pytest.mark.parametrize("flagged", [True, False])
def test_an_audit_whose_control_is_not_flagged_is_status_1(flagged, capsys, monkeypatch):
    """One of the two rows is as expected in any case."""
    rate = proportion(1, 1, 0.95)
    what = ("half noise", "mutant", "σ²/2", "linear", "gaussian_mu", 100)
    rows = [ControlRow(*what, f, False, rate, rate, None, "", 0.999) for f in (True, flagged)]
    monkeypatch.setattr(controls, "run_controls", lambda *args, **options: rows)
    options = ("--claim", "dp", "--no-save", "--seeds", "500")
    status, out, _ = run(capsys, *options)
    assert status == (not flagged)
    assert "half noise" in out
    assert ("NOT as expected" in out) == (not flagged)
    status, out, _ = run(capsys, *options, "--json")
    found = json.loads(out)
    assert (status, found["verdict"]) == (not flagged, "consistent")
    assert found["controls_passed"] is flagged


def test_an_audit_that_could_not_have_noticed_says_so_and_names_the_seeds(capsys):
    options = ("--claim", "deletion-1", "--no-save", "--json", "--seeds")
    found = json.loads(run(capsys, *options, "500")[1])
    (warning,) = found["warnings"]
    (row,) = found["claims"]
    assert row["blind"]
    assert row["detectable"] > 3 * row["certified"]
    assert str(row["seeds_needed"]) in warning
    found = json.loads(run(capsys, *options, str(row["seeds_needed"]))[1])
    assert found["warnings"] == []
    assert found["claims"][0]["certified"] < found["claims"][0]["detectable"]
    assert found["claims"][0]["detectable"] <= 3 * found["claims"][0]["certified"]
    unseen = {"name": "dp", "blind": True, "detectable": None, "certified": 1.0}
    assert "900" in audit._blind([unseen | {"seeds_needed": 900}])[0]


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ("cubic", "cubic"),
        ("linear --batches 0", "batches"),
        ("--controls --batches 3", "--batches"),
        ("--claim dpp", "dpp"),
        ("--seeds 3", "seeds"),
        ("--confidence 2", "confidence"),
        ("--order 1", "order"),
        ("--controls --coverage", "setting"),
        ("linear --controls", "setting"),
        ("notion", "notions"),
        ("--replays 3", "--replays"),
        ("--controls --replays 0", "replays"),
        ("--list --mesh 1 1", "devices"),
        ("--coverage --mesh 1 1", "devices"),
        ("notions --batches 3", "batches"),
        ("notions --claim guo", "claim"),
        ("notions --replays 3", "replays"),
        ("notions --seeds 3", "seeds"),
    ],
)
def test_bad_input_is_status_2_and_leaves_nothing(options, word, capsys, tmp_path):
    status, out, err = run(capsys, *options.split(), "--results", str(tmp_path))
    assert (status, out) == (2, "")
    assert word in err.splitlines()[-1]
    assert not list(tmp_path.iterdir())


def test_a_file_in_the_place_of_the_folder(capsys, tmp_path):
    taken = tmp_path / "taken"
    taken.write_text("mine")
    status, _, err = run(capsys, "--results", str(taken))
    assert status == 2
    assert "file" in err


def test_list_names_settings_and_claims(capsys):
    status, out, _ = run(capsys, "--list")
    assert status == 0
    assert "adaptive-deletion" in out
    assert narrow(out)
    status, out, _ = run(capsys, "--list", "--json")
    found = {setting["name"]: setting for setting in json.loads(out)["settings"]}
    assert status == 0
    assert set(found) == {"linear", "logistic", "nonconvex"}
    assert found["linear"]["seeds"] == 100_000
    assert "deletion-1" in found["linear"]["claims"]
    assert {"ginart", "adaptive-deletion"} <= json.loads(out)["notions"].keys()


@pytest.mark.parametrize(("refuted", "status"), [(True, 0), (False, 1)])
def test_a_control_that_meets_a_notion_is_status_1(refuted, status, capsys, monkeypatch):
    def table(key, **options):
        numbers = (1.0, 0.01, 0.9, 1.0, refuted, False, 0.1, False)
        return [notions.Cell("stale", name, "control", *numbers) for name in NOTIONS]

    monkeypatch.setattr(notions, "table", table)
    got, out, _ = run(capsys, "notions", "--json")
    assert got == status
    assert json.loads(out)["as_expected"] == refuted
    got, out, _ = run(capsys, "notions")
    assert got == status
    assert narrow(out)


@pytest.mark.parametrize("passed", [True, False])
def test_controls_that_fail_are_status_1(passed, capsys, monkeypatch):
    """One of the two rows is as expected in any case."""
    given, rate = {}, proportion(3, 4, 0.95)
    described = ("half noise", "mutant", "σ²/2", "linear", "gaussian_mu", 100)

    def run_controls(key, **options):
        given.update(options)
        flagged = [True, passed]
        return [ControlRow(*described, f, False, rate, rate, None, "", 0.999) for f in flagged]

    monkeypatch.setattr(controls, "run_controls", run_controls)
    assert run(capsys, "--controls", "--replays", "4")[0] == (not passed)
    assert given["replays"] == 4
    assert "confidence" not in given
    status, out, _ = run(capsys, "--controls", "--json")
    assert status == (not passed)
    assert json.loads(out)["passed"] is passed


@pytest.mark.parametrize(("alarms", "status"), [(50, 0), (200, 1)])
def test_coverage_that_fails_is_status_1(alarms, status, capsys, monkeypatch):
    def rows(**options):
        rate = proportion(alarms, 1000, 0.999)
        return [power.Row("advantage", "one law twice", 0.0, rate, 0.1, 0.05)]

    monkeypatch.setattr(power, "table", rows)
    assert run(capsys, "--coverage")[0] == status
    found, out, _ = run(capsys, "--coverage", "--json")
    assert found == status
    assert json.loads(out)["sound"] == (status == 0)
