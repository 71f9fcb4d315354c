"""A hundred deletions at one (ε, δ): what the systems pay over the whole stream, and for what.

Every system may choose its own noise σ² from a common grid; λ, the data and (ε, δ) are the same,
and each takes the longest step that its own analysis allows. More noise saves passes and costs
accuracy, so each system is a curve. The table takes each at its cheapest noise whose accuracy is
within a point of the best of all.
"""

from dataclasses import dataclass

import jax
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.markers import CARETUP

import dd_jax as dd
from dd_jax import data
from dd_jax.cli import style
from dd_jax.errors import InputError
from experiments.cache import Runner
from experiments.compare.sequential import (
    LAZY,
    OURS,
    REPORTED,
    Choice,
    Stream,
    accuracies,
    all_passes,
    best_accuracy,
    choose,
)
from experiments.page import Table

TITLE = "A hundred deletions, by every system"
CAPTION = (
    "A hundred deletions at one (ε, δ) after every request. Left: passes and final accuracy at "
    "every noise, with the marks of the right. Right: each system at the noise that is cheapest "
    "within a margin of the best accuracy (hollow: none is). Notions differ: data-deletion for "
    "Noisy-GD, closeness to retraining for the others. With enough noise a release of Noisy-GD is "
    "(ε, δ)-DP by itself, and one pass may serve several requests; the others take at least one "
    "each."
)
NOTE = (
    "δ = 1/n; the stream is fixed in advance; a × b means a requests of b records, judged jointly. "
    "Each system takes the longest step that its own analysis allows, 2/(2λ+β) for Noisy-GD, "
    "1/(λ+β) for Langevin and PNSGD. A pass of PNSGD with mini-batches is many steps, each of "
    "which contracts, where a full-batch pass is one; in return it keeps the order of its batches "
    "and takes learning as converged. Passes are the calibrations'. Accuracy is on held-out "
    "records, taken as given, with 95% intervals over seeds; undecided: the interval contains the "
    "floor. Systems with the same steps and noise share it, measured over the whole stream at one "
    "pass per request (Perturbed-GD: its last request). Black carets, on the authors' data "
    "(mnist-3-vs-8): the passes in their stored results, with their own noise, λ and accuracy."
)
# Deletions are divided evenly among 20, 10 and 5 requests.
GROUPS = 20


@dataclass(frozen=True)
class Config:
    """Settings of the table; the quick scale is the default, `FULL` has the authors' data."""

    dataset: str = "digits-3-vs-8"
    l2: float = 0.012
    epsilon: float = 1.0
    deletions: int = 100
    noise_factors: tuple[float, ...] = (1e-4, 1e-3, 1e-2, 0.1, 1.0, 4.0, 38.0)
    batch_size: int = 128
    batch_epochs: int = 40
    seeds: int = 64
    batch_seeds: int = 64
    margin: float = 0.01
    seed: int = 0

    def __post_init__(self):
        if self.deletions < GROUPS or self.deletions % GROUPS:
            raise InputError(f"deletions = {self.deletions}; give a multiple of {GROUPS}.")


FULL = Config(dataset="mnist-3-vs-8", seeds=4, batch_seeds=4, batch_epochs=5)


def make_stream(config: Config, loaded: data.Dataset) -> Stream:
    """L2-regularised logistic regression on the training rows, δ = 1/n."""
    n, dim = loaded.train.features.shape
    problem = dd.Problem(dd.losses.logistic(), config.l2)
    return Stream(problem, n, dim, config.epsilon, 1 / n, config.deletions, config.batch_size)


def compute(config: Config, runner: Runner) -> dict[str, np.ndarray]:
    """σ² of the grid, "passes: system" over it, and "accuracy: steps" over it and the seeds."""
    loaded = data.load(config.dataset)
    stream = make_stream(config, loaded)
    private = stream.private_noise
    noises = private * np.array(config.noise_factors)
    runner.say("steps by every calibration")
    return {
        "n": np.array(stream.n),
        "held_out": np.array(loaded.test.label.shape[0]),
        "noise": noises,
        "private_noise": np.array(private),
        **all_passes(stream, noises),
        **accuracies(
            jax.random.key(config.seed),
            stream,
            loaded,
            noises,
            seeds=config.seeds,
            batch_epochs=config.batch_epochs,
            batch_seeds=config.batch_seeds,
            say=runner.say,
        ),
    }


def tables(config: Config, results: dict[str, np.ndarray]) -> list[Table]:
    """Every system at its choice of noise."""
    floor = best_accuracy(results) - config.margin
    title = (
        f"{config.deletions} deletions on {config.dataset} at ε = {config.epsilon:g}: cheapest "
        f"noise with an accuracy of at least {floor:.3f}"
    )
    chosen = choose(config.margin, results)
    ours = next(choice.passes for choice in chosen if choice.name == OURS)
    rows = [
        {
            "system": choice.name,
            "notion": choice.system.notion,
            "keeps": choice.system.keeps,
            "requests": "one by one" if choice.system.single else "in groups",
            "σ²": choice.noise,
            "passes": choice.passes,
            f"× {OURS}": choice.passes / ours,
            "gradients": choice.gradients,
            "accuracy": choice.accuracy,
            "95% low": choice.low,
            "95% high": choice.high,
            "within the margin": choice.verdict,
        }
        for choice in chosen
    ]
    return [Table.from_rows(title, rows)]


LOOKS = {
    OURS: (style.BLUE, "D", style.SOLID),
    "Langevin": (style.ORANGE, "o", style.SOLID),
    "PNSGD, full batch": (style.GREEN, "^", style.SOLID),
    "PNSGD, mini-batch": (style.GREEN, "v", style.DASHED),
    "Perturbed-GD, Thm 28": (style.BLACK, "s", style.SOLID),
    "Perturbed-GD, Thm 28, best": (style.BLACK, "P", style.SOLID),
    "Retraining": (style.RED, "*", style.SOLID),
    LAZY: (style.BLUE, "d", style.DASHED),
    f"{OURS}, 20 × 5": (style.BLUE, "D", style.DASHED),
    "Langevin, 20 × 5": (style.ORANGE, "o", style.DASHED),
    f"{OURS}, 5 × 20": (style.BLUE, "D", style.DOTTED),
    "Langevin, 5 × 20": (style.ORANGE, "o", style.DOTTED),
}


def plot(config: Config, results: dict[str, np.ndarray]) -> Figure:
    """Accuracy against passes, one curve over the noises per system, and the chosen costs.

    The rows on the right name the marks and colours of both panels.
    """
    figure, (curves, costs) = style.panels(1, 2)
    figure.set_size_inches(12, 4.6)
    chosen = choose(config.margin, results)
    floor = best_accuracy(results) - config.margin
    for choice in chosen:
        colour, marker, dashes = LOOKS[choice.name]
        passes = results[f"passes: {choice.name}"]
        means = results[f"accuracy: {choice.system.steps}"].mean(axis=1)
        if choice.system.single:
            style.line(curves, passes, means, choice.name, colour, dashes, marker=marker)
    style.line(curves, None, floor, dashes=style.DOTTED, linewidth=1)
    place, words = curves.get_yaxis_transform(), f"best - {config.margin:g}"
    curves.text(0.01, floor, words, transform=place, va="bottom", fontsize=8)
    curves.set(xscale="log", ylabel="held-out accuracy at the end")
    curves.set_xlabel(f"passes, {config.deletions} single deletions")
    _marks(costs, chosen, REPORTED if config.dataset == FULL.dataset else {})
    return figure


def _marks(axis: Axes, choices: list[Choice], reported: dict[str, tuple[int, int]]) -> None:
    """Total passes of each row at its choice of noise; the authors' own numbers as carets."""
    for place, choice in enumerate(reversed(choices)):
        colour, marker, _ = LOOKS[choice.name]
        face = colour if choice.within else "none"
        axis.plot(choice.passes, place, marker=marker, color=colour, mfc=face, ms=7)
        note = f"{choice.passes:,.0f}  ({choice.accuracy:.1%})"
        axis.annotate(
            note, (choice.passes, place), (9, 0), textcoords="offset points", va="center", size=8
        )
        if choice.name in reported:
            span = reported[choice.name]
            axis.plot(span, [place - 0.3] * 2, color=style.BLACK, marker=CARETUP, linewidth=1)
    passes = [choice.passes for choice in choices]
    axis.set(xscale="log", xlabel="passes in all at the choice of noise (accuracy)")
    axis.set_xlim(min(passes) / 2, 60 * max(passes))
    axis.set_yticks(range(len(choices)), [choice.name for choice in reversed(choices)], fontsize=8)
