"""Plans and numbers for convex smooth losses."""

import math
from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np

from dd_jax.constants import ProblemConstants
from dd_jax.errors import CertificateRefused, InputError
from dd_jax.guarantees import adaptive, checks, deletion, inference, privacy, renyi, utility
from dd_jax.plans import conditions
from dd_jax.plans.numbers import Numbers, Question, internal_order, to_renyi
from dd_jax.plans.plan import Plan

# By default learning stops when the risk bound of the learned model is within this share of the
# least that the noise allows.
LEARNING_SLACK = 0.1


class Accountant(NamedTuple):
    """One way to account: its bounds, their inverses and its default step size times λ+β."""

    privacy: Callable
    deletion: Callable
    noise_variance: Callable
    delete_steps: Callable
    default_step: float


ACCOUNTANTS = {
    "paper": Accountant(
        privacy.privacy_paper,
        deletion.deletion_paper,
        privacy.noise_variance_paper,
        deletion.delete_steps_paper,
        0.5,
    ),
    "unrelaxed": Accountant(
        privacy.privacy_unrelaxed,
        deletion.deletion_unrelaxed,
        privacy.noise_variance_unrelaxed,
        deletion.delete_steps_unrelaxed,
        0.5,
    ),
    "optimal": Accountant(
        privacy.privacy_optimal,
        deletion.deletion_optimal,
        privacy.noise_variance_optimal,
        deletion.delete_steps_optimal,
        1.0,
    ),
}


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
) -> Plan:
    """Settings that meet privacy, deletion and risk budgets at the least cost, for convex losses.

    σ² is the least that privacy allows, K_U the fewest steps that deletion needs, at least one.
    With `target_risk` every released model has at most that excess risk, and spare risk is spent on
    noise wherever that saves deletion steps. Without it K_L puts the learned model's risk bound
    within 10% of the least that the noise allows; for the paper's accountant at its own step size
    K_L is its theorem's.

    Guarantee: what `Plan.certificate` says.
    Assumes: convex, L-Lipschitz (or clipped single-index), β-smooth loss.
    `thm:unlearning_accuracy_convex`.

    Args:
        problem: a `dd_jax.Problem` or its constants.
        n: number of records. dim: d, number of parameters.
        eps_dp: privacy budget of one release. eps_dd: what may remain of one deleted record.
        order: q, if the budgets are Rényi divergences.
        delta: δ, if they are the ε of (ε, δ); they then go through exact Gaussian DP.
        edits_per_request: r; it matters to the risk only, deletion is certified per record.
        accountant: "optimal" (attained bounds), "unrelaxed" (the paper's proof) or "paper".
        step_size: η; 1/(λ+β) by default for "optimal", half of it for the others.
        noise_variance: a σ² of your own; refused where it breaks the privacy budget.
        target_risk: the excess empirical risk that no released model may exceed.
        protects: "label" for label-only neighbours and edits (needs `label_sensitivity`).
    """
    problem = problem.constants
    rules = accountant_rules(accountant)
    conditions.require_convex(problem, protects)
    step_size = _step_size(problem, rules, step_size)
    order_used, budget_dp, budget_dd = to_renyi(order, delta, eps_dp, eps_dd, accountant)
    budgets = _Budgets(rules, order_used, budget_dp, budget_dd, target_risk, noise_variance)
    case = _Case(problem, n, dim, step_size, edits_per_request, protects)
    noise_variance, delete_steps = _noise_and_delete_steps(case, budgets)
    learn_steps = _learn_steps(case, budgets, noise_variance, accountant)
    return Plan(
        problem=problem,
        n=n,
        dim=dim,
        order=order,
        delta=delta,
        step_size=step_size,
        noise_variance=noise_variance,
        init_variance=utility.stationary_variance(problem.l2, noise_variance, step_size),
        learn_steps=max(1, whole("learn_steps", learn_steps)),
        delete_steps=max(1, whole("delete_steps", delete_steps)),
        edits_per_request=edits_per_request,
        kind="convex",
        accountant=accountant,
        eps_dp_asked=float(eps_dp),
        eps_dd_asked=float(eps_dd),
        risk_asked=None if target_risk is None else float(target_risk),
        protects=protects,
    )


def accountant_rules(accountant: str) -> Accountant:
    """The accountant of this name."""
    if accountant not in ACCOUNTANTS:
        raise InputError(
            f"accountant = {accountant!r} is not known; give one of {', '.join(ACCOUNTANTS)}."
        )
    return ACCOUNTANTS[accountant]


def whole(name: str, steps: float) -> int:
    """A step count as an integer, refused where it overflowed."""
    if not math.isfinite(steps):
        raise CertificateRefused(
            f"{name} overflows: no run of finite length meets these budgets; "
            f"give larger budgets, more records or a larger l2."
        )
    return int(steps)


class _Case(NamedTuple):
    """What is run, but for the noise and the number of steps."""

    problem: ProblemConstants
    n: int
    dim: int
    step_size: float
    edits_per_request: int
    protects: conditions.Protects

    def bound(self, formula, order, noise_variance, *steps):
        """A formula of the guarantees at these constants."""
        lipschitz = conditions.sensitivity(self.problem, self.protects)
        constants = (order, lipschitz, self.problem.l2, noise_variance, self.n, self.step_size)
        return formula(*constants, *steps, smoothness=self.problem.loss.smoothness)

    def risk(self, formula, noise_variance, *rest, with_n=True):
        """A risk formula of the guarantees at these constants."""
        problem = self.problem
        lipschitz = conditions.risk_lipschitz(problem, self.protects)
        size = (self.n, self.dim) if with_n else (self.dim,)
        constants = (lipschitz, problem.l2, problem.loss.smoothness, noise_variance, *size)
        return formula(*constants, self.step_size, *rest)


class _Budgets(NamedTuple):
    """What is asked for, in Rényi divergences of one order."""

    rules: Accountant
    order: float
    eps_dp: float
    eps_dd: float
    target_risk: float | None
    noise_variance: float | None


def _step_size(problem, rules, step_size) -> float:
    curvature = problem.l2 + problem.loss.smoothness
    return rules.default_step / curvature if step_size is None else float(step_size)


def _noise_and_delete_steps(case, budgets) -> tuple[float, float]:
    """The fewest deletion steps that the budgets allow, and the least noise for them: (σ², K_U)."""
    noise = _private_noise(case, budgets)
    steps = case.bound(budgets.rules.delete_steps, budgets.order, noise, budgets.eps_dd)
    if budgets.target_risk is None:
        return noise, steps
    edited = _risk_steps(case, budgets, noise)  # refuses a target below the noise's floor
    if budgets.noise_variance is not None:
        return noise, max(steps, edited)
    low, high = 0, whole("delete_steps", max(steps, edited, 1))
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _fits(case, budgets, noise, middle) else (middle, high)
    return _noise_for_steps(case, budgets, noise, high), high


def _fits(case, budgets, least_noise, steps) -> bool:
    """Whether K steps meet the target risk at the noise that deleting in K steps needs."""
    try:
        noise = _noise_for_steps(case, budgets, least_noise, steps)
        return _risk_steps(case, budgets, noise) <= steps
    except CertificateRefused:
        return False


def _noise_for_steps(case, budgets, least_noise, steps) -> float:
    """The least σ² for which K steps delete: every bound is ε(1)/σ²."""
    remaining = case.bound(budgets.rules.deletion, budgets.order, 1.0, steps) / budgets.eps_dd
    return max(least_noise, remaining * (1 + 1e-12))


def _risk_steps(case, budgets, noise) -> float:
    return case.risk(
        utility.delete_steps_convex, noise, budgets.target_risk, case.edits_per_request
    )


def _private_noise(case, budgets) -> float:
    lipschitz = conditions.sensitivity(case.problem, case.protects)
    least = budgets.rules.noise_variance(
        budgets.order,
        budgets.eps_dp,
        lipschitz,
        case.problem.l2,
        case.n,
        case.step_size,
        smoothness=case.problem.loss.smoothness,
    )
    if budgets.noise_variance is None:
        return least
    given = float(checks.positive("noise_variance", budgets.noise_variance))
    if given < least * (1 - 1e-12):
        raise CertificateRefused(
            f"noise_variance = {given:g} breaks the privacy budget, which needs {least:g}; "
            f"give at least that, or a larger eps_dp."
        )
    return given


def _learn_steps(case, budgets, noise_variance, accountant) -> float:
    problem, target = case.problem, budgets.target_risk
    own_step = 0.5 / (problem.l2 + problem.loss.smoothness)
    if target is None and accountant == "paper" and math.isclose(case.step_size, own_step):
        return utility.learn_steps_convex_paper(
            budgets.order, problem.l2, problem.loss.smoothness, case.n, case.dim, budgets.eps_dp
        )
    if target is None:
        target = (1 + LEARNING_SLACK) * utility.excess_risk_floor(
            problem.l2, problem.loss.smoothness, noise_variance, case.dim, case.step_size
        )
    return case.risk(utility.learn_steps_convex, noise_variance, target, with_n=False)


# --- what a convex plan gives -------------------------------------------------------------------


def convex_numbers(plan: Plan, question: Question) -> Numbers:
    """Every number of a convex certificate, from the plan's settings alone, as Rényi divergences.

    Records that stay: ε_dp is the supremum over any history, (p+1)ε_dp covers p releases seen, the
    joint bound composes the runs. Records that go: ε_dd from any history, ε_dd + pε_dp, and at this
    very request the interval form (optimal), or the runs' composition where that is smaller.
    """
    conditions.require_convex(plan.problem, plan.protects)
    rules, order = accountant_rules(plan.accountant), internal_order(plan)
    case = _case(plan)

    def private(steps):
        return case.bound(rules.privacy, order, plan.noise_variance, steps)

    eps_dp = private(np.inf)
    eps_dd = case.bound(rules.deletion, order, plan.noise_variance, plan.delete_steps)
    runs = question.runs_before_deletion
    first = private(plan.learn_steps if question.inserted == 0 else plan.delete_steps)
    per_request = private(plan.delete_steps)
    before = first + (per_request * (runs - 1) if runs > 1 else 0.0)
    joint = before + per_request
    eps_dp_adaptive = privacy.privacy_adaptive(eps_dp, question.adaptivity)
    eps_dd_adaptive = adaptive.deletion_adaptive(eps_dd, eps_dp, question.adaptivity)
    gaussian = plan.accountant == "optimal"
    form = "gaussian" if gaussian else "linear"
    return Numbers(
        order=order,
        eps_dp=eps_dp,
        eps_dp_run=eps_dp,
        eps_dp_adaptive=eps_dp_adaptive,
        eps_dp_request=min(_staying_at_request(plan, question, private), eps_dp_adaptive, joint),
        eps_dp_joint=joint,
        eps_dd=eps_dd,
        eps_dd_adaptive=eps_dd_adaptive,
        eps_dd_request=min(_going_at_request(plan, question), eps_dd_adaptive, before),
        eps_dd_records=checks.plain(checks.product(eps_dd_adaptive, question.records**2)),
        gaussian=gaussian,
        deletion_form=form,
        adaptive_form=form,
        advantage_bound=_advantage(order, eps_dd_adaptive, gaussian),
        **_risks(plan, case, question),
    )


def _case(plan: Plan) -> _Case:
    return _Case(
        plan.problem, plan.n, plan.dim, plan.step_size, plan.edits_per_request, plan.protects
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
            plan.learn_steps, plan.delete_steps, question.request + 1, question.inserted
        )
    )


def _going_at_request(plan, question) -> float:
    """What remains after request i, where it is known which releases were seen (optimal only)."""
    if plan.accountant != "optimal" or (question.observed is None and question.adaptivity):
        return math.inf
    seen = question.observed if question.observed is not None else ()
    return _intervals(adaptive.deletion_adaptive_intervals, plan, seen, question)


def _intervals(formula, plan, seen, question) -> float:
    return formula(
        internal_order(plan),
        conditions.sensitivity(plan.problem, plan.protects),
        plan.problem.l2,
        plan.noise_variance,
        plan.n,
        plan.step_size,
        plan.learn_steps,
        plan.delete_steps,
        question.request,
        list(seen),
        inserted=question.inserted,
        smoothness=plan.problem.loss.smoothness,
    )


def _advantage(order, eps, gaussian) -> float:
    """2Φ(μ/2) - 1 where μ is proved; else √(ε/(2q)) for neighbours or `thm:soundness`."""
    if gaussian:
        return inference.advantage_gdp(renyi.gdp_from_linear_renyi(order, eps))
    return min(
        inference.advantage_neighbours_linear(order, eps), inference.advantage_soundness(order, eps)
    )


def _risks(plan, case, question) -> dict:
    """The recursion at this request and over all of them, and the theorem's where it applies."""

    def risk(request):
        return case.risk(
            utility.excess_risk_convex,
            plan.noise_variance,
            plan.learn_steps,
            plan.delete_steps,
            plan.edits_per_request,
            request,
            plan.init_variance,
        )

    return {
        "risk_bound": max(risk(0), risk(np.inf)),
        "risk_bound_learned": risk(0),
        "risk_bound_request": risk(question.request),
        "risk_bound_paper": _risk_paper(plan, case),
    }


def _risk_paper(plan, case) -> float | None:
    """`thm:unlearning_accuracy_convex`, part 3, if the plan meets its conditions, else None.

    The theorem's ε_dp is the one its own noise formula gives for the plan's σ².
    """
    problem, order = plan.problem, internal_order(plan)
    l2, smoothness = problem.l2, problem.loss.smoothness
    if not math.isclose(plan.step_size * (l2 + smoothness), 0.5, rel_tol=1e-12):
        return None
    lipschitz = conditions.risk_lipschitz(problem, plan.protects)
    eps_dp = privacy.privacy_convex(
        order, lipschitz, l2, plan.noise_variance, plan.n, plan.step_size, np.inf
    )
    if math.isinf(eps_dp):
        return None
    start = utility.stationary_variance(l2, plan.noise_variance, plan.step_size)
    learn = utility.learn_steps_convex_paper(order, l2, smoothness, plan.n, plan.dim, eps_dp)
    delete = utility.delete_steps_convex_paper(
        order, l2, smoothness, plan.dim, eps_dp, plan.edits_per_request
    )
    fits = (
        math.isclose(plan.init_variance, start, rel_tol=1e-12)
        and plan.learn_steps >= learn
        and plan.delete_steps >= delete
    )
    if not fits:
        return None
    return utility.excess_risk_convex_paper(
        order, lipschitz, l2, smoothness, plan.n, plan.dim, eps_dp
    )
