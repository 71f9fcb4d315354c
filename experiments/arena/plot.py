"""The picture of a comparison: what a request costs against what three adversaries get."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments import style
from experiments.arena.measure import SUCCESS, WITHIN, Row

KINDS = (
    ("(a) one release", "o", style.BLUE, 0.22),
    ("(b) many releases", "s", style.GREEN, 0.0),
    ("(c) adaptive requester", "D", style.ORANGE, -0.22),
)


def plot(rows: Sequence[Row]) -> Figure:
    """One line per system, cheapest on top: cost on the left, advantages on the right."""
    names = list(dict.fromkeys(row.data for row in rows))
    count = max(sum(row.data == name for row in rows) for name in names)
    figure, axes = style.panels(len(names), 2)
    figure.set_size_inches(10.5, len(names) * (1.2 + 0.27 * count))
    for place, name in enumerate(names):
        chosen = sorted((r for r in rows if r.data == name), key=lambda row: -row.gradients)
        cost, gain = axes[2 * place], axes[2 * place + 1]
        for stripe in range(0, len(chosen), 2):
            for axis in (cost, gain):
                axis.axhspan(stripe - 0.5, stripe + 0.5, color=style.BLACK, alpha=0.04, linewidth=0)
        _costs(cost, chosen)
        _advantages(gain, chosen)
        cost.set_title(name, fontsize=10, loc="left")
    handles, labels = axes[1].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, fontsize=9)
    return figure


def _costs(axis: Axes, rows: Sequence[Row]) -> None:
    places = [float(place) for place in range(len(rows))]
    least = 0.5
    spent = [max(row.gradients - least, 0) for row in rows]
    kept = [row.secret_bytes > 0 for row in rows]
    colours = [style.RED if secret else style.BLUE for secret in kept]
    axis.barh(places, spent, left=least, color=colours, alpha=0.6, height=0.6)
    axis.set_yticks(places, [row.system for row in rows], fontsize=8)
    axis.set(xscale="log", xlim=(least, 50 * max(*spent, 1)), ylim=(-0.6, len(rows) - 0.4))
    axis.set_xlabel("per-record gradients of a request (pink: a secret state is kept)", fontsize=9)
    for place, row in zip(places, rows, strict=True):
        risk = "" if row.accuracy is None else f"  {row.accuracy.value:.0%} right"
        axis.text(
            0.7 + row.gradients, place, f" {row.gradients:,.0f}{risk}", va="center", fontsize=7
        )
    axis.grid(axis="y", visible=False)


def _advantages(axis: Axes, rows: Sequence[Row]) -> None:
    for kind, (label, marker, colour, shift) in enumerate(KINDS):
        for place, row in enumerate(rows):
            found, bound = row.advantages[kind], row.allowed[kind]
            first = place == 0
            axis.plot([found.low, found.high], [place + shift] * 2, color=colour, linewidth=1.2)
            axis.plot(
                [found.value],
                [place + shift],
                marker=marker,
                markersize=4,
                color=colour,
                linestyle="none",
                label=label if first else None,
            )
            if bound is not None:
                axis.plot(
                    [bound],
                    [place + shift],
                    marker="|",
                    markersize=6,
                    markeredgewidth=1.6,
                    color=style.BLACK,
                    linestyle="none",
                    label="allowed by its claim" if first and kind == 0 else None,
                )
    axis.axvline(0, color=style.BLACK, linewidth=0.6)
    axis.set(xlim=(-0.4, 1.05), ylim=(-0.6, len(rows) - 0.4), yticks=[])
    axis.set_xlabel("advantage against the deleted record, exact limits", fontsize=9)
    axis.grid(axis="y", visible=False)


def caption(rows: Sequence[Row]) -> str:
    """What to see, with the numbers of this run."""
    caught = sorted({row.system for row in rows if row.verdict(2) in SUCCESS})
    ours = [row for row in rows if row.guarantee.notion == "data-deletion"]
    inside = all(row.verdict(k) == WITHIN for row in ours for k in range(3))
    return (
        f"Cost of a request and what an adversary learns of a deleted record, {len(rows)} rows. An "
        f"adaptive requester leaves the record readable in {len(caught)} systems "
        f"({', '.join(caught) or 'none'}); every row with a data-deletion certificate "
        f"{'stays within it' if inside else 'does NOT stay within it'}. "
        f"Tests thm:dp_necessary, tab:comparision."
    )
