"""The four-value example of `sec:deletion_vs_unlearn`: exact retraining that leaks.

Records are in {-2, -1, 1, 2}; a model is the sum of the records and deletion recomputes it. The
databases (-2, ∓1, 2) have sums of opposite sign. Users whose records have the sign of the sum
delete them, and the remaining sum reveals the deleted middle record. Deletion replaces a record by
0, which does not contribute to a sum.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from dd_jax.attacks.base import Attack, AttackResult, Picture, Settings, exact_law, row
from dd_jax.attacks.game import play, retraining
from dd_jax.audit.samples import Outcome, PostDeletionView, Stage, trials
from dd_jax.claims import Claim, Finding
from dd_jax.interaction import Requester
from dd_jax.intervals import proportions
from dd_jax.types import Edit, Mechanism

TARGET_ROW = 1
CHANCE = 0.5


def mechanism() -> Mechanism:
    """A(𝒟) = Σ x, Ā(𝒟, S, ·) = Σ over 𝒟 ∖ S: always equal to retraining."""
    return retraining(lambda key, database: jnp.sum(database))


def database(value: Array) -> Array:
    """(-2, value, 2) with value = -1 or 1."""
    return jnp.stack([jnp.float32(-2), value, jnp.float32(2)])


def requester() -> Requester:
    """S = {x < 0} if the released sum is negative, {x > 0} otherwise.

    If it is shown nothing it sees 0 and deletes rows 1 and 2, whatever their values: the target is
    deleted too, but the request does not depend on it.
    """

    def act(key, memory, observation):
        del key
        rows = jnp.where(observation.release < 0, jnp.array([0, 1]), jnp.array([1, 2]))
        return memory, Edit(rows.astype(jnp.int32), jnp.zeros(2, jnp.float32))

    return Requester(init=lambda key: (), act=act)


def adversary(key: Array, view: PostDeletionView) -> Array:
    """A remaining sum above 0 means that the negative users left: the deleted value was -1."""
    del key
    return jnp.where(view.first > 0, jnp.float32(-1), jnp.float32(1))


def trial(key: Array, *, observe: tuple = (0,)) -> Outcome:
    """Draw the deleted value by a fair coin, interact, and score the adversary's reading of it."""
    coin_key, play_key = jax.random.split(key)
    value = jnp.where(jax.random.bernoulli(coin_key), jnp.float32(-1), jnp.float32(1))
    stage = Stage(mechanism(), requester(), database(value), TARGET_ROW, 1, 1, observe)
    outcome = play(play_key, stage, adversary)
    return outcome._replace(answer=outcome.answer == value)


def attack(key: Array, settings: Settings) -> AttackResult:
    """Success of reading off the deleted value: 1 exactly with the requester, 1/2 without it."""
    cases = {"depend on the model": (0,), "fixed in advance": ()}
    scores = [
        trials(functools.partial(trial, observe=observe), case_key, settings.seeds)
        for case_key, observe in zip(jax.random.split(key), cases.values(), strict=True)
    ]
    estimates = proportions(np.stack(scores, axis=1), settings.confidence)
    table = zip(cases, estimates, (1.0, CHANCE), strict=True)
    rows = tuple(row({"requests": name}, estimate, exact) for name, estimate, exact in table)
    success = estimates[0]
    findings = (
        Finding(
            ATTACK.claim,
            success.low > CHANCE,
            f"the adversary names the value with probability at least {success.low:.4f}, "
            f"against {CHANCE} by chance",
        ),
        exact_law(
            "the success is 1 when requests depend on the model and 1/2 when they do not",
            "dd_jax.attacks.sum_example",
            rows,
        ),
    )
    return AttackResult(
        measure="success probability",
        estimate=success,
        bound=CHANCE,
        bound_means="chance: all that perfect deletion would allow",
        exact=1.0,
        findings=findings,
        rows=rows,
    )


ATTACK = Attack(
    "sum",
    "four values and their sum: retraining is exact, but the deleted value can be read off",
    Claim(
        "an output that equals retraining without the record reveals nothing about it",
        "def:guo, def:sekhari; def:ginart where requests depend on the model",
        "prior work",
    ),
    attack,
    Picture("intervals", ("requests",), {"exact": "exact"}),
)
