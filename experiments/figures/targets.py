"""Whole interactions on accelerators, as their compilers see them: speed, and what bounds it.

No accelerator is asked and nothing is run: the numbers are those of `make targets`, kept in
targets.json beside this file because a report is made without the compilers of TPUs and GPUs.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from dd_jax import sealed
from dd_jax.cli import style
from experiments.cache import Runner
from experiments.page import Table

TITLE = "Accelerators, by their compilers' estimates"
CAPTION = (
    "Estimates, not measurements: the program of a whole sweep, compiled for each machine and "
    "never run. Left: seeds per second. For TPUs the time is the compiler's own count of cycles; "
    "GPU programs carry none, so theirs is a roofline bound, and a run is slower. Right: a step of "
    "one device, beside what its matrix products, its memory and its elementwise work would take "
    "at the chip's peak; the rightmost of these bounds the step."
)
NOTE = (
    "Made by `make targets`, which writes the file that this figure reads. Products count at the "
    "peak of their precision: single precision is six bfloat16 passes on a TPU, in whole tiles of "
    "its matrix units. Elementwise work counts one for each operation. Bytes are those of "
    "arrays that do not stay in fast memory or cache. Latencies of collectives and of starting "
    "kernels are not counted."
)

# Bounds of fewer microseconds bound nothing and are not drawn.
LEAST = 0.1
FILE = Path(__file__).with_suffix(".json")
LIMITS = ("products", "memory", "elementwise")
LOOKS = {
    "products": (style.BLUE, "o"),
    "memory": (style.ORANGE, "s"),
    "elementwise": (style.GREEN, "^"),
}


@dataclass(frozen=True)
class Config:
    """Settings of the figure: which answers it shows, by their digest."""

    answers: str = hashlib.sha256(FILE.read_bytes()).hexdigest()[:16]


FULL = Config()


def compute(config: Config, runner: Runner) -> dict[str, np.ndarray]:
    """The answers' numbers, one entry for each machine; NaN where there is none."""
    runner.say("reading what the compilers said")
    answers, steps = _read()
    numbers = {
        "seeds per second": [one["seed_steps_per_second"] / steps for one in answers],
        "step": [one["step_seconds"] for one in answers],
        "cycles": [one["cycles"] for one in answers],
        "share": [one["share"] for one in answers],
        "largest chunk": [one["largest_chunk"] for one in answers],
        "need": [one["need"] / one["memory"] for one in answers],
        "collectives": [sum(one["collectives"].values()) for one in answers],
    }
    numbers |= {limit: [one["bound"][limit] for one in answers] for limit in LIMITS}
    return {name: np.array(values, float) for name, values in numbers.items()}


def _read() -> tuple[list[dict[str, Any]], int]:
    """(the answers of machines that fit, steps of one interaction)."""
    values = sealed.unpack_json(FILE.read_bytes())
    asked = values["workload"]
    steps = asked["learn_steps"] + asked["requests"] * asked["delete_steps"]
    return [one for one in values["answers"] if one["fits"]], steps


def plot(config: Config, results: dict[str, np.ndarray]) -> Figure:
    """Seeds per second, and a step beside its bounds."""
    answers, _ = _read()
    names = [one["machine"] for one in answers]
    places = np.arange(len(names))
    bounds = np.isnan(results["cycles"])
    figure, (left, right) = style.panels(1, 2, height=3.8)
    for shown, colour, marker, label in (
        (~bounds, style.BLUE, "o", "compiler's cycles (estimate)"),
        (bounds, style.ORANGE, "<", "roofline bound (at most)"),
    ):
        if shown.any():
            speeds = results["seeds per second"][shown]
            left.plot(speeds, places[shown], marker, color=colour, label=label, ms=8)
    left.set(xscale="log", xlabel="interactions per second, all devices", title="speed, estimated")
    cycles = results["step"][~bounds] * 1e6
    right.plot(cycles, places[~bounds], "|", ms=16, mew=3, color=style.BLACK, label="cycles")
    for limit, (colour, marker) in LOOKS.items():
        micros = results[limit] * 1e6
        micros = np.where(micros > LEAST, micros, np.nan)
        right.plot(micros, places, marker, color=colour, label=limit, ms=6)
    right.set(xscale="log", xlabel="microseconds of one step", title="a step, and its bounds")
    for axes in (left, right):
        axes.set_yticks(places, names)
        axes.invert_yaxis()
        style.legend_below(axes)
    return figure


def tables(config: Config, results: dict[str, np.ndarray]) -> list[Table]:
    """Every machine with its numbers, and what they were asked for."""
    values = sealed.unpack_json(FILE.read_bytes())
    answers, _ = _read()
    rows = [
        {
            "machine": one["machine"],
            "devices": int(np.prod(one["mesh"])),
            "seeds at once": one["chunk"],
            "share of memory": results["need"][place],
            "largest chunk": one["largest_chunk"],
            "collectives per step": results["collectives"][place],
            "cycles per step": one["cycles"],
            "share of the roofline": one["share"],
            "bounded by": one["bound_by"],
            "seeds per second": results["seeds per second"][place],
            "from": one["estimate"],
            "compiler": one["compiler"],
        }
        for place, one in enumerate(answers)
    ]
    asked = values["workload"]
    words = (
        f"{asked['loss']}, {asked['n']:,} × {asked['dim']}, {asked['learn_steps']} steps, then "
        f"{asked['requests']:,} deletions of {asked['delete_steps']}; precision "
        f"{asked['precision']}; estimates of {values['made']}, nothing was run"
    )
    return [Table.from_rows(words, rows)]
