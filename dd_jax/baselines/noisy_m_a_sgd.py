"""Noisy-m-A-SGD (Ullah et al. 2021): accelerated mini-batch SGD with noise, unlearned exactly.

    ẘ_t = (1 - α_t) w_t + α_t w_{t-1},  α_t = (1 - t)/(t + 2)
    w_{t+1} = P(ẘ_t - η (g_t + θ_t)),   θ_t ~ N(0, σ² I),  g_t the mean gradient of batch b_t at ẘ_t

Every batch, noise, gradient and iterate is kept. A request goes through the kept steps: where a
replaced row is in the batch, g becomes g' = g - Δ, and ξ = g + θ, which had the law N(g, σ²), must
get the law N(g', σ²). It is kept with probability min(1, φ_{g'}(ξ)/φ_g(ξ)) (then θ' = ξ - g' and no
iterate moves). Otherwise it is reflected to ξ' = g + g' - ξ, and the steps after it are run again.

The paper deletes rows: a batch that held the row draws another row in its place. Here a row is
replaced at fixed n and the batches of retraining do not depend on the records, so the batch stays.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from dd_jax import checks
from dd_jax.baselines.base import (
    Constants,
    Guarantee,
    System,
    check_planned,
    cost,
    label_of,
    projected_step,
    publish_part,
    replaced,
)
from dd_jax.erm import Problem, gradient
from dd_jax.errors import CertificateRefused
from dd_jax.types import Edit


@dataclass(frozen=True)
class Calibration:
    """Settings of a run and the stability ρ that they were made for.

    Attributes:
        stability: ρ, the total variation that replacing one record can cause.
        n: number of records. batch_size: b. num_steps: T.
        step_size: η. radius: R of the ball that is projected onto.
        noise_deviation: σ of each coordinate of θ_t.
        constants: those of the problem that the settings are for; None for hand-made settings.
    """

    stability: float
    n: int
    batch_size: int
    num_steps: int
    step_size: float
    radius: float
    noise_deviation: float
    constants: Constants | None = None

    def recompute_bound(self, edits_per_request: int = 1) -> float:
        """The bound r ρ √T / 8 on P[a request reruns steps].

        Each of T steps is hit with probability b/n and then rejected with at most G/(bσ).
        """
        rows = float(checks.count("edits_per_request", edits_per_request))
        return min(1.0, rows * self.stability * math.sqrt(self.num_steps) / 8)


def calibrate(
    constants: Constants,
    *,
    n: int,
    dim: int,
    stability: float,
    batch_size: int,
    num_steps: int | None = None,
) -> Calibration:
    """Noise, steps and step size for total-variation stability ρ; unlearning is exact for any.

        T = max{(ρn)²/(bd), √(SDρn/(G√d)), (ρn)²/(16b²)},  σ = 8√T G/(nρ)
        η = min{1/(2S), D/(√(2G²/b + σ²d) T^{3/2})}

    The last term of T is the theorem's condition on it; T is rounded up.

    Guarantee: ρ-TV-stable learning; the recomputation probability of `recompute_bound`.
    Assumes: convex, S-smooth, G-Lipschitz loss on a ball of diameter D; ρ ≤ 1.
    Ullah et al. 2021, noisy-m-A-SGD; η as in its proof.

    Raises:
        CertificateRefused: ρ above 1, or a number of steps below the theorem's condition.
    """
    n, dim, batch = (
        int(checks.count(name, value))
        for name, value in (("n", n), ("dim", dim), ("batch_size", batch_size))
    )
    rho = float(checks.positive("stability", stability))
    if rho > 1:
        raise CertificateRefused(
            f"stability = {rho:g} is above 1, the largest total variation; give at most 1."
        )
    checks.whole("batch_size", batch, least=1, most=n)
    big_g, diameter = constants.lipschitz, constants.diameter
    needed = max(1, math.ceil((rho * n) ** 2 / (16 * batch**2)))
    accurate = max(
        (rho * n) ** 2 / (batch * dim),
        math.sqrt(constants.smoothness * diameter * rho * n / (big_g * math.sqrt(dim))),
    )
    steps = max(needed, math.ceil(accurate)) if num_steps is None else num_steps
    steps = int(checks.count("num_steps", steps))
    if steps < needed:
        raise CertificateRefused(
            f"num_steps = {steps} is below (ρn)²/(16b²); give at least {needed}, "
            f"larger batches or a smaller stability."
        )
    noise = 8 * math.sqrt(steps) * big_g / (n * rho)
    spread = math.sqrt(2 * big_g**2 / batch + noise**2 * dim)
    step_size = min(1 / (2 * constants.smoothness), diameter / (spread * steps**1.5))
    return Calibration(
        stability=rho,
        n=n,
        batch_size=batch,
        num_steps=steps,
        step_size=step_size,
        radius=constants.radius,
        noise_deviation=noise,
        constants=constants,
    )


class History(NamedTuple):
    """All that learning did, leading axis T: what a request goes through."""

    batches: Int[Array, "steps batch"]
    noises: Float[Array, "steps ..."]
    gradients: Float[Array, "steps ..."]
    iterates: Float[Array, "steps ..."]


class State(NamedTuple):
    """The released model w_T and the secret history (iterates w_0 … w_{T-1})."""

    model: Float[Array, "..."]
    history: History


def system(problem: Problem, calibration: Calibration) -> System:
    """Noisy-m-A-SGD with this calibration, for models that are a single array.

    Guarantee: the state after a request has exactly the law of learning on the edited database.
    Cost: T b gradients to learn. A request evaluates two gradients (the old record's and the new
    one's) for every replaced row in the batch of a step, up to and with the first step that is
    rejected, and b for every step after that one. Nothing else is counted: g is kept, so a
    reflected step needs no batch. `retrained` is 1 where the first step was rejected.

    Raises:
        CertificateRefused: a calibration for another problem.
    """
    made = calibration
    if made.constants is not None:
        made.constants.check_covers(problem)

    def learn(key, database):
        check_planned(database, made.n)
        start = problem.loss.template(database)

        def body(carry, t):
            now, before = carry
            point = look_ahead(t, now, before)
            step_key = jax.random.fold_in(key, t)
            batch, noise, slope = _draw(step_key, problem, made, point, database)
            after = _stepped(made, point, slope + noise)
            return (after, now), History(batch, noise, slope, now)

        (model, _), history = jax.lax.scan(body, (start, start), jnp.arange(made.num_steps))
        return State(model, history), cost(made.num_steps * made.batch_size, retrained=1)

    def delete(key, before, edit, after, state):
        check_planned(before, made.n)
        # Refuse what the meter cannot hold: every step compared and run again.
        cost(made.num_steps * (2 * edit.index.shape[0] + made.batch_size))
        accept_key, run_key = jax.random.split(key)
        differences, hits = _differences(problem, made, before, edit, state.history)
        rejected = _rejected(accept_key, made, state.history.noises, differences)
        first = jnp.where(jnp.any(rejected), jnp.argmax(rejected), made.num_steps)
        state = _rerun(run_key, problem, made, after, state, differences, first)
        return state, _request_cost(made, hits, first)

    return System(
        name="noisy-m-a-sgd",
        learn=learn,
        delete=delete,
        publish=publish_part,
        predict=label_of(problem.loss),
        secret=lambda state: state.history,
        guarantee=_guarantee(made),
        domain=problem.loss.domain,
    )


def look_ahead(t: Array, now: Array, before: Array) -> Array:
    """ẘ_t; at t = 0 both iterates are the start, so that α_0 does not matter."""
    alpha = ((1 - t) / (t + 2)).astype(now.dtype)
    return (1 - alpha) * now + alpha * before


def draw_batch(key: Array, n: int, size: int) -> Int[Array, " b"]:
    """Distinct rows, every set of them with the same chance, by Floyd's method.

    `jax.random.choice` sorts n numbers, which costs far more than a gradient of the batch.
    """
    last = jnp.arange(n - size, n, dtype=jnp.int32)
    drawn = jax.random.randint(key, (size,), 0, last + 1)

    def take(rows, place):
        row = jnp.where(jnp.any(rows == drawn[place]), last[place], drawn[place])
        return rows.at[place].set(row), None

    return jax.lax.scan(take, jnp.full(size, -1, jnp.int32), jnp.arange(size))[0]


def _draw(key, problem, made, point, database):
    """A fresh batch and noise for one step, and the batch's mean gradient: b evaluations."""
    batch_key, noise_key = jax.random.split(key)
    rows = draw_batch(batch_key, made.n, made.batch_size)
    noise = jax.random.normal(noise_key, point.shape, point.dtype)
    slope = gradient(problem, point, jax.tree.map(lambda leaf: leaf[rows], database))
    return rows, jnp.asarray(made.noise_deviation, point.dtype) * noise, slope


def _stepped(made, point, slope):
    """P(ẘ - η ξ)."""
    return projected_step(point, slope, step_size=made.step_size, radius=made.radius)


def _differences(problem, made, database, edit: Edit, history: History):
    """Δ_t = g_t - g'_t, and how many replaced rows are in each batch."""
    swap = replaced(database, edit)

    def of_record(point, record):
        return gradient(problem, point, jax.tree.map(lambda leaf: leaf[None], record))

    def one(t, batch, now, before):
        point = look_ahead(t, now, before)
        hit = jnp.any(batch[:, None] == edit.index[None, :], axis=0) & swap.accepted
        old, new = (jax.vmap(of_record, (None, 0))(point, r) for r in (swap.old, swap.new))
        total = jnp.tensordot(hit.astype(point.dtype), old - new, axes=1)
        return total / made.batch_size, jnp.sum(hit, dtype=jnp.int32)

    before = jnp.concatenate([history.iterates[:1], history.iterates[:-1]])
    steps = jnp.arange(made.num_steps)
    return jax.vmap(one)(steps, history.batches, history.iterates, before)


def _rejected(key, made, noises, differences) -> Array:
    """Where log U ≥ log φ_{g'}(ξ) - log φ_g(ξ) = (‖θ‖² - ‖θ + Δ‖²)/(2σ²); never where Δ = 0."""
    axes = tuple(range(1, noises.ndim))
    drop = jnp.sum(differences * (2 * noises + differences), axis=axes)
    tiny = jnp.finfo(noises.dtype).tiny
    variance = jnp.maximum(jnp.asarray(made.noise_deviation, noises.dtype) ** 2, tiny)
    log_uniform = -jax.random.exponential(key, drop.shape, drop.dtype)
    return (log_uniform >= -drop / (2 * variance)) & (drop != 0)


def _rerun(key, problem, made, database, state: State, differences, first) -> State:
    """Keep the steps before `first`, reflect that step, and run the steps after it again.

    Outside vmap the gradients of kept steps are really skipped.
    """
    history = state.history
    nexts = jnp.concatenate([history.iterates[1:], state.model[None]])

    def body(carry, xs):
        now, before = carry
        t, batch, noise, slope, following, difference = xs
        point = look_ahead(t, now, before)

        # The key passes through the cond as plain words: under vmap the cond becomes a select,
        # which the key-reuse checker counts as a second use of a key.
        words = jax.random.key_data(jax.random.fold_in(key, t))

        def fresh():
            step_key = jax.random.wrap_key_data(words, impl=jax.random.key_impl(key))
            return _draw(step_key, problem, made, point, database)

        def kept():
            reflected = jnp.where(t == first, -noise, noise + difference)
            return batch, reflected, slope - difference

        batch, noise, slope = jax.lax.cond(t > first, fresh, kept)
        moved = _stepped(made, point, slope + noise)
        after = jnp.where(t < first, following, moved)
        return (after, now), History(batch, noise, slope, now)

    steps = jnp.arange(made.num_steps)
    xs = (steps, history.batches, history.noises, history.gradients, nexts, differences)
    start = history.iterates[0]
    (model, _), history = jax.lax.scan(body, (start, start), xs)
    return State(model, history)


def _request_cost(made, hits, first):
    steps = jnp.arange(made.num_steps)
    compared = 2 * jnp.sum(jnp.where(steps <= first, hits, 0))
    rerun = made.batch_size * jnp.maximum(made.num_steps - 1 - first, 0)
    return cost(compared + rerun, retrained=first == 0)


def _guarantee(made: Calibration) -> Guarantee:
    """The claim: exactness holds for any settings, privacy only for calibrated noise."""
    calibrated = made.constants is not None and made.noise_deviation > 0
    return Guarantee(
        notion="exact unlearning",
        epsilon=0.0,
        delta=0.0,
        private="yes by its noise, as long as batches, noises and iterates stay secret"
        if calibrated
        else "no",
        adaptive="no claim found",
        keeps="every batch, noise, gradient and iterate",
        conditions=(
            "requests fixed in advance",
            "the whole history stays secret, batches too",
            "every row replaced at fixed n",
        ),
        reference="Ullah, Mai, Rao, Rossi & Arora 2021, noisy-m-A-SGD and its unlearning algorithm",
    )
