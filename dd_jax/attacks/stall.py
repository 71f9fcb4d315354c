"""A deletion that float32 rounds away: an order of summation in which no step has an effect.

The sum θ - ηg + noise, in that order, first rounds θ - ηg. Where |ηg| is below half the spacing of
floats at θ the drift is lost at every step, before the noise is added: the model becomes a random
walk, and the effect of a deleted record stays in it. In θ + (noise - ηg) the drift is added to a
small number first and is not lost, and the law is that of real numbers.

Huber's loss with labels far beyond every prediction has a constant slope, so the exact law is
Gaussian. Runs start in the exact law after learning, so that only the deletion is run.
"""

import functools
import math
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from scipy import stats

from dd_jax import checks, noisy_gd
from dd_jax.attacks.base import Attack, AttackResult, Picture, PlanSettings, number, row
from dd_jax.claims import Claim, Finding
from dd_jax.databases import counted
from dd_jax.ensemble import over_seeds
from dd_jax.erm import Problem, gradient
from dd_jax.errors import InputError
from dd_jax.guarantees import inference, renyi
from dd_jax.intervals import Estimate, advantage, simultaneous
from dd_jax.losses import huber
from dd_jax.plans import Plan, plan_convex
from dd_jax.types import Labelled

LABEL = 1e6  # far beyond any model here: every record's slope is ±1
FEWEST_SEEDS = 100
MOST_STEPS = 1_000_000
DRIFT_FIRST, LIBRARY = "θ - ηg, then noise", "the library's step"


@dataclass(frozen=True, kw_only=True)
class StallSettings(PlanSettings):
    """n records, and budgets that need many small steps."""

    seeds: int = number(4_000, checks.whole, least=FEWEST_SEEDS)
    n: int = 100_000
    l2: float = 1e-4
    eps_dd: float = 1e-4


class Law(NamedTuple):
    """The exact law of a release: a Gaussian for each label of the target."""

    means: tuple[float, float]
    deviation: float

    @property
    def middle(self) -> float:
        """Halfway between the means: the threshold of the best test."""
        return sum(self.means) / 2

    @property
    def advantage(self) -> float:
        """The best test's advantage: 2Φ(difference/(2 deviation)) - 1."""
        shift = abs(self.means[1] - self.means[0]) / self.deviation
        return float(inference.advantage_gdp(shift))


def laws(plan: Plan) -> tuple[Law, Law]:
    """The laws after learning, with the target's label at ∓1e6, and after its deletion.

    The mean gradient is λθ - m with m = (n - 1 ∓ 1)/n, and (n - 1)/n without the target.
    """
    l2, n = plan.problem.l2, plan.n
    contraction = 1 - plan.step_size * l2

    def after(means, variance, targets, steps):
        decay = contraction**steps
        moved = np.asarray(targets) / l2 * (1 - decay) + decay * np.asarray(means)
        added = 2 * plan.step_size * plan.noise_variance
        spread = (1 - decay**2) / (1 - contraction**2)
        return moved, decay**2 * variance + added * spread

    sides = ((n - 2) / n, n / n)
    learned = after((0.0, 0.0), plan.init_variance, sides, plan.learn_steps)
    deleted = after(*learned, ((n - 1) / n,) * 2, plan.delete_steps)
    first, second = (
        Law((float(low), float(high)), math.sqrt(variance))
        for (low, high), variance in (learned, deleted)
    )
    return first, second


def drift_first(key, params, database, problem, *, step_size, noise_variance, num_steps):
    """`dd_jax.noisy_gd.run` with the terms summed from the left: θ - ηg + noise."""
    eta = jnp.asarray(step_size, params.dtype)
    scale = jnp.sqrt(2 * eta * jnp.asarray(noise_variance, params.dtype))

    def step(params, k):
        noise = jax.random.normal(jax.random.fold_in(key, k), params.shape, params.dtype)
        drifted = params - eta * gradient(problem, params, database)
        # A compiler could fuse the sums into another order; the barrier keeps this one.
        return jax.lax.optimization_barrier(drifted) + scale * noise, None

    return jax.lax.scan(step, params, jnp.arange(num_steps))[0]


ORDERS = {DRIFT_FIRST: drift_first, LIBRARY: noisy_gd.run}


def trial(key: Array, database, law: Array, *, problem: Problem, plan: Plan, order: str) -> Array:
    """Both worlds: a model in the exact law after learning, then K_U steps without the target."""
    keys = jax.random.split(key, 2)
    run = functools.partial(
        ORDERS[order],
        database=database,
        problem=problem,
        step_size=plan.step_size,
        noise_variance=plan.noise_variance,
        num_steps=plan.delete_steps,
    )
    low, high, deviation = law

    def one(key, mean):
        start_key, run_key = jax.random.split(key)
        start = mean + deviation * jax.random.normal(start_key, (1,), jnp.float32)
        return run(run_key, start)[0]

    return jnp.stack([one(keys[0], low), one(keys[1], high)])


def database_without(n: int):
    """The n - 1 records that stay, and the null record in the target's place."""
    record = Labelled(jnp.array([[1.0], [0.0]]), jnp.array([LABEL, 0.0], jnp.float32))
    return counted(record, np.array([n - 1, 1]))


class Measured(NamedTuple):
    """One order of summation: advantage, deviation, and the exact law's interval for it."""

    order: str
    estimate: Estimate
    deviation: float
    deviation_low: float
    deviation_high: float


def measure(key: Array, plan: Plan, problem: Problem, order: str, seeds: int, confidence: float):
    """Models after the deletion in both worlds, judged at the exact law's own threshold."""
    learned, deleted = laws(plan)
    start = jnp.array([*learned.means, learned.deviation], jnp.float32)
    fn = functools.partial(trial, problem=problem, plan=plan, order=order)
    models = over_seeds(fn, key, seeds, database_without(plan.n), start, chunk=4 * 1024)
    models = np.asarray(models, np.float64)
    hits = np.sum(models > deleted.middle, axis=0)
    share = simultaneous(confidence, 2)
    deviation = math.sqrt(float(np.mean(np.var(models, axis=0, ddof=1))))
    low, high = deviation_limits(deviation, 2 * (seeds - 1), share)
    return Measured(
        order, advantage(int(hits[1]), int(hits[0]), seeds, share), deviation, low, high
    )


def deviation_limits(deviation: float, freedom: int, confidence: float) -> tuple[float, float]:
    """Exact limits of a Gaussian's deviation, from a χ² law."""
    tail = (1 - confidence) / 2
    ends = stats.chi2.isf([tail, 1 - tail], freedom)
    return tuple((deviation * np.sqrt(freedom / ends)).tolist())


def attack(key: Array, settings: StallSettings) -> AttackResult:
    """Advantage and deviation after a deletion, for both orders of summation."""
    problem = Problem(huber(), settings.l2)
    plan = plan_convex(problem, n=settings.n, dim=1, **settings.budgets)
    if plan.delete_steps > MOST_STEPS:
        raise InputError(
            f"this plan takes {plan.delete_steps} steps per request; give a larger l2 or eps_dd."
        )
    deleted = laws(plan)[1]
    # From the budget and not from a certificate: the planner may refuse to certify such a plan.
    mu = renyi.gdp_from_linear_renyi(settings.order, settings.eps_dd)
    claimed = float(inference.advantage_gdp(mu))
    each = simultaneous(settings.confidence, len(ORDERS))
    found = [
        measure(part, plan, problem, name, settings.seeds, each)
        for part, name in zip(jax.random.split(key, len(ORDERS)), ORDERS, strict=True)
    ]
    stalled, kept = found
    return AttackResult(
        measure="advantage",
        estimate=stalled.estimate,
        bound=claimed,
        bound_means="what ε_dd allows: 2Φ(μ/2) - 1",
        exact=deleted.advantage,
        findings=_findings(stalled, kept, deleted, claimed),
        rows=tuple(
            row(
                {"summed": each.order},
                each.estimate,
                deleted.advantage,
                certified=claimed,
                deviation=each.deviation,
                deviation_exact=deleted.deviation,
            )
            for each in found
        ),
        theory={
            "delete_steps": plan.delete_steps,
            "noise_deviation": math.sqrt(2 * plan.step_size * plan.noise_variance),
            "spacing_of_floats": float(np.spacing(np.float32(deleted.middle))),
            "drift_at_one_deviation": plan.step_size * settings.l2 * deleted.deviation,
        },
    )


def _findings(stalled: Measured, kept: Measured, exact: Law, claimed: float):
    law = Claim(
        "in float32 the library's step keeps the law of real numbers: deviation and advantage",
        "dd_jax.noisy_gd.run",
        "ours",
    )
    return tuple(
        Finding(claim, _broken(found, exact, claimed), _evidence(found, exact, claimed))
        for claim, found in ((ATTACK.claim, stalled), (law, kept))
    )


def _broken(found: Measured, exact: Law, claimed: float) -> bool:
    """Whether samples show more than ε_dd allows, or a deviation more than 1% off the exact one."""
    off = not 0.99 * found.deviation_low <= exact.deviation <= 1.01 * found.deviation_high
    return off or found.estimate.low > claimed


def _evidence(found: Measured, exact: Law, claimed: float) -> str:
    return (
        f"advantage at least {found.estimate.low:.4f} where {claimed:.4f} is allowed; deviation "
        f"{found.deviation:.4f}, exactly {exact.deviation:.4f}"
    )


ATTACK = Attack(
    "stall",
    "summed in the wrong order, float32 rounds the drift away and never forgets",
    Claim(
        "θ - ηg + noise, summed from the left in float32, keeps the law of real numbers",
        "alg:noisygd as written, in single precision",
        "control",
    ),
    attack,
    Picture("intervals", ("summed",), {"exact": "exact, and all that is certified"}),
    StallSettings,
)
