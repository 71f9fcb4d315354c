"""The audit on real data: logistic regression on digits.

One row holds a record that differs as much as possible from its neighbour, and requesters copy what
they learn of it into other rows before its deletion. Exact divergences are not known.
"""

import itertools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from dd_jax import data, erm, losses, noisy_gd, requesters
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
from dd_jax.interaction import Requester
from dd_jax.losses import deletion
from dd_jax.losses.base import Loss
from dd_jax.plans import plan_convex
from dd_jax.types import Edit, Labelled, apply_edit, replacement

DATASET, L2 = "digits-3-vs-8", 0.1
# Releases that are kept: all of a short stream, and those around a late deletion.
EARLY, LATE = (0, 1, 2, 3), (20, 21)
# How many releases the adaptive requesters are shown.
SEEN = (1, 3)
# Where edits depend on the seed, every seed needs its own copy of the database.
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


def setting(order: float) -> AuditSetting:
    """Logistic regression on digits-3-vs-8 with a made worst record in row 0; R_q is not known."""
    problem = Problem(losses.logistic(), L2)
    train = data.load(DATASET).train
    n, dim = train.features.shape
    smoothness = problem.constants.loss.smoothness
    assert smoothness is not None
    plan = plan_convex(
        problem,
        n=n,
        dim=dim,
        order=order,
        eps_dp=EPS_DP,
        eps_dd=EPS_DD,
        edits_per_request=n,
        step_size=0.5 / (L2 + smoothness),  # at which the paper's theorems hold too
    )
    mechanism = noisy_gd.mechanism(problem, plan)
    target = worst_record(problem, train)
    database = apply_edit(train, replacement([TARGET_ROW], target.record))
    worlds = (database, replacement([TARGET_ROW], target.other))
    score = along(target.direction)

    def stream(kept: tuple[int, ...], deleted_by: int) -> Interaction:
        """Other rows are deleted one after another, the target at some request or never."""
        rows = list(range(1, max(kept) + 1))
        if deleted_by:
            rows[deleted_by - 1] = TARGET_ROW
        edits = requesters.stack_edits([deletion(problem.loss, train, [row]) for row in rows])
        plain = (mechanism, requesters.fixed_stream)
        return Interaction(*plain, *worlds, kept, deleted_by, (edits,), SHARED_CHUNK)

    def audit(name, words, interaction, releases, claim, gates=GAUSSIAN) -> AuditedClaim:
        ours, paper = claim
        return AuditedClaim(name, words, interaction, releases, ours, paper, None, score, gates)

    interactions = {"stays": stream(EARLY, 0), "deletion-1": stream(EARLY, 1)}
    interactions[f"deletion-{LATE[0]}"] = stream(LATE, LATE[0])
    joint = certified(plan, "dp-joint", request=max(EARLY))
    audited = [
        audit("dp", "one release, record stays", "stays", (0,), certified(plan, "dp")),
        audit("dp-joint", f"{len(EARLY)} releases jointly", "stays", EARLY, joint),
    ]
    for request in (1, LATE[0]):
        name, words = f"deletion-{request}", f"deleted by request {request}"
        claim = certified(plan, "deletion", request=request)
        audited.append(audit(name, words, name, (request, request + 1), claim))
    for seen, kind in itertools.product(SEEN, (RECODING, LOSS)):
        # The recoding request also deletes the target; the loss chaser does so after p deletions.
        request = seen if kind == RECODING else seen + 1
        make = recoder if kind == RECODING else loss_chaser
        requester = make(problem.loss, train, target, deleted_by=request)
        name = f"adaptive-{seen}-{kind}"
        interactions[name] = Interaction(
            mechanism,
            always(requester),
            *worlds,
            (request,),
            request,
            (),
            COPIED_CHUNK,
            observe=tuple(range(seen)),
        )
        words = f"deleted; {seen} release{'s' * (seen > 1)} seen, {_WORDS[kind]}"
        claim = certified(plan, "deletion-adaptive", seen, request)
        gates = EVENT if kind == RECODING else GAUSSIAN
        audited.append(audit(name, words, name, (request,), claim, gates))
    return AuditSetting(
        "logistic",
        f"logistic regression on {DATASET}, n = {n}, d = {dim}",
        {"setting": "logistic", "order": order, "dataset": DATASET},
        plan,
        interactions,
        tuple(audited),
    )


def along(direction: np.ndarray) -> scores.Score:
    """Fisher's discriminant of ⟨φ, v⟩ of every release; few numbers to fit, so few seeds for it."""

    def features(table):
        return table.reshape(len(table), -1, len(direction)) @ direction

    def fit(present, absent):
        scorer = scores.linear().fit(features(present), features(absent))
        return lambda table: scorer(features(table))

    return one_event(scores.Score("along the record", fit), share=0.2, learned=True)
