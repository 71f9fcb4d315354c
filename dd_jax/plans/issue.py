"""How a certificate is issued: the numbers of the plan's kind, their unit, the words around."""

from typing import Any

from dd_jax.errors import CertificateRefused, InputError
from dd_jax.guarantees import adaptive, renyi
from dd_jax.plans import arithmetic, words
from dd_jax.plans.composition_numbers import composition_numbers
from dd_jax.plans.convex_numbers import convex_numbers
from dd_jax.plans.nonconvex_numbers import nonconvex_numbers
from dd_jax.plans.numbers import Form, Numbers, Question
from dd_jax.plans.settings import Settings

_NUMBERS = {
    "convex": convex_numbers,
    "nonconvex": nonconvex_numbers,
    "composition": composition_numbers,
}
_EPSILONS = (
    "eps_dp",
    "eps_dp_run",
    "eps_dp_adaptive",
    "eps_dp_request",
    "eps_dp_joint",
    "eps_dd",
    "eps_dd_adaptive",
    "eps_dd_request",
    "eps_dd_records",
)
_RISKS = ("risk_bound", "risk_bound_learned", "risk_bound_request", "risk_bound_paper")


def certificate_fields(plan: Settings, question: Question, reduction: str) -> dict[str, Any]:
    """Every field of the certificate that answers a question, but the plan itself."""
    numbers = _NUMBERS[plan.kind](plan, question)
    rounding = (arithmetic.check(plan), arithmetic.about_tails(plan, question.delta))
    stated = _reduction(numbers, question, reduction)
    reported = {name: getattr(numbers, name) for name in _EPSILONS}
    reported["eps_dd_reduction_as_stated"] = stated
    if plan.order is None:
        reported = _at_delta(reported, numbers.order, question.delta)
    return dict(
        basis="promise" if question.row is None else "transcript",
        row=question.row,
        rewritten=question.rewritten,
        claim=words.claim(plan, question, reported),
        comparator=words.comparator(plan, question),
        observer=words.observer(plan, question),
        adaptivity=question.adaptivity,
        request=question.request,
        first_inserted=question.first_inserted,
        observed=question.observed,
        order=plan.order,
        delta=question.delta,
        records=question.records,
        advantage_bound=numbers.advantage_bound,
        assumptions=words.assumptions(plan, question),
        warnings=words.warnings(plan, question, numbers, reported, rounding),
        **reported,
        **_mus(numbers),
        **_epsilons(plan, numbers, question.delta, reported),
        **{name: getattr(numbers, name) for name in _RISKS},
    )


def _at_delta(values: dict, order: float, delta: float | None) -> dict:
    """Rényi divergences that are Gaussian DP as the exact ε at δ, all at once."""
    mus = renyi.gdp_from_linear_renyi(order, list(values.values()))
    return dict(zip(values, renyi.gdp_epsilon(mus, delta).tolist(), strict=True))


def _mus(numbers: Numbers) -> dict:
    def mu(eps, form):
        return renyi.gdp_from_linear_renyi(numbers.order, eps) if form == "gaussian" else None

    return {
        "mu_dp": mu(numbers.eps_dp, _privacy_form(numbers)),
        "mu_dd": mu(numbers.eps_dd, numbers.deletion_form),
        "mu_dd_adaptive": mu(numbers.eps_dd_adaptive, numbers.adaptive_form),
    }


def _epsilons(plan: Settings, numbers: Numbers, delta: float | None, reported: dict) -> dict:
    """The headline numbers as ε of (ε, δ), each by the best conversion that applies to it."""
    names = {f"epsilon_{name}": f"eps_{name}" for name in ("dp", "dd", "dd_adaptive")}
    if delta is None:
        return dict.fromkeys(names)
    if plan.order is None:
        return {new: reported[name] for new, name in names.items()}

    def convert(eps, form):
        if form == "gaussian":
            return renyi.gdp_epsilon(renyi.gdp_from_linear_renyi(numbers.order, eps), delta)
        if form == "linear":
            return renyi.epsilon_tight_linear(eps / numbers.order, delta)
        return renyi.epsilon_tight(numbers.order, eps, delta)

    return {
        "epsilon_dp": convert(numbers.eps_dp, _privacy_form(numbers)),
        "epsilon_dd": convert(numbers.eps_dd, numbers.deletion_form),
        "epsilon_dd_adaptive": convert(numbers.eps_dd_adaptive, numbers.adaptive_form),
    }


def _privacy_form(numbers: Numbers) -> Form:
    """Privacy bounds are linear in the order in every accountant."""
    return "gaussian" if numbers.gaussian else "linear"


def _reduction(numbers: Numbers, question: Question, reduction: str) -> float:
    """`thm:reduction` as stated, refused as a certificate where the sound bound is larger."""
    if reduction not in ("sound", "as_stated"):
        raise InputError(f"reduction = {reduction!r} is not known; give 'sound' or 'as_stated'.")
    stated = adaptive.deletion_adaptive_as_stated(
        numbers.eps_dd, numbers.eps_dp_run, question.adaptivity
    )
    if reduction == "as_stated" and numbers.eps_dd_adaptive > stated * (1 + 1e-12):
        raise CertificateRefused(
            f"the reduction as stated gives eps_dd + p·eps_dp = {stated:g} for p = "
            f"{question.adaptivity}, but it is false in general (erratum E2) and the sound bound "
            f"is {numbers.eps_dd_adaptive:g}; use reduction='sound', and read the paper's "
            f"number from eps_dd_reduction_as_stated."
        )
    return stated
