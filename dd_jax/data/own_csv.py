"""A user's own CSV file as numbers and labels; every defect is one sentence that says where it is.

Rows are numbered from 0, the first record after the header. Files are parsed in bulk; only one with
a defect is read a second time, field by field, to find it.
"""

import csv
import difflib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dd_jax.errors import InputError

DELIMITERS = ",;\t|"
# '-' and 'none' are fair names of a class, but no numbers.
NO_LABEL = frozenset({"", "?", "na", "n/a", "<na>", "nan", "null"})
NO_NUMBER = NO_LABEL | {"-", ".", "none"}
MOST_LISTED = 12


class RawTable(NamedTuple):
    """Records as they stand in a file.

    Attributes:
        columns: names of the feature columns.
        features: n × d numbers, all finite.
        label: the n labels as text.
    """

    columns: tuple[str, ...]
    features: np.ndarray
    label: np.ndarray


class _Layout(NamedTuple):
    """Where things are in a file: its header, the delimiter, which columns are what."""

    path: Path
    header: tuple[str, ...]
    header_lines: int
    delimiter: str
    label: int
    features: tuple[int, ...]


def read_csv(
    path: Path, *, label: str, drop: Sequence[str] = (), delimiter: str | None = None
) -> RawTable:
    """The records of a CSV file with a header.

    Args:
        path: the file, UTF-8.
        label: name of the label column.
        drop: names of columns to leave out.
        delimiter: one character; the one of `DELIMITERS` that splits the header most unless given.

    Raises:
        InputError: anything that is not a table of finite numbers with one label per row.
    """
    if delimiter is not None and (len(delimiter) != 1 or delimiter in '"\n\r'):
        raise InputError(f"delimiter {delimiter!r}; give one character, for example ';'.")
    try:
        layout = _layout(path, label, drop, delimiter)
        return _in_bulk(layout) or _field_by_field(layout)
    except UnicodeDecodeError:
        raise InputError(f"{path} is not UTF-8 text; save it as a UTF-8 CSV file.") from None
    except csv.Error as error:
        raise InputError(f"{path} is no CSV file ({error}); save it as one.") from None


def closest(name: str, known: Iterable[str]) -> str:
    """The known names in words, after the one that comes nearest."""
    known = list(known)
    near = [k for k in known if k.lower() == name.lower()]
    near = near or difflib.get_close_matches(name, known, 1)
    return (f"did you mean {near[0]!r}? " if near else "") + f"there are {listed(known)}"


def listed(names: Sequence[str]) -> str:
    """Names in quotes, the first few of many."""
    shown = ", ".join(repr(name) for name in names[:MOST_LISTED])
    return shown if len(names) <= MOST_LISTED else f"{shown}, … ({len(names)} in all)"


# --- header ---------------------------------------------------------------------------------------


def _layout(path: Path, label: str, drop: Sequence[str], delimiter: str | None) -> _Layout:
    with path.open(encoding="utf-8-sig", newline="") as file:
        first_line = file.readline()
        if not first_line.strip():
            what = "is empty" if not first_line else "begins with an empty line"
            raise InputError(f"{path} {what}; give a header line with column names, then records.")
        delimiter = _sniffed(first_line) if delimiter is None else delimiter
        file.seek(0)
        reader = csv.reader(file, delimiter=delimiter)
        header = tuple(name.strip() for name in next(reader))
        lines = reader.line_num
        label_index = _label_index(path, header, label, delimiter)
        _check_names(path, header, label, drop)
        if not any(reader):
            raise InputError(f"{path} holds a header and no records; give at least two.")
    features = tuple(
        i for i, name in enumerate(header) if i != label_index and name not in set(drop)
    )
    if not features:
        raise InputError(f"{path} has no feature column besides {label!r}; give at least one.")
    return _Layout(path, header, lines, delimiter, label_index, features)


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
            f"{path} has one column when split at {delimiter!r}; name the character between "
            f"columns, the delimiter."
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
            raise InputError(f"no column {name!r} of {path} to drop; {closest(name, header)}.")


# --- records --------------------------------------------------------------------------------------


def _in_bulk(layout: _Layout) -> RawTable | None:
    """All records at once, or None where some field is not a finite number."""
    codes: dict[str, float] = {}

    def code(text: str) -> float:
        return codes.setdefault(text.strip(), float(len(codes)))

    unread = set(range(len(layout.header))) - set(layout.features)
    # Dropped columns are read as zeros and not skipped, so that rows of another length are noticed.
    converters: dict[int | str, Callable[[str], float]] = {
        i: code if i == layout.label else (lambda text: 0.0) for i in unread
    }
    try:
        table = np.loadtxt(
            str(layout.path),
            delimiter=layout.delimiter,
            skiprows=layout.header_lines,
            converters=converters,
            comments=None,
            quotechar='"',
            encoding="utf-8-sig",
            ndmin=2,
        )
    except UnicodeDecodeError:
        raise
    except ValueError:
        return None
    label = np.array(list(codes))[table[:, layout.label].astype(int)]
    features = table[:, layout.features]
    as_expected = (
        table.shape[1] == len(layout.header)
        and np.isfinite(features).all()
        and not any(name.lower() in NO_LABEL for name in codes)
    )
    return RawTable(_names(layout), features, label) if as_expected else None


def _names(layout: _Layout) -> tuple[str, ...]:
    return tuple(layout.header[i] for i in layout.features)


def _field_by_field(layout: _Layout) -> RawTable:
    """The records one field after another; raises for the first defect that matters most."""
    features: list[list[float]] = []
    labels: list[str] = []
    text: dict[int, tuple[str, str]] = {}
    missing: list[str] = []
    infinite: list[str] = []
    for row, line, fields in _records(layout):
        numbers = []
        for i in layout.features:
            field = fields[i].strip()
            where = f"row {row} (line {line}), column {layout.header[i]!r}"
            value = _number(field)
            if field.lower() in NO_NUMBER:
                missing.append(where)
            elif value is None:
                text.setdefault(i, (f"row {row} (line {line})", field))
            elif not math.isfinite(value):
                infinite.append(where)
            numbers.append(math.nan if value is None else value)
        features.append(numbers)
        labels.append(fields[layout.label].strip())
        if labels[-1].lower() in NO_LABEL:
            missing.append(f"row {row} (line {line}), label {layout.header[layout.label]!r}")
    _refuse(layout, text, missing, infinite)
    return RawTable(_names(layout), np.array(features), np.array(labels))


def _records(layout: _Layout) -> Iterator[tuple[int, int, list[str]]]:
    """(row, line, fields) of every record; empty lines count for nothing."""
    with layout.path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(file, delimiter=layout.delimiter)
        next(reader)
        row = 0
        for fields in reader:
            if not fields:
                continue
            if len(fields) != len(layout.header):
                remedy = "give every row one field per column"
                if any("\n" in field for field in fields):
                    remedy += ", and close every quotation mark (one field goes on over lines)"
                raise InputError(
                    f"row {row} (line {reader.line_num}) of {layout.path} has {len(fields)} "
                    f"fields, the header {len(layout.header)}; {remedy}."
                )
            yield row, reader.line_num, fields
            row += 1


def _refuse(layout: _Layout, text: dict, missing: list[str], infinite: list[str]) -> None:
    path = layout.path
    if text:
        names = [layout.header[i] for i in text]
        kind = f"column {names[0]!r}" if len(names) == 1 else f"columns {listed(names)}"
        dropped = " ".join(repr(name) if " " in name or not name else name for name in names)
        remedy = f"drop {dropped}, or encode as numbers"
        if all(_number(found.replace(",", ".")) is not None for _, found in text.values()):
            remedy = "write numbers with a decimal point"
        where, found = next(iter(text.values()))
        raise InputError(
            f"{kind} of {path} hold{'s' if len(names) == 1 else ''} text "
            f"({where} holds {_shortened(found)!r}); {remedy}."
        )
    for places, what, remedy in (
        (missing, "missing value", "remove or impute those rows"),
        (infinite, "infinite value", "remove those rows or bound the values"),
    ):
        if places:
            count = f"{len(places):,} {what}{'s' if len(places) > 1 else ''}"
            raise InputError(f"{path} has {count}, the first in {places[0]}; {remedy} first.")


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _shortened(text: str) -> str:
    return text if len(text) <= 30 else text[:29] + "…"
