"""Excess empirical risk err(Θ; D) = E[ℒ_D(Θ)] - min ℒ_D of learned and edited models.

Convex losses: the paper's lemmas and theorem (`risk_convex_paper`), and a tighter recursion on the
distance to the minimiser (`risk_convex`). Bounded non-convex losses (`risk_nonconvex`): the paper's
bounds, which are vacuous (erratum E3), and bounds without the factor exp(b/σ²).
"""

from dd_jax.guarantees.risk_convex import (
    delete_steps_convex,
    excess_risk_convex,
    excess_risk_floor,
    learn_steps_convex,
    minimiser_shift,
    stationary_variance,
)
from dd_jax.guarantees.risk_convex_paper import (
    delete_steps_convex_paper,
    excess_risk_after_edit,
    excess_risk_convex_paper,
    excess_risk_noisy_gd,
    learn_steps_convex_paper,
)
from dd_jax.guarantees.risk_nonconvex import (
    excess_risk_nonconvex,
    excess_risk_nonconvex_paper,
    gibbs_excess_risk,
    gibbs_excess_risk_paper,
    gibbs_second_moment,
    released_second_moment,
)

__all__ = [
    "delete_steps_convex",
    "delete_steps_convex_paper",
    "excess_risk_after_edit",
    "excess_risk_convex",
    "excess_risk_convex_paper",
    "excess_risk_floor",
    "excess_risk_noisy_gd",
    "excess_risk_nonconvex",
    "excess_risk_nonconvex_paper",
    "gibbs_excess_risk",
    "gibbs_excess_risk_paper",
    "gibbs_second_moment",
    "learn_steps_convex",
    "learn_steps_convex_paper",
    "minimiser_shift",
    "released_second_moment",
    "stationary_variance",
]
