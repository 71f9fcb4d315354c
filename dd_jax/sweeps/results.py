"""A grid of losses, budgets and requesters on one data set: one row for every setting.

`deletions` plans, runs and judges the grid. `Results` are its rows: what was asked, planned and
certified, and the means over seeds with their intervals. `results.csv` has the same rows and
columns; `results.npz` has every column as an array, and what each seed gave.
"""

import csv
import io
import math
import re
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple, get_args

import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array

from dd_jax import checks, files, losses, sharding
from dd_jax.constants import CATALOGUE, PRECISIONS
from dd_jax.ensemble import DEFAULT_CHUNK
from dd_jax.errors import InputError
from dd_jax.intervals import check_confidence, mean_over_seeds, simultaneous
from dd_jax.sweeps import deletion, runner
from dd_jax.sweeps.deletion import Answer, Outcome, PlannedRun, Question, RequesterName

PLANNED = ("accountant", "step_size", "noise_variance", "learn_steps", "delete_steps")
CERTIFIED = (
    "eps_dp",
    "eps_dd",
    "eps_dd_adaptive",
    "eps_dd_null",
    "eps_dd_null_adaptive",
    "advantage_bound",
    "risk_bound_learned",
    "risk_bound_request",
)
MEASURED = Outcome._fields[:-1]
_BOUNDS = {"risk_learned": "risk_bound_learned", "risk_edited": "risk_bound_request"}


class Results(NamedTuple):
    """What a sweep found.

    Attributes:
        rows: for every setting its columns by name. Budgets that were asked for end in "_asked",
            the limits of an interval in "_low" and "_high"; None where there is no number.
        by_seed: what each seed gave, (settings, seeds) for every measured column; NaN for settings
            that were refused.
    """

    rows: list[dict[str, Any]]
    by_seed: dict[str, np.ndarray]

    @property
    def above_bound(self) -> list[dict[str, Any]]:
        """The rows whose mean risk is above its certified bound by more than chance explains."""
        return [
            row
            for row in self.rows
            for name, bound in _BOUNDS.items()
            if None not in (row[f"{name}_low"], row[bound]) and row[f"{name}_low"] > row[bound]
        ]

    def save(self, folder: Path | str) -> list[str]:
        """Write results.csv and results.npz into a folder; returns their paths."""
        folder = Path(folder)
        table = io.StringIO()
        writer = csv.DictWriter(table, list(self.rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.rows)
        arrays: dict[str, Any] = {name: _column(self.rows, name) for name in self.rows[0]}
        arrays |= {f"{name}_by_seed": values for name, values in self.by_seed.items()}
        packed = io.BytesIO()
        np.savez(packed, **arrays)
        contents = {"results.csv": table.getvalue().encode(), "results.npz": packed.getvalue()}
        return files.place_together(folder, "results", contents)


def _column(rows: list[dict[str, Any]], name: str) -> np.ndarray:
    """A column without Python objects: None is NaN among numbers, and empty among words."""
    values = [row[name] for row in rows]
    if any(isinstance(value, str) for value in values):
        return np.array(["" if value is None else value for value in values])
    if None in values:
        return np.array([np.nan if value is None else value for value in values])
    return np.array(values)


def deletions(
    key: Array,
    records: Any,
    *,
    seeds: int = 100,
    confidence: float = 0.95,
    results: Path | None = None,
    chunk: int = DEFAULT_CHUNK,
    resume: bool = True,
    mesh: Mesh | None = None,
    name: str | None = None,
    progress: Callable[[int], AbstractContextManager[runner.Progress | None]] | None = None,
    **axes: Any,
) -> Results:
    """Plan every setting of a grid; learn, serve deletions and judge the releases, over seeds.

    Args:
        key: of all runs.
        records: a data set with `train` and `test`, of `dd.data.load` or
            `dd.data.own_file.load_file`.
        seeds: runs of every setting, at least 2.
        confidence: of all intervals together.
        results: folder for chunks of seeds, so that a killed sweep can continue; None keeps none.
        chunk: runs in memory at once. resume: whether chunks of an earlier sweep are used.
        mesh: devices that share seeds and rows.
        name: of the data set.
        progress: from the number of settings that are run to a context with a report of
            (runs done, all runs).
        **axes: fields of `Question` that are not at their default, each a value or several of them;
            several span a grid. `n` takes the first n training records.

    Raises:
        InputError: a field, value or record that cannot be used, or no setting that has a plan;
            before anything is run.
    """
    check_confidence(confidence)
    checks.whole("seeds", seeds, least=2)
    named: str = getattr(records, "name", "records") if name is None else name
    questions = _questions(named, records, axes, mesh)
    made: dict[tuple, tuple] = {}

    def arguments(setting: Any) -> tuple:
        """The records as the setting's loss takes them, checked on the host."""
        form = (setting.n, setting.loss, setting.intercept)
        if form not in made:
            parts = deletion.first_records(records, setting.n)
            train, test = (deletion.records_for(setting, part) for part in parts)
            losses.check_data(deletion.problem_of(setting).loss, train)
            made[form] = sharding.spread(train, mesh), test
        return made[form]

    def run(settings: list[PlannedRun]) -> list:
        for setting in settings:
            arguments(setting)
        word = re.sub(r"[^\w.+=-]+", "-", named)
        stream = runner.Stream(results, word, {}, chunk, resume, mesh)
        with nullcontext() if progress is None else progress(len(settings)) as tick:
            return runner.run(
                stream,
                deletion.judged,
                key,
                seeds,
                settings,
                traced=deletion.TRACED,
                arguments=arguments,
                at_once=1,  # side by side, all settings would take the steps of the longest
                progress=tick,
            )

    found = deletion.answers(questions, run, seeds=seeds, at_once=chunk)
    return _table(found, confidence, seeds, getattr(records, "caveat", ""))


def _questions(name: str, records: Any, axes: dict[str, Any], mesh: Mesh | None) -> list[Question]:
    """Every combination of the axes, refused as a whole where one of them cannot be run."""
    most, dim = records.train.features.shape
    base = Question(data=name, n=most, dim=dim, order=None if "delta" in axes else 2.0)
    for field in ("data", "dim"):
        if field in axes:
            raise InputError(f"{field} is that of the records; leave it out.")
    found = runner.grid(base, **{field: _several(values) for field, values in axes.items()})
    known = get_args(RequesterName)
    split = mesh is not None and mesh.shape[sharding.DATA] > 1
    for asked in found:
        checks.choice("loss", asked.loss, CATALOGUE)
        checks.choice("precision", asked.precision, PRECISIONS)
        checks.choice("requester", asked.requester, known)
        checks.whole("n", asked.n, least=2, most=most)
        checks.whole("requests", asked.requests, least=1)
        checks.whole("edits_per_request", asked.edits_per_request, least=1)
        checks.whole("adaptivity", asked.adaptivity, most=asked.requests)
        deleted = asked.requests * asked.edits_per_request
        if deleted > asked.n - 2:
            raise InputError(
                f"{asked.requests} requests of {asked.edits_per_request} delete {deleted} records, "
                f"but at most {asked.n - 2} of {asked.n} may go; give fewer requests."
            )
        if split and asked.requester != "in_order":
            raise InputError(
                f"the requester {asked.requester} looks at all rows, which the mesh splits; give a "
                f"mesh that has seeds only, or the requester in_order."
            )
    return found


def _several(values: Any) -> Sequence[Any]:
    """An axis of one value or of several."""
    return values if isinstance(values, list | tuple | range) else (values,)


def _table(answers: list[Answer], confidence: float, seeds: int, caveat: str) -> Results:
    by_seed = {
        name: np.array(
            [
                np.full(seeds, np.nan) if a.outcome is None else getattr(a.outcome, name)
                for a in answers
            ]
        )
        for name in Outcome._fields
    }
    # Refused settings have no interval, nor do risks of losses that are not convex.
    intervals = sum(np.isfinite(by_seed[name]).all(axis=1).sum() for name in MEASURED)
    each = simultaneous(confidence, max(int(intervals), 1))
    rows = [
        _row(answer, {name: by_seed[name][place] for name in by_seed}, each) | {"caveat": caveat}
        for place, answer in enumerate(answers)
    ]
    return Results(rows, by_seed)


def _row(answer: Answer, by_seed: dict[str, np.ndarray], confidence: float) -> dict[str, Any]:
    """Every column of a setting, the same columns whether it was run or refused."""
    asked, plan, certificate = answer.question, answer.plan, answer.certificate
    row: dict[str, Any] = {
        f"{name}_asked" if name.startswith("eps") else name: value
        for name, value in asdict(asked).items()
    }
    row |= {"seeds": len(by_seed["outside"]), "refused": answer.refused}
    row["parameters"] = None if plan is None else plan.dim
    # What was asked for stays where there is no plan.
    row |= {name: getattr(plan, name, row.get(name)) for name in PLANNED}
    row |= {name: getattr(certificate, name, None) for name in CERTIFIED}
    row["learn_gradients"] = None if plan is None else plan.learn_gradients
    row["request_gradients"] = None if plan is None else plan.delete_gradients
    row["retraining_ratio"] = None if plan is None else plan.learn_steps / plan.delete_steps
    for name in MEASURED:
        mean = low = high = None
        if np.isfinite(by_seed[name]).all():
            least = -math.inf if name.startswith("objective") else 0.0
            most = 1.0 if name.startswith("accuracy") else math.inf
            found = mean_over_seeds(by_seed[name], confidence, least=least, most=most)
            mean, low, high = map(float, found)
        row |= {name: mean, f"{name}_low": low, f"{name}_high": high}
    row["outside"] = None if plan is None else int(by_seed["outside"].max())
    return row
