"""Bounds on a user's own features, declared or measured, and the map into the unit ball.

Certificates hold for rows of norm at most 1. A map made from declared bounds, or from each row
alone, is fixed before any record is seen. Ranges that are measured depend on every record, and no
deletion undoes that: such a map carries a caveat into every certificate.
"""

import collections
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dd_jax.data.own_csv import closest, listed
from dd_jax.errors import InputError

# Values at a bound may miss it by the rounding of their decimal digits.
ROUNDING = 1e-9
# Bounds up to here can be added, subtracted and squared.
LARGEST_BOUND = 1e150

CAVEAT = (
    "feature ranges were MEASURED on the records, so the scaling depends on every record and no "
    "deletion undoes it: the guarantees take the scaling as fixed and do not cover it; declare "
    "ranges or a largest norm that are known without the records, or divide each row by its norm"
)


@dataclass(frozen=True)
class Bounds:
    """What is declared of the features; nothing at all means that ranges are measured.

    Attributes:
        norm: the most that a row's norm can be.
        lower, upper: the range of every column.
        ranges: the range of each column by its name, instead of one for all.
        unit_rows: divide every row by its own norm (after ranges, where they are given).
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
            raise InputError("give one of a norm, lower with upper, and ranges.")
        if self.norm is not None:
            if self.unit_rows:
                raise InputError(
                    "unit rows need no bound on the norm: every row gets norm 1; drop one."
                )
            if not 0 < self.norm <= LARGEST_BOUND:
                raise InputError(
                    f"the bound on the norm is {self.norm:g}; give a positive number, at most "
                    f"{LARGEST_BOUND:g}."
                )
        if common:
            _check_range("lower and upper", self.lower, self.upper)

    @property
    def measured(self) -> bool:
        """Whether nothing is declared."""
        return self == Bounds()


class Scaled(NamedTuple):
    """Features in the unit ball, and what was done to them.

    Attributes:
        features: n × d.
        words: the map, as certificates print it.
        caveat: why certificates do not cover the map, or nothing.
    """

    features: np.ndarray
    words: str
    caveat: str


def read_ranges(path: Path) -> dict[str, tuple[float, float]]:
    """The ranges of a JSON file such as {"age": [0, 120], "height": [0, 2.5]}."""
    if not path.is_file():
        raise InputError(f"ranges {path}: no such file; check the name.")
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
    except (ValueError, RecursionError):  # whole numbers of thousands of digits; a deep nest
        raise InputError(f"ranges {path} cannot be read; {remedy}.") from None
    if not isinstance(found, dict):
        raise InputError(f"ranges {path} holds no JSON object; {remedy}.")
    for name, pair in found.items():
        if not (isinstance(pair, list) and len(pair) == 2 and all(map(_is_number, pair))):
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
    # Halves first: the sum or difference of two large bounds could overflow.
    middle, half = lower / 2 + upper / 2, upper / 2 - lower / 2
    return np.where(half > 0, (features - middle) / np.where(half > 0, half, 1.0), 0.0)


def _unit_rows(features: np.ndarray) -> np.ndarray:
    """Rows of norm 1; a zero row stays zero."""
    largest = np.abs(features).max(axis=1, keepdims=True)
    features = features / np.where(largest > 0, largest, 1.0)  # squares that cannot overflow
    norms = np.linalg.norm(features, axis=1, keepdims=True)
    return features / np.where(norms > 0, norms, 1.0)


def _declared(bounds: Bounds, columns: tuple[str, ...]) -> tuple[np.ndarray, np.ndarray]:
    if bounds.ranges is None:
        return np.full(len(columns), bounds.lower), np.full(len(columns), bounds.upper)
    for name in bounds.ranges:
        if name not in columns:
            raise InputError(f"ranges name {name!r}, no feature; {closest(name, columns)}.")
    absent = [name for name in columns if name not in bounds.ranges]
    if absent:
        raise InputError(f"ranges say nothing of {listed(absent)}; give every feature a range.")
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
    with np.errstate(over="ignore"):  # infinity is beyond every bound
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
        raise InputError(f"{what}: [{low:g}, {high:g}] is no range; give lower < upper.")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
