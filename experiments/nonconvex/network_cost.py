"""What a bounded network's certificate costs, and what is left of learning at that price.

The network is `dd.losses.bounded_network`: tanh units with fixed output weights under -tanh(y f),
bounded, Lipschitz and smooth by itself, which is what non-convex deletion asks for.
"""

import math
import time
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

import dd_jax as dd
from dd_jax import erm
from dd_jax.errors import CertificateRefused
from dd_jax.plans import Plan
from experiments.cache import Runner

FEATURES, ROW = 2, 0
FORMS = ("paper", "sharp")
COSTS = ("learn steps", "delete steps", "step size", "risk bound")
_TIMED_STEPS = 2_000
_STARTS, _DESCENT_STEPS = 8, 2_000


class Budget(NamedTuple):
    """What the certificate has to meet: Rényi divergences of order q."""

    order: float
    eps_dp: float
    eps_dd: float


def make_problem(hidden: int) -> dd.Problem:
    """The network with λ = β."""
    loss = dd.losses.bounded_network(hidden=hidden)
    assert loss.constants.smoothness is not None
    return dd.Problem(loss, loss.constants.smoothness)


def make_database(n: int) -> dd.Labelled:
    """Unit-norm features on a circle, labelled by the side of a line."""
    angles = 2.4 * jnp.arange(n, dtype=jnp.float32)
    features = jnp.stack([jnp.cos(angles), jnp.sin(angles)], axis=1)
    return dd.Labelled(features, jnp.where(features[:, 0] + features[:, 1] > 0, 1.0, -1.0))


def make_plan(problem, n: int, hidden: int, budget: Budget, form: str, noise: float) -> Plan | None:
    """The plan at this noise, None where it breaks the privacy budget."""
    options: Any = {"n": n, "dim": hidden * FEATURES, "form": form, "noise_variance": noise}
    try:
        return dd.plan_nonconvex(problem, **budget._asdict(), **options)
    except CertificateRefused:
        return None


def costs(
    problem: dd.Problem, n: int, hidden: int, budget: Budget, noises: np.ndarray
) -> dict[str, np.ndarray]:
    """`COSTS` over the noises for each form, NaN where there is no plan."""
    table = {}
    for form in FORMS:
        plans = [make_plan(problem, n, hidden, budget, form, float(noise)) for noise in noises]
        rows = [
            (math.nan,) * len(COSTS)
            if p is None
            else (p.learn_steps, p.delete_steps, p.step_size, p.certificate().risk_bound)
            for p in plans
        ]
        table[form] = np.array(rows, np.float64)
    return table


def run(
    runner: Runner, key: Array, problem: dd.Problem, plan: Plan, seeds: int
) -> dict[str, np.ndarray]:
    """Objective, loss without regulariser and accuracy of learned and deleted models, (seeds, 2).

    The deletion blanks row `ROW`; each model is judged on the database that it was trained on.
    """
    database = make_database(plan.n)
    edit = dd.deletion(problem.loss, database, [ROW])
    mechanism = dd.noisy_gd.mechanism(problem, plan)

    def interaction(key, database, edit):
        keys = jax.random.split(key)
        learned = mechanism.learn(keys[0], database)
        deleted = mechanism.delete(keys[1], database, edit, dd.apply_edit(database, edit), learned)
        worlds = ((learned, database), (deleted, dd.apply_edit(database, edit)))
        judged = [_judge(problem, model, rows) for model, rows in worlds]
        return jax.tree.map(lambda *values: jnp.stack(values), *judged)

    found = runner.over_seeds("network", interaction, key, seeds, database, edit)
    return dict(zip(("objective", "loss", "accuracy"), found, strict=True))


def _judge(problem: dd.Problem, model: PyTree, rows: dd.Labelled):
    """(ℒ, mean ℓ, share of records on the right side)."""
    losses = jax.vmap(problem.loss.value, in_axes=(None, 0))(model, rows)
    objective = erm.objective(problem, model, rows)
    return objective, jnp.mean(losses), jnp.mean((losses < 0).astype(jnp.float32))


def best_objective(key: Array, problem: dd.Problem, n: int) -> float:
    """The least ℒ that noiseless descent finds from several starts."""
    database = make_database(n)
    template = problem.loss.template(database)
    step_size = 0.5 / problem.l2

    def descend(key):
        start = dd.noisy_gd.standard_normal_like(key, template)
        numbers = {"step_size": step_size, "noise_variance": 0.0, "num_steps": _DESCENT_STEPS}
        end = dd.noisy_gd.run(key, start, database, problem, **numbers)
        return erm.objective(problem, end, database)

    return float(jnp.min(jax.jit(jax.vmap(descend))(jax.random.split(key, _STARTS))))


def seconds_per_step(key: Array, problem: dd.Problem, n: int) -> float:
    """Wall time of one step of one model on this machine, from a short run that is thrown away."""
    database = make_database(n)
    template = problem.loss.template(database)

    @jax.jit
    def short(key):
        numbers = {"step_size": 1e-4, "noise_variance": 1.0, "num_steps": _TIMED_STEPS}
        return dd.noisy_gd.run(key, template, database, problem, **numbers)

    keys = jax.random.split(key)
    jax.block_until_ready(short(keys[0]))
    begin = time.perf_counter()
    jax.block_until_ready(short(keys[1]))
    return (time.perf_counter() - begin) / _TIMED_STEPS
