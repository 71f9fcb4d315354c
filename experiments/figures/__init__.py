"""The figures of the report, one module each.

A module of this package has

    TITLE                            a heading
    Config                           a frozen dataclass; its defaults are the quick scale
    FULL                             the Config of the full scale
    compute(config, context)         the numbers, as named arrays
    plot(config, results)            a matplotlib figure of them
    caption(config, results)         what to see and which claim it tests, with this run's numbers
    tables(config, results)          optional: `Table`s that the page shows beside the figure

so that a figure can be drawn anew from its saved arrays, without computing.
"""

import importlib
from collections.abc import Sequence
from types import ModuleType
from typing import Any, NamedTuple

from dd_jax.errors import InputError

# In the order of the page.
NAMES = (
    "savings",
    "risk_stream",
    "audit_power",
    "sequential",
)


class Table(NamedTuple):
    """Rows that the page shows as a table that can be sorted.

    Attributes:
        title: a line above the table.
        columns: a heading for each column.
        rows: cells: numbers, text, or None where a cell has no value.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]


def find(names: Sequence[str] = ()) -> list[ModuleType]:
    """The modules of the named figures, all by default.

    Raises:
        InputError: a name that is no figure's.
    """
    for name in names:
        if name not in NAMES:
            raise InputError(f"there is no figure {name!r}; choose from {', '.join(NAMES)}.")
    return [importlib.import_module(f"experiments.figures.{name}") for name in names or NAMES]


def name_of(figure: ModuleType) -> str:
    """The figure's name: its module's."""
    return figure.__name__.split(".")[-1]
