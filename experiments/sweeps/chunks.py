"""Seeds in memory-bounded chunks that are kept: a killed run resumes, nothing old is mixed in.

A stream is one function over seeds 0, 1, 2, …; it has a folder of its own (`store.Folder`), named
by the digest of everything that decides its numbers: the program as it is handed to the compiler,
its arguments, the key and its generator, the configuration, library versions, the device. Chunk k
holds the seeds from k·chunk on.
"""

import hashlib
import os
import platform
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array, PyTree

import dd_jax as dd
from dd_jax.ensemble import DEFAULT_CHUNK, Pair
from dd_jax.errors import InputError
from experiments.sweeps import store

PACKAGES = ("dd-jax", "jax", "jaxlib", "numpy")

Progress = Callable[[int, int], None]


class Stream(NamedTuple):
    """Where a run keeps its chunks, and what its manifest says of it.

    Attributes:
        results: the folder that holds all streams; None keeps nothing.
        name: a word for people, part of the folder's name.
        config: JSON values that describe the run.
        chunk: seeds per chunk.
        resume: whether chunks that are there already are used.
    """

    results: Path | None
    name: str
    config: Mapping[str, Any]
    chunk: int = DEFAULT_CHUNK
    resume: bool = True


def over_seeds(
    stream: Stream,
    fn: Callable[..., PyTree],
    key: Array,
    num_seeds: int,
    *args: PyTree,
    progress: Progress | None = None,
) -> PyTree:
    """`dd.over_seeds(fn, key, num_seeds, *args)` as NumPy arrays; chunks on disk are not redone.

    Seed s gets fold_in(key, s), whatever the chunk; a longer run goes on where a shorter one ended.

    Raises:
        InputError: outputs that a file without pickles cannot hold, a configuration that is not
            JSON, fewer than one seed.
    """
    if num_seeds < 1 or stream.chunk < 1:
        raise InputError(
            f"num_seeds = {num_seeds}, chunk = {stream.chunk}; give at least 1 of each."
        )
    if stream.results is None:
        outputs = dd.over_seeds(fn, key, num_seeds, *args, chunk=stream.chunk, progress=progress)
        return jax.tree.map(np.asarray, outputs)
    structure = jax.tree.structure(jax.eval_shape(fn, key, *args))
    folder = store.Folder.open(stream.results, stream.name, identity(stream, fn, key, args))
    parts = []
    for index in range(-(-num_seeds // stream.chunk)):
        leaves = folder.read(index) if stream.resume else None
        if leaves is None:
            first = index * stream.chunk
            outputs = dd.over_seeds(
                fn, key, stream.chunk, *args, first_seed=first, chunk=stream.chunk
            )
            leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(outputs)]
            folder.write(index, leaves)
        parts.append(leaves)
        if progress is not None:
            progress(min((index + 1) * stream.chunk, num_seeds), num_seeds)
    folder.list_chunks()
    whole = [np.concatenate(leaves)[:num_seeds] for leaves in zip(*parts, strict=True)]
    return jax.tree.unflatten(structure, whole)


def neighbours(
    stream: Stream,
    fn: Callable[..., PyTree],
    key: Array,
    num_seeds: int,
    database: PyTree,
    edit: dd.Edit,
    *args: PyTree,
    progress: Progress | None = None,
) -> Pair:
    """`dd.neighbours` with independent noise, each arm a stream of its own; the same numbers."""
    dd.check_edit(database, edit)
    keys = jax.random.split(key)
    databases = (database, dd.apply_edit(database, edit))
    arms = []
    for arm, (arm_key, rows) in enumerate(zip(keys, databases, strict=True)):

        def report(done, total, arm=arm):
            if progress is not None:
                progress(arm * total + done, 2 * total)

        named = stream._replace(name=f"{stream.name}-{Pair._fields[arm]}")
        arms.append(over_seeds(named, fn, arm_key, num_seeds, rows, *args, progress=report))
    return Pair(*arms)


# --- what decides the numbers -------------------------------------------------------------------


def identity(stream: Stream, fn: Callable, key: Array, args: tuple) -> dict[str, Any]:
    """Everything that decides a stream's numbers; the number of seeds is not part of it."""
    device = jax.devices()[0]
    return {
        "name": stream.name,
        "config": dict(stream.config),
        "chunk": stream.chunk,
        "program": store.digest(jax.jit(fn).lower(key, *args).as_text().encode()),
        "arguments": _digest_of_arrays(args),
        "key": np.asarray(jax.random.key_data(key)).tolist(),
        "prng": str(jax.random.key_impl(key)),
        "versions": {name: version(name) for name in PACKAGES},
        "xla_flags": os.environ.get("XLA_FLAGS", ""),
        "python": platform.python_version(),
        "device": f"{device.platform} {device.device_kind}, {platform.machine()}",
    }


def _digest_of_arrays(tree: PyTree) -> str:
    """Values, shapes, types and places of all leaves."""
    found = hashlib.sha256()
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        array = np.asarray(leaf)
        found.update(f"{jax.tree_util.keystr(path)} {array.dtype} {array.shape}\n".encode())
        found.update(np.ascontiguousarray(array).tobytes())
    return found.hexdigest()
