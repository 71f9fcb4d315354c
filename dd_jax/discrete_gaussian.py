"""Exact draws of the discrete Gaussian law P(z) ∝ 2^-(z/k)², k = 2^κ, on the integers.

As e^-(z²/(2ς²)) it has ς = k/√(2 ln 2) (`guarantees.lattice.DEVIATION`). Written with a power of 2
it needs coins and comparisons of integers alone, so that no probability is rounded. One candidate:

    sign ±, x ≥ 0 with P(x) = 2^-(x+1) (ones before the first zero), y uniform in 0 … k-1
    z = ± (kx + y), accepted with probability 2^-E,  E = ((kx+y)/k)² - x

because 2^-(x+1) 2^-E = 2^-(z/k)²/2; -0 is refused, so that 0 does not count twice. E ≥ 0 is
a whole number ⌊E⌋, that many coins which must all show zero, and a fraction F of 2κ bits, for which
2^-F is drawn exactly, i counting from 1: heads accepts; after tails, refuse with probability F/i,
else go on with i + 1. It accepts with probability Σ_n 2^-(n+1) Π_{i≤n} (1 - F/i), which is 2^-F
because Σ_n pⁿ Π_{i≤n} (1 - F/i) = (1-p)^(F-1), the binomial series, at p = 1/2. An event of
probability F/i is a uniform number of 2κ bits below F and a uniform number below i that is 0; the
latter is drawn from 12 bits, and the whole trial again where these do not divide evenly.

Every lane works through its candidates by itself, and a round of all lanes reads four words of
fresh bits for each. The program runs as many rounds as the slowest lane needs: how long it takes
depends on the random bits, and on nothing else.

The law is exact except that a lane would not end once i passes 4096, an event of probability below
2^-4096: every count holds 35 bits or more.
"""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array

from dd_jax import checks

# 2κ bits of a fraction come from a word and 20 bits of another.
MOST_BITS = 26
_WORDS = 4
_FIELD = 16  # ones, and zeros, that one round reads
_DIVIDED = 12  # bits of a number that is drawn below i


def discrete_gaussian(key: Array, shape: tuple[int, ...], bits: int) -> Array:
    """Independent draws of P(z) ∝ 2^-(z/2^κ)², int64; call it with 64-bit types switched on.

    Args:
        key: any JAX key; `dd_jax.chacha` is the generator for secret use.
        shape: of the result. bits: κ, static, at most 26.
    """
    bits = checks.whole("bits", bits, most=MOST_BITS)
    size = math.prod(shape)
    counts = dict.fromkeys(("ones", "low", "need", "fraction", "trial", "value"), jnp.int64)
    lanes = {name: jnp.zeros(size, kind) for name, kind in counts.items()}
    lanes |= {"stage": jnp.zeros(size, jnp.int32), "negative": jnp.zeros(size, bool)}

    def unfinished(carry):
        return jnp.any(carry[1]["stage"] != _DONE)

    def next_round(carry):
        number, lanes = carry
        words = jax.random.bits(jax.random.fold_in(key, number), (_WORDS, size), jnp.uint32)
        return number + 1, _round(lanes, words, bits)

    _, lanes = jax.lax.while_loop(unfinished, next_round, (jnp.uint32(0), lanes))
    return lanes["value"].reshape(shape)


_NEW, _ONES, _ZEROS, _FRACTION, _DONE = range(5)


def _round(lanes: dict, words: Array, bits: int) -> dict:
    """What every lane does with its four words: as many stages as these suffice for."""
    first, second, third, fourth = (words[i].astype(jnp.int64) for i in range(_WORDS))
    stage, k = lanes["stage"], jnp.int64(1) << bits

    new = stage == _NEW
    low = jnp.where(new, first & (k - 1), lanes["low"])
    negative = jnp.where(new, (first >> 30) & 1 == 1, lanes["negative"])
    ones = jnp.where(new, 0, lanes["ones"])
    trial = jnp.where(new, 1, lanes["trial"])
    stage = jnp.where(new, _ONES, stage)

    # x, the ones before the first zero; 16 ones are read on in the next round.
    counting = stage == _ONES
    found = _trailing_ones(second & (2**_FIELD - 1))
    ones = jnp.where(counting, ones + found, ones)
    counted = counting & (found < _FIELD)
    # E = x² - x + 2xy/k + y²/k², in parts that do not overflow.
    cross = 2 * ones * low
    rest = ((cross & (k - 1)) << bits) + low * low
    whole = ones * (ones - 1) + (cross >> bits) + (rest >> (2 * bits))
    need = jnp.where(counted, whole, lanes["need"])
    fraction = jnp.where(counted, rest & ((jnp.int64(1) << (2 * bits)) - 1), lanes["fraction"])
    stage = jnp.where(counted, _ZEROS, stage)

    # ⌊E⌋ coins that must show zero.
    waiting = stage == _ZEROS
    read = jnp.minimum(need, _FIELD)
    zero = (second >> _FIELD) & ((jnp.int64(1) << read) - 1) == 0
    need = jnp.where(waiting, need - read, need)
    stage = jnp.where(waiting & ~zero, _NEW, stage)
    stage = jnp.where(waiting & zero & (need == 0), _FRACTION, stage)

    # 2^-F.
    heads = (first >> 31) & 1 == 1
    below = (third | ((fourth & (2**20 - 1)) << 32)) & ((jnp.int64(1) << (2 * bits)) - 1)
    share = fourth >> 20
    # Where `share` is drawn again the coin is too: keeping one of them would favour heads.
    trying = (stage == _FRACTION) & (share < ((2**_DIVIDED) // trial) * trial)
    smaller = (below < fraction) & (share % trial == 0)
    value = (ones << bits) + low
    good = heads & ~(negative & (value == 0))
    stage = jnp.where(trying & good, _DONE, stage)
    refused = (heads & ~good) | (~heads & smaller)
    stage = jnp.where(trying & refused, _NEW, stage)
    trial = jnp.where(trying & ~heads & ~smaller, trial + 1, trial)

    signed = jnp.where(negative, -value, value)
    return {
        "ones": ones,
        "low": low,
        "need": need,
        "fraction": fraction,
        "trial": trial,
        "value": jnp.where(trying & good, signed, lanes["value"]),
        "stage": stage,
        "negative": negative,
    }


def _trailing_ones(field: Array) -> Array:
    """How many of the lowest bits are ones."""
    return jax.lax.population_count(field & ~(field + 1)).astype(jnp.int64)
