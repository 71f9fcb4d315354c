"""The four-value example: perfect retraining, and the deleted value read off."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dd_jax as dd
from dd_jax.attacks import find, sum_example


@pytest.mark.parametrize(("value", "released"), [(-1.0, 2.0), (1.0, -2.0)])
def test_what_is_left_gives_the_deleted_value_away(value, released):
    database = sum_example.database(jnp.float32(value))
    curator, transcript = dd.interact(
        jax.random.key(0),
        sum_example.mechanism(),
        sum_example.requester(),
        database,
        num_requests=1,
        observe=(0,),
    )
    np.testing.assert_array_equal(transcript.releases, [value, released])
    # Perfect unlearning: the release is what learning on the remaining records gives.
    assert transcript.releases[1] == jnp.sum(curator.database)
    assert value not in curator.database


def test_success_is_certain_and_chance_without_adaptivity():
    result = find("sum").run(jax.random.key(0), seeds=2000)
    adaptive, fixed = result.rows
    assert result.estimate.value == adaptive["success"] == 1.0
    assert result.estimate.low > 0.99
    assert result.bound == 0.5
    assert fixed["low"] < 0.5 < fixed["high"] < 0.6
    assert [finding.refuted for finding in result.findings] == [True, False]
    assert not result.ours_refuted
