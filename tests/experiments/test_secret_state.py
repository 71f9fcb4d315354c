"""The figure of secret states: exact laws by another route, and measured ones around them."""

import types

import numpy as np
import pytest
from scipy import stats

from dd_jax.attacks.secret_count import AS_STATED, REPAIRED
from experiments.cache import Runner
from experiments.figures import secret_state
from experiments.figures.secret_state import SECRET, STATELESS

CONFIG = secret_state.Config(requests=(2,), gd_seeds=5_000)


class FakeAttack:
    """Rows as the attack makes them, without playing it."""

    def run(self, key, *, step, releases, confidence, **rest):
        del key, rest
        rows = [
            {
                "variant": variant,
                "releases": m,
                "success": s,
                "low": s - 0.1,
                "high": s + 0.1,
                "exact": s + 0.05,
            }
            for variant, scale in ((AS_STATED, 0.1), (REPAIRED, 0.2))
            for m, s in ((1, scale), (releases, 4 * scale))
        ]
        theory = {"as_stated_any_number_of_releases_at_most": 0.46}
        assert step == 2
        assert confidence == pytest.approx(1 - 0.001 / 3)
        return types.SimpleNamespace(rows=rows, bound=0.75, theory=theory)


@pytest.fixture(scope="module")
def results():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(secret_state.attacks, "find", lambda name: FakeAttack())
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
    assert np.all(np.diff(variances) > 0)
    for count in (1, 3, 6):
        shift = 2 * means[:count]
        inverse = np.linalg.inv(covariance[:count, :count])
        expected = 2 * stats.norm.cdf(np.sqrt(shift @ inverse @ shift) / 2) - 1
        found = secret_state.exact(CONFIG, STATELESS)[count - 1]
        assert found == pytest.approx(expected, rel=1e-9)
        squares = np.sum(shift**2) / variances[0]
        hidden = secret_state.exact(CONFIG, SECRET)[count - 1]
        assert hidden == pytest.approx(2 * stats.norm.cdf(np.sqrt(squares) / 2) - 1, rel=1e-9)


def test_only_the_secret_state_leaves_the_certificate(results):
    certified = float(results["certified"])
    assert certified == pytest.approx(results[f"{STATELESS} exact"][0], rel=1e-6)
    for name in (SECRET, STATELESS):
        assert np.all(results[f"{name} low"] <= results[f"{name} exact"])
        assert np.all(results[f"{name} exact"] <= results[f"{name} high"])
    assert np.all(results[f"{STATELESS} low"] <= certified)
    assert results[f"{SECRET} low"][-1] > certified
    assert results[f"{SECRET} low"][0] < certified


def test_rows_of_the_count_and_what_the_tables_decide(results):
    assert results["count repaired i=2"].tolist() == [0.2, 0.8]
    assert results["count as stated i=2 high"] == pytest.approx([0.2, 0.5])
    assert results["releases seen"].tolist() == [1, CONFIG.releases]
    secret_state.plot(CONFIG, results)
    counts, curators = secret_state.tables(CONFIG, results)
    # The limit as stated, and 0.75 from one release, which lows of 0.3 and 0.7 do not exceed.
    assert [row[-4:] for row in counts.rows[1::2]] == [
        (True, 0.46, 0.75, False),
        (True, None, 0.75, False),
    ]
    assert [row[-1] for row in curators.rows[6:]] == ["consistent"] * 6
    assert curators.rows[5][-1] == "refuted"
    wrong = results | {f"{STATELESS} low": np.ones(6), "count repaired i=2 exact": np.ones(2)}
    wrong["one release allows"] = np.array(0.6)
    counts, curators = secret_state.tables(CONFIG, wrong)
    assert counts.rows[-1][-4:] == (False, None, 0.6, True)
    assert [row[-1] for row in curators.rows[6:]] == ["refuted"] * 6
