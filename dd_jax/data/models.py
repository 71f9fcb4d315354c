"""A released model that one can take away: weights, encoding of the columns, certificate.

It holds what was published and nothing else: no record, no id, no unrounded state (`dd.save` keeps
those for the curator). Ranges and categories that were measured on the records are in its encoding.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dd_jax import sealed
from dd_jax.data.encoding import Encoding
from dd_jax.data.tables import Table, closest, header_of, read_csv, read_npz
from dd_jax.errors import InputError
from dd_jax.plans import Certificate

FORMAT = 1
_KIND = "released model"


@dataclass(frozen=True)
class Model:
    """A published linear model, and what is needed to use it and to judge it.

    Attributes:
        weights: d numbers for two classes, else d × C; the last of d is the intercept, if any.
        encoding: the map from columns to features.
        classes: names of the classes, in the order of their labels.
        intercept: whether a constant 1 is appended to the features.
        label, ids: names of the columns that held the label and the ids, or None.
        certificate: what was certified, as JSON; `dd.Certificate.from_json` reads it.
    """

    weights: np.ndarray
    encoding: Encoding
    classes: tuple[str, ...]
    intercept: bool
    label: str | None
    ids: str | None
    certificate: str

    @property
    def warnings(self) -> tuple[str, ...]:
        """The certificate's warnings."""
        return Certificate.from_json(self.certificate).warnings

    def scores(self, features: np.ndarray) -> np.ndarray:
        """n scores of the second of two classes, or n × C scores; the largest decides."""
        if self.intercept:
            features = np.concatenate([features, np.ones((len(features), 1))], axis=1)
        return features @ self.weights

    def pack(self) -> bytes:
        """The contents of a file, which ends in its own digest; `load` reads it."""
        about = {
            "kind": _KIND,
            "format": FORMAT,
            "encoding": self.encoding.to_json(),
            "classes": list(self.classes),
            "intercept": self.intercept,
            "label": self.label,
            "ids": self.ids,
            "certificate": self.certificate,
        }
        return sealed.pack_arrays(about, {"weights": self.weights})


def load(path: Path) -> Model:
    """The model of a file.

    Raises:
        InputError: no such file, a damaged one, or one that holds no model.
    """
    try:
        about, arrays = sealed.read_arrays(path)
    except FileNotFoundError:
        raise InputError(f"there is no file {path}; give the model.npz of a run.") from None
    except (OSError, ValueError) as error:
        raise InputError(f"{path} is not a whole model ({error}); write it again.") from None
    if about.get("kind") != _KIND or about.get("format") != FORMAT:
        raise InputError(f"{path} holds no model of this version; give the model.npz of a run.")
    try:
        return _model(about, arrays["weights"])
    except (KeyError, TypeError, ValueError):
        raise InputError(f"{path} holds no usable model; write it again.") from None


def _model(about: dict[str, Any], weights: np.ndarray) -> Model:
    classes = tuple(about["classes"])
    encoding = Encoding.from_json(about["encoding"])
    rows = len(encoding.columns) + bool(about["intercept"])
    if weights.shape != ((rows,) if len(classes) == 2 else (rows, len(classes))):
        raise ValueError("sizes")
    json.loads(about["certificate"])
    names = (about[name] for name in ("intercept", "label", "ids", "certificate"))
    return Model(weights, encoding, classes, *names)


class Predicted(NamedTuple):
    """What a model says of rows.

    Attributes:
        label: the name of the class of each row.
        scores: n, or n × C; see `Model.scores`.
        true: the label that the data say, or None.
        ids: whose row it is, or None.
        unknown: texts that are none of the measured categories, so that they count as none.
    """

    label: np.ndarray
    scores: np.ndarray
    true: np.ndarray | None
    ids: np.ndarray | None
    unknown: int

    @property
    def accuracy(self) -> float | None:
        """Share of rows whose class is the one that the data say."""
        return None if self.true is None else float(np.mean(self.label == self.true))


def predict(model: Model, table: Table) -> Predicted:
    """Classes of the rows of a table, encoded exactly as the training rows were."""
    scores = model.scores(model.encoding.encode(table))
    places = scores.argmax(axis=1) if scores.ndim == 2 else (scores > 0).astype(int)
    true = None if table.label is None else as_classes(model.classes, table.label)
    unknown = model.encoding.unknown(table)
    return Predicted(np.array(model.classes)[places], scores, true, table.ids, unknown)


def read_rows(model: Model, path: Path, *, label: str | None, ids: str | None) -> Table:
    """The columns of a file that a model needs, with its label and ids where they are there.

    Args:
        model: whose columns are read; all others are left out.
        path: a CSV or NPZ file.
        label, ids: their columns; unless given those of the training data, if the file has them.

    Raises:
        InputError: a file that cannot be read, or columns that are missing.
    """
    if not path.is_file():
        raise InputError(f"there is no file {path}; check the name.")
    encoding = model.encoding
    if path.suffix.lower() == ".npz":
        features = encoding.numbers[0].partition("[")[0] if encoding.numbers else "features"
        found = _arrays(path)
        how: dict[str, Any] = {"features": features}
        read = read_npz
    else:
        texts = [name for name, _ in encoding.categories]
        found, how = header_of(path), {"only": (*encoding.numbers, *texts), "declared": texts}
        read = read_csv
    chosen = (
        known if known in found and given is None else given
        for given, known in ((label, model.label), (ids, model.ids))
    )
    label, ids = chosen
    return read(path, label=label, ids=ids, fill=encoding.fill, **how)


def _arrays(path: Path) -> tuple[str, ...]:
    """Names of the arrays of an NPZ file; none if it is not one, which `read_npz` says."""
    try:
        with np.load(path, allow_pickle=False) as stored:
            return tuple(getattr(stored, "files", ()))
    except Exception:
        return ()


def as_classes(classes: tuple[str, ...], label: np.ndarray) -> np.ndarray:
    """Labels by the names of their classes: 1.0 is the class 1."""
    try:
        known = {float(name): name for name in classes}
    except ValueError:
        known = {}
    found = []
    for text in map(str, label):
        try:
            found.append(known.get(float(text), text) if known else text)
        except ValueError:
            found.append(text)
    if not set(found) & set(classes):
        raise InputError(
            f"no label of the data is a class of the model (the first is {found[0]!r}); "
            f"{closest(found[0], classes)}."
        )
    return np.array(found)
