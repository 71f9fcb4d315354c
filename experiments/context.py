"""What a figure's computation is given from outside: where to keep chunks, whom to tell."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxtyping import Array, PyTree

from dd_jax import sweeps
from dd_jax.ensemble import DEFAULT_CHUNK


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
        traced: Sequence[str],
        arguments: Callable[[Any], tuple] = lambda setting: (),
        chunk: int = DEFAULT_CHUNK,
        at_once: int | None = None,
    ) -> list[PyTree]:
        """`sweeps.run`: outputs over seeds for every setting, in chunks that a killed run finds."""
        self.say(f"{name}: {len(settings):,} settings × {num_seeds:,} seeds")
        return sweeps.run(
            self._stream(name, chunk),
            fn,
            key,
            num_seeds,
            settings,
            traced=traced,
            arguments=arguments,
            at_once=at_once,
            progress=sweeps.progress_lines(name, self.say),
        )

    def _stream(self, name: str, chunk: int) -> sweeps.Stream:
        """A stream in a folder whose name is made of what folders may be called."""
        return sweeps.Stream(
            self.folder, re.sub(r"[^\w.+=-]+", "-", name), dict(self.config or {}), chunk
        )
