"""The secret count of the secret-state theorem (`thm:unlrn_vs_forget`): as stated, and repaired.

A curator releases a count with Laplace noise, (ε, 0)-close to retraining at every release. It keeps
a secret tally of deleted records, and every release contains a small part of it. As stated, a
record deleted at request i shifts release j by 1/j; Σ 1/j² is finite, so the advantage of the best
test stays bounded (erratum E6). Repaired, the shift is 2^{-i} in every release, and averaging
reveals the record.
"""

import functools
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from dd_jax import checks
from dd_jax.attacks.base import Attack, AttackResult, Picture, Settings, exact_law, number, row
from dd_jax.attacks.game import Adversary, play
from dd_jax.audit.samples import Stage, two_worlds
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
# Releases are float32: outside this range rounding is larger than the noise or the shift.
SMALLEST_EPSILON, LARGEST_EPSILON = 0.001, 1_000
# The largest draw of a float32 Laplace variable, log 2^24.
LARGEST_NOISE = 17.0
MOST_RELEASES_AT_ONCE = 4_000_000
LAST_STEP = 12
# Terms of the series in `optimal_advantage`. With few releases Λ has atoms and the series converges
# slowly: 50,000 terms keep the error below 1e-4. With many releases the atoms are negligible and
# fewer terms are enough; WORK limits terms times releases.
MOST_TERMS = 50_000
FEWEST_TERMS = 1_000
WORK = 4_000_000


@dataclass(frozen=True, kw_only=True)
class CountSettings(Settings):
    """n records, the request i = `step` of the deletion, releases seen from it on, ε of each."""

    seeds: int = 2_000
    n: int = number(100, checks.whole, least=2, most=MOST_RECORDS)
    step: int = number(1, checks.whole, least=1, most=LAST_STEP)
    releases: int = number(3_000, checks.whole, least=1, most=MOST_RELEASES)
    epsilon: float = number(1.0, checks.within, low=SMALLEST_EPSILON, high=LARGEST_EPSILON)

    @property
    def num_requests(self) -> int:
        """The last request served: the deletion's is the first whose release is seen."""
        return self.step + self.releases - 1


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
        key = jax.random.key(0)  # not used: this mechanism draws no noise
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


def trial(key: Array, records: Array, *, variant: str, settings: CountSettings, adversary):
    """One interaction; the adversary reads all releases from the deletion on."""
    step, num_requests = settings.step, settings.num_requests
    stream = requester(settings.n, step, num_requests)
    curator = mechanism(variant, settings.epsilon)
    return play(key, Stage(curator, stream, records, TARGET_ROW, step, num_requests), adversary)


class Measured(NamedTuple):
    """One variant: its rows, one per checkpoint, with the advantage and the exact one; the last
    estimate; and the largest log ratios of one release: to retraining (computed) and between the
    two worlds (sampled).
    """

    rows: list[dict]
    estimate: Estimate
    ratio_to_retraining: float
    ratio_sampled: float


def measure(key: Array, variant: str, settings: CountSettings, confidence: float) -> Measured:
    """Play one variant, and compute what the best test achieves against it."""
    step, releases, epsilon = settings.step, settings.releases, settings.epsilon
    num_requests = settings.num_requests
    checkpoints = [m for m in CHECKPOINTS if m < releases] + [releases]
    records = database(settings.n)
    alternative = replacement([TARGET_ROW], jnp.zeros(1, jnp.int32))
    worlds = jnp.stack([records, apply_edit(records, alternative)])
    stream = requester(settings.n, step, num_requests)
    centres, counts = replay(variant, worlds, stream, num_requests)
    present, absent = centres
    adversary = likelihood_ratio_adversary(present[step:], absent[step:], epsilon, checkpoints)
    fn = functools.partial(trial, variant=variant, settings=settings, adversary=adversary)
    chunk = max(64, min(DEFAULT_CHUNK, MOST_RELEASES_AT_ONCE // num_requests))
    pair = two_worlds(fn, key, settings.seeds, records, alternative, chunk=chunk)
    shifts = epsilon * known_shifts(variant, step, releases)
    estimates = advantages(pair.present.guess, pair.absent.guess, confidence)
    return Measured(
        [
            row({"variant": variant, "releases": m}, estimate, optimal_advantage(shifts[:m]))
            for m, estimate in zip(checkpoints, estimates, strict=True)
        ],
        estimates[-1],
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


def optimal_advantage(shifts) -> float:
    """Total variation between Π Lap(0, 1) and Π Lap(u_j, 1), u_j = ε · shift_j: the best test.

    By symmetry the best test is the sign of the log-likelihood ratio Λ = Σ_j (|z_j| - |z_j - u_j|),
    and its advantage is P₀[Λ < 0] - P₀[Λ > 0] = -E₀[sign Λ]. Host-side, float64.
    |Λ| ≤ S = Σ u_j, and on that range sign is a square wave of period 4S, so its Fourier series
    gives E₀[sign Λ] = (4/π) Σ_{k odd} Im χ(kπ/(2S)) / k with χ the characteristic function of Λ, a
    product of closed forms. One release gives 1 - e^{-u/2}.
    """
    shifts = np.abs(np.asarray(shifts, dtype=np.float64))
    shifts = shifts[shifts > 0]
    if shifts.size == 0:
        return 0.0
    values, counts = np.unique(shifts, return_counts=True)
    terms = int(np.clip(WORK / values.size, FEWEST_TERMS, MOST_TERMS))
    odd = 2 * np.arange(terms) + 1
    frequency = odd * np.pi / (2 * shifts.sum())
    product = np.ones(terms, dtype=np.complex128)
    for value, count in zip(values, counts, strict=True):
        product *= _characteristic(frequency, value) ** count
    return float(np.clip(-(4 / np.pi) * np.sum(product.imag / odd), 0.0, 1.0))


def _characteristic(frequency: np.ndarray, shift: float) -> np.ndarray:
    """E₀[exp(it(|z| - |z - u|))]: atoms 1/2 at -u and e^{-u}/2 at u, a density between them.

    The density's part is ∫_0^u e^{-z} e^{it(2z-u)} dz / 2 = (e^{itu-u} - e^{-itu}) / (4it - 2).
    """
    turn = np.exp(1j * frequency * shift)
    rate = 1j * frequency - 0.5
    shrink = np.exp(-shift)
    between = 0.25 * (turn * shrink - 1 / turn) / rate
    return 0.5 / turn + 0.5 * shrink * turn + between


def advantage_beyond(last_shift_index: int, epsilon: float) -> float:
    """The most that releases after number J can add when shift_j = 1/j: ε / (2√J).

    KL(Lap(0,1) ‖ Lap(u,1)) = e^{-u} - 1 + u ≤ u²/2, Σ_{j>J} 1/j² ≤ 1/J, then Pinsker; total
    variation of a product is at most the sum.
    """
    return float(epsilon / (2 * np.sqrt(last_shift_index)))


def attack(key: Array, settings: CountSettings) -> AttackResult:
    """Advantage of the optimal test against both variants, along the number of releases."""
    epsilon, each = settings.epsilon, simultaneous(settings.confidence, 2)
    stated, repaired = (
        measure(part, variant, settings, each)
        for part, variant in zip(jax.random.split(key), (AS_STATED, REPAIRED), strict=True)
    )
    as_stated = stated.rows[-1]["exact"]
    limit = min(1.0, as_stated + advantage_beyond(settings.num_requests, epsilon))
    one_release = float(np.tanh(epsilon))
    return AttackResult(
        measure="advantage",
        estimate=repaired.estimate,
        bound=one_release,
        bound_means="the most that one (ε, 0)-certified release allows, tanh ε",
        exact=repaired.rows[-1]["exact"],
        theory={
            "as_stated": as_stated,
            "as_stated_any_number_of_releases_at_most": limit,
            "log_ratio_of_one_release": max(
                stated.ratio_to_retraining, repaired.ratio_to_retraining
            ),
        },
        findings=_findings(stated, repaired, epsilon, limit, one_release),
        rows=(*stated.rows, *repaired.rows),
    )


def _findings(stated, repaired, epsilon, limit, one_release) -> tuple[Finding, ...]:
    best, weak = repaired.estimate, stated.estimate
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
    return (
        Finding(
            ATTACK.claim,
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
        exact_law(
            "the test's advantage is the total variation of the release sequences",
            "dd_jax.attacks.secret_count.optimal_advantage",
            [*stated.rows, *repaired.rows],
            rounding=ROUNDING,
        ),
    )


ATTACK = Attack(
    "secret-count",
    "a noisy count with a secret state leaks a deleted record over many certified releases",
    Claim(
        "(ε, 0)-non-adaptive-unlearning of every release bounds what all of them reveal",
        "dfn:unlearning, refuted by thm:unlrn_vs_forget once repaired (erratum E6)",
        "prior work",
    ),
    attack,
    Picture(
        "curves",
        ("releases",),
        {"exact": "exact"},
        series="variant",
        logarithmic=True,
        bound="the most that one certified release allows",
    ),
    CountSettings,
)
