"""What a command runs on: a mesh of devices, several processes.

`--distributed` takes the coordinator, the count and the index from the options, then from the usual
environment variables; what neither says is left to JAX, which knows SLURM, Open MPI and others.

Each process of a distributed job runs as a child that its parent watches. When one process of the
job is lost, JAX aborts the others from C++, whatever Python is doing, and prints a page of log with
a stack. The parent survives this, prints one line and returns an exit status. Output that libraries
write without Python (the collectives report on standard output) goes to a temporary file, which is
shown only if the child ends for another reason.
"""

import contextlib
import hashlib
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, Any

import tyro

from dd_jax import checks
from dd_jax.cli import signals
from dd_jax.cli.options import MaybeInt, MaybeText, Switch, flag
from dd_jax.cli.output import BAD_INPUT, INTERNAL_ERROR, reported, say
from dd_jax.errors import InputError, ProcessLost

# JAX is imported inside functions: help does not need it, and the parent of a distributed job must
# fork before any backend has started threads.

_VARIABLES = {
    "coordinator": "JAX_COORDINATOR_ADDRESS",
    "processes": "JAX_NUM_PROCESSES",
    "process_index": "JAX_PROCESS_ID",
}
# Seconds without a heartbeat after which a process counts as lost; JAX's default is 100.
_HEARTBEAT = 30
# Seconds that a process waits for the others to come; JAX's default is 300.
_ASSEMBLY = 40
# What JAX prints when it aborts a process because another one is lost.
_GIVEN_UP = b"JAX distributed service detected fatal errors"
# Seconds that a process waits for the others to end: after its work, and after bad input.
_PATIENCE, _SHORT_PATIENCE = 300.0, 5.0
MaybeMesh = Annotated[
    tuple[int, int] | None, tyro.conf.arg(metavar="INT INT", help_behavior_hint="")
]


@dataclass(frozen=True)
class Devices:
    """What to run on; one device by default."""

    mesh: MaybeMesh = None
    """Devices that share the seeds, and devices that share the rows: --mesh 4 2 takes eight."""
    distributed: Switch = False
    """Run on the devices of several processes, which share the seeds unless --mesh says otherwise:
    start the same command in each. The first one writes and prints."""
    coordinator: MaybeText = None
    """HOST:PORT where process 0 listens; JAX_COORDINATOR_ADDRESS, or what the cluster says."""
    processes: MaybeInt = None
    """Number of processes; JAX_NUM_PROCESSES, or what the cluster says."""
    process_index: MaybeInt = None
    """Number of this process, from 0; JAX_PROCESS_ID, or what the cluster says."""

    def run(self, label: str, config: Any, work: Callable[[Any], int]) -> int:
        """The exit status of `work(config)` here, or as one process of several.

        Args:
            label: what the command calls itself.
            config: its options; those of the devices are these.
            work: the command.
        """
        self.check()
        if not self.distributed:
            return work(config)
        return _supervised(label, config, lambda: work(config))

    def check(self) -> None:
        """Refuse options that cannot work, before anything is started."""
        for number in self.mesh or ():
            checks.whole("--mesh", number, least=1)
        if self.distributed:
            self.address()
            return
        for name in _VARIABLES:
            if getattr(self, name) is not None:
                raise InputError(f"{flag(name)} belongs to --distributed; add it, or drop this.")

    def address(self) -> dict[str, Any]:
        """Arguments of `jax.distributed.initialize`; None where JAX has to find the value."""
        found: dict[str, Any] = {name: self._given(name) for name in _VARIABLES}
        where, count, index = found.values()
        if where is not None and not _is_address(where):
            raise InputError(f"--coordinator {where}: give HOST:PORT, such as 10.0.0.1:1234.")
        if count is not None:
            checks.whole("--processes", count, least=1)
        if index is not None:
            checks.whole("--process-index", index, most=None if count is None else count - 1)
        return {"coordinator_address": where, "num_processes": count, "process_id": index}

    def label(self) -> str:
        """Which process this is, as far as the options and the environment say."""
        _, count, index = self.address().values()
        return "" if None in (count, index) else f"process {index} of {count}"

    def start(self) -> None:
        """Join the other processes; waits for them.

        Raises:
            InputError: neither the options, the environment nor a cluster say where they are.
            ProcessLost: they cannot be reached.
        """
        import jax

        try:
            jax.distributed.initialize(
                **self.address(),
                initialization_timeout=_ASSEMBLY,
                heartbeat_timeout_seconds=_HEARTBEAT,
            )
        except (TypeError, ValueError) as error:
            missing = [name for name in _VARIABLES if self._given(name) is None]
            words = ", ".join(f"{flag(name)} (or {_VARIABLES[name]})" for name in missing)
            raise InputError(f"JAX found no cluster for --distributed; give {words}.") from error
        except RuntimeError as error:
            said = str(error).splitlines()[0]
            raise ProcessLost(f"the processes could not connect to each other ({said})") from error

    def _given(self, name: str) -> Any:
        """The option, or else the environment variable of the same meaning."""
        value = getattr(self, name)
        text = os.environ.get(_VARIABLES[name])
        if value is not None or not text:
            return value
        if name == "coordinator":
            return text
        try:
            return int(text)
        except ValueError:
            raise InputError(f"{_VARIABLES[name]} = {text!r}: give a whole number.") from None

    def make_mesh(self):
        """The mesh of the options (`dd_jax.sharding.make_mesh`); None for one device."""
        if self.mesh is None and not self.distributed:
            return None
        from dd_jax import sharding

        return sharding.make_mesh(*(self.mesh or ()))


DeviceOptions = Annotated[Devices, tyro.conf.arg(name="")]
"""The options of a command, without a prefix."""
ONE_DEVICE = Devices()


def _is_address(where: str) -> bool:
    host, _, port = where.rpartition(":")
    return bool(host) and port.isdecimal() and 0 < int(port) < 2**16


# --- one process of several ----------------------------------------------------------------------


def _supervised(command: str, config: Any, work: Callable[[], int]) -> int:
    """The exit status of `work()` as one process of several.

    Args:
        command: what the process calls itself.
        config: the command's options; `config.devices` says how the processes find each other, all
            else must be the same in all of them.
        work: the command itself; only the first process prints.
    """
    name = ": ".join(filter(None, (command, config.devices.label())))
    heard, told = os.pipe()
    alive, held = os.pipe()
    with tempfile.TemporaryFile() as aside:
        sys.stdout.flush()
        sys.stderr.flush()
        child = os.fork()
        if not child:
            os.close(held)
            _end_with_parent(alive)
            _keep_libraries_quiet(aside.fileno())
            _work(name, config, work, told)
        for end in (told, alive):
            os.close(end)
        status = os.read(heard, 1)
        _, ended = os.waitpid(child, 0)
        for end in (heard, held):
            os.close(end)
        if status:
            return status[0]
        return reported(name, lambda: _died(ended, os.pread(aside.fileno(), 1 << 20, 0)))


def _died(ended: int, said: bytes) -> int:
    """Say why a child ended before its work was done."""
    if _GIVEN_UP in said:
        raise ProcessLost("another process ended or does not answer")
    sys.stderr.write(said.decode(errors="replace"))
    how = os.waitstatus_to_exitcode(ended)
    raise ProcessLost(
        f"ended by {signal.Signals(-how).name}" if how < 0 else f"ended with status {how}"
    )


# --- in the child -------------------------------------------------------------------------------


def _work(name: str, config: Any, work: Callable[[], int], told: int) -> None:
    """Join the others, do the work, tell the parent the status; does not return."""

    def joined() -> int:
        if config.devices.address()["process_id"] == 0:
            say(f"{name}: waiting for the others …")
        config.devices.start()
        from dd_jax import processes

        processes.require_same("the options", _digest(config))
        if processes.is_first():
            return work()
        silent = (contextlib.redirect_stdout, contextlib.redirect_stderr)
        with open(os.devnull, "w") as nowhere, silent[0](nowhere), silent[1](nowhere):
            return work()

    status = INTERNAL_ERROR
    try:
        status = reported(name, joined)
    finally:
        os.write(told, bytes([status]))
        if status != INTERNAL_ERROR:
            _leave(_SHORT_PATIENCE if status == BAD_INPUT else _PATIENCE)
        os._exit(status)


def _digest(config: Any) -> str:
    """A digest of all options except those that differ between processes."""
    shared = replace(config, devices=Devices(mesh=config.devices.mesh))
    return hashlib.sha256(repr(shared).encode()).hexdigest()


def _leave(patience: float) -> None:
    """Wait for the others, so that none of them takes the end of this process for a failure.

    After bad input the wait is short: all processes refuse it at about the same time.
    """
    import jax

    leaving = threading.Thread(target=jax.distributed.shutdown, daemon=True)
    leaving.start()
    leaving.join(patience)


def _end_with_parent(alive: int) -> None:
    """End at once when the parent is gone: its end of the pipe closes.

    Signals that the parent waits for are blocked here too, so that it alone hears an interrupt.
    """

    def follow():
        os.read(alive, 1)
        signals.stop()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()


def _keep_libraries_quiet(aside: int) -> None:
    """Python keeps the standard streams; what C++ writes to descriptors 1 and 2 goes to `aside`."""
    for name, number in (("stdout", 1), ("stderr", 2)):
        kept = os.dup(number)
        os.dup2(aside, number)
        stream = os.fdopen(kept, "w", buffering=1, encoding=getattr(sys, name).encoding)
        setattr(sys, name, stream)
