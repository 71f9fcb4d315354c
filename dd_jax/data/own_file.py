"""A user's own CSV or NPZ file as a binary task with rows in the unit ball and labels ±1.

Every defect of a file is reported in one sentence that says where it is. Row 0 is the first record
after the header. Whether a row is held out depends only on that row: a line that is added to the
file or removed from it moves no other row between the two parts.

Certificates hold for rows of norm at most 1. A map made from declared bounds, or from each row
alone, is fixed before any record is seen. Measured ranges depend on every record, and no deletion
undoes that, so that a caveat about such a map is part of every certificate.
"""

import collections
import csv
import difflib
import hashlib
import json
import math
import zipfile
import zlib
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dd_jax import checks
from dd_jax.data.tasks import labelled
from dd_jax.errors import InputError
from dd_jax.losses import Loss
from dd_jax.types import Labelled

DEFAULT_TEST_FRACTION = 0.25
DELIMITERS = ",;\t|"
# '-' and 'none' can be names of a class, but in a column of numbers they mean a missing value.
NO_LABEL = frozenset({"", "?", "na", "n/a", "<na>", "nan", "null"})
NO_NUMBER = NO_LABEL | {"-", ".", "none"}
MOST_LISTED = 12
# A value at a bound may lie beyond it by the rounding of its decimal digits.
ROUNDING = 1e-9
# Bounds up to this can be added, subtracted and squared without overflow.
LARGEST_BOUND = 1e150

CAVEAT = (
    "feature ranges were MEASURED on the records, so that the scaling depends on every record and "
    "no deletion undoes it: the guarantees assume a fixed scaling and do not cover this one; "
    "declare ranges or a largest norm that are known without the records, or divide each row by "
    "its norm"
)


@dataclass(frozen=True)
class Bounds:
    """What is declared about the features; if nothing is declared, ranges are measured.

    Attributes:
        norm: the largest norm that a row can have.
        lower, upper: one range for all columns.
        ranges: the range of each column by its name.
        unit_rows: divide every row by its own norm (after ranges, if they are given).
    """

    norm: float | None = None
    lower: float | None = None
    upper: float | None = None
    ranges: Mapping[str, tuple[float, float]] | None = None
    unit_rows: bool = False

    def __post_init__(self):
        if (self.lower is None) != (self.upper is None):
            raise InputError("lower and upper belong together; give both or neither.")
        common = self.lower is not None
        if (self.norm is not None) + common + (self.ranges is not None) > 1:
            raise InputError("give only one of: a norm, lower with upper, ranges.")
        if self.norm is not None:
            if self.unit_rows:
                raise InputError(
                    "unit rows have norm 1 and need no bound on the norm; drop one of the two."
                )
            checks.positive("norm", self.norm, most=LARGEST_BOUND)
        if common:
            _check_range("lower and upper", self.lower, self.upper)

    @property
    def measured(self) -> bool:
        """Whether nothing is declared."""
        return self == Bounds()


class OwnData(NamedTuple):
    """A task made from a file.

    Attributes:
        train: the private records.
        test: held-out records, perhaps none.
        rows: the file's row of each training record, ascending.
        columns: names of the features.
        classes: the labels that became -1 and +1.
        preprocessing: what was done to the features, in words.
        caveat: why certificates do not cover that; empty if they do.
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
            raise InputError(f"row {row!r} is not a whole number; rows are counted from 0.")
        known = np.isin(asked, self.rows)
        if not known.all():
            raise InputError(self._why_not(int(asked[~known].flat[0])))
        places = np.searchsorted(self.rows, asked)
        return int(places) if asked.ndim == 0 else places

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
        bounds: what is declared about the features; None measures their ranges.
        test_fraction: probability with which a row is held out, 0 for none. The share that is held
            out is close to it, not equal to it. A hash of the row's own numbers and label decides,
            so that equal rows go to the same part and no row depends on another.
        seed: the key of that hash.
        least_training: the fewest training records that the caller can work with.

    Raises:
        InputError: a file that cannot be used; the message says where the defect is.
    """
    if test_fraction:
        checks.fraction("test_fraction", test_fraction, example=DEFAULT_TEST_FRACTION)
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
    """The loss whose certificates say how these records were mapped into its domain."""
    domain = f"{loss.domain.describe}; features {data.preprocessing}"
    constants = replace(loss.constants, domain=domain, caveat=data.caveat)
    return replace(loss, constants=constants, domain=loss.domain._replace(describe=domain))


# --- classes, rows, split -----------------------------------------------------------------------


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
            f"needed: keep the rows of two classes, or make a label of one class against the rest."
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


def _fingerprints(features: np.ndarray, signs: np.ndarray, seed: int) -> np.ndarray:
    """A keyed hash of each row's numbers and label, uniform on whole numbers below 2⁶⁴."""
    # Equal rows must have equal bytes on every machine: + 0.0 turns -0.0 into 0.0, and the bytes
    # are little-endian.
    table = (np.column_stack([features, signs]) + 0.0).astype("<f8")
    content, width = table.tobytes(), table.itemsize * table.shape[1]
    # Copying a keyed state takes a third of the time of making a new one for each row.
    keyed = hashlib.blake2b(key=str(seed).encode(), digest_size=8)
    digests = bytearray()
    for start in range(0, len(content), width):
        row = keyed.copy()
        row.update(content[start : start + width])
        digests += row.digest()
    return np.frombuffer(digests, "<u8")


# --- files ----------------------------------------------------------------------------------------


class RawTable(NamedTuple):
    """The records of a file before they are scaled.

    Attributes:
        columns: names of the feature columns.
        features: n × d numbers, all finite.
        label: the n labels as text.
    """

    columns: tuple[str, ...]
    features: np.ndarray
    label: np.ndarray


def _read(path: Path, label, features, drop, delimiter) -> RawTable:
    if path.is_dir():
        raise InputError(f"{path} is a folder; name a CSV or NPZ file in it.")
    if not path.exists():
        raise InputError(f"there is no file {path}; check the name.")
    if not path.is_file():
        raise InputError(f"{path} is a pipe or a device, not a file; save the records first.")
    if path.suffix.lower() == ".npz":
        if drop or delimiter is not None:
            raise InputError(
                f"dropped columns and delimiters are for CSV files, not {path}; leave them out."
            )
        return read_npz(path, features=features or "features", label=label or "label")
    if features is not None:
        raise InputError(
            f"a features array is for NPZ files, not {path}; leave it out, or drop columns."
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
        raise InputError(f"{path} is not a readable NPZ file; write it with numpy.savez.") from None
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
            f"array {features!r} of {path} has shape {numbers.shape}; give n × d numbers."
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


# --- CSV -----------------------------------------------------------------------------------------


def read_csv(
    path: Path, *, label: str, drop: Sequence[str] = (), delimiter: str | None = None
) -> RawTable:
    """The records of a CSV file with a header.

    Args:
        path: the file, UTF-8.
        label: name of the label column.
        drop: names of columns to leave out.
        delimiter: one character; by default the one of `DELIMITERS` that splits the header most.

    Raises:
        InputError: anything that is not a table of finite numbers with one label per row.
    """
    if delimiter is not None and (len(delimiter) != 1 or delimiter in '"\n\r'):
        raise InputError(f"delimiter {delimiter!r}; give one character, for example ';'.")
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            return _table(path, file, label, drop, delimiter)
    except UnicodeDecodeError:
        raise InputError(f"{path} is not UTF-8 text; save it as a UTF-8 CSV file.") from None
    except csv.Error as error:
        raise InputError(f"{path} is not a CSV file ({error}); save it as one.") from None


def closest(name: str, known: Iterable[str]) -> str:
    """A list of the known names, after the one that is most similar."""
    known = list(known)
    near = [k for k in known if k.lower() == name.lower()]
    near = near or difflib.get_close_matches(name, known, 1)
    return (f"did you mean {near[0]!r}? " if near else "") + f"it has {listed(known)}"


def listed(names: Sequence[str]) -> str:
    """Names in quotes, the first few of many."""
    shown = ", ".join(repr(name) for name in names[:MOST_LISTED])
    return shown if len(names) <= MOST_LISTED else f"{shown}, … ({len(names)} in all)"


def _table(path: Path, file, label: str, drop: Sequence[str], delimiter: str | None) -> RawTable:
    """The records of an open file, in one pass; empty lines are skipped."""
    first_line = file.readline()
    if not first_line.strip():
        what = "is empty" if not first_line else "begins with an empty line"
        raise InputError(f"{path} {what}; give a header line with column names, then records.")
    delimiter = _sniffed(first_line) if delimiter is None else delimiter
    file.seek(0)
    reader = csv.reader(file, delimiter=delimiter)
    header = tuple(name.strip() for name in next(reader))
    label_index = _label_index(path, header, label, delimiter)
    _check_names(path, header, label, drop)
    columns = [i for i, name in enumerate(header) if i != label_index and name not in set(drop)]
    if not columns:
        raise InputError(f"{path} has no feature column besides {label!r}; give at least one.")
    values, labels = array("d"), []
    defects = _Defects({}, [], [])
    for fields in filter(None, reader):
        row = f"row {len(labels)} (line {reader.line_num})"
        if len(fields) != len(header):
            remedy = "give every row one field per column"
            if any("\n" in field for field in fields):
                remedy += ", and close every quotation mark (one field goes on over lines)"
            raise InputError(
                f"{row} of {path} has {len(fields)} fields, the header {len(header)}; {remedy}."
            )
        numbers = [_number(fields[i]) for i in columns]
        labels.append(fields[label_index].strip())
        values.extend(math.nan if number is None else number for number in numbers)
        if labels[-1].lower() in NO_LABEL:
            defects.missing.append(f"{row}, label {label!r}")
        if None in numbers or not math.isfinite(sum(filter(None, numbers))):
            defects.note(row, [(header[i], fields[i].strip()) for i in columns])
    if not labels:
        raise InputError(f"{path} holds a header and no records; give at least two.")
    defects.refuse(path)
    features = np.array(values).reshape(-1, len(columns))
    return RawTable(tuple(header[i] for i in columns), features, np.array(labels))


def _sniffed(line: str) -> str:
    """The delimiter that splits the header into the most columns."""
    return max(DELIMITERS, key=lambda mark: len(next(csv.reader([line], delimiter=mark))))


def _label_index(path: Path, header: tuple[str, ...], label: str, delimiter: str) -> int:
    if label in header:
        return header.index(label)
    if all(_number(name) is not None for name in header):
        raise InputError(
            f"the first line of {path} holds numbers, not names; add a header line that names the "
            f"columns, {label!r} among them."
        )
    if len(header) == 1:
        raise InputError(
            f"{path} has only one column when split at {delimiter!r}; name the delimiter, the "
            f"character between columns."
        )
    raise InputError(f"{path} has no column {label!r}; {closest(label, header)}.")


def _check_names(path: Path, header: tuple[str, ...], label: str, drop: Sequence[str]) -> None:
    seen: set[str] = set()
    for place, name in enumerate(header):
        if name in seen:
            raise InputError(f"{path} has two columns named {name!r}; rename one of them.")
        if not name and name not in drop:
            raise InputError(
                f"column {place + 1} of {path} has no name (an index?); name it, or drop "
                f"the column ''."
            )
        seen.add(name)
    for name in drop:
        if name == label:
            raise InputError(
                f"column {name!r} is the label, which cannot be dropped; drop another."
            )
        if name not in seen:
            raise InputError(f"{path} has no column {name!r} to drop; {closest(name, header)}.")


class _Defects(NamedTuple):
    """Defects: the first text of each column, and the places of missing and infinite values.

    A file is read to its end, because the most important defect is reported, not the first one.
    """

    text: dict[str, tuple[str, str]]
    missing: list[str]
    infinite: list[str]

    def note(self, row: str, fields: list[tuple[str, str]]) -> None:
        """The defects of one row, if any."""
        for column, field in fields:
            value = _number(field)
            if field.lower() in NO_NUMBER:
                self.missing.append(f"{row}, column {column!r}")
            elif value is None:
                self.text.setdefault(column, (row, field))
            elif not math.isfinite(value):
                self.infinite.append(f"{row}, column {column!r}")

    def refuse(self, path: Path) -> None:
        """Refuse a file with defects."""
        if self.text:
            names = list(self.text)
            kind = f"column {names[0]!r} of {path} holds"
            if len(names) > 1:
                kind = f"columns {listed(names)} of {path} hold"
            dropped = " ".join(repr(name) if " " in name or not name else name for name in names)
            remedy = f"drop {dropped}, or encode as numbers"
            if all(_number(found.replace(",", ".")) is not None for _, found in self.text.values()):
                remedy = "write numbers with a decimal point"
            where, found = self.text[names[0]]
            shown = found if len(found) <= 30 else found[:29] + "…"
            raise InputError(f"{kind} text ({where} holds {shown!r}); {remedy}.")
        for places, what, remedy in (
            (self.missing, "missing value", "remove or impute those rows"),
            (self.infinite, "infinite value", "remove those rows or bound the values"),
        ):
            if places:
                count = f"{len(places):,} {what}{'s' if len(places) > 1 else ''}"
                raise InputError(f"{path} has {count}, the first in {places[0]}; {remedy} first.")


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


# --- the map into the unit ball -------------------------------------------------------------------


class Scaled(NamedTuple):
    """Features in the unit ball, and what was done to them.

    Attributes:
        features: n × d.
        words: the map, as certificates print it.
        caveat: why certificates do not cover the map; empty if they do.
    """

    features: np.ndarray
    words: str
    caveat: str


def read_ranges(path: Path) -> dict[str, tuple[float, float]]:
    """The ranges of a JSON file such as {"age": [0, 120], "height": [0, 2.5]}."""
    if not path.is_file():
        raise InputError(f"there is no file of ranges {path}; check the name.")
    remedy = 'write {"column": [lower, upper], …}'

    def named_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        for name, times in collections.Counter(name for name, _ in pairs).items():
            if times > 1:
                raise InputError(f"ranges {path} names {name!r} twice; give it one range.")
        return dict(pairs)

    try:
        found = json.loads(path.read_text(encoding="utf-8-sig"), object_pairs_hook=named_once)
    except InputError:
        raise
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise InputError(f"ranges {path} is not JSON ({error}); {remedy}.") from None
    except (ValueError, RecursionError):  # numbers of thousands of digits; deep nesting
        raise InputError(f"ranges {path} cannot be read; {remedy}.") from None
    if not isinstance(found, dict):
        raise InputError(f"ranges {path} is not a JSON object; {remedy}.")
    for name, pair in found.items():
        if not (isinstance(pair, list) and len(pair) == 2 and all(map(checks.is_number, pair))):
            raise InputError(f"ranges {path}: {name!r} has {pair!r}; {remedy}.")
        _check_range(f"ranges {path}: {name!r}", *pair)
    return {name: (float(low), float(high)) for name, (low, high) in found.items()}


def scale(
    bounds: Bounds, columns: tuple[str, ...], features: np.ndarray, training: np.ndarray
) -> Scaled:
    """Rows mapped into the unit ball as the bounds say.

    Args:
        bounds: what is declared; with nothing declared the ranges of the training rows are used.
        columns: names of the d columns.
        features: n × d finite numbers, held-out rows among them.
        training: which rows are private records, n × bool.

    Raises:
        InputError: a value beyond its declared bound; the message names row and column.
    """
    if bounds.norm is not None:
        _check_norms(columns, features, bounds.norm)
        return Scaled(features / bounds.norm, f"divided by the declared {bounds.norm:g}", "")
    words, caveat = "taken as they are", ""
    if bounds.measured:
        lower, upper = features[training].min(axis=0), features[training].max(axis=0)
        features = _centred(features, lower, upper)
        words, caveat = "mapped from MEASURED ranges to [-1, 1]", CAVEAT
    elif bounds.lower is not None or bounds.ranges is not None:
        lower, upper = _declared(bounds, columns)
        _check_ranges(columns, features, lower, upper)
        features = _centred(features, lower, upper)
        words = "mapped from declared ranges to [-1, 1]"
    if bounds.unit_rows:
        return Scaled(_unit_rows(features), f"{words}, then every row divided by its norm", caveat)
    return Scaled(
        features / math.sqrt(len(columns)), f"{words}, divided by √{len(columns)}", caveat
    )


def _centred(features: np.ndarray, lower: np.ndarray, upper: np.ndarray) -> np.ndarray:
    """Columns from [lower, upper] to [-1, 1]; a column without width becomes 0."""
    # Halve first: the sum or difference of two large bounds could overflow.
    middle, half = lower / 2 + upper / 2, upper / 2 - lower / 2
    return np.where(half > 0, (features - middle) / np.where(half > 0, half, 1.0), 0.0)


def _unit_rows(features: np.ndarray) -> np.ndarray:
    """Rows of norm 1; a zero row stays zero."""
    largest = np.abs(features).max(axis=1, keepdims=True)
    features = features / np.where(largest > 0, largest, 1.0)  # so that squares cannot overflow
    norms = np.linalg.norm(features, axis=1, keepdims=True)
    return features / np.where(norms > 0, norms, 1.0)


def _declared(bounds: Bounds, columns: tuple[str, ...]) -> tuple[np.ndarray, np.ndarray]:
    if bounds.ranges is None:
        return np.full(len(columns), bounds.lower), np.full(len(columns), bounds.upper)
    for name in bounds.ranges:
        if name not in columns:
            raise InputError(
                f"ranges name {name!r}, which is not a feature of the file; "
                f"{closest(name, columns)}."
            )
    absent = [name for name in columns if name not in bounds.ranges]
    if absent:
        raise InputError(f"ranges are missing for {listed(absent)}; give every feature a range.")
    pairs = np.array([bounds.ranges[name] for name in columns])
    return pairs[:, 0], pairs[:, 1]


def _check_ranges(columns, features, lower, upper) -> None:
    slack = ROUNDING * (upper - lower)
    beyond = ~((features >= lower - slack) & (features <= upper + slack))
    if beyond.any():
        row, column = np.argwhere(beyond)[0]
        raise InputError(
            f"row {row}, column {columns[column]!r} holds {features[row, column]:g}, beyond the "
            f"declared [{lower[column]:g}, {upper[column]:g}] ({beyond.sum():,} such values); "
            f"declare a wider range or remove the row."
        )


def _check_norms(columns, features, norm: float) -> None:
    with np.errstate(over="ignore"):  # an overflow becomes infinity, which is beyond every bound
        norms = np.linalg.norm(features, axis=1)
    beyond = ~(norms <= norm * (1 + ROUNDING))
    if beyond.any():
        row = int(np.flatnonzero(beyond)[0])
        column = int(np.abs(features[row]).argmax())
        raise InputError(
            f"row {row} has norm {norms[row]:g}, beyond the declared {norm:g} "
            f"({beyond.sum():,} such rows; its largest value is {features[row, column]:g} in "
            f"column {columns[column]!r}); declare a larger bound, or divide every row by its norm."
        )


def _check_range(what: str, low: Any, high: Any) -> None:
    if not (abs(low) <= LARGEST_BOUND and abs(high) <= LARGEST_BOUND):
        raise InputError(f"{what}: give bounds between -{LARGEST_BOUND:g} and {LARGEST_BOUND:g}.")
    if not low < high:
        raise InputError(f"{what}: [{low:g}, {high:g}] is not a range; give lower < upper.")
