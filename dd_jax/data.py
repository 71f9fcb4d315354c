"""Data sets: loaders that say what was done to the records before a guarantee begins.

A scaler or projection fitted on private records would itself be a state that deletion has to undo,
so every map here is fixed and data-independent: logarithms, unit-norm rows.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from dd_jax.errors import InputError
from dd_jax.types import Labelled


class Dataset(NamedTuple):
    """A binary classification task with unit-norm rows and labels ±1.

    Attributes:
        name: what reports call it.
        train: the private records.
        test: held-out records.
        preprocessing: what was done to the features, in words.
    """

    name: str
    train: Labelled
    test: Labelled
    preprocessing: str


def load(name: str, *, test_share: float = 0.25) -> Dataset:
    """A bundled data set by name: "digits-3-vs-8" or "breast-cancer".

    The held-out rows are every k-th one, so that the split depends on no seed.
    """
    if name not in _BUNDLED:
        raise InputError(f"no data set {name!r}; choose one of {', '.join(sorted(_BUNDLED))}.")
    if not 0 < test_share < 1:
        raise InputError(f"test_share = {test_share}; give a share between 0 and 1.")
    features, label, preprocessing = _BUNDLED[name]()
    held_out = np.zeros(len(label), dtype=bool)
    held_out[:: round(1 / test_share)] = True
    return Dataset(
        name,
        _unit_rows(features[~held_out], label[~held_out]),
        _unit_rows(features[held_out], label[held_out]),
        f"{preprocessing}, unit-norm rows",
    )


def _unit_rows(features: np.ndarray, label: np.ndarray) -> Labelled:
    norms = np.linalg.norm(features, axis=1, keepdims=True)
    return Labelled(
        jnp.asarray(features / np.maximum(norms, np.finfo(float).tiny), jnp.float32),
        jnp.asarray(label, jnp.float32),
    )


def _digits() -> tuple[np.ndarray, np.ndarray, str]:
    from sklearn.datasets import load_digits

    images, digit = load_digits(return_X_y=True)
    keep = (digit == 3) | (digit == 8)
    return images[keep], np.where(digit[keep] == 3, 1.0, -1.0), "8×8 pixel counts"


def _breast_cancer() -> tuple[np.ndarray, np.ndarray, str]:
    from sklearn.datasets import load_breast_cancer

    measurements, benign = load_breast_cancer(return_X_y=True)
    return np.log1p(measurements), np.where(benign == 1, 1.0, -1.0), "log(1 + measurement)"


_BUNDLED: dict[str, Callable[[], tuple[np.ndarray, np.ndarray, str]]] = {
    "digits-3-vs-8": _digits,
    "breast-cancer": _breast_cancer,
}
