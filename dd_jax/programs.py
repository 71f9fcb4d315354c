"""Other programs that this one starts: they end with it, however it ends."""

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

# The shell is the first of a group of processes. A part of it reads from a pipe that nobody writes
# to: the pipe ends when its owner does, even if that was killed, and then the whole group is.
_SCRIPT = """
exec 3<&0 </dev/null
(read nothing <&3; kill -s KILL 0) >/dev/null 2>&1 &
"$@" 3<&-
"""
_RUNNING: set[int] = set()


def run(
    command: Sequence[str],
    *,
    folder: Path | None = None,
    variables: Mapping[str, str] | None = None,
    seconds: float | None = None,
) -> subprocess.CompletedProcess[str]:
    """What a program answered: its status and what it printed.

    Args:
        command: the program and its arguments. folder: where it runs.
        variables: of its environment, besides those of this process.
        seconds: after which it is killed.

    Raises:
        subprocess.TimeoutExpired: it was killed.
    """
    read, held = os.pipe()
    try:
        process = subprocess.Popen(
            ["/bin/sh", "-c", _SCRIPT, "sh", *command],
            stdin=read,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            cwd=folder,
            env={**os.environ, **(variables or {})},
            process_group=0,
        )
    except BaseException:
        os.close(held)
        raise
    finally:
        os.close(read)
    _RUNNING.add(process.pid)
    try:
        with process:
            try:
                out, err = process.communicate(timeout=seconds)
            finally:
                os.close(held)
    finally:
        _RUNNING.discard(process.pid)
    return subprocess.CompletedProcess(list(command), process.returncode, out, err)


def stop() -> None:
    """Kill all that run, before this process ends in the middle."""
    for group in list(_RUNNING):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)
