"""One clipped, regularised gradient for many seeds in several forms, and how to time them."""

import time
from collections.abc import Callable
from functools import partial
from typing import Any

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


def torch_steps(
    database: dd.Labelled, theta: np.ndarray, num_steps: int, *, clipped: bool
) -> Callable[[], Any]:
    """Noisy-GD as a plain PyTorch loop of one seed: autograd, a step, noise.

    Clipped it takes one gradient per record, by `torch.func`, and does what our steps do; otherwise
    one backward pass through the mean loss, as public code does that cannot clip.
    """
    import torch  # pyright: ignore[reportMissingImports]

    torch.set_num_threads(1)
    features, label = (torch.tensor(np.asarray(leaf)) for leaf in database)
    scale = float(np.sqrt(2 * STEP_SIZE * NOISE))

    def value(params, features, label):
        return torch.nn.functional.softplus(-label * (features @ params))

    per_record = torch.func.vmap(torch.func.grad(value), in_dims=(None, 0, 0))

    def clipped_slope(params):
        slopes = per_record(params, features, label)
        factor = (CLIP_NORM / slopes.norm(dim=1, keepdim=True)).clamp(max=1)
        return (factor * slopes).mean(dim=0) + L2 * params

    def mean_slope(params):
        params = params.requires_grad_()
        loss = value(params, features, label).mean() + L2 / 2 * (params**2).sum()
        return torch.autograd.grad(loss, params)[0]

    slope = clipped_slope if clipped else mean_slope

    def run():
        params = torch.tensor(theta)
        for _ in range(num_steps):
            step = slope(params)
            params = params.detach() - STEP_SIZE * step + scale * torch.randn_like(params)
        return params

    return run


def peak_bytes(function: Callable, *args) -> int:
    """Memory that the compiled program holds: arguments, results and scratch."""
    memory = function.lower(*args).compile().memory_analysis()
    return int(
        memory.argument_size_in_bytes + memory.output_size_in_bytes + memory.temp_size_in_bytes
    )


GEMM_SIZES = (1024, 2048)


def matrix_products() -> dict[str, Callable[[], Any]]:
    """XLA's own float32 matrix product at two sizes; the better rate is the yardstick."""
    product = jax.jit(jnp.matmul)
    squares = {size: jnp.ones((size, size), jnp.float32) for size in GEMM_SIZES}
    return {f"gemm {size}": partial(product, a, a) for size, a in squares.items()}


def gemm_rate(seconds: dict[str, float]) -> float:
    """Flop per second of the matrix product, from `best_times` of `matrix_products`."""
    return max(2 * size**3 / seconds[f"gemm {size}"] for size in GEMM_SIZES)


def best_times(
    functions: dict[str, Callable[[], Any]], *, repeats: int = 7, clock: Callable[[], float]
) -> dict[str, float]:
    """Shortest of several timed calls of each function, taken in turns.

    In turns, because a shared machine is fast at one moment and slow at the next; each timed call
    follows one of the same function, so that all find their caches warm.
    """
    best = dict.fromkeys(functions, float("inf"))
    for _ in range(repeats):
        for name, function in functions.items():
            jax.block_until_ready(function())
            start = clock()
            jax.block_until_ready(function())
            best[name] = min(best[name], clock() - start)
    return best


def best_time(function: Callable, *args, repeats: int = 7) -> float:
    """Shortest of several timed calls, in seconds, after one that compiles."""
    call = {"": lambda: function(*args)}
    return best_times(call, repeats=repeats, clock=time.perf_counter)[""]
