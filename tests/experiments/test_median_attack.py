"""The figure of the median attack: exact laws, a blind control, and what is certified."""

import numpy as np
import pytest
from shown import shown

from dd_jax.guarantees import inference
from experiments.cache import Runner
from experiments.figures import median_attack
from experiments.figures.median_attack import CERTIFIED, COPIES, FIXED

CONFIG = median_attack.Config(
    records=(5,), last_request=9, seeds=500, gd_records=6, gd_seeds=500, budgets=(4.0,)
)


@pytest.fixture(scope="module")
def results():
    return median_attack.compute(CONFIG, Runner())


def test_failures_are_the_exact_ones(results):
    """Of 5 records the median survives unless all 3 random rows held none of the 2 above it."""
    assert results["n=5 request"].tolist() == [4]
    assert results["n=5 exact"] == pytest.approx([1 / 10])
    assert results["n=5 at most"] == pytest.approx([1 / 2])
    assert 0 < results["n=5 low"][0] < 1 / 10 < results["n=5 high"][0]
    assert results["blind success"].tolist() == [0]


def test_the_copying_requester_is_between_the_two_certificates(results):
    # μ² = ε_dd + p ε_dp at q = 2, with ε_dd = ε_dp/64.
    for name, squares in ((FIXED, 4 / 64), (CERTIFIED, 4 + 4 / 64)):
        assert results[name] == pytest.approx([inference.advantage_gdp(squares**0.5)], rel=1e-6)
    assert results[FIXED] < results[f"{COPIES} low"] < results[CERTIFIED]


def test_tables_say_what_holds_and_no_failures_are_upper_limits(results):
    (failures,), (advantage,), _ = shown(median_attack, CONFIG, results)
    assert (failures["interval contains it"], failures["verdict"]) == (True, "consistent")
    assert advantage["verdict"] == "consistent"
    wrong = results | {
        "n=5 exact": np.array([0.5]),
        f"{COPIES} low": results[CERTIFIED] + 0.01,
    }
    (failures,), (advantage,), _ = shown(median_attack, CONFIG, wrong)
    assert (failures["interval contains it"], advantage["verdict"]) == (False, "refuted")
    none = results | {"n=5": np.zeros(1), "n=5 low": np.zeros(1), "n=5 high": np.array([0.02])}
    left, _ = median_attack.plot(CONFIG, none).axes
    limit, _ = [line for line in left.lines if line.get_marker() == "v"]
    assert np.array_equal(limit.get_ydata(), [0.02])
