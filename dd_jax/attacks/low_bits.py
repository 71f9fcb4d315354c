"""The low bits of float32 releases tell everything where one step of noise is all there is.

Certificates are about real numbers. In float32 the noise of a step takes 2²³ values, so a release
that follows another one by a single step (K_U = 1) has few values that one database can reach, and
they are not those that its neighbour can. An observer who knows everything but the target's label
counts, for each label, the draws that lead from one release to the next
(`dd_jax.attacks.float_lattice`), and reads the label. Published on a grid of 1/32 of the noise,
every number stands for thousands of draws, and only what the certificate allows is left.

The same counting finds a deleted record in a database that keeps adding and subtracting it: the sum
is right but for its rounding, and the rounding is the record's.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from dd_jax import checks
from dd_jax.attacks import float_lattice, low_bits_steps
from dd_jax.attacks.catalogue import Attack
from dd_jax.attacks.float_lattice import Arithmetic, Step
from dd_jax.attacks.result import AttackResult, row
from dd_jax.claims import Claim, Finding
from dd_jax.ensemble import over_seeds
from dd_jax.erm import Problem, gradient
from dd_jax.errors import InputError
from dd_jax.guarantees import inference, renyi
from dd_jax.interaction import Requester, interact
from dd_jax.intervals import Estimate, advantages, simultaneous
from dd_jax.losses import logistic
from dd_jax.noisy_gd import Schedule, mechanism
from dd_jax.plans import Plan, plan_convex
from dd_jax.types import Edit, Labelled, Mechanism, apply_edit

DIMENSION = 50
TARGET_ROW, OTHER_ROW = 0, 1
LABELS = (-1.0, 1.0)
OWN_RUNS = 32
FEWEST_RECORDS, MOST_RECORDS = 10, 10_000
MOST_RELEASES = 64
AS_IT_IS, ON_A_GRID = "as it is", "on a grid"


class Scene(NamedTuple):
    """What everybody knows: the problem, the two databases that may be, and the plan."""

    problem: Problem
    worlds: tuple[Labelled, Labelled]
    plan: Plan

    @property
    def step(self) -> Step:
        """η and √(2ησ²) as the program has them."""
        return Step.of(self.plan)

    def curator(self, published: str) -> Mechanism:
        """Noisy-GD that publishes its model as it is (a bare schedule), or as planned."""
        return mechanism(self.problem, self.plan if published == ON_A_GRID else self.schedule)

    @property
    def schedule(self) -> Schedule:
        """The plan's numbers without the plan."""
        return schedule_of(self.plan)


def schedule_of(plan: Plan) -> Schedule:
    """A plan's numbers, run without a certificate: the model is published as it is."""
    steps = (plan.learn_steps, plan.delete_steps)
    return Schedule(plan.step_size, plan.noise_variance, plan.init_variance, *steps)


def make_scene(key: Array, plan: Plan, problem: Problem) -> Scene:
    """Random unit features and labels; the worlds differ in the target's label alone."""
    feature_key, label_key = jax.random.split(key)
    features = jax.random.normal(feature_key, (plan.n, plan.dim))
    norms = jnp.sqrt(jnp.sum(features**2, axis=1, keepdims=True))
    label = jax.random.rademacher(label_key, (plan.n,), jnp.float32)
    # A little inside the unit ball, so that rounding leaves nobody outside.
    features = 0.999 * features / norms
    minus, plus = (Labelled(features, label.at[TARGET_ROW].set(side)) for side in LABELS)
    return Scene(problem, (minus, plus), plan)


def null_edit(database: Labelled, index: int) -> Edit:
    """The edit that deletes one row."""
    null = jax.tree.map(lambda leaf: jnp.zeros((1, *leaf.shape[1:]), leaf.dtype), database)
    return Edit(jnp.array([index], jnp.int32), null)


class Transition(NamedTuple):
    """One step as the observer sees it.

    Attributes:
        before: the model before the step, every bit of it.
        after: the release after it.
        slopes: ∇ℒ at `before` under each of the two hypotheses.
    """

    before: Float[Array, "*batch d"]
    after: Float[Array, "*batch d"]
    slopes: Float[Array, "*batch 2 d"]


def staying_trial(
    key: Array, database: Labelled, worlds: tuple, *, curator: Mechanism, problem: Problem
) -> Transition:
    """Somebody else is deleted, the target stays; the observer even knows the kept model before."""
    learn_key, delete_key, publish_key = jax.random.split(key, 3)
    edit = null_edit(database, OTHER_ROW)
    edited = apply_edit(database, edit)
    before = curator.learn(learn_key, database)
    after = curator.publish(publish_key, curator.delete(delete_key, database, edit, edited, before))
    slopes = [gradient(problem, before, apply_edit(world, edit)) for world in worlds]
    return Transition(before, after, jnp.stack(slopes))


def deleted_trial(
    key: Array,
    database: Labelled,
    worlds: tuple,
    *,
    curator: Mechanism,
    problem: Problem,
    releases: int,
) -> Transition:
    """The target is deleted over an overlay; the observer sees releases from then on.

    Every later request deletes the target's row again, which changes nothing. The observer replays
    them on each candidate's database, to hold it at every request in the very form that the curator
    had (`spy`).
    """

    def act(key, memory, observation):
        del key, observation
        return memory, null_edit(database, TARGET_ROW)

    again = Requester(init=lambda key: (), act=act)

    def serve(key, served, rows):
        return interact(key, served, again, rows, num_requests=releases + 1, overlay=True)

    play_key, *own_keys = jax.random.split(key, 3)
    seen = serve(play_key, curator, database)[1].releases[1:]
    watch = spy(problem, seen)
    slopes = [
        serve(own, watch, world)[0].params.slopes[1:]
        for own, world in zip(own_keys, worlds, strict=True)
    ]
    return Transition(seen[:-1], seen[1:], jnp.stack(slopes, axis=1))


class Watched(NamedTuple):
    """Requests served so far, and the gradient at each of them."""

    count: Array
    slopes: Array


def spy(problem: Problem, releases: Array) -> Mechanism:
    """A curator that runs no step: request k + 1 writes down ∇ℒ at the k-th of these releases."""

    def learn(key, database):
        del key, database
        return Watched(jnp.zeros((), jnp.int32), jnp.zeros_like(releases))

    def delete(key, before, edit, after, state):
        del key
        params = releases[jnp.maximum(state.count - 1, 0)]
        slope = gradient(problem, params, after)
        return Watched(state.count + 1, state.slopes.at[state.count].set(slope))

    return Mechanism(learn, delete, domain=problem.loss.domain)


def kept_slope(problem: Problem, params: Array, database: Labelled) -> Array:
    """∇ℒ without the target, of a database that still holds it: its own gradient is taken away.

    Right in real numbers; in float32 the two roundings of the target's gradient stay.
    """
    row_of = jax.tree.map(lambda leaf: leaf[TARGET_ROW][None], database)
    null = null_edit(database, TARGET_ROW).record
    n = database.label.shape[0]
    whole = n * (gradient(problem, params, database) - problem.l2 * params)
    new, old = (gradient(problem, params, rows) - problem.l2 * params for rows in (null, row_of))
    return (whole + new - old) / n + problem.l2 * params


def kept_trial(
    key: Array,
    database: Labelled,
    worlds: tuple,
    *,
    curator: Mechanism,
    problem: Problem,
    schedule: Schedule,
    releases: int,
) -> Transition:
    """The control: the target is deleted, but the database goes on adding and subtracting it."""
    learn_key, noise_key = jax.random.split(key)
    eta = jnp.float32(schedule.step_size)
    scale = jnp.sqrt(2 * eta * jnp.float32(schedule.noise_variance))

    def step(params, request):
        noise = jax.random.normal(jax.random.fold_in(noise_key, request), params.shape)
        moved = params + (scale * noise - eta * kept_slope(problem, params, database))
        return moved, moved

    start = curator.learn(learn_key, database)
    _, seen = jax.lax.scan(step, start, jnp.arange(releases + 1))

    def slopes(params):
        return jnp.stack([kept_slope(problem, params, world) for world in worlds])

    return Transition(seen[:-1], seen[1:], jax.lax.map(slopes, seen[:-1]))


def scores(how: Arithmetic, seen: Transition, step: Step) -> np.ndarray:
    """Log likelihood of the second hypothesis minus that of the first, per transition."""
    minus, plus = (
        float_lattice.log_likelihood(how, seen.before, seen.slopes[..., side, :], seen.after, step)
        for side in (0, 1)
    )
    return plus - minus


def guesses(key: Array, score: np.ndarray) -> np.ndarray:
    """The likelier hypothesis; a fair coin where both are equally likely."""
    coin = np.asarray(jax.random.bernoulli(key, 0.5, score.shape))
    return np.where(score == 0, coin, score > 0)


def observe(key: Array, trial, scene: Scene, seeds: int) -> tuple[np.ndarray, np.ndarray]:
    """Scores per run and transition, with the first label and with the second.

    The observer learns how the program rounds from runs of her own, whose label she knows.
    """
    own_key, *keys = jax.random.split(key, 3)

    def play(key, world, count):
        found = over_seeds(trial, key, count, scene.worlds[world], scene.worlds, chunk=OWN_RUNS)
        return jax.tree.map(np.asarray, found)

    own = play(own_key, 0, OWN_RUNS)
    how = float_lattice.calibrate(own.before, own.slopes[..., 0, :], own.after, scene.step)
    minus, plus = (scores(how, play(keys[side], side, seeds), scene.step) for side in (0, 1))
    return minus, plus


class Case(NamedTuple):
    """One line of the result; `certified` is the advantage that the certificate allows."""

    target: str
    published: str
    steps: int
    transitions: int
    certified: float
    ours: bool
    dim: int = DIMENSION


def judged(key: Array, score: tuple[np.ndarray, np.ndarray], confidence: float) -> Estimate:
    """The advantage of guessing the label from these scores, one per run."""
    first, second = jax.random.split(key)
    return advantages(guesses(second, score[1]), guesses(first, score[0]), confidence)[0]


def certified_staying(plan: Plan) -> float:
    """The advantage that the certificate allows against a record that stays, from two releases."""
    joint = plan.certificate(request=1).eps_dp_joint
    return float(inference.advantage_gdp(renyi.gdp_from_linear_renyi(plan.order, joint)))


def make_plan(n, l2, eps_dp, eps_dd, order) -> tuple[Problem, Plan]:
    """The planner's own settings; refused unless one step serves a request."""
    problem = Problem(logistic(), l2)
    plan = plan_convex(problem, n=n, dim=DIMENSION, order=order, eps_dp=eps_dp, eps_dd=eps_dd)
    if plan.delete_steps != 1:
        raise InputError(
            f"l2 = {l2}, eps_dp = {eps_dp} and eps_dd = {eps_dd} make a plan of "
            f"{plan.delete_steps} steps per request; give a larger l2 or eps_dd, for one step."
        )
    return problem, plan


def measure(
    key: Array, scene: Scene, seeds: int, releases: int, confidence: float
) -> list[tuple[Case, Estimate]]:
    """Every case: who stays, who is deleted, one step and several, as it is and on a grid."""
    each = simultaneous(confidence, 9)
    keys = iter(jax.random.split(key, 18))
    common = {"problem": scene.problem}
    staying, deleted = certified_staying(scene.plan), scene.plan.certificate().advantage_bound
    found = []
    for published in (AS_IT_IS, ON_A_GRID):
        trial = functools.partial(staying_trial, curator=scene.curator(published), **common)
        score = observe(next(keys), trial, scene, seeds)
        case = Case("stays", published, 1, 1, staying, published == ON_A_GRID)
        found.append((case, judged(next(keys), score, each)))
    plain = {"curator": scene.curator(AS_IT_IS), "releases": releases, **common}
    kept = functools.partial(kept_trial, schedule=scene.schedule, **plain)
    score = observe(next(keys), kept, scene, seeds)
    for transitions in (1, releases):
        summed = tuple(part[:, :transitions].sum(axis=1) for part in score)
        case = Case("deleted, added and subtracted", AS_IT_IS, 1, transitions, deleted, False)
        found.append((case, judged(next(keys), summed, each)))
    gone = functools.partial(deleted_trial, **plain)
    minus, plus = observe(next(keys), gone, scene, seeds)
    case = Case("deleted, overlay", AS_IT_IS, 1, releases, deleted, True)
    found.append((case, judged(next(keys), (minus.sum(axis=1), plus.sum(axis=1)), each)))
    for steps in (2, 3):
        for published in (AS_IT_IS, ON_A_GRID):
            plan = low_bits_steps.make_plan(scene.plan, steps)
            score = low_bits_steps.observe(next(keys), plan, seeds, rounded=published == ON_A_GRID)
            allowed = certified_staying(plan)
            case = Case("stays", published, steps, 1, allowed, published == ON_A_GRID, plan.dim)
            found.append((case, judged(next(keys), score, each)))
    return found


def run(
    key: Array,
    attack: Attack,
    *,
    seeds: int,
    n: int,
    l2: float,
    eps_dp: float,
    eps_dd: float,
    order: float,
    releases: int,
    confidence: float,
) -> AttackResult:
    """Advantage of reading a label from the low bits, in every case, beside the certificate."""
    _check(n, releases)
    problem, plan = make_plan(n, l2, eps_dp, eps_dd, order)
    scene_key, play_key, steps_key, excess_key = jax.random.split(key, 4)
    scene = make_scene(scene_key, plan, problem)
    found = measure(play_key, scene, seeds, releases, confidence)
    case, estimate = found[0]
    return AttackResult(
        attack=attack.name,
        measure="advantage",
        estimate=estimate._replace(confidence=confidence),
        bound=case.certified,
        bound_means="what the certificate of real numbers allows from two releases",
        findings=_findings(attack, found),
        rows=tuple(_row(case, estimate) for case, estimate in found),
        theory={
            "noise_deviation": float(scene.step.scale),
            "grid": scene.step.grid,
            **low_bits_steps.one_step_advantages(steps_key, plan),
            **low_bits_steps.two_step_excess(excess_key, plan),
        },
    )


def _row(case: Case, estimate: Estimate) -> dict:
    labels = {
        "target": case.target,
        "published": case.published,
        "d": case.dim,
        "steps": case.steps,
        "transitions": case.transitions,
    }
    return row(labels, estimate, None, certified=case.certified)


def _findings(attack: Attack, found: list[tuple[Case, Estimate]]) -> tuple[Finding, ...]:
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
    held = [pair for pair in found if pair[0].ours]
    controls = [pair for pair in found if pair[0].target.endswith("subtracted")]
    return (
        _finding(attack.claim, found[:1]),
        _finding(kept, controls),
        _finding(ours, held),
    )


def _finding(claim: Claim, pairs: list[tuple[Case, Estimate]]) -> Finding:
    case, worst = max(pairs, key=lambda pair: pair[1].low - pair[0].certified)
    return Finding(
        claim,
        worst.low > case.certified,
        f"advantage at least {worst.low:.4f} where {case.certified:.4f} is certified "
        f"({case.target}, {case.published}, d {case.dim}, steps {case.steps}, transitions "
        f"{case.transitions})",
    )


def _check(n: int, releases: int) -> None:
    checks.whole("n", n, least=FEWEST_RECORDS, most=MOST_RECORDS)
    checks.whole("releases", releases, least=2, most=MOST_RELEASES)
