"""`python -m experiments report`: every figure and table, and one page that shows them."""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from dd_jax.cli.options import Switch, Texts, require_folder
from dd_jax.cli.output import print_json, say
from dd_jax.errors import InputError
from experiments.commands import list_names

REFUTED, FAILED = 1, 3
FETCHED = ("mnist", "adult")


@dataclass(frozen=True)
class Config:
    """Make every figure and write one self-contained page, report.html, beside their data.

    Everything, in minutes; open results/report.html:
        python -m experiments report

    Two figures, with the settings of the full scale, somewhere else:
        python -m experiments report --figures two_phase audit_power --scale full --results mine

    Each figure's arrays are saved with everything that decided them: settings, versions, generator,
    device and sources. A report that is run again draws from them whatever has not changed, so that
    a killed one goes on where it stopped. A figure whose data have not been fetched becomes a card
    that says how to get them. Exit status 1: samples refuted a claim of this library. 3: a figure
    failed; the page has the others.
    """

    results: Path = Path("results")
    """Folder to write to; made if it is missing."""
    scale: Literal["quick", "full"] = "quick"
    """quick takes minutes on two cores, full about an hour; each keeps its own arrays."""
    figures: Texts = ()
    """Figures to make; all by default."""
    list: Switch = False
    """List the figures."""
    fetch: Switch = False
    """First download MNIST and Adult where they are missing; without a network, go on without."""
    recompute: Switch = False
    """Compute again what is saved, and keep no chunks of seeds."""
    json: Switch = False
    """Print one JSON object: the page, and every figure with its files or why it is missing."""


def main(config: Config) -> int:
    """Write the report and say where it is; returns the exit status."""
    from experiments import figures

    if config.list:
        return list_names("figures", list(figures.NAMES), config.json)
    figures.chosen(config.figures)
    require_folder("--results", config.results)
    start = time.monotonic()
    say("python -m experiments report: starting JAX …")
    from experiments.report import Options, write_report

    if config.fetch:
        _fetch()
    options = Options(config.results, config.scale, config.figures, config.recompute)
    with _teller() as tell:
        report = write_report(options, tell)
    values = _values(report, config.scale, time.monotonic() - start)
    if config.json:
        print_json(values)
    else:
        _print(values)
    if any(figure["status"] == "failed" for figure in values["figures"]):
        return FAILED
    return REFUTED if values["refuted"] else 0


def _fetch() -> None:
    """Get what the report shows best; one line says what could not be had."""
    from dd_jax.data import fetch

    for name in FETCHED:
        try:
            fetch.fetch(name, progress=say)
        except InputError as error:
            say(f"no {name}, so bundled data instead: {error}")
            return  # the others come from the same places


def _values(report, scale: str, seconds: float) -> dict[str, Any]:
    return {
        "page": str(report.path),
        "scale": scale,
        "seconds": round(seconds, 1),
        "refuted": [claim.words for claim in report.claims if claim.refuted],
        "figures": [
            {
                "name": made.name,
                "status": made.status,
                "seconds": made.seconds,
                "problem": made.problem,
                "command": made.command,
                "files": [str(report.path.parent / file) for file in made.files.values()],
            }
            for made in report.made
        ],
    }


def _print(values: dict[str, Any]) -> None:
    for figure in values["figures"]:
        if figure["problem"] is not None:
            print(f"{figure['name']}: {figure['status']}: {figure['problem']}")
    for words in values["refuted"]:
        print(f"REFUTED: {words}")
    print(f"wrote {values['page']} in {values['seconds']:.0f} s")


# --- progress, on standard error so that a pipe gets the result alone -----------------------------


@contextlib.contextmanager
def _teller() -> Iterator[Callable]:
    """How progress is told: a moving line on a terminal, a line for each thing elsewhere."""
    if not sys.stderr.isatty():
        yield lambda schedule, text: say(f"[{schedule.words()}] {text}")
        return
    from rich.console import Console
    from rich.live import Live
    from rich.spinner import Spinner
    from rich.text import Text

    told: list[Any] = []
    spinner = Spinner("dots")

    def line() -> Spinner:
        """Drawn several times a second, so that the clock moves while a figure computes."""
        schedule, text = told[-1] if told else (None, "looking at what is saved")
        clock = f"{schedule.words()}  " if schedule else ""
        spinner.update(text=Text(f"{clock}{text}", no_wrap=True, overflow="ellipsis"))
        return spinner

    with Live(get_renderable=line, console=Console(stderr=True), transient=True) as live:

        def tell(schedule, text: str) -> None:
            if "\n" in text:  # a traceback must not be lost
                live.console.print(text, markup=False, highlight=False)
            told[:] = [(schedule, text.splitlines()[0])]

        yield tell
