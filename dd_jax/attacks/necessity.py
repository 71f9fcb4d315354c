"""Why adaptive deletion needs privacy: the result of a test is written into the database.

This is the proof of the theorem that privacy is necessary (`thm:dp_necessary`), as a program. The
requester runs Test on φ_0 and, row by row, turns the database into D̄ if Test said 1 and into D̄' if
not; the target is deleted by request n. The adversary tells D̄ from D̄' with Test̄, which gives the
answer of Test and with it the target: Adv(MI) = Adv(Test)·Adv(Test̄).

The product needs P[Test̄(Ā(·, θ)) = 1] to be the same for every θ that deletion may start from
(erratum E8). Three curators have such tests. "retrains" meets the condition. "remembers" keeps its
model and subtracts its sign: Adv(MI) = 0, unless the requester writes the opposite. "tracks"
subtracts the sign of what was written: Adv(MI) = 0 for both requesters.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from scipy import special

from dd_jax import checks
from dd_jax.attacks.base import Attack, AttackResult, Picture, RenyiSettings, exact_law, number, row
from dd_jax.attacks.game import play
from dd_jax.audit.samples import PostDeletionView, Stage, two_worlds
from dd_jax.claims import Claim, Finding
from dd_jax.ensemble import neighbours
from dd_jax.guarantees import inference
from dd_jax.interaction import Requester, interact
from dd_jax.intervals import Estimate, advantages, proportions, simultaneous
from dd_jax.requesters import fixed_stream
from dd_jax.types import Edit, Mechanism, replacement

RETRAINS, REMEMBERS, TRACKS = "retrains", "remembers", "tracks"
CURATORS = (RETRAINS, REMEMBERS, TRACKS)
STARTS = (1.0, -1.0)
NUM_ESTIMATES = len(CURATORS) * (1 + 2 * len(STARTS) + 2)
MOST_RECORDS = 1_000


@dataclass(frozen=True, kw_only=True)
class NecessitySettings(RenyiSettings):
    """n records, and ε of one release."""

    seeds: int = 20_000
    n: int = number(10, checks.whole, least=2, most=MOST_RECORDS)
    epsilon: float = number(4.0, checks.positive)


def noise_scale(n: int, order: float, epsilon: float) -> float:
    """s such that mean(𝒟) + N(0, s²), records in [-1, 1], is (q, ε): s² = q(2/n)²/(2ε)."""
    return 2 / n * math.sqrt(order / (2 * epsilon))


def mechanism(curator: Array, n: int, scale) -> Mechanism:
    """A(𝒟) = mean(𝒟) + N(0, s²); `curator`, a place in `CURATORS`, may be traced.

    "retrains": Ā = A(𝒟 ∘ u). For the other two the deletion of the last row releases
    mean(𝒟 ∘ u) - sign(θ)/n + N(0, s²), and an edit of another row keeps the model ("remembers") or
    releases the sum of the other rows over n ("tracks"): θ is then what was written.
    """

    def learn(key, database):
        return jnp.mean(database) + scale * jax.random.normal(key)

    def delete(key, before, edit, after, state):
        fresh = learn(key, after)
        leaning = fresh - jnp.sign(state) / n
        last = edit.index[0] == n - 1
        written = jnp.sum(after[:-1]) / n
        answers = [fresh, jnp.where(last, leaning, state), jnp.where(last, leaning, written)]
        return jnp.stack(answers)[curator]

    return Mechanism(learn, delete)


class Exact(NamedTuple):
    """The exact advantages, and P[Test̄ = 1 | D̄] from θ = 1 and from θ = -1."""

    learner: float
    deleter: float
    rates: tuple[float, float]
    attack: float
    swapped: float


def exact(curator: str, n: int, scale: float) -> Exact:
    """With t = 1/(ns): Adv(Test) = 2Φ(t) - 1.

    "retrains": P[Test̄ = 1 | D̄] = Φ(t) from every θ, and Adv(MI) = ±(2Φ(t) - 1)².
    "remembers": P[Test̄ = 1 | D̄] = Φ(t(1 - sign θ)). Adv(Test̄) = Φ(2t) - 1/2 from every θ, but
    Adv(MI) = 0 with the requester and -2·Adv(Test)·Adv(Test̄) with the swapped one.
    "tracks": the same tests, but what is subtracted follows what was written, so Adv(MI) = 0 with
    both requesters.
    """
    lead = 1 / (n * scale)
    learner = 2 * _phi(lead) - 1
    if curator == RETRAINS:
        rate = _phi(lead)
        return Exact(learner, learner, (rate, rate), learner**2, -(learner**2))
    twice = _phi(2 * lead)
    swapped = -learner * (2 * twice - 1) if curator == REMEMBERS else 0.0
    return Exact(learner, twice - 0.5, (0.5, twice), 0.0, swapped)


def _phi(x: float) -> float:
    return float(special.ndtr(x))


def positive(release: Array) -> Array:
    """Test and Test̄: is the mean positive?"""
    return release > 0


def requester(n: int, swapped: Array | bool = False) -> Requester:
    """Request i < n is ⟨i, D̄[i]⟩ if Test(φ_0) = 1 and ⟨i, D̄'[i]⟩ if not; request n deletes row n.

    D̄ and D̄' are zero except in row 1, which is +1 and -1. `swapped`, which may be traced,
    exchanges them.
    """
    sides = jnp.where(swapped, 1, -1) * jnp.array([1, -1], jnp.float32)

    def act(key, memory, observation):
        del key
        first = observation.request == 1
        said = jnp.where(first, positive(observation.release).astype(jnp.int32), memory)
        record = jnp.where(first, sides[said], jnp.float32(0))
        return said, Edit((observation.request - 1)[None], record[None])

    return Requester(init=lambda key: jnp.int32(0), act=act, max_requests=n)


def deletes_last(n: int) -> Requester:
    """The single request ū = ⟨n, 0⟩."""
    return fixed_stream(Edit(jnp.array([[n - 1]], jnp.int32), jnp.zeros((1, 1), jnp.float32)))


def adversary(key: Array, view: PostDeletionView) -> Array:
    """MI = Test̄ of the release after the deletion."""
    del key
    return positive(view.first)


def learner_trial(key: Array, records: Array, scale: Array, curator: Array) -> Array:
    """Test(A(𝒟)): an interaction without requests."""
    n = records.shape[0]
    curious = deletes_last(n)
    _, transcript = interact(key, mechanism(curator, n, scale), curious, records, num_requests=0)
    return positive(transcript.releases[0])


def deleter_trial(key: Array, records: Array, scale: Array, curator: Array, start: Array):
    """Test̄(Ā(D̄, ū, θ)) from the model θ = `start`."""
    n = records.shape[0]
    fixed = Mechanism(lambda key, database: start, mechanism(curator, n, scale).delete)
    return play(key, Stage(fixed, deletes_last(n), records, n - 1, 1, 1), adversary)


def attack_trial(key: Array, records: Array, scale: Array, curator: Array, swapped: Array):
    """The whole attack: n requests, the last one deletes the target."""
    n = records.shape[0]
    curious = requester(n, swapped)
    stage = Stage(mechanism(curator, n, scale), curious, records, n - 1, n, n, (0,))
    return play(key, stage, adversary)


class Measured(NamedTuple):
    """The same as `Exact`, with intervals; the deleter from each start."""

    learner: Estimate
    deleter: list[Estimate]
    rates: list[Estimate]
    attack: Estimate
    swapped: Estimate


def measure(key: Array, curator: str, n: int, scale, seeds: int, confidence: float) -> Measured:
    """Play all games of one curator; each single interval has the given confidence."""
    learner_key, deleter_key, attack_key = jax.random.split(key, 3)
    numbers = (jnp.float32(scale), jnp.int32(CURATORS.index(curator)))
    target = _worlds(n, n - 1)
    learner = neighbours(learner_trial, learner_key, seeds, *target, *numbers)
    starts = [
        two_worlds(deleter_trial, start_key, seeds, *_worlds(n, 0), *numbers, jnp.float32(start))
        for start_key, start in zip(jax.random.split(deleter_key), STARTS, strict=True)
    ]
    attacks = [
        two_worlds(attack_trial, swap_key, seeds, *target, *numbers, jnp.asarray(swapped))
        for swap_key, swapped in zip(jax.random.split(attack_key), (False, True), strict=True)
    ]
    return Measured(
        advantages(np.asarray(learner.present), np.asarray(learner.absent), confidence)[0],
        [advantages(pair.present, pair.absent, confidence)[0] for pair in starts],
        [proportions(pair.present, confidence)[0] for pair in starts],
        *(advantages(pair.present, pair.absent, confidence)[0] for pair in attacks),
    )


def _worlds(n: int, place: int) -> tuple[Array, Edit]:
    """A database of zeros except for +1 in one row, and the edit that makes it -1."""
    records = jnp.zeros(n, jnp.float32).at[place].set(1)
    return records, replacement([place], -jnp.ones(1, jnp.float32))


def product(measured: Measured) -> tuple[float, float]:
    """An interval for Adv(Test)·Adv(Test̄) with the least Adv(Test̄) over the starts."""
    low = max(measured.learner.low, 0.0) * max(min(e.low for e in measured.deleter), 0.0)
    return low, measured.learner.high * min(e.high for e in measured.deleter)


def leak(measured: Measured) -> float:
    """δ: both tests have at least this advantage, with the confidence of their intervals."""
    return max(0.0, min(measured.learner.low, *(e.low for e in measured.deleter)))


def attack(key: Array, settings: NecessitySettings) -> AttackResult:
    """Adv(MI) against Adv(Test)·Adv(Test̄) on each curator, and the ε that this rules out."""
    n, order, epsilon = settings.n, settings.order, settings.epsilon
    scale = noise_scale(n, order, epsilon)
    each = simultaneous(settings.confidence, NUM_ESTIMATES)
    measured = {
        curator: measure(curator_key, curator, n, scale, settings.seeds, each)
        for curator_key, curator in zip(jax.random.split(key, len(CURATORS)), CURATORS, strict=True)
    }
    truth = {curator: exact(curator, n, scale) for curator in CURATORS}
    rows = [each for name in CURATORS for each in _rows(name, measured[name], truth[name])]
    retrained = truth[RETRAINS]
    delta = leak(measured[RETRAINS])
    implied = float(inference.deletion_necessary(order, delta))
    return AttackResult(
        measure="advantage",
        estimate=measured[RETRAINS].attack,
        bound=retrained.learner * retrained.deleter,
        bound_means="thm:dp_necessary: Adv(MI) = Adv(Test)·Adv(Test̄)",
        exact=retrained.attack,
        theory={
            "both_tests_at_least": delta,
            "epsilon_at_least": implied,
            "epsilon_at_least_exactly": float(
                inference.deletion_necessary(order, retrained.learner)
            ),
            "epsilon_certified": epsilon,
            "advantage_of_both_tests_at_most": float(inference.privacy_necessary(order, epsilon)),
        },
        findings=_findings(measured, rows, implied, epsilon),
        rows=tuple(rows),
    )


def _rows(curator: str, measured: Measured, truth: Exact) -> list[dict]:
    named = [("Adv(Test)", measured.learner, truth.learner)]
    for index, start in enumerate(STARTS):
        named.append((f"Adv(Test̄) from θ = {start:+g}", measured.deleter[index], truth.deleter))
        named.append(
            (f"P[Test̄ = 1] from θ = {start:+g}", measured.rates[index], truth.rates[index])
        )
    named.append(("Adv(MI)", measured.attack, truth.attack))
    named.append(("Adv(MI), swapped requester", measured.swapped, truth.swapped))
    return [row({"curator": curator, "what": what}, e, value) for what, e, value in named]


def _findings(measured, rows, implied, epsilon) -> tuple[Finding, ...]:
    honest, leaning = measured[RETRAINS], measured[REMEMBERS]
    low, high = product(honest)
    leaning_low, _ = product(leaning)
    law = Claim(
        "Adv(MI) = Adv(Test)·Adv(Test̄) where P[Test̄(Ā(·, θ)) = 1] does not depend on θ",
        "thm:dp_necessary with the condition of erratum E8",
        "ours",
    )
    rescued = Claim(
        "where Adv(Test̄) is the same from every θ, and the θ that deletion starts from does not "
        "depend on what was written, the requester or the swapped one reaches the product",
        "docs/attacks/necessity.md",
        "ours",
    )
    anywhere = Claim(
        "one of the two requesters reaches the product even if θ depends on what was written",
        "false by design: is the condition needed?",
        "control",
    )
    necessary = Claim(
        "ε of adaptive deletion is at least the one that both tests imply, under E8's condition",
        "dd_jax.guarantees.inference.deletion_necessary",
        "ours",
    )
    return (
        Finding(
            ATTACK.claim,
            leaning.attack.high < leaning_low,
            f"{REMEMBERS}: Adv(MI) is at most {leaning.attack.high:.4f}, "
            f"the product at least {leaning_low:.4f}",
        ),
        Finding(
            law,
            honest.attack.low > high or honest.attack.high < low,
            f"{RETRAINS}: Adv(MI) in [{honest.attack.low:.4f}, {honest.attack.high:.4f}], "
            f"the product in [{low:.4f}, {high:.4f}]",
        ),
        _reaching(rescued, REMEMBERS, leaning),
        _reaching(anywhere, TRACKS, measured[TRACKS]),
        Finding(
            necessary,
            implied > epsilon,
            f"{RETRAINS}: no ε below {implied:.4g}; ε = {epsilon:g} is certified for p = 1",
        ),
        exact_law("every advantage is the one computed", "dd_jax.attacks.necessity.exact", rows),
    )


def _reaching(claim: Claim, curator: str, measured: Measured) -> Finding:
    """Refuted if neither requester's advantage can be as large as the product."""
    low, _ = product(measured)
    pair = (measured.attack, measured.swapped)
    reached = max(abs(end) for e in pair for end in (e.low, e.high))
    return Finding(
        claim,
        reached < low,
        f"{curator}: the better of the two has at most {reached:.4f}, the product at least "
        f"{low:.4f}",
    )


ATTACK = Attack(
    "necessity",
    "a membership test of the learner is turned into a database, and so outlives deletion",
    Claim(
        "Adv(MI) = Adv(Test)·Adv(Test̄) if both tests have their advantage from every start",
        "the proof of thm:dp_necessary (erratum E8)",
        "paper",
    ),
    attack,
    Picture("intervals", ("curator", "what"), {"exact": "exact"}),
    NecessitySettings,
)
