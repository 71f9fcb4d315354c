"""The systems that the paper is compared with (`tab:comparision`), each behind one interface.

One file per system: `system(...)` builds it, `calibrate(...)` chooses its numbers from a target
(ε, δ), `guarantee` is its claim. `base` holds what all share, `k_means` and `newton` what the
clusterings and the Newton steps do. A new system is a file here, a name below, a row of the table
in tests/baselines, and an entry of the comparison.
"""

from dd_jax.baselines import (
    base,
    certified_removal,
    dc_k_means,
    fixed_model,
    k_means,
    langevin,
    newton,
    noisy_fine_tuning,
    noisy_gd_system,
    noisy_m_a_sgd,
    perturbed_gd,
    pnsgd,
    projective_residual,
    q_k_means,
    retraining,
    sekhari,
    sisa,
)

__all__ = [
    "base",
    "certified_removal",
    "dc_k_means",
    "fixed_model",
    "k_means",
    "langevin",
    "newton",
    "noisy_fine_tuning",
    "noisy_gd_system",
    "noisy_m_a_sgd",
    "perturbed_gd",
    "pnsgd",
    "projective_residual",
    "q_k_means",
    "retraining",
    "sekhari",
    "sisa",
]
