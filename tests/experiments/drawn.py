"""What is drawn in a panel, read back from it."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.container import ErrorbarContainer


def curve(axes: Axes, label: str) -> np.ndarray:
    """(x, y) of the one line, or of the marks with error bars, that the legend names so."""
    named = zip(*axes.get_legend_handles_labels(), strict=True)
    (found,) = [handle for handle, words in named if words == label]
    line = found.lines[0] if isinstance(found, ErrorbarContainer) else found
    return np.array(line.get_data())


def marks(axes: Axes, marker) -> list[np.ndarray]:
    """(x, y) of every line with this marker, in the order in which they were drawn."""
    return [np.array(line.get_data()) for line in axes.lines if line.get_marker() == marker]
