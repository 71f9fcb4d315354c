"""One transaction of a curator: the rows it edits, its runs, and the receipts it issues."""

import contextlib
import datetime
import hashlib
import json
import platform
import secrets
import warnings
from collections.abc import Iterator, Sequence
from importlib import metadata
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dd_jax import losses, noisy_gd, sealed
from dd_jax.curator.receipts import Facts, Receipt, Run, compose, rows_judged
from dd_jax.curator.store import DELETED, HELD_OUT, PRESENT
from dd_jax.errors import InputError
from dd_jax.interaction import resume
from dd_jax.keys import secret_key
from dd_jax.plans import Plan
from dd_jax.types import CuratorState, Labelled, replacement

# Earliest insertion, rows judged for an owner and for all, and releases: see `Facts`.
_OfRun = tuple[int, int, int, tuple[int, ...]]


class Answer(NamedTuple):
    """What a request led to.

    Attributes:
        request: its name.
        receipts: those of the owners that were served.
        waiting: how many of its owners wait until a run is full, or `Curator.flush`.
    """

    request: str
    receipts: tuple[Receipt, ...]
    waiting: int


class Owner(NamedTuple):
    """A row of the store's owners; `waiting` is the request that its deletion waits in."""

    number: int
    hash: bytes
    status: str
    since: int
    waiting: int | None


class State(NamedTuple):
    """The row of the store that every request changes, and the model as an array tree."""

    curator: CuratorState
    release: bytes | None
    owners: int
    requests: int
    receipts: int
    head: str


class Turn:
    """One transaction of a curator; what it changes is kept only when the transaction is."""

    def __init__(self, curator: Any, request: str | None, kind: str, ids: Sequence[str]):
        self.curator, self.store, self.plan = curator, curator._store, curator.plan
        self.state = curator._refresh()
        self.ids, self.kind = tuple(map(str, ids)), kind
        self.request = secrets.token_hex(8) if request is None else str(request)
        self.issued: list[Receipt] = []
        self.repeated = False
        self.number = 0
        self._writes: list[tuple[Owner, list[int], Any]] = []
        self._taken: set[int] = set()
        if kind != "flush":
            self._register()

    def _register(self) -> None:
        """Write the request down, or find that it was made before."""
        if not self.request.strip() or not self.request.isprintable():
            raise InputError(
                f"{self.request!r} is no name of a request; give one line of letters and digits."
            )
        if not self.ids:
            raise InputError("the request names nobody; give at least one id.")
        for place, name in enumerate(self.ids):
            if name in self.ids[:place]:
                raise InputError(f"id {name!r} is named twice; name every id once.")
        whose = hashlib.blake2b(key=self.curator._key, digest_size=16)
        for found in sorted(map(self.curator._hash, self.ids)):
            whose.update(found)
        row = self.store.row("requests", "name = ?", self.request)
        if row is None:
            self.number = self.state.requests + 1
            content = (self.number, self.request, self.kind, now(), whose.digest())
            self.store.put("requests", content)
            self.state = self.state._replace(requests=self.number)
            return
        if row[2] != self.kind or row[4] != whose.digest():
            raise InputError(
                f"request {self.request!r} was made before, for something else; name this one "
                f"differently."
            )
        self.repeated, self.number = True, row[0]

    @property
    def answer(self) -> Answer:
        """Its receipts, which an earlier transaction may have issued."""
        return self._answer

    def finish(self) -> None:
        """Write the state that the transaction leaves."""
        self.store.put("state", state_row(self.state))
        rows = self.store.rows("receipts", "request = ?", self.number)
        waiting = self.store.rows("owners", "waiting = ?", self.number)
        self._answer = Answer(self.request, tuple(map(receipt_of, rows)), len(waiting))

    # --- owners -----------------------------------------------------------------------------------

    def put_owner(self, owner: Owner) -> None:
        """Write an owner's row."""
        self.store.put("owners", owner)

    def places(self, owner: Owner) -> list[int]:
        """The rows of an owner."""
        return [row[0] for row in self.store.rows("records", "owner = ?", owner.number)]

    def to_delete(self, name: str) -> Owner:
        """The owner with this id, refused unless it can be deleted."""
        owner = self.curator._owner(name)
        if owner.status == HELD_OUT:
            raise InputError(
                f"id {name!r} was held out and never learned, and the store has no record of it; "
                f"remove its rows from the file."
            )
        if owner.status == DELETED:
            raise InputError(
                f"id {name!r} was deleted before; its receipts say when, nothing was changed."
            )
        if owner.waiting is not None:
            (_, request, *_) = self.store.rows("requests", "number = ?", owner.waiting)[0]
            raise InputError(
                f"the deletion of id {name!r} waits already, for request {request!r}; flush, or "
                f"name the other ids."
            )
        return owner

    def write(self, name: str, records: Labelled) -> None:
        """Note the rows that an owner's records go to."""
        row = self.store.row("owners", "hash = ?", self.curator._hash(name))
        owner = None if row is None else Owner(*row)
        mine = [] if owner is None else self.places(owner)
        if owner is not None and owner.waiting is not None:
            raise InputError(f"the deletion of id {name!r} waits; flush first.")
        if self.kind == "replace":
            if not mine:
                raise InputError(f"id {name!r} has no rows to replace; add it instead.")
            if len(records.label) != len(mine):
                raise InputError(
                    f"id {name!r} has {len(mine)} rows, and {len(records.label)} are given; give "
                    f"as many."
                )
        else:
            most = self.plan.edits_per_request
            if len(mine) + len(records.label) > most:
                raise InputError(
                    f"id {name!r} would have {len(mine) + len(records.label)} rows, but a request "
                    f"deletes {most}; give at most {most - len(mine)}."
                )
            free = [row[0] for row in self.store.rows("records", "owner IS NULL")]
            free = [place for place in free if place not in self._taken]
            mine = free[: len(records.label)]
            if len(mine) < len(records.label):
                raise InputError(
                    "there are too few empty rows, and the plan is for a fixed number of rows; "
                    "delete others first, or learn again with spare rows."
                )
        if owner is None:
            number = self.state.owners + 1
            self.state = self.state._replace(owners=number)
            owner = Owner(number, self.curator._hash(name), HELD_OUT, -1, None)
        self._taken |= set(mine)
        self._writes.append((owner, mine, records))

    # --- runs -------------------------------------------------------------------------------------

    def serve_waiting(self, *, everything: bool) -> None:
        """Serve waiting owners in full runs; with `everything` also in one that is not full."""
        rows = [Owner(*row) for row in self.store.rows("owners", "waiting IS NOT NULL")]
        rows.sort(key=lambda owner: (owner.waiting, owner.number))
        groups = self._groups([(owner, self.places(owner), None) for owner in rows])
        if groups and not everything:
            last = sum(len(places) for _, places, _ in groups[-1])
            groups = groups if last == self.plan.edits_per_request else groups[:-1]
        self._serve(groups, "delete")

    def serve_written(self) -> None:
        """Serve what `write` noted."""
        self._serve(self._groups(self._writes), self.kind)

    def _groups(self, edits: list) -> list[list]:
        """The edits in order, in runs of at most r rows."""
        groups, size = [], self.plan.edits_per_request
        for edit in edits:
            filled = sum(len(places) for _, places, _ in groups[-1]) if groups else size
            if filled + len(edit[1]) > size:
                groups.append([])
            groups[-1].append(edit)
        return groups

    def _serve(self, groups: list[list], kind: str) -> None:
        # Of several runs in one transaction only the last model is ever shown to anybody.
        for place, group in enumerate(groups, start=1):
            self._run(group, kind, publish=place == len(groups))

    def _run(self, group: list, kind: str, *, publish: bool) -> None:
        """One run of the algorithm for a group of edits, its row, and a receipt for each owner."""
        before = self.state.curator
        places = [place for _, rows, _ in group for place in rows]
        if kind == "delete":
            loss = self.curator.problem.loss
            records = losses.base.null_records(loss, before.database, len(places))
        else:
            parts = [records for _, _, records in group]
            records = jax.tree.map(lambda *leaves: jnp.asarray(np.concatenate(leaves)), *parts)
        edit = replacement(places, records)
        key, mechanism = fresh_key(self.plan), self.curator.mechanism
        with warnings.catch_warnings():
            # A new record may be the old one again: it is written all the same.
            warnings.filterwarnings("ignore", message="replaced by the value it already held")
            after, transcript = resume(key, mechanism, lambda *asked: edit, before, num_requests=1)
        number = int(after.served)
        published = self.curator._published()
        limit = self.curator._limit
        publish = publish and (limit is None or joint_of(self.plan, (*published, number)) <= limit)
        release = weights(transcript.releases).tobytes() if publish else None
        model = None if release is None else sealed.digest(release)
        run = Run(number, kind, now(), len(places), int(publish), model, versions())
        self.store.put("runs", run)
        self.state = self.state._replace(curator=after, release=release)
        owners = []
        for owner, _, _ in group:
            if kind == "delete":
                owner = owner._replace(status=DELETED)
            else:
                since = number if owner.since < 0 else owner.since
                owner = owner._replace(status=PRESENT, since=since)
            owners.append(owner)
        stored = np.repeat([owner.number for owner in owners], [len(rows) for _, rows, _ in group])
        whose = {
            place: None if kind == "delete" else int(owner)
            for place, owner in zip(places, stored, strict=True)
        }
        self.store.put("records", *record_rows(places, whose, records))
        earliest = min(owner.since for owner in owners)
        judged = [
            rows_judged(self.plan, (*self._earlier(owner), rows))
            for owner, (_, rows, _) in zip(owners, group, strict=True)
        ]
        for owner, (_, rows, _), own in zip(owners, group, judged, strict=True):
            self._issue(owner, rows, run, (earliest, own, sum(judged), published))
            self.put_owner(owner._replace(waiting=None))

    def _earlier(self, owner: Owner) -> list[list[int]]:
        """The rows of an owner that earlier receipts are about."""
        found = self.store.rows("receipts", "owner = ?", owner.number)
        return [json.loads(row[4]) for row in found]

    def _issue(self, owner: Owner, places: list[int], run: Run, of_run: _OfRun) -> None:
        request = self.number if owner.waiting is None else owner.waiting
        asked = self.store.rows("requests", "number = ?", request)[0]
        number = self.state.receipts + 1
        facts = Facts(
            self.curator.store_name,
            number,
            self.state.head,
            asked[:4],
            owner.hash.hex(),
            tuple(places),
            owner.since,
            run,
            *of_run,
            self.curator._seen,
        )
        receipt = compose(self.plan, facts)
        row = (number, request, owner.number, run.number, json.dumps(places))
        self.store.put("receipts", (*row, receipt.text))
        self.state = self.state._replace(receipts=number, head=receipt.digest)
        self.issued.append(receipt)


@contextlib.contextmanager
def transaction(curator: Any, request: str | None, kind: str, ids) -> Iterator[Turn]:
    """A transaction; the curator's state in memory changes only after it was written."""
    with curator._store.transaction():
        turn = Turn(curator, request, kind, ids)
        yield turn
        turn.finish()
        # Whoever is interrupted from here on does not know whether it was: the store says it.
        curator._kept = None
    curator._kept = turn.state


def fresh_key(plan: Plan) -> Any:
    """A new key from the system, of the generator that the plan's certificates assume."""
    return secret_key("chacha20" if plan.exact else "default")


def joint_of(plan: Plan, published: Sequence[int]) -> float:
    """All published releases together, for one record that stays, in the plan's unit.

    Release 0 alone has the bound of any release.
    """
    *seen, last = published
    if last == 0:
        return plan.certificate().eps_dp
    return plan.certificate(request=last, observed=tuple(seen)).eps_dp_request


# --- rows of the store ----------------------------------------------------------------------------


def state_row(state: State) -> tuple:
    """The row of the table `state`."""
    params, batch = state.curator.params, 0
    if isinstance(params, noisy_gd.AtBatch):
        params, batch = params.model, int(params.batch)
    served = int(state.curator.served)
    return (1, np.asarray(params).tobytes(), batch, served, *state[1:])


def record_rows(places, owner_of, records: Labelled) -> list[tuple]:
    """Rows of the table of records, for records in the order of these places."""
    features, label = (np.asarray(leaf) for leaf in records)
    return [
        (place, owner_of[place], features[k].tobytes(), label[k].tobytes())
        for k, place in enumerate(places)
    ]


def bytes_of(records: Labelled, row: int) -> tuple[bytes, bytes]:
    """Features and label of a record, as the store keeps them."""
    return tuple(np.asarray(leaf)[row].tobytes() for leaf in records)  # type: ignore


def receipt_of(row: tuple) -> Receipt:
    """The receipt of a row of the table `receipts`."""
    return Receipt(json.loads(row[-1]))


def hash_of(key: bytes, name: str) -> bytes:
    """What the store keeps of an id."""
    return hashlib.blake2b(name.encode(errors="surrogatepass"), key=key, digest_size=16).digest()


def now() -> str:
    """The time of a request."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def versions() -> str:
    """The programs of a run, as JSON."""
    found = {name: metadata.version(name) for name in ("dd-jax", "jax", "jaxlib", "numpy")}
    return json.dumps(found | {"python": platform.python_version()}, sort_keys=True)


def weights(releases: Any) -> np.ndarray:
    """The last of the releases of a linear model."""
    return np.asarray(releases)[-1]
