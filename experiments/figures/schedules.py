"""Cyclic batches: what a deletion costs over their number, and the accuracy of such a stream.

The privacy of one release is (ε, δ = 1/n) by exact Gaussian DP, which is a μ, and so R_q ≤ qμ²/2.
What may remain of a deleted record is a share of that divergence. Costs are the certificates' own
numbers for records of the size of MNIST 3-vs-8; accuracy is measured.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import dd_jax as dd
from dd_jax import data, erm, intervals, noisy_gd, requesters
from dd_jax.cli import style
from dd_jax.guarantees import renyi
from dd_jax.plans.convex import NOISE_SLACK, plan_convex
from dd_jax.plans.settings import Reference
from experiments.cache import Runner
from experiments.page import Table

TITLE = "Cheap deletions by cyclic batches"
CAPTION = """\
Left: passes over the data for one deletion, by the number of cyclic batches; one batch is all data.
What remains is a share of the divergence that privacy allows, against the run on the replaced
record or on an empty row (null). In the shaded part the pooled bound asks for more than 1.25 times
the noise. Right: held-out accuracy through a stream of deletions, with 95% intervals over seeds:
nearly the same, at a fraction of the cost."""
NOTE = """\
Left: n = 11,982, λ = 0.001 and η = 1/(λ+β), as for MNIST 3-vs-8; the steps need no data. Every
release is (ε, 1/n)-DP by itself; the table has all releases jointly. Right: all arms learn for the
same number of steps, so full batches take more passes for it. At the quick scale the data are the
267 digits of scikit-learn, where few batches are possible: deletion wants ηλ below 1/m, and the
noise of one release ηλ below 2/m². λ was chosen by hand, which no certificate covers."""
CHUNK = 16
# The divergences are linear in the order, so this choice changes no steps.
ORDER = 2.0
# MNIST 3-vs-8: records, parameters and λ.
N, DIM, L2 = 11_982, 784, 1e-3
REFERENCES: tuple[Reference, ...] = ("replaced", "null")


@dataclass(frozen=True)
class Config:
    """Settings of the figure; the quick scale is the default.

    Costs are for `shares` (what may remain is ε_dp over this) and numbers of batches in `tried`;
    runs are on a data set, for the last share, with `batches` beside full ones.
    """

    epsilon: float = 1.0
    tried: tuple[int, ...] = (1, 2, 3, 4, 5, 7, 10, 14, 20, 30, 40, 50)
    shares: tuple[int, ...] = (2, 10)
    dataset: str = "digits-3-vs-8"
    l2: float = 0.02
    batches: int = 3
    learn_steps: int = 42
    deletions: int = 100
    seeds: int = 200
    seed: int = 0


FULL = Config(dataset="mnist-3-vs-8", l2=L2, batches=10, learn_steps=600, seeds=8)


class Asked(NamedTuple):
    """Logistic regression with unit-norm rows, one release (ε, 1/n)-DP."""

    problem: dd.Problem
    n: int
    dim: int
    epsilon: float

    @property
    def mu(self) -> float:
        """μ of Gaussian DP that is (ε, 1/n)."""
        return renyi.gdp_from_epsilon_delta(self.epsilon, 1 / self.n)

    def plan(self, share: float, batches: int, reference: Reference, **options) -> dd.Plan:
        """A plan that leaves the divergence ε_dp/share of a deleted record."""
        eps_dp = ORDER / 2 * self.mu**2
        budgets = {"order": ORDER, "eps_dp": eps_dp, "eps_dd": eps_dp / share}
        sizes = {"n": self.n, "dim": self.dim, "batches": batches, "reference": reference}
        return plan_convex(self.problem, **sizes, **budgets, **options)


def _asked(config: Config, l2: float, n: int, dim: int) -> Asked:
    return Asked(dd.Problem(dd.losses.logistic(), l2), n, dim, config.epsilon)


def compute(config: Config, runner: Runner) -> dict[str, np.ndarray]:
    """Costs over the batches, and of every arm its accuracies and costs."""
    return _costs(config) | _runs(config, runner)


# --- what a deletion costs ------------------------------------------------------------------------


def cost_name(share: int, reference: Reference) -> str:
    """The array of passes per deletion."""
    return f"passes: ε_dp/{share}, {reference}"


def _costs(config: Config) -> dict[str, np.ndarray]:
    """Passes per deletion over the batches, and the noise as a multiple of full batches'."""
    asked, results = _asked(config, L2, N, DIM), {}
    for share in config.shares:
        for reference in REFERENCES:
            plans = [asked.plan(share, m, reference) for m in config.tried]
            passes = [plan.delete_gradients / N for plan in plans]
            results[cost_name(share, reference)] = np.array(passes)
    noise = [asked.plan(2, m, "replaced").init_variance for m in config.tried]
    full = asked.plan(2, 1, "replaced").init_variance
    return results | {"batches": np.array(config.tried), "noise": np.array(noise) / full}


# --- runs -----------------------------------------------------------------------------------------


class Arm(NamedTuple):
    """One plan that is run, as numbers.

    Attributes:
        batches: m. null: 1 where the budget is against the null run.
        learn, delete: passes for learning and for one deletion. gradients: in all.
        epsilon_dp, epsilon_dd: at δ = 1/n, the latter against the run on the replaced record.
        epsilon_joint: of all releases together.
    """

    batches: float
    null: float
    learn: float
    delete: float
    gradients: float
    epsilon_dp: float
    epsilon_dd: float
    epsilon_joint: float

    def __str__(self) -> str:
        batches = "full batches" if self.batches == 1 else f"{self.batches:g} batches"
        return f"{batches}{', null' if self.null else ''}: {self.delete:.3g} passes each"


def arms(config: Config) -> tuple[tuple[int, Reference], ...]:
    """(m, reference) of every arm; the first one has full batches."""
    return ((1, "replaced"), *((config.batches, reference) for reference in REFERENCES))


def _runs(config: Config, runner: Runner) -> dict[str, np.ndarray]:
    loaded = data.load(config.dataset)
    n, dim = loaded.train.features.shape
    asked, delta = _asked(config, config.l2, n, dim), 1 / n
    rows = range(config.deletions)
    loss = asked.problem.loss
    edits = requesters.stack_edits([dd.deletion(loss, loaded.train, [row]) for row in rows])
    test = jax.tree.map(np.asarray, loaded.test)
    found, accuracies = [], []
    for place, (batches, reference) in enumerate(arms(config)):
        steps = {"learn_steps": config.learn_steps}
        plan = asked.plan(config.shares[-1], batches, reference, **steps)
        key = jax.random.fold_in(jax.random.key(config.seed), place)
        models = releases(
            runner, f"arm-{place}", plan, asked.problem, loaded.train, edits, key, config.seeds
        )
        accuracies.append(erm.accuracy(models, test))
        promised = plan.certificate(request=config.deletions)
        divergences = (promised.eps_dp, promised.eps_dd, promised.eps_dp_joint)
        mus = (renyi.gdp_from_linear_renyi(ORDER, eps) for eps in divergences)
        found.append(
            Arm(
                batches,
                float(reference == "null"),
                plan.learn_gradients / n,
                plan.delete_gradients / n,
                plan.learn_gradients + config.deletions * plan.delete_gradients,
                *(renyi.gdp_epsilon(mu, delta) for mu in mus),
            )
        )
    return {"arms": np.array(found), "accuracy": np.array(accuracies)}


def releases(runner, name, plan, problem, train, edits, key, seeds) -> np.ndarray:
    """φ_0, φ_1, … of the whole stream of edits: (seeds, edits + 1, d)."""
    curator, count = noisy_gd.mechanism(problem, plan), len(edits.index)

    def run(key, train, edits):
        requester = requesters.fixed_stream(edits)
        return dd.interact(key, curator, requester, train, num_requests=count)[1].releases

    return runner.over_seeds(name, run, key, seeds, train, edits, chunk=CHUNK)


# --- what the saved arrays say --------------------------------------------------------------------


def read_arms(results: dict[str, np.ndarray]) -> list[Arm]:
    """The arms, in the order of their accuracies."""
    return [Arm(*(float(value) for value in row)) for row in results["arms"]]


def cheaper(results: dict[str, np.ndarray], share: int, reference: Reference) -> float:
    """How many times fewer passes a deletion takes with batches, their noise at most 1.25 times."""
    passes = results[cost_name(share, reference)]
    return float(passes[0] / np.min(passes[results["noise"] <= NOISE_SLACK]))


def tables(config: Config, results: dict[str, np.ndarray]) -> list[Table]:
    """Costs over the batches, and the runs."""
    step = 1 / (L2 + 0.25)
    batches = results["batches"]
    costs = {
        "batches": batches,
        "noise × full": results["noise"],
        "ηλ·m": step * L2 * batches,
        "ηλ·m²/2": step * L2 * batches**2 / 2,
    }
    costs |= {name: found for name, found in results.items() if name.startswith("passes: ")}
    return [
        Table.from_columns(f"One deletion, n = {N:,}, λ = {L2:g}, η = 1/(λ+β)", costs),
        Table.from_rows(_runs_title(config), _run_rows(results)),
    ]


def _runs_title(config: Config) -> str:
    return (
        f"{config.deletions} deletions on {config.dataset}, λ = {config.l2:g}, "
        f"ε_dp/{config.shares[-1]} remains; {config.seeds} seeds, 95% intervals"
    )


def _run_rows(results: dict[str, np.ndarray]) -> list[dict[str, Any]]:
    found, rows = read_arms(results), []
    for arm, accuracy in zip(found, results["accuracy"], strict=True):
        learned, last = (intervals.mean_over_seeds(accuracy[:, k], 0.95) for k in (0, -1))
        rows.append(
            {
                "batches": int(arm.batches),
                "reference": "null" if arm.null else "replaced",
                "passes to learn": arm.learn,
                "passes per deletion": arm.delete,
                "gradients in all": arm.gradients,
                "full batches / this": found[0].gradients / arm.gradients,
                "accuracy learned": learned.value,
                "learned, low": learned.low,
                "learned, high": learned.high,
                "accuracy at the end": last.value,
                "end, low": last.low,
                "end, high": last.high,
                "ε_dp, one release": arm.epsilon_dp,
                "ε_dp, all jointly": arm.epsilon_joint,
                "ε_dd, replaced record": arm.epsilon_dd,
            }
        )
    return rows


# --- the picture ----------------------------------------------------------------------------------

COLOURS = (style.ORANGE, style.BLUE, style.GREEN)
ARMS = (
    (style.BLACK, style.DASHED),
    (style.BLUE, style.SOLID),
    (style.GREEN, style.DOTTED),
)


def plot(config: Config, results: dict[str, np.ndarray]) -> Figure:
    """Passes over the number of batches, and accuracy along the stream."""
    figure, (costs, accuracy) = style.panels(1, 2, height=4.4)
    _draw_costs(costs, config, results)
    for arm, values, (colour, dashes) in zip(
        read_arms(results), results["accuracy"], ARMS, strict=True
    ):
        requests = np.arange(values.shape[1])
        means = [intervals.mean_over_seeds(column, 0.95) for column in values.T]
        low, high = [mean.low for mean in means], [mean.high for mean in means]
        accuracy.fill_between(requests, low, high, color=colour, alpha=0.15, linewidth=0)
        style.line(accuracy, requests, values.mean(axis=0), str(arm), colour, dashes)
    accuracy.set(xlabel="deletions", ylabel="held-out accuracy", title=config.dataset)
    accuracy.set_ylim(np.floor(10 * results["accuracy"].mean(axis=1).min()) / 10, 1)
    style.legend_below(accuracy, columns=1)
    return figure


def _draw_costs(axes: Axes, config: Config, results: dict[str, np.ndarray]) -> None:
    batches = results["batches"]
    for share, colour, marker in zip(config.shares, COLOURS, "os^Dv", strict=False):
        for reference, dashes in zip(REFERENCES, (style.SOLID, style.DASHED), strict=True):
            passes = results[cost_name(share, reference)]
            label = f"$\\varepsilon_{{dp}}$/{share} remains, {reference}"
            style.line(axes, batches, passes, label, colour, dashes, marker=marker, ms=3.5)
    axes.set(xscale="log", yscale="log", xlabel="number of batches m")
    axes.set(ylabel="passes for one deletion", title=f"n = {N:,}, λ = {L2:g}")
    edge = float(np.interp(NOISE_SLACK, results["noise"], batches))
    axes.axvspan(edge, batches[-1] * 1.1, color="0.9", zorder=0, linewidth=0)
    axes.set_xlim(0.9, batches[-1] * 1.1)
    words: Any = {"transform": axes.get_xaxis_transform(), "fontsize": 8, "va": "top"}
    axes.text(edge * 1.04, 0.99, f"more than {NOISE_SLACK:g} ×\nthe noise", **words)
    for axis in (axes.xaxis, axes.yaxis):
        style.plain_log_ticks(axis)
    style.legend_below(axes)
