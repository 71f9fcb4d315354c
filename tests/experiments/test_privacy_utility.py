import numpy as np
import pytest
from scipy import stats
from shown import column, shown

import dd_jax as dd
from dd_jax.guarantees import risk
from dd_jax.sweeps import deletion as deletion_sweep
from experiments.cache import Runner
from experiments.figures import privacy_utility

SMALL = privacy_utility.Config(
    sizes=(50,), dims=(4,), eps_dp=(0.5, 2.0, 8.0), real_sizes=(40,), requests=2, seeds=40
)
SCALE = "q d/(ε_dp n²)"


def test_databases_of_every_size_have_one_objective():
    small, large = (privacy_utility.synthetic(n, 3, seed=0) for n in (50, 200))
    np.testing.assert_array_equal(large.features, np.tile(small.features, (4, 1)))
    np.testing.assert_array_equal(large.label, np.tile(small.label, 4))
    np.testing.assert_allclose(np.linalg.norm(small.features, axis=1), 1, rtol=1e-6)
    assert set(np.unique(small.label)) == {-1, 1}
    with pytest.raises(dd.InputError, match="multiple"):
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
    assert {name: fit.stated for name, fit in fitted.items()} == {
        SCALE: 1,
        "ε_dp": -1,
        "n": -2,
        "d": 1,
    }
    for fit in fitted.values():
        assert fit.low < fit.stated < fit.high < fit.low + 0.1
    fitted = privacy_utility.exponents(*made_up(-0.8, -1.5, 0.5), 0.99)
    for name, power in (("ε_dp", -0.8), ("n", -1.5), ("d", 0.5)):
        assert fitted[name].low < power < fitted[name].high
        assert not fitted[name].low < fitted[name].stated < fitted[name].high
    # What does not vary has no exponent.
    risks, columns = made_up(-1.0, -2.0)
    here = (columns["n"] == 100) & (columns["dim"] == 4)
    part = {name: values[here] for name, values in columns.items()}
    assert list(privacy_utility.exponents(risks[:, here], part, 0.95)) == [SCALE, "ε_dp"]


def test_the_intervals_of_all_exponents_hold_together():
    risks, columns = made_up(-1.0, -2.0)
    fit = privacy_utility.exponents(risks, columns, 0.96)[SCALE]
    blocks = np.log([block.mean(axis=0) for block in np.split(risks, privacy_utility.BLOCKS)])
    slopes = [np.polyfit(np.log(columns["scale"]), block, 1)[0] for block in blocks]
    each = 1 - 0.04 / 4  # in q d/(ε_dp n²), ε_dp, n and d
    low, high = stats.t.interval(each, len(slopes) - 1, np.mean(slopes), stats.sem(slopes))
    assert (fit.value, fit.low, fit.high) == pytest.approx((np.mean(slopes), low, high))


def test_bounds_are_those_of_the_release_after_the_last_deletion():
    nothing = deletion_sweep.Outcome(*np.zeros((len(deletion_sweep.Outcome._fields), 1)))
    questions = privacy_utility._questions(SMALL, "synthetic", 50, 4)
    found = deletion_sweep.answers(questions, lambda settings: [nothing] * len(settings))
    columns = privacy_utility._arrays(SMALL, "synthetic", found)
    issued = [question.plan().certificate(request=SMALL.requests) for question in questions]
    bounds = [certificate.risk_bound_request for certificate in issued]
    np.testing.assert_array_equal(columns["synthetic_bound"], bounds)
    paper = risk.excess_risk_convex_paper(2, 1.0, 0.1, 0.25, 100, 8, 0.5)
    scale = 2 * 8 / (0.5 * 100**2)
    assert privacy_utility._paper_bound(SMALL) * scale == pytest.approx(paper)


def test_the_lower_bound_is_that_of_the_epsilon_of_each_run():
    """At order 2 and ε_dp = 1 a run is 1-GDP: ε = 4.38 at δ = 1e-5, which is 1/316²."""
    columns = {"n": [316, 2], "dim": [4, 4], "eps_dp": [1.0, 1e-6]}
    results = {f"synthetic_{name}": np.array(values, float) for name, values in columns.items()}
    found = privacy_utility.lower_bounds(SMALL, results)
    assert found[0] == pytest.approx(4 / (4.377 * 316) ** 2 / SMALL.l2, rel=1e-3)
    assert found[1] == pytest.approx(1 / SMALL.l2)  # δ alone covers so little: ε = 0


@pytest.mark.slow
def test_risk_falls_with_eps_as_stated_and_stays_below_its_bound():
    results = privacy_utility.compute(SMALL, Runner())
    seeds, scale = results["synthetic_risk_edited"], results["synthetic_scale"]
    risks = seeds.mean(axis=0)
    # Four times the budget, a quarter of the risk.
    np.testing.assert_allclose(risks[:-1] / risks[1:], 4, rtol=0.35)
    assert (risks > results["synthetic_bound"] / 20).all()
    np.testing.assert_allclose(scale, 2 * 4 / (np.array(SMALL.eps_dp) * 50**2))
    accuracy = results["real_accuracy_edited"].mean(axis=0)
    assert accuracy[-1] > accuracy[0] + 0.05
    for power, factor in ((0.0, 1), (0.5, 1), (-0.5, 100)):
        known = factor * risks.min() * seeds / risks * (scale / scale.min()) ** (1 + power)
        changed = results | {"synthetic_risk_edited": known}
        fits, bounds, _ = shown(privacy_utility, SMALL, changed)
        assert fits[0]["interval contains it"] == (power == 0)
    assert (bounds[0]["shown above it"], bounds[0]["verdict"]) == (3, "refuted")
    _, bounds, _ = shown(privacy_utility, SMALL, results)
    assert column(bounds, "verdict") == ["consistent"]
