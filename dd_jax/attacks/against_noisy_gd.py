"""All adversaries turned on Noisy-GD: none may beat its certificate, and with less noise one must.

Over conditions κ, budgets ε_dp and ε_dd, releases seen p and rows per request r: the median's
requester, the one of `thm:dp_necessary`, the recoding one, a group that leaves as in re-encoding, a
likelihood-ratio and a shadow-model membership attack on the deleted record, each held to the
certified advantage 2Φ(μ/2) - 1.
"""

import functools
import itertools
from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from dd_jax import checks
from dd_jax.attacks import against_games as games
from dd_jax.attacks.against_games import FAMILIES, Moves
from dd_jax.attacks.catalogue import Attack
from dd_jax.attacks.result import AttackResult, exact_law_finding
from dd_jax.attacks.separation import FEWEST_SAMPLES, midpoint_event
from dd_jax.audit.samples import two_worlds
from dd_jax.claims import Claim, Finding
from dd_jax.ensemble import Pair
from dd_jax.erm import Problem
from dd_jax.guarantees import inference, renyi
from dd_jax.intervals import Estimate, advantage, simultaneous
from dd_jax.noisy_gd import Schedule
from dd_jax.oracles import linear
from dd_jax.plans import Plan, plan_convex

LINEAR_ATTACKS = {
    "median-like": games.COPY,
    "necessity": games.NECESSITY,
    "recoding": games.RECODING,
    "re-encoding": games.GROUP,
    "likelihood ratio": games.BLIND,
}
SHADOW = "shadow model"
NUM_ATTACKS = len(LINEAR_ATTACKS) + 1
CONDITIONS = (2.0, 4.0, 10.0)
BUDGETS = (0.5, 1.0, 2.0, 4.0)
ALL_ROWS = 0
# (p, r, K_U); r = ALL_ROWS means every other row. ε_dd = ε_dp (1 - 1/κ)^(2 K_U) follows.
REQUESTERS = ((0, 1, 2), (1, ALL_ROWS, 3), (2, 2, 4), (3, ALL_ROWS, 2))
LEARN_STEPS = 30
CONTROL_SEEDS = 4
MOST_RECORDS = 1_000
# What is measured is far above the rounding of float32 models.
ROUNDING = 1e-4
ROUNDING_OF_BUDGETS = 1e-9


class Configuration(NamedTuple):
    """What is certified and attacked: κ, ε_dp, ε_dd, p, r."""

    condition: float
    eps_dp: float
    eps_dd: float
    observed: int
    edits: int


def configurations(n: int) -> list[Configuration]:
    """48 of them; those that differ in κ and ε_dp alone share their compiled games."""
    return [
        Configuration(k, eps_dp, eps_dp * (1 - 1 / k) ** (2 * steps), observed, edits or n - 1)
        for (observed, edits, steps), k, eps_dp in itertools.product(
            REQUESTERS, CONDITIONS, BUDGETS
        )
    ]


@functools.cache
def _trial(name: str, moves: Moves):
    """One function object per game, so that it is compiled once for all numbers and strategies."""
    return functools.partial(games.trial, name=name, moves=moves)


class Case(NamedTuple):
    """A configuration with a family: its plan, and the moves of the game."""

    name: str
    setting: Configuration
    plan: Plan
    moves: Moves


def make_case(name: str, setting: Configuration, n: int, order: float) -> Case:
    """The optimal plan for the budgets, with K_L = 30: the certificate holds for every K_L."""
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
    )
    plan = replace(plan, learn_steps=LEARN_STEPS)
    moves = Moves(plan.learn_steps, plan.delete_steps, setting.observed, setting.edits)
    return Case(name, setting, plan, moves)


def certified(case: Case, order: float) -> tuple[float, float]:
    """The certified advantage (ε_dd + pε_dp), and the tightest one for exactly these requests."""
    shown = tuple(range(case.moves.observed))
    found = case.plan.certificate(len(shown), case.moves.deletion, observed=shown)
    mu = renyi.gdp_from_linear_renyi(order, found.eps_dd_request)
    return found.advantage_bound, float(inference.advantage_gdp(mu))


def releases(key: Array, case: Case, strategy: int, seeds: int, noise: float = 1.0) -> Pair:
    """Releases after the deletion in both worlds, (seeds, d); `noise` scales σ²."""
    plan, family = case.plan, FAMILIES[case.name]
    schedule = Schedule(
        jnp.float32(plan.step_size),
        jnp.float32(noise * plan.noise_variance),
        jnp.float32(noise * plan.init_variance),
        plan.learn_steps,
        plan.delete_steps,
    )
    return two_worlds(
        _trial(case.name, case.moves),
        key,
        seeds,
        family.database(plan.n),
        family.opposite(),
        jnp.float32(plan.problem.l2),
        schedule,
        jnp.int32(strategy),
    )


def sign_attack(pair: Pair, strategy: int, confidence: float) -> Estimate:
    """Linear family: guess the target that the release points to, or leans away from (GROUP).

    For a requester that sees nothing this is the likelihood-ratio test: the laws are mirrored
    Gaussians.
    """
    side = -1 if strategy == games.GROUP else 1
    ones, zeros = (int(np.sum(side * models[:, 0] > 0)) for models in pair)
    return advantage(ones, zeros, len(pair.present), confidence)


def shadow_attack(pair: Pair, confidence: float) -> Estimate:
    """A half-space learned from one half of the runs, the adversary's own, tested on the other."""
    half = len(pair.present) // 2
    event = midpoint_event(pair.present[:half], pair.absent[:half])
    ones, zeros = (int(event.happened(models[half:]).sum()) for models in pair)
    return advantage(ones, zeros, len(pair.present) - half, confidence)


def exact_likelihood_ratio(case: Case) -> float:
    """2Φ(Δ/(2√Var)) - 1: the advantage of the likelihood-ratio test, linear family."""
    plan, moves = case.plan, case.moves
    present = moves.learn_steps + (moves.deletion - 1) * moves.delete_steps
    numbers = (plan.noise_variance, plan.n, plan.step_size, present, moves.delete_steps)
    divergence = linear.renyi(2.0, 1.0, plan.problem.l2, *numbers, plan.init_variance)
    return float(inference.advantage_gdp(renyi.gdp_from_linear_renyi(2.0, divergence)))


class Scores(NamedTuple):
    """One configuration: the advantage of every attack, and what is allowed."""

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
    pair = releases(shadow_key, shadow_case, games.RECODING, seeds, noise)
    estimates[SHADOW] = shadow_attack(pair, confidence)
    # Both families have the same budgets, κ and steps, and so the same certificate.
    return Scores(
        setting, estimates, *certified(exact_case, order), exact_likelihood_ratio(exact_case)
    )


def run(
    key: Array, attack: Attack, *, seeds: int, n: int, order: float, confidence: float
) -> AttackResult:
    """Every attack in every configuration, and again with half the noise where it should show."""
    _check(n, seeds)
    settings = configurations(n)
    control = [s for s in settings if s.observed == 1 and s.edits == n - 1]
    each = simultaneous(confidence, NUM_ATTACKS * (len(settings) + len(control)))
    play_all = functools.partial(score, n=n, order=order, confidence=each)
    real_key, control_key = jax.random.split(key)
    scores = [
        play_all(jax.random.fold_in(real_key, i), setting, seeds=seeds)
        for i, setting in enumerate(settings)
    ]
    weak = [
        play_all(jax.random.fold_in(control_key, i), s, seeds=CONTROL_SEEDS * seeds, noise=0.5)
        for i, s in enumerate(control)
    ]
    closest = max(scores, key=lambda found: found.excess(found.certified))
    return AttackResult(
        attack=attack.name,
        measure="advantage",
        estimate=closest.estimates[closest.best]._replace(confidence=confidence),
        bound=closest.certified,
        bound_means=f"certified at {_words(closest.setting)}, the closest of {len(scores)}",
        theory={
            "configurations": len(scores),
            "attacks": NUM_ATTACKS,
            "closest_lower_limit_minus_certified": closest.excess(closest.certified),
            "at_half_the_noise": max(found.excess(found.certified) for found in weak),
        },
        findings=_findings(attack, scores, weak),
        rows=tuple(map(_row, scores)),
    )


def _words(setting: Configuration) -> str:
    return (
        f"κ = {setting.condition:g}, ε_dp = {setting.eps_dp:g}, ε_dd = {setting.eps_dd:g}, "
        f"p = {setting.observed}, r = {setting.edits}"
    )


def _row(found: Scores) -> dict:
    setting, estimate = found.setting, found.estimates[found.best]
    return {
        "κ": setting.condition,
        "ε_dp": setting.eps_dp,
        "ε_dd": setting.eps_dd,
        "p": setting.observed,
        "r": setting.edits,
        "best attack": found.best,
        "success": estimate.value,
        "low": estimate.low,
        "high": estimate.high,
        "tightest": found.tightest,
        "certified": found.certified,
    }


def _findings(attack: Attack, scores: list[Scores], weak: list[Scores]) -> tuple[Finding, ...]:
    half = Claim(
        "the same certificate holds with half of its noise",
        "false by design: do the attacks have power?",
        "control",
    )
    beyond = [s for s in scores if s.excess(min(s.certified, s.tightest)) > 0]
    strongest = max(weak, key=lambda found: found.excess(found.certified))
    worst = max(scores, key=lambda found: found.excess(found.certified))
    return (
        Finding(
            attack.claim,
            bool(beyond),
            f"beaten in {len(beyond)} of {len(scores)} configurations by {NUM_ATTACKS} attacks; "
            f"closest: {worst.best} at {_words(worst.setting)}, advantage at least "
            f"{worst.estimates[worst.best].low:.4f}, certified {worst.certified:.4f}",
        ),
        Finding(
            half,
            strongest.excess(strongest.certified) > 0,
            f"{strongest.best} at {_words(strongest.setting)}: advantage at least "
            f"{strongest.estimates[strongest.best].low:.4f}, certified {strongest.certified:.4f}",
        ),
        exact_law_finding(
            "the likelihood-ratio test has the advantage of the exact law",
            "dd_jax.oracles.linear.renyi",
            [(s.estimates["likelihood ratio"], s.likelihood_ratio) for s in scores],
            ROUNDING,
        ),
    )


def _check(n: int, seeds: int) -> None:
    checks.whole("n", n, least=5, most=MOST_RECORDS)
    # Half of them fit the shadow test.
    checks.whole("seeds", seeds, least=FEWEST_SAMPLES)
