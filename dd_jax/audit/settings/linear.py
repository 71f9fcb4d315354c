"""The audit where everything is known: the linear loss, whose laws are exact.

Audited, exact and certified numbers can be compared, and the certificate is attained.
"""

import functools
from dataclasses import replace

import jax.numpy as jnp
import numpy as np

from dd_jax import losses, noisy_gd, requesters
from dd_jax.audit import scores
from dd_jax.audit.samples import Interaction, always
from dd_jax.audit.settings.base import (
    EPS_DD,
    EPS_DP,
    EVENT,
    GAUSSIAN,
    TARGET_ROW,
    AuditedClaim,
    AuditSetting,
    certified,
    one_event,
)
from dd_jax.erm import Problem
from dd_jax.losses import deletion
from dd_jax.oracles import linear as law
from dd_jax.plans import Plan, plan_convex
from dd_jax.types import replacement

NUM_RECORDS, REQUESTS, DELETE_STEPS, LEARN_STEPS = 10, 3, 5, 60
CHUNK = 20_000


def setting(order: float) -> AuditSetting:
    """-⟨θ, x⟩ in one dimension, x = ±1 among rows of zeros: R_q is 1 after learning, 0.1 after
    deletion, both attained by the certificate; and a requester that recodes the other rows.
    """
    problem = Problem(losses.linear(), 1.0)
    plan = plan_convex(
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
    worlds = (database, replacement([TARGET_ROW], -jnp.ones((1, 1), jnp.float32)))
    mechanism = noisy_gd.mechanism(problem, plan)
    every = tuple(range(REQUESTS + 1))
    plain = (mechanism, requesters.fixed_stream)
    recoder = requesters.sign_recoder(NUM_RECORDS, deletes=True)

    def stream(first_row):
        """The first request blanks a row; the others blank row 1, which is blank already."""
        rows = [first_row] + [1] * (REQUESTS - 1)
        return requesters.stack_edits([deletion(problem.loss, database, [row]) for row in rows])

    interactions = {
        "stays": Interaction(*plain, *worlds, every, 0, (stream(1),), CHUNK),
        "deleted": Interaction(*plain, *worlds, every, 1, (stream(TARGET_ROW),), CHUNK),
        "recoded": Interaction(
            mechanism, always(recoder), *worlds, (1,), 1, (), CHUNK, observe=(0,)
        ),
    }
    config = {"setting": "linear", "order": order}
    audited = _audited(plan, order, every)
    return AuditSetting("linear", "linear loss, exact laws", config, plan, interactions, audited)


def _audited(plan: Plan, order: float, last: tuple[int, ...]) -> tuple[AuditedClaim, ...]:
    numbers = (order, 1.0, plan.problem.l2, plan.noise_variance, plan.n, plan.step_size)
    start = plan.init_variance
    learned = float(law.renyi(*numbers, plan.learn_steps, init_variance=start))
    gone: dict = {"delete_steps": plan.delete_steps, "init_variance": start}
    deleted = float(law.renyi(*numbers, plan.learn_steps, **gone))
    # Given the release before it, each further one starts from a fixed point.
    joint = learned + REQUESTS * float(law.renyi(*numbers, plan.delete_steps))
    recoded = law.recoding_renyi(*numbers, plan.learn_steps, **gone)
    one = _known(scores.likelihood_ratio(lambda table: table[:, 0]))
    every = _known(scores.gaussian_likelihood_ratio(*_law_of_releases(plan, len(last))))
    claim = functools.partial(certified, plan)
    return (
        AuditedClaim(
            "dp", "one release, record stays", "stays", (0,), *claim("dp"), learned, one, GAUSSIAN
        ),
        AuditedClaim(
            "dp-joint",
            f"{len(last)} releases jointly",
            "stays",
            last,
            *claim("dp-joint", request=REQUESTS),
            joint,
            every,
            GAUSSIAN,
        ),
        AuditedClaim(
            "deletion-1",
            "deleted by request 1",
            "deleted",
            (1,),
            *claim("deletion"),
            deleted,
            one,
            GAUSSIAN,
        ),
        AuditedClaim(
            "adaptive-1",
            "deleted; 1 release seen, rows recoded",
            "recoded",
            (1,),
            *claim("deletion-adaptive", adaptivity=1),
            recoded,
            one,
            EVENT,
        ),
    )


def _known(score: scores.Score) -> scores.Score:
    """The score's side; a tenth of the seeds is set aside, though nothing has to be fitted.

    The stated power is that of an audit that chooses its event on those seeds.
    """
    return one_event(score, share=0.1, learned=False)


def _law_of_releases(plan: Plan, releases: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
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
