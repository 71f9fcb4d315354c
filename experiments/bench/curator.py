"""The life of a store: what a deletion costs beside its steps, at first and after a thousand."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

import dd_jax as dd
from dd_jax.curator.service import Curator
from dd_jax.data import models
from dd_jax.data.encoding import Bounds
from dd_jax.data.own_file import load_file
from dd_jax.plans.settings import Arithmetic
from experiments.bench import kernel

# The first and the last so many deletions are compared.
WINDOW = 100


def life(
    folder: Path,
    arithmetic: Arithmetic,
    *,
    rows: int = 20_000,
    columns: int = 30,
    single: int = 1_000,
    runs: int = 10,
    owners: int = 100,
    say: Callable[[str], None] = print,
) -> dict[str, Any]:
    """Deletions one by one, then runs for many owners at once; seconds are of the processor.

    Args:
        folder: an empty one, for the file of records and the store.
        arithmetic: of the store's runs.
        rows, columns: of the file, which are all learned.
        single: deletions of one owner each, all served at once.
        runs, owners: runs after them, and the owners that each deletes together.
        say: told how far it is.
    """
    path = folder / f"{arithmetic}.store"
    names = _write_table(folder / "rows.npz", rows, columns)
    data = load_file(
        folder / "rows.npz", ids="id", bounds=Bounds(unit_rows=True), test_fraction=0.0
    )
    budgets = {"eps_dp": 1.0, "eps_dd": 0.1, "edits_per_request": owners, "ids": "id"}
    with dd.curator.create(path, data, arithmetic=arithmetic, **budgets) as curator:
        steps = steps_alone(curator)
        one_by_one, memory = [], []
        for place in range(single):
            begun = time.process_time()
            curator.delete([names[place]], now=True)
            one_by_one.append(time.process_time() - begun)
            memory.append(_megabytes())
            if (place + 1) % WINDOW == 0:
                say(f"{arithmetic}: {place + 1:,} of {single:,} deletions")
        together = []
        for place in range(single, single + runs * owners, owners):
            begun = time.process_time()
            curator.delete(names[place : place + owners].tolist(), now=True)
            together.append(time.process_time() - begun)
        _check_model(curator, folder)
    begun = time.process_time()
    with dd.curator.open(path) as curator:
        opened = time.process_time() - begun
        problems = curator.verify().problems
    if problems:
        raise RuntimeError(f"the store does not hold: {problems[0]}")
    first, last = one_by_one[:WINDOW], one_by_one[-WINDOW:]
    return {
        "steps": steps,
        "first": float(np.median(first)),
        "last": float(np.median(last)),
        "last_over_first": float(np.median(last) / np.median(first)),
        "run_of_many": float(np.median(together)),
        "memory_first": max(memory[:WINDOW]),
        "memory_last": memory[-1],
        "store": path.stat().st_size / 1e6,
        "open": opened,
        "verify": time.process_time() - begun - opened,
    }


def steps_alone(curator: Curator) -> float:
    """The steps of one request, with nothing stored or certified."""
    mechanism, state = curator.mechanism, curator._refresh().curator
    delete = jax.jit(mechanism.delete)
    edit = dd.deletion(curator.problem.loss, state.database, [0])
    after, key = dd.apply_edit(state.database, edit), dd.secret_key()
    arguments = (key, state.database, edit, after, state.params)
    return kernel.best_times({"steps": lambda: delete(*arguments)})["steps"]


def _write_table(path: Path, rows: int, columns: int) -> np.ndarray:
    """Invented rows, an owner for each; returns their ids."""
    rng = np.random.default_rng(0)
    features = rng.normal(size=(rows, columns)).astype(np.float32)
    label = np.where(features[:, 0] + rng.normal(size=rows) > 0, "yes", "no")
    names = np.array([f"C{number}" for number in range(rows)])
    np.savez(path, features=features, label=label, id=names)
    return names


def _check_model(curator: Curator, folder: Path) -> None:
    """The exported model predicts what the store does."""
    (folder / "model.npz").write_bytes(curator.model().pack())
    exported = models.load(folder / "model.npz")
    table = models.read_rows(exported, folder / "rows.npz", label=None, ids="id")
    ours, theirs = curator.predict(table), models.predict(exported, table)
    if not np.array_equal(ours.label, theirs.label):
        raise RuntimeError("the exported model predicts other classes than the store")


def _megabytes() -> float:
    """Memory of this process that is in use now."""
    text = Path("/proc/self/status").read_text(encoding="utf-8")
    return int(text.split("VmRSS:")[1].split()[0]) / 1e3
