"""The points that a figure shows, as a table: one row for each, with named columns."""

import csv
import io
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PathCollection
from matplotlib.container import BarContainer, ErrorbarContainer
from matplotlib.figure import Figure

COLUMNS = ("panel", "x axis", "y axis", "curve", "x", "y", "x low", "x high", "y low", "y high")
NUMBERS = 6


def as_csv(figure: Figure) -> str:
    """Every point of every curve, marker and bar.

    A level across a panel has only the coordinate at which it lies. An interval is given where it
    was drawn as error bars. A curve that the legend does not name has an empty name.
    """
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(COLUMNS)
    for number, axes in enumerate(figure.axes, 1):
        head = [" ".join(text.split()) for text in (axes.get_xlabel(), axes.get_ylabel())]
        title = " ".join(axes.get_title().split())
        for curve, *numbers in _of_panel(axes):
            if any(number is not None and np.isnan(number) for number in numbers[:2]):
                continue  # an entry of the legend alone, or a value that does not exist
            name = "" if curve.startswith("_") else " ".join(curve.split())
            numbers += [None] * (NUMBERS - len(numbers))
            writer.writerow([title or number, *head, name, *map(_cell, numbers)])
    return buffer.getvalue()


def _of_panel(axes: Axes) -> Iterator[tuple[Any, ...]]:
    """(curve, x, y, then the ends of the intervals where there are any) of every point."""
    taken: set[Any] = set()
    for container in axes.containers:
        taken |= {id(artist) for artist in container.get_children()}
        if isinstance(container, ErrorbarContainer):
            yield from _with_intervals(container)
        elif isinstance(container, BarContainer):
            for bar in container.patches:
                x, y = bar.get_x() + bar.get_width() / 2, bar.get_y() + bar.get_height()
                if container.orientation == "horizontal":
                    x, y = bar.get_x() + bar.get_width(), bar.get_y() + bar.get_height() / 2
                yield str(container.get_label()), x, y
    for line in axes.lines:
        if id(line) in taken:
            continue
        x, y = np.asarray(line.get_xdata(), float), np.asarray(line.get_ydata(), float)
        label = str(line.get_label())
        # Where a coordinate is not that of the data it is a share of the panel.
        is_data = line.get_transform().contains_branch_seperately(axes.transData)
        for point in dict.fromkeys(
            tuple(value if data else None for value, data in zip(pair, is_data, strict=True))
            for pair in zip(x, y, strict=True)
        ):
            yield label, *point
    for marks in axes.collections:
        if isinstance(marks, PathCollection) and id(marks) not in taken:
            for x, y in np.asarray(marks.get_offsets(), float):
                yield str(marks.get_label()), x, y


def _with_intervals(container: ErrorbarContainer) -> Iterator[tuple[Any, ...]]:
    line, _, bars = container.lines
    if line is None:
        return
    ends: dict[int, np.ndarray] = {}
    for bar in bars:
        assert isinstance(bar, LineCollection)
        # A value that does not exist leaves a bar without ends.
        none = np.full((2, 2), np.nan)
        found = np.array([pair if len(pair) == 2 else none for pair in bar.get_segments()])
        there = found[np.isfinite(found).all(axis=(1, 2))]
        along = int(np.ptp(there, axis=1).max(axis=0, initial=0.0).argmax())
        ends[along] = found[:, :, along]
    points = zip(np.asarray(line.get_xdata()), np.asarray(line.get_ydata()), strict=True)
    for place, (x, y) in enumerate(points):
        intervals = (ends[axis][place] if axis in ends else (None, None) for axis in (0, 1))
        yield str(container.get_label()), x, y, *itertools.chain(*intervals)


def _cell(value: Any) -> str:
    return "" if value is None or np.isnan(value) else f"{float(value):.9g}"
