"""What a convex plan gives: every number of its certificate, from the plan's settings alone."""

import math
from dataclasses import replace

import numpy as np

from dd_jax.guarantees import adaptive, floats, inference, renyi
from dd_jax.guarantees import risk as risks
from dd_jax.guarantees.convex import ACCOUNTANTS, privacy_convex
from dd_jax.plans import conditions
from dd_jax.plans.numbers import Numbers, Question, descent, edited_descent
from dd_jax.plans.settings import Settings


def convex_numbers(plan: Settings, question: Question) -> Numbers:
    """Every number of a convex certificate, from the plan's settings alone, as Rényi divergences.

    Records that stay: ε_dp is the supremum over any history, (p+1)ε_dp covers p releases seen, the
    joint bound composes the runs. Records that go: ε_dd from any history, ε_dd + pε_dp, and at this
    very request the interval form (optimal), or the runs' composition where that is smaller.
    """
    conditions.require_convex(plan.problem, plan.protects)
    rules, run = ACCOUNTANTS[plan.accountant], descent(plan)

    def private(steps):
        return rules.privacy(run, steps)

    eps_dp = private(np.inf)
    eps_dd = rules.deletion(run, plan.delete_steps)
    runs = question.runs_before_deletion
    first = private(plan.learn_steps if question.first_inserted == 0 else plan.delete_steps)
    per_request = private(plan.delete_steps)
    before = first + (per_request * (runs - 1) if runs > 1 else 0.0)
    joint = before + per_request
    eps_dp_adaptive = adaptive.privacy_adaptive(eps_dp, question.adaptivity)
    eps_dd_adaptive = adaptive.deletion_adaptive(eps_dd, eps_dp, question.adaptivity)
    gaussian = plan.accountant == "optimal"
    form = "gaussian" if gaussian else "linear"
    return Numbers(
        order=run.order,
        eps_dp=eps_dp,
        eps_dp_run=eps_dp,
        eps_dp_adaptive=eps_dp_adaptive,
        eps_dp_request=min(_staying_at_request(plan, question, private), eps_dp_adaptive, joint),
        eps_dp_joint=joint,
        eps_dd=eps_dd,
        eps_dd_adaptive=eps_dd_adaptive,
        eps_dd_request=min(_going_at_request(plan, question), eps_dd_adaptive, before),
        eps_dd_records=floats.plain(
            floats.product(eps_dd_adaptive, question.records, question.records)
        ),
        gaussian=gaussian,
        deletion_form=form,
        adaptive_form=form,
        advantage_bound=_advantage(run.order, eps_dd_adaptive, gaussian),
        **_risks(plan, question),
    )


def _staying_at_request(plan, question, private) -> float:
    """Release i with the observed ones before it, where it is known which were seen."""
    seen = question.observed if question.observed is not None else ()
    if question.observed is None and question.adaptivity:
        return math.inf
    if plan.accountant == "optimal":
        return _intervals(adaptive.privacy_adaptive_intervals, plan, seen, question)
    if question.adaptivity:
        return math.inf
    return private(
        adaptive.steps_with_record(
            plan.learn_steps, plan.delete_steps, question.request + 1, question.first_inserted
        )
    )


def _going_at_request(plan, question) -> float:
    """What remains after request i, where it is known which releases were seen (optimal only)."""
    if plan.accountant != "optimal" or (question.observed is None and question.adaptivity):
        return math.inf
    seen = question.observed if question.observed is not None else ()
    return _intervals(adaptive.deletion_adaptive_intervals, plan, seen, question)


def _intervals(formula, plan, seen, question) -> float:
    steps = (plan.learn_steps, plan.delete_steps, question.request)
    return formula(descent(plan), *steps, list(seen), first_inserted=question.first_inserted)


def _advantage(order, eps, gaussian) -> float:
    """2Φ(μ/2) - 1 where μ is proved; else √(ε/(2q)) for neighbours or `thm:soundness`."""
    if gaussian:
        return inference.advantage_gdp(renyi.gdp_from_linear_renyi(order, eps))
    return min(
        inference.advantage_neighbours_linear(order, eps), inference.advantage_soundness(order, eps)
    )


def _risks(plan, question) -> dict:
    """The recursion at this request and over all of them, and the theorem's where it applies."""

    run, steps = edited_descent(plan), (plan.learn_steps, plan.delete_steps)

    def risk(request):
        return risks.excess_risk_convex(run, plan.dim, *steps, request, plan.init_variance)

    return {
        "risk_bound": max(risk(0), risk(np.inf)),
        "risk_bound_learned": risk(0),
        "risk_bound_request": risk(question.request),
        "risk_bound_paper": _risk_paper(plan),
    }


def _risk_paper(plan) -> float | None:
    """`thm:unlearning_accuracy_convex`, part 3, if the plan meets its conditions, else None.

    The theorem's ε_dp is the one its own noise formula gives for the plan's σ².
    """
    run = edited_descent(plan)
    order, l2, smoothness = run.order, run.l2, run.smoothness
    if not math.isclose(plan.step_size * (l2 + smoothness), 0.5, rel_tol=1e-12):
        return None
    eps_dp = privacy_convex(replace(run, records=1), np.inf)
    if math.isinf(eps_dp):
        return None
    start = risks.stationary_variance(l2, plan.noise_variance, plan.step_size)
    learn = risks.learn_steps_convex_paper(order, l2, smoothness, plan.n, plan.dim, eps_dp)
    delete = risks.delete_steps_convex_paper(
        order, l2, smoothness, plan.dim, eps_dp, plan.edits_per_request
    )
    fits = (
        math.isclose(plan.init_variance, start, rel_tol=1e-12)
        and plan.learn_steps >= learn
        and plan.delete_steps >= delete
    )
    if not fits:
        return None
    return risks.excess_risk_convex_paper(
        order, run.lipschitz, l2, smoothness, plan.n, plan.dim, eps_dp
    )
