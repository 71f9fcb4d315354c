"""The exit status of the report, what it prints, and what it does before JAX is there."""

import json
import os
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
SAVED = Made("kept", "Kept", "saved", seconds=2.5)
ABSENT = Made("real", "Real", "missing data", problem="mnist is not here.", command="fetch it")
BROKEN = Made("bad", "Bad", "failed", problem="ValueError: no")
HOLDS = ClaimRow("holds", 1.0, 1.0, 0.9, "consistent", "done")
FALSE = ClaimRow("is false", 1.0, 1.0, 1.1, "refuted", "done")


@pytest.fixture
def outcome(monkeypatch, tmp_path):
    """Set what the report comes to; returns the options that it was given."""

    from experiments import report

    given = []

    def come_to(made, claims=(HOLDS,)):
        def write_report(options, say):
            given.append(options)
            say(report.Schedule({figure.name: 60.0 for figure in made}), "working")
            return Report(tmp_path / "report.html", tuple(made), tuple(claims))

        monkeypatch.setattr(report, "write_report", write_report)
        return given

    return come_to


@pytest.mark.parametrize(
    ("made", "claims", "status"),
    [
        ([DONE, SAVED], [HOLDS], 0),
        ([DONE, ABSENT], [], 0),
        ([DONE], [HOLDS, FALSE], 1),
        ([DONE, BROKEN], [HOLDS], 3),
        ([BROKEN, DONE], [FALSE], 3),
    ],
)
def test_status_says_refuted_or_failed_and_missing_data_are_neither(outcome, made, claims, status):
    outcome(made, claims)
    assert cli.main(["report"], PROGRAM) == status


def test_json_lists_every_figure_with_its_files_or_why_it_is_missing(outcome, capsys, tmp_path):
    given = outcome([DONE, SAVED, ABSENT, BROKEN], [FALSE])
    options = ["--json", "--scale", "full", "--figures", "savings", "--recompute"]
    assert cli.main(["report", "--results", str(tmp_path), *options], PROGRAM) == 3
    printed = capsys.readouterr()
    found = json.loads(printed.out)
    assert found["page"] == str(tmp_path / "report.html")
    assert (found["scale"], found["refuted"]) == ("full", ["is false"])
    rows = {row.pop("name"): row for row in found["figures"]}
    assert [row["status"] for row in rows.values()] == [
        "computed",
        "saved",
        "missing data",
        "failed",
    ]
    assert rows["done"]["files"] == [str(tmp_path / "done.csv")]
    assert rows["kept"]["seconds"] == 2.5
    assert (rows["real"]["problem"], rows["real"]["command"]) == ("mnist is not here.", "fetch it")
    assert printed.err.splitlines() == [
        "python -m experiments report: starting JAX …",
        "[1/4, 0:00, about 4:00 left] working",
    ]
    [options] = given
    assert (options.scale, options.names, options.recompute) == ("full", ("savings",), True)


def test_text_says_what_is_missing_what_is_refuted_and_where_the_page_is(outcome, capsys, tmp_path):
    outcome([DONE, ABSENT], [FALSE])
    assert cli.main(["report"], PROGRAM) == 1
    assert capsys.readouterr().out.splitlines() == [
        "real: missing data: mnist is not here.",
        "REFUTED: is false",
        f"wrote {tmp_path / 'report.html'} in 0 s",
    ]


def test_bad_options_are_refused_before_jax_is_loaded(tmp_path):
    taken = tmp_path / "taken"
    taken.write_text("mine")
    code = (
        "import sys; from dd_jax import cli; from experiments.__main__ import PROGRAM\n"
        f"bad = ['--figures', 'risk'], ['--results', {str(taken)!r}], ['--scale', 'x']\n"
        "assert [cli.main(['report', *options], PROGRAM) for options in bad] == [2, 2, 2]\n"
        "sys.exit('jax' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    figure, results, scale = done.stderr.splitlines()
    assert figure.startswith(
        "python -m experiments report: there is no figure 'risk'; choose from "
    )
    assert results == f"python -m experiments report: --results {taken} is a file; name a folder."
    assert "--scale" in scale
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]


def test_figures_are_listed_and_keep_the_contract(capsys):
    assert cli.main(["report", "--list", "--json"], PROGRAM) == 0
    names = json.loads(capsys.readouterr().out)["figures"]
    assert names == list(figures.NAMES) == figures.chosen()
    assert figures.chosen(names[::-1]) == names
    for name in names:
        module = figures.load(name)
        assert isinstance(module.FULL, module.Config)
        assert module.Config() != module.FULL
        assert module.TITLE
        assert 0 < len(module.CAPTION.split()) <= 80
        assert module.NOTE
        for function in ("compute", "plot", "tables"):
            assert callable(getattr(module, function))


def test_the_stream_of_edits_has_the_certificate_of_its_plan():
    from experiments.figures import risk_stream

    issued = risk_stream.certificate(risk_stream.Config())
    assert isinstance(issued, dd.Certificate)
    assert issued.adaptivity == 1
    assert issued.basis == "promise"
