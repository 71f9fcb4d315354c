import dataclasses

import pytest

from experiments.context import Context
from experiments.figures import risk_stream

SMALL = risk_stream.Config(num_requests=4, seeds=30, adaptive_seeds=20)


@pytest.fixture(scope="module")
def results():
    return risk_stream.compute(SMALL, Context())


@pytest.mark.slow
def test_risk_stays_below_the_certified_bound_and_above_zero(results):
    for name in ("fixed", "adaptive"):
        risk = results[f"{name}_risk"]
        assert (risk > 0).all()
        assert (risk.mean(axis=0) < results["risk_bound"]).all()
        # Not a vacuous comparison: the bound is within two orders of what happens.
        assert (risk.mean(axis=0) > results["risk_bound"] / 100).all()


@pytest.mark.slow
def test_accuracy_is_that_of_a_trained_model(results):
    assert results["fixed_accuracy"].shape == (30, 5)
    assert results["fixed_accuracy"].mean() > 0.85


@pytest.mark.slow
def test_plot_and_caption_show_the_numbers_of_the_run(results):
    figure = risk_stream.plot(SMALL, results)
    risk, accuracy = figure.axes
    assert risk.get_ylabel() == "excess empirical risk"
    assert accuracy.get_ylabel() == "held-out accuracy"
    assert len(risk.lines) == 3
    caption = risk_stream.caption(SMALL, results)
    assert f"{results['fixed_accuracy'].mean(axis=0)[-1]:.3f} at the end" in caption


def test_config_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        SMALL.seeds = 1
