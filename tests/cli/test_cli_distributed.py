"""`dd-jax … --distributed`: the numbers of one process, an end with one line, and a way on."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dd_jax import cli
from dd_jax.cli.devices import Devices
from dd_jax.sweeps import store

LOST = "another process is gone or does not answer"


@pytest.fixture(scope="module")
def lives(tmp_path_factory):
    folder = tmp_path_factory.mktemp("lives")
    script = Path(__file__).with_name("distributed_lives.py")
    done = subprocess.run(
        [sys.executable, script, folder], capture_output=True, text=True, check=False
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
    for name, survivor, status in (("one", 0, [3, -9]), ("zero", 1, [-9, 3])):
        ended = found[f"without {name}"]
        assert ended["statuses"] == status
        last = ended["err"][survivor].splitlines()[-1]
        assert last.startswith(f"dd-jax sweep: process {survivor} of 2: {LOST}")
        assert last.endswith("start all processes again, whole chunks are kept.")
        assert "Traceback" not in ended["err"][survivor]
    # The second attempt went on from the chunks of the first.
    assert 0 < found["without one"]["chunks"] < found["without zero"]["chunks"] < 10
    assert found["resumed"]["statuses"] == [0, 0]
    assert_same_chunks(folder / "alone" / "sweep", folder / "together" / "sweep")
    alone, together = (
        json.loads((folder / name / "sweep.json").read_text())["rows"][0]
        for name in ("alone", "together")
    )
    for name, value in alone.items():
        assert together[name] == (
            pytest.approx(value, abs=1e-6) if isinstance(value, float) else value
        )


@pytest.mark.slow
def test_the_first_process_alone_writes_and_speaks(lives):
    folder, found = lives
    for name in ("resumed", "audit"):
        assert found[name]["out"][1] == found[name]["err"][1] == ""
    assert "risk learned" in found["resumed"]["out"][0]
    # What the collectives print on standard output does not reach it.
    assert json.loads(found["audit"]["out"][0])["verdict"] == "consistent"
    assert store.verify(folder / "together" / "sweep") == []
    (manifest,) = map(store.read_manifest, (folder / "together" / "sweep").iterdir())
    assert manifest["layout"] == {"seeds": 2, "data": 1, "processes": 2}


@pytest.mark.slow
def test_an_audit_with_rows_split_over_two_processes_is_that_of_one(lives):
    folder, found = lives
    assert found["audit alone"] == 0
    assert found["audit"]["statuses"] == [0, 0]
    assert_same_chunks(folder / "alone" / "audit", folder / "together" / "audit")
    alone = json.loads((folder / "audit-alone" / "out").read_text())
    together = json.loads(found["audit"]["out"][0])
    assert together["audited"] == pytest.approx(alone["audited"], abs=1e-6)


@pytest.mark.slow
def test_processes_with_other_options_are_refused(lives):
    _, found = lives
    assert found["other options"]["statuses"] == [2, 2]
    for said in found["other options"]["err"]:
        assert "the options of process 1 differ from those of process 0" in said


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--processes", "2"], "--processes belongs to --distributed"),
        (["--distributed", "--processes", "0"], "--processes = 0 is not a whole number ≥ 1"),
        (
            ["--distributed", "--processes", "2", "--process-index", "2"],
            "--process-index = 2 is not a whole number from 0 to 1",
        ),
        (
            ["--distributed", "--process-index", "-1"],
            "--process-index = -1 is not a whole",
        ),
        (["--distributed", "--coordinator", "host"], "--coordinator host: give HOST:PORT"),
        (["--distributed", "--coordinator", "host:abc"], "--coordinator host:abc: give HOST:PORT"),
        (["--distributed", "--coordinator", "host:0"], "--coordinator host:0: give HOST:PORT"),
        (["--distributed", "--coordinator", "h:65536"], "--coordinator h:65536: give HOST:PORT"),
        (["--distributed", "--coordinator", ":1234"], "--coordinator :1234: give HOST:PORT"),
        (["--mesh", "0", "1"], "--mesh = 0 is not a whole number ≥ 1"),
        (["--mesh", "3", "1"], "needs 3 devices"),
    ],
)
@pytest.mark.parametrize("command", ["sweep", "audit"])
def test_options_that_cannot_work_are_refused_in_one_line(command, options, words, capsys):
    assert cli.main([command, *options]) == 2
    *started, last = capsys.readouterr().err.splitlines()
    assert started in ([], [f"dd-jax {command}: starting JAX …"])
    assert last.startswith(f"dd-jax {command}: {words}")


def test_the_environment_says_what_the_options_do_not(monkeypatch):
    monkeypatch.setenv("JAX_COORDINATOR_ADDRESS", "head:1234")
    monkeypatch.setenv("JAX_NUM_PROCESSES", "4")
    monkeypatch.setenv("JAX_PROCESS_ID", "2")
    found = Devices(distributed=True, process_index=3).address()
    assert found == {"coordinator_address": "head:1234", "num_processes": 4, "process_id": 3}
    monkeypatch.setenv("JAX_PROCESS_ID", "two")
    with pytest.raises(ValueError, match="JAX_PROCESS_ID = 'two': give a whole number"):
        Devices(distributed=True).address()


@pytest.mark.slow
def test_without_a_cluster_the_missing_options_are_named():
    known = ("SLURM", "JAX_", "OMPI", "KUBERNETES")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(known)}
    words = [sys.executable, "-m", "dd_jax.cli", "audit", "--distributed", "--processes", "2"]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == (
        "dd-jax audit: --distributed in no cluster that JAX knows: give --coordinator "
        "(or JAX_COORDINATOR_ADDRESS), --process-index (or JAX_PROCESS_ID).\n"
    )


@pytest.mark.parametrize("what", ["--list", "--coverage"])
def test_what_uses_no_devices_takes_none(what, capsys):
    assert cli.main(["audit", what, "--mesh", "1", "1"]) == 2
    assert "uses no devices" in capsys.readouterr().err
