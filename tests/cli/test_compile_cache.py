"""Compiled programs are kept between runs, in a place that is the user's own, or not at all."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dd_jax import cli
from dd_jax.cli import compile_cache

# `dd-jax` with a count of what JAX compiled, loaded and traced on standard error.
COUNTED = """
import collections, json, sys
counts = collections.Counter()
def listen(name, *_, **__):
    counts[name.rsplit("/", 1)[1]] += 1
def watch():
    import jax.monitoring
    jax.monitoring.register_event_listener(listen)
    jax.monitoring.register_event_duration_secs_listener(listen)
from dd_jax import cli
run = cli._run
cli._run = lambda *arguments: (watch(), run(*arguments))[1]
try:
    cli.entry()
finally:
    print(json.dumps(counts), file=sys.stderr)
"""


JAXS_OWN = ("JAX_COMPILATION_CACHE_DIR", "JAX_ENABLE_COMPILATION_CACHE")


@pytest.fixture
def environment(monkeypatch, tmp_path):
    """No variable of JAX's or ours is set, and the user's cache folder is a temporary one."""
    for name in (compile_cache.VARIABLE, *JAXS_OWN, *compile_cache._SETTINGS):
        monkeypatch.setenv(name, "")  # so that it is put back, whoever sets it
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    return monkeypatch


def kept_in():
    compile_cache.enable()
    return os.environ.get("JAX_COMPILATION_CACHE_DIR")


def counted(*arguments):
    done = subprocess.run(
        [sys.executable, "-c", COUNTED, *arguments], capture_output=True, text=True, check=True
    )
    return json.loads(done.stderr.splitlines()[-1])


def test_programs_go_into_the_users_cache_folder_however_small(environment, tmp_path):
    assert kept_in() == str(tmp_path / "home" / "dd_jax" / "compiled")
    assert (tmp_path / "home" / "dd_jax" / "compiled").stat().st_mode & 0o777 == 0o700
    assert os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] == "0"
    assert os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] == "-1"


def test_a_variable_moves_the_folder_or_turns_it_off(environment, tmp_path):
    environment.setenv(compile_cache.VARIABLE, "Off")
    assert kept_in() is None
    assert os.environ["JAX_ENABLE_COMPILATION_CACHE"] == "false", "even with a folder of JAX's"
    environment.setenv(compile_cache.VARIABLE, str(tmp_path / "elsewhere"))
    assert kept_in() == str(tmp_path / "elsewhere")
    environment.setenv("JAX_COMPILATION_CACHE_DIR", "theirs")
    assert kept_in() == "theirs", "JAX's own variable is left alone"


def test_without_a_place_of_ones_own_nothing_is_kept_and_nothing_is_said(
    environment, tmp_path, capsys
):
    (tmp_path / "file").write_text("")
    environment.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert kept_in() is None
    environment.delenv("XDG_CACHE_HOME")
    environment.setattr(Path, "expanduser", no_home)
    assert kept_in() is None
    assert capsys.readouterr().err == "", "nobody asked for a cache"


def no_home(path):
    if str(path).startswith("~"):
        raise RuntimeError("Could not determine home directory.")
    return path


@pytest.mark.parametrize("fault", ["below a file", 0o770, 0o702, "not mine", os.W_OK, os.X_OK])
def test_a_named_folder_that_cannot_be_trusted_or_used_is_said_in_one_line(
    fault, environment, tmp_path, capsys
):
    """What it holds will be run: nobody else may write there."""
    folder = tmp_path / "named"
    if fault == "below a file":
        folder.write_text("")
        folder = folder / "below"
    elif fault == "not mine":
        someone_else = os.getuid() + 1
        environment.setattr(os, "getuid", lambda: someone_else)
    elif fault in (os.W_OK, os.X_OK):
        environment.setattr(os, "access", lambda path, mode: not mode & fault)
    else:
        folder.mkdir()
        folder.chmod(fault)
    environment.setenv(compile_cache.VARIABLE, str(folder))
    assert kept_in() is None
    error = capsys.readouterr().err
    assert str(folder) in error
    assert error.count("\n") == 1


def test_old_entries_are_deleted_and_nothing_else(environment, tmp_path):
    environment.setenv(compile_cache.VARIABLE, str(tmp_path))
    month_ago = time.time() - 31 * 24 * 3600
    for name in ("old-cache", "new-cache", "old-notes"):
        (tmp_path / name).write_text("")
        if name.startswith("old"):
            os.utime(tmp_path / name, (month_ago, month_ago))
    tmp_path.chmod(0o700)
    compile_cache.enable()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new-cache", "old-notes"]


def test_every_command_takes_the_flag(capsys):
    assert cli.main(["plan", compile_cache.FLAG, "--n", "0"]) == 2
    assert compile_cache.FLAG not in capsys.readouterr().err


@pytest.mark.slow
def test_the_second_run_of_the_same_shapes_compiles_nothing(environment, tmp_path):
    """It deletes other rows: they are inputs of the programs, not part of them."""
    options = ["run", "--data", "breast-cancer", "--seeds", "2", "--json", "--eps-dp", "9"]
    options += ["--eps-dd", "9", "--l2", "0.5", "--requests", "1"]
    first = counted(*options, "--rows", "3")
    assert first["cache_misses"] == first["compile_requests_use_cache"] > 0
    second = counted(*options, "--rows", "5")
    assert "cache_misses" not in second
    # The secret key (whose shape takes one more trace), keys, learning, deletion, whether the
    # compiler knows an option, the interaction and its judge; no small programs beside them.
    assert second["cache_hits"] == second["jaxpr_trace_duration"] - 1 == 7
    assert len(list((tmp_path / "home" / "dd_jax" / "compiled").glob("*-cache"))) == 7


def test_an_entry_that_was_cut_off_is_compiled_again_without_a_word(environment):
    code = """if True:
        import os
        from dd_jax.cli import compile_cache
        compile_cache.enable()
        import jax
        for _ in range(2):
            jax.jit(abs)(2)
            folder = os.environ["JAX_COMPILATION_CACHE_DIR"]
            (entry,) = (name for name in os.listdir(folder) if name.endswith("-cache"))
            os.truncate(f"{folder}/{entry}", 100)
            jax.clear_caches()
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert done.stderr == b""
