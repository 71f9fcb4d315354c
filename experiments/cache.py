"""What a report keeps: chunks of seeds while it computes, and each figure's arrays when it is done.

Both are used again only where everything that decided them is the same: the settings, versions,
generator, device, numerics and sources. A killed report goes on where it stopped.
"""

import ast
import hashlib
import json
import os
import platform
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array, PyTree

from dd_jax import files, sealed, sweeps
from dd_jax.ensemble import DEFAULT_CHUNK

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("dd-jax", "jax", "jaxlib", "numpy", "scipy", "scikit-learn", "flax", "dp-accounting")
PRECISION = ("jax_enable_x64", "jax_default_matmul_precision")
# These decide how a figure looks and where it is shown, never its numbers.
LOOKS = ("experiments", "experiments.figures", "experiments.page")
KIND = "figure"
# A database with at least this many numbers is worth the time of optimised compilation.
LARGE = 200_000

Arrays = dict[str, np.ndarray]


# --- while a figure computes ----------------------------------------------------------------------


def _silent(text: str) -> None:
    """Tell nobody."""


@dataclass(frozen=True)
class Runner:
    """Runs a figure's seeds in chunks that are kept, and reports progress.

    It handles only the files and the progress of a computation: no number depends on it.

    Attributes:
        say: told what is being done.
        folder: where chunks of seeds are kept and found again; None keeps nothing.
        config: JSON values that describe the run, for the manifest.
    """

    say: Callable[[str], None] = _silent
    folder: Path | None = None
    config: Mapping[str, Any] | None = None

    def over_seeds(
        self,
        name: str,
        fn: Callable[..., PyTree],
        key: Array,
        num_seeds: int,
        *args: PyTree,
        chunk: int = DEFAULT_CHUNK,
    ) -> PyTree:
        """`dd.over_seeds` as NumPy arrays, in chunks that a killed run finds again."""
        self.say(f"{name}: {num_seeds:,} seeds")
        stream = self._stream(name, min(chunk, num_seeds))
        report = sweeps.progress_lines(name, self.say)
        return sweeps.over_seeds(stream, fn, key, num_seeds, *args, progress=report)

    def sweep(
        self,
        name: str,
        fn: Callable[..., PyTree],
        key: Array,
        num_seeds: int,
        settings: Sequence[Any],
        *,
        chunk: int = DEFAULT_CHUNK,
        **options: Any,
    ) -> list[PyTree]:
        """`sweeps.run` with its options, in chunks that a killed run finds again."""
        self.say(f"{name}: {len(settings):,} settings × {num_seeds:,} seeds")
        options["progress"] = sweeps.progress_lines(name, self.say)
        return sweeps.run(self._stream(name, chunk), fn, key, num_seeds, settings, **options)

    def _stream(self, name: str, chunk: int) -> sweeps.Stream:
        """A stream in a folder whose name has only letters, digits and hyphens."""
        return sweeps.Stream(
            self.folder, re.sub(r"[^\w.+=-]+", "-", name), dict(self.config or {}), chunk
        )


def jit_small(function: Callable, size: int) -> Callable:
    """`jax.jit`, without optimisation if the database holds few numbers.

    For a program that runs only a few times: compiling fast matters more than running fast.
    """
    quick = {"xla_backend_optimization_level": "0"} if size < LARGE else None
    return jax.jit(function, compiler_options=quick)


# --- when it is done ------------------------------------------------------------------------------


class Saved(NamedTuple):
    """What a file holds.

    Attributes:
        arrays: the figure's numbers, in the order in which they were computed.
        identity: everything that decided them.
        seconds: how long they took.
        revision: the Git revision at that time, or None.
    """

    arrays: Arrays
    identity: dict[str, Any]
    seconds: float
    revision: str | None


def write(path: Path, saved: Saved) -> None:
    """Put the arrays and what decided them into one NPZ file, which ends in its digest.

    Raises:
        ValueError: an array of Python objects, which only a pickle can store.
    """
    about = {"kind": KIND, **saved._replace(arrays={})._asdict()}
    files.place(path, sealed.pack_arrays(about, saved.arrays, compressed=True))


def read(path: Path) -> Saved | None:
    """What the file holds; None if it is missing.

    Raises:
        ValueError: it is damaged; the text says how, in a few words.
    """
    try:
        about, arrays = sealed.read_arrays(path)
        return Saved(arrays, about["identity"], about["seconds"], about["revision"])
    except FileNotFoundError:
        return None
    except KeyError:
        raise ValueError("it holds something else") from None


# --- what decides the numbers ---------------------------------------------------------------------


def identity(file: Path, config: Any) -> dict[str, Any]:
    """Everything that decides the numbers of a figure's module with a configuration."""
    found = {
        "config": asdict(config),
        "versions": versions(),
        "prng": generator(),
        "device": device(),
        "numerics": numerics(),
        "sources": sources_digest(file),
    }
    return json.loads(json.dumps(found))


def versions() -> dict[str, str]:
    """Python and the packages that numbers depend on."""
    return {"python": platform.python_version()} | {name: version(name) for name in PACKAGES}


def device() -> str:
    """The device that JAX computes on."""
    found = jax.devices()[0]
    kinds = dict.fromkeys((found.platform, found.device_kind, platform.machine()))
    return ", ".join(kinds)


def numerics() -> dict[str, Any]:
    """Settings of JAX and its compiler under which the same program gives other digits."""
    return {
        **{name: str(getattr(jax.config, name)) for name in PRECISION},
        "xla_flags": os.environ.get("XLA_FLAGS", ""),
    }


def generator() -> str:
    """JAX's default generator of random numbers."""
    return str(jax.random.key_impl(jax.random.key(0)))


def sources_digest(file: Path) -> str:
    """SHA-256 of a module, the experiments that it imports, and the whole library below them."""
    library = ROOT / "dd_jax"
    files = {path for path in library.rglob("*.py") if path.parent != library / "cli"}
    found = hashlib.sha256()
    for path in sorted(files | _with_imports(file)):
        name = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path.name
        found.update(f"{name}\n{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return found.hexdigest()


def _with_imports(file: Path) -> set[Path]:
    """The module's file and those of the experiments that it imports, directly or not."""
    found, todo = set(), [file]
    while todo:
        current = todo.pop()
        if current in found:
            continue
        found.add(current)
        tree = ast.parse(current.read_bytes())
        for name in {name for node in ast.walk(tree) for name in _imported(node)}:
            path = _file_of(name)
            if path is not None and name not in LOOKS:
                todo.append(path)
    return found


def _imported(node: Any) -> list[str]:
    """Modules that a statement may import: `from a import b` may mean a and a.b."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.module:
        return [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return []


def _file_of(name: str) -> Path | None:
    if name.split(".")[0] != "experiments":
        return None
    place = ROOT.joinpath(*name.split("."))
    candidates = (place.with_suffix(".py"), place / "__init__.py")
    return next((path for path in candidates if path.is_file()), None)
