"""The gradient kernel at fixed sizes, beside the machine's matrix product and beside other ways.

Useful work of one step for S seeds is 4·n·d·S floating-point operations (scores and their
transpose). Absolute times mean little on a shared machine; ratios, best of several taken in turns
in one run, do. One core is timed by the processor time of the process, which leaves out what other
processes take of the core.
"""

import functools
import importlib.util
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import dd_jax as dd
from experiments.bench import forms
from experiments.bench.growth import formula_bytes

Thunks = dict[str, Callable[[], Any]]


@dataclass(frozen=True)
class Cell:
    """One measured setting; a number that was not measured is `None`.

    Attributes:
        gemm_ratio: useful flop rate over the GEMM rate.
        elementwise_ratio: speed over computing and clamping the slopes alone.
        grad_of_mean_ratio: speed over vmap of grad-of-mean (no clipping).
        vmap_grad_ratio: speed over one clipped gradient per record, per seed.
        numpy_ratio: speed over the same formula in NumPy, batched over seeds.
        torch_ratio: noisy clipped steps per second and seed, over a PyTorch loop of one seed that
            makes the same steps. torch_unclipped_ratio: over one that does not clip.
        peak_bytes: memory of the compiled gradient: arguments, results and scratch.
        formula_bytes: what `gradients.peak_numbers` bounds it by.
        targets: least values asked of the ratios above.
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
class Setting:
    """A cell to measure on one core.

    Attributes:
        n, d, seeds: sizes.
        hidden: hidden units of a network d-hidden-1 (0: none).
        classes: classes of softmax regression (0: none). With neither it is logistic regression.
        reference_seeds: seeds that one gradient per record is timed with (0: not at all); it takes
            n·d numbers for each.
        torch_steps: steps of the PyTorch loops (0: not at all).
        targets: least values asked of ratios, by their names in `Cell`.
    """

    n: int
    d: int
    seeds: int
    hidden: int = 0
    classes: int = 0
    reference_seeds: int = 0
    torch_steps: int = 0
    targets: Mapping[str, float] = field(default_factory=dict)


SETTINGS = (
    Setting(
        10_000,
        50,
        1024,
        reference_seeds=128,
        torch_steps=20,
        targets={"gemm_ratio": 0.70, "vmap_grad_ratio": 80, "torch_ratio": 60},
    ),
    Setting(10_000, 785, 1024, targets={"gemm_ratio": 0.80}),
    Setting(1_000, 50, 1024, reference_seeds=256, targets={"gemm_ratio": 0.55}),
    Setting(1_000, 10, 1024, torch_steps=50, targets={"gemm_ratio": 0.25, "torch_ratio": 150}),
    Setting(200, 2, 1024, targets={"elementwise_ratio": 0.45}),
    Setting(12_000, 784, 1024, torch_steps=2, targets={"torch_ratio": 300}),
    Setting(1_000, 10, 1, torch_steps=50, targets={"torch_ratio": 12}),
    Setting(10_000, 50, 1, torch_steps=20, targets={"torch_ratio": 12}),
    Setting(12_000, 784, 1, torch_steps=2, targets={"torch_ratio": 12}),
    Setting(10_000, 50, 128, classes=10, reference_seeds=8),
    Setting(1_000, 784, 8, hidden=32, reference_seeds=8, targets={"vmap_grad_ratio": 100}),
)


def measure(setting: Setting) -> Cell:
    """Time one clipped gradient for many seeds by each of the forms, on one core."""
    problem, database, params, name = _case(setting)
    ours = forms.batched(problem)
    functions = forms.matrix_products() | {"ours": functools.partial(ours, params, database)}
    logistic = not setting.hidden and not setting.classes
    if logistic:
        functions |= _logistic_forms(problem, params, database)
    if setting.reference_seeds:
        some = jax.tree.map(lambda leaf: leaf[: setting.reference_seeds], params)
        reference = forms.per_record(problem, setting.n)
        functions["per record"] = functools.partial(reference, some, database)
    seconds = forms.best_times(functions, clock=time.process_time, repeats=_repeats(setting))

    def ratio(form: str) -> float | None:
        return seconds[form] / seconds["ours"] if form in seconds else None

    if "per record" in seconds:  # of some of the seeds
        seconds["per record"] *= setting.seeds / setting.reference_seeds
    weights = sum(leaf.size for leaf in jax.tree.leaves(params))
    rate = 4 * setting.n * weights / seconds["ours"]
    return Cell(
        loss=name,
        n=setting.n,
        d=setting.d,
        seeds=setting.seeds,
        cores=1,
        gemm_ratio=rate / forms.gemm_rate(seconds),
        elementwise_ratio=ratio("slopes"),
        grad_of_mean_ratio=ratio("grad of mean"),
        vmap_grad_ratio=ratio("per record"),
        numpy_ratio=ratio("numpy"),
        **_torch_ratios(setting, problem, params, database),
        peak_bytes=forms.peak_bytes(ours, params, database),
        formula_bytes=None
        if setting.hidden
        else formula_bytes(setting.n, setting.d, setting.seeds * max(1, setting.classes)),
        targets=setting.targets,
    )


def _case(setting: Setting) -> tuple[dd.Problem, dd.Labelled, Any, str]:
    """The problem, its database, a stack of models and the name."""
    database, params = forms.logistic_inputs(setting.n, setting.d, setting.seeds)
    if setting.hidden:
        loss = dd.losses.bounded_network(hidden=setting.hidden)
        name = f"network {setting.d}-{setting.hidden}-1, clipped"
    elif setting.classes:
        loss = dd.losses.softmax(num_classes=setting.classes)
        label = np.random.default_rng(2).integers(0, setting.classes, setting.n)
        database = dd.Labelled(database.features, jnp.asarray(label, jnp.int32))
        name = f"softmax, {setting.classes} classes, clipped"
    else:
        return forms.logistic_problem(), database, params, "logistic, clipped"
    rng = np.random.default_rng(1)
    params = jax.tree.map(
        lambda leaf: jnp.asarray(rng.normal(size=(setting.seeds, *leaf.shape)), jnp.float32),
        loss.template(database),
    )
    return dd.Problem(loss, forms.L2, forms.CLIP_NORM), database, params, name


def _repeats(setting: Setting) -> int:
    """More turns for short ones, which are the more easily disturbed."""
    work = setting.n * setting.d * setting.seeds
    return 3 if work > 10**9 else 6 if work > 10**8 else 15


def _logistic_forms(problem: dd.Problem, params: jax.Array, database: dd.Labelled) -> Thunks:
    scores = problem.loss.scores
    assert scores is not None
    margins = params @ database.features.T

    @jax.jit
    def clamped(margins, label):
        return jnp.clip(scores.slope(margins, label), -forms.CLIP_NORM, forms.CLIP_NORM)

    mean = forms.batched(problem, forms.grad_of_mean)
    return {
        "slopes": lambda: clamped(margins, database.label),
        "grad of mean": lambda: mean(params, database),
        "numpy": forms.numpy_gradient(np.asarray(params), database),
    }


def _torch_ratios(setting: Setting, problem, params, database) -> dict[str, float]:
    if not setting.torch_steps or importlib.util.find_spec("torch") is None:
        return {}
    steps = setting.torch_steps
    ours = forms.noisy_steps(problem, steps)
    loops: Thunks = {"ours": lambda: ours(params, database)}
    for name, clipped in (("torch_ratio", True), ("torch_unclipped_ratio", False)):
        loops[name] = forms.torch_steps(database, np.asarray(params[0]), steps, clipped=clipped)
    seconds = forms.best_times(loops, repeats=3, clock=time.process_time)
    one_seed = seconds.pop("ours") / setting.seeds
    return {name: loop / one_seed for name, loop in seconds.items()}
