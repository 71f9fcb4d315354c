"""Bounded losses that need not be convex, by closeness to the Gibbs law."""

import math
from typing import Literal

import numpy as np

from dd_jax import checks
from dd_jax.errors import CertificateRefused, InputError
from dd_jax.guarantees import inference, nonconvex
from dd_jax.guarantees import risk as risks
from dd_jax.guarantees.convex import Descent, privacy_lipschitz
from dd_jax.plans import conditions
from dd_jax.plans.certificate import NUMBERS, Numbers, Question
from dd_jax.plans.composition import composition_numbers
from dd_jax.plans.plan import Plan
from dd_jax.plans.settings import FORMULAS, Dtype, Settings, check_unit, whole


@checks.representable
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
    (erratum E9). Step counts that nobody can run are computed too, and the certificate says what
    they cost.

    Guarantee: what `Plan.certificate` says.
    Assumes: loss L-Lipschitz, β-smooth and bounded by b, not clipped.
    The non-convex trade-off theorem, `thm:deletion_accuracy_nonconvex`, with errata E4, E5, E11.

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
    checks.choice("form", form, FORMULAS["nonconvex"])
    conditions.require_nonconvex(problem)
    if order is None:
        raise InputError(
            "non-convex budgets are Rényi divergences, and no order was given; give order, for "
            "example 2."
        )
    check_unit(order, None, "nonconvex")
    budgets = (float(checks.positive("eps_dp", eps_dp)), float(checks.positive("eps_dd", eps_dd)))
    if noise_variance is None and step_size is not None:
        raise InputError(
            f"step_size = {step_size} needs a noise_variance with it, as each decides the other's "
            f"range; give both, or neither to have them chosen."
        )
    proof, case = nonconvex.PROOFS[form], _bounded(problem, order, n, dim, edits_per_request)
    if noise_variance is None:
        found = proof.noise(case, *budgets)
    else:
        found = proof.settings(case, noise_variance, budgets[1], step_size)
        _require_privacy(case, found, budgets[0])
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


def _require_privacy(case: nonconvex.Bounded, found, eps_dp) -> None:
    """Refuse a noise of the user's own that breaks the privacy budget."""
    steps = max(1.0, found.learn_steps, found.delete_steps)
    constants = (case.order, case.lipschitz, case.l2, case.smoothness)
    run = Descent(*constants, found.noise_variance, case.n, found.step_size)
    per_run = privacy_lipschitz(run, steps)
    if per_run > eps_dp * (1 + 1e-12):
        raise CertificateRefused(
            f"noise_variance = {found.noise_variance:g} breaks the privacy budget: a run of "
            f"{steps:g} steps has eps_dp = {per_run:g}, above {eps_dp:g}; give no noise_variance "
            f"to have the least one chosen, or a larger one."
        )


def _bounded(problem, order, n, dim, edits_per_request) -> nonconvex.Bounded:
    """The problem as non-convex bounds take it."""
    loss = (problem.lipschitz, problem.l2, problem.loss.smoothness, problem.loss.bound)
    return nonconvex.Bounded(order, *loss, n, dim, edits_per_request)


# --- what settings give ---------------------------------------------------------------------------


def nonconvex_numbers(plan: Settings, question: Question) -> Numbers:
    """Every number of a non-convex certificate, from the plan's settings alone.

    The run sums hold for records that stay, and for records that go against a requester that saw a
    release (errata E2, E9). Against one that saw none since the start, the divergence from the
    Gibbs law holds for records that go; a release seen before the record was inserted counts too,
    because the argument needs a history without any adaptivity.
    """
    eps_dd, at_request, learned = (
        gibbs_divergence(plan, request) for request in (np.inf, question.request, 0)
    )
    case = _bounded(plan.problem, plan.order, plan.n, plan.dim, plan.edits_per_request)
    noise_variance, step_size = plan.noise_variance, plan.step_size

    def risk(divergence) -> float:
        return risks.excess_risk_nonconvex(case, noise_variance, step_size, divergence)

    sums = composition_numbers(plan, question)
    numbers = sums._replace(eps_dd=eps_dd, deletion_form="renyi")
    if question.adaptivity:
        # Only the learned model, which precedes all requests, is still close to its Gibbs law.
        every, at_request = math.inf, math.inf
    else:
        every = max(learned, eps_dd)
        sound = inference.advantage_soundness(sums.order, eps_dd)
        numbers = numbers._replace(
            eps_dd_adaptive=eps_dd,
            eps_dd_request=at_request,
            eps_dd_records=eps_dd,
            adaptive_form="renyi",
            advantage_bound=min(sums.advantage_bound, sound),
        )
    return numbers._replace(
        risk_bound=risk(every),
        risk_bound_learned=risk(learned),
        risk_bound_request=risk(at_request),
        risk_bound_paper=risks.excess_risk_nonconvex_paper(case, noise_variance, every),
    )


def gibbs_divergence(plan: Settings, request) -> float:
    """Bound on R_q(Θ̂_i‖π(D_i)) where no release was seen; the supremum over i ≥ 1 where i = ∞.

    Request 0 is learning.
    """
    conditions.require_nonconvex(plan.problem)
    _require_start(plan)
    case = _bounded(plan.problem, plan.order, plan.n, plan.dim, plan.edits_per_request)
    steps = (plan.learn_steps, plan.delete_steps)
    deletion = nonconvex.PROOFS[plan.accountant].deletion
    return deletion(case, plan.noise_variance, plan.step_size, *steps, request=request)


def _require_start(plan: Settings) -> None:
    needed = plan.noise_variance / plan.problem.l2
    if not math.isclose(plan.init_variance, needed, rel_tol=1e-9):
        raise CertificateRefused(
            f"the start N(0, {plan.init_variance:g} I) has no non-convex deletion certificate, "
            f"which holds from N(0, σ²/λ I) only (erratum E11: a pretrained start broke it); "
            f"give init_variance = {needed:g}."
        )


NUMBERS["nonconvex"] = nonconvex_numbers
