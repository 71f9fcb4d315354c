"""The audit of the non-convex theorem: releases against draws of their Gibbs law, and run sums.

A bounded non-convex loss in one dimension, so that every law is also known exactly, by densities on
a grid. The certificate for requesters that saw nothing is a divergence to the Gibbs law, one-sided
(`thm:deletion_accuracy_nonconvex`); it is judged on draws of that law. Against a requester that saw
a release only the run sum between neighbours holds (erratum E2), and that is judged instead.
"""

import functools
from dataclasses import replace

import jax.numpy as jnp
import numpy as np

from dd_jax import losses, noisy_gd, requesters
from dd_jax.audit import claims, scores
from dd_jax.audit.gibbs import gibbs_samples
from dd_jax.audit.samples import Interaction
from dd_jax.audit.settings.base import EPS_DP, GAUSSIAN, AuditedClaim, AuditSetting
from dd_jax.erm import Problem
from dd_jax.errors import InputError
from dd_jax.interaction import Requester
from dd_jax.oracles import grid
from dd_jax.plans import Plan, plan_nonconvex
from dd_jax.plans.nonconvex import gibbs_divergence
from dd_jax.types import Edit, Labelled, replacement

N = 5
L2 = 2.5
NOISE_VARIANCE = 2.0
EPS_DD = 0.13
REQUESTS = 2
CHUNK = 5_000
# A Rényi bound proper: the Gibbs law is not a neighbour, and no μ is claimed.
RENYI = ("renyi_bins",)
CONTROLS = ("half variance, to the Gibbs law", "null, to the Gibbs law")


def setting(order: float, batches: int = 1) -> AuditSetting:
    """-tanh(yθ) on five records of label +1: request 1 turns all labels, request 2 turns them back.

    Each request moves the Gibbs law by more than ε_dd, so that it needs its steps.
    """
    if batches > 1:
        raise InputError("a non-convex plan takes no batches; drop --batches.")
    problem = Problem(losses.tanh_margin(), L2)
    plan = plan_nonconvex(
        problem,
        n=N,
        dim=1,
        order=order,
        eps_dp=EPS_DP,
        eps_dd=EPS_DD,
        edits_per_request=N,
        noise_variance=NOISE_VARIANCE,
    )
    config = {"setting": "nonconvex", "order": order}
    summary = (
        f"tanh margin in one dimension, {plan.learn_steps:,} steps to learn and "
        f"{plan.delete_steps:,} per request"
    )
    run, claimed = interactions(problem, plan), audited(problem, plan)
    return AuditSetting("nonconvex", summary, config, plan, run, claimed, CONTROLS)


def labelled(label: float, rows: int = N) -> Labelled:
    """Records (1, label)."""
    return Labelled(jnp.ones((rows, 1), jnp.float32), jnp.full(rows, label, jnp.float32))


def labels_after(request: int) -> float:
    """Every label after this request of the fixed stream."""
    return (-1.0) ** request


def interactions(problem: Problem, plan: Plan) -> dict[str, Interaction]:
    """A stream that is fixed in advance, and a requester that looks at φ_0."""
    mechanism = noisy_gd.mechanism(problem, plan)
    worlds = (labelled(1.0), replacement([0], labelled(-1.0, 1)))
    rows = jnp.arange(N, dtype=jnp.int32)
    edits = [Edit(rows, labelled(labels_after(i))) for i in range(1, REQUESTS + 1)]
    every = tuple(range(REQUESTS + 1))
    stream = requesters.fixed_stream(requesters.stack_edits(edits))
    return {
        "deleted": Interaction(mechanism, stream, *worlds, every, 1, CHUNK),
        "recoded": Interaction(mechanism, recoder(), *worlds, (1,), 1, CHUNK, (0,)),
    }


@functools.cache
def recoder() -> Requester:
    """Deletes row 0 and gives all other rows the sign of φ_0 as their label."""

    def act(key, memory, observation):
        del key
        others = jnp.arange(N) > 0
        label = jnp.where(others, jnp.where(observation.release[0] > 0, 1.0, -1.0), 0.0)
        record = Labelled(others[:, None].astype(jnp.float32), label)
        return memory, Edit(jnp.arange(N, dtype=jnp.int32), record)

    return Requester(lambda key: (), act)


def audited(problem: Problem, plan: Plan) -> tuple[AuditedClaim, ...]:
    """Learning, both requests, privacy and adaptive deletion."""
    blind, saw = plan.certificate(request=1), plan.certificate(1, 1)
    linear, sees_spread = scores.linear(), scores.quadratic()
    exact = exact_divergences(plan)

    def to_gibbs(name, words, release, claim):
        def draw(key, seeds):
            rows = labelled(labels_after(release))
            return gibbs_samples(key, problem, rows, plan.noise_variance, seeds)

        found = (name, words, "deleted", (release,), claim, None, exact[release], sees_spread)
        return AuditedClaim(*found, RENYI, draw)

    def neighbours(name, words, interaction, releases, claim):
        found = (name, words, interaction, releases, claim, None, None, linear)
        return AuditedClaim(
            *found, GAUSSIAN if claim.gates().get("gaussian_mu") else ("advantage",)
        )

    deletion = claims.of_certificate(blind, "deletion-gibbs")
    assert isinstance(deletion, claims.RenyiClaim)
    learned = replace(deletion, eps=gibbs_divergence(plan, 0), name="learning, to the Gibbs law")
    return (
        to_gibbs("gibbs-learned", "learned model, to its Gibbs law", 0, learned),
        *(
            to_gibbs(f"gibbs-{i}", f"after request {i}, to its Gibbs law", i, deletion)
            for i in range(1, REQUESTS + 1)
        ),
        neighbours(
            "advantage",
            "deleted by request 1, both worlds (an advantage)",
            "deleted",
            (1,),
            claims.of_certificate(blind, "deletion"),
        ),
        neighbours(
            "dp",
            "the learned model, both worlds",
            "deleted",
            (0,),
            claims.of_certificate(blind, "dp"),
        ),
        neighbours(
            "adaptive-1",
            "deleted; φ_0 seen, labels recoded: the run sum",
            "recoded",
            (1,),
            claims.of_certificate(saw, "deletion-adaptive"),
        ),
    )


def exact_divergences(plan: Plan) -> list[float]:
    """R_q of every release of the fixed stream from its Gibbs law, by densities on a grid."""
    reach = 1 / L2 + 7 * float(np.sqrt(plan.init_variance))  # L = 1, so no drift is longer
    line = grid.grid_for(-reach, reach, plan.step_size, plan.noise_variance, fineness=0.5)
    law, found = grid.gaussian_density(line, 0.0, plan.init_variance), []
    for request in range(REQUESTS + 1):
        label = labels_after(request)
        steps = plan.delete_steps if request else plan.learn_steps
        phase = grid.Phase(
            lambda theta, label=label: L2 * theta - label * (1 - np.tanh(theta) ** 2), steps
        )
        law = grid.law_after([phase], plan.step_size, plan.noise_variance, law, line)
        gibbs = grid.gibbs_density(
            line,
            lambda theta, label=label: L2 / 2 * theta**2 - label * np.tanh(theta),
            plan.noise_variance,
        )
        found.append(grid.renyi(plan.order, law, gibbs))
    return found
