"""Grids of settings over seeds in chunks that are stored and resumed."""

from dd_jax.sweeps import chunks, deletion, means, progress, store, sweep

__all__ = ["chunks", "deletion", "means", "progress", "store", "sweep"]
