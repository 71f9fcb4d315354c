"""Losses: per-record functions with proved constants, and how to bring your own."""

from typing import TYPE_CHECKING

from dd_jax.losses.base import (
    LinearScores,
    Loss,
    check_data,
    custom,
    deletion,
    from_scores,
    null_records,
)
from dd_jax.losses.catalogue import (
    huber,
    linear,
    logistic,
    one_vs_rest,
    smoothed_hinge,
    softmax,
    squared,
    tanh_margin,
)
from dd_jax.losses.domains import feature_domain, labelled_domain

if TYPE_CHECKING:
    from dd_jax.losses.neural import bounded_network, from_flax

__all__ = [
    "LinearScores",
    "Loss",
    "bounded_network",
    "check_data",
    "custom",
    "deletion",
    "feature_domain",
    "from_flax",
    "from_scores",
    "huber",
    "labelled_domain",
    "linear",
    "logistic",
    "null_records",
    "one_vs_rest",
    "smoothed_hinge",
    "softmax",
    "squared",
    "tanh_margin",
]


def __getattr__(name: str):
    """Networks are imported on first use, so that flax is loaded only where it is needed."""
    if name in ("bounded_network", "from_flax"):
        from dd_jax.losses import neural

        return getattr(neural, name)
    raise AttributeError(f"module 'dd_jax.losses' has no attribute {name!r}")
