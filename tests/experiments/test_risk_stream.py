"""A stream of four edits; the runs themselves are judged in test_deletion_sweep."""

import dataclasses

import drawn
import numpy as np
import pytest

from dd_jax import data
from experiments.cache import Runner
from experiments.figures import risk_stream

SMALL = risk_stream.Config(num_requests=4, every=2, retrain_every=4, seeds=12, adaptive_seeds=6)


@pytest.fixture(scope="module")
def results():
    return risk_stream.compute(SMALL, Runner())


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
        _, plan = risk_stream.make_plan(config, train, "paper")
        assert plan.certificate().risk_bound_paper is not None
    assert plan.delete_steps == 41  # ⌈4κ log 5κ⌉ with κ = 3.5


def made_up():
    """No two numbers alike."""
    rng = np.random.default_rng(0)
    found = {"request": np.array([0, 2, 4]), "paper_theorem_bound": np.array(9.0)}
    for place, plan in enumerate(risk_stream.PLANS):
        found[f"{plan}_bound"] = rng.uniform(1, 2, 3)
        found[f"{plan}_delete_steps"] = np.array(3 + place)
        for name, judged in (("fixed", 3), ("adaptive", 3), ("retrained", 2)):
            found[f"{plan}_{name}_risk"] = rng.uniform(0.1, 1, (4, judged))
            found[f"{plan}_{name}_accuracy"] = rng.uniform(0.1, 1, (4, judged))
    return found


def test_every_panel_shows_its_own_plan():
    found = made_up()
    *risks, accuracy = risk_stream.plot(SMALL, found).axes
    for axes, plan in zip(risks, risk_stream.PLANS, strict=True):
        bound = drawn.curve(axes, "bound on the mean (this library)")
        np.testing.assert_array_equal(bound, [found["request"], found[f"{plan}_bound"]])
        assert f"{found[f'{plan}_delete_steps']} steps per request" in axes.get_title()
    np.testing.assert_array_equal(drawn.curve(risks[1], "bound on the mean (the paper)")[1], 9)
    panels = ((risks[0], "optimal", "risk"), (risks[1], "paper", "risk"))
    for axes, plan, what in (*panels, (accuracy, "optimal", "accuracy")):
        for label, name, where in (
            ("fixed requester", "fixed", [0, 2, 4]),
            ("adaptive requester", "adaptive", [0, 2, 4]),
            ("retrained, fixed stream", "retrained", [0, 4]),
        ):
            mean = found[f"{plan}_{name}_{what}"].mean(axis=0)
            np.testing.assert_allclose(drawn.curve(axes, label), [where, mean])


@pytest.mark.slow
def test_mean_risk_is_below_the_certified_bounds_and_not_far(results):
    assert results["request"].tolist() == [0, 2, 4]
    for plan in risk_stream.PLANS:
        for name in risk_stream.REQUESTERS:
            risk = results[f"{plan}_{name}_risk"]
            assert risk.shape == (12 if name == "fixed" else 6, 3)
            assert (risk > 0).all()
            share = risk.mean(axis=0) / results[f"{plan}_bound"]
            assert (share < 0.6).all()
            assert (share > 0.1).all()
    assert results["paper_theorem_bound"] > results["paper_bound"].max()


@pytest.mark.slow
def test_risk_follows_the_noise_of_the_plan_and_retraining_is_no_better(results):
    optimal, paper = (results[f"{plan}_fixed_risk"].mean() for plan in risk_stream.PLANS)
    train = data.load(SMALL.dataset).train
    plans = [risk_stream.make_plan(SMALL, train, plan)[1] for plan in risk_stream.PLANS]
    noise = plans[1].noise_variance / plans[0].noise_variance
    assert 0.6 < paper / optimal / noise < 1.4
    for plan in risk_stream.PLANS:
        again = results[f"{plan}_retrained_risk"]
        assert again.shape == (12, 2)
        assert 0.7 < results[f"{plan}_fixed_risk"].mean() / again.mean() < 1.4


@pytest.mark.slow
def test_accuracy_is_that_of_trained_models(results):
    for name in ("fixed", "adaptive", "retrained"):
        assert 0.8 < results[f"optimal_{name}_accuracy"].mean() <= 1


@pytest.mark.slow
def test_plot_and_caption_show_the_numbers_of_the_run(results):
    figure = risk_stream.plot(SMALL, results)
    assert [axes.get_ylabel() for axes in figure.axes] == [
        "excess empirical risk",
        "excess empirical risk",
        "held-out accuracy",
    ]
    assert figure.axes[0].get_ylim() == figure.axes[1].get_ylim()
    caption = risk_stream.caption(SMALL, results)
    assert f"{results['optimal_fixed_accuracy'].mean(axis=0)[-1]:.3f} at the end" in caption
    assert "none of 12 means is shown to lie above a bound" in caption
    beyond = results | {"paper_adaptive_risk": 10 + results["paper_adaptive_risk"]}
    assert "3 of 12 means lie above a bound, which refutes it" in risk_stream.caption(SMALL, beyond)
