"""The secret count of `thm:unlrn_vs_forget`, as stated and repaired (erratum E6).

A curator releases a count with Laplace noise, (ε, 0)-close to retraining at every release, and
keeps a secret tally of deleted records that every release carries a little of. As stated, a record
deleted at request i shifts release j by 1/j; Σ 1/j² is finite, so the best test never gets far.
Repaired, the shift is 2^{-i} in every release, and averaging reveals the record.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from dd_jax import checks
from dd_jax.attacks import laplace
from dd_jax.attacks.catalogue import Attack
from dd_jax.attacks.game import Adversary, play
from dd_jax.attacks.result import AttackResult, exact_law_finding, row
from dd_jax.audit.samples import Outcome, Stage, two_worlds
from dd_jax.claims import Claim, Finding
from dd_jax.ensemble import DEFAULT_CHUNK
from dd_jax.interaction import Requester, interact
from dd_jax.intervals import Estimate, advantages, simultaneous
from dd_jax.requesters import fixed_stream
from dd_jax.types import Edit, Mechanism, apply_edit, replacement

AS_STATED, REPAIRED = "as stated", "repaired"
TARGET_ROW = 0
CHECKPOINTS = (1, 3, 10, 30, 100, 300, 1_000, 3_000, 6_000, 10_000, 30_000)
ROUNDING = 1e-4
MOST_RECORDS = 1_000
MOST_RELEASES = 100_000
# Releases are float32: beyond this range their rounding drowns the noise or the shift.
SMALLEST_EPSILON, LARGEST_EPSILON = 1e-3, 1e3
# The largest draw of a float32 Laplace variable, log 2^24.
LARGEST_NOISE = 17.0
MOST_RELEASES_AT_ONCE = 4_000_000
LAST_STEP = 12


class SecretCount(NamedTuple):
    """⟨count of h on 𝒟_i, tally of h on deleted records, i⟩."""

    count: Int[Array, ""]
    tally: Array
    request: Int[Array, ""]


def centre(variant: str, state: SecretCount) -> Array:
    """What is released, without its noise: count + tally/i as stated, count + tally repaired."""
    count = state.count.astype(jnp.float32)
    if variant == REPAIRED:
        return count + state.tally
    return count + state.tally / jnp.maximum(state.request, 1).astype(jnp.float32)


def mechanism(variant: str, epsilon: float) -> Mechanism:
    """The curator: counts h(x) = x on bits and releases its centre + Lap(1/ε).

    As stated the tally counts deleted ones; repaired, the k-th deleted record enters it with weight
    2^{-k}. Either way the shift lies in [0, 1], which is all that (ε, 0)-unlearning needs.
    """

    def learn(key, database):
        del key
        return SecretCount(jnp.sum(database), jnp.float32(0), jnp.int32(0))

    def delete(key, before, edit, after, state):
        del key
        old, new = before[edit.index[0]], edit.record[0]
        request = state.request + 1
        weight = jnp.exp2(-request.astype(jnp.float32)) if variant == REPAIRED else jnp.float32(1)
        tally = state.tally + weight * old.astype(jnp.float32)
        return SecretCount(state.count + new - old, tally, request)

    def publish(key, state):
        noise = jax.random.laplace(key, (), jnp.float32) / jnp.float32(epsilon)
        return centre(variant, state) + noise

    return Mechanism(learn, delete, publish)


def requester(n: int, step: int, num_requests: int) -> Requester:
    """A fixed stream: request i = `step` replaces the target by 0, others rewrite other rows."""
    request = np.arange(1, num_requests + 1)
    rows = np.where(request == step, TARGET_ROW, 1 + request % (n - 1))
    bits = np.where(request == step, 0, request % 2)
    stream = Edit(jnp.asarray(rows[:, None], jnp.int32), jnp.asarray(bits[:, None], jnp.int32))
    return fixed_stream(stream)


def database(n: int) -> Array:
    """Alternating bits, with a 1 in the target's row."""
    return jnp.asarray(1 - np.arange(n) % 2, jnp.int32)


def replay(variant: str, worlds: Array, stream: Requester, num_requests: int):
    """Noise-free releases φ_0, φ_1, … and the counts that retraining would release, in each world.

    The stream is fixed and the adversary knows every record but one, so she can compute these for
    either value of the target.
    """
    exposed = mechanism(variant, 1.0)._replace(
        publish=lambda key, state: (centre(variant, state), state.count)
    )

    def replay_one(records):
        key = jax.random.key(0)  # without noise nothing is drawn from it
        _, transcript = interact(key, exposed, stream, records, num_requests=num_requests)
        return transcript.releases

    releases, counts = jax.vmap(replay_one)(worlds)
    return np.asarray(releases, np.float64), np.asarray(counts, np.float64)


class Reading(NamedTuple):
    """The adversary's guesses after each checkpoint, and the largest single-release |log ratio|."""

    guess: Array
    largest_ratio: Array


def likelihood_ratio_adversary(present, absent, epsilon: float, checkpoints) -> Adversary:
    """The optimal test: guess 1 iff Σ_j ε(|φ_j - absent_j| - |φ_j - present_j|) > 0."""
    present, absent = jnp.asarray(present, jnp.float32), jnp.asarray(absent, jnp.float32)
    last = jnp.asarray(checkpoints) - 1

    def adversary(key, view):
        del key
        ratio = jnp.abs(view.releases - absent) - jnp.abs(view.releases - present)
        ratio = jnp.float32(epsilon) * ratio
        return Reading(jnp.cumsum(ratio)[last] > 0, jnp.max(jnp.abs(ratio)))

    return adversary


class Setting(NamedTuple):
    """The fixed part of a game: which curator, which stream, when the target goes."""

    variant: str
    epsilon: float
    stream: Requester
    step: int
    num_requests: int


def trial(key: Array, records: Array, *, setting: Setting, adversary: Adversary) -> Outcome:
    """One interaction; the adversary reads all releases from the deletion on."""
    curator = mechanism(setting.variant, setting.epsilon)
    stage = Stage(curator, setting.stream, records, TARGET_ROW, setting.step, setting.num_requests)
    return play(key, stage, adversary)


class Measured(NamedTuple):
    """One variant: advantages and theory at the checkpoints, and the largest log ratios of one
    release: to retraining (computed) and between the two worlds (sampled).
    """

    variant: str
    checkpoints: list[int]
    estimates: list[Estimate]
    theory: list[float]
    ratio_to_retraining: float
    ratio_sampled: float


def measure(key: Array, variant: str, *, seeds, n, step, releases, epsilon, confidence) -> Measured:
    """Play one variant, and compute what the best test achieves against it."""
    num_requests = step + releases - 1
    checkpoints = [m for m in CHECKPOINTS if m < releases] + [releases]
    setting = Setting(variant, epsilon, requester(n, step, num_requests), step, num_requests)
    records = database(n)
    alternative = replacement([TARGET_ROW], jnp.zeros(1, jnp.int32))
    worlds = jnp.stack([records, apply_edit(records, alternative)])
    centres, counts = replay(variant, worlds, setting.stream, num_requests)
    present, absent = centres
    adversary = likelihood_ratio_adversary(present[step:], absent[step:], epsilon, checkpoints)
    fn = functools.partial(trial, setting=setting, adversary=adversary)
    chunk = max(64, min(DEFAULT_CHUNK, MOST_RELEASES_AT_ONCE // num_requests))
    pair = two_worlds(fn, key, seeds, records, alternative, chunk=chunk)
    shifts = epsilon * known_shifts(variant, step, releases)
    return Measured(
        variant,
        checkpoints,
        advantages(pair.present.guess, pair.absent.guess, confidence),
        [laplace.optimal_advantage(shifts[:m]) for m in checkpoints],
        float(epsilon * np.max(np.abs(centres - counts))),
        float(max(pair.present.largest_ratio.max(), pair.absent.largest_ratio.max())),
    )


def rounding_of_ratio(epsilon: float) -> float:
    """How far rounding may move the log ratio of a float32 release, in units of ε.

    Each |φ - centre| is at most `LARGEST_NOISE`/ε + `MOST_RECORDS` and off by 2^-24 of that.
    """
    return 2**-23 * (LARGEST_NOISE / epsilon + MOST_RECORDS)


def known_shifts(variant: str, step: int, releases: int) -> np.ndarray:
    """How far the deleted record moves releases i, i+1, …: 1/j as stated, 2^{-i} repaired."""
    if variant == REPAIRED:
        return np.full(releases, 2.0**-step)
    return 1 / np.arange(step, step + releases)


def run(
    key: Array,
    attack: Attack,
    *,
    seeds: int,
    n: int,
    step: int,
    releases: int,
    epsilon: float,
    confidence: float,
) -> AttackResult:
    """Advantage of the optimal test against both variants, along the number of releases."""
    _check(n, step, releases, epsilon)
    play_variant = functools.partial(
        measure,
        seeds=seeds,
        n=n,
        step=step,
        releases=releases,
        epsilon=epsilon,
        confidence=simultaneous(confidence, 2),
    )
    stated_key, repaired_key = jax.random.split(key)
    stated = play_variant(stated_key, AS_STATED)
    repaired = play_variant(repaired_key, REPAIRED)
    limit = min(1.0, stated.theory[-1] + laplace.advantage_beyond(step + releases - 1, epsilon))
    one_release = float(np.tanh(epsilon))
    return AttackResult(
        attack=attack.name,
        measure="advantage",
        estimate=repaired.estimates[-1]._replace(confidence=confidence),
        bound=one_release,
        bound_means="the most that one (ε, 0)-certified release allows, tanh ε",
        exact=repaired.theory[-1],
        theory={
            "as_stated": stated.theory[-1],
            "as_stated_any_number_of_releases_at_most": limit,
            "log_ratio_of_one_release": max(
                stated.ratio_to_retraining, repaired.ratio_to_retraining
            ),
        },
        findings=_findings(attack, stated, repaired, epsilon, limit, one_release),
        rows=(*_rows(stated), *_rows(repaired)),
    )


def _rows(measured: Measured) -> list[dict]:
    table = zip(measured.checkpoints, measured.estimates, measured.theory, strict=True)
    return [row({"variant": measured.variant, "releases": m}, e, exact) for m, e, exact in table]


def _findings(attack, stated, repaired, epsilon, limit, one_release) -> tuple[Finding, ...]:
    best, weak = repaired.estimates[-1], stated.estimates[-1]
    proof = Claim(
        "shifts of 1/j reveal the deleted record to an observer of enough releases",
        "the proof of thm:unlrn_vs_forget (erratum E6)",
        "paper",
    )
    certified = Claim(
        "every release of both curators is (ε, 0)-close to retraining",
        "dd_jax.attacks.secret_count.mechanism",
        "ours",
    )
    ratios = [m.ratio_to_retraining for m in (stated, repaired)]
    ratios += [m.ratio_sampled for m in (stated, repaired)]
    pairs = [pair for m in (stated, repaired) for pair in zip(m.estimates, m.theory, strict=True)]
    return (
        Finding(
            attack.claim,
            best.low > one_release,
            f"repaired: advantage at least {best.low:.4f}; one release allows {one_release:.4f}",
        ),
        Finding(
            proof,
            weak.high < 1 and limit < 1,
            f"as stated: advantage at most {weak.high:.4f} here, "
            f"and no test of any number of releases exceeds {limit:.4f}",
        ),
        Finding(
            certified,
            max(ratios) > epsilon * (1 + ROUNDING + rounding_of_ratio(epsilon)),
            f"the largest log-likelihood ratio of a release is {max(ratios):.4f}, ε = {epsilon:g}",
        ),
        exact_law_finding(
            "the test's advantage is the total variation of the release sequences",
            "dd_jax.attacks.laplace.optimal_advantage",
            pairs,
            rounding=ROUNDING,
        ),
    )


def _check(n: int, step: int, releases: int, epsilon: float) -> None:
    checks.whole("n", n, least=2, most=MOST_RECORDS)
    checks.whole("step", step, least=1, most=LAST_STEP)
    checks.whole("releases", releases, least=1, most=MOST_RELEASES)
    checks.within("epsilon", epsilon, SMALLEST_EPSILON, LARGEST_EPSILON)
