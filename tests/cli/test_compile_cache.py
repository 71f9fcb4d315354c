"""Compiled programs are kept between runs, in a place that is the user's own, or not at all."""

import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

import pytest
from jax._src import compilation_cache
from problems import soak

from dd_jax import cli
from dd_jax.cli import compile_cache

# `dd-jax` with a count of what JAX compiled, loaded and traced on standard error.
COUNTED = """
import atexit, collections, json, sys
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
atexit.register(lambda: print(json.dumps(counts), file=sys.stderr))
cli.entry()
"""


JAXS_OWN = ("JAX_COMPILATION_CACHE_DIR", "JAX_ENABLE_COMPILATION_CACHE")


@pytest.fixture
def environment(monkeypatch, tmp_path):
    """No variable of JAX's or ours is set, and the user's cache folder is a temporary one."""
    for name in (compile_cache.VARIABLE, *JAXS_OWN):
        monkeypatch.setenv(name, "")  # so that it is put back, whoever sets it
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    # The JAX of these tests keeps nothing.
    monkeypatch.setattr(compile_cache, "_use", lambda module, folder: None)
    return monkeypatch


def counted(*arguments):
    done = subprocess.run(
        [sys.executable, "-c", COUNTED, *arguments], capture_output=True, text=True, check=True
    )
    return json.loads(done.stderr.splitlines()[-1])


def test_programs_go_into_the_users_cache_folder(environment, tmp_path):
    assert compile_cache.enable() == tmp_path / "home" / "dd_jax" / "compiled"
    assert (tmp_path / "home" / "dd_jax" / "compiled").stat().st_mode & 0o777 == 0o700


def test_a_variable_moves_the_folder_or_turns_it_off(environment, tmp_path):
    environment.setenv(compile_cache.VARIABLE, "Off")
    assert compile_cache.enable() is None
    assert os.environ["JAX_ENABLE_COMPILATION_CACHE"] == "false", "even with a folder of JAX's"
    environment.setenv(compile_cache.VARIABLE, str(tmp_path / "elsewhere"))
    assert compile_cache.enable() == tmp_path / "elsewhere"
    environment.setenv("JAX_COMPILATION_CACHE_DIR", "theirs")
    assert compile_cache.enable() is None, "JAX's own variable is left alone"
    assert os.environ["JAX_COMPILATION_CACHE_DIR"] == "theirs"


def test_without_a_place_of_ones_own_nothing_is_kept_and_nothing_is_said(
    environment, tmp_path, capsys
):
    (tmp_path / "file").write_text("")
    environment.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert compile_cache.enable() is None
    environment.delenv("XDG_CACHE_HOME")
    environment.setattr(Path, "expanduser", no_home)
    assert compile_cache.enable() is None
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
    assert compile_cache.enable() is None
    error = capsys.readouterr().err
    assert str(folder) in error
    assert error.count("\n") == 1


def test_old_programs_and_those_of_earlier_versions_are_deleted_and_nothing_else(
    environment, tmp_path
):
    environment.setenv(compile_cache.VARIABLE, str(tmp_path))
    month_ago = time.time() - 31 * 24 * 3600
    for name in ("old.program", "new.program", "old-notes", "new-cache", "new-atime"):
        (tmp_path / name).write_text("")
        if name.startswith("old"):
            os.utime(tmp_path / name, (month_ago, month_ago))
    tmp_path.chmod(0o700)
    compile_cache.enable()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new.program", "old-notes"]


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
    # The secret key and the model (whose shapes take one more trace each), keys, learning,
    # deletion, whether the compiler knows an option, the interaction and its judge; no small ones.
    assert second["cache_hits"] == second["jaxpr_trace_duration"] - 2 == 7
    assert len(list((tmp_path / "home" / "dd_jax" / "compiled").iterdir())) == 7


DAMAGED = """if True:
    from dd_jax.cli import compile_cache
    folder = compile_cache.enable()
    import jax
    counts = []
    jax.monitoring.register_event_listener(lambda name, **_: counts.append(name.rsplit("/", 1)[1]))
    def answer():
        counts.clear()
        jax.clear_caches()
        return float(jax.jit(lambda x: x * 3 + 1)(2.0))
    assert answer() == 7.0 and jax.jit(abs)(-2) == 2
    (entry,) = (path for path in folder.iterdir() if "lambda" in path.name)
    whole = entry.read_bytes()
    assert answer() == 7.0 and "cache_hits" in counts
    # Whole files under another program's name are damaged too: the digest is of both.
    other = next(path for path in folder.iterdir() if path != entry).read_bytes()
    flips = [whole[:k] + bytes([whole[k] ^ 1 << k % 8]) + whole[k + 1:]
             for k in range(0, len(whole), len(whole) // FLIPS)]
    for content in (b"", whole[:100], whole[:-1], whole + b"x", other, *flips):
        entry.write_bytes(content)
        assert answer() == 7.0 and "cache_misses" in counts
        assert answer() == 7.0 and "cache_hits" in counts
        print("damaged")
"""


def test_a_damaged_program_is_named_compiled_again_and_replaced(environment):
    code = DAMAGED.replace("FLIPS", str(soak(12, 400)))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    said = done.stderr.splitlines()
    assert len(said) == done.stdout.count("damaged") >= 17
    assert all("jit__lambda" in line and "damaged" in line for line in said)


def test_programs_are_read_back_whole_or_not_at_all(tmp_path):
    kept = compile_cache.Programs(tmp_path)
    assert kept.get("first") is None
    program = compilation_cache.compress_executable(b"machine code")
    kept.put("first", program)
    kept.put("second", program)
    assert kept.get("first") == program
    (tmp_path / "second.program").write_bytes(b"something else, longer than a digest is")
    found = dict(compile_cache.programs(tmp_path))
    assert found == {"first.program": b"machine code", "second.program": None}


def test_a_program_that_does_not_fit_leaves_nothing(tmp_path):
    """Half of one would be named as damaged in every later run."""
    most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, most[1]))
    try:
        with pytest.raises(OSError, match="large"):
            compile_cache.Programs(tmp_path).put("large", bytes(2000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, most)
    assert not list(tmp_path.iterdir())
