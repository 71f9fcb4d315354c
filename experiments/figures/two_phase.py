"""`fig:convex_proof` with numbers: the divergence of two neighbouring runs, step by step.

Phase I: the databases differ in one record and the runs drift apart. Phase II: the record has been
deleted from both, and the runs forget. Exact laws, samples and three bounds on the same steps.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.markers import CARETUP
from matplotlib.ticker import FuncFormatter

from dd_jax.audit import bounds as lower_bounds
from dd_jax.audit.estimates import estimated_renyi_gaussian_fit
from dd_jax.cli import style
from dd_jax.guarantees import convex
from experiments import two_phase_cases as cases
from experiments.cache import Runner

TITLE = "Two phases: learning drives two runs apart, deletion brings them together"
LOSSES = {"linear": cases.linear, "ridge": cases.ridge}
LOOKS = {
    "paper": (style.ORANGE, style.DASHED),
    "unrelaxed": (style.GREEN, "-."),
    "optimal": (style.BLUE, style.SOLID),
}
FLOOR = 1e-3
# Where a bound's number of steps is written, beside the square on its line.
BESIDE: dict[str, Any] = {
    "paper": {"xytext": (-8, -12), "ha": "right"},
    "unrelaxed": {"xytext": (8, 4), "ha": "left"},
    "optimal": {"xytext": (-8, -4), "ha": "right"},
}
# Relative rounding of an exact value that attains its bound.
ROUNDING = 1e-9


@dataclass(frozen=True)
class Config:
    """Settings of the figure; the quick scale is the default. L = 1 throughout."""

    n: int = 100
    l2: float = 1.0
    smoothness: float = 1.0
    order: float = 2.0
    eps_dp: float = 1.0
    eps_dd: float = 0.1
    learn_steps: int = 24
    delete_steps: int = 24
    every: int = 2
    seeds: int = 50_000
    fit_share: float = 0.1
    confidence: float = 0.95
    seed: int = 0

    @property
    def step_size(self) -> float:
        """η = 1/(2M), the paper's."""
        return 0.5 / (self.l2 + self.smoothness)

    @property
    def noise_variance(self) -> float:
        """σ² = 4qL²/(λ ε_dp n²), the paper's."""
        return convex.least_noise(convex.privacy_paper, self.descent(1.0), self.eps_dp)

    def descent(self, noise_variance: float) -> convex.Descent:
        """The run at this σ², with L = 1."""
        constants = (self.order, 1.0, self.l2, self.smoothness)
        return convex.Descent(*constants, noise_variance, self.n, self.step_size)

    @property
    def numbers(self) -> tuple[float, float]:
        """(η, σ²)."""
        return self.step_size, self.noise_variance

    @property
    def steps(self) -> tuple[int, int]:
        """(K_L, K_U) as run."""
        return self.learn_steps, self.delete_steps

    @property
    def clock(self) -> np.ndarray:
        """(K_I, K_U) after each step, in rows."""
        steps = np.arange(1, self.learn_steps + self.delete_steps + 1)
        present = np.minimum(steps, self.learn_steps)
        return np.stack([present, steps - present], axis=1)


FULL = Config(every=1, seeds=1_000_000)


def compute(config: Config, runner: Runner) -> dict[str, np.ndarray]:
    """R_q after every step: bounds, and per loss "exact", "audited" (at least) and "estimate"."""
    audited = np.arange(config.every, len(config.clock) + 1, config.every)
    results = {"step": np.arange(1, len(config.clock) + 1), "audited step": audited}
    results |= {f"bound: {name}": values for name, values in _bounds(config).items()}
    confidence = 1 - (1 - config.confidence) / (len(LOSSES) * len(audited))
    for place, (name, make) in enumerate(LOSSES.items()):
        case = make(config.n, config.l2)
        exact = [case.exact(config.order, *config.numbers, *row) for row in config.clock]
        results[f"{name}: exact"] = np.array(exact)
        key = jax.random.fold_in(jax.random.key(config.seed), place)
        present, absent = case.scores(runner, key, config.seeds, *config.numbers, *config.steps)
        pairs = [(present[:, k - 1], absent[:, k - 1]) for k in audited]
        found = [_audit(config, confidence, first, second) for first, second in pairs]
        results[f"{name}: audited"], results[f"{name}: estimate"] = np.array(found).T
    return results


def _bounds(config: Config) -> dict[str, np.ndarray]:
    """Each accountant's bound after every step: privacy in phase I, deletion in phase II."""
    run = config.descent(config.noise_variance)
    present, gone = config.clock.T
    learn, delete = present[gone == 0], gone[gone > 0]
    known = {"present": config.learn_steps}
    return {
        name: np.concatenate(
            [
                rules.privacy(run, learn),
                rules.deletion(run, delete, **({} if name == "paper" else known)),
            ]
        )
        for name, rules in convex.ACCOUNTANTS.items()
    }


def _audit(config: Config, confidence: float, present, absent) -> tuple[float, float]:
    """A lower bound on R_q that holds with this confidence, and an estimate without any."""
    cut = round(config.fit_share * config.seeds)
    parts = (present[:cut], absent[:cut], present[cut:], absent[cut:])
    bound = lower_bounds.gaussian_mu(*parts, confidence=confidence, independent=True)
    estimate = estimated_renyi_gaussian_fit(present, absent, order=config.order)
    return lower_bounds.renyi_of_mu(bound, config.order).value, estimate.value


def plot(config: Config, results: dict[str, np.ndarray]) -> Figure:
    """One panel per loss: three bounds, the exact divergence and what samples show of it."""
    figure, axes = style.panels(1, len(LOSSES))
    figure.set_size_inches(12, 4.8)
    for axis, (name, title) in zip(axes, _titles(results).items(), strict=True):
        _panel(axis, config, results, name)
        _phases(axis, config)
        axis.set_title(title, fontsize=10)
    axes[0].set_ylabel(f"Rényi divergence of order {config.order:g}")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=5, fontsize=9)
    return figure


def _titles(results: dict[str, np.ndarray]) -> dict[str, str]:
    """What each panel shows of its loss."""
    gap = _least_share(results, "linear")
    attained = "attains the optimal bound" if gap > 1 - ROUNDING else "stays below every bound"
    return {
        "linear": f"linear loss: {attained}",
        "ridge": "ridge, one label replaced: curved data forget faster",
    }


def _least_share(results: dict[str, np.ndarray], name: str) -> float:
    """The least ratio of the exact divergence to the optimal bound over the steps."""
    return float(np.min(results[f"{name}: exact"] / results["bound: optimal"]))


def _panel(axis: Axes, config: Config, results: dict[str, np.ndarray], name: str) -> None:
    """Bounds as lines, the exact law as dots, the audit as carets with bars to the estimate."""
    for bound, (colour, dashes) in LOOKS.items():
        values = results[f"bound: {bound}"]
        label = f"{bound} bound"
        axis.plot(results["step"], values, color=colour, linestyle=dashes, lw=2, label=label)
        needed = steps_needed(config, results, bound)
        if needed is not None:
            point = (config.learn_steps + needed, values[config.learn_steps + needed - 1])
            axis.plot(*point, "s", color=colour, markersize=6)
            words = f"{bound}: {needed}"
            axis.annotate(words, point, color=colour, textcoords="offset points", **BESIDE[bound])
    exact = results[f"{name}: exact"]
    axis.plot(results["step"], exact, "o", color=style.BLACK, markersize=3.5, label="exact")
    low = results[f"{name}: audited"]
    shown = low > FLOOR
    seen, low = results["audited step"][shown], low[shown]
    high = results[f"{name}: estimate"][shown]
    axis.vlines(seen, low, high, color=style.RED, linewidth=4, alpha=0.5)
    label = "audited: at least (bar: to the estimate)"
    axis.plot(seen, low, linestyle="none", marker=CARETUP, color=style.RED, label=label)


def _phases(axis: Axes, config: Config) -> None:
    """The deletion, the two phases around it, and the budget that deletion has to meet."""
    last = config.learn_steps + config.delete_steps
    axis.axvspan(config.learn_steps, last + 0.5, color=style.BLACK, alpha=0.05, linewidth=0)
    axis.axhline(config.eps_dd, color=style.BLACK, linewidth=1, linestyle=style.DOTTED)
    axis.set(yscale="log", ylim=(FLOOR, 3), xlim=(0.5, last + 0.5), xlabel="step")
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    for middle, words in (
        (config.learn_steps / 2, "phase I: one record differs"),
        (config.learn_steps + config.delete_steps / 2, "phase II: it is deleted from both"),
    ):
        axis.text(middle, 2.1, words, ha="center", fontsize=9)
    words = f"$\\varepsilon_{{dd}}$ = {config.eps_dd:g}"
    axis.text(config.learn_steps / 2, config.eps_dd * 0.95, words, va="top", ha="center")


def steps_needed(config: Config, results: dict[str, np.ndarray], bound: str) -> int | None:
    """Deletion steps after which the bound is within ε_dd, None if they are not among the shown."""
    within = results[f"bound: {bound}"][config.learn_steps :] <= config.eps_dd
    return int(np.argmax(within)) + 1 if within.any() else None


def caption(config: Config, results: dict[str, np.ndarray]) -> str:
    """What to see, with the numbers of this run."""
    return "\n".join(
        (
            f"fig:convex_proof with numbers: λ = {config.l2:g}, β = {config.smoothness:g}, L = 1, "
            f"n = {config.n}, η = {config.step_size:g}, σ² = {config.noise_variance:.2g} (the "
            f"paper's for ε_dp = {config.eps_dp:g} at q = {config.order:g}), from the model 0. "
            f"While one record differs the runs drift apart (thm:chourasia); from step "
            f"{config.learn_steps} on it is deleted from both, and R_q contracts "
            f"(thm:data_deletion_convex). Ridge replaces a label only, so its bounds are about "
            f"labels.",
            *_steps(config, results),
            *_verdict(results),
            *_audited(config, results),
        )
    )


def _steps(config: Config, results: dict[str, np.ndarray]) -> Iterator[str]:
    """Squares in the picture."""
    counts = {name: steps_needed(config, results, name) for name in LOOKS}
    words = (f"{name} {'more' if k is None else k}" for name, k in counts.items())
    yield f"Squares: deletion steps until a bound is within ε_dd: {', '.join(words)}."


def _verdict(results: dict[str, np.ndarray]) -> Iterator[str]:
    """Whether the exact divergence is within every bound, and how near to the optimal one."""
    broken = [
        f"{name} above {bound}"
        for name in LOSSES
        for bound in LOOKS
        if np.any(results[f"{name}: exact"] > results[f"bound: {bound}"] * (1 + ROUNDING))
    ]
    if broken:
        yield f"THE EXACT DIVERGENCE BREAKS BOUNDS: {', '.join(broken)}."
    else:
        yield "The exact divergence is within all bounds at every step."
    least = _least_share(results, "linear")
    near = "equals it at every step" if least > 1 - ROUNDING else f"is at least {least:.2g} of it"
    final = results["ridge: exact"][-1] / results["bound: optimal"][-1]
    yield (
        f"Against the optimal bound: the linear loss {near}, ridge ends at {final:.1g} of it, as "
        f"its data add curvature that a bound over all data cannot count on."
    )


def _audited(config: Config, results: dict[str, np.ndarray]) -> Iterator[str]:
    """What the samples show, and whether they contradict the exact law."""
    seen = results["audited step"]
    over, shown, total = 0, 0, 0
    for name in LOSSES:
        low, exact = results[f"{name}: audited"], results[f"{name}: exact"][seen - 1]
        over, shown, total = over + np.sum(low > exact), shown + np.sum(low > 0), total + len(low)
    verdict = "None exceeds the exact value" if not over else f"{over} EXCEED THE EXACT VALUE"
    yield (
        f"Carets: lower bounds from {config.seeds:,} seeds per world, {config.confidence:.0%} "
        f"confidence in all {total} together, {shown} of them above 0. {verdict}. Bars end at an "
        f"estimate (Gaussian fit) that has no confidence and is too high where little is left."
    )
