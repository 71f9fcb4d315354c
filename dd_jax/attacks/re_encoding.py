"""Re-encoding on real data: the introduction's story, against retraining and against Noisy-GD.

"If an individual is identified to be part of the training set, many members of his group may
request deletion. Therefore, the representation of different groups in the unlearned model can
reveal the individual's affiliation, even when he is no longer part of the dataset" (`sec:intro`).

The target's label y = ±1, its group, is a fair coin. A 1-adaptive requester reads it from φ_0, k
members of that group leave, and then the target is deleted. The adversary reads from φ_2 which
group has left. Retraining reveals the label with probability 1; Noisy-GD stays within its
certificate.
"""

import functools
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from dd_jax import checks
from dd_jax.attacks.base import Attack, AttackResult, Picture, PlanSettings, exact_law, number, row
from dd_jax.attacks.game import play, retraining
from dd_jax.audit.samples import Outcome, PostDeletionView, Stage, trials
from dd_jax.claims import Claim, Finding
from dd_jax.data import load
from dd_jax.erm import Problem, minimise
from dd_jax.interaction import Requester
from dd_jax.intervals import Estimate, proportions, simultaneous
from dd_jax.losses import logistic
from dd_jax.noisy_gd import mechanism as noisy_gd_mechanism
from dd_jax.plans import Plan, plan_convex
from dd_jax.types import Edit, Labelled, Mechanism, apply_edit

DATA = "digits-3-vs-8"
MOST_GROUP, MOST_TARGETS = 100, 64
DELETION = 2
CHANCE = 0.5
SEEN, BLIND = (0,), ()
# Retraining is deterministic: its trials differ in target and label alone.
MOST_RETRAINED = 256
CHUNK = 256


@dataclass(frozen=True, kw_only=True)
class GroupSettings(PlanSettings):
    """k members of a group leave."""

    seeds: int = 2_000
    group: int = number(20, checks.whole, least=1, most=MOST_GROUP)
    l2: float = 0.05


class Scene(NamedTuple):
    """The records, who may be the target, and what everybody knows.

    Attributes:
        database: the records; the target's label is drawn in each trial.
        groups: rows of the k members of group -1 (entry 0) and of group +1 (entry 1) who may leave.
        targets: rows of the possible targets, among everyone else.
        alone: per target, the score ⟨a, θ⟩ of a model that never saw it: the requester's threshold.
        parted: per target, halfway between the `leaning` of the two models that retraining can end
            with: the adversary's threshold.
    """

    database: Labelled
    groups: Int[Array, "2 k"]
    targets: Int[Array, "t"]
    alone: Float[Array, "t"]
    parted: Float[Array, "t"]


def retrained(problem: Problem) -> Mechanism:
    """Perfect unlearning: the exact minimiser on what is left, at every request."""
    fitted = retraining(lambda key, database: minimise(problem, database).params)
    return fitted._replace(domain=problem.loss.domain)


def without(database: Labelled, rows: Array) -> Labelled:
    """The database with these rows blanked."""
    return apply_edit(database, _blank(database, rows))


def _blank(database: Labelled, rows: Array) -> Edit:
    """The edit that puts the null record into rows; repeated rows are harmless."""
    null = jax.tree.map(lambda leaf: jnp.zeros((rows.size, *leaf.shape[1:]), leaf.dtype), database)
    return Edit(rows, null)


def leaning(params: Array, database: Labelled, groups: Array) -> Array:
    """Loss over group -1 minus loss over group +1: large where the model favours group +1.

    When group g leaves, retraining ends at θ_g = argmin F - A_g, with F the objective of all who
    stay and A_g that group's part of it. Adding up what θ_{-1} and θ_{+1} minimise gives
    (A_{+1} - A_{-1})(θ_{+1}) ≥ (A_{+1} - A_{-1})(θ_{-1}): the model fits those who left worse.
    """
    losses = jax.vmap(logistic().value, in_axes=(None, 0))(params, database)
    minus, plus = jnp.sum(losses[groups], axis=1)
    return minus - plus


def build_scene(problem: Problem, database: Labelled, group: int) -> Scene:
    """The first k rows of each label are the groups; thresholds by exact minimisation."""
    label = np.asarray(database.label)
    groups = np.stack([np.flatnonzero(label == side)[:group] for side in (-1, 1)])
    targets = jnp.asarray(np.setdiff1d(np.arange(label.size), groups)[:MOST_TARGETS], jnp.int32)
    groups = jnp.asarray(groups, jnp.int32)
    measure = jax.jit(jax.vmap(_thresholds, in_axes=(None, None, None, 0)))
    return Scene(database, groups, targets, *measure(problem, database, groups, targets))


def _thresholds(problem, database, groups, target) -> tuple[Array, Array]:
    rest = without(database, target[None])
    alone = minimise(problem, rest).params @ database.features[target]
    ends = [minimise(problem, without(rest, rows)).params for rows in groups]
    minus, plus = (leaning(params, database, groups) for params in ends)
    return alone, (minus + plus) / 2


def requester(scene: Scene, pick: Array, looks: Array | bool = True) -> Requester:
    """The target's group leaves after φ_0 exposes it; then the target is deleted.

    A record with label +1 raises the model's score on it above that of a model that never saw it,
    one with -1 lowers it, for all values of the other records. A requester that does not look, or
    is shown nothing, uses a score of 0: which group leaves then depends only on the other records.
    `looks` may be traced, so that one compilation serves both.
    """
    target = scene.targets[pick]
    size = scene.groups.shape[1]

    def act(key, memory, observation):
        del key
        seen = jnp.where(looks, observation.release, jnp.zeros_like(observation.release))
        score = seen @ scene.database.features[target]
        exposed = (score > scene.alone[pick]).astype(jnp.int32)
        first = observation.request == 1
        rows = jnp.where(first, scene.groups[exposed], jnp.full(size, target))
        return memory, _blank(scene.database, rows)

    return Requester(init=lambda key: (), act=act)


def adversary(key: Array, view: PostDeletionView, *, scene: Scene, pick: Array) -> Array:
    """The label of the group that the model fits worse: that group has left."""
    del key
    lean = leaning(view.first, scene.database, scene.groups)
    return jnp.where(lean < scene.parted[pick], 1.0, -1.0).astype(lean.dtype)


def trial(key: Array, scene: Scene, looks: Array, *, mechanism: Mechanism) -> Outcome:
    """Draw target and label, let the group leave, delete the target, ask for its label."""
    pick_key, label_key, play_key = jax.random.split(key, 3)
    pick = jax.random.randint(pick_key, (), 0, scene.targets.size, jnp.int32)
    label = jax.random.rademacher(label_key, (), scene.database.label.dtype)
    target = scene.targets[pick]
    database = scene.database._replace(label=scene.database.label.at[target].set(label))
    ask = requester(scene, pick, looks)
    stage = Stage(mechanism, ask, database, target, DELETION, DELETION, SEEN)
    outcome = play(play_key, stage, functools.partial(adversary, scene=scene, pick=pick))
    return outcome._replace(answer=outcome.answer == label)


@functools.cache
def _trial(mechanism: Mechanism):
    """One function object per curator, so that it is compiled once for both requesters."""
    return functools.partial(trial, mechanism=mechanism)


def success(
    key: Array, scene: Scene, mechanism: Mechanism, observe: tuple, seeds: int, confidence: float
) -> Estimate:
    """How often the adversary names the deleted label, when the requester looks at `observe`."""
    looks = jnp.asarray(observe == SEEN)
    scores = trials(_trial(mechanism), key, seeds, scene, looks, chunk=CHUNK)
    return proportions(scores, confidence)[0]


def certified_success(plan: Plan, problem: Problem, observe: tuple) -> float:
    """(1 + Adv)/2 with the certificate's bound on the advantage for a requester that saw this.

    The two labels make neighbouring databases, and P[right] = (1 + Adv)/2 for a fair coin.
    """
    certificate = plan.certificate(
        len(observe),
        DELETION,
        observed=observe,
        problem=problem,
    )
    return (1 + certificate.advantage_bound) / 2


class Case(NamedTuple):
    """A curator, what its requester sees, and what is known of the success beforehand."""

    curator: str
    mechanism: Mechanism
    observe: tuple
    exact: float | None
    certified: float | None


def cases(problem: Problem, plan: Plan) -> tuple[Case, ...]:
    """Retraining and Noisy-GD, each with a requester that sees φ_0 and with one that does not."""
    exact, noisy = retrained(problem), noisy_gd_mechanism(problem, plan)
    bounds = [certified_success(plan, problem, observe) for observe in (SEEN, BLIND)]
    return (
        Case("retraining", exact, SEEN, 1.0, None),
        Case("retraining", exact, BLIND, CHANCE, None),
        Case("Noisy-GD", noisy, SEEN, None, bounds[0]),
        Case("Noisy-GD", noisy, BLIND, None, bounds[1]),
    )


def attack(key: Array, settings: GroupSettings) -> AttackResult:
    """Success of naming a deleted label, against retraining and against Noisy-GD."""
    group, seeds = settings.group, settings.seeds
    database, problem = load(DATA).train, Problem(logistic(), settings.l2)
    n, dim = database.features.shape
    plan = plan_convex(problem, n=n, dim=dim, edits_per_request=group, **settings.budgets)
    scene, played = build_scene(problem, database, group), cases(problem, plan)
    each = simultaneous(settings.confidence, len(played))
    estimates = []
    for case_key, case in zip(jax.random.split(key, len(played)), played, strict=True):
        trials_here = min(seeds, MOST_RETRAINED) if case.certified is None else seeds
        estimates.append(success(case_key, scene, case.mechanism, case.observe, trials_here, each))
    rows = tuple(_row(case, made) for case, made in zip(played, estimates, strict=True))
    return AttackResult(
        measure="success probability",
        estimate=estimates[0],
        bound=CHANCE,
        bound_means="chance: all that perfect deletion would allow",
        exact=played[0].exact,
        findings=_findings(rows),
        rows=rows,
        theory={"learn_steps": plan.learn_steps, "delete_steps": plan.delete_steps},
    )


def _row(case: Case, estimate: Estimate) -> dict:
    labels = {"curator": case.curator, "releases seen": len(case.observe)}
    return row(labels, estimate, case.exact, certified=case.certified, trials=estimate.trials)


def _findings(rows) -> tuple[Finding, ...]:
    held = [each for each in rows if each["certified"] is not None]
    certificate = Claim(
        "a deleted label is named with probability at most (1 + advantage bound)/2 by anyone who "
        "sees what Noisy-GD releases from the deletion on, after requests that saw p releases",
        "dd_jax.plans.Certificate.advantage_bound (erratum E2)",
        "ours",
    )
    return (
        Finding(
            ATTACK.claim,
            rows[0]["low"] > CHANCE,
            f"after retraining the deleted label is named with probability at least "
            f"{rows[0]['low']:.4f}, against {CHANCE} by chance",
        ),
        Finding(
            certificate,
            any(each["low"] > each["certified"] for each in held),
            "; ".join(
                f"p = {each['releases seen']}: at least {each['low']:.4f}, "
                f"certified {each['certified']:.4f}"
                for each in held
            ),
        ),
        exact_law(
            "after retraining the success is 1 if the requester saw φ_0 and 1/2 if it saw nothing",
            "dd_jax.attacks.re_encoding.leaning",
            rows,
        ),
    )


ATTACK = Attack(
    "re-encoding",
    "a record is exposed and its group leaves: retraining tells the deleted label",
    Claim(
        "retraining on the data that is left, perfect unlearning, hides the deleted record",
        "dfn:unlearning; sec:intro",
        "prior work",
    ),
    attack,
    Picture(
        "intervals",
        ("curator", "releases seen"),
        {"exact": "exact", "certified": "certified"},
    ),
    GroupSettings,
)
