"""The low bits of float32 releases: every draw is counted, one step tells all, a grid hides it."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dd_jax.attacks import find, float_lattice, low_bits, low_bits_steps
from dd_jax.errors import InputError

SEEDS = 100  # in each world


@pytest.fixture(scope="module")
def scene():
    problem, plan = low_bits.make_plan(100, 1.0, 1.0, 0.5, 2.0)
    return low_bits.make_scene(jax.random.key(1), plan, problem)


def rounded(curator, step):
    """The publication grid as the mechanism of a plan must have it: half to even."""

    def publish(key, state):
        del key
        return jnp.round(state / step.grid) * step.grid

    return curator._replace(publish=publish)


def advantage(scene, trial, transitions=1):
    minus, plus = low_bits.observe(jax.random.key(2), trial, scene, SEEDS)
    if minus.ndim == 2:
        minus, plus = (part[:, :transitions].sum(axis=1) for part in (minus, plus))
    return low_bits.judged(jax.random.key(3), (minus, plus), 0.999)


def test_the_table_holds_every_draw_and_nothing_else():
    table = float_lattice.quantiles()
    assert table.shape == (2**23,)
    assert np.all(np.diff(table) > 0)
    for shape in ((100_003,), (3, 5), ()):
        draws = np.asarray(jax.random.normal(jax.random.key(4), shape)).ravel()
        assert np.isin(draws, float_lattice.ROOT_TWO * table).all()


def test_the_compiled_step_is_reproduced_to_the_last_bit(scene):
    trial = functools.partial(
        low_bits.staying_trial, curator=scene.curator("as it is"), problem=scene.problem
    )
    seen = jax.tree.map(
        np.asarray, low_bits.over_seeds(trial, jax.random.key(5), 32, scene.worlds[0], scene.worlds)
    )
    how = float_lattice.calibrate(seen.before, seen.slopes[:, 0], seen.after, scene.step)
    counts = float_lattice.exact_counts(how, seen.before, seen.slopes[:, 0], seen.after, scene.step)
    assert np.mean(counts > 0) > 0.99


@pytest.mark.parametrize(("eps_dp", "eps_dd"), [(1.0, 0.5), (0.1, 0.05)])
def test_one_step_shows_the_label_as_it_is_and_what_is_certified_on_a_grid(eps_dp, eps_dd):
    problem, plan = low_bits.make_plan(100, 1.0, eps_dp, eps_dd, 2.0)
    scene = low_bits.make_scene(jax.random.key(1), plan, problem)
    bare = scene.curator("as it is")
    trial = functools.partial(low_bits.staying_trial, problem=problem)
    certified = low_bits.certified_staying(plan)
    plain = advantage(scene, functools.partial(trial, curator=bare))
    # 200 runs, two arms: at least 95% named.
    assert (1 + plain.value) / 2 >= 0.95
    assert plain.low > certified
    published = advantage(scene, functools.partial(trial, curator=rounded(bare, scene.step)))
    assert published.low <= certified


def test_what_a_plan_publishes_is_within_its_certificate(scene):
    curator = scene.curator("on a grid")
    trial = functools.partial(low_bits.staying_trial, curator=curator, problem=scene.problem)
    assert advantage(scene, trial).low <= low_bits.certified_staying(scene.plan)


def test_one_step_in_one_dimension_exactly(scene):
    found = low_bits_steps.one_step_advantages(jax.random.key(6), scene.plan)
    real = found["exact_one_step_real_numbers"]
    assert found["exact_one_step_as_it_is"] > 3 * real
    assert found["exact_one_step_on_a_grid"] == pytest.approx(real, rel=1e-3)


def test_a_deleted_record_that_is_added_and_subtracted_is_named(scene):
    trial = functools.partial(
        low_bits.kept_trial,
        curator=scene.curator("as it is"),
        problem=scene.problem,
        schedule=scene.schedule,
        releases=3,
    )
    assert advantage(scene, trial, 3).low > 0.7


def test_a_record_deleted_over_an_overlay_leaves_no_bit(scene):
    trial = functools.partial(
        low_bits.deleted_trial,
        curator=scene.curator("as it is"),
        problem=scene.problem,
        releases=3,
    )
    scores = low_bits.observe(jax.random.key(2), trial, scene, SEEDS)
    # Not only at chance: both candidates explain every bit of every release equally well.
    assert not np.any(scores)
    found = advantage(scene, trial, 3)
    assert found.low <= scene.plan.certificate().advantage_bound


def test_two_steps_have_the_law_of_real_numbers_on_a_grid_only(scene):
    found = low_bits_steps.two_step_excess(jax.random.key(7), scene.plan)
    assert found["two_steps_log_ratio_off_on_a_grid"] < 0.002
    # As it is, float32 still tells something: more than counting noise, which is below 0.01.
    assert found["two_steps_log_ratio_off_as_it_is"] > 0.02


@pytest.mark.parametrize("steps", [2, 3])
@pytest.mark.parametrize("on_grid", [False, True])
def test_more_steps_are_within_the_certificate(scene, steps, on_grid):
    plan = low_bits_steps.make_plan(scene.plan, steps)
    score = low_bits_steps.observe(jax.random.key(9), plan, SEEDS, rounded=on_grid)
    found = low_bits.judged(jax.random.key(10), score, 0.999)
    assert found.low <= low_bits.certified_staying(plan)
    # It is not blind either: the certificate is nearly attained.
    assert found.high > 0.2


def test_ties_are_fair_coins():
    made = low_bits.guesses(jax.random.key(0), np.zeros(10_000))
    assert 0.45 < made.mean() < 0.55
    assert low_bits.guesses(jax.random.key(0), np.array([-1.0, 2.0])).tolist() == [False, True]


@pytest.mark.parametrize(
    ("parameters", "word"),
    [({"n": 5}, "n = 5"), ({"releases": 1}, "releases = 1"), ({"l2": 0.01}, "steps per request")],
)
def test_refusals(parameters, word):
    with pytest.raises(InputError, match=word):
        find("low-bits").run(jax.random.key(0), **parameters)


@pytest.mark.slow
def test_the_whole_attack():
    result = find("low-bits").run(jax.random.key(0), seeds=100, releases=3)
    assert [finding.refuted for finding in result.findings] == [True, True, False]
    assert not result.ours_refuted
