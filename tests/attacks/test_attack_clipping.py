"""Erratum E1: clipping a loss that is not a GLM breaks its convex certificate."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from problems import soak

import dd_jax as dd
from dd_jax import erm
from dd_jax.attacks import clipping, find
from dd_jax.attacks.separation import Separation
from dd_jax.errors import CertificateRefused
from dd_jax.intervals import advantage, simultaneous

KINDS = pytest.mark.parametrize("single_index", [False, True], ids=["not a GLM", "GLM"])


def one_row_per_record(records):
    count = np.asarray(records.count, int)
    rows = jax.tree.map(lambda leaf: jnp.asarray(np.repeat(np.asarray(leaf), count, 0)), records)
    return rows._replace(count=jnp.ones(count.sum(), jnp.float32))


@KINDS
@pytest.mark.parametrize("theta", [(0.0, 0.0), (-2.0, 1.0)])
def test_rows_with_counts_have_the_gradient_of_all_records(single_index, theta):
    records = clipping.database(clipping.shape(single_index=single_index), 1_000)
    problem = clipping.problem(single_index=single_index)
    theta = jnp.array(theta)
    short = erm.gradient(problem, theta, records)
    full = erm.reference_gradient(problem, theta, one_row_per_record(records))
    np.testing.assert_allclose(short, full, atol=2e-6)
    assert int(records.count.sum()) == 1_000


@KINDS
def test_the_mean_gradient_is_balanced_by_lawful_records(single_index):
    form = clipping.shape(single_index=single_index)
    assert np.linalg.norm(form.balance) <= 1
    assert np.linalg.norm(form.axis) == pytest.approx(1)
    np.testing.assert_allclose(np.linalg.norm(form.slopes, axis=1), 1.5)
    curvatures = np.linalg.eigvalsh(form.curvatures)
    assert curvatures.min() >= -1e-12
    assert curvatures.max() <= 1 + 1e-12
    records = clipping.database(form, 1_000_000)
    field = erm.gradient(clipping.problem(single_index=single_index), jnp.zeros(2), records)
    np.testing.assert_allclose(field, 0, atol=3e-6)


def field_along_axis(single_index, distance):
    form = clipping.shape(single_index=single_index)
    records = clipping.database(form, 1_000_000)
    problem = clipping.problem(single_index=single_index)
    ends = (jnp.asarray(side * distance * form.axis, jnp.float32) for side in (1, -1))
    ahead, behind = (erm.gradient(problem, theta, records) for theta in ends)
    return (ahead - behind) @ form.axis / (2 * distance)


def test_along_the_axis_the_regulariser_only_makes_up_for_the_clipped_losses():
    l2 = clipping.problem(single_index=False).l2
    assert 0.04 < l2 < 0.045
    assert abs(field_along_axis(False, 0.02)) < 0.02 * l2
    # The single-index twin is flat where it is clipped, so the regulariser contracts in full.
    assert field_along_axis(True, 0.02) == pytest.approx(l2, rel=0.02)


@pytest.mark.slow
def test_the_certificate_is_refuted_at_one_in_a_million_and_the_glms_is_not():
    result = find("clipping").run(jax.random.key(0), seeds=soak(800, 4_000))
    assert result.parameters["confidence"] == 1 - 1e-6
    assert [finding.refuted for finding in result.findings] == [True, False, False]
    assert not result.ours_refuted
    learned, deleted, twin_learned, twin_deleted = result.rows
    assert learned["renyi_at_least"] > 1.5 > learned["certified"] == pytest.approx(1)
    assert deleted["renyi_at_least"] > 1.5
    assert deleted["certified"] == pytest.approx(0.1, rel=0.01)
    assert twin_learned["renyi_at_least"] <= twin_learned["certified"] < 1
    assert twin_deleted["renyi_at_least"] <= twin_deleted["certified"]
    assert learned["renyi_at_least"] < result.theory["renyi_linearised_after_learning"]
    assert result.estimate.low > result.bound == pytest.approx(np.sqrt(0.1 / 4), rel=0.01)


def test_the_library_refuses_the_first_and_certifies_the_second():
    skew, twin = (clipping.problem(single_index=kind) for kind in (False, True))
    with pytest.raises(CertificateRefused, match="E1"):
        dd.plan_convex(skew, n=100_000, dim=2, order=2.0, eps_dp=1.0, eps_dd=0.1)
    assert clipping.refusal(skew, 100_000, 2.0) != ""
    assert clipping.refusal(twin, 100_000, 2.0) == ""


def test_a_certificate_that_was_issued_counts_against_us():
    issued = clipping._findings([], [], "")[2]
    assert issued.refuted
    assert issued.claim.owner == "ours"


def shown(learned, deleted):
    """Divergences at least these, after learning and after deletion."""
    estimate = advantage(5, 5, 10, 0.9)
    lows = {clipping.LEARNED: learned, clipping.DELETED: deleted}
    return {release: Separation(low, estimate) for release, low in lows.items()}


@pytest.mark.parametrize("lows", [(1.2, 0.0), (0.0, 0.2)])
def test_either_release_refutes_and_the_twin_is_held_to_the_tight_bounds(lows):
    stated = types.SimpleNamespace(eps_dp=1.0, eps_dd=0.1)
    tight = types.SimpleNamespace(eps_dp=0.5, eps_dd=0.05)

    def judged(skew, twin):
        rows = (clipping._rows("", skew, stated), clipping._rows("", twin, tight))
        return clipping._findings(*rows, "refused")

    claims = judged(shown(*lows), shown(*np.multiply(lows, 0.6)))
    assert [finding.refuted for finding in claims] == [True, True, False]
    claims = judged(shown(*np.multiply(lows, 0.6)), shown(0, 0))
    assert [finding.refuted for finding in claims] == [lows[1] > 0, False, False]


def test_four_bounds_share_the_risk_and_each_problem_has_its_own(monkeypatch):
    asked = []

    def measure(key, case, plan, order, seeds, confidence):
        asked.append((case.loss.constants.single_index, confidence))
        return shown(0.9, 0.09)

    monkeypatch.setattr(clipping, "measure", measure)
    result = find("clipping").run(jax.random.key(0), seeds=4, confidence=0.9)
    assert asked == [(False, simultaneous(0.9, 4)), (True, simultaneous(0.9, 4))]
    assert simultaneous(0.9, 4) == pytest.approx(0.975)
    certified = [row["certified"] for row in result.rows]
    assert certified[0] > certified[2]
    assert certified[1] > certified[3]
