"""PNSGD unlearning (Chien et al. 2024b): noisy steps over fixed batches, in a fixed order.

    θ ← P_R(θ - η ∇ℒ_B(θ) + √(2ησ²) N(0, I)),   B = B_1, …, B_l, B_1, …

The records are dealt into l = ⌈n/b⌉ batches of b places once; learning takes T passes over them and
request s takes K_s more. Empty places hold the loss's null record. Batches never change, so a
record's place must be remembered: the order of the batches is a state. Write c = 1 - ηλ.
"""

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, PyTree

from dd_jax import checks, noisy_gd
from dd_jax.baselines.base import (
    Guarantee,
    System,
    check_planned_edit,
    cost,
    label_of,
    project,
    publish_part,
    root_slope,
)
from dd_jax.baselines.langevin import Calibration, run_of, settings_of
from dd_jax.erm import Problem
from dd_jax.guarantees import convex, floats
from dd_jax.guarantees.convex import Descent
from dd_jax.losses import null_records
from dd_jax.plans.settings import whole
from dd_jax.types import num_records

# --- calibration ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class PnsgdCalibration(Calibration):
    """`Calibration` in passes over the data, with batches of b places and a projection radius R.

    Attributes:
        batch_size: b.
        radius: R, or None for no projection; the claim then takes learning as converged.
        distances: Z_1, Z_2, …, the bound on how far request s starts from retraining (W∞).
    """

    batch_size: int
    radius: float | None
    distances: tuple[float, ...]


def calibrate(
    problem,
    *,
    n: int,
    epsilon: float,
    delta: float,
    noise_variance: float,
    batch_size: int,
    learn_epochs: int,
    radius: float | None = None,
    requests: int = 1,
    edits_per_request: int = 1,
    step_size: float | None = None,
) -> PnsgdCalibration:
    """The fewest passes K_1, …, K_i, at least one each, after which every release meets (ε, δ).

    Z = 2ηGr / (b(1 - c^l)),  Z_1 = Z + 2R c^{Tl},  Z_{s+1} = Z_s c^{K_s l} + Z
    K_s is the least with min_q [ε_s(q) + log(1/δ)/(q-1)] ≤ ε; the first request uses
    the plain form and later ones the sharper one, as the authors do. All are linear in q, so the
    condition is slope ≤ (√(log(1/δ) + ε) - √(log(1/δ)))².

    Guarantee: (ε, δ)-unlearning against converged retraining with the same batches.
    Assumes: convex, L-Lipschitz (or clipped single-index), β-smooth loss; η ≤ 1/(λ+β);
        non-adaptive requests; replace-one; r records of one request may share a batch.

    Args:
        problem: the regularised problem, or its constants.
        n: number of records. epsilon, delta: the target after every request.
        noise_variance: σ². batch_size: b. learn_epochs: T.
        radius: R > 0 of the projection; None takes learning as converged (T → ∞), unprojected.
        requests: i, how many requests the claim covers. edits_per_request: r.
        step_size: η; 1/(λ+β) unless given.
    """
    run = run_of(
        problem,
        n=n,
        noise_variance=noise_variance,
        edits_per_request=edits_per_request,
        step_size=step_size,
    )
    settings = settings_of(problem, run, learn_epochs)
    batch_size = checks.whole("batch_size", batch_size, least=1, most=n)
    root = root_slope(epsilon, delta)
    requests = int(checks.count("requests", requests))
    unconverged = 0.0
    if radius is not None:
        radius = float(checks.positive("radius", radius))
        steps = settings["learn_steps"] * -(-n // batch_size)
        unconverged = 2 * radius * (1 - run.step_size * run.l2) ** steps
    passes, distances = least_passes(run, batch_size, root**2, requests, unconverged)
    return PnsgdCalibration(
        **settings,
        request_steps=tuple(passes),
        orders=(1 + math.sqrt(-math.log(delta)) / root,) * requests,
        epsilon=float(epsilon),
        delta=float(delta),
        accountant="published",
        batch_size=batch_size,
        radius=radius,
        distances=tuple(distances),
    )


def unlearning_renyi(order, distance, contraction, noise_variance, step_size, steps, *, sharp):
    """The divergence that K' steps leave of a distance Z from retraining, as published.

    ε(q) = q Z² c^{2K'} / (2ησ²), or sharper q Z² / (2ησ²) · (1-c²) c^{2K'} / (1 - c^{2K'})

    Guarantee: R_q of the release from retraining, K' ≥ 1. The argument of the sharper form would
    prove half of it, since one step adds variance 2ησ² and not ησ².
    Assumes: c-Lipschitz steps. Chien et al. 2024b; the sharper form is the one of their code.
    """
    steps = checks.count("steps", steps)
    scale = floats.product(checks.order(order), distance, distance, 1 / (2 * step_size))
    left = contraction ** (2 * steps)
    share = (1 - contraction**2) / (1 - left) if sharp else 1.0
    return floats.plain(floats.product(scale, 1 / noise_variance, left, share))


def batch_distance(run: Descent, batch_size: int):
    """The distance Z = 2ηGr / (b(1 - c^l)) of converged runs on neighbouring databases (W∞)."""
    contraction = 1 - run.step_size * run.l2
    sensitivity = 2 * run.step_size * run.lipschitz * run.records / batch_size
    return sensitivity / (1 - contraction ** -(-int(run.n) // batch_size))


def least_passes(
    run: Descent, batch_size: int, slope: float, requests: int = 1, unconverged: float = 0.0
) -> tuple[list[int], list[float]]:
    """The passes K_s and the distances Z_s, request by request.

    Args:
        run: the steps; a request edits `run.records` of the n records.
        batch_size: b.
        slope: the claim R_q ≤ q · slope that every release has to meet.
        requests: how many.
        unconverged: what learning adds to Z_1 by stopping early.
    """
    contraction = 1 - run.step_size * run.l2
    batches = -(-int(run.n) // batch_size)
    fresh = batch_distance(run, batch_size)
    exponent = convex.contraction_exponent(run.step_size, run.l2, 2 * batches)
    distance, passes, distances = fresh + unconverged, [], []
    for request in range(requests):
        # c^{2Kl} ≤ ratio, or (1-c²)y/(1-y) ≤ ratio for y = c^{2Kl}
        ratio = slope / (distance**2 / (2 * run.step_size * run.noise_variance))
        least = ratio if request == 0 else ratio / (ratio + 1 - contraction**2)
        count = np.ceil(np.log(least) / exponent)
        passes.append(max(1, whole("request_steps", count)))
        distances.append(float(distance))
        distance = distance * contraction ** (passes[-1] * batches) + fresh
    return passes, distances


# --- the system ----------------------------------------------------------------------------------


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
    """The model after `epochs` passes (perhaps traced) over the batches in their order.

    Assumes: a loss with a null record if n is not a multiple of the batch size.
    """
    rows = _with_null(problem, database, order)
    batches = order.shape[0]

    def step(k, model):
        batch = jax.tree.map(lambda leaf: leaf[order[k % batches]], rows)
        step_key = noisy_gd.step_key(key, k)
        model = noisy_gd.step(step_key, model, batch, problem, step_size, noise_variance)
        return model if radius is None else project(model, radius)

    return jax.lax.fori_loop(0, epochs * batches, step, model)


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
    calibration.check_noise()
    # A mechanism of zero steps: it only draws and checks the start.
    start = noisy_gd.mechanism(problem, replace(calibration, learn_steps=0))
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
        state = PnsgdState(model, order, calibration.before_requests())
        return state, cost(calibration.n * epochs, retrained=1)

    def delete(key: Array, before: PyTree, edit, after: PyTree, state: PnsgdState):
        check_planned_edit(edit, calibration.edits_per_request)
        epochs, served = calibration.next_request(state.served)
        model = run(key, state.model, after, problem, state.order, epochs=epochs, **numbers)
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


def guarantee(calibration: PnsgdCalibration) -> Guarantee:
    """The claim that the calibration was made for, as data."""
    learned = (
        f"learning has converged (T → ∞); {calibration.learn_steps} passes are run, and nothing "
        f"here shows that they are enough"
        if calibration.radius is None
        else f"models projected on the ball of radius {calibration.radius:g}"
    )
    counter = "" if calibration.uniform else f", {calibration.keeps}"
    return Guarantee(
        notion="Rényi unlearning",
        epsilon=calibration.epsilon,
        delta=calibration.delta,
        order=calibration.orders[-1],
        private="yes: one release, by the authors' mini-batch bound",
        adaptive="sequential requests fixed in advance only",
        keeps=f"the order of the batches{counter}",
        conditions=(
            *calibration.conditions,
            f"at most {calibration.requests} requests",
            learned,
            "batches and their order never change and do not depend on the records",
            "compared with converged retraining on the same batches",
        ),
        reference="Chien et al. 2024b (noisy stochastic gradient descent), sequential form",
    )
