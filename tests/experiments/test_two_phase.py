import dataclasses
import itertools

import jax
import numpy as np
import pytest
from shown import column, shown

from dd_jax.oracles import linear as law
from experiments.cache import Runner
from experiments.figures import two_phase

CONFIG = two_phase.Config()
SMALL = two_phase.Config(learn_steps=3, request_steps=2, earlier=1, later=0, every=1, seeds=4_000)


def test_the_certificate_is_the_one_of_the_known_values():
    # λ = β = L = 1, n = 100, η = 1/4: R after 5 steps, and at the end of learning.
    assert np.isclose(CONFIG.step_size, 0.25)
    assert np.isclose(CONFIG.noise_variance, 8e-4)
    bounds = two_phase.bounds(CONFIG)
    assert np.isclose(bounds["optimal"][4], 0.26968, atol=1e-5)
    assert np.isclose(bounds["paper"][4], min(2 * 5 * 0.25 / (8e-4 * 1e4), 0.4647), atol=1e-4)
    # After 2 steps composition is the smaller form of the unrelaxed bound, after 24 the other one.
    assert np.allclose(bounds["unrelaxed"][[1, 23]], [0.125, 4 / 7 * -np.expm1(-21 / 4)])
    after = bounds["paper"][CONFIG.present_steps :]
    assert np.isclose(after[4], 0.5353, atol=1e-4)
    assert np.allclose(np.diff(np.log(after)), -0.25 / 2)


def test_exact_laws_are_the_closed_forms():
    # Half of the rows of ridge add their curvature along the record. Earlier requests edit other
    # rows, in both worlds alike, and the record is present until the third request.
    for make, l2 in ((two_phase.linear, 1.0), (two_phase.ridge, 1.5)):
        for present, gone in ((5, 0), (20, 0), (24, 3), (24, 11)):
            rates = (CONFIG.noise_variance, CONFIG.n, CONFIG.step_size, present)
            found = two_phase.exact(CONFIG, make(CONFIG), present + gone)
            assert np.isclose(found, law.renyi(2, 1.0, l2, *rates, delete_steps=gone), rtol=1e-6)


@pytest.mark.parametrize("make", two_phase.LOSSES.values())
def test_requests_edit_one_row_each_and_the_record_goes_with_the_one_after_the_earlier(make):
    world = make(CONFIG)
    worlds = [two_phase.history(CONFIG, world, held) for held in (world.present, world.absent)]
    assert [steps for _, steps in worlds[0]] == [8] * 6

    def differing(first, second):
        leaves = [
            np.asarray(jax.tree.leaves(held)[-1]).reshape(100, -1) for held in (first, second)
        ]
        return np.flatnonzero((leaves[0] != leaves[1]).any(axis=1)).tolist()

    apart = [differing(a, b) for (a, _), (b, _) in zip(*worlds, strict=True)]
    assert apart == [[0]] * 3 + [[]] * 3
    databases = [held for held, _ in worlds[0]]
    edits = [differing(*pair) for pair in itertools.pairwise(databases)]
    assert edits == [[1], [2], [0], [4], [5]]


def test_the_exact_law_crosses_the_limit_of_the_papers_diagram():
    limits = CONFIG.limits
    assert (limits["theorem"], limits["diagram"]) == pytest.approx((1.0, 0.25))
    exact = two_phase.exact(CONFIG, two_phase.linear(CONFIG), CONFIG.present_steps)
    assert limits["diagram"] < 0.4 < exact < 0.4375 < limits["theorem"]


def test_squares_are_the_steps_that_the_certificates_need():
    for later, expected in ((2, [19, 4, 3]), (0, [None, 4, 3])):
        config = dataclasses.replace(CONFIG, later=later)
        found = {f"bound: {name}": values for name, values in two_phase.bounds(config).items()}
        counts = [two_phase.steps_needed(config, found, name) for name in two_phase.LOOKS]
        assert counts == expected


@pytest.mark.slow
def test_audited_below_exact_below_every_bound_and_samples_follow_the_law():
    results = two_phase.compute(SMALL, Runner())
    for name in two_phase.LOSSES:
        exact = results[f"{name}: exact"]
        assert (results[f"{name}: audited"] <= exact).all()
        assert (results[f"{name}: audited"] > exact / 4)[2:5].all()
        # One step later or earlier, or an edit that is missing, is further off than this.
        assert np.allclose(results[f"{name}: estimate"][1:], exact[1:], rtol=0.25, atol=0.005)
    bounds, samples, limits = shown(two_phase, SMALL, results)
    assert set(column(bounds + samples, "verdict")) == {"consistent"}
    expected = {("linear", "diagram"): "refuted"}
    for row in limits:
        verdict = expected.get((row["loss"], row["stated by"]), "consistent")
        assert row["verdict"] == verdict
    assert bounds[2]["bound"] == "optimal"
    assert bounds[2]["exact / bound, least"] == pytest.approx(1)
    broken = results | {
        "ridge: exact": results["bound: optimal"] * 1.1,
        "linear: audited": results["linear: exact"] * 1.1,
    }
    bounds, samples, _ = shown(two_phase, SMALL, broken)
    assert column(bounds, "verdict")[:3] == ["consistent"] * 3
    assert bounds[5]["verdict"] == "refuted"
    assert (samples[0]["above the exact value"], samples[0]["verdict"]) == (7, "refuted")
