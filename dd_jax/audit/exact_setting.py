"""Where a certificate in exact arithmetic is judged by samples: two releases, one step apart.

The record stays. A program whose noise is of floats has the same law in real numbers and other last
bits, and one with a coarse lattice rounds the two worlds apart.
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array

from dd_jax import losses, noisy_gd, requesters
from dd_jax.audit.scores import Score, float_noise
from dd_jax.ensemble import Pair, over_seeds
from dd_jax.erm import Problem, gradient
from dd_jax.interaction import interact
from dd_jax.plans import Certificate, Plan, plan_convex
from dd_jax.types import Mechanism

ORDER = 2.0
DIM = 20
NUM_RECORDS = 11
LEARN_STEPS = 8
EPS_DP = 0.02
CHUNK = 1_000
# A little inside the unit ball, so that rounding does not move the record outside of it.
TARGET = np.full(DIM, 0.999 / math.sqrt(DIM), np.float32)
PROBLEM = Problem(losses.linear(), 1.0)

Maker = Callable[[Problem, Plan], Mechanism]


@dataclass(frozen=True)
class ExactSetting:
    """The linear loss in 20 dimensions, n = 11, λ = 1, ηλ = 1/2, K_L = 8, K_U = 1; sees φ_0, φ_1.

    The target is ±a unit vector, the other records are empty, and request 1 empties another row.

    Attributes:
        same_record: whether both worlds hold the same record, which makes the setting a null.
    """

    same_record: bool = False

    def __str__(self):
        worlds = "the same record twice" if self.same_record else "±1"
        return f"{worlds}, exact arithmetic, d = {DIM}, ηλ = 0.5, ε_dp = {EPS_DP:g}, sees φ_0, φ_1"

    @functools.cached_property
    def plan(self) -> Plan:
        """The plan in exact arithmetic, with one step per request."""
        made = plan_convex(
            PROBLEM,
            n=NUM_RECORDS,
            dim=DIM,
            order=ORDER,
            eps_dp=EPS_DP,
            eps_dd=EPS_DP,
            step_size=0.5,
            arithmetic="exact",
        )
        return replace(made, learn_steps=LEARN_STEPS, delete_steps=1)

    def certificate(self) -> Certificate:
        """What the plan guarantees after request 1."""
        return self.plan.certificate(request=1)

    @functools.cached_property
    def float_noise(self) -> Score:
        """The score that looks at the last bits."""

        def slopes(params):
            return jnp.stack([gradient(PROBLEM, params, _database(side)) for side in (1, -1)])

        return float_noise(self.plan, slopes)

    def sample(
        self,
        key: Array,
        seeds: int,
        make: Maker = noisy_gd.mechanism,
        *,
        mesh: Mesh | None = None,
    ) -> Pair:
        """(φ_0, φ_1) in both worlds, (seeds, 2d), for a curator."""
        run, keys = _run(make, replace(self, same_record=False)), jax.random.split(key)
        padded = CHUNK * math.ceil(seeds / CHUNK)  # as in `ControlSetting.sample`
        worlds = [_database(side) for side in (1, 1 if self.same_record else -1)]
        arms = [
            over_seeds(run, key, padded, world, chunk=CHUNK, mesh=mesh)
            for key, world in zip(keys, worlds, strict=True)
        ]
        return Pair(*(np.asarray(arm)[:seeds] for arm in arms))


def _database(side: int) -> Array:
    return jnp.zeros((NUM_RECORDS, DIM), jnp.float32).at[0].set(side * TARGET)


@functools.cache
def _run(make: Maker, setting: ExactSetting) -> Callable:
    """One function object per curator, so that each is compiled once."""
    mechanism = make(PROBLEM, setting.plan)

    def run(key, database):
        stream = jax.tree.map(lambda leaf: leaf[None], losses.deletion(PROBLEM.loss, database, [1]))
        requester = requesters.fixed_stream(stream)
        _, happened = interact(key, mechanism, requester, database, num_requests=1)
        return happened.releases.ravel()

    return run
