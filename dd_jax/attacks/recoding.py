"""The recoding requester: it carries a deleted record past any number of deletion steps.

Noisy-GD with the linear loss -⟨θ, x⟩ in one dimension, and a target x = ±1. The requester sees φ_0
and recodes every other row to sign(φ_0); the same request deletes the target. From then on the
models are near ±(n-1)/(nλ), on the side of φ_0, which was drawn while the target was in the
database. The divergence of two coins, Φ(μ/2) and Φ(-μ/2), remains after any number of deletion
steps (erratum E2). For a record that stays, this divergence is added to ε_dp (erratum E9).
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from scipy import integrate, stats

from dd_jax import checks, losses
from dd_jax.attacks.base import Attack, AttackResult, Picture, RenyiSettings, exact_law, number, row
from dd_jax.attacks.game import play
from dd_jax.attacks.separation import renyi_lower_bound
from dd_jax.audit.samples import Outcome, PostDeletionView, Stage, one_run, two_worlds
from dd_jax.claims import Claim, Finding
from dd_jax.erm import Problem
from dd_jax.guarantees import adaptive, inference, renyi
from dd_jax.intervals import Estimate, advantage, simultaneous
from dd_jax.noisy_gd import Schedule, mechanism
from dd_jax.oracles import linear
from dd_jax.plans import Plan, plan_convex
from dd_jax.requesters import sign_recoder as requester
from dd_jax.types import replacement

TARGET_ROW = 0
L2, LIPSCHITZ = 1.0, 1.0
CONDITION = 10.0
LEARN_STEPS = 100
DELETED_SHARE = 0.01
MOST_RELEASES = 64
MOST_RECORDS = 1_000
# For larger ε the sign of φ_0 is wrong in fewer than one of 10¹² runs, and the coin rounds to 1.
LARGEST_EPSILON = 100
DELETED, STAYS = "is deleted", "stays"


@dataclass(frozen=True, kw_only=True)
class RecodingSettings(RenyiSettings):
    """n records, releases after the recoding, and ε_dp."""

    seeds: int = 20_000
    n: int = number(20, checks.whole, least=5, most=MOST_RECORDS)
    releases: int = number(8, checks.whole, least=1, most=MOST_RELEASES)
    epsilon: float = number(1.0, checks.positive, most=LARGEST_EPSILON)


def make_plan(n: int, order: float, epsilon: float) -> Plan:
    """Noisy-GD for ε_dp = `epsilon` and ε_dd = ε_dp/100; η = 1/(10λ), so steps contract by 0.9.

    Learning takes 100 steps, after which the target's effect is complete up to a factor 1 - 0.9¹⁰⁰.
    """
    problem = Problem(losses.linear(feature_norm=LIPSCHITZ), L2)
    plan = plan_convex(
        problem,
        n=n,
        dim=1,
        order=order,
        eps_dp=epsilon,
        eps_dd=DELETED_SHARE * epsilon,
        edits_per_request=n,
        step_size=1 / (CONDITION * L2),
    )
    return replace(plan, learn_steps=LEARN_STEPS)


class Law(NamedTuple):
    """The release given φ_0 = t is N(c^k t + sign(t)·push ± offset, fresh); t ~ N(±mean, variance).

    ± is the target; k steps follow the recoding. The same law as `oracles.linear.recoding_renyi`.
    """

    mean: float
    variance: float
    decay: float
    offset: float
    push: float
    fresh: float

    def probability(self, side: int, intervals: Sequence[tuple[float, float]]) -> float:
        """P[release in the union of disjoint intervals | target = side]."""
        deviation = math.sqrt(self.variance)

        def integrand(size, sign):
            centre = self.decay * sign * size + sign * self.push + side * self.offset
            ends = (np.asarray(intervals) - centre) / math.sqrt(self.fresh)
            inside = np.sum(stats.norm.cdf(ends[:, 1]) - stats.norm.cdf(ends[:, 0]))
            return stats.norm.pdf(sign * size, side * self.mean, deviation) * inside

        far = self.mean + 12 * deviation
        return sum(integrate.quad(integrand, 0, far, args=(sign,))[0] for sign in (1, -1))

    def advantage(self, intervals: Sequence[tuple[float, float]]) -> float:
        """Exact advantage of the test that guesses +1 on the intervals."""
        return self.probability(1, intervals) - self.probability(-1, intervals)

    def coin(self) -> float:
        """P[sign(φ_0) = target]."""
        return float(stats.norm.cdf(self.mean / math.sqrt(self.variance)))

    def staying_test(self) -> list[tuple[float, float]]:
        """Where the coin and the model's distance from ±push together favour +1.

        The log-likelihood ratio is ±log(p/(1-p)) + 2·offset·(release ∓ push)/fresh.
        """
        lead = math.log(self.coin() / (1 - self.coin())) * self.fresh / (2 * self.offset)
        return [(self.push - lead, math.inf), (min(lead - self.push, 0.0), 0.0)]


def law(plan: Plan, present_steps: int, delete_steps: int) -> Law:
    """The law of a release: the target stays for K_I steps after the recoding, then K_U without."""
    constants = (LIPSCHITZ, L2, plan.n, plan.step_size)
    after = present_steps + delete_steps
    rate = (L2, plan.noise_variance, plan.step_size)
    return Law(
        mean=linear.mean_shift(*constants, plan.learn_steps, 0) / 2,
        variance=linear.variance(*rate, plan.learn_steps, plan.init_variance),
        decay=(1 - plan.step_size * L2) ** after,
        offset=linear.mean_shift(*constants, present_steps, delete_steps) / 2,
        push=(plan.n - 1) * linear.mean_shift(*constants, after, 0) / 2,
        fresh=linear.variance(*rate, after),
    )


def exact_renyi(plan: Plan, order: float, present_steps: int, delete_steps: int) -> float:
    """R_q of the release, by quadrature: `oracles.linear.recoding_renyi`."""
    constants = (order, LIPSCHITZ, L2, plan.noise_variance, plan.n, plan.step_size)
    return linear.recoding_renyi(
        *constants,
        plan.learn_steps,
        present_steps=present_steps,
        delete_steps=delete_steps,
        init_variance=plan.init_variance,
    )


def adversary(key: Array, view: PostDeletionView) -> Array:
    """The target was +1 if the model is on the positive side; one guess per release."""
    del key
    return view.releases[:, 0] > 0


def trial(key: Array, records: Array, schedule, *, steps: tuple, releases: int) -> Outcome:
    """The target goes at request 1; later requests change nothing and only add deletion steps."""
    curator = mechanism(Problem(losses.linear(), L2), Schedule(*schedule, *steps))
    curious = requester(records.shape[0], deletes=True)
    return play(key, Stage(curator, curious, records, TARGET_ROW, 1, releases, (0,)), adversary)


def staying_trial(key: Array, records: Array, schedule, *, steps: tuple, releases: int) -> Outcome:
    """The target stays; its observer sees only the last release."""
    curator = mechanism(Problem(losses.linear(), L2), Schedule(*schedule, *steps))
    curious = requester(records.shape[0], deletes=False)
    last = (releases,)
    stage = Stage(curator, curious, records, TARGET_ROW, 0, releases, (0,), kept=last)
    return one_run(key, stage, lambda view: view.releases[0, 0])


class Measured(NamedTuple):
    """One release: the advantage and what it shows of R_q, beside the exact values."""

    target: str
    steps: int
    estimate: Estimate
    exact: float
    renyi_low: float
    renyi: float


def measure(key: Array, plan: Plan, settings: RecodingSettings) -> list[Measured]:
    """The deleted target along 1, 2, 4, … requests, and a target that stays, at the last one."""
    seeds, releases = settings.seeds, settings.releases
    records = jnp.zeros((plan.n, 1), jnp.float32).at[TARGET_ROW].set(1)
    other = replacement([TARGET_ROW], -jnp.ones((1, 1), jnp.float32))
    schedule = (plan.step_size, plan.noise_variance, plan.init_variance)
    options = {"steps": (plan.learn_steps, plan.delete_steps), "releases": releases}
    gone_key, stay_key = jax.random.split(key)
    fn = functools.partial(trial, **options)
    gone = two_worlds(fn, gone_key, seeds, records, other, schedule)
    fn = functools.partial(staying_trial, **options)
    stays = two_worlds(fn, stay_key, seeds, records, other, schedule)
    shown = [2**k for k in range(int(math.log2(releases)) + 1)]
    each = simultaneous(settings.confidence, len(shown) + 1)

    def judge(target, present, deleted, test, ones, zeros):
        """Guesses of +1, on the intervals of a test, where the target is +1 and where it is -1."""
        hits = (int(ones.sum()), int(zeros.sum()))
        return Measured(
            target,
            present + deleted,
            advantage(*hits, seeds, each),
            law(plan, present, deleted).advantage(test),
            float(renyi_lower_bound(settings.order, *hits, seeds, each)),
            exact_renyi(plan, settings.order, present, deleted),
        )

    positive = [(0.0, math.inf)]
    found = [
        judge(DELETED, 0, m * plan.delete_steps, positive, *(arm[:, m - 1] for arm in gone))
        for m in shown
    ]
    after = releases * plan.delete_steps
    test = law(plan, after, 0).staying_test()
    guesses = [_inside(models, test) for models in stays]
    return [*found, judge(STAYS, after, 0, test, *guesses)]


def _inside(values: np.ndarray, intervals) -> np.ndarray:
    return np.any([(values > low) & (values <= high) for low, high in intervals], axis=0)


class Bounds(NamedTuple):
    """What is claimed for p = 0 and certified for p = 1, as ε and as an advantage."""

    plain: dict[str, tuple[float, float]]
    certified: dict[str, tuple[float, float]]


def bounds(plan: Plan, order: float) -> Bounds:
    """ε_dd and ε_dp alone, against ε_dd + ε_dp and 2ε_dp, with 2Φ(μ/2) - 1 at μ = √(2ε/q)."""
    found = plan.certificate(adaptivity=1)

    def both(eps):
        return float(eps), float(inference.advantage_gdp(renyi.gdp_from_linear_renyi(order, eps)))

    return Bounds(
        {DELETED: both(found.eps_dd), STAYS: both(found.eps_dp)},
        {DELETED: both(found.eps_dd_adaptive), STAYS: both(found.eps_dp_adaptive)},
    )


def attack(key: Array, settings: RecodingSettings) -> AttackResult:
    """What a 1-adaptive requester reveals of a deleted record and of a record that stays."""
    order, epsilon = settings.order, settings.epsilon
    plan = make_plan(settings.n, order, epsilon)
    measured = measure(key, plan, settings)
    limits = bounds(plan, order)
    last = measured[-2]
    mu = renyi.gdp_from_linear_renyi(order, epsilon)
    return AttackResult(
        measure="advantage",
        estimate=last.estimate,
        bound=limits.certified[DELETED][1],
        bound_means="certified for p = 1: 2Φ(μ/2) - 1 with ε_dd + ε_dp = qμ²/2",
        exact=last.exact,
        theory={
            "renyi_deleted": last.renyi,
            "renyi_of_the_coin": float(adaptive.recoding_leak(order, mu)),
            "renyi_stays": measured[-1].renyi,
            "renyi_of_the_coin_and_eps_dp": float(adaptive.recoding_leak_staying(order, mu)),
            "eps_dp": limits.plain[STAYS][0],
            "eps_dd": limits.plain[DELETED][0],
            "eps_dd_certified": limits.certified[DELETED][0],
            "eps_dp_certified": limits.certified[STAYS][0],
        },
        findings=_findings(measured, limits),
        rows=tuple(_row(m, limits) for m in measured),
    )


def _row(measured: Measured, limits: Bounds) -> dict:
    return row(
        {"target": measured.target, "steps after": measured.steps},
        measured.estimate,
        measured.exact,
        certified=limits.certified[measured.target][1],
        p0_bound=limits.plain[measured.target][1],
        renyi_low=measured.renyi_low,
        renyi=measured.renyi,
    )


def _findings(measured: list[Measured], limits: Bounds) -> tuple[Finding, ...]:
    *gone, stays = measured
    promise = Claim(
        "one release is (q, ε_dp) for a record that stays, whatever the requester saw",
        "thm:unlearning_accuracy_convex (1), read as a promise to a record (erratum E9)",
        "paper",
    )
    certified = Claim(
        "with p = 1: ε_dd + ε_dp for a deleted record, 2ε_dp for one that stays",
        "dd_jax.plans.Plan.certificate",
        "ours",
    )
    eps, allowed = limits.plain[STAYS]
    return (
        Finding(
            ATTACK.claim,
            _beyond(gone[-1], limits.plain),
            f"{gone[-1].steps} steps later R_q is at least {gone[-1].renyi_low:.4g} "
            f"(exactly {gone[-1].renyi:.4g}), claimed {limits.plain[DELETED][0]:.4g}",
        ),
        Finding(
            promise,
            _beyond(stays, limits.plain),
            f"advantage at least {stays.estimate.low:.4f} where {allowed:.4f} is the most that "
            f"ε_dp = {eps:.4g} allows; R_q is exactly {stays.renyi:.4g}",
        ),
        Finding(
            certified,
            any(_beyond(m, limits.certified) for m in measured),
            f"R_q is exactly {gone[-1].renyi:.4g} within {limits.certified[DELETED][0]:.4g}, and "
            f"{stays.renyi:.4g} within {limits.certified[STAYS][0]:.4g}",
        ),
        exact_law(
            "the advantage is the one computed from the law of the recoded models",
            "dd_jax.attacks.recoding.law, dd_jax.oracles.linear.recoding_renyi",
            [row({}, each.estimate, each.exact) for each in measured],
        ),
    )


def _beyond(measured: Measured, limits: dict[str, tuple[float, float]]) -> bool:
    """Whether samples are outside a bound, on R_q or on the advantage."""
    eps, allowed = limits[measured.target]
    return measured.renyi_low > eps or measured.estimate.low > allowed


ATTACK = Attack(
    "recoding",
    "one release seen, the other rows recoded by its sign: no deletion step undoes it",
    Claim(
        "a deletion bound for non-adaptive requests, ε_dd, also holds once a release was seen",
        "ε_dd of thm:unlearning_accuracy_convex without its condition (erratum E2)",
        "paper",
    ),
    attack,
    Picture(
        "intervals",
        ("target", "steps after"),
        {
            "exact": "exact",
            "certified": "certified, requester sees one release",
            "p0_bound": "certified for requests fixed in advance",
        },
    ),
    RecodingSettings,
)
