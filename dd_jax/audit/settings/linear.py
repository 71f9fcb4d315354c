"""The audit where everything is known: the linear loss, whose laws are exact.

Audited, exact and certified numbers can be compared, and the certificate is attained.
"""

import itertools

import jax.numpy as jnp
import numpy as np

from dd_jax import losses, noisy_gd, requesters
from dd_jax.audit import scores
from dd_jax.audit.samples import Interaction
from dd_jax.audit.settings.base import (
    EPS_DD,
    EPS_DP,
    EVENT,
    GAUSSIAN,
    AuditedClaim,
    AuditSetting,
    certified,
    gaussian_controls,
    one_event,
    targets,
)
from dd_jax.erm import Problem
from dd_jax.losses import deletion
from dd_jax.oracles import linear as law
from dd_jax.plans import Plan, plan_convex
from dd_jax.types import Edit, replacement

REQUESTS = 3
EVERY = tuple(range(REQUESTS + 1))
CHUNK = 20_000


def setting(order: float, batches: int = 1) -> AuditSetting:
    """-⟨θ, x⟩ in one dimension, x = ±1 among rows of zeros, and a requester that recodes them.

    With full batches R_q is 1 after learning, 0.1 after deletion, both attained by the certificate.
    With m > 1 batches neither n = 3m + 1 nor a number of steps is a multiple of m, and the record
    stays for a request before it is deleted: the batch that comes next matters.
    """
    problem = Problem(losses.linear(), 1.0)
    full = batches == 1
    n = 10 if full else 3 * batches + 1
    delete_steps = 5 if batches != 5 else 6
    plan = plan_convex(
        problem,
        n=n,
        dim=1,
        order=order,
        eps_dp=EPS_DP,
        eps_dd=EPS_DP,
        edits_per_request=n,
        # So that what is left of full batches is c^(2 K_U) = ε_dd/ε_dp.
        step_size=1 - (EPS_DD / EPS_DP) ** (1 / (2 * delete_steps)),
        batches=batches,
        learn_steps=60 if full else 60 // batches * batches + 1,
        delete_steps=delete_steps,
    )
    deleted_by = 1 if full else 2
    interactions, audited = {}, []
    for where, row in targets(n, batches).items():
        interactions |= _interactions(problem, plan, where, row, deleted_by)
        audited += _audited(plan, order, where, row, deleted_by)
    config = {"setting": "linear", "order": order, "batches": batches}
    summary = "linear loss, exact laws" + ("" if full else f", n = {n} in {batches} batches")
    return AuditSetting(
        "linear", summary, config, plan, interactions, tuple(audited), gaussian_controls(batches)
    )


def _interactions(
    problem: Problem, plan: Plan, where: str, row: int, deleted_by: int
) -> dict[str, Interaction]:
    """Interactions about a record of this row; `where` is added to their names."""
    mechanism = noisy_gd.mechanism(problem, plan)
    blank = jnp.zeros((plan.n, 1), jnp.float32)
    database = blank.at[row].set(1)
    opposite = replacement([row], jnp.full((1, 1), -1, jnp.float32))
    empty = deletion(problem.loss, blank, [row])
    recoder = requesters.sign_recoder(plan.n, deletes=True, target=row)

    def stream(rows, alternative: Edit, request: int) -> Interaction:
        edits = requesters.stack_edits([deletion(problem.loss, blank, [one]) for one in rows])
        fixed = (mechanism, requesters.fixed_stream(edits), database, alternative)
        return Interaction(*fixed, EVERY, request, CHUNK)

    # Row 1 is blank already.
    stays = [1] * REQUESTS
    deleted = [row if request == deleted_by else 1 for request in range(1, REQUESTS + 1)]
    recoded = Interaction(mechanism, recoder, database, opposite, (1,), 1, CHUNK, observe=(0,))
    found = {
        "stays": stream(stays, opposite, 0),
        "deleted": stream(deleted, opposite, deleted_by),
        "recoded": recoded,
        "null": stream(deleted, empty, deleted_by),
        "recoded-null": recoded._replace(alternative=empty),
    }
    return {name + where: interaction for name, interaction in found.items()}


def _audited(plan: Plan, order: float, where: str, row: int, deleted_by: int) -> list[AuditedClaim]:
    """The claims about a record of this row; `where` is added to their names."""

    def renyi(start: int, stop: int, end: int, init_variance=0.0) -> float:
        """R_q after step `end` if steps start ≤ k < stop used the record."""
        gaps = np.append(_gaps(plan, row, start, stop), np.zeros(end - stop))
        numbers = (plan.problem.l2, gaps, plan.noise_variance, plan.step_size)
        return float(law.renyi_of_steps(order, *numbers, init_variance=init_variance))

    ends, start = _ends(plan, len(EVERY)), {"init_variance": plan.init_variance}
    learned = renyi(0, ends[0], ends[0], **start)
    # Given the release before it, each further one starts from a fixed point.
    runs = [renyi(first, last, last) for first, last in itertools.pairwise(ends)]
    deleted = renyi(0, ends[deleted_by - 1], ends[deleted_by], **start)
    numbers = (order, 1.0, plan.problem.l2, plan.noise_variance, plan.n, plan.step_size)
    place = {"batches": plan.batches, "row": row, "delete_steps": plan.delete_steps, **start}
    recoded, recoded_null = (
        law.recoding_renyi_of_steps(*numbers, plan.learn_steps, **place, null=null)
        for null in (False, True)
    )
    one = _known(scores.likelihood_ratio(lambda table: table[:, 0]))
    # Against the null record the middle of the two means is not 0.
    aside = one_event(scores.likelihood_ratio(lambda table: table[:, 0]), share=0.1, learned=True)
    joint = _known(scores.gaussian_likelihood_ratio(*_law_of_releases(plan, row, len(EVERY))))
    by = f"deleted by request {deleted_by}"
    coded = "deleted; 1 release seen, rows recoded"
    empty = ", against the empty row"
    last = (deleted_by,)

    def claim(name, words, run, releases, which, exact, score, gates, seen=0, request=1):
        stated = certified(plan, which, seen, request)
        judged = (f"{run}{where}", releases, *stated, exact, score, gates)
        return AuditedClaim(f"{name}{where}", words, *judged)

    return [
        claim("dp", "one release, record stays", "stays", (0,), "dp", learned, one, GAUSSIAN),
        claim(
            "dp-joint",
            f"{len(EVERY)} releases jointly",
            "stays",
            EVERY,
            "dp-joint",
            learned + sum(runs),
            joint,
            GAUSSIAN,
            request=REQUESTS,
        ),
        claim(
            f"deletion-{deleted_by}",
            by,
            "deleted",
            last,
            "deletion",
            deleted,
            one,
            GAUSSIAN,
            request=deleted_by,
        ),
        claim(
            "adaptive-1", coded, "recoded", (1,), "deletion-adaptive", recoded, one, EVENT, seen=1
        ),
        claim(
            f"null-{deleted_by}",
            by + empty,
            "null",
            last,
            "deletion-null",
            deleted / 4,
            aside,
            GAUSSIAN,
            request=deleted_by,
        ),
        claim(
            "null-adaptive-1",
            coded + empty,
            "recoded-null",
            (1,),
            "deletion-null-adaptive",
            recoded_null,
            aside,
            EVENT,
            seen=1,
        ),
    ]


def _ends(plan: Plan, releases: int) -> list[int]:
    """How many steps were taken before each release."""
    return [plan.learn_steps + i * plan.delete_steps for i in range(releases)]


def _gaps(plan: Plan, row: int, start: int, stop: int) -> np.ndarray:
    return law.gaps_of_row(1.0, plan.n, plan.batches, row, range(start, stop))


def _known(score: scores.Score) -> scores.Score:
    """The score's side; a tenth of the seeds is set aside, though nothing has to be fitted.

    The stated power is that of an audit that chooses its event on those seeds.
    """
    return one_event(score, share=0.1, learned=False)


def _law_of_releases(
    plan: Plan, row: int, releases: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Means in both worlds and the common covariance of φ_0, φ_1, … while the record stays."""
    steps = np.array(_ends(plan, releases))
    l2, eta = plan.problem.l2, plan.step_size
    mean = np.array([law.shift_of_steps(l2, _gaps(plan, row, 0, end), eta) / 2 for end in steps])
    spread = law.variance(l2, plan.noise_variance, eta, steps, plan.init_variance)
    decay = (1 - eta * l2) ** np.abs(steps[:, None] - steps)
    earlier = np.minimum.outer(np.arange(releases), np.arange(releases))
    return mean, -mean, decay * spread[earlier]
