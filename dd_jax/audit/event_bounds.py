"""Lower bounds from one event {score > t}: advantage, (ε, δ), Gaussian DP and Rényi divergence.

Why they are sound. Part A fixes t. On part B the hits of each arm are binomial; p ≤ P(E) fails with
probability at most α/2 and s ≥ Q(E) with probability at most α/2 (Clopper-Pearson), so both hold
with probability 1 - α, however the arms depend on each other. Each quantity below is at least
f(P(E), Q(E)) for every event E, and f grows with its first argument and falls with its second;
hence it is at least f(p, s). The complement's two limits are 1 - s and 1 - p, so a bound that looks
at an event and its complement, or at both directions, spends no further risk.
"""

import functools
from collections.abc import Callable

import numpy as np
from scipy import special

from dd_jax import checks
from dd_jax.audit import joint_limits, tails
from dd_jax.audit.types import LowerBound
from dd_jax.guarantees import renyi


def advantage(
    fit_present,
    fit_absent,
    test_present,
    test_absent,
    *,
    confidence: float,
    independent: bool = False,
) -> LowerBound:
    """Membership advantage: sup_E P(E) - Q(E), the total variation, is at least p - s.

    Args:
        fit_present, fit_absent: scores of part A, one per seed; a large score says "present".
        test_present, test_absent: scores of part B.
        confidence: 1 - α.
        independent: whether the seeds of one arm are independent of the other's; the limits are
            then narrower (`joint_limits`).
    """
    checked = tails.parts(fit_present, fit_absent, test_present, test_absent, confidence)
    return _judge("advantage", checked, difference, confidence, independent)


def hockey_stick(
    fit_present,
    fit_absent,
    test_present,
    test_absent,
    *,
    epsilon: float,
    confidence: float,
    both_ways: bool = True,
    independent: bool = False,
) -> LowerBound:
    """δ(ε) = sup_E P(E) - e^ε Q(E) is at least p - e^ε s.

    Args:
        epsilon: ε ≥ 0 of the claim.
        both_ways: bound the larger of δ(present ‖ absent) and δ(absent ‖ present), as claims about
            neighbours mean it; otherwise δ(present ‖ absent) alone.
        fit_present, fit_absent, test_present, test_absent, confidence, independent: as in
            `advantage`.
    """
    epsilon = float(checks.nonnegative("epsilon", epsilon))
    checked = tails.parts(fit_present, fit_absent, test_present, test_absent, confidence)
    value = functools.partial(excess_mass, epsilon=epsilon)
    return _judge("hockey_stick", checked, both_or_one(value, both_ways), confidence, independent)


def epsilon_at(
    fit_present,
    fit_absent,
    test_present,
    test_absent,
    *,
    delta: float,
    confidence: float,
    both_ways: bool = True,
    independent: bool = False,
) -> LowerBound:
    """ε at δ: P(E) ≤ e^ε Q(E) + δ for every event, so ε is at least log((p - δ)/s).

    Args:
        delta: δ of the claim, 0 included.
        both_ways: bound the larger of the two directions' ε; otherwise present ‖ absent alone.
        fit_present, fit_absent, test_present, test_absent, confidence, independent: as in
            `advantage`.
    """
    delta = float(checks.probability("delta", delta))
    checked = tails.parts(fit_present, fit_absent, test_present, test_absent, confidence)
    value = functools.partial(log_excess_ratio, delta=delta)
    return _judge("epsilon", checked, both_or_one(value, both_ways), confidence, independent)


def gaussian_mu(
    fit_present,
    fit_absent,
    test_present,
    test_absent,
    *,
    confidence: float,
    independent: bool = False,
) -> LowerBound:
    """μ of Gaussian DP: Φ⁻¹(P(E)) - Φ⁻¹(Q(E)) ≤ μ for every event, so μ ≥ Φ⁻¹(p) - Φ⁻¹(s).

    Between N(μ, 1) and N(0, 1) every threshold attains equality: nothing is lost but the width of
    the two limits. Guarantee: no μ'-GDP claim with μ' below the value is true. Dong, Roth, Su 2022.

    Args:
        fit_present, fit_absent, test_present, test_absent, confidence, independent: as in
            `advantage`.
    """
    checked = tails.parts(fit_present, fit_absent, test_present, test_absent, confidence)
    return _judge("mu", checked, normal_shift, confidence, independent)


def renyi_of_mu(bound: LowerBound, order: float) -> LowerBound:
    """R_q ≥ q μ²/2 from a lower bound on μ, for a pair known to be Gaussian with one covariance.

    Guarantee: refutes "R_q ≤ ε because the pair is √(2ε/q)-GDP" for any pair; a bound on the
    divergence itself only where the law is Gaussian, as for linear losses.
    """
    value = float(renyi.renyi_from_gdp(order, bound.value))
    return bound._replace(quantity="renyi", value=value, method="Gaussian law, one threshold")


def renyi_binary(
    fit_present,
    fit_absent,
    test_present,
    test_absent,
    *,
    order: float,
    confidence: float,
    independent: bool = False,
) -> LowerBound:
    """R_q(present ‖ absent) is at least the divergence r_q(p ‖ s) of two coins: data processing.

    Args:
        order: q > 1.
        fit_present, fit_absent, test_present, test_absent, confidence, independent: as in
            `advantage`.
    """
    order = tails.renyi_order(order)
    checked = tails.parts(fit_present, fit_absent, test_present, test_absent, confidence)
    value = functools.partial(coin_divergence, order=order)
    return _judge("renyi", checked, value, confidence, independent)


# --- the value of one event, from a lower limit p of P(E) and an upper limit s of Q(E) ----------


def difference(likely, unlikely):
    """P(E) - Q(E)."""
    return likely - unlikely


def excess_mass(likely, unlikely, *, epsilon: float):
    """P(E) - e^ε Q(E), with e^ε kept from overflowing (below -1 nothing changes)."""
    with np.errstate(divide="ignore"):
        return likely - np.exp(np.minimum(epsilon + np.log(unlikely), 1.0))


def log_excess_ratio(likely, unlikely, *, delta: float):
    """log((P(E) - δ)/Q(E)), -∞ where P(E) ≤ δ, whatever Q(E)."""
    beyond = np.asarray(likely) - delta
    with np.errstate(divide="ignore"):
        logs = np.log(np.where(beyond > 0, beyond, 1.0)) - np.log(unlikely)
    return np.where(beyond > 0, logs, -np.inf)


def normal_shift(likely, unlikely):
    """Φ⁻¹(P(E)) - Φ⁻¹(Q(E)); -∞ where P(E) = 0 or Q(E) = 1, finite for P(E) = 1 and Q(E) = 0."""
    sure, never = 1 - 2.0**-53, np.finfo(np.float64).tiny
    return special.ndtri(np.minimum(likely, sure)) - special.ndtri(np.maximum(unlikely, never))


def coin_divergence(likely, unlikely, *, order: float):
    """r_q(p ‖ s) = log(p^q s^{1-q} + (1-p)^q (1-s)^{1-q}) / (q-1); 0 where p ≤ s."""
    with np.errstate(divide="ignore", invalid="ignore"):
        heads = special.xlogy(order, likely) - special.xlogy(order - 1, unlikely)
        opposite = special.xlog1py(order, -likely) - special.xlog1py(order - 1, -unlikely)
        value = np.logaddexp(heads, opposite) / (order - 1)
    return np.where(likely > unlikely, np.maximum(value, 0.0), 0.0)[()]


def both_or_one(value: Callable, both_ways: bool) -> Callable:
    """One direction's value, or the larger of it and the complement's with the arms exchanged."""
    if not both_ways:
        return value
    return lambda likely, unlikely: np.maximum(
        value(likely, unlikely), value(1 - unlikely, 1 - likely)
    )


# --- choose on A, judge on B --------------------------------------------------------------------


def choose(seen: tails.View, value: Callable, confidence: float) -> int:
    """Which threshold promises the best bound on part A."""
    low, high = seen.promised_limits(confidence)
    found = value(low, high)
    return int(np.argmax(found if np.max(found) > 0 else seen.present - seen.absent))


def _judge(
    quantity: str, checked: tails.Parts, value: Callable, confidence: float, independent: bool
) -> LowerBound:
    """Choose the event on part A, and bound the quantity on part B."""
    seen = tails.view(checked)
    chosen = choose(seen, value, confidence)
    arms = (checked.test_present, checked.test_absent)
    if independent:
        weights = joint_limits.best_weights(
            value, (seen.present[chosen], seen.absent[chosen]), seen.test_sizes
        )
        hits = [int(tails.tail_counts(arm, seen.thresholds[chosen])) for arm in arms]
        low, high = joint_limits.corners((hits[0], hits[1]), seen.test_sizes, weights, confidence)
    else:
        low, high = tails.limits(*arms, seen.thresholds[chosen], confidence)
    bound = max(float(np.min(value(low, high))), 0.0)
    method = "one event, independent arms" if independent else "one event, Clopper-Pearson"
    return LowerBound(quantity, bound, confidence, checked.seeds, method)
