"""Excess risk along a stream of deletions on real data, against the certificate's risk bound.

Two requesters delete one record after another: a fixed stream, and an adaptive one that sees every
release and deletes the record with the largest loss. Each release is judged against the exact
minimiser of the database it was trained on.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

import dd_jax as dd
from dd_jax import data, erm, requesters
from experiments import style
from experiments.context import Context

TITLE = "Risk along a stream of deletions"


@dataclass(frozen=True)
class Config:
    """Settings of the figure; the quick scale is the default."""

    dataset: str = "digits-3-vs-8"
    l2: float = 0.05
    order: float = 2.0
    eps_dp: float = 1.0
    eps_dd: float = 0.1
    num_requests: int = 50
    seeds: int = 200
    adaptive_seeds: int = 40
    seed: int = 0


FULL = Config(num_requests=1_000, seeds=200, adaptive_seeds=40)


def make_plan(config: Config, train: dd.Labelled) -> tuple[dd.Problem, dd.plans.Plan]:
    """The regularised problem, and a plan that meets the configured budgets on it."""
    problem = dd.Problem(dd.losses.logistic(), config.l2)
    n, dim = train.features.shape
    plan = dd.plan_convex(
        problem, n=n, dim=dim, order=config.order, eps_dp=config.eps_dp, eps_dd=config.eps_dd
    )
    return problem, plan


def compute(config: Config, context: Context) -> dict[str, np.ndarray]:
    """Excess risk (seeds, requests + 1) and test accuracy for both requesters, and the bounds."""
    loaded = data.load(config.dataset)
    problem, plan = make_plan(config, loaded.train)
    mechanism = dd.noisy_gd.mechanism(problem, plan)
    rows = range(config.num_requests)
    stream = requesters.stack_edits([dd.deletion(problem.loss, loaded.train, [r]) for r in rows])
    runs = {
        "fixed": (requesters.fixed_stream(stream), (), config.seeds),
        "adaptive": (
            requesters.largest_loss(problem.loss, loaded.train),
            tuple(rows),
            config.adaptive_seeds,
        ),
    }
    key = jax.random.key(config.seed)
    results = {"risk_bound": _bounds(plan, config.num_requests)}
    for name, (requester, observe, seeds) in runs.items():
        context.say(f"{name} stream of {config.num_requests} deletions, {seeds} seeds")

        def judged(key, train, test, requester=requester, observe=observe):
            _, transcript = dd.interact(
                key, mechanism, requester, train, num_requests=config.num_requests, observe=observe
            )
            return _judge(problem, transcript, train, test)

        run_key = jax.random.fold_in(key, len(results))
        risk, accuracy = dd.over_seeds(judged, run_key, seeds, loaded.train, loaded.test, chunk=20)
        results[f"{name}_risk"] = np.asarray(risk)
        results[f"{name}_accuracy"] = np.asarray(accuracy)
    return results


def certificate(config: Config) -> dd.Certificate:
    """What the first request's deletion has, against a requester that saw the first release."""
    train = data.load(config.dataset).train
    problem, plan = make_plan(config, train)
    return plan.certificate(1, 1, data_check=dd.losses.check_data(problem.loss, train))


def _bounds(plan, num_requests: int) -> np.ndarray:
    """The certificate's bound on the expected excess risk of every release."""
    learned = [plan.certificate(request=1).risk_bound_learned]
    served = [plan.certificate(request=i).risk_bound_request for i in range(1, num_requests + 1)]
    return np.array(learned + served)


def _judge(problem, transcript, train, test):
    """Excess risk of every release on its own database, and accuracy on held-out records."""

    first = erm.minimise(problem, train).params

    def judge_next(carry, xs):
        database, optimum = carry
        release, edit = xs
        database = dd.apply_edit(database, edit)
        optimum = erm.minimise(problem, database, optimum, max_steps=10).params
        return (database, optimum), erm.excess_risk(problem, release, database, optimum)

    releases = transcript.releases
    learned = erm.excess_risk(problem, releases[0], train, first)
    _, served = jax.lax.scan(judge_next, (train, first), (releases[1:], transcript.edits))
    accuracy = jnp.mean(releases @ test.features.T * test.label > 0, axis=1)
    return jnp.concatenate([learned[None], served]), accuracy


def plot(config: Config, results: dict[str, np.ndarray]) -> Figure:
    """Mean excess risk with a 90% band of seeds, and the bound on the mean."""
    figure, (risk, accuracy) = style.panels(1, 2)
    requests = np.arange(config.num_requests + 1)
    for name, colour, dashes in (
        ("fixed", style.BLUE, style.SOLID),
        ("adaptive", style.ORANGE, style.DASHED),
    ):
        for axis, values in (
            (risk, results[f"{name}_risk"]),
            (accuracy, results[f"{name}_accuracy"]),
        ):
            low, high = np.quantile(values, [0.05, 0.95], axis=0)
            axis.fill_between(requests, low, high, color=colour, alpha=0.2, linewidth=0)
            axis.plot(
                requests,
                values.mean(axis=0),
                color=colour,
                linestyle=dashes,
                label=f"{name} requester",
            )
    risk.plot(
        requests,
        results["risk_bound"],
        color=style.BLACK,
        linestyle=style.DOTTED,
        label="certified bound on the mean",
    )
    risk.set(xlabel="request", ylabel="excess empirical risk", yscale="log", ylim=(1e-2, 1))
    accuracy.set(xlabel="request", ylabel="held-out accuracy", ylim=(0.5, 1.0))
    risk.legend()
    accuracy.legend(loc="lower right")
    return figure


def caption(config: Config, results: dict[str, np.ndarray]) -> str:
    """What to see, with the numbers of this run."""
    worst = max(results[f"{name}_risk"].mean(axis=0).max() for name in ("fixed", "adaptive"))
    share = worst / results["risk_bound"].max()
    accuracy = results["fixed_accuracy"].mean(axis=0)
    return (
        f"{config.num_requests} deletions on {config.dataset}. Left: excess risk of every released "
        f"model on the database it was trained on; lines are means over {config.seeds} (fixed) and "
        f"{config.adaptive_seeds} (adaptive) seeds, bands hold 90% of seeds. The worst mean "
        f"reaches {share:.0%} of the certified bound, which holds for adaptive requesters too. "
        f"Right: held-out accuracy, {accuracy[0]:.3f} after learning and {accuracy[-1]:.3f} at the "
        f"end. Tests thm:unlearning_accuracy_convex."
    )
