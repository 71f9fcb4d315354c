"""A curator that lives in a store: it learns once, and serves requests for months.

A request is one transaction: the edited rows, the new model, what was published and the receipts
are written together or not at all. The noise of every run comes from a fresh key of the system,
which is never stored: a request that a crash cut off is served again with other noise, and the
first result was never shown to anybody.

No id is stored, only its hash with a key of the store, and no digest of a record or of an
unpublished model outlives it.
"""

import functools
import json
import os
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from dd_jax import checks, losses, noisy_gd, sealed
from dd_jax.curator import store as stores
from dd_jax.curator.receipts import Receipt, Run
from dd_jax.curator.store import HELD_OUT, PRESENT
from dd_jax.curator.turns import (
    Answer,
    Owner,
    State,
    fresh_key,
    hash_of,
    joint_of,
    now,
    receipt_of,
    record_rows,
    state_row,
    transaction,
    versions,
    weights,
)
from dd_jax.curator.verification import (
    CHECKED,
    UNCHECKED,
    Verification,
    wrong_file,
    wrong_receipts,
    wrong_state,
)
from dd_jax.data import models
from dd_jax.data.encoding import Encoding
from dd_jax.data.own_file import OwnData, loss_for, with_intercept, with_ones
from dd_jax.data.tables import Table
from dd_jax.data.tasks import labelled
from dd_jax.erm import Problem
from dd_jax.errors import InputError
from dd_jax.interaction import drive
from dd_jax.plans import Plan, plan_convex
from dd_jax.plans.certificate import numbers_listed
from dd_jax.plans.settings import Arithmetic
from dd_jax.types import CuratorState, Labelled

Seen = Literal["published", "none"]
# Seconds that a process waits for another one's request.
WAIT = 600.0


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
    arithmetic: Arithmetic | None = None,
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
        arithmetic: as `dd.plan_convex` has it; unless given "exact" where the loss has it.
        **budgets: as `dd.plan_convex` takes them.

    Raises:
        InputError: records without ids or with a measured encoding, an owner with more rows than a
            request deletes, budgets that cannot be met, or a file of this name.
    """
    checks.choice("seen", seen, ("published", "none"))
    checks.whole("spare", spare)
    if limit is not None:
        checks.positive("limit", limit)
    if budgets.get("protects", "record") != "record":
        raise InputError("deleting a row empties its features too; leave out protects.")
    path = Path(path)
    if path.exists():
        raise InputError(f"{path} exists; name a new store, or open this one.")
    if data.ids is None:
        raise InputError("a curator needs to know whose a row is; name the column of the ids.")
    if data.caveat or data.encoding is None:
        raise InputError(
            "ranges or categories were measured on the records, so that the store would keep "
            "values of deleted ones; declare ranges and categories or a largest norm, or take unit "
            "rows."
        )
    ids_of, encoding = data.ids, data.encoding
    data = with_intercept(data) if intercept else data
    problem = Problem(loss_for(data, loss, intercept=intercept), l2)
    database = _with_spare(problem, data.train, spare)
    plan = _planned(problem, database, arithmetic, budgets)
    if limit is not None and limit < joint_of(plan, (0,)):
        raise InputError(
            f"the limit {limit:g} is below {joint_of(plan, (0,)):.6g}, which the first release "
            f"takes; give a larger limit or a smaller eps_dp."
        )
    key = secrets.token_bytes(32)
    names = np.array([str(name) for name in ids_of])
    owner_of, owners = _owners(key, names, data, plan.edits_per_request)
    losses.check_data(problem.loss, database)
    mechanism = noisy_gd.mechanism(problem, plan)
    curator, transcript = drive(fresh_key(plan), mechanism, _no_request, database, num_requests=0)
    release = weights(transcript.releases)
    settings = {
        "store": secrets.token_hex(8),
        "key": key.hex(),
        "n": str(plan.n),
        "plan": plan.to_json(),
        "loss": json.dumps(loss),
        "l2": json.dumps(l2),
        "intercept": json.dumps(intercept),
        "classes": json.dumps(data.classes),
        "encoding": encoding.to_json(),
        "preprocessing": data.preprocessing,
        "label": json.dumps(label),
        "ids": json.dumps(ids),
        "limit": json.dumps(limit),
        "seen": seen,
    }
    first = State(curator, release.tobytes(), len(owners), 0, 0, settings["store"])
    learned = Run(0, "learn", now(), 0, 1, sealed.digest(release.tobytes()), versions())
    stores.create(
        path,
        {
            "settings": list(settings.items()),
            "state": [state_row(first)],
            "records": record_rows(
                range(plan.n), dict.fromkeys(range(plan.n)) | owner_of, database
            ),
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
        self._kept: State | None = None
        try:
            with store.reading():
                self._read_settings()
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
        if isinstance(ids, str):
            raise InputError(f"ids = {ids!r} is one text; give a list of ids.")
        with transaction(self, request, "delete", ids) as turn:
            if not turn.repeated:
                for owner in [turn.to_delete(name) for name in turn.ids]:
                    turn.put_owner(owner._replace(waiting=turn.number))
            turn.serve_waiting(everything=now)
        return turn.answer

    def flush(self) -> tuple[Receipt, ...]:
        """Serve all deletions that wait; returns their receipts."""
        with transaction(self, None, "flush", ()) as turn:
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
            raise InputError(f"the rows have no ids; {_named(self._ids)}.")
        names = np.array([str(name) for name in table.ids])
        records = self._encode(table)
        with transaction(self, request, kind, tuple(dict.fromkeys(names.tolist()))) as turn:
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
            raise InputError(f"the rows have no label; {_named(self._label)}.")
        model = self._model(np.zeros(self._shape), "{}")
        features, labels = (
            self.encoding.encode(table),
            models.as_classes(model.classes, table.label),
        )
        odd = [str(name) for name in labels if name not in self.classes]
        if odd:
            raise InputError(f"label {odd[0]!r} is none of the classes {', '.join(self.classes)}.")
        places = np.array([self.classes.index(name) for name in labels])
        two = len(self.classes) == 2
        records = labelled(features, np.where(places == 1, 1.0, -1.0) if two else places)
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
        weights = np.frombuffer(kept.release, self.plan.dtype).reshape(self._shape)
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
        return tuple(map(receipt_of, rows))

    def receipt(self, number: int) -> Receipt:
        """The receipt with this number."""
        with self._store.reading():
            self._refresh()
            row = self._store.row("receipts", "number = ?", checks.whole("number", number))
        if row is None:
            raise InputError(f"there is no receipt {number} in this store.")
        return receipt_of(row)

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
            problems, others = wrong_receipts(self, kept)
            problems += wrong_state(self, kept)
            if receipt is not None:
                problems += wrong_file(self, receipt)
        checked, unchecked = CHECKED, UNCHECKED
        if receipt is not None:
            checked += ("the file of a receipt, which must be one that this store issued",)
        if others:
            unchecked += (
                f"the bounds of receipts {numbers_listed(others)}: other versions of the programs "
                f"made them, and these say something else; verify them with those",
            )
        return Verification(tuple(problems), checked, unchecked)

    # --- inside -----------------------------------------------------------------------------------

    def _published(self) -> tuple[int, ...]:
        found = self._store.connection.execute(
            "SELECT number FROM runs WHERE published = 1 ORDER BY number"
        )
        return tuple(number for (number,) in found)

    def _hash(self, name: str) -> bytes:
        return hash_of(self._key, name)

    def _owner(self, name: str) -> Owner:
        row = self._store.row("owners", "hash = ?", self._hash(name))
        if row is None:
            raise InputError(f"no record has the id {name!r}; nothing was changed.")
        return Owner(*row)

    def _refresh(self) -> State:
        """The newest state; everything is checked and read again if another process has written."""
        version = self._store.version
        if self._kept is None or version != self._version:
            self._store.check()
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
            how = (self.encoding.columns, self.classes, found["preprocessing"])
            numbers = (json.loads(found["loss"]), json.loads(found["l2"]), self._intercept)
            self.problem = _problem(*how, *numbers)
            self.plan = Plan.from_json(found["plan"], self.problem)
        except (KeyError, ValueError) as error:
            raise self._store.damaged(f"its settings cannot be used ({error})") from None
        self.mechanism = noisy_gd.mechanism(self.problem, self.plan)

    def _read_state(self) -> State:
        ((_, model, batch, served, release, *counts),) = self._store.rows("state")
        dtype, wide = np.dtype(self.plan.dtype), len(self.encoding.columns) + self._intercept
        rows = self._store.rows("records")
        two = len(self.classes) == 2
        kind = dtype if two else np.dtype(np.int32)
        features = np.frombuffer(b"".join(row[2] for row in rows), dtype).reshape(-1, wide)
        label = np.frombuffer(b"".join(row[3] for row in rows), kind)
        database = Labelled(jnp.array(features), jnp.array(label))
        self._shape = (wide,) if two else (wide, len(self.classes))
        # In exact arithmetic the state is two words for each parameter.
        words = np.frombuffer(model, np.uint32 if self.plan.exact else dtype)
        params: Any = jnp.array(words.reshape((-1, 2) if self.plan.exact else self._shape))
        if batch != self.plan.first_batch(served + 1):
            raise self._store.damaged("its next batch is another")
        if self.plan.batches > 1:
            params = noisy_gd.AtBatch(params, jnp.int32(batch))
        name = jnp.asarray(np.asarray(self.plan.fingerprint, np.uint32))
        curator = CuratorState(params, database, jnp.int32(served), name)
        return State(curator, release, *counts)


@functools.lru_cache(maxsize=16)
def _problem(columns, classes, preprocessing, loss, l2, intercept) -> Problem:
    """The problem of a store; the same object again, so that nothing is compiled anew."""
    shell = OwnData(
        train=None,  # type: ignore
        test=None,  # type: ignore
        rows=np.array([], int),
        columns=columns,
        classes=classes,
        preprocessing=preprocessing,
        caveat="",
    )
    return Problem(loss_for(shell, loss, intercept=intercept), l2)


def _named(column: str | None) -> str:
    """What to do about a column that a file of rows does not have."""
    return "name its column" if column is None else f"give the file the column {column!r}"


def _owners(key: bytes, names: np.ndarray, data: OwnData, most: int):
    """The owner of each training record, and the rows of the table of owners."""
    held_out = dict.fromkeys(names[np.asarray(data.held_out, int)].tolist())
    training = names[data.rows].tolist()
    numbers = {name: k for k, name in enumerate(dict.fromkeys(training), start=1)}
    counts = dict.fromkeys(numbers, 0)
    for name in training:
        counts[name] += 1
    largest = max(counts, key=counts.__getitem__)
    if counts[largest] > most:
        raise InputError(
            f"id {largest!r} has {counts[largest]} rows, but the plan deletes {most} with one "
            f"request; plan for edits_per_request={counts[largest]}, or more."
        )
    owner_of = {place: numbers[name] for place, name in enumerate(training)}
    rows = [(number, hash_of(key, name), PRESENT, 0, None) for name, number in numbers.items()]
    for name in held_out:
        rows.append((len(rows) + 1, hash_of(key, name), HELD_OUT, -1, None))
    return owner_of, rows


def _with_spare(problem: Problem, train: Labelled, spare: int) -> Labelled:
    if not spare:
        return train
    empty = losses.base.null_records(problem.loss, train, spare)
    return jax.tree.map(lambda a, b: jnp.concatenate([a, b]), train, empty)


def _planned(
    problem: Problem, database: Labelled, arithmetic: Arithmetic | None, budgets: dict[str, Any]
) -> Plan:
    if arithmetic is None:
        scores = problem.loss.scores
        arithmetic = "fast" if scores is None or scores.exact is None else "exact"
    dim = int(np.prod(jax.eval_shape(problem.loss.template, database).shape))
    if budgets.get("order") is None and budgets.get("delta") is None:
        budgets = budgets | {"order": 2.0}
    return plan_convex(problem, n=len(database.label), dim=dim, arithmetic=arithmetic, **budgets)


def _no_request(request: int, release: Any):
    raise AssertionError("nothing is requested while learning")
