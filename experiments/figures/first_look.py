"""The page's first screen: a stream of deletions on real data, with everything that matters of it.

What was promised before any step was run, what is exact for the worst loss, how good the models
are, and what a deletion costs beside learning again. MNIST 3-vs-8 where it was fetched, else the
digits that come with scikit-learn.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import jax
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import dd_jax as dd
from dd_jax import data, erm, intervals
from dd_jax.cli import style
from dd_jax.data import fetch
from dd_jax.guarantees import inference, renyi
from dd_jax.guarantees.schedules import first_row
from dd_jax.oracles import linear
from experiments.cache import Runner
from experiments.figures import real_data, schedules
from experiments.page import Table

TITLE = "A hundred deletions on real data"
CAPTION = """\
Logistic regression whose every release is (1, 1/n)-DP; one record after another is deleted. Left:
held-out accuracy of the releases, with 95% intervals over seeds, under that of the model without
noise. Right: what one deletion costs, with cyclic batches and with full ones, which the paper's
theorem is about, beside learning again. Promised is the convex data-deletion theorem with its
optimal constants, which hold for cyclic batches too."""
NOTE = """\
Ten batches on MNIST (three on the digits), reference null: a tenth of ε_dp is left against the run
whose row was empty. Costs are those of plans with the same λ, budgets and, for full batches, their
own step count; "learning again" repeats the learning of this plan. The paper's theorem is about
the replaced record and has no number for an empty row. λ was chosen by hand.

"Exact" is the law of the loss -⟨θ, x⟩ on the same schedule, for a record of norm 1 against its
opposite in the worst of the batches. Audits by samples are below, on data that need few of them."""
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Config:
    """Settings; the defaults are for the digits of scikit-learn.

    Every release is (`epsilon`, 1/n)-DP, and ε_dp/`share` is left against the empty row.
    """

    dataset: str = "digits-3-vs-8"
    epsilon: float = 1.0
    share: int = 10
    l2: float = 0.02
    batches: int = 3
    learn_steps: int = 42
    deletions: int = 100
    seeds: int = 100
    seed: int = 0


REAL = Config("mnist-3-vs-8", l2=1e-3, batches=10, learn_steps=600, seeds=4)
FULL = Config("mnist-3-vs-8", l2=1e-3, batches=10, learn_steps=600, seeds=16)


def quick() -> Config:
    """Real data where they are."""
    return REAL if fetch.is_cached("mnist") else Config()


def compute(config: Config, runner: Runner) -> dict[str, np.ndarray]:
    """Accuracies along the stream, what is promised and exact, and costs in passes."""
    loaded = data.load(config.dataset)
    n, dim = loaded.train.features.shape
    asked = schedules.Asked(dd.Problem(dd.losses.logistic(), config.l2), n, dim, config.epsilon)
    plan = asked.plan(config.share, config.batches, "null", learn_steps=config.learn_steps)
    edits = real_data.stream(asked.problem, loaded.train, config.deletions)
    key = jax.random.key(config.seed)
    models = schedules.releases(
        runner, "stream", plan, asked.problem, loaded.train, edits, key, config.seeds
    )
    test = jax.tree.map(np.asarray, loaded.test)
    best = erm.minimise(asked.problem, loaded.train).params
    larger = float(np.mean(test.label > 0))
    return {
        "size": np.array([n, dim]),
        "accuracy": np.asarray(erm.accuracy(models, test)),
        "noiseless": np.asarray(erm.accuracy(best, test)),
        "larger class": np.array(max(larger, 1 - larger)),
        "promised": np.array(plan.certificate(request=config.deletions).advantage_bound),
        "exact": np.array(_exact(config, plan)),
        **_costs(config, asked, plan),
    }


def _costs(config: Config, asked: schedules.Asked, plan: dd.Plan) -> dict[str, np.ndarray]:
    """Passes over the data by what is done."""
    full = asked.plan(config.share, 1, "null")
    paper = dd.plan_convex(
        asked.problem,
        n=asked.n,
        dim=asked.dim,
        order=schedules.ORDER,
        eps_dp=asked.mu**2,
        eps_dd=asked.mu**2 / config.share,
        accountant="paper",
    )
    passes = {
        f"a deletion, {config.batches} cyclic batches": plan.delete_gradients / asked.n,
        "learning again": plan.learn_gradients / asked.n,
        "a deletion, full batches": full.delete_gradients / asked.n,
        "a deletion, the paper's theorem": paper.delete_gradients / asked.n,
    }
    return {"costs": np.array(list(passes.values())), "cost of": np.array(list(passes))}


def _exact(config: Config, plan: dd.Plan) -> float:
    """The advantage on the loss that is linear in the model, after the last request."""
    learned = plan.learn_steps + (config.deletions - 1) * plan.delete_steps
    steps = range(learned + plan.delete_steps)
    worst = 0.0
    for row in first_row(plan.n, plan.batches, np.arange(plan.batches)):
        gaps = linear.gaps_of_row(1.0, plan.n, plan.batches, int(row), steps)
        gaps[learned:] = 0
        noise, start = np.full(len(steps), plan.noise_variance), plan.init_variance
        settings = (plan.problem.l2, gaps, noise, np.full(len(steps), plan.step_size))
        found = linear.renyi_of_steps(schedules.ORDER, *settings, init_variance=start)
        worst = max(worst, float(found))
    return float(inference.advantage_gdp(renyi.gdp_from_linear_renyi(schedules.ORDER, worst)))


# --- what the saved arrays say --------------------------------------------------------------------


def opening(config: Config, results: dict[str, np.ndarray]) -> list[tuple[str, str, str]]:
    """Promised, exact, measured, and what it costs: (heading, number, words)."""
    accuracy, n = results["accuracy"], int(results["size"][0])
    last = intervals.mean_over_seeds(accuracy[:, -1], CONFIDENCE)
    cost, again, full, _ = results["costs"]
    return [
        (
            "promised",
            f"≤ {float(results['promised']):.3f}",
            "is what any test gains over guessing, from 0 to 1, at telling from all releases after "
            "a deletion which record it was",
        ),
        (
            "exact",
            f"{float(results['exact']):.3f}",
            "is reached by the loss that is linear in the model, with these numbers of steps and "
            "this noise: no smaller promise would be true",
        ),
        (
            "accuracy, measured",
            f"{last.value:.3f}",
            f"after {config.deletions} deletions [{last.low:.3f}, {last.high:.3f}], "
            f"{accuracy[:, 0].mean():.3f} before, {float(results['noiseless']):.3f} without noise; "
            f"{config.dataset}, {n:,} records",
        ),
        (
            "cost of a deletion",
            f"{cost:.1f} passes",
            f"over the data; learning again takes {again:.0f}, a deletion by full batches "
            f"{full:.0f}",
        ),
    ]


def tables(config: Config, results: dict[str, np.ndarray]) -> list[Table]:
    """Promises, accuracies and costs."""
    accuracy = results["accuracy"]
    learned, last = (intervals.mean_over_seeds(accuracy[:, k], CONFIDENCE) for k in (0, -1))
    models = [
        ("learned", learned.value, learned.low, learned.high),
        (f"after {config.deletions} deletions", last.value, last.low, last.high),
        ("without noise", float(results["noiseless"]), None, None),
        ("always the larger class", float(results["larger class"]), None, None),
    ]
    promises = [(name, float(results[name])) for name in ("promised", "exact")]
    costs = {"what": results["cost of"], "passes over the data": results["costs"]}
    return [
        Table("Advantage of any test after a deletion", ("what", "advantage"), promises),
        Table("Held-out accuracy", ("model", "accuracy", "low", "high"), models),
        Table.from_columns("Costs", costs),
    ]


def _curve(results: dict[str, np.ndarray]) -> dict[str, Sequence]:
    """Mean accuracies along the stream, with intervals."""
    found = [intervals.mean_over_seeds(column, CONFIDENCE) for column in results["accuracy"].T]
    return {
        "deletions": range(len(found)),
        "accuracy": [mean.value for mean in found],
        "low": [mean.low for mean in found],
        "high": [mean.high for mean in found],
    }


def certificate(config: Config) -> dd.Certificate:
    """What the stream runs under."""
    n, dim = data.load(config.dataset).train.features.shape
    asked = schedules.Asked(dd.Problem(dd.losses.logistic(), config.l2), n, dim, config.epsilon)
    plan = asked.plan(config.share, config.batches, "null", learn_steps=config.learn_steps)
    return plan.certificate(request=config.deletions)


# --- the picture ----------------------------------------------------------------------------------


def plot(config: Config, results: dict[str, np.ndarray]) -> Figure:
    """Accuracy along the stream, and costs."""
    figure, (accuracy, costs) = style.panels(1, 2, height=3.2)
    curve = _curve(results)
    accuracy.fill_between(
        curve["deletions"], curve["low"], curve["high"], color=style.BLUE, alpha=0.2, linewidth=0
    )
    style.line(accuracy, curve["deletions"], curve["accuracy"], "private releases", style.BLUE)
    style.line(
        accuracy, None, results["noiseless"], "without noise", style.BLACK, style.DASHED, lw=1
    )
    accuracy.set(xlabel="deletions", ylabel="held-out accuracy", title=config.dataset)
    top, least = 1.0, min(curve["low"])
    accuracy.set_ylim(max(0.0, least - 0.6 * (top - least)), top)
    accuracy.legend(loc="lower left")
    _draw_costs(costs, results)
    return figure


def _draw_costs(axes: Axes, results: dict[str, np.ndarray]) -> None:
    names, passes = list(results["cost of"]), results["costs"]
    places = np.arange(len(names))[::-1]
    again = names.index("learning again")
    colours = [style.BLUE, style.ORANGE, *[style.BLACK] * (len(names) - 2)]
    axes.scatter(passes, places, c=colours, zorder=3, s=40)
    axes.axvline(passes[again], color=style.ORANGE, linestyle=style.DASHED, linewidth=1)
    for value, place in zip(passes, places, strict=True):
        words = f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
        axes.annotate(words, (value, place), (8, 0), textcoords="offset points", va="center")
    axes.set(xscale="log", xlabel="passes over the data", ylim=(-0.6, len(names) - 0.4))
    axes.set_xlim(passes.min() / 2, 4 * passes.max())
    axes.set_yticks(places, [name.replace(", ", ",\n") for name in names])
    axes.set_title("what it costs")
    axes.grid(axis="y", visible=False)
    style.plain_numbers(axes.xaxis)
