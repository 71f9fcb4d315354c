"""The figure of the median attack: exact laws, a blind control, a caption that follows the run."""

import drawn
import numpy as np
import pytest

from dd_jax.guarantees import inference
from experiments.cache import Runner
from experiments.figures import median_attack

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
    assert results["n=5 low"][0] < 1 / 10 < results["n=5 high"][0]
    assert results["n=5 low"][0] > 0
    assert results["blind success"].tolist() == [0]


def test_the_copying_requester_is_between_the_two_certificates(results):
    # μ² = ε_dd + p ε_dp at q = 2, with ε_dd = ε_dp/64.
    for name, squares in ((median_attack.FIXED, 4 / 64), (median_attack.CERTIFIED, 4 + 4 / 64)):
        assert results[name] == pytest.approx([inference.advantage_gdp(squares**0.5)], rel=1e-6)
    low = results[f"{median_attack.COPIES} low"]
    assert results[median_attack.FIXED] < low < results[median_attack.CERTIFIED]


def test_the_caption_says_what_was_found(results):
    caption = median_attack.caption(CONFIG, results)
    assert "intervals contain the exact value" in caption
    assert "not shown to be beyond the certificate for one release seen" in caption
    assert "at 1 of 1 budgets, and shown to be beyond the bound for requests fixed" in caption
    assert f"at most {results['n=5 high'][0]:.2g} at i = 4, n = 5" in caption
    wrong = results | {
        "n=5 exact": np.array([0.5]),
        f"{median_attack.COPIES} low": results[median_attack.CERTIFIED] + 0.01,
    }
    caption = median_attack.caption(CONFIG, wrong)
    assert "DO NOT ALL CONTAIN" in caption
    assert "at 0 of 1 budgets" in caption


def test_certificates_and_measured_values_are_drawn_under_their_names(results):
    left, right = median_attack.plot(CONFIG, results).axes
    for label, name in (
        (median_attack.CERTIFIED, median_attack.CERTIFIED),
        (median_attack.FIXED, median_attack.FIXED),
        ("copying requester, measured", median_attack.COPIES),
    ):
        np.testing.assert_array_equal(drawn.curve(right, label), [[4.0], results[name]])
    for label, name in (
        ("measured, n = 5", "n=5"),
        ("exact, n = 5", "n=5 exact"),
        ("theorem: at most $2^{-(i-3)}$", "n=5 at most"),
    ):
        np.testing.assert_array_equal(drawn.curve(left, label), [[4], results[name]])


def test_no_failures_are_drawn_as_upper_limits(results):
    none = results | {"n=5": np.zeros(1), "n=5 low": np.zeros(1), "n=5 high": np.array([0.02])}
    left, right = median_attack.plot(CONFIG, none).axes
    (limit,) = [line for line in left.lines if line.get_marker() == "v"]
    assert np.array_equal(limit.get_ydata(), [0.02])
    assert "retraining" in " ".join(right.get_legend_handles_labels()[1])
