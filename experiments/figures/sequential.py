"""A hundred deletions at one (ε, δ): what the systems pay over the whole stream, and for what.

Every system may choose its own noise σ² from a common grid; λ, η, the data and (ε, δ) are the same.
More noise buys fewer passes and costs accuracy, so each system is a curve, and the table takes each
where it is cheapest among the noises that stay within a point of the best accuracy of all.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import jax
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.markers import CARETUP
from scipy import stats

import dd_jax as dd
from dd_jax import data
from experiments import sequential_runs as runs
from experiments import style
from experiments.context import Context
from experiments.sequential_rows import (
    FORMS,
    LAZY,
    OURS,
    REPORTED,
    ROWS,
    Setting,
    perturbed_calibration,
)

TITLE = "A hundred deletions, by every system"


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


FULL = Config(dataset="mnist-3-vs-8", seeds=4, batch_seeds=4, batch_epochs=5)


def make_setting(config: Config, loaded: data.Dataset) -> Setting:
    """L2-regularised logistic regression on the training rows, δ = 1/n."""
    n, dim = loaded.train.features.shape
    problem = dd.Problem(dd.losses.logistic(), config.l2)
    return Setting(problem, n, dim, config.epsilon, 1 / n, config.deletions)


def compute(config: Config, context: Context) -> dict[str, np.ndarray]:
    """σ² of the grid, "passes: row" over it, and "accuracy: steps" over it and the seeds."""
    loaded = data.load(config.dataset)
    setting = make_setting(config, loaded)
    private = setting.private_noise
    noises = private * np.array(config.noise_factors)
    results = {
        "n": np.array(setting.n),
        "noise": noises,
        "private_noise": np.array(private),
    }
    for name, row in ROWS.items():
        context.say(f"steps of {name}")
        if row.passes is None:
            made = perturbed_calibration(setting, FORMS[name])
            results[f"passes: {name}"] = np.array([config.deletions * made.delete_steps])
        else:
            found = [row.passes(setting, float(noise), config.batch_size) for noise in noises]
            results[f"passes: {name}"] = np.array(found, np.float64)
    return results | _accuracies(config, setting, loaded, noises, context)


def _accuracies(config, setting: Setting, loaded, noises, context) -> dict[str, np.ndarray]:
    """Real runs of each kind of step; see `sequential_runs` for what they stand for."""
    key = jax.random.key(config.seed)
    keys = dict(zip(("full", "mini", *FORMS), jax.random.split(key, 2 + len(FORMS)), strict=True))
    steps = max(setting.plan(float(noise)).learn_steps for noise in noises)
    context.say(f"{config.deletions} deletions, full batches")
    results = {
        "accuracy: full batch": runs.full_batch(
            setting, loaded, noises, steps, config.seeds, keys["full"]
        )
    }
    context.say(f"{config.deletions} deletions, batches of {config.batch_size}")
    batches = (config.batch_size, config.batch_epochs, config.batch_seeds)
    results["accuracy: mini-batch"] = runs.mini_batch(
        setting, loaded, noises, *batches, keys["mini"]
    )
    for name, form in FORMS.items():
        context.say(name)
        made = perturbed_calibration(setting, form)
        found = runs.perturbed(setting, loaded, made, config.seeds, keys[name])
        results[f"accuracy: {name}"] = found[None]
    return results


class Entry(NamedTuple):
    """A row of the table as chosen: its cheapest noise within the margin, or its most accurate."""

    name: str
    notion: str
    keeps: str
    single: bool
    noise: float
    passes: float
    gradients: float
    accuracy: float
    low: float
    high: float
    within: bool


def table(config: Config, results: dict[str, np.ndarray]) -> list[Entry]:
    """Every row at its choice of noise, with 95% t-intervals of the accuracy over seeds."""
    floor = best_accuracy(results) - config.margin
    entries = []
    for name, row in ROWS.items():
        passes = results[f"passes: {name}"]
        values = results[f"accuracy: {row.steps}"]
        means = values.mean(axis=1)
        fits = means >= floor
        fits &= np.isfinite(passes)
        usable = np.isfinite(passes)
        choices = np.where(fits, passes, np.inf) if fits.any() else np.where(usable, -means, np.inf)
        place = int(np.argmin(choices))
        half = float(stats.t.isf(0.025, values.shape[1] - 1) * stats.sem(values[place]))
        entries.append(
            Entry(
                name,
                row.notion,
                row.keeps,
                row.single,
                math.nan if row.passes is None else float(results["noise"][place]),
                float(passes[place]),
                float(passes[place] * results["n"]),
                float(means[place]),
                float(means[place]) - half,
                float(means[place]) + half,
                bool(fits.any()),
            )
        )
    return entries


def best_accuracy(results: dict[str, np.ndarray]) -> float:
    """The best mean accuracy of any system at any noise."""
    return max(float(v.mean(axis=1).max()) for k, v in results.items() if k.startswith("accuracy"))


LOOKS = {
    OURS: (style.BLUE, "D", style.SOLID),
    "Langevin": (style.ORANGE, "o", style.SOLID),
    "PNSGD, full batch": (style.GREEN, "^", style.SOLID),
    "PNSGD, mini-batch": (style.GREEN, "v", style.DASHED),
    "Perturbed-GD, Thm 28": (style.BLACK, "s", style.SOLID),
    "Perturbed-GD, Thm 28, best": (style.BLACK, "P", style.SOLID),
    "Retraining": (style.RED, "*", style.SOLID),
    LAZY: (style.BLUE, "D", style.DASHED),
    f"{OURS}, 20 × 5": (style.BLUE, "D", style.DASHED),
    "Langevin, 20 × 5": (style.ORANGE, "o", style.DASHED),
    f"{OURS}, 5 × 20": (style.BLUE, "D", style.DOTTED),
    "Langevin, 5 × 20": (style.ORANGE, "o", style.DOTTED),
}


def plot(config: Config, results: dict[str, np.ndarray]) -> Figure:
    """Accuracy against passes, one curve over the noises per system, and the chosen costs."""
    figure, (curves, costs) = style.panels(1, 2)
    figure.set_size_inches(12, 4.6)
    entries = table(config, results)
    floor = best_accuracy(results) - config.margin
    for entry in entries:
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
    _bars(costs, entries, REPORTED if config.dataset == FULL.dataset else {})
    return figure


def _bars(axis: Axes, entries: list[Entry], reported: dict[str, tuple[int, int]]) -> None:
    """Total passes of each row at its choice of noise; the authors' own numbers as marks."""
    for place, entry in enumerate(reversed(entries)):
        colour = LOOKS[entry.name][0]
        axis.barh(place, entry.passes, color=colour, alpha=0.85 if entry.within else 0.25)
        note = f" {entry.passes:,.0f}  ({entry.accuracy:.1%})"
        axis.text(entry.passes, place, note, va="center", fontsize=8)
        if entry.name in reported:
            span = reported[entry.name]
            axis.plot(span, [place - 0.44] * 2, color=style.BLACK, marker=CARETUP, linewidth=1)
    axis.set(xscale="log", xlabel="passes in all at the choice of noise (accuracy)")
    axis.set_xlim(1, 60 * max(entry.passes for entry in entries))
    axis.set_yticks(range(len(entries)), [entry.name for entry in reversed(entries)], fontsize=8)
    axis.grid(axis="y", visible=False)


def caption(config: Config, results: dict[str, np.ndarray]) -> str:
    """What to see, and whether Noisy-GD is cheapest, with the numbers of this run."""
    entries = table(config, results)
    return " ".join(
        (
            f"{config.deletions} deletions on {config.dataset} (n = {int(results['n']):,}), "
            f"λ = {config.l2:g}, (ε, δ) = ({config.epsilon:g}, 1/n) after every request of a "
            f"stream fixed in advance. Notions differ: data-deletion for Noisy-GD, closeness to "
            f"retraining for the others. Left: "
            f"every noise of the grid. Right: each system at the noise that is cheapest within "
            f"{config.margin:.0%} of the best accuracy, {best_accuracy(results):.3f} (pale: none "
            f"is; a × b: a requests of b records, judged jointly). Passes are the calibrations'; "
            f"systems with the same steps and noise share their accuracy, measured over the whole "
            f"stream at one pass per request (Perturbed-GD: its last request), with "
            f"{config.seeds} seeds.",
            *_intervals(entries),
            *_verdict(config, entries),
            *_reported(config),
        )
    )


def _intervals(entries: list[Entry]) -> Iterator[str]:
    """The intervals that the choice of noise rests on."""
    shown = [e for e in entries if e.name in (OURS, "PNSGD, mini-batch")]
    parts = (f"{e.name} {e.accuracy:.3f} ({e.low:.3f}, {e.high:.3f})" for e in shown)
    yield f"Accuracy with 95% intervals over seeds: {'; '.join(parts)}."


def _reported(config: Config) -> Iterator[str]:
    if config.dataset == FULL.dataset:
        yield (
            "Black carets: the passes in the authors' stored results on these data, with their "
            "own noise, λ and accuracy."
        )
    else:
        yield f"Quick scale; the authors' data are {FULL.dataset}."


def _verdict(config: Config, entries: list[Entry]) -> Iterator[str]:
    """Whether Noisy-GD costs less than every other system that serves single deletions."""
    ours = next(entry for entry in entries if entry.name == OURS)
    others = [entry for entry in entries if entry.single and entry.name != OURS]
    level = "" if ours.within else ", NOT within the margin"
    yield (
        f"Noisy-GD with the optimal accountant takes {ours.passes:,.0f} passes "
        f"({ours.gradients:.3g} gradients) and ends at {ours.accuracy:.3f}{level}."
    )
    dearer = [entry for entry in others if entry.within and entry.passes > ours.passes]
    if dearer:
        times = (f"{e.name} {e.passes / ours.passes:.3g}× ({e.accuracy:.3f})" for e in dearer)
        yield f"Dearer: {', '.join(times)}."
    lazy = next(entry for entry in entries if entry.name == LAZY)
    if lazy.within:
        yield (
            f"At its noise every release is (ε, δ)-DP by itself, so that it may also wait and take "
            f"one pass for ten requests: {lazy.passes:,.0f} passes."
        )
    for entry in others:
        if not entry.within:
            yield f"{entry.name} is never within the margin (at best {entry.accuracy:.3f})."
        elif entry.passes <= ours.passes:
            compared = "the same" if entry.passes == ours.passes else "LESS"
            yield (
                f"{entry.name} costs {compared}, {entry.passes:,.0f} passes at "
                f"{entry.accuracy:.3f}{_reason(config, entry)}."
            )


def _reason(config: Config, entry: Entry) -> str:
    if entry.name != "PNSGD, mini-batch":
        return ""
    least = " and one per request is the fewest there can be"
    return (
        f": its pass is many steps, each of which contracts, where a full-batch pass is one"
        f"{least * (entry.passes == config.deletions)}; in return it keeps the order of its "
        f"batches and takes learning as converged"
    )
