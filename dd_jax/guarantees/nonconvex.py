"""Data deletion for bounded non-convex losses, by convergence to the Gibbs law π(D) ∝ exp(-ℒ_D/σ²).

The comparator is the Gibbs law of the edited database and the bound is one-sided, R_q(Θ̂_i‖π(D_i));
it needs the start N(0, σ²/λ I) exactly (erratum E11) and a non-adaptive requester (erratum E2).

Two proofs, each in both directions (steps for a budget, budget for given steps) and with the noise
that privacy asks for. `nonconvex_paper` follows the theorem with both of its step conditions
(erratum E4). `nonconvex_tuned` keeps the constants of its proof and needs the oscillation of the
loss only (erratum E5), in three forms. Step counts are whole floats, infinite where they overflow.
"""

from dd_jax.guarantees._gibbs_settings import (
    NonconvexSettings,
)
from dd_jax.guarantees.nonconvex_paper import (
    deletion_nonconvex_paper,
    gibbs_divergence_paper,
    noise_nonconvex_paper,
    settings_nonconvex_paper,
    step_size_limit_paper,
)
from dd_jax.guarantees.nonconvex_tuned import (
    FORMS,
    deletion_nonconvex_tuned,
    gibbs_divergence_tuned,
    noise_nonconvex_tuned,
    settings_nonconvex_tuned,
)

__all__ = [
    "FORMS",
    "NonconvexSettings",
    "deletion_nonconvex_paper",
    "deletion_nonconvex_tuned",
    "gibbs_divergence_paper",
    "gibbs_divergence_tuned",
    "noise_nonconvex_paper",
    "noise_nonconvex_tuned",
    "settings_nonconvex_paper",
    "settings_nonconvex_tuned",
    "step_size_limit_paper",
]
