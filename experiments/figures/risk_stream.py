"""Excess risk along a thousand edits of real data, against both risk bounds and retraining.

Two requesters replace one record after another: one fixed in advance, and an adaptive one that sees
every release and works against it. Releases are judged against the exact minimiser of the database
they were trained on. The optimal accountant's plan and the paper's are run side by side.
"""

import functools
from dataclasses import dataclass, replace

import jax
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import dd_jax as dd
from dd_jax import data
from dd_jax.cli import style
from dd_jax.guarantees import risk
from dd_jax.intervals import mean_over_seeds, simultaneous
from dd_jax.sweeps.deletion import TRACED, Question, setting
from experiments import stream_runs
from experiments.cache import Runner

TITLE = "Risk along a thousand edits"
PLANS = ("optimal", "paper")
REQUESTERS = ("fixed", "adaptive")


@dataclass(frozen=True)
class Config:
    """Settings of the figure; the quick scale is the default.

    Attributes:
        every, retrain_every: how many requests lie between releases that are judged, and between
            retrained models; the second is a multiple of the first.
        confidence: of all statements about means together.
    """

    dataset: str = "digits-3-vs-8"
    l2: float = 0.1
    order: float = 2.0
    eps_dp: float = 1.0
    eps_dd: float = 0.05
    num_requests: int = 1_000
    every: int = 25
    retrain_every: int = 100
    seeds: int = 24
    adaptive_seeds: int = 8
    confidence: float = 0.99
    seed: int = 0


FULL = Config(every=10, retrain_every=50, seeds=500, adaptive_seeds=200)


def make_plan(
    config: Config, train: dd.Labelled, accountant: str = "optimal"
) -> tuple[dd.Problem, dd.plans.Plan]:
    """The regularised problem, and a plan that meets the configured budgets on it.

    The paper's plan takes the deletion steps that its risk bound asks for, if those are more.
    """
    problem = dd.Problem(dd.losses.logistic(), config.l2)
    n, dim = train.features.shape
    plan = dd.plan_convex(
        problem,
        n=n,
        dim=dim,
        order=config.order,
        eps_dp=config.eps_dp,
        eps_dd=config.eps_dd,
        accountant=accountant,  # pyright: ignore[reportArgumentType]
    )
    if accountant == "paper":
        smoothness = problem.constants.loss.smoothness
        useful = risk.delete_steps_convex_paper(
            config.order, config.l2, smoothness, dim, config.eps_dp
        )
        plan = replace(plan, delete_steps=max(plan.delete_steps, int(useful)))
    return problem, plan


def certificate(config: Config) -> dd.Certificate:
    """What the optimal plan promises, against a requester that saw one release."""
    train = data.load(config.dataset).train
    return make_plan(config, train)[1].certificate(1, 1)


def compute(config: Config, runner: Runner) -> dict[str, np.ndarray]:
    """For each plan: risk (seeds, judged) and accuracy of both requesters and of retraining."""
    loaded = data.load(config.dataset)
    plans = {name: make_plan(config, loaded.train, name)[1] for name in PLANS}
    n, dim = loaded.train.features.shape
    asked = Question(
        config.dataset,
        n,
        dim,
        config.l2,
        config.eps_dp,
        config.eps_dd,
        config.order,
        requests=config.num_requests,
    )
    settings = [setting(asked, plan) for plan in plans.values()]
    train, test = loaded.train, loaded.test
    edits = stream_runs.in_turn(train, config.num_requests, config.seed)
    stacked = stream_runs.databases(train, edits, config.every)
    optima = stream_runs.minima(dd.losses.logistic(), config.l2, stacked)
    apart = config.retrain_every // config.every
    some = jax.tree.map(lambda leaf: leaf[::apart], (stacked, optima))
    fixed = functools.partial(stream_runs.fixed, every=config.every)
    adaptive = functools.partial(stream_runs.adaptive, every=config.every)
    runs = {
        "fixed": (fixed, config.seeds, (edits, stacked, optima, test)),
        "adaptive": (adaptive, config.adaptive_seeds, (train, test)),
        "retrained": (stream_runs.retrained, config.seeds, (*some, test)),
    }
    results = _bounds(config, plans)
    for number, (name, (fn, seeds, args)) in enumerate(runs.items()):
        found = runner.sweep(
            f"risk-stream-{name}",
            fn,
            jax.random.fold_in(jax.random.key(config.seed), number),
            seeds,
            settings,
            traced=TRACED,
            arguments=lambda _, args=args: args,
            at_once=1,
            chunk=50,
        )
        for plan, judged in zip(PLANS, found, strict=True):
            results[f"{plan}_{name}_risk"] = judged.risk
            results[f"{plan}_{name}_accuracy"] = judged.accuracy
    return results


def _bounds(config: Config, plans: dict[str, dd.plans.Plan]) -> dict[str, np.ndarray]:
    """The bounds on the mean at the judged releases, and the steps of both plans."""
    results = {"request": np.arange(0, config.num_requests + 1, config.every)}
    for name, plan in plans.items():
        learned = plan.certificate(request=1)
        served = [plan.certificate(request=int(i)) for i in results["request"][1:]]
        bounds = [learned.risk_bound_learned, *(found.risk_bound_request for found in served)]
        results[f"{name}_bound"] = np.array(bounds, float)
        results[f"{name}_learn_steps"] = np.array(plan.learn_steps)
        results[f"{name}_delete_steps"] = np.array(plan.delete_steps)
        if name == "paper":
            assert learned.risk_bound_paper is not None, "the plan meets the theorem's conditions"
            results["paper_theorem_bound"] = np.array(learned.risk_bound_paper)
    return results


# --- the picture --------------------------------------------------------------------------------

_LOOKS = {
    "fixed": (style.BLUE, style.SOLID),
    "adaptive": (style.ORANGE, style.DASHED),
}


def plot(config: Config, results: dict[str, np.ndarray]) -> Figure:
    """Risk under both plans, accuracy under the optimal one: means with a 90% band of seeds."""
    figure, axes = style.panels(1, 3, height=4.2)
    names = {"optimal": "the optimal accountant's plan", "paper": "the paper's plan"}
    for plan, panel in zip(PLANS, axes, strict=False):
        _draw(panel, config, results, plan, "risk")
        bounds = results[f"{plan}_bound"]
        panel.plot(
            results["request"],
            bounds,
            color=style.BLACK,
            linestyle=style.DOTTED,
            label="bound on the mean (this library)",
        )
        if plan == "paper":
            panel.axhline(
                float(results["paper_theorem_bound"]),
                color=style.RED,
                linestyle="-.",
                label="bound on the mean (the paper)",
            )
        steps = f"{results[f'{plan}_delete_steps']} steps per request"
        panel.set(title=f"{names[plan]}, {steps}", ylabel="excess empirical risk", yscale="log")
    limits = np.log10([panel.get_ylim() for panel in axes[:2]])
    for panel in axes[:2]:
        panel.set_ylim(10 ** np.floor(limits.min()), 10 ** np.ceil(limits.max()))
    _draw(axes[2], config, results, "optimal", "accuracy")
    axes[2].set(title="the optimal accountant's plan", ylabel="held-out accuracy")
    for panel in axes:
        panel.set_xlabel("edit requests served")
        style.legend_below(panel)
    return figure


def _draw(panel: Axes, config: Config, results, plan: str, what: str) -> None:
    for name, (colour, dashes) in _LOOKS.items():
        values = results[f"{plan}_{name}_{what}"]
        low, high = np.quantile(values, [0.05, 0.95], axis=0)
        panel.fill_between(results["request"], low, high, color=colour, alpha=0.2, linewidth=0)
        panel.plot(
            results["request"],
            values.mean(axis=0),
            color=colour,
            linestyle=dashes,
            label=f"{name} requester",
        )
    found = mean_over_seeds(results[f"{plan}_retrained_{what}"], _each(config, results))
    where = results["request"][:: config.retrain_every // config.every]
    style.error_bars(
        panel, where, *found, label="retrained, fixed stream", colour=style.GREEN, marker="D"
    )


def _each(config: Config, results: dict[str, np.ndarray]) -> float:
    """The confidence of one mean of risk that makes those of all plans and streams hold."""
    return simultaneous(config.confidence, 6 * len(results["request"]))


def caption(config: Config, results: dict[str, np.ndarray]) -> str:
    """What to see, with the numbers of this run."""
    accuracy = results["optimal_fixed_accuracy"].mean(axis=0)
    against = results["optimal_adaptive_accuracy"].mean(axis=0)
    step = config.retrain_every // config.every
    ratio = results["optimal_fixed_risk"].mean(axis=0)[::step] / results[
        "optimal_retrained_risk"
    ].mean(axis=0)
    steps = {plan: int(results[f"{plan}_delete_steps"]) for plan in PLANS}
    return (
        f"{config.num_requests:,} replacements on {config.dataset}, ε_dp = {config.eps_dp:g}, "
        f"ε_dd = {config.eps_dd:g} at order {config.order:g}. Excess risk of a release on its own "
        f"database, every {config.every} requests; lines are means over {config.seeds} (fixed) and "
        f"{config.adaptive_seeds} (adaptive, seeing every release) seeds, bands hold 90% of them, "
        f"bars are t-intervals. {_verdict(config, results)} "
        f"Retraining at the same ε_dp takes {int(results['optimal_learn_steps'])} steps where a "
        f"request takes {steps['optimal']} ({steps['paper']} under the paper's plan); the mean "
        f"risk after a fixed stream is {ratio.min():.2f} to {ratio.max():.2f} times the retrained "
        f"model's. Held-out accuracy is {accuracy[0]:.3f} after learning and {accuracy[-1]:.3f} at "
        f"the end of the fixed stream, and {against[-1]:.3f} at the end of the adaptive one, which "
        f"puts in the training record that the last model fits worst. Tests "
        f"thm:unlearning_accuracy_convex, part 3, whose bound covers adaptive requesters too."
    )


def _verdict(config: Config, results: dict[str, np.ndarray]) -> str:
    """How far the means are from their bounds, and whether one is beyond."""
    bounds = {plan: results[f"{plan}_bound"] for plan in PLANS}
    theorem = results["paper_theorem_bound"]
    shares, above, judged = [], 0, 0
    for plan in PLANS:
        lowest = np.minimum(bounds[plan], theorem) if plan == "paper" else bounds[plan]
        for name in REQUESTERS:
            found = mean_over_seeds(results[f"{plan}_{name}_risk"], _each(config, results))
            shares.append(f"{(found.value / bounds[plan]).max():.0%} ({plan} plan, {name})")
            above += int(np.sum(found.low > lowest))
            judged += found.low.size
    beyond = (
        f"{above} of {judged} means lie above a bound, which refutes it"
        if above
        else f"none of {judged} means is shown to lie above a bound"
    )
    return (
        f"The worst mean reaches {', '.join(shares)} of this library's bound; the theorem's is "
        f"{theorem / bounds['paper'].max():.1f} times that for the same plan; {beyond} "
        f"(confidence {config.confidence:g} in all together)."
    )
