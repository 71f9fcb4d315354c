"""Record domains 𝒳: the bounds that a loss's constants are proved on, checked or enforced.

The function `check` looks at values on the host; `project` works inside jit. Both refuse what is
known statically to be wrong (types, shapes, dtypes).
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from dd_jax import checks
from dd_jax.constants import ROUNDING, describe_domain
from dd_jax.errors import InputError
from dd_jax.types import Domain, Labelled, dtype_of, num_records


def labelled_domain(
    feature_norm: float,
    label_low: float | None = None,
    label_high: float | None = None,
    *,
    whole_labels: bool = False,
    zero_is_deleted: bool = False,
) -> Domain:
    """𝒳 = {(a, y): ‖a‖ ≤ R, y in [label_low, label_high]} for `Labelled` records.

    Args:
        feature_norm: R.
        label_low: smallest label, or None for any finite label.
        label_high: largest label; given together with `label_low`.
        whole_labels: labels are class numbers of an integer type.
        zero_is_deleted: label 0 marks a blanked row, so `check` refuses it on a row with features
            (labels 0 and 1 where -1 and 1 are meant would silently teach nothing).
    """
    checks.positive("feature_norm", feature_norm)
    _check_label_range(label_low, label_high)

    def check(records):
        _check_labelled(records, whole_labels)
        features, label = np.asarray(records.features), np.asarray(records.label)
        _check_norms(features, feature_norm)
        _check_labels(label, label_low, label_high)
        if zero_is_deleted:
            _check_zero_labels(features, label)

    def project(records):
        _check_labelled(records, whole_labels)
        features, inside = _project_norms(records.features, feature_norm)
        label, label_inside = _project_labels(records.label, label_low, label_high)
        return Labelled(features, label), inside & label_inside

    return Domain(describe_domain(feature_norm, label_low, label_high), check, project)


def feature_domain(feature_norm: float) -> Domain:
    """𝒳 = {a: ‖a‖ ≤ R} for records that are bare feature vectors."""
    checks.positive("feature_norm", feature_norm)

    def check(records):
        _check_features(records)
        _check_norms(np.asarray(records), feature_norm)

    def project(records):
        _check_features(records)
        return _project_norms(records, feature_norm)

    return Domain(describe_domain(feature_norm), check, project)


def _check_label_range(low: float | None, high: float | None) -> None:
    if (low is None) != (high is None) or (
        low is not None and high is not None and not low <= high
    ):
        raise InputError(
            f"label range [{low}, {high}]; give label_low ≤ label_high, or neither for any label."
        )


def _check_labelled(records, whole_labels: bool) -> None:
    if not isinstance(records, Labelled):
        raise InputError(
            f"records are of type {type(records).__name__}; "
            f"build them as dd.Labelled(features, label)."
        )
    _check_features(records.features)
    if np.ndim(records.label) != 1:
        raise InputError(f"labels have shape {np.shape(records.label)}; give a vector of n labels.")
    num_records(records)
    dtype = dtype_of(records.label)
    if whole_labels and dtype.kind != "i":
        raise InputError(f"labels have dtype {dtype}; class labels are signed integers.")
    if not whole_labels and not jnp.issubdtype(dtype, jnp.floating):
        raise InputError(f"labels have dtype {dtype}; convert them to the features' dtype.")


def _check_features(features) -> None:
    """Static facts: a matrix of float32 or better (half precision cannot hold a norm bound)."""
    if isinstance(features, tuple | list | dict) or np.ndim(features) != 2:
        shape = "a tree" if isinstance(features, tuple | list | dict) else np.shape(features)
        raise InputError(f"features have shape {shape}; give an (n, d) matrix.")
    dtype = dtype_of(features)
    if dtype not in (np.float32, np.float64):
        raise InputError(f"features have dtype {dtype}; convert them to float32 or float64.")


def _check_norms(features: np.ndarray, feature_norm: float) -> None:
    exact = features.astype(np.float64)
    norms = np.sqrt(np.einsum("nd,nd->n", exact, exact))
    beyond = ~(norms <= feature_norm * (1 + ROUNDING))
    if beyond.any():
        row = int(np.flatnonzero(beyond)[0])
        raise InputError(
            f"row {row} has feature norm {norms[row]:.9g}, beyond the declared {feature_norm:g}; "
            f"rescale the features or declare a larger feature_norm."
        )


def _check_labels(label: np.ndarray, low: float | None, high: float | None) -> None:
    beyond = ~np.isfinite(label) if low is None else ~((label >= low) & (label <= high))
    if beyond.any():
        row = int(np.flatnonzero(beyond)[0])
        allowed = "finite" if low is None else f"in [{low:g}, {high:g}]"
        raise InputError(f"row {row} has label {label[row]}; labels of this loss are {allowed}.")


def _check_zero_labels(features: np.ndarray, label: np.ndarray) -> None:
    unread = (label == 0) & (features != 0).any(axis=1)
    if unread.any():
        raise InputError(
            f"row {int(np.flatnonzero(unread)[0])} has label 0, which marks a deleted row, but its "
            f"features are not zero; give classes the labels -1 and 1."
        )


def _project_norms(features: Array, feature_norm: float) -> tuple[Array, Array]:
    """Scale rows beyond the norm down to it; a row with NaN or infinity becomes zero."""
    finite = jnp.all(jnp.isfinite(features), axis=-1, keepdims=True)
    features = jnp.where(finite, features, jnp.zeros_like(features))
    # The norm is computed in the features' type, within a factor 1 ± ROUNDING of the exact one, so
    # a row that is kept as it is has at most the norm R(1 + ROUNDING), which the constants allow
    # for.
    norms = jnp.linalg.norm(features, axis=-1, keepdims=True)
    # A few units in the last place inside, so that rounding does not move a scaled row out again.
    limit = jnp.asarray(
        feature_norm * (1 - 8 * float(jnp.finfo(features.dtype).eps)), features.dtype
    )
    scaled = jnp.where(norms <= feature_norm, features, features * (limit / norms))
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
