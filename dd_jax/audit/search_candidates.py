"""Neighbouring pairs for the search: hand-made worst cases, and random variations on a pair."""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from dd_jax.audit import samples
from dd_jax.audit.search_strategies import Strategy
from dd_jax.errors import InputError
from dd_jax.types import Domain, Edit, Labelled, apply_edit, num_records, replacement

# Far beyond any domain: projecting it gives the largest record of a direction.
_FAR = 1e6


class Candidate(NamedTuple):
    """A neighbouring pair and the way in which its record is deleted.

    Attributes:
        name: in words.
        strategy: the requester.
        database: 𝒟, which holds the record.
        neighbour: ⟨row, y⟩, what the other world holds in the record's row.
    """

    name: str
    strategy: Strategy
    database: PyTree
    neighbour: Edit


def hand_made(
    domain: Domain,
    database: PyTree,
    strategies: Sequence[Strategy],
    blank: PyTree,
    *,
    rows: Sequence[int] = (0, -1),
) -> list[Candidate]:
    """Worst cases by hand: for each row and requester, a record against its opposite and the blank.

    The records are the largest of the database, the largest that the domain allows in its
    direction, and the largest in the direction of the mean of all rows.

    Args:
        domain: 𝒳, as in `mechanism.domain`.
        database: 𝒟, of features (`Labelled` or bare) in floating point.
        strategies: the requesters.
        blank: the null record, with leading axis 1.
        rows: the rows that hold the record, negative ones counted from the end.
    """
    n = num_records(database)
    if not all(-n <= row < n for row in rows):
        raise InputError(f"rows = {tuple(rows)}; the database has rows 0 to {n - 1}.")
    records = _records(domain, database)
    found = []
    for strategy in strategies:
        for row in dict.fromkeys(row % n for row in rows):
            for words, record in records.items():
                world = apply_edit(database, replacement([row], record))
                for other, against in (("opposite", _scaled(record, -1.0)), ("blank", blank)):
                    name = f"{words} against {other}, row {row}, {strategy.name}"
                    found.append(Candidate(name, strategy, world, replacement([row], against)))
    return found


def _records(domain: Domain, database: PyTree) -> dict[str, PyTree]:
    """Records worth trying, each with leading axis 1, by name."""
    largest = _row(database, int(np.argmax(_norms(database))))
    mean = jax.tree.map(lambda leaf: jnp.mean(leaf, axis=0, keepdims=True), _features(database))
    aligned = largest._replace(features=mean) if isinstance(largest, Labelled) else mean
    return {
        "largest record": largest,
        "extreme record": domain.project(_scaled(largest, _FAR))[0],
        "aligned record": domain.project(_scaled(aligned, _FAR))[0],
    }


def vary(
    key: Array, candidate: Candidate, domain: Domain, scale: float, *, vary_others: bool = False
) -> Candidate:
    """The candidate with its record and the neighbour's (or all rows) moved at random.

    Floating-point leaves move by `scale` times their largest entry in the database times N(0, 1);
    class numbers are drawn anew from the database's rows. All is projected into the domain.
    """
    record_key, other_key, rest_key = jax.random.split(key, 3)
    database, (index, other) = candidate.database, candidate.neighbour
    move = functools.partial(_moved, database=database, domain=domain, scale=scale)
    record = move(record_key, jax.tree.map(lambda leaf: leaf[index], database))
    world = move(rest_key, database) if vary_others else database
    kind = candidate.name.split(" | ")[0]
    return candidate._replace(
        name=f"{kind} | varied by {scale:g}, {candidate.strategy.name}",
        database=apply_edit(world, Edit(index, record)),
        neighbour=Edit(index, move(other_key, other)),
    )


def _moved(key: Array, records: PyTree, *, database: PyTree, domain: Domain, scale) -> PyTree:
    leaves, treedef = jax.tree.flatten(records)
    keys = jax.random.split(key, len(leaves))
    moved = []
    for leaf_key, leaf, column in zip(keys, leaves, jax.tree.leaves(database), strict=True):
        if jnp.issubdtype(leaf.dtype, jnp.floating):
            size = scale * jnp.max(jnp.abs(column))
            moved.append(leaf + size * jax.random.normal(leaf_key, leaf.shape, leaf.dtype))
        else:
            moved.append(jax.random.choice(leaf_key, column, (len(leaf),)))
    return domain.project(jax.tree.unflatten(treedef, moved))[0]


def _row(database: PyTree, row: int) -> PyTree:
    return jax.tree.map(lambda leaf: jnp.asarray(leaf)[row][None], database)


def _features(records: PyTree) -> PyTree:
    return records.features if isinstance(records, Labelled) else records


def _norms(database: PyTree) -> np.ndarray:
    return np.linalg.norm(samples.flatten(_features(database), "the database"), axis=1)


def _scaled(record: PyTree, factor: float) -> PyTree:
    """The record with its features times a factor; a label stays."""
    features = jax.tree.map(lambda leaf: leaf * factor, _features(record))
    return record._replace(features=features) if isinstance(record, Labelled) else features
