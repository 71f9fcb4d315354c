"""Products in bfloat16 break a deletion certificate; products in full precision keep it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from problems import soak

from dd_jax import erm
from dd_jax.attacks import coarse_products as coarse
from dd_jax.attacks import find
from dd_jax.erm import Problem
from dd_jax.losses import logistic
from dd_jax.oracles import grid
from dd_jax.plans import plan_convex

PLAN = plan_convex(Problem(logistic(), 0.05), n=200_000, dim=1, order=2.0, eps_dp=1.0, eps_dd=0.1)
EDGE, INSIDE = coarse.CASES


def divergences(case, products, fineness=0.25):
    """R_2 after learning and after the deletion of a record of slope ±1, twice a label's effect."""
    rest = coarse.mean_slope(case, PLAN.n, 0, products)
    worlds = [
        coarse.law(
            PLAN,
            [
                (lambda models, side=side: rest(models) - side / PLAN.n, PLAN.learn_steps),
                (rest, PLAN.delete_steps),
            ],
            fineness,
        )
        for side in (1, -1)
    ]
    return [grid.renyi(2, *coarse.on_one_grid(list(pair))) for pair in zip(*worlds, strict=True)]


def test_inside_a_step_an_easy_database_becomes_the_worst_case():
    certificate = PLAN.certificate()
    assert divergences(INSIDE, coarse.FULL) == pytest.approx([0.483, 0.0023], rel=0.02)
    worst = divergences(INSIDE, coarse.COARSE)
    assert worst == pytest.approx([certificate.eps_dp, certificate.eps_dd], rel=1e-3)


def test_at_an_edge_privacy_and_deletion_are_worse_than_certified():
    certificate = PLAN.certificate()
    learned, deleted = divergences(EDGE, coarse.COARSE)
    assert learned > 2 * certificate.eps_dp
    assert deleted > 20 * certificate.eps_dd
    learned, deleted = divergences(EDGE, coarse.FULL)
    assert learned < 0.2 * certificate.eps_dp
    assert deleted < 1e-6


def test_smooth_densities_are_those_of_the_oracle():
    """With fewer records there is more noise, and the oracle's grid can hold the whole run."""
    budgets = {"dim": 1, "order": 2.0, "eps_dp": 1.0, "eps_dd": 0.1}
    plan = plan_convex(Problem(logistic(), 0.05), n=1_000, **budgets)
    wide = grid.grid_for(-0.6, 3.2, plan.step_size, plan.noise_variance)
    start = grid.gaussian_density(wide, 0.0, plan.init_variance)
    laws = []
    for label in (1, -1):
        slopes = [coarse.mean_slope(INSIDE, plan.n, side, coarse.FULL) for side in (label, 0)]
        phases = [
            grid.Phase(lambda models, slope=slope: slope(models) + 0.05 * models, steps)
            for slope, steps in zip(slopes, (plan.learn_steps, plan.delete_steps), strict=True)
        ]
        laws.append(grid.law_after(phases, plan.step_size, plan.noise_variance, start, wide))
    found = coarse.exact_worlds(INSIDE, plan, coarse.FULL)[coarse.DELETED]
    assert found.advantage == pytest.approx(grid.total_variation(*laws), rel=1e-4)
    assert grid.renyi(2, *found) == pytest.approx(grid.renyi(2, *laws), rel=1e-4)


@pytest.mark.parametrize("products", [coarse.FULL, coarse.COARSE])
@pytest.mark.parametrize("case", coarse.CASES)
def test_the_densities_and_the_program_have_the_same_gradient(case, products):
    models = np.linspace(0.1, 3, 200, dtype=np.float32)
    problem = Problem(coarse.LOSSES[products](), 0.05)
    rows = coarse.database(case, PLAN.n)
    found = jax.vmap(lambda model: erm.gradient(problem, model, rows))(jnp.asarray(models)[:, None])
    expected = coarse.mean_slope(case, PLAN.n, 1, products)(models) + 0.05 * models
    assert np.asarray(found)[:, 0] == pytest.approx(expected, abs=2e-7)


def test_twice_the_spacing_changes_the_law_little():
    """The rule is of second order, so the error of the default spacing is about a third of this."""
    first, second = (divergences(EDGE, coarse.COARSE, fineness) for fineness in (0.5, 0.25))
    assert first == pytest.approx(second, rel=2e-3)


def test_samples_refute_bfloat16_and_not_full_precision():
    result = find("coarse-products").run(jax.random.key(0), seeds=soak(800, 20_000))
    assert [finding.refuted for finding in result.findings] == [True, False, False]
    assert result.estimate.low > result.bound
    assert not result.ours_refuted


def test_half_of_the_databases_or_more_are_at_an_edge():
    """The share of positive labels from 52% to 100%: what bfloat16 leaves of a deleted label."""
    allowed = PLAN.certificate().advantage_bound
    cases = [coarse.Case("", 1.0, positive) for positive in np.linspace(0.52, 1.0, soak(4, 13))]
    worlds = [coarse.exact_worlds(case, PLAN, coarse.COARSE) for case in cases]
    beyond = [world[coarse.DELETED].advantage > allowed for world in worlds]
    assert sum(beyond) == soak(2, 8)
