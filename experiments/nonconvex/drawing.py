"""The panels of the non-convex figure."""

from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from dd_jax.cli import style
from experiments.nonconvex import network_cost, plane_flow

FORMS = ("paper", "tuned", "sharp")
LOOKS: dict[str, Any] = {
    "paper": {"color": style.ORANGE, "linestyle": style.DASHED},
    "tuned": {"color": style.GREEN, "linestyle": "-."},
    "sharp": {"color": style.BLUE, "linestyle": style.SOLID},
}
MARKERS = {"paper": "s", "sharp": "o"}
FLOOR = 1e-7


def draw(config, results: dict[str, np.ndarray]) -> Figure:
    """Two rows of three panels; the second of them holds four pictures."""
    figure = plt.figure(figsize=(14, 8.2))
    parts = figure.add_gridspec(2, 3)
    _line(figure.add_subplot(parts[0, 0]), config, results)
    _plane(figure, parts[0, 1].subgridspec(2, 2, wspace=0.02, hspace=0.02), config, results)
    _risk(figure.add_subplot(parts[0, 2]), results)
    learning = figure.add_subplot(parts[1, 0])
    deletion = figure.add_subplot(parts[1, 1], sharey=learning)
    _phase(learning, config, results, "learning", "learn steps")
    _phase(deletion, config, results, "deletion", "delete steps")
    _network(figure.add_subplot(parts[1, 2]), config, results)
    return figure


def _line(axis: Axes, config, results: dict[str, np.ndarray]) -> None:
    """Densities on the line, darker as R_q from the Gibbs law falls, and that law."""
    steps, models = results["d = 1: learn steps"], results["d = 1: models"]
    far = results["d = 1: learning"]
    for share, shade in ((1.0, "0.75"), (0.3, "0.55"), (0.01, "0.3")):
        place = int(np.argmin(np.abs(np.log(far / far[0] / share))))
        label = f"{steps[place]:,} step{'s' if steps[place] > 1 else ''}"
        axis.plot(models, results["d = 1: laws"][place], color=shade, linewidth=2, label=label)
    gibbs: Any = {"color": style.ORANGE, "linestyle": style.DASHED, "linewidth": 2}
    axis.plot(models, results["d = 1: Gibbs"], **gibbs, label="Gibbs law")
    reach = 3.2 * np.sqrt(config.noises[0])
    axis.set(xlabel="model θ", ylabel="density", xlim=(-reach, reach), ylim=(0, None))
    axis.set_title(f"d = 1, σ² = {config.noises[0]:g}: a certified run", fontsize=10)
    axis.legend(fontsize=8, loc="upper left")


def _plane(figure: Figure, parts, config, results: dict[str, np.ndarray]) -> None:
    """The plane's density at four times, with the line that holds half of the Gibbs law."""
    points, gibbs = results["plane: axis"], results["plane: gibbs"]
    level = plane_flow.mass_level(gibbs, 0.5)
    places = [(i, j) for i in range(2) for j in range(2)]
    for place, count, law in zip(places, config.plane_steps, results["plane: laws"], strict=False):
        axis = figure.add_subplot(parts[place])
        axis.contourf(points, points, law.T, levels=12, cmap="Greys")
        axis.contour(points, points, gibbs.T, levels=[level], colors=style.ORANGE, linewidths=1.5)
        axis.set(xlim=(-3.4, 3.4), ylim=(-2.4, 3.6), xticks=[], yticks=[])
        axis.grid(visible=False)
        axis.set_aspect("equal")
        axis.text(0.04, 0.94, f"{count} steps", transform=axis.transAxes, va="top", fontsize=9)
        if place == (0, 0):
            words = f"d = 2, σ² = {plane_flow.NOISE_VARIANCE:g}: a picture, not certified"
            axis.set_title(words, fontsize=10, loc="left")


def _risk(axis: Axes, results: dict[str, np.ndarray]) -> None:
    """Excess risk of the Gibbs law over the noise."""
    noises = results["risk: noise"]
    axis.plot(noises, results["risk: paper"], linewidth=2, **LOOKS["paper"])
    axis.plot(noises, results["risk: E3"], linewidth=2, **LOOKS["sharp"])
    axis.plot(noises, results["risk: exact"], "o", color=style.BLACK, markersize=3.5)
    zero = float(results["risk: model 0"][0])
    axis.axhline(zero, color=style.BLACK, linestyle=style.DOTTED, linewidth=1)
    axis.set(xscale="log", yscale="log", xlabel="noise σ²", ylabel="excess risk of the Gibbs law")
    axis.set_ylim(results["risk: exact"].min() / 2, 1e3)
    axis.set_title("risk, d = 1: the paper's bound and erratum E3's", fontsize=10)
    middle = len(noises) // 2
    labels = (
        ("paper", results["risk: paper"][-1], style.ORANGE, -1, (-4, 8), "right"),
        ("E3", results["risk: E3"][middle], style.BLUE, middle, (-4, 8), "right"),
        ("exact", results["risk: exact"][middle], style.BLACK, middle, (6, -12), "left"),
        ("model 0", zero, style.BLACK, -1, (0, -12), "right"),
    )
    for words, height, colour, place, offset, side in labels:
        _label(axis, words, (noises[place], height), offset, colour, side)


def _phase(axis: Axes, config, results: dict[str, np.ndarray], phase: str, clock: str) -> None:
    """R_q to the Gibbs law and between neighbours, in one dimension, along one phase."""
    steps = results[f"d = 1: {clock}"]
    curves = {form: results[f"d = 1: {phase}, {form}"] for form in FORMS}
    for form, values in curves.items():
        axis.plot(steps, values, linewidth=2, **LOOKS[form])
    curves["run sum"] = np.broadcast_to(results[f"d = 1: {phase}, run sum"], steps.shape)
    axis.plot(steps, curves["run sum"], color=style.RED, linestyle=style.DOTTED, linewidth=2)
    curves["exact, to the Gibbs law"] = results[f"d = 1: {phase}"]
    axis.plot(steps, curves["exact, to the Gibbs law"], "o", color=style.BLACK, markersize=3.5)
    curves["exact, between neighbours"] = results[f"d = 1: {phase}, neighbours"]
    axis.plot(steps, curves["exact, between neighbours"], "v", color=style.RED, markersize=4)
    axis.axhline(config.eps_dd, color=style.BLACK, linewidth=1, linestyle=style.DOTTED)
    words = {"learning": "while learning", "deletion": "after a deletion"}[phase]
    axis.set_title(f"divergence {words}, d = 1", fontsize=10)
    axis.set(xscale="log", yscale="log", xlabel="steps", ylim=(FLOOR, 10))
    budget = rf"$\varepsilon_{{dd}}$ = {config.eps_dd:g}"
    _label(axis, budget, (steps[0], config.eps_dd), (0, 3), style.BLACK, "left")
    if phase == "learning":
        axis.set_ylabel(f"Rényi divergence of order {config.order:g}")
        return
    for name, values in curves.items():
        colour = LOOKS[name]["color"] if name in LOOKS else style.RED
        colour = style.BLACK if "Gibbs" in name else colour
        below = name == "sharp" or "Gibbs" in name
        point = (steps[0], values[0])
        words = name if "exact" in name else f"{name} bound"
        _label(axis, words, point, (0, -13 if below else 5), colour, "left")


def _network(axis: Axes, config, results: dict[str, np.ndarray]) -> None:
    """Certified steps over the noise, as steps and as time on this machine."""
    noises = results["network: noise"]
    for form in ("paper", "sharp"):
        colour = LOOKS[form]["color"]
        for name, dashes in (("learn", style.SOLID), ("delete", style.DASHED)):
            steps = results[f"network, {form}: {name} steps"]
            label = f"{form}, {name}"
            look: Any = {"color": colour, "linestyle": dashes, "marker": MARKERS[form]}
            axis.plot(noises, steps, **look, linewidth=2, markevery=3, markersize=5, label=label)
    ran = results["network, sharp: run"][:2]
    axis.plot([config.network_noise] * 2, ran, "*", color=style.BLACK, ms=11, label="run here")
    axis.set(xscale="log", yscale="log", xlabel="noise σ²", ylabel="certified steps")
    dim = config.hidden * network_cost.FEATURES
    axis.set_title(f"bounded network, d = {dim}: the price", fontsize=10)
    axis.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.xaxis.set_minor_formatter(NullFormatter())
    axis.legend(fontsize=8)
    seconds = float(results["network: seconds per step"])
    there_and_back: Any = (lambda steps: steps * seconds, lambda time: time / seconds)
    twin = axis.secondary_yaxis("right", functions=there_and_back)
    twin.set_ylabel("seconds for one model, this machine")


def _label(axis: Axes, words: str, point, offset, colour: str, side) -> None:
    axis.annotate(
        words, point, offset, textcoords="offset points", color=colour, ha=side, fontsize=9
    )
