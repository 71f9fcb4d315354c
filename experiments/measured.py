"""Estimates with their exact intervals: as named arrays, as error bars, and as a verdict."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from dd_jax.cli import style
from dd_jax.intervals import Estimate


def columns(name: str, estimates: Sequence[Estimate]) -> dict[str, np.ndarray]:
    """Arrays `name`, `name low` and `name high`: the values and the ends of their intervals."""
    table = np.array([[e.value, e.low, e.high] for e in estimates], np.float64).T
    return dict(zip((name, f"{name} low", f"{name} high"), table, strict=True))


def from_rows(name: str, rows: Sequence[Mapping[str, Any]]) -> dict[str, np.ndarray]:
    """`columns` of an attack's rows (`dd_jax.attacks.base.row`), and `name exact`."""
    keys = {"": "success", " low": "low", " high": "high", " exact": "exact"}
    return {
        f"{name}{end}": np.array([np.nan if row[key] is None else row[key] for row in rows], float)
        for end, key in keys.items()
    }


def interval(results: Mapping[str, np.ndarray], name: str) -> dict[str, np.ndarray]:
    """What `columns` or `from_rows` called `name`, as columns of a table."""
    return {
        "measured": results[name],
        "low": results[f"{name} low"],
        "high": results[f"{name} high"],
    }


def contains(
    results: Mapping[str, np.ndarray], name: str, exact: np.ndarray, rounding: float = 0.0
) -> np.ndarray:
    """Whether each interval of `name` contains the exact value, up to rounding."""
    _, low, high = interval(results, name).values()
    return (low - rounding <= exact) & (exact <= high + rounding)


def verdicts(refuted: Any) -> list[str]:
    """`verdict` of each."""
    return [verdict(one) for one in refuted]


def verdict(refuted: Any) -> str:
    """The word for whether samples or exact values contradict a claim."""
    return "refuted" if refuted else "consistent"


def draw(
    axes: Axes,
    where,
    results: Mapping[str, np.ndarray],
    name: str,
    *,
    label: str,
    colour: str = style.BLUE,
    marker: str = "o",
) -> None:
    """Error bars of what `columns` or `from_rows` called `name`."""
    ends = interval(results, name).values()
    style.error_bars(axes, where, *ends, label=label, colour=colour, marker=marker)
