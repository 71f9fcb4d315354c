"""Two containers on one folder: neither the host's name nor a process number tells them apart."""

import os
import subprocess
import sys
from pathlib import Path

import file_writers
import pytest
from problems import soak
from test_files import hidden, writing_of

from dd_jax import files
from dd_jax.sweeps import store

CHECKOUT = Path(__file__).parents[1]
# The shell gives both the same host name; what it runs has process number 1 in both.
CONTAINER = ["unshare", "--pid", "--uts", "--fork", "--kill-child", "sh", "-c"]
SAME = 'hostname container; test "$$" = 1 && exec "$@"'


def contained(*command: object) -> subprocess.Popen:
    words = [*CONTAINER, SAME, "sh", *map(str, command)]
    environment = os.environ | {"PYTHONPATH": str(CHECKOUT)}
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment)


def allowed() -> bool:
    try:
        process = contained("true")
    except OSError:
        return False
    process.communicate()
    return process.returncode == 0


pytestmark = pytest.mark.skipif(not allowed(), reason="namespaces of processes are not allowed")


def end_well(pair: list[subprocess.Popen]) -> None:
    for process in pair:
        _, said = process.communicate()
        assert process.returncode == 0, said.decode()


def test_two_containers_write_one_group_of_files(tmp_path):
    for _ in range(soak(1, 20)):
        arguments = [sys.executable, file_writers.__file__, "group", tmp_path]
        end_well([contained(*arguments, name, soak(20, 100)) for name in "ab"])
        writing_of(files.read_together(tmp_path, "run"))
        assert len(hidden(tmp_path)) == 2


@pytest.mark.slow
@pytest.mark.skipif(soak(True, False), reason="whole sweeps are for `make soak`")
def test_two_containers_sweep_into_one_folder(tmp_path):
    options = "--data digits-3-vs-8 --requests 1 --seeds 12 --chunk 2 --eps-dp 9 --eps-dd 9"
    for turn in range(20):
        folder = tmp_path / str(turn)
        command = [sys.executable, "-m", "dd_jax.cli", "sweep", *options.split()]
        end_well([contained(*command, "--results", folder) for _ in "ab"])
        assert store.verify(folder / "sweep") == []
        assert set(files.read_together(folder, "results")) == {"results.csv", "results.npz"}
        assert list(folder.rglob(".dd_jax-*")) == []
