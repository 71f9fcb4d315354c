"""Perturbed gradient descent (Neel, Roth & Sharifi-Malvajerdi 2021), with and without a secret.

Projected gradient descent towards the optimum, then Gaussian noise; what is published is not
projected. The secret form goes on from the iterate before the noise (Theorems 9 and 10), the other
from the published model (Theorem 28). The paper's updates are replacements at fixed n here.
"""

import jax
import jax.numpy as jnp

from dd_jax.baselines.base import Guarantee, System, cost, label_of
from dd_jax.baselines.calibration import check_planned, check_planned_edit
from dd_jax.baselines.perturbed_gd_noise import Calibration, calibrate
from dd_jax.baselines.perturbed_gd_stateless import calibrate_stateless
from dd_jax.baselines.projected import descend
from dd_jax.erm import Problem
from dd_jax.noisy_gd import standard_normal_like
from dd_jax.types import publish_model

__all__ = ["Calibration", "calibrate", "calibrate_stateless", "system"]


def system(problem: Problem, calibration: Calibration) -> System:
    """Perturbed-GD with this calibration.

    Cost: n T gradients to learn, n T_i per request.

    Raises:
        CertificateRefused: a claim that was made for another problem.
        InputError: when run, a database or an edit of another size than calibrated for.
    """
    made = calibration
    if made.epsilon is not None:
        made.constants.check_covers(problem)

    def move(params, database, num_steps):
        return descend(
            params,
            database,
            problem,
            step_size=made.step_size,
            radius=made.radius,
            num_steps=num_steps,
        )

    def perturb(key, params):
        noise = standard_normal_like(key, params)
        return jax.tree.map(
            lambda w, z: w + jnp.asarray(made.noise_deviation, w.dtype) * z, params, noise
        )

    def learn(key, database):
        check_planned(database, made.n)
        params = move(problem.loss.template(database), database, made.learn_steps)
        spent = cost(made.n * made.learn_steps, retrained=1)
        return (params if made.secret else perturb(key, params)), spent

    def delete(key, before, edit, after, state):
        check_planned_edit(edit, made.edits_per_request)
        params = move(state, after, made.delete_steps)
        return (params if made.secret else perturb(key, params)), cost(made.n * made.delete_steps)

    return System(
        name="perturbed-gd"
        + ("" if made.secret else "-stateless")
        + ("-best" if made.form == "best" else ""),
        learn=learn,
        delete=delete,
        publish=perturb if made.secret else publish_model,
        predict=label_of(problem.loss),
        secret=(lambda state: state) if made.secret else (lambda state: ()),
        guarantee=_guarantee(made),
        domain=problem.loss.domain,
    )


def _guarantee(made: Calibration) -> Guarantee:
    theorem = "Theorems 9 and 10" if made.secret else "Theorem 28"
    claimed = made.epsilon is not None
    return Guarantee(
        notion="(ε,δ)-unlearning" if claimed else "none",
        epsilon=made.epsilon,
        delta=made.delta,
        order=None,
        private="no",
        adaptive=("claimed" if made.secret else "claimed for the same algorithm")
        if claimed
        else "no",
        keeps="the iterate before the noise" if made.secret else "nothing",
        conditions=(
            "strongly convex, smooth, Lipschitz loss on the ball",
            "each release is judged alone",
            *made.conditions,
        ),
        reference=f"Neel, Roth & Sharifi-Malvajerdi 2021, {theorem}"
        + ("" if made.form == "published" else ", re-derived for replacement at fixed n"),
    )
