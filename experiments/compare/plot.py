"""The picture of a comparison: what a request costs against what three adversaries get."""

import textwrap
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from dd_jax.cli import style
from experiments.compare.row import SUCCESS, WITHIN, Row

KINDS = (
    ("(a) one release", "o", style.BLUE, 0.22),
    ("(b) many releases", "s", style.GREEN, 0.0),
    ("(c) adaptive requester", "D", style.ORANGE, -0.22),
)
BOUND = {"marker": "|", "markersize": 6, "markeredgewidth": 1.6, "color": style.BLACK}
BARS = {
    "nothing is kept": {"facecolor": style.BLUE, "alpha": 0.6},
    "a secret state is kept": {"facecolor": style.RED, "alpha": 0.6, "hatch": "///"},
}


def plot(rows: Sequence[Row]) -> Figure:
    """One line per system, cheapest on top: cost on the left, advantages on the right."""
    names = list(dict.fromkeys(row.data for row in rows))
    count = max(sum(row.data == name for row in rows) for name in names)
    figure, axes = style.panels(len(names), 2)
    words = textwrap.wrap(caption(rows), 150, break_on_hyphens=False)
    figure.set_size_inches(10.5, len(names) * (1.2 + 0.27 * count) + 0.5 + 0.16 * len(words))
    for place, name in enumerate(names):
        chosen = sorted((r for r in rows if r.data == name), key=lambda row: -row.gradients)
        cost, gain = axes[2 * place], axes[2 * place + 1]
        for stripe in range(0, len(chosen), 2):
            for axis in (cost, gain):
                axis.axhspan(stripe - 0.5, stripe + 0.5, color=style.BLACK, alpha=0.04, linewidth=0)
        _costs(cost, chosen)
        _advantages(gain, chosen)
        cost.set_title(name, fontsize=10, loc="left")
    figure.legend(handles=_legend(), loc="outside upper center", ncols=6, fontsize=8)
    figure.supxlabel("\n".join(words), fontsize=8, x=0.01, ha="left")
    return figure


def _legend() -> list:
    """A mark for everything that a panel may show, whichever rows there are."""
    kinds = [
        Line2D([], [], marker=marker, markersize=4, color=colour, linewidth=1.2, label=label)
        for label, marker, colour, _ in KINDS
    ]
    bars = [Patch(label=label, **look) for label, look in BARS.items()]
    return [*kinds, Line2D([], [], linestyle="none", label="allowed by its claim", **BOUND), *bars]


def _costs(axis: Axes, rows: Sequence[Row]) -> None:
    places = [float(place) for place in range(len(rows))]
    least = 0.5
    spent = [max(row.gradients - least, 0) for row in rows]
    free, kept = BARS.values()
    for place, width, row in zip(places, spent, rows, strict=True):
        axis.barh(place, width, left=least, height=0.6, **(kept if row.secret_bytes else free))
    axis.set_yticks(places, [row.system for row in rows], fontsize=8)
    axis.set(xscale="log", xlim=(least, 50 * max(*spent, 1)), ylim=(-0.6, len(rows) - 0.4))
    axis.set_xlabel("per-record gradients of a request", fontsize=9)
    for place, row in zip(places, rows, strict=True):
        risk = "" if row.accuracy is None else f"  {row.accuracy.value:.0%} right"
        axis.text(
            0.7 + row.gradients, place, f" {row.gradients:,.0f}{risk}", va="center", fontsize=7
        )
    axis.grid(axis="y", visible=False)


def _advantages(axis: Axes, rows: Sequence[Row]) -> None:
    for kind, (_, marker, colour, shift) in enumerate(KINDS):
        for place, row in enumerate(rows):
            found, bound = row.advantages[kind], row.allowed[kind]
            axis.plot([found.low, found.high], [place + shift] * 2, color=colour, linewidth=1.2)
            axis.plot(
                [found.value],
                [place + shift],
                marker=marker,
                markersize=4,
                color=colour,
                linestyle="none",
            )
            if bound is not None:
                axis.plot([bound], [place + shift], linestyle="none", **BOUND)
    axis.axvline(0, color=style.BLACK, linewidth=0.6)
    axis.set(xlim=(-0.4, 1.05), ylim=(-0.6, len(rows) - 0.4), yticks=[])
    axis.set_xlabel("advantage against the deleted record, exact limits", fontsize=9)
    axis.grid(axis="y", visible=False)


def caption(rows: Sequence[Row]) -> str:
    """What to see, with the numbers of this run."""
    ours = [row for row in rows if row.guarantee.notion == "data-deletion"]
    beyond = [
        f"{r.system} ({r.data})" for r in ours if any(r.verdict(k) != WITHIN for k in range(3))
    ]
    claimed = (
        f"Of {len(ours)} rows that claim data-deletion all stay within their claims."
        if not beyond
        else f"NOT within the data-deletion that they claim: {', '.join(beyond)}."
    )
    return (
        f"Cost of a request, with the accuracy after it, and what an adversary learns of a deleted "
        f"record. {_caught(rows, 2, 'An adaptive requester leaves the record readable')} "
        f"{_caught(rows, 1, 'Many releases show it')} {claimed if ours else ''} Tests "
        f"thm:dp_necessary, thm:unlrn_vs_forget, tab:comparision."
    )


def _caught(rows: Sequence[Row], place: int, words: str) -> str:
    found = [row for row in rows if row.verdict(place) in SUCCESS]
    names = ", ".join(dict.fromkeys(row.system for row in found)) or "none"
    return f"{words} in {len(found)} of {len(rows)} rows: {names}."
