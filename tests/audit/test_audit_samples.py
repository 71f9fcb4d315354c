"""Samples: tables of equal shape, parts A and B, and what an observer is given of a mechanism."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dd_jax as dd
from dd_jax.audit import neighbouring_releases, one_release
from dd_jax.audit.samples import (
    Stage,
    check_seeds,
    flatten,
    one_run,
    paired,
    split,
)
from dd_jax.ensemble import Pair
from dd_jax.errors import InputError
from dd_jax.requesters import fixed_stream


def test_leaves_become_columns_release_after_release():
    sequence = np.arange(12).reshape(2, 3, 2)
    table = flatten({"b": np.array([True, False]), "a": sequence})
    np.testing.assert_array_equal(table, [[0, 1, 2, 3, 4, 5, 1], [6, 7, 8, 9, 10, 11, 0]])
    assert table.dtype == np.float64


def test_large_whole_numbers_and_low_precision_survive():
    pair = paired((jnp.array([2**30 + 1]), jnp.array([2**30])))
    assert pair.present[0, 0] - pair.absent[0, 0] == 1
    assert flatten(jnp.array([1.5], jnp.bfloat16))[0, 0] == 1.5


@pytest.mark.parametrize(
    ("pair", "word"),
    [
        (np.zeros((2, 3)), "ndarray"),
        ((np.zeros(3), np.zeros(4)), "shapes"),
        ((np.zeros((3, 2)), np.zeros((3, 1))), "shapes"),
        (({"a": np.zeros(3)}, np.zeros(3)), "structure"),
        (((), ()), "seed axis"),
        ((1.0, 2.0), "seed axis"),
        (((np.zeros(3), np.zeros(2)),) * 2, "seed axis"),
        ((np.zeros((0, 2)), np.zeros((0, 2))), "one seed"),
        ((np.zeros((2, 0)), np.zeros((2, 0))), "one seed"),
        ((np.array(["1"]), np.array(["2"])), "real numbers"),
        ((np.ones(2, complex), np.ones(2, complex)), "complex128"),
        ((jax.random.split(jax.random.key(0)),) * 2, "key<fry>"),
        ((np.zeros((4, 2)), np.array([[0, 0], [0, 0], [0, np.nan], [0, 0]])), "seed 2"),
        ((np.array([0.0, -np.inf]), np.zeros(2)), "present"),
    ],
)
def test_samples_that_cannot_be_compared_are_refused(pair, word):
    with pytest.raises(InputError, match=word):
        paired(pair)


def test_parts_share_no_seed_and_miss_none():
    rows = np.arange(10.0)[:, None]
    fit, test = split(Pair(rows, rows + 100), 0.3)
    assert (len(fit.present), len(test.present)) == (3, 7)
    np.testing.assert_array_equal(np.concatenate([fit.absent, test.absent]), rows + 100)
    np.testing.assert_array_equal(np.concatenate([fit.present, test.present]), rows)
    for share in (0.0, 1.0):
        fit, test = split(Pair(rows, rows), share)
        assert len(fit.present) >= 1
        assert len(test.present) >= 1


def test_too_few_seeds_for_the_confidence_are_refused():
    # log2(2/0.05) = 5.3: six seeds to judge on are the fewest, twelve in all.
    check_seeds(12, 0.5, 0.95, 1)
    for seeds, confidence in ((11, 0.95), (1, 0.5)):
        with pytest.raises(InputError, match="too few"):
            check_seeds(seeds, 0.5, confidence, 1)


# --- releases of a mechanism ---------------------------------------------------------------------

DATABASE = jnp.array([1.0, 10.0, 100.0])
TOTAL = dd.Mechanism(
    lambda key, database: jnp.sum(database),
    lambda key, before, edit, after, state: jnp.sum(after),
)
# Request 1 edits row 2, request 2 deletes rows 0 and 1, request 3 edits row 2 and blanks row 1.
STREAM = fixed_stream(
    dd.Edit(
        jnp.array([[2, 1], [0, 1], [2, 1]], jnp.int32),
        jnp.array([[200.0, 20.0], [0.0, 0.0], [300.0, 0.0]]),
    )
)
ALTERNATIVE = dd.replacement([0], jnp.array([5.0]))
KEY = jax.random.key(0)


def releases(alternative=ALTERNATIVE, request=None, mechanism=TOTAL, database=DATABASE, seeds=3):
    return neighbouring_releases(
        jax.random.clone(KEY),
        mechanism,
        STREAM,
        database,
        alternative,
        num_requests=3,
        request=request,
        seeds=seeds,
    )


def test_privacy_is_judged_on_all_releases():
    pair = releases()
    np.testing.assert_array_equal(pair.present, [[111, 221, 200, 300]] * 3)
    np.testing.assert_array_equal(pair.absent, [[115, 225, 200, 300]] * 3)
    np.testing.assert_array_equal(one_release(pair, 1).absent, [225] * 3)


def test_deletion_is_judged_on_the_releases_from_the_deletion_on():
    pair = releases(request=2)
    np.testing.assert_array_equal(pair.present, [[200, 300]] * 3)
    np.testing.assert_array_equal(pair.absent, pair.present)


def test_several_rows_must_all_be_deleted():
    both = dd.replacement([1, 0], jnp.array([5.0, 6.0]))
    assert releases(both, request=2).present.shape == (3, 2)
    with pytest.raises(InputError, match="6 of 6"):
        releases(dd.replacement([0, 2], jnp.array([5.0, 6.0])), request=2)


@pytest.mark.parametrize(
    ("request_number", "deleted"), [(0, True), (1, False), (2, True), (4, False)]
)
def test_releases_kept_by_number_are_blank_unless_the_request_deletes(request_number, deleted):
    stage = Stage(TOTAL, STREAM, DATABASE, 0, request_number, 3, kept=(0, 3))
    outcome = one_run(jax.random.clone(KEY), stage)
    assert bool(outcome.deleted) is deleted
    np.testing.assert_array_equal(outcome.answer, [111, 300] if deleted else [0, 0])


@pytest.mark.parametrize("request_number", [0, 4])
def test_requests_that_are_not_served_are_refused(request_number):
    with pytest.raises(InputError, match="request"):
        releases(request=request_number)


def test_records_outside_the_domain_are_refused_before_anything_runs():
    domain = dd.losses.feature_domain(1.0)
    narrow = TOTAL._replace(domain=domain)
    rows = jnp.full((3, 1), 0.5)
    stream = dd.replacement([0], jnp.array([[2.0]]))
    for database in (rows, rows.at[1].set(3.0)):
        with pytest.raises(InputError, match="row"):
            releases(stream, mechanism=narrow, database=database)
