"""The low bits of float32 releases: every draw is counted, one step tells all, a grid hides it."""

import functools

import jax
import numpy as np
import pytest
from problems import soak

from dd_jax.attacks import find, low_bits
from dd_jax.audit.float_steps import ROOT_TWO, Step, quantiles


@pytest.fixture(scope="module")
def scene():
    return low_bits.make_scene(jax.random.key(1), low_bits.LowBitsSettings())


def test_the_table_holds_every_draw_and_nothing_else():
    table = quantiles()
    assert table.shape == (2**23,)
    assert np.all(np.diff(table) > 0)
    for shape in ((100_003,), (3, 5), ()):
        draws = np.asarray(jax.random.normal(jax.random.key(4), shape)).ravel()
        assert np.isin(draws, ROOT_TWO * table).all()


def test_the_compiled_step_is_reproduced_to_the_last_bit(scene):
    trial = functools.partial(low_bits.staying_trial, scene=scene, published="as it is")
    seen = low_bits.watch_runs(jax.random.key(5), trial, scene, 0, 32)
    step = Step.of(scene.plan).calibrated(seen.before, seen.slopes[:, 0], seen.after)
    counts = step.exact_counts(seen.before, seen.slopes[:, 0], seen.after)
    assert np.mean(counts > 0) > 0.99


def test_a_record_deleted_over_an_overlay_leaves_no_bit(scene):
    trial = functools.partial(low_bits.deleted_trial, scene=scene, releases=3)
    # Not only at chance: both candidates explain every bit of every release equally well.
    assert not np.any(low_bits.observe(jax.random.key(2), trial, scene, 16))


def test_ties_are_fair_coins():
    made = low_bits.guesses(jax.random.key(0), np.zeros(10_000))
    assert 0.45 < made.mean() < 0.55
    assert low_bits.guesses(jax.random.key(0), np.array([-1.0, 2.0])).tolist() == [False, True]


@pytest.mark.slow
def test_a_label_is_read_from_every_bit_and_not_from_a_grid(scene):
    for published, read in (("as it is", True), (low_bits.ON_A_GRID, False)):
        trial = functools.partial(low_bits.staying_trial, scene=scene, published=published)
        scores = low_bits.observe(jax.random.key(6), trial, scene, 60)
        estimate = low_bits.judged(jax.random.key(7), scores, 0.999)
        assert (estimate.low > scene.certified) == read
        assert (estimate.value > 0.9) == read


@pytest.mark.slow
@pytest.mark.skipif(soak(True, False), reason="nine programs, in `make soak`")
def test_the_whole_attack():
    result = find("low-bits").run(jax.random.key(0), seeds=100, releases=3)
    assert [finding.refuted for finding in result.findings] == [True, True, False]
    plain, rounded, *subtracted, overlay = result.rows[:5]
    # 200 runs, two arms: at least 95% of the labels are named.
    assert (1 + plain["success"]) / 2 >= 0.95
    assert plain["low"] > plain["certified"] == result.bound
    assert all(row["low"] > 0.6 > row["certified"] for row in subtracted)
    for row in (rounded, overlay, *result.rows[5:]):
        assert row["low"] <= row["certified"]
    # Several steps: the observer is not blind, the certificate is nearly attained.
    assert [row["steps"] for row in result.rows[5:]] == [2, 2, 3, 3]
    assert all(row["high"] > 0.2 for row in result.rows[5:])
    # One step in one dimension, exactly, and how far two are off the law of real numbers.
    exact = result.theory
    real = exact["exact_one_step_real_numbers"]
    assert exact["exact_one_step_as_it_is"] > 2.5 * real
    assert exact["exact_one_step_on_a_grid"] == pytest.approx(real, rel=1e-3)
    assert exact["two_steps_log_ratio_off_on_a_grid"] < 0.002
    # As it is, float32 still tells something: more than counting noise, which is below 0.01.
    assert exact["two_steps_log_ratio_off_as_it_is"] > 0.02
