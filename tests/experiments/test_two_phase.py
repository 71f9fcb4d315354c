import dataclasses

import drawn
import numpy as np
import pytest

from dd_jax.oracles import linear as law
from experiments import two_phase_cases as cases
from experiments.cache import Runner
from experiments.figures import two_phase

CONFIG = two_phase.Config()
SMALL = two_phase.Config(learn_steps=5, delete_steps=2, every=1, seeds=4_000)


@pytest.fixture(scope="module")
def results():
    return two_phase.compute(SMALL, Runner())


def test_the_certificate_is_the_one_of_the_known_values():
    # λ = β = L = 1, n = 100, η = 1/4: R after 5 steps, and at the end of learning.
    assert np.isclose(CONFIG.step_size, 0.25)
    assert np.isclose(CONFIG.noise_variance, 8e-4)
    bounds = two_phase._bounds(CONFIG)
    assert np.isclose(bounds["optimal"][4], 0.26968, atol=1e-5)
    assert np.isclose(bounds["paper"][4], min(2 * 5 * 0.25 / (8e-4 * 1e4), 0.4647), atol=1e-4)
    # After 2 steps composition is the smaller form of the unrelaxed bound, after 24 the other one.
    assert np.allclose(bounds["unrelaxed"][[1, 23]], [0.125, 4 / 7 * -np.expm1(-21 / 4)])
    assert np.isclose(bounds["optimal"][1], 0.1225)
    after = bounds["paper"][CONFIG.learn_steps :]
    assert np.isclose(after[4], 0.5353, atol=1e-4)
    assert np.allclose(np.diff(np.log(after)), -0.25 / 2)


def test_exact_laws_are_the_closed_forms():
    numbers = (CONFIG.order, *CONFIG.numbers)
    linear, ridge = cases.linear(CONFIG.n, CONFIG.l2), cases.ridge(CONFIG.n, CONFIG.l2)
    for present, gone in ((5, 0), (24, 3)):
        rates = (CONFIG.noise_variance, CONFIG.n, CONFIG.step_size, present, gone)
        assert np.isclose(
            linear.exact(*numbers, present, gone), law.renyi(2, 1.0, 1.0, *rates), rtol=1e-6
        )
        # Half of the rows add their curvature along the record.
        assert np.isclose(
            ridge.exact(*numbers, present, gone), law.renyi(2, 1.0, 1.5, *rates), rtol=1e-6
        )
    assert np.isclose(linear.exact(*numbers, 400, 5), 0.02464, atol=1e-5)


def test_squares_are_the_steps_that_the_certificates_need():
    found = {f"bound: {name}": values for name, values in two_phase._bounds(CONFIG).items()}
    counts = [two_phase.steps_needed(CONFIG, found, name) for name in two_phase.LOOKS]
    assert counts == [19, 4, 3]
    short = dataclasses.replace(CONFIG, delete_steps=10)
    found = {f"bound: {name}": values for name, values in two_phase._bounds(short).items()}
    assert two_phase.steps_needed(short, found, "paper") is None


def made_up():
    """The bounds as they are, and no two numbers alike in the rest."""
    steps, audited = np.arange(1, 49), np.arange(2, 49, 2)
    found = {f"bound: {name}": values for name, values in two_phase._bounds(CONFIG).items()}
    for place, name in enumerate(two_phase.LOSSES, start=1):
        found[f"{name}: exact"] = 0.9 / (steps + place)
        found[f"{name}: audited"] = 0.5 / (audited + place)
        found[f"{name}: estimate"] = 0.7 / (audited + place)
    return found | {"step": steps, "audited step": audited}


def test_every_number_is_drawn_under_its_own_name():
    found = made_up()
    for axes, name in zip(two_phase.plot(CONFIG, found).axes, two_phase.LOSSES, strict=True):
        exact = [found["step"], found[f"{name}: exact"]]
        np.testing.assert_array_equal(drawn.curve(axes, "exact"), exact)
        audited = [found["audited step"], found[f"{name}: audited"]]
        label = "audited: at least (bar: to the estimate)"
        np.testing.assert_array_equal(drawn.curve(axes, label), audited)
        ends = [bar[:, 1] for bar in axes.collections[0].get_segments()]
        np.testing.assert_array_equal(np.transpose(ends), [audited[1], found[f"{name}: estimate"]])
        squares = drawn.marks(axes, "s")
        for bound, square, steps in zip(two_phase.LOOKS, squares, (19, 4, 3), strict=True):
            curve = drawn.curve(axes, f"{bound} bound")
            np.testing.assert_array_equal(curve, [found["step"], found[f"bound: {bound}"]])
            np.testing.assert_array_equal(square, curve[:, curve[0] == 24 + steps])


@pytest.mark.slow
def test_audited_below_exact_below_every_bound_and_samples_follow_the_law(results):
    for name in two_phase.LOSSES:
        exact = results[f"{name}: exact"]
        for bound in two_phase.LOOKS:
            assert (exact <= results[f"bound: {bound}"] * (1 + 1e-9)).all()
        assert (results[f"{name}: audited"] <= exact).all()
        assert (results[f"{name}: audited"] > exact / 4)[2:5].all()
        # One step later or earlier, or an edit that is missing, is further off than this.
        assert np.allclose(results[f"{name}: estimate"][1:], exact[1:], rtol=0.25, atol=0.005)


@pytest.mark.slow
def test_caption_says_what_holds_and_what_does_not(results):
    text = two_phase.caption(SMALL, results)
    assert "the linear loss equals it at every step" in text
    assert "within all bounds" in text
    assert "None exceeds the exact value" in text
    assert "EXCEED" not in text
    broken = results | {"ridge: exact": results["bound: unrelaxed"]}
    assert "BREAKS BOUNDS: ridge above optimal." in two_phase.caption(SMALL, broken)
    over = results | {"linear: audited": results["linear: exact"] * 1.1}
    assert "7 EXCEED THE EXACT VALUE" in two_phase.caption(SMALL, over)
    figure = two_phase.plot(SMALL, results)
    assert [axis.get_yscale() for axis in figure.axes] == ["log", "log"]
