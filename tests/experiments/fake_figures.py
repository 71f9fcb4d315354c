"""Figures that cost nothing, for tests of the report and its page."""

import sys
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
from matplotlib.figure import Figure

from dd_jax.cli import style
from experiments import figures, report
from experiments.page import Table


@dataclass(frozen=True)
class Config:
    points: int = 4
    seed: int = 0


CLAIMS = Table(
    "Claims",
    ("claim", "audited", "exact", "certified", "verdict"),
    [
        ("tight", np.float64(0.9), 1.0, 1.0, "consistent"),
        ("unknown truth", 0.2, np.nan, 1.0, "consistent"),
    ],
    "divergence",
)


def figure(name: str, **changes) -> SimpleNamespace:
    """A module of the contract that counts in `calls` how often it computes."""
    made = SimpleNamespace(
        __name__=f"experiments.figures.{name}",
        __file__=__file__,
        TITLE=f"The figure {name}",
        Config=Config,
        FULL=Config(points=8),
        calls=[],
        CAPTION=f"Points of {name}.",
        NOTE="Counted by hand.",
    )

    def compute(config, runner):
        made.calls.append((config, runner))
        return {"value": np.arange(config.points) / 3, "words": np.array(["a", "b"])}

    made.compute = compute
    made.plot = lambda config, results: Figure(figsize=(1, 1))
    made.tables = lambda config, results: [Table("Points", ("points",), [(len(results["value"]),)])]
    for key, value in changes.items():
        setattr(made, key, value)
    return made


def plot(config, results) -> Figure:
    """Two panels with axes and a legend; takes a while to draw."""
    drawn, (left, right) = style.panels(1, 2)
    left.plot(results["value"], label="value")
    right.plot(results["value"][::-1])
    left.legend()
    return drawn


def raising(error: BaseException):
    """A function of any arguments that raises."""

    def raise_it(*_):
        raise error

    return raise_it


def install(monkeypatch, *modules: SimpleNamespace) -> None:
    """Make these the only figures."""
    names = [module.__name__.split(".")[-1] for module in modules]
    monkeypatch.setattr(figures, "NAMES", tuple(names))
    for module in modules:
        monkeypatch.setitem(sys.modules, module.__name__, module)


def write(folder, *, said=None, **options) -> report.Report:
    """The report of the installed figures."""
    said = [] if said is None else said
    return report.write_report(
        report.Options(folder, **options), lambda schedule, text: said.append(text)
    )
