"""CSV and NPZ files as tables of numbers and texts, and every defect of a file in one sentence.

Row 0 is the first record after the header. A column of a CSV file holds numbers or texts; its first
value decides, unless it is declared to hold texts. A value of the other kind is a defect, as is a
missing value that is not to be filled.
"""

import csv
import difflib
import math
import zipfile
import zlib
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dd_jax import memory
from dd_jax.errors import InputError

DELIMITERS = ",;\t|"
# '-' and 'none' can be names of a class, but in a column of numbers they mean a missing value.
NO_TEXT = frozenset({"", "?", "na", "n/a", "<na>", "nan", "null"})
NO_NUMBER = NO_TEXT | {"-", ".", "none"}
MOST_LISTED = 12


class OptionMissing(InputError):
    """A file that can be read with one more option.

    Attributes:
        what: the argument of `read_table` that is missing.
    """

    def __init__(self, message: str, what: str):
        super().__init__(message)
        self.what = what


class Table(NamedTuple):
    """The records of a file before they are encoded.

    Attributes:
        columns: names of the columns of numbers.
        numbers: n × k; NaN where a value is missing.
        texts: the columns of text by their names, n texts each; "" where a value is missing.
        label: the n labels as text, or None.
        ids: the n names of an id column, or None.
    """

    columns: tuple[str, ...]
    numbers: np.ndarray
    texts: Mapping[str, np.ndarray]
    label: np.ndarray | None
    ids: np.ndarray | None = None


def read_table(
    path: Path,
    *,
    label: str | None = None,
    ids: str | None = None,
    features: str | None = None,
    drop: Sequence[str] = (),
    delimiter: str | None = None,
    declared: Iterable[str] = (),
    fill: bool = False,
) -> Table:
    """The records of a CSV or NPZ file; see `read_csv` and `read_npz`.

    Raises:
        InputError: a file that cannot be read, or an option that its kind does not have.
    """
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
        names = {"features": features or "features", "label": label or "label"}
        return read_npz(path, **names, ids=ids, fill=fill)
    if features is not None:
        raise InputError(
            f"a features array is for NPZ files, not {path}; leave it out, or drop columns."
        )
    if label is None:
        what = f"the label is missing; name the column of {path} that holds the classes."
        raise OptionMissing(what, "label")
    how = {"drop": drop, "delimiter": delimiter, "declared": declared, "fill": fill}
    return read_csv(path, label=label, ids=ids, **how)


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


# --- NPZ ------------------------------------------------------------------------------------------


def read_npz(
    path: Path,
    *,
    features: str = "features",
    label: str | None = "label",
    ids: str | None = None,
    fill: bool = False,
) -> Table:
    """The records of an NPZ file: an n × d array of numbers, n labels and perhaps n ids.

    Args:
        path: the file.
        features, label, ids: names of its arrays; no label is read where its name is None.
        fill: whether NaN is a missing value that will be filled.

    Raises:
        InputError: no such arrays, arrays of Python objects (a pickle is never executed), other
            shapes, or numbers that are not finite.
    """
    wanted = [name for name in (features, label, ids) if name is not None]
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            for name in wanted:
                if name not in stored.files:
                    raise InputError(
                        f"{path} has no array {name!r}; {closest(name, stored.files)}."
                    )
            _require_memory(path, *_announced(stored, features))
            found = {name: _array(path, stored, name) for name in wanted}
    except InputError:
        raise
    except (zipfile.BadZipFile, zlib.error, ValueError, EOFError, TypeError, RuntimeError):
        raise InputError(f"{path} is not a readable NPZ file; write it with numpy.savez.") from None
    numbers = _checked_numbers(path, features, found[features], fill)
    labels, names = (
        None if name is None else _checked_texts(path, what, name, found[name], len(numbers))
        for what, name in (("label", label), ("id", ids))
    )
    columns = tuple(f"{features}[:, {i}]" for i in range(numbers.shape[1]))
    return Table(columns, numbers, {}, labels, names)


def _announced(stored, name: str) -> tuple[int, int, int]:
    """Rows, columns and bytes per number of an array that was not read, from its header."""
    with stored.zip.open(f"{name}.npy") as member:
        first = np.lib.format.read_magic(member) == (1, 0)
        formats = np.lib.format
        read = formats.read_array_header_1_0 if first else formats.read_array_header_2_0
        shape, _, dtype = read(member)
    return (*shape, 1)[0], math.prod(shape[1:]), dtype.itemsize


def _require_memory(path: Path, rows: float, columns: int, bytes_each: int) -> None:
    """Refuse a table that cannot be read, checked, encoded and scaled in the memory there is.

    At most seven tables of doubles are held at once besides the file's own numbers, and a name for
    each column and each row.
    """
    needed = rows * columns * (bytes_each + 7 * 8) + 200 * (rows + columns)
    what = f"reading {path} (about {rows:,.0f} rows of {columns:,} columns)"
    memory.require(needed, what, "give fewer rows or columns")


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


def _checked_numbers(path: Path, name: str, numbers: np.ndarray, fill: bool) -> np.ndarray:
    if numbers.ndim != 2 or not numbers.size:
        raise InputError(f"array {name!r} of {path} has shape {numbers.shape}; give n × d numbers.")
    if numbers.dtype.kind not in "biuf":
        raise InputError(f"array {name!r} of {path} has dtype {numbers.dtype}; give real numbers.")
    numbers = numbers.astype(np.float64)
    numbers[np.isnan(numbers)] = np.nan  # one pattern of bits, as rows are told apart by theirs
    wrong = np.argwhere(np.isinf(numbers) if fill else ~np.isfinite(numbers))
    if len(wrong):
        row, column = wrong[0]
        raise InputError(
            f"{path} has {len(wrong):,} NaN or infinite values, the first in row {row}, column "
            f"{column} of {name!r}; remove or impute those rows first."
        )
    return numbers


def _checked_texts(path: Path, what: str, name: str, values: np.ndarray, n: int) -> np.ndarray:
    if values.shape != (n,):
        raise InputError(
            f"array {name!r} of {path} has shape {values.shape}, but there are {n} records; give "
            f"one {what} per record, shape ({n},)."
        )
    if np.issubdtype(values.dtype, np.inexact) and not np.isfinite(values).all():
        row = int(np.flatnonzero(~np.isfinite(values))[0])
        raise InputError(f"row {row} of {path} has {what} {values[row]}; remove that row first.")
    texts = np.array([str(value).strip() for value in values])
    missing = [row for row, text in enumerate(texts) if text.lower() in NO_TEXT]
    if missing:
        raise InputError(
            f"{path} has {len(missing):,} missing {what}s, the first, {str(texts[missing[0]])!r}, "
            f"in row {missing[0]}; remove those rows first."
        )
    return texts


# --- CSV ------------------------------------------------------------------------------------------


def read_csv(
    path: Path,
    *,
    label: str | None,
    ids: str | None = None,
    drop: Sequence[str] = (),
    only: Sequence[str] | None = None,
    delimiter: str | None = None,
    declared: Iterable[str] = (),
    fill: bool = False,
) -> Table:
    """The records of a CSV file with a header.

    Args:
        path: the file, UTF-8.
        label: name of the label column, or None to read no label.
        ids: name of a column that says whose record a row is; it is no feature.
        drop: names of columns to leave out.
        only: the columns to read besides those, all others are left out; None for all.
        delimiter: one character; by default the one of `DELIMITERS` that splits the header most.
        declared: columns that hold texts, whatever they look like.
        fill: whether missing values are accepted.

    Raises:
        InputError: anything that is not a table of finite numbers and texts.
    """
    if delimiter is not None and (len(delimiter) != 1 or delimiter in '"\n\r'):
        raise InputError(f"delimiter {delimiter!r}; give one character, for example ';'.")
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            return _table(path, file, label, ids, drop, only, delimiter, set(declared), fill)
    except UnicodeDecodeError:
        raise InputError(f"{path} is not UTF-8 text; save it as a UTF-8 CSV file.") from None
    except csv.Error as error:
        raise InputError(f"{path} is not a CSV file ({error}); save it as one.") from None


def header_of(path: Path, delimiter: str | None = None) -> tuple[str, ...]:
    """Names of the columns of a CSV file."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        line = file.readline()
    delimiter = _sniffed(line) if delimiter is None else delimiter
    return tuple(name.strip() for name in next(csv.reader([line], delimiter=delimiter), ()))


def _table(
    path: Path,
    file,
    label: str | None,
    ids: str | None,
    drop: Sequence[str],
    only: Sequence[str] | None,
    delimiter: str | None,
    declared: set[str],
    fill: bool,
) -> Table:
    """The records of an open file, in one pass; empty lines are skipped."""
    first_line = file.readline()
    if not first_line.strip():
        what = "is empty" if not first_line else "begins with an empty line"
        raise InputError(f"{path} {what}; give a header line with column names, then records.")
    delimiter = _sniffed(first_line) if delimiter is None else delimiter
    # About as many rows as the first one fits into the file.
    rows = (path.stat().st_size - len(first_line)) / max(1, len(file.readline()))
    _require_memory(path, rows, first_line.count(delimiter) + 1, 8)
    file.seek(0)
    reader = csv.reader(file, delimiter=delimiter)
    header = tuple(name.strip() for name in next(reader))
    named = {"label": label, "id": ids}
    places = {
        what: _place(path, header, name, delimiter)
        for what, name in named.items()
        if name is not None
    }
    _check_names(path, header, [name for name in named.values() if name is not None], drop)
    columns = _feature_columns(path, header, set(places.values()), drop, only, label)
    cells = _Cells(header, columns, declared & set(header))
    kept: dict[str, list[str]] = {what: [] for what in places}
    rows = 0
    for fields in filter(None, reader):
        row = f"row {rows} (line {reader.line_num})"
        if len(fields) != len(header):
            remedy = "give every row one field per column"
            if any("\n" in field for field in fields):
                remedy += ", and close every quotation mark (one field goes on over lines)"
            raise InputError(
                f"{row} of {path} has {len(fields)} fields, the header {len(header)}; {remedy}."
            )
        for what, place in places.items():
            kept[what].append(fields[place].strip())
            if kept[what][-1].lower() in NO_TEXT:
                cells.absent.append(f"{row}, {what} {header[place]!r}")
        cells.add(row, fields)
        rows += 1
    if not rows:
        raise InputError(f"{path} holds a header and no records; give at least two.")
    cells.refuse(path, fill)
    return Table(
        *cells.columns_of_numbers(rows),
        cells.columns_of_text(),
        np.array(kept["label"]) if "label" in kept else None,
        np.array(kept["id"]) if "id" in kept else None,
    )


def _sniffed(line: str) -> str:
    """The delimiter that splits the header into the most columns."""

    def columns(mark: str) -> int:
        try:
            return len(next(csv.reader([line], delimiter=mark)))
        except csv.Error:  # one field longer than csv's limit: not the delimiter of a long header
            return 0

    return max(DELIMITERS, key=columns)


def _place(path: Path, header: tuple[str, ...], name: str, delimiter: str) -> int:
    """Where a column that must be there is."""
    if name in header:
        return header.index(name)
    if all(_number(column) is not None for column in header):
        raise InputError(
            f"the first line of {path} holds numbers, not names; add a header line that names the "
            f"columns, {name!r} among them."
        )
    if len(header) == 1:
        raise InputError(
            f"{path} has only one column when split at {delimiter!r}; name the delimiter, the "
            f"character between columns."
        )
    raise InputError(f"{path} has no column {name!r}; {closest(name, header)}.")


def _check_names(
    path: Path, header: tuple[str, ...], named: Sequence[str], drop: Sequence[str]
) -> None:
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
    if len(set(named)) < len(named):
        raise InputError(f"column {named[0]!r} is named as label and as id; name two columns.")
    for name in drop:
        if name in named:
            raise InputError(
                f"column {name!r} is the label or the id, which cannot be dropped; drop another."
            )
        if name not in seen:
            raise InputError(f"{path} has no column {name!r} to drop; {closest(name, header)}.")


def _feature_columns(
    path: Path,
    header: tuple[str, ...],
    taken: set[int],
    drop: Sequence[str],
    only: Sequence[str] | None,
    label: str | None,
) -> list[int]:
    """Places of the features; in the order that is asked for, where one is."""
    if only is not None:
        for name in only:
            if name not in header:
                raise InputError(f"{path} has no column {name!r}; {closest(name, header)}.")
        return [header.index(name) for name in only]
    found = [i for i, name in enumerate(header) if i not in taken and name not in set(drop)]
    if not found:
        raise InputError(f"{path} has no feature column besides {label!r}; give at least one.")
    return found


class _Cells:
    """The feature columns while a file is read, and the places of their defects.

    A file is read to its end, because the most important defect is reported, not the first one.
    """

    def __init__(self, header: tuple[str, ...], columns: list[int], declared: set[str]):
        self.header, self.columns, self.declared = header, columns, declared
        self.values = array("d")  # rows × columns; NaN in columns of text
        self.texts: dict[int, list[str]] = {i: [] for i in columns if header[i] in declared}
        self.known: dict[str, str] = {}  # equal texts are kept once
        self.rows = 0
        self.mixed: dict[str, tuple[str, str]] = {}
        self.missing: list[str] = []
        self.infinite: list[str] = []
        self.absent: list[str] = []  # labels and ids

    def add(self, row: str, fields: list[str]) -> None:
        """One row of the file."""
        numbers = [_number(fields[i]) for i in self.columns]
        if self.texts or None in numbers or not math.isfinite(sum(filter(None, numbers))):
            numbers = list(self._looked_at(row, fields, numbers))
        self.values.extend(math.nan if number is None else number for number in numbers)
        self.rows += 1

    def _looked_at(
        self, row: str, fields: list[str], numbers: list[float | None]
    ) -> Iterator[float | None]:
        """The numbers of a row that has texts or defects; texts are put aside."""
        for place, (i, number) in enumerate(zip(self.columns, numbers, strict=True)):
            name, field = self.header[i], fields[i].strip()
            low = field.lower()
            if i not in self.texts and number is None and low not in NO_NUMBER:
                if not self._is_new(place):
                    self.mixed.setdefault(name, (row, field))
                    yield None
                    continue
                self.texts[i] = [""] * self.rows
            if i in self.texts:
                self._add_text(row, i, field, number)
                yield None
            elif low in NO_NUMBER:
                self.missing.append(f"{row}, column {name!r}")
                yield None
            else:
                if not math.isfinite(number):  # pyright: ignore[reportArgumentType]
                    self.infinite.append(f"{row}, column {name!r}")
                yield number

    def _add_text(self, row: str, i: int, field: str, number: float | None) -> None:
        name = self.header[i]
        if name not in self.declared:
            if field.lower() in NO_TEXT:
                self.missing.append(f"{row}, column {name!r}")
                field = ""
            elif number is not None:
                self.mixed.setdefault(name, (row, field))
        self.texts[i].append(self.known.setdefault(field, field))

    def _is_new(self, place: int) -> bool:
        """Whether a column of numbers has had no number yet."""
        return all(math.isnan(value) for value in self.values[place :: len(self.columns)])

    def columns_of_numbers(self, rows: int) -> tuple[tuple[str, ...], np.ndarray]:
        """Names and values, rows × columns."""
        kept = [place for place, i in enumerate(self.columns) if i not in self.texts]
        values = np.array(self.values).reshape(rows, len(self.columns))
        return tuple(self.header[self.columns[place]] for place in kept), values[:, kept]

    def columns_of_text(self) -> dict[str, np.ndarray]:
        """The columns of text by their names, in the file's order."""
        found = ((i, self.texts[i]) for i in self.columns if i in self.texts)
        return {self.header[i]: np.array(texts, object) for i, texts in found}

    def refuse(self, path: Path, fill: bool) -> None:
        """Refuse a file with defects."""
        for i, texts in self.texts.items():
            name = self.header[i]
            if name not in self.declared and _only_commas(texts):
                raise InputError(
                    f"column {name!r} of {path} holds numbers with a comma ({texts[0]!r}); write "
                    f"numbers with a decimal point."
                )
        if self.mixed:
            names = list(self.mixed)
            where, found = self.mixed[names[0]]
            shown = found if len(found) <= 30 else found[:29] + "…"
            raise InputError(
                f"column{'s' * (len(names) > 1)} {listed(names)} of {path} hold"
                f"{'s' * (len(names) == 1)} numbers and text ({where} holds {shown!r}); correct "
                f"the values, declare the categories, or drop the column."
            )
        unfilled = "remove or impute those rows first, or have them filled"
        for places, what, remedy in (
            (self.absent, "missing value", "remove those rows first"),
            ([] if fill else self.missing, "missing value", unfilled),
            (self.infinite, "infinite value", "remove those rows or bound the values first"),
        ):
            if places:
                count = f"{len(places):,} {what}{'s' if len(places) > 1 else ''}"
                said = f"{path} has {count}, the first in {places[0]}; {remedy}."
                raise OptionMissing(said, "fill") if remedy == unfilled else InputError(said)


def _only_commas(texts: Sequence[str]) -> bool:
    """Whether every text would be a number with a decimal point."""
    return all(_number(text.replace(",", ".")) is not None for text in set(texts) - {""})


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
