"""The adaptive attack of Gupta et al. (2021) on SISA's shards (`subsec:gupta_compare`).

A model is most certain about the records that it was trained on, so all shard models together show
which shard a record was dealt to. Users whose most certain model is in the first half leave. The
shards of the first half are then smaller and their models less accurate, which a fresh deal would
not show. Retraining is symmetric in the shards: its rate is exactly 1/2. Noise inside each shard
hides the deal and costs accuracy.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from dd_jax import checks
from dd_jax.attacks.base import Attack, AttackResult, Picture, Settings, exact_law, number, row
from dd_jax.attacks.game import play, retraining
from dd_jax.audit.samples import Outcome, PostDeletionView, Stage, trials
from dd_jax.baselines.sisa import Training, mechanism, publish_models, vote_of
from dd_jax.claims import Claim, Finding
from dd_jax.data import load
from dd_jax.erm import Problem
from dd_jax.errors import InputError
from dd_jax.interaction import Requester
from dd_jax.intervals import Estimate, proportions, simultaneous
from dd_jax.losses import logistic
from dd_jax.types import Edit, Labelled, Mechanism

DATA = "digits-3-vs-8"
TARGET_ROW = 0
CHANCE = 0.5
FREQUENCIES, BANDWIDTH = 128, 4.0
L2, CLIP_NORM, STEP_SIZE, NUM_STEPS = 1e-3, 1.0, 4.0, 30
CHUNK = 100

Progress = Callable[[int, int], None]


@dataclass(frozen=True, kw_only=True)
class ShardSettings(Settings):
    """Shards of SISA, and the noise multiplier of the private ones."""

    seeds: int = 300
    shards: int = number(6, checks.whole, least=2)
    noise: float = number(8.0, checks.positive)

    def __post_init__(self):
        super().__post_init__()
        if self.shards % 2:
            raise InputError(f"shards = {self.shards}; give an even number ≥ 2, such as 6.")


class Reading(NamedTuple):
    """The indicator, and the accuracy of the majority vote, which is reported beside it."""

    drained: Bool[Array, ""]
    accuracy: Float[Array, ""]


def cosine_features(features: Array) -> Array:
    """Unit-norm rows a -> (cos Wa, sin Wa)/√m with fixed Gaussian frequencies W.

    A linear model of these can memorise its records, as the networks of the published attack do. W
    is drawn once from a fixed seed and depends on no data.
    """
    shape = (features.shape[1], FREQUENCIES)
    draws = jax.random.normal(jax.random.key(0), shape, features.dtype)
    angles = features @ (BANDWIDTH * draws)
    waves = jnp.concatenate([jnp.cos(angles), jnp.sin(angles)], axis=1)
    return waves / jnp.sqrt(jnp.asarray(FREQUENCIES, features.dtype))


def records() -> tuple[Labelled, Labelled]:
    """The private records and the held-out ones, with cosine features."""
    dataset = load(DATA)
    return (
        Labelled(cosine_features(dataset.train.features), dataset.train.label),
        Labelled(cosine_features(dataset.test.features), dataset.test.label),
    )


def training(noise_multiplier: float = 0.0) -> Training:
    """Gradient descent inside each shard; with noise also clipping, as DP-SGD with full batches."""
    clip_norm = CLIP_NORM if noise_multiplier > 0 else None
    problem = Problem(logistic(), L2, clip_norm)
    return Training(problem, NUM_STEPS, STEP_SIZE, noise_multiplier)


def fresh_deal(plain: Mechanism) -> Mechanism:
    """The same learner, retrained with a new deal at every request."""
    return retraining(plain.learn)._replace(publish=publish_models, domain=plain.domain)


def requester(database: Labelled, looks: Array | bool = True) -> Requester:
    """Users leave whose most certain model (of their own label) is in the first half of the shards.

    All leave in one request; the target, row 0, leaves with them in any case. Rows that stay are
    named by a number out of range, which the curator drops. Users who do not look, or are shown
    nothing, toss coins. `looks` may be traced: one compilation serves both kinds of users.
    """
    n = database.label.shape[0]

    def act(key, memory, observation):
        models = observation.release
        confidence = database.label * (models @ database.features.T)
        surest = jnp.argmax(confidence, axis=0) < models.shape[0] // 2
        coins = jax.random.bernoulli(key, shape=(n,))
        leaves = jnp.where(observation.visible & looks, surest, coins)
        leaves = leaves.at[TARGET_ROW].set(True)
        rows = jnp.where(leaves, jnp.arange(n, dtype=jnp.int32), jnp.int32(n))
        return memory, Edit(rows, jax.tree.map(jnp.zeros_like, database))

    return Requester(init=lambda key: (), act=act)


def accuracies(models: Array, held_out: Labelled) -> Float[Array, "shards"]:
    """The share of held-out records that each model labels rightly."""
    predictions = jnp.sign(models @ held_out.features.T)
    return jnp.mean((predictions == held_out.label).astype(models.dtype), axis=1)


def adversary(key: Array, view: PostDeletionView, *, held_out: Labelled) -> Reading:
    """1[mean accuracy of the first half < that of the rest], a coin where they are equal."""
    models = view.first
    first, rest = jnp.split(accuracies(models, held_out), 2)
    first, rest = jnp.mean(first), jnp.mean(rest)
    drained = jnp.where(first == rest, jax.random.bernoulli(key), first < rest)
    voted = vote_of(logistic())(models, held_out.features) == held_out.label
    return Reading(drained, jnp.mean(voted.astype(models.dtype)))


def trial(
    key: Array, database: Labelled, held_out: Labelled, looks: Array, *, mechanism: Mechanism
) -> Outcome:
    """One request, in which the users of the first half's shards leave; the adversary sees φ_1."""
    stage = Stage(mechanism, requester(database, looks), database, TARGET_ROW, 1, 1, (0,))
    return play(key, stage, functools.partial(adversary, held_out=held_out))


@functools.cache
def _trial(mechanism: Mechanism):
    """One function object per curator, so that it is compiled once for both kinds of users."""
    return functools.partial(trial, mechanism=mechanism)


class Case(NamedTuple):
    """A curator, whether users look at the models, and the exact rate where it is known."""

    curator: str
    requests: str
    mechanism: Mechanism
    looks: bool
    exact: float | None


def cases(shards: int, noise: float) -> tuple[Case, ...]:
    """Plain SISA, the defence and the two nulls."""
    plain, private = (mechanism(training(z), shards) for z in (0.0, noise))
    return (
        Case("SISA", "adaptive", plain, True, None),
        Case(f"SISA, noise {noise:g} in each shard", "adaptive", private, True, None),
        Case("SISA", "at random", plain, False, CHANCE),
        Case("retraining, fresh shards", "adaptive", fresh_deal(plain), True, CHANCE),
    )


def attack(key: Array, settings: ShardSettings, progress: Progress) -> AttackResult:
    """The rate of the indicator against SISA, SISA with noise, and retraining."""
    played = cases(settings.shards, settings.noise)
    each = simultaneous(settings.confidence, len(played))
    keys = jax.random.split(key, len(played))
    total = len(played) * settings.seeds
    results = [
        _play(
            keys[place],
            case,
            settings.seeds,
            each,
            lambda done, _, before=place * settings.seeds: progress(before + done, total),
        )
        for place, case in enumerate(played)
    ]
    rows = tuple(_row(case, *found) for case, found in zip(played, results, strict=True))
    return AttackResult(
        measure="success probability",
        estimate=results[0][0],
        bound=CHANCE,
        bound_means="the rate under retraining, by symmetry of the shards",
        findings=_findings(rows),
        rows=rows,
    )


def _row(case: Case, estimate: Estimate, accuracy: float) -> dict:
    labels = {"curator": case.curator, "requests": case.requests}
    return row(labels, estimate, case.exact, accuracy=accuracy)


def _play(
    key: Array, case: Case, seeds: int, confidence: float, progress: Progress
) -> tuple[Estimate, float]:
    """The indicator's rate and the mean accuracy of the vote after the deletions."""
    looks = jnp.asarray(case.looks)
    how: dict = {"chunk": CHUNK, "progress": progress}
    reading = trials(_trial(case.mechanism), key, seeds, *records(), looks, **how)
    return proportions(reading.drained, confidence)[0], float(np.mean(reading.accuracy))


def _findings(rows) -> tuple[Finding, ...]:
    plain, private = rows[:2]
    defence = Claim(
        "this noise inside each shard hides the deal: drained shards are not named more often than "
        "under retraining",
        "Gupta et al. 2021, subsec:gupta_compare",
        "prior work",
    )
    return (
        Finding(
            ATTACK.claim,
            plain["low"] > CHANCE,
            f"the drained half is named with probability at least {plain['low']:.4f}, "
            f"against {CHANCE} for retraining",
        ),
        Finding(
            defence,
            private["low"] > CHANCE,
            f"{private['success']:.4f} in [{private['low']:.4f}, {private['high']:.4f}] with "
            f"noise, {CHANCE} under retraining, {plain['success']:.4f} without noise",
        ),
        exact_law(
            "the rate is 1/2 under retraining, and under SISA when requests are fixed in advance",
            "dd_jax.attacks.sisa",
            rows,
        ),
    )


ATTACK = Attack(
    "sisa",
    "users whose most certain model is in the first shards leave: SISA looks unlike retraining",
    Claim(
        "SISA equals retraining with freshly drawn shards, for all requests",
        "Bourtoule et al. 2021; subsec:gupta_compare",
        "prior work",
    ),
    attack,
    Picture("intervals", ("curator", "requests"), {"exact": "exact"}),
    ShardSettings,
    reports=True,
)
