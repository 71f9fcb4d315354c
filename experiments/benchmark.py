"""Speed of the gradient kernels, as ratios to this machine's own matrix product in the same run.

Useful work of one step for S seeds is 4·n·d·S floating-point operations (scores and their
transpose). Absolute times mean little on a shared machine; the ratio to XLA's float32 GEMM, best of
several, is what is kept and compared.
"""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

import jax
import jax.numpy as jnp
import numpy as np

import dd_jax as dd
from dd_jax import erm


@dataclass(frozen=True)
class Cell:
    """One measured setting; ratios are `None` where they were not measured.

    Attributes:
        gemm_ratio: useful flop rate over the GEMM rate.
        grad_of_mean_ratio: speed over vmap of grad-of-mean (no clipping).
        vmap_grad_ratio: speed over one clipped gradient per record.
        numpy_ratio: speed over the same formula as a NumPy loop over steps, batched over seeds.
    """

    loss: str
    n: int
    d: int
    seeds: int
    cores: int
    gemm_ratio: float
    grad_of_mean_ratio: float
    vmap_grad_ratio: float | None
    numpy_ratio: float
    torch_ratio: float | None = None
    peak_bytes: int | None = None


# (n, d, seeds, also time one gradient per record)
CELLS = ((10_000, 50, 1024, True), (1_000, 50, 1024, True), (1_000, 10, 1024, True))


def benchmark(*, cores: int, progress: Callable[[str], None] = print) -> dict:
    """Measure every cell; returns the JSON object that `dd-jax bench --json` prints."""
    progress("measuring the matrix product …")
    gemm = gemm_rate()
    cells = []
    for n, d, seeds, per_record in CELLS:
        progress(f"clipped logistic, n = {n:,}, d = {d}, {seeds:,} seeds …")
        cells.append(asdict(measure(n, d, seeds, gemm, cores, per_record)))
    return {"gemm_gflops": gemm / 1e9, "cores": cores, "cells": cells}


def gemm_rate(size: int = 2048) -> float:
    """Flop per second of XLA's float32 matrix product, best of several."""
    matrix = jnp.ones((size, size), jnp.float32)
    return 2 * size**3 / best_time(jax.jit(jnp.matmul), matrix, matrix, repeats=9)


def measure(n: int, d: int, seeds: int, gemm: float, cores: int, per_record: bool) -> Cell:
    """Time one clipped gradient for many seeds by each of the forms."""
    database, params = _inputs(n, d, seeds)
    problem = dd.Problem(dd.losses.logistic(), 0.01, 0.5)
    ours = best_time(_batched(erm.gradient, problem), params, database)
    mean = best_time(_batched(_grad_of_mean, problem), params, database, repeats=3)
    reference = None
    if per_record:
        blocked = dd.Problem(dd.losses.logistic(), 0.01, 0.5, row_chunk=128)
        reference = best_time(
            _batched(erm.reference_gradient, blocked), params, database, repeats=1
        )
    loop = best_time(_numpy_gradient(np.asarray(params), database, 0.01, 0.5), repeats=3)
    return Cell(
        loss="logistic, clipped",
        n=n,
        d=d,
        seeds=seeds,
        cores=cores,
        gemm_ratio=4 * n * d * seeds / ours / gemm,
        grad_of_mean_ratio=mean / ours,
        vmap_grad_ratio=None if reference is None else reference / ours,
        numpy_ratio=loop / ours,
    )


def _inputs(n: int, d: int, seeds: int):
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(n, d))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    label = np.where(rng.normal(size=n) > 0, 1.0, -1.0)
    database = dd.Labelled(jnp.asarray(rows, jnp.float32), jnp.asarray(label, jnp.float32))
    return database, jnp.asarray(rng.normal(size=(seeds, d)), jnp.float32)


def _batched(gradient: Callable, problem: dd.Problem) -> Callable:
    return jax.jit(
        jax.vmap(lambda theta, database: gradient(problem, theta, database), in_axes=(0, None))
    )


def _grad_of_mean(problem: dd.Problem, theta, database):
    def mean_loss(theta):
        return jnp.mean(jax.vmap(problem.loss.value, in_axes=(None, 0))(theta, database))

    return jax.grad(mean_loss)(theta) + problem.l2 * theta


def _numpy_gradient(params: np.ndarray, database: dd.Labelled, l2: float, clip: float) -> Callable:
    signed = np.asarray(database.features * database.label[:, None])
    limit = clip / np.linalg.norm(signed, axis=1)

    def gradient() -> np.ndarray:
        slopes = -1 / (1 + np.exp(params @ signed.T))
        return np.clip(slopes, -limit, limit) @ signed / len(signed) + l2 * params

    return gradient


def best_time(function: Callable, *args, repeats: int = 7) -> float:
    """Shortest of several timed calls, in seconds, after one that compiles."""
    jax.block_until_ready(function(*args))
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        jax.block_until_ready(function(*args))
        times.append(time.perf_counter() - start)
    return min(times)
