"""Plans with batches, with steps that vary, and against the null reference."""

import dataclasses
import math

import numpy as np
import pytest

from dd_jax.constants import LossConstants, ProblemConstants
from dd_jax.errors import CertificateRefused, InputError
from dd_jax.guarantees import renyi
from dd_jax.oracles import linear
from dd_jax.plans import Certificate, Plan, plan_convex
from dd_jax.plans.convex import NOISE_SLACK, batch_options

LOSS = LossConstants("test loss", True, True, lipschitz=1.0, smoothness=0.25)
PROBLEM = ProblemConstants(LOSS, 1e-3)
SIZES = {"n": 11_982, "dim": 10}
GAUSSIAN = {"eps_dp": 1.0, "eps_dd": 0.1, "delta": 1 / 11_982}
RENYI = {"eps_dp": 1.0, "eps_dd": 0.1, "order": 2}
LEARN = tuple((1.0 - 0.02 * k, 1.0 + 0.1 * k) for k in range(12))
DELETE = ((1.0, 1.0), (0.5, 2.0), (0.9, 0.7))
QUICK = {"n": 97, "dim": 3, "eps_dp": 1.0, "eps_dd": 0.3, "order": 2}
STEEP = ProblemConstants(LOSS, 0.2)
# Of a plan of full batches, written before there were others.
FINGERPRINT = (3925620631, 562660936, 3321956924, 1868229146)


def exact(plan, request, batch, record):
    """R_q of the linear loss: a row of this batch holds a record until the request deletes it.

    Two worlds that hold x and -x have gradients 2L/b apart (`record` = 2), x and nothing L/b.
    """
    ones = ((1.0, 1.0),)
    learn = plan.learn_factors or ones * plan.learn_steps
    both = np.array([*learn, *(plan.delete_factors or ones * plan.delete_steps) * request])
    step = np.arange(len(both))
    used = (step % plan.batches == batch) & (step < len(both) - plan.delete_steps)
    gap = record * used / (plan.n // plan.batches)
    etas, noises = plan.step_size * both[:, 0], plan.noise_variance * both[:, 1]
    return linear.renyi_of_steps(2.0, plan.problem.l2, gap, noises, etas)


def test_a_record_that_follows_the_batches_counts_once_for_each():
    """Every request moves it to the batch of the next step, so that it is in all of them."""
    plan = plan_convex(STEEP, **QUICK, batches=2, learn_steps=9, delete_steps=1)
    step = np.arange(9 + 50)
    used = ((step < 9) & (step % 2 == 0)) | ((step >= 9) & (step < len(step) - 1))
    etas = np.full(len(step), plan.step_size)
    noises = np.full(len(step), plan.noise_variance)
    gap = 2 * used / (plan.n // 2)
    moved = linear.renyi_of_steps(2.0, plan.problem.l2, gap, noises, etas)
    certificate = plan.certificate(request=50, records=2)
    assert certificate.eps_dd < 0.7 * moved
    assert moved <= certificate.eps_dd_records
    stated = [str(assumption) for assumption in certificate.assumptions]
    assert any("several batches" in text for text in stated)
    whole = plan_convex(STEEP, **QUICK).certificate()
    assert not any("several batches" in str(assumption) for assumption in whole.assumptions)


PLANS = {
    "batches": {"batches": 5},
    "uneven": {"batches": 7, "reference": "null"},
    "factors": {"learn_factors": np.array(LEARN), "delete_factors": DELETE},
    "both": {"batches": 4, "learn_steps": 9, "delete_factors": DELETE, "reference": "null"},
    "steps": {"batches": 3, "learn_steps": 20, "delete_steps": 2},
}


@pytest.fixture(scope="module", params=PLANS)
def plan(request):
    return plan_convex(STEEP, **QUICK, **PLANS[request.param])


def test_budgets_are_met_and_nothing_is_wasted(plan):
    certificate = plan.certificate()
    reached = certificate.eps_dd_null if plan.reference == "null" else certificate.eps_dd
    assert certificate.eps_dp <= 1.0 * (1 + 1e-9)
    assert reached <= 0.3 * (1 + 1e-9)
    tight = max(certificate.eps_dp, reached / 0.3)
    assert tight == pytest.approx(1, rel=1e-9)
    assert certificate.eps_dd_null == pytest.approx(certificate.eps_dd / 4, rel=1e-12)


@pytest.mark.parametrize(
    ("batches", "reference", "steps"),
    [(1, "replaced", 289), (1, "null", 115), (10, "replaced", 274), (10, "null", 101)],
)
def test_the_fewest_steps_for_each_reference(batches, reference, steps):
    eps_dp = renyi.gdp_from_epsilon_delta(1.0, 1 / 11_982) ** 2
    asked = {"order": 2, "eps_dp": eps_dp, "eps_dd": eps_dp / 10}
    plan = plan_convex(PROBLEM, **SIZES, **asked, batches=batches, reference=reference)
    assert plan.delete_steps == steps


def test_no_risk_is_bounded_over_batches_where_gradients_are_not():
    loss = LossConstants("test loss", True, True, smoothness=1.0, label_sensitivity=2.0)
    asked = {"order": 2, "eps_dp": 10.0, "eps_dd": 9.0, "protects": "label", "step_size": 0.01}
    for batches, bounded in ((1, True), (2, False)):
        plan = plan_convex(ProblemConstants(loss, 1.0), n=10_000, dim=1, batches=batches, **asked)
        assert (plan.certificate().risk_bound is not None) == bounded


def test_certificates_cover_the_linear_loss_in_every_batch(plan):
    for request in (1, 2, 5):
        certificate = plan.certificate(request=request)
        for batch in range(plan.batches):
            two_worlds, null = (exact(plan, request, batch, record) for record in (2, 1))
            assert two_worlds <= certificate.eps_dd_request * (1 + 1e-9)
            assert two_worlds <= certificate.eps_dd * (1 + 1e-9)
            assert null <= certificate.eps_dd_null * (1 + 1e-9)
    # The advantage is about telling two records apart, whatever the reference.
    mu = renyi.gdp_from_linear_renyi(2, certificate.eps_dd_adaptive)
    assert certificate.advantage_bound == pytest.approx(math.erf(mu / math.sqrt(8)), rel=1e-9)


def test_adaptive_terms_against_the_null_record_are_a_quarter_too(plan):
    seen = plan.certificate(adaptivity=3)
    together = seen.eps_dd + 3 * seen.eps_dp
    assert seen.eps_dd_adaptive == pytest.approx(together, rel=1e-12)
    assert seen.eps_dd_null_adaptive == pytest.approx(together / 4, rel=1e-12)
    assert seen.of_record(0.5) == pytest.approx(together / 16, rel=1e-12)


def test_plans_and_certificates_survive_their_files(plan):
    read = Plan.from_json(plan.to_json(), STEEP)
    assert read == plan
    assert read.fingerprint == plan.fingerprint
    certificate = plan.certificate(request=2, observed=[0])
    assert Certificate.from_json(certificate.to_json(), STEEP).is_genuine(STEEP)
    plain = plan_convex(STEEP, **QUICK)
    others = {plain.fingerprint} | {
        dataclasses.replace(plain, **{name: getattr(plan, name)}).fingerprint
        for name in ("batches", "reference")
        if getattr(plan, name) != getattr(plain, name)
    }
    assert plan.fingerprint not in others


def test_plans_of_full_batches_are_written_as_before():
    plan = plan_convex(PROBLEM, **SIZES, **RENYI)
    assert not {"batches", "reference", "factors"} & set(
        plan.to_json().replace("_", '"').split('"')
    )
    assert plan.fingerprint == FINGERPRINT
    assert dataclasses.replace(plan, batches=1, reference="replaced").fingerprint == FINGERPRINT


def test_the_null_reference_is_named_for_what_it_is():
    plan = plan_convex(STEEP, **QUICK)
    several = dataclasses.replace(plan, edits_per_request=2)
    assert "variant" not in plan.certificate().comparator_null
    for certificate in (
        several.certificate(),
        several.certificate(records=1),
        plan.certificate(request=3, first_inserted=1),
        plan.certificate(adaptivity=1),  # the row may have been chosen by what was seen
    ):
        assert "variant" in certificate.comparator_null


# --- the number of batches is chosen --------------------------------------------------------------


def test_automatic_batches_are_the_cheapest_option():
    asked = {**SIZES, **GAUSSIAN, "step_size": 1 / 0.251}
    options = batch_options(PROBLEM, **asked)
    plan = plan_convex(PROBLEM, batches="auto", **asked)
    full, chosen = options[0], min(options, key=lambda option: option.gradients)
    assert full.plan.batches == 1
    assert chosen.plan == plan
    assert chosen.gradients < full.gradients / 5
    assert all(option.noise <= NOISE_SLACK for option in options)
    for option in options:
        cost = option.plan.learn_gradients + 100 * option.plan.delete_gradients
        assert option.gradients == cost
        assert option.plan.certificate().eps_dp <= 1 + 1e-9


def test_automatic_batches_leave_out_what_has_no_certificate():
    """Noise of one's own, or the paper's accountant, allow few batches or none."""
    asked = {**SIZES, **GAUSSIAN, "step_size": 1 / 0.251}
    noise = 1.2 * plan_convex(PROBLEM, **asked).noise_variance
    plan = plan_convex(PROBLEM, batches="auto", noise_variance=noise, **asked)
    assert plan.batches > 1
    assert plan.noise_variance == noise
    with pytest.raises(CertificateRefused, match="noise_variance"):
        plan_convex(PROBLEM, batches="auto", noise_variance=noise / 2, **asked)
    paper = plan_convex(PROBLEM, batches="auto", accountant="paper", **SIZES, **RENYI)
    assert paper.batches == 1


def test_halves_of_the_step_size_are_tried_where_none_is_given():
    options = batch_options(STEEP, **QUICK)
    cheaper = [option for option in options if option.plan.step_size < options[0].plan.step_size]
    assert cheaper
    for option in cheaper:
        batches = option.plan.batches
        whole = plan_convex(STEEP, **QUICK, batches=batches)
        noise = whole.init_variance / options[0].plan.init_variance
        assert noise > NOISE_SLACK or whole.delete_steps * 100 > option.gradients * batches / 97


@pytest.mark.parametrize(
    ("asked", "name"),
    [
        ({"batches": 98}, "batches"),
        ({"batches": 0}, "batches"),
        ({"batches": 2, "accountant": "paper"}, "batches"),
        ({"batches": 2, "target_risk": 1.0}, "target_risk"),
        ({"batches": "auto", "delete_factors": DELETE, "learn_steps": 3}, "factors"),
        ({"delete_factors": DELETE}, "learn_steps"),
        ({"delete_factors": DELETE, "learn_steps": 3, "delete_steps": 4}, "delete_steps"),
        ({"delete_factors": ((1.0, -1.0),), "learn_steps": 3}, "delete_factors"),
        ({"delete_factors": ((90.0, 1.0),), "learn_steps": 3}, "step_size"),
        ({"delete_factors": (1.0, 1.0), "learn_steps": 3}, "delete_factors"),
        ({"delete_factors": 5, "learn_steps": 3}, "delete_factors"),
        ({"batches": np.array([1, 2])}, "batches"),
        ({"reference": "gibbs"}, "reference"),
        ({"reference": "null", "protects": "label"}, "label"),
    ],
)
def test_refusals(asked, name):
    with pytest.raises(InputError, match=name):
        plan_convex(STEEP, **QUICK, **asked)
