"""All adversaries against Noisy-GD: none may beat its certificate, and with less noise one must.

The attacks vary the condition number κ, the budgets ε_dp and ε_dd, the number p of releases that
the requester sees and the number r of rows per request, for one number m of batches. There are six
of them: the requesters of the median attack, of the theorem that privacy is necessary
(`thm:dp_necessary`), of recoding and of re-encoding, a likelihood-ratio test and a shadow-model
test. Each advantage is compared with the certified one, 2Φ(μ/2) - 1.

One family of problems has a closed form: the linear loss in one dimension, where the sign of a
release is the likelihood-ratio test. The other has none: logistic regression in the plane, where
the adversary learns a test from shadow runs of her own.
"""

import functools
import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from dd_jax import checks, losses
from dd_jax.attacks.base import Attack, AttackResult, Picture, RenyiSettings, exact_law, number, row
from dd_jax.attacks.game import first_release, play
from dd_jax.attacks.separation import FEWEST_SAMPLES, midpoint_event
from dd_jax.audit.samples import Outcome, Stage, two_worlds
from dd_jax.claims import Claim, Finding
from dd_jax.ensemble import Pair
from dd_jax.erm import Problem
from dd_jax.guarantees import inference, renyi, schedules
from dd_jax.interaction import Requester
from dd_jax.intervals import Estimate, advantage, simultaneous
from dd_jax.losses.base import Loss
from dd_jax.noisy_gd import Schedule, mechanism
from dd_jax.oracles import linear
from dd_jax.plans import Plan, plan_convex
from dd_jax.types import Edit, Labelled, num_records, replacement

TARGET_ROW = 0
COPY, NECESSITY, RECODING, GROUP, BLIND = range(5)
LINEAR_ATTACKS = {
    "median-like": COPY,
    "necessity": NECESSITY,
    "recoding": RECODING,
    "re-encoding": GROUP,
    "likelihood ratio": BLIND,
}
SHADOW = "shadow model"
NUM_ATTACKS = len(LINEAR_ATTACKS) + 1
CONDITIONS = (2.0, 4.0, 10.0)
BUDGETS = (0.5, 1.0, 2.0, 4.0)
ALL_ROWS = 0
# (p, r, K_U); r = ALL_ROWS means every other row. ε_dd follows.
REQUESTERS = ((0, 1, 2), (1, ALL_ROWS, 3), (2, 2, 4), (3, ALL_ROWS, 2))
LEARN_STEPS = 30
CONTROL_SEEDS = 4
MOST_RECORDS = 1_000
MOST_BATCHES = 20
# What is measured is far above the rounding of float32 models.
ROUNDING = 1e-4
ROUNDING_OF_BUDGETS = 1e-9


@dataclass(frozen=True, kw_only=True)
class NoisyGDSettings(RenyiSettings):
    """n records in m batches that take turns; half of the seeds fit the shadow test."""

    seeds: int = number(2_000, checks.whole, least=FEWEST_SAMPLES)
    n: int = number(20, checks.whole, least=5, most=MOST_RECORDS)
    batches: int = number(1, checks.whole, least=1, most=MOST_BATCHES)

    def __post_init__(self):
        super().__post_init__()
        schedules.check_batches(self.n, self.batches)


# The games: what is learned, what the requesters do, what the adversary sees.


class Family(NamedTuple):
    """A loss and a target that is x or its opposite.

    Attributes:
        loss: the loss of one record.
        l2: κ -> λ. With the step size 1/(κλ) every step contracts by 1 - 1/κ.
        direction: the target's features.
        encode: `weights (r,) -> records`: the target scaled by the weights, 0 for the null record.
        database: `n -> 𝒟_0` with the target in row 0.
    """

    loss: Loss
    l2: Callable[[float], float]
    direction: np.ndarray
    encode: Callable[[Array], PyTree]
    database: Callable[[int], PyTree]

    def opposite(self) -> Edit:
        """The edit that turns the target into its opposite."""
        return replacement([TARGET_ROW], self.encode(-jnp.ones(1, jnp.float32)))


def _linear() -> Family:
    """-⟨θ, x⟩ with λ = 1: the other rows are zero, so the two worlds are mirror images."""

    def encode(weights):
        return weights[:, None]

    def database(n):
        return jnp.zeros((n, 1), jnp.float32).at[TARGET_ROW].set(1)

    return Family(losses.linear(), lambda condition: 1.0, np.ones(1), encode, database)


def _logistic() -> Family:
    """Logistic regression in the plane, λ = β/(κ-1): the other rows lie around a circle."""
    direction = np.array([1.0, 0.0])
    loss = losses.logistic()
    smoothness = loss.constants.smoothness
    assert smoothness is not None

    def encode(weights):
        features = jnp.broadcast_to(jnp.asarray(direction, jnp.float32), (*weights.shape, 2))
        return Labelled(features, weights)

    def database(n):
        angles = 2.4 * np.arange(n)
        features = np.stack([np.cos(angles), np.sin(angles)], axis=1)
        labels = np.where(np.arange(n) % 3 == 0, 1.0, -1.0)
        return Labelled(jnp.asarray(features, jnp.float32), jnp.asarray(labels, jnp.float32))

    return Family(loss, lambda condition: smoothness / (condition - 1), direction, encode, database)


FAMILIES = {"linear": _linear(), "logistic": _logistic()}


class Memory(NamedTuple):
    """⟨φ, x⟩ of the first release, its sum over the releases seen, and a random first row."""

    first: Array
    total: Array
    begin: Array


def requester(family: Family, n: int, edits: int, deletion: int, strategy: Array) -> Requester:
    """Every request rewrites r of the other rows; request `deletion` blanks the target's row too.

    COPY writes ⟨φ_0, x⟩ itself, scaled, into rows that begin at a random one, as the median's
    requester does. NECESSITY writes its sign into one row, as the proof of `thm:dp_necessary` does.
    RECODING writes the sign of the sum of all releases seen into all rows. GROUP has two groups of
    rows, x (odd rows) and its opposite (even rows): the group of the target, judged by φ_0, leaves
    (null records), and the other group is written. BLIND always writes null records. `strategy` is
    traced, so that one compilation serves all.
    """
    direction = jnp.asarray(family.direction, jnp.float32)

    def init(key):
        # Uniform up to an error of n/2^32, and much faster to compile than randint.
        begin = (jax.random.bits(key) % jnp.uint32(n - 1)).astype(jnp.int32)
        return Memory(jnp.float32(0), jnp.float32(0), begin)

    def act(key, memory, observation):
        del key
        seen = observation.release @ direction
        first = jnp.where(observation.request == 1, seen, memory.first)
        memory = Memory(first, memory.total + seen, memory.begin)
        places = (observation.request - 1) * edits + jnp.arange(edits, dtype=jnp.int32)
        rows = 1 + (places + jnp.where(strategy == COPY, memory.begin, 0)) % (n - 1)
        weights = _weights(memory, rows, n, strategy)
        gone = (observation.request >= deletion) & (jnp.arange(edits) == 0)
        rows = jnp.where(gone, jnp.int32(TARGET_ROW), rows)
        return memory, Edit(rows, family.encode(jnp.where(gone, jnp.float32(0), weights)))

    return Requester(init, act)


def _weights(memory: Memory, rows: Array, n: int, strategy: Array) -> Array:
    """What each strategy writes into the rows, as a multiple of the target."""
    everywhere = jnp.ones(rows.shape, jnp.float32)
    exposed = jnp.where(memory.first > 0, jnp.float32(1), jnp.float32(-1))
    member = jnp.where(rows % 2 == 1, jnp.float32(1), jnp.float32(-1))
    choices = jnp.stack(
        [
            jnp.clip(n * memory.first, -1, 1) * everywhere,
            jnp.sign(memory.first) * (rows == 1).astype(jnp.float32),
            jnp.sign(memory.total) * everywhere,
            jnp.where(member == exposed, jnp.float32(0), member),
            jnp.zeros_like(everywhere),
        ]
    )
    return choices[strategy]


class Moves(NamedTuple):
    """The static part of a game: steps, the number p of releases shown, rows per request, m."""

    learn_steps: int
    delete_steps: int
    observed: int
    edits: int
    batches: int

    @property
    def deletion(self) -> int:
        """The request that deletes the target: one after the last release seen."""
        return self.observed + 1


@functools.cache
def trial(name: str, moves: Moves) -> Callable[..., Outcome]:
    """One interaction, whose last request deletes the target.

    All numbers and the strategy are traced and the function object is cached, so that a game is
    compiled once for all configurations that share its moves.
    """
    family, request = FAMILIES[name], moves.deletion

    def one(key: Array, records: PyTree, l2: Array, schedule: Schedule, strategy: Array) -> Outcome:
        n = num_records(records)
        steps = {name: getattr(moves, name) for name in ("learn_steps", "delete_steps", "batches")}
        curator = mechanism(Problem(family.loss, l2), schedule._replace(**steps))
        curious = requester(family, n, moves.edits, request, strategy)
        shown = tuple(range(moves.observed))
        stage = Stage(curator, curious, records, TARGET_ROW, request, request, shown)
        return play(key, stage, first_release)

    return one


# What is attacked, and by whom.


class Configuration(NamedTuple):
    """What is certified and attacked: κ, ε_dp, ε_dd, p, r, m."""

    condition: float
    eps_dp: float
    eps_dd: float
    observed: int
    edits: int
    batches: int = 1

    def __str__(self) -> str:
        cycle = f", m = {self.batches}" if self.batches > 1 else ""
        return (
            f"κ = {self.condition:g}, ε_dp = {self.eps_dp:g}, ε_dd = {self.eps_dd:g}, "
            f"p = {self.observed}, r = {self.edits}{cycle}"
        )


def configurations(n: int, batches: int = 1) -> list[Configuration]:
    """All 48 configurations; those that differ only in κ and ε_dp share their compiled games."""

    def left(condition, steps):
        """What K_U steps leave of ε_dp: (1 - 1/κ)^(2 K_U) with full batches."""
        after, before = (
            schedules.cyclic(1 / condition, 1.0, batches, np.inf, float(since))
            for since in (steps, 0)
        )
        return float(after / before)

    return [
        Configuration(k, eps_dp, eps_dp * left(k, steps), observed, edits or n - 1, batches)
        for (observed, edits, steps), k, eps_dp in itertools.product(
            REQUESTERS, CONDITIONS, BUDGETS
        )
    ]


class Case(NamedTuple):
    """A configuration with a family: its plan, and the moves of the game."""

    name: str
    setting: Configuration
    plan: Plan
    moves: Moves


def make_case(name: str, setting: Configuration, n: int, order: float) -> Case:
    """The optimal plan for the budgets, with K_L = 30: the certificate holds for every K_L.

    With batches K_L is such that the last step before the deletion is on the target's batch, the
    first one: no place in the cycle leaves more.
    """
    family = FAMILIES[name]
    l2 = family.l2(setting.condition)
    plan = plan_convex(
        Problem(family.loss, l2),
        n=n,
        dim=len(family.direction),
        order=order,
        eps_dp=setting.eps_dp,
        eps_dd=setting.eps_dd * (1 + ROUNDING_OF_BUDGETS),
        edits_per_request=setting.edits,
        step_size=1 / (setting.condition * l2),
        batches=setting.batches,
    )
    before = LEARN_STEPS + setting.observed * plan.delete_steps
    plan = replace(plan, learn_steps=LEARN_STEPS + (1 - before) % setting.batches)
    steps = (plan.learn_steps, plan.delete_steps)
    moves = Moves(*steps, setting.observed, setting.edits, setting.batches)
    return Case(name, setting, plan, moves)


def certified(case: Case, order: float) -> tuple[float, float]:
    """The certified advantage, by ε_dd + pε_dp, and the tightest one for just these requests."""
    shown = tuple(range(case.moves.observed))
    found = case.plan.certificate(len(shown), case.moves.deletion, observed=shown)
    mu = renyi.gdp_from_linear_renyi(order, found.eps_dd_request)
    return found.advantage_bound, float(inference.advantage_gdp(mu))


def releases(key: Array, case: Case, strategy: int, seeds: int, noise: float = 1.0) -> Pair:
    """Releases after the deletion in both worlds, (seeds, d); `noise` scales σ²."""
    plan, family = case.plan, FAMILIES[case.name]
    schedule = Schedule.of(plan)._replace(
        step_size=jnp.float32(plan.step_size),
        noise_variance=jnp.float32(noise * plan.noise_variance),
        init_variance=jnp.float32(noise * plan.init_variance),
    )
    numbers = (jnp.float32(plan.problem.l2), schedule, jnp.int32(strategy))
    worlds = (family.database(plan.n), family.opposite())
    return two_worlds(trial(case.name, case.moves), key, seeds, *worlds, *numbers)


def sign_attack(pair: Pair, strategy: int, confidence: float) -> Estimate:
    """Linear family: guess the target by the side of the release, or by the other side (GROUP).

    For a requester that sees nothing this is the likelihood-ratio test: the laws are mirrored
    Gaussians.
    """
    side = -1 if strategy == GROUP else 1
    ones, zeros = (int(np.sum(side * models[:, 0] > 0)) for models in pair)
    return advantage(ones, zeros, len(pair.present), confidence)


def shadow_attack(pair: Pair, confidence: float) -> Estimate:
    """A half-space fitted on one half of the runs (the adversary's own) and tested on the other."""
    half = len(pair.present) // 2
    event = midpoint_event(pair.present[:half], pair.absent[:half])
    ones, zeros = (int(event.happened(models[half:]).sum()) for models in pair)
    return advantage(ones, zeros, len(pair.present) - half, confidence)


def exact_likelihood_ratio(case: Case) -> float:
    """2Φ(Δ/(2√Var)) - 1: the advantage of the likelihood-ratio test, linear family."""
    plan, moves = case.plan, case.moves
    present = moves.learn_steps + (moves.deletion - 1) * moves.delete_steps
    used = linear.gaps_of_row(1.0, plan.n, plan.batches, TARGET_ROW, range(present))
    gaps = np.append(used, np.zeros(moves.delete_steps))
    numbers = (plan.problem.l2, gaps, plan.noise_variance, plan.step_size)
    divergence = linear.renyi_of_steps(2.0, *numbers, init_variance=plan.init_variance)
    return float(inference.advantage_gdp(renyi.gdp_from_linear_renyi(2.0, divergence)))


class Scores(NamedTuple):
    """One configuration: the advantage of every attack, and the bounds on it."""

    setting: Configuration
    estimates: dict[str, Estimate]
    certified: float
    tightest: float
    likelihood_ratio: float

    @property
    def best(self) -> str:
        """The attack with the largest lower limit."""
        return max(self.estimates, key=lambda name: self.estimates[name].low)

    def excess(self, bound: float) -> float:
        """How far the best lower limit is above a bound."""
        return self.estimates[self.best].low - bound

    def __str__(self) -> str:
        return (
            f"{self.best} at {self.setting}, advantage at least "
            f"{self.estimates[self.best].low:.4f}, certified {self.certified:.4f}"
        )


def score(
    key: Array, setting: Configuration, n: int, order: float, seeds: int, confidence, noise=1.0
) -> Scores:
    """Play every attack in one configuration; each interval has the given confidence."""
    shadow_key, *keys = jax.random.split(key, NUM_ATTACKS)
    exact_case, shadow_case = (make_case(name, setting, n, order) for name in FAMILIES)
    estimates = {
        name: sign_attack(
            releases(attack_key, exact_case, strategy, seeds, noise), strategy, confidence
        )
        for attack_key, (name, strategy) in zip(keys, LINEAR_ATTACKS.items(), strict=True)
    }
    pair = releases(shadow_key, shadow_case, RECODING, seeds, noise)
    estimates[SHADOW] = shadow_attack(pair, confidence)
    # Both families have the same budgets, κ and steps, and so the same certificate.
    return Scores(
        setting, estimates, *certified(exact_case, order), exact_likelihood_ratio(exact_case)
    )


def attack(
    key: Array, settings: NoisyGDSettings, progress: Callable[[int, int], None]
) -> AttackResult:
    """Every attack in every configuration, and a control with half of the noise."""
    n, seeds = settings.n, settings.seeds
    every = configurations(n, settings.batches)
    control = [one for one in every if one.observed == 1 and one.edits == n - 1]
    each = simultaneous(settings.confidence, NUM_ATTACKS * (len(every) + len(control)))
    play_all = functools.partial(score, n=n, order=settings.order, confidence=each)
    real_key, control_key = jax.random.split(key)
    total = len(every) + CONTROL_SEEDS * len(control)
    scores, weak = [], []
    for i, one in enumerate(every):
        scores.append(play_all(jax.random.fold_in(real_key, i), one, seeds=seeds))
        progress(i + 1, total)
    for i, one in enumerate(control):
        more = CONTROL_SEEDS * seeds
        weak.append(play_all(jax.random.fold_in(control_key, i), one, seeds=more, noise=0.5))
        progress(len(every) + CONTROL_SEEDS * (i + 1), total)
    closest = max(scores, key=lambda found: found.excess(found.certified))
    return AttackResult(
        measure="advantage",
        estimate=closest.estimates[closest.best],
        bound=closest.certified,
        bound_means=f"certified at {closest.setting}, the closest of {len(scores)}",
        theory={
            "configurations": len(scores),
            "attacks": NUM_ATTACKS,
            "closest_lower_limit_minus_certified": closest.excess(closest.certified),
            "at_half_the_noise": max(found.excess(found.certified) for found in weak),
        },
        findings=_findings(scores, weak),
        rows=tuple(map(_row, scores)),
    )


def _row(found: Scores) -> dict:
    setting, estimate = found.setting, found.estimates[found.best]
    return {
        "κ": setting.condition,
        "ε_dp": setting.eps_dp,
        "ε_dd": setting.eps_dd,
        "p": setting.observed,
        "r": setting.edits,
        "m": setting.batches,
        "best attack": found.best,
        "success": estimate.value,
        "low": estimate.low,
        "high": estimate.high,
        "tightest": found.tightest,
        "certified": found.certified,
    }


def _findings(scores: list[Scores], weak: list[Scores]) -> tuple[Finding, ...]:
    half = Claim(
        "the same certificate holds with half of its noise",
        "false by design: do the attacks have power?",
        "control",
    )
    beyond = [s for s in scores if s.excess(min(s.certified, s.tightest)) > 0]
    worst, strongest = (max(part, key=lambda s: s.excess(s.certified)) for part in (scores, weak))
    return (
        Finding(
            ATTACK.claim,
            bool(beyond),
            f"beaten in {len(beyond)} of {len(scores)} configurations by {NUM_ATTACKS} attacks; "
            f"closest: {worst}",
        ),
        Finding(half, strongest.excess(strongest.certified) > 0, str(strongest)),
        exact_law(
            "the likelihood-ratio test has the advantage of the exact law",
            "dd_jax.oracles.linear.renyi",
            [row({}, s.estimates["likelihood ratio"], s.likelihood_ratio) for s in scores],
            ROUNDING,
        ),
    )


ATTACK = Attack(
    "noisy-gd",
    "all adversaries against Noisy-GD: none beats its certificate, at any p tried",
    Claim(
        "no adversary's advantage against a deleted record exceeds the certified 2Φ(μ/2) - 1",
        "dd_jax.plans.Plan.certificate, accountant optimal",
        "ours",
    ),
    attack,
    Picture("against", ("certified",)),
    NoisyGDSettings,
    reports=True,
)
