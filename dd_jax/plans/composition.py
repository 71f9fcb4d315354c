"""Plans for every Lipschitz or clipped loss: the runs that saw a record are added up."""

import math

from dd_jax import checks
from dd_jax.errors import InputError
from dd_jax.guarantees.convex import Descent, least_noise, privacy_lipschitz
from dd_jax.plans import conditions
from dd_jax.plans.numbers import to_renyi
from dd_jax.plans.plan import Plan
from dd_jax.plans.settings import Dtype


def plan_composition(
    problem,
    *,
    n: int,
    dim: int,
    eps_dp: float,
    learn_steps: int,
    delete_steps: int,
    num_requests: int,
    step_size: float,
    order: float | None = None,
    delta: float | None = None,
    edits_per_request: int = 1,
    dtype: Dtype = "float32",
) -> Plan:
    """Settings under which all releases through a number of requests meet one privacy budget.

    σ² = q L² η (K_L + i K_U) / (ε n²)

    For losses that have no other certificate: clipped losses that are no single-index GLM, clipped
    networks. It needs no convexity, smoothness or bound, and buys deletion with privacy alone: what
    remains of a deleted record is bounded by what all releases ever told of it.

    Guarantee: (q, ε)-Rényi DP of all releases jointly, hence (q, ε)-data-deletion, for requesters
    of any adaptivity.
    Assumes: L-Lipschitz or clipped gradients. `thm:abadi`, errata E1 and E2.
    The other arguments are those of `plan_convex`.
    """
    problem = problem.constants
    lipschitz = conditions.sensitivity(problem, "record")
    order_used, budget, _ = to_renyi(order, delta, eps_dp, eps_dp, "composition")
    total = learn_steps + float(checks.steps("num_requests", num_requests)) * delete_steps
    if not total >= 1:
        raise InputError(f"learn_steps = {learn_steps} is no run; give at least one step.")
    run = Descent(
        order_used, lipschitz, problem.l2, math.inf, noise_variance=1.0, n=n, step_size=step_size
    )
    noise_variance = least_noise(privacy_lipschitz, run, budget, total)
    return Plan(
        problem=problem,
        n=n,
        dim=dim,
        order=order,
        delta=delta,
        step_size=step_size,
        noise_variance=noise_variance,
        init_variance=noise_variance / problem.l2,
        learn_steps=learn_steps,
        delete_steps=delete_steps,
        edits_per_request=edits_per_request,
        kind="composition",
        accountant="composition",
        eps_dp_asked=float(eps_dp),
        dtype=dtype,
    )
