"""A process of a distributed job, watched by its parent.

Where a process of the job is gone, JAX ends the others from C++: an abort in the middle of whatever
Python does, with a page of log and a stack. So the work is done in a child, and the parent has the
last word: one line, and an exit status. What libraries write past Python (the collectives report on
standard output) is kept aside, and shown only where the child dies of something else.
"""

import contextlib
import hashlib
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from dd_jax.cli.devices import Devices
from dd_jax.cli.status import BAD_INPUT, INTERNAL_ERROR, reported
from dd_jax.errors import ProcessLost

# What JAX says when it ends a process because another one is gone.
_GIVEN_UP = b"JAX distributed service detected fatal errors"
# Seconds that a process waits for the others to end as well: after its work, and after a refusal.
_PATIENCE, _SHORT_PATIENCE = 300.0, 5.0


def supervised(command: str, config: Any, work: Callable[[], int]) -> int:
    """The exit status of `work()` as one process of several.

    Args:
        command: what the process calls itself.
        config: the command's options; `config.devices` says how the processes find each other, all
            else must be the same in all of them.
        work: the command itself; of all processes, the first one is heard.
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
    """Says why a child ended before its work was done."""
    if _GIVEN_UP in said:
        raise ProcessLost("another process is gone or does not answer")
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
            print(f"{name}: waiting for the others …", file=sys.stderr)
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
        sys.stdout.flush()
        sys.stderr.flush()
    except BrokenPipeError:  # the reader went away, which is no error of the job
        status = 0
    finally:
        os.write(told, bytes([status]))
        if status != INTERNAL_ERROR:
            _leave(_PATIENCE if status < BAD_INPUT else _SHORT_PATIENCE)
        os._exit(status)


def _digest(config: Any) -> str:
    """Of all options but those that tell processes apart."""
    shared = replace(config, devices=Devices(mesh=config.devices.mesh))
    return hashlib.sha256(repr(shared).encode()).hexdigest()


def _leave(patience: float) -> None:
    """Wait for the others to end as well, so that none takes this one's end for a failure.

    Input that cannot be used is refused by all of them, at about the same time.
    """
    import jax

    leaving = threading.Thread(target=jax.distributed.shutdown, daemon=True)
    leaving.start()
    leaving.join(patience)


def _end_with_parent(alive: int) -> None:
    """End at once when the parent is gone: its end of the pipe closes."""

    def follow():
        os.read(alive, 1)
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()


def _keep_libraries_quiet(aside: int) -> None:
    """Python keeps the standard streams; what is written to their numbers directly goes aside."""
    for name, number in (("stdout", 1), ("stderr", 2)):
        kept = os.dup(number)
        os.dup2(aside, number)
        stream = os.fdopen(kept, "w", buffering=1, encoding=getattr(sys, name).encoding)
        setattr(sys, name, stream)
