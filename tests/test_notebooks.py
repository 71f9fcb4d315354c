"""The notebooks run from top to bottom; what they claim is asserted inside them."""

import runpy
from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).parent.parent / "docs" / "notebooks").glob("*.py"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_run(path, capsys):
    assert path.read_text(encoding="utf-8").count("assert ") >= 3
    runpy.run_path(str(path), run_name="__main__")
    assert capsys.readouterr().out
