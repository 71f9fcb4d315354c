"""Regularised logistic and ridge regression in plain NumPy, record by record: the other way."""

import numpy as np


def rows(database):
    """(a, y) of the rows in float64."""
    return np.asarray(database.features, np.float64), np.asarray(database.label, np.float64)


def gradient_sum(params, database):
    """Σ ∇ log(1 + exp(-y⟨a, w⟩))."""
    total = np.zeros(len(params))
    for a, y in zip(*rows(database), strict=True):
        total -= y * a / (1 + np.exp(y * a @ params))
    return total


def hessian_sum(params, database):
    """Σ ∇² log(1 + exp(-y⟨a, w⟩))."""
    total = np.zeros((len(params), len(params)))
    for a, y in zip(*rows(database), strict=True):
        sigmoid = 1 / (1 + np.exp(-y * a @ params))
        total += y**2 * sigmoid * (1 - sigmoid) * np.outer(a, a)
    return total


def gradient(params, database, l2, tilt=0.0):
    """Of Σℓ + (nλ/2)‖w‖² + ⟨b, w⟩."""
    n = len(database.label)
    return gradient_sum(params, database) + n * l2 * params + tilt


def hessian(params, database, l2):
    """Of the same objective."""
    n = len(database.label)
    return hessian_sum(params, database) + n * l2 * np.eye(len(params))


def minimiser(database, l2, tilt=0.0):
    """Of the same objective, by undamped Newton steps."""
    params = np.zeros(database.features.shape[1])
    for _ in range(60):
        step = np.linalg.solve(hessian(params, database, l2), gradient(params, database, l2, tilt))
        params = params - step
    assert np.linalg.norm(gradient(params, database, l2, tilt)) < 1e-10
    return params


def ridge(database, l2):
    """argmin Σ(⟨a, w⟩ - y)²/2 + (nλ/2)‖w‖² by the normal equations."""
    a, y = rows(database)
    return np.linalg.solve(a.T @ a + len(y) * l2 * np.eye(a.shape[1]), a.T @ y)
