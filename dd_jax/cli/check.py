"""`dd-jax check`: are the files that this program wrote whole, and is a private row in any file?"""

import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from dd_jax.cli.options import MaybePath, Switch
from dd_jax.cli.output import BAD_INPUT, count, print_json, print_table

_MOST_NAMED = 5


@dataclass(frozen=True)
class Config:
    """Verify every file that this program wrote below a folder; look for private rows in all files.

    Results, sweeps, reports and curators, the folder of data sets and that of compiled programs
    (~/.cache/dd_jax): every file carries a digest of its bytes, and each damaged one is named.
    Nothing is changed.

        dd-jax check results

    With --record, every file is searched for rows: as text, float16, float32 and float64, also
    where they are packed. First they are looked for in planted copies, so that you see that they
    can be found:

        dd-jax check results --record private.csv

    Exit status 2: a file is damaged or cannot be searched, or a row was found.
    """

    folder: tyro.conf.Positional[Annotated[Path, tyro.conf.arg(metavar="FOLDER")]] = Path("results")
    """The folder; all folders below it are looked at too."""
    record: MaybePath = None
    """CSV or NPZ file with the rows to look for; the numbers of one row are enough."""
    json: Switch = False
    """Print one JSON object."""


def main(config: Config) -> int:
    """Verify, search and print; returns the exit status."""
    from dd_jax.cli import verifying  # here and below, so that help does not wait for them

    verified = verifying.verify(config.folder)
    values: dict[str, Any] = {
        "folder": str(config.folder),
        "whole": dict(Counter(seen.kind for seen in verified.seen if seen.damage is None)),
        "damaged": [seen._asdict() for seen in verified.damaged],
        "others": verified.others,
        "unfinished": verified.unfinished,
    }
    if config.record is not None:
        values["record"] = _search(config.folder, config.record)
    if config.json:
        print_json(values)
    else:
        _print(values)
    record = values.get("record", {})
    return BAD_INPUT if values["damaged"] or record.get("found") or record.get("unread") else 0


def _search(folder: Path, record: Path) -> dict[str, Any]:
    from dd_jax import files
    from dd_jax.cli import scanning, verifying

    rows = scanning.read_rows(record)
    control = scanning.scan_control(rows)
    prepared = scanning.Rows(rows)
    found, unread, searched = [], [], 0
    for place, below, names in sorted(os.walk(folder)):
        for name in sorted(below):
            reason = verifying.not_entered(Path(place, name), folder)
            if reason is not None:
                file = os.path.relpath(Path(place, name), folder)
                unread.append({"file": file, "reason": reason})
        for name in sorted(names):
            path = Path(place, name)
            seen_elsewhere = path.is_symlink() and verifying.leads_inside(path, folder)
            if seen_elsewhere or not path.is_file() or path.samefile(record):
                continue
            searched += 1
            try:
                hits = prepared.hits(files.read(path))
            except (OSError, scanning.Unreadable) as error:
                unread.append({"file": str(path.relative_to(folder)), "reason": str(error)})
                continue
            if hits:
                found.append(
                    {
                        "file": str(path.relative_to(folder)),
                        "rows": sorted({hit.row for hit in hits}),
                        "forms": sorted({hit.form for hit in hits}),
                    }
                )
    return {
        "rows": len(rows),
        "control": control,
        "files": searched,
        "found": found,
        "unread": unread,
    }


def _print(values: dict[str, Any]) -> None:
    damaged = Counter(seen["kind"] for seen in values["damaged"])
    kinds = sorted({*values["whole"], *damaged})
    lines = [(kind, values["whole"].get(kind, 0), damaged[kind]) for kind in kinds]
    print_table(f"Files of this program in {values['folder']}", ("kind", "whole", "damaged"), lines)
    for seen in values["damaged"]:
        print(f"DAMAGED: {seen['file']}: {seen['damage']}")
    for name, what in (
        ("others", "without a digest, of other programs or earlier versions"),
        ("unfinished", "left by writers that were killed or still run"),
    ):
        if values[name]:
            named = ", ".join(values[name][:_MOST_NAMED])
            more = ", …" if len(values[name]) > _MOST_NAMED else ""
            print(f"{count(len(values[name]), 'file')} {what}: {named}{more}")
    if "record" in values:
        _print_search(values["record"])


def _print_search(record: dict[str, Any]) -> None:
    control = ", ".join(f"{form} {found}" for form, found in record["control"].items())
    print(
        f"{count(record['rows'], 'row')} to look for; found in planted copies: {control}; "
        f"changed by a thousandth: none"
    )
    for one in record["found"]:
        rows = ", ".join(map(str, one["rows"][:_MOST_NAMED]))
        more = f" and {len(one['rows']) - _MOST_NAMED:,} more" * (len(one["rows"]) > _MOST_NAMED)
        print(f"FOUND: {one['file']}: row {rows}{more} as {', '.join(one['forms'])}")
    for one in record["unread"]:
        print(f"NOT SEARCHED: {one['file']}: {one['reason']}")
    print(f"{count(record['files'], 'file')} searched, {len(record['found'])} with a row")
