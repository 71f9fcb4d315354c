"""The exit status of the report, its JSON, and what it does before JAX is there."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import dd_jax as dd
from dd_jax import cli
from experiments import figures
from experiments.__main__ import PROGRAM
from experiments.page import ClaimRow, Made
from experiments.report import Report

# The experiments are not installed.
ROOT = Path(figures.__file__).parents[2]
DONE = Made("done", "Done", "computed", seconds=1.5, files={"CSV": "done.csv"})
ABSENT = Made("real", "Real", "missing data", problem="not downloaded", command="fetch it")
BROKEN = Made("bad", "Bad", "failed", problem="ValueError: no")
HOLDS = ClaimRow("holds", 1.0, 1.0, 0.9, "consistent", "done")
FALSE = ClaimRow("is false", 1.0, 1.0, 1.1, "refuted", "done")


@pytest.fixture
def outcome(monkeypatch, tmp_path):
    """Sets the report's result; returns the options that it was given."""
    from experiments import report

    given = []

    def become(made, claims):
        def write_report(options, say):
            given.append(options)
            say(report.Schedule({figure.name: 60.0 for figure in made}), "working")
            return Report(tmp_path / "report.html", tuple(made), tuple(claims))

        monkeypatch.setattr(report, "write_report", write_report)
        return given

    return become


@pytest.mark.parametrize(
    ("made", "claims", "status"),
    [
        ([DONE, ABSENT], [HOLDS], 0),
        ([DONE], [HOLDS, FALSE], 1),
        ([BROKEN, DONE], [FALSE], 3),
    ],
)
def test_status_says_refuted_or_failed_and_missing_data_are_neither(
    outcome, made, claims, status, capsys
):
    outcome(made, claims)
    assert cli.main(["report"], PROGRAM) == status
    printed = capsys.readouterr().out
    for figure in made:
        assert (figure.problem or "") in printed
    assert ("is false" in printed) == (FALSE in claims)


def test_json_lists_every_figure_with_its_files_or_why_it_is_missing(outcome, capsys, tmp_path):
    given = outcome([DONE, ABSENT, BROKEN], [FALSE])
    options = ["--json", "--scale", "full", "--figures", "savings", "--recompute"]
    assert cli.main(["report", "--results", str(tmp_path), *options], PROGRAM) == 3
    found = json.loads(capsys.readouterr().out)
    assert found["page"] == str(tmp_path / "report.html")
    assert (found["scale"], found["refuted"]) == ("full", ["is false"])
    done, absent, broken = found["figures"]
    assert (done["status"], done["seconds"]) == ("computed", 1.5)
    assert done["files"] == [str(tmp_path / "done.csv")]
    assert (absent["problem"], absent["command"]) == ("not downloaded", "fetch it")
    assert broken["status"] == "failed"
    [options] = given
    assert (options.scale, options.names, options.recompute) == ("full", ("savings",), True)


def test_bad_options_are_refused_before_jax_is_loaded(tmp_path):
    taken = tmp_path / "taken"
    taken.write_text("mine")
    code = (
        "import sys; from dd_jax import cli; from experiments.__main__ import PROGRAM\n"
        f"bad = ['--figures', 'risk'], ['--results', {str(taken)!r}], ['--scale', 'x']\n"
        "assert [cli.main(['report', *options], PROGRAM) for options in bad] == [2, 2, 2]\n"
        "sys.exit('jax' in sys.modules)"
    )
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env=env
    )
    assert done.returncode == 0, done.stderr
    for word, line in zip(("risk", "taken", "scale"), done.stderr.splitlines(), strict=True):
        assert word in line
    assert taken.read_text() == "mine"


def test_figures_are_listed_and_keep_the_contract(capsys):
    assert cli.main(["report", "--list", "--json"], PROGRAM) == 0
    names = json.loads(capsys.readouterr().out)["figures"]
    assert names == list(figures.NAMES) == figures.chosen()
    assert figures.chosen(names[::-1]) == names
    for name in names:
        module = figures.load(name)
        assert isinstance(module.FULL, module.Config)
        # What compilers answered is kept and not computed, so that figure has one size.
        assert name == "targets" or module.Config() != module.FULL
        assert module.TITLE
        assert 0 < len(module.CAPTION.split()) <= 80
        assert module.NOTE
        # Theorems have names; the paper's labels mean nothing to a reader.
        assert not re.search(
            r"\b(thm|lem|dfn|def|rem|eqn|tab|fig|sec):\w", module.CAPTION + module.NOTE
        )
        for function in ("compute", "plot", "tables"):
            assert callable(getattr(module, function))


def test_what_cannot_be_fetched_is_one_line_and_the_report_goes_on(outcome, monkeypatch, capsys):
    from dd_jax.data import fetch

    asked = []

    def unreachable(name, *, progress):
        asked.append(name)
        raise dd.MissingData("no source worked", "dd-jax data fetch mnist")

    monkeypatch.setattr(fetch, "fetch", unreachable)
    outcome([DONE], [HOLDS])
    assert cli.main(["report"], PROGRAM) == 0
    assert not asked
    capsys.readouterr()
    assert cli.main(["report", "--fetch"], PROGRAM) == 0
    assert asked == ["mnist"]
    told = [line for line in capsys.readouterr().err.splitlines() if "no source worked" in line]
    assert len(told) == 1
