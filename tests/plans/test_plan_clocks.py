"""A record's clock runs from its first insertion to its last deletion, and which looks count."""

import numpy as np
import pytest

from dd_jax import constants
from dd_jax.constants import LossConstants, ProblemConstants
from dd_jax.errors import InputError
from dd_jax.oracles import linear
from dd_jax.plans import Plan, plan_convex, plan_nonconvex

LINEAR = ProblemConstants(LossConstants("linear", True, True, lipschitz=1.0, smoothness=0.0), 1.0)


def linear_plan():
    """The example of a record that comes back: q = 2, η = 1/4, λ = L = 1, K_L = 40, K_U = 1."""
    return Plan(
        problem=LINEAR,
        n=100,
        dim=1,
        order=2,
        delta=None,
        step_size=0.25,
        noise_variance=4e-4,
        init_variance=0.0,
        learn_steps=40,
        delete_steps=1,
        edits_per_request=1,
        kind="convex",
        accountant="optimal",
        eps_dp_asked=1.0,
    )


def exact(plan, present):
    """R_q of a linear loss after runs in which the record was there, or not."""
    steps = [plan.learn_steps, *[plan.delete_steps] * (len(present) - 1)]
    shift, rate = 0.0, 1 - plan.step_size * plan.problem.l2
    for count, there in zip(steps, present, strict=True):
        for _ in range(count):
            shift = rate * shift + there * plan.step_size * 2 / plan.n
    spread = linear.variance(1.0, plan.noise_variance, plan.step_size, sum(steps), 0.0)
    return plan.order * shift**2 / (2 * spread)


def test_a_record_that_left_and_came_back_counts_from_its_first_stay():
    plan = linear_plan()
    # In the database, deleted by request 1, back with request 2, deleted by request 3.
    truth = exact(plan, [True, False, True, False])
    assert truth == pytest.approx(0.325, abs=5e-4)
    issued = plan.certificate(request=3, first_inserted=0)
    assert issued.eps_dd_request >= truth
    # The clock of the last stay alone would be false.
    last_stay = plan.certificate(request=3, first_inserted=2).eps_dd_request
    assert last_stay == pytest.approx(0.045, abs=5e-4)


def test_every_stay_counts_for_a_record_that_is_still_there():
    plan = linear_plan()
    truth = exact(plan, [True, False, True])
    first, second = (plan.certificate(request=2, first_inserted=j) for j in (0, 1))
    assert first.eps_dp_request >= truth > second.eps_dp_request
    assert first.eps_dp_joint >= truth > second.eps_dp_joint


def test_random_histories_of_one_row_stay_below_the_certificate():
    rng = np.random.default_rng(5)
    plan = linear_plan()
    for _ in range(300):
        runs = int(rng.integers(2, 9))
        present = rng.random(runs) < 0.5
        present[-1] = False
        if not present[:-1].any():
            continue
        last = int(np.flatnonzero(present)[-1]) + 1
        first = int(np.flatnonzero(present)[0])
        truth = exact(plan, present[: last + 1])
        issued = plan.certificate(request=last, first_inserted=first)
        assert truth <= issued.eps_dd_request * (1 + 1e-9)


def test_inserted_is_no_argument_any_more():
    with pytest.raises(TypeError, match="inserted"):
        linear_plan().certificate(request=3, inserted=2)  # pyright: ignore[reportCallIssue]


# --- which looks count --------------------------------------------------------------------------


def tanh_plan():
    problem = ProblemConstants(constants.tanh_margin(), 2.0)
    return plan_nonconvex(
        problem, n=20000, dim=1, order=2, eps_dp=1.0, eps_dd=0.3, noise_variance=2.0
    )


def test_a_look_before_the_insertion_counts_for_non_convex_plans():
    """A requester that writes one bit of the first model into another row leaves R₂ = 2.41 to the
    Gibbs law, conditionally on the edits; without counting that look 0.250 was printed."""
    plan = tanh_plan()
    unseen = plan.certificate(request=3, first_inserted=2, observed=())
    seen = plan.certificate(request=3, first_inserted=2, observed=(0,))
    assert unseen.adaptivity == 0
    assert unseen.eps_dd_adaptive == unseen.eps_dd <= 0.3
    assert "Gibbs" in unseen.comparator
    assert seen.adaptivity == 1
    # The answer is the run sum between neighbouring runs, no number about the Gibbs law.
    assert "Gibbs" not in seen.comparator
    run_sum = plan.certificate(1, 3, first_inserted=2)
    assert seen.eps_dd_adaptive == run_sum.eps_dd_adaptive == seen.eps_dd_request
    assert "no release" in unseen.claim
    assert "1 release" in seen.claim
    # A look after the deletion is free.
    assert plan.certificate(request=3, first_inserted=2, observed=(3, 7)).adaptivity == 0


def test_a_look_before_the_insertion_is_free_for_convex_plans_and_the_words_are_true():
    plan = linear_plan()
    free = plan.certificate(request=3, first_inserted=2, observed=(0,))
    assert free.adaptivity == 0
    assert free.eps_dd_request == plan.certificate(request=3, first_inserted=2).eps_dd_request
    assert "while the record was there" in free.claim
    assert "before the deletion" in plan.certificate(request=3).claim


def test_non_convex_risk_bounds_say_that_they_are_for_non_adaptive_histories():
    assert any("depended on a release" in text for text in tanh_plan().certificate().warnings)
    problem = ProblemConstants(constants.logistic(), 0.1)
    plan = plan_convex(problem, n=100, dim=2, order=2, eps_dp=1.0, eps_dd=0.1)
    assert not any("depended on a release" in text for text in plan.certificate().warnings)


def test_a_request_that_is_not_after_the_insertion_is_refused():
    with pytest.raises(InputError, match="first_inserted = 3 is not before request = 3"):
        linear_plan().certificate(request=3, first_inserted=3)
