"""Exact samples of the Gibbs law, the comparator of the non-convex deletion theorem.

π(D) has density ∝ exp(-ℒ_D(θ)/σ²) (`eqn:gibbs`). For a loss bounded by b it is the law N(0, σ²/λ I)
thinned by exp(-(ℓ̄(θ) + b)/σ²), ℓ̄ the mean loss: a proposal is kept with probability at least
exp(-2b/σ²). The certificate itself pays this factor in steps (`Λ` in
`dd_jax.guarantees.nonconvex`), so wherever a plan can be run its Gibbs law can be sampled, in any
dimension and for any bounded loss, without a Markov chain and without its error.
"""

import math

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, PyTree

from dd_jax import checks, products
from dd_jax.databases import records_of
from dd_jax.ensemble import over_seeds
from dd_jax.erm import Problem, objective
from dd_jax.errors import InputError
from dd_jax.noisy_gd import standard_normal_like
from dd_jax.plans.conditions import require_nonconvex

# Beyond this 2b/σ² a draw takes thousands of proposals; no plan with so little noise can be run.
_LARGEST_EXPONENT = 10.0


def gibbs_samples(
    key: Array,
    problem: Problem,
    database: PyTree,
    noise_variance: float,
    seeds: int,
    *,
    chunk: int | None = None,
) -> PyTree:
    """Independent draws from the Gibbs law of a database, leaves (seeds, …).

    Guarantee: the law is exact up to the rounding of float32, whatever the dimension.
    The comparator of `thm:deletion_accuracy_nonconvex`.

    Args:
        key: base key. problem: a bounded loss without clipping, and λ.
        database: D, in any form.
        noise_variance: σ².
        seeds: how many draws. chunk: draws per device call.

    Raises:
        InputError: a loss without a bound, or a noise so small that draws would take too long.
    """
    require_nonconvex(problem.constants)
    noise_variance = float(checks.positive("noise_variance", noise_variance))
    bound = problem.loss.constants.bound
    assert bound is not None
    exponent = 2 * bound / noise_variance
    if exponent > _LARGEST_EXPONENT:
        raise InputError(
            f"noise_variance = {noise_variance:g} keeps as little as one proposal in "
            f"{math.exp(exponent):.2g}; give at least {2 * bound / _LARGEST_EXPONENT:g}."
        )
    return over_seeds(
        _draw, key, seeds, problem, database, jnp.float32(noise_variance), chunk=chunk
    )


@products.full
def _draw(key: Array, problem: Problem, database: PyTree, noise_variance: Array) -> PyTree:
    """One draw: proposals from N(0, σ²/λ I) until one is kept."""
    template = problem.loss.template(records_of(database))
    deviation = jnp.sqrt(noise_variance / problem.l2)

    def propose(key, number):
        model_key, coin_key = jax.random.split(jax.random.fold_in(key, number))
        normal = standard_normal_like(model_key, template)
        model = jax.tree.map(lambda leaf: deviation.astype(leaf.dtype) * leaf, normal)
        penalty = problem.l2 / 2 * optax.tree.vdot(model, model)
        mean_loss = objective(problem, model, database) - penalty
        kept = jnp.exp(-(mean_loss + problem.loss.constants.bound) / noise_variance)
        return model, jax.random.uniform(coin_key) < kept

    def again(carry):
        number, _, _ = carry
        return number + 1, *propose(key, number)

    start = (jnp.int32(0), template, jnp.array(False))
    return jax.lax.while_loop(lambda carry: ~carry[2], again, start)[1]
