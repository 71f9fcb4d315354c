"""Random bits for secret use: ChaCha20 in counter mode, as a generator of JAX's keys.

JAX's own generator (threefry) takes 64 bits of key and was not made against people who look for its
key. Here a key is 256 bits. Every number is the output of the ChaCha20 block function (RFC 8439)
under a key and a block number; keys derived from a key (`split`, `fold_in`) are outputs too, of
numbers that are used for nothing else. So a key of this kind goes wherever a key goes in JAX.

`dd_jax.keys.secret_key(generator="chacha20")` makes one from the operating system's randomness.
"""

import jax
import jax.numpy as jnp
from jax.extend.random import define_prng_impl
from jaxtyping import Array

KEY_WORDS = 8
_CONSTANTS = (0x61707865, 0x3320646E, 0x79622D32, 0x6B206574)
# Which words of a block a quarter round works on: the columns, then the diagonals.
_QUARTERS = (
    *((0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15)),
    *((0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14)),
)
_DOUBLE_ROUNDS = 10
# The last word of a block number says what the block is for.
_BITS, _SPLIT, _FOLD, _SEED = range(4)


@jax.jit  # keys are split outside of programs too: a loop would be compiled anew each time
def block(key: Array, number: tuple[Array, ...]) -> list[Array]:
    """The 16 words of the ChaCha20 block with this number of four words; broadcasts over numbers.

    The words are those of RFC 8439: constants, key, counter, nonce.
    """
    shape = jnp.broadcast_shapes(*(jnp.shape(word) for word in number))
    words = [*map(jnp.uint32, _CONSTANTS), *(key[i] for i in range(KEY_WORDS)), *number]
    start = [jnp.broadcast_to(jnp.asarray(word, jnp.uint32), shape) for word in words]

    def double_round(_, state):
        state = list(state)
        for quarter in _QUARTERS:
            mixed = _quarter_round(*(state[i] for i in quarter))
            for i, word in zip(quarter, mixed, strict=True):
                state[i] = word
        return state

    mixed = jax.lax.fori_loop(0, _DOUBLE_ROUNDS, double_round, start)
    return [word + first for word, first in zip(mixed, start, strict=True)]


def _quarter_round(a, b, c, d):
    a = a + b
    d = _rotated(d ^ a, 16)
    c = c + d
    b = _rotated(b ^ c, 12)
    a = a + b
    d = _rotated(d ^ a, 8)
    c = c + d
    b = _rotated(b ^ c, 7)
    return a, b, c, d


def _rotated(word: Array, count: int) -> Array:
    return (word << jnp.uint32(count)) | (word >> jnp.uint32(32 - count))


def _numbered(index, purpose: int, second=0) -> tuple[Array, ...]:
    words = (index, jnp.uint32(second), jnp.uint32(0), jnp.uint32(purpose))
    return tuple(jnp.asarray(word, jnp.uint32) for word in words)


def _seed(seed: Array) -> Array:
    """A key from a small number, for experiments: it is as easy to guess as the number."""
    low = jax.lax.convert_element_type(seed, jnp.uint32)
    key = jnp.zeros(KEY_WORDS, jnp.uint32).at[0].set(low)
    return jnp.stack(block(key, _numbered(0, _SEED))[:KEY_WORDS])


def _split(key: Array, shape: tuple[int, ...]) -> Array:
    count = 1
    for size in shape:
        count *= size
    words = block(key, _numbered(jnp.arange(count, dtype=jnp.uint32), _SPLIT))
    return jnp.stack(words[:KEY_WORDS], axis=-1).reshape(*shape, KEY_WORDS)


def _fold_in(key: Array, data: Array) -> Array:
    data = jax.lax.convert_element_type(data, jnp.uint32)
    return jnp.stack(block(key, _numbered(data, _FOLD))[:KEY_WORDS])


def _random_bits(key: Array, bit_width: int, shape: tuple[int, ...]) -> Array:
    count = 1
    for size in shape:
        count *= size
    words = count * (2 if bit_width == 64 else 1)
    blocks = -(-words // 16)
    found = block(key, _numbered(jnp.arange(blocks, dtype=jnp.uint32), _BITS))
    flat = jnp.stack(found, axis=-1).reshape(-1)[:words]
    if bit_width == 64:
        high, low = (flat[k::2].astype(jnp.uint64) for k in (0, 1))
        return ((high << jnp.uint64(32)) | low).reshape(shape)
    if bit_width < 32:
        kind = {8: jnp.uint8, 16: jnp.uint16}[bit_width]
        return (flat >> jnp.uint32(32 - bit_width)).astype(kind).reshape(shape)
    return flat.reshape(shape)


# The generator, as `jax.random.key(seed, impl=...)` and `jax.random.wrap_key_data` take it.
GENERATOR = define_prng_impl(
    key_shape=(KEY_WORDS,),
    seed=_seed,
    split=_split,
    random_bits=_random_bits,
    fold_in=_fold_in,  # pyright: ignore[reportArgumentType]
    name="chacha20",
    tag="chacha",
)
