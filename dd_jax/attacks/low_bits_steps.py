"""The low bits after two and three steps, in one dimension: a little is left, unless on a grid.

With K steps between two releases there are 2^(23K) ways from one to the other. The likelihood of
a release is the share of the first K - 1 draws, times the exact count of last draws, that end in
it: all 2²³ first draws can be tried for K = 2, and a sample of them does for more runs or steps.
The loss is linear, so that the exact law of real numbers is a Gaussian to compare with.
"""

import functools
from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from dd_jax.attacks import float_lattice
from dd_jax.attacks.float_lattice import Arithmetic, Step
from dd_jax.ensemble import over_seeds
from dd_jax.erm import Problem, gradient
from dd_jax.guarantees import inference
from dd_jax.losses import linear
from dd_jax.noisy_gd import Schedule, mechanism
from dd_jax.plans import Plan, plan_convex
from dd_jax.types import Edit, Mechanism, apply_edit

TARGET_ROW, OTHER_ROW = 0, 1
SIDES = (-1.0, 1.0)
OWN_RUNS = 32
# Half of what contracts in one step: the steps before the last still count.
CONTRACTION = 0.5
PATHS = 4096
# Of `two_step_excess`.
STRIDE, RUNS = 16, 8


def make_plan(like: Plan, steps: int) -> Plan:
    """The linear loss under the budgets of another plan, with so many steps per request."""
    l2 = like.problem.l2
    assert like.eps_dd_asked is not None
    plan = plan_convex(
        Problem(linear(), l2),
        n=like.n,
        dim=1,
        order=like.order,
        eps_dp=like.eps_dp_asked,
        eps_dd=like.eps_dd_asked,
        step_size=(1 - CONTRACTION) / l2,
    )
    return replace(plan, delete_steps=steps)


class Seen(NamedTuple):
    """The kept model before a request, the release after it, and ∇ℒ(0) in the two worlds."""

    before: Array
    after: Array
    slopes: Array


def trial(key: Array, rows: Array, worlds: tuple, *, curator: Mechanism, problem: Problem) -> Seen:
    """The target, ±1, stays; every other row is null, and one of them is deleted."""
    learn_key, delete_key, publish_key = jax.random.split(key, 3)
    edit = Edit(jnp.array([OTHER_ROW], jnp.int32), jnp.zeros((1, 1), jnp.float32))
    edited = apply_edit(rows, edit)
    before = curator.learn(learn_key, rows)
    after = curator.publish(publish_key, curator.delete(delete_key, rows, edit, edited, before))
    slopes = [gradient(problem, jnp.zeros_like(before), world) for world in worlds]
    return Seen(before, after, jnp.stack(slopes))


def play(key: Array, plan: Plan, side: int, seeds: int, *, rounded: bool) -> Seen:
    """Runs in one of the two worlds, published on the grid or as it is."""
    problem = Problem(linear(), plan.problem.l2)
    steps = (plan.learn_steps, plan.delete_steps)
    bare = Schedule(plan.step_size, plan.noise_variance, plan.init_variance, *steps)
    curator = mechanism(problem, plan if rounded else bare)
    empty = jnp.zeros((plan.n, 1), jnp.float32)
    worlds = tuple(empty.at[TARGET_ROW].set(value) for value in SIDES)
    fn = functools.partial(trial, curator=curator, problem=problem)
    found = over_seeds(fn, key, seeds, worlds[side], worlds, chunk=OWN_RUNS)
    return jax.tree.map(np.asarray, found)


def observe(key: Array, plan: Plan, seeds: int, *, rounded: bool) -> tuple[np.ndarray, np.ndarray]:
    """Log likelihood ratios of +1 against -1, per run, in the two worlds."""
    own_key, path_key, *keys = jax.random.split(key, 4)
    step, l2 = Step.of(plan), np.float32(plan.problem.l2)
    how, _ = own_runs(own_key, plan)
    shape = (2, plan.delete_steps - 1, PATHS)
    coins = np.asarray(jax.random.randint(path_key, shape, 0, float_lattice.COUNT))

    def ratios(coins: np.ndarray, seen: Seen) -> np.ndarray:
        draws = float_lattice.quantiles()[coins]
        return np.array([log_ratio(how, draws, *run, step, l2) for run in zip(*seen, strict=True)])

    minus, plus = (
        ratios(coins[side], play(keys[side], plan, side, seeds, rounded=rounded)) for side in (0, 1)
    )
    return minus, plus


def own_runs(key: Array, plan: Plan) -> tuple[Arithmetic, Seen]:
    """How the program rounds, learned from one-step runs of the observer's own."""
    step, l2 = Step.of(plan), np.float32(plan.problem.l2)
    own = play(key, replace(plan, delete_steps=1), 0, OWN_RUNS, rounded=False)
    slopes = own.slopes[:, 0] + l2 * own.before
    return float_lattice.calibrate(own.before, slopes, own.after, step), own


def one_step_advantages(key: Array, like: Plan) -> dict[str, float]:
    """What one step in one dimension shows to the best test, over all 2²³ draws: exact."""
    plan = make_plan(like, 1)
    step, l2 = Step.of(plan), np.float32(plan.problem.l2)
    how, own = own_runs(key, plan)
    before = own.before[0, 0]
    slopes = own.slopes[0, :, 0] + l2 * before
    best = functools.partial(float_lattice.best_advantage, how, before, slopes, step)
    shift = float(step.step_size) * abs(float(slopes[1]) - float(slopes[0])) / float(step.scale)
    return {
        "exact_one_step_as_it_is": best(rounded=False),
        "exact_one_step_on_a_grid": best(rounded=True),
        "exact_one_step_real_numbers": float(inference.advantage_gdp(shift)),
    }


def two_step_excess(key: Array, like: Plan) -> dict[str, float]:
    """How far the log likelihood ratio of two steps is from that of real numbers, root mean square.

    Every `STRIDE`-th of the 2²³ first draws is tried.
    """
    plan = make_plan(like, 2)
    step, l2 = Step.of(plan), np.float32(plan.problem.l2)
    own_key, play_key = jax.random.split(key)
    how, _ = own_runs(own_key, plan)
    draws = float_lattice.quantiles()[None, ::STRIDE]
    excess = {"as_it_is": [], "on_a_grid": []}
    for before, after, slopes in zip(*play(play_key, plan, 0, RUNS, rounded=False), strict=True):
        rounded = np.float32(np.rint(after / step.grid) * step.grid)
        for name, release in zip(excess, (after, rounded), strict=True):
            found = log_ratio(how, draws, before, release, slopes, step, l2)
            excess[name].append(found - real_log_ratio(plan, before, release, slopes))
    return {
        f"two_steps_log_ratio_off_{name}": float(np.sqrt(np.mean(np.square(values))))
        for name, values in excess.items()
    }


def log_ratio(how: Arithmetic, draws, before, after, slopes, step: Step, l2) -> float:
    """Log likelihood of the second world minus the first's, from paths of first draws.

    Args:
        draws: (K - 1, paths) first quantiles; all of them for K = 2 makes it exact.
        before: the kept model, shape (1,). after: the release, shape (1,).
        slopes: ∇ℒ(0) in the two worlds, shape (2, 1).
    """
    minus, plus = (_hits(how, draws, before, after, slope, step, l2) for slope in slopes)
    return float(np.log(np.maximum(plus, 0.01)) - np.log(np.maximum(minus, 0.01)))


def _hits(how: Arithmetic, draws, before, after, slope, step: Step, l2) -> float:
    """How many (first draws, last draw) end in `after`."""
    params = np.broadcast_to(before, draws.shape[-1:])
    for quantile in draws:
        params = float_lattice.move(how, params, slope + l2 * params, quantile, step)
    ends = np.broadcast_to(after, params.shape)
    if float_lattice.on_grid(after, step):
        counts = float_lattice.cell_counts(params, slope + l2 * params, ends, step.grid, step)
    else:
        counts = float_lattice.exact_counts(how, params, slope + l2 * params, ends, step)
    return float(np.sum(counts))


def real_log_ratio(plan: Plan, before, after, slopes) -> float:
    """The same ratio if numbers were real: two Gaussians."""
    contraction = 1 - plan.step_size * plan.problem.l2
    powers = contraction ** np.arange(plan.delete_steps)
    variance = 2 * plan.step_size * plan.noise_variance * np.sum(powers**2)
    means = [
        float(before[0]) * contraction**plan.delete_steps
        - plan.step_size * float(slope[0]) * np.sum(powers)
        for slope in slopes
    ]
    first, second = (float(after[0]) - mean for mean in means)
    return float((first**2 - second**2) / (2 * variance))
