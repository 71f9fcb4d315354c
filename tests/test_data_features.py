"""Random features of photographs, and the package that the photographs are read from."""

import io
import json
import tarfile

import numpy as np
from PIL import Image

from dd_jax import data
from dd_jax.data import fetch, tasks

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


def test_the_filters_never_change():
    found = tasks.random_patches(np.arange(3072)[None] % 251 / 255)
    np.testing.assert_allclose(found[0, [0, 100, 511]], PINNED_ANSWERS, atol=1e-4)


def test_a_record_s_features_do_not_depend_on_the_others():
    images = np.random.default_rng(4).random((3, 3072))
    whole = tasks.random_patches(images)
    np.testing.assert_allclose(whole[1:2], tasks.random_patches(images[1:2]), atol=1e-6)


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
