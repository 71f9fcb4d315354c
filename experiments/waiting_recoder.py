"""The best requester against Noisy-GD with the linear loss: it watches, and recodes at the end.

The target is ±1 among rows of zeros. The requester sees φ_0 … φ_{p-1} and leaves the rows alone
until the request that deletes the target; then it writes the sign of the likelihood ratio of all it
saw into the other rows, and the models that follow sit on that side (erratum E2).
"""

import functools
import math
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array

from dd_jax import losses
from dd_jax.attacks import recoding
from dd_jax.attacks.game import play
from dd_jax.attacks.recoding_law import L2, LIPSCHITZ
from dd_jax.audit.samples import Outcome, Stage, two_worlds
from dd_jax.erm import Problem
from dd_jax.guarantees import renyi
from dd_jax.interaction import Requester
from dd_jax.intervals import Estimate, advantages
from dd_jax.noisy_gd import Schedule, mechanism
from dd_jax.oracles import linear
from dd_jax.plans import Plan
from dd_jax.types import Edit, replacement

TARGET_ROW = recoding.TARGET_ROW


class Seen(NamedTuple):
    """The log-likelihood ratio of the releases seen, up to a factor, and the last of them."""

    ratio: Array
    last: Array


def deletion_request(seen: int) -> int:
    """The request that deletes the target: the one right after the last release seen."""
    return max(seen, 1)


def requester(n: int, seen: int, decay: float) -> Requester:
    """Watches `seen` releases, each a run of contraction `decay` after the one before it.

    Given its predecessor, a release has the mean decay·φ ± (1 - decay)/(nλ) and a variance in
    proportion to 1 - decay²: its log-likelihood ratio is (φ' - decay·φ)/(1 + decay), in units of
    φ_0's own.
    """
    request = deletion_request(seen)
    # Slot 0 belongs to the last row until the target is deleted, so that every edit has the same r.
    others = jnp.arange(n - 1, dtype=jnp.int32).at[0].set(n - 1)

    def init(key):
        del key
        return Seen(jnp.zeros(1, jnp.float32), jnp.zeros(1, jnp.float32))

    def act(key, memory, observation):
        del key
        first = observation.request == 1
        news = (observation.release - decay * memory.last) / (1 + decay)
        news = jnp.where(first, observation.release, news)
        ratio = memory.ratio + jnp.where(observation.visible, news, jnp.float32(0))
        now = observation.request == request
        coded = jnp.where(now, jnp.sign(ratio), jnp.float32(0))
        record = jnp.broadcast_to(coded, (n - 1, 1)).at[0].set(0)
        rows = others.at[0].set(jnp.where(now, jnp.int32(TARGET_ROW), others[0]))
        return Seen(ratio, observation.release), Edit(rows, record)

    return Requester(init, act)


def trial(key: Array, records: Array, schedule, *, steps: tuple, seen: int) -> Outcome:
    """The target goes right after the last release seen; guess the side of the next release."""
    numbers = Schedule(*schedule, *steps)
    curator = mechanism(Problem(losses.linear(), L2), numbers)
    decay = (1 - numbers.step_size * L2) ** numbers.delete_steps
    request = deletion_request(seen)
    curious = requester(records.shape[0], seen, decay)
    stage = Stage(curator, curious, records, TARGET_ROW, request, request, tuple(range(seen)))
    return play(key, stage, recoding.adversary)


def measure(key: Array, plan: Plan, seen: int, seeds: int, confidence: float) -> Estimate:
    """The adversary's advantage, with an exact interval."""
    records = jnp.zeros((plan.n, 1), jnp.float32).at[TARGET_ROW].set(1)
    other = replacement([TARGET_ROW], -jnp.ones((1, 1), jnp.float32))
    schedule = (plan.step_size, plan.noise_variance, plan.init_variance)
    fn = functools.partial(trial, steps=(plan.learn_steps, plan.delete_steps), seen=seen)
    pair = two_worlds(fn, key, seeds, records, other, schedule)
    return advantages(pair.present, pair.absent, confidence)[0]


def exact(plan: Plan, seen: int) -> float:
    """2Φ(μ/2) - 1 with the μ of the p releases seen, or of the release itself where p = 0.

    The rows outweigh the noise: that a release is on the other side than they are is left out.
    """
    numbers = (2.0, LIPSCHITZ, L2, plan.noise_variance, plan.n, plan.step_size)
    gone = plan.delete_steps if seen == 0 else 0
    squares = float(linear.renyi(*numbers, plan.learn_steps, gone, plan.init_variance))
    if seen > 1:
        squares += (seen - 1) * float(linear.renyi(*numbers, plan.delete_steps, 0))
    return float(renyi.advantage_from_gdp(math.sqrt(squares)))
