"""The benchmark: every cell, the ratios of whole streams, growth; and the record of past runs."""

import json
import platform
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from experiments.bench import cells, streams, two_cores
from experiments.bench.growth import growth

# A ratio this far below the median of past runs is a regression; two runs of the same code on a
# shared machine differ by less.
FALL = 0.15
PAST_RUNS = 5


def benchmark(
    *, quick: bool, with_cells: tuple[dict, ...] = (), progress: Callable[[str], None] = print
) -> dict[str, Any]:
    """Measure on one core; returns the JSON object that `dd-jax bench --json` prints.

    Args:
        quick: the kernel's cells alone.
        with_cells: cells of another process, to stand behind those of this one.
        progress: told what is being measured.
    """
    measured = []
    for setting in cells.SETTINGS:
        progress(f"n = {setting.n:,}, d = {setting.d}, {setting.seeds:,} seeds …")
        measured.append(asdict(cells.measure(setting)))
    result: dict[str, Any] = {"cells": [*measured, *with_cells]}
    if not quick:
        progress("pairs, multiplicities, streams …")
        result["ratios"] = streams.ratios()
        progress("growth …")
        result["growth"] = growth()
    return result


def sharded(cores: int) -> dict[str, Any]:
    """The cell that spreads its seeds over several cores; a process of its own measures it."""
    return {"cells": [asdict(two_cores.measure(cores))]}


def cell_name(cell: dict) -> str:
    """A cell's setting in words."""
    cores = f", {cell['cores']} cores" if cell["cores"] > 1 else ""
    return f"{cell['loss']}, n={cell['n']:,}, d={cell['d']}, S={cell['seeds']:,}{cores}"


def ratios_of(result: dict) -> dict[str, float]:
    """Every ratio to another way of the same run, by name; larger is better."""
    return {
        f"{key}: {cell_name(cell)}": value
        for cell in result["cells"]
        for key, value in cell.items()
        if key.endswith("_ratio") and value is not None
    }


def past_runs(path: Path) -> list[dict]:
    """What was kept of earlier runs on this kind of machine, oldest first."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    entries = [json.loads(line) for line in lines]
    return [entry for entry in entries if entry["machine"] == platform.machine()]


def regressions(result: dict, past: list[dict]) -> dict[str, dict[str, float]]:
    """Ratios that fell by more than 15% below the median of the last five runs that have them."""
    fallen = {}
    for name, now in ratios_of(result).items():
        before = [ratios_of(entry)[name] for entry in past if name in ratios_of(entry)]
        usual = float(np.median(before[-PAST_RUNS:])) if before else now
        if now < (1 - FALL) * usual:
            fallen[name] = {"now": now, "before": usual}
    return fallen


def remember(path: Path, result: dict) -> None:
    """Add a result to the record of past runs."""
    entry = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": platform.machine(),
        "versions": {name: version(name) for name in ("dd-jax", "jax", "jaxlib", "numpy")},
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(entry | result) + "\n")
