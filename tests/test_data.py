"""Tasks: their sizes, domain and split, features by hand, and the photographs' package."""

import io
import json
import math
import tarfile
from fractions import Fraction

import numpy as np
import pytest
from PIL import Image

import dd_jax as dd
from dd_jax import data
from dd_jax.data import fetch, tasks

SIZES = {
    "digits-3-vs-8": (267, 90, 64),
    "breast-cancer": (426, 143, 30),
    "mnist": (60_000, 10_000, 784),
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
def test_data_lie_in_the_domain_of_their_loss(name):
    needed(name)
    loaded = data.load(name)
    n, held_out, dim = SIZES[name]
    assert loaded.train.features.shape == (n, dim)
    assert loaded.test.features.shape == (held_out, dim)
    for records in (loaded.train, loaded.test):
        np.testing.assert_allclose(np.linalg.norm(records.features, axis=1), 1, rtol=1e-6)
        assert set(np.unique(records.label)) == set(map(int, loaded.classes))
        classes = len(loaded.classes)
        loss = dd.losses.logistic() if classes == 2 else dd.losses.softmax(num_classes=classes)
        loss.domain.check(records)


def test_train_and_test_share_no_row():
    loaded = data.load("breast-cancer")
    train = {row.tobytes() for row in np.asarray(loaded.train.features)}
    assert not any(row.tobytes() in train for row in np.asarray(loaded.test.features))


def test_declared_ranges_are_those_of_the_description():
    """Every record lies in them up to the description's rounding, and attains both ends."""
    from sklearn.datasets import load_breast_cancer

    values = load_breast_cancer().data
    for ends, declared in zip((values.min(0), values.max(0)), tasks.NUCLEI_RANGES.T, strict=True):
        np.testing.assert_allclose(ends, declared, atol=5.1e-4, rtol=5e-4)


def test_scaled_measurements_are_worth_learning_from():
    """Unscaled, one column is nearly the whole norm, and the model names the larger class."""
    loaded = data.load("breast-cancer")
    problem = dd.Problem(dd.losses.logistic(), 0.005)
    model = dd.erm.minimise(problem, loaded.train).params
    right = np.sign(loaded.test.features @ model) == loaded.test.label
    assert np.mean(right) >= 0.93 > np.mean(np.asarray(loaded.test.label) > 0) + 0.2


@pytest.mark.parametrize(
    ("name", "share", "word"),
    [("mnist-3", None, "mnist-3-vs-8"), ("digits-3-vs-8", 1, "test_share")],
)
def test_bad_requests_are_refused(name, share, word):
    with pytest.raises(dd.InputError, match=word):
        data.load(name, test_share=share)


@pytest.mark.parametrize("share", [0.01, 0.07, 0.25, 0.4, 0.55, 0.75, 0.9])
def test_the_share_is_held_out_evenly(monkeypatch, share):
    """⌈ns⌉ rows in all, and of the first i rows ⌈is⌉."""
    n = 100
    table = tasks.Table(np.ones((n, 2)), np.ones(n), "none")
    monkeypatch.setitem(data.TASKS, "made", tasks.Entry(lambda: table, None))
    loaded = data.load("made", test_share=share)
    exact = Fraction(str(share))
    held_out = math.ceil(n * exact)
    assert len(loaded.test.label) == held_out
    assert len(loaded.train.label) == n - held_out
    counts = np.cumsum(tasks._held_out("made", table, share))
    assert counts.tolist() == [math.ceil(i * exact) for i in range(1, n + 1)]


@pytest.mark.parametrize(("n", "share"), [(4, 0.9), (0, None)])
def test_a_share_that_leaves_a_side_empty_is_refused(n, share, monkeypatch):
    table = tasks.Table(np.ones((n, 2)), np.ones(n), "none")
    monkeypatch.setitem(data.TASKS, "made", tasks.Entry(lambda: table, None))
    with pytest.raises(dd.InputError, match="test_share"):
        data.load("made", test_share=share)


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
    every = data.load("mnist")
    np.testing.assert_array_equal(every.train.label, [8, 5, 3])
    np.testing.assert_array_equal(every.test.label, [3, 1])
    np.testing.assert_allclose(every.test.features[0], row, rtol=1e-6)
    with pytest.raises(dd.InputError, match="test_share"):
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


# --- random features of photographs ---------------------------------------------------------------

PINNED_ANSWERS = [0.40487, -0.11080, 0.19750]


def answers_by_hand(image: np.ndarray, filters: np.ndarray) -> np.ndarray:
    """One image, patch after patch."""
    pixels = image.reshape(32, 32, 3)
    total = np.zeros((2, 2, 2 * filters.shape[1]))
    for row in range(14):
        for column in range(14):
            patch = pixels[2 * row : 2 * row + 6, 2 * column : 2 * column + 6]
            patch = np.moveaxis(patch, 2, 0).ravel()  # colour by colour
            patch = patch - patch.mean()
            answer = patch / np.sqrt(patch @ patch + 0.1) @ filters
            active = np.maximum(np.concatenate([answer, -answer]) - 0.5, 0)
            total[row // 7, column // 7] += (active - 0.1978) / 49
    return total.ravel()


def test_random_patches_are_what_their_words_say():
    images = np.random.default_rng(3).random((2, 3072))
    filters = np.random.Generator(np.random.PCG64(0)).standard_normal((108, 64))
    found = tasks.random_patches(images)
    assert found.shape == (2, 512)
    expected = [answers_by_hand(image, filters) for image in images]
    np.testing.assert_allclose(found, expected, atol=2e-5)


def test_the_filters_never_change_and_a_record_s_features_do_not_depend_on_the_others():
    images = np.random.default_rng(4).random((3, 3072))
    images[1] = np.arange(3072) % 251 / 255
    found = tasks.random_patches(images)[1]
    np.testing.assert_allclose(found[[0, 100, 511]], PINNED_ANSWERS, atol=1e-4)
    np.testing.assert_allclose(found, tasks.random_patches(images[1:2])[0], atol=1e-6)


def small_package(folder) -> tuple:
    """The package's files with 4 images each, and their pixels and labels."""
    generator = np.random.default_rng(5)
    names = [f"data_batch_{batch}" for batch in range(1, 6)] + ["test_batch"]
    pixels = {name: generator.integers(0, 256, (4, 1024, 3), np.uint8) for name in names}
    labels = {"train": [3, 8, 0, 9] * 5, "test": [8, 3, 3, 1]}
    content = {f"{part}_lables.json": json.dumps(found).encode() for part, found in labels.items()}
    for name, found in pixels.items():
        buffer = io.BytesIO()
        Image.fromarray(found).save(buffer, "PNG")
        content[f"{name}.png"] = buffer.getvalue()
    file = folder / "package.tgz"
    with tarfile.open(file, "w:gz") as archive:
        for name, found in content.items():
            member = tarfile.TarInfo(f"package/{name}")
            member.size = len(found)
            archive.addfile(member, io.BytesIO(found))
    return file, pixels


def test_cats_and_ships_are_read_from_png_files_and_lists(tmp_path, monkeypatch):
    file, pixels = small_package(tmp_path)
    found = fetch.read_cifar_cats_and_ships(file)
    assert found["train_labels"].tolist() == [3, 8] * 5
    assert found["test_labels"].tolist() == [8, 3, 3]
    first = np.concatenate([pixels[f"data_batch_{batch}"][:2] for batch in range(1, 6)])
    np.testing.assert_array_equal(found["train_images"], first.reshape(10, 3072))
    np.testing.assert_array_equal(found["test_images"], pixels["test_batch"][:3].reshape(3, 3072))

    monkeypatch.setattr(fetch, "arrays", lambda name: {"cifar-10-cat-ship": found}[name])
    loaded = data.load("cifar-cat-vs-ship")
    assert loaded.train.label.tolist() == [1, -1] * 5
    assert loaded.train.features.shape == (10, 512)
    expected = tasks.random_patches(found["test_images"] / 255)
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(loaded.test.features, expected, atol=1e-6)
