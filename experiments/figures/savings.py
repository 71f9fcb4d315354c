"""What an edit saves over retraining, the four rows of `tab:comparision`, stated and measured.

Saving = gradients of single records that learning from scratch takes - those of one request, both
read from the meters of runs (`savings.runs`). The table asks for an excess risk α = O(1), but its
logarithms belong to the risk that falls with n as the theorem's bound does. Both are shown.
"""

from dataclasses import dataclass

import jax
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator, SymmetricalLogLocator

from dd_jax.cli import style
from experiments.cache import Runner
from experiments.page import Table
from experiments.savings import points, runs
from experiments.savings import words as savings_words
from experiments.savings.cases import Target
from experiments.savings.orders import (
    ACCELERATED,
    DESCENTS,
    OPTIMAL,
    PAPER,
    SECRET,
    STATED,
    STATELESS,
    Line,
    growths,
    line,
    stated,
)
from experiments.savings.runs import Measured

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

    @property
    def target(self) -> Target:
        """What is asked for where nothing is varied."""
        return Target(self.n, self.dim, self.l2, self.epsilon, self.delta, requests=self.requests)


FULL = Config(seeds=8, served=10)


def compute(config: Config, runner: Runner) -> dict[str, np.ndarray]:
    """Arrays "panel: row" with one line per run: place, stated order, then `Measured`."""
    key = jax.random.key(config.seed)
    lines: dict[str, list] = {}
    known: dict[tuple[str, Target], Measured] = {}
    for number, point in enumerate(points.points(config)):
        name = f"{point.panel}: {point.row}"
        if name not in lines:
            runner.say(name)
        run = (point.row, point.target)
        if run not in known:
            sizes = (config.seeds, config.served)
            if point.row == ACCELERATED:
                sizes = (config.accelerated_seeds, config.accelerated_served)
            run_key = jax.random.fold_in(key, number)
            known[run] = runs.measure(points.make_case(config, *run), point.target, run_key, *sizes)
        line = (point.place, stated(*run), *known[run])
        lines.setdefault(name, []).append(line)
    return {name: np.array(found, np.float64) for name, found in lines.items()}


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
        for row, one in zip(rows, found, strict=True):
            _draw(axis, row, one)
        axis.set(xscale="log", xlabel=label, ylabel="gradients saved per request")
        _scale(axis, np.concatenate([one.saving for one in found]))
        places = sorted({float(place) for one in found for place in one.place})
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


def tables(config: Config, results: dict[str, np.ndarray]) -> list[Table]:
    """The slope of every row in every panel."""
    del config
    columns = ("system", "stated", "against", "slope", "95% low", "95% high", "stated slope", "")
    axes = {**savings_words.PANELS, "n": "n", "constant": "n, constant α"}
    rows = [
        (g.row, STATED[g.row], axes[g.panel], *(g.slope or (None,) * 3), g.stated, g.verdict)
        for g in growths(results)
    ]
    return [Table("Slopes of log(saving), measured and stated", columns, rows)]


def caption(config: Config, results: dict[str, np.ndarray]) -> str:
    """What to see, with the slopes of this run."""
    return " ".join(
        (
            savings_words.what(config.target),
            *savings_words.slopes(results, config.target),
            savings_words.edits(results),
            *savings_words.constant_risk(results, config.constant_risk),
            savings_words.risks(results),
        )
    )
