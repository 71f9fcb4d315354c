"""`dd-jax report`: every figure and table, and one page that shows them."""

import sys
import time
from dataclasses import dataclass
from pathlib import Path

from dd_jax.cli.output import print_json
from dd_jax.errors import InputError


@dataclass(frozen=True)
class Config:
    """Compute every figure at quick scale and write one self-contained page beside its data."""

    results: Path = Path("results")
    """Folder to write to; made if it is missing."""
    figures: tuple[str, ...] = ()
    """Figures to make; all by default."""
    json: bool = False
    """Print one JSON object that names the page."""


def main(config: Config) -> int:
    """Write the report and say where it is."""
    if config.results.exists() and not config.results.is_dir():
        raise InputError(f"--results {config.results} is a file; name a folder.")
    start = time.monotonic()
    print("dd-jax report: starting JAX …", file=sys.stderr)
    from experiments.report import write_report

    page = write_report(config.results, lambda text: print(text, file=sys.stderr), config.figures)
    if config.json:
        print_json({"page": str(page), "seconds": round(time.monotonic() - start, 1)})
    else:
        print(f"wrote {page} in {time.monotonic() - start:.0f} s")
    return 0
