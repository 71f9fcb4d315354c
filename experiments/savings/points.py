"""Every run behind the savings: which system, at which target, in which panel."""

from collections.abc import Iterator
from typing import NamedTuple

from experiments.savings import cases
from experiments.savings.cases import Target
from experiments.savings.orders import ACCELERATED, DESCENTS, PAPER, SECRET, STATELESS


class Point(NamedTuple):
    """One run: the panel and the row it belongs to, its place on the axis, and its target."""

    panel: str
    row: str
    place: float
    target: Target


def points(config) -> Iterator[Point]:
    """Every run of the figure."""
    base = config.target
    constant = base._replace(risk=config.constant_risk)
    for row in DESCENTS:
        for n in config.sizes if row != STATELESS else config.stateless_sizes:
            yield Point("n", row, n, base._replace(n=n))
        for n in config.constant_sizes:
            yield Point("constant", row, n, constant._replace(n=n))
        for dim in config.dims:
            yield Point("d", row, dim, base._replace(dim=dim))
        for epsilon in config.epsilons:
            yield Point("epsilon", row, epsilon, base._replace(epsilon=epsilon))
        for edits in config.edits:
            yield Point("r", row, edits, base._replace(edits=edits))
    for n in config.accelerated_sizes:
        yield Point("constant", ACCELERATED, n, constant._replace(n=n))
    for dim in config.dims:
        yield Point("d", ACCELERATED, dim, constant._replace(dim=dim))


def make_case(config, row: str, target: Target) -> cases.Case:
    """The system of a row of the table, calibrated for a target."""
    if row == ACCELERATED:
        return cases.accelerated(target, config.accelerated_scale, config.accelerated_batch_factor)
    if row in (SECRET, STATELESS):
        return cases.perturbed(target, secret=row == SECRET)
    return cases.noisy_gd_paper(target) if row == PAPER else cases.noisy_gd(target)
