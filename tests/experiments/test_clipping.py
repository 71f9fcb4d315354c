"""The figure of clipping: the flat axis, the three certificates, and samples beyond the paper's."""

import drawn
import numpy as np
import pytest

from dd_jax.guarantees import adaptive
from dd_jax.guarantees.convex import Descent
from experiments.cache import Runner
from experiments.figures import clipping

CONFIG = clipping.Config(requests=(0, 1), seeds=400)


@pytest.fixture(scope="module")
def results():
    """The twin is not run: what is known of it is put in its place."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clipping, "KINDS", {"no GLM": False})
        found = clipping.compute(CONFIG, Runner())
    return found | _twin(CONFIG.plan())


def _twin(plan):
    field = clipping._field(plan, single_index=True)
    return {f"GLM {key}": value for key, value in field.items()} | {"GLM proved": np.zeros(2)}


def test_nothing_pulls_back_along_the_axis_unless_the_loss_is_a_glm(results):
    middle = np.abs(results["GLM where"]) < 0.05
    for name, slope in (("no GLM", 0.0), ("GLM", float(results["l2"]))):
        where, along = results[f"{name} where"][middle], results[f"{name} field"][middle]
        found = np.polyfit(where, along, 1)[0]
        assert found == pytest.approx(slope, abs=0.02 * float(results["l2"]))


def test_bounds_are_the_budgets_and_the_sum_over_steps(results):
    plan = CONFIG.plan()
    assert results["steps"].tolist() == [0, plan.delete_steps]
    # The paper's own settings use up its budgets.
    assert results["paper"] == pytest.approx([1, 0.1], rel=0.01)
    assert np.all(results["paper"] <= [1, 0.1])
    assert np.all(results["optimal"] < results["paper"])
    run = Descent(2, 1, plan.problem.l2, np.inf, plan.noise_variance, plan.n, plan.step_size)
    summed = adaptive.deletion_run_sum(run, plan.learn_steps, 0, 1)
    assert results["composition"] == pytest.approx([summed, summed])
    assert results["linearised"][0] == pytest.approx(summed, rel=0.02)
    assert results["linearised"][1] < results["linearised"][0]
    assert results["refused"]


def test_samples_are_beyond_the_papers_certificate_and_within_ours(results):
    proved = results["no GLM proved"]
    assert np.all(proved > results["paper"])
    assert np.all(proved < results["linearised"])
    caption = clipping.caption(CONFIG, results)
    assert "beaten at 2 of 2 releases" in caption
    assert "plan_convex refuses this problem" in caption
    assert "plan_composition holds" in caption
    assert "no release is shown to be beyond the optimal" in caption
    wrong = results | {"no GLM proved": np.full(2, 99.0), "GLM proved": np.ones(2)}
    caption = clipping.caption(CONFIG, wrong)
    assert "plan_composition IS REFUTED" in caption
    assert "SAMPLES ARE BEYOND" in caption


def test_the_picture_leaves_out_what_is_not_shown(results):
    _, skew, twin = clipping.plot(CONFIG, results).axes
    (shown,), (nothing,) = (drawn.marks(axes, "^") for axes in (skew, twin))
    np.testing.assert_array_equal(shown, [results["steps"], results["no GLM proved"]])
    assert nothing.shape == (2, 0)


def test_every_certificate_is_drawn_under_its_own_name(results):
    field, skew, twin = clipping.plot(CONFIG, results).axes
    for axes, label, name in (
        (skew, "certified by plan_composition", "composition"),
        (skew, "to first order", "linearised"),
        (skew, "paper's certificate", "paper"),
        (twin, "paper's certificate", "paper"),
        (twin, "certified by plan_convex", "optimal"),
    ):
        curve = drawn.curve(axes, label)
        np.testing.assert_array_equal(curve, [results["steps"], results[name]])
    for name in clipping.KINDS:
        along = [results[f"{name} where"], results[f"{name} field"]]
        np.testing.assert_array_equal(drawn.curve(field, f"clipped, {name}"), along)
