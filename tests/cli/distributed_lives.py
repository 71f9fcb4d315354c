"""`dd-jax … --distributed` as two real processes over loopback: whole, killed, resumed, refused.

`python distributed_lives.py FOLDER zero one audit` prints what happened: process 0 is killed, then
process 1, and at last an audit is run. Any of the three can be left out.

JAX is imported once, and every process is a fork taken before it has started a backend.
"""

import importlib
import json
import os
import signal
import socket
import sys
import threading
from pathlib import Path

import jax

from dd_jax import cli, processes
from dd_jax.sweeps import store

# What the forks would each import for themselves.
for module in (
    "dd_jax.audit.settings.base",
    "dd_jax.cli.sweep",
    "rich.table",
    "sklearn.datasets",
):
    importlib.import_module(module)

SWEEP = ("sweep", "--seeds", "20", "--chunk", "2", "--requests", "1", "--records", "30")
AUDIT = ("audit", "linear", "--claim", "deletion-1", "--seeds", "1000", "--json")
# Seconds after which a process counts as one that never ends; a busy machine needs some of them.
PATIENCE = 600


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def live(folder: Path, words, environment=None, dies_at: int | None = None) -> int:
    """A fork that is one process of `dd-jax`; its number."""
    folder.mkdir(parents=True, exist_ok=True)
    process = os.fork()
    if process:
        return process
    os.environ.update(environment or {})
    for name, number in (("out", 1), ("err", 2)):
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        os.dup2(os.open(folder / name, flags), number)
    if dies_at is not None:
        die_at(dies_at)
    status = 9
    try:
        status = cli.main([str(word) for word in words])
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(status)


def die_at(chunk: int) -> None:
    """Be killed, with the process that watches, when a chunk is about to be read back."""
    calls, really = [], processes.gather

    def killed(tree):
        calls.append(tree)
        if len(calls) == chunk:
            os.kill(os.getppid(), signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)
        return really(tree)

    processes.gather = killed


def ended(process: int) -> int:
    """The exit status of a process, minus the signal that ended it; -14 if it took too long."""
    impatient = threading.Timer(PATIENCE, os.kill, (process, signal.SIGALRM))
    impatient.start()
    _, status = os.waitpid(process, 0)
    impatient.cancel()
    return os.waitstatus_to_exitcode(status)


def both(folder: Path, words, *, found_by="options", dies=None, others=()) -> dict:
    """Two processes to their ends: statuses, and what each said."""
    port, running = free_port(), []
    for index in (0, 1):
        options, environment = whereabouts(found_by, port, index)
        mine = [*words, *(others if index else ()), "--distributed", *options]
        running.append(live(folder / str(index), mine, environment, 4 if dies == index else None))
    statuses = [ended(process) for process in running]
    said = {name: [(folder / str(k) / name).read_text() for k in (0, 1)] for name in ("out", "err")}
    return {"statuses": statuses, **said}


def whereabouts(found_by: str, port: int, index: int) -> tuple[list, dict[str, str]]:
    """How a process finds the other: options, JAX's variables, or those of SLURM."""
    where = f"127.0.0.1:{port}"
    if found_by == "options":
        return ["--coordinator", where, "--processes", 2, "--process-index", index], {}
    if found_by == "variables":
        names = ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID")
        return [], dict(zip(names, (where, "2", str(index)), strict=True))
    return [], {
        "SLURM_JOB_ID": "7",
        "SLURM_STEP_NODELIST": "localhost",
        "SLURM_NTASKS": "2",
        "SLURM_PROCID": str(index),
        "SLURM_LOCALID": str(index),
        "JAX_COORDINATOR_PORT": str(port),
    }


def chunks_in(folder: Path) -> int:
    return len(list(folder.rglob("*.npz")))


KILLS = {"zero": (0, "variables"), "one": (1, "options")}


def main(folder: Path, parts: list[str]) -> None:
    store.revision()  # once, before the forks
    # What one attempt has compiled the next one finds.
    jax.config.update("jax_compilation_cache_dir", str(folder / "cache"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)

    def alone(name, words):
        return ended(live(folder / f"{name}-alone", (*words, "--results", folder / "alone")))

    found, sweeps = {"sweep alone": alone("sweep", SWEEP)}, folder / "together"
    sweep = (*SWEEP, "--results", sweeps)
    found["other options"] = both(folder / "a", sweep, others=("--order", "3"))
    for name in (part for part in parts if part in KILLS):
        dies, found_by = KILLS[name]
        found[f"without {name}"] = both(folder / name, sweep, dies=dies, found_by=found_by)
        found[f"without {name}"]["chunks"] = chunks_in(sweeps)
    found["resumed"] = both(folder / "b", sweep)
    if "audit" in parts:
        found["audit alone"] = alone("audit", AUDIT)
        rows = ("--mesh", "1", "2", "--results", sweeps)
        found["audit"] = both(folder / "c", (*AUDIT, *rows), found_by="slurm")
    print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
