"""Starts `mesh_runs.py` in processes of their own, with as many CPU devices as a test needs."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).with_name("mesh_runs.py")


def started(*arguments, devices: int) -> subprocess.Popen:
    flags = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count={devices}"
    path = os.pathsep.join([str(SCRIPT.parent), *sys.path])
    return subprocess.Popen(
        [sys.executable, SCRIPT, *map(str, arguments)],
        env=os.environ | {"XLA_FLAGS": flags, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finished(running: list[subprocess.Popen]) -> list[dict]:
    """What each of them found; collectives may print lines of their own before it."""
    said = [process.communicate() for process in running]
    for process, (_, errors) in zip(running, said, strict=True):
        assert process.returncode == 0, errors
    return [json.loads(output.splitlines()[-1]) for output, _ in said]


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]
