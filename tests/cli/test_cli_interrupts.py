"""Interrupts at random moments: one line, death by the signal, and nothing left to clean."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import pytest
from problems import soak

from dd_jax import programs

CHECKOUT = Path(__file__).parents[2]
# A program that tells when it listens. Before that Python itself is starting.
STARTER = """
import os, sys
from dd_jax import cli
watch = cli.signals.watch
def told(*arguments):
    watch(*arguments)
    os.write(int(os.environ["TOLD"]), b".")
cli.signals.watch = told
name = os.environ["PROGRAM"]
if name == "dd-jax":
    cli.entry()
from experiments.__main__ import PROGRAM
cli.entry(PROGRAM)
"""
DIGITS = "--data digits-3-vs-8 --eps-dp 9 --eps-dd 9"
COMMANDS = {
    "run": f"dd-jax run {DIGITS} --requests 2 --seeds 2 --save saved",
    "sweep": f"dd-jax sweep {DIGITS} --requests 2 --seeds 64 --chunk 1 --results saved",
    "audit": "dd-jax audit linear --seeds 20000",
    "report": "experiments report --figures steps_needed two_phase --results saved",
}
MORE = {
    "plan": "dd-jax plan --n 99 --dim 2 --l2 1 --eps-dp 1 --eps-dd 1 --loss logistic --order 2",
    "attack": "dd-jax attack median --seeds 20000 --picture median.svg",
    "data": "dd-jax data",
    "compare": "experiments compare --data digits-3-vs-8 --quick --results saved",
}


class Ended(NamedTuple):
    status: int
    error: str
    seconds: float


def start(words: str, folder: Path) -> subprocess.Popen:
    """A command that has begun to listen."""
    told, telling = os.pipe()
    program, *arguments = words.split()
    environment = {"TOLD": str(telling), "PROGRAM": program, "PYTHONPATH": str(CHECKOUT)}
    with (folder / "error").open("wb") as error, (folder / "output").open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-c", STARTER, *arguments],
            cwd=folder,
            env=os.environ | environment,
            stdout=output,
            stderr=error,
            pass_fds=[telling],
        )
    os.close(telling)
    assert os.read(told, 1) == b"."
    os.close(told)
    return process


def interrupted(words: str, folder: Path, delay: float, number=signal.SIGINT) -> Ended:
    folder.mkdir(exist_ok=True)
    process = start(words, folder)
    try:
        process.wait(delay)
    except subprocess.TimeoutExpired:
        process.send_signal(number)
    begun = time.monotonic()
    process.wait(60)
    seconds = time.monotonic() - begun
    return Ended(process.returncode, (folder / "error").read_text(), seconds)


def check(ended: Ended, folder: Path, number=signal.SIGINT) -> bool:
    """Whether it was interrupted; fails if it was, but not well."""
    assert "Traceback" not in ended.error
    if ended.status == 0:  # it was faster
        assert "interrupted" not in ended.error
        return False
    assert ended.status == -number, ended
    word = {signal.SIGINT: ": interrupted", signal.SIGTERM: ": terminated"}[number]
    lines = [line for line in ended.error.splitlines() if word in line]
    assert len(lines) == 1
    left = [path for path in folder.rglob("*") if path.name.startswith(".dd_jax-")]
    assert left == []
    return True


@pytest.mark.slow
def test_interrupts_at_random_moments(tmp_path):
    """Also in the middle of compiling, where Python's own handlers wait for the compiler."""
    chance, late, hit = random.Random(0), [], 0
    commands = COMMANDS | soak({}, MORE)
    longest = dict.fromkeys(commands, 4.0)
    for life in range(soak(4, 200)):
        name = list(commands)[life % len(commands)]
        folder = tmp_path / name
        delay = chance.uniform(0, longest[name])
        begun = time.monotonic()
        ended = interrupted(commands[name], folder, soak(delay / 4, delay))
        was = check(ended, folder)
        if not was:
            longest[name] = time.monotonic() - begun
        hit += was
        late.append(ended.seconds)
    print(f"{hit} were interrupted; the slowest ended after {max(late):.2f} s")
    assert hit > len(late) / 2
