"""Systems that claim closeness to retraining and give the other records no privacy.

Their free number (steps, noise) is the cheapest that adds at most `Config.quiet_risk` to the excess
risk: accuracy is what one leaves privacy away for.
"""

import math
from collections.abc import Callable

import numpy as np

from dd_jax.baselines import (
    certified_removal,
    noisy_fine_tuning,
    perturbed_gd,
    projective_residual,
    sekhari,
)
from dd_jax.baselines.base import Constants, linear_labels
from dd_jax.baselines.perturbed_gd import Form
from experiments.compare.contestant import (
    AS_EDITED,
    LINEAR,
    Contestant,
    noisy_gd_plan,
    noisy_gd_risk,
    quadratic_risk,
    unlearning,
)
from experiments.compare.scene import Scene

MOST_STEPS = 1000
NOTHING = "nothing is claimed"


def _quiet_variance(scene: Scene) -> float:
    """The variance of isotropic noise that adds `quiet_risk`."""
    return scene.config.quiet_risk / quadratic_risk(scene, 1.0)


def perturbed_with_secret(form: Form, equal_risk: bool = False) -> Callable[[Scene], Contestant]:
    """The form with a secret, at the least I whose noise is quiet, or no worse than Noisy-GD's."""

    def make(scene: Scene) -> Contestant:
        risk = noisy_gd_risk(scene, noisy_gd_plan(scene)) if equal_risk else scene.config.quiet_risk
        for steps in range(1, MOST_STEPS):
            made = perturbed_gd.calibrate(
                Constants.of_problem(scene.problem),
                n=scene.n,
                epsilon=scene.config.epsilon,
                delta=scene.config.delta,
                delete_steps=steps,
                form=form,
            )
            if quadratic_risk(scene, made.noise_deviation**2) <= risk:
                break
        words = f"I = {made.delete_steps}, noise {made.noise_deviation:.3g}"
        if quadratic_risk(scene, made.noise_deviation**2) > risk:
            words += f", louder than the rule has it: no I below {MOST_STEPS} is quieter"
        system = perturbed_gd.system(scene.problem, made)
        claim = unlearning(system.guarantee, lasting=False, adaptive=AS_EDITED)
        return Contestant(system, LINEAR, words, **claim)

    return make


def perturbed_stateless(form: Form) -> Callable[[Scene], Contestant]:
    """The form that restarts from the published model, at the steps that it asks for."""

    def make(scene: Scene) -> Contestant:
        made = perturbed_gd.calibrate_stateless(
            Constants.of_problem(scene.problem),
            n=scene.n,
            dim=scene.dim,
            epsilon=scene.config.epsilon,
            delta=scene.config.delta,
            max_requests=scene.config.releases + scene.config.copies,
            form=form,
        )
        words = (
            f"I = {made.noise_steps}, {made.delete_steps} steps, noise {made.noise_deviation:.3g}"
        )
        system = perturbed_gd.system(scene.problem, made)
        claim = unlearning(system.guarantee, lasting=True, adaptive=AS_EDITED)
        return Contestant(system, LINEAR, words, **claim)

    return make


def removal(scene: Scene) -> Contestant:
    """σ of b by the risk that it adds, ½ σ² Σ 1/h_i / n²; the budget then decides who retrains.

    An empty request changes nothing, so that a hundred releases are one. (A model that is withheld
    is followed by one with a fresh b, which draws on no secret either.)
    """
    spread = np.sum(1 / scene.curvatures) / (2 * scene.n**2)
    noise = math.sqrt(scene.config.quiet_risk / spread)
    system = certified_removal.system(
        scene.problem, noise=noise, epsilon=scene.config.epsilon, delta=scene.config.delta
    )
    return Contestant(
        system,
        LINEAR,
        f"σ of b = {noise:.3g}",
        one_by_one=True,
        repeats=True,
        **unlearning(system.guarantee, lasting=True),
    )


def newton_step(scene: Scene) -> Contestant:
    """Newton-step unlearning for batches of one record, the least noise that it can have."""
    claim = {"epsilon": scene.config.epsilon, "delta": scene.config.delta, "n": scene.n}
    noise = sekhari.calibrate(scene.problem, capacity=1, **claim)
    system = sekhari.system(scene.problem, noise=noise, capacity=1, **claim)
    words = f"batches of one record, noise {noise:.3g}"
    return Contestant(system, LINEAR, words, **unlearning(system.guarantee, lasting=False))


def projective(scene: Scene) -> Contestant:
    """The projective residual update, which claims nothing."""
    return Contestant(
        projective_residual.system(scene.problem),
        LINEAR,
        "nothing to choose",
        (None, None, None),
        (NOTHING, NOTHING, NOTHING),
        repeats=True,
    )


def fine_tuning(scene: Scene) -> Contestant:
    """Clips at the optimum's own size; as many quiet steps at the end as the risk rule asks for."""
    step_size = 1 / (scene.config.l2 + 0.25)
    options = {
        "epsilon": scene.config.epsilon,
        "delta": scene.config.delta,
        "model_clip": 2 * float(np.linalg.norm(scene.optimum)),
        "gradient_clip": 0.5,
        "step_size": step_size,
        "l2": scene.config.l2,
        "learn_steps": 50,
    }
    made = noisy_fine_tuning.calibrate(**options)
    spread = made.num_steps * made.noise_variance / _quiet_variance(scene)
    quiet = math.ceil(math.log(spread) / (2 * -math.log1p(-step_size * scene.config.l2)))
    made = noisy_fine_tuning.calibrate(final_steps=max(0, quiet), **options)
    system = noisy_fine_tuning.system(scene.problem.loss, made, predict=linear_labels)
    words = f"noisy steps: {made.num_steps}, quiet ones: {made.final_steps}"
    return Contestant(system, LINEAR, words, **unlearning(system.guarantee, lasting=True))
