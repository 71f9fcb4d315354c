"""Valid deletion that prior definitions reject (`sec:deletion_vs_unlearn`, incompleteness).

Learning is a sum, A(𝒟) = Σ x. One curator answers every request with a fixed model; another has one
fixed output for an empty request and another one for a deletion. Their answers do not depend on any
record: after the deletion the law is the same for every database, so ε = 0 for every requester. But
they do not look like retraining, and a single release tells them apart from it.
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
from dd_jax.audit.samples import Outcome, PostDeletionView, Stage, trials
from dd_jax.claims import Claim, Finding
from dd_jax.interaction import Requester
from dd_jax.intervals import advantages, clopper_pearson, simultaneous
from dd_jax.requesters import fixed_stream
from dd_jax.types import Edit, Mechanism

TARGET_ROW = 0
ANSWER, ANSWER_IF_EMPTY = -1.0, -2.0


@dataclass(frozen=True, kw_only=True)
class RecordsSettings(Settings):
    """n records."""

    n: int = number(10, checks.whole, least=2)


def learn(key: Array, database: Array) -> Array:
    """A(𝒟) = Σ x."""
    del key
    return jnp.sum(database)


def fixed_answers(if_empty: float = ANSWER) -> Mechanism:
    """The curator that answers `ANSWER` to every deletion and `if_empty` to an empty request."""

    def delete(key, before, edit, after, state):
        del key, before, state
        return jnp.float32(ANSWER if edit.index.shape[0] else if_empty)

    return Mechanism(learn, delete)


def draw_database(key: Array, n: int) -> Array:
    """A database of n records in [1, 2), whose sum is never a fixed answer."""
    return jax.random.uniform(key, (n,), jnp.float32, 1.0, 2.0)


def deletes_target() -> Requester:
    """One request, fixed in advance: the target is replaced by 0, which adds nothing to a sum."""
    return fixed_stream(Edit(jnp.full((1, 1), TARGET_ROW, jnp.int32), jnp.zeros((1, 1))))


def asks_nothing() -> Requester:
    """One empty request: S = ∅."""
    return fixed_stream(Edit(jnp.zeros((1, 0), jnp.int32), jnp.zeros((1, 0))))


def copies_then_deletes() -> Requester:
    """A 1-adaptive requester: copies φ_0 into another row, then deletes the target."""

    def act(key, memory, observation):
        del key
        first = observation.request == 1
        row = jnp.where(first, TARGET_ROW + 1, TARGET_ROW).astype(jnp.int32)
        return memory, Edit(row[None], jnp.where(first, observation.release, 0.0)[None])

    return Requester(init=lambda key: (), act=act)


def distinguisher(key: Array, view: PostDeletionView) -> Array:
    """1 iff the release is the fixed answer to a deletion."""
    del key
    return view.first == jnp.float32(ANSWER)


def deletion_trial(key: Array, *, mechanism: Mechanism, n: int) -> Outcome:
    """The target is deleted; is the answer the fixed one?"""
    draw_key, play_key = jax.random.split(key)
    stage = Stage(mechanism, deletes_target(), draw_database(draw_key, n), TARGET_ROW, 1, 1)
    return play(play_key, stage, distinguisher)


def never_there_trial(key: Array, *, mechanism: Mechanism, n: int) -> Outcome:
    """The comparison of `def:sekhari`: Ā on 𝒟 ∖ S with an empty request."""
    draw_key, play_key = jax.random.split(key)
    database = draw_database(draw_key, n).at[TARGET_ROW].set(0)
    return play(play_key, Stage(mechanism, asks_nothing(), database, None, 1, 1), distinguisher)


def adaptive_trial(key: Array, *, mechanism: Mechanism, n: int) -> Outcome:
    """What is released after the deletion, on a random database, under an adaptive requester."""
    draw_key, play_key = jax.random.split(key)
    database = draw_database(draw_key, n)
    stage = Stage(mechanism, copies_then_deletes(), database, TARGET_ROW, 2, 2, observe=(0,))
    return play(play_key, stage, first_release)


def fixed_model(key: Array, settings: RecordsSettings) -> AttackResult:
    """One fixed model against `def:ginart` and `dfn:unlearning`: retraining looks different."""
    comparisons = {"retraining (def:ginart, dfn:unlearning)": (deletion_trial, retraining(learn))}
    return _tell_apart(key, settings, FIXED_MODEL.claim, fixed_answers(), comparisons)


def two_outputs(key: Array, settings: RecordsSettings) -> AttackResult:
    """Two fixed outputs against `def:sekhari` and `def:guo`."""
    mechanism = fixed_answers(ANSWER_IF_EMPTY)
    comparisons = {
        "an empty request without the record (def:sekhari)": (never_there_trial, mechanism),
        "retraining (def:guo)": (deletion_trial, retraining(learn)),
    }
    return _tell_apart(key, settings, TWO_OUTPUTS.claim, mechanism, comparisons)


def _tell_apart(key, settings, claim, mechanism, comparisons) -> AttackResult:
    seeds, n, confidence = settings.seeds, settings.n, settings.confidence
    answer_key, release_key, *other_keys = jax.random.split(key, 2 + len(comparisons))
    answers = _trials(deletion_trial, answer_key, seeds, mechanism, n)
    releases = _trials(adaptive_trial, release_key, seeds, mechanism, n)
    others = [
        _trials(trial, other_key, seeds, other, n)
        for other_key, (trial, other) in zip(other_keys, comparisons.values(), strict=True)
    ]
    each = simultaneous(confidence, len(others))
    estimates = [advantages(answers, other, each)[0] for other in others]
    table = zip(comparisons, estimates, strict=True)
    rows = tuple(row({"told apart from": name}, estimate, 1.0) for name, estimate in table)
    return AttackResult(
        measure="advantage",
        estimate=min(estimates, key=lambda estimate: estimate.low),
        bound=0.0,
        bound_means="what (0, 0)-indistinguishability from the comparison allows",
        exact=1.0,
        theory={"epsilon_data_deletion": 0.0, "delta_needed": _delta(answers, others, confidence)},
        findings=_findings(claim, rows, releases),
        rows=rows,
    )


def _trials(trial, key, seeds, mechanism, n) -> np.ndarray:
    return trials(functools.partial(trial, mechanism=mechanism, n=n), key, seeds)


def _delta(answers, others, confidence, epsilon=1.0) -> float:
    """A lower confidence limit of the least δ in P ≤ e^ε P' + δ, by exact intervals."""
    each = simultaneous(confidence, 2 * len(others))
    low, _ = clopper_pearson(int(answers.sum()), answers.size, each)
    highs = [clopper_pearson(int(other.sum()), other.size, each)[1] for other in others]
    return max(0.0, low - math.exp(epsilon) * max(highs))


def _findings(claim: Claim, rows, releases) -> tuple[Finding, ...]:
    distinct = len(np.unique(releases))
    deletes = Claim(
        "the curator satisfies (q, 0)-data-deletion under adaptive requesters, for every q",
        "dfn:deletion",
        "ours",
    )
    lowest = min(each["low"] for each in rows)
    return (
        Finding(
            claim,
            lowest > 0 and distinct == 1,
            f"told apart with advantage at least {lowest:.4f}, though it deletes with ε = 0",
        ),
        Finding(
            deletes,
            distinct != 1,
            f"{releases.size} random databases, {distinct} distinct release after the deletion",
        ),
        exact_law(
            "the distinguisher's advantage is 1",
            "dd_jax.attacks.incompleteness.distinguisher",
            rows,
        ),
    )


_PICTURE = Picture(
    "intervals",
    ("told apart from",),
    {"exact": "exact"},
    bound="what the refuted claim allows",
)

FIXED_MODEL = Attack(
    "fixed-model",
    "a curator that always answers with one fixed model: deletes perfectly, fails unlearning",
    Claim(
        "every valid deletion algorithm is indistinguishable from retraining",
        "def:ginart, dfn:unlearning; sec:deletion_vs_unlearn (incompleteness)",
        "prior work",
    ),
    fixed_model,
    _PICTURE,
    RecordsSettings,
)

TWO_OUTPUTS = Attack(
    "two-outputs",
    "one fixed output for no deletion, another for any: deletes perfectly, fails unlearning",
    Claim(
        "every valid deletion algorithm is indistinguishable from a run without the record",
        "def:sekhari, def:guo; app:two_stage_unlearning (incompleteness)",
        "prior work",
    ),
    two_outputs,
    _PICTURE,
    RecordsSettings,
)
