"""Interrupts at random moments: one line, death by the signal, and nothing left to clean."""

import contextlib
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
from test_programs import LONG, lives, numbers, wait_for_the_end_of

CHECKOUT = Path(__file__).parents[2]
# A program that tells when it listens. Before that Python itself is starting.
STARTER = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # the tests may run where it is ignored
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


def start(words: str, folder: Path, **variables: str) -> subprocess.Popen:
    """A command that has begun to listen."""
    folder.mkdir(exist_ok=True)
    told, telling = os.pipe()
    program, *arguments = words.split()
    environment = {"TOLD": str(telling), "PROGRAM": program, "PYTHONPATH": str(CHECKOUT)}
    environment |= variables
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


def end(process: subprocess.Popen, folder: Path, number: int) -> Ended:
    """What a signal does to it."""
    begun = time.monotonic()
    process.send_signal(number)
    try:
        process.wait(60)
    finally:
        process.kill()
    seconds = time.monotonic() - begun
    return Ended(process.returncode, (folder / "error").read_text(), seconds)


def check(ended: Ended, folder: Path, number: int = signal.SIGINT) -> bool:
    """Whether it was interrupted; fails if it was, but not well."""
    assert "Traceback" not in ended.error
    word = {signal.SIGINT: ": interrupted", signal.SIGTERM: ": terminated"}[number]
    lines = [line for line in ended.error.splitlines() if word in line]
    if ended.status == 0:  # it was faster
        assert lines == []
        return False
    assert (ended.status, len(lines)) == (-number, 1), ended
    assert list(folder.rglob(".dd_jax-*")) == []
    return True


@pytest.mark.slow
def test_interrupts_at_random_moments(tmp_path):
    """Also in the middle of compiling, where Python's own handlers wait for the compiler."""
    chance, found = random.Random(0), []
    commands = COMMANDS | soak({}, MORE)
    longest = dict.fromkeys(commands, soak(1.0, 4.0))
    for life in range(soak(4, 200)):
        name = list(commands)[life % len(commands)]
        process = start(commands[name], tmp_path / name)
        begun = time.monotonic()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(chance.uniform(0, longest[name]))
            longest[name] = time.monotonic() - begun
        number = chance.choice([signal.SIGINT, signal.SIGINT, signal.SIGTERM])
        ended = end(process, tmp_path / name, number)
        if check(ended, tmp_path / name, number):
            found.append((round(ended.seconds, 2), name))
    print(f"{len(found)} were interrupted; the slowest ends: {sorted(found)[-5:]}")
    assert len(found) > life / 2


def test_a_download_that_is_interrupted_or_killed_leaves_nothing(tmp_path):
    """Of a kill the next download removes what is left; its client ends in any case."""
    client = tmp_path / "bin" / "npm"
    client.parent.mkdir()
    client.write_text(f"#!/bin/sh\necho half > $TMPDIR/half\ncd {tmp_path}\n{LONG}\n")
    client.chmod(0o700)
    aside = tmp_path / "aside"
    aside.mkdir()
    places = {"TMPDIR": str(aside), "DD_JAX_DATA": str(tmp_path / "cache")}
    places["PATH"] = f"{client.parent}:{os.environ['PATH']}"
    for number, left in ((signal.SIGKILL, 1), (signal.SIGINT, 0)):
        process = start("dd-jax data fetch mnist", tmp_path / "run", **places)
        clients = numbers(tmp_path)
        assert all(map(lives, clients))
        assert len(list(aside.glob("*/aside/half"))) == 1
        ended = end(process, tmp_path / "run", number)
        assert number == signal.SIGKILL or check(ended, tmp_path)
        wait_for_the_end_of(clients)
        (tmp_path / "numbers").unlink()
        assert len(list(aside.iterdir())) == left
