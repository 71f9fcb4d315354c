"""Verdicts: true claims stand, false ones fall, one risk for all, and the power is what it says."""

import json

import numpy as np
import pytest
from problems import soak
from scipy import stats

import dd_jax as dd
from dd_jax.audit import (
    AdvantageClaim,
    ApproximateClaim,
    GaussianClaim,
    RenyiClaim,
    audit,
    likelihood_ratio,
    linear,
    of_certificate,
)
from dd_jax.errors import InputError
from dd_jax.guarantees import renyi
from dd_jax.intervals import clopper_pearson

FIRST = likelihood_ratio(lambda table: table[:, 0])
SIGN = likelihood_ratio(lambda table: -table[:, 0], "reversed")


def shifted(mu, seeds=20_000, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(seeds, 1)) + mu, rng.normal(size=(seeds, 1))


def truths(mu, order=3.0, epsilon=0.5):
    """The exact value of each claim for N(μ, 1) and N(0, 1), by claim maker."""
    return {
        "renyi": (lambda v: RenyiClaim(order, v), order * mu**2 / 2),
        "one-sided": (lambda v: RenyiClaim(order, v, two_sided=False), order * mu**2 / 2),
        "linear": (lambda v: RenyiClaim(order, v, linear_in_order=True), order * mu**2 / 2),
        "with mu": (
            lambda v: RenyiClaim(order, v, mu=float(np.sqrt(2 * v / order))),
            order * mu**2 / 2,
        ),
        "mu": (GaussianClaim, mu),
        "delta": (lambda v: ApproximateClaim(epsilon, v), renyi.gdp_delta(mu, epsilon)),
        "advantage": (AdvantageClaim, renyi.advantage_from_gdp(mu)),
    }


@pytest.mark.parametrize("name", list(truths(1.0)))
def test_true_claims_stand_and_false_ones_fall(name):
    make, exact = truths(0.8)[name]
    pair = shifted(0.8)
    right = audit(pair, make(exact), scores=FIRST, exact=exact)
    (verdict,) = right.verdicts
    assert right.consistent
    assert verdict.lower_bound.value <= exact < verdict.detectable
    # What the power says is caught: the claim that this truth exceeds by as much.
    factor = verdict.detectable / exact
    wrong = audit(pair, make(exact / factor**1.5), scores=FIRST)
    assert wrong.refuted
    assert wrong.verdicts[0].lower_bound.value > wrong.verdicts[0].claim.claimed


def test_the_bound_is_in_the_claim_s_own_unit():
    pair = shifted(1.0)
    mu = audit(pair, GaussianClaim(1.0), scores=FIRST).verdicts[0].lower_bound.value
    cases = [
        (RenyiClaim(3, 1.5, mu=1.0), 3 * mu**2 / 2),
        (ApproximateClaim(0.5, 0.1, mu=1.0), renyi.gdp_delta(mu, 0.5)),
    ]
    for claim, expected in cases:
        (verdict,) = audit(pair, claim, scores=FIRST).verdicts
        assert verdict.best.gate == "gaussian_mu"
        assert verdict.lower_bound.value == pytest.approx(expected)
    low, high = (
        audit(pair, RenyiClaim(q, q / 2, linear_in_order=True), scores=FIRST).verdicts[0]
        for q in (2.0, 8.0)
    )
    assert high.lower_bound.value == pytest.approx(4 * low.lower_bound.value)
    assert high.detectable == pytest.approx(4 * low.detectable)


def test_a_renyi_claim_alone_never_goes_through_gaussian_dp():
    # R_2 = log 1.5 = 0.405 both ways, but the best μ-GDP claim has 2μ²/2 = 0.742.
    rng = np.random.default_rng(1)
    coins = [rng.random((20_000, 1)) < p for p in (2 / 3, 1 / 3)]
    claim = RenyiClaim(2, float(np.log(1.5)) + 1e-3)
    gaussian = RenyiClaim(2, claim.eps, mu=float(np.sqrt(claim.eps)))
    assert audit(coins, gaussian, scores=FIRST).refuted
    report = audit(coins, claim, scores=FIRST)
    assert {finding.gate for finding in report.verdicts[0].tests} == {"renyi_bins"}
    assert report.consistent
    with pytest.raises(InputError, match="gates"):
        audit(coins, claim, scores=FIRST, gates=["gaussian_mu"])


def test_only_a_linear_claim_is_judged_at_a_lower_order():
    # R_8 = 0.594 and R_2 = 0.405: true at order 8, false if it were linear in the order.
    rng = np.random.default_rng(1)
    coins = [rng.random((20_000, 1)) < p for p in (2 / 3, 1 / 3)]
    exact = np.log(2**8 / 3 + 2**-7 / 3) / 7
    assert audit(coins, RenyiClaim(8, exact), scores=FIRST).consistent
    assert audit(coins, RenyiClaim(8, exact, linear_in_order=True), scores=FIRST).refuted


def test_the_power_of_several_gates_is_that_of_the_best():
    gates = ("renyi_binary", "renyi_bins")
    report = audit(shifted(0.5, 2000), RenyiClaim(2, 0.25), scores=FIRST, gates=gates)
    caught = [finding.detectable for finding in report.verdicts[0].tests]
    assert report.verdicts[0].detectable == min(caught) < max(caught)


def test_each_direction_of_a_two_sided_claim_is_tested():
    # P ≪ Q with a rare event of Q that P never makes: R_2(P‖Q) is small, R_2(Q‖P) infinite.
    rng = np.random.default_rng(2)
    present = np.zeros((20_000, 1))
    absent = -1.0 * (rng.random((20_000, 1)) < 0.2)
    eps = -np.log(0.8) + 0.01
    one = audit((present, absent), RenyiClaim(2, eps, two_sided=False), scores=FIRST)
    both = audit((present, absent), RenyiClaim(2, eps), scores=FIRST)
    assert one.consistent
    assert both.refuted
    assert both.verdicts[0].best.direction == "Q‖P"
    turned = audit((absent, present), RenyiClaim(2, eps, two_sided=False), scores=SIGN)
    assert turned.refuted


def test_a_claim_about_the_gibbs_law_is_not_tested_between_neighbours():
    """The worst pair that a Gibbs-law claim allows: true, and a two-arm Rényi gate refutes it."""
    problem = dd.Problem(dd.losses.tanh_margin(), l2=0.1)
    plan = dd.plan_nonconvex(problem, n=500, dim=3, order=2, eps_dp=1.0, eps_dd=0.2)
    certificate = plan.certificate()
    # Gibbs N(0, 1); the two runs lie at ±a with R_2(run ‖ Gibbs) = a² = ε_dd, as claimed.
    distance = np.sqrt(certificate.eps_dd)
    present, absent = shifted(2 * distance)
    pair = present - distance, absent - distance
    assert audit(pair, RenyiClaim(2, certificate.eps_dd), scores=FIRST).refuted
    ours = audit(pair, of_certificate(certificate, "deletion"), scores=FIRST)
    assert ours.consistent
    # Against samples of the Gibbs law itself the one-sided Rényi gate is sound.
    gibbs = shifted(0.0, seed=3)[1]
    claim = RenyiClaim(2, certificate.eps_dd, two_sided=False)
    assert audit((pair[0], gibbs), claim, scores=FIRST).consistent


def test_the_risk_is_split_over_everything_that_is_tested():
    pair = shifted(0.5, seeds=400)
    claims = [RenyiClaim(2, 1.0), AdvantageClaim(0.5), RenyiClaim(2, 1.0, two_sided=False)]
    report = audit(pair, claims, scores=[FIRST, linear()], gates=("renyi_binary", "advantage"))
    assert report.tests == 2 * (2 + 1 + 1)
    for verdict in report.verdicts:
        for finding in verdict.tests:
            assert finding.lower_bound.confidence == pytest.approx(1 - 0.05 / 8)
        assert verdict.lower_bound.confidence == 0.95
    assert [f.score for f in report.verdicts[1].tests] == ["likelihood ratio", "linear"]
    assert {f.lower_bound.seeds for f in report.verdicts[1].tests} == {320, 200}


def test_false_alarms_of_a_whole_report_are_rarer_than_the_risk():
    rng = np.random.default_rng(4)
    claims = [AdvantageClaim(0.0), GaussianClaim(0.0), ApproximateClaim(0.0, 0.0)]
    alarms = 0
    replays = soak(80, 300)
    for _ in range(replays):
        present, absent = rng.normal(size=(2, 200, 3))
        alarms += audit((present, absent), claims, confidence=0.8).refuted
    assert clopper_pearson(alarms, replays, 0.999)[0] <= 0.2


def test_the_power_is_what_it_says():
    claim = GaussianClaim(0.3)
    caught = audit(shifted(0.3, 2000), claim, scores=FIRST).verdicts[0].detectable
    replays = soak(100, 300)
    hits = sum(
        audit(shifted(caught, 2000, seed), claim, scores=FIRST).refuted for seed in range(replays)
    )
    low, high = clopper_pearson(hits, replays, 0.999)
    assert low <= 0.9 <= high + 0.05


def test_arms_that_never_overlap_refute_and_equal_constants_do_not():
    ones = np.ones((500, 2))
    claims = [RenyiClaim(2, 1.0), GaussianClaim(1.0), AdvantageClaim(0.9), ApproximateClaim(1, 0.1)]
    assert all(v.refuted for v in audit((ones + 1e-3, ones), claims).verdicts)
    assert all(v.refuted for v in audit((ones, ones + 1e-3), claims).verdicts)
    nothing = [RenyiClaim(2, 0.0), GaussianClaim(0.0), AdvantageClaim(0.0), ApproximateClaim(0, 0)]
    assert audit((ones, ones), nothing).consistent


def test_an_infinite_claim_is_never_refuted_and_says_so():
    ones = np.ones((100, 1))
    report = audit((ones + 1, ones), RenyiClaim(2, np.inf), scores=FIRST)
    assert report.consistent
    assert report.verdicts[0].detectable is None
    assert json.loads(report.to_json())["verdicts"][0]["claimed"] == "inf"


@pytest.mark.parametrize("claim", [AdvantageClaim(0.05), GaussianClaim(0.1)])
def test_an_audit_that_could_not_have_noticed_a_threefold_violation_says_so(claim):
    report = audit(shifted(0.05, 300), claim, scores=FIRST)
    (verdict,) = report.verdicts
    assert verdict.consistent
    assert verdict.blind
    assert verdict.detectable > 3 * claim.claimed
    # As few seeds as the two digits allow.
    needed = verdict.seeds_needed
    assert verdict.reach(needed) <= 3 * claim.claimed < verdict.reach(round(needed / 1.3))
    assert verdict.warning in str(report).splitlines()[0]  # before anything else
    assert f"{needed:,}" in verdict.warning
    assert (verdict.to_dict()["blind"], verdict.to_dict()["seeds_needed"]) == (True, needed)
    # The seeds that are named do it.
    (enough,) = audit(shifted(0.05, needed), claim, scores=FIRST).verdicts
    assert (enough.blind, enough.seeds_needed, enough.warning) == (False, None, "")


def test_nothing_is_missed_where_there_is_no_threefold_violation():
    pair = shifted(0.0, 100)
    for claim in (GaussianClaim(0.0), AdvantageClaim(0.34), RenyiClaim(2, np.inf)):
        (verdict,) = audit(pair, claim, scores=FIRST).verdicts
        assert (verdict.blind, verdict.seeds_needed, verdict.warning) == (False, None, "")
    (refuted,) = audit(shifted(9.0, 100), AdvantageClaim(0.01), scores=FIRST).verdicts
    assert refuted.refuted
    assert not refuted.blind


def test_only_a_certificates_number_is_called_certified():
    problem = dd.Problem(dd.losses.linear(), l2=0.5)
    plan = dd.plan_convex(problem, n=20, dim=1, order=2, eps_dp=1.0, eps_dd=0.3, step_size=0.4)
    ours = of_certificate(plan.certificate(), "advantage")
    for claim, certified in ((ours, ours.claimed), (AdvantageClaim(ours.claimed), None)):
        (verdict,) = audit(shifted(0.1, 4000), claim, scores=FIRST).verdicts
        assert ("certified" in verdict.evidence) == (certified is not None)
        assert (verdict.to_dict()["claimed"], verdict.to_dict()["certified"]) == (
            ours.claimed,
            certified,
        )


def test_a_report_serialises():
    report = audit(
        shifted(1.0, 4000),
        [GaussianClaim(2.0, name="mine"), AdvantageClaim(0.1)],
        scores=FIRST,
        exact=[1.0, None],
        confidence=0.9,
    )
    assert report.refuted
    assert not report.consistent
    first, second = report.verdicts
    assert "mine" in str(first)
    plain = json.loads(report.to_json())
    assert (plain["refuted"], plain["seeds"], plain["tests"]) == (True, 4000, 2)
    assert plain["verdicts"][0] == first.to_dict()
    assert plain["verdicts"][0]["audited"] <= plain["verdicts"][0]["exact"] <= 2.0
    assert plain["verdicts"][1]["exact"] is None
    assert plain["verdicts"][1]["verdict"] == second.word == "refuted"
    assert plain["verdicts"][0]["seeds"] == 3200


def test_the_score_s_orientation_is_found_by_fisher():
    present, absent = shifted(-1.0, 2000)
    assert audit((present, absent), AdvantageClaim(0.2)).refuted
    assert audit((present, absent), AdvantageClaim(0.2), scores=FIRST).consistent


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"confidence": 1.0}, "confidence"),
        ({"confidence": "high"}, "confidence"),
        ({"claims": []}, "claims"),
        ({"scores": []}, "scores"),
        ({"gates": ["advantage"]}, "gates"),
        ({"exact": [1.0, 2.0]}, "exact"),
        ({"power": 1.5}, "power"),
        ({"pair": (np.zeros(9), np.zeros(8))}, "shapes"),
        ({"pair": (np.zeros(9), np.full(9, np.nan))}, "absent"),
        ({"pair": (np.zeros(9), np.zeros(9))}, "too few"),
        ({"confidence": 1 - 1e-12, "pair": (np.zeros(60), np.zeros(60))}, "too few"),
    ],
)
def test_bad_input_is_refused(change, word):
    call = {"pair": (np.zeros(50), np.ones(50)), "claims": RenyiClaim(2, 1.0), **change}
    with pytest.raises(InputError, match=word):
        audit(call.pop("pair"), call.pop("claims"), **call)


def test_a_bound_read_through_mu_says_so():
    """Coins Φ(±1/2) are 1-GDP, but their divergence is far below that of two Gaussians."""
    side = stats.norm.rvs(size=(2, 20_000, 1), random_state=0) + np.array([[[0.5]], [[-0.5]]]) > 0
    pair = tuple(side.astype(float))
    claim, truth = RenyiClaim(2, 1.0, mu=1.0), 0.5231
    through = audit(pair, claim, exact=truth).verdicts[0]
    assert through.lower_bound.value > truth  # a bound on μ, not on R₂
    assert through.best.through_mu
    assert through.to_dict()["through_mu"]
    itself = audit(pair, claim, exact=truth, gates=["renyi_binary"]).verdicts[0]
    assert itself.lower_bound.value < truth
    assert not itself.best.through_mu
    stated = audit(pair, GaussianClaim(1.0)).verdicts[0]
    assert not stated.best.through_mu
