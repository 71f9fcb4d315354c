"""What an edit saves over retraining, measured: the paper's table of comparison, `tab:comparision`.

Saving = gradients of single records that learning from scratch takes - those of one request, both
read from the meters of runs. Every system is calibrated for one target, (ε, δ) for a deleted record
and a bound α on the excess risk of every release: its own analysis decides how many steps an edit
needs, and how many learning from scratch needs to be certified for the same α.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator, SymmetricalLogLocator
from scipy import stats

import dd_jax as dd
from dd_jax.baselines import noisy_gd_system, noisy_m_a_sgd, perturbed_gd
from dd_jax.baselines.base import Constants, System, metered
from dd_jax.cli import style
from dd_jax.errors import CertificateRefused
from dd_jax.guarantees.risk import excess_risk_convex_paper
from dd_jax.intervals import mean_over_seeds
from dd_jax.requesters import fixed_stream
from experiments.cache import Runner, jit_small
from experiments.page import Table

TITLE = "What an edit saves, against retraining"
CAPTION = """\
Gradients of single records that one request saves over learning from scratch, measured (marks) and
in the order that the paper's table of comparison states (dashed, with a free constant). The first
panel asks for the excess risk of the convex accuracy theorem, which falls with n; the second for a
constant risk, where no logarithm is left. Below 0 an edit costs more than retraining. Orders are
lower bounds: steeper savings agree with them, flatter ones do not."""
NOTE = """\
Retraining is learning from scratch for as many steps as a system's own analysis needs to certify
the excess risk α; an edit is what (ε, δ) and α need. The records attain the bounds: Huber
regression (L = β = 1) on equal records with residuals in the linear part. The minimiser is then as
far from the start as possible, and an edit moves it as far as possible. Only Noisy-GD certifies
data-deletion; Perturbed-GD (its Theorem 9 with a secret state, Theorem 28 without) claims closeness
to retraining. Noisy-m-A-SGD claims equality with it; its theorem leaves the constant of its risk
open, so its α was chosen by runs. A large saving does not mean a cheap edit: it is measured from
the system's own retraining. Risks are means over few seeds, where α bounds an expectation.

Slopes are those of log(saving) on the logarithm of the axis with 95% t-intervals; "not resolved"
means that the interval contains the stated slope and also no growth. Constants inside the logarithm
make slopes at these n steeper than the order: the second table has the passes saved per e-fold of
n, measured and by each analysis (a), and the slopes of n (a log n + b), with the b that fits these
runs best, at these n and at far larger ones. The table of comparison has r = 1; the order in r is
that of the text below the theorem for Noisy-GD, and ours for Perturbed-GD, whose noise is
proportional to r."""

ACCELERATED = "Noisy-m-A-SGD"
SECRET, STATELESS = "Perturbed-GD, Thm 9", "Perturbed-GD, Thm 28"
PAPER, OPTIMAL = "Noisy-GD, paper", "Noisy-GD, optimal"
DESCENTS = (SECRET, STATELESS, PAPER, OPTIMAL)
STATED = {
    ACCELERATED: "√d (1 - √d/n)",
    SECRET: "n log(εn/√d)",
    STATELESS: "n log(εn/(log²(id) √d))",
    PAPER: "n log min{n, εn/√d}",
    OPTIMAL: "n log min{n, εn/√d}",
}
LOOKS = {
    ACCELERATED: (style.RED, "v"),
    SECRET: (style.GREEN, "^"),
    STATELESS: (style.BLACK, "s"),
    PAPER: (style.ORANGE, "o"),
    OPTIMAL: (style.BLUE, "D"),
}
PANELS = {"n": "n", "constant": "n, constant α", "d": "d", "epsilon": "ε", "r": "r"}
# With this label every reachable model has its residual in the linear part of Huber's loss.
FAR_LABEL = 100.0
MOST_STEPS = 300
# At sizes this large, savings of n (a log n + b) grow as their order does for any b.
FAR_SIZES = np.logspace(9, 12, 4)


@dataclass(frozen=True)
class Config:
    """Settings of the figure; the quick scale is the default."""

    l2: float = 0.2
    epsilon: float = 2.0
    delta: float = 1e-5
    dim: int = 5
    requests: int = 10
    served: int = 2
    sizes: tuple[int, ...] = (300, 1_000, 3_000, 10_000, 30_000)
    # Theorem 28 saves only at large n; beyond these n its noise is too small for float32.
    stateless_sizes: tuple[int, ...] = (1_000, 3_000, 10_000, 30_000, 100_000)
    constant_sizes: tuple[int, ...] = (300, 30_000)
    constant_risk: float = 1.0
    n: int = 3_000
    dims: tuple[int, ...] = (5, 50, 500)
    epsilons: tuple[float, ...] = (0.5, 2.0, 8.0)
    edits: tuple[int, ...] = (1, 10, 100)
    seeds: int = 2
    accelerated_sizes: tuple[int, ...] = (100, 300, 1_000, 3_000, 10_000)
    accelerated_scale: float = 36.0
    accelerated_batch_factor: int = 8
    accelerated_seeds: int = 8
    accelerated_served: int = 10
    seed: int = 0

    @property
    def target(self) -> "Target":
        """The target, unless an axis varies it."""
        return Target(self.n, self.dim, self.l2, self.epsilon, self.delta, requests=self.requests)


FULL = Config(seeds=8, served=10)


# --- the target of every system, and how it meets it ----------------------------------------------


class Target(NamedTuple):
    """The target that every system must meet.

    Attributes:
        n, dim: records and parameters. l2: λ; L = 1 and β = 1.
        epsilon, delta: what may remain of a deleted record.
        edits: the number r of records replaced per request. requests: how many are served.
        risk: the bound α, or None for the risk that the convex accuracy theorem,
            `thm:unlearning_accuracy_convex`, promises at this n.
    """

    n: int
    dim: int
    l2: float
    epsilon: float
    delta: float
    edits: int = 1
    requests: int = 1
    risk: float | None = None

    @property
    def problem(self) -> dd.Problem:
        """Huber regression: 1-Lipschitz, 1-smooth."""
        return dd.Problem(dd.losses.huber(), self.l2)

    @property
    def order(self) -> float:
        """The order q = 1 + (2/ε) log(1/δ), at which (q, ε/2)-data-deletion gives (ε, δ)."""
        return 1 + 2 / self.epsilon * math.log(1 / self.delta)

    def theorem_risk(self, eps_dp: float) -> float:
        """The theorem's risk 10κqdL²/(λ ε_dp n²)."""
        return excess_risk_convex_paper(self.order, 1.0, self.l2, 1.0, self.n, self.dim, eps_dp)

    @property
    def excess_risk(self) -> float:
        """The risk α: the given one, or the theorem's at ε_dp = ε/2."""
        return self.theorem_risk(self.epsilon / 2) if self.risk is None else self.risk


class Calibrated(NamedTuple):
    """A system at a target: the one that serves requests, and the one that learns from scratch.

    They differ if the guarantee of later requests needs longer learning than the risk does.
    """

    serving: System
    retraining: System


def calibrate(config: Config, row: str, target: Target) -> Calibrated:
    """The system of a row of the table for a target."""
    if row in (SECRET, STATELESS):
        return perturbed(target, secret=row == SECRET)
    if row == ACCELERATED:
        system = accelerated(target, config.accelerated_scale, config.accelerated_batch_factor)
    else:
        system = noisy_gd(target, "paper" if row == PAPER else "optimal")
    return Calibrated(system, system)


def noisy_gd(target: Target, accountant: str) -> System:
    """Noisy-GD with the optimal accountant, or as the convex accuracy theorem states.

    The theorem's risk is 10κqd/(λ ε_dp n²), so α sets ε_dp ≤ ε/2, and ε_dd = ε_dp: the most noise
    that α allows.
    """
    sizes: dict[str, Any] = {"n": target.n, "dim": target.dim, "edits_per_request": target.edits}
    if accountant == "optimal":
        sizes |= {"epsilon": target.epsilon, "delta": target.delta}
        plan = noisy_gd_system.calibrate(target.problem, target_risk=target.excess_risk, **sizes)
        return noisy_gd_system.system(target.problem, plan)
    budget = min(target.epsilon / 2, target.theorem_risk(1.0) / target.excess_risk)
    sizes |= {"order": target.order, "eps_dp": budget, "eps_dd": budget}
    plan = dd.plan_convex(target.problem, accountant="paper", **sizes)
    plan = noisy_gd_system.with_risk_steps(plan)
    return noisy_gd_system.system(target.problem, plan, delta=target.delta)


def perturbed(target: Target, secret: bool) -> Calibrated:
    """Perturbed-GD as published, Theorem 9 or 28, with the steps I that save most.

    After I steps a request leaves (S/2)(dist² + dσ²) ≤ α, dist = s γ^I/(1-γ^I); learning from
    scratch takes the least k with (S/2)(γ^{2k}R² + dσ²) ≤ α.

    Raises:
        CertificateRefused: no number of steps reaches the target.
    """
    constants = Constants.of_problem(target.problem)
    claim: dict[str, Any] = {
        "n": target.n,
        "epsilon": target.epsilon,
        "delta": target.delta,
        "edits_per_request": target.edits,
    }
    stateless = {"dim": target.dim, "max_requests": target.requests}
    best = None
    for steps in range(1, MOST_STEPS):
        try:
            made = (
                perturbed_gd.calibrate(constants, delete_steps=steps, **claim)
                if secret
                else perturbed_gd.calibrate_stateless(
                    constants, noise_steps=steps, **stateless, **claim
                )
            )
        except CertificateRefused:
            continue
        again = _retraining_steps(target, constants, made)
        saved = again - made.delete_steps
        if best is not None and saved < best[0] - 1:
            break
        if math.isfinite(saved) and (best is None or saved > best[0]):
            best = (saved, made, int(again))
    if best is None:
        raise CertificateRefused(f"no number of steps reaches a risk of {target.excess_risk:g}.")
    _, made, again = best
    serving = perturbed_gd.system(target.problem, made)
    return Calibrated(serving, perturbed_gd.system(target.problem, made.replace(learn_steps=again)))


def _retraining_steps(target: Target, constants: Constants, made) -> float:
    """The least k that is certified for α; infinite where an edit would not be."""
    left = constants.contraction**made.noise_steps
    lipschitz, l2 = constants.lipschitz, constants.strong_convexity
    distance = 4 * target.edits * lipschitz / (l2 * target.n) * left / (1 - left)
    square = 2 * target.excess_risk / constants.smoothness
    room = square - target.dim * made.noise_deviation**2
    if room <= distance**2:
        return math.inf
    needed = math.log(constants.radius**2 / room) / (-2 * math.log(constants.contraction))
    return max(1, math.ceil(needed))


def accelerated(target: Target, scale: float, batch_factor: int) -> System:
    """Noisy-m-A-SGD with b = batch_factor·⌈√d⌉ and ρ = scale·√d/n, at most 1.

    Its risk is O(GD√d/(nρ)) with a constant that is not stated, so `scale` is chosen by the risk
    that runs show. T, σ and η depend on n through nρ alone.
    """
    root = math.sqrt(target.dim)
    made = noisy_m_a_sgd.calibrate(
        Constants.of_problem(target.problem),
        n=target.n,
        dim=target.dim,
        stability=min(1.0, scale * root / target.n),
        batch_size=batch_factor * math.ceil(root),
    )
    return noisy_m_a_sgd.system(target.problem, made)


# --- runs -----------------------------------------------------------------------------------------


def database(target: Target) -> dd.Labelled:
    """Equal records, whose minimiser has the distance L/λ from 0, the largest possible."""
    return _alike((target.n,), target.dim, FAR_LABEL)


def edits(target: Target, served: int) -> dd.Edit:
    """Requests that flip the labels of r records; each moves the minimiser by 2L/(λn)."""
    shape = (served, target.edits)
    rows = np.arange(served * target.edits, dtype=np.int32).reshape(shape)
    return dd.Edit(jnp.asarray(rows), _alike(shape, target.dim, -FAR_LABEL))


def _alike(shape: tuple[int, ...], dim: int, label: float) -> dd.Labelled:
    # Made with NumPy: a jax.numpy call would be compiled again for every size.
    features = np.zeros((*shape, dim), np.float32)
    features[..., 0] = 1.0
    return dd.Labelled(jnp.asarray(features), jnp.asarray(np.full(shape, label, np.float32)))


def excess_risk(target: Target, model, records: dd.Labelled):
    """(λ/2)‖θ - θ*‖² with θ* = (1/(λn)) Σ ±a, exact while all residuals are in the linear part."""
    optimum = jnp.mean(records.features * jnp.sign(records.label)[:, None], axis=0) / target.l2
    return target.l2 / 2 * jnp.sum((model - optimum) ** 2)


class Measured(NamedTuple):
    """What runs of a system cost and reached; means over seeds (and requests, for edits).

    Attributes:
        retrain: gradients of single records that learning from scratch took.
        edit, edit_low, edit_high: gradients of one request, and the mean's 95% t-interval over
            seeds; its width is zero if the cost is the same in every run.
        target: α. learned, edited: excess risk from scratch, and after the last request.
    """

    retrain: float
    edit: float
    edit_low: float
    edit_high: float
    target: float
    learned: float
    edited: float


def measure(
    system: Calibrated, target: Target, key: jax.Array, seeds: int, served: int
) -> Measured:
    """Run the system over seeds through `dd.interact` and read its meters.

    Seeds run one after another: side by side, a system that skips work would not skip it.
    """
    stream = fixed_stream(edits(target, served))

    def one(key, records):
        learn_key, publish_key, serve_key = jax.random.split(key, 3)
        curator, transcript = dd.interact(
            serve_key, metered(system.serving), stream, records, num_requests=served
        )
        releases, spent = transcript.releases.value, transcript.releases.cost.gradients
        learned, again = releases[0], spent[0]
        if system.retraining is not system.serving:
            state, cost = system.retraining.learn(learn_key, records)
            learned, again = system.retraining.publish(publish_key, state), cost.gradients
        edited = excess_risk(target, releases[-1], curator.database)
        return again, spent[1:], excess_risk(target, learned, records), edited

    run = jit_small(one, target.n * target.dim)
    records = database(target)
    found = [
        jax.tree.map(np.asarray, run(jax.random.fold_in(key, seed), records))
        for seed in range(seeds)
    ]
    retrain, requests, learned, edited = (np.stack(leaves) for leaves in zip(*found, strict=True))
    edit = mean_over_seeds(requests.mean(axis=1), 0.95)
    numbers = (retrain.mean(), *edit, target.excess_risk, learned.mean(), edited.mean())
    return Measured(*map(float, numbers))


def points(config: Config) -> Iterator[tuple[str, str, float, Target]]:
    """Every run of the figure: its panel and row, its place on the axis, its target."""
    base = config.target
    constant = base._replace(risk=config.constant_risk)
    for row in DESCENTS:
        for n in config.sizes if row != STATELESS else config.stateless_sizes:
            yield "n", row, n, base._replace(n=n)
        for n in config.constant_sizes:
            yield "constant", row, n, constant._replace(n=n)
        for dim in config.dims:
            yield "d", row, dim, base._replace(dim=dim)
        for epsilon in config.epsilons:
            yield "epsilon", row, epsilon, base._replace(epsilon=epsilon)
        for edits in config.edits:
            yield "r", row, edits, base._replace(edits=edits)
    for n in config.accelerated_sizes:
        yield "constant", ACCELERATED, n, constant._replace(n=n)
    for dim in config.dims:
        yield "d", ACCELERATED, dim, constant._replace(dim=dim)


def compute(config: Config, runner: Runner) -> dict[str, np.ndarray]:
    """Arrays "panel: row" with one line per run: place, stated order, then `Measured`."""
    key = jax.random.key(config.seed)
    lines: dict[str, list] = {}
    known: dict[tuple[str, Target], Measured] = {}
    for number, (panel, row, place, target) in enumerate(points(config)):
        name = f"{panel}: {row}"
        if name not in lines:
            runner.say(name)
        if (row, target) not in known:
            sizes = (config.seeds, config.served)
            if row == ACCELERATED:
                sizes = (config.accelerated_seeds, config.accelerated_served)
            system, run_key = calibrate(config, row, target), jax.random.fold_in(key, number)
            known[row, target] = measure(system, target, run_key, *sizes)
        lines.setdefault(name, []).append((place, stated(row, target), *known[row, target]))
    return {name: np.array(found, np.float64) for name, found in lines.items()}


# --- the stated orders, and whether runs grow as they do ------------------------------------------


def stated(row: str, target: Target) -> float:
    """The table's order without its constant, with r as in the text below the theorem.

    For Perturbed-GD the table has r = 1 only; its noise is proportional to r, which gives εn/(r√d).
    """
    n, root, edits = target.n, math.sqrt(target.dim), target.edits
    if row == ACCELERATED:
        return root * (1 - root / n)
    ratio = target.epsilon * n / root
    if row == SECRET:
        return n * math.log(ratio / edits)
    if row == STATELESS:
        return n * math.log(ratio / edits / math.log(target.requests * target.dim) ** 2)
    return n * math.log(min(n / edits, ratio))


class Line(NamedTuple):
    """One row of the table in one panel, column by column."""

    place: np.ndarray
    stated: np.ndarray
    edit: np.ndarray
    saving: np.ndarray
    low: np.ndarray
    high: np.ndarray
    worst_risk: float


def line(results: dict[str, np.ndarray], panel: str, row: str) -> Line:
    """A row's runs in a panel."""
    place, order, retrain, edit, low, high, target, learned, edited = results[f"{panel}: {row}"].T
    worst = float((np.maximum(learned, edited) / target).max())
    return Line(place, order, edit, retrain - edit, retrain - high, retrain - low, worst)


def fit(x: np.ndarray, y: np.ndarray) -> tuple[float, float, float]:
    """The slope of y on x, and the ends of its 95% t-interval."""
    found: Any = stats.linregress(x, y)
    half = stats.t.isf(0.025, len(x) - 2) * found.stderr
    return found.slope, found.slope - half, found.slope + half


def verdict(low: float, high: float, stated_slope: float, rounding=1e-6, level=0.01) -> str:
    """Whether an interval contains the stated slope and excludes no growth.

    A stated slope of at most `level` means no growth, and an interval around it agrees.
    """
    low, high = low - rounding, high + rounding
    if low > stated_slope:
        return "steeper than stated"
    if high < stated_slope:
        return "FLATTER than stated"
    return "not resolved" if low <= 0 <= high and abs(stated_slope) > level else "as stated"


def tables(config: Config, results: dict[str, np.ndarray]) -> list[Table]:
    """Slopes in every panel; passes over the data, with the risk that they reach."""
    return [_slopes(results), _passes(config, results)]


def _slopes(results: dict[str, np.ndarray]) -> Table:
    """Every row in every panel with at least three runs of it."""
    rows = []
    for name in results:
        panel, row = name.split(": ", 1)
        found = line(results, panel, row)
        if len(found.place) < 3:
            continue
        saves, places = found.saving > 0, np.log(found.place)
        losing = tuple(f"{place:,.6g}" for place in found.place[~saves]) or None
        if saves.sum() < 3:
            order, *_ = fit(places, np.log(found.stated))
            cells = (None, None, None, order, "no slope: too few runs save")
        else:
            slope, low, high = fit(places[saves], np.log(found.saving[saves]))
            order, *_ = fit(places[saves], np.log(found.stated[saves]))
            cells = (slope, low, high, order, verdict(low, high, order))
        rows.append((row, STATED[row], PANELS[panel], *cells, losing))
    columns = ("slope", "95% low", "95% high", "stated slope", "verdict", "saves nothing at")
    return Table(
        "Slopes of log(saving), measured and stated",
        ("system", "stated", "against", *columns),
        rows,
    )


def steps_per_e_fold(l2: float, row: str) -> float:
    """How many more steps retraining needs when n is e times larger, by the row's own analysis.

    α falls as 1/n²; a step leaves c = 1 - λ/(λ+β) of a distance by the optimal accountant,
    γ = β/(2λ+β) for Perturbed-GD, and e^{-1/(4κ)} of a risk by the paper's.
    """
    if row == PAPER:
        return 8 * (1 + 1 / l2)
    return math.log1p(2 * l2 if row in (SECRET, STATELESS) else l2) ** -1


def modelled_slope(n: np.ndarray, rate: float, shift: float) -> float | None:
    """Slope of log(saving) on log(n) that savings of n (a log n + b) have over these n."""
    savings = n * (rate * np.log(n) + shift)
    return fit(np.log(n), np.log(savings))[0] if len(n) > 2 and (savings > 0).all() else None


def _passes(config: Config, results: dict[str, np.ndarray]) -> Table:
    """Passes over the data, how the saved ones grow, and whether every run of a row met its α."""
    rows = []
    for row in LOOKS:
        panels = [name.split(": ", 1)[0] for name in results if name.endswith(f": {row}")]
        worst = max(line(results, panel, row).worst_risk for panel in panels)
        constant = line(results, "constant", row)
        edit = saved = slope = low = high = rate = near = far = None
        if row != ACCELERATED:
            found = line(results, "n", row)
            edits, savings = found.edit / found.place, found.saving / found.place
            edit, saved, rate = edits[-1], savings[-1], steps_per_e_fold(config.l2, row)
            slope, low, high = fit(np.log(found.place), savings)
            shift = float(np.mean(savings - rate * np.log(found.place)))
            near = modelled_slope(found.place[savings > 0], rate, shift)
            far = modelled_slope(FAR_SIZES, rate, shift)
        rows.append(
            {
                "system": row,
                "of an edit": edit,
                "saved": saved,
                "saved per e-fold of n": slope,
                "95% low": low,
                "95% high": high,
                "by its analysis, a": rate,
                "slope of n (a log n + b)": near,
                "at n = 10⁹ to 10¹²": far,
                "saved, constant α": constant.saving[-1] / constant.place[-1],
                "largest mean risk / α": worst,
                "verdict": "met" if worst <= 1 else "ABOVE α",
            }
        )
    return Table.from_rows("Passes over the data at the largest n, and the risk of all runs", rows)


# --- the picture ----------------------------------------------------------------------------------


def plot(config: Config, results: dict[str, np.ndarray]) -> Figure:
    """Measured savings with the stated orders drawn through their largest point."""
    figure, axes = style.panels(2, 3)
    panels = (
        ("n", "records n, at the theorem's risk α ∝ d/(εn)²", DESCENTS),
        ("constant", f"records n, at α = {config.constant_risk:g}", tuple(LOOKS)),
        ("d", f"parameters d, n = {config.n:,}", tuple(LOOKS)),
        ("epsilon", f"ε, n = {config.n:,}", DESCENTS),
        ("r", f"records per request r, n = {config.n:,}", DESCENTS),
    )
    for axis, (panel, label, rows) in zip(axes, panels, strict=False):
        found = {row: line(results, panel, row) for row in rows}
        for row, one in found.items():
            _draw(axis, row, one)
        axis.set(xscale="log", xlabel=label, ylabel="gradients saved per request")
        _scale(axis, np.concatenate([one.saving for one in found.values()]))
        places = sorted({float(place) for one in found.values() for place in one.place})
        if len(places) <= 3:
            axis.set_xticks(places, [f"{place:g}" for place in places])
            axis.xaxis.set_minor_locator(NullLocator())
    axes[5].axis("off")
    handles, labels = axes[1].get_legend_handles_labels()
    title = "marks: measured; dashed: stated order\nbelow 0: an edit costs more than retraining"
    axes[5].legend(handles, labels, loc="center", fontsize=10, title=title)
    return figure


def _draw(axis: Axes, row: str, found: Line) -> None:
    colour, marker = LOOKS[row]
    ends = (found.saving, found.low, found.high)
    style.error_bars(axis, found.place, *ends, label=row, colour=colour, marker=marker)
    # The order has a free constant: the line goes through the point with the largest order.
    anchor = int(np.argmax(found.stated))
    if found.saving[anchor] > 0:
        scaled = found.stated * found.saving[anchor] / found.stated[anchor]
        axis.plot(found.place, scaled, color=colour, linestyle=style.DASHED, linewidth=1)


def _scale(axis: Axes, savings: np.ndarray) -> None:
    """A logarithmic axis, linear around zero where an edit costs more than retraining."""
    low, high = float(savings.min()), float(savings.max())
    if low > 0:
        axis.set_yscale("log")
        return
    axis.set_yscale("symlog", linthresh=100)
    axis.set_ylim(min(4 * low, -100), 4 * high)
    axis.yaxis.set_major_locator(SymmetricalLogLocator(base=100, linthresh=100))
    axis.axhline(0, color=style.BLACK, linewidth=0.8)
