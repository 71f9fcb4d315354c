"""Noisy-GD, the same steps under other accountants, and the two reference points.

All run at the noise of Noisy-GD's plan, so that they have its risk.
"""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

import dd_jax as dd
from dd_jax.baselines import fixed_model, langevin, noisy_gd_system, pnsgd, retraining
from dd_jax.guarantees import convex, inference
from experiments.compare.contestant import (
    BATCH,
    LINEAR,
    Contestant,
    noisy_gd_plan,
    noisy_gd_risk,
    quadratic_risk,
    unlearning,
)
from experiments.compare.scene import Scene


def noisy_gd_entry(accountant: str) -> Callable[[Scene], Contestant]:
    """Noisy-GD by one of its accountants, bounded by its own certificate."""

    def make(scene: Scene) -> Contestant:
        plan = noisy_gd_plan(scene, accountant)
        system = noisy_gd_system.system(scene.problem, plan, delta=scene.config.delta)
        quiet, adaptive = (plan.certificate(adaptivity=p).advantage_bound for p in (0, 1))
        words = (
            f"σ² = {plan.noise_variance:.3g}, {plan.learn_steps} steps, then {plan.delete_steps}"
        )
        return Contestant(system, LINEAR, words, (quiet, quiet, adaptive))

    return make


def retrained(scene: Scene) -> Contestant:
    """Retraining with Noisy-GD: private as its plan is or more, exact by definition."""
    plan = noisy_gd_plan(scene)
    bound = float(inference.advantage_gdp(plan.certificate().mu_dp))
    plan = replace(plan, learn_steps=min(plan.learn_steps, _steps_from_scratch(scene, plan)))
    system = retraining.system(scene.problem, plan)
    return Contestant(system, LINEAR, f"{plan.learn_steps} steps each time", (0.0, 0.0, bound))


def _steps_from_scratch(scene: Scene, plan: dd.Plan) -> int:
    """The fewest steps that leave at most a tenth of Noisy-GD's risk of what they start from.

    To second order k steps leave ½ Σ h_i (1 - ηh_i)^{2k} θ*_i² and as much of the start's variance,
    h_i the scene's own curvatures where the plan's bound has the least that they can be.
    """
    start = np.asarray(scene.weights) ** 2 + plan.init_variance
    left = 1 - plan.step_size * scene.curvatures
    room = 0.1 * noisy_gd_risk(scene, plan)
    steps = 1
    while quadratic_risk(scene, start * left ** (2 * steps)) > room:
        steps += 1
    return steps


def untrained(scene: Scene) -> Contestant:
    """The model that depends on no record."""
    missing = {"accuracy": "θ = 0 names no class"}
    system = fixed_model.system(scene.problem)
    return Contestant(system, LINEAR, "θ = 0", (0.0, 0.0, 0.0), missing=missing)


def langevin_entry(accountant: str) -> Callable[[Scene], Contestant]:
    """Langevin unlearning by its own accountant, for one request, or by ours for any number."""

    def make(scene: Scene) -> Contestant:
        config, plan = scene.config, noisy_gd_plan(scene)
        options = {
            "n": scene.n,
            "epsilon": config.epsilon,
            "delta": config.delta,
            "noise_variance": plan.noise_variance,
            "learn_steps": plan.learn_steps,
            "accountant": accountant,
        }
        made = langevin.calibrate(scene.problem, **options)
        system = langevin.system(scene.problem, made)
        words = f"σ² of noisy-gd, {made.learn_steps} steps, then {made.delete_steps}"
        if accountant == "optimal":
            return Contestant(system, LINEAR, words, _gaussian_bounds(scene, made))
        later = langevin.calibrate(scene.problem, requests=10, **options).request_steps[-1]
        words += f" (claim for 1 request; the tenth of ten would take {later})"
        return Contestant(system, LINEAR, words, **unlearning(system.guarantee, lasting=True))

    return make


def _gaussian_bounds(scene: Scene, made) -> tuple[float, float, float]:
    """Advantages under μ_dd, and √(μ_dd² + μ_dp²) where one release was seen (erratum E2)."""
    smoothness = scene.problem.constants.loss.smoothness or 0.0
    numbers = (scene.problem.l2, smoothness, made.noise_variance, scene.n, made.step_size)
    run = convex.Descent(2, 1.0, *numbers)
    gone = convex.deletion_optimal_mu(run, made.delete_steps)
    stays = convex.privacy_optimal_mu(run, math.inf)
    quiet, adaptive = (float(inference.advantage_gdp(mu)) for mu in (gone, math.hypot(gone, stays)))
    return quiet, quiet, adaptive


def pnsgd_entry(scene: Scene) -> Contestant:
    """PNSGD unlearning, its claim covering every request that is made here.

    The claim holds for every order of the batches, which both worlds draw alike: together with the
    order the first release determines the law of all later ones.
    """
    config, plan = scene.config, noisy_gd_plan(scene)
    made = pnsgd.calibrate(
        scene.problem,
        n=scene.n,
        epsilon=config.epsilon,
        delta=config.delta,
        noise_variance=plan.noise_variance,
        batch_size=min(BATCH, scene.n),
        learn_epochs=plan.learn_steps,
        radius=1 / config.l2,
        requests=config.releases + 1,
    )
    system = pnsgd.system(scene.problem, made)
    words = f"σ² of noisy-gd, batches of {made.batch_size}, {made.learn_steps} passes, then "
    counts = sorted(set(made.request_steps))
    words += " or ".join(map(str, counts))
    return Contestant(system, LINEAR, words, **unlearning(system.guarantee, lasting=True))
