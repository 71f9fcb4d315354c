"""The low bits of float32 releases reveal a label where a request takes a single noisy step.

Certificates are about real numbers. In float32 the noise of a step takes 2²³ values, so a release
that follows another one by a single step (K_U = 1) has few possible values under one database, and
others under its neighbour. An observer who knows everything except the target's label counts, for
each label, the draws that lead from one release to the next (`Step`), and so finds the label. On a
publication grid of 1/32 of the noise, every number stands for thousands of draws, and the advantage
is within the certificate.

The same counting finds a deleted record in a database that keeps adding and subtracting it: the sum
is right except for its rounding, and the rounding depends on the record. With two or three steps
between releases, shown in one dimension, a small effect remains, but not on the grid.
"""

import functools
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from dd_jax import checks
from dd_jax.attacks.base import Attack, AttackResult, Picture, PlanSettings, number, row
from dd_jax.audit.float_steps import DRAWS, Step, quantiles
from dd_jax.claims import Claim, Finding
from dd_jax.ensemble import over_seeds
from dd_jax.erm import Problem, gradient
from dd_jax.errors import InputError
from dd_jax.guarantees import inference, renyi
from dd_jax.interaction import Requester, interact
from dd_jax.intervals import Estimate, advantages, simultaneous
from dd_jax.losses import deletion, linear, logistic
from dd_jax.losses.base import null_records
from dd_jax.noisy_gd import Schedule, mechanism
from dd_jax.plans import Plan, plan_convex
from dd_jax.types import Labelled, Mechanism, apply_edit

DIMENSION = 50
TARGET_ROW, OTHER_ROW = 0, 1
LABELS = (-1.0, 1.0)
OWN_RUNS = 32
AS_IT_IS, ON_A_GRID = "as it is", "on a grid"
STAYS, OVERLAY, SUBTRACTED = "stays", "deleted, overlay", "deleted, added and subtracted"
# In one dimension a step keeps half of the model, so that the steps before the last still matter.
CONTRACTION = 0.5
# How many of the 2^(23(K-1)) first draws are tried; stride and runs of `two_step_excess`.
PATHS = 4096
STRIDE, RUNS = 16, 8


@dataclass(frozen=True, kw_only=True)
class LowBitsSettings(PlanSettings):
    """n records; `releases`: transitions seen after a deletion."""

    seeds: int = 400
    n: int = number(100, checks.whole, least=10, most=10_000)
    eps_dd: float = 0.5
    releases: int = number(10, checks.whole, least=2, most=64)


# What is observed.


class Scene(NamedTuple):
    """What everybody knows: the problem, the two possible databases, and the plan."""

    problem: Problem
    worlds: tuple[PyTree, PyTree]
    plan: Plan

    @property
    def certified(self) -> float:
        """The advantage that is allowed against a record that stays, from two releases."""
        joint = self.plan.certificate(request=1).eps_dp_joint
        return float(inference.advantage_gdp(renyi.gdp_from_linear_renyi(self.plan.order, joint)))

    def curator(self, published: str) -> Mechanism:
        """Noisy-GD that publishes its model as it is (a bare schedule), or as planned."""
        plan = self.plan if published == ON_A_GRID else Schedule.of(self.plan)
        return mechanism(self.problem, plan)


def make_scene(key: Array, settings: LowBitsSettings) -> Scene:
    """Random unit features and labels; the worlds differ in the target's label alone.

    Raises:
        InputError: the planner takes more than one step per request.
    """
    problem = Problem(logistic(), settings.l2)
    plan = plan_convex(problem, n=settings.n, dim=DIMENSION, **settings.budgets)
    if plan.delete_steps != 1:
        raise InputError(
            f"l2 = {settings.l2}, eps_dp = {settings.eps_dp} and eps_dd = {settings.eps_dd} make a "
            f"plan of {plan.delete_steps} steps per request; give a larger l2 or eps_dd, for one."
        )
    feature_key, label_key = jax.random.split(key)
    features = jax.random.normal(feature_key, (plan.n, plan.dim))
    norms = jnp.sqrt(jnp.sum(features**2, axis=1, keepdims=True))
    label = jax.random.rademacher(label_key, (plan.n,), jnp.float32)
    # A little inside the unit ball, so that rounding does not move a record outside of it.
    features = 0.999 * features / norms
    minus, plus = (Labelled(features, label.at[TARGET_ROW].set(side)) for side in LABELS)
    return Scene(problem, (minus, plus), plan)


def line_scene(settings: LowBitsSettings, steps: int) -> Scene:
    """One dimension, the same budgets, K_U = `steps`: the target is ±1, other rows are null.

    The loss is linear, so that the exact law of real numbers is a Gaussian to compare with.
    """
    problem = Problem(linear(), settings.l2)
    step_size = (1 - CONTRACTION) / settings.l2
    plan = plan_convex(problem, n=settings.n, dim=1, step_size=step_size, **settings.budgets)
    empty = jnp.zeros((plan.n, 1), jnp.float32)
    minus, plus = (empty.at[TARGET_ROW].set(side) for side in LABELS)
    return Scene(problem, (minus, plus), replace(plan, delete_steps=steps))


class Seen(NamedTuple):
    """A request as the observer sees it.

    Attributes:
        before: the model before it, every bit of it.
        after: the release after it.
        slopes: ∇ℒ at `before` under each of the two hypotheses.
    """

    before: Float[Array, "*batch d"]
    after: Float[Array, "*batch d"]
    slopes: Float[Array, "*batch 2 d"]


def staying_trial(key: Array, database, worlds, *, scene: Scene, published: str) -> Seen:
    """Another record is deleted, the target stays; the observer knows the kept model before it."""
    curator = scene.curator(published)
    learn_key, delete_key, publish_key = jax.random.split(key, 3)
    edit = deletion(scene.problem.loss, database, [OTHER_ROW])
    before = curator.learn(learn_key, database)
    state = curator.delete(delete_key, database, edit, apply_edit(database, edit), before)
    slopes = [gradient(scene.problem, before, apply_edit(world, edit)) for world in worlds]
    return Seen(before, curator.publish(publish_key, state), jnp.stack(slopes))


def deleted_trial(key: Array, database, worlds, *, scene: Scene, releases: int) -> Seen:
    """The target is deleted over an overlay; the observer sees releases from then on.

    Every later request deletes the target's row again, which changes nothing. The observer replays
    them on each candidate's database, to hold it at every request in the very form that the curator
    had (`spy`).
    """

    def act(key, memory, observation):
        del key, observation
        return memory, deletion(scene.problem.loss, database, [TARGET_ROW])

    again = Requester(init=lambda key: (), act=act)

    def serve(key, served, rows):
        _, happened = interact(key, served, again, rows, num_requests=releases + 1, overlay=True)
        return happened.releases[1:]

    play_key, *own_keys = jax.random.split(key, 3)
    seen = serve(play_key, scene.curator(AS_IT_IS), database)
    watch = spy(scene.problem, seen)
    slopes = [serve(own, watch, world)[1:] for own, world in zip(own_keys, worlds, strict=True)]
    return Seen(seen[:-1], seen[1:], jnp.stack(slopes, axis=1))


def spy(problem: Problem, releases: Array) -> Mechanism:
    """A curator that runs no step: request k + 1 releases ∇ℒ at the k-th of these releases."""

    def learn(key, database):
        del key, database
        return jnp.int32(0), jnp.zeros_like(releases[0])

    def delete(key, before, edit, after, state):
        count, _ = state
        return count + 1, gradient(problem, releases[jnp.maximum(count - 1, 0)], after)

    return Mechanism(learn, delete, lambda key, state: state[1], problem.loss.domain)


def kept_slope(problem: Problem, params: Array, database: Labelled) -> Array:
    """∇ℒ without the target, from a database that still holds it: its gradient is subtracted.

    This is exact in real numbers; in float32 two roundings of the target's gradient remain.
    """
    row_of = jax.tree.map(lambda leaf: leaf[TARGET_ROW][None], database)
    null = null_records(problem.loss, database, 1)
    n = database.label.shape[0]
    whole = n * (gradient(problem, params, database) - problem.l2 * params)
    new, old = (gradient(problem, params, rows) - problem.l2 * params for rows in (null, row_of))
    return (whole + new - old) / n + problem.l2 * params


def kept_trial(key: Array, database, worlds, *, scene: Scene, releases: int) -> Seen:
    """The control: the target is deleted, but the program still adds and subtracts its gradient."""
    learn_key, noise_key = jax.random.split(key)
    problem, plan = scene.problem, scene.plan
    eta = jnp.float32(plan.step_size)
    scale = jnp.sqrt(2 * eta * jnp.float32(plan.noise_variance))

    def step(params, request):
        noise = jax.random.normal(jax.random.fold_in(noise_key, request), params.shape)
        moved = params + (scale * noise - eta * kept_slope(problem, params, database))
        return moved, moved

    start = scene.curator(AS_IT_IS).learn(learn_key, database)
    _, seen = jax.lax.scan(step, start, jnp.arange(releases + 1))

    def slopes(params):
        return jnp.stack([kept_slope(problem, params, world) for world in worlds])

    return Seen(seen[:-1], seen[1:], jax.lax.map(slopes, seen[:-1]))


def watch_runs(key: Array, trial, scene: Scene, world: int, count: int) -> Seen:
    """Runs in one of the two worlds, on the host."""
    found = over_seeds(trial, key, count, scene.worlds[world], scene.worlds, chunk=OWN_RUNS)
    return jax.tree.map(np.asarray, found)


Scores = tuple[np.ndarray, np.ndarray]
"""Log likelihood of label +1 minus that of -1, per run, in the world of -1 and in that of +1."""


def observe(key: Array, trial, scene: Scene, seeds: int) -> Scores:
    """One step between releases: scores per run (and transition, where a run has several).

    The observer learns how the program rounds from runs of her own, whose label she knows.
    """
    own_key, *keys = jax.random.split(key, 3)
    own = watch_runs(own_key, trial, scene, 0, OWN_RUNS)
    step = Step.of(scene.plan).calibrated(own.before, own.slopes[..., 0, :], own.after)

    def scores(seen: Seen) -> np.ndarray:
        return step.log_ratio(seen.before, seen.slopes, seen.after)

    minus, plus = (scores(watch_runs(keys[w], trial, scene, w, seeds)) for w in (0, 1))
    return minus, plus


# More than one step, in one dimension. There are 2^(23K) ways from one release to the next. The
# likelihood is an average over the first K - 1 draws of the exact count of last draws that end in
# the release. For K = 2 all 2²³ first draws can be tried; for more runs or steps, a sample of them.


def line_slope(plan: Plan, params, world: int):
    """∇ℒ(θ) = -x/n + λθ of the linear loss, x = -1 or x = 1, in float32."""
    slope = -np.float32(LABELS[world]) / np.float32(plan.n)
    return slope + np.float32(plan.problem.l2) * params


def line_step(key: Array, scene: Scene) -> tuple[Step, Array]:
    """How the program rounds, learned from one-step runs of the observer's own; a model of them."""
    scene = scene._replace(plan=replace(scene.plan, delete_steps=1))
    trial = functools.partial(staying_trial, scene=scene, published=AS_IT_IS)
    own = watch_runs(key, trial, scene, 0, OWN_RUNS)
    step = Step.of(scene.plan).calibrated(own.before, own.slopes[..., 0, :], own.after)
    return step, own.before[0, 0]


def log_ratio(step: Step, plan: Plan, draws: np.ndarray, before, after) -> float:
    """Log likelihood of the second world minus the first's, from paths of first draws.

    Args:
        step: as calibrated. plan: of the linear loss.
        draws: (K - 1, paths) first quantiles; all of them for K = 2 makes it exact.
        before, after: the kept model before a request and the release after it, shape (1,).
    """

    def log_hits(world):
        params = np.broadcast_to(before, draws.shape[-1:])
        for quantile in draws:
            params = step.move(params, line_slope(plan, params, world), quantile)
        ends = np.broadcast_to(after, params.shape)
        return step.log_counts(params, line_slope(plan, params, world), ends, total=True)

    return float(log_hits(1) - log_hits(0))


def observe_steps(key: Array, scene: Scene, seeds: int, published: str) -> Scores:
    """Scores per run where a request takes several steps."""
    own_key, path_key, *keys = jax.random.split(key, 4)
    trial = functools.partial(staying_trial, scene=scene, published=published)
    step, _ = line_step(own_key, scene)
    shape = (2, scene.plan.delete_steps - 1, PATHS)
    coins = np.asarray(jax.random.randint(path_key, shape, 0, DRAWS))

    def scores(world: int) -> np.ndarray:
        seen = watch_runs(keys[world], trial, scene, world, seeds)
        ratio = functools.partial(log_ratio, step, scene.plan, quantiles()[coins[world]])
        return np.array(list(map(ratio, seen.before, seen.after)))

    return scores(0), scores(1)


def one_step_advantages(key: Array, settings: LowBitsSettings) -> dict[str, float]:
    """The best test's advantage after one step in one dimension, over all 2²³ draws: exact."""
    scene = line_scene(settings, 1)
    step, before = line_step(key, scene)
    slopes = [line_slope(scene.plan, before, world) for world in (0, 1)]
    shift = float(step.step_size) * abs(float(slopes[1]) - float(slopes[0])) / float(step.scale)
    return {
        "exact_one_step_as_it_is": step.best_advantage(before, slopes, rounded=False),
        "exact_one_step_on_a_grid": step.best_advantage(before, slopes, rounded=True),
        "exact_one_step_real_numbers": float(inference.advantage_gdp(shift)),
    }


def two_step_excess(key: Array, settings: LowBitsSettings) -> dict[str, float]:
    """How far the log likelihood ratio of two steps is from that of real numbers, root mean square.

    Every `STRIDE`-th of the 2²³ first draws is tried.
    """
    scene = line_scene(settings, 2)
    own_key, play_key = jax.random.split(key)
    step, _ = line_step(own_key, scene)
    draws = quantiles()[None, ::STRIDE]
    trial = functools.partial(staying_trial, scene=scene, published=AS_IT_IS)
    seen = watch_runs(play_key, trial, scene, 0, RUNS)
    rounded = np.float32(np.rint(seen.after / step.grid) * step.grid)

    def excess(before, after) -> float:
        found = log_ratio(step, scene.plan, draws, before, after)
        return found - real_log_ratio(scene.plan, float(before[0]), float(after[0]))

    return {
        f"two_steps_log_ratio_off_{name}": float(
            np.sqrt(np.mean(np.square(list(map(excess, seen.before, after)))))
        )
        for name, after in {"as_it_is": seen.after, "on_a_grid": rounded}.items()
    }


def real_log_ratio(plan: Plan, before: float, after: float) -> float:
    """`log_ratio` if numbers were real: two Gaussians."""
    contraction = 1 - plan.step_size * plan.problem.l2
    powers = contraction ** np.arange(plan.delete_steps)
    variance = 2 * plan.step_size * plan.noise_variance * np.sum(powers**2)
    slopes = [float(line_slope(plan, 0, world)) for world in (0, 1)]
    drifts = [plan.step_size * slope * np.sum(powers) for slope in slopes]
    kept = before * contraction**plan.delete_steps
    first, second = (after - (kept - drift) for drift in drifts)
    return float((first**2 - second**2) / (2 * variance))


# The attack.


def guesses(key: Array, score: np.ndarray) -> np.ndarray:
    """The likelier hypothesis; a fair coin where both are equally likely."""
    coin = np.asarray(jax.random.bernoulli(key, 0.5, score.shape))
    return np.where(score == 0, coin, score > 0)


def judged(key: Array, score: Scores, confidence: float) -> Estimate:
    """The advantage of guessing the label from these scores, one per run."""
    first, second = jax.random.split(key)
    return advantages(guesses(second, score[1]), guesses(first, score[0]), confidence)[0]


def measure(key: Array, scene: Scene, settings: LowBitsSettings) -> list[tuple[dict, Estimate]]:
    """Every case: who stays, who is deleted, one step and several, as it is and on a grid.

    A row's `certified` is the advantage that the certificate allows.
    """
    seeds, releases = settings.seeds, settings.releases
    each = simultaneous(settings.confidence, 9)
    keys = iter(jax.random.split(key, 18))
    gone = scene.plan.certificate().advantage_bound
    found = []

    def add(score: Scores, certified: float, **labels) -> None:
        estimate = judged(next(keys), score, each)
        found.append((row(labels, estimate, None, certified=certified), estimate))

    many = {"d": DIMENSION, "steps": 1}
    for published in (AS_IT_IS, ON_A_GRID):
        trial = functools.partial(staying_trial, scene=scene, published=published)
        score = observe(next(keys), trial, scene, seeds)
        add(score, scene.certified, target=STAYS, published=published, **many, transitions=1)
    for target, trial, shown in (
        (SUBTRACTED, kept_trial, (1, releases)),
        (OVERLAY, deleted_trial, (releases,)),
    ):
        trial = functools.partial(trial, scene=scene, releases=releases)
        minus, plus = observe(next(keys), trial, scene, seeds)
        for count in shown:
            score = (minus[:, :count].sum(axis=1), plus[:, :count].sum(axis=1))
            add(score, gone, target=target, published=AS_IT_IS, **many, transitions=count)
    for steps, published in itertools.product((2, 3), (AS_IT_IS, ON_A_GRID)):
        line = line_scene(settings, steps)
        score = observe_steps(next(keys), line, seeds, published)
        labels = {"published": published, "d": 1, "steps": steps, "transitions": 1}
        add(score, line.certified, target=STAYS, **labels)
    return found


def attack(key: Array, settings: LowBitsSettings) -> AttackResult:
    """Advantage of reading a label from the low bits, in every case, beside the certificate."""
    scene_key, play_key, steps_key, excess_key = jax.random.split(key, 4)
    scene = make_scene(scene_key, settings)
    step = Step.of(scene.plan)
    rows, estimates = zip(*measure(play_key, scene, settings), strict=True)
    kept = Claim(
        "a database that adds and subtracts a deleted record has forgotten it",
        "dd_jax.attacks.low_bits.kept_slope, false by design",
        "control",
    )
    ours = Claim(
        "the certificate holds for releases on the publication grid, and for a record deleted "
        "over an overlay",
        "dd_jax.noisy_gd.mechanism, dd_jax.plans.Plan.certificate",
        "ours",
    )
    return AttackResult(
        measure="advantage",
        estimate=estimates[0],
        bound=scene.certified,
        bound_means="what the certificate of real numbers allows from two releases",
        findings=(
            _finding(ATTACK.claim, rows[:1]),
            _finding(kept, [each for each in rows if each["target"] == SUBTRACTED]),
            _finding(
                ours,
                [
                    each
                    for each in rows
                    if each["published"] == ON_A_GRID or each["target"] == OVERLAY
                ],
            ),
        ),
        rows=rows,
        theory={
            "noise_deviation": float(step.scale),
            "grid": step.grid,
            **one_step_advantages(steps_key, settings),
            **two_step_excess(excess_key, settings),
        },
    )


def _finding(claim: Claim, rows: Sequence[Mapping]) -> Finding:
    """Refuted if the lower limit of some row is beyond what is certified."""
    worst = max(rows, key=lambda each: each["low"] - each["certified"])
    return Finding(
        claim,
        worst["low"] > worst["certified"],
        f"advantage at least {worst['low']:.4f} where {worst['certified']:.4f} is certified "
        f"({worst['target']}, {worst['published']}, d {worst['d']}, steps {worst['steps']}, "
        f"transitions {worst['transitions']})",
    )


ATTACK = Attack(
    "low-bits",
    "the last bits of float32 releases reveal a label, after one step of noise",
    Claim(
        "a certificate about real numbers holds for float32 releases published as they are",
        "dd_jax.noisy_gd.Schedule, which has no certificate",
        "control",
    ),
    attack,
    Picture(
        "intervals",
        ("target", "published", "d", "steps", "transitions"),
        {"certified": "certified"},
    ),
    LowBitsSettings,
)
