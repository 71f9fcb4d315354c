"""Plans for convex smooth losses: budgets in, the cheapest settings that meet them out."""

import math
from typing import Literal, NamedTuple

from dd_jax.errors import CertificateRefused
from dd_jax.guarantees import checks, utility
from dd_jax.plans import conditions
from dd_jax.plans.accountants import Accountant, Case, accountant_rules, whole
from dd_jax.plans.numbers import to_renyi
from dd_jax.plans.plan import Plan
from dd_jax.plans.settings import Dtype

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
        dtype: the floating type that is run, "float32" or "float64"; the certificate checks that
            its rounding does not matter.
    """
    problem = problem.constants
    rules = accountant_rules(accountant)
    conditions.require_convex(problem, protects)
    step_size = _step_size(problem, rules, step_size)
    order_used, budget_dp, budget_dd = to_renyi(order, delta, eps_dp, eps_dd, accountant)
    budgets = _Budgets(rules, order_used, budget_dp, budget_dd, target_risk, noise_variance)
    case = Case(problem, n, dim, step_size, edits_per_request, protects)
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
        dtype=dtype,
    )


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
