"""The low bits of float32 releases: every draw is counted, one step tells all, a grid hides it."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dd_jax.attacks import find, low_bits

SEEDS = 100  # in each world
SETTINGS = low_bits.LowBitsSettings()


@pytest.fixture(scope="module")
def scene():
    return low_bits.make_scene(jax.random.key(1), SETTINGS)


class Rounded(low_bits.Scene):
    """The publication grid as the mechanism of a plan must have it: half to even."""

    def curator(self, published):
        def publish(key, state):
            del key
            grid = low_bits.Step.of(self.plan).grid
            return jnp.round(state / grid) * grid

        return super().curator(published)._replace(publish=publish)


def advantage(scene, trial, transitions=1):
    minus, plus = low_bits.observe(jax.random.key(2), trial, scene, SEEDS)
    if minus.ndim == 2:
        minus, plus = (part[:, :transitions].sum(axis=1) for part in (minus, plus))
    return low_bits.judged(jax.random.key(3), (minus, plus), 0.999)


def test_the_table_holds_every_draw_and_nothing_else():
    table = low_bits.quantiles()
    assert table.shape == (2**23,)
    assert np.all(np.diff(table) > 0)
    for shape in ((100_003,), (3, 5), ()):
        draws = np.asarray(jax.random.normal(jax.random.key(4), shape)).ravel()
        assert np.isin(draws, low_bits.ROOT_TWO * table).all()


def test_the_compiled_step_is_reproduced_to_the_last_bit(scene):
    trial = functools.partial(low_bits.staying_trial, scene=scene, published="as it is")
    seen = low_bits.watch_runs(jax.random.key(5), trial, scene, 0, 32)
    step = low_bits.Step.of(scene.plan).calibrated(seen)
    counts = step.exact_counts(seen.before, seen.slopes[:, 0], seen.after)
    assert np.mean(counts > 0) > 0.99


@pytest.mark.parametrize(("eps_dp", "eps_dd"), [(1.0, 0.5), (0.1, 0.05)])
def test_one_step_shows_the_label_as_it_is_and_what_is_certified_on_a_grid(eps_dp, eps_dd):
    settings = low_bits.LowBitsSettings(eps_dp=eps_dp, eps_dd=eps_dd)
    scene = low_bits.make_scene(jax.random.key(1), settings)
    trial = functools.partial(low_bits.staying_trial, published="as it is")
    certified = scene.certified
    plain = advantage(scene, functools.partial(trial, scene=scene))
    # 200 runs, two arms: at least 95% named.
    assert (1 + plain.value) / 2 >= 0.95
    assert plain.low > certified
    published = advantage(scene, functools.partial(trial, scene=Rounded(*scene)))
    assert published.low <= certified


def test_what_a_plan_publishes_is_within_its_certificate(scene):
    trial = functools.partial(low_bits.staying_trial, scene=scene, published="on a grid")
    assert advantage(scene, trial).low <= scene.certified


def test_one_step_in_one_dimension_exactly():
    found = low_bits.one_step_advantages(jax.random.key(6), SETTINGS)
    real = found["exact_one_step_real_numbers"]
    assert found["exact_one_step_as_it_is"] > 3 * real
    assert found["exact_one_step_on_a_grid"] == pytest.approx(real, rel=1e-3)


def test_a_deleted_record_that_is_added_and_subtracted_is_named(scene):
    trial = functools.partial(low_bits.kept_trial, scene=scene, releases=3)
    assert advantage(scene, trial, 3).low > 0.7


def test_a_record_deleted_over_an_overlay_leaves_no_bit(scene):
    trial = functools.partial(low_bits.deleted_trial, scene=scene, releases=3)
    scores = low_bits.observe(jax.random.key(2), trial, scene, SEEDS)
    # Not only at chance: both candidates explain every bit of every release equally well.
    assert not np.any(scores)
    found = advantage(scene, trial, 3)
    assert found.low <= scene.plan.certificate().advantage_bound


def test_two_steps_have_the_law_of_real_numbers_on_a_grid_only():
    found = low_bits.two_step_excess(jax.random.key(7), SETTINGS)
    assert found["two_steps_log_ratio_off_on_a_grid"] < 0.002
    # As it is, float32 still tells something: more than counting noise, which is below 0.01.
    assert found["two_steps_log_ratio_off_as_it_is"] > 0.02


@pytest.mark.parametrize("steps", [2, 3])
@pytest.mark.parametrize("published", ["as it is", "on a grid"])
def test_more_steps_are_within_the_certificate(steps, published):
    scene = low_bits.line_scene(SETTINGS, steps)
    score = low_bits.observe_steps(jax.random.key(9), scene, SEEDS, published)
    found = low_bits.judged(jax.random.key(10), score, 0.999)
    assert found.low <= scene.certified
    # It is not blind either: the certificate is nearly attained.
    assert found.high > 0.2


def test_ties_are_fair_coins():
    made = low_bits.guesses(jax.random.key(0), np.zeros(10_000))
    assert 0.45 < made.mean() < 0.55
    assert low_bits.guesses(jax.random.key(0), np.array([-1.0, 2.0])).tolist() == [False, True]


@pytest.mark.slow
def test_the_whole_attack():
    result = find("low-bits").run(jax.random.key(0), seeds=100, releases=3)
    assert [finding.refuted for finding in result.findings] == [True, True, False]
    assert not result.ours_refuted
