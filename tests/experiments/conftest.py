import sys

import pytest


@pytest.fixture(autouse=True)
def _close_figures():
    """Pyplot keeps every figure until it is closed, and warns of too many."""
    yield
    if "matplotlib.pyplot" in sys.modules:
        sys.modules["matplotlib.pyplot"].close("all")
