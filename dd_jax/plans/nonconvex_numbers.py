"""What a non-convex plan gives: closeness to the Gibbs law, and the runs that saw a record."""

import math
from dataclasses import replace

import numpy as np

from dd_jax.errors import CertificateRefused
from dd_jax.guarantees import adaptive, inference, nonconvex, renyi
from dd_jax.guarantees import risk as risks
from dd_jax.guarantees.convex import privacy_lipschitz
from dd_jax.plans import conditions
from dd_jax.plans.numbers import Numbers, Question, descent
from dd_jax.plans.settings import Settings


def shape(problem):
    """λ, β and b."""
    return problem.l2, problem.loss.smoothness, problem.loss.bound


def bounded(problem, order, n, dim, edits_per_request) -> nonconvex.Bounded:
    """The problem as non-convex bounds take it."""
    shape_ = shape(problem)
    return nonconvex.Bounded(order, problem.lipschitz, *shape_, n, dim, edits_per_request)


def nonconvex_numbers(plan: Settings, question: Question) -> Numbers:
    """Every number of a non-convex certificate, from the plan's settings alone.

    Records that stay: the run sum over the runs that saw the record, marginal and joint alike.
    Records that go: the divergence from the Gibbs law for a requester that saw no release since the
    start, the run sum for one that did (errata E2, E9); a release seen before the record came in
    counts, as the argument needs the whole history non-adaptive.
    """
    conditions.require_nonconvex(plan.problem)
    _require_start(plan)
    run = descent(plan)
    run_sum = _run_sum(plan, question, adaptive.deletion_run_sum)
    joint = _run_sum(plan, question, adaptive.privacy_run_sum)
    eps_dd, at_request = _gibbs(plan, np.inf), _gibbs(plan, question.request)
    adaptive_requester = question.adaptivity > 0
    advantage = inference.advantage_gdp(renyi.gdp_from_linear_renyi(run.order, run_sum))
    if not adaptive_requester:
        advantage = min(advantage, inference.advantage_soundness(run.order, eps_dd))
    return Numbers(
        order=run.order,
        eps_dp=joint,
        eps_dp_run=privacy_lipschitz(run, max(plan.learn_steps, plan.delete_steps)),
        eps_dp_adaptive=joint,
        eps_dp_request=joint,
        eps_dp_joint=joint,
        eps_dd=eps_dd,
        eps_dd_adaptive=run_sum if adaptive_requester else eps_dd,
        eps_dd_request=run_sum if adaptive_requester else at_request,
        eps_dd_records=(
            _run_sum(plan, question, adaptive.deletion_run_sum, question.records)
            if adaptive_requester
            else eps_dd
        ),
        gaussian=True,
        deletion_form="renyi",
        adaptive_form="gaussian" if adaptive_requester else "renyi",
        advantage_bound=advantage,
        **_risks(plan, eps_dd, at_request, adaptive_requester),
    )


def _require_start(plan: Settings) -> None:
    needed = plan.noise_variance / plan.problem.l2
    if not math.isclose(plan.init_variance, needed, rel_tol=1e-9):
        raise CertificateRefused(
            f"the start N(0, {plan.init_variance:g} I) has no non-convex deletion certificate, "
            f"which holds from N(0, σ²/λ I) only (erratum E11: a pretrained start broke it); "
            f"give init_variance = {needed:g}."
        )


def _run_sum(plan, question, formula, records=1) -> float:
    steps = (plan.learn_steps, plan.delete_steps, question.request)
    run = replace(descent(plan), records=records)
    return formula(run, *steps, first_inserted=question.first_inserted)


def _gibbs(plan, request) -> float:
    problem = bounded(plan.problem, plan.order, plan.n, plan.dim, plan.edits_per_request)
    steps = (plan.step_size, plan.learn_steps, plan.delete_steps)
    return nonconvex.PROOFS[plan.accountant].deletion(
        problem, plan.noise_variance, *steps, request=request
    )


def _risks(plan, supremum, at_request, adaptive_requester) -> dict:
    """From the divergence of each model: learned, after this request, after all of them.

    The supremum is over requests alone, so the learned model's is added to it. Requests that
    depend on releases leave no divergence from the Gibbs law, but learning precedes them.
    """
    problem, run = plan.problem, descent(plan)
    constants = (problem.lipschitz, *shape(problem), plan.noise_variance, plan.dim)
    learned = _gibbs(plan, 0)
    if adaptive_requester:
        supremum = at_request = math.inf
    every = max(learned, supremum)

    def risk(divergence):
        return risks.excess_risk_nonconvex(run, problem.loss.bound, plan.dim, divergence)

    return {
        "risk_bound": risk(every),
        "risk_bound_learned": risk(learned),
        "risk_bound_request": risk(at_request),
        "risk_bound_paper": risks.excess_risk_nonconvex_paper(*constants, every),
    }
