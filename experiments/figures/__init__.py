"""The figures of the report, one module each.

A module of this package has

    TITLE                            a heading
    Config                           a frozen dataclass; its defaults are the quick scale
    FULL                             the Config of the full scale
    compute(config, context)         the numbers, as named arrays
    plot(config, results)            a matplotlib figure of them
    caption(config, results)         what to see and which claim it tests, with this run's numbers;
                                     lines of it are lines on the page
    tables(config, results)          optional: `Table`s that the page shows beside the figure
    certificate(config)              optional: the `dd.Certificate` that the figure runs under

so that a figure can be drawn anew from its saved arrays, without computing. A table whose columns
include certified, exact, audited and verdict gives the page's cards of claims about this library.
"""

import importlib
from collections.abc import Sequence
from types import ModuleType
from typing import Any, NamedTuple

from dd_jax.errors import InputError

# In the order of the page.
NAMES = (
    "two_phase",
    "steps_needed",
    "savings",
    "risk_stream",
    "privacy_utility",
    "median_attack",
    "secret_state",
    "adaptive_deletion",
    "clipping",
    "nonconvex",
    "real_data",
    "audit_power",
    "sequential",
)


class Table(NamedTuple):
    """Rows that the page shows as a table that can be sorted.

    Attributes:
        title: a line above the table.
        columns: a heading for each column.
        rows: cells: numbers, text, or None where a cell has no value.
        unit: what the numbers of a table of claims are, for the cards.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    unit: str = ""


def chosen(names: Sequence[str] = ()) -> list[str]:
    """The named figures, all by default, in the order of the page.

    Raises:
        InputError: a name that is no figure's.
    """
    for name in names:
        if name not in NAMES:
            raise InputError(f"there is no figure {name!r}; choose from {', '.join(NAMES)}.")
    return [name for name in NAMES if not names or name in names]


def load(name: str) -> ModuleType:
    """The module of a figure."""
    return importlib.import_module(f"experiments.figures.{name}")
