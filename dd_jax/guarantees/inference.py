"""What a certificate means for an adversary: bounds on membership-inference advantage, and back.

The advantage of a test is P[test = 1 | H₀] - P[test = 1 | H₁], at most the total variation between
the two runs. The paper's statements are its soundness theorem (`thm:soundness`) and its theorem
that privacy of the remaining records is necessary for adaptive deletion (`thm:dp_necessary`).
"""

import numpy as np

from dd_jax import checks
from dd_jax.guarantees import floats, renyi


def advantage_soundness(order, eps):
    """Advantage against a deleted record, from (q, ε)-data-deletion to *any* common comparator.

    min{√(2ε), 2^{1/q} e^{ε(q-1)/q} - 1}, at most 1

    Proof of the second form. Let R_q(P₀‖π) and R_q(P₁‖π) be at most ε, S the set where the test
    says 1 and a = (q-1)/q. Hölder's inequality gives P₀(S) = ∫_S (dP₀/dπ) dπ ≤ (e^ε π(S))^a, and
    likewise P₁(Sᶜ) ≤ (e^ε (1 - π(S)))^a. So P₀(S) - P₁(S) = P₀(S) + P₁(Sᶜ) - 1 is at most
    e^{εa} [t^a + (1-t)^a] - 1 with t = π(S); the bracket is concave in t and symmetric, so it is
    largest at t = 1/2, where it is 2^{1-a} = 2^{1/q}. The first form is Pinsker's, twice.

    Guarantee: holds for every test of the post-deletion releases, non-convex certificates included.
    Assumes: non-adaptive requesters, or a bound that covers the requester's transcript as the
    convex and run-sum bounds do (erratum E7). Tightens `thm:soundness`
    (`advantage_soundness_paper`), at every order.
    """
    order = checks.order(order)
    return _advantage(order, eps, np.log(2) / order)


def advantage_soundness_paper(order, eps):
    """`advantage_soundness` as the paper states it, with a larger second form.

    min{√(2ε), q/(q-1) · e^{ε(q-1)/q} · [2(q-1)]^{1/q} - 1}, at most 1. `thm:soundness`.
    """
    order = checks.order(order)
    return _advantage(order, eps, _log_prefactor_paper(order))


def advantage_neighbours(eps):
    """Advantage from R_q ≤ ε *between the two hypotheses*, any q > 1: √(ε/2), at most 1.

    Guarantee: by KL ≤ R_q and Pinsker. For convex and run-sum certificates, which compare
    neighbouring runs; not for the non-convex one, which compares with the Gibbs law. Erratum E7.
    """
    eps = checks.nonnegative("eps", eps)
    return floats.plain(np.minimum(np.sqrt(floats.product(0.5, eps)), 1.0))


def advantage_neighbours_linear(order, eps):
    """Advantage from a bound linear in the order between the two hypotheses: √(ε/(2q)), at most 1.

    R_q' ≤ εq'/q for every q' > 1 gives KL ≤ ε/q as q' → 1, and Pinsker the rest.

    Guarantee: for `deletion_paper`, `deletion_unrelaxed`, `deletion_optimal` and the run sums, and
    their adaptive forms. Erratum E7. `advantage_gdp` is smaller where it applies.
    """
    eps = checks.nonnegative("eps", eps)
    return advantage_neighbours(floats.product(eps, 1 / checks.order(order)))


def advantage_gdp(mu):
    """Advantage under μ-GDP: 2Φ(μ/2) - 1, attained by the linear loss. Erratum E7.

    Guarantee: for `deletion_optimal` and the run sums with μ = √(2ε/q), and their adaptive forms.
    """
    return renyi.advantage_from_gdp(mu)


def epsilon_from_advantage_soundness(order, advantage):
    """The ε below which `advantage_soundness` contradicts this advantage: its exact inverse.

    max{a²/2, q/(q-1) · log(1+a) - log(2)/(q-1)}

    Guarantee: a mechanism with a test of advantage a has no (q, ε)-data-deletion for smaller ε.
    Tightens the contrapositive of `thm:soundness`.
    """
    order = checks.order(order)
    return _threshold(order, advantage, np.log(2) / order)


def epsilon_from_advantage_soundness_paper(order, advantage):
    """The same for `advantage_soundness_paper`, so a smaller threshold.

    max{a²/2, log(q-1) + q/(q-1) · log((1+a)/(q 2^{1/q}))}. `thm:soundness`, contrapositive.
    """
    order = checks.order(order)
    return _threshold(order, advantage, _log_prefactor_paper(order))


def deletion_necessary(order, advantage):
    """The ε below which adaptive deletion is impossible if learning and deletion leak this much.

    max{δ⁴/2, q/(q-1) · log(1+δ²) - log(2)/(q-1)}

    Guarantee: if tests of the learned and of the edited model have advantage above δ, no (q,
    ε)-data-deletion holds under 1-adaptive requesters for any smaller ε.
    Assumes: the second test's probability of 1 does not depend on the model it started from
    (erratum E8). Tightens `thm:dp_necessary` (`deletion_necessary_paper`).
    """
    advantage = checks.probability("advantage", advantage)
    return epsilon_from_advantage_soundness(order, advantage**2)


def deletion_necessary_paper(order, advantage):
    """`deletion_necessary` with the paper's smaller threshold.

    max{δ⁴/2, log(q-1) + q/(q-1) · log((1+δ²)/(q 2^{1/q}))}. `thm:dp_necessary`.
    """
    advantage = checks.probability("advantage", advantage)
    return epsilon_from_advantage_soundness_paper(order, advantage**2)


def privacy_necessary(order, eps):
    """The advantage that (q, ε)-deletion under 1-adaptive requesters allows both tests.

    δ = √Adv(ε) with the Adv of `advantage_soundness`: the exact inverse of `deletion_necessary`.

    Guarantee: not both of the tests of `thm:dp_necessary` have a larger advantage.
    """
    return floats.plain(np.sqrt(advantage_soundness(order, eps)))


def _advantage(order, eps, log_prefactor):
    """min{√(2ε), e^{ε(q-1)/q + log_prefactor} - 1}, in [0, 1]."""
    eps = checks.nonnegative("eps", eps)
    with np.errstate(all="ignore"):
        pinsker = np.sqrt(2 * eps)
        hoelder = np.expm1(eps * ((order - 1) / order) + log_prefactor)
    return floats.plain(np.clip(np.minimum(pinsker, hoelder), 0.0, 1.0))


def _threshold(order, advantage, log_prefactor):
    """The inverse of `_advantage` in ε."""
    advantage = checks.probability("advantage", advantage)
    hoelder = (np.log1p(advantage) - log_prefactor) * (order / (order - 1))
    return floats.plain(np.maximum(advantage**2 / 2, hoelder))


def _log_prefactor_paper(order):
    """log(q/(q-1) · [2(q-1)]^{1/q}) = -log(1-1/q) + log(2(q-1))/q."""
    return -np.log1p(-1 / order) + np.log(2 * (order - 1)) / order
