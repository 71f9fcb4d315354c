"""A store of invented people, made once; tests work on copies of it."""

import functools
import shutil
import sqlite3
import tempfile
from pathlib import Path

import numpy as np

import dd_jax as dd
from dd_jax.data import models
from dd_jax.data.encoding import Bounds
from dd_jax.data.own_file import load_file

BOUNDS = Bounds(ranges={"age": (0.0, 120.0), "income": (0.0, 100.0), "city": ("Bern", "Rome")})
PEOPLE, TWICE = 48, 6  # the first six have two rows
HEADER = "who,age,income,city,bought\n"


def lines(people=PEOPLE, twice=TWICE):
    """Lines of a file; nobody's values are anybody else's."""
    rng = np.random.default_rng(0)
    for row in range(people + twice):
        who = row if row < people else row - people
        age, income = rng.uniform(18, 90), rng.uniform(0, 100)
        city, bought = ("Bern", "Rome")[row % 2], ("no", "yes")[int(age / 90 + income / 100 > 1)]
        yield f"P{who},{age:.4f},{income:.4f},{city},{bought}\n"


@functools.cache
def _made():
    folder = Path(tempfile.mkdtemp())
    (folder / "people.csv").write_text(HEADER + "".join(lines()))
    data = load_file(folder / "people.csv", label="bought", ids="who", bounds=BOUNDS)
    budgets = {"eps_dp": 4.0, "eps_dd": 1.0, "edits_per_request": 3, "batches": 2}
    budgets["arithmetic"] = "fast"  # compiled sooner
    names = {"label": "bought", "ids": "who"}
    dd.curator.create(folder / "a.store", data, spare=2, **budgets, **names).close()
    training = sorted({str(data.ids[row]) for row in data.rows}, key=lambda name: int(name[1:]))
    held_out = sorted({str(data.ids[row]) for row in data.held_out})
    shutil.rmtree(Path(folder / "people.csv"), ignore_errors=True)
    return folder / "a.store", training, held_out


def people():
    """Ids of training records (some with two rows come first), and held-out ids."""
    return _made()[1:]


def store_in(folder):
    """A copy of the store."""
    return Path(shutil.copy(_made()[0], folder / "copy.store"))


def curator_in(folder, **options):
    """An open copy of the store."""
    return dd.curator.open(store_in(folder), **options)


def table(curator, folder, *rows):
    """Rows as a table: (id, age, income, city, bought)."""
    path = folder / "rows.csv"
    path.write_text(HEADER + "".join(",".join(map(str, row)) + "\n" for row in rows))
    return models.read_rows(curator.reader(), path, label=None, ids=None)


def contents(path):
    """All rows of all tables."""
    with sqlite3.connect(path) as connection:
        return list(connection.iterdump())
