"""What a loss is: a per-record function, the constants it is proved to have, and where they hold.

Constants follow from declared bounds on the records (the domain 𝒳). They are worth nothing for a
record outside it, so the database and every edit are held to the domain before a certificate relies
on them: refused at the host boundary, projected and counted inside a scan (erratum E1).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from dd_jax.constants import DataCheck, LossConstants
from dd_jax.errors import InputError
from dd_jax.loss_constants import describe_domain
from dd_jax.types import ANY_RECORD, Domain, Edit, Labelled, num_records, replacement

# Rows normalised in float32 miss their norm by a few ulp; that is rounding, not a broken bound.
ROUNDING = 1e-6


class LinearScores(NamedTuple):
    """A loss that sees θ only through linear scores t = θᵀa: ℓ(θ; x) = φ(t, y).

    Its gradient is a ⊗ φ'(t, y), so norms, clipping and sums over records need no per-record
    gradient (`dd_jax.erm`). With one score it is a single-index GLM and θ a vector of d; with C
    scores θ has shape (d, C).

    Attributes:
        split: `records -> (a, y)`, for one record or for many rows.
        value: φ, `(scores, label) -> value`, one record.
        slope: φ' = ∂φ/∂t, `(scores, label) -> slopes`; broadcasts over rows.
        num_scores: C, or None for a single score (a vector θ).
        intercept: a constant 1 is appended to every feature vector; θ gains a last row.
    """

    split: Callable[[PyTree], tuple[Array, Array]]
    value: Callable[[Array, Array], Array]
    slope: Callable[[Array, Array], Array]
    num_scores: int | None = None
    intercept: bool = False


@dataclass(frozen=True, eq=False)
class Loss:
    """A per-record loss ℓ(θ; x), its constants and domain; static under jit, hashed by identity.

    Attributes:
        value: ℓ, `(params, record) -> scalar`, for one record.
        constants: L, β, b and the shape facts certificates rely on; `None` where unknown.
        domain: 𝒳, the records that the constants are valid for.
        template: `database -> params` of zeros with the shape and dtype of a model.
        null_record: `database -> record` whose gradient is zero at every θ, or None.
        scores: the linear-score structure, where the loss has it (enables the fast gradient).
        batch_gradient: `(params, database, clip_norm) -> Σ clipped gradients`, where the loss
            knows a faster way than one gradient per record.
    """

    value: Callable[[PyTree, PyTree], Array]
    constants: LossConstants
    template: Callable[[PyTree], PyTree]
    domain: Domain = ANY_RECORD
    null_record: Callable[[PyTree], PyTree] | None = None
    scores: LinearScores | None = None
    batch_gradient: Callable[[PyTree, PyTree, Any], PyTree] | None = None

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
    if loss.null_record is None:
        raise InputError(
            f"{loss.name} has no null record (a record whose gradient is zero at every θ), so rows "
            f"cannot be blanked; replace them with other records by dd.replacement, or drop the "
            f"intercept and append a column of ones to the features instead."
        )
    indices = np.atleast_1d(np.asarray(indices))
    null = loss.null_record(database)
    records = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (indices.size, *leaf.shape)), null)
    return replacement(indices, records)


def check_data(loss: Loss, database: PyTree) -> DataCheck:
    """Hold every row to the loss's domain; the answer lets a certificate say "checked on the data".

    Raises:
        InputError: a row outside the domain; the message names it.
    """
    loss.domain.check(database)
    return DataCheck(num_records(database), loss.domain.describe)


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
    """A loss of the user's own, with the constants they declare.

    Constants left out mean that certificates that need them are refused; constants given are
    printed in every certificate as declared by the user, because nothing here can prove them.

    Args:
        value: ℓ, `(params, record) -> scalar`.
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
    """The loss ℓ(θ; x) = φ(θᵀa, y) of a linear-score structure; your own GLM goes through here."""

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
    """T = θᵀa (+ intercept) for one feature vector or for rows of them.

    Written as θ @ Aᵀ for a single score: a vmap over θ then yields the (seeds, rows) layout, twice
    as fast as its transpose.
    """
    weights = params[:-1] if scores.intercept else params
    margins = weights @ features.T if scores.num_scores is None else features @ weights
    return margins + params[-1] if scores.intercept else margins


def labelled_domain(
    feature_norm: float,
    label_low: float | None = None,
    label_high: float | None = None,
    *,
    whole_labels: bool = False,
) -> Domain:
    """𝒳 = {(a, y): ‖a‖ ≤ R, y in [label_low, label_high]} for `Labelled` records."""

    def check(records):
        _check_labelled(records)
        if whole_labels and not jnp.issubdtype(jnp.result_type(records.label), jnp.integer):
            raise InputError(
                f"labels have dtype {jnp.result_type(records.label)}; class labels are integers."
            )
        _check_norms(records.features, feature_norm)
        _check_labels(records.label, label_low, label_high)

    def project(records):
        features, inside = _project_norms(records.features, feature_norm)
        label, label_inside = _project_labels(records.label, label_low, label_high)
        return Labelled(features, label), inside & label_inside

    return Domain(describe_domain(feature_norm, label_low, label_high), check, project)


def feature_domain(feature_norm: float) -> Domain:
    """𝒳 = {a: ‖a‖ ≤ R} for records that are bare feature vectors."""
    return Domain(
        describe_domain(feature_norm),
        lambda records: _check_norms(records, feature_norm),
        lambda records: _project_norms(records, feature_norm),
    )


def _check_labelled(records) -> None:
    if not isinstance(records, Labelled):
        raise InputError(
            f"records are of type {type(records).__name__}; "
            f"build them as dd.Labelled(features, label)."
        )
    num_records(records)


def _check_norms(features, feature_norm: float) -> None:
    features = np.asarray(features)
    if features.ndim != 2:
        raise InputError(f"features have shape {features.shape}; give an (n, d) matrix.")
    norms = np.linalg.norm(features.astype(np.float64), axis=1)
    beyond = ~(norms <= feature_norm * (1 + ROUNDING))
    if beyond.any():
        row = int(np.flatnonzero(beyond)[0])
        raise InputError(
            f"row {row} has feature norm {norms[row]:.6g}, beyond the declared {feature_norm:g}; "
            f"rescale the features or declare a larger feature_norm."
        )


def _check_labels(label, low: float | None, high: float | None) -> None:
    label = np.asarray(label)
    if label.ndim != 1:
        raise InputError(f"labels have shape {label.shape}; give a vector of n labels.")
    beyond = ~np.isfinite(label) if low is None else ~((label >= low) & (label <= high))
    if beyond.any():
        row = int(np.flatnonzero(beyond)[0])
        allowed = "finite" if low is None else f"in [{low:g}, {high:g}]"
        raise InputError(f"row {row} has label {label[row]}; labels of this loss are {allowed}.")


def _project_norms(features: Array, feature_norm: float) -> tuple[Array, Array]:
    """Scale rows beyond the norm down to it; a row with NaN or infinity becomes zero."""
    finite = jnp.all(jnp.isfinite(features), axis=-1, keepdims=True)
    features = jnp.where(finite, features, jnp.zeros_like(features))
    norms = jnp.linalg.norm(features, axis=-1, keepdims=True)
    limit = jnp.asarray(feature_norm, features.dtype)
    scaled = features * jnp.minimum(1, limit / jnp.maximum(norms, limit))
    inside = finite & (norms <= feature_norm * (1 + ROUNDING))
    return scaled, inside[..., 0]


def _project_labels(label: Array, low: float | None, high: float | None) -> tuple[Array, Array]:
    if jnp.issubdtype(label.dtype, jnp.inexact):
        finite = jnp.isfinite(label)
        label = jnp.where(finite, label, jnp.zeros_like(label))
    else:
        finite = jnp.ones(label.shape, bool)
    if low is None:
        return label, finite
    clipped = jnp.clip(label, jnp.asarray(low, label.dtype), jnp.asarray(high, label.dtype))
    return clipped, finite & (clipped == label)
