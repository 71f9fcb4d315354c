"""`python -m experiments compare`: every system on the same records, streams and adversaries."""

import csv
import io
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from dd_jax import checks
from dd_jax.cli.options import Switch, Texts, require_folder
from dd_jax.cli.output import print_json, print_table, say
from dd_jax.errors import InputError
from experiments.commands import list_names

# Options that `experiments.compare.scene.Config` has under the same names.
SHARED = ("systems", "quick", "epsilon", "delta", "seeds", "records", "l2", "confidence", "seed")
NOT_SEQUENTIAL = ("systems", "quick", "delta", "seeds", "records", "l2", "confidence", "list")


@dataclass(frozen=True)
class Config:
    """Compare Noisy-GD with retraining, Perturbed-GD, SISA, certified removal and the others.

    For each data set: what every system claims and keeps in secret, what a request costs, how good
    the model is, and what three adversaries learn about a deleted record: one that sees one
    release, one that sees many, one that designed the requester. Writes compare.csv, compare.json
    and the figure compare.png, .svg and .pdf. Exit status 1: a data-deletion certificate of this
    library was refuted.
    """

    data: Texts = ()
    """Data sets: tasks of `dd-jax data`, or synthetic; by default mnist-3-vs-8 and adult, those of
    them that were fetched, and without any digits-3-vs-8 and breast-cancer."""
    quick: Switch = False
    """The first 2,000 records at most, unless --records is given, and a tenth of the work."""
    systems: Texts = ()
    """Systems to compare, all of them by default."""
    list: Switch = False
    """List the systems."""
    sequential: Switch = False
    """Instead: a hundred deletions by every system, their total cost and their accuracy.
    Writes sequential-DATA.csv and so on; takes --data, --epsilon, --seed and --results."""
    epsilon: float = 1.0
    """The target ε for a deleted record."""
    delta: float = 1e-5
    """The target δ, the same."""
    seeds: int = 250
    """Interactions in each world; systems with costly requests get fewer."""
    records: int | None = None
    """Number of records n of each data set, including the target; all of them by default."""
    l2: float | None = None
    """The L2 constant λ; 0.008 by default, 0.003 on adult."""
    confidence: float = 0.95
    """Confidence of all advantages of the table together."""
    seed: int = 0
    """Seed of all randomness."""
    results: Path = Path("results")
    """Folder to write to; made if it is missing."""
    json: Switch = False
    """Print one JSON object."""


def main(config: Config) -> int:
    """Compare, save and print; returns the exit status."""
    require_folder("--results", config.results)
    if config.sequential:
        return _sequential(config)
    say("python -m experiments compare: starting JAX …")
    from experiments.compare import measure, scene, systems, table

    if config.list:
        return list_names("systems", list(systems.CONTESTANTS), config.json)
    systems.find(config.systems)
    shared = {name: getattr(config, name) for name in SHARED}
    chosen = scene.Config(data=config.data or scene.default_data(), **shared)
    start, spent = time.monotonic(), time.process_time()
    found = measure.run(chosen, say)
    values = table.to_json(chosen, found, time.monotonic() - start, time.process_time() - spent)
    csv_text, figure = table.to_csv(found), table.plot(found.rows)
    files = table.write(config.results, "compare", table=csv_text, values=values, figure=figure)
    if config.json:
        print_json({**values, "files": files})
    else:
        for name in chosen.data:
            rows = [row for row in found.rows if row.data == name]
            if not rows:
                continue
            for title, columns, lines, _ in table.printed(rows):
                print_table(f"{name}: {title}", columns, lines)
            print(table.problem(chosen, rows))
            below = (table.footnotes(rows), table.notes(rows), table.left_out(found.left_out, name))
            print("\n".join(line for lines in below for line in lines))
        print("\n".join((*table.legend(chosen), table.wrapped(table.CAPTION))))
        print(f"Data-deletion refuted: {', '.join(values['refuted']) or 'nowhere'}.")
        times = f"{values['seconds']:.0f} s, {values['cpu_seconds']:.0f} s of processor time"
        print(f"{times}; wrote {', '.join(files)}")
    return int(bool(values["refuted"]))


# --- a hundred deletions --------------------------------------------------------------------------

COLUMNS = ("system", "notion", "keeps", "σ²", "passes", "gradients", "accuracy", "within\na point")
OWN_NOISE = "this system sets its own noise"


def _sequential(config: Config) -> int:
    """Run, print and save the table of each data set.

    The authors' data are run at the full scale of the figure, others at the quick one.
    """
    for name in NOT_SEQUENTIAL:
        if getattr(config, name) != getattr(Config, name):
            raise InputError(f"--{name} is for single deletions; leave it out with --sequential.")
    from experiments.compare.scene import TASKS
    from experiments.figures import sequential

    quick, full = sequential.Config(), sequential.FULL
    names = config.data or (quick.dataset,)
    for name in names:
        if name not in TASKS:
            raise InputError(f"no data set {name!r}; choose from {', '.join(TASKS)}.")
    checks.positive("epsilon", config.epsilon)
    made = [
        _stream(
            replace(
                full if name == full.dataset else quick,
                dataset=name,
                epsilon=config.epsilon,
                seed=config.seed,
            ),
            config.results,
        )
        for name in names
    ]
    if config.json:
        print_json({"sequential": made})
    else:
        for values in made:
            _print_stream(values)
    return 0


def _stream(config, results: Path) -> dict[str, Any]:
    """The table of one data set as plain values, saved."""
    from experiments.cache import Runner
    from experiments.compare import table
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
    # A missing value is written as its reason in square brackets.
    lines = [[f"[{OWN_NOISE}]" if cell is None else cell for cell in row] for row in found.rows]
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerows([found.columns, *lines])
    values["files"] = table.write(
        results,
        f"sequential-{config.dataset}",
        table=buffer.getvalue(),
        values=values,
        figure=sequential.plot(config, arrays),
    )
    return values


def _print_stream(values: dict[str, Any]) -> None:
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
        f"-: {OWN_NOISE}. (k ×): k times those of Noisy-GD. a × b: a requests of b records, "
        f"judged jointly."
    )
    print(table.wrapped(values["caption"]))
    print(f"wrote {', '.join(values['files'])}")
