"""Valid deletion that prior definitions reject: ε = 0, and an explicit distinguisher."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dd_jax as dd
from dd_jax.attacks import find, incompleteness
from dd_jax.attacks.game import trials
from dd_jax.errors import InputError


@pytest.mark.parametrize("name", ["fixed-model", "two-outputs"])
def test_told_apart_always_and_deletes_with_epsilon_zero(name):
    result = find(name).run(jax.random.key(0), seeds=1_000)
    assert result.estimate.value == 1.0
    assert result.estimate.low > 0.98
    assert result.theory["epsilon_data_deletion"] == 0.0
    assert result.theory["delta_needed"] > 0.95
    assert [finding.refuted for finding in result.findings] == [True, False, False]
    assert result.findings[1].evidence == (
        "1000 random databases, 1 distinct release after the deletion"
    )


def test_two_outputs_fails_both_definitions():
    result = find("two-outputs").run(jax.random.key(1), seeds=500)
    assert [row["told apart from"] for row in result.rows] == [
        "an empty request without the record (def:sekhari)",
        "retraining (def:guo)",
    ]
    assert all(row["low"] > 0.95 for row in result.rows)


def answers(mechanism, requester, database):
    _, transcript = dd.interact(jax.random.key(0), mechanism, requester, database, num_requests=1)
    return transcript.releases.tolist()


def test_the_answers_do_not_depend_on_the_database():
    mechanism = incompleteness.fixed_answers(incompleteness.ANSWER_IF_EMPTY)
    for database in (jnp.ones(4), jnp.arange(4.0) + 1):
        total = float(database.sum())
        assert answers(mechanism, incompleteness.deletes_target(), database) == [total, -1]
        assert answers(mechanism, incompleteness.asks_nothing(), database) == [total, -2]


def test_a_curator_that_retrains_would_not_pass_as_deleting():
    """The ε = 0 check has power: retraining's releases depend on the data."""
    releases = incompleteness._trials(
        incompleteness.adaptive_trial,
        jax.random.key(0),
        50,
        incompleteness.retraining(incompleteness.learn),
        6,
    )
    assert len(np.unique(releases)) == 50
    finding = incompleteness._findings(
        find("fixed-model"),
        [incompleteness.advantages(releases > 0, releases < 0, 0.9)[0]],
        releases,
    )[1]
    assert finding.refuted
    assert finding.claim.owner == "ours"


def test_the_adaptive_requester_uses_what_it_sees():
    def trial(key):
        return incompleteness.adaptive_trial(
            key, mechanism=incompleteness.retraining(incompleteness.learn), n=4
        )

    # (x1 + x2 + x3 + x4) copied over x2: what is left is x1 + 2·x2... minus the target itself.
    left = trials(trial, jax.random.key(3), 20)
    assert np.all((left > 6) & (left < 12))


def test_one_record_is_refused():
    with pytest.raises(InputError) as error:
        find("fixed-model").run(jax.random.key(0), n=1)
    assert str(error.value) == "n = 1; give at least 2 records."
