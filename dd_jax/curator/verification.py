"""What `Curator.verify` recomputes, from the rows of the store and the plan alone."""

import bisect
import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from dd_jax import losses, sealed
from dd_jax.curator.receipts import Facts, Receipt, Run, compose
from dd_jax.curator.turns import PRESENT, Owner, State, bytes_of

CHECKED = (
    "the file's structure, and the digest of every row",
    "every receipt, made again from the plan, the requests and the runs, and their chain",
    "rows of deleted owners are empty or belong to others, and have no gradient",
    "the newest published model has the digest of its run",
)
UNCHECKED = (
    "the file that the rows came from, which may still hold them",
    "backups and copies of the store, of exported models and of receipts",
    "what disks keep of overwritten blocks",
    "that the noise was fresh, and that no unpublished model was shown to anybody",
    "that requests depended on published models alone, and that a deleted record did not come back "
    "under another id",
)


class Verification(NamedTuple):
    """What `Curator.verify` found.

    Attributes:
        problems: what does not hold; none if all is well.
        checked: what was recomputed. unchecked: what nobody can see from the store.
    """

    problems: tuple[str, ...]
    checked: tuple[str, ...]
    unchecked: tuple[str, ...]


def wrong_receipts(curator: Any, kept: State) -> Iterator[str]:
    """Receipts that do not follow from the store, and a broken chain."""
    requests = {row[0]: row for row in curator._store.rows("requests")}
    owners = {row[0]: Owner(*row) for row in curator._store.rows("owners")}
    rows, known = curator._store.rows("receipts"), [Run(*r) for r in curator._store.rows("runs")]
    of_run: dict[int, list] = {}
    for row in rows:
        of_run.setdefault(row[3], []).append(row)
    published = [run.number for run in known if run.published]
    head = curator.store_name
    for number, request, owner, run, places, since, text in rows:
        facts = Facts(
            curator.store_name,
            number,
            head,
            requests[request][:4],
            owners[owner].hash.hex(),
            tuple(json.loads(places)),
            since,
            known[run],
            min(other[5] for other in of_run[run]),
            tuple(published[: bisect.bisect_left(published, run)]),
            curator._seen,
        )
        head = sealed.digest(text.encode())
        if compose(curator.plan, facts).text != text:
            yield f"receipt {number} does not follow from the store"
    if head != kept.head:
        yield "the last receipt is not the one that the store ends with"


def wrong_state(curator: Any, kept: State) -> Iterator[str]:
    """Rows, owners and a published model that contradict one another."""
    null = bytes_of(losses.base.null_records(curator.problem.loss, kept.curator.database, 1), 0)
    present = {row[0] for row in curator._store.rows("owners", "status = ?", PRESENT)}
    for place, owner, *contents in curator._store.rows("records"):
        if owner is None and tuple(contents) != null:
            yield f"row {place} belongs to nobody, and is not empty"
        if owner is not None and owner not in present:
            yield f"row {place} belongs to an owner who is not present"
    last = Run(*curator._store.rows("runs")[-1])
    if (kept.release is None) == bool(last.published):
        yield "the newest model is kept as published, and was not; or the other way round"
    elif kept.release is not None and sealed.digest(kept.release) != last.model:
        yield "the newest published model does not have its digest"


def wrong_file(curator: Any, content: bytes) -> Iterator[str]:
    """What is wrong with the file of a receipt."""
    try:
        values = sealed.unpack_json(content)
    except ValueError as error:
        yield f"the file is no whole receipt: {error}"
        return
    row = curator._store.row("receipts", "number = ?", values.get("receipt"))
    if values.get("store") != curator.store_name:
        yield f"the file is a receipt of the store {values.get('store')}, not of this one"
    elif row is None or Receipt(values).text != row[-1]:
        yield "the file is not the receipt that this store issued"
