"""How many deletion steps each accountant needs, for the same run at the same noise.

All of them account for full-batch noisy gradient descent on a λ-strongly convex, (λ+β)-smooth
problem with L-Lipschitz losses, here λ = L = 1: K_U over the condition number, the deletion budget
and the step size, and the noise that one release needs. Nothing is sampled: these are the
certificates' own numbers, and none of them depends on n.
"""

import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dd_jax.baselines import langevin, pnsgd
from dd_jax.baselines.base import root_slope
from dd_jax.cli import style
from dd_jax.constants import LossConstants, ProblemConstants
from dd_jax.plans import Plan, plan_convex
from experiments.cache import Runner
from experiments.page import Table

TITLE = "Deletion steps and noise, by accountant"
CAPTION = (
    "One run, five accountants: deletion steps over the condition number, the deletion budget and "
    "the step size, all at the noise with which the paper's convex privacy theorem "
    "protects one release. The paper's convex data-deletion theorem, its unrelaxed form and the "
    "optimal bound certify data-deletion; Langevin and PNSGD certify closeness to retraining. "
    "The optimal bound needs the fewest steps and is the only one beyond the dotted line. Lower "
    "right: the noise that each needs for one release."
)
NOTE = (
    "One request, η = 1/(2M) unless on the axis. For Langevin and PNSGD the published bounds are "
    "converted to (ε, δ) as their authors do; Langevin's decays as exp(-ηλK/q), and a small ε at "
    "this δ needs a large order q. PNSGD treats learning as converged; full batches are counted "
    "here, while a pass over mini-batches contracts more often, and its authors bound one "
    "release for mini-batches only. By its own bound (for one release the bound of Bok, Su and "
    "Altschuler, exact Gaussian DP) the optimal accountant needs less noise; the blue dashed "
    "line shows its steps at that noise."
)

N, DIM, L2, LIPSCHITZ = 1_000, 10, 1.0, 1.0
# What each claims: Noisy-GD's three bounds compare neighbouring runs, the others retraining.
NOTIONS = {
    "paper": "data-deletion",
    "unrelaxed": "data-deletion",
    "optimal": "data-deletion",
    "Langevin": "Rényi unlearning",
    "PNSGD": "Rényi unlearning",
}
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


class Budget(NamedTuple):
    """Privacy of one release and what may remain of a deleted record.

    Attributes:
        eps_dp, eps_dd: ε of (ε, δ), or Rényi divergences of order q.
        delta: δ, None for Rényi divergences. order: q, None for (ε, δ).
    """

    eps_dp: float
    eps_dd: float
    delta: float | None = None
    order: float | None = None

    @property
    def linear(self) -> tuple[float, float, float]:
        """Rényi budgets (q, ε_dp, ε_dd); (ε, δ) is converted by `rem:renyi_onesided`."""
        if self.delta is None:
            assert self.order is not None
            return self.order, self.eps_dp, self.eps_dd
        private, deleted = (2 * root_slope(e, self.delta) ** 2 for e in self[:2])
        return 2.0, private, deleted


class Problem(NamedTuple):
    """A condition number and a step size in units of 1/M."""

    kappa: float
    move: float = 0.5

    @property
    def step_size(self) -> float:
        """η."""
        return self.move / (self.kappa * L2)

    @property
    def constants(self) -> ProblemConstants:
        """λ, β = (κ - 1) λ and L as accounting sees them."""
        loss = LossConstants("example", True, True, LIPSCHITZ, (self.kappa - 1) * L2)
        return ProblemConstants(loss, L2)


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

    @property
    def budget(self) -> Budget:
        """(ε_dp, ε_dd) at δ."""
        return Budget(self.eps_dp, self.eps_dd, self.delta)


FULL = Config(points=200)


# --- the accountants ------------------------------------------------------------------------------


def paper_noise(budget: Budget) -> float:
    """σ² = 4qL²/(λ ε_dp n²), by the paper's privacy theorem and by Langevin's, for any η."""
    order, eps_dp, _ = budget.linear
    return 4 * order * LIPSCHITZ**2 / (L2 * eps_dp * N**2) * (1 + 1e-12)


def plan(
    accountant: str, problem: Problem, budget: Budget, noise_variance: float | None = None
) -> Plan:
    """Noisy-GD by one of its three accountants, at the least noise for one release by default."""
    budgets: dict[str, Any]
    if accountant == "optimal" and budget.delta is not None:
        budgets = {"eps_dp": budget.eps_dp, "eps_dd": budget.eps_dd, "delta": budget.delta}
    else:
        order, eps_dp, eps_dd = budget.linear
        budgets = {"eps_dp": eps_dp, "eps_dd": eps_dd, "order": order}
    return plan_convex(
        problem.constants,
        n=N,
        dim=DIM,
        step_size=problem.step_size,
        noise_variance=noise_variance,
        accountant=accountant,  # pyright: ignore[reportArgumentType]
        **budgets,
    )


def steps(accountant: str, problem: Problem, budget: Budget) -> float:
    """Deletion steps (K_U ≥ 1) at the paper's noise; NaN if the step size is not allowed."""
    if problem.move > largest_move(accountant, problem.kappa) * (1 + 1e-12):
        return math.nan
    variance = paper_noise(budget)
    if accountant in ("paper", "unrelaxed", "optimal"):
        return plan(accountant, problem, budget, variance).delete_steps
    if budget.delta is None:
        return _published_at_order(accountant, problem, budget, variance)
    asked = {
        "n": N,
        "epsilon": budget.eps_dd,
        "delta": budget.delta,
        "noise_variance": variance,
        "step_size": problem.step_size,
    }
    if accountant == "Langevin":
        return langevin.calibrate(problem.constants, learn_steps=1, **asked).delete_steps
    return pnsgd.calibrate(problem.constants, learn_epochs=1, batch_size=N, **asked).delete_steps


def largest_move(accountant: str, kappa: float) -> float:
    """The largest ηM: 2M/(2λ+β) for the optimal bound, below 1 for the paper's, else 1."""
    most = {"optimal": 2 * kappa / (kappa + 1), "paper": 0.999, "unrelaxed": 0.999}
    return most.get(accountant, 1.0)


def _published_at_order(accountant: str, problem: Problem, budget: Budget, variance: float) -> int:
    """The least K ≥ 1 for which a peer's published bound at order q is within ε_dd."""
    order, rate = budget.linear[0], problem.step_size * L2
    run = langevin.run_of(
        problem.constants, n=N, noise_variance=variance, step_size=problem.step_size
    )
    if accountant == "Langevin":
        start = langevin.privacy_renyi(replace(run, order=order))
        exponent = rate / order
    else:
        far = pnsgd.batch_distance(run, N)
        start = order * far**2 / (2 * problem.step_size * variance)
        exponent = -2 * math.log1p(-rate)
    needed = math.log(start / budget.eps_dd) / exponent
    return max(1, math.ceil(needed - 1e-9))


# --- the numbers ----------------------------------------------------------------------------------


def compute(config: Config, runner: Runner) -> dict[str, np.ndarray]:
    """Axes, "steps over AXIS: ACCOUNTANT", "noise over κ: …", and the rows of both tables."""
    runner.say("steps over κ, ε_dd and η")
    most = largest_move("optimal", config.kappa)
    kappas, budgets, moves = (
        np.geomspace(*ends, config.points)
        for ends in (config.kappas, config.budgets, (config.least_move, most))
    )
    asked = {
        "κ": [(Problem(k), config.budget) for k in kappas],
        "ε_dd": [(Problem(config.kappa), config.budget._replace(eps_dd=e)) for e in budgets],
        "ηM": [(Problem(config.kappa, move), config.budget) for move in moves],
    }
    results = {"κ": kappas, "ε_dd": budgets, "ηM": moves}
    for axis, rows in asked.items():
        for name in NOTIONS:
            results[f"steps over {axis}: {name}"] = np.array([steps(name, *r) for r in rows], float)
        if axis != "ηM":
            found = [plan("optimal", p._replace(move=1.0), b).delete_steps for p, b in rows]
            results[f"steps over {axis}: {OWN}"] = np.array(found, float)
    base = paper_noise(config.budget)
    for name, accountant, move in (
        ("unrelaxed", "unrelaxed", 0.5),
        ("optimal", "optimal", 0.5),
        (OWN, "optimal", 1.0),
    ):
        plans = [plan(accountant, Problem(k, move), config.budget) for k in kappas]
        results[f"noise over κ: {name}"] = np.array([made.noise_variance / base for made in plans])
    units = {"(ε, δ)": {"delta": config.delta}, "Rényi": {"order": config.order}}
    for unit, options in units.items():
        rows = [
            _row(kappa, Budget(config.eps_dp, eps_dd, **options))
            for kappa in config.table_kappas
            for eps_dd in config.table_budgets
        ]
        results[f"table: {unit}"] = np.array(rows, float)
    return results


def _row(kappa: float, budget: Budget) -> list[float]:
    """κ, ε_dd, K_U of every accountant, K_U of the optimal one at its own noise."""
    same = [steps(name, Problem(kappa), budget) for name in NOTIONS]
    moves = [move(kappa) for move in OWN_MOVES.values()]
    own = [plan("optimal", Problem(kappa, move), budget).delete_steps for move in moves]
    return [kappa, budget.eps_dd, *same, *own]


# --- what is shown --------------------------------------------------------------------------------


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
    style.plain_numbers(axes[2].xaxis)
    _curves(axes[3], results, "κ", "noise")
    axes[3].axhline(1, color=style.ORANGE, linestyle=style.DASHED, linewidth=2)
    axes[3].text(config.kappas[0], 1.02, "paper and Langevin", va="bottom", color=style.ORANGE)
    axes[3].set(xscale="log", xlabel="condition number κ", ylim=(0, 1.12))
    axes[3].set(
        ylabel=r"$\sigma^2$ over the paper's", title="noise for one release, each by its own bound"
    )
    style.legend_of_all(figure, axes[0], columns=6)
    return figure


def _curves(axis: Axes, results: dict[str, np.ndarray], over: str, what: str) -> None:
    for name, (colour, dashes, marker) in LOOKS.items():
        values = results.get(f"{what} over {over}: {name}")
        if values is not None:
            every = max(1, len(values) // 6)
            look = {"color": colour, "linestyle": dashes, "marker": marker, "markevery": every}
            axis.plot(results[over], values, linewidth=2, markersize=5, label=name, **look)


def tables(config: Config, results: dict[str, np.ndarray]) -> list[Table]:
    """K_U by κ and budget, in both units, and how each accountant compares along the axes."""
    own = [f"own noise, {words}" for words in OWN_MOVES]
    columns = ["κ", "ε_dd", *(f"{name} ({notion})" for name, notion in NOTIONS.items()), *own]
    titles = {
        "(ε, δ)": f"K_U at (ε, δ), ε_dp = {config.eps_dp:g}, δ = {config.delta:g}",
        "Rényi": f"K_U at Rényi divergences of order {config.order:g}, ε_dp = {config.eps_dp:g}",
    }
    named = "the paper's noise and η = 1/(2M) unless named; own noise: the optimal one at that η"
    found = []
    for unit, title in titles.items():
        rows = [
            [kappa, eps, *map(int, counts)] for kappa, eps, *counts in results[f"table: {unit}"]
        ]
        found.append(Table(f"{title}; {named}", columns, rows))
    return [*found, _comparison(results)]


def _comparison(results: dict[str, np.ndarray]) -> Table:
    """Steps at the largest κ, growth with κ (over the upper half of the axis), and noise."""
    upper = slice(len(results["κ"]) // 2, None)
    logs = np.log(results["κ"][upper])
    rows = []
    for name in (*NOTIONS, OWN):
        over_kappa = results[f"steps over κ: {name}"]
        power = np.polyfit(logs, np.log(over_kappa[upper]), 1)[0]
        noise = results.get(f"noise over κ: {name}", np.full(1, math.nan))
        panels = [f"steps over {axis}" for axis in ("κ", "ε_dd", "ηM")]
        # At its own noise the optimal accountant is not comparable with the others.
        fewer = None
        if name not in (OWN, "optimal"):
            pairs = [(results[f"{p}: {name}"], results[f"{p}: optimal"]) for p in panels]
            fewer = any(np.any(theirs < optimal) for theirs, optimal in pairs)
        rows.append((name, int(over_kappa[-1]), power, noise.min(), noise.max(), fewer))
    columns = (
        "accountant",
        f"K_U at κ = {results['κ'][-1]:,.0f}",
        "K_U grows as κ to the power",
        "σ² over the paper's, least",
        "largest",
        "somewhere fewer steps than optimal",
    )
    return Table("Accountants compared along the axes of the figure", columns, rows)
