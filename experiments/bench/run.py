"""The whole benchmark: cells, streams and growth; the record of past runs; one figure of it."""

import json
import platform
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from dd_jax import files
from dd_jax.cli import style
from experiments.bench import kernel, streams

# A number this much worse than the median of past runs is a regression. Two runs of the same code
# on a shared machine mostly differ by less.
WORSE = 0.15
PAST_RUNS = 5


def benchmark(
    *, quick: bool, with_cells: tuple[dict, ...] = (), progress: Callable[[str], None] = print
) -> dict[str, Any]:
    """Measure on one core; returns the JSON object that `bench --json` prints.

    Args:
        quick: the kernel's cells alone.
        with_cells: cells measured by another process, listed after those of this one.
        progress: told what is being measured.
    """
    measured = []
    for work in kernel.WORKLOADS:
        progress(f"n = {work.n:,}, d = {work.d}, {work.seeds:,} seeds …")
        measured.append(asdict(kernel.measure(work)))
    result: dict[str, Any] = {"cells": [*measured, *with_cells]}
    if not quick:
        progress("pairs, multiplicities, streams …")
        result["ratios"] = streams.ratios()
        progress("growth …")
        result["growth"] = kernel.growth()
    return result


def sharded(cores: int) -> dict[str, Any]:
    """The cell that spreads its seeds over several cores; a process of its own measures it."""
    return {"cells": [asdict(kernel.measure_sharded(cores))]}


def cell_name(cell: dict) -> str:
    """A cell's setting in words."""
    cores = f", {cell['cores']} cores" if cell["cores"] > 1 else ""
    return f"{cell['loss']}, n={cell['n']:,}, d={cell['d']}, S={cell['seeds']:,}{cores}"


def ratios_of(result: dict) -> dict[str, float]:
    """Every speed ratio by name; larger is better."""
    return {
        f"{key}: {cell_name(cell)}": value
        for cell in result["cells"]
        for key, value in cell.items()
        if key.endswith("_ratio") and value is not None
    }


def costs_of(result: dict) -> dict[str, float]:
    """Every cost of a stream and all memory, by name; smaller is better."""
    streams_cost = {
        # A relative change of an overhead near zero means nothing; compare whole requests instead.
        name: 1 + value if name.startswith("request_overhead") else value
        for name, value in result.get("ratios", {}).items()
    }
    return streams_cost | {
        f"peak_bytes: {cell_name(cell)}": cell["peak_bytes"]
        for cell in result["cells"]
        if cell["peak_bytes"] is not None
    }


def machine() -> str:
    """The kind of processor, as far as the system names it."""
    names = Path("/proc/cpuinfo")
    lines = names.read_text(encoding="utf-8").splitlines() if names.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{platform.machine()} {models[0] if models else platform.processor()}".strip()


def past_runs(path: Path) -> list[dict]:
    """What was kept of earlier runs on this kind of machine, oldest first.

    Lines that are cut off or have another format are skipped.
    """
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    entries = [entry for entry in map(_entry, lines) if entry.get("machine") == machine()]
    return [entry for entry in entries if isinstance(entry.get("cells"), list)]


def _entry(line: str) -> dict:
    try:
        found = json.loads(line)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def regressions(result: dict, past: list[dict]) -> dict[str, dict[str, float]]:
    """Numbers that are worse by more than 15% than the median of the last five runs with them."""
    found = {}
    for numbers, sign in ((ratios_of, 1), (costs_of, -1)):
        for name, now in numbers(result).items():
            before = [numbers(entry)[name] for entry in past if name in numbers(entry)]
            usual = float(np.median(before[-PAST_RUNS:])) if before else now
            if sign * now < sign * (1 - sign * WORSE) * usual:
                found[name] = {"now": now, "before": usual}
    return found


def remember(path: Path, result: dict) -> None:
    """Add a result to the record of past runs."""
    entry = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "versions": {name: version(name) for name in ("dd-jax", "jax", "jaxlib", "numpy")},
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(entry | result) + "\n")


# --- the figure -----------------------------------------------------------------------------------

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
    with files.whole_file(path) as file:
        figure.savefig(file, format=path.suffix[1:] or "png", dpi=130)
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
        # The legend goes above the bars: inside, it would hide some, and look like another bar.
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
