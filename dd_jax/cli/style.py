"""One style for all figures: colours for colour-blind readers, dashes for print in grey."""

import io
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure, SubFigure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

# Okabe and Ito's palette.
BLUE, ORANGE, GREEN, RED, BLACK = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#222222"
SOLID, DASHED, DOTTED = "-", "--", ":"

_RC: Any = {
    "font.size": 10,
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "legend.frameon": False,
    "figure.constrained_layout.use": True,
    "svg.hashsalt": "dd_jax",
}
plt.rcParams.update(_RC)


def panels(rows: int, columns: int, *, height: float = 3.4) -> tuple[Figure, list[Axes]]:
    """A figure with rows × columns panels, 5 by `height` inches, flattened in reading order."""
    figure, axes = plt.subplots(rows, columns, figsize=(5 * columns, height * rows), squeeze=False)
    return figure, list(axes.ravel())


def three_panels(*, height: float) -> tuple[Figure, list[Axes], Axes]:
    """Three panels of 5 by `height` inches, and an empty place for a legend beside the third.

    Three in one row would be too small in a column of a paper.
    """
    figure, (*three, place) = panels(2, 2, height=height)
    place.axis("off")
    return figure, three, place


def rows(count: int, *, height: float) -> tuple[Figure, list[SubFigure]]:
    """A figure of rows, 10 by `height` inches, whose panels need not line up with each other."""
    figure = plt.figure(figsize=(10, height * count))
    return figure, list(figure.subfigures(count, 1, squeeze=False)[:, 0])


def line(
    axes: Axes,
    where,
    value,
    label: str | None = None,
    colour: str = BLACK,
    dashes: Any = SOLID,
    **look: Any,
) -> None:
    """A curve, or a level across the panel where `where` is None."""
    look |= {"color": colour, "linestyle": dashes, "label": label}
    if where is None:
        axes.axhline(float(value), **look)
    else:
        axes.plot(where, value, **look)


def error_bars(
    axes: Axes,
    where,
    value,
    low,
    high,
    *,
    label: str | None = None,
    colour: str = BLUE,
    marker: str = "o",
    horizontal: bool = False,
) -> None:
    """Measured values with their intervals, along the x axis or (`horizontal`) the y axis."""
    value = np.asarray(value, float)
    # A point estimate may lie a rounding error outside its interval.
    spread = np.maximum([value - low, high - value], 0)
    arguments = (value, where) if horizontal else (where, value)
    error: Any = {"xerr" if horizontal else "yerr": spread}
    axes.errorbar(*arguments, **error, fmt=marker, ms=5, color=colour, capsize=3, label=label)


def plain_numbers(axis: Axis) -> None:
    """Tick labels 0.01, 0.1, 1 on a logarithmic axis, where it has few decades."""
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def legend_of_all(figure: Figure | SubFigure, first: Axes, columns: int) -> None:
    """One legend under panels that all show what the first one shows."""
    handles, labels = first.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, fontsize=9)


def plain_log_ticks(axis: Axis) -> None:
    """Ticks at 1, 2 and 5 of every decade of a logarithmic axis, written as plain numbers."""
    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter(NullFormatter())


def legend_in(place: Axes, panel: Axes) -> None:
    """The legend of a panel in the empty place of `three_panels`."""
    place.legend(*panel.get_legend_handles_labels(), loc="center left")


def legend_below(axes: Axes, columns: int = 2) -> None:
    """A legend under the panel, where it covers nothing."""
    axes.legend(fontsize=9, ncols=columns, loc="upper center", bbox_to_anchor=(0.5, -0.17))


def drawn(figure: Figure, suffix: str) -> bytes:
    """The figure as the contents of a file (svg, pdf or png); the same figure, the same bytes."""
    # Dates would make the same run write different bytes.
    metadata: Any = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {}}[suffix]
    buffer = io.BytesIO()
    figure.savefig(buffer, format=suffix, dpi=150, metadata=metadata)
    return buffer.getvalue()
