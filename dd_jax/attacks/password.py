"""The password mechanism: the reduction theorem (`thm:reduction`) is false as stated (erratum E2).

Learning ignores the data and releases a uniform password z out of M. A first request that carries z
arms the curator, and an armed curator answers the next deletion with one bit of the deleted record.
A requester that sees nothing guesses z with probability 1/M, so the non-adaptive ε_dd is tiny, and
ε_dp = 0 for records that stay. A requester that sees one release always arms the curator. Nothing
is kept secret: every state is released.
"""

import functools
import math
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from dd_jax import checks
from dd_jax.attacks.base import Attack, AttackResult, Picture, RenyiSettings, exact_law, number, row
from dd_jax.attacks.game import play
from dd_jax.audit.samples import Outcome, PostDeletionView, Stage, two_worlds
from dd_jax.claims import Claim, Finding
from dd_jax.guarantees import adaptive, inference
from dd_jax.interaction import Requester
from dd_jax.intervals import advantages, simultaneous
from dd_jax.types import Edit, Mechanism, replacement

TARGET_ROW, OTHER_ROW = 0, 1
DELETION = 2
LEARNED, READY, DONE = 0, 1, 2


@dataclass(frozen=True, kw_only=True)
class PasswordSettings(RenyiSettings):
    """n records and M passwords."""

    n: int = number(10, checks.whole, least=2)
    passwords: int = number(1_000, checks.whole, least=2)


class Model(NamedTuple):
    """What is released: a phase, and its value: the password, the armed flag or the bit."""

    phase: Int[Array, ""]
    value: Int[Array, ""]


def mechanism(passwords: int) -> Mechanism:
    """The curator over records 0 … M-1; f_pub is the identity and the bit of a record is x mod 2.

    A(𝒟) = (learned, z) with z uniform. The first request ⟨ind, y⟩ leads to (ready, 1[y = z]); the
    next one, which deletes x, to (done, x mod 2) if that was 1 and to (done, a fair coin) if not;
    from then on every answer is a fair coin.
    """

    def learn(key, database):
        del database
        password = jax.random.randint(key, (), 0, passwords, jnp.int32)
        return Model(jnp.int32(LEARNED), password)

    def delete(key, before, edit, after, state):
        deleted = before[edit.index[0]]
        coin = jax.random.bernoulli(key).astype(jnp.int32)
        matches = (edit.record[0] == state.value).astype(jnp.int32)
        armed = (state.phase == READY) & (state.value == 1)
        bit = jnp.where(armed, deleted % 2, coin)
        first = state.phase == LEARNED
        return Model(
            jnp.where(first, READY, DONE).astype(jnp.int32), jnp.where(first, matches, bit)
        )

    return Mechanism(learn, delete)


def requester() -> Requester:
    """Puts the value it sees into another row, then the target's owner deletes (replaces by 0).

    Shown nothing, it sees 0 and sends the fixed record 0.
    """

    def act(key, memory, observation):
        del key
        first = observation.request == 1
        row = jnp.where(first, OTHER_ROW, TARGET_ROW).astype(jnp.int32)
        record = jnp.where(first, observation.release.value, jnp.int32(0))
        return memory, Edit(row[None], record[None])

    return Requester(init=lambda key: (), act=act)


def adversary(key: Array, view: PostDeletionView) -> Array:
    """The target's bit is the bit released after its deletion."""
    del key
    return view.first.value == 1


def trial(key: Array, database: Array, *, passwords: int, observe: tuple) -> Outcome:
    """Two requests, the second one deletes the target; the adversary reads φ_2."""
    stage = Stage(
        mechanism(passwords), requester(), database, TARGET_ROW, DELETION, DELETION, observe
    )
    return play(key, stage, adversary)


def nonadaptive_epsilon(order: float, passwords: int) -> float:
    """The exact non-adaptive ε_dd = log[((1+a)^q + (1-a)^q)/2] / (q-1), with a = 1/M.

    That is R_q between a coin that shows the record's bit with probability (1+a)/2 and a fair one,
    the comparator. No other request leaks: before the second the output does not depend on any
    record, after it the output is a fair coin.
    """
    armed = 1 / passwords
    higher, lower = (order * math.log1p(a) for a in (armed, -armed))
    if higher > 1:  # where expm1 would overflow before its logarithm is taken
        return (higher + math.log1p(math.exp(lower - higher)) - math.log(2)) / (order - 1)
    return math.log1p((math.expm1(higher) + math.expm1(lower)) / 2) / (order - 1)


def adaptive_epsilon() -> float:
    """The least ε after one adaptive request: log 2, at every order.

    The release equals the deleted record's bit, and max_b -log π(b) ≥ log 2 for every comparator π.
    """
    return math.log(2)


def attack(key: Array, settings: PasswordSettings) -> AttackResult:
    """Advantage of reading the deleted record's bit: the requester sees φ_0, or nothing."""
    passwords, order = settings.passwords, settings.order
    records = jnp.arange(1, settings.n + 1, dtype=jnp.int32) % passwords
    records = records.at[TARGET_ROW].set(1)
    alternative = replacement([TARGET_ROW], jnp.zeros(1, jnp.int32))
    each = simultaneous(settings.confidence, 2)
    estimates = []
    for case_key, observe in zip(jax.random.split(key), ((0,), ()), strict=True):
        fn = functools.partial(trial, passwords=passwords, observe=observe)
        pair = two_worlds(fn, case_key, settings.seeds, records, alternative)
        estimates.append(advantages(pair.present, pair.absent, each)[0])
    rows = tuple(
        row({"releases seen by the requester": seen}, estimate, exact)
        for seen, estimate, exact in zip((1, 0), estimates, (1.0, 1 / passwords), strict=True)
    )
    eps_dd = nonadaptive_epsilon(order, passwords)
    claimed = adaptive.deletion_adaptive_as_stated(eps_dd, 0.0, 1)
    bound = float(inference.advantage_soundness(order, claimed))
    return AttackResult(
        measure="advantage",
        estimate=estimates[0],
        bound=bound,
        bound_means="thm:reduction with thm:soundness: advantage is at most this",
        exact=1.0,
        theory={
            "eps_dd_nonadaptive": eps_dd,
            "eps_dp": 0.0,
            "eps_dd_claimed": float(claimed),
            "eps_dd_adaptive_at_least": adaptive_epsilon(),
        },
        findings=_findings(rows, bound),
        rows=rows,
    )


def _findings(rows, bound) -> tuple[Finding, ...]:
    seen, blind = rows
    nonadaptive = Claim(
        "without adaptivity the advantage is within thm:soundness at the exact ε_dd",
        "dd_jax.attacks.password.nonadaptive_epsilon",
        "ours",
    )
    return (
        Finding(
            ATTACK.claim,
            seen["low"] > bound,
            f"advantage at least {seen['low']:.4f}, where the claim allows {bound:.4g}",
        ),
        Finding(
            nonadaptive,
            blind["low"] > bound,
            f"advantage of a blind requester in [{blind['low']:.4f}, {blind['high']:.4f}]",
        ),
        exact_law(
            "the advantage is 1 with one release seen and 1/M with none",
            "dd_jax.attacks.password.mechanism",
            rows,
        ),
    )


ATTACK = Attack(
    "password",
    "an adaptive requester repeats a released password and so arms a leak",
    Claim(
        "non-adaptive (q, ε_dd)-data-deletion and (q, ε_dp)-Rényi DP give "
        "(q, ε_dd + pε_dp)-data-deletion under p-adaptive requesters",
        "thm:reduction as stated (erratum E2)",
        "paper",
    ),
    attack,
    Picture(
        "intervals",
        ("releases seen by the requester",),
        {"exact": "exact"},
        bound="what the refuted claim allows",
    ),
    PasswordSettings,
)
