"""What a figure's computation is given from outside: where to keep chunks, whom to tell."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxtyping import Array, PyTree

from dd_jax.ensemble import DEFAULT_CHUNK
from experiments import chunks


def _silent(text: str) -> None:
    """Tell nobody."""


@dataclass(frozen=True)
class Context:
    """The edge of a computation: its files and its progress; the numbers do not depend on it.

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
        stream = chunks.Stream(self.folder, name, dict(self.config or {}), chunk)
        return chunks.over_seeds(stream, fn, key, num_seeds, *args)
