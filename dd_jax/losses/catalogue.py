"""The catalogue of losses with linear scores; every constant below is proved from the domain.

R is the declared bound on the feature norm. An intercept appends a constant 1 to the features, so R²
becomes R² + 1 in every constant. For a single-index loss φ(⟨a, θ⟩, y) with |φ'| ≤ s and
0 ≤ φ'' ≤ k: L = s·R and β = k·R².
"""

import functools
import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from dd_jax.constants import LossConstants
from dd_jax.errors import InputError
from dd_jax.losses.base import (
    LinearScores,
    Loss,
    feature_domain,
    from_scores,
    labelled_domain,
)
from dd_jax.types import Domain, Labelled

# max |tanh''| = 4 / (3√3), at tanh² = 1/3.
TANH_CURVATURE = 4 / (3 * math.sqrt(3))


def split_labelled(records: Labelled) -> tuple[Array, Array]:
    """(a, y) of one labelled record or of many rows."""
    return records.features, records.label


def _blank(database: PyTree) -> PyTree:
    """The all-zero record: zero features, label 0."""
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape[1:], leaf.dtype), database)


def _radius(feature_norm: float, intercept: bool) -> float:
    """Bound on the norm of the feature vector that the loss really uses."""
    _positive("feature_norm", feature_norm)
    return math.sqrt(feature_norm**2 + int(intercept))


def _positive(name: str, value: float) -> None:
    if not (math.isfinite(value) and value > 0):
        raise InputError(f"{name} = {value} is not a positive finite number; give one, e.g. 1.0.")


def _margin_loss(
    name: str,
    value,
    slope,
    *,
    feature_norm: float,
    intercept: bool,
    curvature: float,
    convex: bool = True,
    bound: float | None = None,
) -> Loss:
    """A loss φ(y⟨a, θ⟩) of the margin with |φ'| ≤ 1, |φ''| ≤ curvature and labels in [-1, 1].

    Label 0 makes the margin constant, so the all-zero record is null even with an intercept.
    """
    radius = _radius(feature_norm, intercept)
    domain = labelled_domain(feature_norm, -1.0, 1.0)
    constants = LossConstants(
        name=name,
        convex=convex,
        single_index=True,
        lipschitz=radius,
        smoothness=curvature * radius**2,
        bound=bound,
        domain=domain.describe,
        established="proved",
    )
    scores = LinearScores(
        split=split_labelled,
        value=lambda t, y: value(y * t),
        slope=lambda t, y: y * slope(y * t),
        intercept=intercept,
    )
    return from_scores(scores, constants, domain, _blank)


@functools.cache
def logistic(*, feature_norm: float = 1.0, intercept: bool = False) -> Loss:
    """Logistic loss log(1 + exp(-y⟨a, θ⟩)), y in [-1, 1]: L = R, β = R²/4, convex, unbounded."""
    return _margin_loss(
        "logistic",
        lambda z: jax.nn.softplus(-z),
        lambda z: -jax.nn.sigmoid(-z),
        feature_norm=feature_norm,
        intercept=intercept,
        curvature=0.25,
    )


@functools.cache
def smoothed_hinge(
    *, smoothing: float = 1.0, feature_norm: float = 1.0, intercept: bool = False
) -> Loss:
    """Hinge loss with its corner rounded over a margin width γ = smoothing: L = R, β = R²/γ.

    φ(z) = 0 for z ≥ 1, (1 - z)²/(2γ) for 1 - γ < z < 1, 1 - z - γ/2 below.
    """
    _positive("smoothing", smoothing)

    def value(z):
        gap = jnp.maximum(1 - z, 0)
        return jnp.where(gap < smoothing, gap**2 / (2 * smoothing), gap - smoothing / 2)

    return _margin_loss(
        "smoothed hinge",
        value,
        lambda z: -jnp.clip((1 - z) / smoothing, 0, 1),
        feature_norm=feature_norm,
        intercept=intercept,
        curvature=1 / smoothing,
    )


@functools.cache
def tanh_margin(*, feature_norm: float = 1.0, intercept: bool = False) -> Loss:
    """Bounded non-convex loss -tanh(y⟨a, θ⟩): b = 1, L = R, β = 4R²/(3√3)."""
    return _margin_loss(
        "tanh margin",
        lambda z: -jnp.tanh(z),
        lambda z: -(1 - jnp.tanh(z) ** 2),
        feature_norm=feature_norm,
        intercept=intercept,
        curvature=TANH_CURVATURE,
        convex=False,
        bound=1.0,
    )


@functools.cache
def linear(*, feature_norm: float = 1.0) -> Loss:
    """Linear loss -⟨x, θ⟩ of a bare feature vector x: L = R, β = 0; its exact law is closed-form."""
    domain = feature_domain(feature_norm)
    constants = LossConstants(
        name="linear",
        convex=True,
        single_index=True,
        lipschitz=_radius(feature_norm, False),
        smoothness=0.0,
        domain=domain.describe,
        established="proved",
    )
    scores = LinearScores(
        # A linear record has no label; its features' first column stands in and is never read.
        split=lambda records: (records, records[..., 0]),
        value=lambda t, y: -t,
        slope=lambda t, y: -jnp.ones_like(t),
    )
    return from_scores(scores, constants, domain, _blank)


def _residual_loss(
    name: str,
    value,
    slope,
    *,
    feature_norm: float,
    intercept: bool,
    label_bound: float | None,
    slope_bound: float | None,
    label_spread: float | None,
) -> Loss:
    """A regression loss φ(⟨a, θ⟩ - y) with 0 ≤ φ'' ≤ 1 (β = R²) and |φ'| ≤ slope_bound, if any.

    Only zero features make a record null, so an intercept leaves none.
    """
    radius = _radius(feature_norm, intercept)
    low, high = (None, None) if label_bound is None else (-label_bound, label_bound)
    domain: Domain = labelled_domain(feature_norm, low, high)
    constants = LossConstants(
        name=name,
        convex=True,
        single_index=True,
        lipschitz=None if slope_bound is None else slope_bound * radius,
        smoothness=radius**2,
        label_sensitivity=None if label_spread is None else label_spread * radius,
        domain=domain.describe,
        established="proved",
    )
    scores = LinearScores(
        split=split_labelled,
        value=lambda t, y: value(t - y),
        slope=lambda t, y: slope(t - y),
        intercept=intercept,
    )
    return from_scores(scores, constants, domain, None if intercept else _blank)


@functools.cache
def huber(*, threshold: float = 1.0, feature_norm: float = 1.0, intercept: bool = False) -> Loss:
    """Huber regression: quadratic up to δ = threshold, linear beyond: L = δR, β = R²; any label."""
    _positive("threshold", threshold)

    def value(residual):
        size = jnp.abs(residual)
        return jnp.where(size <= threshold, residual**2 / 2, threshold * (size - threshold / 2))

    return _residual_loss(
        "Huber",
        value,
        lambda residual: jnp.clip(residual, -threshold, threshold),
        feature_norm=feature_norm,
        intercept=intercept,
        label_bound=None,
        slope_bound=threshold,
        label_spread=2 * threshold,
    )


@functools.cache
def squared(
    *, feature_norm: float = 1.0, label_bound: float | None = None, intercept: bool = False
) -> Loss:
    """Squared error (⟨a, θ⟩ - y)²/2: β = R², no Lipschitz constant over all θ.

    Two sound uses: clipped (clipping Huberises it, L is then the clip norm), or where only labels
    are replaced: with |y| ≤ label_bound the gradients of two records with the same features differ
    by at most 2·R·label_bound, which a label-DP certificate can rely on.
    """
    if label_bound is not None:
        _positive("label_bound", label_bound)
    return _residual_loss(
        "squared error",
        lambda residual: residual**2 / 2,
        lambda residual: residual,
        feature_norm=feature_norm,
        intercept=intercept,
        label_bound=label_bound,
        slope_bound=None,
        label_spread=None if label_bound is None else 2 * label_bound,
    )


@functools.cache
def softmax(*, num_classes: int, feature_norm: float = 1.0, intercept: bool = False) -> Loss:
    """Softmax cross-entropy over C classes, θ of shape (d, C): L = √2·R, β = R²/2, convex.

    The gradient is a ⊗ (p - e_y) with ‖p - e_y‖ ≤ √2; the Hessian in the scores, diag(p) - ppᵀ, has
    norm at most 1/2. It is not a single-index loss: clipped, it has no convex certificate
    (erratum E1).
    """
    if num_classes < 2:
        raise InputError(f"num_classes = {num_classes}; softmax needs at least 2 classes.")
    radius = _radius(feature_norm, intercept)
    domain = labelled_domain(feature_norm, 0, num_classes - 1, whole_labels=True)
    constants = LossConstants(
        name="softmax",
        convex=True,
        single_index=False,
        lipschitz=math.sqrt(2) * radius,
        smoothness=radius**2 / 2,
        domain=domain.describe,
        established="proved",
    )

    def value(t, y):
        return jax.nn.logsumexp(t, axis=-1) - jnp.take_along_axis(t, y[..., None], axis=-1)[..., 0]

    def slope(t, y):
        return jax.nn.softmax(t, axis=-1) - jax.nn.one_hot(y, num_classes, dtype=t.dtype)

    scores = LinearScores(split_labelled, value, slope, num_classes, intercept)
    return from_scores(scores, constants, domain, None if intercept else _blank)
