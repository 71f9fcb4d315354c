import numpy as np
import pytest
from scipy import stats

import dd_jax as dd
from dd_jax.guarantees import risk
from dd_jax.sweeps import deletion as deletion_sweep
from experiments.cache import Runner
from experiments.figures import privacy_utility

SMALL = privacy_utility.Config(
    sizes=(50,), dims=(4,), eps_dp=(0.5, 2.0, 8.0), real_sizes=(40,), requests=2, seeds=40
)


def test_databases_of_every_size_have_one_objective():
    small, large = (privacy_utility.synthetic(n, 3, seed=0) for n in (50, 200))
    np.testing.assert_array_equal(large.features, np.tile(small.features, (4, 1)))
    np.testing.assert_array_equal(large.label, np.tile(small.label, 4))
    np.testing.assert_allclose(np.linalg.norm(small.features, axis=1), 1, rtol=1e-6)
    assert set(np.unique(small.label)) == {-1, 1}
    with pytest.raises(dd.InputError, match="n = 60 is no multiple of 50"):
        privacy_utility.synthetic(60, 3, seed=0)


def made_up(power_of_eps, power_of_n, power_of_d=1.0, seeds=400):
    """Risks with known exponents and 10% noise."""
    grid = [(e, n, d) for e in (0.1, 1.0, 10.0) for n in (100, 1_000) for d in (4, 16)]
    eps_dp, n, dim = np.array(grid, float).T
    columns = {"eps_dp": eps_dp, "n": n, "dim": dim, "scale": 2 * dim / (eps_dp * n**2)}
    mean = 3 * eps_dp**power_of_eps * n**power_of_n * dim**power_of_d
    noise = np.exp(0.1 * np.random.default_rng(0).normal(size=(seeds, len(grid))))
    return mean * noise, columns


def test_known_exponents_are_found():
    fitted = privacy_utility.exponents(*made_up(-1.0, -2.0), 0.99)
    assert [fit.stated for fit in fitted.values()] == [1, -1, -2, 1]
    assert list(fitted) == ["q d/(ε_dp n²)", "ε_dp", "n", "d"]
    for fit in fitted.values():
        assert fit.low < fit.stated < fit.high
        assert fit.high - fit.low < 0.1
    fitted = privacy_utility.exponents(*made_up(-0.8, -1.5, 0.5), 0.99)
    for name, power in (("ε_dp", -0.8), ("n", -1.5), ("d", 0.5)):
        assert fitted[name].low < power < fitted[name].high
        assert not fitted[name].low < fitted[name].stated < fitted[name].high
    assert fitted["q d/(ε_dp n²)"].high < 1


def test_the_intervals_of_all_exponents_hold_together():
    risk, columns = made_up(-1.0, -2.0)
    fit = privacy_utility.exponents(risk, columns, 0.96)["q d/(ε_dp n²)"]
    blocks = np.log([block.mean(axis=0) for block in np.split(risk, privacy_utility.BLOCKS)])
    slopes = [np.polyfit(np.log(columns["scale"]), block, 1)[0] for block in blocks]
    each = 1 - 0.04 / 4  # in q d/(ε_dp n²), ε_dp, n and d
    low, high = stats.t.interval(each, len(slopes) - 1, np.mean(slopes), stats.sem(slopes))
    assert (fit.value, fit.low, fit.high) == pytest.approx((np.mean(slopes), low, high))


def test_what_does_not_vary_has_no_exponent():
    risk, columns = made_up(-1.0, -2.0)
    here = (columns["n"] == 100) & (columns["dim"] == 4)
    fitted = privacy_utility.exponents(
        risk[:, here], {k: v[here] for k, v in columns.items()}, 0.95
    )
    assert list(fitted) == ["q d/(ε_dp n²)", "ε_dp"]
    assert fitted["ε_dp"].value == pytest.approx(-fitted["q d/(ε_dp n²)"].value)


def test_bounds_are_those_of_the_release_after_the_last_deletion():
    nothing = deletion_sweep.Outcome(*np.zeros((4, 1)))
    questions = privacy_utility._questions(SMALL, "synthetic", 50, 4)
    found = deletion_sweep.answers(questions, lambda settings: [nothing] * len(settings))
    columns = privacy_utility._arrays(SMALL, "synthetic", found)
    issued = [question.plan().certificate(request=SMALL.requests) for question in questions]
    bounds = [certificate.risk_bound_request for certificate in issued]
    np.testing.assert_array_equal(columns["synthetic_bound"], bounds)


@pytest.mark.slow
def test_risk_falls_with_eps_as_stated_and_stays_below_its_bound():
    results = privacy_utility.compute(SMALL, Runner())
    risk = results["synthetic_risk_edited"].mean(axis=0)
    # Four times the budget, a quarter of the risk.
    np.testing.assert_allclose(risk[:-1] / risk[1:], 4, rtol=0.35)
    assert (risk < results["synthetic_bound"]).all()
    assert (risk > results["synthetic_bound"] / 20).all()
    np.testing.assert_allclose(results["synthetic_scale"], 2 * 4 / (np.array(SMALL.eps_dp) * 50**2))
    accuracy = results["real_accuracy_edited"].mean(axis=0)
    assert accuracy[-1] > accuracy[0] + 0.05
    privacy_utility.plot(SMALL, results)
    _, bounds, _ = privacy_utility.tables(SMALL, results)
    assert [row[-2:] for row in bounds.rows] == [(0, "consistent")]
    seeds, scale = results["synthetic_risk_edited"], results["synthetic_scale"]
    for power, contains in ((0.0, True), (0.5, False), (-0.5, False)):
        known = 100 * seeds / risk * scale ** (1 + power)
        fits, bounds, _ = privacy_utility.tables(SMALL, results | {"synthetic_risk_edited": known})
        assert fits.rows[0][-1] is contains
    _, bounds, _ = privacy_utility.tables(SMALL, results | {"synthetic_risk_edited": 100 * seeds})
    assert [row[-2:] for row in bounds.rows] == [(3, "refuted")]


def test_the_paper_bound_is_that_of_the_library():
    bound = risk.excess_risk_convex_paper(2, 1.0, 0.1, 0.25, 100, 8, 0.5)
    scale = 2 * 8 / (0.5 * 100**2)
    assert privacy_utility._paper_bound(SMALL) * scale == pytest.approx(bound)
