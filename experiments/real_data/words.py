"""What the saved arrays of the real data say: numbers that are read off them, and the caption."""

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from dd_jax import data
from dd_jax.audit.settings.base import Judged
from dd_jax.guarantees import renyi
from experiments.real_data import costs

# Accuracies in the authors' stored results at ε = 1 after one record was replaced: Langevin with
# one step, Perturbed-GD (secret state) with one step. Their λ, features and notion, not ours.
REPORTED_ACCURACY = {
    "mnist-3-vs-8": {"Langevin": 0.911, "Perturbed-GD": 0.597},
    "cifar-cat-vs-ship": {"Langevin": 0.984, "Perturbed-GD": 0.603},
}
# Learning counts as arrived when its mean risk is within this factor of that after the deletions.
ARRIVED = 1.1
CONSTANT_RISK = math.log(2)


class Audited(NamedTuple):
    """What an audit says of one claim, as numbers.

    Attributes:
        certified, audited: Rényi divergences of order `costs.ORDER`.
        certified_mu, audited_mu: of Gaussian DP. certified_epsilon, audited_epsilon: at δ = 1/n.
        detectable: the least divergence that is refuted nine times in ten; infinity if none is.
        refuted: 0 or 1. seeds: per world.
    """

    certified: float
    audited: float
    certified_mu: float
    audited_mu: float
    certified_epsilon: float
    audited_epsilon: float
    detectable: float
    refuted: float
    seeds: float

    @classmethod
    def of(cls, judged: Judged, delta: float) -> "Audited":
        """Read from a verdict; its bound is one on μ (`through_mu`)."""
        certified, audited = judged.case.claim.claimed, judged.numbers.lower_bound.value
        certified_mu, audited_mu = (
            math.sqrt(2 * eps / costs.ORDER) for eps in (certified, audited)
        )
        caught = judged.verdict.detectable
        return cls(
            certified=certified,
            audited=audited,
            certified_mu=certified_mu,
            audited_mu=audited_mu,
            certified_epsilon=renyi.gdp_epsilon(certified_mu, delta),
            audited_epsilon=renyi.gdp_epsilon(audited_mu, delta),
            detectable=math.inf if caught is None else caught,
            refuted=float(judged.verdict.refuted),
            seeds=judged.seeds,
        )


def names(results: Mapping[str, np.ndarray]) -> list[str]:
    """The data sets that are there."""
    return [key.removesuffix(": size") for key in results if key.endswith(": size")]


def run_names(results: Mapping[str, np.ndarray]) -> list[str]:
    """Those that were run at this scale; of the others only the costs are known."""
    return [name for name in names(results) if f"{name}: accuracy" in results]


def missing(present: list[str], known: Mapping[str, Any]) -> list[str]:
    """The data sets that can be fetched and are not there."""
    fetched = [name for name in known if data.TASKS[name].needs is not None]
    return [name for name in fetched if name not in present]


def fetch_command(name: str) -> str:
    """What gets a data set."""
    return f"dd-jax data fetch {data.TASKS[name].needs}"


def measured_retraining(results, name: str) -> float:
    """The fewest steps, among the checkpoints, after which learning from scratch has arrived at the
    mean risk that the releases after deletions have; infinity where it does not, NaN without runs.
    """
    if f"{name}: risk" not in results:
        return math.nan
    target = ARRIVED * results[f"{name}: risk"][:, 1:].mean()
    arrived = results[f"{name}: learning risk"].mean(axis=0) <= target
    steps = results[f"{name}: checkpoints"]
    return float(steps[np.argmax(arrived)]) if arrived.any() else math.inf


def cost_rows(results, name: str, epsilon: float) -> Iterator[tuple[str, costs.Cost]]:
    """(words of the target, cost) for every target."""
    targets = costs.targets(epsilon, int(results[f"{name}: size"][0]))
    for target, found in zip(targets, results[f"{name}: costs"], strict=True):
        yield target.words, costs.Cost(*(float(value) for value in found))


def caption(results, config, l2: Mapping[str, float], confidence: float) -> str:
    """What to see, with the numbers of this run."""
    return "\n".join(
        (
            f"Logistic regression on real data, unit-norm rows, one release ({config.epsilon:g}, "
            f"1/n)-DP by exact Gaussian DP; deletions of one record each, run so that at most half "
            f"of the Rényi divergence ε_dp remains of a deleted record, whatever the order. The "
            f"choice of λ is not covered by any certificate. Lines are means, bands hold 90% of "
            f"seeds.",
            *(_one_run(results, name) for name in run_names(results)),
            *_not_run_in_words(results),
            _costs_in_words(results, config),
            *_audits_in_words(results, confidence),
            _reported_in_words(results),
            *_missing_in_words(results, l2),
            "Tests thm:unlearning_accuracy_convex and thm:data_deletion_convex.",
        )
    )


def _one_run(results, name: str) -> str:
    accuracy = results[f"{name}: accuracy"]
    risk = results[f"{name}: risk"].mean(axis=0).max()
    bound = results[f"{name}: risk bound"].max()
    met = "within" if risk <= bound else "ABOVE"
    useless = " (says nothing: θ = 0 has at most log 2)" if bound >= CONSTANT_RISK else ""
    return (
        f"{name}: accuracy {accuracy[:, 0].mean():.3f} after learning and "
        f"{accuracy[:, -1].mean():.3f} after {accuracy.shape[1] - 1} deletions ({len(accuracy)} "
        f"seeds; always one class: {float(results[f'{name}: majority']):.3f}); the largest mean "
        f"excess risk is {risk:.3g}, {met} the certified {bound:.3g}{useless}."
    )


def _not_run_in_words(results) -> Iterator[str]:
    waiting = [name for name in names(results) if name not in run_names(results)]
    if waiting:
        yield (
            f"Costs alone, run at the full scale (`python -m experiments report --scale full "
            f"--figures real_data`): {', '.join(waiting)}."
        )


def _costs_in_words(results, config) -> str:
    parts = []
    for name in names(results):
        found = dict(cost_rows(results, name, config.epsilon))
        ratios = (f"{c.retrain / c.delete:.1f}× ({w})" for w, c in found.items())
        arrives = measured_retraining(results, name)
        measured = (
            ""
            if math.isnan(arrives)
            else f", and learning arrives as measured after {arrives:.0f} steps, where a deletion "
            f"takes {next(iter(found.values())).delete:.0f}"
        )
        parts.append(f"{name} {', '.join(ratios)}{measured}")
    return (
        f"Third panel: steps for one deletion. Retraining is learning from scratch, with the same "
        f"noise, until its certified excess risk is the bound that every release has: the bound is "
        f"for the worst data. Real runs arrive sooner, without a certificate (within "
        f"{ARRIVED - 1:.0%} of the mean risk after deletions). Retraining over a deletion: "
        f"{'; '.join(parts)}. The paper's steps are for the deletion alone; Langevin's are for "
        f"closeness to retraining at the same σ² and the same (ε, δ)."
    )


def _audits_in_words(results, confidence: float) -> Iterator[str]:
    audited = [name for name in run_names(results) if len(results[f"{name}: audit"])]
    if audited:
        rows = [Audited(*row) for name in audited for row in results[f"{name}: audit"]]
        refuted = sum(row.refuted for row in rows)
        verdict = f"{refuted:.0f} REFUTED" if refuted else "none is refuted"
        yield (
            f"Fourth panel: {len(rows)} claims audited with a record made to be told from its "
            f"neighbour, {confidence:.0%} confidence in all lower bounds together: {verdict}. A "
            f"bound on μ of 0 says that the seeds were too few to show anything."
        )
    silent = [name for name in run_names(results) if name not in audited]
    if silent:
        yield f"Not audited at this scale: {', '.join(silent)}."


def _reported_in_words(results) -> str:
    parts = [
        f"{name} {found['Langevin']:.3f} (Langevin), {found['Perturbed-GD']:.3f} (Perturbed-GD)"
        for name, found in REPORTED_ACCURACY.items()
        if name in run_names(results)
    ]
    if not parts:
        return "The peers report no accuracy for the data that were run."
    photographs = (
        " Their photographs are seen through a pretrained network, ours through random filters."
        if "cifar-cat-vs-ship" in run_names(results)
        else ""
    )
    return (
        f"Marks at 1: accuracies in the peers' stored results at ε = 1 after one record was "
        f"replaced, with their own features, λ and notion of unlearning: {'; '.join(parts)}."
        f"{photographs}"
    )


def _missing_in_words(results, l2: Mapping[str, float]) -> Iterator[str]:
    for name in missing(names(results), l2):
        yield f"{name} is not there: run `{fetch_command(name)}`."
