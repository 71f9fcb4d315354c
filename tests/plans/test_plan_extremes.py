"""Extreme magnitudes: no NaN, no negative or non-monotone bound, no error but a refusal."""

import dataclasses
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import soak

from dd_jax.constants import LossConstants, ProblemConstants
from dd_jax.errors import CertificateRefused
from dd_jax.plans import Certificate, arithmetic, plan_composition, plan_convex, plan_nonconvex

UP = 1 + 1e-9
# Converted ε near 0 is a difference of numbers near δ; it is right to an absolute rounding error.
ROUNDING = 1e-16


@pytest.fixture(autouse=True, scope="module")
def _any_arithmetic():
    """Accounting alone: nothing here could be run in any floating type."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arithmetic, "check", lambda plan: None)
        yield


def powers(low, high):
    return st.floats(low, high).map(lambda exponent: 10.0**exponent)


SHAPES = {
    "n": powers(0, 12).map(int),
    "dim": powers(0, 9).map(int),
    "kappa": powers(-8, 8).map(lambda x: 1 + x),
    "l2": powers(-8, 4),
    "lipschitz": powers(-4, 4),
    "order": powers(-6, 6).map(lambda x: 1 + x),
    "eps_dp": powers(-12, 3),
    "eps_dd": powers(-12, 3),
    "edits": powers(0, 3).map(int),
    "adaptivity": st.integers(0, 10),
    "request": powers(0, 9).map(int),
}


def make(kappa, l2, lipschitz, bound=None, convex=True):
    loss = LossConstants("x", convex, True, lipschitz, (kappa - 1) * l2, bound)
    return ProblemConstants(loss, l2)


def check_sane(certificate):
    for field in dataclasses.fields(certificate):
        value = getattr(certificate, field.name)
        if isinstance(value, float):
            assert not math.isnan(value), field.name
            assert value >= 0, field.name
    assert certificate.advantage_bound <= 1
    assert certificate.eps_dd_request <= certificate.eps_dd_adaptive * UP + ROUNDING
    assert certificate.eps_dd_adaptive <= certificate.eps_dd_records * UP + ROUNDING
    assert certificate.eps_dp_request <= certificate.eps_dp_adaptive * UP + ROUNDING
    assert certificate.eps_dp_request <= certificate.eps_dp_joint * UP + ROUNDING
    assert Certificate.from_json(certificate.to_json(), certificate.plan.problem) == certificate
    assert str(certificate)


def check_monotone(plan, adaptivity, request):
    """More seen, a later request, less noise, fewer steps: never a smaller bound."""
    certificate = plan.certificate(adaptivity, request)
    check_sane(certificate)
    more = plan.certificate(adaptivity + 1, request)
    later = plan.certificate(adaptivity, request + 1)
    quieter = dataclasses.replace(
        plan, noise_variance=plan.noise_variance / 2, init_variance=plan.init_variance / 2
    )
    for other in (more, later):
        assert other.eps_dp_adaptive >= certificate.eps_dp_adaptive / UP
        assert other.eps_dp_joint >= certificate.eps_dp_joint / UP
        assert other.advantage_bound >= certificate.advantage_bound / UP
        if plan.kind == "convex":
            assert other.eps_dd_adaptive >= certificate.eps_dd_adaptive / UP
    if plan.kind == "convex":
        assert quieter.certificate(adaptivity, request).eps_dd >= certificate.eps_dd / UP
        fewer = dataclasses.replace(plan, delete_steps=plan.delete_steps - 1)
        assert fewer.certificate(adaptivity, request).eps_dd >= certificate.eps_dd / UP
    return certificate


@settings(max_examples=soak(60, 150))
@given(accountant=st.sampled_from(["optimal", "unrelaxed", "paper"]), risk=powers(-12, 6), **SHAPES)
def test_convex(accountant, risk, n, dim, edits, adaptivity, request, order, **shape):
    budgets = {name: shape.pop(name) for name in ("eps_dp", "eps_dd")}
    options = {"n": n, "dim": dim, "edits_per_request": min(edits, n), "accountant": accountant}
    plan = plan_convex(make(**shape), order=order, **budgets, **options)
    certificate = check_monotone(plan, adaptivity, request)
    assert certificate.eps_dp <= budgets["eps_dp"] * UP
    assert certificate.eps_dd <= budgets["eps_dd"] * UP
    assert plan.learn_steps >= 1
    assert plan.delete_steps >= 1
    try:
        plan = plan_convex(make(**shape), order=order, target_risk=risk, **budgets, **options)
    except CertificateRefused:  # the target is below what this noise allows
        return
    certificate = plan.certificate()
    check_sane(certificate)
    assert certificate.risk_bound <= risk * UP
    assert certificate.eps_dp <= budgets["eps_dp"] * UP
    assert certificate.eps_dd <= budgets["eps_dd"] * UP


@settings(max_examples=soak(10, 25))
@given(delta=powers(-300, -0.01), **{k: v for k, v in SHAPES.items() if k != "order"})
def test_gaussian(delta, n, dim, edits, adaptivity, request, **shape):
    budgets = {name: shape.pop(name) for name in ("eps_dp", "eps_dd")}
    plan = plan_convex(
        make(**shape), n=n, dim=dim, delta=delta, edits_per_request=min(edits, n), **budgets
    )
    certificate = check_monotone(plan, adaptivity, request)
    assert certificate.eps_dp <= budgets["eps_dp"] * (1 + 1e-6)
    assert certificate.eps_dd <= budgets["eps_dd"] * (1 + 1e-6)


@settings(max_examples=soak(30, 60))
@given(form=st.sampled_from(["sharp", "refined", "tuned", "paper"]), bound=powers(-3, 3), **SHAPES)
def test_nonconvex(form, bound, n, dim, edits, adaptivity, request, order, **shape):
    budgets = {name: shape.pop(name) for name in ("eps_dp", "eps_dd")}
    plan = plan_nonconvex(
        make(**shape, bound=bound, convex=False),
        n=n,
        dim=dim,
        order=order,
        edits_per_request=min(edits, n),
        form=form,
        **budgets,
    )
    certificate = plan.certificate(adaptivity, request)
    for field in ("eps_dp", "eps_dd", "eps_dd_adaptive", "advantage_bound", "risk_bound"):
        assert getattr(certificate, field) >= 0
    assert certificate.eps_dp_run <= budgets["eps_dp"] * UP
    assert certificate.eps_dd <= budgets["eps_dd"] * UP
    later = plan.certificate(adaptivity, request + 1)
    assert later.eps_dp >= certificate.eps_dp / UP
    assert later.eps_dd_adaptive >= certificate.eps_dd_adaptive / UP
    assert Certificate.from_json(certificate.to_json(), certificate.plan.problem) == certificate


@settings(max_examples=20)
@given(steps=powers(0, 9).map(int), **SHAPES)
def test_composition(steps, n, dim, edits, adaptivity, request, order, eps_dp, eps_dd, **shape):
    plan = plan_composition(
        make(**shape),
        n=n,
        dim=dim,
        order=order,
        eps_dp=eps_dp,
        learn_steps=steps,
        delete_steps=edits,
        num_requests=request,
        step_size=eps_dd,
    )
    certificate = plan.certificate(adaptivity, request)
    check_sane(certificate)
    assert certificate.eps_dp <= eps_dp * UP
    assert certificate.eps_dd <= certificate.eps_dp * UP
