"""The divergence of two neighbouring runs, step by step: the paper's `fig:convex_proof` in numbers.

Phase I (`subfig:convex_deletion_phase1`), learning and earlier requests: the databases differ in
one record and the runs drift apart. Phase II (`subfig:convex_deletion_phase2`), the request that
deletes it and later ones: the runs forget. Exact laws, samples and three bounds on the same steps.
Every request but one edits another row, and does so in both worlds.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.markers import CARETUP

import dd_jax as dd
from dd_jax import losses
from dd_jax.audit import bounds as lower_bounds
from dd_jax.audit.bounds import estimated_renyi_gaussian_fit
from dd_jax.cli import style
from dd_jax.guarantees import convex
from dd_jax.oracles import gaussian
from experiments.cache import Runner
from experiments.measured import verdict
from experiments.page import Table

TITLE = "Two phases: learning drives two runs apart, deletion brings them together"
CAPTION = (
    "The Rényi divergence of two runs, step by step. While one record differs, through learning "
    "and earlier requests, they drift apart (phase I), up to the theorem's "
    "R_∞; the exact law crosses that of the paper's diagram, a quarter of it (erratum E11). "
    "Once the record is deleted they forget (phase II). Dots: exact laws, below all bounds; the "
    "linear loss attains the optimal one. Carets: what samples prove. Squares: the deletion "
    "steps that each bound needs."
)
NOTE = (
    "R_∞ = 4qL²/(λσ²n²) is that of the convex privacy theorem. Ridge, whose data add curvature, "
    "forgets faster than any bound can assume. Both losses have the λ, β and L = 1 of one "
    "certificate and start at the model 0, with η = 1/(2M) and the noise with which the paper's "
    "theorem makes a release (q, ε_dp)-Rényi DP. Ridge replaces only a label, so its bounds are "
    "about labels. The worlds differ along the first coordinate alone, which is therefore the "
    "best score of any test. Carets are lower bounds that hold all together with the stated "
    "confidence; bars end at an estimate (a Gaussian fit) without any confidence, which is too "
    "high where little is left."
)

DIM, ROW, CHUNK = 2, 0, 10_000
LOOKS = {
    "paper": (style.ORANGE, style.DASHED),
    "unrelaxed": (style.GREEN, "-."),
    "optimal": (style.BLUE, style.SOLID),
}
# Where a bound's number of steps is written, beside the square on its line.
BESIDE: dict[str, Any] = {
    "paper": {"xytext": (-8, -12), "ha": "right"},
    "unrelaxed": {"xytext": (8, 4), "ha": "left"},
    "optimal": {"xytext": (-8, -4), "ha": "right"},
}
FLOOR = 1e-3
# Allowed relative rounding error where an exact value equals its bound.
ROUNDING = 1e-9


@dataclass(frozen=True)
class Config:
    """Settings of the figure; the quick scale is the default. L = 1 throughout.

    Attributes:
        learn_steps, request_steps: K_L and K_U.
        earlier, later: requests for other rows, before and after the one that deletes the record.
    """

    n: int = 100
    l2: float = 1.0
    smoothness: float = 1.0
    order: float = 2.0
    eps_dp: float = 1.0
    eps_dd: float = 0.1
    learn_steps: int = 8
    request_steps: int = 8
    earlier: int = 2
    later: int = 2
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
    def present_steps(self) -> int:
        """K_I, the steps of phase I: K_L + (i - 1) K_U, where request i deletes the record."""
        return self.learn_steps + self.earlier * self.request_steps

    @property
    def delete_steps(self) -> int:
        """The steps of phase II, later requests included."""
        return (1 + self.later) * self.request_steps

    @property
    def limits(self) -> dict[str, float]:
        """R_∞ of phase I, as the theorem has it and as the paper's diagram does."""
        stated = convex.privacy_convex(self.descent(self.noise_variance), np.inf)
        return {"theorem": stated, "diagram": stated / 4}

    @property
    def clock(self) -> np.ndarray:
        """The pairs (K_I, K_U) after each step, in rows."""
        steps = np.arange(1, self.present_steps + self.delete_steps + 1)
        present = np.minimum(steps, self.present_steps)
        return np.stack([present, steps - present], axis=1)


FULL = Config(every=1, seeds=1_000_000)


class World(NamedTuple):
    """A problem, a database in two worlds, and what every request writes.

    Attributes:
        problem: what is run.
        present, absent: databases that differ in row `ROW`.
        written: (database, row) ↦ the database when a request has replaced that row's record.
        phase: (database, steps) ↦ the exact law's phase.
    """

    problem: dd.Problem
    present: PyTree
    absent: PyTree
    written: Callable[[PyTree, int], PyTree]
    phase: Callable[[PyTree, float], gaussian.Phase]


def linear(config: Config) -> World:
    """-⟨θ, x⟩ with x = ±e₁ in one row: the loss that attains the optimal bound."""
    problem = dd.Problem(losses.linear(), config.l2)
    present = jnp.asarray(_unit_rows(config.n), jnp.float32).at[ROW].set(jnp.eye(DIM)[0])
    absent = present.at[ROW].set(-present[ROW])

    def written(records: Array, row: int) -> Array:
        return dd.apply_edit(records, dd.deletion(problem.loss, records, [row]))

    def phase(records: Array, steps: float) -> gaussian.Phase:
        return gaussian.linear_phase(np.asarray(records, np.float64), config.l2, steps)

    return World(problem, present, absent, written, phase)


def ridge(config: Config) -> World:
    """(⟨a, θ⟩ - y)²/2 with label ±1 in one row; half of the rows curve the loss along it."""
    problem = dd.Problem(losses.squared(label_bound=1.0), config.l2)
    features = jnp.eye(DIM, dtype=jnp.float32)[jnp.arange(config.n) % DIM]
    labels = jnp.asarray(_unit_rows(config.n)[:, 0], jnp.float32)

    def labelled(label: float) -> dd.Labelled:
        return dd.Labelled(features, labels.at[ROW].set(label))

    def written(database: dd.Labelled, row: int) -> dd.Labelled:
        return dd.Labelled(features, database.label.at[row].set(0.0))

    def phase(database: dd.Labelled, steps: float) -> gaussian.Phase:
        rows, marks = (np.asarray(part, np.float64) for part in database)
        return gaussian.ridge_phase(rows, marks, config.l2, steps)

    return World(problem, labelled(1.0), labelled(-1.0), written, phase)


LOSSES = {"linear": linear, "ridge": ridge}


def _unit_rows(n: int) -> np.ndarray:
    """Records on the unit circle, spread evenly; they are the same in both worlds."""
    angles = 2.4 * np.arange(n)
    return np.stack([np.cos(angles), np.sin(angles)], axis=1)


def history(config: Config, world: World, database: PyTree) -> list[tuple[PyTree, int]]:
    """The databases of learning and of every request, each with its number of steps.

    Requests edit rows of their own; the one after `earlier` others deletes the record.
    """
    found = [(database, config.learn_steps)]
    for i in range(1, config.earlier + config.later + 2):
        row = ROW if i == config.earlier + 1 else ROW + i
        found.append((world.written(found[-1][0], row), config.request_steps))
    return found


def compute(config: Config, runner: Runner) -> dict[str, np.ndarray]:
    """R_q after every step: bounds, and per loss "exact", "audited" (at least) and "estimate"."""
    audited = np.arange(config.every, len(config.clock) + 1, config.every)
    results = {"step": np.arange(1, len(config.clock) + 1), "audited step": audited}
    results |= {f"bound: {name}": values for name, values in bounds(config).items()}
    confidence = 1 - (1 - config.confidence) / (len(LOSSES) * len(audited))
    for place, (name, make) in enumerate(LOSSES.items()):
        world = make(config)
        results[f"{name}: exact"] = np.array(
            [exact(config, world, int(k)) for k in results["step"]]
        )
        key = jax.random.fold_in(jax.random.key(config.seed), place)
        present, absent = _scores(config, name, world, key, runner)
        pairs = [(present[:, k - 1], absent[:, k - 1]) for k in audited]
        found = [_audit(config, confidence, first, second) for first, second in pairs]
        results[f"{name}: audited"], results[f"{name}: estimate"] = np.array(found).T
    return results


def bounds(config: Config) -> dict[str, np.ndarray]:
    """Each accountant's bound after every step: privacy in phase I, deletion in phase II."""
    run = config.descent(config.noise_variance)
    present, gone = config.clock.T
    learn, delete = present[gone == 0], gone[gone > 0]
    found = {}
    for name, rules in convex.ACCOUNTANTS.items():
        known = {} if name == "paper" else {"present": config.present_steps}
        phases = [rules.privacy(run, learn), rules.deletion(run, delete, **known)]
        found[name] = np.concatenate(phases)
    return found


def exact(config: Config, world: World, steps: int) -> float:
    """R_q of the present run from the absent one after k steps, both started at the model 0."""
    laws = []
    for database in (world.present, world.absent):
        phases, left = [], steps
        for held, length in history(config, world, database):
            phases.append(world.phase(held, min(left, length)))
            left -= min(left, length)
        laws.append(
            gaussian.law_after(phases, config.step_size, config.noise_variance, np.zeros(DIM))
        )
    return gaussian.renyi(config.order, *laws)


def _scores(config: Config, name: str, world: World, key: Array, runner: Runner) -> list:
    """θ₁ after every step, (seeds, steps), of runs in both worlds with independent noise."""
    move = functools.partial(
        dd.noisy_gd.trajectory,
        problem=world.problem,
        step_size=config.step_size,
        noise_variance=config.noise_variance,
    )

    lengths = [steps for _, steps in history(config, world, world.present)]

    def run(key, *databases):
        model, seen = jnp.zeros(DIM), []
        keys = jax.random.split(key, len(databases))
        for request_key, database, steps in zip(keys, databases, lengths, strict=True):
            seen.append(move(request_key, model, database, num_steps=steps))
            model = seen[-1][-1]
        return jnp.concatenate(seen)[:, 0]

    databases = {"present": world.present, "absent": world.absent}
    return [
        runner.over_seeds(
            f"{name}, record {arm}",
            run,
            arm_key,
            config.seeds,
            *(held for held, _ in history(config, world, database)),
            chunk=CHUNK,
        )
        for arm_key, (arm, database) in zip(jax.random.split(key), databases.items(), strict=True)
    ]


def _audit(config: Config, confidence: float, present, absent) -> tuple[float, float]:
    """A lower bound on R_q that holds with this confidence, and an estimate without any."""
    cut = round(config.fit_share * config.seeds)
    parts = (present[:cut], absent[:cut], present[cut:], absent[cut:])
    bound = lower_bounds.gaussian_mu(*parts, confidence=confidence, independent=True)
    estimate = estimated_renyi_gaussian_fit(present, absent, order=config.order)
    return lower_bounds.renyi_of_mu(bound, config.order).value, estimate


def plot(config: Config, results: dict[str, np.ndarray]) -> Figure:
    """One panel per loss: three bounds, the exact divergence and what samples show of it."""
    figure, axes = style.panels(1, len(LOSSES))
    figure.set_size_inches(12, 4.8)
    titles = {
        "linear": "linear loss: attains the optimal bound",
        "ridge": "ridge, one label replaced: curved data forget faster",
    }
    for axis, (name, title) in zip(axes, titles.items(), strict=True):
        _draw_loss(axis, config, results, name)
        _draw_phases(axis, config)
        axis.set_title(title)
    axes[0].set_ylabel(f"Rényi divergence of order {config.order:g}")
    style.legend_of_all(figure, axes[0], columns=5)
    return figure


def _draw_loss(axis: Axes, config: Config, results: dict[str, np.ndarray], name: str) -> None:
    """Bounds as lines, the exact law as dots, the audit as carets with bars to the estimate."""
    for bound, (colour, dashes) in LOOKS.items():
        values = results[f"bound: {bound}"]
        label = f"{bound} bound"
        axis.plot(results["step"], values, color=colour, linestyle=dashes, lw=2, label=label)
        needed = steps_needed(config, results, bound)
        if needed is not None:
            point = (config.present_steps + needed, values[config.present_steps + needed - 1])
            axis.plot(*point, "s", color=colour, markersize=6)
            words = f"{bound}: {needed}"
            axis.annotate(words, point, color=colour, textcoords="offset points", **BESIDE[bound])
    truth = results[f"{name}: exact"]
    axis.plot(results["step"], truth, "o", color=style.BLACK, markersize=3.5, label="exact")
    low = results[f"{name}: audited"]
    shown = low > FLOOR
    seen, low = results["audited step"][shown], low[shown]
    high = results[f"{name}: estimate"][shown]
    axis.vlines(seen, low, high, color=style.RED, linewidth=4, alpha=0.5)
    label = "audited: at least (bar: to the estimate)"
    axis.plot(seen, low, linestyle="none", marker=CARETUP, color=style.RED, label=label)


def _draw_phases(axis: Axes, config: Config) -> None:
    """The releases, the two phases around the deletion, its budget, and R_∞ of phase I."""
    last = config.present_steps + config.delete_steps
    axis.axvspan(config.present_steps, last + 0.5, color=style.BLACK, alpha=0.05, linewidth=0)
    for release in range(config.learn_steps, last, config.request_steps):
        axis.axvline(release, color=style.BLACK, alpha=0.25, linewidth=0.8)
    for name, limit in config.limits.items():
        axis.plot([0.5, config.present_steps], [limit, limit], color=style.BLACK, linewidth=1)
        words, below = f"$R_\\infty$ of the {name}", name == "diagram"
        place = (config.present_steps - 0.5, limit * (0.85 if below else 1.04))
        axis.text(*place, words, va="top" if below else "bottom", ha="right", fontsize=9)
    axis.axhline(config.eps_dd, color=style.BLACK, linewidth=1, linestyle=style.DOTTED)
    axis.set(yscale="log", ylim=(FLOOR, 3), xlim=(0.5, last + 0.5), xlabel="step")
    style.plain_numbers(axis.yaxis)
    for middle, words in (
        (config.present_steps / 2, f"phase I: learning, {config.earlier} other requests"),
        (config.present_steps + config.delete_steps / 2, "phase II: the record is deleted"),
    ):
        axis.text(middle, 2.1, words, ha="center", fontsize=9)
    words = f"$\\varepsilon_{{dd}}$ = {config.eps_dd:g}"
    axis.text(config.present_steps / 2, config.eps_dd * 0.95, words, va="top", ha="center")


def steps_needed(config: Config, results: dict[str, np.ndarray], bound: str) -> int | None:
    """Deletion steps after which the bound is within ε_dd, None if they are not among the shown."""
    within = results[f"bound: {bound}"][config.present_steps :] <= config.eps_dd
    return int(np.argmax(within)) + 1 if within.any() else None


def tables(config: Config, results: dict[str, np.ndarray]) -> list[Table]:
    """The exact divergence against every bound, and the samples against the exact divergence."""
    against_bounds, against_samples = [], []
    for name in LOSSES:
        truth = results[f"{name}: exact"]
        for bound in LOOKS:
            ratio = truth / results[f"bound: {bound}"]
            broken = ratio.max() > 1 + ROUNDING
            needed = steps_needed(config, results, bound)
            against_bounds.append(
                (name, bound, needed, ratio.min(), ratio.max(), ratio[-1], verdict(broken))
            )
        low, seen = results[f"{name}: audited"], truth[results["audited step"] - 1]
        over = int(np.sum(low > seen))
        against_samples.append((name, len(low), int(np.sum(low > 0)), over, verdict(over > 0)))
    limits = [
        (name, of, limit, results[f"{name}: exact"].max(), verdict(_crosses(results, name, limit)))
        for name in LOSSES
        for of, limit in config.limits.items()
    ]
    reached = f"deletion steps to ε_dd = {config.eps_dd:g}"
    ratios = [f"exact / bound, {which}" for which in ("least", "largest", "last step")]
    lower = f"Lower bounds from {config.seeds:,} seeds, {config.confidence:.0%} confidence in all"
    return [
        Table(
            "The exact divergence against the bounds, over all steps",
            ("loss", "bound", reached, *ratios, "verdict"),
            against_bounds,
        ),
        Table(
            lower,
            ("loss", "lower bounds", "above 0", "above the exact value", "verdict"),
            against_samples,
        ),
        Table(
            "R_∞, the limit of phase I, against the largest exact divergence",
            ("loss", "stated by", "R_∞", "largest exact", "verdict"),
            limits,
        ),
    ]


def _crosses(results: dict[str, np.ndarray], name: str, limit: float) -> bool:
    return bool(results[f"{name}: exact"].max() > limit * (1 + ROUNDING))
