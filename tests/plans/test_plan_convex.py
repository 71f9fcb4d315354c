"""Convex plans: known step counts, budgets met at the least cost, and every way to ask."""

import dataclasses
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dd_jax import constants
from dd_jax.constants import LossConstants, ProblemConstants
from dd_jax.errors import CertificateRefused
from dd_jax.guarantees import clipping, renyi, risk
from dd_jax.oracles import linear
from dd_jax.plans import plan_convex
from dd_jax.plans.settings import edited_descent

BUDGETS = {"order": 2, "eps_dp": 1.0, "eps_dd": 0.1}


def problem(kappa=10.0, l2=1.0, lipschitz=1.0):
    loss = LossConstants("test loss", True, True, lipschitz=lipschitz, smoothness=(kappa - 1) * l2)
    return ProblemConstants(loss, l2)


# κ, ε_dd: K_U of the paper, and of the optimal bound at η = 1/(2M), 1/M and 2/(2λ+β); ε_dp = 1.
@pytest.mark.parametrize(
    ("kappa", "eps_dd", "paper", "half", "whole", "most"),
    [(2, 0.1, 19, 5, 2, 2), (10, 0.01, 185, 45, 22, 12), (100, 0.1, 922, 230, 115, 58)],
)
def test_known_delete_steps(kappa, eps_dd, paper, half, whole, most):
    options = {"n": 100, "dim": 1, "order": 2, "eps_dp": 1.0, "eps_dd": eps_dd}
    stated = plan_convex(problem(kappa), accountant="paper", **options)
    assert stated.delete_steps == paper
    for step_size, steps in ((1 / (2 * kappa), half), (None, whole), (2 / (1 + kappa), most)):
        plan = plan_convex(problem(kappa), step_size=step_size, **options)
        assert plan.delete_steps == steps
        assert 0.33 <= plan.noise_variance / stated.noise_variance <= 0.5


def with_steps(plan, learn_steps, delete_steps):
    return dataclasses.replace(plan, learn_steps=learn_steps, delete_steps=delete_steps)


@pytest.mark.parametrize("accountant", ["optimal", "unrelaxed", "paper"])
@settings(max_examples=40)
@given(
    kappa=st.floats(1, 1e4),
    l2=st.floats(1e-3, 10),
    lipschitz=st.floats(0.01, 100),
    n=st.integers(1, 10**6),
    dim=st.integers(1, 1000),
    order=st.floats(1.01, 50),
    eps_dp=st.floats(1e-3, 100),
    eps_dd=st.floats(1e-6, 100),
)
def test_a_plan_meets_its_budgets(accountant, kappa, l2, lipschitz, n, dim, order, eps_dp, eps_dd):
    """The certificate and, for the linear loss, the exact law; one step less would miss."""
    plan = plan_convex(
        problem(kappa, l2, lipschitz),
        n=n,
        dim=dim,
        order=order,
        eps_dp=eps_dp,
        eps_dd=eps_dd,
        accountant=accountant,
        dtype="float64",
    )
    certificate = plan.certificate()
    assert certificate.eps_dp <= eps_dp * (1 + 1e-12)
    assert certificate.eps_dp == pytest.approx(eps_dp, rel=1e-9)  # no noise is wasted
    assert certificate.eps_dd <= eps_dd
    if plan.delete_steps > 1:
        fewer = with_steps(plan, plan.learn_steps, plan.delete_steps - 1).certificate()
        assert fewer.eps_dd > eps_dd
    law = (lipschitz, l2, plan.noise_variance, n, plan.step_size)
    slack = 1 + 1e-9
    for learned in (0, 1, 7, math.inf):
        exact = linear.renyi(order, *law, plan.learn_steps + learned)
        assert exact <= certificate.eps_dp * slack
    exact = linear.renyi(order, *law, math.inf, delete_steps=plan.delete_steps)
    assert exact <= certificate.eps_dd * slack
    exact = linear.renyi(order, *law, plan.learn_steps, delete_steps=plan.delete_steps)
    assert exact <= certificate.eps_dd_request * slack + 1e-300
    if accountant == "optimal":
        assert exact == pytest.approx(certificate.eps_dd_request, rel=1e-9, abs=1e-300)


@settings(max_examples=20)
@given(
    eps_dp=st.floats(0.01, 20),
    eps_dd=st.floats(1e-4, 20),
    log_delta=st.floats(-12, -1),
    kappa=st.floats(1, 1000),
)
def test_epsilon_delta_budgets_go_through_gaussian_dp(eps_dp, eps_dd, log_delta, kappa):
    delta = 10**log_delta
    plan = plan_convex(problem(kappa), n=1000, dim=5, delta=delta, eps_dp=eps_dp, eps_dd=eps_dd)
    certificate = plan.certificate()
    assert plan.order is None
    assert certificate.eps_dp == pytest.approx(eps_dp, rel=1e-6)
    assert certificate.eps_dp == certificate.epsilon_dp
    assert certificate.eps_dd <= eps_dd * (1 + 1e-9)
    assert renyi.gdp_delta(certificate.mu_dp, eps_dp) <= delta * (1 + 1e-9)
    mu_dp, mu_dd = (renyi.gdp_from_epsilon_delta(eps, delta) for eps in (eps_dp, eps_dd))
    expected = 1.0
    if plan.step_size < 1:
        expected = math.log(mu_dp / mu_dd) / -math.log1p(-plan.step_size)
    assert plan.delete_steps == pytest.approx(max(1, expected), abs=1.001)
    assert plan.noise_variance == pytest.approx(2 * (2 - plan.step_size) / (mu_dp * 1000) ** 2)


def test_unit_gaussian_dp_beats_renyi_conversions():
    """μ = 1 at δ = 1e-5 is ε = 4.38."""
    plan = plan_convex(problem(2), n=1000, dim=5, **BUDGETS)
    assert plan.certificate(delta=1e-5).epsilon_dp == pytest.approx(4.377, abs=5e-4)


def test_deletion_budget_above_the_privacy_budget_takes_one_step():
    for eps_dd in (1.0, 5.0):
        plan = plan_convex(problem(), n=100, dim=1, order=2, eps_dp=1.0, eps_dd=eps_dd)
        assert plan.delete_steps == 1


def test_a_linear_loss_may_use_the_largest_step_and_forgets_at_once():
    plan = plan_convex(ProblemConstants(constants.linear(), 0.5), n=100, dim=2, **BUDGETS)
    assert plan.step_size == 2.0
    assert plan.delete_steps == 1
    certificate = plan.certificate()
    assert certificate.eps_dp == pytest.approx(1.0)
    assert certificate.eps_dd == 0.0
    assert certificate.advantage_bound == 0.0


@settings(max_examples=20)
@given(
    kappa=st.floats(1, 1000),
    slack=st.floats(1.01, 1e4),
    ratio=st.floats(1e-6, 1),
    edits=st.integers(1, 50),
    accountant=st.sampled_from(["optimal", "unrelaxed", "paper"]),
)
def test_target_risk_is_met_at_the_least_cost(kappa, slack, ratio, edits, accountant):
    options = {"n": 1000, "dim": 4, "order": 2, "eps_dp": 1.0, "eps_dd": ratio}
    options |= {"edits_per_request": edits, "accountant": accountant}
    plain = plan_convex(problem(kappa), **options)
    floor = risk.excess_risk_floor(edited_descent(plain), 4)
    target = slack * floor
    plan = plan_convex(problem(kappa), target_risk=target, **options)
    certificate = plan.certificate()
    assert certificate.risk_bound <= target * (1 + 1e-9)
    assert certificate.eps_dp <= 1 + 1e-12
    assert certificate.eps_dd <= ratio * (1 + 1e-12)
    same_noise = plan_convex(
        problem(kappa), target_risk=target, noise_variance=plain.noise_variance, **options
    )
    assert plan.delete_steps <= same_noise.delete_steps
    if plan.delete_steps > 1:
        for noise in (1, 1.001, 1.1, 2, 10, 100):
            noisier = plan_convex_or_none(
                problem(kappa), target, plain.noise_variance * noise, options
            )
            assert noisier is None or noisier.delete_steps >= plan.delete_steps


def plan_convex_or_none(constants, target, noise, options):
    try:
        return plan_convex(constants, target_risk=target, noise_variance=noise, **options)
    except CertificateRefused:
        return None


def test_default_learning_is_within_a_tenth_of_the_least_risk():
    for accountant in ("optimal", "unrelaxed"):
        plan = plan_convex(problem(), n=10**4, dim=20, accountant=accountant, **BUDGETS)
        floor = risk.excess_risk_floor(edited_descent(plan), 20)
        assert plan.certificate().risk_bound_learned <= 1.1 * floor
        shorter = with_steps(plan, plan.learn_steps - 1, plan.delete_steps)
        assert shorter.certificate().risk_bound_learned > 1.1 * floor


def test_the_papers_plan_is_its_theorem():
    plan = plan_convex(problem(), n=1000, dim=20, accountant="paper", **BUDGETS)
    assert plan.step_size == pytest.approx(1 / 20)
    assert plan.noise_variance == pytest.approx(8e-6)
    assert plan.init_variance == pytest.approx(8e-6 / (1 - 1 / 40))
    assert plan.learn_steps == math.ceil(40 * math.log(10**6 / 160))
    certificate = plan.certificate()
    assert certificate.risk_bound_paper is None  # deletion alone needs fewer steps than utility
    longer = with_steps(plan, plan.learn_steps, math.ceil(40 * math.log(50)))
    assert longer.certificate().risk_bound_paper == pytest.approx(10 * 10 * 2 * 20 / 10**6)
    assert longer.certificate().risk_bound < longer.certificate().risk_bound_paper
    unlearned = with_steps(longer, plan.learn_steps - 1, longer.delete_steps)
    assert unlearned.certificate().risk_bound_paper is None


def test_the_theorem_has_one_plan_for_its_three_objectives():
    """Privacy, deletion and utility (erratum E13): deletion's steps alone are too few."""
    options = {"n": 10**4, "dim": 50, "accountant": "paper"} | BUDGETS
    deleting = plan_convex(problem(26.0), **options)
    plan = plan_convex(problem(26.0), target_risk="paper", **options)
    assert (deleting.delete_steps, plan.delete_steps) == (240, 507)
    assert plan.learn_steps == math.ceil(4 * 26 * math.log(10**8 / (4 * 2 * 50)))
    settings = ("step_size", "noise_variance", "init_variance", "learn_steps")
    assert all(getattr(plan, name) == getattr(deleting, name) for name in settings)
    certificate = plan.certificate()
    assert certificate.risk_bound_paper == pytest.approx(10 * 26 * 2 * 50 / 10**8)
    assert certificate.risk_bound <= certificate.risk_bound_paper
    assert plan.risk_asked == pytest.approx(certificate.risk_bound_paper)
    assert certificate.eps_dp <= 1
    assert certificate.eps_dd <= 0.1
    # Where deletion needs more steps than utility, it has them.
    thorough = plan_convex(problem(26.0), target_risk="paper", **(options | {"eps_dd": 1e-4}))
    assert thorough.delete_steps == math.ceil(4 * 26 * math.log(10**4))
    # Other accountants, steps and noise meet the same risk by the recursion.
    for other in ({"accountant": "optimal"}, {"step_size": 1 / 60}, {"noise_variance": 1e-7}):
        found = plan_convex(problem(26.0), target_risk="paper", **(options | other))
        assert found.delete_steps < 507
        assert found.certificate().risk_bound <= plan.risk_asked * (1 + 1e-9)


def test_too_few_steps_for_utility_are_said_with_both_numbers():
    logistic = ProblemConstants(constants.logistic(), 0.01)
    options = {"n": 10**4, "dim": 5, "order": 2, "eps_dp": 1.0, "eps_dd": 0.5}
    plan = plan_convex(logistic, edits_per_request=200, **options)
    assert plan.delete_steps == 9
    warned = [text for text in plan.certificate().warnings if "utility" in text]
    assert len(warned) == 1
    for number in ("K_U = 9 ", "11.61", "1,079", "0.0026"):
        assert number in warned[0]
    stated = {"target_risk": "paper", "edits_per_request": 200} | options
    theorem = plan_convex(logistic, accountant="paper", **stated)
    assert theorem.delete_steps == 1079
    enough = (theorem, plan_convex(logistic, **stated), plan_convex(logistic, **options))
    for other in enough:
        assert not any("utility" in text for text in other.certificate().warnings)
        assert other.certificate().risk_bound < 0.0026001


@pytest.mark.parametrize("accountant", ["paper", "unrelaxed"])
@settings(max_examples=20)
@given(
    eps_dp=st.floats(0.01, 20),
    eps_dd=st.floats(1e-4, 20),
    log_delta=st.floats(-12, -1),
    kappa=st.floats(1, 1000),
)
def test_epsilon_delta_by_the_papers_footnote(accountant, eps_dp, eps_dd, log_delta, kappa):
    """The plan is that of q = 1 + (2/ε) log(1/δ) and ε_dp = ε/2, and meets both of its ε."""
    delta, size = 10**log_delta, {"n": 1000, "dim": 5, "accountant": accountant, "dtype": "float64"}
    plan = plan_convex(problem(kappa), delta=delta, eps_dp=eps_dp, eps_dd=eps_dd, **size)
    order, half = 1 + 2 / eps_dp * math.log(1 / delta), eps_dp / 2
    least = plan_convex(problem(kappa), order=order, eps_dp=half, eps_dd=half, **size)
    assert plan.noise_variance == pytest.approx(least.noise_variance)
    assert plan.learn_steps == pytest.approx(least.learn_steps, abs=1)
    certificate = plan.certificate()
    assert certificate.eps_dp == pytest.approx(eps_dp)
    assert certificate.eps_dp == certificate.epsilon_dp
    assert certificate.eps_dd <= eps_dd * (1 + 1e-9)
    if plan.delete_steps > 1:
        fewer = with_steps(plan, plan.learn_steps, plan.delete_steps - 1).certificate()
        assert fewer.eps_dd > eps_dd * (1 - 1e-9)
    # The order that is best for δ, and exact Gaussian DP, never ask for more.
    assert renyi.epsilon_tight_linear(half / order, delta) <= certificate.eps_dp * (1 + 1e-9)
    optimal = plan_convex(problem(kappa), delta=delta, eps_dp=eps_dp, eps_dd=eps_dd, n=1000, dim=5)
    assert optimal.noise_variance < plan.noise_variance


def test_a_clipped_loss_that_is_no_glm_is_certified_by_its_contraction():
    """L is the clip norm; c and the rate (1 - c)/η take the parts of 1 - ηλ and λ."""
    softmax = ProblemConstants(constants.softmax(num_classes=5), 0.1, clip_norm=0.5)
    for batches in (1, 3):
        plan = plan_convex(softmax, n=999, dim=15, batches=batches, **BUDGETS)
        rate = clipping.contraction_rate(plan.step_size, 0.1, softmax.loss.smoothness)
        same = LossConstants("as contracting", True, True, lipschitz=0.5, smoothness=0.0)
        expected = plan_convex(
            ProblemConstants(same, rate),
            n=999,
            dim=15,
            batches=batches,
            step_size=plan.step_size,
            **BUDGETS,
        )
        found = ("noise_variance", "delete_steps", "learn_steps", "init_variance")
        assert all(getattr(plan, name) == getattr(expected, name) for name in found)
        certificate = plan.certificate(2, 5)
        for name in ("eps_dp", "eps_dd_adaptive", "eps_dd_request", "advantage_bound"):
            assert getattr(certificate, name) == getattr(expected.certificate(2, 5), name)
        assert certificate.risk_bound is None
        assert certificate.risk_bound_paper is None
        assert any("E1" in a.statement for a in certificate.assumptions)
    assert plan.step_size == pytest.approx(clipping.best_step_size(0.1, softmax.loss.smoothness))
    # A larger λ has the step of all plans.
    strong = dataclasses.replace(softmax, l2=0.5)
    assert plan_convex(strong, n=999, dim=15, **BUDGETS).step_size == pytest.approx(1, rel=1e-5)


def test_clipped_glm_uses_the_clip_norm():
    clipped = ProblemConstants(constants.squared(feature_norm=2.0), 0.5, clip_norm=0.3)
    plan = plan_convex(clipped, n=1000, dim=3, **BUDGETS)
    as_huber = ProblemConstants(
        LossConstants("huberised", True, True, lipschitz=0.3, smoothness=clipped.loss.smoothness),
        0.5,
    )
    expected = plan_convex(as_huber, n=1000, dim=3, **BUDGETS)
    assert plan.noise_variance == expected.noise_variance
    assert plan.delete_steps == expected.delete_steps
    assert any("clipped" in a.statement for a in plan.certificate().assumptions)


def test_clipping_that_never_acts_changes_nothing():
    softmax = constants.softmax(num_classes=5)
    plain = plan_convex(ProblemConstants(softmax, 0.1), n=1000, dim=15, **BUDGETS)
    idle = plan_convex(ProblemConstants(softmax, 0.1, clip_norm=1.5), n=1000, dim=15, **BUDGETS)
    assert idle.noise_variance == plain.noise_variance


def test_label_plan_uses_half_the_label_sensitivity():
    squared = ProblemConstants(constants.squared(feature_norm=2.0, label_bound=1.5), 0.5)
    plan = plan_convex(squared, n=1000, dim=3, protects="label", **BUDGETS)
    assert plan.noise_variance == pytest.approx(
        2 * 3.0**2 * (2 - plan.step_size * 0.5) / (0.5 * 1000**2)
    )
    assert "label" in plan.certificate().claim
    huber = ProblemConstants(constants.huber(threshold=0.7), 0.5)
    by_record = plan_convex(huber, n=1000, dim=3, **BUDGETS)
    by_label = plan_convex(huber, n=1000, dim=3, protects="label", **BUDGETS)
    assert by_label.noise_variance == by_record.noise_variance
    clipped = dataclasses.replace(squared, clip_norm=0.3)  # which bounds labels' influence too
    by_record = plan_convex(clipped, n=1000, dim=3, **BUDGETS)
    by_label = plan_convex(clipped, n=1000, dim=3, protects="label", **BUDGETS)
    assert by_label.noise_variance == by_record.noise_variance


def test_the_risk_of_a_label_plan_counts_with_the_whole_gradient():
    """Labels move a gradient by less than L, but the model still goes as far as L/λ."""
    loss = LossConstants("own", True, True, lipschitz=1.0, smoothness=1.0, label_sensitivity=0.5)
    plan = plan_convex(ProblemConstants(loss, 0.5), n=1000, dim=3, protects="label", **BUDGETS)
    whole = dataclasses.replace(plan, protects="record").certificate()
    assert plan.certificate().eps_dd < whole.eps_dd
    assert plan.certificate().risk_bound == whole.risk_bound


def test_the_theorems_plan_of_labels_is_that_of_records_at_the_same_noise():
    """Labels move a gradient by L/4: the theorem's ε_dp for the L of risks is 16 times as large."""
    loss = LossConstants("own", True, True, lipschitz=1.0, smoothness=1.0, label_sensitivity=0.5)
    constants, options = ProblemConstants(loss, 0.5), {"n": 1000, "dim": 3, "order": 2}
    options |= {"accountant": "paper", "target_risk": "paper"}
    by_label = plan_convex(constants, protects="label", eps_dp=1.0, eps_dd=0.1, **options)
    by_record = plan_convex(constants, eps_dp=16.0, eps_dd=1.6, **options)
    for name in ("noise_variance", "learn_steps", "delete_steps", "risk_asked"):
        assert getattr(by_label, name) == pytest.approx(getattr(by_record, name), rel=1e-12)
    assert by_label.certificate().risk_bound_paper == pytest.approx(by_label.risk_asked)
