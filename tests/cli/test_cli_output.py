import json

import numpy as np

from dd_jax.cli.output import number, print_json, print_table


def test_json_has_no_nan_and_plain_numbers(capsys):
    print_json({"a": np.float64(1.5), "b": float("nan"), "c": [np.inf, (1, 2)], "d": np.arange(2)})
    assert json.loads(capsys.readouterr().out) == {
        "a": 1.5,
        "b": None,
        "c": [None, [1, 2]],
        "d": [0, 1],
    }


def test_numbers_read_well():
    assert [number(v) for v in (1234567, 0.000123456, True, "–", 2.0)] == [
        "1,234,567",
        "0.0001235",
        "True",
        "–",
        "2",
    ]


def test_tables_survive_a_pipe(capsys):
    print_table("title", ["name", "value"], [("row", 0.25)])
    text = capsys.readouterr().out
    assert "title" in text
    assert "row" in text
    assert "0.25" in text
    assert "\x1b" not in text
