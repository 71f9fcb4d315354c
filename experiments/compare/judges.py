"""How models are judged: excess risk without the target, accuracy on held-out records."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import dd_jax as dd
from dd_jax import erm
from dd_jax.baselines import base
from experiments.compare.scene import TARGET_ROW, Scene


class Judges(NamedTuple):
    """Both, each compiled once."""

    risk: Callable[[Any], Any]
    accuracy: Callable[[base.System, Any], np.ndarray]


def make_judges(scene: Scene) -> Judges:
    """The judges of a scene."""
    return Judges(risk_judge(scene), accuracy_judge(scene))


def risk_judge(scene: Scene) -> Callable[[Any], np.ndarray]:
    """Excess risk of each model on the records once the target is gone; compiled once per scene."""
    deletion = dd.deletion(scene.problem.loss, scene.database, [TARGET_ROW])
    gone = dd.apply_edit(scene.database, deletion)
    optimum = scene.optimum

    @jax.jit
    def judge(models):
        return jax.vmap(lambda model: erm.excess_risk(scene.problem, model, gone, optimum))(models)

    return judge


def accuracy_judge(scene: Scene) -> Callable[[base.System, Any], np.ndarray]:
    """Share of held-out records that each release labels rightly; compiled once per predictor."""

    @partial(jax.jit, static_argnums=0)
    def judge(predict, releases):
        labels = jax.vmap(lambda release: predict(release, scene.test.features))(releases)
        return jnp.mean((labels == scene.test.label).astype(jnp.float32), axis=1)

    return lambda system, releases: np.asarray(judge(system.predict, releases))
