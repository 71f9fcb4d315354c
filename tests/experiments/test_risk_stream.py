"""The figure of a stream of edits; the runs themselves are judged in test_deletion_sweep."""

import dataclasses

import pytest
from problems import soak
from shown import column, shown

from dd_jax import data
from experiments.cache import Runner
from experiments.figures import risk_stream

SMALL = risk_stream.Config(num_requests=4, every=2, retrain_every=4, seeds=12, adaptive_seeds=6)


def test_the_paper_plan_meets_the_conditions_of_its_theorem():
    """With a loose deletion budget the risk needs more steps than deletion does."""
    train = data.load(SMALL.dataset).train
    for config in (SMALL, dataclasses.replace(SMALL, eps_dd=1.0)):
        plan = risk_stream.make_plan(config, train, "paper")
        assert plan.certificate().risk_bound_paper is not None
    assert plan.delete_steps == 41  # ⌈4κ log 5κ⌉ with κ = 3.5
    issued = risk_stream.certificate(SMALL)
    assert (issued.adaptivity, issued.basis) == (1, "promise")


@pytest.mark.slow
@pytest.mark.skipif(soak(True, False), reason="`make report` runs it; judged in `make soak`")
def test_risk_is_below_its_bounds_follows_the_noise_and_is_that_of_retraining():
    results = risk_stream.compute(SMALL, Runner())
    assert results["request"].tolist() == [0, 2, 4]
    train = data.load(SMALL.dataset).train
    noise = []
    for plan in risk_stream.PLANS:
        for name, seeds in (("fixed", 12), ("adaptive", 6)):
            risk = results[f"{plan}_{name}_risk"]
            assert risk.shape == (seeds, 3)
            assert (risk > 0).all()
            share = risk.mean(axis=0) / results[f"{plan}_bound"]
            assert ((share > 0.1) & (share < 0.6)).all()
            assert 0.8 < results[f"{plan}_{name}_accuracy"].mean() <= 1
        again, fixed = results[f"{plan}_retrained_risk"], results[f"{plan}_fixed_risk"]
        assert again.shape == (12, 2)
        assert 0.7 < fixed.mean() / again.mean() < 1.4
        noise.append(fixed.mean() / risk_stream.make_plan(SMALL, train, plan).noise_variance)
    assert 0.6 < noise[1] / noise[0] < 1.4
    assert results["paper_theorem_bound"] > results["paper_bound"].max()
    against, _ = shown(risk_stream, SMALL, results)
    assert column(against, "verdict") == ["consistent"] * 4
    beyond = results | {"paper_adaptive_risk": 10 + results["paper_adaptive_risk"]}
    against, _ = shown(risk_stream, SMALL, beyond)
    assert column(against, "shown above a bound") == [0, 0, 0, 3]
    assert column(against, "verdict") == ["consistent"] * 3 + ["refuted"]
