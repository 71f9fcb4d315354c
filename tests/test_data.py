import math
from fractions import Fraction

import numpy as np
import pytest

import dd_jax as dd
from dd_jax import data
from dd_jax.data import fetch, tasks

SIZES = {
    "digits-3-vs-8": (267, 90, 64),
    "breast-cancer": (426, 143, 30),
    "mnist-3-vs-8": (11982, 1984, 784),
    "adult": (33916, 11306, 103),
    "cifar-cat-vs-ship": (10_000, 2_000, 512),
    "fashion-pullover-vs-coat": (12000, 2000, 784),
}


def needed(name):
    """Fetched data are tested where somebody has fetched them; nothing is downloaded here."""
    needs = data.TASKS[name].needs
    if needs is not None and not fetch.is_cached(needs):
        pytest.skip(f"run `dd-jax data fetch {needs}` to test it")


@pytest.mark.parametrize("name", data.TASKS)
def test_data_lie_in_the_logistic_domain(name):
    needed(name)
    loaded = data.load(name)
    n, held_out, dim = SIZES[name]
    assert loaded.train.features.shape == (n, dim)
    assert loaded.test.features.shape == (held_out, dim)
    for records in (loaded.train, loaded.test):
        dd.losses.logistic().domain.check(records)
        np.testing.assert_allclose(np.linalg.norm(records.features, axis=1), 1, rtol=1e-6)
        assert set(np.unique(records.label)) == {-1.0, 1.0}
    assert loaded.preprocessing.endswith("unit-norm rows")


def test_train_and_test_share_no_row():
    loaded = data.load("breast-cancer")
    train = {row.tobytes() for row in np.asarray(loaded.train.features)}
    assert not any(row.tobytes() in train for row in np.asarray(loaded.test.features))


def test_bad_requests_are_refused():
    with pytest.raises(dd.InputError) as error:
        data.load("mnist")
    assert str(error.value) == (
        "no data set 'mnist'; choose one of adult, breast-cancer, cifar-cat-vs-ship, "
        "digits-3-vs-8, fashion-pullover-vs-coat, mnist-3-vs-8 (files of your own are read by "
        "dd-jax run)."
    )
    with pytest.raises(dd.InputError, match="test_share = 1 is not in "):
        data.load("digits-3-vs-8", test_share=1)


@pytest.mark.parametrize("share", [0.01, 0.1, 0.25, 0.4, 0.5, 0.6, 0.75, 0.9])
def test_the_share_is_held_out_evenly(monkeypatch, share):
    """⌈ns⌉ rows in all, and of the first i rows ⌈is⌉."""
    n = 30
    table = tasks.Table(np.ones((n, 2)), np.ones(n), "none")
    monkeypatch.setitem(data.TASKS, "made", tasks.Entry(lambda: table, None))
    loaded = data.load("made", test_share=share)
    exact = Fraction(str(share))
    held_out = math.ceil(n * exact)
    assert len(loaded.test.label) == held_out
    assert len(loaded.train.label) == n - held_out
    counts = np.cumsum(tasks._held_out("made", table, share))
    assert counts.tolist() == [math.ceil(i * exact) for i in range(1, n + 1)]


def test_a_share_that_leaves_a_side_empty_is_refused(monkeypatch):
    table = tasks.Table(np.ones((4, 2)), np.ones(4), "none")
    monkeypatch.setitem(data.TASKS, "made", tasks.Entry(lambda: table, None))
    with pytest.raises(dd.InputError, match=r"test_share = 0\.9 of 4 rows leaves nothing"):
        data.load("made", test_share=0.9)
    empty = tasks.Table(np.ones((0, 2)), np.ones(0), "none")
    monkeypatch.setitem(data.TASKS, "made", tasks.Entry(lambda: empty, None))
    with pytest.raises(dd.InputError):
        data.load("made")


def test_images_keep_their_makers_split(monkeypatch):
    """Two classes, 3 against 8, pixels over 255: by hand on five images."""
    images = np.arange(5 * 784, dtype=np.int64).reshape(5, 784) % 251 + 1
    stored = {
        "train_images": images[:3].astype(np.uint8),
        "train_labels": np.array([8, 5, 3], np.uint8),
        "test_images": images[3:].astype(np.uint8),
        "test_labels": np.array([3, 1], np.uint8),
    }
    monkeypatch.setattr(fetch, "arrays", lambda name: {"mnist": stored}[name])
    loaded = data.load("mnist-3-vs-8")
    np.testing.assert_array_equal(loaded.train.label, [-1, 1])
    np.testing.assert_array_equal(loaded.test.label, [1])
    row = images[3] / np.linalg.norm(images[3])
    np.testing.assert_allclose(loaded.test.features[0], row, rtol=1e-6)
    with pytest.raises(dd.InputError, match="mnist-3-vs-8 has a test set of its own"):
        data.load("mnist-3-vs-8", test_share=0.5)


def test_census_numbers_are_scaled_by_fixed_constants(monkeypatch):
    """A record's features depend on that record alone."""
    numbers = np.array([[40, 77516, 16, 0, 99, 50], [20, 1, 8, 9, 0, 10]], np.int32)
    stored = {
        "numbers": numbers,
        "categories": np.array([[0, 1], [1, 0]], np.uint8),
        "above_50k": np.array([1, 0], np.uint8),
    }
    monkeypatch.setattr(fetch, "arrays", lambda name: {"adult": stored}[name])
    loaded = data.load("adult", test_share=0.5)
    first = np.array([0.4, 1.0, 0.0, np.log(100) / 12, 0.5, 0, 1])
    second = np.array([0.2, 0.5, np.log(10) / 12, 0.0, 0.1, 1, 0])
    np.testing.assert_allclose(loaded.test.features[0], first / np.linalg.norm(first), rtol=1e-6)
    np.testing.assert_allclose(loaded.train.features[0], second / np.linalg.norm(second), rtol=1e-6)
    np.testing.assert_array_equal(loaded.test.label, [1])
    np.testing.assert_array_equal(loaded.train.label, [-1])
