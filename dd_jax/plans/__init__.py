"""From budgets to the settings of a run, and to the certificate of what those settings give.

Host-side, without JAX. `plan_convex` and `plan_nonconvex` turn privacy, deletion and risk budgets
into a `Plan`; `plan_composition` serves every other Lipschitz or clipped loss. `Plan.certificate`
computes its numbers from the plan's settings by `dd_jax.guarantees`, never from the budgets.
"""

from dd_jax.guarantees.convex import ACCOUNTANTS
from dd_jax.plans.certificate import Assumption
from dd_jax.plans.choosing import Chosen, choose_l2
from dd_jax.plans.composition import plan_composition
from dd_jax.plans.convex import batch_options, plan_convex
from dd_jax.plans.nonconvex import plan_nonconvex
from dd_jax.plans.plan import Certificate, Plan
from dd_jax.plans.settings import FORMULAS, Reference

__all__ = [
    "ACCOUNTANTS",
    "FORMULAS",
    "Assumption",
    "Certificate",
    "Chosen",
    "Plan",
    "Reference",
    "batch_options",
    "choose_l2",
    "plan_composition",
    "plan_convex",
    "plan_nonconvex",
]
