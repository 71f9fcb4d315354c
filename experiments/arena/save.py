"""Write a comparison: CSV, JSON and the figure, whole files only."""

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.figure import Figure


def write(results: Path, name: str, contents: Mapping[str, bytes]) -> list[str]:
    """Write `name.suffix` for every suffix into the folder; returns the paths."""
    results.mkdir(parents=True, exist_ok=True)
    files = []
    for suffix, content in contents.items():
        target = results / f"{name}.{suffix}"
        partial = target.with_name(target.name + ".part")
        partial.write_bytes(content)
        partial.replace(target)
        files.append(str(target))
    return files


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
