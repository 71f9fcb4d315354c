"""The gradient kernel, beside the machine's matrix product and beside other ways to compute it.

Useful work of one step for S seeds is 4·n·d·S floating-point operations (scores and their
transpose). Absolute times mean little on a shared machine, so each number is a ratio of best times
taken in turns in one run. One core is timed by the processor time of the process, which leaves out
what other processes take of the core.
"""

import importlib.util
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import dd_jax as dd
from dd_jax import erm, gradients

L2, CLIP_NORM, STEP_SIZE, NOISE = 0.01, 0.5, 0.5, 1e-3
GEMM_SIZES = (1024, 2048)
Thunks = dict[str, Callable[[], Any]]


# --- time and memory ------------------------------------------------------------------------------


def best_times(
    functions: Thunks, *, repeats: int = 7, clock: Callable[[], float] = time.process_time
) -> dict[str, float]:
    """Shortest of several timed calls of each function, taken in turns.

    They take turns because a shared machine is fast at one moment and slow at the next. Each timed
    call follows another call of the same function, so that caches are warm for all.
    """
    best = dict.fromkeys(functions, float("inf"))
    for _ in range(repeats):
        for name, function in functions.items():
            jax.block_until_ready(function())
            start = clock()
            jax.block_until_ready(function())
            best[name] = min(best[name], clock() - start)
    return best


def matrix_products() -> Thunks:
    """XLA's own float32 matrix product at two sizes; the better rate is the yardstick."""
    product = jax.jit(jnp.matmul)
    squares = {size: jnp.ones((size, size), jnp.float32) for size in GEMM_SIZES}
    return {f"gemm {size}": partial(product, a, a) for size, a in squares.items()}


def gemm_rate(seconds: dict[str, float]) -> float:
    """Flop per second of the matrix product, from `best_times` of `matrix_products`."""
    return max(2 * size**3 / seconds[f"gemm {size}"] for size in GEMM_SIZES)


def peak_bytes(lowered: jax.stages.Lowered) -> int:
    """Memory that the compiled program holds: arguments, results and scratch."""
    memory: Any = lowered.compile().memory_analysis()
    return int(
        memory.argument_size_in_bytes + memory.output_size_in_bytes + memory.temp_size_in_bytes
    )


def formula_bytes(n: int, d: int, columns: int) -> int:
    """What `gradients.peak_numbers` says of chunks chosen from the shapes, in float32."""
    chunk = gradients.chunk_rows(n, max(d, columns))
    return 4 * gradients.peak_numbers(n, d, columns, chunk)


# --- one clipped, regularised gradient for many seeds, in several forms ---------------------------


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


def numpy_gradient(database: dd.Labelled) -> Callable[[np.ndarray], np.ndarray]:
    """The same formula in NumPy, for one model or a stack of them."""
    signed = np.asarray(database.features * database.label[:, None])
    limit = CLIP_NORM / np.linalg.norm(signed, axis=1)

    def gradient(params: np.ndarray) -> np.ndarray:
        slopes = -1 / (1 + np.exp(params @ signed.T))
        return np.clip(slopes, -limit, limit) @ signed / len(signed) + L2 * params

    return gradient


def numpy_steps(
    database: dd.Labelled, theta: np.ndarray, num_steps: int
) -> Callable[[], np.ndarray]:
    """Noisy-GD of one seed as a loop in NumPy."""
    gradient, rng = numpy_gradient(database), np.random.default_rng(0)
    scale = float(np.sqrt(2 * STEP_SIZE * NOISE))

    def run() -> np.ndarray:
        params = theta
        for _ in range(num_steps):
            noise = rng.standard_normal(params.shape, np.float32)
            params = params + (scale * noise - STEP_SIZE * gradient(params))
        return params

    return run


def noisy_run(
    problem: dd.Problem, num_steps: int, noise: float = NOISE, batches: int = 1
) -> Callable:
    """`(key, params, database) -> model` after some noisy steps of one seed."""

    def run(key, params, database):
        return dd.noisy_gd.run(
            key,
            params,
            database,
            problem,
            step_size=STEP_SIZE,
            noise_variance=noise,
            num_steps=num_steps,
            batches=batches,
        )

    return run


def noisy_steps(problem: dd.Problem, num_steps: int) -> Callable:
    """`(params, database) -> models` after some noisy steps of every seed."""
    run = jax.vmap(noisy_run(problem, num_steps, NOISE), in_axes=(0, 0, None))

    def all_seeds(params, database):
        keys = jax.vmap(jax.random.key)(jnp.arange(len(params)))
        return run(keys, params, database)

    return jax.jit(all_seeds)


def torch_steps(
    database: dd.Labelled, theta: np.ndarray, num_steps: int, *, clipped: bool
) -> Callable[[], Any]:
    """Noisy-GD as a plain PyTorch loop of one seed: autograd, a step, noise.

    With clipping it takes one gradient per record by `torch.func` and makes the same steps as ours.
    Without, it is one backward pass through the mean loss, as in public code that cannot clip.
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


# --- cells ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cell:
    """One measured workload; a number that was not measured is `None`.

    Attributes:
        gemm_ratio: useful flop rate over the GEMM rate.
        elementwise_ratio: speed over computing and clamping the slopes alone.
        grad_of_mean_ratio: speed over vmap of grad-of-mean (no clipping).
        vmap_grad_ratio: speed over one clipped gradient per record, per seed.
        numpy_ratio: speed over the same formula in NumPy, batched over seeds; for one seed, over
            a loop of the same steps.
        torch_ratio: noisy clipped steps per second and seed, over a PyTorch loop of one seed that
            makes the same steps. torch_unclipped_ratio: over one that does not clip.
        peak_bytes: memory of the compiled gradient: arguments, results and scratch.
        formula_bytes: what `gradients.peak_numbers` bounds it by.
        targets: the smallest wanted values of the ratios above.
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
    torch_unclipped_ratio: float | None = None
    peak_bytes: int | None = None
    formula_bytes: int | None = None
    targets: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Workload:
    """A cell to measure on one core.

    Attributes:
        n, d, seeds: sizes.
        hidden: hidden units of a network d-hidden-1 (0: none).
        classes: classes of softmax regression (0: none). With neither it is logistic regression.
        reference_seeds: seeds with which one gradient per record is timed (0: not timed); each
            takes n·d numbers.
        steps: with 0 the cell times one gradient; otherwise a run of so many noisy steps, as one
            model is used. A single call of a small gradient would time its dispatch.
        torch_steps: steps of the PyTorch loops (0: not timed).
        targets: the smallest wanted values of ratios, by their names in `Cell`.
    """

    n: int
    d: int
    seeds: int
    hidden: int = 0
    classes: int = 0
    reference_seeds: int = 0
    steps: int = 0
    torch_steps: int = 0
    targets: Mapping[str, float] = field(default_factory=dict)


WORKLOADS = (
    Workload(
        10_000,
        50,
        1024,
        reference_seeds=128,
        torch_steps=20,
        targets={"gemm_ratio": 0.70, "vmap_grad_ratio": 80, "torch_ratio": 60},
    ),
    Workload(10_000, 785, 1024, targets={"gemm_ratio": 0.80}),
    Workload(1_000, 50, 1024, reference_seeds=256, targets={"gemm_ratio": 0.55}),
    Workload(1_000, 10, 1024, torch_steps=50, targets={"gemm_ratio": 0.25, "torch_ratio": 150}),
    Workload(200, 2, 1024, targets={"elementwise_ratio": 0.45}),
    Workload(12_000, 784, 1024, torch_steps=2, targets={"torch_ratio": 300}),
    Workload(1_000, 10, 1, steps=300, torch_steps=50, targets={"torch_ratio": 12}),
    Workload(10_000, 50, 1, steps=300, torch_steps=20, targets={"torch_ratio": 12}),
    Workload(12_000, 784, 1, steps=300, torch_steps=2, targets={"torch_ratio": 12}),
    Workload(10_000, 50, 128, classes=10, reference_seeds=8),
    Workload(1_000, 784, 8, hidden=32, reference_seeds=8, targets={"vmap_grad_ratio": 100}),
)


def measure(work: Workload) -> Cell:
    """Time a clipped gradient of many seeds, or a run of one, by each of the forms; one core."""
    problem, database, params, name = _case(work)
    ours = noisy_steps(problem, work.steps) if work.steps else batched(problem)
    functions = matrix_products() | {"ours": partial(ours, params, database)}
    logistic = not work.hidden and not work.classes
    if work.steps:
        functions["numpy"] = numpy_steps(database, np.asarray(params[0]), work.steps)
    elif logistic:
        functions |= _logistic_forms(problem, params, database)
    if work.reference_seeds:
        some = jax.tree.map(lambda leaf: leaf[: work.reference_seeds], params)
        reference = per_record(problem, work.n)
        functions["per record"] = partial(reference, some, database)
    seconds = best_times(functions, repeats=_repeats(work))

    def ratio(form: str) -> float | None:
        return seconds[form] / seconds["ours"] if form in seconds else None

    if "per record" in seconds:  # timed with some of the seeds only
        seconds["per record"] *= work.seeds / work.reference_seeds
    weights = sum(leaf.size for leaf in jax.tree.leaves(params))
    rate = 4 * work.n * weights * max(1, work.steps) / seconds["ours"]
    return Cell(
        loss=name,
        n=work.n,
        d=work.d,
        seeds=work.seeds,
        cores=1,
        gemm_ratio=rate / gemm_rate(seconds),
        elementwise_ratio=ratio("slopes"),
        grad_of_mean_ratio=ratio("grad of mean"),
        vmap_grad_ratio=ratio("per record"),
        numpy_ratio=ratio("numpy"),
        **_torch_ratios(work, problem, params, database),
        peak_bytes=peak_bytes(ours.lower(params, database)),
        formula_bytes=None
        if work.hidden
        else formula_bytes(work.n, work.d, work.seeds * max(1, work.classes)),
        targets=work.targets,
    )


def _case(work: Workload) -> tuple[dd.Problem, dd.Labelled, Any, str]:
    """The problem, its database, a stack of models and the name."""
    database, params = logistic_inputs(work.n, work.d, work.seeds)
    if work.hidden:
        loss = dd.losses.bounded_network(hidden=work.hidden)
        name = f"network {work.d}-{work.hidden}-1, clipped"
    elif work.classes:
        loss = dd.losses.softmax(num_classes=work.classes)
        label = np.random.default_rng(2).integers(0, work.classes, work.n)
        database = dd.Labelled(database.features, jnp.asarray(label, jnp.int32))
        name = f"softmax, {work.classes} classes, clipped"
    else:
        return logistic_problem(), database, params, "logistic, clipped"
    rng = np.random.default_rng(1)
    params = jax.tree.map(
        lambda leaf: jnp.asarray(rng.normal(size=(work.seeds, *leaf.shape)), jnp.float32),
        loss.template(database),
    )
    return dd.Problem(loss, L2, CLIP_NORM), database, params, name


def _repeats(work: Workload) -> int:
    """More turns for short programs, which are disturbed more easily."""
    numbers = work.n * work.d * work.seeds * max(1, work.steps)
    return 3 if numbers > 10**9 else 6 if numbers > 10**8 else 15


def _logistic_forms(problem: dd.Problem, params: jax.Array, database: dd.Labelled) -> Thunks:
    scores = problem.loss.scores
    assert scores is not None
    margins = params @ database.features.T

    @jax.jit
    def clamped(margins, label):
        return jnp.clip(scores.slope(margins, label), -CLIP_NORM, CLIP_NORM)

    mean = batched(problem, grad_of_mean)
    return {
        "slopes": lambda: clamped(margins, database.label),
        "grad of mean": lambda: mean(params, database),
        "numpy": partial(numpy_gradient(database), np.asarray(params)),
    }


def _torch_ratios(work: Workload, problem, params, database) -> dict[str, float]:
    if not work.torch_steps or importlib.util.find_spec("torch") is None:
        return {}
    steps = work.torch_steps
    ours = noisy_steps(problem, steps)
    loops: Thunks = {"ours": lambda: ours(params, database)}
    for name, clipped in (("torch_ratio", True), ("torch_unclipped_ratio", False)):
        loops[name] = torch_steps(database, np.asarray(params[0]), steps, clipped=clipped)
    seconds = best_times(loops, repeats=3)
    one_seed = seconds.pop("ours") / work.seeds
    return {name: loop / one_seed for name, loop in seconds.items()}


def measure_sharded(
    cores: int, n: int = 10_000, d: int = 50, seeds: int = 1024, steps: int = 10
) -> Cell:
    """Noisy steps of seeds sharded over one device for each core.

    The yardstick is the faster of two: one product shared by all cores, or one product per core.
    """
    database, _ = logistic_inputs(n, d, 1)
    schedule = dd.noisy_gd.Schedule(STEP_SIZE, NOISE, 1.0, steps, 0)
    learn = dd.noisy_gd.mechanism(logistic_problem(), schedule).learn
    mesh = dd.sharding.make_mesh(cores)

    def ours():
        return dd.over_seeds(learn, jax.random.key(0), seeds, database, mesh=mesh)

    size = max(GEMM_SIZES)
    squares = jax.device_put(
        jnp.ones((cores, size, size), jnp.float32),
        jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("seeds")),
    )
    each = jax.jit(jax.vmap(jnp.matmul))
    functions = matrix_products() | {"ours": ours, "each": lambda: each(squares, squares)}
    seconds = best_times(functions, repeats=15, clock=time.perf_counter)
    gemm = max(gemm_rate(seconds), cores * 2 * size**3 / seconds["each"])
    return Cell(
        loss="logistic, clipped",
        n=n,
        d=d,
        seeds=seeds,
        cores=cores,
        gemm_ratio=4 * n * d * seeds * steps / seconds["ours"] / gemm,
        targets={"gemm_ratio": 0.80},
    )


# --- growth ---------------------------------------------------------------------------------------

# One size is varied at a time; the others stay here, where the work is well above any overhead.
BASE = {"n": 4_000, "d": 50, "seeds": 256, "steps": 10}
AXES = {
    "n": (2_000, 6_000, 20_000),
    "d": (50, 150, 500),
    "seeds": (128, 384, 1_280),
    "steps": (5, 15, 50),
}


def growth(repeats: int = 3) -> dict[str, dict[str, Any]]:
    """For each axis its sizes, best times, exponent of time, bytes and the bytes of the formula.

    Sizes of an axis are timed in turns, so that a slow moment of the machine affects all alike.
    """
    return {axis: _along(axis, sizes, repeats) for axis, sizes in AXES.items()}


def _along(axis: str, sizes: tuple[int, ...], repeats: int) -> dict[str, Any]:
    runs, bytes_held, bytes_bound = {}, [], []
    for size in sizes:
        shape = BASE | {axis: size}
        database, params = logistic_inputs(shape["n"], shape["d"], shape["seeds"])
        run = noisy_steps(logistic_problem(), shape["steps"])
        runs[str(size)] = lambda run=run, params=params, database=database: run(params, database)
        bytes_held.append(peak_bytes(run.lower(params, database)))
        bytes_bound.append(formula_bytes(shape["n"], shape["d"], shape["seeds"]))
    seconds = best_times(runs, repeats=repeats)
    times = [seconds[str(size)] for size in sizes]
    return {
        "sizes": list(sizes),
        "seconds": times,
        "time_exponent": exponent(sizes, times),
        "bytes": bytes_held,
        "formula_bytes": bytes_bound,
    }


def exponent(sizes, values) -> float:
    """Slope of logarithms, by least squares."""
    return float(np.polyfit(np.log(sizes), np.log(values), 1)[0])
