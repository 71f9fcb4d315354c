import json

import pytest

from dd_jax import cli
from dd_jax.data import fetch


def test_the_list_shows_what_is_ready_and_what_can_be_fetched(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("DD_JAX_DATA", str(tmp_path))
    assert cli.main(["data", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["cache"] == str(tmp_path)
    ready = {task["name"]: task["ready"] for task in shown["tasks"]}
    assert ready["digits-3-vs-8"]
    assert not ready["mnist-3-vs-8"]
    assert {entry["name"] for entry in shown["fetchable"]} == set(fetch.PINNED)
    assert not any(entry["fetched"] for entry in shown["fetchable"])
    assert cli.main(["data"]) == 0


def test_fetching_names_the_files(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(fetch, "fetch", lambda name, progress: tmp_path / f"{name}.npz")

    def fetched(*names):
        assert cli.main(["data", "fetch", *names, "--json"]) == 0
        return json.loads(capsys.readouterr().out)["files"]

    assert fetched("adult") == {"adult": str(tmp_path / "adult.npz")}
    assert list(fetched("mnist-3-vs-8", "mnist")) == ["mnist"]  # a task needs its data set
    assert set(fetched("all")) == set(fetch.PINNED)


@pytest.mark.parametrize(
    ("options", "word"), [("fetch mnist cifar", "cifar"), ("fetch", "adult"), ("take", "take")]
)
def test_bad_requests_are_one_line_and_status_2(options, word, capsys):
    assert cli.main(["data", *options.split()]) == 2
    error = capsys.readouterr().err
    assert word in error
    assert error.count("\n") == 1
