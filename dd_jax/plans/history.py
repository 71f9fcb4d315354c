"""What transcripts say about one deletion; refused where they do not support a certificate.

Transcripts are read with NumPy alone: a transcript is any object with the fields of
`dd_jax.Transcript`.
"""

from typing import Any, NamedTuple

import numpy as np

from dd_jax import checks
from dd_jax.errors import CertificateRefused, InputError
from dd_jax.guarantees import schedules


class Deletion(NamedTuple):
    """What happened to one row, as the transcripts have it.

    Attributes:
        first_inserted: 0, or the request that first inserted the record.
        observed: the releases that the requester was shown before the deletion.
        rows: how many rows the deleting request edited.
        batches: how many batches the record was written into, as far as the transcripts hold it.
        rewritten: the next request that changed the row, and so may have brought the record back,
            or that wrote the same record into another row.
    """

    first_inserted: int
    observed: tuple[int, ...]
    rows: int
    batches: int
    rewritten: int | None


class _Served(NamedTuple):
    """One request: the rows it names, what it left as it was, what had to be projected."""

    index: np.ndarray
    unchanged: np.ndarray
    features_unchanged: np.ndarray | None
    projected: int
    seen: bool
    records: list[bytes] | None  # what was written, where the transcript still holds it

    def written(self, row: int) -> bytes | None:
        """What the request wrote into this row."""
        mentions = np.flatnonzero(self.index == row)
        return self.records[mentions[0]] if self.records and mentions.size else None


def read_deletion(plan, transcripts, request, row, first_inserted) -> Deletion:
    """The deletion of a row by a request; `Plan.certify` has the conditions."""
    request = checks.whole("request", request, least=1)
    row = checks.whole("row", row, least=0)
    served = _all_requests(plan, transcripts)
    if request > len(served):
        raise CertificateRefused(
            f"request {request} is not in the transcripts, which hold {len(served)} requests; "
            f"count requests from 1 over all transcripts, and give all of them."
        )
    if row >= plan.n:
        raise CertificateRefused(
            f"row {row} is out of range, so its replacement was rejected; rows run from 0 to "
            f"{plan.n - 1}."
        )
    until = served[:request]
    _require_deletion(until, row)
    _require_domain(until)
    if plan.protects == "label":
        _require_labels_only(until, plan.n)
    observed = tuple(release for release, event in enumerate(until) if event.seen)
    first = _first_inserted(until, row, first_inserted)
    rows, batches = until[-1].index.size, _batches(plan, until[:-1], row)
    return Deletion(first, observed, rows, batches, _rewritten(served, request, row))


def _all_requests(plan, transcripts) -> list[_Served]:
    """The requests of all transcripts, which follow one another from the start."""
    several = isinstance(transcripts, list | tuple) and not hasattr(transcripts, "edits")
    parts: list[Any] = list(transcripts) if several else [transcripts]
    if not parts:
        raise InputError("no transcript was given; give those of the interaction, in order.")
    served = []
    run = getattr(parts[0], "run", None)
    for part in parts:
        if not hasattr(part, "edits"):
            raise InputError(
                f"{type(part).__name__} is not a transcript; give those of dd.interact, dd.drive "
                f"or dd.resume, in order."
            )
        if not np.array_equal(np.asarray(part.run), np.asarray(run)):
            raise CertificateRefused(
                "the transcripts are of different curators; give those of one, from its learning "
                "on."
            )
        served += _requests(plan, part, len(served))
    return served


def _requests(plan, transcript, before: int) -> list[_Served]:
    """The requests of one transcript, refused unless it is of this plan and begins at `before`."""
    index = np.asarray(transcript.edits.index)
    if index.ndim != 2:
        raise CertificateRefused(
            f"the transcript's edits have {index.ndim} axes instead of 2, so it is of many seeds "
            f"or none; give the transcript of one interaction."
        )
    words = () if transcript.plan is None else np.asarray(transcript.plan).tolist()
    if tuple(words) != plan.fingerprint:
        raise CertificateRefused(
            "the transcript is of another plan, or of a mechanism that was made without one; give "
            "the plan that the mechanism was made from."
        )
    n, begins = (int(np.asarray(count)) for count in (transcript.n, transcript.served_before))
    if n != plan.n:
        raise CertificateRefused(
            f"the transcript is of n = {n} records, the plan of n = {plan.n}; give the plan and "
            f"the transcript of one run."
        )
    if begins != before:
        raise CertificateRefused(
            f"the transcript begins after {begins} requests where {before} are accounted for; give "
            f"every transcript since the start, in order."
        )
    outside = int(np.sum(np.asarray(transcript.projected_initially)))
    if outside:
        raise CertificateRefused(
            f"{outside} records of the database lay outside the domain and were moved into it; "
            f"bring them into the domain before the run (dd.losses.check_data names the first)."
        )
    if index.shape[0] and transcript.unchanged is None:
        raise CertificateRefused(
            "the transcript does not say what its edits changed; give one made by dd.interact, "
            "dd.drive or dd.resume."
        )
    unchanged = [np.asarray(leaf, dtype=bool) for leaf in _leaves(transcript.unchanged)]
    features = getattr(transcript.unchanged, "features", None)
    leaves = [np.asarray(leaf) for leaf in _leaves(transcript.edits.record)]

    def written(k: int) -> list[bytes] | None:
        whole = [b"".join(leaf[k, j].tobytes() for leaf in leaves) for j in range(index.shape[1])]
        return whole if leaves else None

    projected = np.asarray(transcript.projected).tolist()
    observed = np.asarray(transcript.observed).tolist()
    return [
        _Served(
            index[k],
            np.all([leaf[k] for leaf in unchanged], axis=0),
            None if features is None else np.asarray(features, dtype=bool)[k],
            projected[k],
            observed[k],
            written(k),
        )
        for k in range(index.shape[0])
    ]


def _leaves(tree: Any) -> list:
    """The arrays of a tree of tuples, lists and dictionaries."""
    if tree is None:
        return []
    if isinstance(tree, dict):
        tree = list(tree.values())
    if isinstance(tree, list | tuple):
        return [leaf for part in tree for leaf in _leaves(part)]
    return [tree]


def _changes(event: _Served, row: int) -> bool | None:
    """Whether the request changed this row; None where it does not name it.

    Only the first mention of a row is applied.
    """
    mentions = np.flatnonzero(event.index == row)
    return None if mentions.size == 0 else not event.unchanged[mentions[0]]


def _require_deletion(until: list[_Served], row: int) -> None:
    changed = _changes(until[-1], row)
    if changed is None:
        raise CertificateRefused(
            f"request {len(until)} edits rows {until[-1].index.tolist()}, not row {row}; give the "
            f"request that deleted the record, and the record's row."
        )
    if changed:
        return
    earlier = [i for i, event in enumerate(until[:-1], start=1) if _changes(event, row)]
    found = f"request {earlier[-1]} wrote that" if earlier else "it was so in the initial database"
    raise CertificateRefused(
        f"request {len(until)} put into row {row} what it already held ({found}), so it deleted "
        f"nothing; certify the request that removed the record."
    )


def _require_domain(until: list[_Served]) -> None:
    for request, event in enumerate(until, start=1):
        if event.projected:
            raise CertificateRefused(
                f"{event.projected} records of request {request} lay outside the domain and were "
                f"moved into it, so the edit that was made is not the one that was given; bring "
                f"records into the domain first."
            )


def _require_labels_only(until: list[_Served], n: int) -> None:
    for request, event in enumerate(until, start=1):
        kept = event.features_unchanged
        inside = (event.index >= 0) & (event.index < n)
        if kept is None or not np.all(kept | ~inside):
            raise CertificateRefused(
                f"request {request} changed features, but this plan protects labels only; replace "
                f"labels alone, or plan with protects='record'."
            )


def _record(before: list[_Served], row: int) -> bytes | None:
    """What the last of these requests that changed the row wrote there, where it is known."""
    wrote = [event for event in before if _changes(event, row)]
    return wrote[-1].written(row) if wrote else None


def _batches(plan, before: list[_Served], row: int) -> int:
    record = _record(before, row)
    rows = {row} | {
        int(place)
        for event in before
        for place, written in zip(event.index, event.records or (), strict=False)
        if written == record and 0 <= place < plan.n
    }
    return len({schedules.batch_of_row(plan.n, plan.batches, place) for place in rows})


def _rewritten(served: list[_Served], request: int, row: int) -> int | None:
    """The first request after the deletion that may have brought the record back."""
    record = _record(served[: request - 1], row)
    for later, event in enumerate(served[request:], start=request + 1):
        if _changes(event, row) or (record is not None and record in (event.records or ())):
            return later
    return None


def _first_inserted(until: list[_Served], row: int, first_inserted) -> int:
    """0 unless a request is given that really wrote this row.

    The transcript does not hold the initial database, so it cannot exclude that the record was
    in it: the safe answer is the start.
    """
    if first_inserted is None:
        return 0
    first = checks.whole("first_inserted", first_inserted, least=0)
    if first >= len(until):
        raise InputError(
            f"first_inserted = {first} is not before request = {len(until)}; give an earlier "
            f"request, or 0 for a record of the initial database."
        )
    if first and not _changes(until[first - 1], row):
        raise CertificateRefused(
            f"request {first} did not change row {row}, so it did not insert the record; give "
            f"the request that first did, or leave out first_inserted."
        )
    record = until[first - 1].written(row) if first else None
    for earlier, event in enumerate(until[: max(first - 1, 0)], start=1):
        if record is not None and record in (event.records or ()):
            raise CertificateRefused(
                f"request {earlier} wrote the same record as request {first}, so the record was "
                f"inserted earlier; give first_inserted={earlier} or leave it out."
            )
    return first
