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

# A number this far worse than the median of past runs is a regression; two runs of the same code on
# a shared machine mostly differ by less.
WORSE = 0.15
PAST_RUNS = 5


def benchmark(
    *, quick: bool, with_cells: tuple[dict, ...] = (), progress: Callable[[str], None] = print
) -> dict[str, Any]:
    """Measure on one core; returns the JSON object that `bench --json` prints.

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


def costs_of(result: dict) -> dict[str, float]:
    """Every cost of a stream and all memory, by name; smaller is better."""
    streams_cost = {
        # An overhead near zero has no share to grow by; the whole request has.
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

    A line that was cut off, or is none of ours, is passed over.
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
