"""Write a comparison: CSV, JSON and the figure, whole files only."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt

from experiments.arena import plot, table
from experiments.arena.measure import Row

NAME = "compare"


def save(results: Path, rows: Sequence[Row], values: dict[str, Any]) -> list[str]:
    """Write all files into the folder; returns their paths."""
    results.mkdir(parents=True, exist_ok=True)
    contents = {
        "csv": table.to_csv(rows).encode(),
        "json": table.json_text(values).encode(),
        **_figure(rows),
    }
    files = []
    for suffix, content in contents.items():
        target = results / f"{NAME}.{suffix}"
        partial = target.with_name(target.name + ".part")
        partial.write_bytes(content)
        partial.replace(target)
        files.append(str(target))
    return files


def _figure(rows: Sequence[Row]) -> dict[str, bytes]:
    # Dates would make the same run write different bytes.
    metadata: dict[str, Any] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {}}
    figure = plot.plot(rows)
    found = {}
    for suffix, entries in metadata.items():
        buffer = io.BytesIO()
        figure.savefig(buffer, format=suffix, dpi=150, metadata=entries)
        found[suffix] = buffer.getvalue()
    plt.close(figure)
    return found
