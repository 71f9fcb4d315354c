"""What is asked of a certificate, and the numbers that answer it, before the words around them."""

import math
from dataclasses import replace
from typing import Literal, NamedTuple

from dd_jax import checks
from dd_jax.errors import CertificateRefused, InputError
from dd_jax.guarantees import renyi
from dd_jax.guarantees.convex import Descent
from dd_jax.plans import conditions


class Question(NamedTuple):
    """What a certificate is asked about; see `Plan.certificate` and `Plan.certify`.

    Attributes:
        adaptivity: p.
        request: i ≥ 1, the last request that deletes the record.
        first_inserted: 0, or the request that first brought the record in.
        observed: the releases seen, or None where only their number p is known.
        records: rows judged jointly.
        delta: δ to convert to, or None.
        row: the row that a transcript says was deleted; None for a promise.
        rewritten: the next request that changed that row, if one did.
    """

    adaptivity: int
    request: int
    first_inserted: int
    observed: tuple[int, ...] | None
    records: int
    delta: float | None
    row: int | None
    rewritten: int | None

    @classmethod
    def make(
        cls,
        plan,
        adaptivity,
        request,
        first_inserted,
        observed,
        records,
        delta,
        row=None,
        rewritten=None,
    ) -> "Question":
        """The checked question; where it is known which releases were seen, they decide p.

        For a convex loss, and for the run sums, releases seen before the record came in are free:
        both worlds coincide until then. Closeness to the Gibbs law needs a history in which no
        request depends on any release, so there every release since the start counts.
        """
        adaptivity = checks.whole("adaptivity", adaptivity, least=0)
        request = checks.whole("request", request, least=1)
        first_inserted = checks.whole("first_inserted", first_inserted, least=0)
        if first_inserted >= request:
            raise InputError(
                f"first_inserted = {first_inserted} is not before request = {request}; count "
                f"requests from 1, and give first_inserted=0 for a record of the initial database."
            )
        if observed is not None:
            observed = tuple(sorted({checks.whole("observed", s, least=0) for s in observed}))
            since = 0 if plan.kind == "nonconvex" else first_inserted
            adaptivity = _seen(adaptivity, sum(since <= s < request for s in observed))
        if records is None:
            records = plan.edits_per_request
        records = checks.whole("records", records, least=1)
        delta = plan.delta if delta is None else float(checks.delta(delta))
        return cls(adaptivity, request, first_inserted, observed, records, delta, row, rewritten)

    @property
    def runs_before_deletion(self) -> int:
        """Runs of learning or deletion from the first insertion to request i."""
        return self.request - self.first_inserted


Form = Literal["renyi", "linear", "gaussian"]
"""What a divergence bound is known to be: of its one order, linear in the order, Gaussian DP."""


class Numbers(NamedTuple):
    """Rényi divergences of one order, and risks; `Certificate` explains each."""

    order: float
    eps_dp: float
    eps_dp_run: float
    eps_dp_adaptive: float
    eps_dp_request: float
    eps_dp_joint: float
    eps_dd: float
    eps_dd_adaptive: float
    eps_dd_request: float
    eps_dd_records: float
    gaussian: bool  # the privacy bounds are also Gaussian DP with μ = √(2ε/q)
    deletion_form: Form  # of eps_dd
    adaptive_form: Form  # of eps_dd_adaptive
    advantage_bound: float
    risk_bound: float | None
    risk_bound_learned: float | None
    risk_bound_request: float | None
    risk_bound_paper: float | None


def check_unit(order, delta, accountant) -> None:
    """Refuse unless exactly one of order and δ is given, δ only where Gaussian DP is proved."""
    if (order is None) == (delta is None):
        raise InputError(
            "give either order (budgets are Rényi divergences of that order) or delta (budgets are "
            "the ε of (ε, δ)), and not both."
        )
    if order is not None:
        checks.order(order)
        return
    checks.delta(delta)
    if accountant not in ("optimal", "composition"):
        raise CertificateRefused(
            f"(ε, δ) budgets go through Gaussian DP, which the bounds of accountant={accountant!r} "
            f"do not give; use accountant='optimal' with a convex loss, or give order and Rényi "
            f"budgets."
        )


def internal_order(plan) -> float:
    """The order that a plan's numbers are computed at; under Gaussian DP one fixes all."""
    return 2.0 if plan.order is None else float(plan.order)


def descent(plan) -> Descent:
    """The run of a plan, as bounds on privacy and deletion of one record take it."""
    problem = plan.problem
    smoothness = math.inf if problem.loss.smoothness is None else problem.loss.smoothness
    return Descent(
        order=internal_order(plan),
        lipschitz=conditions.sensitivity(problem, plan.protects),
        l2=problem.l2,
        smoothness=smoothness,
        noise_variance=plan.noise_variance,
        n=plan.n,
        step_size=plan.step_size,
    )


def edited_descent(plan) -> Descent:
    """The run of a plan, as risk bounds take it: their own L, and r records edited by a request."""
    lipschitz = conditions.risk_lipschitz(plan.problem, plan.protects)
    return replace(descent(plan), lipschitz=lipschitz, records=plan.edits_per_request)


def whole(name: str, steps: float) -> int:
    """A step count as an integer, refused where it overflowed."""
    if not math.isfinite(steps):
        raise CertificateRefused(
            f"{name} overflows: no run of finite length meets these budgets; "
            f"give larger budgets, more records or a larger l2."
        )
    return int(steps)


def to_renyi(order, delta, eps_dp, eps_dd, accountant) -> tuple[float, float, float]:
    """(order, ε_dp, ε_dd) of the budgets; (ε, δ) become the μ that exact Gaussian DP allows."""
    check_unit(order, delta, accountant)
    eps_dp, eps_dd = (float(checks.positive(*b)) for b in (("eps_dp", eps_dp), ("eps_dd", eps_dd)))
    if order is not None:
        return float(order), eps_dp, eps_dd
    mu_dp, mu_dd = (renyi.gdp_from_epsilon_delta(eps, delta) for eps in (eps_dp, eps_dd))
    return 2.0, mu_dp * mu_dp, mu_dd * mu_dd


def _seen(adaptivity, listed) -> int:
    """p where the releases seen are listed; refused where more are claimed than listed."""
    if adaptivity > listed:
        raise InputError(
            f"adaptivity = {adaptivity} contradicts observed, which lists {listed} of the releases "
            f"that count; list every release that was seen, or leave out "
            f"observed where only their number is known."
        )
    return listed
