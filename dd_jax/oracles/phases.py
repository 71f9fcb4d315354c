"""Runs as lists of phases: batches that take turns, steps and noise that vary.

A phase of the oracles `gaussian` and `grid` is some steps on one objective. A step on one batch
is a phase too, on the objective of its rows; so cyclic batches are a list of phases of one
step each, and a schedule gives every phase a step size and a noise of its own.
"""

from collections.abc import Sequence

import numpy as np

from dd_jax import checks
from dd_jax.errors import InputError


def in_turn(batches: Sequence, first: int, steps: int) -> list:
    """Steps first ≤ k < first + steps of a run in which step k uses batch k mod m.

    Args:
        batches: the phases of all m batches on one database; their numbers of steps do not matter.
        first: how many steps were taken before, on this database and on earlier ones.
        steps: how many are taken on this database.
    """
    if len(batches) == 1:
        return [batches[0]._replace(steps=steps)]
    first, steps = checks.whole("first", first), checks.whole("steps", steps)
    return [batches[k % len(batches)]._replace(steps=1) for k in range(first, first + steps)]


def per_phase(name: str, value, count: int) -> np.ndarray:
    """One positive number for each phase, from one for all of them or one for each."""
    value = checks.positive(name, value)
    if value.shape not in ((), (count,)):
        raise InputError(
            f"{name} has shape {value.shape} for {count} phases; give one number, or one for each."
        )
    return np.broadcast_to(value, (count,))
