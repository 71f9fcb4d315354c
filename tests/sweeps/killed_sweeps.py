"""A sweep that is killed again and again, and one that two processes make at the same time.

`python killed_sweeps.py FOLDER LIVES` prints what happened.

JAX is imported once, and every life of the sweep is a fork taken before it has started a backend.
"""

import json
import math
import os
import random
import select
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import jax

from dd_jax import files, sweeps
from dd_jax.sweeps import store

LIVES = int(sys.argv[2])
SEEDS = 6 * LIVES
# Chunks after which a life waits to be killed, so that work is left for the last one.
MOST = 5


@dataclass(frozen=True)
class Setting:
    scale: float = 1.0
    shift: float = 0.0


def draw(key, setting):
    return setting.shift + setting.scale * jax.random.normal(key, (2,))


def work(folder: Path, tick) -> None:
    """Three settings, three runs to a chunk, so that a chunk is one seed."""
    settings = sweeps.grid(Setting(), scale=(1.0, 2.0, 3.0))
    stream = sweeps.Stream(folder, "draw", {}, 3)
    fields = ("scale", "shift")
    sweeps.run(stream, draw, jax.random.key(1), SEEDS, settings, traced=fields, progress=tick)


def live(folder: Path, *, most: float = math.inf, dies_in: str | None = None) -> tuple[int, int]:
    """A fork that works and reports its own chunks through a pipe: its number and the pipe."""
    hears, tells = os.pipe()
    process = os.fork()
    if process:
        os.close(tells)
        return process, hears
    os.close(hears)
    found = chunks_in(folder)

    def tick(done, total):
        del total
        if done > 3 * found:
            os.write(tells, b".")
        if done >= 3 * (found + most):
            signal.pause()

    if dies_in is not None:
        die_in(dies_in)
    status = 1
    try:
        work(folder, tick)
        status = 0
    finally:
        os._exit(status)


def die_in(place: str) -> None:
    """Be killed in the third write: before the file has its name, or after."""
    calls = []

    def killed(*args):
        calls.append(args)
        if len(calls) == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return really(*args)

    if place == "before the rename":
        really, os.fsync = os.fsync, killed
    else:
        really, files._flush_folder = files._flush_folder, killed


def chunks_in(folder: Path) -> int:
    return len(list(folder.glob("*/*.npz")))


def kill(folder: Path, life: int, chance: random.Random, start_up: float) -> None:
    """End one life: inside a write, while it starts, or at a moment among its next chunks."""
    places = {0: "before the rename", 1: "after the rename"}
    process, pipe = live(folder, most=MOST, dies_in=places.get(life))
    if 2 <= life < 4:
        select.select([pipe], [], [], chance.uniform(0, start_up))
    elif life >= 4:
        for _ in range(chance.randint(1, 3)):
            os.read(pipe, 1)
        time.sleep(chance.uniform(0, 0.002))
    if life >= 2:
        os.kill(process, signal.SIGKILL)
    _, status = os.waitpid(process, 0)
    os.close(pipe)
    assert os.WIFSIGNALED(status)
    assert os.WTERMSIG(status) == signal.SIGKILL


def finish(folder: Path, lives: int = 1) -> float:
    """Lives that nobody ends, at the same time; seconds to the first chunk of the first."""
    start = time.monotonic()
    running = [live(folder) for _ in range(lives)]
    os.read(running[0][1], 1)
    first = time.monotonic() - start
    for process, _ in running:
        _, status = os.waitpid(process, 0)
        assert status == 0
    return first


def main(folder: Path) -> None:
    unbroken, broken, shared = (folder / name for name in ("unbroken", "broken", "shared"))
    for path in (unbroken, broken, shared):
        path.mkdir()
    store.revision()  # once, before the forks
    start_up = finish(unbroken)
    chance, kept, leftovers = random.Random(0), [], 0
    for life in range(LIVES):
        kill(broken, life, chance, start_up)
        kept.append(chunks_in(broken))
        leftovers += len(list(broken.glob("*/.*.part")))
    finish(broken)
    finish(shared, lives=2)
    print(json.dumps({"kept": kept, "leftovers": leftovers}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
