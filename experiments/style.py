"""One look for every figure: colour-blind safe, told apart by dashes in grey as well."""

from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

# Okabe and Ito's palette.
BLUE, ORANGE, GREEN, RED, BLACK = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#222222"
SOLID, DASHED, DOTTED = "-", "--", ":"

_RC: Any = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "legend.frameon": False,
    "figure.constrained_layout.use": True,
    "svg.hashsalt": "dd_jax",
}
plt.rcParams.update(_RC)


def panels(rows: int, columns: int) -> tuple[Figure, list[Axes]]:
    """A figure with rows × columns panels, flattened in reading order."""
    figure, axes = plt.subplots(rows, columns, figsize=(5 * columns, 3.4 * rows), squeeze=False)
    return figure, list(axes.ravel())
