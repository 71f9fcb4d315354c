"""A release seen before the insertion: free for neighbouring runs, not for the Gibbs law."""

import jax
import pytest

from dd_jax.attacks import early_release, find
from dd_jax.erm import Problem
from dd_jax.intervals import Estimate
from dd_jax.losses import tanh_margin

PROBLEM = Problem(tanh_margin(), 1.0)
PLAN = early_release.make_plan(PROBLEM, early_release.EarlySettings())


def test_a_bit_of_an_early_release_leaves_the_gibbs_law():
    law = early_release.exact(PLAN, looks=True)
    assert law.renyi == pytest.approx(2.41, abs=0.01)
    assert law.renyi_joint > 3 * 0.25
    assert law.renyi_neighbours < 1e-12


def test_a_coin_does_not():
    law = early_release.exact(PLAN, looks=False)
    assert law.renyi == pytest.approx(law.renyi_joint, rel=1e-3)
    assert law.renyi < PLAN.certificate(request=3, first_inserted=2).eps_dd_request


def test_the_certificate_counts_the_early_release():
    certificate = early_release.certify(PLAN)
    law = early_release.exact(PLAN, looks=True)
    assert certificate.adaptivity == 1
    assert certificate.mu_dd_adaptive is not None
    assert law.renyi_neighbours <= certificate.eps_dd_adaptive


def test_measured_exact_and_certified():
    result = find("early-release").run(jax.random.key(0), seeds=4_000)
    assert [finding.refuted for finding in result.findings] == [True, False, False, False]
    seen, blind = result.rows
    assert seen["low"] > 0.8
    assert seen["renyi_low"] > 2
    assert blind["renyi_low"] < blind["renyi"] < blind["claimed"]


@pytest.mark.parametrize("renyi", [0.1, 0.3])
@pytest.mark.parametrize("renyi_low", [0.05, 0.35])
@pytest.mark.parametrize("neighbours", [0.0, 9.0])
def test_what_is_beyond_its_certificate_is_refuted(renyi, renyi_low, neighbours):
    estimate = Estimate(0.5, 0.4, 0.6, 100, 0.9)
    law = early_release.Exact(renyi, renyi, neighbours, 0.5, 0.0)
    found = early_release.Measured("", estimate, renyi_low, law)
    certificate = early_release.certify(PLAN)
    findings = early_release._findings(found, found, (), 0.25, certificate)
    assert [finding.refuted for finding in findings] == [
        renyi_low > 0.25,
        max(renyi, renyi_low) > 0.25,
        neighbours > 1,
        False,
    ]
