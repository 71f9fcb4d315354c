"""A hundred deletions at one (ε, δ): what the systems pay over the whole stream, and for what.

Every system may choose its own noise σ² from a common grid; λ, the data and (ε, δ) are the same,
and each takes the longest step that its own analysis allows. More noise buys fewer passes and costs
accuracy, so each system is a curve, and the table takes each where it is cheapest among the noises
that stay within a point of the best accuracy of all.
"""

from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.markers import CARETUP

import dd_jax as dd
from dd_jax import data
from dd_jax.cli import style
from dd_jax.errors import InputError
from experiments.cache import Runner
from experiments.page import Table
from experiments.sequential import runs
from experiments.sequential import words as sequential_words
from experiments.sequential.passes import Setting, perturbed_calibration
from experiments.sequential.rows import FORMS, LAZY, OURS, REPORTED, ROWS
from experiments.sequential.table import COLUMNS, Entry, best_accuracy, entries

TITLE = "A hundred deletions, by every system"
# Deletions are dealt evenly to 20, 10 and 5 requests.
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


def make_setting(config: Config, loaded: data.Dataset) -> Setting:
    """L2-regularised logistic regression on the training rows, δ = 1/n."""
    n, dim = loaded.train.features.shape
    problem = dd.Problem(dd.losses.logistic(), config.l2)
    return Setting(problem, n, dim, config.epsilon, 1 / n, config.deletions)


def compute(config: Config, runner: Runner) -> dict[str, np.ndarray]:
    """σ² of the grid, "passes: row" over it, and "accuracy: steps" over it and the seeds."""
    loaded = data.load(config.dataset)
    setting = make_setting(config, loaded)
    private = setting.private_noise
    noises = private * np.array(config.noise_factors)
    results = {
        "n": np.array(setting.n),
        "held_out": np.array(loaded.test.label.shape[0]),
        "noise": noises,
        "private_noise": np.array(private),
    }
    runner.say("steps by every calibration")
    for name, row in ROWS.items():
        if row.passes is None:
            made = perturbed_calibration(setting, FORMS[name])
            results[f"passes: {name}"] = np.array([config.deletions * made.delete_steps])
        else:
            found = [row.passes(setting, float(noise), config.batch_size) for noise in noises]
            results[f"passes: {name}"] = np.array(found, np.float64)
    return results | runs.accuracies(config, setting, loaded, noises, runner.say)


def tables(config: Config, results: dict[str, np.ndarray]) -> list[Table]:
    """Every system at its choice of noise."""
    rows = [entry.cells() for entry in entries(config.margin, results)]
    title = f"{config.deletions} deletions on {config.dataset} at ε = {config.epsilon:g}"
    return [Table(title, COLUMNS, rows)]


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
    """Accuracy against passes, one curve over the noises per system, and the chosen costs."""
    figure, (curves, costs) = style.panels(1, 2)
    figure.set_size_inches(12, 4.6)
    chosen = entries(config.margin, results)
    floor = best_accuracy(results) - config.margin
    for entry in chosen:
        colour, marker, dashes = LOOKS[entry.name]
        passes = results[f"passes: {entry.name}"]
        means = results[f"accuracy: {ROWS[entry.name].steps}"].mean(axis=1)
        if entry.single:
            curves.plot(
                passes, means, color=colour, marker=marker, linestyle=dashes, label=entry.name
            )
    curves.axhline(floor, color=style.BLACK, linestyle=style.DOTTED, linewidth=1)
    curves.text(
        0.01,
        floor,
        f"best - {config.margin:g}",
        transform=curves.get_yaxis_transform(),
        va="bottom",
        fontsize=8,
    )
    curves.set(
        xscale="log",
        xlabel=f"passes over the data for {config.deletions} single deletions",
        ylabel="held-out accuracy at the end",
    )
    curves.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=3)
    _bars(costs, chosen, REPORTED if config.dataset == FULL.dataset else {})
    return figure


def _bars(axis: Axes, rows: list[Entry], reported: dict[str, tuple[int, int]]) -> None:
    """Total passes of each row at its choice of noise; the authors' own numbers as marks."""
    for place, entry in enumerate(reversed(rows)):
        colour = LOOKS[entry.name][0]
        axis.barh(place, entry.passes, color=colour, alpha=0.85 if entry.within else 0.25)
        note = f" {entry.passes:,.0f}  ({entry.accuracy:.1%})"
        axis.text(entry.passes, place, note, va="center", fontsize=8)
        if entry.name in reported:
            span = reported[entry.name]
            axis.plot(span, [place - 0.44] * 2, color=style.BLACK, marker=CARETUP, linewidth=1)
    axis.set(xscale="log", xlabel="passes in all at the choice of noise (accuracy)")
    axis.set_xlim(1, 60 * max(entry.passes for entry in rows))
    axis.set_yticks(range(len(rows)), [entry.name for entry in reversed(rows)], fontsize=8)
    axis.grid(axis="y", visible=False)


def caption(config: Config, results: dict[str, np.ndarray]) -> str:
    """What to see, and whether Noisy-GD is cheapest, with the numbers of this run."""
    chosen = entries(config.margin, results)
    theirs = (
        "Black carets: the passes in the authors' stored results on these data, with their own "
        "noise, λ and accuracy."
        if config.dataset == FULL.dataset
        else f"Quick scale; the authors' data are {FULL.dataset}."
    )
    verdict = sequential_words.verdict(config.deletions, chosen)
    return " ".join((_what(config, results), *verdict, theirs))


def _what(config: Config, results: dict[str, np.ndarray]) -> str:
    best = best_accuracy(results)
    return (
        f"{config.deletions} deletions on {config.dataset} (n = {int(results['n']):,}), "
        f"λ = {config.l2:g}, (ε, δ) = ({config.epsilon:g}, 1/n) after every request of a stream "
        f"fixed in advance. Notions differ: data-deletion for Noisy-GD, closeness to retraining "
        f"for the others. Each takes the longest step that its own analysis allows, 2/(2λ+β) for "
        f"Noisy-GD, 1/(λ+β) for Langevin and PNSGD. Left: every noise of the grid. Right: each at "
        f"the noise that is cheapest within {config.margin:.0%} of the best mean accuracy, "
        f"{best:.3f} (pale: none is; a × b: a requests of b records, judged jointly). Passes are "
        f"the calibrations'; accuracy is on {int(results['held_out']):,} held-out records, taken "
        f"as given, with 95% intervals over {config.seeds} seeds; undecided: the interval contains "
        f"the floor of {best - config.margin:.3f}. Systems with the same steps and noise share it, "
        f"measured over the whole stream at one pass per request (Perturbed-GD: its last request)."
    )
