"""Curators that are broken in one place each: what an audit has to catch.

Each is Noisy-GD for a problem and a schedule or plan (`dd_jax.noisy_gd.mechanism`) with the one
mistake that its name says; each mistake has been made in public code or is easily made. They give
no guarantee.
"""

import copy
import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from dd_jax import noisy_gd
from dd_jax.erm import Problem, gradient_of
from dd_jax.guarantees.schedules import first_row
from dd_jax.keys import tagged
from dd_jax.noisy_gd import Schedule
from dd_jax.plans import Plan
from dd_jax.types import Mechanism, num_records

# A problem must have λ > 0; this value is too small to change any model.
_NO_REGULARISER = float(np.finfo(np.float32).tiny)


def half_noise(problem: Problem, schedule: Schedule) -> Mechanism:
    """Adds N(0, ησ² I) to a step in place of N(0, 2ησ² I)."""
    halved = schedule._replace(noise_variance=schedule.noise_variance / 2)
    return noisy_gd.mechanism(problem, halved)


def half_variance(problem: Problem, schedule: Schedule) -> Mechanism:
    """Half of σ², in the steps and in the start N(0, σ²/λ I)."""
    numbers = (schedule.noise_variance / 2, schedule.init_variance / 2)
    halved = schedule._replace(noise_variance=numbers[0], init_variance=numbers[1])
    return noisy_gd.mechanism(problem, halved)


def pretrained_start(problem: Problem, schedule: Schedule) -> Mechanism:
    """Learns from a model of other data, -1 in every coordinate, with the start's noise on it."""

    def learn(key, database):
        start_key, run_key = jax.random.split(key)
        pretrained = jax.tree.map(lambda leaf: leaf - 1, start(start_key, database))
        return _run(run_key, pretrained, database, schedule.learn_steps, problem, schedule)

    start = _start(problem, schedule)
    return noisy_gd.mechanism(problem, schedule)._replace(learn=learn)


def half_sensitivity(problem: Problem, schedule: Schedule) -> Mechanism:
    """Calibrated to the sensitivity L/n in place of 2L/n: a quarter of the noise that is needed.

    The variance σ² grows with the square of the sensitivity (`convex.least_noise`). The value L/n
    is right where a record is added or removed, not where it is replaced.
    """
    quartered = schedule._replace(noise_variance=schedule.noise_variance / 4)
    return noisy_gd.mechanism(problem, quartered)


def last_step_skipped(problem: Problem, schedule: Schedule) -> Mechanism:
    """Takes K_U - 1 steps to delete."""
    shorter = schedule._replace(delete_steps=schedule.delete_steps - 1)
    return noisy_gd.mechanism(problem, shorter)


def missing_clip(problem: Problem, schedule: Schedule) -> Mechanism:
    """Leaves the records' gradients as they are."""
    return noisy_gd.mechanism(dataclasses.replace(problem, clip_norm=None), schedule)


def regulariser_clipped(problem: Problem, schedule: Schedule) -> Mechanism:
    """Clips ∇ℓ(θ; x) + λθ in place of ∇ℓ(θ; x).

    Where a record is clipped its share of the regulariser is lost, and with it the contraction by
    1 - ηλ that deletion relies on.
    """
    loss, l2 = problem.loss, problem.l2

    def penalised(params, record):
        squares = sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(params))
        return loss.value(params, record) + jnp.float32(l2 / 2) * squares

    inside = dataclasses.replace(loss, value=penalised, scores=None, batch_gradient=None)
    return noisy_gd.mechanism(Problem(inside, _NO_REGULARISER, problem.clip_norm), schedule)


def same_noise_every_step(problem: Problem, schedule: Schedule) -> Mechanism:
    """Draws the noise of every step of a run from the run's own key, so it is drawn once."""

    def run(key, params, database, num_steps):
        numbers = (schedule.step_size, schedule.noise_variance)

        def body(params, _):
            step_key = jax.random.clone(key)
            return noisy_gd.step(step_key, params, database, problem, *numbers), None

        return jax.lax.scan(body, params, None, length=num_steps)[0]

    return _curator(problem, schedule, run)


def constant_key(problem: Problem, schedule: Schedule) -> Mechanism:
    """Draws its noise from a key that was captured when the run was traced: the same every time."""

    def run(key, params, database, num_steps):
        del key
        return _run(jax.random.key(0), params, database, num_steps, problem, schedule)

    return _curator(problem, schedule, run)


def same_key_every_request(problem: Problem, schedule: Schedule) -> Mechanism:
    """Learns with a key, keeps it, and serves every request with it.

    Two releases together then reveal the noise and the model that it hid.
    """
    start = _start(problem, schedule)

    def learn(key, database):
        start_key, run_key = jax.random.split(key)
        kept = jax.random.clone(run_key)
        params = start(start_key, database)
        return _run(run_key, params, database, schedule.learn_steps, problem, schedule), kept

    def delete(key, before, edit, after, state):
        model, kept = state
        run_key = jax.random.clone(kept)
        return _run(run_key, model, after, schedule.delete_steps, problem, schedule), kept

    return Mechanism(learn, delete, _publish_first, problem.loss.domain)


def stale_model(problem: Problem, schedule: Schedule) -> Mechanism:
    """Begins every deletion at the model that was learned, not at the last one."""
    correct = noisy_gd.mechanism(problem, schedule)

    def learn(key, database):
        model = correct.learn(key, database)
        return model, model

    def delete(key, before, edit, after, state):
        _, learned = state
        return correct.delete(key, before, edit, after, learned), learned

    return Mechanism(learn, delete, _publish_first, problem.loss.domain)


def stale_database(problem: Problem, schedule: Schedule) -> Mechanism:
    """Serves a request with steps on the database from before the edit."""

    def delete(key, before, edit, after, state):
        del edit
        return _run(key, state, before, schedule.delete_steps, problem, schedule)

    return noisy_gd.mechanism(problem, schedule)._replace(delete=delete)


def secret_state(problem: Problem, schedule: Schedule) -> Mechanism:
    """Publishes models with fresh noise but continues from the model without noise.

    The noise has the variance that Noisy-GD reaches by its first deletion, so the first release is
    as private as claimed; the releases after it average the noise out.
    """
    quiet = noisy_gd.mechanism(problem, schedule._replace(noise_variance=0.0, init_variance=0.0))
    contraction = (1 - problem.l2 * schedule.step_size) ** 2
    steps = schedule.learn_steps + schedule.delete_steps
    scale = 2 * schedule.step_size * schedule.noise_variance
    deviation = jnp.sqrt(scale * (1 - contraction**steps) / (1 - contraction))

    def publish(key, state):
        noise = noisy_gd.standard_normal_like(key, state)
        return jax.tree.map(
            lambda leaf, normal: leaf + deviation.astype(leaf.dtype) * normal, state, noise
        )

    return quiet._replace(publish=publish)


# --- batches --------------------------------------------------------------------------------------


def unplanned_batches(problem: Problem, schedule: Schedule) -> Mechanism:
    """Goes through three batches, with the noise that was planned for full passes."""
    return noisy_gd.mechanism(problem, schedule._replace(batches=3))


def gap_of_all_rows(problem: Problem, schedule: Schedule) -> Mechanism:
    """Calibrated to the sensitivity 2L/n, where replacing a record moves a batch's mean by 2L/b."""
    less = schedule._replace(noise_variance=schedule.noise_variance / schedule.batches**2)
    return noisy_gd.mechanism(problem, less)


def batches_restarted(problem: Problem, schedule: Schedule) -> Mechanism:
    """Begins every request with the first batch, so that the first ones are used more often."""
    correct = noisy_gd.mechanism(problem, schedule)

    def delete(key, before, edit, after, state):
        first = state._replace(batch=jnp.zeros_like(state.batch))
        return correct.delete(key, before, edit, after, first)

    return correct._replace(delete=delete)


def batch_skipped(problem: Problem, schedule: Schedule) -> Mechanism:
    """Leaves out the steps on the batch of the deleted row, as if an empty row needed none."""

    def delete(key, before, edit, after, state):
        ends = first_row(num_records(after), schedule.batches, np.arange(1, schedule.batches))
        gone = jnp.sum(ends <= edit.index[0])
        batches = (state.batch + jnp.arange(schedule.delete_steps)) % schedule.batches
        model = _on_batches(key, state.model, after, batches, problem, schedule, skipped=gone)
        return noisy_gd.AtBatch(model, (batches[-1] + 1) % schedule.batches)

    return noisy_gd.mechanism(problem, schedule)._replace(delete=delete)


def independent_batches(problem: Problem, schedule: Schedule) -> Mechanism:
    """Draws the batch of every step at random, so that one may be used several times in a row."""

    def run(key, params, database, num_steps):
        # Uniform up to an error of m/2^32, and much faster to compile than randint.
        bits = jax.random.bits(tagged(key, "batch"), (num_steps,))
        drawn = (bits % jnp.uint32(schedule.batches)).astype(jnp.int32)
        return _on_batches(key, params, database, drawn, problem, schedule)

    return _curator(problem, schedule, run)


# --- arithmetic -----------------------------------------------------------------------------------


def float_noise(problem: Problem, plan: Plan) -> Mechanism:
    """Runs and publishes float32 numbers, under a plan in exact arithmetic."""
    return noisy_gd.mechanism(problem, Schedule.of(plan))


def uncounted_grid(problem: Problem, plan: Plan) -> Mechanism:
    """Rounds to a lattice as coarse as the noise; the plan counts a lattice far finer than that."""
    coarse = copy.copy(plan)
    # A plan refuses such a lattice, so it is put there past the check, and the curator names none.
    object.__setattr__(coarse, "lattice_bits", 0)
    return noisy_gd.mechanism(problem, coarse)._replace(plan=None)


# --- parts ----------------------------------------------------------------------------------------


def _publish_first(key: Array, state: tuple) -> PyTree:
    """The model alone, from a state that also keeps something else."""
    del key
    return state[0]


def _curator(problem: Problem, schedule: Schedule, run) -> Mechanism:
    """Noisy-GD's learning and deletion (`dfn:noisy_gd_unlrn`) with another run.

    The run is `(key, params, database, num_steps) -> params`.
    """
    start = _start(problem, schedule)

    def learn(key, database):
        start_key, run_key = jax.random.split(key)
        return run(run_key, start(start_key, database), database, schedule.learn_steps)

    def delete(key, before, edit, after, state):
        return run(key, state, after, schedule.delete_steps)

    return Mechanism(learn, delete, domain=problem.loss.domain)


def _start(problem: Problem, schedule: Schedule):
    """`(key, database) -> params`: the Gaussian start of the correct curator."""
    return noisy_gd.mechanism(problem, schedule._replace(learn_steps=0, batches=1)).learn


def _run(key, params, database, num_steps, problem, schedule) -> PyTree:
    numbers = {"step_size": schedule.step_size, "noise_variance": schedule.noise_variance}
    return noisy_gd.run(key, params, database, problem, num_steps=num_steps, **numbers)


def _on_batches(
    key, params, database, batches, problem, schedule, skipped: int | Array = -1
) -> PyTree:
    """One step on each of these batches, but none on the skipped one."""
    slope = gradient_of(problem, database, schedule.batches)
    deviation = jnp.sqrt(2 * schedule.step_size * schedule.noise_variance)

    def body(params, place):
        k, batch = place
        noise = noisy_gd.standard_normal_like(noisy_gd.step_key(key, k), params)
        moved = jax.tree.map(
            lambda weight, normal, drift: weight + deviation * normal - schedule.step_size * drift,
            params,
            noise,
            slope(params, batch),
        )
        keep = batch == skipped
        return jax.tree.map(lambda new, old: jnp.where(keep, old, new), moved, params), None

    return jax.lax.scan(body, params, (jnp.arange(batches.size), batches))[0]
