"""The optimal accountant for any schedule of batches, step sizes and noise.

Two runs θ_k = T_k(θ_{k-1}) + N(0, ς_k² I) differ in one record. Every map is c_k-Lipschitz, and
sup ‖T_k - T'_k‖ ≤ s_k, which is 0 wherever the record plays no part. Then the two last models are
μ-GDP, and R_q ≤ qμ²/2 for every order, with

    μ² = min Σ a_k²/ς_k²   over   z_k = c_k z_{k-1} + s_k - a_k ≥ 0,  a_k ≥ 0,  z_0 = z_T = 0.

The number z_k is a shift that couples the two runs, and a_k the part of it that step k's noise
hides: a third run X̃⁺ = T'(X̃) + (a share of T(X) - T'(X̃)) + noise starts with the one and ends with
the other. That share lies in [0, 1], so neither a nor z may be negative.

With w_k = c_{k+1} ⋯ c_T the minimum is found by pooling (`Pool`): every step starts as a block
(P, G) = (w_k s_k, w_k² ς_k²), neighbours whose ratios P/G are out of order are merged, and
μ² = Σ P²/G over the blocks. Without the condition z ≥ 0 there would be one block, which is the
exact value for the linear loss and NOT a bound for other losses.

Cyclic batches are such a schedule: m batches of consecutive rows, in a fixed order, one per step,
and a counter that goes on through all requests. A record's batch is used every m steps.
"""

import math
from typing import NamedTuple

import numpy as np

from dd_jax import checks
from dd_jax.errors import CertificateRefused, InputError
from dd_jax.guarantees import floats

# Orders of batches that are drawn at random, as a user may ask for them, and why there is no
# number for each.
_RANDOM_ORDERS = {
    "shuffled": "a secret shuffle is shared by all releases and bounds a Rényi divergence alone",
    "iid": "a batch may be drawn twice in a row, and the number of full batches is false",
    "poisson": "a batch that is larger than planned does not contract",
}


class Block(NamedTuple):
    """Neighbouring steps that hide their shift together.

    Attributes:
        first, last: the steps, from 0.
        gap: log P. noise: log G; both relative to the first step's scale.
    """

    first: int
    last: int
    gap: float
    noise: float

    @property
    def ratio(self) -> float:
        """The logarithm of P/G: how much shift a unit of this block's noise hides."""
        return -math.inf if self.gap == -math.inf else self.gap - self.noise

    @property
    def mu_squared(self) -> float:
        """P²/G, infinite where there is a shift and no noise."""
        return 0.0 if self.gap == -math.inf else _exp(2 * self.gap - self.noise)


class Pool:
    """Pooling adjacent violators, one step at a time; `mu_squared` is right after every step.

    Logarithms, because w_k underflows in a long run. Weights are kept relative to the first step
    and not to the last: P²/G and the order of the ratios do not change by that.
    """

    def __init__(self):
        self.blocks: list[Block] = []
        self._scale = 0.0  # log(c_1 ⋯ c_k)
        self._steps = 0

    def add(self, contraction: float, gap: float, noise: float) -> None:
        """One more step: c, s and ς²."""
        if contraction == 0:  # nothing of the past is left
            self.blocks, self._scale = [], 0.0
        else:
            self._scale += math.log(contraction)
        step = self._steps
        self._steps += 1
        here = Block(step, step, _log(gap) - self._scale, _log(noise) - 2 * self._scale)
        while self.blocks and self.blocks[-1].ratio >= here.ratio:
            before = self.blocks.pop()
            here = Block(
                before.first,
                step,
                float(np.logaddexp(before.gap, here.gap)),
                float(np.logaddexp(before.noise, here.noise)),
            )
        self.blocks.append(here)

    @property
    def mu_squared(self) -> float:
        """μ² of the model after the last step."""
        return math.fsum(block.mu_squared for block in self.blocks)

    def copy(self) -> "Pool":
        """The same steps, to go on in another way."""
        other = Pool()
        other.blocks, other._scale, other._steps = list(self.blocks), self._scale, self._steps
        return other


def pooled(contraction, gap, noise) -> Pool:
    """The pool after all steps of a schedule; `.mu_squared` is the smallest true μ².

    Guarantee: the two last models are μ-GDP, both ways, and R_q ≤ qμ²/2 for every order q.
    Assumes: c_k-Lipschitz maps that differ by at most s_k; a common start that does not depend on
    the record; fresh Gaussian noise N(0, ς_k² I).

    Args:
        contraction: c_k ≥ 0 for each step, or one number for all.
        gap: s_k ≥ 0. noise: ς_k² ≥ 0.
    """
    numbers = (
        checks.finite_nonnegative("contraction", contraction),
        checks.finite_nonnegative("gap", gap),
        checks.finite_nonnegative("noise", noise),
    )
    try:
        steps = np.broadcast_arrays(*map(np.atleast_1d, numbers))
    except ValueError:
        shapes = ", ".join(str(number.shape) for number in numbers)
        raise InputError(
            f"contraction, gap and noise have shapes {shapes}; give one number per step."
        ) from None
    if steps[0].ndim != 1:
        raise InputError(f"a schedule of shape {steps[0].shape} has no order; give vectors.")
    pool = Pool()
    for step in zip(*(array.tolist() for array in steps), strict=True):
        pool.add(*step)
    return pool


# --- cyclic batches -------------------------------------------------------------------------------


def first_row(n, batches, batch):
    """The first row of a batch, ⌊batch · n/m⌋; batch j ends where batch j + 1 begins.

    Batches are consecutive rows of ⌊n/m⌋ or ⌈n/m⌉; the last one is never shorter than another.
    Arrays and traced numbers are taken too; nothing larger than n or m² is computed.
    """
    size, more = divmod(n, batches)
    return batch * size + batch * more // batches


def batch_of_row(n: int, batches: int, row: int) -> int:
    """The batch that a row belongs to, whatever is written into it."""
    batch = row * batches // n
    return batch + int(first_row(n, batches, batch + 1) <= row)


def check_batches(n, batches) -> int:
    """The number m of batches, refused unless every batch has a row and m² fits 32 bits.

    Random orders are refused by name: nothing here is proved for them.
    """
    if isinstance(batches, str) and batches in _RANDOM_ORDERS:
        raise CertificateRefused(
            f"batches = {batches!r} draws batches at random, and no certificate covers that: "
            f"{_RANDOM_ORDERS[batches]}; give a number of batches, which take turns."
        )
    most = min(int(checks.count("n", n)), 46_340)
    return checks.whole("batches", batches, least=1, most=most)


def contraction_exponent(step_size, l2, num_steps):
    """K log(1 - ηλ), so that c^K is its exp and 1 - c^K minus its expm1; c⁰ = 1 even for c = 0."""
    # Never 0: it would make 1 - c^K, and with it a privacy bound, 0, which is the unsound side.
    product = np.clip(floats.product(step_size, l2), np.finfo(np.float64).tiny, 1.0)
    with np.errstate(all="ignore"):
        log_c = np.log1p(-product)
        exponent = num_steps * log_c
        # Finitely many steps of c > 0 leave something, also where K log c overflows.
        endless = np.isinf(num_steps) | (product == 1)
        exponent = np.where(endless, exponent, np.maximum(exponent, -1e300))
        return np.where(num_steps == 0, 0.0, exponent)


@floats.quiet
def cyclic(step_size, l2, batches, uses, since, *scale):
    """`scale` · μ² for unit gap and noise, if a batch is used E times and then not for τ steps.

    With C = c^m:
    pooled    c^{2τ} ((1-C^E)/(1-C))² (1-c²)/(1-c^{2(τ+1+(E-1)m)})
    separate  c^{2(m-1)} (1-c²)/(1-C)² (1-C^{E-1})/(1+C^{E-1}) + c^{2τ} (1-c²)/(1-c^{2τ+2})

    The last use is a block of its own (separate) iff c^{m-2τ-2} (1-c^{2τ+2}) < (1-C)(1+C^{E-1}).
    The pooled form is smaller and NOT a bound there, so this is a choice and never a minimum. With
    m = 1 it is always pooled: K_I = E and K_U = τ of `convex.deletion_optimal`.

    Args:
        step_size, l2: η and λ. batches: m.
        uses: E ≥ 0, or infinite. since: τ ≥ 0, steps after the step of the last use.
        scale: factors, multiplied without overflow on the way.
    """

    def exponent(num_steps):
        return contraction_exponent(step_size, l2, num_steps)

    def lost(num_steps):  # 1 - c^K
        return -np.expm1(exponent(num_steps))

    earlier = np.where(uses > 1, (uses - 1) * batches, 0.0)
    kept, cycle = floats.power(exponent(2 * since)), 1 / lost(batches)
    total = floats.product(lost(2), 1 / lost(2 * (since + 1 + earlier)))
    rise = floats.product(lost(uses * batches), cycle)
    together = floats.product(*scale, kept, rise, rise, total)
    before = np.exp(exponent(earlier))
    first = floats.product(
        *scale,
        floats.power(exponent(2 * (batches - 1))),
        lost(2),
        cycle,
        cycle,
        lost(earlier),
        1 / (1 + before),
    )
    last = floats.product(*scale, kept, lost(2), 1 / lost(2 * since + 2))
    room = np.exp(exponent(batches - 2 * since - 2)) * lost(2 * since + 2)
    apart = room < lost(batches) * (1 + before)
    value = np.where(apart, np.where(earlier == 0, 0.0, first) + last, together)
    return np.where(np.asarray(uses) == 0, 0.0, value)


def uses_of(batch, batches, start, stop):
    """(E, τ): how often steps start ≤ k < stop use a batch, and steps since its last use.

    Step k uses batch k mod m. Where there is no use, τ means nothing.
    """
    # Python's integers before NumPy's: a step count may be beyond 64 bits.
    since = ((stop - 1) % batches - np.asarray(batch)) % batches
    uses = np.maximum((float(stop - start) - since + batches - 1) // batches, 0.0)
    return uses, since.astype(float)


def _log(x: float) -> float:
    return math.log(x) if x > 0 else -math.inf


def _exp(x: float) -> float:
    """eˣ, rounded up: never 0."""
    return max(math.exp(x), math.ulp(0.0)) if x < 709 else math.inf
