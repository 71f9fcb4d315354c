"""What rounding does to a plan: is the law that runs the law that is certified?

A certificate is about real numbers; a program rounds. Four things go wrong when noise is small
against the spacing of floating-point numbers (the unit in the last place, ulp) at the largest model
that the plan can reach, ‖θ‖ ≤ L/λ plus noise. With a = √(2ησ²) / ulp, one step's noise in ulps:

    variance    rounding θ adds ulp²/12 to each step's 2ησ²: a share 1/(12a²); rounding a record's
                score ⟨a, θ⟩, a sum of d products, adds up to (1 + d/16) times (ηβ)² as much
    forgetting  a model moves by whole ulps; noise of a ulps makes that right on average, up to a
                share 2 exp(-2π²a²) of every drift (the first term of the Fourier series of rounding
                under a Gaussian), and so of the K_U log(1/c) that a deletion contracts by
    products    in three bfloat16 passes a product sees θ on a lattice f = 512 times as coarse as
                float32's (`constants.THREE_PASS_ROUNDOFF`): the score's share of the variance is
                f² as large, and the slope that a step sees is off by 2 exp(-2π²(a/f)²) of it
    influence   a sum of n gradients is rounded by up to n·u·L (u the unit roundoff), where one
                record moves it by 2L: a share n·u; with batches n is the rows of one

The first three hold for steps that add the small terms first, θ + (noise - η∇ℒ), as
`dd_jax.noisy_gd` does: in any other order the drift is lost before the noise is added. They are
estimates that tests compare with exact laws. Nothing here is about an observer who exploits the
low bits of floats.
"""

import math
from typing import NamedTuple

import numpy as np

from dd_jax.constants import THREE_PASS_ROUNDOFF
from dd_jax.errors import CertificateRefused
from dd_jax.guarantees import risk
from dd_jax.plans import conditions

# Shares of the law beyond which a certificate warns, and beyond which it is refused.
SILENT, REFUSED = 0.01, 0.1
# A sum of saturated gradients is the worst case for the influence of one record; others average
# the rounding out, so that it is refused only where a rounding hides half of a record.
INFLUENCE_REFUSED = 0.5
# Below half an ulp of noise most steps do not move a model at all.
LEAST_NOISE = 0.5
# A score's rounding grows with the products that one of the lanes of a sum adds up: measured, at
# worst d/19 where all rows have the same features.
SUM_OF_PRODUCTS = 16
# Models stay within this many deviations of the optimum or of the start.
DEVIATIONS = 6
# Releases are rounded to a grid this much finer than one step's noise. Normals of single precision
# are 2²³ values; out to four deviations they lie closer than this grid.
GRID = 2**-5
# Left free at both ends of the range of floats, so that no product of a step leaves it.
ROOM = 2.0**30


class Rounding(NamedTuple):
    """What rounding does to a plan, as shares of the certified law.

    Attributes:
        noise: a, the deviation of one step's noise in units in the last place.
        reach: the largest model, in norm.
        variance: what is added to the variance.
        forgetting: what a deletion's contraction loses.
        influence: how far rounding can change what one record does to a mean gradient.
    """

    noise: float
    reach: float
    variance: float
    forgetting: float
    influence: float


def noise_deviation(plan) -> float:
    """√(2ησ²), the deviation of one step's noise, at the step where it is least."""
    least = math.sqrt(float(np.min(np.prod(plan.factors, axis=1))))
    return math.sqrt(2 * plan.step_size) * math.sqrt(plan.noise_variance) * least


def publication_grid(plan) -> float:
    """The power of two, at most 1/32 of one step's noise, that releases are rounded to.

    This is post-processing of θ: it costs nothing of the guarantee, and it hides the low bits, from
    which the noise could be told apart from what it was added to (the noise takes few values).
    """
    return 2.0 ** math.floor(math.log2(noise_deviation(plan) * GRID))


def rounding(plan) -> Rounding:
    """What rounding does to a plan that is run in its own type."""
    kind = np.finfo(plan.dtype)
    reach = _reach(plan)
    spacing = 2.0 ** (math.floor(math.log2(reach)) - kind.nmant)
    noise = noise_deviation(plan) / spacing
    contracted = 1.0
    if plan.kind == "convex":
        contraction = min(_largest_step(plan) * plan.problem.l2, 1 - float(kind.eps))
        contracted += plan.delete_steps * -math.log1p(-contraction)
    with np.errstate(all="ignore"):
        steepness = _largest_step(plan) * (plan.problem.loss.smoothness or 0.0)
        coarser = _coarser_products(plan)
        roundings = 1 + (coarser**2 + plan.dim / SUM_OF_PRODUCTS) * steepness**2
        variance = float(roundings / (12 * np.float64(noise) ** 2))
        stuck = _stuck(noise)
        if coarser > 1:
            stuck += min(1.0, steepness) * _stuck(noise / coarser)
    return Rounding(
        noise=noise,
        reach=reach,
        variance=variance,
        forgetting=stuck * contracted,
        influence=math.ceil(plan.n / plan.batches) * float(kind.eps) / 2,
    )


def _largest_step(plan) -> float:
    """The largest η of the schedule."""
    return plan.step_size * float(np.max(plan.factors[:, 0]))


def _stuck(noise: float) -> float:
    """2 exp(-2π²a²): how far a staircase is from a slope on average, under noise of a steps."""
    return float(2 * np.exp(-2 * (np.pi * np.float64(noise)) ** 2))


def _coarser_products(plan) -> float:
    """f, the spacing of the models that a product tells apart, in units in the last place."""
    if plan.problem.precision == "full":
        return 1.0
    return THREE_PASS_ROUNDOFF / (float(np.finfo(plan.dtype).eps) / 2)


def check(plan) -> str | None:
    """Whether the plan's type can run it: None, or what to warn of.

    Raises:
        CertificateRefused: the law that would be run is not the one that is certified.
    """
    _require_range(plan)
    if plan.problem.precision != "full" and plan.problem.loss.smoothness is None:
        raise CertificateRefused(
            f"without a known smoothness of {plan.problem.loss.name} nothing is known of products "
            f"in {plan.problem.precision}; compute products in full precision."
        )
    found = rounding(plan)
    shown = (
        f"in {plan.dtype} one step's noise is {found.noise:.3g} units in the last place of a model "
        f"of norm {found.reach:.3g} and a rounding is up to {found.influence:.3g} of one record's "
        f"influence"
    )
    if found.influence > INFLUENCE_REFUSED:
        raise CertificateRefused(
            f"{shown}, so rounding would undo the certificate; {_in_double(plan)}fewer records."
        )
    if found.noise < LEAST_NOISE or found.forgetting > REFUSED:
        raise CertificateRefused(
            f"{shown}, so rounding would undo the certificate; {_in_double(plan)}smaller budgets, "
            f"a larger l2 or fewer records, each of which brings more noise."
        )
    if max(found.variance, found.forgetting, found.influence) <= SILENT:
        return None
    if plan.problem.precision != "full" and max(found.variance, found.forgetting) > SILENT:
        raise CertificateRefused(
            f"{shown}, and with products in {plan.problem.precision} the variance may be off by "
            f"{found.variance:.2%}, what a deletion forgets by {found.forgetting:.2%}; compute "
            f"products in full precision."
        )
    return (
        f"{shown}: the variance may be off by {found.variance:.2%}, what a deletion forgets by "
        f"{found.forgetting:.2%}; {_in_double(plan)}more noise"
    )


def about_tails(plan, delta: float | None) -> str | None:
    """A δ below what the normals of the plan's type leave out of their tails: a warning, or None.

    `jax.random.normal` maps 2²³ (2⁵²) numbers of (0, 1), so that nothing lies beyond 5.4 (8.2)
    deviations.
    """
    least = 2.0 ** -(np.finfo(plan.dtype).nmant - 3)
    if delta is None or delta >= least:
        return None
    return (
        f"delta = {delta:g} is below {least:.2g}: normals of {plan.dtype} end where a Gaussian "
        f"still has about that much"
    )


def _reach(plan) -> float:
    """The largest norm of a model: the optimum's L/λ, and the deviations around it."""
    lipschitz = conditions.risk_lipschitz(plan.problem, plan.protects)
    return lipschitz / plan.problem.l2 + DEVIATIONS * math.sqrt(spread(plan))


def spread(plan) -> float:
    """The largest variance that noise gives a coordinate, the start's included."""
    step, noise = _largest_step(plan), plan.noise_variance * float(np.max(plan.factors[:, 1]))
    if step * plan.problem.l2 >= 2:
        return plan.init_variance
    return max(risk.stationary_variance(plan.problem.l2, noise, step), plan.init_variance)


def _require_range(plan) -> None:
    """Refuse numbers that the type holds as 0, as infinity, or with few digits."""
    kind = np.finfo(plan.dtype)
    least, most = float(kind.tiny) * ROOM, float(kind.max) / ROOM
    numbers = {
        "step_size": plan.step_size,
        "noise_variance": plan.noise_variance,
        "one step's noise": noise_deviation(plan),
        "the largest model": _reach(plan),
        "n": float(plan.n),
    }
    for name, value in numbers.items():
        if not least <= value <= most:
            raise CertificateRefused(
                f"{name} = {value:.3g} is beyond the range of {plan.dtype}; {_in_double(plan)}"
                f"budgets, l2 and n nearer to 1."
            )


def _in_double(plan) -> str:
    """The remedy that always helps, unless the plan has it already."""
    if plan.dtype == "float32":
        return "plan in double precision (dtype float64) and run in 64 bits, or give "
    return "give "
