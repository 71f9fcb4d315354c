"""PNSGD unlearning (Chien et al. 2024b): noisy steps over fixed batches, in a fixed order.

    θ ← P_R(θ - η ∇ℒ_B(θ) + √(2ησ²) N(0, I)),   B = B_1, …, B_l, B_1, …

The records are dealt into l = ⌈n/b⌉ batches of b places once; learning takes T passes over them and
request s takes K_s more. Empty places hold the loss's null record. Batches never change, so a
record's place must be remembered: the order of the batches is a state. Write c = 1 - ηλ.
"""

from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, PyTree

from dd_jax import noisy_gd
from dd_jax.baselines import request_steps
from dd_jax.baselines.base import Guarantee, System, cost, label_of, publish_part
from dd_jax.baselines.calibration import check_planned_edit
from dd_jax.baselines.pnsgd_passes import PnsgdCalibration, calibrate
from dd_jax.baselines.projected import project
from dd_jax.erm import Problem
from dd_jax.losses import null_records
from dd_jax.types import num_records

__all__ = [
    "PnsgdCalibration",
    "PnsgdState",
    "calibrate",
    "draw_order",
    "guarantee",
    "run",
    "system",
]


class PnsgdState(NamedTuple):
    """The model, the order of the records, and the number of requests served where that matters.

    Row numbers of n and above in the order stand for empty places.
    """

    model: PyTree
    order: Int[Array, "batches places"]
    served: PyTree


def draw_order(key: Array, n: int, batch_size: int) -> Int[Array, "batches places"]:
    """A uniform order of n rows and the empty places that fill the last batch, cut into batches."""
    batches = -(-n // batch_size)
    places = jax.random.permutation(key, batches * batch_size).astype(jnp.int32)
    return places.reshape(batches, batch_size)


def run(
    key: Array,
    model: PyTree,
    database: PyTree,
    problem: Problem,
    order: Array,
    *,
    step_size,
    noise_variance,
    epochs,
    radius=None,
) -> PyTree:
    """K passes over the batches in their order, `epochs` perhaps traced.

    Assumes: a loss with a null record if n is no multiple of the batch size.
    """
    rows = _with_null(problem, database, order)
    batches = order.shape[0]

    def step(step_key, k, model):
        batch = jax.tree.map(lambda leaf: leaf[order[k % batches]], rows)
        model = noisy_gd.step(step_key, model, batch, problem, step_size, noise_variance)
        return model if radius is None else project(model, radius)

    return request_steps.repeat(key, model, epochs * batches, step)


def _with_null(problem: Problem, database: PyTree, order: Array) -> PyTree:
    """The database, with null records behind it for the empty places."""
    n = num_records(database)
    empty = order.size - n
    if empty == 0:
        return database
    null = null_records(problem.loss, database, empty)
    return jax.tree.map(lambda leaf, more: jnp.concatenate([leaf, more]), database, null)


def system(problem: Problem, calibration: PnsgdCalibration) -> System:
    """PNSGD unlearning with these settings; the model is released, the order of batches kept.

    Cost: n T gradients to learn, n K_s at request s.

    Raises:
        InputError: a calibration for another problem, or, when it is run, for another n or fewer
            records per request, or a loss without null record where batches do not divide n.
        CertificateRefused: noise that float32 cannot hold.
    """
    request_steps.check_noise(calibration)
    start = noisy_gd.mechanism(problem, _without_steps(calibration))
    numbers = {
        "step_size": calibration.step_size,
        "noise_variance": calibration.noise_variance,
        "radius": calibration.radius,
    }

    def learn(key: Array, database: PyTree):
        order_key, start_key, run_key = jax.random.split(key, 3)
        order = draw_order(order_key, calibration.n, calibration.batch_size)
        model = start.learn(start_key, database)
        if calibration.radius is not None:
            model = project(model, calibration.radius)
        epochs = calibration.learn_steps
        model = run(run_key, model, database, problem, order, epochs=epochs, **numbers)
        state = PnsgdState(model, order, request_steps.start_counter(calibration))
        return state, cost(calibration.n * epochs, retrained=1)

    def delete(key: Array, before: PyTree, edit, after: PyTree, state: PnsgdState):
        check_planned_edit(edit, calibration.edits_per_request)
        epochs = request_steps.steps_now(calibration, state.served)
        model = run(key, state.model, after, problem, state.order, epochs=epochs, **numbers)
        served = request_steps.count_one(state.served)
        return PnsgdState(model, state.order, served), cost(epochs * calibration.n)

    return System(
        name="pnsgd",
        learn=learn,
        delete=delete,
        publish=publish_part,
        predict=label_of(problem.loss),
        secret=lambda state: (state.order, state.served),
        guarantee=guarantee(calibration),
        domain=start.domain,
    )


def _without_steps(calibration: PnsgdCalibration) -> PnsgdCalibration:
    """The same, learning no step: `noisy_gd.mechanism` then draws and checks the start alone."""
    return replace(calibration, learn_steps=0)


def guarantee(calibration: PnsgdCalibration) -> Guarantee:
    """The claim that the calibration was made for, as data."""
    learned = (
        f"learning has converged (T → ∞); {calibration.learn_steps} passes are run, and nothing "
        f"here shows that they are enough"
        if calibration.radius is None
        else f"models projected on the ball of radius {calibration.radius:g}"
    )
    counter = "" if calibration.keeps == "nothing" else f", {calibration.keeps}"
    return Guarantee(
        notion="Rényi unlearning",
        epsilon=calibration.epsilon,
        delta=calibration.delta,
        order=calibration.orders[-1],
        private="yes: one release, by the authors' mini-batch bound",
        adaptive="sequential requests fixed in advance only",
        keeps=f"the order of the batches{counter}",
        conditions=(
            "convex, Lipschitz (or clipped single-index), smooth loss; λ > 0",
            "η ≤ 1/(λ+β)",
            f"at most {calibration.edits_per_request} records per request, replaced, n fixed",
            f"at most {calibration.requests} requests",
            learned,
            "batches and their order never change and do not depend on the records",
            "compared with converged retraining on the same batches",
        ),
        reference="Chien et al. 2024b (noisy stochastic gradient descent), sequential form",
    )
