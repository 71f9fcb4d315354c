"""Seeds in memory-bounded chunks that are kept: a killed run resumes, nothing old is mixed in.

A stream is one function over seeds 0, 1, 2, …; it has a folder of its own (`store.Folder`), named
by the digest of everything that decides its numbers: the program as it is handed to the compiler,
its arguments, the key and its generator, the configuration, library versions, the device, the
layout of a mesh. Chunk k holds the seeds from k·chunk on.

Under several processes (`dd_jax.processes`) all make the same calls and get the same numbers; the
first one alone reads and writes files.
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
from jax.sharding import Mesh
from jaxtyping import Array, PyTree

from dd_jax import ensemble, processes, sharding
from dd_jax.ensemble import DEFAULT_CHUNK, Pair, program
from dd_jax.errors import InputError
from dd_jax.keys import tagged
from dd_jax.sweeps import store
from dd_jax.types import Edit, apply_edit, check_edit

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
        mesh: devices that share the seeds, and the rows of databases split with
            `dd.sharding.spread`. Numbers move by rounding from mesh to mesh, so that chunks of
            another one are not used.
    """

    results: Path | None
    name: str
    config: Mapping[str, Any]
    chunk: int = DEFAULT_CHUNK
    resume: bool = True
    mesh: Mesh | None = None


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
    outputs = program(fn, key, stream.chunk, *args, mesh=stream.mesh).out_info
    folder = _folder(stream, fn, key, num_seeds, args)
    parts = []
    for index in range(-(-num_seeds // stream.chunk)):
        leaves = _stored(folder, stream, index, jax.tree.leaves(outputs))
        if leaves is None:
            leaves = _computed(stream, fn, key, index * stream.chunk, args)
            if folder is not None:
                folder.write(index, leaves)
        parts.append(leaves)
        if progress is not None:
            progress(min((index + 1) * stream.chunk, num_seeds), num_seeds)
    if folder is not None:
        folder.list_chunks()
    whole = [np.concatenate(leaves)[:num_seeds] for leaves in zip(*parts, strict=True)]
    return jax.tree.unflatten(jax.tree.structure(outputs), whole)


def _folder(stream: Stream, fn, key, num_seeds: int, args: tuple) -> store.Folder | None:
    """The stream's folder on the process that reads and writes it."""
    if stream.results is None and jax.process_count() == 1:
        return None
    described = identity(stream, fn, key, args)
    same = {"stream": described, "seeds": num_seeds, "keep": stream.results is not None}
    processes.require_same(f"the inputs of {stream.name}", store.digest_of_json(same))
    if stream.results is None or not processes.is_first():
        return None
    return store.Folder.open(stream.results, stream.name, described)


def _stored(folder: store.Folder | None, stream: Stream, index: int, outputs: list):
    """The leaves of a chunk that the first process has on its disk, or None."""
    if stream.results is None or not stream.resume:
        return None
    leaves = None if folder is None else folder.read(index)
    if jax.process_count() == 1:
        return leaves
    if not processes.from_first(np.array(leaves is not None)):
        return None
    blank = [np.zeros((stream.chunk, *leaf.shape[1:]), leaf.dtype) for leaf in outputs]
    return processes.from_first(blank if leaves is None else leaves)


def _computed(stream: Stream, fn: Callable, key: Array, first_seed: int, args: tuple):
    """The leaves of the chunk that begins with a seed."""
    outputs = ensemble.over_seeds(
        fn,
        key,
        stream.chunk,
        *args,
        first_seed=first_seed,
        chunk=stream.chunk,
        mesh=stream.mesh,
    )
    return [np.asarray(leaf) for leaf in jax.tree.leaves(outputs)]


def neighbours(
    stream: Stream,
    fn: Callable[..., PyTree],
    key: Array,
    num_seeds: int,
    database: PyTree,
    edit: Edit,
    *args: PyTree,
    progress: Progress | None = None,
) -> Pair:
    """`dd.neighbours` with independent noise, each arm a stream of its own; the same numbers."""
    check_edit(database, edit)
    keys = (tagged(key, "present"), tagged(key, "absent"))
    databases = (database, apply_edit(database, edit))
    arms = []
    for arm, (arm_key, rows) in enumerate(zip(keys, databases, strict=True)):

        def report(done, total, arm=arm):
            if progress is not None:
                progress(arm * total + done, 2 * total)

        named = stream._replace(name=f"{stream.name}-{Pair._fields[arm]}")
        rows = sharding.spread(rows, stream.mesh)
        arms.append(over_seeds(named, fn, arm_key, num_seeds, rows, *args, progress=report))
    return Pair(*arms)


# --- what decides the numbers -------------------------------------------------------------------


def identity(stream: Stream, fn: Callable, key: Array, args: tuple) -> dict[str, Any]:
    """Everything that decides a stream's numbers; the number of seeds is not part of it."""
    device = jax.devices()[0]
    lowered = program(fn, key, stream.chunk, *args, mesh=stream.mesh)
    found = {
        "name": stream.name,
        "config": dict(stream.config),
        "chunk": stream.chunk,
        "program": store.digest(lowered.as_text().encode()),
        "arguments": _digest_of_arrays(processes.gather(args)),
        "key": np.asarray(jax.random.key_data(key)).tolist(),
        "prng": str(jax.random.key_impl(key)),
        "versions": {name: version(name) for name in PACKAGES},
        "xla_flags": os.environ.get("XLA_FLAGS", ""),
        "python": platform.python_version(),
        "device": f"{device.platform} {device.device_kind}, {platform.machine()}",
    }
    if stream.mesh is None:
        return found
    return found | {"layout": {**stream.mesh.shape, "processes": jax.process_count()}}


def _digest_of_arrays(tree: PyTree) -> str:
    """Values, shapes, types and places of all leaves."""
    found = hashlib.sha256()
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        array = np.asarray(leaf)
        found.update(f"{jax.tree_util.keystr(path)} {array.dtype} {array.shape}\n".encode())
        found.update(np.ascontiguousarray(array).tobytes())
    return found.hexdigest()
