"""Requesters make the edits that they promise; what they may see decides what they depend on."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from problems import signed

import dd_jax as dd
from dd_jax import requesters

LOSS = dd.losses.logistic()
# Its models are noise: a requester's edits do not depend on how they are made.
CURATOR = dd.Mechanism(
    learn=lambda key, database: jax.random.normal(key, (3,)),
    delete=lambda key, before, edit, after, state: jax.random.normal(key, (3,)),
    domain=LOSS.domain,
)


def served(requester, database, num_requests, observe=(), seed=0):
    key = jax.random.key(seed)
    return dd.interact(
        key, CURATOR, requester, database, num_requests=num_requests, observe=observe
    )


def test_deletions_blank_their_rows_in_turn():
    database = signed(6, 3)
    curator, transcript = served(requesters.deletions(LOSS, database, (4, 1)), database, 2)
    assert transcript.edits.index.tolist() == [[4], [1]]
    gone = np.flatnonzero(~np.asarray(curator.database.features).any(axis=1))
    assert gone.tolist() == [1, 4]


def test_a_stream_of_numpy_arrays_is_kept_as_it_was():
    index = np.array([[4], [1]], np.int32)
    record = dd.Labelled(np.zeros((2, 1, 3), np.float32), np.ones((2, 1), np.float32))
    requester = requesters.fixed_stream(dd.Edit(index, record))
    index[:] = 0
    assert served(requester, signed(6, 3), 2)[1].edits.index.tolist() == [[4], [1]]


def test_random_replacement_edits_distinct_rows_with_pool_records():
    database, pool = signed(12, 3), signed(5, 3, seed=9)
    requester = requesters.random_replacement(12, pool, edits_per_request=4)
    (_, transcript), (_, other) = (served(requester, database, 30, seed=seed) for seed in (0, 1))
    index = np.asarray(transcript.edits.index)
    assert all(len(set(rows)) == 4 for rows in index)
    assert set(index.ravel()) == set(range(12))
    records = np.asarray(transcript.edits.record.features).reshape(-1, 3)
    assert set(map(tuple, records)) == set(map(tuple, np.asarray(pool.features)))
    assert transcript.rejected.tolist() == [0] * 30
    assert index.tolist() != other.edits.index.tolist()


def test_random_rows_and_records_have_a_key_each():
    pool = signed(5, 3, seed=9)
    rows, records = jax.random.split(jax.random.key(4))
    _, edit = requesters.random_replacement(12, pool).act(jax.random.key(4), (), None)
    assert edit.index == jax.random.choice(rows, 12, (1,), replace=False)
    pick = jax.random.randint(records, (1,), 0, 5)
    np.testing.assert_array_equal(edit.record.features, pool.features[pick])


def test_churn_rewrites_one_row_in_turn():
    database, pool = signed(6, 3), signed(2, 3, seed=4)
    curator, transcript = served(requesters.churn(4, pool), database, 5)
    assert transcript.edits.index.ravel().tolist() == [4] * 5
    written = np.asarray(pool.features)[[0, 1, 0, 1, 0]]
    np.testing.assert_allclose(transcript.edits.record.features[:, 0], written, rtol=1e-6)
    np.testing.assert_allclose(curator.database.features[4], pool.features[0], rtol=1e-6)


def test_largest_loss_follows_the_last_model_it_saw():
    database = signed(25, 3)
    requester = requesters.largest_loss(LOSS, database)
    (_, transcript), (_, other) = (
        served(requester, database, 6, observe=(0, 3), seed=seed) for seed in (0, 1)
    )
    assert transcript.edits.index.tolist() != other.edits.index.tolist()
    alive = np.ones(25, bool)
    for i, row in enumerate(np.asarray(transcript.edits.index).ravel()):
        model = np.asarray(transcript.releases[3 if i >= 3 else 0])
        margins = np.asarray(database.label) * (np.asarray(database.features) @ model)
        assert row == np.where(alive, -margins, -np.inf).argmax()
        alive[row] = False


def test_largest_loss_is_not_adaptive_unless_it_observes():
    database = signed(25, 3)
    requester = requesters.largest_loss(LOSS, database)
    one, other = (served(requester, database, 6, seed=seed)[1].edits.index for seed in (0, 1))
    assert one.tolist() == other.tolist()


@pytest.mark.parametrize("count", [0, 2, 6])
def test_a_requester_that_is_shown_the_first_releases_is_one_that_observes_them(count):
    database = signed(25, 3)
    requester = requesters.largest_loss(LOSS, database, edits_per_request=3)
    hidden = requesters.shown_first(requester, jnp.int32(count))
    one = served(hidden, database, 6, observe=range(6))[1].edits.index
    other = served(requester, database, 6, observe=range(count))[1].edits.index
    assert one.tolist() == other.tolist()
    assert len(set(np.ravel(one))) == 18


def bad_requesters():
    database = signed(6, 3)
    one, two = dd.deletion(LOSS, database, [0]), dd.deletion(LOSS, database, [1, 2])
    empty = jax.tree.map(lambda leaf: leaf[:0], database)
    stream = requesters.fixed_stream(requesters.stack_edits([one, one]))
    return {
        "sizes": lambda: requesters.stack_edits([one, two]),
        "empty": lambda: requesters.stack_edits([]),
        "index": lambda: requesters.fixed_stream(one),
        "twice": lambda: requesters.deletions(LOSS, database, [3, 4, 3]),
        "edits_per_request": lambda: requesters.random_replacement(
            6, database, edits_per_request=7
        ),
        "pool": lambda: requesters.churn(0, empty),
        "the pool": lambda: requesters.random_replacement(6, empty),
        "row": lambda: requesters.churn(1.5, database),
        "num_requests": lambda: served(stream, database, 3),
        "num_requests = 7": lambda: served(requesters.largest_loss(LOSS, database), database, 7),
    }


@pytest.mark.parametrize("word", bad_requesters())
def test_streams_and_pools_that_cannot_be_used_are_refused(word):
    with pytest.raises(dd.InputError, match=word):
        bad_requesters()[word]()


def test_the_recoder_copies_the_sign_of_what_it_saw():
    for visible, deletes in ((True, True), (True, False), (False, True)):
        seen = dd.interaction.Observation(jnp.array([-0.3]), jnp.bool_(visible), jnp.int32(1))
        requester = requesters.sign_recoder(4, deletes=deletes)
        _, edit = requester.act(jax.random.key(0), requester.init(jax.random.key(1)), seen)
        assert edit.index.tolist() == list(range(0 if deletes else 1, 4))
        others = -1.0 if visible else 0.0
        assert edit.record[:, 0].tolist() == [*([0.0] if deletes else []), *[others] * 3]
