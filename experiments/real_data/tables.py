"""The tables of the real data, out of the saved arrays alone."""

import math
from collections.abc import Mapping

from dd_jax.intervals import mean_over_seeds
from experiments.page import Table
from experiments.real_data import costs
from experiments.real_data.words import (
    REPORTED_ACCURACY,
    Audited,
    cost_rows,
    fetch_command,
    measured_retraining,
    missing,
    names,
    run_names,
)


def tables(results, config, l2: Mapping[str, float]) -> list[Table]:
    """The runs, the costs and the audited claims."""
    return [_runs(results, l2), _costs(results, config), _audits(results)]


def _runs(results, l2: Mapping[str, float]) -> Table:
    columns = (
        "data",
        "n",
        "d",
        "λ",
        "ε_dp (δ = 1/n)",
        "ε_dd (δ = 1/n)",
        "seeds",
        "deletions",
        "accuracy learned",
        "accuracy at the end",
        "95% interval",
        "always one class",
        "reported by Langevin",
        "excess risk at the end",
        "certified",
    )
    rows: list[tuple] = []
    for name in run_names(results):
        accuracy = results[f"{name}: accuracy"]
        last = mean_over_seeds(accuracy[:, -1], 0.95)
        n, dim, _ = (int(value) for value in results[f"{name}: size"])
        rows.append(
            (
                name,
                n,
                dim,
                l2[name],
                *(float(value) for value in results[f"{name}: epsilon"]),
                len(accuracy),
                accuracy.shape[1] - 1,
                float(accuracy[:, 0].mean()),
                float(last.value),
                f"{last.low:.4f} to {last.high:.4f}",
                float(results[f"{name}: majority"]),
                REPORTED_ACCURACY.get(name, {}).get("Langevin"),
                float(results[f"{name}: risk"][:, -1].mean()),
                float(results[f"{name}: risk bound"][-1]),
            )
        )
    for name in missing(names(results), l2):
        rows.append((f"{name}: run `{fetch_command(name)}`", *[None] * (len(columns) - 1)))
    return Table("Runs, at the Rényi divergence ε_dp/2 after a deletion", columns, rows)


def _costs(results, config) -> Table:
    columns = (
        "data",
        "what may remain",
        "K_U",
        "K_U, paper",
        "K_U, paper with its risk",
        "Langevin, first",
        "Langevin, mean",
        "retraining",
        "retraining / K_U",
        "retraining to the last bound",
        "… / K_U",
        "retraining as measured",
        "gradients",
        "gradients, paper",
        "gradients, Langevin",
        "gradients, retraining",
    )
    rows = []
    for name in names(results):
        n = int(results[f"{name}: size"][0])
        for words, cost in cost_rows(results, name, config.epsilon):

            def total(learn, delete, n=n):
                return _known(n * (learn + config.deletions * delete))

            rows.append(
                (
                    name,
                    words,
                    int(cost.delete),
                    _known(cost.paper_delete),
                    _known(cost.paper_delete_risk),
                    cost.langevin_first,
                    cost.langevin,
                    int(cost.retrain),
                    cost.retrain / cost.delete,
                    int(cost.retrain_last),
                    cost.retrain_last / cost.delete,
                    _known(measured_retraining(results, name)),
                    total(cost.learn, cost.delete),
                    total(cost.paper_learn, cost.paper_delete),
                    total(cost.learn, cost.langevin),
                    total(cost.learn, cost.retrain),
                )
            )
    title = (
        f"Steps (passes over the data) for one deletion, and gradients of single records to learn "
        f"and serve {config.deletions} deletions"
    )
    return Table(title, columns, rows)


def _known(value: float) -> float | None:
    return None if math.isnan(value) else float(value)


def _audits(results) -> Table:
    columns = (
        "claim",
        "certified",
        "exact",
        "audited",
        "verdict",
        "would have caught",
        "certified ε",
        "audited ε",
        "seeds",
    )
    rows = []
    for name in run_names(results):
        for row, values in enumerate(results[f"{name}: audit"]):
            found = Audited(*(float(value) for value in values))
            rows.append(
                (
                    f"{name}: {'record deleted' if row else 'one release, record stays'}",
                    found.certified,
                    None,
                    found.audited,
                    "refuted" if found.refuted else "consistent",
                    found.detectable if math.isfinite(found.detectable) else "nothing",
                    found.certified_epsilon,
                    found.audited_epsilon,
                    int(found.seeds),
                )
            )
    unit = f"Rényi divergence of order {costs.ORDER:g}"
    return Table(f"Audits, each number a {unit} unless it is an ε", columns, rows, unit)
