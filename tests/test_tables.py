"""CSV and NPZ files as tables: what is read, and that every defect is named where it is."""

import numpy as np
import pytest

from dd_jax.data.tables import read_csv, read_npz
from dd_jax.errors import InputError


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
    np.testing.assert_array_equal(table.numbers, [[1, 2], [-3, 40]])
    assert table.label.tolist() == ["yes", "no"]


def test_columns_are_dropped_and_delimiters_named(write):
    path = write("id,# a,'y,z'\nx1,1,0\nx2,5,1\n".replace("'", '"'))
    table = read_csv(path, label="y,z", drop=("id",))
    assert table.columns == ("# a",)
    assert table.numbers.tolist() == [[1], [5]]
    odd = read_csv(write("a:y\n1:0\n2:1\n"), label="y", delimiter=":")
    assert odd.numbers.tolist() == [[1], [2]]
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
    ("c,y\nx,0\nNA,1\n", r"missing .*row 1 \(line 3\), column 'c'"),
    ("a,y\n1,0\nnan,1\n", r"missing .*row 1 \(line 3\), column 'a'"),
    ("a,y\n1,0\n<NA>,1\n", "missing"),
    ("a,y\n1,0\n2,\n", r"missing .*row 1 \(line 3\), label 'y'"),
    ("a,y\n1,0\n-inf,1\n", r"infinite .*row 1 \(line 3\), column 'a'"),
    ("city,a,y\nBern,1,0\nRome,,1\n", r"missing .*row 1 \(line 3\), column 'a'"),
    ("c,a b,y\n1,2,0\nx,z,1\n", r"'c', 'a b' .*row 1 \(line 3\) holds 'x'"),
    ("c,y\nx,0\n3,1\n", r"'c' .*row 1 \(line 3\) holds '3'"),
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


MIXED = """city,a,who,code,y
Bern,1,A,7,0
,,B,x,1
Rome,2,A,7,0
?,NA,C,,1
"""


def test_columns_of_text_missing_values_and_ids_are_told_apart(write):
    table = read_csv(write(MIXED), label="y", ids="who", declared=("code",), fill=True)
    assert table.columns == ("a",)
    np.testing.assert_array_equal(table.numbers[:, 0], [1, np.nan, 2, np.nan])
    assert {name: texts.tolist() for name, texts in table.texts.items()} == {
        "city": ["Bern", "", "Rome", ""],
        "code": ["7", "x", "7", ""],
    }
    assert table.ids.tolist() == ["A", "B", "A", "C"]
    some = read_csv(write(MIXED), label=None, only=("code", "city"), declared=("code",), fill=True)
    assert (some.columns, list(some.texts), some.label, some.ids) == (
        (),
        ["code", "city"],
        None,
        None,
    )
    late = read_csv(write("c,y\n,0\n,1\nx,0\n"), label="y", fill=True)
    assert late.texts["c"].tolist() == ["", "", "x"]
    for options, word in (
        ({"ids": "y"}, "two columns"),
        ({"ids": "wo"}, "mean 'who'"),
        ({"ids": "who", "drop": ("who",)}, "id"),
        ({"only": ("b",)}, "'b'"),
    ):
        with pytest.raises(InputError, match=word):
            read_csv(write(MIXED), label="y", **options)


# --- NPZ ------------------------------------------------------------------------------------------


def test_an_npz_file_is_read_by_its_arrays_names(tmp_path):
    path = tmp_path / "my.npz"
    np.savez(
        path, features=np.eye(4, 2, dtype=np.int8), label=[True, False, True, False], x=[[2.0]]
    )
    table = read_npz(path)
    assert table.columns == ("features[:, 0]", "features[:, 1]")
    assert table.numbers.dtype == np.float64
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


def test_ids_and_missing_values_of_an_npz_file_are_read(tmp_path):
    path = tmp_path / "my.npz"
    np.savez(path, features=[[1.0, np.nan], [2.0, 3.0]], label=[0, 1], who=[7, 8])
    table = read_npz(path, ids="who", fill=True)
    assert table.ids.tolist() == ["7", "8"]
    assert np.isnan(table.numbers[0, 1])
    assert read_npz(path, label=None, fill=True).label is None
    with pytest.raises(InputError, match="row 0, column 1"):
        read_npz(path)
