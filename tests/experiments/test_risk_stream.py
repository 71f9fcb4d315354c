"""A stream of four edits; the runs themselves are judged in test_deletion_sweep."""

import dataclasses

import pytest

from dd_jax import data
from experiments.cache import Runner
from experiments.figures import risk_stream

SMALL = risk_stream.Config(num_requests=4, every=2, retrain_every=4, seeds=12, adaptive_seeds=6)


def test_both_scales_cover_a_thousand_edits_and_retrain_where_releases_are_judged():
    for config in (risk_stream.Config(), risk_stream.FULL):
        assert config.num_requests == 1_000
        assert config.retrain_every % config.every == 0
        assert config.num_requests % config.retrain_every == 0


def test_the_paper_plan_meets_the_conditions_of_its_theorem():
    """With a loose deletion budget the risk asks for more steps than deletion does."""
    train = data.load(SMALL.dataset).train
    loose = dataclasses.replace(SMALL, eps_dd=1.0)
    for config in (SMALL, loose):
        plan = risk_stream.make_plan(config, train, "paper")
        assert plan.certificate().risk_bound_paper is not None
    assert plan.delete_steps == 41  # ⌈4κ log 5κ⌉ with κ = 3.5


@pytest.mark.slow
def test_risk_is_below_its_bounds_follows_the_noise_and_is_that_of_retraining():
    results = risk_stream.compute(SMALL, Runner())
    assert results["request"].tolist() == [0, 2, 4]
    for plan in risk_stream.PLANS:
        for name in risk_stream.REQUESTERS:
            risk = results[f"{plan}_{name}_risk"]
            assert risk.shape == (12 if name == "fixed" else 6, 3)
            assert (risk > 0).all()
            share = risk.mean(axis=0) / results[f"{plan}_bound"]
            assert (share < 0.6).all()
            assert (share > 0.1).all()
            assert 0.8 < results[f"{plan}_{name}_accuracy"].mean() <= 1
        again = results[f"{plan}_retrained_risk"]
        assert again.shape == (12, 2)
        assert 0.7 < results[f"{plan}_fixed_risk"].mean() / again.mean() < 1.4
    assert results["paper_theorem_bound"] > results["paper_bound"].max()
    train = data.load(SMALL.dataset).train
    optimal, paper = (
        results[f"{plan}_fixed_risk"].mean()
        / risk_stream.make_plan(SMALL, train, plan).noise_variance
        for plan in risk_stream.PLANS
    )
    assert 0.6 < paper / optimal < 1.4
    risk_stream.plot(SMALL, results)
    against, _ = risk_stream.tables(SMALL, results)
    assert {row[5] for row in against.rows} == {"consistent"}
    beyond = results | {"paper_adaptive_risk": 10 + results["paper_adaptive_risk"]}
    against, _ = risk_stream.tables(SMALL, beyond)
    assert [row[3:6] for row in against.rows][-2:] == [(3, 0, "consistent"), (3, 3, "refuted")]
