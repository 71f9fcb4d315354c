"""Reconstruction: deletions against perfect retraining publish records that were never deleted.

A service releases the median of its records and retrains after every deletion: perfect unlearning.
An adversary owns a share of the rows, some below and some above all honest records, and deletes the
low ones, one by one. Every release is an order statistic of the honest rows, and every second
deletion moves it to the next one: the median walks through the honest rows and publishes their
values. No request depends on a release, and no honest row is ever edited.

The test of one record says 1 if some release so far equals it, or is within a tolerance of it. Its
advantage is against a world in which the row holds another record. Noisy-GD with a smoothed median
(the Huber loss) serves the same requests; for records that stay its certificate bounds all releases
together (ε_dp_joint).
"""

import functools
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float
from scipy import integrate, special, stats

from dd_jax import checks
from dd_jax.attacks.base import Attack, AttackResult, Picture, PlanSettings, exact_law, number, row
from dd_jax.attacks.game import retraining
from dd_jax.audit.claims import AdvantageClaim, NumericClaim, of_certificate
from dd_jax.audit.verdict import audit
from dd_jax.claims import Claim, Finding
from dd_jax.ensemble import over_seeds
from dd_jax.erm import Problem
from dd_jax.errors import InputError
from dd_jax.guarantees import inference, renyi
from dd_jax.interaction import Requester, interact
from dd_jax.intervals import Estimate, advantage, simultaneous
from dd_jax.losses import huber
from dd_jax.noisy_gd import Schedule
from dd_jax.noisy_gd import mechanism as noisy_gd_mechanism
from dd_jax.plans import Plan, plan_convex
from dd_jax.plans.settings import internal_order
from dd_jax.requesters import fixed_stream
from dd_jax.types import Edit, Labelled, Mechanism

# Honest records are uniform on [-1/2, 1/2]; the adversary's are beyond them, at both ends.
LOW, HIGH = -1.0, 1.0
TOLERANCE = 0.005
# Up to here the smoothed median is quadratic; beyond, a record pulls with this force.
THRESHOLD = 0.1
MOST_ROWS = 8
MOST_RECORDS = 2_000
FEWEST_SEEDS = 1_000
WEAK_NOISE = 0.25
AUDITS = 3
# Streams of seeds that are run: the two services, their distance, the audits; each in two worlds.
STREAMS = 2 * (2 + 2 + AUDITS)
MEDIAN, MEDIAN_NEAR, NOISY = (
    "retraining: equal",
    f"retraining: within {TOLERANCE}",
    f"Noisy-GD: within {TOLERANCE}",
)


@dataclass(frozen=True, kw_only=True)
class ReconstructionSettings(PlanSettings):
    """n records, of which the adversary owns a share."""

    seeds: int = number(10_000, checks.whole, least=FEWEST_SEEDS)
    n: int = number(99, checks.whole, least=8, most=MOST_RECORDS)
    share: float = number(0.75, checks.fraction)
    l2: float = 0.1
    eps_dp: float = 0.05
    eps_dd: float = 0.025

    def __post_init__(self):
        super().__post_init__()
        rows = self.rows
        if rows.honest < 2 or rows.low < 1:
            raise InputError(
                f"share = {self.share:g} of {self.n} records leaves {rows.honest} honest and "
                f"{rows.low} low ones; give a share with at least 2 and 1."
            )

    @property
    def rows(self) -> "Rows":
        """Whose the rows are; twice as many low ones as high ones keep the walk in the middle."""
        owned = int(self.share * self.n)
        return Rows(self.n - owned, 2 * owned // 3, owned - 2 * owned // 3)


class Rows(NamedTuple):
    """How many rows are honest, and the adversary's at the low and at the high end, in this order.

    Every low row is deleted in its turn.
    """

    honest: int
    low: int
    high: int

    def rank(self, deletions: int) -> int:
        """Which honest record, in increasing order from 0, is the median after so many deletions.

        Outside 0 … honest - 1 the median is one of the adversary's own records.
        """
        return (sum(self) - deletions - 1) // 2 - (self.low - deletions)

    def published(self, deletions: int) -> range:
        """The ranks of the honest records that were released so far: they have no gap."""
        return range(max(self.rank(0), 0), min(self.rank(deletions), self.honest - 1) + 1)


# --- the two services and the requests ------------------------------------------------------------


@functools.cache
def median_service() -> Mechanism:
    """The lower median of the records that are there (a deleted one has features 0), retrained."""

    def learn(key, database):
        del key
        there = database.features[:, 0] != 0
        ordered = jnp.sort(jnp.where(there, database.label, jnp.inf))
        return ordered[(jnp.sum(there) - 1) // 2][None]

    return retraining(learn)


def deletes_low_rows(rows: Rows) -> Requester:
    """Request i deletes the i-th low row, whatever was released."""
    index = rows.honest + jnp.arange(rows.low, dtype=jnp.int32)[:, None]
    return fixed_stream(
        Edit(index, Labelled(jnp.zeros((rows.low, 1, 1)), jnp.zeros((rows.low, 1))))
    )


def draw_honest(key: Array, rows: Rows) -> Float[Array, "honest"]:
    """Honest records, uniform on [-1/2, 1/2]."""
    return jax.random.uniform(key, (rows.honest,), jnp.float32, -0.5, 0.5)


def releases(key: Array, honest: Array, service: Mechanism, rows: Rows) -> Array:
    """All releases: the first one, and one after each deletion."""
    values = jnp.concatenate([honest, jnp.full(rows.low, LOW), jnp.full(rows.high, HIGH)])
    database = Labelled(jnp.ones((sum(rows), 1)), values)
    _, happened = interact(key, service, deletes_low_rows(rows), database, num_requests=rows.low)
    return happened.releases[:, 0]


class Hits(NamedTuple):
    """After each release: was the record released exactly, or within the tolerance?"""

    exactly: Bool[Array, "releases"]
    nearly: Bool[Array, "releases"]


def hit_trial(key: Array, present: Array, *, service: Mechanism, rows: Rows) -> Hits:
    """The test of the record of row 0, where it is present and where another one is in its row."""
    draw_key, other_key, run_key = jax.random.split(key, 3)
    honest = draw_honest(draw_key, rows)
    record, other = honest[0], draw_honest(other_key, rows)[0]
    held = honest.at[0].set(jnp.where(present, record, other))
    shown = releases(run_key, held, service, rows)
    nearest = jax.lax.cummin(jnp.abs(shown - record))
    return Hits(nearest == 0, nearest <= TOLERANCE)


def ends_trial(key: Array, value: Array, *, service: Mechanism, rows: Rows) -> Array:
    """All releases where row 0 holds this value, and an observer knows all other records.

    At the ends a record pulls the hardest. The others are at the quantiles of the uniform law.
    """
    honest = jnp.linspace(-0.5, 0.5, rows.honest).at[0].set(value)
    return releases(key, honest, service, rows)


# --- exact values ---------------------------------------------------------------------------------


def exact_advantage(rows: Rows, deletions: int, tolerance: float) -> float:
    """The test's advantage against the median service, exactly.

    With H honest records, uniform on an interval of length 1, two order statistics k ranks apart
    are at a distance of the law Beta(k, H + 1 - k). A record that is present is hit if its rank was
    published, or if it is within the tolerance of the first or last one that was. A record that is
    not present is hit with the expected length of the union of intervals around what was published.
    """
    honest, ranks = rows.honest, rows.published(deletions)
    if not ranks:
        return 0.0
    first, last = ranks[0], ranks[-1]
    beyond = np.concatenate([np.arange(1, first + 1), np.arange(1, honest - last)])
    near = np.sum(special.betainc(beyond, honest + 1 - beyond, tolerance))
    present = (len(ranks) + near) / honest
    between = -math.expm1((honest + 1) * math.log1p(-2 * tolerance)) / (honest + 1)
    absent = (len(ranks) - 1) * between
    for rank in (first + 1, honest - last):  # from the nearer end of the interval, counted from 1
        law = stats.beta(rank, honest + 1 - rank)
        absent += integrate.quad(law.sf, 0, tolerance)[0]
    return float(present - absent)


def certified_advantage(plan: Plan, deletions: int) -> float:
    """2Φ(μ/2) - 1 with the μ of all releases so far together, for a record that stays."""
    one = plan.certificate().eps_dp
    eps = plan.certificate(request=deletions).eps_dp_joint if deletions else one
    return float(inference.advantage_gdp(renyi.gdp_from_linear_renyi(internal_order(plan), eps)))


# --- the attack -----------------------------------------------------------------------------------


def make_problem(l2: float) -> Problem:
    """The smoothed median: Huber's loss of the distance to a record."""
    return Problem(huber(threshold=THRESHOLD), l2)


def make_plan(settings: ReconstructionSettings) -> Plan:
    """A plan for the smoothed median of all rows."""
    return plan_convex(make_problem(settings.l2), n=settings.n, dim=1, **settings.budgets)


def checkpoints(rows: Rows) -> list[int]:
    """Numbers of deletions after which the test is scored."""
    return np.unique(np.linspace(0, rows.low, MOST_ROWS).astype(int)).tolist()


def attack(
    key: Array, settings: ReconstructionSettings, progress: Callable[[int, int], None]
) -> AttackResult:
    """How many honest records were released, by retraining and by Noisy-GD, and the audits."""
    rows, plan = settings.rows, make_plan(settings)
    noisy = noisy_gd_mechanism(make_problem(settings.l2), plan)
    marks = checkpoints(rows)
    each = simultaneous(settings.confidence, 3 * len(marks) + AUDITS)
    median_key, noisy_key, distance_key, audit_key = jax.random.split(key, 4)
    counted = itertools.count(settings.seeds, settings.seeds)
    both = functools.partial(
        _both, settings, lambda: progress(next(counted), STREAMS * settings.seeds)
    )
    median = both(median_key, hit_trial, (True, False), median_service())
    smooth = both(noisy_key, hit_trial, (True, False), noisy)

    def along(service: str, pair, exact: Callable | None, certified: Callable | None):
        for deletions in marks:
            present, absent = (int(arm[:, deletions].sum()) for arm in pair)
            found = advantage(present, absent, settings.seeds, each)
            yield row(
                {"service": service, "deletions": deletions},
                found,
                None if exact is None else exact(deletions),
                certified=None if certified is None else certified(deletions),
            )

    walk = functools.partial(exact_advantage, rows)
    table = (
        *along(MEDIAN, [arm.exactly for arm in median], lambda i: walk(i, 0.0), None),
        *along(MEDIAN_NEAR, [arm.nearly for arm in median], lambda i: walk(i, TOLERANCE), None),
        *along(
            NOISY,
            [arm.nearly for arm in smooth],
            None,
            functools.partial(certified_advantage, plan),
        ),
    )
    final = table[len(marks) - 1]
    distance = _mean_distance(distance_key, both, noisy)
    estimate = Estimate(final["success"], final["low"], final["high"], settings.seeds, each)
    bound = walk(0, 0.0)
    return AttackResult(
        measure="advantage",
        estimate=estimate,
        bound=bound,
        bound_means="the share of honest records that the first release shows",
        exact=final["exact"],
        findings=(
            Finding(
                ATTACK.claim,
                estimate.low > bound,
                f"after {rows.low} deletions of the adversary's own rows a share of at least "
                f"{estimate.low:.4f} of {rows.honest} honest records was released exactly",
            ),
            _within([one for one in table if one["certified"] is not None]),
            *_audits(audit_key, both, settings, plan, each),
            exact_law(
                "the median publishes as many honest records as computed",
                "dd_jax.attacks.reconstruction.exact_advantage",
                table,
            ),
        ),
        rows=table,
        theory={
            "honest": rows.honest,
            "low": rows.low,
            "high": rows.high,
            "eps_dp_joint": plan.certificate(request=rows.low).eps_dp_joint,
            "certified_joint": certified_advantage(plan, rows.low),
            "distance_from_the_median": distance,
        },
    )


@functools.lru_cache(maxsize=16)
def _program(trial, service: Mechanism, rows: Rows):
    """One function object per program, so that it is compiled once."""
    return functools.partial(trial, service=service, rows=rows)


def _both(
    settings: ReconstructionSettings,
    tick: Callable[[], None],
    key: Array,
    trial,
    worlds,
    service: Mechanism,
) -> list:
    """The trial in two worlds, with independent coins; a tick after each of them."""
    run, found = _program(trial, service, settings.rows), []
    for world_key, world in zip(jax.random.split(key), worlds, strict=True):
        seen = over_seeds(run, world_key, settings.seeds, jnp.asarray(world))
        found.append(jax.tree.map(np.asarray, seen))
        tick()
    return found


def _mean_distance(key: Array, both: Callable[..., list], noisy: Mechanism) -> float:
    """What Noisy-GD's protection costs: how far its releases are from the median, on average."""
    exact, smooth = (
        both(part, ends_trial, (LOW, HIGH), service)
        for part, service in zip(jax.random.split(key), (median_service(), noisy), strict=True)
    )
    return float(np.mean(np.abs(np.subtract(exact, smooth))))


def _within(table: list[dict]) -> Finding:
    """Ours: the test of a record against Noisy-GD stays within the certificate."""
    beyond = [one for one in table if one["low"] > one["certified"]]
    last = table[-1]
    claim = Claim(
        "against Noisy-GD no test of a record that stays exceeds the joint certificate",
        "dd_jax.plans.Plan.certificate, eps_dp_joint",
        "ours",
    )
    evidence = (
        f"beaten at {len(beyond)} of {len(table)} checkpoints; at the last one the advantage is in "
        f"[{last['low']:.4f}, {last['high']:.4f}], certified {last['certified']:.4f}"
    )
    return Finding(claim, bool(beyond), evidence)


def _audits(
    key: Array,
    both: Callable[..., list],
    settings: ReconstructionSettings,
    plan: Plan,
    confidence: float,
):
    """The strongest test of all releases together: ours, with too little noise, and a null."""
    problem = make_problem(settings.l2)
    weak = Schedule.of(plan)._replace(
        noise_variance=WEAK_NOISE * plan.noise_variance,
        init_variance=WEAK_NOISE * plan.init_variance,
    )
    joint = of_certificate(plan.certificate(request=settings.rows.low), "dp-joint")
    same = AdvantageClaim(0.0, name="two runs on the same records")
    cases: tuple[tuple[Claim, NumericClaim, Plan | Schedule, tuple[float, float]], ...] = (
        (
            Claim(
                "all releases of Noisy-GD together keep a record that stays within eps_dp_joint",
                "dd_jax.plans.Plan.certificate, eps_dp_joint",
                "ours",
            ),
            joint,
            plan,
            (HIGH, LOW),
        ),
        (
            Claim(
                f"the same certificate holds with {WEAK_NOISE:g} times its noise",
                "false by design: does the audit have power?",
                "control",
            ),
            joint,
            weak,
            (HIGH, LOW),
        ),
        (
            Claim("runs on the same records are not told apart", "a null: true by design", "ours"),
            same,
            plan,
            (LOW, LOW),
        ),
    )
    for number_of, (claim, stated, numbers, worlds) in enumerate(cases):
        service = noisy_gd_mechanism(problem, numbers)
        pair = both(jax.random.fold_in(key, number_of), ends_trial, worlds, service)
        (verdict,) = audit(pair, stated, confidence=confidence, independent=True).verdicts
        yield Finding(claim, verdict.refuted, str(verdict))


ATTACK = Attack(
    "reconstruction",
    "a median walks through records that stay while others are deleted; retraining publishes them",
    Claim(
        "perfect retraining after every deletion is all the protection that records need",
        "def:ginart, dfn:unlearning: they say nothing about records that stay",
        "prior work",
    ),
    attack,
    Picture(
        "curves",
        ("deletions",),
        {"exact": "exact", "certified": "certified"},
        series="service",
    ),
    ReconstructionSettings,
    reports=True,
)
