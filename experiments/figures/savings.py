"""What an edit saves over retraining, the four rows of `tab:comparision`, stated and measured.

Saving = gradients of single records that learning from scratch takes - those of one request, both
read from the meters of runs (`savings_runs`). The table asks for an excess risk α = O(1), but its
logarithms belong to the risk that falls with n as the theorem's bound does. Both are shown.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import jax
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator, SymmetricalLogLocator

from experiments import savings_cases as cases
from experiments import savings_runs as runs
from experiments import style
from experiments.context import Context
from experiments.savings_cases import Target
from experiments.savings_runs import Measured, fit

ACCELERATED = "Noisy-m-A-SGD"
SECRET, STATELESS = "Perturbed-GD, Thm 9", "Perturbed-GD, Thm 28"
PAPER, OPTIMAL = "Noisy-GD, paper", "Noisy-GD, optimal"
DESCENTS = (SECRET, STATELESS, PAPER, OPTIMAL)
LOOKS = {
    ACCELERATED: (style.RED, "v"),
    SECRET: (style.GREEN, "^"),
    STATELESS: (style.BLACK, "s"),
    PAPER: (style.ORANGE, "o"),
    OPTIMAL: (style.BLUE, "D"),
}

TITLE = "What an edit saves, against retraining"


@dataclass(frozen=True)
class Config:
    """Settings of the figure; the quick scale is the default."""

    l2: float = 0.2
    epsilon: float = 2.0
    delta: float = 1e-5
    dim: int = 5
    requests: int = 10
    served: int = 2
    sizes: tuple[int, ...] = (300, 1_000, 3_000, 10_000, 30_000)
    # Theorem 28 begins to save late; beyond these n float32 cannot hold its noise.
    stateless_sizes: tuple[int, ...] = (1_000, 3_000, 10_000, 30_000, 100_000)
    constant_sizes: tuple[int, ...] = (300, 30_000)
    constant_risk: float = 1.0
    n: int = 3_000
    dims: tuple[int, ...] = (5, 50, 500)
    epsilons: tuple[float, ...] = (0.5, 2.0, 8.0)
    edits: tuple[int, ...] = (1, 10, 100)
    seeds: int = 2
    accelerated_sizes: tuple[int, ...] = (100, 300, 1_000, 3_000, 10_000)
    accelerated_scale: float = 36.0
    accelerated_batch_factor: int = 8
    accelerated_seeds: int = 8
    accelerated_served: int = 10
    seed: int = 0


FULL = Config(seeds=8, served=10)


class Point(NamedTuple):
    """One run: the panel and the row it belongs to, its place on the axis, and its target."""

    panel: str
    row: str
    place: float
    target: Target


def points(config: Config) -> Iterator[Point]:
    """Every run of the figure."""
    base = Target(
        config.n, config.dim, config.l2, config.epsilon, config.delta, requests=config.requests
    )
    constant = base._replace(risk=config.constant_risk)
    for row in DESCENTS:
        for n in config.sizes if row != STATELESS else config.stateless_sizes:
            yield Point("n", row, n, base._replace(n=n))
        for n in config.constant_sizes:
            yield Point("constant", row, n, constant._replace(n=n))
        for dim in config.dims:
            yield Point("d", row, dim, base._replace(dim=dim))
        for epsilon in config.epsilons:
            yield Point("epsilon", row, epsilon, base._replace(epsilon=epsilon))
        for edits in config.edits:
            yield Point("r", row, edits, base._replace(edits=edits))
    for n in config.accelerated_sizes:
        yield Point("constant", ACCELERATED, n, constant._replace(n=n))
    for dim in config.dims:
        yield Point("d", ACCELERATED, dim, constant._replace(dim=dim))


def make_case(config: Config, row: str, target: Target) -> cases.Case:
    """The system of a row of the table, calibrated for a target."""
    if row == ACCELERATED:
        return cases.accelerated(target, config.accelerated_scale, config.accelerated_batch_factor)
    if row in (SECRET, STATELESS):
        return cases.perturbed(target, secret=row == SECRET)
    return cases.noisy_gd_paper(target) if row == PAPER else cases.noisy_gd(target)


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


def compute(config: Config, context: Context) -> dict[str, np.ndarray]:
    """Arrays "panel: row" with one line per run: place, stated order, then `Measured`."""
    key = jax.random.key(config.seed)
    lines: dict[str, list] = {}
    known: dict[tuple[str, Target], Measured] = {}
    for number, point in enumerate(points(config)):
        name = f"{point.panel}: {point.row}"
        if name not in lines:
            context.say(name)
        run = (point.row, point.target)
        if run not in known:
            sizes = (config.seeds, config.served)
            if point.row == ACCELERATED:
                sizes = (config.accelerated_seeds, config.accelerated_served)
            run_key = jax.random.fold_in(key, number)
            known[run] = runs.measure(make_case(config, *run), point.target, run_key, *sizes)
        line = (point.place, stated(*run), *known[run])
        lines.setdefault(name, []).append(line)
    return {name: np.array(found, np.float64) for name, found in lines.items()}


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


def steps_per_e_fold(config: Config, row: str) -> float:
    """How many more steps retraining needs when n is e times larger, by the row's own analysis.

    α falls as 1/n²; a step leaves c = 1 - λ/(λ+β) of a distance by the optimal accountant,
    γ = β/(2λ+β) for Perturbed-GD, and e^{-1/(4κ)} of a risk by the paper's.
    """
    l2 = config.l2
    if row == PAPER:
        return 8 * (1 + 1 / l2)
    return -1 / math.log(1 / (1 + 2 * l2) if row in (SECRET, STATELESS) else 1 / (1 + l2))


def plot(config: Config, results: dict[str, np.ndarray]) -> Figure:
    """Measured savings with the stated orders drawn through their largest n (or first point)."""
    figure, axes = style.panels(2, 3)
    panels = (
        ("n", "records n, at the theorem's risk α ∝ d/(εn)²", DESCENTS),
        ("constant", f"records n, at α = {config.constant_risk:g}", tuple(LOOKS)),
        ("d", f"parameters d, n = {config.n:,}", tuple(LOOKS)),
        ("epsilon", f"ε, n = {config.n:,}", DESCENTS),
        ("r", f"records per request r, n = {config.n:,}", DESCENTS),
    )
    for axis, (panel, label, rows) in zip(axes, panels, strict=False):
        found = [line(results, panel, row) for row in rows]
        for row, points in zip(rows, found, strict=True):
            _draw(axis, row, points)
        axis.set(xscale="log", xlabel=label, ylabel="gradients saved per request")
        _scale(axis, np.concatenate([points.saving for points in found]))
        places = sorted({float(place) for points in found for place in points.place})
        if len(places) <= 3:
            axis.set_xticks(places, [f"{place:g}" for place in places])
            axis.xaxis.set_minor_locator(NullLocator())
    legend = axes[5]
    legend.axis("off")
    handles, labels = axes[1].get_legend_handles_labels()
    legend.legend(
        handles, labels, loc="center", fontsize=10, title="marks: measured; lines: stated order"
    )
    return figure


def _draw(axis: Axes, row: str, found: Line) -> None:
    colour, marker = LOOKS[row]
    errors = np.stack([found.saving - found.low, found.high - found.saving])
    axis.errorbar(
        found.place,
        found.saving,
        yerr=errors,
        color=colour,
        marker=marker,
        linestyle="none",
        label=row,
    )
    # The order has no constant of its own: it is drawn through the point where it is largest.
    anchor = int(np.argmax(found.stated))
    if found.saving[anchor] > 0:
        scaled = found.stated * found.saving[anchor] / found.stated[anchor]
        axis.plot(found.place, scaled, color=colour, linestyle=style.DASHED, linewidth=1)


def _scale(axis: Axes, savings: np.ndarray) -> None:
    """A logarithmic axis, linear around zero where an edit costs more than retraining."""
    low, high = float(savings.min()), float(savings.max())
    if low > 0:
        axis.set_yscale("log")
        return
    axis.set_yscale("symlog", linthresh=100)
    axis.set_ylim(min(4 * low, -100), 4 * high)
    axis.yaxis.set_major_locator(SymmetricalLogLocator(base=100, linthresh=100))
    axis.axhline(0, color=style.BLACK, linewidth=0.8)


def caption(config: Config, results: dict[str, np.ndarray]) -> str:
    """What to see, with the slopes of this run."""
    return " ".join(
        (_what(config), *_slopes(config, results), *_constant(config, results), _risks(results))
    )


def _what(config: Config) -> str:
    return (
        f"Gradients of single records that one request saves over retraining, both read from the "
        f"meters of runs: retraining is learning from scratch for as many steps as the system's "
        f"own analysis needs to certify the excess risk α, an edit is what (ε, δ) = "
        f"({config.epsilon:g}, {config.delta:g}) and α need. L = β = 1, λ = {config.l2:g}, "
        f"d = {config.dim} unless varied, records that attain the bounds. Only Noisy-GD certifies "
        f"data-deletion; Perturbed-GD certifies closeness to retraining, Noisy-m-A-SGD equality "
        f"with it. Dashed: the order stated in tab:comparision, whose constant is free."
    )


def _slopes(config: Config, results) -> Iterator[str]:
    sizes, larger = config.sizes, config.stateless_sizes
    yield (
        f"First panel, n = {sizes[0]:,} to {sizes[-1]:,} (Theorem 28: {larger[0]:,} to "
        f"{larger[-1]:,}): slopes of log(saving) on log(stated order), 1 if it is followed, with "
        f"95% t-intervals, and passes saved per e-fold of n against the analysis:"
    )
    parts, off, lost = [], [], []
    for row in DESCENTS:
        found = line(results, "n", row)
        saves = found.saving > 0
        if not saves.all():
            worse = ", ".join(f"{n:,.0f}" for n in found.place[~saves])
            lost.append(f"{row} saves nothing at n = {worse}")
        steps = fit(np.log(found.place), found.saving / found.place)
        expected = f"{steps} passes (expected {steps_per_e_fold(config, row):.3g})"
        if saves.sum() < 3:
            parts.append(f"{row} too few savings for a slope, {expected}")
            continue
        slope = fit(np.log(found.stated[saves]), np.log(found.saving[saves]))
        parts.append(f"{row} {slope}, {expected}")
        if not slope.low <= 1 <= slope.high:
            off.append(row)
    yield "; ".join((*parts, *lost)) + "."
    largest = ((row, line(results, "n", row)) for row in DESCENTS)
    passes = (f"{row} {found.edit[-1] / found.place[-1]:.3g}" for row, found in largest)
    yield (
        f"A large saving is no cheap edit: it is measured from each system's own retraining. "
        f"Passes of one edit at the largest n: {', '.join(passes)}."
    )
    if off:
        yield (
            f"Slopes off 1 ({', '.join(off)}) come from the constants inside the logarithm, which "
            f"the order leaves out: saving/n is a line in log n with an intercept of its own."
        )


def _constant(config: Config, results) -> Iterator[str]:
    rows = [(row, line(results, "constant", row)) for row in DESCENTS]
    grown = "; ".join(f"{row} {found.saving[-1] / found.place[-1]:.3g}" for row, found in rows)
    yield (
        f"Second panel, α = {config.constant_risk:g} whatever n, as the table's caption reads: "
        f"no logarithm is left, since retraining takes a fixed number of steps. Saved passes at "
        f"the largest n: {grown}."
    )
    losing = [row for row, found in rows if (found.saving <= 0).any()]
    if losing:
        yield f"There an edit of {' and '.join(losing)} costs more than retraining."
    found = line(results, "constant", ACCELERATED)
    upper = found.place >= found.place[-1] / 100
    slope = fit(np.log(found.place[upper]), np.log(np.maximum(found.saving[upper], 1)))
    dims = line(results, "d", ACCELERATED)
    growth = fit(np.log(dims.place), np.log(np.maximum(dims.saving, 1)))
    yield (
        f"Noisy-m-A-SGD saves {found.saving[-1]:,.0f} gradients at n = {found.place[-1]:,.0f}, "
        f"slope {slope} in n (stated: level, from below) and {growth} in d (stated: 1/2)."
    )


def _risks(results) -> str:
    worst = max(line(results, *name.split(": ", 1)).worst_risk for name in results)
    verdict = "every run met it" if worst <= 1 else "NOT EVERY RUN MET IT"
    return f"The largest mean excess risk was {worst:.0%} of α: {verdict}."
