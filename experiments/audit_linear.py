"""The audit where everything is known: the linear loss, whose laws are exact.

Audited, exact and certified stand side by side, and the certificate is attained.
"""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np

import dd_jax as dd
from dd_jax import losses
from dd_jax.attacks import recoding
from dd_jax.audit import scores
from dd_jax.oracles import linear as law
from dd_jax.plans import Plan
from experiments.audit_cases import (
    EPS_DD,
    EPS_DP,
    EVENT,
    GAUSSIAN,
    TARGET_ROW,
    Case,
    Certified,
    Setting,
    make_interaction,
    stream,
)

NUM_RECORDS, REQUESTS, DELETE_STEPS, LEARN_STEPS = 10, 3, 5, 60
CHUNK = 20_000


def setting(order: float) -> Setting:
    """-⟨θ, x⟩ in one dimension, x = ±1 among rows of zeros: R_q is 1 after learning, 0.1 after
    deletion, both attained by the certificate; and a requester that recodes the other rows.
    """
    problem = dd.Problem(losses.linear(), 1.0)
    plan = dd.plan_convex(
        problem,
        n=NUM_RECORDS,
        dim=1,
        order=order,
        eps_dp=EPS_DP,
        # So that exactly K_U = 5 steps of contraction c delete, c^(2 K_U) = ε_dd/ε_dp.
        eps_dd=EPS_DD * (1 + 1e-9),
        edits_per_request=NUM_RECORDS,
        step_size=1 - (EPS_DD / EPS_DP) ** (1 / (2 * DELETE_STEPS)),
    )
    plan = replace(plan, learn_steps=LEARN_STEPS)
    database = jnp.zeros((NUM_RECORDS, 1), jnp.float32).at[TARGET_ROW].set(1)
    worlds = (database, dd.replacement([TARGET_ROW], -jnp.ones((1, 1), jnp.float32)))
    delete, touch = (dd.deletion(problem.loss, database, [row]) for row in (TARGET_ROW, 1))
    mechanism = dd.noisy_gd.mechanism(problem, plan)

    def interaction(requester, kept, **options):
        return make_interaction(mechanism, requester, worlds, kept, chunk=CHUNK, **options)

    last = tuple(range(REQUESTS + 1))
    interactions = {
        "stays": interaction(stream([touch] * REQUESTS), last),
        "deleted": interaction(stream([delete]), (1,), deleted_by=1),
        "recoded": interaction(
            recoding.requester(NUM_RECORDS, deletes=True), (1,), deleted_by=1, observe=(0,)
        ),
    }
    config = {"setting": "linear", "order": order}
    cases = _linear_cases(Certified(plan), order, last)
    return Setting("linear", "linear loss, exact laws", config, plan, interactions, cases)


def _linear_cases(certified: Certified, order: float, last: tuple[int, ...]) -> tuple[Case, ...]:
    plan = certified.plan
    numbers = (order, 1.0, plan.problem.l2, plan.noise_variance, plan.n, plan.step_size)
    start = plan.init_variance
    learned = float(law.renyi(*numbers, plan.learn_steps, 0, start))
    deleted = float(law.renyi(*numbers, plan.learn_steps, plan.delete_steps, start))
    # Given the release before it, each further one starts from a fixed point.
    joint = learned + REQUESTS * float(law.renyi(*numbers, plan.delete_steps, 0))
    recoded = law.recoding_renyi(*numbers, plan.learn_steps, 0, plan.delete_steps, start)
    one = scores.likelihood_ratio(lambda table: table[:, 0])
    every = scores.gaussian_likelihood_ratio(*_linear_law(plan, len(last)))
    claim = certified.claim
    return (
        Case(
            "dp", "one release, record stays", "stays", (0,), *claim("dp"), learned, one, GAUSSIAN
        ),
        Case(
            "dp-joint",
            f"{len(last)} releases jointly",
            "stays",
            last,
            *claim("dp-joint", request=REQUESTS),
            joint,
            every,
            GAUSSIAN,
        ),
        Case(
            "deletion-1",
            "deleted by request 1",
            "deleted",
            (1,),
            *claim("deletion"),
            deleted,
            one,
            GAUSSIAN,
        ),
        Case(
            "adaptive-1",
            "p = 1, rows recoded by what it saw",
            "recoded",
            (1,),
            *claim("deletion-adaptive", adaptivity=1),
            recoded,
            one,
            EVENT,
        ),
    )


def _linear_law(plan: Plan, releases: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Means in both worlds and the common covariance of φ_0, φ_1, … while the record stays."""
    steps = plan.learn_steps + plan.delete_steps * np.arange(releases)
    rate = (plan.problem.l2, plan.n, plan.step_size)
    mean = law.mean_shift(1.0, *rate, steps, 0) / 2
    spread = law.variance(
        plan.problem.l2, plan.noise_variance, plan.step_size, steps, plan.init_variance
    )
    decay = (1 - plan.step_size * plan.problem.l2) ** np.abs(steps[:, None] - steps)
    earlier = np.minimum.outer(np.arange(releases), np.arange(releases))
    return mean, -mean, decay * spread[earlier]
