import jax
import jax.numpy as jnp
import numpy as np
import pytest
from problems import signed

import dd_jax as dd
from dd_jax import requesters
from dd_jax.noisy_gd import Schedule, mechanism

LOSS = dd.losses.logistic()
CURATOR = mechanism(dd.Problem(LOSS, 0.1), Schedule(0.5, 1e-3, 1.0, 4, 2))


def served(requester, database, num_requests, observe=(), seed=0):
    return dd.interact(
        jax.random.key(seed),
        CURATOR,
        requester,
        database,
        num_requests=num_requests,
        observe=observe,
    )


def test_deletions_blank_their_rows_in_turn():
    database = signed(6, 3)
    curator, transcript = served(requesters.deletions(LOSS, database, (4, 1)), database, 2)
    assert transcript.edits.index.tolist() == [[4], [1]]
    gone = np.flatnonzero(~np.asarray(curator.database.features).any(axis=1))
    assert gone.tolist() == [1, 4]


def test_a_stream_of_numpy_arrays_is_kept_as_it_was():
    database = signed(6, 3)
    index = np.array([[4], [1]], np.int32)
    record = dd.Labelled(np.zeros((2, 1, 3), np.float32), np.ones((2, 1), np.float32))
    requester = requesters.fixed_stream(dd.Edit(index, record))
    index[:] = 0
    assert served(requester, database, 2)[1].edits.index.tolist() == [[4], [1]]


def test_random_replacement_edits_distinct_rows_with_pool_records():
    database, pool = signed(12, 3), signed(5, 3, seed=9)
    _, transcript = served(
        requesters.random_replacement(12, pool, edits_per_request=4), database, 30
    )
    index = np.asarray(transcript.edits.index)
    assert all(len(set(rows)) == 4 for rows in index)
    assert set(index.ravel()) == set(range(12))
    pool_rows = {tuple(row) for row in np.asarray(pool.features)}
    assert {
        tuple(r) for r in np.asarray(transcript.edits.record.features).reshape(-1, 3)
    } == pool_rows
    assert transcript.rejected.tolist() == [0] * 30


def test_random_replacement_depends_on_the_key():
    database = signed(12, 3)
    requester = requesters.random_replacement(12, database)
    one, other = (served(requester, database, 8, seed=s)[1].edits.index for s in (0, 1))
    assert one.tolist() != other.tolist()


def test_churn_rewrites_one_row_in_turn():
    database, pool = signed(6, 3), signed(2, 3, seed=4)
    curator, transcript = served(requesters.churn(4, pool), database, 5)
    assert transcript.edits.index.ravel().tolist() == [4] * 5
    np.testing.assert_allclose(
        transcript.edits.record.features[:, 0], pool.features[np.array([0, 1, 0, 1, 0])], rtol=1e-6
    )
    np.testing.assert_allclose(curator.database.features[4], pool.features[0], rtol=1e-6)


def test_largest_loss_follows_the_last_model_it_saw():
    database = signed(25, 3)
    _, transcript = served(requesters.largest_loss(LOSS, database), database, 6, observe=(0, 3))
    alive = np.ones(25, bool)
    for i, row in enumerate(np.asarray(transcript.edits.index).ravel()):
        model = transcript.releases[3 if i >= 3 else 0]
        losses = np.array(jax.vmap(LOSS.value, in_axes=(None, 0))(model, database))
        losses[~alive] = -np.inf
        assert row == losses.argmax()
        alive[row] = False


def test_largest_loss_is_not_adaptive_unless_it_observes():
    database = signed(25, 3)
    requester = requesters.largest_loss(LOSS, database)
    rows = [
        served(requester, database, 6, observe, seed)[1].edits.index.tolist()
        for observe, seed in [((), 0), ((), 1), ((0,), 0), ((0,), 1)]
    ]
    assert rows[0] == rows[1]
    assert rows[2] != rows[3]


def test_a_stream_shorter_than_the_interaction_is_refused():
    database = signed(6, 3)
    stream = requesters.stack_edits([dd.deletion(LOSS, database, [row]) for row in (0, 1)])
    with pytest.raises(dd.InputError) as error:
        served(requesters.fixed_stream(stream), database, 3)
    assert str(error.value) == (
        "num_requests = 3, but the requester's stream holds 2; "
        "lengthen the stream or ask for fewer requests."
    )


def test_bad_streams_are_refused():
    database = signed(6, 3)
    one, two = dd.deletion(LOSS, database, [0]), dd.deletion(LOSS, database, [1, 2])
    with pytest.raises(
        dd.InputError, match=r"the stream's edits have sizes \[1, 2\]; give every edit"
    ):
        requesters.stack_edits([one, two])
    with pytest.raises(dd.InputError, match="the stream is empty; give at least one edit"):
        requesters.stack_edits([])
    with pytest.raises(
        dd.InputError, match="edits_per_request = 7 is not a whole number from 1 to 6"
    ):
        requesters.random_replacement(6, database, edits_per_request=7)
    with pytest.raises(dd.InputError, match=r"stack single edits with dd\.requesters\.stack_edits"):
        requesters.fixed_stream(one)
    empty = jax.tree.map(lambda leaf: leaf[:0], database)
    for make in (
        lambda: requesters.churn(0, empty),
        lambda: requesters.random_replacement(6, empty),
    ):
        with pytest.raises(dd.InputError, match="the pool is empty; give at least one record"):
            make()
    with pytest.raises(dd.InputError, match=r"row = 1\.5 is not a whole number ≥ 0"):
        requesters.churn(1.5, database)
    with pytest.raises(dd.InputError, match="num_requests = 7, but the requester's stream holds 6"):
        served(requesters.largest_loss(LOSS, database), database, 7)
    assert jnp.array_equal(requesters.stack_edits([one, one]).index, jnp.array([[0], [0]]))
