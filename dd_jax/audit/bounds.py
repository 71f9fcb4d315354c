"""Every lower bound of the audit under one name: choose on part A, judge on part B.

All take four vectors of scores (part A present and absent, part B present and absent; a large score
says "present") and return a `LowerBound`. R_q(absent ‖ present) is had by exchanging the arms and
negating the scores.
"""

from dd_jax.audit.bin_bounds import renyi_bins
from dd_jax.audit.event_bounds import (
    advantage,
    epsilon_at,
    gaussian_mu,
    hockey_stick,
    renyi_binary,
    renyi_of_mu,
)
from dd_jax.audit.variational_bound import renyi_variational

__all__ = [
    "advantage",
    "epsilon_at",
    "gaussian_mu",
    "hockey_stick",
    "renyi_binary",
    "renyi_bins",
    "renyi_of_mu",
    "renyi_variational",
]
