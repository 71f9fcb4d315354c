"""One clipped, regularised gradient for many seeds in several forms, and how to time them."""

import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

import dd_jax as dd
from dd_jax import erm

L2, CLIP_NORM, STEP_SIZE, NOISE = 0.01, 0.5, 0.5, 1e-3


def logistic_inputs(n: int, d: int, seeds: int) -> tuple[dd.Labelled, jax.Array]:
    """Unit rows with labels ±1, and a model for each seed."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(n, d))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    label = np.where(rng.normal(size=n) > 0, 1.0, -1.0)
    database = dd.Labelled(jnp.asarray(rows, jnp.float32), jnp.asarray(label, jnp.float32))
    return database, jnp.asarray(rng.normal(size=(seeds, d)), jnp.float32)


def logistic_problem() -> dd.Problem:
    """Clipped logistic regression."""
    return dd.Problem(dd.losses.logistic(), L2, CLIP_NORM)


def batched(problem: dd.Problem, gradient: Callable = erm.gradient) -> Callable:
    """`(params, database) -> gradients` for a stack of models."""
    return jax.jit(
        jax.vmap(lambda theta, database: gradient(problem, theta, database), in_axes=(0, None))
    )


def per_record(problem: dd.Problem, n: int) -> Callable:
    """vmap(grad) with clipping: one gradient per record and seed, all rows at once."""
    whole = dd.Problem(problem.loss, problem.l2, problem.clip_norm, row_chunk=n)
    return batched(whole, erm.reference_gradient)


def grad_of_mean(problem: dd.Problem, theta, database):
    """The gradient of the mean loss, which cannot clip."""

    def mean_loss(theta):
        return jnp.mean(jax.vmap(problem.loss.value, in_axes=(None, 0))(theta, database))

    return jax.tree.map(lambda g, w: g + problem.l2 * w, jax.grad(mean_loss)(theta), theta)


def numpy_gradient(params: np.ndarray, database: dd.Labelled) -> Callable[[], np.ndarray]:
    """The same formula in NumPy, batched over seeds."""
    signed = np.asarray(database.features * database.label[:, None])
    limit = CLIP_NORM / np.linalg.norm(signed, axis=1)

    def gradient() -> np.ndarray:
        slopes = -1 / (1 + np.exp(params @ signed.T))
        return np.clip(slopes, -limit, limit) @ signed / len(signed) + L2 * params

    return gradient


def noisy_steps(problem: dd.Problem, num_steps: int) -> Callable:
    """`(params, database) -> models` after some noisy steps of every seed."""

    def one(key, theta, database):
        return dd.noisy_gd.run(
            key,
            theta,
            database,
            problem,
            step_size=STEP_SIZE,
            noise_variance=NOISE,
            num_steps=num_steps,
        )

    def all_seeds(params, database):
        keys = jax.vmap(jax.random.key)(jnp.arange(len(params)))
        return jax.vmap(one, in_axes=(0, 0, None))(keys, params, database)

    return jax.jit(all_seeds)


def torch_steps(database: dd.Labelled, theta: np.ndarray, num_steps: int, cores: int) -> Callable:
    """Noisy-GD as a plain PyTorch loop of one seed: autograd of the mean loss, a step, noise."""
    import torch  # pyright: ignore[reportMissingImports]

    torch.set_num_threads(cores)
    features, label = (torch.tensor(np.asarray(leaf)) for leaf in database)
    scale = float(np.sqrt(2 * STEP_SIZE * NOISE))

    def run():
        params = torch.tensor(theta, requires_grad=True)
        for _ in range(num_steps):
            loss = torch.nn.functional.softplus(-label * (features @ params)).mean()
            loss = loss + L2 / 2 * (params**2).sum()
            (slope,) = torch.autograd.grad(loss, params)
            with torch.no_grad():
                params -= STEP_SIZE * slope - scale * torch.randn_like(params)
        return params

    return run


def peak_bytes(function: Callable, *args) -> int:
    """Memory that the compiled program holds: arguments, results and scratch."""
    memory = function.lower(*args).compile().memory_analysis()
    return int(
        memory.argument_size_in_bytes + memory.output_size_in_bytes + memory.temp_size_in_bytes
    )


def gemm_rate(size: int = 2048) -> float:
    """Flop per second of XLA's float32 matrix product, best of several."""
    matrix = jnp.ones((size, size), jnp.float32)
    return 2 * size**3 / best_time(jax.jit(jnp.matmul), matrix, matrix, repeats=9)


def best_time(function: Callable, *args, repeats: int = 7) -> float:
    """Shortest of several timed calls, in seconds, after one that compiles."""
    jax.block_until_ready(function(*args))
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        jax.block_until_ready(function(*args))
        times.append(time.perf_counter() - start)
    return min(times)
