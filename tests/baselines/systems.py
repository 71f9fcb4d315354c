"""Every system of the comparison in a small setting: the table that conformance tests walk.

To add a system: write a cached factory and put an `Entry` into `SYSTEMS`. Keep it tiny (n ≈ 12, a
few steps): everything in the table is run for hundreds of seeds.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from problems import signed

import dd_jax as dd
from dd_jax.baselines import (
    certified_removal,
    dc_k_means,
    fixed_model,
    k_means,
    langevin,
    noisy_fine_tuning,
    noisy_gd_system,
    noisy_m_a_sgd,
    perturbed_gd,
    pnsgd,
    projective_residual,
    q_k_means,
    retraining,
    sekhari,
    sisa,
    sufficient_statistics,
)
from dd_jax.baselines.base import Constants, System
from dd_jax.plans.arithmetic import publication_grid
from dd_jax.requesters import stack_edits

N, DIM = 12, 2
PROBLEM = dd.Problem(dd.losses.logistic(), l2=0.2)
DATABASE = signed(N, DIM, seed=3)


class Entry(NamedTuple):
    """One system in a small setting, and what is claimed of it there.

    Attributes:
        make: cached factory of the system.
        database: 𝒟_0.
        stream: the edits, leading axis = requests (the same r in each).
        learn_gradients: `Cost.gradients` of learning by hand, None where a run decides it.
        delete_gradients: `Cost.gradients` of each request by hand, None where a run decides it.
        newton: (Hessians, solves) of each request that is not a retraining, by hand.
        learns_newton: whether learning evaluates Hessians at all.
        delete_retrained: `Cost.retrained` of each request, None where a run decides it.
        exact: the release after the stream is claimed to have the law of learning on the edited
            database.
        quiet: cached factory without any noise: its releases must not depend on the key.
        moves: whether a release depends on the records at all.
        never_there: an unlearning claim that compares with a run which never held the record, not
            with retraining.
        grid: what the model is rounded to when it is published, 0 where it is not.
    """

    make: Callable[[], System]
    database: Any
    stream: dd.Edit
    learn_gradients: int | None = None
    delete_gradients: int | None = None
    newton: tuple[int, int] = (0, 0)
    learns_newton: bool = False
    delete_retrained: int | None = 0
    exact: bool = False
    quiet: Callable[[], System] | None = None
    moves: bool = True
    never_there: bool = False
    grid: float = 0.0


def deletions(*rows: int) -> dd.Edit:
    """A stream that blanks one row of `DATABASE` per request."""
    return stack_edits([dd.deletion(PROBLEM.loss, DATABASE, [row]) for row in rows])


def replacements(*rows: int) -> dd.Edit:
    """A stream that puts one far-off record into one row of `DATABASE` per request."""
    record = dd.Labelled(jnp.array([[1.0, 0.0]]), jnp.array([-1.0]))
    return stack_edits([dd.replacement([row], record) for row in rows])


STREAM = jax.tree.map(lambda *leaves: jnp.concatenate(leaves), deletions(2), replacements(5))

# Two rows per request; the second request names row 5 twice, and only its first record counts.
PAIR = dd.Labelled(jnp.array([[1.0, 0.0], [0.0, -0.9]]), jnp.array([-1.0, 1.0]))
PAIRS = stack_edits(
    [dd.deletion(PROBLEM.loss, DATABASE, [2, 0]), dd.Edit(jnp.array([5, 5], jnp.int32), PAIR)]
)


@functools.cache
def plan(epsilon: float) -> dd.Plan:
    """A short plan for the small problem."""
    sizes = {"n": N, "dim": DIM, "epsilon": epsilon, "delta": 1e-2}
    return noisy_gd_system.calibrate(PROBLEM, epsilon_private=3 * epsilon, **sizes)


def noisy() -> Entry:
    """Noisy-GD; its other accountants run the same program with other numbers."""
    made = plan(1.0)
    return Entry(
        functools.cache(lambda: noisy_gd_system.system(PROBLEM, made, delta=1e-2)),
        DATABASE,
        STREAM,
        learn_gradients=N * made.learn_steps,
        delete_gradients=N * made.delete_steps,
        grid=publication_grid(made),
    )


# Little noise, so that few seeds tell a stale record from a fresh one.
LOUD = plan(20.0)


@functools.cache
def retrained() -> System:
    return retraining.system(PROBLEM, LOUD)


TARGET = {"epsilon": 1.0, "delta": 1e-2}


def langevin_entry(accountant: str) -> Entry:
    """Langevin unlearning by one of its accountants."""
    made = langevin.calibrate(
        PROBLEM,
        n=N,
        noise_variance=0.3,
        learn_steps=4,
        requests=2,
        accountant=accountant,
        **TARGET,
    )
    steps = set(made.request_steps)
    return Entry(
        functools.cache(lambda: langevin.system(PROBLEM, made)),
        DATABASE,
        STREAM,
        learn_gradients=4 * N,
        delete_gradients=N * steps.pop() if len(steps) == 1 else None,
    )


def pnsgd_entry() -> Entry:
    """PNSGD in batches of 5, the last one with three empty places."""
    sizes = {"n": N, "noise_variance": 1.0, "batch_size": 5, "learn_epochs": 2, "radius": 3.0}
    made = pnsgd.calibrate(PROBLEM, requests=2, **sizes, **TARGET)
    assert made.request_steps == (1, 1)
    return Entry(
        functools.cache(lambda: pnsgd.system(PROBLEM, made)),
        DATABASE,
        STREAM,
        learn_gradients=2 * N,
        delete_gradients=N,
    )


def fine_tuning_entry() -> Entry:
    """Noisy fine-tuning of a small network."""
    loss = dd.losses.bounded_network(hidden=2)
    clips = {"model_clip": 1.0, "gradient_clip": 0.5, "step_size": 0.2, "l2": 0.1}
    made = noisy_fine_tuning.calibrate(num_steps=3, learn_steps=4, **clips, **TARGET)

    def labels(model, features):
        kernel = model["params"]["Dense_0"]["kernel"]
        return jnp.sign(jnp.sum(jnp.tanh(features @ kernel), axis=-1))

    return Entry(
        functools.cache(lambda: noisy_fine_tuning.system(loss, made, predict=labels)),
        DATABASE,
        STREAM,
        learn_gradients=4 * N,
        delete_gradients=3 * N,
        never_there=True,
    )


def removal_entry() -> Entry:
    """Certified removal with noise that lets both requests pass."""
    claim = {"epsilon": 1.0, "delta": 1e-2}
    noise = certified_removal.calibrate(PROBLEM, n=N, requests=2, **claim) * 1.01
    return Entry(
        functools.cache(lambda: certified_removal.system(PROBLEM, noise=noise, **claim)),
        DATABASE,
        STREAM,
        delete_gradients=2,
        newton=(N, 2),
        learns_newton=True,
    )


def sekhari_entry() -> Entry:
    """Newton-step unlearning for a batch of two, which is what the stream holds."""
    claim = {"n": N, "capacity": 2, "epsilon": 1.0, "delta": 1e-2}
    noise = sekhari.calibrate(PROBLEM, **claim)
    return Entry(
        functools.cache(lambda: sekhari.system(PROBLEM, noise=noise, **claim)),
        DATABASE,
        STREAM,
        delete_gradients=2,
        newton=(2, 1),
        learns_newton=True,
    )


@functools.cache
def projective() -> System:
    return projective_residual.system(PROBLEM)


POINTS = k_means.points(DATABASE.features)
FAR_POINTS = k_means.Points(jnp.array([[3.0, -2.0], [-1.0, 4.0]]), jnp.ones(2, jnp.int32))
CLUSTER_STREAM = stack_edits(
    [k_means.deletion(POINTS, [2, 7]), dd.Edit(jnp.array([5, 5], jnp.int32), FAR_POINTS)]
)


@functools.cache
def quantised() -> System:
    return q_k_means.system(clusters=2, iterations=2, spacing=0.5)


@functools.cache
def tree() -> System:
    """Five leaves of three places, three of which are empty."""
    return dc_k_means.system(clusters=2, iterations=2, branching=5)


CONSTANTS = Constants.of_problem(PROBLEM)
PERTURBED = perturbed_gd.calibrate(CONSTANTS, n=N, delete_steps=3, **TARGET)
STATELESS = perturbed_gd.calibrate_stateless(
    CONSTANTS, n=N, dim=DIM, max_requests=2, form="best", **TARGET
)


def perturbed(made: perturbed_gd.Calibration) -> Entry:
    """Perturbed-GD with one of its calibrations."""

    def quiet():
        return perturbed_gd.system(PROBLEM, made.replace(noise_deviation=0.0))

    return Entry(
        functools.cache(lambda: perturbed_gd.system(PROBLEM, made)),
        DATABASE,
        STREAM,
        learn_gradients=N * made.learn_steps,
        delete_gradients=N * made.delete_steps,
        quiet=functools.cache(quiet),
    )


STEPS, BATCH = 6, 4
# Less noise, longer steps and a smaller ball than calibrated, so that few seeds tell wrong from
# right and the projection acts.
ACCELERATED = noisy_m_a_sgd.Calibration(1.0, N, BATCH, STEPS, 1.0, 0.6, 0.2)


@functools.cache
def accelerated() -> System:
    return noisy_m_a_sgd.system(PROBLEM, ACCELERATED)


SHARDS, SLICES = 2, 2
CLIPPED = dd.Problem(dd.losses.logistic(), l2=0.2, clip_norm=0.5)


@functools.cache
def sharded(private: bool = False) -> System:
    training = sisa.Training(PROBLEM, num_steps=3, step_size=2.0)
    if private:
        training = training._replace(problem=CLIPPED, noise_multiplier=1.0)
    return sisa.system(training, SHARDS, SLICES)


@functools.cache
def padded() -> System:
    """Private shards of three places, three of the fifteen places empty."""
    training = sisa.Training(CLIPPED, num_steps=2, step_size=2.0, noise_multiplier=0.2)
    return sisa.system(training, 5)


RIDGE = dd.Problem(dd.losses.squared(label_bound=1.0), l2=0.2)


@functools.cache
def summed() -> System:
    """Little noise, so that few seeds tell a stale record from a fresh one."""
    claim = {"n": N, "dim": DIM, "epsilon": 20.0, "delta": 1e-2}
    return sufficient_statistics.system(RIDGE, sufficient_statistics.calibrate(RIDGE, **claim))


SYSTEMS: dict[str, Entry] = {
    "sufficient-statistics": Entry(
        summed,
        DATABASE,
        PAIRS,
        learn_gradients=N,
        delete_gradients=4,
        newton=(4, 1),
        learns_newton=True,
        exact=True,
    ),
    "certified-removal": removal_entry(),
    "sekhari": sekhari_entry(),
    "projective-residual": Entry(
        projective,
        DATABASE,
        PAIRS,
        delete_gradients=4,
        newton=(4, 2),
        learns_newton=True,
        quiet=projective,
    ),
    "q-k-means": Entry(
        quantised,
        POINTS,
        CLUSTER_STREAM,
        learn_gradients=3 * N,
        delete_retrained=None,
        exact=True,
    ),
    "dc-k-means": Entry(
        tree,
        POINTS,
        CLUSTER_STREAM,
        learn_gradients=3 * (15 + 10),
        exact=True,
    ),
    "langevin": langevin_entry("published"),
    "langevin-optimal": langevin_entry("optimal"),
    "pnsgd": pnsgd_entry(),
    "noisy-fine-tuning": fine_tuning_entry(),
    "noisy-gd": noisy(),
    "retraining": Entry(
        retrained,
        DATABASE,
        STREAM,
        learn_gradients=N * LOUD.learn_steps,
        delete_gradients=N * LOUD.learn_steps,
        delete_retrained=1,
        exact=True,
        grid=publication_grid(LOUD),
    ),
    "fixed-model": Entry(
        functools.cache(lambda: fixed_model.system(PROBLEM)),
        DATABASE,
        STREAM,
        learn_gradients=0,
        delete_gradients=0,
        exact=True,
        moves=False,
    ),
    "perturbed-gd": perturbed(PERTURBED),
    "perturbed-gd-stateless-best": perturbed(STATELESS),
    "noisy-m-a-sgd": Entry(
        accelerated,
        DATABASE,
        PAIRS,
        learn_gradients=STEPS * BATCH,
        delete_retrained=None,
        exact=True,
    ),
    # Two stages of two steps: over the first half of the places, then over all of them.
    "sisa": Entry(
        sharded,
        DATABASE,
        PAIRS,
        learn_gradients=2 * N // 2 + 2 * N,
        delete_retrained=None,
        exact=True,
    ),
    "sisa-private": Entry(
        padded,
        DATABASE,
        PAIRS,
        learn_gradients=2 * N,
        exact=True,
    ),
}
