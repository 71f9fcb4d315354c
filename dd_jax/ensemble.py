"""Many seeds at once: output distributions of whole interactions, and neighbouring pairs of them.

Jits on the caller's behalf: a vmap over a chunk of seeds inside, a host loop over chunks outside,
so that memory is bounded by the chunk and progress can be shown.
"""

import functools
from collections.abc import Callable
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from dd_jax.errors import InputError
from dd_jax.types import Edit, apply_edit, check_edit

DEFAULT_CHUNK = 1024
# Seeds are folded into the key as 32-bit numbers; beyond them they would repeat.
MOST_SEEDS = 2**32


def over_seeds(
    fn: Callable[..., PyTree],
    key: Array,
    num_seeds: int,
    *args: PyTree,
    first_seed: int = 0,
    chunk: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> PyTree:
    """`fn(key_s, *args)` for seeds s = 0 … num_seeds - 1, stacked on a leading axis.

    Seed s gets fold_in(key, s): the numbers are the same for any chunk size (reductions inside `fn`
    may move by rounding), and a longer run begins with a shorter one. Compiled once per `fn` and
    shapes: pass what varies between calls through `args`, and reuse the same `fn` object.

    Args:
        fn: pure function of a key and `args`.
        key: base key.
        num_seeds: how many seeds.
        *args: pytrees handed to every seed unbatched (a database, step sizes, …).
        first_seed: number of the first seed, where a longer run is made in parts.
        chunk: seeds per device call; bounds memory. Default 1024.
        progress: called with (seeds done, num_seeds) after each chunk.
    """
    chunk = DEFAULT_CHUNK if chunk is None else chunk
    if num_seeds < 1 or chunk < 1:
        raise InputError(f"num_seeds = {num_seeds}, chunk = {chunk}; give at least 1 of each.")
    if not 0 <= first_seed <= MOST_SEEDS - num_seeds:
        raise InputError(
            f"seeds {first_seed} to {first_seed + num_seeds - 1} are not all in 0 to "
            f"{MOST_SEEDS - 1}; give fewer."
        )
    chunk = min(chunk, num_seeds)
    parts = []
    for first in range(0, num_seeds, chunk):
        # Every chunk has the same shape, so nothing is compiled twice; surplus seeds are cut below.
        parts.append(_one_chunk(fn, chunk, key, jnp.uint32(first_seed + first), args))
        if progress is not None:
            jax.block_until_ready(parts[-1])
            progress(min(first + chunk, num_seeds), num_seeds)
    if len(parts) == 1:
        return parts[0]
    return jax.tree.map(lambda *leaves: jnp.concatenate(leaves)[:num_seeds], *parts)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _one_chunk(fn: Callable, chunk: int, key: Array, first: Array, args: tuple) -> PyTree:
    seeds = first + jnp.arange(chunk, dtype=jnp.uint32)
    return jax.vmap(lambda seed: fn(jax.random.fold_in(key, seed), *args))(seeds)


class Pair(NamedTuple):
    """Outputs of two neighbouring runs, leaves with a leading seed axis.

    Attributes:
        present: runs on 𝒟.
        absent: runs on 𝒟 ∘ ⟨ind, y⟩.
    """

    present: PyTree
    absent: PyTree


def neighbours(
    fn: Callable[..., PyTree],
    key: Array,
    num_seeds: int,
    database: PyTree,
    edit: Edit,
    *args: PyTree,
    noise: Literal["independent", "common"] = "independent",
    chunk: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Pair:
    """Outputs of `fn(key, database, *args)`, a whole interaction, on a database and its neighbour.

    Args:
        fn: pure function of a key, a database and `args`.
        key: base key.
        num_seeds: seeds per arm.
        database: 𝒟.
        edit: the replacement that makes the neighbour (one row for replace-one adjacency).
        noise: "independent" keys in the two arms, as statistical tests need, or "common" keys, so
            that the difference of the arms is the effect of the record alone.
        *args, chunk, progress: as in `over_seeds`.
    """
    check_edit(database, edit)
    if noise not in ("independent", "common"):
        raise InputError(f"noise = {noise!r}; choose 'independent' or 'common'.")
    present_key, absent_key = jax.random.split(key)
    if noise == "common":
        absent_key = jax.random.clone(present_key)
    run = functools.partial(over_seeds, fn, chunk=chunk, progress=progress)
    return Pair(
        run(present_key, num_seeds, database, *args),
        run(absent_key, num_seeds, apply_edit(database, edit), *args),
    )
