"""Seeds in memory-bounded chunks on disk: a killed run resumes, and nothing old is ever mixed in.

A stream is one function over seeds 0, 1, 2, …; it has a folder of its own, named by the digest of
everything that decides its numbers: the program as it is handed to the compiler, its arguments, the
key and its generator, the configuration, library versions, the device. Chunk k holds the seeds from
k·chunk on, in a file that says which chunk of which stream it is and is named by the digest of its
own bytes, written aside and renamed: a reader sees a whole chunk in its place or none. Two
processes on one folder write the same files.
"""

import hashlib
import io
import itertools
import json
import logging
import os
import platform
import re
import socket
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

MANIFEST = "manifest.json"
PACKAGES = ("dd-jax", "jax", "jaxlib", "numpy")
# Hexadecimal digits that tell folders apart.
SHORT = 16
_COUNT = itertools.count()
_LOG = logging.getLogger(__name__)

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
    folder = Folder.open(stream.results, stream.name, identity(stream, fn, key, args))
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
        "program": digest(jax.jit(fn).lower(key, *args).as_text().encode()),
        "arguments": _digest_of_arrays(args),
        "key": np.asarray(jax.random.key_data(key)).tolist(),
        "prng": str(jax.random.key_impl(key)),
        "versions": {name: version(name) for name in PACKAGES},
        "python": platform.python_version(),
        "device": f"{device.platform} {device.device_kind}, {platform.machine()}",
    }


def digest(content: bytes) -> str:
    """SHA-256 in hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()


def _digest_of_json(identity: dict[str, Any]) -> str:
    try:
        return digest(json.dumps(identity, sort_keys=True, allow_nan=False).encode())
    except (TypeError, ValueError) as error:
        raise InputError(f"the configuration is not JSON ({error}); give plain values.") from None


def _digest_of_arrays(tree: PyTree) -> str:
    """Values, shapes, types and places of all leaves."""
    found = hashlib.sha256()
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        array = np.asarray(leaf)
        found.update(f"{jax.tree_util.keystr(path)} {array.dtype} {array.shape}\n".encode())
        found.update(np.ascontiguousarray(array).tobytes())
    return found.hexdigest()


# --- files --------------------------------------------------------------------------------------


class Folder(NamedTuple):
    """One stream on disk: its manifest and a file per chunk.

    Attributes:
        path: the folder.
        identity: what its name is the digest of.
    """

    path: Path
    identity: dict[str, Any]

    @classmethod
    def open(cls, results: Path, name: str, identity: dict[str, Any]) -> "Folder":
        """The stream's folder, made if it is missing; what killed writers left there is removed."""
        if not re.fullmatch(r"[\w.+=-]+", name):
            raise InputError(
                f"name = {name!r} cannot name a folder; give letters, digits and any of . + = - _."
            )
        if results.exists() and not results.is_dir():
            raise InputError(f"{results} is a file; name a folder for the results.")
        folder = cls(results / f"{name}-{_digest_of_json(identity)[:SHORT]}", identity)
        folder.path.mkdir(parents=True, exist_ok=True)
        folder._remove_leftovers()
        if not (folder.path / MANIFEST).exists():
            folder.list_chunks()
        return folder

    def read(self, index: int) -> list[np.ndarray] | None:
        """The leaves of a chunk; None where it is missing or not what was written in its place."""
        for path in self._files(index):
            leaves = self._leaves(path)
            if leaves is not None:
                return leaves
            _LOG.warning("%s is damaged, short or misplaced; its seeds are computed again", path)
        return None

    def _leaves(self, path: Path) -> list[np.ndarray] | None:
        """A file's leaves, if its bytes are whole and are this stream's chunk of that number."""
        content = path.read_bytes() if path.exists() else b""
        if digest(content) != _digest_in(path):
            return None
        with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
            named = dict(arrays)
        place = [str(named.pop(field, "")) for field in ("stream", "index")]
        leaves = [named[f"leaf{k}"] for k in range(len(named))]
        rows = {len(leaf) for leaf in leaves} - {self.identity["chunk"]}
        fits = place == [_digest_of_json(self.identity), str(int(_number_in(path)))] and not rows
        return leaves if fits else None

    def write(self, index: int, leaves: list[np.ndarray]) -> None:
        """Put a chunk in its place at once; damaged files of the same chunk go."""
        for leaf in leaves:
            if leaf.dtype.kind not in "biufc":
                raise InputError(f"outputs of type {leaf.dtype} cannot be stored; give numbers.")
        buffer = io.BytesIO()
        named: Any = {f"leaf{k}": leaf for k, leaf in enumerate(leaves)}
        np.savez(buffer, stream=_digest_of_json(self.identity), index=index, **named)
        content = buffer.getvalue()
        damaged = [path for path in self._files(index) if self._leaves(path) is None]
        target = self.path / f"{index:06d}-{digest(content)}.npz"
        self._place(target, content)
        for path in damaged:
            if path != target:
                path.unlink(missing_ok=True)

    def list_chunks(self) -> None:
        """Write the manifest: the identity, and the digest of every chunk that is there."""
        chunks = {}
        for path in self._files():
            if _number_in(path) not in chunks or self._leaves(path) is not None:
                chunks[_number_in(path)] = _digest_in(path)
        text = json.dumps(self.identity | {"chunks": chunks}, sort_keys=True, indent=1)
        self._place(self.path / MANIFEST, f"{text}\n".encode())

    def verify(self) -> list[str]:
        """Names of the chunks that the manifest lists and that `read` would refuse."""
        listed = json.loads((self.path / MANIFEST).read_text(encoding="utf-8"))["chunks"]
        names = [f"{index}-{found}.npz" for index, found in listed.items()]
        return [name for name in names if self._leaves(self.path / name) is None]

    def _files(self, index: int | None = None) -> list[Path]:
        prefix = "[0-9]*" if index is None else f"{index:06d}"
        return sorted(self.path.glob(f"{prefix}-*.npz"))

    def _place(self, target: Path, content: bytes) -> None:
        """Write aside, flush to the disk, rename: no name is shared between writers."""
        aside = self.path / f".{socket.gethostname()}.{os.getpid()}.{next(_COUNT)}.part"
        try:
            with aside.open("xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            aside.replace(target)
        finally:
            aside.unlink(missing_ok=True)
        _flush_folder(self.path)

    def _remove_leftovers(self) -> None:
        """Remove what writers of this machine left that are no longer running."""
        host = re.escape(socket.gethostname())
        for path in self.path.glob(".*.part"):
            found = re.fullmatch(rf"\.{host}\.(\d+)\.\d+\.part", path.name)
            if found and not _is_running(int(found.group(1))):
                path.unlink(missing_ok=True)


def _digest_in(path: Path) -> str:
    return path.stem.split("-")[1]


def _number_in(path: Path) -> str:
    return path.stem.split("-")[0]


def _flush_folder(path: Path) -> None:
    """A rename outlives a power cut once its folder is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
