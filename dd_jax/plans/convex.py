"""Convex smooth losses: the cheapest settings that meet budgets, and what settings give."""

import math
from dataclasses import replace
from typing import Literal

import numpy as np

from dd_jax import checks
from dd_jax.errors import CertificateRefused
from dd_jax.guarantees import adaptive, floats, inference, renyi
from dd_jax.guarantees import risk as risks
from dd_jax.guarantees.convex import (
    ACCOUNTANTS,
    Descent,
    fewest_steps,
    least_noise,
    privacy_convex,
)
from dd_jax.plans import conditions
from dd_jax.plans.certificate import NUMBERS, Form, Numbers, Question
from dd_jax.plans.plan import Plan
from dd_jax.plans.settings import Dtype, Settings, descent, edited_descent, to_renyi, whole

# By default learning stops when the risk bound of the learned model is within this share of the
# least that the noise allows.
LEARNING_SLACK = 0.1


def plan_convex(
    problem,
    *,
    n: int,
    dim: int,
    eps_dp: float,
    eps_dd: float,
    order: float | None = None,
    delta: float | None = None,
    edits_per_request: int = 1,
    accountant: Literal["optimal", "unrelaxed", "paper"] = "optimal",
    step_size: float | None = None,
    noise_variance: float | None = None,
    target_risk: float | None = None,
    protects: conditions.Protects = "record",
    dtype: Dtype = "float32",
) -> Plan:
    """Settings that meet privacy, deletion and risk budgets at the least cost, for convex losses.

    The noise σ² is the least that privacy allows, K_U the fewest steps that deletion needs (≥ 1).
    With `target_risk` every released model has at most that excess risk, and spare risk is spent on
    noise wherever that saves deletion steps. Without it K_L puts the learned model's risk bound
    within 10% of the least that the noise allows; for the paper's accountant at its own step size
    K_L is its theorem's.

    Guarantee: what `Plan.certificate` says.
    Assumes: convex, L-Lipschitz (or clipped single-index), β-smooth loss.
    The convex trade-off theorem, `thm:unlearning_accuracy_convex`.

    Args:
        problem: a `dd_jax.Problem` or its constants.
        n: number of records. dim: d, number of parameters.
        eps_dp: privacy budget of one release. eps_dd: what may remain of one deleted record.
        order: q, if the budgets are Rényi divergences.
        delta: δ, if they are the ε of (ε, δ); they then go through exact Gaussian DP.
        edits_per_request: r; it matters only to the risk, as deletion is certified per record.
        accountant: "optimal" (attained bounds), "unrelaxed" (the paper's proof) or "paper".
        step_size: η; 1/(λ+β) by default for "optimal", half of it for the others.
        noise_variance: a σ² of your own; refused where it breaks the privacy budget.
        target_risk: the excess empirical risk that no released model may exceed.
        protects: "label" for label-only neighbours and edits (needs `label_sensitivity`).
        dtype: the floating type that is run, "float32" or "float64"; the certificate checks that
            its rounding does not matter.
    """
    problem = problem.constants
    checks.choice("accountant", accountant, ACCOUNTANTS)
    rules = ACCOUNTANTS[accountant]
    conditions.require_convex(problem, protects)
    own_step = rules.default_step / (problem.l2 + problem.loss.smoothness)
    order_used, budget_dp, budget_dd = to_renyi(order, delta, eps_dp, eps_dd, accountant)
    run = Descent(
        order=order_used,
        lipschitz=conditions.sensitivity(problem, protects),
        l2=problem.l2,
        smoothness=problem.loss.smoothness,
        noise_variance=1.0,  # to be chosen
        n=n,
        step_size=own_step if step_size is None else float(step_size),
    )
    least = least_noise(rules.privacy, run, budget_dp)
    given = least if noise_variance is None else checks.positive("noise_variance", noise_variance)
    if given < least * (1 - 1e-12):
        raise CertificateRefused(
            f"noise_variance = {given:g} breaks the privacy budget, which needs {least:g}; "
            f"give at least that, or a larger eps_dp."
        )
    run = replace(run, noise_variance=given)
    lipschitz = conditions.risk_lipschitz(problem, protects)
    edited = replace(run, lipschitz=lipschitz, records=edits_per_request)
    delete_steps = fewest_steps(rules.deletion, run, budget_dd)
    if target_risk is not None:
        delete_steps = max(delete_steps, risks.delete_steps_convex(edited, dim, target_risk))
        if noise_variance is None:
            edited, delete_steps = _fewer_steps(
                rules.deletion, run, edited, dim, budget_dd, target_risk, delete_steps
            )
        learn_steps = risks.learn_steps_convex(edited, dim, target_risk)
    elif accountant == "paper" and math.isclose(run.step_size, own_step):
        numbers = (run.order, run.l2, run.smoothness, run.n)
        learn_steps = risks.learn_steps_convex_paper(*numbers, dim, budget_dp)
    else:
        near = (1 + LEARNING_SLACK) * risks.excess_risk_floor(edited, dim)
        learn_steps = risks.learn_steps_convex(edited, dim, near)
    chosen = edited.noise_variance
    return Plan(
        problem=problem,
        n=n,
        dim=dim,
        order=order,
        delta=delta,
        step_size=run.step_size,
        noise_variance=chosen,
        init_variance=risks.stationary_variance(problem.l2, chosen, run.step_size),
        learn_steps=max(1, whole("learn_steps", learn_steps)),
        delete_steps=max(1, whole("delete_steps", delete_steps)),
        edits_per_request=edits_per_request,
        kind="convex",
        accountant=accountant,
        eps_dp_asked=float(eps_dp),
        eps_dd_asked=float(eps_dd),
        risk_asked=None if target_risk is None else float(target_risk),
        protects=protects,
        dtype=dtype,
    )


def _fewer_steps(deletion, run, edited, dim, eps_dd, target, most) -> tuple[Descent, int]:
    """Spare risk spent on noise: the fewest deletion steps, and `edited` at the noise they need.

    `run` is what privacy and deletion see, at the least noise that is private, `edited` what the
    risk bounds see of it; at that noise `most` steps are enough.
    """

    def noisier(steps) -> Descent:
        """At the least σ² for which K steps delete: every bound is ε(1)/σ²."""
        remaining = deletion(replace(run, noise_variance=1.0), steps) / eps_dd
        return replace(edited, noise_variance=max(run.noise_variance, remaining * (1 + 1e-12)))

    def fits(steps) -> bool:
        """Whether K steps meet the target risk at the noise that deleting in K steps needs."""
        try:
            return risks.delete_steps_convex(noisier(steps), dim, target) <= steps
        except CertificateRefused:
            return False

    low, high = 0, whole("delete_steps", max(most, 1))
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return noisier(high), high


# --- what settings give ---------------------------------------------------------------------------


def convex_numbers(plan: Settings, question: Question) -> Numbers:
    """Every number of a convex certificate, from the plan's settings alone, as Rényi divergences.

    Records that stay: ε_dp is the supremum over any history, (p+1)ε_dp covers p releases seen, the
    joint bound composes the runs. Records that go: ε_dd from any history, ε_dd + pε_dp, and at this
    request the interval form (optimal), or the composition of the runs where that is smaller.
    """
    conditions.require_convex(plan.problem, plan.protects)
    rules, run = ACCOUNTANTS[plan.accountant], descent(plan)
    steps, first = (plan.learn_steps, plan.delete_steps), question.first_inserted

    def private(num_steps):
        return rules.privacy(run, num_steps)

    eps_dp, eps_dd = private(np.inf), rules.deletion(run, plan.delete_steps)
    per_request, runs = private(plan.delete_steps), question.request - first
    before = private(plan.learn_steps) if first == 0 else per_request
    before = before + (per_request * (runs - 1) if runs > 1 else 0.0)
    joint = before + per_request
    eps_dp_adaptive = adaptive.privacy_adaptive(eps_dp, question.adaptivity)
    eps_dd_adaptive = adaptive.deletion_adaptive(eps_dd, eps_dp, question.adaptivity)
    # At this request, where it is known which releases were seen.
    stays = goes = math.inf
    known = question.observed is not None or question.adaptivity == 0
    if plan.accountant == "optimal" and known:
        history = (*steps, question.request, list(question.observed or ()))
        stays = adaptive.privacy_adaptive_intervals(run, *history, first_inserted=first)
        goes = adaptive.deletion_adaptive_intervals(run, *history, first_inserted=first)
    elif question.adaptivity == 0:
        stays = private(adaptive.steps_with_record(*steps, question.request + 1, first))
    form: Form = "gaussian" if plan.accountant == "optimal" else "linear"
    edited = edited_descent(plan)

    def risk(request):
        return risks.excess_risk_convex(edited, plan.dim, *steps, request, plan.init_variance)

    return Numbers(
        order=run.order,
        eps_dp=eps_dp,
        eps_dp_run=eps_dp,
        eps_dp_adaptive=eps_dp_adaptive,
        eps_dp_request=min(stays, eps_dp_adaptive, joint),
        eps_dp_joint=joint,
        eps_dd=eps_dd,
        eps_dd_adaptive=eps_dd_adaptive,
        eps_dd_request=min(goes, eps_dd_adaptive, before),
        eps_dd_records=floats.plain(
            floats.product(eps_dd_adaptive, question.records, question.records)
        ),
        privacy_form=form,
        deletion_form=form,
        adaptive_form=form,
        advantage_bound=_advantage(run.order, eps_dd_adaptive, form),
        risk_bound=max(risk(0), risk(np.inf)),
        risk_bound_learned=risk(0),
        risk_bound_request=risk(question.request),
        risk_bound_paper=_risk_paper(plan, edited),
    )


def _advantage(order, eps, form) -> float:
    """2Φ(μ/2) - 1 where μ is proved; else √(ε/(2q)) or the soundness theorem `thm:soundness`."""
    if form == "gaussian":
        return inference.advantage_gdp(renyi.gdp_from_linear_renyi(order, eps))
    return min(
        inference.advantage_neighbours_linear(order, eps), inference.advantage_soundness(order, eps)
    )


def _risk_paper(plan, run: Descent) -> float | None:
    """The paper's risk bound where the plan meets its conditions, else None.

    Part 3 of the convex trade-off theorem, `thm:unlearning_accuracy_convex`.
    The theorem's ε_dp is the one its own noise formula gives for the plan's σ².
    """
    order, l2, smoothness, dim = run.order, run.l2, run.smoothness, plan.dim
    if not math.isclose(plan.step_size * (l2 + smoothness), 0.5, rel_tol=1e-12):
        return None
    eps_dp = privacy_convex(replace(run, records=1), np.inf)
    if math.isinf(eps_dp):
        return None
    start = risks.stationary_variance(l2, plan.noise_variance, plan.step_size)
    learn = risks.learn_steps_convex_paper(order, l2, smoothness, run.n, dim, eps_dp)
    delete = risks.delete_steps_convex_paper(order, l2, smoothness, dim, eps_dp, run.records)
    if plan.learn_steps < learn or plan.delete_steps < delete:
        return None
    if not math.isclose(plan.init_variance, start, rel_tol=1e-12):
        return None
    return risks.excess_risk_convex_paper(order, run.lipschitz, l2, smoothness, run.n, dim, eps_dp)


NUMBERS["convex"] = convex_numbers
