"""Chunks of numbers on disk: each is complete or absent, and is named by the digest of its bytes.

A folder holds one stream of chunks and is named by the digest of everything that determines its
numbers. Chunk k is a file that states its number and its stream. It is written under a temporary
name and then renamed, so that two processes on one folder write the same files. The manifest lists
the identity, the chunks' digests, and the revisions of the source under which they were written,
and ends in its own digest; revisions are information only, because the identity contains the
program itself. This module never loads JAX.
"""

import functools
import io
import json
import logging
import os
import re
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dd_jax import files, sealed
from dd_jax.errors import InputError
from dd_jax.sealed import digest

MANIFEST = "manifest.json"
# Hexadecimal digits of the digest in a folder's name.
SHORT = 16
CHUNK = re.compile(r"[0-9]{6,}-[0-9a-f]{64}\.npz")
DAMAGED = "its bytes do not have their digest, or are of another chunk"
_LOG = logging.getLogger(__name__)


def digest_of_json(value: Any) -> str:
    """The digest of JSON values, whatever the order of their names."""
    try:
        return digest(json.dumps(value, sort_keys=True, allow_nan=False).encode())
    except (TypeError, ValueError) as error:
        raise InputError(f"the configuration is not JSON ({error}); give plain values.") from None


class Folder(NamedTuple):
    """One stream on disk: its manifest and a file per chunk.

    Attributes:
        path: the folder.
        identity: its digest is part of the folder's name.
    """

    path: Path
    identity: dict[str, Any]

    @classmethod
    def open(cls, results: Path, name: str, identity: dict[str, Any]) -> "Folder":
        """The stream's folder, made if it is missing; files of killed writers are removed."""
        if not re.fullmatch(r"[\w.+=-]+", name):
            raise InputError(
                f"name = {name!r} cannot name a folder; give letters, digits and any of . + = - _."
            )
        if results.exists() and not results.is_dir():
            raise InputError(f"{results} is a file; name a folder for the results.")
        folder = cls(results / f"{name}-{digest_of_json(identity)[:SHORT]}", identity)
        folder.path.mkdir(parents=True, exist_ok=True)
        for place in (results, folder.path):
            files.remove_leftovers(place)
        if not read_manifest(folder.path):
            folder.list_chunks()
        return folder

    def read(self, index: int) -> list[np.ndarray] | None:
        """The leaves of a chunk; None if it is missing or damaged."""
        for path in self._files(index):
            leaves = self._leaves(path)
            if leaves is not None:
                return leaves
            _LOG.warning("%s is damaged, short or misnamed; its seeds are computed again", path)
        return None

    def _leaves(self, path: Path) -> list[np.ndarray] | None:
        """A file's leaves, if its bytes are whole and are this stream's chunk of that number."""
        try:
            content = path.read_bytes()
        except FileNotFoundError:  # another process may have removed it just now
            return None
        if digest(content) != _digest_in(path):
            return None
        with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
            named = dict(arrays)
        written_for = [str(named.pop(field, "")) for field in ("stream", "index")]
        leaves = [named[f"leaf{k}"] for k in range(len(named))]
        rows = {len(leaf) for leaf in leaves} - {self.identity["chunk"]}
        found_in = [digest_of_json(self.identity), _number_in(path).lstrip("0") or "0"]
        return leaves if written_for == found_in and not rows else None

    def write(self, index: int, leaves: list[np.ndarray]) -> None:
        """Write a chunk in one step; damaged files of the same chunk are removed."""
        for leaf in leaves:
            if leaf.dtype.kind not in "biufc":
                raise InputError(f"outputs of type {leaf.dtype} cannot be stored; give numbers.")
        buffer = io.BytesIO()
        named: Any = {f"leaf{k}": leaf for k, leaf in enumerate(leaves)}
        np.savez(buffer, stream=digest_of_json(self.identity), index=index, **named)
        content = buffer.getvalue()
        damaged = [path for path in self._files(index) if self._leaves(path) is None]
        target = self.path / f"{index:06d}-{digest(content)}.npz"
        files.place(target, content)
        for path in damaged:
            if path != target:
                path.unlink(missing_ok=True)

    def list_chunks(self) -> None:
        """Write the manifest: the identity, the revisions, the digest of every chunk there is."""
        chunks = {}
        for path in self._files():
            if _number_in(path) not in chunks or self._leaves(path) is not None:
                chunks[_number_in(path)] = _digest_in(path)
        revisions = {*read_manifest(self.path).get("revisions", []), revision()}
        listed = self.identity | {"chunks": chunks, "revisions": sorted(revisions, key=str)}
        files.place(self.path / MANIFEST, sealed.pack_json(listed))

    def verify(self) -> list[str]:
        """Names of the chunks that the manifest lists and that `read` would refuse."""
        names = listed_chunks(read_manifest(self.path))
        return [name for name in names if self._leaves(self.path / name) is None]

    def _files(self, index: int | None = None) -> list[Path]:
        prefix = "*" if index is None else f"{index:06d}"
        found = self.path.glob(f"{prefix}-*.npz")
        return sorted(path for path in found if CHUNK.fullmatch(path.name))


def verify(results: Path) -> list[str]:
    """What is wrong in a folder of streams: damaged manifests, chunks that differ from them.

    Raises:
        InputError: the folder does not exist.
    """
    if not results.is_dir():
        raise InputError(f"there is no folder {results}; name the folder of a sweep's results.")
    return [
        f"{path.name}/{name}"
        for path in sorted(results.iterdir())
        if path.is_dir()
        for name, damage in examine(path).items()
        if damage is not None
    ]


def examine(path: Path) -> dict[str, str | None]:
    """The files of a stream's folder by name, with what is wrong with each or None.

    A folder whose manifest is whole is named by the digest of its identity, so that a manifest
    of another folder is found as well.
    """
    found: dict[str, str | None] = {
        chunk.name: None if digest(chunk.read_bytes()) == _digest_in(chunk) else DAMAGED
        for chunk in path.iterdir()
        if CHUNK.fullmatch(chunk.name)
    }
    try:
        listed = sealed.unpack_json((path / MANIFEST).read_bytes())
    except FileNotFoundError:
        return found | {MANIFEST: "it is missing"}
    except ValueError as error:
        return found | {MANIFEST: str(error)}
    identity = {k: v for k, v in listed.items() if k not in ("chunks", "revisions")}
    if not path.name.endswith(f"-{digest_of_json(identity)[:SHORT]}"):
        return found | {MANIFEST: "it is the manifest of another folder"}
    for name in listed_chunks(listed):
        if name not in found:
            found[name] = "it is missing"
    for name in Folder(path, identity).verify():
        found[name] = found[name] or DAMAGED
    return found | {MANIFEST: None}


def is_stream(path: Path) -> bool:
    """Whether a folder is named like a stream's, and has a manifest or chunks."""
    return re.fullmatch(rf".+-[0-9a-f]{{{SHORT}}}", path.name) is not None and any(
        one.name == MANIFEST or CHUNK.fullmatch(one.name) for one in path.iterdir()
    )


def listed_chunks(manifest: dict[str, Any]) -> list[str]:
    """Names of the files that a manifest lists."""
    return [f"{index}-{found}.npz" for index, found in manifest.get("chunks", {}).items()]


def read_manifest(folder: Path) -> dict[str, Any]:
    """A folder's manifest; empty if it is missing or damaged."""
    path = folder / MANIFEST
    try:
        return sealed.unpack_json(path.read_bytes())
    except FileNotFoundError:
        return {}
    except ValueError as error:
        _LOG.warning("%s is written again: %s", path, error)
        return {}


@functools.cache
def revision() -> str | None:
    """The git revision of this source, with "-dirty" if files changed; None outside a checkout."""
    here = Path(__file__)
    command = ["git", "-C", str(here.parent)]
    # An installed copy may lie inside a checkout of another project.
    commands = (
        [*command, "ls-files", "--error-unmatch", here.name],
        [*command, "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"],
    )
    try:
        found = [
            subprocess.run(
                words,
                capture_output=True,
                check=True,
                text=True,
                env=os.environ | {"GIT_OPTIONAL_LOCKS": "0"},
            )
            for words in commands
        ]
    except (OSError, subprocess.CalledProcessError):
        return None
    return found[-1].stdout.strip()


def _digest_in(path: Path) -> str:
    return path.stem.split("-")[1]


def _number_in(path: Path) -> str:
    return path.stem.split("-")[0]
