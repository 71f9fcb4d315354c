import dataclasses

import numpy as np
import pytest
from shown import shown

from dd_jax.data import fetch
from experiments.cache import Runner
from experiments.figures import first_look

CONFIG = first_look.Config(deletions=3, seeds=4)


@pytest.fixture(scope="module")
def results():
    return first_look.compute(CONFIG, Runner())


def test_the_first_screen_has_what_was_computed(results):
    tiles = first_look.opening(CONFIG, results)
    promised, exact, accuracy, cost = (number for _, number, _ in tiles)
    assert promised == f"≤ {float(results['promised']):.3f}"
    assert exact == f"{float(results['exact']):.3f}"
    assert accuracy == f"{results['accuracy'][:, -1].mean():.3f}"
    # 6 of 3 batches each, 42 steps of learning, full batches as the test of the schedules has them.
    assert cost == "2.0 passes"
    np.testing.assert_allclose(results["costs"][:2], [2, 14])
    _, models, costs = shown(first_look, CONFIG, results)
    assert [row["model"] for row in models][:2] == ["learned", "after 3 deletions"]
    assert costs[1]["what"] == "learning again"


def test_the_linear_loss_comes_close_to_what_is_promised_and_never_beyond(results):
    assert 0.9 * results["promised"] < results["exact"] <= results["promised"] * (1 + 1e-9)


def test_real_data_are_taken_where_they_are(monkeypatch):
    monkeypatch.setattr(fetch, "is_cached", lambda name: name == "mnist")
    assert first_look.quick().dataset == "mnist-3-vs-8"
    monkeypatch.setattr(fetch, "is_cached", lambda name: False)
    assert first_look.quick().dataset == "digits-3-vs-8"
    assert dataclasses.replace(first_look.FULL, seeds=4) == first_look.REAL
