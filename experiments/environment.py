"""What a run was made with: versions, device, generator, and the sources of a figure."""

import ast
import hashlib
import os
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("dd-jax", "jax", "jaxlib", "numpy", "scipy", "scikit-learn", "flax", "dp-accounting")
PRECISION = ("jax_enable_x64", "jax_default_matmul_precision")
# They decide how a figure looks and where it stands, never its numbers.
LOOKS = ("experiments", "experiments.figures")


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
    """JAX's generator of random numbers, for keys that name none."""
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
