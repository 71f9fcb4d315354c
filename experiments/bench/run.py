"""The benchmark: every cell, the ratios of whole streams, growth; and the record of past runs."""

import json
import platform
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax

import dd_jax as dd
from experiments.bench import cells, forms, streams


def benchmark(*, cores: int, quick: bool, progress: Callable[[str], None] = print) -> dict:
    """Measure; returns the JSON object that `dd-jax bench --json` prints.

    Args:
        cores: cores that the process is pinned to; with more than one, seeds are spread over as
            many devices.
        quick: the kernel's cells alone.
        progress: told what is being measured.
    """
    progress("measuring the matrix product …")
    gemm = forms.gemm_rate()
    result: dict[str, Any] = {"gemm_gflops": gemm / 1e9, "cores": cores, "cells": []}
    if cores > 1:
        progress(f"seeds over {cores} devices …")
        result["sharded_gemm_ratio"] = sharded(gemm, cores)
        return result
    for setting in cells.SETTINGS:
        progress(f"n = {setting.n:,}, d = {setting.d}, {setting.seeds:,} seeds …")
        result["cells"].append(asdict(cells.measure(setting, gemm, cores)))
    if not quick:
        progress("pairs, multiplicities, streams …")
        result["ratios"] = streams.ratios()
        progress("growth …")
        result["growth"] = streams.growth()
    return result


def sharded(gemm: float, cores: int, n: int = 10_000, d: int = 50, seeds: int = 1024) -> float:
    """Useful flop rate of noisy steps with seeds spread over devices, over all cores' GEMM."""
    steps = 20
    database, _ = forms.logistic_inputs(n, d, 1)
    schedule = dd.noisy_gd.Schedule(forms.STEP_SIZE, forms.NOISE, 1.0, steps, 0)
    learn = dd.noisy_gd.mechanism(forms.logistic_problem(), schedule).learn
    mesh = dd.sharding.make_mesh(cores)

    def run():
        return dd.over_seeds(learn, jax.random.key(0), seeds, database, mesh=mesh)

    return 4 * n * d * seeds * steps / forms.best_time(run, repeats=5) / gemm


def remember(path: Path, result: dict) -> dict | None:
    """Add a result to the record of past runs; returns the last one with the same cores."""
    past = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    same = [entry for entry in past if entry["cores"] == result["cores"]]
    entry = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": platform.machine(),
        "versions": {name: version(name) for name in ("dd-jax", "jax", "jaxlib", "numpy")},
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(entry | result) + "\n")
    return same[-1] if same else None
