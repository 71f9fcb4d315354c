"""The table of a stream of deletions: every system at its choice of noise."""

import math
from typing import NamedTuple

import numpy as np
from scipy import stats

from experiments.sequential.rows import ROWS

COLUMNS = (
    "system",
    "notion",
    "keeps",
    "requests",
    "σ²",
    "passes",
    "gradients",
    "accuracy",
    "95% low",
    "95% high",
    "within the margin",
)


class Entry(NamedTuple):
    """A row of the table as chosen: its cheapest noise within the margin, or its most accurate.

    Attributes:
        name, notion, keeps, single: see `rows.Row`.
        noise: σ², NaN where a system has its own. passes, gradients: over the whole stream.
        accuracy, low, high: mean over seeds with its 95% t-interval.
        within: whether the mean is within the margin of the best.
        decided: whether the whole interval is on one side of the margin.
    """

    name: str
    notion: str
    keeps: str
    single: bool
    noise: float
    passes: float
    gradients: float
    accuracy: float
    low: float
    high: float
    within: bool
    decided: bool

    @property
    def verdict(self) -> str:
        """Whether it is within the margin, in a word or two."""
        return ("yes" if self.within else "no") + ("" if self.decided else ", undecided")

    @property
    def interval(self) -> str:
        """The accuracy with its interval, and whether that leaves the margin undecided."""
        doubt = "" if self.decided else ", undecided"
        return f"{self.accuracy:.3f} ({self.low:.3f}, {self.high:.3f}{doubt})"

    def cells(self) -> tuple:
        """The row under `COLUMNS`."""
        noise = None if math.isnan(self.noise) else self.noise
        requests = "one by one" if self.single else "in groups"
        numbers = (noise, self.passes, self.gradients, self.accuracy, self.low, self.high)
        return (self.name, self.notion, self.keeps, requests, *numbers, self.verdict)


def entries(margin: float, results: dict[str, np.ndarray]) -> list[Entry]:
    """Every row at its choice of noise."""
    floor = best_accuracy(results) - margin
    return [_entry(name, floor, results) for name in ROWS]


def _entry(name: str, floor: float, results: dict[str, np.ndarray]) -> Entry:
    row, passes = ROWS[name], results[f"passes: {name}"]
    values = results[f"accuracy: {row.steps}"]
    means, usable = values.mean(axis=1), np.isfinite(passes)
    fits = usable & (means >= floor)
    choices = np.where(fits, passes, np.inf) if fits.any() else np.where(usable, -means, np.inf)
    place = int(np.argmin(choices))
    centre = float(means[place])
    half = float(stats.t.isf(0.025, values.shape[1] - 1) * stats.sem(values[place]))
    return Entry(
        name=name,
        notion=row.notion,
        keeps=row.keeps,
        single=row.single,
        noise=math.nan if row.passes is None else float(results["noise"][place]),
        passes=float(passes[place]),
        gradients=float(passes[place] * results["n"]),
        accuracy=centre,
        low=centre - half,
        high=centre + half,
        within=bool(fits.any()),
        decided=not centre - half < floor <= centre + half,
    )


def best_accuracy(results: dict[str, np.ndarray]) -> float:
    """The best mean accuracy of any system at any noise."""
    return max(float(v.mean(axis=1).max()) for k, v in results.items() if k.startswith("accuracy"))
