"""The audit on real data: logistic regression on digits.

One row holds a record that differs as much as possible from its neighbour, and requesters copy what
they learn of it into other rows before its deletion. Exact divergences are not known.
"""

import itertools
from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial
from jaxtyping import Array

from dd_jax import data, erm, losses, noisy_gd, requesters
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
# Where edits depend on the seed, every seed needs its own copy of the database.
SHARED_CHUNK, COPIED_CHUNK = 2000, 500
RECODING, LOSS = "recoding", "loss"
_WORDS = {RECODING: "rows recoded", LOSS: "largest losses deleted"}


class Target(NamedTuple):
    """The record of the present world and that of the absent one, as single rows.

    Attributes:
        row: where they are.
        record, other: the two records; their gradients point in opposite directions along v.
        direction: v, the unit direction in which they differ.
        centre: ⟨θ*, v⟩ of the minimiser without either, halfway between the two worlds.
    """

    row: int
    record: Labelled
    other: Labelled
    direction: np.ndarray
    centre: float


def worst_record(problem: erm.Problem, train: Labelled, row: int = 0) -> Target:
    """Two records that the model gets wrong alike and that pull it in opposite directions.

    a, b = -t u ± √(1-t²) v, both labelled +1, with u = θ*/‖θ*‖ and v the direction in which the
    rows vary least. Their gradients differ by 2 √(1-t²) s(t‖θ*‖) v, s the logistic function; t
    makes that largest. A mere change of label would give v, half of what is certified.
    """
    blanked = apply_edit(train, deletion(problem.loss, train, [row]))
    optimum = np.asarray(erm.minimise(problem, blanked).params, np.float64)
    size = np.linalg.norm(optimum)
    along = _least_varying(np.asarray(blanked.features, np.float64))
    along = along - (along @ optimum) * optimum / size**2
    along /= np.linalg.norm(along)
    wrong = np.linspace(0, 1, 1001)
    tilt = wrong[np.argmax(np.sqrt(1 - wrong**2) / (1 + np.exp(-wrong * size)))]
    # A hair inside the unit ball, so that rounding cannot put a record outside the domain.
    scale = 1 - 1e-6
    sides = [-tilt * optimum / size + side * np.sqrt(1 - tilt**2) * along for side in (1, -1)]
    record, other = (
        Labelled(jnp.asarray(scale * side[None], jnp.float32), jnp.ones(1, jnp.float32))
        for side in sides
    )
    return Target(row, record, other, along, float(optimum @ along))


def _least_varying(features: np.ndarray) -> np.ndarray:
    """The unit direction in which the rows vary least, the same one on every processor.

    Where there are several (pixels that are always blank), eigenvectors are any basis of them: the
    first axis that is nearest to their span is projected onto it.
    """
    values, axes = np.linalg.eigh(features.T @ features)
    span = axes[:, values <= values[0] + 1e-9 * values[-1]]
    nearest = np.argmax(np.round(np.sum(span**2, axis=1), 6))
    along = span @ span[nearest]
    return along / np.linalg.norm(along)


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
    # Slot 0 belongs to the last other row until the target is deleted: every edit has the same r.
    others = jnp.roll(jnp.delete(jnp.arange(n, dtype=jnp.int32), target.row), 1)
    own = jax.tree.map(lambda leaf: leaf[others], train)
    null = deletion(loss, train, [target.row]).record

    def init(key):
        del key
        return Looks(jnp.float32(0), jnp.float32(0))

    def act(bound, key, memory, observation):
        del key
        own, null, direction, centre = bound
        looked = observation.visible.astype(jnp.float32)
        seen = observation.release @ direction - centre
        memory = Looks(memory.total + looked * seen, memory.count + looked)
        now = observation.request == deleted_by
        features = jnp.broadcast_to(jnp.sign(memory.total) * direction, own.features.shape)
        coded = Labelled(features, jnp.ones_like(own.label))
        coded = jax.tree.map(lambda leaf, blank: leaf.at[0].set(blank[0]), coded, null)
        record = jax.tree.map(lambda new, old: jnp.where(now, new, old), coded, own)
        rows = others.at[0].set(jnp.where(now, jnp.int32(target.row), others[0]))
        return memory, Edit(rows, record)

    bound = (own, null, direction, jnp.float32(target.centre))
    return Requester(init, Partial(act, bound))


def loss_chaser(loss: Loss, train: Labelled, target: Target, *, deleted_by: int) -> Requester:
    """Deletes the other record with the largest loss under what it saw last, and the target at
    request `deleted_by`. Of the target it knows the row alone.
    """
    delete = deletion(loss, train, [target.row])
    others = requesters.largest_loss(loss, apply_edit(train, delete))
    row = target.row

    def init(others, key):
        memory = others.init(key)
        return memory._replace(alive=memory.alive.at[row].set(False))

    def act(others, delete, key, memory, observation):
        memory, edit = others.act(key, memory, observation)
        now = observation.request == deleted_by
        return memory, jax.tree.map(lambda new, old: jnp.where(now, new, old), delete, edit)

    bound = Partial(init, others), Partial(act, others, delete)
    return Requester(*bound, max_requests=others.max_requests)


# --- the setting --------------------------------------------------------------------------------


def setting(order: float, batches: int = 1) -> AuditSetting:
    """Logistic regression on digits-3-vs-8 with a made worst record in one row; R_q is not known.

    With batches the row is in the first, in a middle one or in the last, and K_U is no multiple of
    m. The null reference is judged with the row empty in the other world.
    """
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
        batches=batches,
    )
    if batches > 1 and plan.delete_steps % batches == 0:
        plan = replace(plan, delete_steps=plan.delete_steps + 1)
    mechanism = noisy_gd.mechanism(problem, plan)
    interactions, audited = {}, []
    for where, row in targets(n, batches).items():
        found = _of_row(plan, problem, mechanism, train, row)
        for name, (interaction, cases) in found.items():
            interactions[name + where] = interaction
            audited += [
                case._replace(name=case.name + where, interaction=name + where) for case in cases
            ]
    summary = f"logistic regression on {DATASET}, n = {n}, d = {dim}"
    return AuditSetting(
        "logistic",
        summary + (f", {batches} batches" if batches > 1 else ""),
        {"setting": "logistic", "order": order, "dataset": DATASET, "batches": batches},
        plan,
        interactions,
        tuple(audited),
        gaussian_controls(batches),
    )


def _of_row(
    plan: Plan, problem: Problem, mechanism: Mechanism, train: Labelled, row: int
) -> dict[str, tuple[Interaction, list[AuditedClaim]]]:
    """Interactions about a record of this row, and the claims that are judged on each."""
    loss, target = problem.loss, worst_record(problem, train, row)
    database = apply_edit(train, replacement([row], target.record))
    worlds = (database, replacement([row], target.other))
    empty = deletion(loss, train, [row])
    score = along(target.direction)

    def stream(kept: tuple[int, ...], deleted_by: int) -> Interaction:
        """Other rows are deleted one after another, the target at some request or never."""
        rows = [other for other in range(1, max(kept) + 2) if other != row][: max(kept)]
        if deleted_by:
            rows[deleted_by - 1] = row
        edits = requesters.stack_edits([deletion(loss, train, [other]) for other in rows])
        fixed = (mechanism, requesters.fixed_stream(edits))
        return Interaction(*fixed, *worlds, kept, deleted_by, SHARED_CHUNK)

    def adaptive(kind: str, seen: int, request: int) -> Interaction:
        make = recoder if kind == RECODING else loss_chaser
        requester = make(loss, train, target, deleted_by=request)
        told = {"observe": tuple(range(seen))}
        return Interaction(mechanism, requester, *worlds, (request,), request, COPIED_CHUNK, **told)

    def case(name, words, releases, claim, gates=GAUSSIAN) -> AuditedClaim:
        ours, paper = claim
        return AuditedClaim(name, words, name, releases, ours, paper, None, score, gates)

    joint = certified(plan, "dp-joint", request=max(EARLY))
    stays = [
        case("dp", "one release, record stays", (0,), certified(plan, "dp")),
        case("dp-joint", f"{len(EARLY)} releases jointly", EARLY, joint),
    ]
    found = {"stays": (stream(EARLY, 0), stays)}
    for request, kept in ((1, EARLY), (LATE[0], LATE)):
        name, words = f"deletion-{request}", f"deleted by request {request}"
        claim = certified(plan, "deletion", request=request)
        made = case(name, words, (request, request + 1), claim)
        found[name] = (stream(kept, request), [made])
    for seen, kind in itertools.product(SEEN, (RECODING, LOSS)):
        # The recoding request also deletes the target; the loss chaser does so after p deletions.
        request = seen if kind == RECODING else seen + 1
        words = f"deleted; {seen} release{'s' * (seen > 1)} seen, {_WORDS[kind]}"
        claim = certified(plan, "deletion-adaptive", seen, request)
        gates = EVENT if kind == RECODING else GAUSSIAN
        name = f"adaptive-{seen}-{kind}"
        made = case(name, words, (request,), claim, gates)
        found[name] = (adaptive(kind, seen, request), [made])
    for like, name, claim in (
        ("deletion-1", "null-1", certified(plan, "deletion-null")),
        (
            f"adaptive-1-{RECODING}",
            f"null-adaptive-1-{RECODING}",
            certified(plan, "deletion-null-adaptive", 1),
        ),
    ):
        interaction, (made,) = found[like]
        words = f"{made.words}; the other world's row is empty"
        stated = dict(zip(("claim", "paper"), claim, strict=True))
        found[name] = (
            interaction._replace(alternative=empty),
            [made._replace(name=name, words=words, **stated)],
        )
    return found


def along(direction: np.ndarray) -> scores.Score:
    """Fisher's discriminant of ⟨φ, v⟩ of every release; few numbers to fit, so few seeds for it."""

    def features(table):
        return table.reshape(len(table), -1, len(direction)) @ direction

    def fit(present, absent):
        scorer = scores.linear().fit(features(present), features(absent))
        return lambda table: scorer(features(table))

    return one_event(scores.Score("along the record", fit), share=0.2, learned=True)
