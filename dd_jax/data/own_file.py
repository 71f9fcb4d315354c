"""A user's own CSV or NPZ file as a binary task with rows in the unit ball and labels ±1.

Which rows are held out depends on each row alone: a line that is added to the file or taken out of
it moves no other row between the halves.
"""

import hashlib
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dd_jax.data import labelled
from dd_jax.data.own_csv import NO_LABEL, RawTable, closest, listed, read_csv
from dd_jax.data.scaling import Bounds, scale
from dd_jax.errors import InputError
from dd_jax.losses import Loss
from dd_jax.types import Labelled

DEFAULT_TEST_FRACTION = 0.25


class OwnData(NamedTuple):
    """A task made from a file.

    Attributes:
        train: the private records.
        test: held-out records, perhaps none.
        rows: the file's row of each training record, ascending.
        columns: names of the features.
        classes: the labels that became -1 and +1.
        preprocessing: what was done to the features, in words.
        caveat: why certificates do not cover that, or nothing.
        held_out: the file's row of each held-out record, ascending.
    """

    train: Labelled
    test: Labelled
    rows: np.ndarray
    columns: tuple[str, ...]
    classes: tuple[str, str]
    preprocessing: str
    caveat: str
    held_out: Sequence[int] | np.ndarray = ()

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
            raise InputError(f"row {row!r} is no whole number; rows are counted from 0.")
        known = np.isin(asked, self.rows)
        if not known.all():
            raise InputError(self._why_not(int(asked[~known].flat[0])))
        places = np.searchsorted(self.rows, asked)
        return int(places) if asked.ndim == 0 else places

    def _why_not(self, row: int) -> str:
        """Why a row of the file is no training record."""
        last = max((int(rows[-1]) for rows in (self.rows, self.held_out) if len(rows)), default=-1)
        if not 0 <= row <= last:
            return f"there is no row {row}; name one of 0 to {last}."
        if row in self.held_out:
            first = ", ".join(map(str, self.rows[:3]))
            return (
                f"row {row} is held out for tests and was never learned, so that nothing of it can "
                f"be deleted; name a training row ({first}, …), or hold out nothing."
            )
        return f"row {row} was dropped when the file was read; name another row."


def load_file(
    path: Path,
    *,
    label: str | None = None,
    features: str | None = None,
    drop: Sequence[str] = (),
    delimiter: str | None = None,
    bounds: Bounds | None = None,
    test_fraction: float = DEFAULT_TEST_FRACTION,
    seed: int = 0,
    least_training: int = 2,
) -> OwnData:
    """Read, check, split and scale a file of records with two classes.

    Args:
        path: a CSV file with a header, or an NPZ file; nothing in it is executed.
        label: the label's column or array; an NPZ file's is "label" unless given.
        features: an NPZ file's feature array, "features" unless given.
        drop, delimiter: for a CSV file; see `read_csv`.
        bounds: what is declared of the features; None measures them.
        test_fraction: probability with which a row is held out, 0 for none. The share that is held
            out is close to it, not equal to it. A hash of the row's own numbers and label decides,
            so that equal rows go together and no row depends on another.
        seed: key of that hash.
        least_training: the fewest training records that the caller can work with.

    Raises:
        InputError: a file that cannot be used; the message says where it is wrong.
    """
    if not 0 <= test_fraction < 1:
        raise InputError(f"the test fraction is {test_fraction:g}; give a share from 0 to below 1.")
    raw = _read(path, label, features, drop, delimiter)
    classes, signs = _two_classes(path, "label" if label is None else label, raw.label)
    held_out = _held_out(path, raw.features, signs, test_fraction, seed, least_training)
    if len(set(signs[~held_out])) < 2:
        raise InputError(
            f"the {np.sum(~held_out)} training rows of {path} hold only one of the two classes; "
            f"give another seed, a smaller test fraction or more rows."
        )
    scaled = scale(bounds or Bounds(), raw.columns, raw.features, ~held_out)
    return OwnData(
        labelled(scaled.features[~held_out], signs[~held_out]),
        labelled(scaled.features[held_out], signs[held_out]),
        np.flatnonzero(~held_out),
        raw.columns,
        classes,
        scaled.words,
        scaled.caveat,
        np.flatnonzero(held_out),
    )


def with_preprocessing(loss: Loss, data: OwnData) -> Loss:
    """The loss whose certificates say how these records got into its domain, caveat included."""
    domain = f"{loss.domain.describe}; features {data.preprocessing}"
    constants = replace(loss.constants, domain=domain, caveat=data.caveat)
    return replace(loss, constants=constants, domain=loss.domain._replace(describe=domain))


# --- files ----------------------------------------------------------------------------------------


def _read(path: Path, label, features, drop, delimiter) -> RawTable:
    if path.is_dir():
        raise InputError(f"{path} is a folder; name a CSV or NPZ file in it.")
    if not path.exists():
        raise InputError(f"no file {path}; check the name.")
    if not path.is_file():
        raise InputError(f"{path} is a pipe or device, and files are read twice; save it first.")
    if path.suffix.lower() == ".npz":
        if drop or delimiter is not None:
            raise InputError(
                f"dropped columns and a delimiter are for CSV files, not {path}; leave them out."
            )
        return read_npz(path, features=features or "features", label=label or "label")
    if features is not None:
        raise InputError(
            f"the array of features is for NPZ files, not {path}; leave it out, or drop columns."
        )
    if label is None:
        raise InputError(f"the label is missing; name the column of {path} that holds the classes.")
    return read_csv(path, label=label, drop=drop, delimiter=delimiter)


def read_npz(path: Path, *, features: str = "features", label: str = "label") -> RawTable:
    """The records of an NPZ file: an n × d array of numbers and n labels.

    Raises:
        InputError: no such arrays, arrays of Python objects (a pickle is never executed), other
            shapes, or numbers that are not finite.
    """
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            for name in (features, label):
                if name not in stored.files:
                    raise InputError(
                        f"{path} has no array {name!r}; {closest(name, stored.files)}."
                    )
            numbers, labels = _array(path, stored, features), _array(path, stored, label)
    except InputError:
        raise
    except (zipfile.BadZipFile, zlib.error, ValueError, EOFError, TypeError, RuntimeError):
        raise InputError(f"{path} is no readable NPZ file; write it with numpy.savez.") from None
    _check_arrays(path, features, numbers, label, labels)
    columns = tuple(f"{features}[:, {i}]" for i in range(numbers.shape[1]))
    return RawTable(columns, numbers.astype(np.float64), np.array([str(v) for v in labels]))


def _array(path: Path, stored, name: str) -> np.ndarray:
    try:
        return stored[name]
    except ValueError as error:
        if "allow_pickle" not in str(error):  # a damaged header
            raise
        raise InputError(
            f"array {name!r} of {path} holds Python objects, which are never loaded; save numbers "
            f"(or text labels) as a plain array."
        ) from None


def _check_arrays(path: Path, features: str, numbers, label: str, labels) -> None:
    if numbers.ndim != 2 or not numbers.size:
        raise InputError(
            f"array {features!r} of {path} has shape {numbers.shape}; give n × d, not empty."
        )
    if numbers.dtype.kind not in "biuf":
        raise InputError(
            f"array {features!r} of {path} has dtype {numbers.dtype}; give real numbers."
        )
    if labels.shape != (len(numbers),):
        raise InputError(
            f"array {label!r} of {path} has shape {labels.shape}, but there are {len(numbers)} "
            f"records; give one label per record, shape ({len(numbers)},)."
        )
    wrong = np.argwhere(~np.isfinite(numbers.astype(np.float64)))
    if len(wrong):
        row, column = wrong[0]
        raise InputError(
            f"{path} has {len(wrong):,} NaN or infinite values, the first in row {row}, column "
            f"{column} of {features!r}; remove or impute those rows first."
        )
    if np.issubdtype(labels.dtype, np.inexact) and not np.isfinite(labels).all():
        row = int(np.flatnonzero(~np.isfinite(labels))[0])
        raise InputError(f"row {row} of {path} has label {labels[row]}; remove that row first.")
    missing = [row for row, name in enumerate(labels) if str(name).strip().lower() in NO_LABEL]
    if missing:
        raise InputError(
            f"{path} has {len(missing):,} missing labels, the first, "
            f"{str(labels[missing[0]])!r}, in row {missing[0]}; remove those rows first."
        )


# --- classes, rows, split -------------------------------------------------------------------------


def _two_classes(path: Path, name: str, label: np.ndarray) -> tuple[tuple[str, str], np.ndarray]:
    """The two values in order and ±1 for each row; 1 and 1.0 are one value."""
    try:
        values, signs = np.unique(label.astype(np.float64), return_inverse=True)
        names = [f"{value:.15g}" for value in values]
    except ValueError:
        values, signs = np.unique(label, return_inverse=True)
        names = [str(value) for value in values]
    if len(names) == 1:
        raise InputError(
            f"label {name!r} of {path} is {names[0]!r} in every row; two classes are needed."
        )
    if len(names) > 2:
        raise InputError(
            f"label {name!r} of {path} has {len(names)} values ({listed(names)}); two classes are "
            f"needed: keep the rows of two, or make a label that is one against the rest."
        )
    return (names[0], names[1]), np.where(signs == 1, 1.0, -1.0)


def _held_out(
    path: Path, features: np.ndarray, signs: np.ndarray, fraction: float, seed: int, least: int
) -> np.ndarray:
    """Which rows are held out: those whose hash falls into the fraction."""
    if not fraction:
        held_out = np.zeros(len(signs), bool)
    else:
        held_out = _fingerprints(features, signs, seed) < fraction * 2.0**64
    n, training = len(signs), int(np.sum(~held_out))
    if training < least:
        wanted = int(np.ceil(least / (1 - fraction)))
        # Equal rows go together, so that enough rows can still be too few.
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


def _fingerprints(features: np.ndarray, signs: np.ndarray, seed: int) -> np.ndarray:
    """A keyed hash of each row's numbers and label, uniform below 2⁶⁴."""
    # + 0.0 turns -0.0 into 0.0, so that equal rows are equal bytes; little-endian everywhere.
    table = (np.column_stack([features, signs]) + 0.0).astype("<f8")
    content, width = table.tobytes(), table.itemsize * table.shape[1]
    # One keyed state for all rows: copying it is a third of the time of making it anew.
    keyed = hashlib.blake2b(key=str(seed).encode(), digest_size=8)
    digests = bytearray()
    for start in range(0, len(content), width):
        row = keyed.copy()
        row.update(content[start : start + width])
        digests += row.digest()
    return np.frombuffer(digests, "<u8")
