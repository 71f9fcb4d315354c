"""The median attack: a release survives in the rows that it was copied to.

This is the construction in the adaptive-violation theorem (`thm:adaptive_violation`). A(𝒟) =
median(𝒟) and deletion retrains, so unlearning is perfect: (0, 0)-adaptive-unlearning. A requester
that sees φ_0, the median itself, copies it into random rows before its owner deletes it at request
i. The median of the remaining records is then most likely still the deleted record.
"""

import functools
import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from dd_jax import checks
from dd_jax.attacks.base import Attack, AttackResult, Picture, Settings, exact_law, number, row
from dd_jax.attacks.game import first_release, play, retraining
from dd_jax.audit.samples import Outcome, Stage, trials
from dd_jax.claims import Claim, Finding
from dd_jax.errors import InputError
from dd_jax.interaction import Requester
from dd_jax.intervals import Estimate, proportions, simultaneous
from dd_jax.types import Edit, Mechanism

FIRST_STEP = 4
MOST_ROWS = 9
GAP = 1_000
MOST_RECORDS = 1_000_001


@dataclass(frozen=True, kw_only=True)
class MedianSettings(Settings):
    """n records; the owner of the median deletes it at a request i of 4 … `step`."""

    n: int = number(101, checks.whole, least=5, most=MOST_RECORDS)
    step: int = 12

    def __post_init__(self):
        super().__post_init__()
        if self.n % 2 == 0:  # the median would not be a record
            raise InputError(
                f"n = {self.n}; give an odd number of records from 5 to {MOST_RECORDS}."
            )
        checks.whole("step", self.step, least=FIRST_STEP, most=self.n)


def mechanism() -> Mechanism:
    """A(𝒟) = median(𝒟), retrained at every request; n is odd, so the median is a record."""

    def learn(key, database):
        del key
        return jnp.sort(database)[database.shape[0] // 2]

    return retraining(learn)


def draw_database(key: Array, n: int) -> Array:
    """A database of n distinct whole numbers, in increasing order, `GAP` apart, randomly shifted.

    The requester picks rows at random, so the order of the rows does not matter.
    """
    return jnp.arange(n, dtype=jnp.int32) * GAP + jax.random.randint(key, (), 0, GAP, jnp.int32)


def requester(n: int, owner_row: int, step: Array) -> Requester:
    """Requests 1 … i-1 copy φ_0 into random distinct rows; request i is the owner's deletion.

    The owner's replacement y = n · GAP lies above every record and does not depend on anything.
    Requests after i repeat the deletion, which changes nothing: every later release equals φ_i.
    """

    def init(key):
        return jnp.int32(0), jax.random.permutation(key, n).astype(jnp.int32)

    def act(key, memory, observation):
        del key
        seen, rows = memory
        seen = jnp.where(observation.visible, observation.release, seen)
        left = observation.request >= step
        row = jnp.where(left, jnp.int32(owner_row), rows[observation.request - 1])
        record = jnp.where(left, jnp.int32(n * GAP), seen)
        return (seen, rows), Edit(row[None], record[None])

    return Requester(init, act)


def trial(key: Array, step: Array, *, n: int, num_requests: int, observe: tuple = (0,)) -> Outcome:
    """The owner of the median deletes it at request i = `step`; does the adversary name it?

    The adversary is given the last release only. `step` is traced, so that one compilation serves
    every i up to `num_requests`.
    """
    draw_key, play_key = jax.random.split(key)
    database, row = draw_database(draw_key, n), n // 2
    curious = requester(n, row, step)
    stage = Stage(mechanism(), curious, database, row, num_requests, num_requests, observe)
    # The adversary guesses that the release is the deleted record.
    outcome = play(play_key, stage, first_release)
    return outcome._replace(answer=outcome.answer == database[row])


def exact_success(n: int, step: int) -> float:
    """P[median(𝒟_i) = median(𝒟_0)] for this requester, exactly: 1 - C(h+1, i-1) / C(n, i-1).

    With h = (n-1)/2 records on each side and y above them all, the old median stays the middle
    value iff at least one of the i-1 random rows held a record above it; h+1 rows did not.
    """
    return 1 - math.comb(n // 2 + 1, step - 1) / math.comb(n, step - 1)


def theorem_bound(n: int, step: int) -> float:
    """1 - 2 C(⌊n/2⌋, i-2) / C(n, i-2), the lower bound in the proof of `thm:adaptive_violation`."""
    return 1 - 2 * math.comb(n // 2, step - 2) / math.comb(n, step - 2)


def theorem_bound_simple(step: int) -> float:
    """1 - (1/2)^{i-3}, as `thm:adaptive_violation` states it."""
    return 1 - 0.5 ** (step - 3)


def attack(key: Array, settings: MedianSettings) -> AttackResult:
    """Success of naming the median deleted at requests 4 … step, and with a blind requester."""
    n, step, seeds = settings.n, settings.step, settings.seeds
    steps = np.unique(np.linspace(FIRST_STEP, step, MOST_ROWS).astype(int)).tolist()
    each = simultaneous(settings.confidence, len(steps) + 1)
    shown = functools.partial(trial, n=n, num_requests=step)
    blind_trial = functools.partial(shown, observe=())
    estimates = [_estimate(jax.random.fold_in(key, i), shown, seeds, i, each) for i in steps]
    blind = _estimate(jax.random.fold_in(key, 0), blind_trial, seeds, step, each)
    rows = [_row(n, i, estimate) for i, estimate in zip(steps, estimates, strict=True)]
    return AttackResult(
        measure="success probability",
        estimate=estimates[-1],
        bound=theorem_bound(n, step),
        bound_means="thm:adaptive_violation: success is at least this",
        exact=exact_success(n, step),
        theory={"bound_simple": theorem_bound_simple(step)},
        findings=_findings(rows, blind),
        rows=tuple(rows),
    )


def _estimate(key, trial_fn, seeds, step, confidence) -> Estimate:
    scores = trials(trial_fn, key, seeds, jnp.int32(step))
    return proportions(scores, confidence)[0]


def _row(n: int, step: int, estimate: Estimate) -> dict:
    return row(
        {"step": step},
        estimate,
        exact_success(n, step),
        bound=theorem_bound(n, step),
        bound_simple=theorem_bound_simple(step),
    )


def _findings(rows: list[dict], blind: Estimate) -> tuple[Finding, ...]:
    above = [each["high"] >= each["bound"] for each in rows]
    theorem = Claim(
        "the deleted record is inferred with probability at least 1 - 2C(⌊n/2⌋, i-2)/C(n, i-2)",
        "thm:adaptive_violation",
        "paper",
    )
    return (
        Finding(
            ATTACK.claim,
            rows[-1]["low"] > blind.high,
            f"read off with probability at least {rows[-1]['low']:.4f}; "
            f"at most {blind.high:.4f} when the requester is shown nothing",
        ),
        Finding(theorem, not all(above), f"holds at {sum(above)} of {len(above)} requests"),
        exact_law(
            "the success is exactly 1 - C((n+1)/2, i-1)/C(n, i-1), and 0 for a blind requester",
            "dd_jax.attacks.median.exact_success",
            [*rows, row({}, blind, 0.0)],
        ),
    )


ATTACK = Attack(
    "median",
    "a 1-adaptive requester copies the released median into rows that stay",
    Claim(
        "a (0, 0)-adaptive-unlearning algorithm hides the deleted record",
        "dfn:unlearning, refuted by thm:adaptive_violation",
        "prior work",
    ),
    attack,
    Picture(
        "curves",
        ("step",),
        {"exact": "exact", "bound": "bound of the proof", "bound_simple": "1 - (1/2)^(i-3)"},
    ),
    MedianSettings,
)
