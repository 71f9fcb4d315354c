"""A release seen before a record is inserted is not free for a certificate about the Gibbs law.

A non-convex plan certifies that a release is within ε_dd of the Gibbs law of the remaining data.
The proof follows the model from its start through edits that are fixed in advance. A requester that
saw φ_0 and writes one bit of it into a row shows, with this edit, where the model started. Each
request takes few steps, so the model is still near that place after several requests. The record in
question is inserted later and then deleted. Nobody saw a release while it was in the database, but
the release after the deletion is far from the Gibbs law.

A statement about neighbouring runs does hold: they are the same until the record is inserted. All
laws are exact, by densities on a grid (`dd_jax.oracles.grid`), and samples confirm them.
"""

import functools
import math
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from dd_jax import checks
from dd_jax.attacks.base import Attack, AttackResult, Picture, PlanSettings, exact_law, number, row
from dd_jax.audit.bounds import coin_divergence
from dd_jax.claims import Claim, Finding
from dd_jax.databases import counted
from dd_jax.ensemble import over_seeds
from dd_jax.erm import Problem
from dd_jax.interaction import Requester, interact
from dd_jax.intervals import Estimate, proportion, simultaneous
from dd_jax.losses import tanh_margin
from dd_jax.noisy_gd import mechanism
from dd_jax.oracles import grid
from dd_jax.plans import Certificate, Plan, plan_nonconvex
from dd_jax.plans.settings import internal_order
from dd_jax.types import Edit, Labelled

NOISE_VARIANCE = 2.0
# The bit is φ_0 < CUT: rare enough to carry information, common enough to occur in samples.
CUT = -1.54
BIT, INSERTED, DELETED = 1, 2, 3  # what each request does
FEWEST_RECORDS, MOST_RECORDS = 1_000, 1_000_000
FEWEST_SEEDS = 1_000
SEEN, BLIND = "a bit of φ_0", "a coin"


@dataclass(frozen=True, kw_only=True)
class EarlySettings(PlanSettings):
    """n records; only the seeds whose bit is set are counted."""

    seeds: int = number(20_000, checks.whole, least=FEWEST_SEEDS)
    n: int = number(20_000, checks.whole, least=FEWEST_RECORDS, most=MOST_RECORDS)
    eps_dd: float = 0.3


def make_plan(problem: Problem, settings: EarlySettings) -> Plan:
    """The planner's own numbers for a bounded non-convex loss, at a given noise."""
    return plan_nonconvex(
        problem, n=settings.n, dim=1, noise_variance=NOISE_VARIANCE, **settings.budgets
    )


def database(n: int):
    """Records (1, +1), and two null rows: one for the bit, one for the record in question."""
    record = Labelled(jnp.array([[1.0], [0.0], [0.0]]), jnp.array([1.0, 0.0, 0.0]))
    return counted(record, np.array([n - 2, 1, 1]))


def requester(n: int, looks: Array) -> Requester:
    """Request 1 writes the bit, request 2 inserts the record (1, +1), request 3 deletes it.

    The bit is the label of another row: +1 if φ_0 < CUT, else -1. A requester that does not look
    writes a fair coin.
    """

    def act(key, memory, observation):
        bit = jnp.where(looks, observation.release[0] < CUT, jax.random.bernoulli(key, 0.5))
        writes, inserts = (observation.request == request for request in (BIT, INSERTED))
        label = jnp.where(writes & ~bit, -1.0, 1.0)
        filled = (writes | inserts).astype(jnp.float32)
        place = jnp.where(writes, n - 2, n - 1).astype(jnp.int32)
        return memory, Edit(place[None], Labelled(filled[None, None], (filled * label)[None]))

    return Requester(init=lambda key: (), act=act)


def trial(key: Array, rows, looks: Array, *, problem: Problem, plan: Plan) -> tuple[Array, Array]:
    """The bit that was written, and the release after the deletion."""
    ask = requester(plan.n, looks)
    curator = mechanism(problem, plan)
    _, happened = interact(key, curator, ask, rows, num_requests=DELETED, observe=(0,))
    return happened.edits.record.label[0, 0] > 0, happened.releases[DELETED, 0]


class Exact(NamedTuple):
    """Divergences and probabilities of the release after the deletion, given that the bit is set.

    Attributes:
        renyi: R_q to the Gibbs law of the data that is left.
        renyi_joint: R_q of (bit, release), where the comparator draws the bit by its own law.
        renyi_neighbours: R_q between the worlds in which the record was (1, +1) and (1, -1).
        inside: P[release < CUT].
        inside_gibbs: the same probability under the Gibbs law.
    """

    renyi: float
    renyi_joint: float
    renyi_neighbours: float
    inside: float
    inside_gibbs: float


def exact(plan: Plan, *, looks: bool) -> Exact:
    """The exact values, by densities on a grid.

    The grid is placed so that CUT lies midway between two of its points: then a point is either
    below CUT or above it, and the sum over the points below has no half cell to account for.
    """
    l2, n, order = plan.problem.l2, plan.n, internal_order(plan)
    numbers = (plan.step_size, plan.noise_variance)
    spacing = 0.4 * float(np.sqrt(2 * plan.step_size * plan.noise_variance))
    reach = 2 - CUT + 7 * float(np.sqrt(plan.init_variance))
    half = int(reach / spacing)
    line = grid.make_grid(CUT - (half + 0.5) * spacing, CUT + (half + 0.5) * spacing, 2 * half + 2)
    below = line.models < CUT

    def phase(labels, steps):
        """Steps on records (1, ±1) whose labels sum to this, and null rows."""
        slope = labels / n
        return grid.Phase(lambda theta: l2 * theta - slope * (1 - np.tanh(theta) ** 2), steps)

    start = grid.gaussian_density(line, 0.0, plan.init_variance)
    learned = grid.law_after([phase(n - 2, plan.learn_steps)], *numbers, start, line)

    def given(bit, target):
        """The law of the release, the Gibbs law, and the probability of this bit."""
        kept = np.where(below == (bit > 0), learned.values, 0.0) if looks else learned.values
        law = grid.Density(line, kept / (kept.sum() * line.cell))
        labels = n - 2 + bit
        phases = [phase(labels + extra, plan.delete_steps) for extra in (0, target, 0)]
        law = grid.law_after(phases, *numbers, law, line)
        gibbs = grid.gibbs_density(
            line,
            lambda theta: l2 * theta**2 / 2 - labels / n * np.tanh(theta),
            plan.noise_variance,
        )
        return law, gibbs, kept.sum() * line.cell if looks else 0.5

    law, gibbs, _ = given(1, 1)
    other, _, _ = given(1, -1)
    parts = [given(bit, 1) for bit in (1, -1)]
    joint = sum(
        share * np.exp((order - 1) * grid.renyi(order, here, there)) for here, there, share in parts
    )
    inside, inside_gibbs = (
        float(each.normalised[below].sum() * line.cell) for each in (law, gibbs)
    )
    return Exact(
        grid.renyi(order, law, gibbs),
        float(np.log(joint) / (order - 1)),
        grid.renyi(order, law, other),
        inside,
        inside_gibbs,
    )


class Measured(NamedTuple):
    """One requester: P[release < CUT | bit] minus the Gibbs law's, and what it shows of R_q."""

    writes: str
    estimate: Estimate
    renyi_low: float
    exact: Exact


def measure(key: Array, plan: Plan, problem: Problem, writes: str, seeds: int, confidence: float):
    """Runs in which the bit was set, beside the exact laws."""
    fn = functools.partial(trial, problem=problem, plan=plan)
    looks = jnp.asarray(writes == SEEN)
    bits, models = map(np.asarray, over_seeds(fn, key, seeds, database(plan.n), looks))
    law = exact(plan, looks=writes == SEEN)
    found = proportion(int(np.sum(models[bits] < CUT)), int(bits.sum()), confidence)
    low = float(coin_divergence(found.low, law.inside_gibbs, order=internal_order(plan)))
    over = found._replace(
        value=found.value - law.inside_gibbs,
        low=found.low - law.inside_gibbs,
        high=found.high - law.inside_gibbs,
    )
    return Measured(writes, over, low, law)


def certify(plan: Plan) -> Certificate:
    """Our certificate for this history: inserted by request 2, deleted by request 3, φ_0 seen."""
    return plan.certificate(request=DELETED, first_inserted=INSERTED, observed=(0,))


def attack(key: Array, settings: EarlySettings) -> AttackResult:
    """How far the release is from the Gibbs law, given an edit that knew an early release."""
    problem = Problem(tanh_margin(), settings.l2)
    plan = make_plan(problem, settings)
    certificate = certify(plan)
    claimed = plan.certificate(request=DELETED, first_inserted=INSERTED, observed=()).eps_dd_request
    each = simultaneous(settings.confidence, 2)
    seen, blind = (
        measure(part, plan, problem, writes, settings.seeds, each)
        for part, writes in zip(jax.random.split(key), (SEEN, BLIND), strict=True)
    )
    rows = tuple(_row(found, claimed) for found in (seen, blind))
    law = seen.exact
    return AttackResult(
        measure="advantage",
        estimate=seen.estimate,
        bound=math.sqrt(claimed / 2),
        bound_means="Pinsker's √(ε_dd/2) on telling the release from the Gibbs law",
        exact=law.inside - law.inside_gibbs,
        findings=_findings(seen, blind, rows, claimed, certificate),
        rows=rows,
        theory={
            "renyi_given_the_edit": law.renyi,
            "renyi_with_the_edit": law.renyi_joint,
            "renyi_neighbours": law.renyi_neighbours,
            "claimed": claimed,
            "certified_neighbours": certificate.eps_dd_adaptive,
            "delete_steps": plan.delete_steps,
        },
    )


def _row(found: Measured, claimed: float) -> dict:
    law = found.exact
    return row(
        {"request 1 writes": found.writes},
        found.estimate,
        law.inside - law.inside_gibbs,
        renyi_low=found.renyi_low,
        renyi=law.renyi,
        renyi_joint=law.renyi_joint,
        claimed=claimed,
    )


def _findings(seen: Measured, blind: Measured, rows, claimed: float, certificate: Certificate):
    fixed = Claim(
        "where no request depends on a release, the release is within ε_dd of the Gibbs law",
        "dd_jax.plans.Plan.certificate, non-convex",
        "ours",
    )
    ours = Claim(
        "once a release was seen, whenever that was, the certificate is the run sum, and holds",
        "dd_jax.plans.Plan.certificate, non-convex",
        "ours",
    )
    # Only the run sum is Gaussian DP; a number relative to the Gibbs law has no μ.
    still_gibbs = certificate.mu_dd_adaptive is None
    bound = certificate.eps_dd_adaptive
    actual = seen.exact.renyi if still_gibbs else seen.exact.renyi_neighbours
    return (
        Finding(
            ATTACK.claim,
            seen.renyi_low > claimed,
            f"R_q is at least {seen.renyi_low:.4g}, exactly {seen.exact.renyi:.4g} given the edit "
            f"and {seen.exact.renyi_joint:.4g} together with it, claimed {claimed:.4g}",
        ),
        Finding(
            fixed,
            max(blind.renyi_low, blind.exact.renyi) > claimed,
            f"R_q is exactly {blind.exact.renyi:.4g}, certified {claimed:.4g}",
        ),
        Finding(ours, actual > bound, f"R_q is exactly {actual:.4g}, certified {bound:.4g}"),
        exact_law(
            "the release has the law computed on a grid",
            "dd_jax.oracles.grid.law_after",
            rows,
            rounding=1e-3,
        ),
    )


ATTACK = Attack(
    "early-release",
    "a bit of a release, seen before the record was inserted, stays in a non-convex model",
    Claim(
        "a release seen before the record was inserted costs a non-convex certificate nothing",
        "ε_dd of thm:deletion_accuracy_nonconvex with p counted from the insertion",
        "control",
    ),
    attack,
    Picture(
        "intervals",
        ("request 1 writes",),
        {"exact": "exact"},
        bound="what the claimed ε_dd allows",
    ),
    EarlySettings,
)
