"""Data sets: loaders that say how the records were prepared before a guarantee begins.

A scaler or projection fitted on private records would itself be a state that deletion has to undo,
so every map here is fixed and data-independent: logarithms, published ranges, unit-norm rows. Two
sets are part of scikit-learn; the others are downloaded once (`dd-jax data fetch`,
`dd_jax.data.fetch`).
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np
from numpy.random import PCG64, Generator

from dd_jax import checks
from dd_jax.data import fetch
from dd_jax.data.fetch import CIFAR_CAT, CIFAR_SHIP
from dd_jax.errors import InputError
from dd_jax.types import Labelled

# Sizes of the images of `random_patches`, and of its filters.
SIDE, CHANNELS = 32, 3
_PATCH, _STRIDE, _FILTERS = 6, 2, 64
_THRESHOLD = 0.5
# E max(g - 1/2, 0) for a standard normal g: the response of a Gaussian filter to a patch of norm 1
# is standard normal.
_MEAN_RESPONSE = 0.19780
_SEED = 0
_IMAGES_AT_ONCE = 500


class Dataset(NamedTuple):
    """A classification task with unit-norm rows.

    Attributes:
        name: what reports call it.
        train: the private records.
        test: held-out records.
        preprocessing: what was done to the features, in words.
        classes: names of the classes: of labels -1 and 1, or 0, 1, 2, ….
    """

    name: str
    train: Labelled
    test: Labelled
    preprocessing: str
    classes: tuple[str, ...]


class Table(NamedTuple):
    """Features and labels before the split and the unit norm.

    Attributes:
        features, label: one row per record.
        preprocessing: what was done so far, in words.
        held_out: the rows that the data's makers set apart for tests, or None.
    """

    features: np.ndarray
    label: np.ndarray
    preprocessing: str
    held_out: np.ndarray | None = None


class Entry(NamedTuple):
    """A task of `load`: its maker, the downloaded data set that it needs or None, its classes."""

    make: Callable[[], Table]
    needs: str | None
    classes: tuple[str, ...] = ("-1", "1")


def load(name: str, *, test_share: float | None = None) -> Dataset:
    """A data set by name, one of `TASKS`.

    The makers' own split is kept where there is one (MNIST, Fashion-MNIST); elsewhere rows are held
    out evenly, row i where ⌈(i+1)s⌉ > ⌈is⌉ for the share s, so that the split depends on no seed.

    Args:
        name: the task.
        test_share: share of held-out rows, 1/4 unless given; refused where the split is fixed.

    Raises:
        InputError: an unknown name, a share that is out of range or leaves a side empty, or data
            that are not downloaded.
    """
    if name not in TASKS:
        raise InputError(
            f"there is no data set {name!r}; choose one of {', '.join(sorted(TASKS))}, or read a "
            f"file of your own with dd_jax.data.own_file.load_file."
        )
    if test_share is not None:
        checks.fraction("test_share", test_share)
    table = TASKS[name].make()
    held_out = _held_out(name, table, test_share)
    return Dataset(
        name,
        _unit_rows(table.features[~held_out], table.label[~held_out]),
        _unit_rows(table.features[held_out], table.label[held_out]),
        f"{table.preprocessing}, unit-norm rows",
        TASKS[name].classes,
    )


def _held_out(name: str, table: Table, test_share: float | None) -> np.ndarray:
    if table.held_out is not None:
        if test_share is not None:
            raise InputError(f"{name} has its own test set; leave test_share out.")
        return table.held_out
    n, share = len(table.label), 0.25 if test_share is None else test_share
    # In floating point 100 · 0.07 is slightly above 7, which must not hold out an eighth row.
    held_out = np.diff(np.ceil(np.arange(n + 1) * share - 1e-9)) > 0
    if not 0 < np.sum(held_out) < n:
        raise InputError(
            f"test_share = {share:g} of {n} rows leaves nothing to test or to train on; "
            f"give another share or more rows."
        )
    return held_out


def _unit_rows(features: np.ndarray, label: np.ndarray) -> Labelled:
    norms = np.linalg.norm(features, axis=1, keepdims=True)
    return labelled(features / np.maximum(norms, np.finfo(np.float32).tiny), label)


def labelled(features: np.ndarray, label: np.ndarray) -> Labelled:
    """Records in single precision, with labels ±1 or the whole numbers of classes.

    NumPy rounds: a JAX conversion would have to be compiled.
    """
    label = label.astype(np.int32 if label.dtype.kind in "iu" else np.float32)
    return Labelled(*(jax.device_put(part) for part in (features.astype(np.float32), label)))


def _digits() -> Table:
    from sklearn.datasets import load_digits

    images, digit = load_digits(return_X_y=True)
    keep = (digit == 3) | (digit == 8)
    return Table(images[keep], np.where(digit[keep] == 3, 1.0, -1.0), "8×8 pixel counts")


# Smallest and largest value of each measurement as the data set's description states them: mean,
# standard error and worst value of ten properties of a nucleus. They are declared here, not
# computed, so that a scale says nothing about which records are in a database.
_NUCLEI = (
    ("radius", (6.981, 28.11), (0.112, 2.873), (7.93, 36.04)),
    ("texture", (9.71, 39.28), (0.36, 4.885), (12.02, 49.54)),
    ("perimeter", (43.79, 188.5), (0.757, 21.98), (50.41, 251.2)),
    ("area", (143.5, 2501.0), (6.802, 542.2), (185.2, 4254.0)),
    ("smoothness", (0.053, 0.163), (0.002, 0.031), (0.071, 0.223)),
    ("compactness", (0.019, 0.345), (0.002, 0.135), (0.027, 1.058)),
    ("concavity", (0.0, 0.427), (0.0, 0.396), (0.0, 1.252)),
    ("concave points", (0.0, 0.201), (0.0, 0.053), (0.0, 0.291)),
    ("symmetry", (0.106, 0.304), (0.008, 0.079), (0.156, 0.664)),
    ("fractal dimension", (0.05, 0.097), (0.001, 0.03), (0.055, 0.208)),
)
NUCLEI_RANGES = np.array([ranges for _, *ranges in _NUCLEI]).swapaxes(0, 1).reshape(-1, 2)


def _breast_cancer() -> Table:
    """Logarithms of the measurements, each on its published range: else one column is the norm."""
    from sklearn.datasets import load_breast_cancer

    measurements, benign = load_breast_cancer(return_X_y=True)
    low, high = np.log1p(NUCLEI_RANGES).T
    return Table(
        2 * (np.log1p(measurements) - low) / (high - low) - 1,
        np.where(benign == 1, 1.0, -1.0),
        "log(1 + measurement), each from its published range to [-1, 1]",
    )


def _images(name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A downloaded set: images as bytes, their classes, and which the makers held out."""
    stored = fetch.arrays(name)
    images = np.concatenate([stored["train_images"], stored["test_images"]])
    classes = np.concatenate([stored["train_labels"], stored["test_labels"]])
    return images, classes, np.arange(len(classes)) >= len(stored["train_labels"])


def _two_classes(name: str, positive: int, negative: int) -> Callable[[], Table]:
    """Images of two classes of a downloaded set, pixels divided by 255, with the makers' split."""

    def make() -> Table:
        images, classes, held_out = _images(name)
        keep = (classes == positive) | (classes == negative)
        return Table(
            images[keep] / 255,
            np.where(classes[keep] == positive, 1.0, -1.0),
            "pixels/255",
            held_out[keep],
        )

    return make


def _all_classes(name: str) -> Callable[[], Table]:
    """All images of a downloaded set, pixels divided by 255, with the makers' split."""

    def make() -> Table:
        images, classes, held_out = _images(name)
        return Table(images / np.float32(255), classes, "pixels/255", held_out)

    return make


def _cats_and_ships() -> Table:
    """Cats and ships through random features: no network trained by others is downloaded."""
    table = _two_classes("cifar-10-cat-ship", CIFAR_CAT, CIFAR_SHIP)()
    return table._replace(
        features=random_patches(table.features),
        preprocessing="pixels/255, responses of 64 random 6×6 filters in four quarters",
    )


def random_patches(images: np.ndarray) -> np.ndarray:
    """Responses of random filters to 6×6 patches, averaged over the four quarters of an image.

    The mean of a patch p is subtracted, and p is scaled to norm 1 or less. The response of a
    Gaussian filter w is max(±⟨w, p⟩ - 1/2, 0) minus its mean over filters; it counts in the quarter
    of the image that contains the patch. This makes 4 × 64 × 2 = 512 numbers. The filters come from
    a fixed seed.

    Args:
        images: (n, 3072) shares of full brightness, pixel by pixel, red, green and blue.
    """
    # These are constants, the same in every run; the generator is shorter than their table.
    generator = Generator(PCG64(_SEED))
    filters = generator.standard_normal((CHANNELS * _PATCH**2, _FILTERS)).astype(np.float32)
    parts = [
        _responses(images[first : first + _IMAGES_AT_ONCE], filters)
        for first in range(0, len(images), _IMAGES_AT_ONCE)
    ]
    return np.concatenate(parts)


def _responses(images: np.ndarray, filters: np.ndarray) -> np.ndarray:
    pixels = images.reshape(-1, SIDE, SIDE, CHANNELS).astype(np.float32)
    windows = np.lib.stride_tricks.sliding_window_view(pixels, (_PATCH, _PATCH), axis=(1, 2))
    windows = windows[:, ::_STRIDE, ::_STRIDE]
    count, places = windows.shape[:2]
    patches = windows.reshape(count, places, places, -1)
    patches = patches - patches.mean(axis=-1, keepdims=True)
    # Without the constant a flat patch, which is mostly noise, would be scaled up to norm 1.
    patches /= np.sqrt(np.sum(patches**2, axis=-1, keepdims=True) + 0.1)
    answers = patches @ filters
    signed = np.concatenate([answers, -answers], axis=-1)
    active = np.maximum(signed - _THRESHOLD, 0) - _MEAN_RESPONSE
    half = places // 2
    quarters = active.reshape(count, 2, half, 2, half, -1)
    return quarters.mean(axis=(2, 4)).reshape(count, -1)


def _adult() -> Table:
    """Census records: numbers on fixed scales that the form itself suggests, categories as 0/1.

    The survey weight says nothing about a person and is left out.
    """
    stored = fetch.arrays("adult")
    age, _, education, gain, loss, hours = stored["numbers"].T.astype(np.float64)
    numbers = [age / 100, education / 16, np.log1p(gain) / 12, np.log1p(loss) / 12, hours / 100]
    return Table(
        np.column_stack([*numbers, stored["categories"]]),
        np.where(stored["above_50k"] == 1, 1.0, -1.0),
        "age/100, education/16, log(1 + gain or loss)/12, hours/100, one-hot categories; "
        "duplicate rows are kept",
    )


TASKS: dict[str, Entry] = {
    "digits-3-vs-8": Entry(_digits, None),
    "breast-cancer": Entry(_breast_cancer, None),
    "mnist": Entry(_all_classes("mnist"), "mnist", tuple("0123456789")),
    "mnist-3-vs-8": Entry(_two_classes("mnist", 3, 8), "mnist"),
    "fashion-pullover-vs-coat": Entry(_two_classes("fashion-mnist", 2, 4), "fashion-mnist"),
    "adult": Entry(_adult, "adult"),
    "cifar-cat-vs-ship": Entry(_cats_and_ships, "cifar-10-cat-ship"),
}
