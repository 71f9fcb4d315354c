"""The figure of the median attack: exact laws, a blind control, and what is certified."""

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


def test_tables_say_what_holds_and_no_failures_are_upper_limits(results):
    failures, advantages, _ = median_attack.tables(CONFIG, results)
    (named,) = (dict(zip(failures.columns, row, strict=True)) for row in failures.rows)
    assert named["interval contains it"]
    assert named["verdict"] == "consistent"
    assert advantages.rows[0][-1]
    wrong = results | {
        "n=5 exact": np.array([0.5]),
        f"{median_attack.COPIES} low": results[median_attack.CERTIFIED] + 0.01,
    }
    failures, advantages, _ = median_attack.tables(CONFIG, wrong)
    assert not failures.rows[0][-3]
    assert "refuted" in advantages.rows[0]
    none = results | {"n=5": np.zeros(1), "n=5 low": np.zeros(1), "n=5 high": np.array([0.02])}
    left, _ = median_attack.plot(CONFIG, none).axes
    limit, _ = [line for line in left.lines if line.get_marker() == "v"]
    assert np.array_equal(limit.get_ydata(), [0.02])
