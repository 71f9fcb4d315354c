"""Real data: accuracy, risk and cost through a stream of deletions, with certificate and audit.

Every data set that is there is run; the others are named with the command that fetches them.
"""

from dataclasses import dataclass, field

import jax
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import dd_jax as dd
from dd_jax import data, intervals
from dd_jax.cli import style
from dd_jax.data import fetch
from experiments.cache import Runner
from experiments.page import Table
from experiments.real_data import costs, runs, words
from experiments.real_data import tables as real_data_tables

TITLE = "Real data"

CONFIDENCE = 0.95
# λ of each task. Chosen by hand for the accuracy of a run; no certificate covers such a choice.
L2 = {"digits-3-vs-8": 0.02, "mnist-3-vs-8": 1e-3, "adult": 1e-3, "cifar-cat-vs-ship": 1e-3}
LOOKS = {
    "digits-3-vs-8": (style.BLACK, "o", style.SOLID),
    "mnist-3-vs-8": (style.BLUE, "D", style.SOLID),
    "adult": (style.ORANGE, "^", style.DASHED),
    "cifar-cat-vs-ship": (style.GREEN, "s", style.DOTTED),
}


def _ready() -> tuple[str, ...]:
    """The tasks whose data are there."""
    needs = {name: data.TASKS[name].needs for name in L2}
    return tuple(name for name, need in needs.items() if need is None or fetch.is_cached(need))


@dataclass(frozen=True)
class Config:
    """Settings of the figure; the quick scale is the default.

    Fetched sets are larger than the bundled one and have numbers of their own; without
    seeds there is no audit, or only costs. `judged` releases have their excess risk taken, each
    with an exact minimiser. `datasets` is part of the settings so that arrays without a set are not
    taken for complete once it is fetched.
    """

    datasets: tuple[str, ...] = field(default_factory=_ready)
    epsilon: float = 1.0
    deletions: int = 100
    seeds: int = 100
    fetched_seeds: int = 0
    audit_seeds: int = 4_000
    fetched_audit_seeds: int = 0
    judged: int = 11
    fetched_judged: int = 6
    seed: int = 0


FULL = Config(
    seeds=400,
    fetched_seeds=4,
    audit_seeds=40_000,
    fetched_audit_seeds=200,
)


def _is_fetched(name: str) -> bool:
    return data.TASKS[name].needs is not None


def _audit_seeds(config: Config, name: str) -> int:
    return config.fetched_audit_seeds if _is_fetched(name) else config.audit_seeds


def make_setting(config: Config, name: str, train: dd.Labelled) -> costs.Setting:
    """(ε, 1/n) for L2-regularised logistic regression on these records."""
    n, dim = train.features.shape
    problem = dd.Problem(dd.losses.logistic(), L2[name])
    return costs.Setting(problem, n, dim, config.epsilon, config.deletions)


def compute(config: Config, runner: Runner) -> dict[str, np.ndarray]:
    """ "set: what" for every set: accuracy, risk, bounds, costs (targets × `Cost`), audit."""
    key = jax.random.key(config.seed)
    results = {}
    for place, name in enumerate(L2):
        if name in config.datasets:
            found = _compute_one(config, name, jax.random.fold_in(key, place), runner)
            results |= {f"{name}: {what}": np.asarray(value) for what, value in found.items()}
    return results


def _compute_one(config: Config, name: str, key, runner: Runner) -> dict:
    runner.say(f"{name}: loading")
    loaded = data.load(name)
    train, test = loaded.train, loaded.test
    setting = make_setting(config, name, train)
    known = {
        "size": [setting.n, setting.dim, len(test.label)],
        "costs": [costs.cost(setting, target) for target in setting.targets],
    }
    seeds = config.fetched_seeds if _is_fetched(name) else config.seeds
    if not seeds:
        return known
    plan = costs.make_plan(setting, setting.targets[0])
    problem, deletions = setting.problem, config.deletions
    count = config.fetched_judged if _is_fetched(name) else config.judged
    judged = runs.judged_requests(deletions, count)
    stream_key, learn_key, audit_key = jax.random.split(key, 3)
    edits = runs.stream(problem, train, deletions)
    models = runs.releases(runner, name, problem, plan, train, edits, seeds, stream_key)
    learned = runs.learning(runner, name, problem, plan, train, seeds, learn_key)
    runner.say(f"{name}: exact minimisers")
    certificate = plan.certificate(request=deletions, delta=setting.delta)
    bounds = [plan.certificate(request=max(i, 1)) for i in judged]
    return known | {
        "majority": max(np.mean(test.label > 0), np.mean(test.label < 0)),
        "accuracy": runs.accuracies(models, test),
        "judged": judged,
        "risk": runs.stream_risks(problem, models, train, edits, judged),
        "risk bound": [bounds[0].risk_bound_learned, *(b.risk_bound_request for b in bounds[1:])],
        "checkpoints": runs.checkpoints(plan.learn_steps),
        "learning risk": runs.learning_risks(problem, learned, train),
        "learning accuracy": runs.accuracies(learned, test),
        "epsilon": [certificate.epsilon_dp, certificate.epsilon_dd],
        "audit": _audit(config, name, setting, plan, train, audit_key, runner),
    }


def _audit(config: Config, name: str, setting, plan, train, key, runner: Runner) -> np.ndarray:
    """Rows stays and deleted; columns as `words.Audited`. Empty without an audit."""
    seeds = _audit_seeds(config, name)
    if not seeds:
        return np.zeros((0, len(words.Audited._fields)))
    audited = [other for other in config.datasets if _audit_seeds(config, other)]
    confidence = intervals.simultaneous(CONFIDENCE, len(audited))
    made = runs.audit_setting(name, setting.problem, plan, train, runner.config)
    judged = runs.audit(made, key, seeds, confidence, runner)
    return np.array([words.Audited.of(found, setting.delta) for found in judged], np.float64)


def plot(config: Config, results: dict[str, np.ndarray]) -> Figure:
    """Accuracy and risk along the stream, steps per deletion, and audited under certified."""
    figure, (accuracy, risk, cost, audit) = style.panels(2, 2, height=4.2)
    names = words.names(results)
    for name in words.run_names(results):
        colour, marker, dashes = LOOKS[name]
        values = results[f"{name}: accuracy"]
        requests = np.arange(values.shape[1])
        low, high = np.quantile(values, [0.05, 0.95], axis=0)
        accuracy.fill_between(requests, low, high, color=colour, alpha=0.15, linewidth=0)
        accuracy.plot(requests, values.mean(axis=0), color=colour, linestyle=dashes, label=name)
        judged, found = results[f"{name}: judged"], results[f"{name}: risk"].mean(axis=0)
        bound = results[f"{name}: risk bound"]
        risk.plot(judged, found, color=colour, linestyle=dashes, marker=marker, ms=4, label=name)
        risk.plot(judged, bound, color=colour, linestyle=dashes, marker=marker, ms=4, mfc="none")
    _reference_marks(accuracy, results)
    accuracy.set(xlabel="deletions", ylabel="held-out accuracy")
    risk.set(xlabel="deletions", ylabel="excess risk (hollow: certified)", yscale="log")
    style.legend_below(accuracy)
    style.legend_below(risk)
    _draw_costs(cost, names, results)
    _draw_audits(audit, words.run_names(results), results)
    absent = words.missing(names, L2)
    if absent:
        lines = (f"{name} is not there: {words.fetch_command(name)}" for name in absent)
        figure.supxlabel("\n".join(lines), fontsize=9)
    return figure


def _reference_marks(axis: Axes, results) -> None:
    """The peers' reported accuracies at ε = 1, in the colour of their data set."""
    for name in words.run_names(results):
        for system, marker in (("Langevin", "*"), ("Perturbed-GD", "X")):
            reported = words.REPORTED_ACCURACY.get(name, {}).get(system)
            if reported is not None:
                axis.plot(
                    1,
                    reported,
                    marker=marker,
                    color=LOOKS[name][0],
                    linestyle="none",
                    ms=9,
                    mec=style.BLACK,
                    label=f"{system}, reported, {name.split('-')[0]}",
                )


SYSTEMS = (
    ("delete", "ours", style.BLUE, "D"),
    ("paper_delete", "the paper's", style.GREEN, "^"),
    ("langevin_first", "Langevin, first deletion", style.ORANGE, "o"),
    ("retrain", "retraining", style.BLACK, "|"),
)


def _draw_costs(axis: Axes, names: list[str], results) -> None:
    """Steps per deletion for the two shares of the Rényi divergence."""
    lines = []
    for name in names:
        for row, share in enumerate(costs.SHARES):
            found = costs.Cost(*results[f"{name}: costs"][row])
            lines.append((f"{name}, ε_dp/{share}", found))
    for field_name, label, colour, marker in SYSTEMS:
        steps = [getattr(found, field_name) for _, found in lines]
        axis.plot(
            steps, range(len(lines)), marker, color=colour, label=label, ms=7, mew=2, mfc="none"
        )
    measured = [words.measured_retraining(results, name) for name in names for _ in costs.SHARES]
    label = "retraining, as measured"
    axis.plot(measured, range(len(lines)), "x", color=style.RED, label=label, ms=6, mew=2)
    axis.set(xscale="log", xlabel="passes over the data for one deletion")
    axis.set_yticks(range(len(lines)), [label for label, _ in lines], fontsize=8)
    axis.set_ylim(len(lines) - 0.5, -0.5)
    style.legend_below(axis)


def _draw_audits(axis: Axes, names: list[str], results) -> None:
    """μ: certified, and the most that the samples prove."""
    lines = [
        (f"{name}, {'deleted' if row else 'stays'}", words.Audited(*found))
        for name in names
        for row, found in enumerate(results[f"{name}: audit"])
    ]
    for place, (_, found) in enumerate(lines):
        axis.plot([found.audited_mu, found.certified_mu], [place] * 2, color="0.7", zorder=0)
    certified = [found.certified_mu for _, found in lines]
    audited = [found.audited_mu for _, found in lines]
    axis.plot(certified, range(len(lines)), "|", color=style.BLACK, ms=12, mew=2, label="certified")
    axis.plot(audited, range(len(lines)), "D", color=style.BLUE, label="audited (at least)")
    axis.set(xlabel="μ of Gaussian DP", xlim=(-0.02, None))
    axis.set_yticks(range(len(lines)), [label for label, _ in lines], fontsize=8)
    axis.set_ylim(max(len(lines), 1) - 0.5, -0.5)
    style.legend_below(axis)


def caption(config: Config, results: dict[str, np.ndarray]) -> str:
    """What to see, with the numbers of this run."""
    return words.caption(results, config, L2, CONFIDENCE)


def tables(config: Config, results: dict[str, np.ndarray]) -> list[Table]:
    """The runs, the costs and the audited claims."""
    return real_data_tables.tables(results, config, L2)
