"""Systems whose state after a request has the law of retraining, for requests fixed in advance."""

import math

import dd_jax as dd
from dd_jax.baselines import dc_k_means, noisy_m_a_sgd, q_k_means, sisa
from dd_jax.baselines.base import Constants
from dd_jax.errors import InputError
from experiments.compare.contestant import (
    BATCH,
    CLUSTERS,
    EXACT,
    LINEAR,
    SHARDED,
    Contestant,
)
from experiments.compare.scene import Scene

# An odd number of shards: an even one can be divided and name no class.
SHARDS, SLICES, SHARD_STEPS, PRIVATE_SHARD_STEPS = 5, 2, 30, 6
K, ITERATIONS, SPACING = 2, 3, 0.05


def accelerated(scene: Scene) -> Contestant:
    """Noisy-m-A-SGD, as stable in total variation as (ε, 0) would have it."""
    rho = math.tanh(scene.config.epsilon / 2)
    made = noisy_m_a_sgd.calibrate(
        Constants.of_problem(scene.problem),
        n=scene.n,
        dim=scene.dim,
        stability=rho,
        batch_size=min(BATCH, scene.n),
    )
    words = f"ρ = {rho:.3g}, T = {made.num_steps}, batches of {made.batch_size}"
    system = noisy_m_a_sgd.system(scene.problem, made)
    return Contestant(system, LINEAR, words, one_by_one=True, repeats=True, **EXACT)


VOTE = {"excess_risk": "a majority vote has no loss of its own"}


def sisa_plain(scene: Scene) -> Contestant:
    """SISA without noise."""
    step_size = 1 / (scene.config.l2 + 0.25)
    training = sisa.Training(scene.problem, SHARD_STEPS, step_size)
    words = f"{SHARDS} shards of {SLICES} slices, {SHARD_STEPS} steps"
    return Contestant(
        sisa.system(training, SHARDS, SLICES), SHARDED, words, missing=VOTE, repeats=True, **EXACT
    )


def sisa_noisy(scene: Scene) -> Contestant:
    """Noise for (ε_private, δ) of one training of one shard."""
    config = scene.config
    noise = sisa.calibrate(PRIVATE_SHARD_STEPS, epsilon=config.epsilon_private, delta=config.delta)
    problem = dd.Problem(scene.problem.loss, config.l2, clip_norm=1.0)
    training = sisa.Training(problem, PRIVATE_SHARD_STEPS, 1 / (config.l2 + 0.25), noise)
    words = f"{SHARDS} shards, {PRIVATE_SHARD_STEPS} steps, noise multiplier {noise:.3g}"
    made = sisa.system(training, SHARDS)
    why = ("", "", "claimed by its authors with constants that are not known here")
    return Contestant(made, SHARDED, words, (0.0, 0.0, None), why, VOTE, repeats=True)


CLUSTERING = {
    "excess_risk": "k-means has no classification risk",
    "accuracy": "k-means predicts no label",
}


def quantised(scene: Scene) -> Contestant:
    """The spacing for a chance of 1/2 to retrain, or a fixed one where that cannot be had."""
    sizes = {"n": scene.n, "dim": scene.dim, "clusters": K, "iterations": ITERATIONS}
    try:
        spacing = q_k_means.calibrate(diameter=2.0, retrain_probability=0.5, **sizes)
        words = f"k = {K}, spacing {spacing:.3g}"
    except InputError as refused:
        spacing = SPACING
        words = f"k = {K}, spacing {spacing:g}; no calibration: {str(refused).rstrip('.')}"
    system = q_k_means.system(clusters=K, iterations=ITERATIONS, spacing=spacing)
    return Contestant(system, CLUSTERS, words, missing=CLUSTERING, repeats=True, **EXACT)


def divided(scene: Scene) -> Contestant:
    """DC-k-means with the cheapest tree of one level."""
    branching = dc_k_means.calibrate(n=scene.n, clusters=K)
    system = dc_k_means.system(clusters=K, iterations=ITERATIONS, branching=branching)
    words = f"k = {K}, {branching} leaves"
    return Contestant(system, CLUSTERS, words, missing=CLUSTERING, repeats=True, **EXACT)
