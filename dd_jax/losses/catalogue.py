"""The catalogue of losses with linear scores; `dd_jax.constants` proves their constants.

The symbol R stands for the declared bound on the feature norm. An intercept appends a constant 1 to
the features, so R² becomes R² + 1 in every constant.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, PyTree

from dd_jax import constants as proved
from dd_jax.constants import LossConstants
from dd_jax.losses import exact_slopes
from dd_jax.losses.base import LinearScores, Loss, loss_of_scores
from dd_jax.losses.domains import feature_domain, labelled_domain
from dd_jax.types import Labelled


def split_labelled(records: Labelled) -> tuple[Array, Array]:
    """(a, y) of one labelled record or of many rows."""
    return records.features, records.label


def _blank(database: PyTree) -> PyTree:
    """The all-zero record: zero features, label 0."""
    return jax.tree.map(lambda leaf: np.zeros(leaf.shape[1:], leaf.dtype), database)


def _margin_loss(
    constants: LossConstants, value, slope, *, feature_norm: float, intercept: bool, exact=None
) -> Loss:
    """A loss φ(y⟨a, θ⟩) of the margin with labels in [-1, 1].

    Label 0 makes the margin constant, so the all-zero record is null even with an intercept.
    """
    domain = labelled_domain(feature_norm, -1.0, 1.0, zero_is_deleted=True)
    scores = LinearScores(
        split=split_labelled,
        value=lambda t, y: value(y * t),
        slope=lambda t, y: y * slope(y * t),
        intercept=intercept,
        margin=True,
        exact=exact,
    )
    return loss_of_scores(scores, constants, domain, _blank)


@functools.cache
def logistic(*, feature_norm: float = 1.0, intercept: bool = False) -> Loss:
    """Logistic loss log(1 + exp(-y⟨a, θ⟩)), y in [-1, 1]: L = R, β = R²/4, convex, unbounded."""
    return _margin_loss(
        proved.logistic(feature_norm=feature_norm, intercept=intercept),
        lambda z: jax.nn.softplus(-z),
        lambda z: -jax.nn.sigmoid(-z),
        feature_norm=feature_norm,
        intercept=intercept,
        exact=exact_slopes.logistic,
    )


@functools.cache
def smoothed_hinge(
    *, smoothing: float = 1.0, feature_norm: float = 1.0, intercept: bool = False
) -> Loss:
    """Hinge loss with its corner rounded over a margin width γ = smoothing: L = R, β = R²/γ.

    φ(z) = 0 for z ≥ 1, (1 - z)²/(2γ) for 1 - γ < z < 1, 1 - z - γ/2 below.
    """
    constants = proved.smoothed_hinge(
        smoothing=smoothing, feature_norm=feature_norm, intercept=intercept
    )

    def value(z):
        gap = jnp.maximum(1 - z, 0)
        return jnp.where(gap < smoothing, gap**2 / (2 * smoothing), gap - smoothing / 2)

    return _margin_loss(
        constants,
        value,
        lambda z: -jnp.clip((1 - z) / smoothing, 0, 1),
        feature_norm=feature_norm,
        intercept=intercept,
        exact=exact_slopes.smoothed_hinge(smoothing),
    )


@functools.cache
def tanh_margin(*, feature_norm: float = 1.0, intercept: bool = False) -> Loss:
    """Bounded non-convex loss -tanh(y⟨a, θ⟩): b = 1, L = R, β = 4R²/(3√3)."""
    return _margin_loss(
        proved.tanh_margin(feature_norm=feature_norm, intercept=intercept),
        lambda z: -jnp.tanh(z),
        lambda z: -(1 - jnp.tanh(z) ** 2),
        feature_norm=feature_norm,
        intercept=intercept,
    )


@functools.cache
def linear(*, feature_norm: float = 1.0) -> Loss:
    """Linear loss -⟨x, θ⟩ of a bare feature vector x: L = R, β = 0; its law has a closed form."""
    constants = proved.linear(feature_norm=feature_norm)
    domain = feature_domain(feature_norm)
    scores = LinearScores(
        # A linear record has no label; its features' first column stands in and is never read.
        split=lambda records: (records, records[..., 0]),
        value=lambda t, y: -t,
        slope=lambda t, y: -jnp.ones_like(t),
        exact=exact_slopes.linear,
    )
    return loss_of_scores(scores, constants, domain, _blank)


def _residual_loss(
    constants: LossConstants,
    value,
    slope,
    *,
    feature_norm: float,
    intercept: bool,
    label_bound: float | None = None,
    exact=None,
) -> Loss:
    """A regression loss φ(⟨a, θ⟩ - y).

    Only zero features make a record null; with an intercept no record has zero features, so the
    loss has no null record.
    """
    low, high = (None, None) if label_bound is None else (-label_bound, label_bound)
    domain = labelled_domain(feature_norm, low, high)
    scores = LinearScores(
        split=split_labelled,
        value=lambda t, y: value(t - y),
        slope=lambda t, y: slope(t - y),
        intercept=intercept,
        exact=exact,
    )
    return loss_of_scores(scores, constants, domain, None if intercept else _blank)


@functools.cache
def huber(*, threshold: float = 1.0, feature_norm: float = 1.0, intercept: bool = False) -> Loss:
    """Huber regression: quadratic up to δ = threshold, linear beyond: L = δR, β = R²; any label."""
    constants = proved.huber(threshold=threshold, feature_norm=feature_norm, intercept=intercept)

    return _residual_loss(
        constants,
        lambda residual: optax.losses.huber_loss(residual, delta=threshold),
        lambda residual: jnp.clip(residual, -threshold, threshold),
        feature_norm=feature_norm,
        intercept=intercept,
        exact=exact_slopes.huber(threshold),
    )


@functools.cache
def squared(
    *, feature_norm: float = 1.0, label_bound: float | None = None, intercept: bool = False
) -> Loss:
    """Squared error (⟨a, θ⟩ - y)²/2: β = R², no Lipschitz constant over all θ.

    It has two sound uses. Clipped, it becomes a Huber loss whose L is the clip norm. Where only
    labels are replaced and |y| ≤ label_bound, the gradients of two records with the same features
    differ by at most 2·R·label_bound, which a label-DP certificate can rely on.
    """
    return _residual_loss(
        proved.squared(feature_norm=feature_norm, label_bound=label_bound, intercept=intercept),
        optax.losses.l2_loss,
        lambda residual: residual,
        feature_norm=feature_norm,
        intercept=intercept,
        label_bound=label_bound,
    )


@functools.cache
def softmax(*, num_classes: int, feature_norm: float = 1.0, intercept: bool = False) -> Loss:
    """Softmax cross-entropy over C classes, θ of shape (d, C): L = √2·R, β = R²/2, convex.

    It is not a single-index loss: clipped, it has a certificate from `plan_convex` only where
    λ > β/8 (erratum E1).
    """
    constants = proved.softmax(
        num_classes=num_classes, feature_norm=feature_norm, intercept=intercept
    )
    domain = labelled_domain(feature_norm, 0, num_classes - 1, whole_labels=True)

    def slope(t, y):
        classes = jnp.ndim(y)  # the axis of the classes: rows come before it, models after it
        # Subtracting the largest score changes no share and keeps exp from overflowing.
        largest = jax.lax.stop_gradient(jnp.max(t, axis=classes, keepdims=True))
        # Without the barrier XLA computes every exponential again for each of the C slopes.
        powers = jax.lax.optimization_barrier(jnp.exp(t - largest))
        share = powers / jnp.sum(powers, axis=classes, keepdims=True)
        right = jax.nn.one_hot(y, num_classes, dtype=t.dtype)
        return share - right.reshape(*right.shape, *(1,) * (t.ndim - right.ndim))

    scores = LinearScores(
        split_labelled,
        optax.losses.softmax_cross_entropy_with_integer_labels,
        slope,
        num_classes,
        intercept,
        slope_takes_models=True,
    )
    return loss_of_scores(scores, constants, domain, None if intercept else _blank)


@functools.cache
def one_vs_rest(*, num_classes: int, feature_norm: float = 1.0, intercept: bool = False) -> Loss:
    """C logistic losses, one class against the rest each, θ of shape (d, C): L = √C·R, β = R²/4.

    One certificate covers all C models, as their composition would. Like softmax it is not a
    single-index loss, so that clipping leaves it no certificate unless λ > β/8.
    """
    constants = proved.one_vs_rest(
        num_classes=num_classes, feature_norm=feature_norm, intercept=intercept
    )
    domain = labelled_domain(feature_norm, 0, num_classes - 1, whole_labels=True)

    def signs(t, y):
        right = 2 * jax.nn.one_hot(y, num_classes, dtype=t.dtype) - 1
        return right.reshape(*right.shape, *(1,) * (t.ndim - right.ndim))

    scores = LinearScores(
        split_labelled,
        lambda t, y: jnp.sum(jax.nn.softplus(-signs(t, y) * t), axis=jnp.ndim(y)),
        lambda t, y: -signs(t, y) * jax.nn.sigmoid(-signs(t, y) * t),
        num_classes,
        intercept,
        slope_takes_models=True,
    )
    return loss_of_scores(scores, constants, domain, None if intercept else _blank)
