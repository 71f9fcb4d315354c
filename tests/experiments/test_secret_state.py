"""The figure of secret states: exact laws by another route, and measured ones around them."""

import numpy as np
import pytest
from scipy import stats
from shown import column, shown

from experiments.cache import Runner
from experiments.figures import secret_state
from experiments.figures.secret_state import SECRET, STATELESS

CONFIG = secret_state.Config(requests=(2,), seeds=500, releases=100, gd_seeds=2_000)


@pytest.fixture(scope="module")
def results():
    return secret_state.compute(CONFIG, Runner())


def chain(config):
    """Means and covariance of φ_1 … φ_6 of Noisy-GD, step by step."""
    plan = config.setting.plan
    rate, mean, variance, at = 1 - plan.step_size, 0.0, 0.0, []
    for step in range(plan.learn_steps + 6 * plan.delete_steps):
        push = plan.step_size / plan.n if step < plan.learn_steps else 0.0
        mean, variance = rate * mean + push, rate**2 * variance
        variance += 2 * plan.step_size * plan.noise_variance
        since = step + 1 - plan.learn_steps
        if since > 0 and since % plan.delete_steps == 0:
            at.append((mean, variance))
    means, variances = np.array(at).T
    gap = np.abs(np.subtract.outer(np.arange(6), np.arange(6)))
    spread = np.minimum.outer(variances, variances)  # variances still grow: the earlier is smaller
    return means, spread * rate ** (plan.delete_steps * gap), variances


def test_exact_advantages_are_those_of_the_joint_law():
    means, covariance, variances = chain(CONFIG)
    for count in (1, 3, 6):
        shift = 2 * means[:count]
        inverse = np.linalg.inv(covariance[:count, :count])
        squares = {STATELESS: shift @ inverse @ shift, SECRET: np.sum(shift**2) / variances[0]}
        for name, square in squares.items():
            found = secret_state.exact(CONFIG, name)[count - 1]
            assert found == pytest.approx(2 * stats.norm.cdf(np.sqrt(square) / 2) - 1, rel=1e-9)


def test_only_the_secret_state_leaves_the_certificate(results):
    certified = float(results["certified"])
    assert certified == pytest.approx(results[f"{STATELESS} exact"][0], rel=1e-6)
    for name in (SECRET, STATELESS):
        assert np.all(results[f"{name} low"] <= results[f"{name} exact"])
        assert np.all(results[f"{name} exact"] <= results[f"{name} high"])
    assert np.all(results[f"{STATELESS} low"] <= certified)
    assert results[f"{SECRET} low"][-1] > certified > results[f"{SECRET} low"][0]


def test_tables_say_what_holds_and_what_is_refuted(results):
    counts, curators = shown(secret_state, CONFIG, results)
    assert results["releases seen"].tolist() == [1, 3, 10, 30, 100]
    assert all(column(counts, "interval contains it"))
    assert column(counts, "one release allows") == pytest.approx([np.tanh(1)] * 10)
    # Only the count as stated has a limit, which its many releases do not exceed.
    assert column(counts, "any number of releases: at most")[5:] == [None] * 5
    assert counts[4]["exact"] < counts[4]["any number of releases: at most"] < 0.5
    assert column(curators, "verdict")[5:] == ["refuted"] + ["consistent"] * 6
    wrong = results | {f"{STATELESS} low": np.ones(6), "count repaired i=2 exact": np.ones(5)}
    wrong["one release allows"] = np.array(0.5)
    counts, curators = shown(secret_state, CONFIG, wrong)
    assert not any(column(counts, "interval contains it")[5:])
    assert column(counts, "shown beyond it") == [False] * 9 + [True]
    assert column(curators, "verdict")[6:] == ["refuted"] * 6
