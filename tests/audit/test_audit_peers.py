"""Agreement with others: dp_accounting always, jax_privacy's auditor where it is installed."""

import dp_accounting
import numpy as np
import pytest
from dp_accounting import pld, rdp
from scipy import special

from dd_jax.audit import bounds, power, tails
from dd_jax.guarantees import renyi

MU, CONFIDENCE = 0.8, 0.95


@pytest.fixture(scope="module")
def sample():
    present, absent = (arm[0] for arm in power.shifted_normals(MU).draw((1, 5000), 0))
    return present[:1000], absent[:1000], present[1000:], absent[1000:]


def gaussian_mechanism(mu: float):
    """dp_accounting's privacy loss of N(0, σ²) noise on a sum of sensitivity 1, σ = 1/μ."""
    return pld.privacy_loss_mechanism.GaussianPrivacyLoss(standard_deviation=1 / mu, sensitivity=1)


def test_the_best_event_is_dp_accountings_hockey_stick():
    """The largest P(E) - e^ε Q(E) over thresholds is δ(ε) of the Gaussian mechanism."""
    z = np.linspace(-8, 8, 40_001)
    for mu in (0.3, 1.0, 2.5):
        for epsilon in (0.0, 0.5, 2.0):
            events = bounds.excess_mass(special.ndtr(mu - z), special.ndtr(-z), epsilon=epsilon)
            theirs = gaussian_mechanism(mu).get_delta_for_epsilon(epsilon)
            assert np.max(events) == pytest.approx(theirs, rel=1e-5)
            assert renyi.gdp_delta(mu, epsilon) == pytest.approx(theirs, rel=1e-6)


def test_a_bound_on_mu_is_a_bound_on_dp_accountings_epsilon(sample):
    """μ to ε at δ by the exact profile; and the audited ε lies below the true mechanism's."""
    mu = bounds.gaussian_mu(*sample, confidence=CONFIDENCE).value
    for delta in (1e-2, 1e-5):
        theirs = dp_accounting.get_epsilon_gaussian(1 / mu, delta)
        assert renyi.gdp_epsilon(mu, delta) == pytest.approx(theirs, rel=1e-6)
        audited = bounds.epsilon_at(*sample, delta=delta, confidence=CONFIDENCE).value
        assert audited < dp_accounting.get_epsilon_gaussian(1 / MU, delta)


def test_the_audited_divergence_lies_below_dp_accountings(sample):
    accountant = rdp.RdpAccountant(orders=[2.0, 4.0])
    accountant.compose(dp_accounting.GaussianDpEvent(1 / MU))
    for order, theirs in zip((2.0, 4.0), accountant._rdp, strict=True):
        assert renyi.renyi_from_gdp(order, MU) == pytest.approx(theirs)
        for bound in (bounds.renyi_binary, bounds.renyi_bins, bounds.renyi_variational):
            audited = bound(*sample, order=order, confidence=CONFIDENCE).value
            assert 0.2 * theirs < audited < theirs


# --- jax_privacy ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def auditing():
    return pytest.importorskip("jax_privacy.auditing")


@pytest.mark.parametrize("delta", [0.0, 0.02])
@pytest.mark.parametrize("both_ways", [False, True])
def test_jax_privacys_auditor_finds_the_same_epsilon(auditing, delta, both_ways):
    """Coins leave one threshold to choose, and both spend α/2 on each arm."""
    for heads in ((900, 300), (990, 700), (400, 390)):
        present, absent = (np.repeat([1.0, 0.0], [k, 1000 - k]) for k in heads)
        ours = bounds.epsilon_at(
            present, absent, present, absent, delta=delta, confidence=0.95, both_ways=both_ways
        )
        theirs = auditing.CanaryScoreAuditor(present, absent).epsilon_clopper_pearson(
            0.05, delta, one_sided=not both_ways, threshold_strategy=auditing.Explicit(1.0)
        )
        assert ours.value == pytest.approx(theirs, rel=1e-9, abs=1e-12)


def test_jax_privacys_auditor_agrees_on_continuous_scores(auditing, sample):
    """At the threshold that part A chose; theirs counts scores at the threshold as positive."""
    value = bounds.both_or_one(
        lambda p, s: bounds.log_excess_ratio(p, s, delta=0.01), both_ways=True
    )
    seen = tails.view(tails.parts(sample, CONFIDENCE))
    threshold = seen.thresholds[bounds.choose_event(seen, value, CONFIDENCE)]
    auditor = auditing.CanaryScoreAuditor(*sample[2:])
    theirs = auditor.epsilon_clopper_pearson(
        1 - CONFIDENCE,
        0.01,
        one_sided=False,
        threshold_strategy=auditing.Explicit(np.nextafter(threshold, np.inf)),
    )
    ours = bounds.epsilon_at(*sample, delta=0.01, confidence=CONFIDENCE)
    assert ours.value == pytest.approx(theirs, rel=1e-9)
    assert ours.value > 0.5
