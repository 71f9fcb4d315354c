"""Claims: what each kind of certificate says about which samples, and what is not a claim."""

from dataclasses import replace

import numpy as np
import pytest

import dd_jax as dd
from dd_jax.audit import (
    AdvantageClaim,
    ApproximateClaim,
    GaussianClaim,
    RenyiClaim,
    of_certificate,
)
from dd_jax.audit.claims import claim_list, gates_for
from dd_jax.errors import InputError
from dd_jax.guarantees import inference, renyi

LOGISTIC = dd.Problem(dd.losses.logistic(), l2=0.1)
SETTING = {"n": 500, "dim": 3, "eps_dp": 1.0, "eps_dd": 0.2}


def convex(adaptivity=0, **more):
    plan = dd.plan_convex(LOGISTIC, **{**SETTING, "order": 4, **more})
    return plan.certificate(adaptivity, request=3)


def nonconvex(adaptivity=0):
    problem = dd.Problem(dd.losses.tanh_margin(), l2=0.1)
    plan = dd.plan_nonconvex(problem, order=4, **SETTING)
    return plan.certificate(adaptivity, request=3)


@pytest.mark.parametrize(
    ("which", "adaptivity", "at_request", "field"),
    [
        ("dp", 0, False, "eps_dp"),
        ("dp", 2, False, "eps_dp_adaptive"),
        ("dp", 0, True, "eps_dp_request"),
        ("dp-joint", 0, False, "eps_dp_joint"),
        ("dp-joint", 2, True, "eps_dp_joint"),
        ("deletion", 0, False, "eps_dd"),
        ("deletion", 2, False, "eps_dd"),
        ("deletion", 0, True, "eps_dd_request"),
        ("deletion-adaptive", 2, False, "eps_dd_adaptive"),
        ("deletion-adaptive", 2, True, "eps_dd_request"),
        ("deletion-null", 2, False, "eps_dd_null"),
        ("deletion-null-adaptive", 2, False, "eps_dd_null_adaptive"),
    ],
)
def test_a_convex_certificate_s_claims(which, adaptivity, at_request, field):
    certificate = convex(adaptivity)
    claim = of_certificate(certificate, which, at_request=at_request)
    eps = getattr(certificate, field)
    assert (claim.order, claim.eps, claim.claimed) == (4, eps, eps)
    assert claim.two_sided
    assert claim.linear_in_order
    assert claim.mu == pytest.approx(np.sqrt(2 * eps / 4))


def test_the_gaussian_claim_is_made_only_where_the_certificate_proves_it():
    for accountant in ("paper", "unrelaxed"):
        certificate = convex(accountant=accountant)
        for which in ("dp", "dp-joint", "deletion", "deletion-adaptive"):
            claim = of_certificate(certificate, which)
            assert claim.mu is None
            assert claim.linear_in_order
    composition = dd.plan_composition(
        LOGISTIC,
        n=500,
        dim=3,
        order=2,
        eps_dp=1.0,
        learn_steps=5,
        delete_steps=2,
        num_requests=3,
        step_size=0.1,
    ).certificate(request=3)
    assert of_certificate(composition, "deletion").mu == pytest.approx(composition.mu_dd)


def test_each_claim_is_gaussian_by_its_own_proof():
    proofs = {
        "dp": "mu_dp",
        "dp-joint": "mu_dp",
        "deletion": "mu_dd",
        "deletion-adaptive": "mu_dd_adaptive",
    }
    for missing in proofs.values():
        certificate = replace(convex(adaptivity=1), **{missing: None})
        for which, proof in proofs.items():
            assert (of_certificate(certificate, which).mu is None) == (proof == missing)


def test_a_joint_claim_says_how_many_releases_it_covers():
    """Request 3 is answered by the fourth release."""
    assert " 4 " in of_certificate(convex(), "dp-joint").name


def test_a_claim_about_the_gibbs_law_becomes_an_advantage():
    certificate = nonconvex()
    for which in ("deletion", "deletion-adaptive", "advantage"):
        claim = of_certificate(certificate, which)
        assert isinstance(claim, AdvantageClaim)
        assert claim.bound == certificate.advantage_bound
        assert claim.bound <= np.sqrt(2 * certificate.eps_dd)
    tighter = of_certificate(certificate, "deletion", at_request=True)
    assert tighter.bound <= certificate.advantage_bound


def test_the_run_sum_of_a_nonconvex_certificate_compares_neighbours():
    certificate = nonconvex(adaptivity=1)
    claim = of_certificate(certificate, "deletion-adaptive")
    assert (claim.eps, claim.two_sided) == (certificate.eps_dd_adaptive, True)
    assert claim.mu == pytest.approx(certificate.mu_dd_adaptive)
    # The claim for requesters that saw nothing stays one about the Gibbs law.
    gibbs = of_certificate(certificate, "deletion")
    sound = inference.advantage_soundness(4, certificate.eps_dd)
    assert gibbs.bound == pytest.approx(min(sound, certificate.advantage_bound))
    assert of_certificate(certificate, "dp").mu == pytest.approx(certificate.mu_dp)


def test_a_certificate_in_epsilon_and_delta():
    certificate = convex(order=None, delta=1e-5)
    claim = of_certificate(certificate, "deletion")
    assert isinstance(claim, ApproximateClaim)
    assert (claim.epsilon, claim.delta) == (certificate.eps_dd, 1e-5)
    assert renyi.gdp_delta(claim.mu, claim.epsilon) == pytest.approx(1e-5)
    assert claim.mu == pytest.approx(certificate.mu_dd)


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda: RenyiClaim(eps=0.1), "order"),
        (lambda: RenyiClaim(2), "eps"),
        (lambda: RenyiClaim(1.0, 0.1), "order"),
        (lambda: RenyiClaim(1 + 1e-9, 0.1), "near 1"),
        (lambda: RenyiClaim(2, np.nan), "eps"),
        (lambda: RenyiClaim(2, 0.1, mu=-1.0), "mu"),
        (lambda: GaussianClaim(-1.0), "mu"),
        (lambda: ApproximateClaim(-1.0, 0.1), "epsilon"),
        (lambda: ApproximateClaim(1.0, 1.1), "delta"),
        (lambda: ApproximateClaim(1.0, 0.1, mu=-1.0), "mu"),
        (lambda: AdvantageClaim(1.1), "bound"),
        (lambda: gates_for(GaussianClaim(1.0), "gaussian_mu"), "list"),
        (lambda: gates_for(GaussianClaim(1.0), ["gaussian_mu", "gausian"]), "'gausian'"),
        (lambda: claim_list([]), "claims"),
        (lambda: claim_list([RenyiClaim(2, 1), 0.1]), "RenyiClaim"),
        (lambda: claim_list(convex()), "of_certificate"),
        (lambda: of_certificate(0.1), "Certificate"),
        (lambda: of_certificate(convex(), "erasure"), "which"),
        (lambda: of_certificate(convex(1), "deletion", at_request=True), "deletion-adaptive"),
        (lambda: of_certificate(nonconvex(), "deletion-null"), "eps_dd_null"),
    ],
)
def test_what_is_not_a_claim_is_refused(make, word):
    with pytest.raises(InputError, match=word):
        make()


def test_one_claim_need_not_be_in_a_list():
    claim = AdvantageClaim(0.1)
    assert claim_list(claim) == claim_list([claim]) == (claim,)
