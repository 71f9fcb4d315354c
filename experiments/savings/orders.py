"""The orders that `tab:comparision` states for the savings, and whether runs grow as they do."""

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from experiments.savings.cases import Target
from experiments.savings.runs import Slope, fit

ACCELERATED = "Noisy-m-A-SGD"
SECRET, STATELESS = "Perturbed-GD, Thm 9", "Perturbed-GD, Thm 28"
PAPER, OPTIMAL = "Noisy-GD, paper", "Noisy-GD, optimal"
DESCENTS = (SECRET, STATELESS, PAPER, OPTIMAL)
STATED = {
    ACCELERATED: "√d (1 - √d/n)",
    SECRET: "n log(εn/√d)",
    STATELESS: "n log(εn/(log²(id) √d))",
    PAPER: "n log min{n, εn/√d}",
    OPTIMAL: "n log min{n, εn/√d}",
}
AS_STATED, NOT_RESOLVED = "as stated", "not resolved"
STEEPER, FLATTER = "NOT as stated but steeper", "NOT as stated but flatter"
NO_SLOPE = "no slope: fewer than three runs save anything"
ROUNDING = 1e-6
# A stated slope this small is level.
LEVEL = 0.01
FAR = np.logspace(9, 12, 4)


def stated(row: str, target: Target) -> float:
    """The table's order without its constant; r enters as in the text below the theorem.

    For Perturbed-GD the table has r = 1 only; its noise is proportional to r, hence εn/(r√d).
    """
    n, root, edits = target.n, math.sqrt(target.dim), target.edits
    if row == ACCELERATED:
        return root * (1 - root / n)
    ratio = target.epsilon * n / root
    if row == SECRET:
        return n * math.log(ratio / edits)
    if row == STATELESS:
        return n * math.log(ratio / edits / math.log(target.requests * target.dim) ** 2)
    return n * math.log(min(n / edits, ratio))


class Line(NamedTuple):
    """One row of the table in one panel, column by column."""

    place: np.ndarray
    stated: np.ndarray
    edit: np.ndarray
    saving: np.ndarray
    low: np.ndarray
    high: np.ndarray
    worst_risk: float


def line(results: dict[str, np.ndarray], panel: str, row: str) -> Line:
    """A row's runs in a panel."""
    place, order, retrain, edit, low, high, target, learned, edited = results[f"{panel}: {row}"].T
    worst = float((np.maximum(learned, edited) / target).max())
    return Line(place, order, edit, retrain - edit, retrain - high, retrain - low, worst)


def steps_per_e_fold(l2: float, row: str) -> float:
    """How many more steps retraining needs when n is e times larger, by the row's own analysis.

    α falls as 1/n²; a step leaves c = 1 - λ/(λ+β) of a distance by the optimal accountant,
    γ = β/(2λ+β) for Perturbed-GD, and e^{-1/(4κ)} of a risk by the paper's.
    """
    if row == PAPER:
        return 8 * (1 + 1 / l2)
    return -1 / math.log(1 / (1 + 2 * l2) if row in (SECRET, STATELESS) else 1 / (1 + l2))


class Growth(NamedTuple):
    """How a row's savings grow along a panel, against its stated order over the same runs.

    Attributes:
        panel, row: which.
        slope: of log(saving) on the logarithm of the place, or None: too few runs save anything.
        stated: the same slope of the stated order.
        losing: places where an edit saves nothing.
    """

    panel: str
    row: str
    slope: Slope | None
    stated: float
    losing: tuple[float, ...]

    @property
    def verdict(self) -> str:
        """Whether the interval contains the stated slope, and tells it from no growth at all."""
        if self.slope is None:
            return NO_SLOPE
        low, high = self.slope.low - ROUNDING, self.slope.high + ROUNDING
        if low > self.stated:
            return STEEPER
        if high < self.stated:
            return FLATTER
        return NOT_RESOLVED if low <= 0 <= high and abs(self.stated) > LEVEL else AS_STATED


def growths(results: dict[str, np.ndarray]) -> Iterator[Growth]:
    """Every row in every panel that it has at least three runs in."""
    for name in results:
        panel, row = name.split(": ", 1)
        found = line(results, panel, row)
        if len(found.place) < 3:
            continue
        saves, places = found.saving > 0, np.log(found.place)
        enough = saves.sum() >= 3
        slope = fit(places[saves], np.log(found.saving[saves])) if enough else None
        kept = saves if enough else np.full_like(saves, True)
        order = fit(places[kept], np.log(found.stated[kept])).value
        yield Growth(panel, row, slope, order, tuple(found.place[~saves]))


class Straight(NamedTuple):
    """Savings of n (a log n + b) with the analysis's a, and the b that fits the runs best.

    Attributes:
        measured, expected: a of the runs, passes per e-fold of n, and of the analysis.
        near: slope of log(saving) on log(n) that such savings have over the runs' n that save.
        far, far_stated: the same at `FAR`, and of the stated order there.
    """

    measured: Slope
    expected: float
    near: float
    far: float
    far_stated: float


def straight(results: dict[str, np.ndarray], row: str, target: Target) -> Straight:
    """What the constants that an order leaves out do to the slope of a row at these n."""
    found, rate = line(results, "n", row), steps_per_e_fold(target.l2, row)
    passes, places = found.saving / found.place, np.log(found.place)
    shift = float(np.mean(passes - rate * places))
    saves = found.saving > 0
    far = np.array([stated(row, target._replace(n=int(n))) for n in FAR])

    def slope(logs, savings):
        kept = savings > 0
        return fit(logs[kept], np.log(savings[kept])).value if kept.sum() >= 3 else math.nan

    def savings(logs):
        return np.exp(logs) * (rate * logs + shift)

    return Straight(
        fit(places, passes),
        rate,
        slope(places[saves], savings(places[saves])),
        slope(np.log(FAR), savings(np.log(FAR))),
        slope(np.log(FAR), far),
    )
