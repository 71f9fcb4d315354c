"""The audit on real data: logistic regression on digits.

One row holds a record made to be told from its neighbour. Exact divergences are not known.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import PyTree

from dd_jax import data, losses, noisy_gd, requesters
from dd_jax.audit import scores
from dd_jax.audit.settings import requesters as audit_requesters
from dd_jax.audit.settings.cases import (
    EPS_DD,
    EPS_DP,
    EVENT,
    GAUSSIAN,
    TARGET_ROW,
    Case,
    Certified,
    Interaction,
    Setting,
    one_event,
)
from dd_jax.erm import Problem
from dd_jax.losses import deletion
from dd_jax.plans import plan_convex
from dd_jax.types import Edit, Labelled, Mechanism, apply_edit, replacement

DATASET, L2 = "digits-3-vs-8", 0.1
# Releases that are kept: all of a short stream, and those around a late deletion.
EARLY, LATE = (0, 1, 2, 3), (20, 21)
# How many releases the adaptive requesters are shown.
SEEN = (1, 3)
# Where edits depend on the seed every seed has a database of its own.
SHARED_CHUNK, COPIED_CHUNK = 2000, 500
RECODING, LOSS = "recoding", "loss"
_WORDS = {RECODING: "rows recoded", LOSS: "largest losses deleted"}


class _Stage(NamedTuple):
    """The curator, its problem, the records and the two worlds."""

    problem: Problem
    mechanism: Mechanism
    train: Labelled
    target: audit_requesters.Target
    worlds: tuple[PyTree, Edit]


def setting(order: float) -> Setting:
    """Logistic regression on digits-3-vs-8 with a made worst record in row 0; R_q is not known."""
    problem = Problem(losses.logistic(), L2)
    train = data.load(DATASET).train
    n, dim = train.features.shape
    plan = plan_convex(
        problem,
        n=n,
        dim=dim,
        order=order,
        eps_dp=EPS_DP,
        eps_dd=EPS_DD,
        edits_per_request=n,
        step_size=_paper_step(problem),
    )
    target = audit_requesters.worst_record(problem, train)
    database = apply_edit(train, replacement([TARGET_ROW], target.record))
    worlds = (database, replacement([TARGET_ROW], target.other))
    stage = _Stage(problem, noisy_gd.mechanism(problem, plan), train, target, worlds)
    return Setting(
        "logistic",
        f"logistic regression on {DATASET}, n = {n}, d = {dim}",
        {"setting": "logistic", "order": order, "dataset": DATASET},
        plan,
        _plain_interactions(stage) | _adaptive_interactions(stage),
        _cases(Certified(plan), along(target.direction)),
    )


def _paper_step(problem: Problem) -> float:
    """η = 1/(2(λ+β)), at which the paper's theorems hold too."""
    smoothness = problem.constants.loss.smoothness
    assert smoothness is not None
    return 0.5 / (problem.constants.l2 + smoothness)


def _plain_interactions(stage: _Stage) -> dict[str, Interaction]:
    """Non-adaptive: other rows are deleted one after another, the target at some request."""
    plain = (stage.mechanism, requesters.fixed_stream)

    def interaction(kept, deleted_by):
        rows = list(range(1, max(kept) + 1))
        if deleted_by:
            rows[deleted_by - 1] = TARGET_ROW
        edits = [deletion(stage.problem.loss, stage.train, [row]) for row in rows]
        stream = requesters.stack_edits(edits)
        return Interaction(*plain, *stage.worlds, kept, deleted_by, (stream,), SHARED_CHUNK)

    return {
        "stays": interaction(EARLY, 0),
        "deletion-1": interaction(EARLY, 1),
        f"deletion-{LATE[0]}": interaction(LATE, LATE[0]),
    }


def _adaptive_interactions(stage: _Stage) -> dict[str, Interaction]:
    """A requester that recodes and one that deletes by loss, each shown φ_0 … φ_{p-1}."""
    found = {}
    for seen in SEEN:
        for kind in (RECODING, LOSS):
            request = _deleted_by(kind, seen)
            make = {RECODING: audit_requesters.recoder, LOSS: audit_requesters.loss_chaser}[kind]
            requester = make(stage.problem.loss, stage.train, stage.target, deleted_by=request)
            found[f"adaptive-{seen}-{kind}"] = Interaction(
                stage.mechanism,
                lambda requester=requester: requester,
                *stage.worlds,
                (request,),
                request,
                (),
                COPIED_CHUNK,
                observe=tuple(range(seen)),
            )
    return found


def _deleted_by(kind: str, seen: int) -> int:
    """The request that deletes the target: with the recoding, or after p deletions by loss."""
    return seen if kind == RECODING else seen + 1


def _cases(certified: Certified, score: scores.Score) -> tuple[Case, ...]:

    def case(name, words, interaction, releases, claim, gates=GAUSSIAN):
        ours, paper = claim
        return Case(name, words, interaction, releases, ours, paper, None, score, gates)

    staying = (
        case("dp", "one release, record stays", "stays", (0,), certified.claim("dp")),
        case(
            "dp-joint",
            f"{len(EARLY)} releases jointly",
            "stays",
            EARLY,
            certified.claim("dp-joint", request=max(EARLY)),
        ),
    )
    deleted = tuple(
        case(
            f"deletion-{request}",
            f"deleted by request {request}",
            f"deletion-{request}",
            (request, request + 1),
            certified.claim("deletion", request=request),
        )
        for request in (1, LATE[0])
    )
    adaptive = tuple(
        case(
            f"adaptive-{seen}-{kind}",
            f"deleted; {seen} release{'s' * (seen > 1)} seen, {_WORDS[kind]}",
            f"adaptive-{seen}-{kind}",
            (_deleted_by(kind, seen),),
            certified.claim("deletion-adaptive", seen, _deleted_by(kind, seen)),
            EVENT if kind == RECODING else GAUSSIAN,
        )
        for seen in SEEN
        for kind in (RECODING, LOSS)
    )
    return staying + deleted + adaptive


def along(direction: np.ndarray) -> scores.Score:
    """Fisher's discriminant of ⟨φ, v⟩ of every release; few numbers to fit, so few seeds for it."""

    def features(table):
        return table.reshape(len(table), -1, len(direction)) @ direction

    def fit(present, absent):
        scorer = scores.linear().fit(features(present), features(absent))
        return lambda table: scorer(features(table))

    return one_event(scores.Score("along the record", fit), share=0.2, learned=True)
