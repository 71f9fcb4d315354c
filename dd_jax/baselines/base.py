"""What all systems of the comparison share: their guarantee as data, and an exact cost meter.

A `System` is a `Mechanism` whose learn and delete also say what they cost. `mechanism` forgets the
cost; `metered` publishes it beside every release, so that a transcript holds the cost per request.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, PyTree

from dd_jax.errors import InputError
from dd_jax.losses import Loss
from dd_jax.losses.base import linear_scores
from dd_jax.types import ANY_RECORD, Domain, Edit, Mechanism, acceptable_rows, num_records


@dataclass(frozen=True)
class Guarantee:
    """What a system's authors claim for it, as data. A claim, not a finding.

    Attributes:
        notion: what is compared with what: "data-deletion", "exact unlearning",
            "(ε,δ)-unlearning", "Rényi unlearning", "certified removal" or "none".
        epsilon: ε of the claim, 0 where it is exact, None where there is no number.
        delta: δ of an (ε, δ) claim, else None.
        order: Rényi order q of a Rényi claim, else None.
        private: whether records that stay have differential privacy too, in words.
        adaptive: what is said of adaptive requests, in words.
        keeps: what the curator keeps besides the release, in words.
        conditions: everything that the claim needs.
        reference: authors, year, statement.
    """

    notion: str
    epsilon: float | None
    delta: float | None
    order: float | None
    private: str
    adaptive: str
    keeps: str
    conditions: tuple[str, ...]
    reference: str


class Cost(NamedTuple):
    """What learning or one request cost, counted exactly.

    Attributes:
        gradients: gradient evaluations of single records (for k-means: comparisons of a record
            with all centroids).
        hessians: Hessian evaluations of single records.
        solves: factorisations or solutions of a system of d unknowns, or of one per edited record.
        retrained: 1 if everything was trained anew from its start (a deal into shards or leaves may
            stay), else 0; where only a part is redone, `gradients` tells how large it was.
    """

    gradients: Int[Array, ""]
    hessians: Int[Array, ""]
    solves: Int[Array, ""]
    retrained: Int[Array, ""]


def cost(
    gradients: int | Array = 0,
    hessians: int | Array = 0,
    solves: int | Array = 0,
    retrained: int | Array = 0,
) -> Cost:
    """A `Cost` from counts, static or traced.

    Raises:
        InputError: a static count too large for the meter's 32 bits.
    """
    counts = (gradients, hessians, solves, retrained)
    for count in counts:
        if isinstance(count, int) and not 0 <= count <= np.iinfo(np.int32).max:
            raise InputError(f"a cost of {count} does not fit the meter; run fewer steps or rows.")
    return Cost(*(jnp.asarray(count, jnp.int32) for count in counts))


def add_costs(first: Cost, second: Cost) -> Cost:
    """What two parts of one request cost together."""
    return jax.tree.map(jnp.add, first, second)


class System(NamedTuple):
    """A curator to compare: what it does, what that costs, what it keeps, what it claims.

    Attributes:
        name: its name in tables and on the command line.
        learn: `(key, database) -> (state, Cost)`.
        delete: `(key, before, edit, after, state) -> (state, Cost)`, as a `Mechanism`'s.
        publish: `(key, state) -> release`.
        predict: `(release, features) -> label of each row`.
        secret: `state -> pytree` of what is kept and not released; an empty tuple for nothing.
        guarantee: the authors' claim.
        domain: the records that it admits.
    """

    name: str
    learn: Callable[[Array, PyTree], tuple[Any, Cost]]
    delete: Callable[[Array, PyTree, Edit, PyTree, Any], tuple[Any, Cost]]
    publish: Callable[[Array, Any], PyTree]
    predict: Callable[[PyTree, Array], Array]
    secret: Callable[[Any], PyTree]
    guarantee: Guarantee
    domain: Domain = ANY_RECORD


def mechanism(system: System) -> Mechanism:
    """The system as a plain `Mechanism`; the compiler drops the meter with its unused counts."""

    def learn(key, database):
        return system.learn(key, database)[0]

    def delete(key, before, edit, after, state):
        return system.delete(key, before, edit, after, state)[0]

    return Mechanism(learn, delete, system.publish, system.domain)


class Metered(NamedTuple):
    """A release (or a state) and the cost of the request that made it."""

    value: PyTree
    cost: Cost


def metered(system: System) -> Mechanism:
    """The system with its meter shown: every release is a `Metered`.

    For the analyst. An adversary or requester must be given `value` alone, since the cost of a
    request can depend on the deleted record.
    """

    def learn(key, database):
        return Metered(*system.learn(key, database))

    def delete(key, before, edit, after, state):
        return Metered(*system.delete(key, before, edit, after, state.value))

    def publish(key, state):
        return Metered(system.publish(key, state.value), state.cost)

    return Mechanism(learn, delete, publish, system.domain)


def stored_bytes(system: System, state: PyTree) -> int:
    """Bytes kept besides the release, from the state that is really carried."""
    return sum(leaf.nbytes for leaf in jax.tree.leaves(system.secret(state)))


class Replaced(NamedTuple):
    """What an edit takes out and puts in, for systems that work on the difference.

    Attributes:
        old, new: r records each, leaving and entering.
        accepted: which replacements are made; the others count for nothing.
    """

    old: PyTree
    new: PyTree
    accepted: Bool[Array, "r"]


def replaced(database: PyTree, edit: Edit) -> Replaced:
    """The records that `apply_edit` would exchange, with the database BEFORE the edit."""
    n = num_records(database)
    rows = jnp.clip(edit.index, 0, n - 1)
    old = jax.tree.map(lambda leaf: jnp.asarray(leaf)[rows], database)
    return Replaced(old, edit.record, acceptable_rows(edit.index, n))


def label_of(loss: Loss) -> Callable[[Array, Array], Array]:
    """The labels that a model of this loss gives to rows, `(model, features) -> labels`.

    By the sign of a single score, the number of the largest of several; an intercept is the model's
    last row. A loss whose scores are not known is taken to be linear.
    """
    scores = loss.scores
    if scores is None or (scores.num_scores is None and not scores.intercept):
        return linear_labels

    def label(release, features):
        values = linear_scores(scores, release, features)
        return jnp.sign(values) if scores.num_scores is None else jnp.argmax(values, axis=-1)

    return label


def publish_part(key: Array, state: Any) -> PyTree:
    """f_pub: the state's `model`; whatever else is carried stays secret."""
    del key
    return state.model


def linear_labels(release: Array, features: Array) -> Array:
    """The labels ±1 that a linear model gives to rows; 0 on its boundary."""
    return jnp.sign(features @ release)
