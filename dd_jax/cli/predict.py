"""`dd-jax predict`: classes of new rows, by a model that `dd-jax run --save` released."""

import csv
import io
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro

from dd_jax.cli import options
from dd_jax.cli.options import MaybePath, MaybeText, Switch
from dd_jax.cli.output import print_json, say


@dataclass(frozen=True)
class Config:
    """Which classes does a released model give new rows?

    Writes one line of CSV for every row: its number, its id if there is one, the class, and the
    score of the second class (positive: that class) or the scores of all classes (the largest
    decides). Rows are encoded exactly as those of the training were; columns that the model does
    not use are left out. Where the data have labels, the accuracy is said too.

    Train, keep the released model, and use it:
        dd-jax run --data my.csv --label bought --id customer --save out
        dd-jax predict out/model.npz --data new.csv > classes.csv
    """

    model: tyro.conf.Positional[Annotated[Path, tyro.conf.arg(metavar="MODEL")]]
    """The file model.npz that a run saved."""
    data: str
    """A CSV or NPZ file, or the task of `dd-jax data` that the model was learned on: then its
    held-out rows are taken."""
    label: MaybeText = None
    """Column or array with the true classes; that of the training, if the file has it."""
    id: MaybeText = None
    """Column or array that says whose a row is; that of the training, if the file has it."""
    save: MaybePath = None
    """File to write the CSV to, instead of standard output."""
    json: Switch = False
    """Print one JSON object."""


def main(config: Config) -> int:
    """Predict and print; returns the exit status."""
    from dd_jax import files  # here and below, so that help does not wait for JAX
    from dd_jax.data import models

    if config.save is not None:
        options.require_folder("--save", config.save.parent)
    model = models.load(config.model)
    found = models.predict(model, _rows(config, model))
    for text in model.warnings:
        say(textwrap.fill(f"WARNING: {text}.", 80, subsequent_indent="  "))
    if found.unknown:
        say(f"{found.unknown:,} texts are no category of the training rows; they count as none.")
    values = {
        "model": str(config.model),
        "data": config.data,
        "rows": len(found.label),
        "classes": model.classes,
        "accuracy": found.accuracy,
        "unknown_texts": found.unknown,
        "warnings": model.warnings,
    }
    if config.json:
        print_json(values | {"predictions": list(lines_of(model, found))})
    if config.save is not None:
        files.place(config.save, as_csv(model, found).encode())
    elif not config.json:
        sys.stdout.write(as_csv(model, found))
    if found.accuracy is not None and found.true is not None:
        larger = np.unique(found.true, return_counts=True)[1].max() / len(found.label)
        say(
            f"accuracy {found.accuracy:.4f} on {len(found.label):,} rows; the same answer for all "
            f"of them {larger:.4f}"
        )
    return 0


def _rows(config: Config, model: Any) -> Any:
    """The rows of a file, or the held-out rows of the model's task."""
    from dd_jax.data import TASKS, load, models
    from dd_jax.data.tables import Table

    if config.data in TASKS and model.encoding.prepared:
        test = load(config.data).test
        label = np.array([f"{value:g}" for value in np.asarray(test.label)])
        numbers = np.asarray(test.features, np.float64)
        return Table(model.encoding.numbers, numbers, {}, label)
    return models.read_rows(model, Path(config.data), label=config.label, ids=config.id)


def lines_of(model: Any, found: Any):
    """A dictionary for every row."""
    two = len(model.classes) == 2
    names = ["score"] if two else [f"score {name}" for name in model.classes]
    scores = found.scores[:, None] if two else found.scores
    for row, (label, numbers) in enumerate(zip(found.label, scores, strict=True)):
        whose = {} if found.ids is None else {"id": str(found.ids[row])}
        yield {"row": row, **whose, "class": str(label)} | {
            name: float(f"{number:.6g}") for name, number in zip(names, numbers, strict=True)
        }


def as_csv(model: Any, found: Any) -> str:
    """The predictions as a table with a header."""
    text, lines = io.StringIO(newline=""), list(lines_of(model, found))
    writer = csv.DictWriter(text, list(lines[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return text.getvalue()
