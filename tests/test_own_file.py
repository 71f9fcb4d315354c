"""A user's own file: what is read, and that every defect is named where it is."""

import json
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from dd_jax.data import own_file
from dd_jax.data.own_file import CAVEAT, Bounds, load_file, read_csv, read_npz, read_ranges, scale
from dd_jax.errors import InputError

GOOD = "a,b,y\n" + "".join(f"{i},{i % 3},{'yes' if i % 2 else 'no'}\n" for i in range(8))


@pytest.fixture
def write(tmp_path):
    def make(text, name="my.csv"):
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return make


# --- CSV ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "a,b,y\n1,2,yes\n-3,4e1,no\n",
        "\ufeffa;b;y\r\n1;2;yes\r\n-3;40;no\r\n",
        'a\tb\ty\n1\t"2"\t"yes"\n\n -3 \t40\t no \n\n',
        '"a"|"b"|y\n1|2|yes\n-3|4_0|no',
    ],
    ids=["commas", "semicolons, byte order mark, CRLF", "tabs, quotes, empty lines", "bars, 4_0"],
)
def test_a_table_is_read_whatever_its_dialect(write, text):
    table = read_csv(write(text), label="y")
    assert table.columns == ("a", "b")
    np.testing.assert_array_equal(table.features, [[1, 2], [-3, 40]])
    assert table.label.tolist() == ["yes", "no"]


def test_columns_are_dropped_and_delimiters_named(write):
    path = write("id,# a,'y,z'\nx1,1,0\nx2,5,1\n".replace("'", '"'))
    table = read_csv(path, label="y,z", drop=("id",))
    assert table.columns == ("# a",)
    assert table.features.tolist() == [[1], [5]]
    odd = read_csv(write("a:y\n1:0\n2:1\n"), label="y", delimiter=":")
    assert odd.features.tolist() == [[1], [2]]
    unnamed = read_csv(write(",a,y\n0,1,0\n1,2,1\n"), label="y", drop=("",))
    assert unnamed.columns == ("a",)


# Every defect, and a word of the message that names it or says where it is.
DEFECTS = [
    ("", "empty"),
    ("\na,y\n1,0\n", "empty line"),
    ("a,y\n", "records"),
    ("a,y\n\n\n", "records"),
    (b"a,y\n\xff\xfe,0\n", "UTF-8"),
    (b"\x80\x04\x95pickle\n", "UTF-8"),
    ("a,b\n1,2\n", "'a', 'b'"),
    ("a,Y\n1,2\n", "mean 'Y'"),
    ("1,2\n3,4\n", "header"),
    ("a:y\n1:0\n", "delimiter"),
    ("a,a,y\n1,2,0\n", "'a'"),
    (",a,y\n0,1,0\n", "column 1"),
    ("y\n0\n1\n", "'y'"),
    ("a,b,y\n1,2,0\n3,4\n", r"row 1 \(line 3\)"),
    ("a,b,y\n1,2,0\n\n3,4,1,5\n", r"row 1 \(line 4\)"),
    ("a,y\n1,0,9\n2,1,9\n", r"row 0 \(line 2\)"),
    ("a,b,y\n1,,0\n2,3,1\nNA,?,1\n", r"3 missing .*row 0 \(line 2\), column 'b'"),
    ("a,y\n1,0\nnan,1\n", r"missing .*row 1 \(line 3\), column 'a'"),
    ("a,y\n1,0\n<NA>,1\n", "missing"),
    ("a,y\n1,0\n2,\n", r"missing .*row 1 \(line 3\), label 'y'"),
    ("a,y\n1,0\n-inf,1\n", r"infinite .*row 1 \(line 3\), column 'a'"),
    ("city,a,y\nBern,1,0\nRome,,1\n", r"row 0 \(line 2\) holds 'Bern'"),
    ("c,a b,y\n1,2,0\nx,z,1\n", "drop c 'a b'"),
    ("a;y\n1,5;0\n2,5;1\n", "decimal point"),
    ("a,y\n" + '"' + "x" * 140_000 + '",0\n', "CSV"),
    ('a,b,y\n1,2,0\n1,"2,0\n3,4,1\n', "quotation mark"),
]


@pytest.mark.parametrize(("text", "word"), DEFECTS)
def test_every_defect_of_a_csv_file_is_named(write, text, word):
    with pytest.raises(InputError, match=word) as error:
        read_csv(write(text), label="y")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"label": "incom"}, "mean 'income'"),
        ({"label": "y", "drop": ("incomes",)}, "mean 'income'"),
        ({"label": "y", "drop": ("y",)}, "label"),
        ({"label": "y", "delimiter": "||"}, "delimiter"),
    ],
)
def test_names_that_are_wrong_are_refused_with_the_nearest(write, options, word):
    with pytest.raises(InputError, match=word):
        read_csv(write("income,y\n1,0\n"), **options)


# --- NPZ ------------------------------------------------------------------------------------------


def test_an_npz_file_is_read_by_its_arrays_names(tmp_path):
    path = tmp_path / "my.npz"
    np.savez(
        path, features=np.eye(4, 2, dtype=np.int8), label=[True, False, True, False], x=[[2.0]]
    )
    table = read_npz(path)
    assert table.columns == ("features[:, 0]", "features[:, 1]")
    assert table.features.dtype == np.float64
    assert table.label.tolist() == ["True", "False", "True", "False"]
    with pytest.raises(InputError, match="mean 'label'"):
        read_npz(path, label="labels")
    with pytest.raises(InputError, match="1 records"):
        read_npz(path, features="x")


@pytest.mark.parametrize(
    ("features", "label", "word"),
    [
        (np.array([[1, "a"]], object), [0], "objects"),
        ([[1.0]], np.array([{}], object), "objects"),
        ([1.0, 2.0], [0, 1], r"shape \(2,\)"),
        (np.zeros((0, 3)), np.zeros(0), r"shape \(0, 3\)"),
        ([["a"], ["b"]], [0, 1], "dtype <U1"),
        ([[1j], [2j]], [0, 1], "dtype complex128"),
        (np.array([[1], [2]], "m8[s]"), [0, 1], "dtype timedelta64"),
        ([[1.0, 2.0], [3.0, np.nan]], [0, 1], "row 1, column 1"),
        ([[1.0], [2.0]], [0, np.nan], "row 1"),
        ([[1.0]] * 4, ["b", "", "b", ""], "row 1"),
        ([[1.0], [2.0]], ["1", "NaN"], "row 1"),
    ],
)
def test_every_defect_of_an_npz_file_is_named(tmp_path, features, label, word):
    path = tmp_path / "my.npz"
    np.savez(path, features=features, label=label)
    with pytest.raises(InputError, match=word):
        read_npz(path)


def test_what_only_looks_like_an_npz_file_is_refused(tmp_path):
    path = tmp_path / "my.npz"
    np.savez(path, features=np.arange(900.0).reshape(30, 30), label=np.zeros(30))
    misspelt = path.read_bytes().replace(b"descr", b"dexcr")
    with path.open("wb") as file:
        np.save(file, np.eye(2))
    one_array = path.read_bytes()
    for content in (b"", b"PK\x03\x04 cut", b"a,y\n1,0\n", b"\x80\x04\x95.", misspelt, one_array):
        path.write_bytes(content)
        with pytest.raises(InputError, match="NPZ"):
            read_npz(path)


# --- scaling --------------------------------------------------------------------------------------

COLUMNS = ("a", "b")
VALUES = np.array([[0.0, -4.0], [3.0, 4.0], [1.0, 0.0]])
ALL = np.ones(3, bool)


def test_declared_bounds_map_rows_into_the_unit_ball_by_a_fixed_map():
    norm = scale(Bounds(norm=10.0), COLUMNS, VALUES, ALL)
    np.testing.assert_allclose(norm.features, VALUES / 10)
    common = scale(Bounds(lower=-4.0, upper=4.0), COLUMNS, VALUES, ALL)
    np.testing.assert_allclose(common.features, VALUES / 4 / np.sqrt(2))
    each = scale(Bounds(ranges={"b": (-4.0, 4.0), "a": (0.0, 4.0)}), COLUMNS, VALUES, ALL)
    np.testing.assert_allclose(each.features[:, 0] * np.sqrt(2), [-1, 0.5, -0.5])
    rows = scale(Bounds(unit_rows=True), COLUMNS, VALUES * 1e200, ALL)
    np.testing.assert_allclose(rows.features, [[0, -1], [0.6, 0.8], [1, 0]])
    both = scale(Bounds(lower=-4.0, upper=4.0, unit_rows=True), COLUMNS, VALUES, ALL)
    np.testing.assert_allclose(both.features, rows.features)
    assert not any(scaled.caveat for scaled in (norm, common, each, rows, both))


def test_measured_ranges_are_those_of_the_training_rows_and_carry_a_caveat():
    training = np.array([True, True, False])
    values = np.column_stack([[0.0, 2.0, 9.0], [5.0, 5.0, 5.0]])
    scaled = scale(Bounds(), COLUMNS, values, training)
    np.testing.assert_allclose(scaled.features[:, 0] * np.sqrt(2), [-1, 1, 8])
    np.testing.assert_array_equal(scaled.features[:, 1], 0)
    assert scaled.caveat == CAVEAT


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"norm": 4.5}, "row 1 .*'b'"),
        ({"norm": 4.995}, "row 1"),
        ({"lower": 0.0, "upper": 3.5}, "row 0, column 'b'"),
        ({"lower": -4.0, "upper": 3.992}, "row 1, column 'b'"),
        ({"ranges": {"a": (0.0, 3.0)}}, "'b'"),
        ({"ranges": {"a": (0, 3), "b": (-9, 9), "bb": (0, 1)}}, "'bb'"),
        ({"lower": 0.0}, "upper"),
        ({"lower": 1.0, "upper": 1.0}, r"\[1, 1\]"),
        ({"norm": 1.0, "lower": 0.0, "upper": 1.0}, "one of"),
        ({"norm": 0.0}, "norm"),
        ({"norm": 1e200}, "norm"),
        ({"lower": -1e308, "upper": 1e308}, "upper"),
        ({"norm": 1.0, "unit_rows": True}, "unit rows"),
    ],
)
def test_bounds_that_the_data_break_or_that_contradict_are_refused(options, word):
    with pytest.raises(InputError, match=word):
        scale(Bounds(**options), COLUMNS, VALUES, ALL)


def test_values_at_a_bound_may_miss_it_by_their_rounding():
    values = np.array([[0.1 + 0.2, -0.3]])
    assert values.max() > 0.3
    scaled = scale(Bounds(lower=-0.3, upper=0.3), COLUMNS, values, ALL[:1])
    np.testing.assert_allclose(scaled.features * np.sqrt(2), [[1, -1]])
    scale(Bounds(norm=0.3), COLUMNS, np.array([[0.1 + 0.2, 0.0]]), ALL[:1])


def test_ranges_come_from_a_json_file(write, tmp_path):
    path = write(json.dumps({"a": [0, 1], "b": [-1, 2.5]}), "ranges.json")
    assert read_ranges(path) == {"a": (0.0, 1.0), "b": (-1.0, 2.5)}
    assert read_ranges(write('\ufeff{"a": [0, 1]}', "marked.json")) == {"a": (0.0, 1.0)}
    with pytest.raises(InputError, match="ranges"):
        read_ranges(tmp_path / "none.json")


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[1]",
        '{"a": [1]}',
        '{"a": [2, 1]}',
        '{"a": [0, NaN]}',
        '{"a": [0, 1' + "0" * 400 + "]}",
        '{"a": [0, 1' + "0" * 9000 + "]}",
        "[" * 100_000,
        '{"a": [0, 1], "b": [0, 1], "a": [0, 2]}',
    ],
    ids=lambda text: text[:9],
)
def test_ranges_that_cannot_be_used_are_refused(text, write):
    with pytest.raises(InputError, match="ranges"):
        read_ranges(write(text, "bad.json"))


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
        marks = own_file._fingerprints(raw.features, raw.label.astype(float), seed)
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


@pytest.mark.parametrize("labels", ["7 7.0 7 7", "a b c a"])
def test_other_than_two_classes_are_refused(write, labels):
    text = "a,y\n" + "".join(f"{i},{y}\n" for i, y in enumerate(labels.split()))
    with pytest.raises(InputError, match="two classes"):
        load_file(write(text), label="y")


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
