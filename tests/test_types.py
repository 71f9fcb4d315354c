"""Edits replace exactly the rows that they name, and an edit that cannot be applied is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from problems import signed

import dd_jax as dd
from dd_jax.types import ANY_RECORD, count_rejected, num_records


def edit_of(rows, value, dim=3):
    rows = np.asarray(rows, np.int32)
    records = dd.Labelled(np.full((rows.size, dim), value), np.full(rows.size, value))
    return dd.replacement(rows, jax.tree.map(np.float32, records))


# Edits of few sizes, compiled, so that all examples run the same programs.
apply_edit = jax.jit(dd.apply_edit)
ORDERS, SIZES = st.permutations(range(8)), st.sampled_from([1, 5, 8])


@given(ORDERS, SIZES)
def test_apply_edit_replaces_exactly_the_named_rows(order, size):
    rows, database = order[:size], signed(8, 3)
    for found, old in zip(apply_edit(database, edit_of(rows, 7.0)), database, strict=True):
        expected = np.array(old)
        expected[rows] = 7.0
        np.testing.assert_array_equal(found, expected)


@given(ORDERS, st.sampled_from([1, 5]))
def test_edits_of_disjoint_rows_commute(order, cut):
    first, second = edit_of(order[:cut], 1.0), edit_of(order[cut:], 2.0)
    one = apply_edit(apply_edit(signed(8, 3), first), second)
    other = apply_edit(apply_edit(signed(8, 3), second), first)
    jax.tree.map(np.testing.assert_array_equal, one, other)


@given(ORDERS, st.sampled_from([1, 5]))
def test_fixed_edits_make_the_same_database_whatever_the_deleted_row_held(order, size):
    """`rem:non_adap_independence`: 𝒟∘u_1∘u_2 = (𝒟∘⟨ind, y⟩)∘u_1∘u_2 if ⟨ind, y⟩ is in u_2."""
    earlier, last = edit_of(order[2:7], 1.0), edit_of(order[:size], 2.0)
    deleted, kept = order[0], order[7]
    database = signed(8, 3)
    one, gone, stays = (
        apply_edit(apply_edit(rows, earlier), last)
        for rows in (
            database,
            *(apply_edit(database, edit_of([row], 2.0)) for row in (deleted, kept)),
        )
    )
    jax.tree.map(np.testing.assert_array_equal, one, gone)
    assert stays.label[kept] == 2.0 != one.label[kept]  # what a row held that stays is remembered


def test_arrays_of_numpy_are_edited_in_a_copy():
    database = jax.tree.map(np.asarray, signed(5, 3))
    assert float(dd.apply_edit(database, edit_of([1], 7.0)).label[1]) == 7.0
    assert database.label[1] != 7.0


def test_apply_edit_is_the_same_under_jit_vmap_and_scan():
    database, edits = signed(6, 3), [edit_of([1, 4], 3.0), edit_of([0, 1], 5.0)]
    expected = dd.apply_edit(dd.apply_edit(database, edits[0]), edits[1])
    stream = jax.tree.map(lambda *leaves: jnp.stack(leaves), *edits)
    scanned, _ = jax.lax.scan(lambda db, e: (dd.apply_edit(db, e), None), database, stream)
    jax.tree.map(np.testing.assert_array_equal, scanned, expected)
    batched = jax.jit(jax.vmap(dd.apply_edit, in_axes=(None, 0)))(database, stream)
    for i, edit in enumerate(edits):
        one = jax.tree.map(lambda leaf, i=i: leaf[i], batched)
        jax.tree.map(np.testing.assert_array_equal, one, dd.apply_edit(database, edit))


def test_rows_out_of_range_or_repeated_are_dropped_and_counted():
    database = signed(5, 3)
    records = dd.Labelled(jnp.arange(12.0).reshape(4, 3), jnp.arange(4.0))
    edit = dd.Edit(jnp.array([2, 7, 2, -1], jnp.int32), records)
    assert int(count_rejected(database, edit)) == 3
    expected = np.array(database.features)
    expected[2] = [0.0, 1.0, 2.0]
    np.testing.assert_array_equal(dd.apply_edit(database, edit).features, expected)


BAD_EDITS = {
    "empty": (lambda: edit_of([], 0.0), "empty"),
    "too long": (lambda: edit_of(range(6), 0.0), "6 rows"),
    "out of range": (lambda: edit_of([5], 0.0), "row 5"),
    "negative": (lambda: edit_of([0], 0.0)._replace(index=jnp.array([-1])), "row -1"),
    "duplicate": (lambda: edit_of([3, 1, 3], 0.0), "twice"),
    "float rows": (lambda: dd.Edit(jnp.array([1.0]), edit_of([1], 0.0).record), "float32"),
    "nan": (lambda: edit_of([1, 2], np.nan), "NaN"),
    "outside the domain": (lambda: edit_of([4, 0], 1.0), "norm"),
    "no edit": (lambda: None, "NoneType"),
}
# Static facts, which are refused inside jit too, where values cannot be checked.
BAD_RECORDS = {
    "one column": ([1], dd.Labelled(jnp.ones((1, 1)), jnp.ones(1)), "shape"),
    "one record for two rows": ([1, 2], dd.Labelled(jnp.ones((1, 3)), jnp.ones(1)), "shape"),
    "whole labels": ([1, 2], dd.Labelled(jnp.ones((2, 3)), jnp.ones(2, jnp.int32)), "dtype"),
    "bare features": ([1, 2], jnp.ones((2, 3)), "structure"),
}


@pytest.mark.parametrize("name", BAD_EDITS)
def test_edits_that_cannot_be_applied_are_refused(name):
    make, word = BAD_EDITS[name]
    domain = dd.losses.logistic().domain
    dd.check_edit(signed(5, 3), edit_of([4, 0], 0.5), domain)
    with pytest.raises(dd.InputError, match=word):
        dd.check_edit(signed(5, 3), make(), domain)


@pytest.mark.parametrize("name", BAD_RECORDS)
def test_nothing_is_broadcast_or_cast_into_a_row(name):
    rows, records, word = BAD_RECORDS[name]
    for refuse in (dd.check_edit, jax.jit(dd.apply_edit)):
        with pytest.raises(dd.InputError, match=word):
            refuse(signed(5, 3), dd.replacement(rows, records))


@pytest.mark.parametrize(
    ("rows", "word"),
    [([1.7], "float64"), ([True, False], "bool"), ([2**32 + 3], "4294967299"), ([3, -2], "row -2")],
)
def test_row_numbers_are_never_rounded_or_wrapped(rows, word):
    with pytest.raises(dd.InputError, match=word):
        dd.deletion(dd.losses.logistic(), signed(5, 3), np.array(rows))


def test_num_records_refuses_ragged_leaves():
    for database in (dd.Labelled(jnp.zeros((4, 2)), jnp.zeros(3)), jnp.float32(1.0), ()):
        with pytest.raises(dd.InputError, match="database"):
            num_records(database)


def test_any_record_refuses_blanks_and_counts_what_is_not_finite():
    records = {
        "a": jnp.array([[1.0, 2.0], [jnp.nan, 3.0], [4.0, 5.0]]),
        "b": jnp.array([1, 2, 3]),
        "c": jnp.array([6.0, 7.0, jnp.inf]),
    }
    projected, inside = jax.jit(ANY_RECORD.project)(records)
    assert inside.tolist() == [True, False, False]
    np.testing.assert_array_equal(projected["a"], [[1.0, 2.0], [0.0, 0.0], [0.0, 0.0]])
    np.testing.assert_array_equal(projected["b"], [1, 2, 3])
    np.testing.assert_array_equal(projected["c"], [6.0, 0.0, 0.0])
    ANY_RECORD.check(projected)
    for bad, dtype in ((jnp.nan, jnp.bfloat16), (jnp.inf, jnp.float32)):
        with pytest.raises(dd.InputError, match="row 1"):
            ANY_RECORD.check(jnp.array([[1.0], [bad]], dtype))


def test_double_precision_on_the_host_goes_with_single_on_the_device():
    """What counts is the type that an array will have in JAX, here without 64 bits."""

    def double(records):
        return jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), records)

    database, record = signed(5, 3), signed(1, 3, seed=4)
    dd.check_edit(double(database), dd.replacement([2], record))
    dd.check_edit(database, dd.replacement([2], double(record)))
