"""Any Lipschitz or clipped loss: the privacy of the runs that saw a record adds up.

This is the composition theorem for Noisy-GD, `thm:abadi`.
"""

import math
from dataclasses import replace

from dd_jax import checks
from dd_jax.errors import InputError
from dd_jax.guarantees import adaptive, inference, renyi
from dd_jax.guarantees.convex import Descent, least_noise, privacy_lipschitz
from dd_jax.plans import conditions
from dd_jax.plans.certificate import NUMBERS, Numbers, Question
from dd_jax.plans.plan import Plan
from dd_jax.plans.settings import Dtype, Settings, descent, to_renyi


@checks.representable
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

    For losses that have no other certificate, such as clipped networks and clipped losses that are
    neither single-index GLMs nor contract (`guarantees.clipping`). It needs no convexity,
    smoothness or bound, and gets deletion from privacy alone: what remains of a deleted record is
    at most what all releases ever revealed of it.

    Guarantee: (q, ε)-Rényi DP of all releases jointly, and so (q, ε)-data-deletion, for requesters
    of any adaptivity.
    Assumes: L-Lipschitz or clipped gradients. `thm:abadi`, errata E1 and E2.
    The other arguments are those of `plan_convex`.
    """
    problem = problem.constants
    lipschitz = conditions.sensitivity(problem, "record")
    order_used, budget, _ = to_renyi(order, delta, eps_dp, eps_dp, "composition")
    total = learn_steps + float(checks.steps("num_requests", num_requests)) * delete_steps
    if not total >= 1:
        raise InputError(
            f"learn_steps = {learn_steps} and no requests make no run; give at least one step."
        )
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


def composition_numbers(plan: Settings, question: Question) -> Numbers:
    """The run sums at this request: `deletion_run_sum` and `privacy_run_sum`."""
    run, first = descent(plan), question.first_inserted
    steps = (plan.learn_steps, plan.delete_steps, question.request)
    stays = adaptive.privacy_run_sum(run, *steps, first_inserted=first)
    goes, goes_jointly = (
        adaptive.deletion_run_sum(replace(run, records=records), *steps, first_inserted=first)
        for records in (1, question.records)
    )
    return Numbers(
        order=run.order,
        eps_dp=stays,
        eps_dp_run=privacy_lipschitz(run, max(plan.learn_steps, plan.delete_steps)),
        eps_dp_adaptive=stays,
        eps_dp_request=stays,
        eps_dp_joint=stays,
        eps_dd=goes,
        eps_dd_adaptive=goes,
        eps_dd_request=goes,
        eps_dd_records=goes_jointly,
        privacy_form="gaussian",
        deletion_form="gaussian",
        adaptive_form="gaussian",
        advantage_bound=inference.advantage_gdp(renyi.gdp_from_linear_renyi(run.order, goes)),
    )


NUMBERS["composition"] = composition_numbers
