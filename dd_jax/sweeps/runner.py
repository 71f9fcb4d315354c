"""One function over many seeds and a grid of settings, in chunks that are kept.

A stream is one function over seeds 0, 1, 2, … (`over_seeds`, `neighbours`). It has its own
folder (`store.Folder`), named by the digest of everything that determines its numbers: the program
as the compiler gets it, its arguments, the key and its generator, the configuration, library
versions, the device, the layout of a mesh. Chunk k holds the seeds from k·chunk on. So memory is
bounded, a killed run can be resumed, and results of another program are never mixed in.

A sweep (`run`) is a grid of settings, instances of a frozen dataclass. Fields named as traced
become inputs of the compiled program, so that settings which differ only in numbers of these fields
share one program and run side by side, settings × seeds; a loop goes over all other fields, which
are static. Every setting has its own noise: the digest of the setting is folded into its key, so
that results of different settings are independent and do not depend on the rest of the grid.

With several processes (`dd_jax.processes`) all make the same calls and get the same numbers; only
the first one reads and writes files.
"""

import dataclasses
import hashlib
import itertools
import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, PyTree

from dd_jax import checks, ensemble, processes, sharding
from dd_jax.ensemble import DEFAULT_CHUNK, Pair, program
from dd_jax.errors import InputError
from dd_jax.keys import tagged
from dd_jax.sweeps import store
from dd_jax.types import Edit, apply_edit, check_edit

PACKAGES = ("dd-jax", "jax", "jaxlib", "numpy")
# Words of 32 bits of a setting's digest that are folded into its key.
_WORDS = 2
# Weight of the newest chunk in the pace: chunks found on disk take no time and must soon count
# little, and a chunk that was compiled must not count much.
_NEWEST = 0.2
_SECONDS_BETWEEN_LINES = 1.0

Progress = Callable[[int, int], None]


class Stream(NamedTuple):
    """Where a run keeps its chunks, and what its manifest says about it.

    Attributes:
        results: the folder that holds all streams; None keeps nothing.
        name: a word for people, part of the folder's name.
        config: JSON values that describe the run.
        chunk: seeds per chunk.
        resume: whether chunks of an earlier run are used.
        mesh: devices that share the seeds, and the rows of databases split with
            `dd.sharding.spread`. Rounding differs between meshes, so that chunks of another mesh
            are not used.
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
    """`dd.over_seeds(fn, key, num_seeds, *args)` as NumPy arrays; chunks on disk are not repeated.

    Seed s gets fold_in(key, s), whatever the chunk; a longer run continues a shorter one.

    Raises:
        InputError: outputs that a file without pickles cannot hold, a configuration that is not
            JSON, fewer than one seed.
    """
    checks.whole("num_seeds", num_seeds, least=1)
    checks.whole("chunk", stream.chunk, least=1)
    outputs = program(fn, key, stream.chunk, *args, mesh=stream.mesh).out_info
    ensemble.require_outputs(outputs, stream.chunk, num_seeds)
    folder = _folder(stream, fn, key, num_seeds, args)
    parts = []
    for index in range(-(-num_seeds // stream.chunk)):
        leaves = _stored(folder, stream, index, jax.tree.leaves(outputs))
        if leaves is None:
            first, chunk = index * stream.chunk, stream.chunk
            found = ensemble.over_seeds(
                fn, key, chunk, *args, first_seed=first, chunk=chunk, mesh=stream.mesh
            )
            leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(found)]
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


# --- what determines the numbers ----------------------------------------------------------------


def identity(stream: Stream, fn: Callable, key: Array, args: tuple) -> dict[str, Any]:
    """Everything that determines a stream's numbers; the number of seeds is not part of it."""
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


# --- settings ------------------------------------------------------------------------------------


def grid(base: Any, **axes: Sequence[Any]) -> list[Any]:
    """Every combination of the axes' values, as copies of a frozen dataclass.

    Args:
        base: the dataclass instance whose other fields are kept.
        **axes: field name = values; those of the last axis vary fastest.

    Raises:
        InputError: a name that is not a field, an axis without values or with a value twice.
    """
    names = {field.name for field in dataclasses.fields(base)}
    for name, values in axes.items():
        if name not in names:
            raise InputError(
                f"{name!r} is not a field of {type(base).__name__}; "
                f"choose one of {', '.join(sorted(names))}."
            )
        if not values or len(set(values)) < len(values):
            raise InputError(
                f"{name} = {list(values)}; give at least one value, and no value twice."
            )
    return [
        dataclasses.replace(base, **dict(zip(axes, values, strict=True)))
        for values in itertools.product(*axes.values())
    ]


class Group(NamedTuple):
    """Settings that share one program.

    Attributes:
        places: their numbers in the list of settings.
        static: one of them, whose static fields are those of all.
        traced: traced fields of the group, in the order of `values`.
    """

    places: list[int]
    static: Any
    traced: tuple[str, ...]


def groups(settings: Sequence[Any], traced: Sequence[str]) -> list[Group]:
    """The settings by their static part; a traced field without a number (None) is static there."""
    found: dict[str, Group] = {}
    for place, setting in enumerate(settings):
        numbers = tuple(name for name in traced if checks.is_number(getattr(setting, name)))
        fixed = {k: v for k, v in dataclasses.asdict(setting).items() if k not in numbers}
        group = found.setdefault(store.digest_of_json(fixed), Group([], setting, numbers))
        group.places.append(place)
    return list(found.values())


def run(
    stream: Stream,
    fn: Callable[..., PyTree],
    key: Array,
    num_seeds: int,
    settings: Sequence[Any],
    *,
    traced: Sequence[str],
    arguments: Callable[[Any], tuple] = lambda setting: (),
    at_once: int | None = None,
    progress: Progress | None = None,
) -> list[PyTree]:
    """`fn(key, setting, *arguments(setting))` for every setting and seed.

    Args:
        stream: where chunks are kept; `stream.chunk` is how many runs (settings × seeds) are in
            memory at once.
        fn: pure; its `setting` has arrays in the traced fields, so a check of these fields in the
            dataclass must let tracers pass.
        key: base key. num_seeds: of every setting.
        settings: see `grid`; instances of one frozen dataclass of JSON values.
        traced: fields whose numbers become inputs of the compiled program.
        arguments: pytrees that depend on static fields alone (a database, …), made once per group;
            where the stream has a mesh, split a database's rows with `dd.sharding.spread`.
        at_once: settings that run side by side, by default as many as the chunk holds. If a loop's
            length is traced, all of them run as long as the longest; 1 avoids that.
        progress: called with (runs done, all runs) after each chunk.

    Returns:
        For every setting its outputs as NumPy arrays, with a leading axis of seeds.

    Raises:
        InputError: no settings, a setting twice, a traced name that is not a field, or what
            `over_seeds` refuses.
    """
    _check(settings, traced, stream.chunk, at_once)
    results: list[PyTree] = [None] * len(settings)
    done = 0
    for group in groups(settings, traced):
        batched, args = _batched(fn, group), arguments(group.static)
        for block in _blocks(group.places, min(at_once or stream.chunk, stream.chunk)):
            fresh = len(set(block))

            def report(seeds, _, before=done, fresh=fresh):
                if progress is not None:
                    progress(before + fresh * seeds, len(settings) * num_seeds)

            chosen = [settings[place] for place in block]
            outputs = over_seeds(
                _stream_of(stream, group, chosen, num_seeds),
                batched,
                key,
                num_seeds,
                _digest_words(chosen),
                {name: _column(chosen, name, settings) for name in group.traced},
                *args,
                progress=report,
            )
            for number, place in enumerate(block):
                results[place] = jax.tree.map(lambda leaf, k=number: leaf[:, k], outputs)
            done += fresh * num_seeds
    return results


def _batched(fn: Callable[..., PyTree], group: Group) -> Callable[..., PyTree]:
    """`fn` over a block of settings, for one seed; arguments are shared by the settings."""

    def one(key, words, values, *args):
        for word in words:
            key = jax.random.fold_in(key, word)
        return fn(key, dataclasses.replace(group.static, **values), *args)

    def block(key, words, values, *args):
        axes = (None, 0, 0) + (None,) * len(args)
        return jax.vmap(one, in_axes=axes)(key, words, values, *args)

    return block


def _blocks(places: list[int], size: int) -> list[list[int]]:
    """Blocks of equal length, at most `size`, so that one program serves all of them.

    The last block is filled up with copies of the last place."""
    count = -(-len(places) // size)
    length = -(-len(places) // count)
    padded = places + places[-1:] * (count * length - len(places))
    return [padded[first : first + length] for first in range(0, count * length, length)]


def _stream_of(stream: Stream, group: Group, chosen: list, num_seeds: int) -> Stream:
    """The stream of one block: its settings are part of what the manifest says."""
    described = {"settings": [dataclasses.asdict(setting) for setting in chosen]}
    return stream._replace(
        config={**stream.config, **described, "traced": list(group.traced)},
        chunk=min(max(1, stream.chunk // len(chosen)), num_seeds),
    )


def _digest_words(chosen: list) -> Array:
    """Two words of every setting's digest, (settings, 2)."""
    digests = [store.digest_of_json(dataclasses.asdict(setting)) for setting in chosen]
    words = [[int(found[8 * k : 8 * k + 8], 16) for k in range(_WORDS)] for found in digests]
    return jnp.asarray(np.array(words, np.uint32))


def _column(chosen: list, name: str, settings: Sequence[Any]) -> Array:
    """A traced field of the chosen settings; integers only if all settings have integers.

    Otherwise 1 and 2.5 in different blocks would need two programs."""
    whole = all(isinstance(getattr(setting, name), int | None) for setting in settings)
    kind = int if whole else float
    return jnp.asarray([kind(getattr(setting, name)) for setting in chosen])


def _check(settings, traced, chunk, at_once) -> None:
    if not settings:
        raise InputError("no setting is given; give at least one.")
    names = {field.name for field in dataclasses.fields(settings[0])}
    for name in traced:
        if name not in names:
            raise InputError(f"{name!r} cannot be traced; name a field of the settings.")
    if len({store.digest_of_json(dataclasses.asdict(setting)) for setting in settings}) < len(
        settings
    ):
        raise InputError("a setting is given twice, and its runs would be the same; drop one.")
    checks.whole("chunk", chunk, least=1)
    if at_once is not None:
        checks.whole("at_once", at_once, least=1)


# --- progress ------------------------------------------------------------------------------------


def progress_lines(label: str, say: Callable[[str], None], things: str = "runs") -> Progress:
    """A report of (done, total) in lines of text, at most one in a second, the last one always."""
    last_line = last_tick = start = time.monotonic()
    last_done, ticks, pace = 0, 0, 0.0

    def tick(done: int, total: int) -> None:
        nonlocal last_line, last_tick, last_done, ticks, pace
        now = time.monotonic()
        newest = (now - last_tick) / max(done - last_done, 1)
        pace = _NEWEST * newest + (1 - _NEWEST) * pace if ticks > 1 else newest
        last_tick, last_done, ticks = now, done, ticks + 1
        if now - last_line < _SECONDS_BETWEEN_LINES and done < total:
            return
        last_line = now
        # The first chunk waits for the compiler, and the second pace takes the place of its own.
        about = "at most about" if ticks == 1 else "about"
        left = f"{about} {pace * (total - done):.0f} s left"
        shown = left if done < total else f"{now - start:.0f} s"
        say(f"{label}: {done:,} of {total:,} {things}, {shown}")

    return tick
