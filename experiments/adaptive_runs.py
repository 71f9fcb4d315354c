"""The numbers behind the figure of adaptive deletion: over p, over passwords, over budgets.

Each function takes the figure's `Config` and the confidence of each of its intervals.
"""

import functools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from dd_jax import attacks
from dd_jax.attacks import password, recoding
from dd_jax.attacks.necessity_curators import REMEMBERS, RETRAINS
from dd_jax.audit.samples import two_worlds
from dd_jax.guarantees import adaptive, inference, renyi
from dd_jax.intervals import advantages
from dd_jax.types import replacement
from experiments import measured, waiting_recoder
from experiments.cache import Runner

BOUNDS = ("paper", "certified", "intervals", "fixed")


def over_looks(key: Array, config, confidence: float, runner: Runner) -> dict[str, np.ndarray]:
    """Noisy-GD against the requester of `waiting_recoder`, at each p, and every bound."""
    plan = recoding.make_plan(config.n, config.order, config.eps_dp)
    estimates = []
    for seen in config.looks:
        runner.say(f"Noisy-GD, a requester that sees {seen} releases: {config.seeds:,} seeds")
        look_key = jax.random.fold_in(key, seen)
        estimates.append(waiting_recoder.measure(look_key, plan, seen, config.seeds, confidence))
    bounds = [_bounds(plan, config.order, seen) for seen in config.looks]
    return measured.columns("looks", estimates) | {
        "looks exact": np.array([waiting_recoder.exact(plan, seen) for seen in config.looks]),
        **{f"looks {name}": np.array([bound[name] for bound in bounds]) for name in BOUNDS},
    }


def _bounds(plan, order: float, seen: int) -> dict[str, float]:
    """Advantages that are certified, by us and by the paper, with `seen` releases."""
    request = waiting_recoder.deletion_request(seen)
    found = plan.certificate(request=request, observed=tuple(range(seen)))
    stated = replace(plan, accountant="paper").certificate(seen, request)

    def gaussian(eps):
        return float(inference.advantage_gdp(renyi.gdp_from_linear_renyi(order, eps)))

    return {
        "paper": float(inference.advantage_soundness(order, stated.eps_dd_adaptive)),
        "certified": gaussian(found.eps_dd_adaptive),
        "intervals": gaussian(found.eps_dd_request),
        "fixed": gaussian(found.eps_dd),
    }


def _password_trial(key, database, passwords, *, observe):
    """`password.trial` with a traced number of passwords: compiled once for all of them."""
    return password.trial(key, database, passwords=passwords, observe=observe)


def over_passwords(key: Array, config, confidence: float) -> dict[str, np.ndarray]:
    """The bit of a deleted record, read by a requester that sees one release, or none."""
    database, other = jnp.array([1, 0], jnp.int32), replacement([0], jnp.zeros(1, jnp.int32))
    results = {}
    for observe in ((0,), ()):
        fn = functools.partial(_password_trial, observe=observe)
        estimates = []
        for place, count in enumerate(config.passwords):
            case_key = jax.random.fold_in(jax.random.fold_in(key, len(observe)), place)
            pair = two_worlds(fn, case_key, config.seeds, database, other, jnp.int32(count))
            estimates += advantages(pair.present, pair.absent, confidence)
        results |= measured.columns(f"password, {len(observe)} seen", estimates)
    claimed = [
        adaptive.deletion_adaptive_as_stated(
            password.nonadaptive_epsilon(config.order, count), 0.0, 1
        )
        for count in config.passwords
    ]
    return results | {
        "password claimed": np.array(inference.advantage_soundness(config.order, claimed))
    }


def over_budgets(key: Array, config, confidence: float) -> dict[str, np.ndarray]:
    """The attack of the proof of `thm:dp_necessary` on two curators, at each ε of one release."""
    rows, necessary = [], []
    for place, eps in enumerate(config.budgets):
        found = attacks.find("necessity").run(
            jax.random.fold_in(key, place),
            epsilon=eps,
            order=config.order,
            seeds=config.seeds,
            confidence=confidence,
        )
        rows += found.rows
        necessary.append(found.theory["epsilon_at_least"])
    results = {"necessity at least": np.array(necessary)}
    for curator in (RETRAINS, REMEMBERS):
        of_curator = [row for row in rows if row["curator"] == curator]
        tests = {
            what: np.array([r["exact"] for r in of_curator if r["what"].startswith(what)])
            for what in ("Adv(Test)", "Adv(Test̄) from θ = +")
        }
        attack = [row for row in of_curator if row["what"] == "Adv(MI)"]
        results |= measured.from_rows(f"necessity {curator}", attack)
        results[f"necessity {curator} product"] = np.prod(list(tests.values()), axis=0)
    mu = renyi.gdp_from_linear_renyi(config.order, np.array(config.budgets))
    return results | {"necessity certified": np.asarray(inference.advantage_gdp(mu))}
