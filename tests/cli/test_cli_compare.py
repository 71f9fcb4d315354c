import json

import pytest

from dd_jax import cli
from experiments.arena import contestants


def test_list_names_every_system(capsys):
    assert cli.main(["compare", "--list", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["systems"] == list(contestants.CONTESTANTS)
    assert cli.main(["compare", "--list"]) == 0
    assert capsys.readouterr().out.split() == list(contestants.CONTESTANTS)


def test_a_run_prints_tables_and_writes_files(capsys, tmp_path):
    options = ["--data", "synthetic", "--systems", "fixed-model", "--records", "30"]
    options += ["--seeds", "100", "--results", str(tmp_path)]
    assert cli.main(["compare", *options]) == 0
    out = capsys.readouterr().out
    assert "promised" in out
    assert "θ = 0 names no class" in out
    found = sorted(path.name for path in tmp_path.iterdir())
    assert found == [f"compare.{suffix}" for suffix in ("csv", "json", "pdf", "png", "svg")]
    saved = json.loads((tmp_path / "compare.json").read_text())
    assert [row["system"] for row in saved["rows"]] == ["fixed-model"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--systems", "oracle"], "no system 'oracle'"),
        (["--data", "nowhere"], "no data set 'nowhere'"),
        (["--epsilon", "-1"], "epsilon = -1"),
        (["--seeds", "3"], "seeds = 3"),
    ],
)
def test_bad_input_is_one_line_and_status_2(options, words, capsys, tmp_path):
    assert cli.main(["compare", "--results", str(tmp_path / "none"), *options]) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith("dd-jax compare:")
    assert words in error
    assert not (tmp_path / "none").exists()


def test_results_that_are_a_file_are_refused(capsys, tmp_path):
    place = tmp_path / "file"
    place.write_text("")
    assert cli.main(["compare", "--results", str(place)]) == 2
    assert "name a folder" in capsys.readouterr().err
