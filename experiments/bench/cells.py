"""The gradient kernel at fixed sizes, beside the machine's matrix product and beside other ways.

Useful work of one step for S seeds is 4·n·d·S floating-point operations (scores and their
transpose). Absolute times mean little on a shared machine; ratios, best of several in one run, do.
"""

import importlib.util
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

import dd_jax as dd
from experiments.bench import forms


@dataclass(frozen=True)
class Cell:
    """One measured setting; a number that was not measured is `None`.

    Attributes:
        gemm_ratio: useful flop rate over the GEMM rate.
        elementwise_ratio: speed over computing and clamping the slopes alone.
        grad_of_mean_ratio: speed over vmap of grad-of-mean (no clipping).
        vmap_grad_ratio: speed over one clipped gradient per record, per seed.
        numpy_ratio: speed over the same formula in NumPy, batched over seeds.
        torch_ratio: noisy steps per second and seed, over a PyTorch autograd loop of one seed.
        peak_bytes: memory of the compiled gradient: arguments, results and scratch.
    """

    loss: str
    n: int
    d: int
    seeds: int
    cores: int
    gemm_ratio: float
    elementwise_ratio: float | None = None
    grad_of_mean_ratio: float | None = None
    vmap_grad_ratio: float | None = None
    numpy_ratio: float | None = None
    torch_ratio: float | None = None
    peak_bytes: int | None = None


@dataclass(frozen=True)
class Setting:
    """A cell to measure.

    Attributes:
        n, d, seeds: sizes.
        hidden: hidden units of a network 784-32-1, or 0 for clipped logistic regression.
        reference_seeds: seeds that one gradient per record is timed with (0: not at all); it takes
            n·d numbers for each.
        torch_steps: steps of the PyTorch loop (0: not at all).
    """

    n: int
    d: int
    seeds: int
    hidden: int = 0
    reference_seeds: int = 0
    torch_steps: int = 0


SETTINGS = (
    Setting(10_000, 50, 1024, reference_seeds=128, torch_steps=50),
    Setting(10_000, 785, 1024),
    Setting(1_000, 50, 1024, reference_seeds=1024),
    Setting(1_000, 10, 1024, reference_seeds=1024, torch_steps=200),
    Setting(200, 2, 1024),
    Setting(12_000, 784, 1024, torch_steps=10),
    Setting(12_000, 784, 1, torch_steps=10),
    Setting(1_000, 784, 8, hidden=32, reference_seeds=8),
)


def measure(setting: Setting, gemm: float, cores: int) -> Cell:
    """Time one clipped gradient for many seeds by each of the forms."""
    return (_network if setting.hidden else _logistic)(setting, gemm, cores)


def _logistic(setting: Setting, gemm: float, cores: int) -> Cell:
    n, d, seeds = setting.n, setting.d, setting.seeds
    database, params = forms.logistic_inputs(n, d, seeds)
    problem = forms.logistic_problem()
    ours = forms.batched(problem)
    seconds = forms.best_time(ours, params, database)
    mean = forms.batched(problem, forms.grad_of_mean)
    loop = forms.numpy_gradient(np.asarray(params), database)
    return Cell(
        loss="logistic, clipped",
        n=n,
        d=d,
        seeds=seeds,
        cores=cores,
        gemm_ratio=4 * n * d * seeds / seconds / gemm,
        elementwise_ratio=_slopes_seconds(database, params) / seconds,
        grad_of_mean_ratio=forms.best_time(mean, params, database, repeats=3) / seconds,
        vmap_grad_ratio=_per_record_ratio(setting, problem, params, database, seconds),
        numpy_ratio=forms.best_time(loop, repeats=3) / seconds,
        torch_ratio=_torch_ratio(setting, problem, params, database, cores),
        peak_bytes=forms.peak_bytes(ours, params, database),
    )


def _network(setting: Setting, gemm: float, cores: int) -> Cell:
    database, _ = forms.logistic_inputs(setting.n, setting.d, 1)
    problem = dd.Problem(
        dd.losses.bounded_network(hidden=setting.hidden), forms.L2, forms.CLIP_NORM
    )
    shapes = problem.loss.template(database)
    params = jax.tree.map(lambda leaf: _normal((setting.seeds, *leaf.shape)), shapes)
    ours = forms.batched(problem)
    seconds = forms.best_time(ours, params, database)
    weights = setting.d * setting.hidden
    return Cell(
        loss=f"network {setting.d}-{setting.hidden}-1, clipped",
        n=setting.n,
        d=setting.d,
        seeds=setting.seeds,
        cores=cores,
        gemm_ratio=4 * setting.n * weights * setting.seeds / seconds / gemm,
        vmap_grad_ratio=_per_record_ratio(setting, problem, params, database, seconds),
        peak_bytes=forms.peak_bytes(ours, params, database),
    )


def _normal(shape: tuple[int, ...]) -> jax.Array:
    return jnp.asarray(np.random.default_rng(1).normal(size=shape), jnp.float32)


def _slopes_seconds(database: dd.Labelled, params: jax.Array) -> float:
    """Time of slope and clamp alone, for every seed and record."""
    scores = dd.losses.logistic().scores
    assert scores is not None
    margins = params @ database.features.T

    def clamped(margins, label):
        return jnp.clip(scores.slope(margins, label), -forms.CLIP_NORM, forms.CLIP_NORM)

    return forms.best_time(jax.jit(clamped), margins, database.label)


def _per_record_ratio(setting: Setting, problem, params, database, seconds: float) -> float | None:
    if not setting.reference_seeds:
        return None
    some = jax.tree.map(lambda leaf: leaf[: setting.reference_seeds], params)
    reference = forms.per_record(problem, setting.n)
    slow = forms.best_time(reference, some, database, repeats=1)
    return (slow / setting.reference_seeds) / (seconds / setting.seeds)


def _torch_ratio(setting: Setting, problem, params, database, cores: int) -> float | None:
    if not setting.torch_steps or importlib.util.find_spec("torch") is None:
        return None
    steps = setting.torch_steps
    loop = forms.torch_steps(database, np.asarray(params[0]), steps, cores)
    ours = forms.noisy_steps(problem, steps)
    seconds = forms.best_time(ours, params, database, repeats=2)
    return forms.best_time(loop, repeats=3) / (seconds / setting.seeds)
