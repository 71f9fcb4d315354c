"""A user's own CSV or NPZ file as a task: classes, a split, rows in the unit ball.

Every defect of a file is reported in one sentence that says where it is. Whether a row is held out
depends only on that row, or on whose it is: a line that is added to the file or removed from it
moves no other row between the two parts.
"""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from dd_jax import checks, losses
from dd_jax.constants import OF_CLASSES
from dd_jax.data.encoding import Bounds, Encoding, fit
from dd_jax.data.tables import Table, closest, listed, read_table
from dd_jax.data.tasks import labelled
from dd_jax.errors import InputError
from dd_jax.losses import Loss
from dd_jax.types import Labelled

DEFAULT_TEST_FRACTION = 0.25
# A label with more values than this is a number or a name, not a class.
MOST_CLASSES = 100


class OwnData(NamedTuple):
    """A task made from a file.

    Attributes:
        train: the private records; labels ±1 for two classes, else the numbers of the classes.
        test: held-out records, perhaps none.
        rows: the file's row of each training record, ascending.
        columns: names of the features.
        classes: the labels that became -1 and +1, or 0, 1, 2, ….
        preprocessing: what was done to the features, in words.
        caveat: why certificates do not cover that; empty if they do.
        held_out: the file's row of each held-out record, ascending.
        encoding: the map of the features, which new rows go through too.
        ids: whose record each row of the file is; None without an id column.
    """

    train: Labelled
    test: Labelled
    rows: np.ndarray
    columns: tuple[str, ...]
    classes: tuple[str, ...]
    preprocessing: str
    caveat: str
    held_out: Sequence[int] | np.ndarray = ()
    encoding: Encoding | None = None
    ids: np.ndarray | None = None

    def training_row(self, row: Any) -> Any:
        """The training record that a row of the file became: what `dd.deletion` takes.

        Args:
            row: number of a row in the file, counted from 0 after the header; or an array of them.

        Returns:
            A number for a number, an array of the same shape for an array.

        Raises:
            InputError: a row that is held out, or that is not in the file.
        """
        asked = np.asarray(row)
        if not asked.size:  # an empty list has no type of its own
            asked = asked.astype(int)
        if asked.dtype.kind not in "iu":
            raise InputError(f"row {row!r} is not a whole number; rows are counted from 0.")
        known = np.isin(asked, self.rows)
        if not known.all():
            raise InputError(self._why_not(int(asked[~known].flat[0])))
        places = np.searchsorted(self.rows, asked)
        return int(places) if asked.ndim == 0 else places

    def training_rows_of(self, name: str) -> np.ndarray:
        """All training records of an id, as `training_row` numbers them.

        Raises:
            InputError: no id column, an id that is not in the file, or one that is held out.
        """
        if self.ids is None:
            raise InputError("these records have no ids; name the column that holds them.")
        rows = np.flatnonzero(self.ids == name)
        if not len(rows):
            raise InputError(f"no record has the id {name!r}; {closest(name, self.ids[:1000])}.")
        if rows[0] in self.held_out:
            raise InputError(
                f"id {name!r} is held out for tests and was never learned, so that it cannot be "
                f"deleted; name another id, or hold out nothing."
            )
        return self.training_row(rows)

    def _why_not(self, row: int) -> str:
        """Why a row of the file is not a training record."""
        last = max((int(rows[-1]) for rows in (self.rows, self.held_out) if len(rows)), default=-1)
        if not 0 <= row <= last:
            return f"there is no row {row}; name one of 0 to {last}."
        if row in self.held_out:
            first = ", ".join(map(str, self.rows[:3]))
            return (
                f"row {row} is held out for tests and was never learned, so that it cannot be "
                f"deleted; name a training row ({first}, …), or hold out nothing."
            )
        return f"row {row} was dropped when the file was read; name another row."


def load_file(
    path: Path,
    *,
    label: str | None = None,
    ids: str | None = None,
    features: str | None = None,
    drop: Sequence[str] = (),
    delimiter: str | None = None,
    bounds: Bounds | None = None,
    test_fraction: float = DEFAULT_TEST_FRACTION,
    seed: int = 0,
    least_training: int = 2,
) -> OwnData:
    """Read, check, split and encode a file of records with two classes or more.

    Args:
        path: a CSV file with a header, or an NPZ file; nothing in it is executed.
        label: the label's column or array; an NPZ file's is "label" unless given.
        ids: the column or array that says whose record a row is; it is never a feature.
        features: an NPZ file's feature array, "features" unless given.
        drop, delimiter: for a CSV file; see `tables.read_csv`.
        bounds: what is declared about the features; None measures ranges and categories.
        test_fraction: probability with which a row is held out, 0 for none. The share that is held
            out is close to it, not equal to it. A hash decides: of the row's id, or else of its own
            values and label, so that equal rows go to the same part and no row depends on another.
        seed: the key of that hash.
        least_training: the fewest training records that the caller can work with.

    Raises:
        InputError: a file that cannot be used; the message says where the defect is.
    """
    if test_fraction:
        checks.fraction("test_fraction", test_fraction, example=DEFAULT_TEST_FRACTION)
    bounds = bounds or Bounds()
    raw = read_table(
        path,
        label=label,
        ids=ids,
        features=features,
        drop=drop,
        delimiter=delimiter,
        declared=bounds.categories,
        fill=bounds.fill,
    )
    assert raw.label is not None
    classes, labels = _classes(path, "label" if label is None else label, raw.label)
    held_out = _held_out(path, raw, labels, test_fraction, seed, least_training)
    absent = sorted(set(np.unique(labels)) - set(np.unique(labels[~held_out])))
    if absent:
        which = "one of the two classes" if len(classes) == 2 else f"not all {len(classes)} classes"
        raise InputError(
            f"the {np.sum(~held_out)} training rows of {path} hold only {which}; "
            f"give another seed, a smaller test fraction or more rows."
        )
    encoding = fit(bounds, raw, ~held_out)
    encoded = encoding.encode(raw)
    return OwnData(
        labelled(encoded[~held_out], labels[~held_out]),
        labelled(encoded[held_out], labels[held_out]),
        np.flatnonzero(~held_out),
        encoding.columns,
        classes,
        encoding.words,
        encoding.caveat,
        np.flatnonzero(held_out),
        encoding,
        raw.ids,
    )


def with_preprocessing(loss: Loss, data: OwnData) -> Loss:
    """The loss whose certificates say how these records were mapped into its domain."""
    domain = f"{loss.domain.describe}; features {data.preprocessing}"
    constants = replace(loss.constants, domain=domain, caveat=data.caveat)
    return replace(loss, constants=constants, domain=loss.domain._replace(describe=domain))


def loss_for(data: OwnData, name: str | None = None, *, intercept: bool = False) -> Loss:
    """The loss of this name for these records, with their preprocessing.

    Args:
        data: the records; their classes and how they got into the unit ball are what is used.
        name: of the catalogue; None for logistic, or softmax for more than two classes.
        intercept: whether a constant 1 was appended to the features.

    Raises:
        InputError: a loss for another number of classes.
    """
    classes = len(data.classes)
    if name is None:
        name = "logistic" if classes == 2 else "softmax"
    if (name in OF_CLASSES) == (classes == 2):
        fitting = "logistic" if classes == 2 else " or ".join(OF_CLASSES)
        raise InputError(
            f"the loss {name} is for {'more than two' if classes == 2 else 'two'} classes, and the "
            f"label has {classes}; choose {fitting}."
        )
    sizes = {"num_classes": classes} if name in OF_CLASSES else {}
    norm = math.sqrt(2.0) if intercept else 1.0
    return with_preprocessing(getattr(losses, name)(feature_norm=norm, **sizes), data)


def with_intercept(data: OwnData) -> OwnData:
    """The records with a constant 1 appended to their features."""
    words = f"{data.preprocessing}, then a constant 1 appended"
    train, test = (with_ones(part) for part in (data.train, data.test))
    return data._replace(train=train, test=test, preprocessing=words)


def with_ones(records: Labelled) -> Labelled:
    """Records with a constant 1 appended to their features."""
    features = np.asarray(records.features)
    ones = np.ones((len(features), 1), features.dtype)
    return records._replace(features=jax.device_put(np.concatenate([features, ones], axis=1)))


# --- classes, split -------------------------------------------------------------------------------


def _classes(path: Path, name: str, label: np.ndarray) -> tuple[tuple[str, ...], np.ndarray]:
    """The values in order and ±1 or the class's number for each row; 1 and 1.0 are one value."""
    try:
        values, places = np.unique(label.astype(np.float64), return_inverse=True)
        names = [f"{value:.15g}" for value in values]
    except ValueError:
        values, places = np.unique(label, return_inverse=True)
        names = [str(value) for value in values]
    if len(names) == 1:
        raise InputError(
            f"label {name!r} of {path} is {names[0]!r} in every row; two classes are needed."
        )
    if len(names) > MOST_CLASSES:
        raise InputError(
            f"label {name!r} of {path} has {len(names):,} values ({listed(names)}), which is too "
            f"many for classes; name the column that holds the classes."
        )
    return tuple(names), np.where(places == 1, 1.0, -1.0) if len(names) == 2 else places


def _held_out(
    path: Path, raw: Table, labels: np.ndarray, fraction: float, seed: int, least: int
) -> np.ndarray:
    """Which rows are held out: those whose hash falls into the fraction."""
    if not fraction:
        held_out = np.zeros(len(labels), bool)
    else:
        held_out = _fingerprints(raw, labels, seed) < fraction * 2.0**64
    n, training = len(labels), int(np.sum(~held_out))
    if training < least:
        wanted = int(np.ceil(least / (1 - fraction)))
        # Equal rows go to the same part, so that even this many rows can be too few.
        more = f"about {wanted} rows or more" if wanted > n else "more rows that differ"
        raise InputError(
            f"{path} has {n} rows, {training} to train and {n - training} to hold out, too few: "
            f"{least} must train (those to be deleted, and 2 that stay); give {more}, fewer "
            f"requests, a smaller test fraction or another seed."
        )
    if fraction and training == n:
        raise InputError(
            f"none of the {n} rows of {path} falls into the test fraction {fraction:g}; give more "
            f"rows, a larger fraction or another seed, or hold out nothing with the fraction 0."
        )
    return held_out


def _fingerprints(raw: Table, labels: np.ndarray, seed: int) -> np.ndarray:
    """A keyed hash of each row's id, or of its values and label, uniform on numbers below 2⁶⁴."""
    if raw.ids is not None:
        contents = (str(name).encode() for name in raw.ids)
    else:
        # Equal rows must have equal bytes on every machine: + 0.0 turns -0.0 into 0.0, and the
        # bytes are little-endian.
        table = (np.column_stack([raw.numbers, labels]) + 0.0).astype("<f8")
        numbers, width = table.tobytes(), table.itemsize * table.shape[1]
        starts = range(0, len(numbers), width)
        contents = (numbers[start : start + width] for start in starts)
        if raw.texts:
            rows = zip(*raw.texts.values(), strict=True)
            contents = (
                content + "\0".join(row).encode()
                for content, row in zip(contents, rows, strict=True)
            )
    # Copying a keyed state takes a third of the time of making a new one for each row.
    keyed = hashlib.blake2b(key=str(seed).encode(), digest_size=8)
    digests = bytearray()
    for content in contents:
        row = keyed.copy()
        row.update(content)
        digests += row.digest()
    return np.frombuffer(digests, "<u8")
