"""Pictures of attacks: each has one, it shows the printed numbers, bad names are refused."""

from pathlib import Path

import jax
import numpy as np
import pytest

from dd_jax.attacks import ATTACKS, find
from dd_jax.cli import attack_pictures
from dd_jax.errors import InputError

PAGES = Path(__file__).parents[2] / "docs" / "attacks"


def test_every_attack_has_a_picture_and_its_page_shows_it():
    for name in ATTACKS:
        assert find(name).picture.kind in attack_pictures.DRAWINGS
        assert (PAGES / f"{name}.svg").read_text(encoding="utf-8").lstrip().startswith("<?xml")
        assert f"]({name}.svg)" in (PAGES / f"{name}.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["sum", "median"])
def test_a_picture_shows_the_measured_values(name, tmp_path):
    result = find(name).run(jax.random.key(0), seeds=200)
    figure = attack_pictures.draw(result)
    container = figure.axes[0].containers[0]
    drawn = container.lines[0].get_xydata()[:, 0 if name == "sum" else 1]
    np.testing.assert_allclose(drawn, [row["success"] for row in result.rows])
    target = tmp_path / "picture.png"
    attack_pictures.save(result, target)
    assert target.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("name", ["picture.gif", "picture", "missing/picture.png"])
def test_a_file_that_cannot_be_drawn_is_refused(name, tmp_path):
    with pytest.raises(InputError):
        attack_pictures.check_path(tmp_path / name)
