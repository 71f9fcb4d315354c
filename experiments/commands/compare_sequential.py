"""`compare --sequential`: a hundred deletions by every system, at one (ε, δ)."""

import csv
import io
import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from dd_jax import data
from dd_jax.cli.output import print_json, print_table
from dd_jax.errors import InputError

COLUMNS = ("system", "notion", "keeps", "σ²", "passes", "gradients", "accuracy", "within\na point")
OWN_NOISE = "its noise is its own"


def run(
    names: tuple[str, ...],
    *,
    epsilon: float,
    seed: int,
    results: Path,
    as_json: bool,
    say: Callable[[str], None],
) -> int:
    """Run, print and save the table of each data set; returns the exit status.

    Args:
        names: tasks of `dd_jax.data`; the quick scale's by default. The authors' data are run at
            the full scale, others at the quick one.
        epsilon: ε after every request. seed: of all randomness.
        results: folder to write to. as_json: print one JSON object.
        say: told of progress.
    """
    from experiments.figures import sequential

    scales = {sequential.FULL.dataset: sequential.FULL}
    names = names or (sequential.Config().dataset,)
    for name in names:
        if name not in data.TASKS:
            raise InputError(f"no data set {name!r}; choose from {', '.join(data.TASKS)}.")
    if not 0 < epsilon < float("inf"):
        raise InputError(f"epsilon = {epsilon:g}; give a number > 0.")
    made = []
    for name in names:
        config = replace(
            scales.get(name, sequential.Config()), dataset=name, epsilon=epsilon, seed=seed
        )
        made.append(_one(config, results, say))
    if as_json:
        print_json({"sequential": made})
    else:
        for values in made:
            _print(values)
    return 0


def _one(config, results: Path, say) -> dict[str, Any]:
    """The table of one data set as plain values, saved."""
    from experiments.cache import Runner
    from experiments.compare import save
    from experiments.figures import sequential

    arrays = sequential.compute(config, Runner(lambda text: say(f"{config.dataset}: {text}")))
    (found,) = sequential.tables(config, arrays)
    values = {
        "title": found.title,
        "config": asdict(config),
        "caption": sequential.CAPTION,
        "rows": [dict(zip(found.columns, row, strict=True)) for row in found.rows],
        "missing": {"σ²": OWN_NOISE},
    }
    text = json.dumps(values, ensure_ascii=False, indent=2, allow_nan=False) + "\n"
    contents = {"csv": _as_csv(found).encode(), "json": text.encode()}
    contents |= save.render(sequential.plot(config, arrays))
    values["files"] = save.write(results, f"sequential-{config.dataset}", contents)
    return values


def _as_csv(table) -> str:
    """One line per system; a missing value is written as its reason in square brackets."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(table.columns)
    for row in table.rows:
        writer.writerow([f"[{OWN_NOISE}]" if cell is None else cell for cell in row])
    return buffer.getvalue()


def _print(values: dict[str, Any]) -> None:
    from experiments.compare import table

    rows = []
    for row in values["rows"]:
        ends = f"({row['95% low']:.3f}, {row['95% high']:.3f})"
        cells = row | {
            "passes": f"{row['passes']:,.0f}\n({row['× Noisy-GD']:.3g} ×)",
            "accuracy": f"{row['accuracy']:.3f}\n{ends}".replace("0.", "."),
            # Broken here, so that a notion need not be broken within a word.
            "within\na point": row["within the margin"].replace(", ", ",\n"),
        }
        rows.append([cells[column] for column in COLUMNS])
    print_table(values["title"], COLUMNS, rows)
    print(
        f"-: {OWN_NOISE}. (k ×): k times those of Noisy-GD. a × b: a requests of b "
        "records, judged jointly."
    )
    print(table.wrapped(values["caption"]))
    print(f"wrote {', '.join(values['files'])}")
