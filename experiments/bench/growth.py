"""How time and memory grow with n, d, S and K: exponents over a decade of each."""

import time
from typing import Any

import numpy as np

from dd_jax import gradients
from experiments.bench import forms

# One size is varied at a time; the others stay here, where the work is well above any overhead.
BASE = {"n": 4_000, "d": 50, "seeds": 256, "steps": 10}
AXES = {
    "n": (2_000, 6_000, 20_000),
    "d": (50, 150, 500),
    "seeds": (128, 384, 1_280),
    "steps": (5, 15, 50),
}


def growth(repeats: int = 3) -> dict[str, dict[str, Any]]:
    """For each axis its sizes, best times, exponent of time, bytes and the bytes of the formula.

    Sizes of an axis are timed in turns, so that a slow moment of the machine bends no line.
    """
    return {axis: _along(axis, sizes, repeats) for axis, sizes in AXES.items()}


def _along(axis: str, sizes: tuple[int, ...], repeats: int) -> dict[str, Any]:
    runs, bytes_held, bytes_bound = {}, [], []
    for size in sizes:
        shape = BASE | {axis: size}
        database, params = forms.logistic_inputs(shape["n"], shape["d"], shape["seeds"])
        run = forms.noisy_steps(forms.logistic_problem(), shape["steps"])
        runs[str(size)] = lambda run=run, params=params, database=database: run(params, database)
        bytes_held.append(forms.peak_bytes(run, params, database))
        bytes_bound.append(formula_bytes(shape["n"], shape["d"], shape["seeds"]))
    seconds = forms.best_times(runs, repeats=repeats, clock=time.process_time)
    times = [seconds[str(size)] for size in sizes]
    return {
        "sizes": list(sizes),
        "seconds": times,
        "time_exponent": exponent(sizes, times),
        "bytes": bytes_held,
        "formula_bytes": bytes_bound,
    }


def formula_bytes(n: int, d: int, columns: int) -> int:
    """What `gradients.peak_numbers` says of chunks chosen from the shapes, in float32."""
    chunk = gradients.chunk_rows(n, max(d, columns))
    return 4 * gradients.peak_numbers(n, d, columns, chunk)


def exponent(sizes, values) -> float:
    """Slope of logarithms, by least squares."""
    return float(np.polyfit(np.log(sizes), np.log(values), 1)[0])
