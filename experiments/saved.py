"""A figure's arrays on disk with what decided them, so that they are used again only if it fits."""

import io
import json
import zlib
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import BadZipFile

import numpy as np

from dd_jax.sweeps import store
from experiments import environment

Arrays = dict[str, np.ndarray]
ABOUT = "__about__"
UNREADABLE = (OSError, ValueError, EOFError, KeyError, BadZipFile, zlib.error, RuntimeError)


class Saved(NamedTuple):
    """What a file holds.

    Attributes:
        arrays: the figure's numbers, in the order they were computed in.
        identity: everything that decided them.
        seconds: how long they took.
        revision: Git revision they were computed at, or None.
    """

    arrays: Arrays
    identity: dict[str, Any]
    seconds: float
    revision: str | None


def identity(file: Path, config: Any) -> dict[str, Any]:
    """Everything that decides the numbers of a figure's module with a configuration."""
    found = {
        "config": asdict(config),
        "versions": environment.versions(),
        "prng": environment.generator(),
        "device": environment.device(),
        "numerics": environment.numerics(),
        "sources": environment.sources_digest(file),
    }
    return json.loads(json.dumps(found))


def write(path: Path, saved: Saved) -> None:
    """Put the arrays and what decided them into one NPZ file.

    Raises:
        TypeError: an array of Python objects, which only a pickle could hold.
    """
    objects = [name for name, array in saved.arrays.items() if array.dtype.hasobject]
    if objects:
        raise TypeError(f"the array {objects[0]!r} holds Python objects; give numbers or text.")
    about = json.dumps(saved._replace(arrays={})._asdict(), sort_keys=True)
    buffer = io.BytesIO()
    named: Any = {ABOUT: np.array(about), **saved.arrays}
    np.savez_compressed(buffer, **named)
    store.place(path, buffer.getvalue())


def read(path: Path) -> Saved | None:
    """What the file holds; None where there is none, or none that can be read."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
        about: Mapping[str, Any] = json.loads(str(arrays.pop(ABOUT)))
        return Saved(arrays, about["identity"], about["seconds"], about["revision"])
    except UNREADABLE:
        return None
