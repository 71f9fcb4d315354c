"""A system set up for a scene, what its own claim allows an adversary, and what its noise costs.

Noise of variance v_i along a direction of curvature h_i adds ½ Σ h_i v_i to the excess risk, to
second order.
"""

import math
from dataclasses import dataclass, field

import numpy as np

import dd_jax as dd
from dd_jax.baselines import noisy_gd_system
from dd_jax.baselines.base import Guarantee, System
from experiments.compare.scene import Scene

LINEAR, SHARDED, CLUSTERS = "linear", "shards", "clusters"
BATCH = 64

ONE_RELEASE = "the claim is for one release, and later ones draw on a secret state"
NOT_ADAPTIVE = "the claim is for requests that do not depend on releases"
AS_EDITED = "what is claimed of adaptive requests is against retraining on the rows as edited"


@dataclass(frozen=True)
class Contestant:
    """A system in a scene.

    Attributes:
        system: the system.
        releases: what is released: LINEAR (a model), SHARDED (several) or CLUSTERS (centroids).
        setting: the numbers that were chosen, in words.
        allowed: the largest advantage that its own claim allows after one release, after many, and
            against an adaptive requester; None where nothing is claimed.
        why_not: why there is no such number.
        missing: columns without a value, and why.
        one_by_one: whether interactions are run one after another: where a request may train anew,
            running many side by side would train in all of them.
        repeats: whether an empty request leaves the state as it is and releases it again; the
            patient adversary is then shown a few releases, and that they repeat is checked.
    """

    system: System
    releases: str
    setting: str
    allowed: tuple[float | None, float | None, float | None]
    why_not: tuple[str, str, str] = ("", "", "")
    missing: dict[str, str] = field(default_factory=dict)
    one_by_one: bool = False
    repeats: bool = False


def allowed_by_unlearning(epsilon: float, delta: float) -> float:
    """The advantage that two laws may have which are both (ε, δ)-close to the same third.

    Each is (2ε, δ(1 + e^ε))-close to the other, and (e, d)-closeness allows (eᵉ - 1 + 2d)/(eᵉ + 1).
    """
    pair = 2 * epsilon
    spare = 2 * delta * (1 + math.exp(epsilon))
    return min(1.0, math.tanh(pair / 2) + spare / (math.exp(pair) + 1))


def quadratic_risk(scene: Scene, variance) -> float:
    """½ Σ h_i v_i for noise of these variances along the Hessian's directions."""
    return float(np.sum(scene.curvatures * variance) / 2)


def noisy_gd_risk(scene: Scene, plan: dd.Plan) -> float:
    """`quadratic_risk` of Noisy-GD's stationary law: v_i = 2ησ²/(1 - (1 - ηh_i)²)."""
    contraction = 1 - plan.step_size * scene.curvatures
    return quadratic_risk(scene, 2 * plan.step_size * plan.noise_variance / (1 - contraction**2))


def unlearning(guarantee: Guarantee, *, lasting: bool, adaptive: str = NOT_ADAPTIVE) -> dict:
    """(ε, δ)-unlearning: a bound for one release, none against what requests carry.

    Args:
        guarantee: the claim.
        lasting: whether the first release after the deletion, with what has the same law in both
            worlds, determines the law of all later ones. They are then post-processing of it, and
            its bound holds for all of them together.
        adaptive: why there is no bound against an adaptive requester.
    """
    bound = allowed_by_unlearning(guarantee.epsilon or 0.0, guarantee.delta or 0.0)
    many, why = (bound, "") if lasting else (None, ONE_RELEASE)
    return {"allowed": (bound, many, None), "why_not": ("", why, adaptive)}


EXACT = {"allowed": (0.0, 0.0, None), "why_not": ("", "", NOT_ADAPTIVE)}


def noisy_gd_plan(scene: Scene, accountant: str = "optimal") -> dd.Plan:
    """Noisy-GD's plan for the scene's target."""
    config = scene.config
    return noisy_gd_system.calibrate(
        scene.problem,
        n=scene.n,
        dim=scene.dim,
        epsilon=config.epsilon,
        delta=config.delta,
        epsilon_private=config.epsilon_private,
        accountant=accountant,
    )
