"""Convex smooth losses: the cheapest settings that meet budgets, and what settings give."""

import math
from dataclasses import replace
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from dd_jax import checks
from dd_jax.errors import CertificateRefused, InputError
from dd_jax.guarantees import adaptive, clipping, floats, inference, renyi, schedules
from dd_jax.guarantees import lattice as counted
from dd_jax.guarantees import risk as risks
from dd_jax.guarantees.convex import (
    ACCOUNTANTS,
    Descent,
    deletion_optimal,
    fewest_steps,
    least_noise,
    privacy_convex,
)
from dd_jax.guarantees.streams import Factors, Stream, pairs
from dd_jax.plans import conditions, lattice
from dd_jax.plans.certificate import NUMBERS, Form, Numbers, Question, Utility, trivial_risk
from dd_jax.plans.plan import Plan
from dd_jax.plans.settings import (
    Arithmetic,
    Dtype,
    Reference,
    Settings,
    descent,
    edited_descent,
    stream,
    to_renyi,
    whole,
)

# By default learning stops when the risk bound of the learned model is within this share of the
# least that the noise allows.
LEARNING_SLACK = 0.1
# With batches="auto" the noise may have this many times the variance that full batches need.
NOISE_SLACK = 1.25
# The share of each budget's μ that rounding may take in exact arithmetic: 1% of the divergence.
ROUNDING_SHARE = 0.005
# The numbers of batches that are tried, and how often the step size is halved.
_TRIED = (1, 2, 3, 4, 5, 7, 10, 14, 20, 30, 40, 50, 70, 100, 140, 200, 300, 400, 500, 700, 1000)
_HALVINGS = 6


@checks.representable
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
    target_risk: float | Literal["paper"] | None = None,
    protects: conditions.Protects = "record",
    dtype: Dtype = "float32",
    batches: int | Literal["auto"] = 1,
    reference: Reference = "replaced",
    expected_requests: int = 100,
    learn_steps: int | None = None,
    delete_steps: int | None = None,
    learn_factors: Factors | None = None,
    delete_factors: Factors | None = None,
    arithmetic: Arithmetic = "fast",
) -> Plan:
    """Settings that meet privacy, deletion and risk budgets at the least cost, for convex losses.

    The noise σ² is the least that privacy allows, K_U the fewest steps that deletion needs (≥ 1).
    With `target_risk` every released model has at most that excess risk, and spare risk is spent on
    noise wherever that saves deletion steps. Without it K_L puts the learned model's risk bound
    within 10% of the least that the noise allows, K_U may be too small for utility (the certificate
    warns); for the paper's accountant at its own step size K_L is its theorem's.

    The theorem's own plan, with its three objectives of privacy, deletion and utility, is that of
    `accountant="paper", target_risk="paper"`.

    Guarantee: what `Plan.certificate` says.
    Assumes: convex, L-Lipschitz (or clipped single-index), β-smooth loss. Any other clipped convex
    loss needs λ > β/8, and has no risk bound (`guarantees.clipping`).
    The convex trade-off theorem, `thm:unlearning_accuracy_convex`.

    Args:
        problem: a `dd_jax.Problem` or its constants.
        n: number of records. dim: d, number of parameters.
        eps_dp: privacy budget of one release. eps_dd: what may remain of one deleted record.
        order: q, if the budgets are Rényi divergences.
        delta: δ, if they are the ε of (ε, δ); they then go through exact Gaussian DP.
        edits_per_request: r; it matters only to the risk, as deletion is certified per record.
        accountant: "optimal" (attained bounds), "unrelaxed" (the paper's proof) or "paper".
        step_size: η; 1/(λ+β) by default for "optimal", half of it for the others; where clipping
            leaves only a contraction, the one that contracts most if that is smaller.
        noise_variance: a σ² of your own; refused where it breaks the privacy budget.
        target_risk: the excess empirical risk that no released model may exceed; "paper" for what
            the theorem states at these budgets, 10κqdL²/(λ ε_dp n²).
        protects: "label" for label-only neighbours and edits (needs `label_sensitivity`).
        dtype: the floating type that is run, "float32" or "float64"; the certificate checks that
            its rounding does not matter.
        batches: m cyclic batches of consecutive rows, one per step, so that a pass takes m steps;
            "auto" takes the cheapest m (and η, unless it is given) for learning and
            `expected_requests` requests together, see `batch_options`.
        reference: what eps_dd is compared with: the run on the record that "replaced" the deleted
            one, or the run in which the row was empty, "null", a quarter of it. The certificate
            has both.
        expected_requests: how many requests "auto" plans for.
        learn_steps, delete_steps: K_L and K_U of your own; with K_U the noise is what both budgets
            need.
        learn_factors, delete_factors: a pair of factors for each step of learning and of a request,
            which multiply η and σ²; their numbers are K_L and K_U. The budgets scale σ².
        arithmetic: "fast" runs in floating point and is certified for real numbers, "exact" runs on
            a lattice so fine that rounding, which is counted, takes at most 1% of each budget.
    """
    if arithmetic != "fast":
        asked = {k: v for k, v in locals().items() if k not in ("problem", "arithmetic")}
        checks.choice("arithmetic", arithmetic, get_args(Arithmetic))
        return _on_a_lattice(problem, asked)
    if isinstance(batches, str) and batches == "auto":
        asked = {k: v for k, v in locals().items() if k not in ("problem", "batches")}
        return min(batch_options(problem, **asked), key=lambda option: option.gradients).plan
    problem = problem.constants
    learn_factors = pairs("learn_factors", learn_factors)
    delete_factors = pairs("delete_factors", delete_factors)
    checks.choice("accountant", accountant, ACCOUNTANTS)
    rules = ACCOUNTANTS[accountant]
    varies = learn_factors is not None or delete_factors is not None
    conditions.require_contraction(problem, protects, accountant, varies)
    own_step = rules.default_step / (problem.l2 + problem.loss.smoothness)
    if conditions.only_contracts(problem):
        _require_no_target(target_risk)
        own_step = min(own_step, clipping.best_step_size(problem.l2, problem.loss.smoothness))
    eta = float(own_step if step_size is None else checks.positive("step_size", step_size))
    l2, smoothness = conditions.constants_of_steps(problem, eta)
    order_used, budget_dp, budget_dd = to_renyi(order, delta, eps_dp, eps_dd, accountant)
    checks.choice("reference", reference, get_args(Reference))
    if reference == "null":
        budget_dd = 4 * budget_dd  # half the gap: a quarter of the divergence
    to_learn: Any = _given("learn", learn_steps, learn_factors)
    to_delete: Any = _given("delete", delete_steps, delete_factors)
    run = Descent(
        order=order_used,
        lipschitz=conditions.sensitivity(problem, protects),
        l2=l2,
        smoothness=smoothness,
        noise_variance=1.0,  # to be chosen
        n=n,
        step_size=eta,
        batches=schedules.check_batches(n, batches),
    )
    if not varies:
        least = least_noise(rules.privacy, run, budget_dp)
        if to_delete is not None:
            least = max(least, least_noise(rules.deletion, run, budget_dd, to_delete))
    else:
        factors = (learn_factors, delete_factors)
        least = _varying_noise(run, budget_dp, budget_dd, to_learn, to_delete, *factors)
    given = least if noise_variance is None else checks.positive("noise_variance", noise_variance)
    if given < least * (1 - 1e-12):
        raise CertificateRefused(
            f"noise_variance = {given:g} breaks the budgets, which need {least:g}; "
            f"give at least that, or larger budgets."
        )
    run = replace(run, noise_variance=given)
    lipschitz = conditions.risk_lipschitz(problem, protects)
    edited = replace(run, lipschitz=lipschitz, records=edits_per_request)
    # The theorem's ε_dp for the L of risks, which differs from that of privacy for labels alone.
    share = edited.lipschitz / run.lipschitz
    stated = _stated(edited, dim, budget_dp * share * share)
    by_theorem = accountant == "paper" and math.isclose(run.step_size, own_step)
    if target_risk is not None:
        _require_plain_steps(run, to_learn, to_delete)
    if to_delete is None:
        to_delete = fewest_steps(rules.deletion, run, budget_dd)
    target = stated.risk if target_risk == "paper" else target_risk
    if target_risk == "paper" and by_theorem and noise_variance is None:
        to_learn, to_delete = stated.learn_steps, max(to_delete, stated.delete_steps)
    elif target is not None:
        target = float(checks.positive("target_risk", target))
        to_delete = max(to_delete, risks.delete_steps_convex(edited, dim, target))
        if noise_variance is None:
            edited, to_delete = _fewer_steps(
                rules.deletion, run, edited, dim, budget_dd, target, to_delete
            )
        to_learn = risks.learn_steps_convex(edited, dim, target)
    if to_learn is None and by_theorem:
        to_learn = stated.learn_steps
    elif to_learn is None:
        near = (1 + LEARNING_SLACK) * risks.excess_risk_floor(edited, dim)
        to_learn = risks.learn_steps_convex(edited, dim, near)
    chosen = edited.noise_variance
    return Plan(
        problem=problem,
        n=n,
        dim=dim,
        order=order,
        delta=delta,
        step_size=run.step_size,
        noise_variance=chosen,
        init_variance=risks.stationary_variance(run.l2, chosen, run.step_size),
        learn_steps=max(1, whole("learn_steps", to_learn)),
        delete_steps=max(1, whole("delete_steps", to_delete)),
        edits_per_request=edits_per_request,
        kind="convex",
        accountant=accountant,
        eps_dp_asked=float(eps_dp),
        eps_dd_asked=float(eps_dd),
        risk_asked=target,
        protects=protects,
        dtype=dtype,
        batches=int(run.batches),
        reference=reference,
        learn_factors=learn_factors,
        delete_factors=delete_factors,
    )


def _on_a_lattice(problem, asked: dict[str, Any]) -> Plan:
    """The plan in exact arithmetic: 99.5% of both μ for the run in real numbers, μ_f in the rest.

    The lattice is the coarsest for which that holds. The step size becomes a little smaller, so
    that ηλ has few bits.
    """
    asked = dict(asked)
    own = {name: asked[name] for name in ("order", "delta", "eps_dp", "eps_dd")}
    checks.choice("accountant", asked["accountant"], ("optimal",))
    order, dp, dd = to_renyi(**own, accountant="optimal", arithmetic="exact")
    kept = (1 - ROUNDING_SHARE) ** 2
    asked |= {"order": order, "delta": None, "eps_dp": dp * kept, "eps_dd": dd * kept}
    most = ROUNDING_SHARE * math.sqrt(2 * min(dp, dd) / order)
    base = plan_convex(problem, **asked)
    asked["batches"] = base.batches
    named = {"order": own["order"], "delta": own["delta"], "arithmetic": "exact"}
    named |= {"eps_dp_asked": float(own["eps_dp"]), "eps_dd_asked": float(own["eps_dd"])}
    low, high = lattice.NOISE_BITS
    for bits in range(low, high + 1):
        found = replace(base, lattice_bits=bits, **named)
        # A step size that is not rounded yet has a large E of its own.
        spacing = lattice.of(found).spacing
        deviation = lattice.deviation(found)
        gap = counted.rounding_gap(spacing, found.dim, found.step_size, 0.0)
        if counted.floor(gap, deviation, found.step_size, found.problem.l2) > most:
            continue
        asked["step_size"] = lattice.aligned_step(found)
        found = replace(plan_convex(problem, **asked), lattice_bits=bits, **named)
        if lattice.floor(found) <= most:
            return found
    raise CertificateRefused(
        f"on the finest lattice, 2^-{high} of the noise, rounding takes more than "
        f"{2 * ROUNDING_SHARE:.0%} of a budget; give larger budgets, fewer records, or "
        f"arithmetic='fast'."
    )


def _stated(run: Descent, dim: int, eps_dp: float) -> Utility:
    """Part 3 of the convex trade-off theorem, `thm:unlearning_accuracy_convex`.

    The run is as risk bounds take it, and `eps_dp` the one that its L and noise give.
    """
    order, l2, smoothness = run.order, run.l2, run.smoothness
    return Utility(
        risks.excess_risk_convex_paper(order, run.lipschitz, l2, smoothness, run.n, dim, eps_dp),
        risks.learn_steps_convex_paper(order, l2, smoothness, run.n, dim, eps_dp),
        risks.delete_steps_convex_paper(order, l2, smoothness, dim, eps_dp, run.records),
    )


def _given(name: str, steps: int | None, factors: Factors | None) -> int | None:
    """The steps that were given, as a number or by the length of their factors."""
    if factors is None:
        return None if steps is None else checks.whole(f"{name}_steps", steps, least=1)
    if steps not in (None, len(factors)):
        raise InputError(
            f"{name}_steps = {steps} contradicts {len(factors)} {name}_factors; leave it out."
        )
    return len(factors)


def _varying_noise(run, budget_dp, budget_dd, learn_steps, delete_steps, learn, delete) -> float:
    """The least σ², before its factors, that meets both budgets: every bound is ε(1)/σ²."""
    if learn_steps is None or delete_steps is None:
        raise InputError(
            "factors of some steps were given, but not the number of all steps; give learn_steps "
            "or learn_factors, and delete_steps or delete_factors."
        )
    unit = Stream(run, learn_steps, delete_steps, learn, delete)
    return max(unit.privacy / budget_dp, unit.deletion / budget_dd) * (1 + 1e-12)


def _require_plain_steps(run: Descent, learn_steps, delete_steps) -> None:
    if run.batches > 1 or learn_steps is not None or delete_steps is not None:
        raise CertificateRefused(
            "target_risk chooses the steps, by the risk bound of full batches; give target_risk "
            "alone, or batches and steps without it."
        )


def _require_no_target(target_risk) -> None:
    if target_risk is not None:
        raise CertificateRefused(
            "the clipped gradients are not those of any objective (erratum E1), so that no risk "
            "is bounded; leave out target_risk, and measure the risk."
        )


class Option(NamedTuple):
    """What one number of batches would cost.

    Attributes:
        plan: the cheapest plan with this number of batches.
        gradients: of single records, for learning and all expected requests.
        noise: the variance that noise gives the model, as a multiple of that of full batches.
    """

    plan: Plan
    gradients: int
    noise: float


@checks.representable
def batch_options(
    problem, *, expected_requests: int = 100, step_size: float | None = None, **asked
) -> list[Option]:
    """The cheapest plan for each number of batches, of those whose noise stays near the least.

    Smaller batches make steps cheaper and need more noise. The noise of a model at rest,
    σ²/(λ(1 - ηλ/2)), stands for what it costs in risk: options above 1.25 times that of full
    batches at the default step size are left out, and so is what has no certificate. Unless the
    step size is given, halves of the default are tried too, which allow smaller batches.

    Args:
        problem, step_size, **asked: as in `plan_convex`.
        expected_requests: how many requests the cost is counted for.
    """
    requests = checks.whole("expected_requests", expected_requests)
    if asked.get("learn_factors") is not None or asked.get("delete_factors") is not None:
        raise InputError(
            "factors are given for a number of steps, which is another one for every number of "
            "batches; give batches as a number."
        )
    full = plan_convex(problem, step_size=step_size, **asked)
    steps = [full.step_size / 2**k for k in range(1 if step_size else 1 + _HALVINGS)]
    options = []
    for batches in (m for m in _TRIED if m <= full.n):
        found = []
        for eta in steps:
            try:
                plan = plan_convex(problem, step_size=eta, batches=batches, **asked)
            except CertificateRefused:  # more batches than the budgets, or what was given, allow
                continue
            noise = plan.init_variance / full.init_variance
            if noise <= NOISE_SLACK:
                cost = plan.learn_gradients + requests * plan.delete_gradients
                found.append(Option(plan, cost, noise))
        if not found:  # at any step size, more batches need more noise
            break
        options.append(min(found, key=lambda option: option.gradients))
    return options


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
    problem = plan.problem
    conditions.require_contraction(problem, plan.protects, plan.accountant, plan.varies)
    bounded_risk = not conditions.only_contracts(problem)
    rules, run = ACCOUNTANTS[plan.accountant], descent(plan)
    steps, first = (plan.learn_steps, plan.delete_steps), question.first_inserted
    request, adaptivity = question.request, question.adaptivity
    # At this request, where it is known which releases were seen.
    stays = goes = math.inf
    known = question.observed is not None or adaptivity == 0
    if plan.accountant == "optimal":
        whole_life, batch = stream(plan), _batch(plan, question)
        eps_dp, eps_dd = whole_life.privacy, whole_life.deletion
        before = whole_life.joint(request - 1, first_inserted=first, batch=batch)
        joint = whole_life.joint(request, first_inserted=first)
        if known:
            at = (request, question.observed or ())
            stays = whole_life.privacy_at(*at, first_inserted=first)
            goes = whole_life.deletion_at(*at, first_inserted=first, batch=batch)
    else:
        eps_dp, eps_dd = rules.privacy(run, np.inf), rules.deletion(run, plan.delete_steps)
        per_request, runs = rules.privacy(run, plan.delete_steps), request - first
        before = rules.privacy(run, plan.learn_steps) if first == 0 else per_request
        before = before + (per_request * (runs - 1) if runs > 1 else 0.0)
        joint = before + per_request
        if adaptivity == 0:
            stays = rules.privacy(run, adaptive.steps_with_record(*steps, request + 1, first))
    eps_dp_adaptive = adaptive.privacy_adaptive(eps_dp, adaptivity)
    eps_dd_adaptive = adaptive.deletion_adaptive(eps_dd, eps_dp, adaptivity)
    form: Form = "gaussian" if plan.accountant == "optimal" and not plan.exact else "linear"
    null_reference = _null_counted(plan, run, adaptivity) if plan.exact else {}
    edited = edited_descent(plan)

    def risk(request):
        # The bound for batches needs gradients that are bounded at the optimum too.
        if plan.varies or (plan.batches > 1 and problem.lipschitz is None) or not bounded_risk:
            return None
        bound = risks.excess_risk_convex(edited, plan.dim, *steps, request, plan.init_variance)
        if plan.exact:
            # err ≤ (M/2) m², and rounding adds to m.
            half = (edited.l2 + edited.smoothness) / 2
            bound = half * (math.sqrt(bound / half) + lattice.risk_shift(plan)) ** 2
        # Circling through batches is bounded for the worst order of rows. Where that says no more
        # than the model 0, nothing is printed, and the risk is to be measured.
        return None if plan.batches > 1 and bound >= trivial_risk(plan) else bound

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
        risk_bound=_larger(risk(0), risk(np.inf)),
        risk_bound_learned=risk(0),
        risk_bound_request=risk(question.request),
        risk_bound_paper=_risk_paper(plan, edited) if bounded_risk else None,
        utility=_utility(plan, edited, eps_dp * (edited.lipschitz / run.lipschitz) ** 2),
        **null_reference,
    )


def _null_counted(plan: Settings, run: Descent, adaptivity: int) -> dict[str, float]:
    """eps_dd_null and eps_dd_null_adaptive with rounding counted: only the record's gap halves."""
    floor = lattice.floor(plan)
    dp, dd = (
        counted.counted(run.order, deletion_optimal(run, steps) / 4, floor)
        for steps in (0, plan.delete_steps)
    )
    return {
        "eps_dd_null": dd,
        "eps_dd_null_adaptive": adaptive.deletion_adaptive(dd, dp, adaptivity),
    }


def _batch(plan: Settings, question: Question) -> int | None:
    """The batch of the row that was deleted; None for a promise, which is for every row."""
    if question.row is None or question.records > 1:
        return None
    return schedules.batch_of_row(plan.n, plan.batches, question.row)


def _larger(first: float | None, second: float | None) -> float | None:
    return None if first is None or second is None else max(first, second)


def _advantage(order, eps, form) -> float:
    """2Φ(μ/2) - 1 where μ is proved; else √(ε/(2q)) or the soundness theorem `thm:soundness`."""
    if form == "gaussian":
        return inference.advantage_gdp(renyi.gdp_from_linear_renyi(order, eps))
    return min(
        inference.advantage_neighbours_linear(order, eps), inference.advantage_soundness(order, eps)
    )


def _utility(plan, run: Descent, eps_dp: float) -> Utility | None:
    """What the paper's theorem states at the plan's ε_dp, where that is a number."""
    return _stated(run, plan.dim, eps_dp) if 0 < eps_dp < math.inf else None


def _risk_paper(plan, run: Descent) -> float | None:
    """The paper's risk bound where the plan meets its conditions, else None.

    Part 3 of the convex trade-off theorem, `thm:unlearning_accuracy_convex`.
    The theorem's ε_dp is the one its own noise formula gives for the plan's σ².
    """
    if plan.batches > 1 or plan.varies:
        return None
    if not math.isclose(plan.step_size * (run.l2 + run.smoothness), 0.5, rel_tol=1e-12):
        return None
    eps_dp = privacy_convex(replace(run, records=1), np.inf)
    if math.isinf(eps_dp):
        return None
    stated = _stated(run, plan.dim, eps_dp)
    if plan.learn_steps < stated.learn_steps or plan.delete_steps < stated.delete_steps:
        return None
    start = risks.stationary_variance(run.l2, plan.noise_variance, plan.step_size)
    return stated.risk if math.isclose(plan.init_variance, start, rel_tol=1e-12) else None


NUMBERS["convex"] = convex_numbers
