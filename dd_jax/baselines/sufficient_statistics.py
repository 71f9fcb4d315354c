"""Noisy sufficient statistics: ridge regression from sums that forget a record exactly.

Squared error needs of its records only the sums Σ aaᵀ and Σ ay. The curator keeps them exactly, as
integers: subtracting a record leaves bit by bit what never adding it would, so no state carries a
trace of deleted records. Every release draws fresh noise,

    M̂ = Σ aaᵀ + E,   v̂ = Σ ay + e,   θ = (M̂ + (nλ + κ)I)⁻¹ v̂,

with E symmetric (variance v_M on the diagonal and v_M/2 off it, which is isotropic in Frobenius
norm), e ~ N(0, v_v I), and κ a public number above the norm of E, so that the sum stays positive
definite (as in AdaSSP, Wang 2018). A deletion costs one solve, whatever n is.

The price is that releases compose: each one of k costs a record that stays the whole μ², where a
model that is carried on pays only for its new steps.

Integers: a value of [-1, 1] is cut towards zero to 2b bits and split into two limbs of b bits,
x = (high + low 2^{-b}) 2^{-b}. Sums of products of limbs fit 32 bits if n 4^b < 2³¹.
"""

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from dd_jax import checks
from dd_jax.baselines import newton
from dd_jax.baselines.base import (
    Guarantee,
    System,
    check_planned,
    cost,
    linear_labels,
    replaced,
    require_float32_noise,
)
from dd_jax.constants import ROUNDING
from dd_jax.erm import Problem
from dd_jax.errors import InputError
from dd_jax.guarantees import renyi

MOST_BITS, LEAST_BITS = 7, 3
# κ exceeds the norm of E except with probability 2 exp(-TAIL²/4) at most.
TAIL = 4.0

# --- calibration ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Calibration:
    """The noise of a release and the grid of the integers.

    Attributes:
        n: number of records. dim: d. l2: λ.
        matrix_variance: v_M of Σ aaᵀ. vector_variance: v_v of Σ ay.
        bits: b of one limb; features and labels are multiples of 4^{-b}.
        mu: μ of one release. epsilon, delta: of one release.
    """

    n: int
    dim: int
    l2: float
    matrix_variance: float
    vector_variance: float
    bits: int
    mu: float
    epsilon: float
    delta: float

    @property
    def noise_norm(self) -> float:
        """κ = √(v_M/2) (2√d + 4), which the norm of E hardly ever exceeds."""
        return math.sqrt(self.matrix_variance / 2) * (2 * math.sqrt(self.dim) + TAIL)

    @property
    def ridge(self) -> float:
        """The nλ + κ that is added to the diagonal."""
        return self.n * self.l2 + self.noise_norm


def release_mu_squared(matrix_variance: float, vector_variance: float) -> float:
    """The exact μ² of one release for a replaced record, ‖a‖ ≤ 1 and |y| ≤ 1.

    sup ‖aaᵀ - a'a'ᵀ‖²/v_M + ‖ay - a'y'‖²/v_v = 2/v_M + 2/v_v + v_M/(2v_v²), or 4/v_v if v_M ≥ 2v_v

    Scaling both records up raises both terms, and so does lengthening the shorter one at the worst
    angle, so both are of norm 1. With t = |⟨a, a'⟩| the terms are then 2 - 2t² and at most 2 + 2t,
    and the sum is largest at t = v_M/(2v_v), or at t = 1. (Separate suprema, 2/v_M + 4/v_v, are not
    attained together.)
    """
    cosine = min(1.0, matrix_variance / (2 * vector_variance))
    return (2 - 2 * cosine**2) / matrix_variance + (2 + 2 * cosine) / vector_variance


def largest_bits(n: int) -> int:
    """The most bits b ≤ 7 of a limb for which all sums of n records fit 32 bits: n 4^b < 2³¹.

    Raises:
        InputError: fewer than 3 bits are left.
    """
    bits = next((b for b in range(MOST_BITS, 0, -1) if n * 4**b < 2**31), 0)
    if bits < LEAST_BITS:
        raise InputError(
            f"n = {n} records leave {bits} bits of a limb before their sums overflow 32 bits; "
            f"use at most {(2**31 - 1) // 4**LEAST_BITS} records."
        )
    return bits


def calibrate(
    problem: Problem,
    *,
    n: int,
    dim: int,
    epsilon: float,
    delta: float,
    releases: int = 1,
    ratio: float = 0.25,
) -> Calibration:
    """The noise for which `releases` releases together are (ε, δ)-DP, by exact Gaussian DP.

    Guarantee: a release is μ-GDP for a record that stays, μ² the k-th part of that of (ε, δ).
    Assumes: ‖a‖ ≤ 1, |y| ≤ 1; replace-one; n fixed.

    Args:
        problem: `losses.squared(label_bound=1)` without intercept or clip norm, and λ.
        n: number of records. dim: d.
        epsilon, delta: the target of all counted releases together.
        releases: k, how many releases of a record that stays count together.
        ratio: v_M/v_v.
    """
    _require_unit_records(problem)
    n, dim = int(checks.count("n", n)), int(checks.count("dim", dim))
    target = renyi.gdp_from_epsilon_delta(epsilon, delta)
    mu = target / math.sqrt(checks.count("releases", releases))
    ratio = float(checks.positive("ratio", ratio))
    # ‖a‖ may be 1 + ROUNDING, and ‖aaᵀ‖ its square.
    vector = release_mu_squared(ratio, 1.0) * (1 + ROUNDING) ** 4 / mu**2
    return Calibration(
        n=n,
        dim=dim,
        l2=problem.constants.l2,
        matrix_variance=ratio * vector,
        vector_variance=vector,
        bits=largest_bits(n),
        mu=float(mu),
        epsilon=float(renyi.gdp_epsilon(mu, delta)),
        delta=float(delta),
    )


def _require_unit_records(problem: Problem) -> None:
    newton.require_loss(problem, ("squared error",))
    constants = problem.constants.loss
    radius = 1 + 2 * ROUNDING
    labels = constants.label_sensitivity
    if (constants.smoothness or math.inf) > radius**2 or labels is None or labels > 2 * radius:
        raise InputError(
            "the noise is for ‖a‖ ≤ 1 and |y| ≤ 1; rescale the records and use "
            "losses.squared(label_bound=1)."
        )


# --- exact sums ----------------------------------------------------------------------------------


def limbs(values: Float[Array, "n k"], bits: int) -> Float[Array, "n 2k"]:
    """Values of [-1, 1] cut towards zero to 2b bits: whole numbers high, then low, up to 2^b.

    Cutting towards zero lengthens no row. Every operation here is exact in floating point.
    """
    scaled = jnp.clip(values, -1, 1) * 2**bits
    high = jnp.trunc(scaled)
    low = jnp.trunc((scaled - high) * 2**bits)
    return jnp.concatenate([high, low], axis=1).astype(jnp.float32)


def gram(rows: Float[Array, "n k"], bits: int) -> Int[Array, "k k"]:
    """Σ zzᵀ over rows of whole numbers up to 2^b, exactly.

    Products of single precision are exact as long as their sum is at most 2²⁴: so many rows are
    multiplied at once, and their sums added as integers.
    """
    n, width = rows.shape
    chunk = min(n, 2**24 >> 2 * bits)
    parts = jnp.pad(rows, ((0, -n % chunk), (0, 0))).reshape(-1, chunk, width)

    def add(total, part):
        return total + (part.T @ part).astype(jnp.int32), None

    return jax.lax.scan(add, jnp.zeros((width, width), jnp.int32), parts)[0]


def sums(problem: Problem, records, bits: int, counted=None) -> Int[Array, "k k"]:
    """The exact statistics of records, those that are not counted left out."""
    scores: Any = problem.loss.scores
    features, label = scores.split(records)
    rows = limbs(jnp.concatenate([features, label[:, None]], axis=1), bits)
    return gram(rows if counted is None else jnp.where(counted[:, None], rows, 0), bits)


def moments(statistics: Int[Array, "k k"], bits: int) -> tuple[Array, Array]:
    """(Σ aaᵀ, Σ ay) as floating-point numbers."""
    half = statistics.shape[0] // 2
    whole = statistics.astype(jnp.float32)
    high, cross, low = whole[:half, :half], whole[:half, half:], whole[half:, half:]
    joint = (high + ((cross + cross.T) + low * 2.0**-bits) * 2.0**-bits) * 4.0**-bits
    return joint[:-1, :-1], joint[:-1, -1]


def noisy_moments(key: Array, statistics: Array, calibration: Calibration) -> tuple[Array, Array]:
    """(M̂, v̂): everything that a release depends on."""
    matrix_key, vector_key = jax.random.split(key)
    matrix, vector = moments(statistics, calibration.bits)
    square = jax.random.normal(matrix_key, matrix.shape)
    noise = (square + square.T) / 2 * math.sqrt(calibration.matrix_variance)
    shift = jax.random.normal(vector_key, vector.shape) * math.sqrt(calibration.vector_variance)
    return matrix + noise, vector + shift


# --- the system ----------------------------------------------------------------------------------


def system(problem: Problem, calibration: Calibration) -> System:
    """Ridge regression from noisy sums; the exact integer sums are kept and never released.

    Cost: n Hessians and gradients to learn, 2r of each at a request, one solve per release.

    Raises:
        InputError: another loss than squared error on unit records, or another λ than calibrated.
        CertificateRefused: noise that drowns in the rounding of sums of n records.
    """
    _require_unit_records(problem)
    if problem.constants.l2 != calibration.l2:
        raise InputError(
            f"the calibration is for l2 = {calibration.l2:g}, the problem has "
            f"{problem.constants.l2:g}; calibrate again."
        )
    n, bits = calibration.n, calibration.bits
    least = math.sqrt(min(calibration.matrix_variance / 2, calibration.vector_variance))
    require_float32_noise(least, n, "give a smaller epsilon or fewer records")

    def learn(key, database):
        del key
        check_planned(database, n)
        return sums(problem, database, bits), cost(n, n, 1, retrained=1)

    def delete(key, before, edit, after, state):
        del key, after
        change = replaced(before, edit)
        gone = sums(problem, change.old, bits, change.accepted)
        come = sums(problem, change.new, bits, change.accepted)
        rows = 2 * edit.index.shape[0]
        return state - gone + come, cost(rows, rows, 1)

    def publish(key, state):
        matrix, vector = noisy_moments(key, state, calibration)
        return jnp.linalg.solve(matrix + calibration.ridge * jnp.eye(len(vector)), vector)

    return System(
        name="sufficient-statistics",
        learn=learn,
        delete=delete,
        publish=publish,
        predict=linear_labels,
        secret=lambda state: state,
        guarantee=guarantee(calibration),
        domain=problem.loss.domain,
    )


def guarantee(calibration: Calibration) -> Guarantee:
    """ε = 0 for requests fixed in advance, and what one release costs everybody, as data."""
    return Guarantee(
        notion="data-deletion",
        epsilon=0.0,
        delta=0.0,
        private=(
            f"yes: one release is ({calibration.epsilon:.3g}, {calibration.delta:.3g})-DP "
            f"(μ = {calibration.mu:.3g}); k of them together are √k μ-GDP"
        ),
        adaptive="yes: μ² for each release that the requester saw while the record was there",
        keeps="exact integer sums Σ aaᵀ, Σ ay of the current records, none of deleted ones",
        conditions=(
            "squared error, ‖a‖ ≤ 1 and |y| ≤ 1 on every row, replaced, n fixed",
            "requests do not depend on releases",
            f"features and labels are cut to a public grid of 2^-{2 * calibration.bits}",
            "an observer who does not exploit floating point",
        ),
        reference="sufficient statistics with Gaussian noise (AdaSSP, Wang 2018); dd_jax",
    )
