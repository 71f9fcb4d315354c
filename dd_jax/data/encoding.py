"""What each column of a table became: the map of its rows into the unit ball, as a value.

Certificates hold for rows of norm at most 1. A map made from what is declared, or from each row
alone, is fixed before any record is seen. Measured ranges and categories depend on every record,
and no deletion undoes that, so that a caveat about such a map is part of every certificate.

An `Encoding` is immutable and has a form as JSON, so that new rows are encoded exactly alike.
"""

import collections
import dataclasses
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dd_jax import checks
from dd_jax.data.tables import NO_TEXT, Table, closest, listed
from dd_jax.errors import InputError

# A value at a bound may lie beyond it by the rounding of its decimal digits.
ROUNDING = 1e-9
# Bounds up to this can be added, subtracted and squared without overflow.
LARGEST_BOUND = 1e150
# More texts than this in a column are names or prose, not categories.
MOST_CATEGORIES = 100
# The category of every text that is not named.
OTHER = "*"
# In place of a category's number.
_MISSING, _UNKNOWN = -1, -2

Range = tuple[float, float]
Categories = tuple[str, ...]


@dataclass(frozen=True)
class Bounds:
    """What is declared about the features; what is not declared is measured.

    Attributes:
        norm: the largest norm that the numbers of a row can have.
        lower, upper: one range for all columns of numbers, or for those that `ranges` leaves out.
        ranges: for each column by its name, the range of its numbers, or the list of its texts;
            the text "*" in a list stands for every other text.
        unit_rows: divide every row by its own norm (after ranges, if they are given).
        fill: accept missing values; they count as 0, the middle of a range and no category.
        public: the features come from a map that was fixed without these records, such as a frozen
            network trained on public data.
    """

    norm: float | None = None
    lower: float | None = None
    upper: float | None = None
    ranges: Mapping[str, Range | Categories] | None = None
    unit_rows: bool = False
    fill: bool = False
    public: bool = False

    def __post_init__(self):
        if (self.lower is None) != (self.upper is None):
            raise InputError("lower and upper belong together; give both or neither.")
        common = self.lower is not None
        if self.norm is not None and (common or self._has_number_ranges):
            raise InputError("give only one of: a norm, ranges of numbers.")
        if self.norm is not None:
            if self.unit_rows:
                raise InputError(
                    "unit rows have norm 1 and need no bound on the norm; drop one of the two."
                )
            checks.positive("norm", self.norm, most=LARGEST_BOUND)
        if common:
            _check_range("lower and upper", self.lower, self.upper)

    @property
    def _has_number_ranges(self) -> bool:
        return any(not _is_categories(found) for found in (self.ranges or {}).values())

    @property
    def categories(self) -> dict[str, Categories]:
        """The declared columns of text."""
        found = (self.ranges or {}).items()
        return {name: tuple(map(str, texts)) for name, texts in found if _is_categories(texts)}

    @property
    def measures_ranges(self) -> bool:
        """Whether ranges of numbers are measured."""
        declared = (self.norm, self.lower) != (None, None) or self.unit_rows
        return not declared and not self._has_number_ranges


def _is_categories(found: Any) -> bool:
    return all(isinstance(item, str) for item in found)


@dataclass(frozen=True)
class Encoding:
    """The map from a row of a table to a vector of norm at most 1.

    Numbers come first, each from its range to [-1, 1] or as it is; then one 0 or 1 for each
    category of each column of text. Then all is divided by a constant, or by the row's own norm.

    Attributes:
        numbers: names of the columns of numbers.
        ranges: their ranges; None takes numbers as they are.
        categories: the columns of text and their categories, in order.
        norm: the largest norm of the numbers of a row; None where there is no such bound.
        unit_rows: whether every row is divided by its own norm.
        fill: whether missing values are accepted.
        measured: what was measured on records: "ranges", "categories", both or nothing.
        public: whether the numbers are declared to come from a map that is fixed without records.
        prepared: how rows were made that come encoded already, in words; else empty.
    """

    numbers: tuple[str, ...]
    ranges: tuple[Range, ...] | None = None
    categories: tuple[tuple[str, Categories], ...] = ()
    norm: float | None = None
    unit_rows: bool = False
    fill: bool = False
    measured: tuple[str, ...] = ()
    public: bool = False
    prepared: str = ""

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the encoded features."""
        made = (f"{name}={text}" for name, texts in self.categories for text in texts)
        return (*self.numbers, *made)

    @property
    def divisor(self) -> float:
        """A bound on the norm of a row before it is divided, where rows are not made unit rows.

        A column of text has norm 1 or 0, however many categories it has.
        """
        if self.prepared:
            return 1.0
        of_numbers = len(self.numbers) if self.ranges is not None else 1
        return math.sqrt((of_numbers if self.numbers else 0) + len(self.categories))

    @property
    def words(self) -> str:
        """The map, as certificates print it."""
        if self.prepared:
            return self.prepared
        said = []
        if self.norm is not None:
            said.append(f"divided by the declared {self.norm:g}")
        elif self.ranges is not None:
            kind = "MEASURED" if "ranges" in self.measured else "declared"
            said.append(f"mapped from {kind} ranges to [-1, 1]")
        elif self.numbers:
            said.append("taken as they are")
        if self.categories:
            kind = "MEASURED" if "categories" in self.measured else "declared"
            many = len(self.categories)
            said.append(f"{many} column{'s' * (many > 1)} of text as 0/1 of {kind} categories")
        if self.fill:
            said.append("missing values as 0")
        text = "; ".join(said)
        if self.unit_rows:
            text += ", then every row divided by its norm"
        elif self.norm is None or self.categories:
            text += f", divided by √{round(self.divisor**2)}"
        return (
            f"{text}; made by a map that was fixed without them (declared)" if self.public else text
        )

    @property
    def caveat(self) -> str:
        """Why certificates do not cover the map; empty if they do."""
        if not self.measured:
            return ""
        what = " and ".join(self.measured)
        return (
            f"feature {what} were MEASURED on the records, so that the encoding depends on every "
            f"record and no deletion undoes it: the guarantees assume a fixed encoding and do not "
            f"cover this one; declare ranges, categories or a largest norm that are known without "
            f"the records, or divide each row by its norm"
        )

    def encode(self, table: Table) -> np.ndarray:
        """The rows of a table as n × d features.

        Raises:
            InputError: columns that are missing or of another kind, a value beyond its declared
                range or norm, a category that was not declared, a missing value that is not
                filled; the message names row and column.
        """
        numbers = self._numbers(table)
        if self.prepared:
            return numbers
        if self.norm is not None:
            _check_norms(self.numbers, numbers, self.norm)
            numbers = numbers / self.norm
        elif self.ranges is not None and self.numbers:
            lower, upper = np.array(self.ranges).T
            if "ranges" not in self.measured:
                _check_ranges(self.numbers, numbers, lower, upper)
            numbers = _centred(numbers, lower, upper)
        parts = [np.nan_to_num(numbers, nan=0.0, posinf=np.inf, neginf=-np.inf)]
        parts += [self._indicators(table, name, texts) for name, texts in self.categories]
        features = np.concatenate(parts, axis=1)
        return _unit_rows(features) if self.unit_rows else features / self.divisor

    def _numbers(self, table: Table) -> np.ndarray:
        """The columns of numbers in the encoding's order."""
        if table.columns == self.numbers:
            numbers = table.numbers
        else:
            for name in self.numbers:
                if name in table.texts:
                    raise InputError(
                        f"column {name!r} holds text ({table.texts[name][0]!r}), where numbers are "
                        f"needed; write numbers."
                    )
                if name not in table.columns:
                    raise InputError(
                        f"there is no column {name!r}; {closest(name, table.columns)}."
                    )
            numbers = table.numbers[:, [table.columns.index(name) for name in self.numbers]]
        gaps = np.argwhere(np.isnan(numbers))
        if len(gaps) and not self.fill:
            row, column = gaps[0]
            raise InputError(
                f"row {row}, column {self.numbers[column]!r} has no value; remove the row, or "
                f"have missing values filled."
            )
        return numbers

    def unknown(self, table: Table) -> int:
        """How many texts are none of the measured categories, so that they count as none."""
        return sum(int(np.sum(self._places(table, *pair) == _UNKNOWN)) for pair in self.categories)

    def _indicators(self, table: Table, name: str, texts: Categories) -> np.ndarray:
        """0 or 1 for each category of a column."""
        chosen = self._places(table, name, texts)
        return (chosen[:, None] == np.arange(len(texts))).astype(np.float64)

    def _places(self, table: Table, name: str, texts: Categories) -> np.ndarray:
        """The place of each row's text among the categories; negative where it is none of them."""
        if name not in table.texts:
            raise InputError(f"there is no column of text {name!r}; {closest(name, table.texts)}.")
        places = {text: place for place, text in enumerate(texts)}
        found = {text: self._category(table, name, text, places) for text in set(table.texts[name])}
        return np.array([found[text] for text in table.texts[name]])

    def _category(self, table: Table, name: str, text: str, places: dict[str, int]) -> int:
        if text in places:
            return places[text]
        if text.lower() in NO_TEXT:
            if self.fill:
                return _MISSING
            remedy = "has no value; remove the row, or have missing values filled"
        elif OTHER in places:
            return places[OTHER]
        elif "categories" in self.measured:
            return _UNKNOWN
        else:
            remedy = (
                f"holds {text!r}, which is not among the declared categories "
                f"({listed(list(places))}); correct it, or declare it or {OTHER!r} for all others"
            )
        row = int(np.flatnonzero(table.texts[name] == text)[0])
        raise InputError(f"row {row}, column {name!r} {remedy}.")

    def to_json(self) -> str:
        """One JSON object with the fields; `from_json` reads it back."""
        return json.dumps(dataclasses.asdict(self), ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> "Encoding":
        """The encoding that `to_json` wrote.

        Raises:
            InputError: not the text of an encoding.
        """
        try:
            found = json.loads(text)
            kinds = {field.name: field for field in dataclasses.fields(cls)}
            if not isinstance(found, dict) or set(found) != set(kinds):
                raise ValueError("fields")
            made = cls(
                numbers=_texts(found["numbers"]),
                ranges=None
                if found["ranges"] is None
                else tuple(_pair(*pair) for pair in found["ranges"]),
                categories=tuple(
                    (_text(name), _texts(texts)) for name, texts in found["categories"]
                ),
                norm=None
                if found["norm"] is None
                else float(checks.positive("norm", found["norm"])),
                unit_rows=_flag(found["unit_rows"]),
                fill=_flag(found["fill"]),
                measured=_texts(found["measured"]),
                public=_flag(found["public"]),
                prepared=_text(found["prepared"]),
            )
            if made.ranges is not None and len(made.ranges) != len(made.numbers):
                raise ValueError("ranges")
        except (TypeError, ValueError, RecursionError):
            raise InputError("this is not the text of an encoding; make the model again.") from None
        return made


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(value)
    return value


def _texts(values: Any) -> tuple[str, ...]:
    if not isinstance(values, list):
        raise ValueError(values)
    return tuple(map(_text, values))


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(value)
    return value


def _pair(low: Any, high: Any) -> Range:
    if not all(checks.is_number(bound) and math.isfinite(bound) for bound in (low, high)):
        raise ValueError("range")
    return float(low), float(high)


# --- from what is declared ------------------------------------------------------------------------


def fit(bounds: Bounds, table: Table, training: np.ndarray) -> Encoding:
    """The encoding that the bounds declare; what they do not declare is measured.

    Args:
        bounds: what is declared.
        table: all records of a file.
        training: which rows are private records, n × bool: measured are these alone.

    Raises:
        InputError: declarations that do not fit the columns, texts that are no categories, a column
            without a value.
    """
    ranges, measured = None, []
    numbers = table.columns
    if bounds.ranges is not None:
        known = (*numbers, *table.texts)
        for name, found in bounds.ranges.items():
            if name not in known:
                raise InputError(
                    f"ranges name {name!r}, which is not a feature of the file; "
                    f"{closest(name, known)}."
                )
            if name in table.texts and not _is_categories(found):
                raise InputError(
                    f"ranges give {name!r} numbers, but it holds text; list its categories."
                )
    if bounds.measures_ranges and numbers:
        ranges = _measured_ranges(numbers, table.numbers[training])
        measured.append("ranges")
    elif bounds.lower is not None or bounds._has_number_ranges:
        ranges = _declared_ranges(bounds, numbers)
    categories = []
    for name, texts in table.texts.items():
        found = bounds.categories.get(name)
        if found is None and bounds.ranges is not None:
            raise InputError(f"ranges are missing for the text of {name!r}; list its categories.")
        if found is None:
            found = _measured_categories(name, texts[training])
            measured.append("categories")
        categories.append((name, found))
    return Encoding(
        numbers,
        ranges,
        tuple(categories),
        bounds.norm,
        bounds.unit_rows,
        bounds.fill,
        tuple(dict.fromkeys(measured)),
        bounds.public,
    )


def _measured_ranges(columns: tuple[str, ...], numbers: np.ndarray) -> tuple[Range, ...]:
    empty = np.flatnonzero(np.isnan(numbers).all(axis=0))
    if len(empty):
        raise InputError(f"column {columns[empty[0]]!r} has no value to learn from; drop it.")
    lower, upper = np.nanmin(numbers, axis=0), np.nanmax(numbers, axis=0)
    return tuple(zip(lower.tolist(), upper.tolist(), strict=True))


def _measured_categories(name: str, texts: np.ndarray) -> Categories:
    found = sorted(text for text in set(texts) if text.lower() not in NO_TEXT)
    if not found:
        raise InputError(f"column {name!r} has no value to learn from; drop it.")
    if len(found) > MOST_CATEGORIES:
        raise InputError(
            f"column {name!r} holds {len(found):,} different texts ({found[0]!r}, …), which is too "
            f"many for categories; drop it, name it as the id, or declare its categories."
        )
    return tuple(found)


def _declared_ranges(bounds: Bounds, columns: tuple[str, ...]) -> tuple[Range, ...]:
    given = bounds.ranges or {}
    absent = [name for name in columns if name not in given]
    if absent and bounds.lower is None:
        raise InputError(
            f"ranges are missing for {listed(absent)}; give every feature a range, or one lower "
            f"and upper bound for the others."
        )
    common = (bounds.lower, bounds.upper)
    return tuple(_pair(*given.get(name, common)) for name in columns)


def read_ranges(path: Path) -> dict[str, Range | Categories]:
    """What a JSON file such as {"age": [0, 120], "city": ["Bern", "Rome", "*"]} declares."""
    if not path.is_file():
        raise InputError(f"there is no file of ranges {path}; check the name.")
    remedy = 'write {"column": [lower, upper], "text column": ["one", "other"], …}'

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
    return {name: _declared(path, name, value, remedy) for name, value in found.items()}


def _declared(path: Path, name: str, value: Any, remedy: str) -> Range | Categories:
    """A range of numbers, or a list of different texts."""
    if isinstance(value, list) and value and all(isinstance(text, str) for text in value):
        texts = tuple(text.strip() for text in value)
        if len(set(texts)) < len(texts):
            raise InputError(f"ranges {path}: {name!r} lists a text twice; list it once.")
        return texts
    if not (isinstance(value, list) and len(value) == 2 and all(map(checks.is_number, value))):
        raise InputError(f"ranges {path}: {name!r} has {value!r}; {remedy}.")
    _check_range(f"ranges {path}: {name!r}", *value)
    return float(value[0]), float(value[1])


# --- the map --------------------------------------------------------------------------------------


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


def _check_ranges(columns, features, lower, upper) -> None:
    slack = ROUNDING * (upper - lower)
    inside = (features >= lower - slack) & (features <= upper + slack)
    beyond = ~inside & ~np.isnan(features)
    if beyond.any():
        row, column = np.argwhere(beyond)[0]
        raise InputError(
            f"row {row}, column {columns[column]!r} holds {features[row, column]:g}, beyond the "
            f"declared [{lower[column]:g}, {upper[column]:g}] ({beyond.sum():,} such values); "
            f"declare a wider range or remove the row."
        )


def _check_norms(columns, features, norm: float) -> None:
    features = np.nan_to_num(features, nan=0.0, posinf=np.inf, neginf=-np.inf)
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
