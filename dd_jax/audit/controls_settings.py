"""Where the controls are run: Noisy-GD with the linear loss, whose certificates are attained.

Eleven records on the line: one target, ±R in the two worlds, and ten that balance to zero. From a
fixed start the optimal certificate is the exact truth and not only a bound, so that a mistake that
costs a little privacy is out of bounds, and the law of every release is a known Gaussian. All
settings take the same numbers of steps and requests and differ in traced numbers alone: the correct
curator is compiled once for all of them.
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array

from dd_jax import losses, noisy_gd
from dd_jax.audit.samples import Stage, one_run, two_worlds
from dd_jax.ensemble import Pair
from dd_jax.erm import Problem
from dd_jax.noisy_gd import Schedule
from dd_jax.oracles import linear
from dd_jax.plans import Certificate, Plan, plan_convex
from dd_jax.requesters import churn
from dd_jax.types import Edit, Mechanism, replacement

ORDER = 2.0
L2 = 1.0
CLIP_NORM = 1.0
LARGEST_RECORD = 3.0
NUM_RECORDS = 11
TARGET_ROW = 0
LEARN_STEPS = 8
DELETE_STEPS = 2
NUM_REQUESTS = 6
CHUNK = 5_000
LOSS = losses.linear(feature_norm=LARGEST_RECORD)

Maker = Callable[[Problem, Schedule], Mechanism]
"""A curator for a problem and a schedule: `noisy_gd.mechanism` or a mutant of it."""


class Law(NamedTuple):
    """Two Gaussian laws on the line, stated exactly: means so far apart, and one variance."""

    mean_difference: float
    variance: float


@dataclass(frozen=True)
class Setting:
    """The linear loss in one dimension: λ = 1, n = 11, q = 2, K_L = 8, K_U = 2, six requests.

    Gradients are clipped at L = 1 and every request blanks the target's row.

    Attributes:
        rate: ηλ; a step contracts by c = 1 - ηλ.
        eps_dp: ε of one release, which σ² is calibrated to.
        seen: the releases that the observer is given; 0 is the learned model.
        target: R, the target's size; beyond 1 it is clipped.
        random_start: whether learning starts from the plan's Gaussian and not from 0.
        same_record: whether both worlds hold the same record: a null.
    """

    rate: float = 0.5
    eps_dp: float = 1.0
    seen: tuple[int, ...] = (1,)
    target: float = 1.0
    random_start: bool = False
    same_record: bool = False

    def __str__(self):
        worlds = "the same record twice" if self.same_record else f"±{self.target:g}"
        start = ", random start" if self.random_start else ""
        seen = ", ".join(f"φ_{release}" for release in self.seen)
        if len(self.seen) > 2:
            seen = f"φ_{self.seen[0]} … φ_{self.seen[-1]}"
        return f"{worlds}, ηλ = {self.rate:g}, ε_dp = {self.eps_dp:g}{start}, sees {seen}"

    @functools.cached_property
    def plan(self) -> Plan:
        """The optimal plan for ε_dp, with the setting's steps and start."""
        made = plan_convex(
            Problem(LOSS, L2, CLIP_NORM),
            n=NUM_RECORDS,
            dim=1,
            order=ORDER,
            eps_dp=self.eps_dp,
            eps_dd=self.eps_dp,
            step_size=self.rate / L2,
        )
        return replace(
            made,
            learn_steps=LEARN_STEPS,
            delete_steps=DELETE_STEPS,
            init_variance=made.init_variance if self.random_start else 0.0,
        )

    @property
    def schedule(self) -> Schedule:
        """The plan's numbers without its certificate, for mutants to alter."""
        return Schedule.of(self.plan)

    def certificate(self) -> Certificate:
        """What the plan guarantees for a record that request 1 deletes."""
        return self.plan.certificate(request=1)

    def law(self) -> Law:
        """The exact law of the only release seen (`dd_jax.oracles.linear`)."""
        (release,) = self.seen
        plan, after = self.plan, release * DELETE_STEPS
        shift = linear.mean_shift(CLIP_NORM, L2, plan.n, plan.step_size, LEARN_STEPS, after)
        variance = linear.variance(
            L2, plan.noise_variance, plan.step_size, LEARN_STEPS + after, plan.init_variance
        )
        return Law(0.0 if self.same_record else float(shift), float(variance))

    def sample(
        self,
        key: Array,
        seeds: int,
        make: Maker = noisy_gd.mechanism,
        schedule: Schedule | None = None,
        *,
        mesh: Mesh | None = None,
    ) -> Pair:
        """The releases seen in both worlds, (seeds, releases), for a curator and its schedule."""
        schedule = self.schedule if schedule is None else schedule
        run = _run(make, schedule.learn_steps, schedule.delete_steps)
        traced = tuple(jnp.float32(number) for number in schedule[:3])
        # Whole chunks, so that nothing is compiled anew for another number of seeds.
        padded = CHUNK * math.ceil(seeds / CHUNK)
        worlds = (_database(self), _neighbour(self))
        pair = two_worlds(run, key, padded, *worlds, traced, chunk=CHUNK, mesh=mesh)
        return Pair(*(arm[:seeds, list(self.seen)] for arm in pair))


def _database(setting: Setting) -> Array:
    """The target and ten records that balance."""
    others = np.tile([1.0, -1.0], (NUM_RECORDS - 1) // 2)
    return jnp.asarray(np.append(setting.target, others)[:, None], jnp.float32)


def _neighbour(setting: Setting) -> Edit:
    """The target's other value."""
    other = setting.target if setting.same_record else -setting.target
    return replacement([TARGET_ROW], jnp.full((1, 1), other, jnp.float32))


@functools.cache
def _run(make: Maker, learn_steps: int, delete_steps: int) -> Callable:
    """One function object per curator, so that each is compiled once for all settings."""

    def run(key, database, numbers):
        step_size, noise_variance, init_variance = numbers
        schedule = Schedule(step_size, noise_variance, init_variance, learn_steps, delete_steps)
        mechanism = make(Problem(LOSS, L2, CLIP_NORM), schedule)
        blanks = churn(TARGET_ROW, jnp.zeros((1, 1), jnp.float32))
        every = tuple(range(NUM_REQUESTS + 1))
        stage = Stage(mechanism, blanks, database, TARGET_ROW, 1, NUM_REQUESTS, kept=every)
        return one_run(key, stage, lambda view: view.releases[:, 0])

    return run
