"""Grids of settings over seeds, in chunks that are stored and resumed."""

from dd_jax.sweeps import deletion, store
from dd_jax.sweeps.runner import (
    Stream,
    grid,
    identity,
    neighbours,
    over_seeds,
    progress_lines,
    run,
)

__all__ = [
    "Stream",
    "deletion",
    "grid",
    "identity",
    "neighbours",
    "over_seeds",
    "progress_lines",
    "run",
    "store",
]
