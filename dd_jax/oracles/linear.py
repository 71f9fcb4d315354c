"""The linear loss -⟨θ, x⟩, ‖x‖ ≤ L, in closed form: the loss that attains the optimal bounds.

Two neighbouring databases hold x and -x, ‖x‖ = L, in one row. Along x the model is a scalar
autoregression with c = 1 - ηλ; orthogonal to x both runs have the same law, independent of the
first coordinate, so that a scalar computation is exact in every dimension. The closed forms
broadcast over arrays.
"""

import numpy as np
from scipy import special

from dd_jax import checks
from dd_jax.errors import InputError
from dd_jax.guarantees.schedules import batch_of_row, first_row

_POINTS_PER_DEVIATION = 32
_MOST_POINTS = 2**22
_LARGEST_ORDER = 1e6


def mean_shift(lipschitz, l2, n, step_size, present_steps, delete_steps):
    """Distance of the two means: Δ = (2L/(nλ)) (1 - c^K_I) c^K_U.

    Args:
        lipschitz: L, the norm of the record.
        l2: λ.
        n: number of records.
        step_size: η < 2/λ.
        present_steps: K_I, steps taken while the record is in the database.
        delete_steps: K_U, steps taken since it was replaced.
    """
    rate = _rate(l2, step_size)
    present = one_minus_power(rate, checks.steps("present_steps", present_steps))
    decay = power(rate, checks.steps("delete_steps", delete_steps))
    lipschitz, n = checks.positive("lipschitz", lipschitz), checks.positive("n", n)
    return (2 * lipschitz / (n * l2) * present * decay)[()]


def variance(l2, noise_variance, step_size, steps, init_variance=0.0):
    """Variance of every coordinate after T steps: c^{2T} v₀ + 2ησ² (1 - c^{2T}) / (1 - c²)."""
    rate, steps = _rate(l2, step_size), checks.steps("steps", steps)
    noise_variance = checks.positive("noise_variance", noise_variance)
    init_variance = checks.finite_nonnegative("init_variance", init_variance)
    stationary = 2 * noise_variance / (l2 * (2 - rate))
    return (power(rate, 2 * steps) * init_variance + stationary * one_minus_power(rate, 2 * steps))[
        ()
    ]


def renyi(
    order,
    lipschitz,
    l2,
    noise_variance,
    n,
    step_size,
    present_steps,
    *,
    delete_steps=0,
    init_variance=0.0,
    earlier_steps=0,
):
    """Exact R_q = qΔ²/(2 Var) between neighbouring runs.

    The record is in the database for K_I steps and gone for K_U; `earlier_steps` were taken before
    it was inserted, and T = earlier_steps + K_I + K_U. With K_U = 0 this is the privacy of a
    record that stays. From a fixed start (v₀ = 0) it equals the optimal bound with finite K_I.
    """
    order = checks.order(order)
    shift = mean_shift(lipschitz, l2, n, step_size, present_steps, delete_steps)
    total = checks.steps("earlier_steps", earlier_steps) + present_steps + delete_steps
    spread = variance(l2, noise_variance, step_size, total, init_variance)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(shift == 0, 0.0, order * shift**2 / (2 * spread))[()]


def renyi_of_steps(order, l2, gradient_gap, noise_variance, step_size, *, init_variance=0.0):
    """Exact R_q where batches, step sizes and noise differ between steps: the last axis.

    Δ ← (1 - ηλ) Δ + η g,   Var ← (1 - ηλ)² Var + 2ησ²,   R_q = qΔ²/(2 Var)

    from Δ = 0 and Var = v₀. A step on a batch of b rows that holds the record has g = 2L/b (2rL/b
    for r rows), every other step g = 0.

    Args:
        order: q. l2: λ. init_variance: v₀.
        gradient_gap: g of every step. noise_variance: σ², step_size: η, of every step or of all.
    """
    shift = shift_of_steps(l2, gradient_gap, step_size)
    rate, size = _rate(l2, step_size), np.shape(gradient_gap)[-1:]
    noise = 2 * np.asarray(step_size) * checks.positive("noise_variance", noise_variance)
    rate, noise = (np.broadcast_to(array, np.shape(array)[:-1] + size) for array in (rate, noise))
    spread = checks.finite_nonnegative("init_variance", init_variance)
    for k in range(*size):
        spread = (1 - rate[..., k]) ** 2 * spread + noise[..., k]
    return (checks.order(order) * shift**2 / (2 * spread))[()]


def shift_of_steps(l2, gradient_gap, step_size):
    """Δ of `renyi_of_steps`: the distance of the two means after all steps."""
    gap = checks.finite_nonnegative("gradient_gap", gradient_gap)
    drift, rate = np.broadcast_arrays(step_size * gap, _rate(l2, step_size))
    shift = np.zeros(drift.shape[:-1])
    for k in range(drift.shape[-1]):
        shift = (1 - rate[..., k]) * shift + drift[..., k]
    return shift[()]


def gaps_of_row(lipschitz, n: int, batches: int, row: int, steps: range) -> np.ndarray:
    """g of `renyi_of_steps` for these steps: 2L/b where the batch of b rows holds the row, else 0.

    Step k uses batch k mod m (`dd_jax.guarantees.schedules`).
    """
    here = batch_of_row(n, batches, row)
    rows = _rows_of_batches(n, batches)[here]
    return 2 * lipschitz / rows * (np.asarray(steps) % batches == here)


def _rows_of_batches(n: int, batches: int) -> np.ndarray:
    return np.diff(first_row(n, batches, np.arange(batches + 1)))


def coin_renyi(order, mu):
    """R_q between coins of bias Φ(μ/2) and Φ(-μ/2): what sign(θ̂_0) reveals of a record."""
    order, mu = checks.order(order), checks.finite_nonnegative("mu", mu)
    heads, tails = special.log_ndtr(mu / 2), special.log_ndtr(-mu / 2)
    terms = np.logaddexp(order * heads + (1 - order) * tails, order * tails + (1 - order) * heads)
    return (np.maximum(terms, 0.0) / (order - 1))[()]


def recoding_renyi(
    order,
    lipschitz,
    l2,
    noise_variance,
    n,
    step_size,
    learn_steps,
    *,
    present_steps=0,
    delete_steps=0,
    init_variance=0.0,
) -> float:
    """Exact R_q of the release after a requester saw θ̂_0 and recoded the other rows by its sign.

    After K_L steps on rows that sum to zero except for ±x, the n - 1 other rows all become
    sign(⟨θ̂_0, x⟩) x; the record stays for K_I further steps and is gone for K_U. With s the sign
    and k = K_I + K_U, the release given θ̂_0 is N(c^k θ̂_0 + b + s·u, V_k), so its density is

        Σ_{s=±1} N(y; c^k m₀ + b + s·u, c^{2k} v₀ + V_k) · Φ(s · E[θ̂_0 | y, s] / sd[θ̂_0 | y]),

    and R_q follows by quadrature (the trapezoid rule, which converges geometrically here).
    K_I = 0 is the deleted record, where R_q → `coin_renyi(q, μ)` > 0 as K_U → ∞ (erratum E2);
    K_U = 0 is a record that stays, where one more μ²q/2 is added (erratum E9).
    """
    order = float(checks.order(order))
    if order > _LARGEST_ORDER:
        raise InputError(
            f"order = {order:g} is lost in rounding here; take at most {_LARGEST_ORDER:g}."
        )
    after = checks.steps("present_steps + delete_steps", present_steps + delete_steps, least=1)
    checks.steps("learn_steps", learn_steps, least=1)
    shift_before = mean_shift(lipschitz, l2, n, step_size, learn_steps, 0) / 2
    shift_after = mean_shift(lipschitz, l2, n, step_size, present_steps, delete_steps) / 2
    push = (n - 1) * mean_shift(lipschitz, l2, n, step_size, after, 0) / 2
    fresh = variance(l2, noise_variance, step_size, after)
    unit = np.sqrt(fresh)
    world = _World(
        mean=shift_before / unit,
        variance=variance(l2, noise_variance, step_size, learn_steps, init_variance) / fresh,
        decay=power(_rate(l2, step_size), after),
        offset=shift_after / unit,
        push=push / unit,
    )
    return _quadrature(order, world)


def recoding_renyi_of_steps(
    order,
    lipschitz,
    l2,
    noise_variance,
    n: int,
    step_size,
    learn_steps: int,
    *,
    delete_steps: int,
    batches: int = 1,
    row: int = 0,
    init_variance=0.0,
    null: bool = False,
) -> float:
    """`recoding_renyi` of a deleted record with batches that take turns; K_I = 0.

    With `null` the other world holds the null record in place of -x, and R_q is the larger one of
    the two directions: these worlds are not mirror images.
    """
    order, steps = float(checks.order(order)), learn_steps + delete_steps
    gaps = gaps_of_row(lipschitz, n, batches, row, range(steps))
    rows = _rows_of_batches(n, batches)[np.arange(learn_steps, steps) % batches]
    recoded = lipschitz * (rows - (gaps[learn_steps:] > 0)) / rows  # all but the deleted row
    fresh = variance(l2, noise_variance, step_size, delete_steps)
    learned = variance(l2, noise_variance, step_size, learn_steps, init_variance)
    world = _World(
        mean=shift_of_steps(l2, gaps[:learn_steps], step_size) / 2 / np.sqrt(fresh),
        variance=learned / fresh,
        decay=power(_rate(l2, step_size), delete_steps),
        offset=0.0,
        push=shift_of_steps(l2, recoded, step_size) / np.sqrt(fresh),
    )
    if not null:
        return _quadrature(order, world)
    return max(_quadrature(order, world, sides) for sides in ((1, 0), (0, 1)))


class _World:
    """Law of the recoded release in units of the fresh noise's deviation; `side` is the record."""

    def __init__(self, mean, variance, decay, offset, push):
        self.mean, self.variance, self.decay = mean, variance, decay
        self.offset, self.push = offset, push
        self.total_variance = decay**2 * variance + 1

    def centre(self, side, sign):
        """Centre of the component in which the requester saw this sign."""
        return side * (self.decay * self.mean + self.offset) + sign * self.push

    def log_density(self, points, side):
        """Log density of the release at the points."""
        return np.logaddexp(*(self._log_component(points, side, sign) for sign in (1, -1)))

    def _log_component(self, points, side, sign):
        residual = points - self.centre(side, sign)
        gain = self.decay * self.variance / self.total_variance
        seen = side * self.mean + gain * residual
        deviation = np.sqrt(self.variance / self.total_variance)
        log_normal = -0.5 * (
            residual**2 / self.total_variance + np.log(2 * np.pi * self.total_variance)
        )
        return log_normal + special.log_ndtr(sign * seen / deviation)


def _quadrature(order, world, sides=(1, -1)) -> float:
    """R_q(world of +x ‖ world of -x) on windows around every tilted component.

    Other sides s are worlds of sx; 0 is the null record.
    """
    margin = 12 * np.sqrt(world.total_variance)
    while True:
        exponents, ends = [], []
        for low, high in _windows(order, world, sides, margin):
            count = int(np.ceil((high - low) * _POINTS_PER_DEVIATION))
            if count > _MOST_POINTS:
                raise InputError(
                    f"the quadrature would need {count} points, more than {_MOST_POINTS}; "
                    f"take a larger step_size · l2 or more steps after the recoding."
                )
            points = low + np.arange(count + 1) / _POINTS_PER_DEVIATION
            exponent = order * world.log_density(points, sides[0])
            exponent += (1 - order) * world.log_density(points, sides[1])
            exponents.append(exponent)
            ends += [exponent[0], exponent[-1]]
        exponents = np.concatenate(exponents)
        if max(ends) < exponents.max() - 40:  # beyond the windows less than rounding is left
            total = special.logsumexp(exponents) - np.log(_POINTS_PER_DEVIATION)
            return float(max(total, 0.0) / (order - 1))
        margin *= 2


def _windows(order, world, sides, margin):
    """Disjoint intervals that cover where p^q r^{1-q} can be large."""
    centres = [
        order * world.centre(sides[0], first) + (1 - order) * world.centre(sides[1], second)
        for first in (1, -1)
        for second in (1, -1)
    ]
    merged = []
    for centre in sorted(centres):
        if merged and centre - margin <= merged[-1][1]:
            merged[-1][1] = centre + margin
        else:
            merged.append([centre - margin, centre + margin])
    return merged


def _rate(l2, step_size):
    """ηλ, refused outside (0, 2)."""
    rate = checks.positive("l2", l2) * checks.positive("step_size", step_size)
    if not np.all(rate < 2):
        raise InputError(
            f"step_size · l2 = {rate} makes the steps diverge; take step_size < 2 / l2."
        )
    return rate


def power(rate, steps):
    """(1 - rate)^steps, accurate for tiny rates and for an infinite number of steps."""
    sign, exponent = _signed_exponent(rate, steps)
    return sign * np.exp(exponent)


def one_minus_power(rate, steps):
    """1 - (1 - rate)^steps without cancellation."""
    sign, exponent = _signed_exponent(rate, steps)
    return np.where(sign > 0, -np.expm1(exponent), 1 + np.exp(exponent))


def _signed_exponent(rate, steps):
    """Sign and logarithm of |1 - rate|^steps."""
    rate, steps = np.broadcast_arrays(np.float64(rate), np.float64(steps))
    with np.errstate(divide="ignore", invalid="ignore"):
        log_base = np.where(rate <= 1, np.log1p(-np.minimum(rate, 1)), np.log(np.abs(rate - 1)))
        exponent = np.where((steps == 0) | (log_base == 0), 0.0, steps * log_base)
        odd = np.where(np.isfinite(steps), np.mod(steps, 2), 0) == 1
    return np.where((rate > 1) & odd, -1.0, 1.0), exponent
