"""The audit on real data: logistic regression on digits.

One row holds a record made to be told from its neighbour, and requesters carry it past its
deletion. Exact divergences are not known.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from dd_jax import data, erm, losses, noisy_gd, requesters
from dd_jax.audit import scores
from dd_jax.audit.settings.base import (
    EPS_DD,
    EPS_DP,
    EVENT,
    GAUSSIAN,
    TARGET_ROW,
    AuditedClaim,
    AuditSetting,
    Interaction,
    certified,
    one_event,
)
from dd_jax.erm import Problem
from dd_jax.interaction import Requester
from dd_jax.losses import deletion
from dd_jax.losses.base import Loss
from dd_jax.plans import Plan, plan_convex
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


class Target(NamedTuple):
    """The record of the present world and that of the absent one, as single rows.

    Attributes:
        record, other: the two records; their gradients point in opposite directions along v.
        direction: v, the unit direction in which they differ.
        centre: ⟨θ*, v⟩ of the minimiser without either, halfway between the two worlds.
    """

    record: Labelled
    other: Labelled
    direction: np.ndarray
    centre: float


def worst_record(problem: erm.Problem, train: Labelled) -> Target:
    """Two records that the model gets wrong alike and that pull it in opposite directions.

    a, b = -t u ± √(1-t²) v, both labelled +1, with u = θ*/‖θ*‖ and v the direction in which the
    rows vary least. Their gradients differ by 2 √(1-t²) s(t‖θ*‖) v, s the logistic function; t
    makes that largest. A mere change of label would give v, half of what is certified.
    """
    blanked = apply_edit(train, deletion(problem.loss, train, [TARGET_ROW]))
    optimum = np.asarray(erm.minimise(problem, blanked).params, np.float64)
    size = np.linalg.norm(optimum)
    _, axes = np.linalg.eigh(np.asarray(blanked.features.T @ blanked.features, np.float64))
    along = axes[:, 0] - (axes[:, 0] @ optimum) * optimum / size**2
    along /= np.linalg.norm(along)
    wrong = np.linspace(0, 1, 1001)
    tilt = wrong[np.argmax(np.sqrt(1 - wrong**2) / (1 + np.exp(-wrong * size)))]
    # A hair inside the unit ball, so that rounding cannot put a record outside the domain.
    scale = 1 - 1e-6
    sides = [-tilt * optimum / size + side * np.sqrt(1 - tilt**2) * along for side in (1, -1)]
    record, other = (
        Labelled(jnp.asarray(scale * row[None], jnp.float32), jnp.ones(1, jnp.float32))
        for row in sides
    )
    return Target(record, other, along, float(optimum @ along))


class Looks(NamedTuple):
    """The sum of ⟨φ, v⟩ over the releases seen, and their number."""

    total: Array
    count: Array


def recoder(loss: Loss, train: Labelled, target: Target, *, deleted_by: int) -> Requester:
    """Watches until request `deleted_by`, then recodes every other row by the mean of what it saw.

    The target's owner deletes it in that request. All other rows become (±v, +1), the side being
    that of the mean of ⟨φ, v⟩: the models that follow sit on that side, however many steps are
    taken (erratum E2). Until then it rewrites rows by what they hold.
    """
    n = train.features.shape[0]
    direction = jnp.asarray(target.direction, jnp.float32)
    # Slot 0 belongs to the last row until the target is deleted, so that every edit has the same r.
    others = jnp.concatenate([jnp.array([n - 1], jnp.int32), jnp.arange(1, n - 1, dtype=jnp.int32)])
    own = jax.tree.map(lambda leaf: leaf[others], train)
    null = deletion(loss, train, [TARGET_ROW]).record

    def init(key):
        del key
        return Looks(jnp.float32(0), jnp.float32(0))

    def act(key, memory, observation):
        del key
        looked = observation.visible.astype(jnp.float32)
        seen = observation.release @ direction - jnp.float32(target.centre)
        memory = Looks(memory.total + looked * seen, memory.count + looked)
        now = observation.request == deleted_by
        features = jnp.broadcast_to(jnp.sign(memory.total) * direction, own.features.shape)
        coded = Labelled(features, jnp.ones_like(own.label))
        coded = jax.tree.map(lambda leaf, blank: leaf.at[0].set(blank[0]), coded, null)
        record = jax.tree.map(lambda new, old: jnp.where(now, new, old), coded, own)
        rows = others.at[0].set(jnp.where(now, jnp.int32(TARGET_ROW), others[0]))
        return memory, Edit(rows, record)

    return Requester(init, act)


def loss_chaser(loss: Loss, train: Labelled, target: Target, *, deleted_by: int) -> Requester:
    """Deletes the other record with the largest loss under what it saw last, and the target at
    request `deleted_by`. Of the target it knows the row alone.
    """
    del target
    blanked = apply_edit(train, deletion(loss, train, [TARGET_ROW]))
    others = requesters.largest_loss(loss, blanked)
    delete = deletion(loss, train, [TARGET_ROW])

    def init(key):
        memory = others.init(key)
        return memory._replace(alive=memory.alive.at[TARGET_ROW].set(False))

    def act(key, memory, observation):
        memory, edit = others.act(key, memory, observation)
        now = observation.request == deleted_by
        return memory, jax.tree.map(lambda new, old: jnp.where(now, new, old), delete, edit)

    return Requester(init, act, max_requests=others.max_requests)


# --- the setting --------------------------------------------------------------------------------


class _Stage(NamedTuple):
    """The curator, its problem, the records and the two worlds."""

    problem: Problem
    mechanism: Mechanism
    train: Labelled
    target: Target
    worlds: tuple[PyTree, Edit]


def setting(order: float) -> AuditSetting:
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
    target = worst_record(problem, train)
    database = apply_edit(train, replacement([TARGET_ROW], target.record))
    worlds = (database, replacement([TARGET_ROW], target.other))
    stage = _Stage(problem, noisy_gd.mechanism(problem, plan), train, target, worlds)
    return AuditSetting(
        "logistic",
        f"logistic regression on {DATASET}, n = {n}, d = {dim}",
        {"setting": "logistic", "order": order, "dataset": DATASET},
        plan,
        _plain_interactions(stage) | _adaptive_interactions(stage),
        _audited(plan, along(target.direction)),
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
            make = {RECODING: recoder, LOSS: loss_chaser}[kind]
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


def _audited(plan: Plan, score: scores.Score) -> tuple[AuditedClaim, ...]:

    def one(name, words, interaction, releases, claim, gates=GAUSSIAN):
        ours, paper = claim
        return AuditedClaim(name, words, interaction, releases, ours, paper, None, score, gates)

    staying = (
        one("dp", "one release, record stays", "stays", (0,), certified(plan, "dp")),
        one(
            "dp-joint",
            f"{len(EARLY)} releases jointly",
            "stays",
            EARLY,
            certified(plan, "dp-joint", request=max(EARLY)),
        ),
    )
    deleted = tuple(
        one(
            f"deletion-{request}",
            f"deleted by request {request}",
            f"deletion-{request}",
            (request, request + 1),
            certified(plan, "deletion", request=request),
        )
        for request in (1, LATE[0])
    )
    adaptive = tuple(
        one(
            f"adaptive-{seen}-{kind}",
            f"deleted; {seen} release{'s' * (seen > 1)} seen, {_WORDS[kind]}",
            f"adaptive-{seen}-{kind}",
            (_deleted_by(kind, seen),),
            certified(plan, "deletion-adaptive", seen, _deleted_by(kind, seen)),
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
