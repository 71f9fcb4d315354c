"""λ from what is public: the least sum of two bounds, and the bound that it promises holds."""

import numpy as np
import pytest

from dd_jax import constants
from dd_jax.constants import ProblemConstants
from dd_jax.errors import InputError
from dd_jax.plans import choose_l2, plan_convex

BUDGETS = {"order": 2.0, "eps_dp": 1.0, "eps_dd": 0.1}
SIZES = {"n": 2000, "dim": 5}


def total(l2, norm, **changes):
    problem = ProblemConstants(constants.logistic(), l2)
    plan = plan_convex(problem, **(SIZES | changes | BUDGETS))
    return plan.certificate().risk_bound_learned + l2 * norm**2 / 2


@pytest.mark.parametrize("norm", [1.0, 10.0])
def test_no_other_candidate_has_a_smaller_bound(norm):
    candidates = (1e-3, 1e-2, 1e-1, 1.0)
    chosen = choose_l2(constants.logistic(), **SIZES, norm=norm, candidates=candidates, **BUDGETS)
    totals = [total(l2, norm) for l2 in candidates]
    assert chosen.l2 == candidates[int(np.argmin(totals))]
    assert chosen.noise + chosen.bias == pytest.approx(min(totals))
    assert f"{norm:g}" in str(chosen)


def test_more_records_and_larger_models_ask_for_a_smaller_regulariser():
    loss, candidates = constants.logistic(), (1e-4, 1e-3, 1e-2, 1e-1)
    few, many, wide = (
        choose_l2(loss, n=n, dim=5, norm=norm, candidates=candidates, **BUDGETS).l2
        for n, norm in ((300, 10.0), (100_000, 10.0), (300, 100.0))
    )
    assert many < few
    assert wide < few


def test_what_cannot_be_chosen_is_refused_with_the_reason():
    with pytest.raises(InputError, match="eps_dp"):
        choose_l2(constants.logistic(), **SIZES, **(BUDGETS | {"eps_dp": -1.0}))
    with pytest.raises(InputError, match="norm"):
        choose_l2(constants.logistic(), **SIZES, norm=0.0, **BUDGETS)
