"""Products in bfloat16, the default on a TPU, break a certificate about single precision.

Unless told otherwise JAX rounds both operands of a float32 product to bfloat16 on a TPU, eight bits
of significand. The score ⟨a, θ⟩ then sees θ on a staircase. Inside a step of it the loss has no
curvature: only the regulariser contracts, and an easy database becomes the worst case that is
certified. Where the optimum lies at an edge no step holds its own fixed point, and the model
circles over the edge for ever. Two runs at different places of the circle do not come together, so
that more of a deleted record is left than the certificate allows. Rounding the operands reproduces
this on a CPU.

In one dimension the laws are computed as densities (`law`), and the test that the adversary makes
is the best one: which world's density is larger at the model that it sees?
"""

import dataclasses
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from scipy import special

from dd_jax import checks
from dd_jax.attacks.base import Attack, AttackResult, Picture, PlanSettings, exact_law, number, row
from dd_jax.audit.samples import Outcome, Stage, one_run, two_worlds
from dd_jax.claims import Claim, Finding
from dd_jax.databases import Counted, counted, weighted
from dd_jax.erm import Problem
from dd_jax.errors import InputError
from dd_jax.guarantees import inference, renyi
from dd_jax.intervals import advantages, simultaneous
from dd_jax.losses import logistic
from dd_jax.losses.base import Loss
from dd_jax.noisy_gd import mechanism
from dd_jax.oracles import grid
from dd_jax.plans import Plan, plan_convex
from dd_jax.requesters import deletions
from dd_jax.types import Edit, Labelled, replacement

FEWEST_SEEDS = 100
FEWEST_RECORDS, MOST_RECORDS = 1_000, 1_000_000
MOST_STEPS = 1_000
FULL, COARSE = "full precision", "bfloat16"
LEARNED, DELETED = "after learning", "after deletion"


@dataclass(frozen=True, kw_only=True)
class CoarseSettings(PlanSettings):
    """n records, so many that the noise of a step is far below the spacing of bfloat16."""

    seeds: int = number(4_000, checks.whole, least=FEWEST_SEEDS)
    n: int = number(200_000, checks.whole, least=FEWEST_RECORDS, most=MOST_RECORDS)
    l2: float = 0.05


class Case(NamedTuple):
    """A database of one feature: n - 1 records (a, ±1), and the target (1, ±1)."""

    name: str
    feature: float
    positive: float

    def counts(self, n: int) -> tuple[int, int, int]:
        """How many records have the label 1, have the label -1, and are the target."""
        positive = round(self.positive * (n - 1))
        return positive, n - 1 - positive, 1


# With the default settings the first one's optimum is at an edge of the staircase, and the second
# one's inside a step.
CASES = (Case("a = 1, 88% positive", 1.0, 0.88), Case("a = ½, all positive", 0.5, 1.0))


# --- the program --------------------------------------------------------------------------------


def rounded(values: Array) -> Array:
    """The nearest bfloat16 numbers, in the type of `values`."""
    return jax.lax.reduce_precision(values, exponent_bits=8, mantissa_bits=7)


@functools.cache
def coarse_logistic() -> Loss:
    """The logistic loss with the operands of both products of its gradient rounded to bfloat16.

    As on a TPU the sum is in single precision; a record that counts m times is rounded as m equal
    rows would be.
    """
    loss = logistic()
    scores = loss.scores
    assert scores is not None

    def sum_of_gradients(params, rows, clip_norm, weight):
        del clip_norm
        features, label = scores.split(rows)
        slopes = scores.slope(rounded(features) @ rounded(params), label)
        return weighted(rounded(slopes), weight) @ rounded(features)

    return dataclasses.replace(loss, scores=None, batch_gradient=sum_of_gradients)


LOSSES = {FULL: logistic, COARSE: coarse_logistic}


def database(case: Case, n: int) -> Counted:
    """The records of a case; the target, which has the label 1, is in the last row."""
    features = jnp.array([[case.feature], [case.feature], [1.0]], jnp.float32)
    record = Labelled(features, jnp.array([1.0, -1.0, 1.0], jnp.float32))
    return counted(record, np.array(case.counts(n)))


def alternative(n: int) -> Edit:
    """The neighbour: the target has the label -1."""
    return replacement([n - 1], Labelled(jnp.ones((1, 1), jnp.float32), -jnp.ones(1, jnp.float32)))


def trial(key: Array, records: Counted, *, problem: Problem, plan: Plan) -> Outcome:
    """Learn, then delete the target: θ_0 for privacy, θ_1 for deletion."""
    target = plan.n - 1
    stream = deletions(problem.loss, records, [target])
    stage = Stage(mechanism(problem, plan), stream, records, target, 1, 1, kept=(0, 1))
    return one_run(key, stage, lambda view: view.releases[:, 0])


# --- the exact laws -------------------------------------------------------------------------------

Slope = Callable[[np.ndarray], np.ndarray]
REACH = 12  # deviations of one step's noise that a density is carried on by
NEGLIGIBLE = 1e-30  # densities below this share of the largest are dropped


class Line(NamedTuple):
    """A density on the points (first + ½)h, (first + 1½)h, …, h = spacing."""

    first: int
    values: np.ndarray
    spacing: float

    @property
    def points(self) -> np.ndarray:
        """Where the values are taken."""
        return (self.first + 0.5 + np.arange(len(self.values))) * self.spacing


def to_bfloat16(values: np.ndarray) -> np.ndarray:
    """The nearest bfloat16 numbers, on the host."""
    return np.asarray(values, np.float32).astype(jnp.bfloat16).astype(np.float64)


def mean_slope(case: Case, n: int, target: float, products: str) -> Slope:
    """θ ↦ (1/n) Σ ∂ℓ/∂θ, without λθ, for a target of this label (0: deleted)."""
    near = to_bfloat16 if products == COARSE else np.float64
    positive, negative, _ = case.counts(n)

    def one(models, feature, label):
        feature = near(feature)
        return near(-label * special.expit(-label * feature * near(models))) * feature

    def summed(models):
        total = positive * one(models, case.feature, 1) + negative * one(models, case.feature, -1)
        return np.asarray(total + (one(models, 1.0, target) if target else 0)) / n

    return summed


def law(plan: Plan, phases: list[tuple[Slope, int]], fineness: float = 0.25) -> list[Line]:
    """The densities after each phase (slope, number of steps), from the plan's start.

    A step sends p to ∫ p(θ) N(·; θ - η(slope(θ) + λθ), 2ησ²) dθ, as in `dd_jax.oracles.grid`, which
    takes no staircases. The spacing is a power of two, so that every edge of the staircase that is
    wider than it lies halfway between two points, and the midpoint rule is of second order.

    Args:
        plan: η, σ², λ and the start's variance.
        phases: `(slope, steps)` for each database, in order.
        fineness: the largest spacing, in deviations of one step's noise.
    """
    step_size, l2 = plan.step_size, plan.problem.l2
    deviation = np.sqrt(2 * step_size * plan.noise_variance)
    spacing = 2.0 ** np.floor(np.log2(fineness * deviation))
    line = _carried(np.zeros(1), np.ones(1), np.sqrt(plan.init_variance), spacing)
    found = []
    for slope, steps in phases:
        for _ in range(steps):
            kept = np.flatnonzero(line.values > NEGLIGIBLE * line.values.max())
            inside = slice(kept[0], kept[-1] + 1)
            models, masses = line.points[inside], line.values[inside] * spacing
            targets = models - step_size * (slope(models) + l2 * models)
            line = _carried(targets, masses, deviation, spacing)
        found.append(line)
    return found


def _carried(targets, masses, deviation, spacing) -> Line:
    """Σ mass · N(·; target, deviation²)."""
    first = int(np.floor((targets.min() - REACH * deviation) / spacing))
    last = int(np.ceil((targets.max() + REACH * deviation) / spacing))
    line = Line(first, np.zeros(last - first), spacing)
    away = (line.points[None, :] - targets[:, None]) / deviation
    kernel = np.exp(-0.5 * away**2) / (deviation * np.sqrt(2 * np.pi))
    return line._replace(values=masses @ kernel)


def on_one_grid(lines: list[Line]) -> list[grid.Density]:
    """The same densities on one grid, for the divergences of `dd_jax.oracles.grid`."""
    first = min(line.first for line in lines)
    size = max(line.first + len(line.values) for line in lines) - first
    spacing = lines[0].spacing
    low, high = (first + 0.5) * spacing, (first + size - 0.5) * spacing
    common = grid.make_grid(low, high, size)
    return [
        grid.Density(
            common,
            np.pad(line.values, (line.first - first, first + size - line.first - len(line.values))),
        )
        for line in lines
    ]


class Worlds(NamedTuple):
    """The laws of one release with the target's label at 1 and at -1."""

    present: grid.Density
    absent: grid.Density

    @property
    def advantage(self) -> float:
        """The best test's advantage."""
        return grid.total_variation(*self)

    def guesses(self, models: np.ndarray) -> np.ndarray:
        """Whether the first world's density is larger at a model: the best test."""
        axis = self.present.grid.axes[0]
        nearest = np.rint((models - axis[0]) / self.present.grid.spacing[0]).astype(int)
        inside = (nearest >= 0) & (nearest < len(axis))
        larger = self.present.values > self.absent.values
        return inside & larger[np.clip(nearest, 0, len(axis) - 1)]


def exact_worlds(case: Case, plan: Plan, products: str) -> dict[str, Worlds]:
    """The laws after learning and after the deletion, in both worlds."""
    deleted = mean_slope(case, plan.n, 0, products)
    worlds = [
        law(
            plan,
            [
                (mean_slope(case, plan.n, label, products), plan.learn_steps),
                (deleted, plan.delete_steps),
            ],
        )
        for label in (1, -1)
    ]
    releases = zip(*worlds, strict=True)
    return {
        name: Worlds(*on_one_grid(list(lines)))
        for name, lines in zip((LEARNED, DELETED), releases, strict=True)
    }


# --- the attack -----------------------------------------------------------------------------------


def measure(key: Array, case: Case, products: str, plan: Plan, seeds: int, confidence: float):
    """Rows for both releases: what samples show of the program, beside its exact law."""
    problem = Problem(LOSSES[products](), plan.problem.l2)
    fn = functools.partial(trial, problem=problem, plan=plan)
    pair = two_worlds(fn, key, seeds, database(case, plan.n), alternative(plan.n))
    laws = exact_worlds(case, plan, products)
    certificate = plan.certificate()
    certified = {LEARNED: certificate.eps_dp, DELETED: certificate.eps_dd}
    present, absent = (
        np.stack([laws[name].guesses(arm[:, i]) for i, name in enumerate(laws)], axis=1)
        for arm in (np.asarray(pair.present, float), np.asarray(pair.absent, float))
    )
    estimates = advantages(present, absent, confidence)
    return estimates, [
        row(
            {"database": case.name, "products": products, "release": name},
            estimate,
            worlds.advantage,
            certified=float(
                inference.advantage_gdp(renyi.gdp_from_linear_renyi(plan.order, certified[name]))
            ),
            renyi_exact=grid.renyi(plan.order, *worlds),
            renyi_certified=certified[name],
        )
        for estimate, (name, worlds) in zip(estimates, laws.items(), strict=True)
    ]


def attack(key: Array, settings: CoarseSettings) -> AttackResult:
    """Advantages after learning and after the deletion, in both precisions and two databases."""
    plan = plan_convex(Problem(logistic(), settings.l2), n=settings.n, dim=1, **settings.budgets)
    if plan.learn_steps + plan.delete_steps > MOST_STEPS:
        raise InputError(
            f"this plan takes {plan.learn_steps} + {plan.delete_steps} steps; give a larger l2."
        )
    kinds = [(case, products) for case in CASES for products in (COARSE, FULL)]
    each = simultaneous(settings.confidence, len(kinds))
    keys = jax.random.split(key, len(kinds))
    found = [
        measure(part, case, products, plan, settings.seeds, each)
        for part, (case, products) in zip(keys, kinds, strict=True)
    ]
    rows = [each for _, made in found for each in made]
    headline = rows[1]
    return AttackResult(
        measure="advantage",
        estimate=found[0][0][1],
        bound=headline["certified"],
        bound_means="what ε_dd allows: 2Φ(μ/2) - 1",
        exact=headline["exact"],
        findings=_findings(rows),
        rows=tuple(rows),
        theory={
            "learn_steps": plan.learn_steps,
            "delete_steps": plan.delete_steps,
            "noise_deviation": float(np.sqrt(2 * plan.step_size * plan.noise_variance)),
            "spacing_of_bfloat16_above_1": 2.0**-7,
        },
    )


def _findings(rows: list[dict]) -> tuple[Finding, ...]:
    kept = Claim(
        "with products in full precision privacy and deletion stay within the certificate",
        "dd_jax.products",
        "ours",
    )
    return (
        _finding(ATTACK.claim, [each for each in rows if each["products"] == COARSE]),
        _finding(kept, [each for each in rows if each["products"] == FULL]),
        exact_law("the computed densities are those of the program", "coarse_products.law", rows),
    )


def _finding(claim: Claim, rows: list[dict]) -> Finding:
    """Refuted if samples show more than was certified for a release."""
    worst = max(rows, key=lambda each: each["low"] / each["certified"])
    return Finding(
        claim,
        worst["low"] > worst["certified"],
        f"{worst['release']} ({worst['database']}) the advantage is at least {worst['low']:.4f} "
        f"where {worst['certified']:.4f} is allowed",
    )


ATTACK = Attack(
    "coarse-products",
    "products in bfloat16, a TPU's default, keep a deleted record beyond its certificate",
    Claim(
        "float32 products computed in bfloat16, JAX's default on a TPU, keep the certificate",
        "jax.default_matmul_precision left at its default",
        "control",
    ),
    attack,
    Picture(
        "intervals",
        ("database", "products", "release"),
        {"exact": "exact", "certified": "certified, at most"},
    ),
    CoarseSettings,
)
