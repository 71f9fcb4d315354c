"""The benchmark as one figure: ratios beside their targets, growth of time and of memory."""

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes

from dd_jax.cli import style
from experiments.bench.run import cell_name

MARKS = {"n": ("o", style.BLUE), "d": ("s", style.ORANGE), "seeds": ("^", style.GREEN)}
MARKS["steps"] = ("D", style.BLACK)


def draw(result: dict, path: Path) -> None:
    """Save the figure of a whole benchmark."""
    figure = style.plt.figure(figsize=(11, 8))
    grid = figure.add_gridspec(2, 2, height_ratios=(1.3, 1))
    _ratios(figure.add_subplot(grid[0, :]), result["cells"])
    if "growth" in result:
        _time(figure.add_subplot(grid[1, 0]), result["growth"])
        _memory(figure.add_subplot(grid[1, 1]), result["growth"])
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    style.plt.close(figure)


def _ratios(axes: Axes, cells: list[dict]) -> None:
    places = np.arange(len(cells))[::-1]
    axes.barh(places, [cell["gemm_ratio"] for cell in cells], color=style.BLUE, height=0.55)
    aims = [
        (place, cell["targets"]["gemm_ratio"])
        for place, cell in zip(places, cells, strict=True)
        if "gemm_ratio" in cell["targets"]
    ]
    if aims:
        where, least = zip(*aims, strict=True)
        axes.plot(least, where, "|", ms=20, mew=2, color=style.ORANGE, label="asked for")
        # Above the bars: within them it would cover some, and its mark would pass for one more.
        axes.legend(loc="lower right", bbox_to_anchor=(1, 1), borderaxespad=0.2, markerscale=0.5)
    axes.set_yticks(places, [cell_name(cell) for cell in cells], fontsize=8)
    axes.set_xlabel("useful operations per second, over the matrix product's")
    axes.grid(axis="y", visible=False)


def _time(axes: Axes, growth: dict) -> None:
    for axis, found in growth.items():
        marker, colour = MARKS[axis]
        sizes, seconds = np.array(found["sizes"]), np.array(found["seconds"])
        label = f"{axis}: exponent {found['time_exponent']:.2f}"
        axes.loglog(
            sizes / sizes[0], seconds / seconds[0], marker=marker, color=colour, label=label
        )
    axes.loglog([1, 10], [1, 10], style.DOTTED, color="grey", label="linear")
    axes.set_xlabel("size over the smallest")
    axes.set_ylabel("time over the smallest's")
    axes.legend(fontsize=8)


def _memory(axes: Axes, growth: dict) -> None:
    for axis, found in growth.items():
        marker, colour = MARKS[axis]
        sizes = np.array(found["sizes"])
        held, bound = (np.array(found[key]) / 1e6 for key in ("bytes", "formula_bytes"))
        axes.loglog(sizes / sizes[0], held, marker=marker, color=colour, label=axis)
        axes.loglog(sizes / sizes[0], bound, style.DASHED, color=colour)
    axes.set_xlabel("size over the smallest")
    axes.set_ylabel("MB held (dashed: the formula)")
    axes.legend(fontsize=8)
