"""How many deletion steps each accountant asks for, for the same run at the same noise.

K_U over the condition number, the deletion budget and the step size, and the noise that one release
needs. Nothing is sampled: these are the certificates' own numbers.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from dd_jax.cli import style
from experiments import steps_accountants as accountants
from experiments.cache import Runner
from experiments.page import Table
from experiments.steps_accountants import NOTIONS, Budget, Problem

TITLE = "Deletion steps and noise, by accountant"
OWN = "optimal, own noise, η = 1/M"
LOOKS = {
    "Langevin": (style.RED, ":", "v"),
    "paper": (style.ORANGE, style.DASHED, "s"),
    "PNSGD": (style.BLACK, (0, (5, 1, 1, 1, 1, 1)), "^"),
    "unrelaxed": (style.GREEN, "-.", "D"),
    "optimal": (style.BLUE, style.SOLID, "o"),
    OWN: (style.BLUE, style.DASHED, ""),
}
# Step sizes of the optimal accountant in the table, as ηM for a condition number κ.
OWN_MOVES = {
    "1/(2M)": lambda kappa: 0.5,
    "1/M": lambda kappa: 1.0,
    "2/(2λ+β)": lambda kappa: 2 * kappa / (kappa + 1),
}


@dataclass(frozen=True)
class Config:
    """Settings of the figure; the quick scale is the default."""

    eps_dp: float = 1.0
    delta: float = 1e-5
    eps_dd: float = 0.1
    kappa: float = 100.0
    order: float = 2.0
    kappas: tuple[float, float] = (2.0, 1e4)
    budgets: tuple[float, float] = (1e-3, 0.99)
    least_move: float = 0.05
    points: int = 25
    table_kappas: tuple[float, ...] = (2.0, 10.0, 100.0)
    table_budgets: tuple[float, ...] = (0.1, 0.01)

    def grid(self, ends: tuple[float, float]) -> np.ndarray:
        """Points from one end to the other, evenly on a logarithmic axis."""
        return np.geomspace(*ends, self.points)

    @property
    def budget(self) -> Budget:
        """(ε_dp, ε_dd) at δ."""
        return Budget(self.eps_dp, self.eps_dd, self.delta)


FULL = Config(points=200)


def compute(config: Config, runner: Runner) -> dict[str, np.ndarray]:
    """Axes, "steps over AXIS: ACCOUNTANT", "noise over κ: …", and the rows of both tables."""
    runner.say("steps over κ, ε_dd and η")
    kappas, budgets = config.grid(config.kappas), config.grid(config.budgets)
    moves = config.grid((config.least_move, accountants.largest_move("optimal", config.kappa)))
    cases = {
        "κ": [(Problem(k), config.budget) for k in kappas],
        "ε_dd": [(Problem(config.kappa), config.budget._replace(eps_dd=e)) for e in budgets],
        "ηM": [(Problem(config.kappa, move), config.budget) for move in moves],
    }
    results = {"κ": kappas, "ε_dd": budgets, "ηM": moves}
    for axis, rows in cases.items():
        for name in NOTIONS:
            found = [accountants.steps(name, *row) for row in rows]
            results[f"steps over {axis}: {name}"] = np.array(found, np.float64)
        if axis != "ηM":
            found = [accountants.own_steps(p._replace(move=1.0), budget) for p, budget in rows]
            results[f"steps over {axis}: {OWN}"] = np.array(found, np.float64)
    return results | _noises(config, kappas) | _tables(config)


def _noises(config: Config, kappas: np.ndarray) -> dict[str, np.ndarray]:
    """σ² that one release needs, over the paper's, for each accountant of Noisy-GD."""
    base = accountants.paper_noise(config.budget)
    settings = {"unrelaxed": ("unrelaxed", 0.5), "optimal": ("optimal", 0.5), OWN: ("optimal", 1.0)}
    return {
        f"noise over κ: {words}": np.array(
            [accountants.noise(name, Problem(k, move), config.budget) / base for k in kappas]
        )
        for words, (name, move) in settings.items()
    }


def _tables(config: Config) -> dict[str, np.ndarray]:
    """Rows (κ, ε_dd, K_U of every accountant, K_U of the optimal one at its own noise)."""
    units = {"(ε, δ)": {"delta": config.delta}, "Rényi": {"order": config.order}}
    tables = {}
    for unit, options in units.items():
        rows = []
        for kappa in config.table_kappas:
            for eps_dd in config.table_budgets:
                budget = Budget(config.eps_dp, eps_dd, **options)
                same = [accountants.steps(name, Problem(kappa), budget) for name in NOTIONS]
                own = [
                    accountants.own_steps(Problem(kappa, move(kappa)), budget)
                    for move in OWN_MOVES.values()
                ]
                rows.append([kappa, eps_dd, *same, *own])
        tables[f"table: {unit}"] = np.array(rows, np.float64)
    return tables


def plot(config: Config, results: dict[str, np.ndarray]) -> Figure:
    """Three panels of steps, one of noise."""
    figure, axes = style.panels(2, 2)
    figure.set_size_inches(11, 8)
    for axis, name in zip(axes, ("κ", "ε_dd", "ηM"), strict=False):
        _curves(axis, results, name, "steps")
        axis.set(xscale="log", yscale="log", ylabel="deletion steps $K_U$")
    at = f"κ = {config.kappa:g}"
    budget = rf"$\varepsilon_{{dd}}$ = {config.eps_dd:g}"
    axes[0].set(xlabel="condition number κ", title=f"over κ, at {budget}")
    axes[1].set(xlabel=r"deletion budget $\varepsilon_{dd}$", title=f"over the budget, at {at}")
    axes[1].invert_xaxis()
    axes[2].set(xlabel="step size ηM", title=f"over the step size, at {at}, {budget}")
    axes[2].axvline(1, color=style.BLACK, linestyle=style.DOTTED, linewidth=1)
    axes[2].xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    _curves(axes[3], results, "κ", "noise")
    axes[3].axhline(1, color=style.ORANGE, linestyle=style.DASHED, linewidth=2)
    axes[3].text(config.kappas[0], 1.02, "paper and Langevin", va="bottom", color=style.ORANGE)
    axes[3].set(xscale="log", xlabel="condition number κ", ylim=(0, 1.12))
    axes[3].set(ylabel="σ² over the paper's", title="noise for one release, each by its own bound")
    for axis in axes:
        axis.title.set_fontsize(10)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=6, fontsize=9)
    return figure


def _curves(axis: Axes, results: dict[str, np.ndarray], over: str, what: str) -> None:
    for name, (colour, dashes, marker) in LOOKS.items():
        values = results.get(f"{what} over {over}: {name}")
        if values is not None:
            every = max(1, len(values) // 6)
            look = {"color": colour, "linestyle": dashes, "marker": marker, "markevery": every}
            axis.plot(results[over], values, linewidth=2, markersize=5, label=name, **look)


def caption(config: Config, results: dict[str, np.ndarray]) -> str:
    """What to see, with the numbers of this run."""
    return "\n".join(
        (
            f"One run, five accountants: full-batch noisy gradient descent at the noise with which "
            f"thm:chourasia makes one release (ε, δ) = ({config.eps_dp:g}, {config.delta:g})-DP, "
            f"and the steps after which each accountant puts a deleted record within "
            f"(ε_dd, {config.delta:g}), one request, η = 1/(2M) unless on the axis. The notions "
            f"differ: paper (thm:data_deletion_convex), unrelaxed and optimal certify "
            f"data-deletion, Langevin and PNSGD closeness to retraining, PNSGD taking learning as "
            f"converged; for these two the published bounds are converted as their authors do. A "
            f"pass of PNSGD over mini-batches contracts more often than one over the full batch, "
            f"which is counted here.",
            *_ratios(config, results),
            *_slopes(results),
            *_langevin(config, results),
            *_noise_words(results),
        )
    )


def _ratios(config: Config, results: dict[str, np.ndarray]) -> Iterator[str]:
    """Steps at the largest κ, and whether the optimal accountant ever asks for more."""
    counts = {name: results[f"steps over κ: {name}"][-1] for name in NOTIONS}
    listed = ", ".join(f"{name} {steps:,.0f}" for name, steps in counts.items())
    yield f"At κ = {results['κ'][-1]:,.0f}, ε_dd = {config.eps_dd:g}: {listed}."
    panels = [f"steps over {axis}" for axis in ("κ", "ε_dd", "ηM")]
    fewer = [
        name
        for name in NOTIONS
        if any(np.any(results[f"{p}: {name}"] < results[f"{p}: optimal"]) for p in panels)
    ]
    if fewer:
        yield f"Somewhere fewer steps than the optimal accountant: {', '.join(fewer)}."
    else:
        yield "No accountant asks for fewer steps than the optimal one anywhere."


def _slopes(results: dict[str, np.ndarray]) -> Iterator[str]:
    """Growth with κ over the upper half of the axis, as a power."""
    upper = slice(len(results["κ"]) // 2, None)
    logs = np.log(results["κ"][upper])
    powers = {
        name: np.polyfit(logs, np.log(results[f"steps over κ: {name}"][upper]), 1)[0]
        for name in NOTIONS
    }
    yield f"K_U grows as κ to the power {min(powers.values()):.2f} to {max(powers.values()):.2f}."


def _langevin(config: Config, results: dict[str, np.ndarray]) -> Iterator[str]:
    """Its steps with and without a conversion to (ε, δ), at the first budget of the tables."""
    place = 2 + list(NOTIONS).index("Langevin")
    pair, order = (results[f"table: {unit}"][0] for unit in ("(ε, δ)", "Rényi"))
    yield (
        f"Langevin's bound decays as exp(-ηλK/q), and a small ε at this δ needs a large order q: "
        f"at κ = {pair[0]:g}, ε_dd = {pair[1]:g} it takes {pair[place]:,.0f} steps, and "
        f"{order[place]:,.0f} where the budgets are divergences of order {config.order:g}."
    )


def _noise_words(results: dict[str, np.ndarray]) -> Iterator[str]:
    own = results[f"noise over κ: {OWN}"]
    yield (
        f"Lower left: beyond the dotted ηM = 1 only the optimal accountant has a bound. Lower "
        f"right, noise at equal ε_dp: by its own bound the optimal accountant, which for one "
        f"release is that of Bok, Su and Altschuler, needs {own.min():.2g} to {own.max():.2g} of "
        f"the paper's noise at η = 1/M (exact Gaussian DP); the dashed line shows its steps there. "
        f"PNSGD's authors bound one release for mini-batches, which are not run here."
    )


def tables(config: Config, results: dict[str, np.ndarray]) -> list[Table]:
    """K_U by κ and budget, in both units."""
    own = [f"own noise, {words}" for words in OWN_MOVES]
    columns = ["κ", "ε_dd", *(f"{name} ({notion})" for name, notion in NOTIONS.items()), *own]
    titles = {
        "(ε, δ)": f"K_U at (ε, δ), ε_dp = {config.eps_dp:g}, δ = {config.delta:g}",
        "Rényi": f"K_U at Rényi divergences of order {config.order:g}, ε_dp = {config.eps_dp:g}",
    }
    named = "the paper's noise and η = 1/(2M) unless named; own noise: the optimal one at that η"
    return [Table(f"{title}; {named}", columns, _rows(results, u)) for u, title in titles.items()]


def _rows(results: dict[str, np.ndarray], unit: str) -> list[list[float | int]]:
    return [[kappa, eps, *map(int, counts)] for kappa, eps, *counts in results[f"table: {unit}"]]
