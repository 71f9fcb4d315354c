"""The figure of clipping: the flat axis, the three certificates, and samples beyond the paper's."""

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
        patch.setattr(clipping, "KINDS", {"not a GLM": False})
        found = clipping.compute(CONFIG, Runner())
    return found | _twin(CONFIG.plan())


def _twin(plan):
    field = clipping._field(plan, single_index=True)
    return {f"GLM {key}": value for key, value in field.items()} | {"GLM proved": np.zeros(2)}


def test_nothing_pulls_back_along_the_axis_unless_the_loss_is_a_glm(results):
    middle = np.abs(results["GLM where"]) < 0.05
    for name, slope in (("not a GLM", 0.0), ("GLM", float(results["l2"]))):
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
    proved = results["not a GLM proved"]
    assert np.all(proved > results["paper"])
    assert np.all(proved < results["linearised"])
    against, slopes = clipping.tables(CONFIG, results)
    assert [row[5] for row in against.rows] == ["consistent"] * 4
    assert [row[7] for row in against.rows] == ["refuted"] * 2 + ["consistent"] * 2
    assert [row[-1] for row in slopes.rows] == [True, False]
    wrong = results | {"not a GLM proved": np.full(2, 99.0), "GLM proved": np.ones(2)}
    against, _ = clipping.tables(CONFIG, wrong)
    assert [row[5] for row in against.rows] == ["refuted"] * 4


def test_the_picture_leaves_out_what_is_not_shown(results):
    _, skew, twin = clipping.plot(CONFIG, results).axes
    shown, nothing = (
        [np.array(line.get_data()) for line in axes.lines if line.get_marker() == "^"]
        for axes in (skew, twin)
    )
    np.testing.assert_array_equal(shown, [[results["steps"], results["not a GLM proved"]]])
    assert nothing[0].shape == (2, 0)
