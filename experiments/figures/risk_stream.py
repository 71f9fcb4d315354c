"""Excess risk along a thousand edits of real data, against both risk bounds and retraining.

Two requesters replace one record after another: one fixed in advance, and an adaptive one that sees
every release and works against it. Releases are judged against the exact minimiser of the database
they were trained on. The optimal accountant's plan and the paper's are run side by side.
"""

import functools
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import dd_jax as dd
from dd_jax import data, erm, requesters
from dd_jax.baselines import noisy_gd_system
from dd_jax.cli import style
from dd_jax.interaction import Observation, Requester
from dd_jax.intervals import mean_over_seeds, simultaneous
from dd_jax.losses.base import Loss
from dd_jax.noisy_gd import Schedule, mechanism
from dd_jax.sweeps.deletion import LOSS, TRACED, Question, planned_run
from experiments.cache import Runner
from experiments.measured import verdict
from experiments.page import Table

TITLE = "Risk along a thousand edits"
CAPTION = (
    "Excess risk of every release on its own database, and held-out accuracy, along a thousand "
    "replacements of records. Neither a fixed requester nor an adaptive one, which sees every "
    "release and puts in the record that fits worst, drives the mean risk above the bounds of this "
    "library and of the paper (convex accuracy theorem, part 3). Both stay at the level of "
    "retraining, with fewer steps. The adaptive requester lowers held-out accuracy, because it "
    "changes the data."
)
NOTE = (
    "Real digits, L2-regularised logistic regression. Lines are means over seeds, bands hold 90% "
    "of them, bars are t-intervals that hold all together with the stated confidence. The paper's "
    "plan takes the deletion steps that its risk bound needs, if those are more than deletion "
    "needs. Every release is compared with the exact minimiser of its database."
)
PLANS = {"optimal": "the optimal accountant's plan", "paper": "the paper's plan"}
REQUESTERS = {"fixed": (style.BLUE, style.SOLID), "adaptive": (style.ORANGE, style.DASHED)}


@dataclass(frozen=True)
class Config:
    """Settings of the figure; the quick scale is the default.

    Attributes:
        every, retrain_every: how many requests lie between judged releases, and between retrained
            models; the second is a multiple of the first.
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

    @property
    def apart(self) -> int:
        """How many judged releases there are for one retrained model."""
        return self.retrain_every // self.every


FULL = Config(every=10, retrain_every=50, seeds=500, adaptive_seeds=200)


def make_plan(config: Config, train: dd.Labelled, accountant: str = "optimal") -> dd.Plan:
    """A plan that meets the configured budgets.

    The paper's plan takes the deletion steps that its risk bound needs, if those are more.
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
    return noisy_gd_system.with_risk_steps(plan) if accountant == "paper" else plan


def certificate(config: Config) -> dd.Certificate:
    """What the optimal plan promises, against a requester that saw one release."""
    return make_plan(config, data.load(config.dataset).train).certificate(1, 1)


# --- streams of replacements, and how releases along them are judged ------------------------------


class Judged(NamedTuple):
    """Releases 0, every, 2·every, …: excess risk on their databases, held-out accuracy."""

    risk: Array
    accuracy: Array


def in_turn(pool: dd.Labelled, num_requests: int, seed: int) -> dd.Edit:
    """Edits fixed in advance: rows 0, 1, 2, … in turn get a random record of the pool."""
    n = len(pool.label)
    picks = np.random.default_rng(seed).integers(0, n, (num_requests, 1))
    rows = (np.arange(num_requests) % n)[:, None]
    record = jax.tree.map(lambda leaf: leaf[picks], pool)
    return dd.Edit(jnp.asarray(rows, jnp.int32), record)


class Memory(NamedTuple):
    """Which record of the pool each row holds."""

    holds: Int[Array, "n"]


def against_the_model(loss: Loss, pool: dd.Labelled) -> Requester:
    """Put the pool's worst fitted record in place of the database's best fitted one, each time.

    Adaptive: it must see every release, and moves the minimiser away from the newest one.
    The database starts as the pool.
    """

    def init(key):
        del key
        return Memory(jnp.arange(len(pool.label), dtype=jnp.int32))

    def act(key, memory: Memory, observation: Observation):
        del key
        losses = jax.vmap(loss.value, in_axes=(None, 0))(observation.release, pool)
        row = jnp.argmin(losses[memory.holds]).astype(jnp.int32)
        pick = jnp.argmax(losses).astype(jnp.int32)
        record = jax.tree.map(lambda leaf: leaf[pick][None], pool)
        return Memory(memory.holds.at[row].set(pick)), dd.Edit(row[None], record)

    return Requester(init, act)


def databases(train: dd.Labelled, edits: dd.Edit, every: int) -> dd.Labelled:
    """The database after 0, every, 2·every, … edits, stacked."""

    def step(rows, edit):
        return dd.apply_edit(rows, edit), rows

    last, earlier = jax.lax.scan(step, train, edits)
    return jax.tree.map(
        lambda rows, end: jnp.concatenate([rows[::every], end[None]]), earlier, last
    )


def fixed(key: Array, setting: Any, edits: dd.Edit, train: dd.Labelled, test, every: int) -> Judged:
    """A stream fixed in advance, so that all seeds share the databases and their minimisers."""
    return _served(key, setting, requesters.fixed_stream(edits), (), train, test, every)


def adaptive(key: Array, setting: Any, train: dd.Labelled, test, every: int) -> Judged:
    """A requester that sees every release and works against it: each seed its own database."""
    requester, seen = against_the_model(LOSS(), train), range(setting.requests)
    return _served(key, setting, requester, seen, train, test, every)


def retrained(
    key: Array, setting: Any, edits: dd.Edit, stacked: dd.Labelled, test, every: int
) -> Judged:
    """A model learned from scratch on each of the stacked databases, with noise of its own."""
    problem, curator = _curator(setting)
    models = jax.vmap(curator.learn)(jax.random.split(key, len(stacked.label)), stacked)
    train = jax.tree.map(lambda leaf: leaf[0], stacked)
    return _judge(problem, models, train, edits, test, every)


def _served(key, setting, requester, observe, train, test, every: int) -> Judged:
    problem, curator = _curator(setting)
    served = {"num_requests": setting.requests, "observe": observe}
    _, transcript = dd.interact(key, curator, requester, train, **served)
    return _judge(problem, transcript.releases[::every], train, transcript.edits, test, every)


def _curator(setting: Any) -> tuple[dd.Problem, dd.Mechanism]:
    problem = dd.Problem(LOSS(), setting.l2)
    return problem, mechanism(problem, Schedule.of(setting))


def _judge(problem, models: Array, train, edits: dd.Edit, test, every: int) -> Judged:
    requests = range(0, len(edits.index) + 1, every)
    found = erm.judge_stream(problem, models[:, None], train, edits, requests)
    return Judged(found.risk[:, 0], erm.accuracy(models, test))


# --- the numbers ----------------------------------------------------------------------------------


def compute(config: Config, runner: Runner) -> dict[str, np.ndarray]:
    """For each plan: risk (seeds, judged) and accuracy of both requesters and of retraining."""
    loaded = data.load(config.dataset)
    train, test = loaded.train, loaded.test
    plans = {name: make_plan(config, train, name) for name in PLANS}
    n, dim = train.features.shape
    budgets = (config.l2, config.eps_dp, config.eps_dd, config.order)
    asked = Question(config.dataset, n, dim, *budgets, requests=config.num_requests)
    settings = [planned_run(asked, plan) for plan in plans.values()]
    edits = in_turn(train, config.num_requests, config.seed)
    stacked = databases(train, edits, config.retrain_every)
    runs = {
        "fixed": (fixed, config.every, config.seeds, (edits, train, test)),
        "adaptive": (adaptive, config.every, config.adaptive_seeds, (train, test)),
        "retrained": (retrained, config.retrain_every, config.seeds, (edits, stacked, test)),
    }
    results = _bounds(config, plans)
    for number, (name, (fn, every, seeds, args)) in enumerate(runs.items()):
        found = runner.sweep(
            f"risk-stream-{name}",
            functools.partial(fn, every=every),
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


def _bounds(config: Config, plans: dict[str, dd.Plan]) -> dict[str, np.ndarray]:
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


# --- what is shown --------------------------------------------------------------------------------


def plot(config: Config, results: dict[str, np.ndarray]) -> Figure:
    """Risk under both plans, accuracy under the optimal one: means with a 90% band of seeds."""
    figure, axes, place = style.three_panels(height=4.2)
    for panel, (plan, words) in zip(axes, PLANS.items(), strict=False):
        _draw(panel, config, results, plan, "risk")
        bounds = results[f"{plan}_bound"]
        label = "bound, this library"
        style.line(panel, results["request"], bounds, label, dashes=style.DOTTED)
        if plan == "paper":
            bound = results["paper_theorem_bound"]
            style.line(panel, None, bound, "bound, the paper", style.RED, "-.")
        steps = f"{results[f'{plan}_delete_steps']} steps per request"
        panel.set(title=f"{words}, {steps}", ylabel="excess empirical risk", yscale="log")
    limits = np.log10([panel.get_ylim() for panel in axes[:2]])
    for panel in axes[:2]:
        panel.set_ylim(10 ** np.floor(limits.min()), 10 ** np.ceil(limits.max()))
    _draw(axes[2], config, results, "optimal", "accuracy")
    axes[2].set(title=PLANS["optimal"], ylabel="held-out accuracy")
    for panel in axes:
        panel.set_xlabel("edit requests served")
    style.legend_in(place, axes[1])  # the panel that shows all of them
    return figure


def _draw(panel: Axes, config: Config, results, plan: str, what: str) -> None:
    for name, (colour, dashes) in REQUESTERS.items():
        values = results[f"{plan}_{name}_{what}"]
        low, high = np.quantile(values, [0.05, 0.95], axis=0)
        panel.fill_between(results["request"], low, high, color=colour, alpha=0.2, linewidth=0)
        mean = values.mean(axis=0)
        style.line(panel, results["request"], mean, f"{name} requester", colour, dashes)
    found = mean_over_seeds(results[f"{plan}_retrained_{what}"], _each(config, results))
    where, label = results["request"][:: config.apart], "retrained, fixed stream"
    style.error_bars(panel, where, *found, label=label, colour=style.GREEN, marker="D")


def _each(config: Config, results: dict[str, np.ndarray]) -> float:
    """The confidence of one mean of risk that makes those of all plans and streams hold."""
    return simultaneous(config.confidence, 6 * len(results["request"]))


def tables(config: Config, results: dict[str, np.ndarray]) -> list[Table]:
    """The means against their bounds, and serving requests against retraining."""
    against_bounds, against_retraining = [], []
    theorem = float(results["paper_theorem_bound"])
    for plan in PLANS:
        bound = results[f"{plan}_bound"]
        lowest = np.minimum(bound, theorem) if plan == "paper" else bound
        for name in REQUESTERS:
            found = mean_over_seeds(results[f"{plan}_{name}_risk"], _each(config, results))
            above = int(np.sum(found.low > lowest))
            accuracy = results[f"{plan}_{name}_accuracy"].mean(axis=0)
            against_bounds.append(
                {
                    "plan": plan,
                    "requester": name,
                    "worst mean / this library's bound": (found.value / bound).max(),
                    "means judged": found.low.size,
                    "shown above a bound": above,
                    "verdict": verdict(above),
                    "accuracy after learning": accuracy[0],
                    "at the end": accuracy[-1],
                }
            )
        served, again = (
            results[f"{plan}_{name}_risk"].mean(axis=0) for name in ("fixed", "retrained")
        )
        ratio = served[:: config.apart] / again
        against_retraining.append(
            {
                "plan": plan,
                "steps per request": int(results[f"{plan}_delete_steps"]),
                "steps of retraining": int(results[f"{plan}_learn_steps"]),
                "risk over the retrained model's, least": ratio.min(),
                "largest": ratio.max(),
                "the paper's bound / this library's": theorem / bound.max()
                if plan == "paper"
                else None,
            }
        )
    means = f"confidence {config.confidence:g} in all means"
    return [
        Table.from_rows(f"Mean excess risk against the bounds, {means}", against_bounds),
        Table.from_rows(
            "Serving a fixed stream against retraining at the same ε_dp", against_retraining
        ),
    ]
