"""What a loss is: a per-record function, the constants it is proved to have, and where they hold.

The constants follow from declared bounds on the records (the domain 𝒳) and do not hold for a record
outside it. The domain is therefore enforced on the database and on every edit: a record outside is
refused on the host, and projected and counted inside a scan (erratum E1).
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from dd_jax.constants import LossConstants
from dd_jax.databases import records_of
from dd_jax.errors import InputError
from dd_jax.types import ANY_RECORD, Domain, Edit, is_concrete, replacement


class LinearScores(NamedTuple):
    """A loss that sees θ only through linear scores t = θᵀa: ℓ(θ; x) = φ(t, y).

    Its gradient is a ⊗ φ'(t, y), so norms, clipping and sums over records need no per-record
    gradient (`dd_jax.gradients`). With one score the loss is a single-index GLM and θ is a vector
    of length d; with C scores θ has shape (d, C).

    Attributes:
        split: `records -> (a, y)`, for one record or for many rows.
        value: φ, `(scores, label) -> value`, one record.
        slope: φ' = ∂φ/∂t, `(scores, label) -> slopes`; broadcasts over rows. For a single score it
            acts on each number separately, so that it can take the scores of many models together.
        num_scores: C, or None for a single score (a vector θ).
        intercept: a constant 1 is appended to every feature vector; θ gains a last row.
        margin: φ depends on y·t alone, so that labels can be multiplied into the features.
        slope_takes_models: with C scores, `slope` also takes the scores of many models at once, of
            shape (rows, C, models). It is then not mapped over the models, since a `vmap` would
            transpose every array.
        exact: φ' in whole numbers (`losses.exact_slopes`), or None.
    """

    split: Callable[[PyTree], tuple[Array, Array]]
    value: Callable[[Array, Array], Array]
    slope: Callable[[Array, Array], Array]
    num_scores: int | None = None
    intercept: bool = False
    margin: bool = False
    slope_takes_models: bool = False
    exact: Callable[[Array, Array, int, int], Array] | None = None


@dataclass(frozen=True, eq=False)
class Loss:
    """A per-record loss ℓ(θ; x), its constants and domain; static under jit, hashed by identity.

    Attributes:
        value: ℓ, `(params, record) -> scalar`, for one record.
        constants: L, β, b and whether it is convex; a number that is not known is None.
        domain: 𝒳, the records that the constants are valid for.
        template: `database -> params` of zeros with the shape and dtype of a model.
        null_record: `database -> record` whose gradient is zero at every θ, or None.
        scores: the linear-score structure, where the loss has it (enables the fast gradient).
        batch_gradient: `(params, rows, clip_norm, weight) -> Σ weight · clipped gradient` (weight
            None: 1), where the loss knows a faster way than one gradient per record.
    """

    value: Callable[[PyTree, PyTree], Array]
    constants: LossConstants
    template: Callable[[PyTree], PyTree]
    domain: Domain = ANY_RECORD
    null_record: Callable[[PyTree], PyTree] | None = None
    scores: LinearScores | None = None
    batch_gradient: Callable[[PyTree, PyTree, Any, Any], PyTree] | None = None

    @property
    def name(self) -> str:
        """The loss's name, as messages print it."""
        return self.constants.name


def deletion(loss: Loss, database: PyTree, indices) -> Edit:
    """The edit that deletes rows for good: puts the loss's null record in their place.

    A null record has zero gradient at every θ, so it teaches nothing, while n stays fixed and
    replace-one guarantees apply unchanged.

    Raises:
        InputError: the loss has no null record.
    """
    return replacement(indices, null_records(loss, database, np.size(indices)))


def null_records(loss: Loss, database: PyTree, count: int) -> PyTree:
    """A number of null records of a loss (`count`), as rows of this database.

    Raises:
        InputError: the loss has no null record.
    """
    if loss.null_record is None:
        raise InputError(
            f"{loss.name} has no null record (a record whose gradient is zero at every θ), so rows "
            f"cannot be blanked; replace them with other records by dd.replacement, or drop the "
            f"intercept and append a column of ones to the features instead."
        )

    def repeated(leaf):
        if not is_concrete(leaf):
            return jnp.broadcast_to(leaf, (count, *leaf.shape))
        # With NumPy, so that JAX compiles nothing for a new count.
        return jax.device_put(np.broadcast_to(np.asarray(leaf), (count, *leaf.shape)))

    return jax.tree.map(repeated, loss.null_record(records_of(database)))


def check_data(loss: Loss, database: PyTree) -> None:
    """Refuse rows outside the loss's domain, before anything is run.

    The functions `dd_jax.interact` and `dd_jax.drive` do this themselves; their transcript counts
    the rows that were outside the domain, and `Plan.certify` reads these counts.

    Raises:
        InputError: a row outside the domain; the message names it.
    """
    loss.domain.check(database)


def custom(
    value: Callable[[PyTree, PyTree], Array],
    template: Callable[[PyTree], PyTree],
    *,
    name: str,
    convex: bool = False,
    lipschitz: float | None = None,
    smoothness: float | None = None,
    bound: float | None = None,
    domain: Domain = ANY_RECORD,
    null_record: Callable[[PyTree], PyTree] | None = None,
) -> Loss:
    """A loss written by the user, with the constants that the user declares.

    Without a constant, certificates that need it are refused. Constants that are given are printed
    in every certificate as declared by the user, because nothing here can prove them.

    Args:
        value: ℓ, `(params, record) -> scalar`; a pure function. What was compiled for it is used
            again, so a global variable that it reads must not change.
        template: `database -> params` of zeros.
        name: what messages and certificates call it.
        convex: whether ℓ(·; x) is convex for every record of the domain.
        lipschitz: L. smoothness: β. bound: b. Each None where unknown.
        domain: the records that the constants are valid for.
        null_record: `database -> record` with zero gradient at every θ, if there is one.
    """
    constants = LossConstants(
        name=name,
        convex=convex,
        single_index=False,
        lipschitz=lipschitz,
        smoothness=smoothness,
        bound=bound,
        domain=domain.describe,
        established="declared",
    )
    return Loss(value, constants, template, domain, null_record)


def from_scores(
    scores: LinearScores,
    constants: LossConstants,
    domain: Domain = ANY_RECORD,
    null_record: Callable[[PyTree], PyTree] | None = None,
) -> Loss:
    """The loss ℓ(θ; x) = φ(θᵀa, y) of a linear-score structure; your own GLM goes through here.

    Its constants count as declared by the user, even if they say otherwise.

    Raises:
        InputError: several scores declared as single-index; clipped, such a loss has no convex
            certificate (erratum E1).
    """
    if constants.single_index and scores.num_scores is not None:
        raise InputError(
            f"{constants.name} has {scores.num_scores} scores and is declared single-index; "
            f"declare single_index=False, or num_scores=None if θ is a vector."
        )
    declared = dataclasses.replace(constants, established="declared")
    return loss_of_scores(scores, declared, domain, null_record)


def loss_of_scores(scores: LinearScores, constants: LossConstants, domain, null_record) -> Loss:
    """`from_scores` for constants that this package has proved."""

    def value(params, record):
        features, label = scores.split(record)
        return scores.value(linear_scores(scores, params, features), label)

    def template(database):
        features, _ = scores.split(database)
        rows = features.shape[-1] + int(scores.intercept)
        shape = (rows,) if scores.num_scores is None else (rows, scores.num_scores)
        return jnp.zeros(shape, features.dtype)

    return Loss(value, constants, template, domain, null_record, scores)


def linear_scores(scores: LinearScores, params: Array, features: Array) -> Array:
    """The scores θᵀa (+ intercept) for one feature vector or for rows of them.

    Written as θ @ Aᵀ for a single score: a plain vmap over θ then gives the layout (seeds, rows),
    which is twice as fast as its transpose.
    """
    weights = params[:-1] if scores.intercept else params
    margins = weights @ features.T if scores.num_scores is None else features @ weights
    return margins + params[-1] if scores.intercept else margins
