"""Plans and numbers for bounded losses that need not be convex, by closeness to the Gibbs law."""

import math
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from dd_jax.errors import CertificateRefused, InputError
from dd_jax.guarantees import adaptive, checks, inference, nonconvex, renyi
from dd_jax.guarantees import risk as risks
from dd_jax.guarantees.convex import Descent, privacy_lipschitz
from dd_jax.plans import conditions
from dd_jax.plans.numbers import Numbers, Question, check_unit, descent, whole
from dd_jax.plans.plan import FORMULAS, Dtype, Plan


def plan_nonconvex(
    problem,
    *,
    n: int,
    dim: int,
    order: float,
    eps_dp: float,
    eps_dd: float,
    edits_per_request: int = 1,
    form: Literal["sharp", "refined", "tuned", "paper"] = "sharp",
    step_size: float | None = None,
    noise_variance: float | None = None,
    dtype: Dtype = "float32",
) -> Plan:
    """Settings that meet privacy and deletion budgets, for a bounded loss that need not be convex.

    More noise means fewer steps, fewer steps mean less noise for privacy: σ² is the least that fits
    (one root, found by bisection in log σ²), η and the steps follow from it. The budget eps_dp is
    for each run of learning or deletion; a record that stays through i requests is in i + 1 of them
    (erratum E9). Step counts beyond reach are computed all the same, and the certificate says what
    they cost.

    Guarantee: what `Plan.certificate` says.
    Assumes: loss L-Lipschitz, β-smooth and bounded by b, not clipped.
    `thm:deletion_accuracy_nonconvex` with errata E4, E5, E11.

    Args:
        problem: a `dd_jax.Problem` or its constants.
        n: number of records. dim: d, number of parameters.
        order: q. eps_dp: Rényi budget of one run. eps_dd: divergence from the Gibbs law.
        edits_per_request: r.
        form: "paper" follows the theorem, the others keep more of its proof; "sharp" the most.
        step_size: η; needs `noise_variance` too. The one with the fewest steps by default.
        noise_variance: a σ² of your own; refused where it breaks the privacy budget.
        dtype: the floating type that is run, "float32" or "float64".
    """
    problem = problem.constants
    if form not in FORMULAS["nonconvex"]:
        raise InputError(
            f"form = {form!r} is not known; give one of {', '.join(FORMULAS['nonconvex'])}."
        )
    conditions.require_nonconvex(problem)
    if order is None:
        raise InputError(
            "non-convex budgets are Rényi divergences, and no order was given; give order, for "
            "example 2."
        )
    check_unit(order, None, form)
    budgets = (float(checks.positive("eps_dp", eps_dp)), float(checks.positive("eps_dd", eps_dd)))
    if noise_variance is None and step_size is not None:
        raise InputError(
            f"step_size = {step_size} needs a noise_variance with it, as each decides the other's "
            f"range; give both, or neither to have them chosen."
        )
    arguments = (problem, n, dim, order, *budgets, edits_per_request, form)
    if noise_variance is None:
        found = _least_noise(*arguments)
    else:
        found = _at_noise(*arguments, step_size, noise_variance)
    return Plan(
        problem=problem,
        n=n,
        dim=dim,
        order=float(order),
        delta=None,
        step_size=found.step_size,
        noise_variance=found.noise_variance,
        init_variance=found.noise_variance / problem.l2,
        learn_steps=max(1, whole("learn_steps", found.learn_steps)),
        delete_steps=max(1, whole("delete_steps", found.delete_steps)),
        edits_per_request=edits_per_request,
        kind="nonconvex",
        accountant=form,
        eps_dp_asked=budgets[0],
        eps_dd_asked=budgets[1],
        dtype=dtype,
    )


def _least_noise(problem, n, dim, order, eps_dp, eps_dd, edits, form) -> Any:
    constants = (order, problem.lipschitz, *_shape(problem), n, dim, eps_dp, eps_dd, edits)
    if form == "paper":
        return nonconvex.noise_nonconvex_paper(*constants)
    return nonconvex.noise_nonconvex_tuned(*constants, form=form)


def _at_noise(
    problem, n, dim, order, eps_dp, eps_dd, edits, form, step_size, noise_variance
) -> Any:
    noise_variance = float(checks.positive("noise_variance", noise_variance))
    constants = (order, *_shape(problem), noise_variance, n, dim, eps_dd, edits, step_size)
    if form == "paper":
        found = nonconvex.settings_nonconvex_paper(*constants)
    else:
        found = nonconvex.settings_nonconvex_tuned(*constants, form=form)
    steps = max(1.0, found.learn_steps, found.delete_steps)
    curvature = (problem.l2, problem.loss.smoothness)
    run = Descent(order, problem.lipschitz, *curvature, noise_variance, n, found.step_size)
    per_run = privacy_lipschitz(run, steps)
    if per_run > eps_dp * (1 + 1e-12):
        raise CertificateRefused(
            f"noise_variance = {noise_variance:g} breaks the privacy budget: a run of {steps:g} "
            f"steps has eps_dp = {per_run:g}, above {eps_dp:g}; give no noise_variance to have the "
            f"least one chosen, or a larger one."
        )
    return found


def _shape(problem):
    """λ, β and b."""
    return problem.l2, problem.loss.smoothness, problem.loss.bound


def nonconvex_numbers(plan: Plan, question: Question) -> Numbers:
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


def _require_start(plan: Plan) -> None:
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
    constants = (
        plan.order,
        *_shape(plan.problem),
        plan.noise_variance,
        plan.n,
        plan.dim,
        plan.step_size,
        plan.learn_steps,
        plan.delete_steps,
        plan.edits_per_request,
        request,
    )
    if plan.accountant == "paper":
        return nonconvex.deletion_nonconvex_paper(*constants)
    return nonconvex.deletion_nonconvex_tuned(*constants, form=plan.accountant)


def _risks(plan, supremum, at_request, adaptive_requester) -> dict:
    """From the divergence of each model: learned, after this request, after all of them.

    The supremum is over requests alone, so the learned model's is added to it. Requests that
    depend on releases leave no divergence from the Gibbs law, but learning precedes them.
    """
    problem, run = plan.problem, descent(plan)
    constants = (problem.lipschitz, *_shape(problem), plan.noise_variance, plan.dim)
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
