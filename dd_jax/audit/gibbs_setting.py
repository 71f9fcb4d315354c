"""Where a release is judged against its Gibbs law: the non-convex theorem, by samples.

A curator learns with a bounded non-convex loss and serves one request; its release is compared with
exact draws from the Gibbs law of the edited database, one-sided, as the certificate states it
(`thm:deletion_accuracy_nonconvex`).
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array

from dd_jax import losses, noisy_gd, requesters
from dd_jax.audit.gibbs import gibbs_samples
from dd_jax.databases import counted
from dd_jax.ensemble import Pair, over_seeds
from dd_jax.erm import Problem
from dd_jax.interaction import interact
from dd_jax.noisy_gd import Schedule
from dd_jax.plans import Certificate, Plan, plan_nonconvex
from dd_jax.types import Edit, Labelled, Mechanism, apply_edit

ORDER = 2.0
EPS_DP = 1.0
CHUNK = 5_000

Maker = Callable[[Problem, Schedule], Mechanism]


@dataclass(frozen=True)
class GibbsSetting:
    """Records (e_j, +1), as many of every axis j, loss -tanh(y⟨a, θ⟩); request 1 deletes row 0.

    With this much noise the start itself is within ε_dd: learning takes one step and a request 40,
    so that a start of another law is still seen after the deletion.

    Attributes:
        dim: d. n: records.
        l2: λ. noise_variance: σ². eps_dd: the deletion budget.
        same_record: whether draws of the Gibbs law take the release's place, which makes the
            setting a null.
    """

    dim: int = 10
    n: int = 1000
    l2: float = 0.77
    noise_variance: float = 4.0
    eps_dd: float = 0.5
    same_record: bool = False

    def __str__(self):
        released = "two sets of draws of" if self.same_record else "φ_1 against"
        return (
            f"tanh margin, d = {self.dim}, n = {self.n}, σ² = {self.noise_variance:g}, "
            f"ε_dd = {self.eps_dd:g}; {released} its Gibbs law"
        )

    @functools.cached_property
    def problem(self) -> Problem:
        """What is learned."""
        return Problem(losses.tanh_margin(), self.l2)

    @functools.cached_property
    def plan(self) -> Plan:
        """The planner's own step size and steps at this noise."""
        return plan_nonconvex(
            self.problem,
            n=self.n,
            dim=self.dim,
            order=ORDER,
            eps_dp=EPS_DP,
            eps_dd=self.eps_dd,
            noise_variance=self.noise_variance,
        )

    def certificate(self) -> Certificate:
        """What the plan guarantees after request 1 where nobody saw a release."""
        return self.plan.certificate(request=1)

    @property
    def database(self) -> Any:
        """D_0."""
        rows = Labelled(jnp.eye(self.dim), jnp.ones(self.dim))
        return counted(rows, np.full(self.dim, self.n // self.dim))

    @property
    def edit(self) -> Edit:
        """Request 1."""
        return losses.deletion(self.problem.loss, self.database, [0])

    def sample(
        self,
        key: Array,
        seeds: int,
        make: Maker = noisy_gd.mechanism,
        *,
        mesh: Mesh | None = None,
    ) -> Pair:
        """φ_1 of a curator, and as many draws from the Gibbs law of D_1; (seeds, d) each."""
        run_key, gibbs_key = jax.random.split(key)
        database = self.database
        after = apply_edit(database, self.edit)

        def of_gibbs(key):
            return gibbs_samples(key, self.problem, after, self.noise_variance, seeds)

        if self.same_record:
            released = of_gibbs(run_key)
        else:
            padded = CHUNK * math.ceil(seeds / CHUNK)  # as in `ControlSetting.sample`
            run = _run(make, self)
            released = over_seeds(run, run_key, padded, database, self.edit, chunk=CHUNK, mesh=mesh)
        return Pair(np.asarray(released)[:seeds], np.asarray(of_gibbs(gibbs_key)))


@functools.cache
def _run(make: Maker, setting: GibbsSetting) -> Callable:
    """One function object per curator and setting, so that each is compiled once."""
    mechanism = make(setting.problem, Schedule.of(setting.plan))

    def run(key, database, edit):
        stream = jax.tree.map(lambda leaf: leaf[None], edit)
        requester = requesters.fixed_stream(stream)
        _, happened = interact(key, mechanism, requester, database, num_requests=1)
        return happened.releases[1]

    return run
