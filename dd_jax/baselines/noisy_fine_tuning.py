"""Noisy fine-tuning (Koloskova et al. 2025): certified unlearning for networks, without convexity.

    θ ← clip(θ, C₀), then T times:  θ ← θ - η(clip(ḡ(θ), C₁) + λθ) + N(0, σ² I)

ḡ is the mean gradient on the edited records and is clipped as a whole. Two runs on the same records
from any two starts are then close: clipping bounds how far they can be apart at first and how much
each step can add, and the noise covers it. Here σ² is the variance of a step's noise (in Noisy-GD
that is 2ησ²). Write ρ = 1 - ηλ.
"""

import math
from dataclasses import dataclass
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from dd_jax import checks, noisy_gd
from dd_jax.baselines.base import Guarantee, System, cost, perturb, project, root_slope
from dd_jax.errors import InputError
from dd_jax.guarantees import floats, renyi
from dd_jax.losses import Loss
from dd_jax.types import num_records


@dataclass(frozen=True)
class Tuning:
    """Settings of training and of noisy fine-tuning, and the claim they were chosen for.

    Attributes:
        model_clip: C₀. gradient_clip: C₁. l2: λ ≥ 0. step_size: η.
        noise_variance: σ², variance of the noise of one fine-tuning step.
        num_steps: T noisy steps per request.
        final_steps: steps without noise after them.
        learn_steps: plain steps of training. learn_step_size: their size.
        init_variance: variance of the Gaussian start.
        epsilon, delta: the claim. accountant: how it was converted.
    """

    model_clip: float
    gradient_clip: float
    l2: float
    step_size: float
    noise_variance: float
    num_steps: int
    final_steps: int
    learn_steps: int
    learn_step_size: float
    init_variance: float
    epsilon: float
    delta: float
    accountant: str


def calibrate(
    *,
    epsilon: float,
    delta: float,
    model_clip: float,
    gradient_clip: float,
    step_size: float,
    l2: float = 0.0,
    num_steps: int | None = None,
    learn_steps: int,
    learn_step_size: float | None = None,
    init_variance: float = 0.1,
    final_steps: int = 0,
    accountant: Literal["published", "gaussian"] = "published",
) -> Tuning:
    """The least noise, and by default the authors' number of steps, for one request to meet (ε, δ).

    R_q ≤ q ε_R for every q, so "published" takes √ε_R = √(log(1/δ) + ε) - √(log(1/δ)); the same
    argument gives Gaussian DP with μ = √(2ε_R), and "gaussian" converts that exactly.

    Guarantee: `guarantee`.
    Assumes: nothing of the loss; 0 ≤ ηλ < 1.

    Args:
        epsilon, delta: the target for each request.
        model_clip: C₀. gradient_clip: C₁. step_size: η. l2: λ.
        num_steps: T; `least_steps` unless given.
        learn_steps: plain steps of training, of size `learn_step_size` (η unless given) from
            N(0, init_variance I).
        final_steps: steps without noise after the T noisy ones.
        accountant: "published" or "gaussian".
    """
    clips = {"model_clip": model_clip, "gradient_clip": gradient_clip, "step_size": step_size}
    clips = {name: float(checks.positive(name, value)) for name, value in clips.items()}
    clips["l2"] = float(checks.nonnegative("l2", l2))
    decay = clips["step_size"] * clips["l2"]
    if not decay < 1:
        raise InputError(
            f"step_size · l2 = {decay:g} is not below 1; give a step size below {1 / l2:g}."
        )
    if num_steps is None:
        num_steps = least_steps(**clips)
    num_steps = int(checks.count("num_steps", num_steps))
    if checks.choice("accountant", accountant, ("published", "gaussian")) == "published":
        slope = root_slope(epsilon, delta) ** 2
    else:
        slope = renyi.gdp_from_epsilon_delta(checks.positive("epsilon", epsilon), delta) ** 2 / 2
    # The slope is proportional to 1/σ².
    noise = renyi_slope(1.0, **clips, num_steps=num_steps) / slope * (1 + 1e-12)
    learn_step_size = clips["step_size"] if learn_step_size is None else learn_step_size
    return Tuning(
        **clips,
        noise_variance=noise,
        num_steps=num_steps,
        final_steps=int(checks.steps("final_steps", final_steps)),
        learn_steps=int(checks.steps("learn_steps", learn_steps)),
        learn_step_size=float(checks.positive("learn_step_size", learn_step_size)),
        init_variance=float(checks.nonnegative("init_variance", init_variance)),
        epsilon=float(epsilon),
        delta=float(delta),
        accountant=accountant,
    )


def renyi_slope(noise_variance, *, model_clip, gradient_clip, step_size, l2, num_steps):
    """ε_R of R_q ≤ q ε_R between two runs of T steps on the same records from any two starts.

    λ > 0: ε_R = (2C₀ρ^T + (2C₁/λ)(1-ρ^T))² · ηλ(2-ηλ) / (2σ²(1-ρ^{2T}))
    λ = 0: ε_R = (2C₀ + 2C₁ηT)² / (2σ²T)

    Guarantee: both ways, and μ-GDP with μ = √(2ε_R).
    Assumes: 0 ≤ ηλ < 1. Koloskova et al. 2025; their code takes half of this σ² for λ = 0.
    """
    noise = checks.positive("noise_variance", noise_variance)
    decay = max(step_size * l2, np.finfo(np.float64).tiny)
    exponent = math.log1p(-decay)
    left = math.exp(num_steps * exponent)
    # Σ ρ^k and Σ ρ^{2k} over the T steps; expm1 keeps their digits where ηλ is tiny, and for λ = 0
    # both are T.
    grown = -math.expm1(num_steps * exponent) / decay
    spread = math.expm1(2 * num_steps * exponent) / math.expm1(2 * exponent)
    distance = 2 * model_clip * left + 2 * gradient_clip * step_size * grown
    return floats.plain(floats.product(distance, distance, 1 / (2 * noise), 1 / spread))


def least_steps(*, model_clip, gradient_clip, step_size, l2) -> int:
    """The authors' T = min(⌈C₀/(C₁η)⌉, ⌈log(2λC₀/C₁)/(ηλ)⌉ if this is positive), at least 1."""
    candidates = [math.ceil(model_clip / (gradient_clip * step_size))]
    if l2 > 0 and 2 * l2 * model_clip > gradient_clip:
        shrink = math.log(2 * l2 * model_clip / gradient_clip) / (step_size * l2)
        candidates.append(math.ceil(shrink))
    return max(1, min(candidates))


def system(loss: Loss, tuning: Tuning, *, predict) -> System:
    """Plain training, then noisy fine-tuning at every request; the release is all that is kept.

    Cost: n gradients per step, K_L to learn, T + final steps per request.

    Args:
        loss: any differentiable loss; its constants are not used.
        tuning: from `calibrate`.
        predict: `(model, features) -> labels`.
    """

    def learn(key: Array, database: PyTree):
        # The start must differ between units: equal units of a network would stay equal.
        noise = noisy_gd.standard_normal_like(key, loss.template(database))
        start = jax.tree.map(
            lambda leaf: leaf * jnp.sqrt(jnp.asarray(tuning.init_variance, leaf.dtype)), noise
        )
        model = _plain(loss, tuning, start, database, tuning.learn_steps, tuning.learn_step_size)
        return model, cost(num_records(database) * tuning.learn_steps, retrained=1)

    def delete(key: Array, before: PyTree, edit, after: PyTree, model: PyTree):
        model = fine_tune(key, loss, tuning, model, after)
        steps = tuning.num_steps + tuning.final_steps
        return model, cost(num_records(before) * steps)

    return System(
        name="noisy-fine-tuning",
        learn=learn,
        delete=delete,
        predict=predict,
        guarantee=guarantee(tuning),
        domain=loss.domain,
    )


def fine_tune(key: Array, loss: Loss, tuning: Tuning, model: PyTree, database: PyTree) -> PyTree:
    """Clip the model, take T noisy steps, then the final ones without noise."""
    deviation = math.sqrt(tuning.noise_variance)

    def step(k, model):
        moved = _moved(loss, tuning, model, database, tuning.step_size)
        return perturb(noisy_gd.step_key(key, k), moved, deviation)

    start = project(model, tuning.model_clip)
    model = jax.lax.fori_loop(0, tuning.num_steps, step, start)
    return _plain(loss, tuning, model, database, tuning.final_steps, tuning.step_size)


def _plain(loss, tuning, model, database, num_steps, step_size) -> PyTree:
    def body(_, model):
        return _moved(loss, tuning, model, database, step_size)

    return jax.lax.fori_loop(0, num_steps, body, model)


def _moved(loss: Loss, tuning: Tuning, model, database, step_size) -> PyTree:
    """θ - η(clip(ḡ, C₁) + λθ)."""

    def mean_loss(model):
        return jnp.mean(jax.vmap(loss.value, in_axes=(None, 0))(model, database))

    slope = project(jax.grad(mean_loss)(model), tuning.gradient_clip)

    def leaf(weight, part):
        eta, decay = (jnp.asarray(x, weight.dtype) for x in (step_size, tuning.l2))
        return weight - eta * (part + decay * weight)

    return jax.tree.map(leaf, model, slope)


def guarantee(tuning: Tuning) -> Guarantee:
    """The claim that the tuning was made for, as data."""
    return Guarantee(
        notion="(ε,δ)-unlearning",
        epsilon=tuning.epsilon,
        delta=tuning.delta,
        private="no, unless training is made private as well",
        keeps="nothing",
        conditions=(
            "compared with the same fine-tuning from a model that never saw the record, "
            "not with retraining",
            "0 ≤ ηλ < 1; any differentiable loss",
            "C₀, C₁, η, λ and T do not depend on the records",
        ),
        reference="Koloskova et al. 2025, model clipping"
        + ("; Gaussian DP conversion of dd_jax" if tuning.accountant == "gaussian" else ""),
    )
