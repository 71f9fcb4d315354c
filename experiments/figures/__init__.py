"""The figures of the report, one module each.

A module of this package has

    TITLE                        a heading
    CAPTION                      what to see and which claim it tests, in at most 80 words; the same
                                 text for every run; theorems are called by their names
    NOTE                         how it was made, in paragraphs that the page folds away
    Config                       a frozen dataclass; its defaults are the quick scale
    FULL                         the Config of the full scale
    compute(config, runner)      the numbers, as named arrays, computed with a `cache.Runner`
    plot(config, results)        a matplotlib figure of them
    tables(config, results)      this run's numbers in `page.Table`s, and a verdict wherever the
                                 program decides something
    certificate(config)          optional: the `dd.Certificate` that the figure runs under
    opening(config, results)     optional: (heading, number, words) of each tile with which the page
                                 begins, above the figure itself
    quick()                      optional: the Config of the quick scale, where it depends on which
                                 data were fetched

so that a figure can be drawn anew from its saved arrays, without computing. A table whose columns
include certified, exact, audited and verdict gives the page's cards of claims about this library.
"""

import importlib
from collections.abc import Sequence
from types import ModuleType

from dd_jax.errors import InputError

# In the order of the page.
NAMES = (
    "first_look",
    "two_phase",
    "schedules",
    "pooling",
    "steps_needed",
    "savings",
    "risk_stream",
    "privacy_utility",
    "median_attack",
    "secret_state",
    "adaptive_deletion",
    "clipping",
    "nonconvex",
    "nonconvex_saving",
    "real_data",
    "audit_power",
    "sequential",
    "targets",
)


def chosen(names: Sequence[str] = ()) -> list[str]:
    """The named figures, all by default, in the order of the page.

    Raises:
        InputError: a name that is not a figure.
    """
    for name in names:
        if name not in NAMES:
            raise InputError(f"there is no figure {name!r}; choose from {', '.join(NAMES)}.")
    return [name for name in NAMES if not names or name in names]


def load(name: str) -> ModuleType:
    """The module of a figure."""
    return importlib.import_module(f"experiments.figures.{name}")
