"""A curator that lives in a store: it learns once, and serves requests for months.

A request is one transaction: the edited rows, the new model, what was published and the receipts
are written together or not at all. The noise of every run comes from a fresh key of the system,
which is never stored: a request that a crash cut off is served again with other noise, and the
first result was never shown to anybody.

No id is stored, only its hash with a key of the store, and no digest of a record or of an
unpublished model outlives it.
"""

import contextlib
import datetime
import hashlib
import json
import os
import platform
import secrets
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dd_jax import checks, losses, noisy_gd, sealed
from dd_jax.curator import store as stores
from dd_jax.curator.receipts import Facts, Receipt, Run, compose
from dd_jax.data import models
from dd_jax.data.encoding import Encoding
from dd_jax.data.own_file import OwnData, as_records, loss_for, with_intercept, with_ones
from dd_jax.data.tables import Table
from dd_jax.erm import Problem
from dd_jax.errors import InputError
from dd_jax.interaction import drive, resume
from dd_jax.keys import secret_key
from dd_jax.plans import Plan, plan_convex
from dd_jax.types import CuratorState, Labelled, replacement

Seen = Literal["published", "none"]
PRESENT, DELETED, HELD_OUT = "present", "deleted", "held out"
# Seconds that a process waits for another one's request.
WAIT = 600.0


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


class Verification(NamedTuple):
    """What `Curator.verify` found.

    Attributes:
        problems: what does not hold; none if all is well.
        checked: what was recomputed. unchecked: what nobody can see from the store.
    """

    problems: tuple[str, ...]
    checked: tuple[str, ...]
    unchecked: tuple[str, ...]


class Owner(NamedTuple):
    """A row of the store's owners; `waiting` is the request that its deletion waits in."""

    number: int
    hash: bytes
    status: str
    since: int
    waiting: int | None


class _State(NamedTuple):
    """The row of the store that every request changes, and the model as an array tree."""

    curator: CuratorState
    release: bytes | None
    owners: int
    requests: int
    receipts: int
    head: str


def create(
    path: str | os.PathLike,
    data: OwnData,
    *,
    loss: str | None = None,
    l2: float = 0.05,
    intercept: bool = False,
    spare: int = 0,
    limit: float | None = None,
    seen: Seen = "published",
    label: str | None = None,
    ids: str | None = None,
    **budgets: Any,
) -> "Curator":
    """Plan, learn and make a store; the model is published as release 0.

    Args:
        path: of the new store.
        data: records with ids, as `dd_jax.data.own_file.load_file` makes them; held-out ones are
            never learned, and nothing of them is stored but the hashes of their ids.
        loss, l2, intercept: the problem, as `dd-jax run` has it.
        spare: empty rows besides, which records can be added to.
        limit: publishing stops before the joint guarantee of all published releases, for records
            that stay, is above this; None for no limit. The unit is that of the budgets.
        seen: "published" counts every published release before a deletion as seen by whoever makes
            requests; "none" is the operator's declaration that no request depends on one.
        label, ids: names of the columns, so that later files are read alike.
        **budgets: as `dd.plan_convex` takes them.

    Raises:
        InputError: records without ids or with a measured encoding, an owner with more rows than a
            request deletes, budgets that cannot be met, or a file of this name.
    """
    checks.choice("seen", seen, ("published", "none"))
    checks.whole("spare", spare)
    if limit is not None:
        checks.positive("limit", limit)
    path = Path(path)
    if path.exists():
        raise InputError(f"{path} exists; name a new store, or open this one.")
    if data.ids is None:
        raise InputError("a curator needs to know whose a row is; name the column of the ids.")
    if data.caveat or data.encoding is None:
        raise InputError(
            "ranges or categories were measured on the records, so that the store would keep values "
            "of deleted ones; declare ranges and categories, a largest norm, or take unit rows."
        )
    data = with_intercept(data) if intercept else data
    problem = Problem(loss_for(data, loss, intercept=intercept), l2)
    database = _with_spare(problem, data.train, spare)
    plan = _planned(problem, database, budgets)
    key = secrets.token_bytes(32)
    names = np.array([str(name) for name in data.ids])
    owner_of, owners = _owners(key, names, data, plan.edits_per_request)
    losses.check_data(problem.loss, database)
    mechanism = noisy_gd.mechanism(problem, plan)
    curator, transcript = drive(secret_key(), mechanism, _no_request, database, num_requests=0)
    release = _weights(transcript.releases)
    settings = {
        "store": secrets.token_hex(8),
        "key": key.hex(),
        "n": str(plan.n),
        "plan": plan.to_json(),
        "loss": json.dumps(loss),
        "l2": json.dumps(l2),
        "intercept": json.dumps(intercept),
        "classes": json.dumps(data.classes),
        "encoding": data.encoding.to_json(),
        "preprocessing": data.preprocessing,
        "label": json.dumps(label),
        "ids": json.dumps(ids),
        "limit": json.dumps(limit),
        "seen": seen,
    }
    first = _State(curator, release.tobytes(), len(owners), 0, 0, settings["store"])
    learned = Run(0, "learn", _now(), 0, 1, sealed.digest(release.tobytes()), _versions())
    stores.create(
        path,
        {
            "settings": list(settings.items()),
            "state": [_state_row(first)],
            "records": _record_rows(range(plan.n), dict.fromkeys(range(plan.n)) | owner_of, database),
            "owners": owners,
            "runs": [learned],
        },
    )
    return open(path)


def open(path: str | os.PathLike, *, wait: float = WAIT) -> "Curator":
    """The curator of a store, whose contents are checked.

    Args:
        path: the store.
        wait: seconds to wait while another process serves a request.

    Raises:
        InputError: no store, one of another version, or a damaged one.
    """
    return Curator(stores.connect(Path(path), wait))


class Curator:
    """An open store. Use it in one thread; other processes may have the same store open."""

    def __init__(self, store: stores.Store):
        self._store = store
        self._version: int | None = None
        self._kept: _State | None = None
        try:
            with store.reading():
                self._refresh()
        except BaseException:
            store.close()
            raise

    def close(self) -> None:
        """Close the store; what was served is there."""
        self._store.close()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()

    # --- requests ---------------------------------------------------------------------------------

    def delete(
        self, ids: Sequence[str], *, request: str | None = None, now: bool = False
    ) -> Answer:
        """Delete all rows of these owners.

        Runs wait until they are full, that is, until the waiting owners have as many rows as the
        plan deletes at once.

        Args:
            ids: whose rows.
            request: its name; the same name again gets the same receipts and deletes nothing. A
                random one unless given.
            now: serve this request, and all that wait, without waiting for more.

        Raises:
            InputError: an id that is unknown, held out, deleted already or waiting already, or a
                name that another request has; nothing is changed.
        """
        with self._turn(request, "delete", ids) as turn:
            if not turn.repeated:
                for owner in [turn.to_delete(name) for name in turn.ids]:
                    turn.put_owner(owner._replace(waiting=turn.number))
                turn.serve_waiting(everything=now)
        return turn.answer

    def flush(self) -> tuple[Receipt, ...]:
        """Serve all deletions that wait; returns their receipts."""
        with self._turn(None, "flush", ()) as turn:
            turn.serve_waiting(everything=True)
        return tuple(turn.issued)

    def add(self, table: Table, *, request: str | None = None) -> Answer:
        """Write the rows of a table into empty rows.

        The number n of rows is fixed: there are as many empty ones as `create` was given, and as
        were deleted. The time of an owner who was there before counts from the first time on.

        Raises:
            InputError: rows that cannot be encoded, too few empty rows, an owner who would have
                more rows than a request deletes, or whose deletion waits; nothing is changed.
        """
        return self._write(table, request, "add")

    def replace(self, table: Table, *, request: str | None = None) -> Answer:
        """Put new records into the rows of owners who are present, as many as they have.

        Nothing is promised about the old records until the owners are deleted: the new ones may say
        what the old ones were.
        """
        return self._write(table, request, "replace")

    def _write(self, table: Table, request: str | None, kind: str) -> Answer:
        if table.ids is None:
            raise InputError("the rows have no ids; name the column that says whose they are.")
        names = np.array([str(name) for name in table.ids])
        records = self._encode(table)
        with self._turn(request, kind, tuple(dict.fromkeys(names.tolist()))) as turn:
            if not turn.repeated:
                for name in turn.ids:
                    mine = np.flatnonzero(names == name)
                    part = jax.tree.map(lambda leaf, rows=mine: np.asarray(leaf)[rows], records)
                    turn.write(name, part)
                turn.serve_written()
        return turn.answer

    def _encode(self, table: Table) -> Labelled:
        """The records of a table, encoded as those of the first file were."""
        if table.label is None:
            raise InputError("the rows have no label; name its column.")
        model = self._model(np.zeros(self._shape), "{}")
        features, labels = self.encoding.encode(table), models.as_classes(model.classes, table.label)
        odd = [str(name) for name in labels if name not in self.classes]
        if odd:
            raise InputError(f"label {odd[0]!r} is none of the classes {', '.join(self.classes)}.")
        places = np.array([self.classes.index(name) for name in labels])
        two = len(self.classes) == 2
        records = as_records(features, np.where(places == 1, 1.0, -1.0) if two else places)
        records = with_ones(records) if self._intercept else records
        losses.check_data(self.problem.loss, records)
        return records

    # --- what was published -----------------------------------------------------------------------

    def model(self) -> models.Model:
        """The newest published model, with what its plan promises.

        Raises:
            InputError: the newest model was not published, because of the limit.
        """
        with self._store.reading():
            kept = self._refresh()
            published = self._published()
        if kept.release is None:
            raise InputError(
                "the newest model is not published, because the limit was reached, and older ones "
                "are not kept: they were made with deleted records."
            )
        seen = tuple(number for number in published if number < published[-1])
        certificate = self.plan.certificate(request=max(published[-1], 1), observed=seen)
        dtype = np.dtype(np.asarray(jax.tree.leaves(kept.curator.params)[0]).dtype)
        weights = np.frombuffer(kept.release, dtype).reshape(self._shape)
        return self._model(weights, certificate.to_json())

    def predict(self, table: Table) -> models.Predicted:
        """Classes of the rows of a table, by the newest published model."""
        return models.predict(self.model(), table)

    def reader(self) -> models.Model:
        """A model without weights of its own, for `dd_jax.data.models.read_rows`."""
        return self._model(np.zeros(self._shape), "{}")

    def _model(self, weights: np.ndarray, certificate: str) -> models.Model:
        names = (self._label, self._ids)
        parts = (self.encoding, self.classes, self._intercept, *names, certificate)
        return models.Model(weights, *parts)

    # --- what is known ----------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """Counts, and what all published releases reveal of records that stay; JSON values."""
        with self._store.reading():
            kept = self._refresh()
            published = self._published()
            many = self._store.connection.execute(
                "SELECT COUNT(DISTINCT owner), COUNT(owner) FROM records"
            ).fetchone()
            most = self._store.connection.execute(
                "SELECT MAX(c) FROM (SELECT COUNT(*) AS c FROM records WHERE owner NOT NULL "
                "GROUP BY owner)"
            ).fetchone()[0]
            waiting = self._store.rows("owners", "waiting IS NOT NULL")
        served = int(kept.curator.served)
        joint = joint_of(self.plan, published)
        following = joint_of(self.plan, (*published, served + 1))
        return {
            "store": self.store_name,
            "n": self.plan.n,
            "owners": many[0],
            "rows": many[1],
            "empty_rows": self.plan.n - many[1],
            "most_rows_of_an_owner": most or 0,
            "waiting": len(waiting),
            "runs": served,
            "requests": kept.requests,
            "receipts": kept.receipts,
            "published": [int(number) for number in published],
            "newest_is_published": kept.release is not None,
            "order": self.plan.order,
            "delta": self.plan.delta,
            "eps_dp_joint": joint,
            "eps_dp_joint_with_next": following,
            "limit": self._limit,
            "next_is_published": self._limit is None or following <= self._limit,
            "learning_again": (
                "resets nothing of this: what was published stays published, and the numbers of a "
                "new store are to be added for records that were in this one"
            ),
        }

    def receipts(self, id: str | None = None) -> tuple[Receipt, ...]:
        """All receipts, or those of an owner."""
        with self._store.reading():
            self._refresh()
            if id is None:
                rows = self._store.rows("receipts")
            else:
                rows = self._store.rows("receipts", "owner = ?", self._owner(id).number)
        return tuple(map(_receipt, rows))

    def receipt(self, number: int) -> Receipt:
        """The receipt with this number."""
        with self._store.reading():
            self._refresh()
            row = self._store.row("receipts", "number = ?", checks.whole("number", number))
        if row is None:
            raise InputError(f"there is no receipt {number} in this store.")
        return _receipt(row)

    def verify(self, receipt: bytes | None = None) -> Verification:
        """Recompute everything from the store alone.

        Args:
            receipt: contents of a receipt's file (`Receipt.pack`), to be compared too.

        Raises:
            InputError: the store is damaged.
        """
        with self._store.reading():
            self._store.check()
            kept = self._refresh()
            problems = [*self._wrong_receipts(kept), *self._wrong_state(kept)]
            if receipt is not None:
                problems += self._wrong_file(receipt)
        return Verification(tuple(problems), _CHECKED, _UNCHECKED)

    def _wrong_receipts(self, kept: _State) -> Iterator[str]:
        requests = {row[0]: row for row in self._store.rows("requests")}
        owners = {row[0]: Owner(*row) for row in self._store.rows("owners")}
        rows, known = self._store.rows("receipts"), [Run(*r) for r in self._store.rows("runs")]
        of_run: dict[int, list] = {}
        for row in rows:
            of_run.setdefault(row[3], []).append(row)
        published, before = [], []
        for run in known:
            before.append(tuple(published))
            published += [run.number] * run.published
        head = self.store_name
        for number, request, owner, run, places, since, text in rows:
            facts = Facts(
                self.store_name,
                number,
                head,
                requests[request][:4],
                owners[owner].hash.hex(),
                tuple(json.loads(places)),
                since,
                known[run],
                min(other[5] for other in of_run[run]),
                before[run],
                self._seen,
            )
            head = sealed.digest(text.encode())
            if compose(self.plan, facts).text != text:
                yield f"receipt {number} does not follow from the store"
        if head != kept.head:
            yield "the last receipt is not the one that the store ends with"

    def _wrong_state(self, kept: _State) -> Iterator[str]:
        null = _bytes_of(losses.base.null_records(self.problem.loss, kept.curator.database, 1), 0)
        present = {row[0] for row in self._store.rows("owners", "status = ?", PRESENT)}
        for place, owner, *contents in self._store.rows("records"):
            if owner is None and tuple(contents) != null:
                yield f"row {place} belongs to nobody, and is not empty"
            if owner is not None and owner not in present:
                yield f"row {place} belongs to an owner who is not present"
        last = Run(*self._store.rows("runs")[-1])
        if (kept.release is None) == bool(last.published):
            yield "the newest model is kept as published, and was not; or the other way round"
        elif kept.release is not None and sealed.digest(kept.release) != last.model:
            yield "the newest published model does not have its digest"

    def _wrong_file(self, content: bytes) -> Iterator[str]:
        try:
            values = sealed.unpack_json(content)
        except ValueError as error:
            yield f"the file is no whole receipt: {error}"
            return
        row = self._store.row("receipts", "number = ?", values.get("receipt"))
        if values.get("store") != self.store_name:
            yield f"the file is a receipt of the store {values.get('store')}, not of this one"
        elif row is None or Receipt(values).text != row[-1]:
            yield "the file is not the receipt that this store issued"

    # --- inside -----------------------------------------------------------------------------------

    def _turn(self, request: str | None, kind: str, ids: Sequence[str]) -> "contextlib.AbstractContextManager[_Turn]":
        return _turn(self, request, kind, ids)

    def _published(self) -> tuple[int, ...]:
        found = self._store.connection.execute(
            "SELECT number FROM runs WHERE published = 1 ORDER BY number"
        )
        return tuple(number for (number,) in found)

    def _hash(self, name: str) -> bytes:
        return _hash(self._key, name)

    def _owner(self, name: str) -> Owner:
        row = self._store.row("owners", "hash = ?", self._hash(name))
        if row is None:
            raise InputError(f"no record has the id {name!r}; nothing was changed.")
        return Owner(*row)

    def _refresh(self) -> _State:
        """The newest state; everything is checked and read again if another process has written."""
        version = self._store.version
        if self._kept is None or version != self._version:
            self._store.check()
            self._read_settings()
            self._kept, self._version = self._read_state(), version
        return self._kept

    def _read_settings(self) -> None:
        found = self._store.settings()
        try:
            self.store_name, self._key = found["store"], bytes.fromhex(found["key"])
            self.encoding = Encoding.from_json(found["encoding"])
            self.classes = tuple(json.loads(found["classes"]))
            self._intercept = json.loads(found["intercept"])
            self._label, self._ids = json.loads(found["label"]), json.loads(found["ids"])
            self._limit, self._seen = json.loads(found["limit"]), found["seen"]
            shell = OwnData(
                train=None,  # type: ignore
                test=None,  # type: ignore
                rows=np.array([], int),
                columns=self.encoding.columns,
                classes=self.classes,
                preprocessing=found["preprocessing"],
                caveat="",
            )
            loss = loss_for(shell, json.loads(found["loss"]), intercept=self._intercept)
            self.problem = Problem(loss, json.loads(found["l2"]))
            self.plan = Plan.from_json(found["plan"], self.problem)
        except (KeyError, ValueError) as error:
            raise self._store.damaged(f"its settings cannot be used ({error})") from None
        self.mechanism = noisy_gd.mechanism(self.problem, self.plan)

    def _read_state(self) -> _State:
        ((_, model, batch, served, release, *counts),) = self._store.rows("state")
        dtype, wide = np.dtype(self.plan.dtype), len(self.encoding.columns) + self._intercept
        rows = self._store.rows("records")
        two = len(self.classes) == 2
        kind = dtype if two else np.dtype(np.int32)
        features = np.frombuffer(b"".join(row[2] for row in rows), dtype).reshape(-1, wide)
        label = np.frombuffer(b"".join(row[3] for row in rows), kind)
        database = Labelled(jnp.array(features), jnp.array(label))
        self._shape = (wide,) if two else (wide, len(self.classes))
        params: Any = jnp.array(np.frombuffer(model, dtype).reshape(self._shape))
        if batch != self.plan.first_batch(served + 1):
            raise self._store.damaged("its next batch is another")
        if self.plan.batches > 1:
            params = noisy_gd.AtBatch(params, jnp.int32(batch))
        words = jnp.asarray(np.asarray(self.plan.fingerprint, np.uint32))
        curator = CuratorState(params, database, jnp.int32(served), words)
        return _State(curator, release, *counts)


class _Turn:
    """One transaction of a curator; what it changes is kept only when the transaction is."""

    def __init__(self, curator: Curator, request: str | None, kind: str, ids: Sequence[str]):
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
            content = (self.number, self.request, self.kind, _now(), whose.digest())
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
        self.store.put("state", _state_row(self.state))
        rows = self.store.rows("receipts", "request = ?", self.number)
        waiting = self.store.rows("owners", "waiting = ?", self.number)
        self._answer = Answer(self.request, tuple(map(_receipt, rows)), len(waiting))

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
        after, transcript = resume(
            secret_key(), self.curator.mechanism, lambda *asked: edit, before, num_requests=1
        )
        number = int(after.served)
        published = self.curator._published()
        limit = self.curator._limit
        publish = publish and (
            limit is None or joint_of(self.plan, (*published, number)) <= limit
        )
        release = _weights(transcript.releases).tobytes() if publish else None
        model = None if release is None else sealed.digest(release)
        run = Run(number, kind, _now(), len(places), int(publish), model, _versions())
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
        self.store.put("records", *_record_rows(places, whose, records))
        earliest = min(owner.since for owner in owners)
        for owner, (_, rows, _) in zip(owners, group, strict=True):
            self._issue(owner, rows, run, earliest, published)
            self.put_owner(owner._replace(waiting=None))

    def _issue(self, owner: Owner, places: list[int], run: Run, earliest: int, published) -> None:
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
            earliest,
            published,
            self.curator._seen,
        )
        receipt = compose(self.plan, facts)
        row = (number, request, owner.number, run.number, json.dumps(places), owner.since)
        self.store.put("receipts", (*row, receipt.text))
        self.state = self.state._replace(receipts=number, head=receipt.digest)
        self.issued.append(receipt)


@contextlib.contextmanager
def _turn(curator: Curator, request: str | None, kind: str, ids) -> Iterator[_Turn]:
    """A transaction; the curator's state in memory changes only after it was written."""
    with curator._store.transaction():
        turn = _Turn(curator, request, kind, ids)
        yield turn
        turn.finish()
    curator._kept = turn.state


def joint_of(plan: Plan, published: Sequence[int]) -> float:
    """All published releases together, for one record that stays, in the plan's unit.

    Release 0 alone has the bound of any release.
    """
    *seen, last = published
    if last == 0:
        return plan.certificate().eps_dp
    return plan.certificate(request=last, observed=tuple(seen)).eps_dp_request


# --- rows of the store ----------------------------------------------------------------------------


def _state_row(state: _State) -> tuple:
    params, batch = state.curator.params, 0
    if isinstance(params, noisy_gd.AtBatch):
        params, batch = params.model, int(params.batch)
    served = int(state.curator.served)
    return (1, np.asarray(params).tobytes(), batch, served, *state[1:])


def _record_rows(places, owner_of, records: Labelled) -> list[tuple]:
    """Rows of the table of records, for records in the order of these places."""
    features, label = (np.asarray(leaf) for leaf in records)
    return [
        (place, owner_of[place], features[k].tobytes(), label[k].tobytes())
        for k, place in enumerate(places)
    ]


def _bytes_of(records: Labelled, row: int) -> tuple[bytes, bytes]:
    return tuple(np.asarray(leaf)[row].tobytes() for leaf in records)  # type: ignore


def _receipt(row: tuple) -> Receipt:
    return Receipt(json.loads(row[-1]))


def _hash(key: bytes, name: str) -> bytes:
    return hashlib.blake2b(name.encode(), key=key, digest_size=16).digest()


def _owners(key: bytes, names: np.ndarray, data: OwnData, most: int):
    """The owner of each training record, and the rows of the table of owners."""
    held_out = dict.fromkeys(names[np.asarray(data.held_out, int)].tolist())
    training = names[data.rows].tolist()
    numbers = {name: k for k, name in enumerate(dict.fromkeys(training), start=1)}
    counts = {name: 0 for name in numbers}
    for name in training:
        counts[name] += 1
    largest = max(counts, key=counts.__getitem__)
    if counts[largest] > most:
        raise InputError(
            f"id {largest!r} has {counts[largest]} rows, but the plan deletes {most} with one "
            f"request; plan for edits_per_request={counts[largest]}, or more."
        )
    owner_of = {place: numbers[name] for place, name in enumerate(training)}
    rows = [(number, _hash(key, name), PRESENT, 0, None) for name, number in numbers.items()]
    for name in held_out:
        rows.append((len(rows) + 1, _hash(key, name), HELD_OUT, -1, None))
    return owner_of, rows


def _with_spare(problem: Problem, train: Labelled, spare: int) -> Labelled:
    if not spare:
        return train
    empty = losses.base.null_records(problem.loss, train, spare)
    return jax.tree.map(lambda a, b: jnp.concatenate([a, b]), train, empty)


def _planned(problem: Problem, database: Labelled, budgets: dict[str, Any]) -> Plan:
    dim = int(np.prod(jax.eval_shape(problem.loss.template, database).shape))
    if budgets.get("order") is None and budgets.get("delta") is None:
        budgets = budgets | {"order": 2.0}
    return plan_convex(problem, n=len(database.label), dim=dim, **budgets)


def _weights(releases: Any) -> np.ndarray:
    """The last of the releases of a linear model."""
    return np.asarray(releases)[-1]


def _no_request(request: int, release: Any):
    raise AssertionError("nothing is requested while learning")


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def _versions() -> str:
    found = {name: metadata.version(name) for name in ("dd-jax", "jax", "jaxlib", "numpy")}
    return json.dumps(found | {"python": platform.python_version()}, sort_keys=True)


_CHECKED = (
    "the file's structure, and the digest of every row",
    "every receipt, made again from the plan, the requests and the runs, and their chain",
    "rows of deleted owners are empty or belong to others, and have no gradient",
    "the newest published model has the digest of its run",
)
_UNCHECKED = (
    "the file that the rows came from, which may still hold them",
    "backups and copies of the store, of exported models and of receipts",
    "what disks keep of overwritten blocks",
    "that the noise was fresh, and that no unpublished model was shown to anybody",
    "that requests depended on published models alone, and that a deleted record did not come back "
    "under another id",
)
