import numpy as np
import pytest
from shown import column, shown

from dd_jax.guarantees import schedules as accountant
from experiments.cache import Runner
from experiments.figures import pooling, schedules

CONFIG = schedules.Config(tried=(1, 10, 20), deletions=3, seeds=2, learn_steps=6)


@pytest.fixture(scope="module")
def results():
    return schedules.compute(CONFIG, Runner())


def test_a_deletion_takes_the_known_passes(results):
    known = {
        "passes: ε_dp/2, replaced": [87, 7.3, 1.4],
        "passes: ε_dp/10, replaced": [289, 27.4, 11.5],
        "passes: ε_dp/2, null": [1, 0.1, 0.05],  # one step
        "passes: ε_dp/10, null": [115, 10.1, 2.8],
    }
    for name, passes in known.items():
        np.testing.assert_allclose(results[name], passes, rtol=2e-3, err_msg=name)
    # σ² of the pooled bound over that of full batches: 3.379e-4 and 5.006e-4 to 2.902e-4.
    np.testing.assert_allclose(results["noise"], [1, 1.164, 1.725], rtol=1e-3)


def test_only_batches_of_little_noise_count_as_cheaper(results):
    # 20 batches would save more, at 1.7 times the noise.
    assert schedules.cheaper(results, 10, "replaced") == pytest.approx(289 / 27.4, rel=2e-3)
    assert schedules.cheaper(results, 10, "null") == pytest.approx(115 / 10.1, rel=2e-3)


def test_what_is_run_is_what_the_tables_say(results):
    costs, runs = shown(schedules, CONFIG, results)
    assert column(costs, "batches") == [1, 10, 20]
    assert column(runs, "batches") == [1, 3, 3]
    assert column(runs, "reference") == ["replaced", "replaced", "null"]
    np.testing.assert_allclose(column(runs, "passes per deletion"), [15, 5, 2], rtol=1e-6)
    np.testing.assert_allclose(column(runs, "passes to learn"), [6, 2, 2])
    assert column(runs, "gradients in all") == [267 * (6 + 45), 267 * (2 + 15), 267 * (2 + 6)]
    np.testing.assert_allclose(column(runs, "ε_dp, one release"), 1, rtol=1e-6)
    for row, joint in zip(runs, column(runs, "ε_dp, all jointly"), strict=True):
        assert joint > row["ε_dp, one release"] > row["ε_dd, replaced record"]
    # Against the null run a quarter is certified, so against the replaced record more remains.
    assert runs[2]["ε_dd, replaced record"] > runs[1]["ε_dd, replaced record"]
    assert results["accuracy"].shape == (3, 2, 4)


# --- the blocks -----------------------------------------------------------------------------------

BLOCKS = pooling.FULL


def test_the_picture_is_a_solution_of_the_accountants_problem():
    results = pooling.compute(BLOCKS, Runner())
    bounds, blocks = shown(pooling, BLOCKS, results)
    np.testing.assert_allclose(column(bounds, "μ², pooled"), [1.9151795459, 1.0501037776], 1e-9)
    assert column(bounds, "verdict") == ["agree", "agree"]
    for since in (0, 5):
        gap, hidden, shift = (results[f"{since}: {name}"] for name in ("gap", "hidden", "shift"))
        # Nothing negative, nothing left, and the parts cost the bound: a feasible optimum.
        assert gap.sum() == 9
        assert (hidden >= 0).all()
        assert (shift > -1e-12).all()
        assert abs(shift[-1]) < 1e-12
        assert np.sum(hidden**2) == pytest.approx(float(results[f"{since}: bound"]))
        assert sum(b["part of μ²"] for b in blocks if b["steps since the last use"] == since) == (
            pytest.approx(float(results[f"{since}: bound"]))
        )
    # One common block would hide more than there is: far too small right after the batch was used.
    alone = column(bounds, "one block would say")
    assert alone[0] < 0.7 * bounds[0]["μ², pooled"]
    assert bounds[0]["μ², pooled"] == accountant.pooled(0.98, pooling.gaps(BLOCKS, 0), 1).mu_squared
