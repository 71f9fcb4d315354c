"""`python -m experiments compare`: every system on the same records, streams and adversaries."""

import sys
import time
from dataclasses import dataclass
from pathlib import Path

import tyro

from dd_jax.cli.output import print_json, print_table
from dd_jax.errors import InputError

Switch = tyro.conf.FlagCreatePairsOff[bool]
NAME = "compare"


@dataclass(frozen=True)
class Config:
    """Compare Noisy-GD with retraining, Perturbed-GD, SISA, certified removal and the others.

    For each data set: what every system claims and keeps in secret, what a request costs, how good
    the model is, and what three adversaries get of a deleted record: one that sees one release, one
    that sees many, one that designed the requester. Writes compare.csv, compare.json and the
    figure compare.png, .svg and .pdf. Exit status 1: a data-deletion certificate of this library
    was refuted.
    """

    data: tuple[str, ...] = ()
    """Data sets: tasks of `dd-jax data`, or synthetic; digits-3-vs-8 and breast-cancer by
    default."""
    systems: tuple[str, ...] = ()
    """Systems to compare, all of them by default."""
    list: Switch = False
    """List the systems."""
    sequential: Switch = False
    """A hundred deletions by every system instead: what they cost in all, at which accuracy.
    Writes sequential-DATA.csv and so on; takes --data, --epsilon, --seed and --results."""
    epsilon: float = 1.0
    """ε, the target for a deleted record."""
    delta: float = 1e-5
    """δ, the same."""
    seeds: int = 500
    """Interactions in each world; systems with costly requests get fewer."""
    records: int = 256
    """n, records of each data set, the target included."""
    l2: float = 0.1
    """λ, the L2 constant."""
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
    if config.results.exists() and not config.results.is_dir():
        raise InputError(f"--results {config.results} is a file; name a folder.")
    if config.sequential:
        return _sequential(config)
    say("python -m experiments compare: starting JAX …")
    from experiments.compare import contestants, measure, plot, row, save, table, values
    from experiments.compare.scene import DEFAULT_DATA
    from experiments.compare.scene import Config as Arena

    if config.list:
        return _list(list(contestants.CONTESTANTS), config.json)
    contestants.find(config.systems)
    arena = Arena(
        data=config.data or DEFAULT_DATA,
        systems=config.systems,
        epsilon=config.epsilon,
        delta=config.delta,
        seeds=config.seeds,
        records=config.records,
        l2=config.l2,
        confidence=config.confidence,
        seed=config.seed,
    )
    start = time.monotonic()
    compared = measure.run(arena, say)
    rows = compared.rows
    found = values.to_json(arena, compared, time.monotonic() - start, plot.caption(rows))
    contents = {"csv": values.to_csv(compared).encode(), "json": values.json_text(found).encode()}
    files = save.write(config.results, NAME, {**contents, **save.render(plot.plot(rows))})
    if config.json:
        print_json({**found, "files": files})
    else:
        for name in arena.data:
            _print(name, [row for row in rows if row.data == name], table)
            print("".join(f"{line}\n" for line in table.left_out(compared.left_out, name)), end="")
        print("\n".join(map(table.wrapped, _legend(arena))))
        print(table.wrapped(found["caption"]))
        print(f"{found['seconds']:.0f} s; wrote {', '.join(files)}")
    ours = [row for row in rows if row.guarantee.notion == "data-deletion"]
    return int(any(one.verdict(k) == row.BEYOND for one in ours for k in range(3)))


def _sequential(config: Config) -> int:
    own = ("systems", "delta", "seeds", "records", "l2", "confidence", "list")
    for name in own:
        if getattr(config, name) != getattr(Config, name):
            raise InputError(f"--{name} is for the arena; leave it out with --sequential.")
    from experiments.commands import compare_sequential

    return compare_sequential.run(
        config.data,
        epsilon=config.epsilon,
        seed=config.seed,
        results=config.results,
        as_json=config.json,
        say=say,
    )


def say(text: str) -> None:
    """Progress goes to standard error, so that a pipe gets the result alone."""
    print(text, file=sys.stderr, flush=True)


def _list(names: list[str], as_json: bool) -> int:
    if as_json:
        print_json({"systems": names})
    else:
        print("\n".join(names))
    return 0


def _print(name: str, rows: list, table) -> None:
    print_table(f"{name}: promised, and kept to do so", table.PROMISED, table.promised(rows))
    print_table(f"{name}: a request, and the model after it", table.COSTS, table.costs(rows))
    print_table(f"{name}: advantage against the deleted record", table.SEEN, table.seen(rows))
    print("\n".join((*table.footnotes(rows), *table.notes(rows))))


def _legend(arena) -> list[str]:
    return [
        f"Target ε = {arena.epsilon:g}, δ = {arena.delta:g}; n = {arena.records} with the target; "
        f"λ = {arena.l2:g}.",
        "gradients, Hess.: per-record gradients and Hessians of the mean request of a stream of "
        f"{arena.stream} deletions; ratio: gradients of learning over those.",
        "advantage: value (limits); all limits hold together with probability "
        f"{arena.confidence:g}. claim: the most that the system's own claim allows. "
        "!: beyond its claim. *: above 0 where nothing is claimed. **: and above what the claim "
        "allows one release.",
    ]
