import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from problems import features, signed

import dd_jax as dd
from dd_jax.types import ANY_RECORD, count_rejected, num_records


def edit_of(rows, value, dim=3):
    rows = np.asarray(rows, np.int32)
    records = dd.Labelled(
        jnp.full((rows.size, dim), value, jnp.float32), jnp.full(rows.size, value, jnp.float32)
    )
    return dd.replacement(rows, records)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=10, unique=True))
def test_apply_edit_replaces_exactly_the_named_rows(rows):
    database = signed(10, 3)
    edited = dd.apply_edit(database, edit_of(rows, 7.0))
    untouched = [row for row in range(10) if row not in rows]
    assert (np.asarray(edited.features)[rows] == 7.0).all()
    assert (np.asarray(edited.label)[rows] == 7.0).all()
    np.testing.assert_array_equal(
        np.asarray(edited.features)[untouched], np.asarray(database.features)[untouched]
    )


@given(
    st.permutations(range(8)).flatmap(
        lambda rows: st.integers(1, 7).map(lambda cut: (rows[:cut], rows[cut:]))
    )
)
def test_edits_of_disjoint_rows_commute(parts):
    database = signed(8, 3)
    first, second = edit_of(parts[0], 1.0), edit_of(parts[1], 2.0)
    one = dd.apply_edit(dd.apply_edit(database, first), second)
    other = dd.apply_edit(dd.apply_edit(database, second), first)
    jax.tree.map(np.testing.assert_array_equal, one, other)


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
    edited = dd.apply_edit(database, edit)
    assert int(count_rejected(database, edit)) == 3
    np.testing.assert_array_equal(edited.features[2], [0.0, 1.0, 2.0])
    others = [0, 1, 3, 4]
    np.testing.assert_array_equal(
        edited.features[jnp.array(others)], database.features[jnp.array(others)]
    )


BAD_EDITS = {
    "empty": (
        lambda: edit_of([], 0.0),
        "the edit is empty; name at least one row to replace.",
    ),
    "too long": (
        lambda: edit_of(range(6), 0.0),
        "the edit names 6 rows of a database of 5; name at most 5.",
    ),
    "out of range": (
        lambda: edit_of([5], 0.0),
        "row 5 is out of range; rows run from 0 to 4.",
    ),
    "negative": (
        lambda: edit_of([0], 0.0)._replace(index=jnp.array([-1])),
        "row -1 is out of range; rows run from 0 to 4.",
    ),
    "duplicate": (
        lambda: edit_of([3, 1, 3], 0.0),
        "row 3 is named twice; an edit's rows are distinct.",
    ),
    "float rows": (
        lambda: dd.Edit(jnp.array([1.0]), edit_of([1], 0.0).record),
        "edit.index has shape (1,) and dtype float32; give a vector of row numbers.",
    ),
    "shape": (
        lambda: edit_of([1], 0.0, dim=4),
        "the edit's records have shape (1, 4); 1 rows of this database need shape (1, 3).",
    ),
    "dtype": (
        lambda: dd.Edit(jnp.array([1]), dd.Labelled(jnp.zeros((1, 3)), jnp.zeros(1, jnp.int32))),
        "the edit's records have dtype int32; convert them to the database's float32.",
    ),
    "nan": (
        lambda: edit_of([1, 2], np.nan),
        "the edit holds NaN or infinity in row 0 of .features; remove or impute that record first.",
    ),
}


@pytest.mark.parametrize("name", BAD_EDITS)
def test_check_edit_refuses_in_one_sentence(name):
    make, message = BAD_EDITS[name]
    with pytest.raises(dd.InputError) as error:
        dd.check_edit(signed(5, 3), make())
    assert str(error.value) == message


def test_check_edit_refuses_another_record_type():
    with pytest.raises(dd.InputError, match="build the records with the database's own type"):
        dd.check_edit(signed(5, 3), dd.replacement([1], jnp.zeros((1, 3))))


def test_check_edit_accepts_a_good_edit_and_holds_it_to_the_domain():
    database, edit = signed(5, 3), edit_of([4, 0], 0.5)
    dd.check_edit(database, edit)
    dd.check_edit(database, edit, dd.losses.logistic().domain)
    with pytest.raises(dd.InputError, match=r"row 0 has feature norm 1\.73205"):
        dd.check_edit(database, edit_of([4, 0], 1.0), dd.losses.logistic().domain)


def test_num_records_refuses_ragged_leaves():
    with pytest.raises(dd.InputError, match="give every leaf the same leading axis n"):
        num_records(dd.Labelled(jnp.zeros((4, 2)), jnp.zeros(3)))
    with pytest.raises(dd.InputError, match="the database has no arrays"):
        num_records(())


WRONG_RECORDS = {
    "one column": dd.Labelled(jnp.ones((1, 1)), jnp.ones(1)),
    "one record for two rows": dd.Labelled(jnp.ones((1, 3)), jnp.ones(1)),
    "whole labels": dd.Labelled(jnp.ones((2, 3)), jnp.ones(2, jnp.int32)),
    "bare features": jnp.ones((2, 3)),
}


@pytest.mark.parametrize("name", WRONG_RECORDS)
def test_nothing_is_broadcast_or_cast_into_a_row(name):
    """Static facts: refused inside jit too, where values cannot be checked."""
    rows = [1, 2] if name != "one column" else [1]
    edit = dd.replacement(rows, WRONG_RECORDS[name])
    with pytest.raises(dd.InputError, match="the edit's records have"):
        jax.jit(dd.apply_edit)(signed(5, 3), edit)


BAD_ROWS = {
    "fraction": ([1.7], "rows [1.7] have dtype float64; give row numbers as whole numbers."),
    "mask": (np.array([True, False]), "rows [True, False] have dtype bool; give row numbers as"),
    "too large": (
        np.array([2**32 + 3]),
        "row 4294967299 is out of range; rows run from 0 to n - 1.",
    ),
    "negative": ([3, -2], "row -2 is out of range; rows run from 0 to n - 1."),
}


@pytest.mark.parametrize("name", BAD_ROWS)
def test_row_numbers_are_never_rounded_or_wrapped(name):
    rows, message = BAD_ROWS[name]
    database = signed(5, 3)
    with pytest.raises(dd.InputError) as error:
        dd.deletion(dd.losses.logistic(), database, rows)
    assert str(error.value).startswith(message)


def test_edits_of_numpy_databases_work():
    database = jax.tree.map(np.asarray, signed(5, 3))
    edited = dd.apply_edit(database, edit_of([1], 7.0))
    assert float(edited.label[1]) == 7.0
    assert database.label[1] != 7.0


def test_an_edit_of_another_type_is_refused():
    with pytest.raises(dd.InputError, match="the edit is of type NoneType; build it with dd"):
        dd.check_edit(signed(5, 3), None)


def test_any_record_blanks_and_counts_what_is_not_finite():
    records = {"a": jnp.array([[1.0, 2.0], [jnp.nan, 3.0], [4.0, 5.0]]), "b": jnp.array([1, 2, 3])}
    projected, inside = jax.jit(ANY_RECORD.project)(records)
    assert inside.tolist() == [True, False, True]
    np.testing.assert_array_equal(projected["a"], [[1.0, 2.0], [0.0, 0.0], [4.0, 5.0]])
    np.testing.assert_array_equal(projected["b"], [1, 2, 3])
    with pytest.raises(dd.InputError, match="NaN or infinity in row 1"):
        ANY_RECORD.check(jnp.array([[1.0], [jnp.nan]], jnp.bfloat16))


def test_any_record_accepts_finite_rows_only():
    ANY_RECORD.check(features(3, 2))
    assert bool(jnp.all(ANY_RECORD.project(features(3, 2))[1]))
    with pytest.raises(dd.InputError, match="NaN or infinity in row 1"):
        ANY_RECORD.check(jnp.array([[0.0], [jnp.inf]]))


def test_double_precision_on_the_host_goes_with_single_on_the_device():
    """What counts is the type that an array will have in JAX, here without 64 bits."""

    def double(records):
        return jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), records)

    database, record = signed(5, 3), signed(1, 3, seed=4)
    dd.check_edit(double(database), dd.replacement([2], record))
    dd.check_edit(database, dd.replacement([2], double(record)))
