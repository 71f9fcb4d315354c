"""The figure of clipping: the flat axis, the three certificates, and samples beyond the paper's."""

import numpy as np
import pytest
from shown import column, shown

from dd_jax.guarantees import adaptive
from dd_jax.guarantees.convex import Descent
from experiments.cache import Runner
from experiments.figures import clipping

CONFIG = clipping.Config(requests=(0, 1), seeds=400)


@pytest.fixture(scope="module")
def results():
    return clipping.compute(CONFIG, Runner())


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
    assert np.all(results["optimal"] < results["paper"])
    run = Descent(2, 1, plan.problem.l2, np.inf, plan.noise_variance, plan.n, plan.step_size)
    summed = adaptive.deletion_run_sum(run, plan.learn_steps, 0, 1)
    assert results["composition"] == pytest.approx([summed, summed])
    assert results["linearised"][0] == pytest.approx(summed, rel=0.02)
    assert results["linearised"][1] < results["linearised"][0]


def test_samples_are_beyond_the_papers_certificate_and_within_ours(results):
    against, slopes = shown(clipping, CONFIG, results)
    assert column(against, "verdict") == ["consistent"] * 4
    assert column(against, "verdict on the paper's") == ["refuted"] * 2 + ["consistent"] * 2
    assert column(slopes, "plan_convex refuses") == [True, False]
    assert np.all(results["not a GLM proved"] < results["linearised"])
    # A lower bound of 0 shows nothing, and has no mark.
    *_, twin, _ = clipping.plot(CONFIG, results).axes
    (marks,) = (line.get_ydata() for line in twin.lines if line.get_marker() == "^")
    assert results["GLM proved"][1] == 0
    assert np.array_equal(marks, results["GLM proved"][:1])
    wrong = results | {"not a GLM proved": np.full(2, 99.0), "GLM proved": np.ones(2)}
    against, _ = shown(clipping, CONFIG, wrong)
    assert column(against, "verdict") == ["refuted"] * 4
