"""Matrix products of a stated precision, the same on every platform.

Unless told otherwise, JAX multiplies matrices of single precision in bfloat16 on a TPU and in TF32
on recent GPUs. A model that is rounded inside a product makes the gradient a step function. Such a
step is not a contraction, so a certificate about single precision would be false. The levels are:

    "full"        the operands' own type: on a TPU six passes of bfloat16 products
    "bfloat16x3"  three passes, where a plan's arithmetic allows it (`plans.arithmetic`): of
                  bfloat16 on a TPU, of the finer TF32 on a GPU. A CPU computes in full, as it has
                  nothing cheaper, and so does every platform where a number is of double precision

A number x of single precision is the sum of three bfloat16 numbers x₁ + x₂ + x₃, each the rounding
of what the ones before it leave, and ab = Σ a_i b_j over i + j ≤ 4 up to a rounding of single
precision (three passes: two parts, i + j ≤ 3). A TPU multiplies tiles of 128 × 128, so that a
product over d = 50 features leaves most of a tile empty in every pass. `stacked` puts the parts of
the features side by side instead, [a₁ a₂ a₃ | a₁ a₂ | a₁] against [θ₁ θ₁ θ₁ | θ₂ θ₂ | θ₃]: one
product over 6d, the same sums.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

# Into how many bfloat16 numbers a number of single precision is split.
PARTS = {"full": 3, "bfloat16x3": 2}
# What XLA calls three passes; the older names "high" and "tensorfloat32" mean different things on
# TPUs and GPUs. On a GPU XLA cuts the first part off instead of rounding it. Of bfloat16 numbers a
# second part is then up to 2⁻⁷, and as it meets the coarse first part of the model alone, laws were
# off by 4% where a plan allowed 1%; of TF32 numbers it is up to 2⁻¹⁰.
THREE_PASSES_TPU, THREE_PASSES_GPU = "BF16_BF16_F32_X3", "TF32_TF32_F32_X3"


def full(function: Callable) -> Callable:
    """The function with every product inside it in full precision."""

    @functools.wraps(function)
    def computed(*args, **kwargs):
        with jax.default_matmul_precision("highest"):
            return function(*args, **kwargs)

    return computed


def computed(precision: str, function: Callable, *args: Any) -> Any:
    """`function(*args)` with every product inside it at this level."""
    types = {getattr(leaf, "dtype", None) for leaf in jax.tree.leaves(args)}
    # Doubles are not a sum of a few bfloat16 numbers; JAX would round them to singles unasked.
    if precision == "full" or jnp.dtype(jnp.float64) in types:
        return full(function)(*args)

    def by_algorithm(name):
        def computed(*args):
            with jax.default_matmul_precision(name):
                return function(*args)

        return computed

    forms = {"tpu": by_algorithm(THREE_PASSES_TPU), "default": by_algorithm(THREE_PASSES_GPU)}
    return jax.lax.platform_dependent(*args, cpu=full(function), **forms)


def dot(precision: str, left: Array, right: Array) -> Array:
    """The product of two matrices, or of a matrix and a vector, at this level."""
    return computed(precision, jnp.matmul, left, right)


# --- a TPU's products -----------------------------------------------------------------------------


def split(values: Array, count: int) -> list[Array]:
    """Bfloat16 numbers whose sum is `values`, up to 2^(-8 count) of them; the largest first."""
    parts = []
    for _ in range(count):
        # Not a cast there and back, which the compiler may take for the identity.
        part = jax.lax.reduce_precision(values, exponent_bits=8, mantissa_bits=7)
        parts.append(part.astype(jnp.bfloat16))
        values = values - part
    return parts


def stack(features: Float[Array, "n d"], precision: str) -> Array:
    """The parts of the features side by side, as `stacked_scores` and `stacked_sum` take them.

    [a₁ a₂ a₃ | a₁ a₂ | a₁]: block j holds the parts that are multiplied with the j-th part of the
    other factor.
    """
    parts = split(features, PARTS[precision])
    blocks = [part for j in range(len(parts)) for part in parts[: len(parts) - j]]
    # The stack depends on the rows alone. Without the barrier the compiler makes it again in every
    # step, because it is larger than what it is made from.
    return jax.lax.optimization_barrier(jnp.concatenate(blocks, axis=1))


def stacked_width(precision: str, dim: int) -> int:
    """How many columns a stack of d features has."""
    count = PARTS[precision]
    return dim * count * (count + 1) // 2


def stacked_scores(stacked: Array, params: Float[Array, "d m"], precision: str) -> Array:
    """AΘ, one product over the stacked features."""
    parts = split(params, PARTS[precision])
    blocks = [part for j, part in enumerate(parts) for _ in range(len(parts) - j)]
    return _product_of_parts(stacked, jnp.concatenate(blocks, axis=0), (1, 0))


def stacked_sum(stacked: Array, slopes: Float[Array, "n m"], dim: int, precision: str) -> Array:
    """AᵀR: for each part of the slopes one product with its block of the stack."""
    count, first = PARTS[precision], 0
    terms: list[tuple[int, Array]] = []
    for j, part in enumerate(split(slopes, count)):
        width = dim * (count - j)
        block = jax.lax.slice_in_dim(stacked, first, first + width, axis=1)
        rows = _product_of_parts(block, part, (0, 0))
        terms += [(i + j, rows[i * dim : (i + 1) * dim]) for i in range(count - j)]
        first += width
    # The small terms first, so that less of them is rounded away.
    ordered = [term for _, term in sorted(terms, key=lambda term: -term[0])]
    return functools.reduce(jnp.add, ordered)


def _product_of_parts(left: Array, right: Array, axes: tuple[int, int]) -> Array:
    """One pass: a product of bfloat16 numbers is exact in single precision, where they are added.

    The scope names these products in the compiled text: they are the only ones in bfloat16.
    """
    with jax.named_scope("product_of_parts"):
        return jax.lax.dot_general(
            left,
            right,
            (((axes[0],), (axes[1],)), ((), ())),
            preferred_element_type=jnp.float32,
        )
