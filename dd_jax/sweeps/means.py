"""Means over seeds with intervals by Student's t, for single numbers or whole arrays of them."""

from typing import NamedTuple

import numpy as np
from scipy import stats

from dd_jax.errors import InputError
from dd_jax.intervals import check_confidence


class Mean(NamedTuple):
    """A mean over seeds and its interval, numbers or arrays of one shape."""

    value: np.ndarray
    low: np.ndarray
    high: np.ndarray


def over_seeds(values: np.ndarray, confidence: float) -> Mean:
    """Means over the leading axis; each interval alone has the confidence.

    Exact where the values are normal, and otherwise to the accuracy of the central limit theorem.
    """
    check_confidence(confidence)
    values = np.asarray(values, np.float64)
    if len(values) < 2:
        raise InputError(f"{len(values)} seed has no interval; give at least 2.")
    centre = values.mean(axis=0)
    half = stats.t.isf((1 - confidence) / 2, len(values) - 1) * stats.sem(values, axis=0)
    return Mean(centre, centre - half, centre + half)
