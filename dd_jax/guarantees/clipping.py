"""Steps on a clipped convex loss that is not single-index: no gradient, but maybe a contraction.

Clip every record's gradient g = ∇ℓ to norm L. Unless the loss is single-index, the clipped field is
in general no gradient, nor monotone (erratum E1), and the lemma on clipping and convexity
(`lem:clipping_retains_convexity`) is false. The optimal bounds ask for less: that a step
T(θ) = (1 - ηλ)θ - η·mean clip(g) is c-Lipschitz with some c < 1. Put a = 1 - ηλ ≥ 0 and b = ηβ.

Where the clip acts, a record's field has the Jacobian s(I - uuᵀ)H with u = g/‖g‖, s = L/‖g‖ ≤ 1 and
0 ⪯ H ⪯ βI; elsewhere it is H. The norm of aI - ηs(I - uuᵀ)H is convex in s and in H, and H is β
times a mean of projections, so the worst case is aI - bPQ with two projections. These split the
space into planes and lines; in a plane P and Q project on lines at an angle of cosine t, and the
larger singular value of aI - bPQ is

    ½ (√(4a² - b(4a - b)t²) + bt),   largest at t² = a/(4a - b) if b ≤ 3a, and else at t = 1.

So c = a/√(1 - b/(4a)) if b ≤ 3a, and b - a beyond. A mean of records has no larger norm, and a
Lipschitz field is the integral of its Jacobian along almost every segment. One record attains it,
clipped where its gradient is just above L: no smaller c is true. As η → 0, (1 - c)/η → λ - β/8, and
a step contracts for some η if and only if λ > β/8. (Squares of norms alone give the weaker
c² = a² + ab/4 + b².)

A c-Lipschitz step is all that the optimal bounds use of λ and β, so they hold with
`contraction_rate` in place of λ and 0 in place of β: such steps have the same c, and replacing one
record moves a step by the same 2ηL/n. Nothing is said of the risk: where the field vanishes is not
where an objective is least.
"""

import numpy as np

from dd_jax import checks
from dd_jax.errors import CertificateRefused
from dd_jax.guarantees import floats


def contraction(step_size, l2, smoothness):
    """The least c for which a step on any clipped convex loss is c-Lipschitz; it may exceed 1.

    c = a/√(1 - b/(4a)) if b ≤ 3a, else b - a;   a = 1 - ηλ, b = ηβ

    Guarantee: for every database, clip norm and batch; attained.
    Assumes: convex, β-smooth loss; ηλ ≤ 1.
    Erratum E1: what remains of `lem:clipping_retains_convexity` for losses that are no GLM.
    """
    return floats.plain(np.exp(_log_contraction(step_size, l2, smoothness)))


def contraction_rate(step_size, l2, smoothness):
    """(1 - c)/η, which takes the part of λ in the optimal bounds; refused unless c < 1.

    Guarantee, Assumes: as `contraction`.
    """
    log_c = _log_contraction(step_size, l2, smoothness)
    if np.any(log_c >= 0):
        raise CertificateRefused(
            f"step_size = {np.max(step_size):g} does not contract: a step on a clipped loss is "
            f"{np.exp(np.max(log_c)):.6g}-Lipschitz (erratum E1); give a smaller step_size, near "
            f"{np.min(best_step_size(l2, smoothness)):g}."
        )
    return floats.plain(-np.expm1(log_c) / step_size)


def best_step_size(l2, smoothness):
    """The step size with the least c: η = (8λ - β) / (λ(8λ + 2β)), where c = 3√3 x/(4 + x)^(3/2).

    x = β/λ. Refused unless λ > β/8: no step contracts then.
    """
    l2, smoothness = checks.positive("l2", l2), checks.nonnegative("smoothness", smoothness)
    if np.any(8 * l2 <= smoothness):
        raise CertificateRefused(
            f"l2 = {np.min(l2):g} is not above β/8 = {np.max(smoothness) / 8:g}, so a step on a "
            f"clipped loss need not contract (erratum E1); give a larger l2."
        )
    ratio = smoothness / l2
    return floats.plain((8 - ratio) / (8 + 2 * ratio) / l2)


def _log_contraction(step_size, l2, smoothness):
    step_size, l2 = checks.positive("step_size", step_size), checks.positive("l2", l2)
    shrunk = 1 - step_size * l2
    if np.any(shrunk < 0):
        raise CertificateRefused(
            f"step_size · l2 = {np.max(step_size * l2):g} is above 1, which this bound does not "
            f"allow; give a step size of at most 1/l2."
        )
    slope = step_size * checks.nonnegative("smoothness", smoothness)
    with np.errstate(all="ignore"):
        small = (slope <= 3 * shrunk) & (shrunk > 0)
        ratio = np.where(small, slope, 0.0) / (4 * shrunk)
        beyond = np.log(np.maximum(slope - shrunk, 0))
        return np.where(small, np.log1p(-step_size * l2) - np.log1p(-ratio) / 2, beyond)
