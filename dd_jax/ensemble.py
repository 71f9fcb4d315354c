"""Many seeds at once: output distributions of whole interactions, and neighbouring pairs of them.

The functions here jit for the caller: a vmap over a chunk of seeds inside, a host loop over chunks
outside, so that memory is bounded by the chunk and progress can be shown.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, PyTree

from dd_jax import checks, memory, processes, products, sharding
from dd_jax.databases import RowShard, overlay, rows_of
from dd_jax.errors import InputError
from dd_jax.keys import tagged
from dd_jax.types import Edit, apply_edit, check_edit, is_concrete

DEFAULT_CHUNK = 1024
# XLA uses half the width of an AVX-512 register unless told otherwise, which makes the exponentials
# of the slopes twice as slow. Processors without such registers are not affected.
CPU_OPTIONS = {"xla_cpu_prefer_vector_width": 512}
# Seeds are folded into the key as 32-bit numbers; larger ones would repeat.
MOST_SEEDS = 2**32


def over_seeds(
    fn: Callable[..., PyTree],
    key: Array,
    num_seeds: int,
    *args: PyTree,
    first_seed: int = 0,
    chunk: int | None = None,
    mesh: Mesh | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> PyTree:
    """`fn(key_s, *args)` for seeds s = 0 … num_seeds - 1, stacked on a leading axis.

    Seed s gets fold_in(key, s), so the numbers are the same for any chunk size (reductions inside
    `fn` may differ by rounding), and a longer run begins with a shorter one. Matrix products that
    name no precision are computed in full. Compiled once per `fn` and shapes: pass what varies
    between calls through `args`, and reuse the same `fn` object.

    Args:
        fn: pure function of a key and `args`.
        key: base key.
        num_seeds: how many seeds.
        *args: pytrees handed to every seed unbatched (a database, step sizes, …).
        first_seed: number of the first seed, where a longer run is made in parts.
        chunk: seeds per call over all devices; bounds memory. Default 1024.
        mesh: devices to spread the seeds over (`dd_jax.sharding.make_mesh`); rows too, where an
            argument is a database split with `dd_jax.sharding.split_rows`. The numbers are the same
            for every mesh, up to rounding. Where the mesh spans several processes, each of them
            makes the same call and gets all seeds.
        progress: called with (seeds done, num_seeds) after each chunk.
    """
    chunk = DEFAULT_CHUNK if chunk is None else chunk
    checks.whole("num_seeds", num_seeds, least=1)
    checks.whole("chunk", chunk, least=1)
    if not 0 <= first_seed <= MOST_SEEDS - num_seeds:
        raise InputError(
            f"seeds {first_seed} to {first_seed + num_seeds - 1} are not all in 0 to "
            f"{MOST_SEEDS - 1}; give fewer."
        )
    chunk = min(chunk, num_seeds)
    if mesh is not None:
        chunk = sharding.round_up(chunk, mesh)
    parts = []
    for first in range(0, num_seeds, chunk):
        # Every chunk has the same shape, so nothing is compiled twice; surplus seeds are cut off
        # below.
        with processes.together():
            part = _compiled(mesh, key, args)(
                fn, chunk, mesh, key, np.uint32(first_seed + first), args
            )
            parts.append(part if mesh is None else processes.gather(part))
        if not first and chunk < num_seeds:
            require_outputs(parts[0], chunk, num_seeds)
        if progress is not None:
            jax.block_until_ready(parts[-1])
            progress(min(first + chunk, num_seeds), num_seeds)
    if chunk == num_seeds:
        return jax.tree.map(jnp.asarray, parts[0])
    return jax.tree.map(lambda *leaves: jnp.concatenate(leaves)[:num_seeds], *parts)


def require_outputs(outputs: PyTree, seeds: int, num_seeds: int) -> None:
    """Refuse more seeds than memory can hold the outputs of: all parts, and their concatenation.

    Args:
        outputs: arrays, or their shapes, of some seeds.
        seeds: how many these are. num_seeds: how many are wanted.
    """
    leaves = jax.tree.leaves(outputs)
    each = sum(leaf.size * leaf.dtype.itemsize for leaf in leaves) / seeds
    what = f"keeping the outputs of {num_seeds:,} seeds, {each:,.0f} bytes each,"
    memory.require(2 * each * num_seeds, what, "give fewer seeds")


def program(
    fn: Callable[..., PyTree], key: Array, chunk: int, *args: PyTree, mesh: Mesh | None = None
) -> jax.stages.Lowered:
    """The program that `over_seeds` gives to the compiler for a chunk of seeds."""
    chunk = chunk if mesh is None else sharding.round_up(chunk, mesh)
    return _compiled(mesh, key, args).lower(fn, chunk, mesh, key, np.uint32(0), args)


def _one_chunk(
    fn: Callable, chunk: int, mesh: Mesh | None, key: Array, first: Array, args: tuple
) -> PyTree:
    seeds = first + jnp.arange(chunk, dtype=jnp.uint32)

    @products.full
    def run(seeds, key, args):
        return jax.vmap(lambda seed: fn(_fold_in(key, seed), *args))(seeds)

    return (run if mesh is None else sharding.over_mesh(run, mesh, args))(seeds, key, args)


_plain = jax.jit(_one_chunk, static_argnums=(0, 1, 2))
_for_cpu = jax.jit(_one_chunk, static_argnums=(0, 1, 2), compiler_options=CPU_OPTIONS)


def _compiled(mesh: Mesh | None, *arrays: PyTree) -> Any:
    """`_one_chunk` jitted, with `CPU_OPTIONS` where nothing but CPUs runs it.

    JAX takes such options only for an outermost jit, so not if the caller is being traced.
    """
    leaves = jax.tree.leaves(arrays)
    held = [leaf.devices() for leaf in leaves if isinstance(leaf, jax.Array) and is_concrete(leaf)]
    used = set().union(*held) if mesh is None else set(mesh.devices.flat)
    only_cpus = jax.default_backend() == "cpu" and {device.platform for device in used} <= {"cpu"}
    # Inside a trace every new array is traced too; one that is copied there needs no compiler.
    outermost = all(is_concrete(leaf) for leaf in (*leaves, jax.device_put(np.float32(0))))
    return _for_cpu if only_cpus and outermost and _options_known() else _plain


@functools.cache
def _options_known() -> bool:
    """Whether this version of XLA knows `CPU_OPTIONS`; if not, it refuses to compile."""
    try:
        jax.jit(lambda: 0, compiler_options=CPU_OPTIONS).lower().compile()
    except jax.errors.JaxRuntimeError:
        return False
    return True


def _fold_in(key: Array, seed: Array) -> Array:
    """The seed's key, or one for each of a stack of keys."""
    fold_in = jax.random.fold_in if key.ndim == 0 else jax.vmap(jax.random.fold_in, (0, None))
    return fold_in(key, seed)


@functools.lru_cache(maxsize=256)
def _both_arms(fn: Callable) -> Callable:
    """`fn` on a database and its neighbour as a batch of two.

    The cache returns the same object for the same `fn`, so that JAX reuses what it compiled.
    """

    def both(keys, database, edit, args):
        # Both arms have the edited rows in slots and differ only in the slots' records, so the base
        # is not batched.
        slots = overlay(database, edit.index.shape[0])
        old = edit._replace(record=rows_of(database, edit.index))
        present, absent = slots.write(old), slots.write(edit)
        record = jax.tree.map(lambda *arms: jnp.stack(arms), present.record, absent.record)
        axes = dataclasses.replace(jax.tree.map(lambda _: None, absent), record=0)
        run = jax.vmap(lambda key, rows: fn(key, rows, *args), in_axes=(0, axes))
        return run(keys, dataclasses.replace(absent, record=record))

    return both


@functools.lru_cache(maxsize=256)
def _after_edit(fn: Callable) -> Callable:
    """`fn` on the edited database; the same object for the same fn."""
    return lambda key, database, edit, *args: fn(key, apply_edit(database, edit), *args)


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
    shared: bool = False,
    chunk: int | None = None,
    mesh: Mesh | None = None,
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
        shared: run both arms in one batch over the rows that they share, without a second copy of
            the database; `fn` then gets an `Overlay`, so it may use the database only through
            `dd_jax.erm` and `dd.interact`. The numbers are the same, up to rounding.
        *args, chunk, mesh, progress: as in `over_seeds`. A chunk counts runs, so with `shared` it
            holds both arms of half as many seeds.
    """
    check_edit(database, edit)
    if noise not in ("independent", "common"):
        raise InputError(f"noise = {noise!r}; choose 'independent' or 'common'.")
    present_key = tagged(key, "present")
    absent_key = tagged(key, "present" if noise == "common" else "absent")
    if shared:
        chunk = (min(DEFAULT_CHUNK, num_seeds) if chunk is None else chunk) // 2 or 1
    run = functools.partial(over_seeds, chunk=chunk, mesh=mesh, progress=progress)
    if shared:
        keys = jnp.stack([present_key, absent_key])
        both = run(_both_arms(fn), keys, num_seeds, database, edit, args)
        return Pair(*(jax.tree.map(lambda leaf, arm=arm: leaf[:, arm], both) for arm in (0, 1)))
    present = run(fn, present_key, num_seeds, database, *args)
    if isinstance(database, RowShard):  # its rows can be edited only on their devices, in the run
        return Pair(present, run(_after_edit(fn), absent_key, num_seeds, database, edit, *args))
    return Pair(present, run(fn, absent_key, num_seeds, apply_edit(database, edit), *args))
