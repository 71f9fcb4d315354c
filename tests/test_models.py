"""Released models: saved and loaded, and new rows are encoded exactly as those of the training."""

import dataclasses

import numpy as np
import pytest

from dd_jax import constants
from dd_jax.cli import main
from dd_jax.constants import ProblemConstants
from dd_jax.data import models
from dd_jax.data.encoding import Encoding
from dd_jax.data.models import Model
from dd_jax.errors import InputError
from dd_jax.plans import plan_convex

PLAN = plan_convex(
    ProblemConstants(constants.logistic(), 0.1), n=50, dim=4, order=2.0, eps_dp=1.0, eps_dd=0.1
)
CITIES = (("city", ("Bern", "Rome")),)
ENCODING = Encoding(("age", "income"), ((0.0, 100.0), (0.0, 50.0)), CITIES, fill=True)
TWO = Model(
    np.array([1.0, -2.0, 0.5, -0.5], np.float32),
    ENCODING,
    ("7", "10"),
    intercept=False,
    label="y",
    ids="who",
    certificate=PLAN.certificate().to_json(),
)
THREE = dataclasses.replace(
    TWO,
    weights=np.arange(15.0).reshape(5, 3) % 4,
    classes=("a", "b", "c"),
    intercept=True,
)
ROWS = """who,city,extra,income,age,y
P1,Rome,x,25,100,10.0
P2,,x,0,50,7
P3,Bern,x,50,,10
"""


@pytest.fixture
def csv_file(tmp_path):
    path = tmp_path / "new.csv"
    path.write_text(ROWS)
    return path


def saved(model, folder):
    path = folder / "model.npz"
    path.write_bytes(model.pack())
    return path


def test_a_model_is_what_was_saved(tmp_path):
    for model in (TWO, THREE):
        again = models.load(saved(model, tmp_path))
        np.testing.assert_array_equal(again.weights, model.weights)
        for field in dataclasses.fields(Model)[1:]:
            assert getattr(again, field.name) == getattr(model, field.name)


def test_rows_are_encoded_and_scored_by_hand(csv_file):
    table = models.read_rows(TWO, csv_file, label=None, ids=None)
    found = models.predict(TWO, table)
    rows = np.array([[1, 0, 0, 1], [0, -1, 0, 0], [0, 1, 1, 0]]) / np.sqrt(3)
    np.testing.assert_allclose(found.scores, rows @ TWO.weights, rtol=1e-6)
    assert found.label.tolist() == ["10", "10", "7"]
    assert found.true.tolist() == ["10", "7", "10"]
    assert found.accuracy == pytest.approx(1 / 3)
    assert found.ids.tolist() == ["P1", "P2", "P3"]
    without_label = table._replace(label=None, ids=None)
    three = models.predict(THREE, without_label)
    expected = np.column_stack([rows, np.ones(3)]) @ THREE.weights
    np.testing.assert_allclose(three.scores, expected)
    assert three.label.tolist() == [THREE.classes[i] for i in expected.argmax(axis=1)]
    assert three.accuracy is None


def test_columns_that_are_missing_and_labels_of_another_kind_are_refused(csv_file, tmp_path):
    short = tmp_path / "short.csv"
    short.write_text("age,city\n1,Bern\n")
    with pytest.raises(InputError, match="'income'"):
        models.read_rows(TWO, short, label=None, ids=None)
    with pytest.raises(InputError, match="'z'"):
        models.read_rows(TWO, csv_file, label="z", ids=None)
    table = models.read_rows(TWO, csv_file, label="extra", ids=None)
    with pytest.raises(InputError, match="class"):
        models.predict(TWO, table)
    unnamed = csv_file.read_text().replace("Rome", "Oslo")
    csv_file.write_text(unnamed)
    with pytest.raises(InputError, match="'Oslo'"):
        models.predict(TWO, models.read_rows(TWO, csv_file, label=None, ids=None))


def test_an_npz_file_of_features_is_read_by_the_array_that_the_model_learned_on(tmp_path):
    encoding = Encoding(("emb[:, 0]", "emb[:, 1]"), unit_rows=True)
    model = dataclasses.replace(TWO, encoding=encoding, weights=np.ones(2), label="label", ids=None)
    np.savez(tmp_path / "new.npz", emb=[[3.0, -4.0], [1.0, 0.0]], label=[7, 10])
    table = models.read_rows(model, tmp_path / "new.npz", label=None, ids=None)
    found = models.predict(model, table)
    np.testing.assert_allclose(found.scores, [-0.2, 1.0])
    assert found.accuracy == 1.0


def test_every_damaged_bit_and_other_files_are_refused(tmp_path):
    content = TWO.pack()
    path = tmp_path / "model.npz"
    for place in np.linspace(0, len(content) - 1, 40).astype(int):
        path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        with pytest.raises(InputError):
            models.load(path)
    for odd in (
        dataclasses.replace(TWO, weights=np.zeros(3)),
        dataclasses.replace(TWO, classes=("a",)),
        dataclasses.replace(TWO, certificate="{"),
    ):
        path.write_bytes(odd.pack())
        with pytest.raises(InputError, match="model"):
            models.load(path)
    with pytest.raises(InputError, match="no file"):
        models.load(tmp_path / "none.npz")


def test_the_command_writes_classes_as_csv_and_says_how_many_are_right(csv_file, tmp_path, capsys):
    words = ["predict", str(saved(TWO, tmp_path)), "--data", str(csv_file)]
    assert main(words) == 0
    done = capsys.readouterr()
    lines = done.out.splitlines()
    assert lines[0] == "row,id,class,score"
    assert lines[1].startswith("0,P1,10,")
    assert "0.3333" in done.err
    assert main([*words, "--save", str(tmp_path / "classes.csv")]) == 0
    assert capsys.readouterr().out == ""
    assert (tmp_path / "classes.csv").read_text().splitlines() == lines
    assert main([*words[:2], "--data", "none.csv"]) == 2
