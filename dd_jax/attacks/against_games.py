"""Noisy-GD as the battlefield: what is learned, which requesters, what the adversary does with it.

Two families, one with a closed form and one without: the linear loss in one dimension, where the
sign of a release is the likelihood-ratio test, and logistic regression in the plane, where an
adversary learns a test from shadow runs of her own.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from dd_jax import losses
from dd_jax.attacks.game import play
from dd_jax.audit.samples import Outcome, PostDeletionView, Stage
from dd_jax.erm import Problem
from dd_jax.interaction import Requester
from dd_jax.losses.base import Loss
from dd_jax.noisy_gd import Schedule, mechanism
from dd_jax.types import Edit, Labelled, num_records, replacement

TARGET_ROW = 0
COPY, NECESSITY, RECODING, GROUP, BLIND = range(5)


class Family(NamedTuple):
    """A loss and a target that is x or its opposite.

    Attributes:
        loss: the loss of one record.
        l2: κ -> λ. With the step size 1/(κλ) every step contracts by 1 - 1/κ.
        direction: the target's features.
        encode: `weights (r,) -> records`: the target scaled by the weights, 0 for the null record.
        database: `n -> 𝒟_0` with the target in row 0.
    """

    loss: Loss
    l2: Callable[[float], float]
    direction: np.ndarray
    encode: Callable[[Array], PyTree]
    database: Callable[[int], PyTree]

    def opposite(self) -> Edit:
        """The edit that turns the target into its opposite."""
        return replacement([TARGET_ROW], self.encode(-jnp.ones(1, jnp.float32)))


def _linear() -> Family:
    """-⟨θ, x⟩ with λ = 1: the other rows are zero, so releases of the two worlds are mirrored."""

    def encode(weights):
        return weights[:, None]

    def database(n):
        return jnp.zeros((n, 1), jnp.float32).at[TARGET_ROW].set(1)

    return Family(losses.linear(), lambda condition: 1.0, np.ones(1), encode, database)


def _logistic() -> Family:
    """Logistic regression in the plane, λ = β/(κ-1): the other rows lie around a circle."""
    direction = np.array([1.0, 0.0])
    loss = losses.logistic()
    smoothness = loss.constants.smoothness
    assert smoothness is not None

    def encode(weights):
        features = jnp.broadcast_to(jnp.asarray(direction, jnp.float32), (*weights.shape, 2))
        return Labelled(features, weights)

    def database(n):
        angles = 2.4 * np.arange(n)
        features = np.stack([np.cos(angles), np.sin(angles)], axis=1)
        labels = np.where(np.arange(n) % 3 == 0, 1.0, -1.0)
        return Labelled(jnp.asarray(features, jnp.float32), jnp.asarray(labels, jnp.float32))

    return Family(loss, lambda condition: smoothness / (condition - 1), direction, encode, database)


FAMILIES = {"linear": _linear(), "logistic": _logistic()}


class Memory(NamedTuple):
    """⟨φ, x⟩ of the first release, its sum over the releases seen, and a random row to begin at."""

    first: Array
    total: Array
    begin: Array


def requester(family: Family, n: int, edits: int, deletion: int, strategy: Array) -> Requester:
    """Every request rewrites r of the other rows; request `deletion` blanks the target's row too.

    COPY puts what φ_0 says of the target, as it is, into the rows from a random one on, as the
    median's requester does. NECESSITY turns its sign into one row, as the proof of
    `thm:dp_necessary` does. RECODING puts the sign of everything seen so far into all rows. GROUP
    has two groups of rows, x and its opposite by turns: the one that φ_0 says the target belongs to
    leaves (null records), the other is there. BLIND writes null records, whatever is shown to it.
    `strategy` is traced: one compilation serves all.
    """
    direction = jnp.asarray(family.direction, jnp.float32)

    def init(key):
        # Uniform but for 2^-32 n, and far quicker to compile than randint.
        begin = (jax.random.bits(key) % jnp.uint32(n - 1)).astype(jnp.int32)
        return Memory(jnp.float32(0), jnp.float32(0), begin)

    def act(key, memory, observation):
        del key
        seen = observation.release @ direction
        first = jnp.where(observation.request == 1, seen, memory.first)
        memory = Memory(first, memory.total + seen, memory.begin)
        places = (observation.request - 1) * edits + jnp.arange(edits, dtype=jnp.int32)
        rows = 1 + (places + jnp.where(strategy == COPY, memory.begin, 0)) % (n - 1)
        weights = _weights(memory, rows, n, strategy)
        gone = (observation.request >= deletion) & (jnp.arange(edits) == 0)
        rows = jnp.where(gone, jnp.int32(TARGET_ROW), rows)
        return memory, Edit(rows, family.encode(jnp.where(gone, jnp.float32(0), weights)))

    return Requester(init, act)


def _weights(memory: Memory, rows: Array, n: int, strategy: Array) -> Array:
    """What each strategy writes into the rows, as a multiple of the target."""
    everywhere = jnp.ones(rows.shape, jnp.float32)
    exposed = jnp.where(memory.first > 0, jnp.float32(1), jnp.float32(-1))
    member = jnp.where(rows % 2 == 1, jnp.float32(1), jnp.float32(-1))
    choices = jnp.stack(
        [
            jnp.clip(n * memory.first, -1, 1) * everywhere,
            jnp.sign(memory.first) * (rows == 1).astype(jnp.float32),
            jnp.sign(memory.total) * everywhere,
            jnp.where(member == exposed, jnp.float32(0), member),
            jnp.zeros_like(everywhere),
        ]
    )
    return choices[strategy]


def sees_release(key: Array, view: PostDeletionView) -> Array:
    """The adversary's evidence: the release after the deletion. Her rule is applied on the host."""
    del key
    return view.first


class Moves(NamedTuple):
    """The static part of a game: steps, releases shown (p of them), rows edited by a request."""

    learn_steps: int
    delete_steps: int
    observed: int
    edits: int

    @property
    def deletion(self) -> int:
        """The request that deletes the target: one after the last release seen."""
        return self.observed + 1


def trial(
    key: Array,
    records: PyTree,
    l2: Array,
    schedule: Schedule,
    strategy: Array,
    *,
    name: str,
    moves: Moves,
) -> Outcome:
    """One interaction, whose last request deletes the target; all numbers are traced."""
    family, request = FAMILIES[name], moves.deletion
    n = num_records(records)
    schedule = schedule._replace(learn_steps=moves.learn_steps, delete_steps=moves.delete_steps)
    curator = mechanism(Problem(family.loss, l2), schedule)
    curious = requester(family, n, moves.edits, request, strategy)
    shown = tuple(range(moves.observed))
    stage = Stage(curator, curious, records, TARGET_ROW, request, request, shown)
    return play(key, stage, sees_release)
