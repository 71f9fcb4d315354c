"""One picture per attack: what was measured, with its interval, beside what theory says.

A picture is drawn only from the rows of an `AttackResult`, as its attack's `Picture` says, so that
it shows the same numbers as the command. `make pictures` draws the pictures of docs/attacks.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dd_jax import files
from dd_jax.attacks import AttackResult, find
from dd_jax.attacks.base import Picture
from dd_jax.cli import style
from dd_jax.errors import InputError

FORMATS = ("pdf", "png", "svg")
_MARKS = ("x", "D", "s")
_COLOURS = (style.ORANGE, style.GREEN, style.RED)


def draw(result: AttackResult) -> Figure:
    """The picture of one attack's result."""
    picture = find(result.attack).picture
    height = 1.5 + 0.36 * len(result.rows) if picture.kind == "intervals" else 3.6
    figure, axes = plt.subplots(figsize=(7.2, height))
    DRAWINGS[picture.kind](axes, picture, result)
    figure.legend(loc="outside lower center", ncols=2)
    return figure


def save(result: AttackResult, path: Path) -> None:
    """Draw the result into a file whose ending names the format.

    Raises:
        InputError: the ending is not one of `FORMATS`.
    """
    check_path(path)
    figure = draw(result)
    suffix = path.suffix[1:]
    # Text stays text, and no date is written: the same numbers give the same small file.
    with plt.rc_context({"svg.fonttype": "none"}), files.whole_file(path) as file:
        metadata = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {}}
        options = {"format": suffix, "metadata": metadata[suffix]}
        figure.savefig(file, dpi=150, bbox_inches="tight", **options)
    plt.close(figure)


def check_path(path: Path) -> None:
    """Refuse a file that no picture can be written to, before anything is computed."""
    if path.suffix[1:] not in FORMATS:
        raise InputError(f"{path} does not end in .{', .'.join(FORMATS)}; give such a name.")
    if not path.parent.is_dir():
        raise InputError(f"{path.parent} is not a folder; make it first.")


def _intervals(axes: Axes, picture: Picture, result: AttackResult) -> None:
    """One line per row: the measured value with its interval, and the references as marks."""
    positions = np.arange(len(result.rows))
    _error_bars(axes, positions, result.rows, horizontal=True)
    for (column, meaning), mark, colour in zip(
        picture.references.items(), _MARKS, _COLOURS, strict=False
    ):
        values = _column(result.rows, column)
        axes.plot(values, positions, mark, color=colour, mfc="none", ms=8, mew=1.6, label=meaning)
    labels = [_label(row, picture.rows) for row in result.rows]
    axes.set_yticks(positions, labels)
    axes.set(xlabel=result.measure, ylim=(len(positions) - 0.5, -0.5))
    if picture.bound:
        axes.axvline(result.bound, color=style.BLACK, linestyle=style.DOTTED, label=picture.bound)


def _curves(axes: Axes, picture: Picture, result: AttackResult) -> None:
    """The measurement against the attack's parameter, one line per series."""
    groups = list(dict.fromkeys(row.get(picture.series, "") for row in result.rows))
    colours = (style.BLUE, style.ORANGE, style.GREEN)
    for group, colour in zip(groups, colours, strict=False):
        rows = [row for row in result.rows if row.get(picture.series, "") == group]
        where = _column(rows, picture.rows[0])
        _error_bars(axes, where, rows, label=f"measured {group}".strip(), colour=colour)
        for (column, meaning), dashes in zip(
            picture.references.items(), (style.SOLID, style.DASHED, style.DOTTED), strict=False
        ):
            shade = style.BLACK if len(groups) == 1 else colour
            label = f"{meaning}, {group}" if group else meaning
            values = _column(rows, column)
            if not np.isnan(values).all():
                axes.plot(where, values, dashes, color=shade, label=label)
    if picture.logarithmic:
        axes.set_xscale("log")
    if picture.bound:
        axes.axhline(result.bound, color=style.BLACK, linestyle=style.DOTTED, label=picture.bound)
    axes.set(xlabel=_AXES.get(picture.rows[0], picture.rows[0]), ylabel=result.measure)


def _against(axes: Axes, picture: Picture, result: AttackResult) -> None:
    """Measured against certified, one point per configuration; above the diagonal is a breach."""
    certified = _column(result.rows, picture.rows[0])
    measured = _column(result.rows, "success")
    below = measured - _column(result.rows, "low")
    axes.errorbar(
        certified,
        measured,
        yerr=[np.maximum(below, 0), np.zeros_like(below)],
        fmt="o",
        ms=3,
        color=style.BLUE,
        elinewidth=0.8,
        label="measured, down to the lower confidence bound",
    )
    ends = [0, max(certified.max(), measured.max())]
    axes.plot(ends, ends, color=style.BLACK, linestyle=style.DASHED, label="certified")
    axes.set(xlabel=f"certified {result.measure}", ylabel=f"measured {result.measure}")


def _divergences(axes: Axes, picture: Picture, result: AttackResult) -> None:
    """Rényi divergences on a logarithmic axis: what samples prove, and what was certified."""
    positions = np.arange(len(result.rows))
    proved, certified = (_column(result.rows, name) for name in picture.references)
    shown = proved > 0
    axes.plot(
        proved[shown], positions[shown], ">", color=style.BLUE, ms=9, label="proved by samples: ≥"
    )
    axes.plot(certified, positions, "x", color=style.ORANGE, ms=9, mew=2, label="certified: ≤")
    axes.set_yticks(positions, [_label(row, picture.rows) for row in result.rows])
    axes.set_xscale("log")
    axes.set(xlabel="Rényi divergence of order q", ylim=(len(positions) - 0.5, -0.5))


def _error_bars(axes, where, rows, horizontal=False, label="measured", colour=style.BLUE) -> None:
    ends = (_column(rows, name) for name in ("success", "low", "high"))
    style.error_bars(axes, where, *ends, label=label, colour=colour, horizontal=horizontal)


def _column(rows: Sequence[Mapping], name: str) -> np.ndarray:
    """A column as numbers; nothing is drawn where a row has none."""
    return np.array([np.nan if row.get(name) is None else row[name] for row in rows], dtype=float)


def _label(row: Mapping, columns: Sequence[str]) -> str:
    """The row's name: words as they are, numbers with their column."""
    parts = (row[c] if isinstance(row[c], str) else f"{c}: {row[c]:g}" for c in columns)
    return ", ".join(parts)


_AXES = {
    "deletions": "deletions of the adversary's own records",
    "step": "request i that deletes the record",
    "releases": "releases seen after the deletion",
}

DRAWINGS = {
    "intervals": _intervals,
    "curves": _curves,
    "against": _against,
    "divergences": _divergences,
}
