"""Grids of settings over seeds, in chunks that are kept on disk, so that a run can be resumed."""

from dd_jax.sweeps import deletion, store
from dd_jax.sweeps.results import Results, deletions
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
    "Results",
    "Stream",
    "deletion",
    "deletions",
    "grid",
    "identity",
    "neighbours",
    "over_seeds",
    "progress_lines",
    "run",
    "store",
]
