"""The numbers of a plan in exact arithmetic: the lattice, the bits of everything, the error E.

All sums and products of the program are of whole numbers below 2⁵³ (as float64) or 2⁶² (as int64),
and so are exact in any order. Four roundings are left, each bounded in `gradient_error`:

    state     θ = ΔI, I whole, |I| ≤ 2^w by a clamp (the public box)
    records   features times 2^p, cut off towards 0, and labels to multiples of 2^-F: a map of each
              record by itself, which moves no feature out of its ball, so that it costs accuracy
              and no privacy
    scores    ⟨a, θ⟩ = Δ2^-p Σ a_j I_j, an exact sum; then rounded to multiples of 2^-F       (1)
    slopes    whole multiples of 2^-G, the nearest to the slope at the rounded score          (2)
    gradient  Σ slope · a, an exact sum
    step      y = round(I (2^m - C) - N) / 2^m, C = ηλ 2^m to the nearest (3) and N the gradient
              times η 2^m/Δ to the nearest                                                    (4)

The step size of a planned run makes ηλ 2^m whole, so that (3) is nothing.
"""

import math
from typing import NamedTuple

from dd_jax.constants import Shape, exact_shape
from dd_jax.errors import CertificateRefused
from dd_jax.guarantees import lattice
from dd_jax.plans import arithmetic, conditions

# Whole numbers are exact as float64 below 2⁵³. Fewer bits of features or slopes than these would
# change the problem, and more than these are of no use. Those of features are counted from the
# largest feature that a record may have, so that a unit of length does not matter.
_WHOLE = 53
FEATURE_BITS, SLOPE_BITS, SCORE_BITS, STEP_BITS = (8, 16), (12, 30), (16, 32), (12, 40)
NOISE_BITS = (8, 26)
_ROOM = 0.01
# Relative roundings of a few operations in float64, with room.
_FLOAT64 = 2.0**-50


class Lattice(NamedTuple):
    """How a plan is computed.

    Attributes:
        spacing: Δ. noise_bits: κ; one step adds ΔZ with P(Z = z) ∝ 2^-(z/2^κ)².
        start_bits: the same of the start, or None for a start at 0.
        box_bits: w. feature_bits: p. score_bits: F. slope_bits: G. step_bits: m.
        shrink: C.
        shape: of the loss.
        gradient_error: E.
    """

    spacing: float
    noise_bits: int
    start_bits: int | None
    box_bits: int
    feature_bits: int
    score_bits: int
    slope_bits: int
    step_bits: int
    shrink: int
    shape: Shape
    gradient_error: float

    @property
    def box(self) -> float:
        """W, the largest coordinate of a model."""
        return math.ldexp(self.spacing, self.box_bits)


def require(plan) -> Shape:
    """The shape of the loss, refused unless exact arithmetic has a proof for the plan."""
    loss, problem = plan.problem.loss, plan.problem
    shape = exact_shape(loss)
    if shape is None:
        raise CertificateRefused(
            f"{loss.name} has no slope in exact arithmetic: it is proved for logistic, smoothed "
            f"hinge, Huber and linear losses; use one of them, or arithmetic='fast'."
        )
    for wrong, what in (
        (plan.kind != "convex" or plan.accountant != "optimal", "another accountant than optimal"),
        (problem.clips, "clipping (declare a smaller feature_norm instead)"),
        (problem.precision != "full", "products of less than full precision"),
        (plan.varies, "steps that vary"),
    ):
        if wrong:
            raise CertificateRefused(
                f"exact arithmetic has no proof for {what}; leave it out, or use arithmetic='fast'."
            )
    return shape


def of(plan) -> Lattice:
    """How a plan with κ = `lattice_bits` is computed, refused where 53 bits are not enough."""
    shape = require(plan)
    spacing = math.ldexp(deviation(plan) / lattice.DEVIATION, -plan.lattice_bits)
    box_bits = math.ceil(math.log2(_reach(plan, shape) / spacing))
    rows = math.ceil(plan.n / plan.batches)
    across = math.log2(shape.radius * math.sqrt(plan.dim)) + _ROOM
    size = math.floor(math.log2(shape.radius))
    # Large features are at least whole, so that the constant 1 of an intercept is not cut off.
    limits = (max(FEATURE_BITS[0], size), max(FEATURE_BITS[1], size))
    feature_bits = _bits("features", limits, _WHOLE - box_bits - across + size) - size
    summed = math.log2(rows * shape.radius * max(shape.slope, 1.0)) + _ROOM
    slope_bits = _bits("slopes", SLOPE_BITS, _WHOLE - feature_bits - summed)
    largest = across + box_bits + math.log2(spacing)  # log of a bound on |⟨a, θ⟩|
    score_bits = _bits("scores", SCORE_BITS, 60 - max(largest, 1.0))
    steepest = conditions.risk_lipschitz(plan.problem, plan.protects)
    push = math.log2(plan.step_size * steepest / spacing + 1)
    step_bits = _bits("steps", STEP_BITS, min(61 - box_bits, 60 - push))
    product = plan.step_size * plan.problem.l2
    shrink = round(math.ldexp(product, step_bits))
    found = Lattice(
        spacing=spacing,
        noise_bits=plan.lattice_bits,
        start_bits=_start_bits(plan, spacing),
        box_bits=box_bits,
        feature_bits=feature_bits,
        score_bits=score_bits,
        slope_bits=slope_bits,
        step_bits=step_bits,
        shrink=shrink,
        shape=shape,
        gradient_error=0.0,
    )
    return found._replace(gradient_error=gradient_error(plan, found))


def _bits(what: str, limits: tuple[int, int], room: float) -> int:
    bits = math.floor(room)
    if bits < limits[0]:
        raise CertificateRefused(
            f"exact arithmetic leaves {bits} bits for {what} in numbers of 53 and 62 bits, and "
            f"{limits[0]} are needed; give fewer records, larger budgets, a larger l2 or "
            f"step_size, or arithmetic='fast'."
        )
    return min(bits, limits[1])


def _reach(plan, shape: Shape) -> float:
    """A box that holds the optimum, and models some deviations around it.

    ‖θ*‖ ≤ L/λ, and λ‖θ*‖²/2 ≤ ℓ(0) - inf ℓ. The clamp is a part of the step, so that any box is
    right for privacy; the risk bound needs the optimum inside.
    """
    l2 = plan.problem.l2
    steepest = conditions.risk_lipschitz(plan.problem, plan.protects)
    optimum = min(steepest / l2, math.sqrt(2 * shape.fall / l2))
    return optimum + arithmetic.DEVIATIONS * math.sqrt(arithmetic.spread(plan))


def _start_bits(plan, spacing: float) -> int | None:
    """The widest start whose variance is at most the planned one."""
    if plan.init_variance < spacing**2:
        return None
    wide = math.sqrt(plan.init_variance) / (lattice.DEVIATION * spacing)
    return min(math.floor(math.log2(wide)), NOISE_BITS[1])


def gradient_error(plan, numbers: Lattice) -> float:
    """E: before its rounding to the lattice, a computed step is within ηE of the exact one.

    E = R e + (√d Δ 2^-(m+1) + 2^-50 ηL + |C 2^-m - ηλ| √d W) / η

    with e = k (2^-(F+1) + 2^-50 R√d W) + 2^-(G+1) + 2^-50 s, s = sup |φ'|, k = sup |φ''|.

    Proof. (1) A score is the exact sum times a float64 number, rounded to F bits: it is off by
    2^-(F+1) and a few relative roundings, |⟨a, θ⟩| ≤ R√d W; a slope moves by at most k times that.
    (2) Whole slopes add 2^-(G+1), and losses that divide one rounding more. So each record's slope
    is off by e at most, its gradient by eR, and so is the mean of any number of records. (4) N adds
    half a unit of 2^-m Δ in every coordinate, and relative roundings of a gradient of norm at most
    L: of its conversion to float64, which is exact below 2⁵³, of the factor and of the product.
    (3) Shrinking by C 2^-m instead of ηλ moves a coordinate of size W by the difference. All else
    is exact: no sum passes 2⁵³ or 2⁶², because Σ_j |a_j I_j| ≤ ‖a‖‖I‖ ≤ 2^p R · 2^w √d, and a sum
    of slopes times features is at most n 2^G s · 2^p R (`of`).

    The slope that is meant is that of the loss, for the logistic one interpolated between multiples
    of 2⁻⁸ and for the Huber one with δ cut to F bits: convex losses whose L and β are no larger
    (`losses.exact_slopes`).
    """
    shape, eta, root = numbers.shape, plan.step_size, math.sqrt(plan.dim)
    steepest = conditions.risk_lipschitz(plan.problem, plan.protects)
    score = math.ldexp(1.0, -numbers.score_bits - 1)
    score += _FLOAT64 * shape.radius * root * numbers.box
    slope = shape.curvature * score + math.ldexp(1.0, -numbers.slope_bits - 1)
    slope += _FLOAT64 * shape.slope
    shrink = abs(math.ldexp(numbers.shrink, -numbers.step_bits) - eta * plan.problem.l2)
    shrink += _FLOAT64 * eta * plan.problem.l2
    step = root * math.ldexp(numbers.spacing, -numbers.step_bits - 1)
    step += _FLOAT64 * eta * steepest + shrink * root * numbers.box
    return shape.radius * slope + step / eta


def aligned_step(plan) -> float:
    """The largest η ≤ the plan's for which ηλ 2^m is whole."""
    numbers = of(plan)
    product = math.ldexp(plan.step_size * plan.problem.l2, numbers.step_bits)
    if product < 1:
        raise CertificateRefused(
            f"step_size · l2 = {plan.step_size * plan.problem.l2:.3g} is below the 2^-"
            f"{numbers.step_bits} that exact arithmetic holds; give a larger l2 or step_size."
        )
    return math.ldexp(math.floor(product), -numbers.step_bits) / plan.problem.l2


def gap(plan) -> float:
    """g of the plan: what rounding adds to the gap of every step."""
    numbers = of(plan)
    return lattice.rounding_gap(numbers.spacing, plan.dim, plan.step_size, numbers.gradient_error)


def floor(plan) -> float:
    """μ_f of the plan after any number of steps."""
    return lattice.floor(gap(plan), deviation(plan), plan.step_size, plan.problem.l2)


def deviation(plan) -> float:
    """ς = √(2ησ²)."""
    return arithmetic.noise_deviation(plan)


def risk_shift(plan) -> float:
    """What rounding adds to m_i of the risk bound: (Δ√d/2 + ηE) / (ηλ).

    A rounded step ends within that numerator of the exact one, its noise has mean 0 and variance at
    most ς² as before, and √((x + y)² + V) ≤ √(x² + V) + y adds it up through c.
    """
    numbers = of(plan)
    moved = numbers.spacing * math.sqrt(plan.dim) / 2 + plan.step_size * numbers.gradient_error
    return moved / (plan.step_size * plan.problem.l2)


def parts(plan) -> list[str]:
    """The parts of the proof, as a certificate lists them."""
    found = of(plan)
    parameter = math.ldexp(lattice.DEVIATION, found.noise_bits)
    return [
        f"the state is a point of the lattice ΔZ^d, Δ = {found.spacing:.6g}, clamped to "
        f"|θ_j| ≤ {found.box:.6g}; rounding is to the nearest point, and every step counts with a "
        f"gap larger by g = 2Δ√d + 2ηE = {gap(plan):.4g} (guarantees.lattice)",
        f"the noise of a step is ΔZ, Z discrete Gaussian of parameter {parameter:.6g}, "
        f"drawn by whole numbers without rounding; the sampler's error is an event of probability "
        f"below 2^-4096 for a draw",
        f"features are cut to multiples of 2^-{found.feature_bits} and sums are of whole numbers "
        f"below 2^53, exact in any order; slopes are multiples of 2^-{found.slope_bits}; what is "
        f"computed of a gradient is within E = {found.gradient_error:.4g} of the exact one",
    ]
