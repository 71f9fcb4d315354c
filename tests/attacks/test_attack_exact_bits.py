"""Every bit of a run in exact arithmetic tells no more than its certificate says."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from problems import soak

from dd_jax import databases, exact_gd
from dd_jax.attacks import exact_bits, find, low_bits
from dd_jax.audit.float_steps import ROOT_TWO, quantiles
from dd_jax.discrete_gaussian import discrete_gaussian
from dd_jax.guarantees.lattice import DEVIATION
from dd_jax.losses import deletion
from dd_jax.types import apply_edit


@pytest.fixture(scope="module")
def scene():
    made = low_bits.make_scene(jax.random.key(1), low_bits.LowBitsSettings())
    return exact_bits.exact_scene(made)


def test_the_best_observer_stays_within_the_certificate_and_float_values_are_no_clue(scene):
    trial = functools.partial(exact_bits.staying_trial, scene=scene)
    found = exact_bits.observe(jax.random.key(6), trial, scene, 150, scene.worlds)
    ratios = found[0].ratio, found[1].ratio
    best = low_bits.judged(jax.random.key(7), ratios, 0.999)
    floats = exact_bits.float_scores(scene, [watched.seen for watched in found])
    guessed = low_bits.judged(jax.random.key(8), floats, 0.999)
    stays, _ = exact_bits.certified(scene)
    assert best.low <= stays
    assert guessed.low <= stays
    # The ratio is the right one: by Bayes' rule it favours the world that was run.
    assert np.mean(ratios[1]) > 0 > np.mean(ratios[0])


def test_two_candidates_of_a_deleted_record_have_the_same_sums(scene):
    """So no observer of any later step can tell them apart, whatever the form."""
    problem, plan = scene.problem, scene.plan
    edit = deletion(problem.loss, scene.worlds[0], [low_bits.TARGET_ROW])
    state = np.random.default_rng(0).integers(-(10**6), 10**6, plan.dim)
    ends = []
    for world in scene.worlds:
        for form in (world, databases.overlay(world, 1), databases.compress(world)):
            with jax.enable_x64(True):
                centre = exact_gd.centre_of(problem, apply_edit(form, edit), plan)
                ends.append(np.asarray(jax.jit(centre)(jnp.asarray(state), jnp.int32(0))))
    assert all(np.array_equal(ends[0], end) for end in ends)


@pytest.mark.slow
@pytest.mark.skipif(not soak(False, True), reason="all values of float noise, in `make soak`")
def test_float_noise_under_an_exact_certificate_is_found():
    """The control: on a fine lattice float normals take few of the values, exact noise all."""
    bits, trials, dim = 24, 60, 20
    parameter = 2**bits * DEVIATION
    table = np.rint((ROOT_TWO * quantiles()).astype(float) * parameter)
    possible = np.unique(table.astype(np.int64))
    key, other = jax.random.split(jax.random.key(3))
    floats = np.asarray(jax.random.normal(key, (trials, dim)), float) * parameter
    with jax.enable_x64(True):
        draw = jax.jit(lambda key: discrete_gaussian(key, (trials, dim), bits))
        exact = np.asarray(draw(other))
    # What the wrong label needs as noise differs by the gap of the gradients.
    gap = np.random.default_rng(0).integers(10**4, 10**6, dim)

    def named(noise):
        """Runs whose label is named by counting the coordinates that float noise can give."""
        places = [np.searchsorted(possible, each) for each in (noise, noise - gap)]
        nearest = [possible[np.minimum(place, len(possible) - 1)] for place in places]
        right = np.sum(nearest[0] == noise, axis=1)
        wrong = np.sum(nearest[1] == noise - gap, axis=1)
        return np.mean((right > wrong) + 0.5 * (right == wrong))

    assert named(np.rint(floats).astype(np.int64)) == 1.0
    assert abs(named(exact) - 0.5) < 4.5 * 0.5 / np.sqrt(trials)


@pytest.mark.slow
@pytest.mark.skipif(not soak(False, True), reason="seven programs, in `make soak`")
def test_the_whole_attack():
    result = find("exact-bits").run(jax.random.key(0), seeds=200, releases=3)
    control, ours = result.findings
    assert control.refuted
    assert not ours.refuted
    assert result.rows[0]["success"] > 0.9
    assert all(each["success"] < 0.2 for each in result.rows[4:])
