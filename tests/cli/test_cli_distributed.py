"""`dd-jax … --distributed`: the numbers of one process, an end with one line, and a way on."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from problems import soak

from dd_jax import cli
from dd_jax.cli import devices
from dd_jax.cli.devices import Devices
from dd_jax.errors import ProcessLost
from dd_jax.sweeps import store

# None of them is HOST:PORT.
ADDRESSES = ("host", "host:abc", "host:0", "h:65536", ":1234")


# What is run as several processes: the first one is killed. `make soak` has the rest.
PARTS = soak(("zero",), ("zero", "one", "audit"))


@pytest.fixture(scope="module")
def lives(tmp_path_factory):
    folder = tmp_path_factory.mktemp("lives")
    script = Path(__file__).with_name("distributed_lives.py")
    done = subprocess.run(
        [sys.executable, script, folder, *PARTS], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return folder, json.loads(done.stdout)


def arrays(results):
    """Every chunk below a folder, streams and chunks in order."""
    for path in sorted(
        results.glob("*/*.npz"), key=lambda path: re.sub("-[0-9a-f]+", "", str(path))
    ):
        with np.load(path) as found:
            yield [found[name] for name in sorted(found) if name.startswith("leaf")]


def assert_same_chunks(alone, together):
    pairs = list(zip(arrays(alone), arrays(together), strict=True))
    assert pairs
    for expected, found in pairs:
        for one, other in zip(expected, found, strict=True):
            np.testing.assert_allclose(other, one, rtol=0, atol=1e-6)


@pytest.mark.slow
def test_a_killed_process_ends_the_others_with_one_line_and_a_resumed_sweep_ends_the_same(lives):
    folder, found = lives
    assert found["sweep alone"] == 0
    kept = [0]
    for name, survivor, status in (("zero", 1, [-9, 3]), ("one", 0, [3, -9]))[: len(PARTS)]:
        ended = found[f"without {name}"]
        assert ended["statuses"] == status
        last = ended["err"][survivor].splitlines()[-1]
        assert f"process {survivor} of 2" in last
        assert "another process" in last
        assert "Traceback" not in ended["err"][survivor]
        kept.append(ended["chunks"])
    # Each attempt went on from the chunks of the one before.
    assert kept == sorted(set(kept))
    assert kept[-1] < 10
    assert found["resumed"]["statuses"] == [0, 0]
    assert_same_chunks(folder / "alone" / "sweep", folder / "together" / "sweep")
    alone, together = (np.load(folder / name / "results.npz") for name in ("alone", "together"))
    for name, values in alone.items():
        if values.dtype.kind == "f":
            np.testing.assert_allclose(together[name], values, rtol=0, atol=1e-6)
        else:
            np.testing.assert_array_equal(together[name], values)


@pytest.mark.slow
def test_the_first_process_alone_writes_and_speaks(lives):
    folder, found = lives
    assert found["resumed"]["out"][1] == found["resumed"]["err"][1] == ""
    assert found["resumed"]["out"][0]
    assert store.verify(folder / "together" / "sweep") == []
    (manifest,) = map(store.read_manifest, (folder / "together" / "sweep").iterdir())
    assert manifest["layout"] == {"seeds": 2, "data": 1, "processes": 2}


@pytest.mark.slow
@pytest.mark.skipif("audit" not in PARTS, reason="only under make soak")
def test_an_audit_with_rows_split_over_two_processes_is_that_of_one(lives):
    folder, found = lives
    assert found["audit alone"] == 0
    assert found["audit"]["statuses"] == [0, 0]
    assert found["audit"]["out"][1] == found["audit"]["err"][1] == ""
    assert_same_chunks(folder / "alone" / "audit", folder / "together" / "audit")
    alone = json.loads((folder / "audit-alone" / "out").read_text())
    # What the collectives print on standard output does not reach it.
    together = json.loads(found["audit"]["out"][0])
    assert together["verdict"] == "consistent"
    assert together["audited"] == pytest.approx(alone["audited"], abs=1e-6)


@pytest.mark.slow
def test_processes_with_other_options_are_refused(lives):
    _, found = lives
    assert found["other options"]["statuses"] == [2, 2]
    assert all("options of process 1" in said for said in found["other options"]["err"])


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ("--processes 2", "--distributed"),
        ("--distributed --processes 0", "--processes"),
        ("--distributed --processes 2 --process-index 2", "--process-index"),
        ("--distributed --process-index -1", "--process-index"),
        *((f"--distributed --coordinator {where}", "HOST:PORT") for where in ADDRESSES),
        ("--mesh 0 1", "--mesh"),
        ("--mesh 3 1", "devices"),
    ],
)
@pytest.mark.parametrize("command", ["sweep", "audit"])
def test_options_that_cannot_work_are_refused(command, options, word, capsys):
    assert cli.main([command, *options.split()]) == 2
    assert word in capsys.readouterr().err.splitlines()[-1]


def test_why_a_child_ended_is_told(capsys):
    """JAX aborts the survivors of a lost process; its page of log is shown for other ends only."""
    said = b"log\nF0101 JAX distributed service detected fatal errors\nstack"
    with pytest.raises(ProcessLost, match="another process"):
        devices._died(signal.SIGABRT, said)
    assert capsys.readouterr().err == ""
    with pytest.raises(ProcessLost, match="SIGSEGV"):
        devices._died(signal.SIGSEGV, b"log")
    assert capsys.readouterr().err == "log"


def test_the_environment_says_what_the_options_do_not(monkeypatch):
    monkeypatch.setenv("JAX_COORDINATOR_ADDRESS", "head:1234")
    monkeypatch.setenv("JAX_NUM_PROCESSES", "4")
    monkeypatch.setenv("JAX_PROCESS_ID", "2")
    found = Devices(distributed=True, process_index=3).address()
    assert found == {"coordinator_address": "head:1234", "num_processes": 4, "process_id": 3}
    monkeypatch.setenv("JAX_PROCESS_ID", "two")
    with pytest.raises(ValueError, match="JAX_PROCESS_ID"):
        Devices(distributed=True).address()


@pytest.mark.slow
def test_without_a_cluster_the_missing_options_are_named():
    known = ("SLURM", "JAX_", "OMPI", "KUBERNETES")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(known)}
    words = [sys.executable, "-m", "dd_jax.cli", "audit", "--distributed", "--processes", "2"]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stdout == ""
    assert all(name in done.stderr for name in ("--coordinator", "--process-index"))
    lines = [line for line in done.stderr.splitlines() if "still working" not in line]
    assert len(lines) == 1
