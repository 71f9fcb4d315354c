"""Valid deletion that prior definitions reject: ε = 0, and an explicit distinguisher."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dd_jax as dd
from dd_jax.attacks import find, incompleteness
from dd_jax.attacks.base import row
from dd_jax.intervals import advantages, clopper_pearson

COMPARED = {
    "fixed-model": ["retraining (def:ginart, dfn:unlearning)"],
    "two-outputs": [
        "an empty request without the record (def:sekhari)",
        "retraining (def:guo)",
    ],
}


@pytest.mark.parametrize("name", COMPARED)
def test_told_apart_always_and_deletes_with_epsilon_zero(name):
    result = find(name).run(jax.random.key(0), seeds=1_000)
    assert result.estimate.value == 1.0
    assert result.estimate.low > 0.98
    assert [row["told apart from"] for row in result.rows] == COMPARED[name]
    assert all(row["low"] > 0.98 for row in result.rows)
    assert result.theory["epsilon_data_deletion"] == 0.0
    assert result.theory["delta_needed"] > 0.95
    # One advantage is two proportions, and all of them share the risk.
    low, _ = clopper_pearson(1_000, 1_000, 1 - 0.001 / (2 * len(COMPARED[name])))
    assert result.estimate.low == pytest.approx(2 * low - 1)
    assert [finding.refuted for finding in result.findings] == [True, False, False]


def answers(mechanism, requester, database):
    _, transcript = dd.interact(jax.random.key(0), mechanism, requester, database, num_requests=1)
    return transcript.releases.tolist()


def test_the_answers_do_not_depend_on_the_database():
    mechanism = incompleteness.fixed_answers(incompleteness.ANSWER_IF_EMPTY)
    for database in (jnp.ones(4), jnp.arange(4.0) + 1):
        total = float(database.sum())
        assert answers(mechanism, incompleteness.deletes_target(), database) == [total, -1]
        assert answers(mechanism, incompleteness.asks_nothing(), database) == [total, -2]


def test_the_check_of_epsilon_zero_has_power():
    """Retraining's releases depend on the data, and more so what the adaptive requester copied."""
    retrain = incompleteness.retraining(incompleteness.learn)
    releases = incompleteness._trials(
        incompleteness.adaptive_trial, jax.random.key(0), 50, retrain, 4
    )
    # x₂ became x₁ + x₂ + x₃ + x₄ and x₁ went: x₁ + x₂ + 2x₃ + 2x₄ is left, with x in [1, 2).
    assert np.all((releases >= 6) & (releases < 12))
    assert len(np.unique(releases)) == 50
    rows = [row({}, advantages(releases > 0, releases < 0, 0.9)[0], 1.0)]
    finding = incompleteness._findings(incompleteness.FIXED_MODEL.claim, rows, releases)[1]
    assert finding.refuted
    assert finding.claim.owner == "ours"


@pytest.mark.parametrize("epsilon", [0.0, 1.0])
def test_the_delta_needed_is_a_limit_of_p_minus_e_to_the_epsilon_times_q(epsilon):
    answers = np.arange(1_000) < 800
    others = [np.arange(1_000) < 50, np.arange(1_000) < 100]
    low, _ = clopper_pearson(800, 1_000, 1 - 0.1 / 4)
    _, high = clopper_pearson(100, 1_000, 1 - 0.1 / 4)
    got = incompleteness._delta(answers, others, 0.9, epsilon)
    assert got == pytest.approx(low - np.exp(epsilon) * high)
    assert incompleteness._delta(others[0], [answers], 0.9, epsilon) == 0
