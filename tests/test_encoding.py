"""Encodings: rows in the unit ball by a map that is declared, or measured and then said to be."""

import json

import numpy as np
import pytest

from dd_jax.data.encoding import Bounds, Encoding, fit, read_ranges
from dd_jax.data.tables import Table
from dd_jax.errors import InputError


@pytest.fixture
def write(tmp_path):
    def make(text, name="my.csv"):
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return make


# --- scaling --------------------------------------------------------------------------------------

COLUMNS = ("a", "b")
VALUES = np.array([[0.0, -4.0], [3.0, 4.0], [1.0, 0.0]])
ALL = np.ones(3, bool)


def table(numbers, columns=COLUMNS, **texts):
    numbers = np.asarray(numbers, float)
    return Table(columns, numbers, {k: np.array(v, object) for k, v in texts.items()}, None)


def encoded(bounds, values=VALUES, training=ALL):
    """The features, and the encoding."""
    made = fit(bounds, table(values), training)
    return made.encode(table(values)), made


def test_declared_bounds_map_rows_into_the_unit_ball_by_a_fixed_map():
    norm = encoded(Bounds(norm=10.0))
    np.testing.assert_allclose(norm[0], VALUES / 10)
    common = encoded(Bounds(lower=-4.0, upper=4.0))
    np.testing.assert_allclose(common[0], VALUES / 4 / np.sqrt(2))
    each = encoded(Bounds(ranges={"b": (-4.0, 4.0), "a": (0.0, 4.0)}))
    np.testing.assert_allclose(each[0][:, 0] * np.sqrt(2), [-1, 0.5, -0.5])
    others = encoded(Bounds(ranges={"a": (0.0, 4.0)}, lower=-4.0, upper=4.0))
    np.testing.assert_array_equal(others[0], each[0])
    rows = encoded(Bounds(unit_rows=True), VALUES * 1e200)
    np.testing.assert_allclose(rows[0], [[0, -1], [0.6, 0.8], [1, 0]])
    both = encoded(Bounds(lower=-4.0, upper=4.0, unit_rows=True))
    np.testing.assert_allclose(both[0], rows[0])
    assert not any(made.caveat for _, made in (norm, common, each, others, rows, both))


def test_measured_ranges_are_those_of_the_training_rows_and_carry_a_caveat():
    training = np.array([True, True, False])
    values = np.column_stack([[0.0, 2.0, 9.0], [5.0, 5.0, 5.0]])
    features, made = encoded(Bounds(), values, training)
    np.testing.assert_allclose(features[:, 0] * np.sqrt(2), [-1, 1, 8])
    np.testing.assert_array_equal(features[:, 1], 0)
    assert made.measured == ("ranges",)
    assert "MEASURED" in made.caveat
    assert "MEASURED" in made.words


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
        encoded(Bounds(**options))


def test_values_at_a_bound_may_miss_it_by_their_rounding():
    values = np.array([[0.1 + 0.2, -0.3]])
    assert values.max() > 0.3
    features, _ = encoded(Bounds(lower=-0.3, upper=0.3), values, ALL[:1])
    np.testing.assert_allclose(features * np.sqrt(2), [[1, -1]])
    encoded(Bounds(norm=0.3), np.array([[0.1 + 0.2, 0.0]]), ALL[:1])


def test_ranges_come_from_a_json_file(write, tmp_path):
    path = write(json.dumps({"a": [0, 1], "b": [-1, 2.5], "c": ["x", " * "]}), "ranges.json")
    assert read_ranges(path) == {"a": (0.0, 1.0), "b": (-1.0, 2.5), "c": ("x", "*")}
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
        '{"a": []}',
        '{"a": ["x", 1]}',
        '{"a": ["x", "x "]}',
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


# --- text, missing values, new rows ---------------------------------------------------------------

CITIES = ("Bern", "Rome", "Bern")
DECLARED = {"a": (0.0, 4.0), "b": (-4.0, 4.0), "city": ("Bern", "Oslo", "Rome")}


def test_text_becomes_one_of_its_categories_and_a_row_stays_in_the_unit_ball():
    rows = table(VALUES, city=CITIES)
    made = fit(Bounds(ranges=DECLARED), rows, ALL)
    features = made.encode(rows)
    assert made.columns == ("a", "b", "city=Bern", "city=Oslo", "city=Rome")
    np.testing.assert_allclose(features[:, 2:] * np.sqrt(3), [[1, 0, 0], [0, 0, 1], [1, 0, 0]])
    np.testing.assert_allclose(features[:, 0] * np.sqrt(3), [-1, 0.5, -0.5])
    assert made.caveat == ""
    for bounds in (
        Bounds(norm=5.0, ranges={"city": CITIES[:2]}),
        Bounds(unit_rows=True),
        Bounds(lower=-4.0, upper=4.0),
        Bounds(),
    ):
        corner = table([[4.0, -3.0], [-4.0, 4.0], [4.0, 4.0]], city=CITIES)
        corner = corner._replace(numbers=corner.numbers[:1]) if bounds.norm else corner
        corner = corner._replace(texts={"city": corner.texts["city"][: len(corner.numbers)]})
        fitted = fit(bounds, corner, np.ones(len(corner.numbers), bool))
        norms = np.linalg.norm(fitted.encode(corner), axis=1)
        assert norms.max() == pytest.approx(1.0)


def test_measured_categories_are_those_of_the_training_rows_and_carry_a_caveat():
    rows = table(VALUES, city=("Bern", "Bern", "Rome"))
    made = fit(Bounds(lower=-4.0, upper=4.0), rows, np.array([True, True, False]))
    assert made.categories == (("city", ("Bern",)),)
    assert made.measured == ("categories",)
    np.testing.assert_array_equal(made.encode(rows)[2, 2:], 0)
    assert made.unknown(rows) == 1
    many = table(np.zeros((101, 2)), city=[f"c{i}" for i in range(101)])
    with pytest.raises(InputError, match="'city' holds 101"):
        fit(Bounds(lower=0.0, upper=1.0), many, np.ones(101, bool))


def test_missing_values_count_as_zero_where_they_are_to_be_filled():
    rows = table([[np.nan, 4.0], [4.0, np.nan]], city=("", "Rome"))
    made = fit(Bounds(ranges=DECLARED, fill=True), rows, ALL[:2])
    np.testing.assert_allclose(
        made.encode(rows) * np.sqrt(3), [[0, 1, 0, 0, 0], [1, 0, 0, 0, 1]], atol=1e-12
    )
    for gap in (table([[np.nan, 0.0]], city=["Rome"]), table([[0.0, 0.0]], city=["NA"])):
        with pytest.raises(InputError, match="row 0, column"):
            fit(Bounds(ranges=DECLARED), gap, ALL[:1]).encode(gap)
    empty = table([[np.nan, 1.0]])
    with pytest.raises(InputError, match="'a' has no value"):
        fit(Bounds(fill=True), empty, ALL[:1])


def test_a_category_that_was_not_declared_is_named_and_may_be_declared_as_any_other():
    rows = table(VALUES, city=("Bern", "Lima", "Rome"))
    with pytest.raises(InputError, match="row 1, column 'city' holds 'Lima'"):
        fit(Bounds(ranges=DECLARED), rows, ALL).encode(rows)
    ranges = DECLARED | {"city": ("Bern", "*")}
    made = fit(Bounds(ranges=ranges), rows, ALL)
    np.testing.assert_allclose(made.encode(rows)[:, 2:] * np.sqrt(3), [[1, 0], [0, 1], [0, 1]])
    assert made.unknown(rows) == 0


def test_declarations_that_do_not_fit_the_columns_are_refused():
    rows = table(VALUES, city=CITIES)
    for ranges, word in (
        ({"a": (0.0, 4.0), "b": (-4.0, 4.0)}, "'city'"),
        (DECLARED | {"city": (0.0, 1.0)}, "'city'"),
        (DECLARED | {"town": ("x",)}, "'town'"),
    ):
        with pytest.raises(InputError, match=word):
            fit(Bounds(ranges=ranges), rows, ALL)


def test_an_encoding_survives_json_and_encodes_new_rows_alike_in_any_order_of_columns():
    rows = table(VALUES, city=CITIES)
    for bounds in (Bounds(ranges=DECLARED), Bounds(fill=True), Bounds(unit_rows=True, public=True)):
        made = fit(bounds, rows, ALL)
        again = Encoding.from_json(made.to_json())
        assert again == made
        swapped = table(VALUES[:, ::-1], columns=("b", "a"), city=CITIES)
        np.testing.assert_array_equal(again.encode(swapped), made.encode(rows))
    for other, word in (
        (table(VALUES[:, :1], columns=("a",), city=CITIES), "'b'"),
        (table(VALUES), "'city'"),
        (table(VALUES[:, :1], columns=("a",), b=CITIES, city=CITIES), "'b' holds text"),
    ):
        with pytest.raises(InputError, match=word):
            made.encode(other)


def test_what_is_no_encoding_is_refused():
    text = fit(Bounds(ranges=DECLARED), table(VALUES, city=CITIES), ALL).to_json()
    good = json.loads(text)
    broken = [{k: v for k, v in good.items() if k != "norm"}]
    broken += [
        good | change
        for change in (
            {"numbers": "ab"},
            {"ranges": [[0, 1]]},
            {"ranges": [[0, None], [0, 1]]},
            {"norm": -1},
            {"fill": 1},
            {"categories": [["city", [1]]]},
        )
    ]
    for value in ("{", "[]", *map(json.dumps, broken)):
        with pytest.raises(InputError, match="encoding"):
            Encoding.from_json(value)
