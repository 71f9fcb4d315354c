"""What the savings show, in words and with the slopes of the run."""

from collections.abc import Iterator

import numpy as np

from experiments.savings.cases import Target
from experiments.savings.orders import (
    ACCELERATED,
    DESCENTS,
    FAR,
    FLATTER,
    STATED,
    STEEPER,
    Growth,
    growths,
    line,
    straight,
)

PANELS = {"d": "d", "epsilon": "ε", "r": "r"}


def what(target: Target) -> str:
    """What is counted, of whom, on what."""
    return (
        f"Gradients of single records that one request saves over retraining, both read from the "
        f"meters of runs: retraining is learning from scratch for as many steps as the system's "
        f"own analysis needs to certify the excess risk α, an edit is what (ε, δ) = "
        f"({target.epsilon:g}, {target.delta:g}) and α need. L = β = 1, λ = {target.l2:g}, "
        f"d = {target.dim} unless varied, records that attain the bounds. Only Noisy-GD certifies "
        f"data-deletion; Perturbed-GD claims closeness to retraining, Noisy-m-A-SGD equality "
        f"with it. Dashed: the stated order, whose constant is free."
    )


def slopes(results: dict[str, np.ndarray], target: Target) -> Iterator[str]:
    """Every row of `tab:comparision` against n, then the other panels."""
    found = {(growth.panel, growth.row): growth for growth in growths(results)}
    yield (
        "Slopes of log(saving) on log(n) with 95% t-intervals, beside the slope that the stated "
        "order has over the same runs (orders are lower bounds Ω: a steeper slope does not "
        "contradict them, a flatter one would):"
    )
    parts = []
    for row in DESCENTS:
        growth = found["n", row]
        reason = _reason(results, growth, target) if growth.verdict in (STEEPER, FLATTER) else ""
        passes = straight(results, row, target)
        parts.append(
            f"{row}, stated {STATED[row]}: {_slope(growth)}{reason}; it saves {passes.measured} "
            f"passes per e-fold of n, {passes.expected:.3g} by its analysis"
        )
    parts.append(
        f"{ACCELERATED}, stated {STATED[ACCELERATED]}, at a constant risk: "
        f"{_slope(found['constant', ACCELERATED])}"
    )
    yield "; ".join(parts) + "."
    for panel, symbol in PANELS.items():
        yield f"In {symbol}: {_grouped([g for g in found.values() if g.panel == panel])}."
    yield (
        "(Not resolved: the interval contains the stated slope, and also no growth at all. The "
        "table of slopes has every number.) The order in r is not that of tab:comparision, which "
        "has r = 1: for Noisy-GD it is that of the text below thm:unlearning_accuracy_convex, for "
        "Perturbed-GD it is ours, its noise being proportional to r."
    )


def _grouped(rows: list[Growth]) -> str:
    """The rows by what their slopes say."""
    verdicts = dict.fromkeys(growth.verdict for growth in rows)
    return "; ".join(
        f"{verdict}: {', '.join(growth.row for growth in rows if growth.verdict == verdict)}"
        for verdict in verdicts
    )


def _slope(growth: Growth) -> str:
    lost = ", ".join(f"{place:,.6g}" for place in growth.losing)
    losses = f", saving nothing at {lost}" if lost else ""
    if growth.slope is None:
        return f"{growth.verdict}{losses}"
    return f"{growth.slope} (stated {growth.stated:.3g}), {growth.verdict}{losses}"


def _reason(results, growth: Growth, target: Target) -> str:
    """The constants inside the logarithm, where they are enough to explain the slope."""
    found = straight(results, growth.row, target)
    assert growth.slope is not None
    if not growth.slope.low <= found.near <= growth.slope.high:
        return f", which the constants inside the logarithm do not explain (slope {found.near:.3g})"
    return (
        f", which the constants inside the logarithm explain: n (a log n + b) with the analysis's "
        f"a and the b of these runs has slope {found.near:.3g} here and {found.far:.3g} from n = "
        f"{FAR[0]:.0e} to {FAR[-1]:.0e}, the order {found.far_stated:.3g}"
    )


def constant_risk(results: dict[str, np.ndarray], risk: float) -> Iterator[str]:
    """What is left of the savings at a risk that does not fall with n."""
    rows = [(row, line(results, "constant", row)) for row in DESCENTS]
    grown = "; ".join(f"{row} {found.saving[-1] / found.place[-1]:.3g}" for row, found in rows)
    yield (
        f"Second panel, α = {risk:g} whatever n, as the table's caption reads: retraining takes a "
        f"number of steps that does not grow with n, and no logarithm is left. Saved passes at the "
        f"largest n: {grown}."
    )
    losing = [row for row, found in rows if (found.saving <= 0).any()]
    if losing:
        yield f"There an edit of {' and '.join(losing)} costs more than retraining."


def edits(results: dict[str, np.ndarray]) -> str:
    """What an edit costs, which a saving does not tell."""
    largest = ((row, line(results, "n", row)) for row in DESCENTS)
    passes = (f"{row} {found.edit[-1] / found.place[-1]:.3g}" for row, found in largest)
    return (
        f"A large saving is no cheap edit: it is measured from each system's own retraining. "
        f"Passes of one edit at the largest n: {', '.join(passes)}."
    )


def risks(results: dict[str, np.ndarray]) -> str:
    """Whether every run met the risk that it was calibrated for."""
    worst = max(line(results, *name.split(": ", 1)).worst_risk for name in results)
    verdict = "every run met it" if worst <= 1 else "NOT EVERY RUN MET IT"
    return f"The largest mean excess risk was {worst:.0%} of α: {verdict}."
