"""Write a comparison: CSV, JSON and the figure, whole files only."""

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from dd_jax.sweeps import store


def write(results: Path, name: str, contents: Mapping[str, bytes]) -> list[str]:
    """Write `name.suffix` for every suffix into the folder; returns the paths."""
    results.mkdir(parents=True, exist_ok=True)
    targets = {results / f"{name}.{suffix}": content for suffix, content in contents.items()}
    for target, content in targets.items():
        store.place(target, content)
    return [str(target) for target in targets]


def render(figure: Figure) -> dict[str, bytes]:
    """The figure as SVG, PDF and PNG; it is closed."""
    # Dates would make the same run write different bytes.
    metadata: dict[str, Any] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {}}
    found = {}
    for suffix, entries in metadata.items():
        buffer = io.BytesIO()
        figure.savefig(buffer, format=suffix, dpi=150, metadata=entries)
        found[suffix] = buffer.getvalue()
    plt.close(figure)
    return found
