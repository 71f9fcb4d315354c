"""The systems that the paper is compared with (table `tab:comparision`), with one interface.

There is one file per system: `system(...)` builds it, `calibrate(...)` chooses its numbers for a
target (ε, δ), and `guarantee` is its claim. `base` holds what all systems share, `k_means` what the
clusterings share, and `newton` what the Newton-step systems share. A new system is a file here, a
name below, a row of the table in tests/baselines, and an entry of the comparison.
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
    notions,
    perturbed_gd,
    pnsgd,
    projective_residual,
    q_k_means,
    retraining,
    sekhari,
    sisa,
    sufficient_statistics,
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
    "notions",
    "perturbed_gd",
    "pnsgd",
    "projective_residual",
    "q_k_means",
    "retraining",
    "sekhari",
    "sisa",
    "sufficient_statistics",
]
