import jax
import numpy as np

import dd_jax as dd
from dd_jax.keys import tagged

PURPOSES = ["start", "step", "learn", "publish", "request", "requester", "delete", "present"]


def words(key):
    return tuple(np.asarray(jax.random.key_data(key)).tolist())


def test_a_purpose_never_meets_a_counter_or_a_split():
    """`split(key)[i]` is `fold_in(key, i)`: two users of one key would share noise."""
    key = jax.random.key(3)
    assert words(jax.random.split(key, 3)[1]) == words(jax.random.fold_in(key, 1))
    counters = {words(jax.random.fold_in(key, k)) for k in range(300)}
    tags = {words(tagged(key, purpose)) for purpose in PURPOSES}
    assert len(tags) == len(PURPOSES)
    assert not counters & tags


def test_secret_keys_differ():
    one, other = dd.secret_key(), dd.secret_key()
    assert words(one) != words(other)
    assert jax.random.normal(one).shape == ()
