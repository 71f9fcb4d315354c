"""A user's own file as a task: its classes, its split, and which record a row became."""

from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from dd_jax.data import own_file
from dd_jax.data.encoding import Bounds
from dd_jax.data.own_file import load_file
from dd_jax.data.tables import read_csv
from dd_jax.errors import InputError

GOOD = "a,b,y\n" + "".join(f"{i},{i % 3},{'yes' if i % 2 else 'no'}\n" for i in range(8))


@pytest.fixture
def write(tmp_path):
    def make(text, name="my.csv"):
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return make


# --- classes and split ----------------------------------------------------------------------------


def test_a_file_becomes_a_task_with_a_split_that_the_seed_decides(write):
    path = write(GOOD)
    data = load_file(path, label="y", bounds=Bounds(norm=10.0))
    assert data.classes == ("no", "yes")
    rows, held_out = data.rows, data.held_out
    assert sorted([*rows, *held_out]) == list(range(8))
    assert 0 < len(held_out) == len(data.test.label)
    np.testing.assert_array_equal(data.train.label, np.where(rows % 2, 1.0, -1.0))
    np.testing.assert_allclose(data.train.features[:, 0], rows / 10, rtol=1e-6)
    np.testing.assert_allclose(data.test.features[:, 0], held_out / 10, rtol=1e-6)
    again = load_file(path, label="y", bounds=Bounds(norm=10.0))
    np.testing.assert_array_equal(again.rows, rows)
    splits = {tuple(load_file(path, label="y", seed=s).rows.tolist()) for s in range(5)}
    assert len(splits) > 1
    assert len(load_file(path, label="y", test_fraction=0.0).train.label) == 8


def many_rows(n):
    rng = np.random.default_rng(0)
    numbers = rng.normal(size=(n, 3)).round(6)
    return [f"{a},{b},{c},{int(a > 0)}\n" for a, b, c in numbers]


def written(write, lines, **options):
    path = write("a,b,c,y\n" + "".join(lines))
    return load_file(path, label="y", bounds=Bounds(norm=100.0), **options)


def test_taking_one_line_out_moves_no_other_row_and_reorders_none(write):
    lines = many_rows(3_000)
    before = written(write, lines)
    for gone in (0, 1_777, 2_999):
        after = written(write, lines[:gone] + lines[gone + 1 :])
        for old, new in ((before.rows, after.rows), (before.held_out, after.held_out)):
            # The others in the file's order, those behind the line one place further up.
            others = old[old != gone]
            np.testing.assert_array_equal(new, others - (others > gone))
    order = np.random.default_rng(1).permutation(3_000)
    shuffled = written(write, [lines[i] for i in order])
    assert set(order[shuffled.held_out]) == set(before.held_out.tolist())


def test_equal_rows_go_to_the_same_half_and_the_share_is_about_the_one_asked_for(write):
    lines = many_rows(4_000)
    data = written(write, lines + lines, test_fraction=0.3)
    held_out = np.isin(np.arange(8_000), data.held_out)
    np.testing.assert_array_equal(held_out[:4_000], held_out[4_000:])
    low, high = stats.binom.interval(1 - 1e-6, 4_000, 0.3)
    assert low <= held_out[:4_000].sum() <= high
    zeros = "".join(f"{zero},{y}\n" for zero in ("0", "-0.0") for y in (0, 1) for _ in range(9))
    for seed in range(4):
        path = write("a,y\n1,0\n2,1\n3,0\n4,1\n5,0\n6,1\n" + zeros)
        raw = read_csv(path, label="y")
        marks = own_file._fingerprints(raw, raw.label.astype(float), seed)
        assert len(set(marks)) == 8


def test_a_row_of_the_file_is_found_among_the_training_records(write):
    data = load_file(write(GOOD), label="y", test_fraction=0.0, bounds=Bounds(norm=10.0))
    for row in (0, 2, [2, 0], np.array([[3], [1]]), np.int64(5)):
        found = data.training_row(row)
        np.testing.assert_allclose(data.train.features[found, 0] * 10, row, atol=1e-6)
        assert np.shape(found) == np.shape(row)
    some = written(write, many_rows(50))
    assert some.training_row([]).tolist() == []
    backwards = some.training_row(some.rows[::-1])
    np.testing.assert_array_equal(backwards, np.arange(len(some.rows))[::-1])


def test_rows_that_do_not_train_are_refused_and_no_neighbour_is_returned(write):
    data = written(write, many_rows(50))
    for row in data.held_out:
        with pytest.raises(InputError, match=f"row {row} "):
            data.training_row(row)
        with pytest.raises(InputError, match=f"row {row} "):
            data.training_row([data.rows[0], row])
    for row in (-1, 50, 10**12):
        with pytest.raises(InputError, match=f"no row {row}"):
            data.training_row(row)
    gone = data._replace(rows=data.rows[1:], train=None)
    with pytest.raises(InputError, match="dropped"):
        gone.training_row(data.rows[0])
    for row in ("C100003", 3.0, True, None, [[1], [2.5]]):
        with pytest.raises(InputError, match="whole number"):
            data.training_row(row)


@pytest.mark.parametrize(("fraction", "word"), [(1e-9, "fraction"), (1 - 1e-9, "too few")])
def test_neither_half_may_be_empty(fraction, word, write):
    with pytest.raises(InputError, match=word):
        load_file(write("a,y\n1,0\n2,1\n"), label="y", test_fraction=fraction)


@pytest.mark.parametrize(
    ("labels", "word"), [(["7", "7.0", "7"], "two classes"), (range(101), "101 values")]
)
def test_one_class_and_labels_that_are_no_classes_are_refused(write, labels, word):
    text = "a,y\n" + "".join(f"{i},{y}\n" for i, y in enumerate(labels))
    with pytest.raises(InputError, match=word):
        load_file(write(text), label="y")


def test_more_than_two_classes_become_their_numbers(write):
    lines = "".join(f"{i},{y}\n" for i, y in enumerate(["b", "c", "a", "c", "b", "a"]))
    data = load_file(write("a,y\n" + lines), label="y", test_fraction=0.0)
    assert data.classes == ("a", "b", "c")
    assert (data.train.label.dtype, data.train.label.tolist()) == (np.int32, [1, 2, 0, 2, 1, 0])


# --- whose records --------------------------------------------------------------------------------


def of_people(write, owners):
    lines = (f"{who},{i % 7},{'x' if i % 3 else 'z'},{i % 2}\n" for i, who in enumerate(owners))
    text = "who,a,b,y\n" + "".join(lines)
    return load_file(write(text), label="y", ids="who")


def test_an_id_is_no_feature_and_all_its_rows_go_to_one_part(write):
    owners = [f"P{i // 3}" for i in range(600)]
    data = of_people(write, owners)
    assert data.columns == ("a", "b=x", "b=z")
    assert set(data.ids[data.rows]).isdisjoint(data.ids[data.held_out])
    trained = str(data.ids[data.rows[0]])
    records = data.training_rows_of(trained)
    assert [str(data.ids[data.rows[record]]) for record in records] == [trained] * 3
    # Others neither join nor leave when somebody's rows are taken out.
    fewer = of_people(write, [who for who in owners if who != trained])
    assert set(fewer.ids[fewer.held_out]) == set(data.ids[data.held_out])


def test_ids_that_cannot_be_deleted_are_refused(write):
    data = of_people(write, [f"P{i // 3}" for i in range(600)])
    with pytest.raises(InputError, match="held out"):
        data.training_rows_of(str(data.ids[data.held_out[0]]))
    with pytest.raises(InputError, match="'Q1'"):
        data.training_rows_of("Q1")
    with pytest.raises(InputError, match="no ids"):
        data._replace(ids=None).training_rows_of("P1")


def test_texts_decide_the_part_of_a_row_too(write):
    raw = read_csv(write("a,y\n" + "".join(f"t{i % 50},0\n" for i in range(100))), label="y")
    marks = own_file._fingerprints(raw, np.zeros(100), 0)
    np.testing.assert_array_equal(marks[:50], marks[50:])
    assert len(set(marks)) == 50


def test_numbers_as_labels_are_compared_as_numbers(write):
    data = load_file(write("a,y\n1,10\n2,9.0\n3,9\n4,10.0\n"), label="y", test_fraction=0.0)
    assert data.classes == ("9", "10")
    assert data.train.label.tolist() == [1, -1, -1, 1]


def test_training_rows_of_one_class_and_too_few_rows_are_refused(write):
    one = write("a,y\n" + "0,0\n" * 9 + "1,1\n")
    # Two kinds of rows, each of which goes as one: none trains, one does, or none is held out.
    said = []
    for seed in range(20):
        with pytest.raises(InputError) as error:
            load_file(one, label="y", test_fraction=0.5, seed=seed)
        said.append(str(error.value))
    for word in ("one of the two", "too few", "none of"):
        assert any(word in text for text in said)
    with pytest.raises(InputError, match="16 rows"):
        load_file(write(GOOD), label="y", least_training=12)
    with pytest.raises(InputError, match="test_fraction"):
        load_file(write(GOOD), label="y", test_fraction=1.0)


def test_files_that_are_not_there_or_asked_for_in_the_wrong_way_are_refused(write, tmp_path):
    np.savez(tmp_path / "my.npz", features=np.eye(4), label=[0, 1, 0, 1])
    for path, options, word in (
        (tmp_path / "none.csv", {"label": "y"}, "none.csv"),
        (tmp_path, {"label": "y"}, "folder"),
        (Path("/dev/null"), {"label": "y"}, "device"),
        (write(GOOD), {}, "label"),
        (write(GOOD), {"label": "y", "features": "x"}, "NPZ"),
        (tmp_path / "my.npz", {"drop": ("a",)}, "CSV"),
    ):
        with pytest.raises(InputError, match=word):
            load_file(path, **options)
    assert load_file(tmp_path / "my.npz", test_fraction=0.0).classes == ("0", "1")
