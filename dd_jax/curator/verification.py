"""What `Curator.verify` recomputes, from the rows of the store and the plan alone."""

import bisect
import json
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

from dd_jax import losses, sealed
from dd_jax.curator.receipts import Facts, Receipt, Run, compose, rows_judged
from dd_jax.curator.store import DELETED, HELD_OUT, PRESENT
from dd_jax.curator.turns import Owner, State, bytes_of, joint_of, versions

CHECKED = (
    "the file's structure, and the digest of every row",
    "every receipt, made again from the plan, the requests and the runs, and their chain; the "
    "receipts of a run are about as many rows as it edited",
    "owners are present or deleted as their last receipts say, deleted ones have no row, and rows "
    "of nobody are empty",
    "the newest published model has the digest of its run, and all together keep the limit",
)
UNCHECKED = (
    "the file that the rows came from, which may still hold them",
    "backups and copies of the store, of exported models and of receipts",
    "what disks keep of overwritten and freed blocks",
    "that the noise was fresh, and that no unpublished model was shown to anybody",
    "that the store was never exchanged for an earlier copy of it, which knows fewer releases",
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


# What the plan and the library say of the facts; the rest of a receipt is the facts themselves.
_COMPUTED = {"bound", "certificate", "promised", "not promised"}


def wrong_receipts(curator: Any, kept: State) -> tuple[list[str], list[int]]:
    """Receipts that do not follow from the store, and a broken chain.

    Also the numbers of receipts of other versions of the programs, whose facts are right and about
    which these versions say something else.
    """
    wrong, others = [], []
    requests = {row[0]: row for row in curator._store.rows("requests")}
    owners = {row[0]: Owner(*row) for row in curator._store.rows("owners")}
    rows, known = curator._store.rows("receipts"), [Run(*r) for r in curator._store.rows("runs")]
    of_run: dict[int, list] = {}
    stays: dict[int, list[list[int]]] = {}
    first, judged = {}, {}
    for row in rows:
        first.setdefault(row[2], row[3])
        of_run.setdefault(row[3], []).append(row)
        stays.setdefault(row[2], []).append(json.loads(row[4]))
        judged[row[0]] = rows_judged(curator.plan, stays[row[2]])
    since = {owner: owners[owner].since for owner in first}
    for owner, run in first.items():
        # Whoever is not of the first file came in with the first receipt.
        if since[owner] not in (0, run):
            wrong.append(f"the time of owner {owner} does not count from the first insertion")
            since[owner] = 0
    for run in known[1:]:
        if run.rows != sum(len(json.loads(row[4])) for row in of_run.get(run.number, ())):
            wrong.append(f"run {run.number} edited other rows than its receipts say")
    published = [run.number for run in known if run.published]
    head = curator.store_name
    for number, request, owner, run, places, text in rows:
        facts = Facts(
            curator.store_name,
            number,
            head,
            requests[request][:4],
            owners[owner].hash.hex(),
            tuple(json.loads(places)),
            since[owner],
            known[run],
            min(since[other[2]] for other in of_run[run]),
            judged[number],
            sum(judged[other[0]] for other in of_run[run]),
            tuple(published[: bisect.bisect_left(published, run)]),
            curator._seen,
        )
        head = sealed.digest(text.encode())
        made = compose(curator.plan, facts)
        if made.text == text:
            continue
        odd = _differing(made.values, json.loads(text))
        if odd and odd <= _COMPUTED and known[run].versions != versions():
            others.append(number)
        elif odd:
            wrong.append(f"receipt {number} does not follow from the store")
    if head != kept.head:
        wrong.append("the last receipt is not the one that the store ends with")
    return wrong, others


def _differing(one: Any, other: Any) -> set[str]:
    """The keys under which two receipts differ by more than another processor's rounding."""
    return {key for key in one.keys() | other.keys() if not _agree(one.get(key), other.get(key))}


def _agree(one: Any, other: Any) -> bool:
    if isinstance(one, dict) and isinstance(other, dict):
        return not _differing(one, other)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_agree, one, other))
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-9)
    return one == other


def wrong_state(curator: Any, kept: State) -> Iterator[str]:
    """Rows, owners and a published model that contradict one another."""
    null = bytes_of(losses.base.null_records(curator.problem.loss, kept.curator.database, 1), 0)
    runs = [Run(*row) for row in curator._store.rows("runs")]
    last_kind = {row[2]: runs[row[3]].kind for row in curator._store.rows("receipts")}
    with_rows = set()
    for place, owner, *contents in curator._store.rows("records"):
        if owner is None and tuple(contents) != null:
            yield f"row {place} belongs to nobody, and is not empty"
        with_rows.add(owner)
    for owner in (Owner(*row) for row in curator._store.rows("owners")):
        kind = last_kind.get(owner.number)
        expected = DELETED if kind == "delete" else HELD_OUT if owner.since < 0 else PRESENT
        if owner.status != expected:
            yield f"owner {owner.number} is {owner.status}, and should be {expected}"
        if (owner.number in with_rows) != (expected == PRESENT):
            yield f"owner {owner.number} should have {'rows' if expected == PRESENT else 'no row'}"
    last = runs[-1]
    if (kept.release is None) == bool(last.published):
        yield "the newest model is kept as published, and was not; or the other way round"
    elif kept.release is not None and sealed.digest(kept.release) != last.model:
        yield "the newest published model does not have its digest"
    joint = joint_of(curator.plan, [run.number for run in runs if run.published])
    # Another version may have computed it, with other rounding.
    if curator._limit is not None and joint > curator._limit * (1 + 1e-9):
        yield f"what was published is {joint:.6g} together, above the limit {curator._limit:.6g}"


def wrong_file(curator: Any, content: bytes) -> Iterator[str]:
    """What is wrong with the file of a receipt."""
    try:
        values = sealed.unpack_json(content)
    except ValueError as error:
        yield f"the file is no whole receipt: {error}"
        return
    if values.get("store") != curator.store_name:
        yield f"the file is a receipt of the store {values.get('store')!r}, not of this one"
    elif Receipt(values).text not in {row[-1] for row in curator._store.rows("receipts")}:
        yield "the file is not a receipt that this store issued"
