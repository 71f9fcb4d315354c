"""Forms of a database other than one row per record, with the same meaning.

    Counted     distinct records with multiplicities: a step costs their number, not n
    Overlay     a shared database and the rows that edits replaced in it
    RowShard    the rows that one device of a mesh holds (`dd_jax.sharding`)

In every form a row has the number that the caller gave it. Each form names its parts (`parts`), and
the gradient is a sum over parts.

Under a vmap over S seeds, edits that depend on the seed would copy a plain database for every seed,
which takes n·d·S numbers. An overlay keeps the base once, with S·i·r·d numbers for i requests of r
rows, and n·S bytes that say which rows of the base still count. A replaced row counts exactly 0
times. (Adding its record and subtracting it again would leave a rounding error that depends on the
record in every later model.) The record itself stays in the base until `compact` makes a form
without it.
"""

import dataclasses
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from dd_jax.errors import InputError
from dd_jax.types import (
    Domain,
    Edit,
    Form,
    Part,
    Rows,
    acceptable_rows,
    as_form,
    check_finite,
    check_records_match,
    is_concrete,
    num_records,
)


def parts(database: PyTree) -> tuple[Part, ...]:
    """The parts that a sum over a database's records runs over."""
    return as_form(database).parts()


def weighted(values: Array, weight: Array | None) -> Array:
    """Rows times their weights."""
    if weight is None:
        return values
    return values * weight.astype(values.dtype).reshape(-1, *(1,) * (values.ndim - 1))


def records_of(database: PyTree) -> PyTree:
    """Rows with the structure, the shapes and the types of the database's records."""
    return as_form(database).example()


def rows_of(database: PyTree, index: Any) -> PyTree:
    """The records at these rows, which must be in range."""
    return as_form(database).rows(index)


def project(domain: Domain, database: PyTree) -> tuple[PyTree, Array]:
    """The database with every record moved into the domain, and how many were outside."""
    return as_form(database).project(domain)


def check(domain: Domain, database: PyTree) -> None:
    """Refuse a database with no rows, NaN, or records outside the domain.

    Raises:
        InputError: names the row.
    """
    if num_records(database) < 1:
        raise InputError("the database is empty; give at least one record.")
    for records in as_form(database).stored():
        check_finite(records)
        domain.check(records)


def compact(database: PyTree) -> PyTree:
    """The same rows with every edit made, and none of the records that were replaced.

    Plain rows are overwritten. Distinct records that no row has any more are dropped, or blanked
    inside jit, where shapes cannot depend on values. Split rows are overwritten on the device that
    holds them.

    Under a vmap over seeds this makes a database for each seed, n·d·S numbers; the compiler leaves
    it out where the result is not used.
    """
    return as_form(database).compact()


def expand(database: PyTree) -> PyTree:
    """The plain form of a database: one row per record, in order, with every edit made."""
    form = as_form(compact(database))
    return form.rows(jnp.arange(form.size())) if form.overlaid else form.compact()


@dataclass(frozen=True)
class Held(Rows):
    """Records that are held with multiplicities: what `Counted` and `RowShard` share."""

    record: PyTree

    def holding(self, record: PyTree) -> Any:
        """Other records in their places."""
        return dataclasses.replace(self, record=record)

    def project(self, domain: Domain) -> tuple["Held", Array]:
        """Every record moved into the domain, and how many were outside."""
        (part,) = self.parts()
        record, inside = domain.project(self.record)
        return self.holding(record), _count_outside(inside, part)

    def apply_edit(self, edit: Edit) -> "Held":
        """𝒟 ∘ u; the result holds none of the replaced records (`compact`)."""
        return compact(overlay(self, edit.index.shape[0]).write(edit))


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=("record", "count", "ends", "place"),
    meta_fields=("total",),
)
@dataclass(frozen=True)
class Counted(Held):
    """Distinct records and how often each occurs; build it with `compress` or `counted`.

    Rows keep the caller's numbers: the j-th run of equal rows ends before row ends[j] and has
    record place[j]. Runs are stored because one number for each row would take n numbers.

    Attributes:
        record: distinct records, leaves with leading axis m.
        count: multiplicities, whole numbers.
        ends, place: the runs; a run may have no rows.
        total: n, the sum of the counts (static).
    """

    record: PyTree
    count: Array
    ends: Array
    place: Array
    total: int

    def size(self) -> int:
        """The number n of records."""
        return self.total

    def where(self, index: Array) -> Array:
        """Which distinct record each row has."""
        return _of_run(self.ends, self.place, index)

    def rows(self, index: Array) -> PyTree:
        """The records at these rows."""
        return jax.tree.map(lambda leaf: leaf[self.where(index)], self.record)

    def parts(self) -> tuple[Part, ...]:
        """One part: the distinct records, weighted by their counts."""
        return (Part(self.record, self.count, within=self.count_within),)

    def count_within(self, first: Array, stop: Array) -> Array:
        """How often each distinct record occurs in the rows first ≤ k < stop."""
        begins = jnp.concatenate([jnp.zeros_like(self.ends[:1]), self.ends[:-1]])
        length = jnp.minimum(self.ends, stop) - jnp.maximum(begins, first)
        return jnp.zeros_like(self.count).at[self.place].add(jnp.maximum(length, 0))

    def overwritten(self, slots: "Overlay") -> "Counted":
        """Add the slots' records as distinct records; remove those that no row has any more."""
        first = self.count.shape[0]
        number = first + jnp.arange(slots.index.shape[0], dtype=self.place.dtype)
        ends, place = _cut_runs(self.ends, self.place, slots, number)
        record = jax.tree.map(_join, self.record, slots.record)
        if is_concrete((record, ends, place)):
            return _distinct(record, np.asarray(ends), np.asarray(place))
        count = _join(slots.left, slots.written.astype(slots.left.dtype))
        return Counted(_blank_unused(record, count), count, ends, place, self.total)


def compress(database: PyTree) -> Counted:
    """The distinct records of a database with their multiplicities, on the host.

    Rows keep their numbers: `expand` gives back the same rows in the same order.

    Raises:
        InputError: the database has no rows, or is not in the plain form.
    """
    if as_form(database).overlaid:
        raise InputError(
            f"the database is of type {type(database).__name__}; give plain rows to compress."
        )
    n = num_records(database)
    if n == 0:
        raise InputError("the database has no rows; give at least one record.")
    return _distinct(database, np.arange(1, n + 1), np.arange(n))


def _distinct(record: PyTree, ends: np.ndarray, place: np.ndarray) -> Counted:
    """The database of these runs, with distinct records in the order of their first rows.

    Neighbouring runs of the same record become one. Records that no row has are left out.
    """
    some = np.diff(ends, prepend=0) > 0
    ends, place = ends[some], place[some]
    used, place = np.unique(place, return_inverse=True)
    leaves, structure = jax.tree.flatten(record)
    rows = [np.ascontiguousarray(np.asarray(leaf)[used]) for leaf in leaves]
    raw = np.concatenate([row.reshape(len(used), -1).view(np.uint8) for row in rows], axis=1)
    # Each row as one value, compared by its bytes: 0.0 and -0.0 stay apart and NaN equals itself,
    # so that `expand` gives back exactly the same rows.
    values = np.ascontiguousarray(raw).view(np.dtype((np.void, raw.shape[1])))[:, 0]
    _, first, same = np.unique(values, return_index=True, return_inverse=True)
    _, first_run, place = np.unique(same[place], return_index=True, return_inverse=True)
    order = np.argsort(first_run)
    place = np.argsort(order)[place]
    whole = np.append(place[1:] != place[:-1], True)
    ends, place = ends[whole], place[whole]
    count = np.zeros(len(order), np.int32)
    np.add.at(count, place, np.diff(ends, prepend=0).astype(np.int32))
    return Counted(
        structure.unflatten([jnp.asarray(row[first[order]]) for row in rows]),
        jnp.asarray(count),
        jnp.asarray(ends, jnp.int32),
        jnp.asarray(place, jnp.int32),
        int(ends[-1]),
    )


def counted(record: PyTree, count) -> Counted:
    """Records with given multiplicities: record 0 fills the first count[0] rows, and so on.

    Raises:
        InputError: the counts are not one whole number ≥ 0 per record, or their sum is 0 or too
            large for int32.
    """
    number = np.asarray(count)
    whole = np.issubdtype(number.dtype, np.integer) and number.shape == (num_records(record),)
    if not whole or (number < 0).any() or not number.any():
        raise InputError(
            f"count has dtype {number.dtype} and shape {number.shape} for {num_records(record)} "
            f"records; give one whole number ≥ 0 per record, not all zero."
        )
    total = sum(number.tolist())  # Python's integers do not overflow
    if total > np.iinfo(np.int32).max:
        raise InputError(
            f"the counts sum to {total:,}, too large; give at most {np.iinfo(np.int32).max:,} rows."
        )
    return Counted(
        record,
        jnp.asarray(number, jnp.int32),
        jnp.asarray(np.cumsum(number), jnp.int32),
        jnp.arange(len(number), dtype=jnp.int32),
        total,
    )


def _of_run(ends: Array, place: Array, index: Array) -> Array:
    """The place of the run that each row is in."""
    return place[jnp.searchsorted(ends, index, side="right")]


def _cut_runs(ends: Array, place: Array, slots: "Overlay", number: Array) -> tuple[Array, Array]:
    """Cut the runs so that each slot's row is a separate run, with that slot's number as record.

    Shapes must not depend on values here, so every slot adds two ends (before and after its row)
    whether it is written or not; needless cuts make empty runs, which no row is looked up in.
    """
    total = slots.size()
    row = jnp.where(slots.written, slots.index, total)
    cuts = jnp.sort(jnp.concatenate([ends, row, jnp.minimum(row + 1, total)]))
    last = cuts - 1  # the last row of each run
    order = jnp.argsort(row)
    slot = order[jnp.minimum(jnp.searchsorted(row[order], last), len(order) - 1)]
    return cuts, jnp.where(row[slot] == last, number[slot], _of_run(ends, place, last))


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=("base", "left", "index", "record", "written"),
    meta_fields=(),
)
@dataclass(frozen=True)
class Overlay(Form):
    """A base that is never changed, and slots for the records that replace some of its rows.

    Attributes:
        base: the database below: plain rows, or any form other than an overlay.
        left: how often each record of the base still counts; 0 for a row that was replaced.
        index: (slots,) the row of each slot; meaningless where nothing was written.
        record: the record of each slot.
        written: (slots,) which slots are in use: the first ones, each for a different row.
    """

    base: PyTree
    left: Array
    index: Array
    record: PyTree
    written: Array

    def size(self) -> int:
        """The number n of records."""
        return num_records(self.base)

    def example(self) -> PyTree:
        """Records of the base."""
        return records_of(self.base)

    def stored(self) -> tuple[PyTree, ...]:
        """The base's records, and the records in the slots in use."""
        base = as_form(self.base).stored()
        used = np.flatnonzero(np.asarray(self.written))
        if not used.size:
            return base
        return (*base, jax.tree.map(lambda leaf: leaf[used], self.record))

    def rows(self, index: Array) -> PyTree:
        """The records at these rows: the one written there, or the base's."""
        found, slot = self._slot_of(index)
        below = rows_of(self.base, index)
        return jax.tree.map(lambda old, new: _choose(found, new[slot], old), below, self.record)

    def parts(self) -> tuple[Part, ...]:
        """The rows of the base that still count, and the slots in use."""
        (base,) = parts(self.base)
        # Distinct records have no row of their own, so the rows that were replaced are counted.
        within = None if base.within is None else functools.partial(self._left, base.within)
        base = base._replace(weight=self.left, within=within)
        return (base, Part(self.record, self.written, within=self._written))

    def _written(self, first: Array, stop: Array) -> Array:
        """Which slots in use are for the rows first ≤ k < stop."""
        return self.written & (self.index >= first) & (self.index < stop)

    def _left(self, counted: Callable, first: Array, stop: Array) -> Array:
        """How often each distinct record of the base still counts in the rows first ≤ k < stop."""
        replaced = as_form(self.base).where(jnp.where(self.written, self.index, 0))
        gone = self._written(first, stop)
        return counted(first, stop).at[replaced].add(-gone.astype(self.left.dtype))

    def project(self, domain: Domain) -> tuple["Overlay", Array]:
        """Every record moved into the domain, and how many rows were outside."""
        held, slots = self.parts()
        below, inside = domain.project(held.records)
        record, inside_slots = domain.project(self.record)
        outside = _count_outside(inside, held) + _count_outside(inside_slots, slots)
        below = as_form(self.base).holding(below)
        return dataclasses.replace(self, base=below, record=record), outside

    def apply_edit(self, edit: Edit) -> "Overlay":
        """𝒟 ∘ u, in slots that are added for it; see `compact`."""
        return overlay(self, edit.index.shape[0]).write(edit)

    def serve(self, edit: Edit) -> "Overlay":
        """𝒟 ∘ u in free slots."""
        return self.write(edit)

    def compact(self) -> PyTree:
        """The base with the slots' records in their rows."""
        return as_form(self.base).overwritten(self)

    def write(self, edit: Edit) -> "Overlay":
        """Write the edit into free slots, or into the slots that its rows already have.

        Rows out of range or named twice are dropped. Compiled code cannot raise: there, a row for
        which no slot is free would leave the sums without a replacement, so the drivers reserve
        slots for all requests.

        Raises:
            InputError: the edit needs more slots than are free.
        """
        check_records_match(self, edit)
        accepted = acceptable_rows(edit.index, self.size())
        known, slot = self._slot_of(edit.index)
        fresh = accepted & ~known
        free = jnp.sum(self.written, dtype=jnp.int32) + jnp.cumsum(fresh, dtype=jnp.int32) - 1
        slots = self.index.shape[0]
        slot = jnp.where(known, slot, free)
        beyond = jnp.any(accepted & (slot >= slots))
        if is_concrete(beyond) and bool(beyond):
            raise InputError(
                f"the edit needs more than the overlay's {slots} slots; use dd.apply_edit, which "
                f"adds slots."
            )
        slot = jnp.where(accepted, slot, slots)
        nowhere = self.left.shape[0]
        replaced = jnp.where(
            fresh, as_form(self.base).where(jnp.where(fresh, edit.index, 0)), nowhere
        )
        return Overlay(
            self.base,
            self.left.at[replaced].add(-1, mode="drop"),
            self.index.at[slot].set(edit.index.astype(self.index.dtype), mode="drop"),
            jax.tree.map(
                lambda old, new: old.at[slot].set(new, mode="drop"), self.record, edit.record
            ),
            self.written.at[slot].set(True, mode="drop"),
        )

    def _slot_of(self, index: Array) -> tuple[Array, Array]:
        """Which rows have a slot, and which one."""
        here = (index[:, None] == self.index) & self.written
        return jnp.any(here, axis=1), jnp.argmax(here, axis=1).astype(jnp.int32)


def overlay(database: PyTree, slots: int) -> Overlay:
    """The database with empty slots over it; an overlay gets further slots, it does not nest."""
    if isinstance(database, Overlay):
        empty = overlay(database.base, slots)
        index, record, written = jax.tree.map(
            _join,
            (database.index, database.record, database.written),
            (empty.index, empty.record, empty.written),
        )
        return Overlay(database.base, database.left, index, record, written)
    slots = max(1, slots)
    (base,) = parts(database)
    # A copy, although it starts equal to the base's weights: a donated step takes both arrays, and
    # the same buffer cannot be donated twice.
    whole = jnp.ones(num_records(database), jnp.int8) if base.weight is None else base.weight
    left = jnp.copy(whole)
    blank = jax.tree.map(
        lambda leaf: jnp.zeros((slots, *leaf.shape[1:]), leaf.dtype), records_of(database)
    )
    return Overlay(database, left, jnp.zeros(slots, jnp.int32), blank, jnp.zeros(slots, bool))


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=("record", "weight", "ends", "place"),
    meta_fields=("total", "axis"),
)
@dataclass(frozen=True)
class RowShard(Held):
    """The rows that one device holds of a database split over a mesh axis; for use in shard_map.

    Plain rows lie in order, the same number on every device, and need no map. Distinct records with
    multiplicities have the runs of `Counted`, known to every device, where each place is
    (number of the record on its device) · (number of devices) + (number of the device).

    Attributes:
        record: local records. weight: how often each occurs; 0 for the padding of a device's share.
        ends, place: the runs; None for plain rows.
        total: n over all devices (static). axis: name of the mesh axis (static).
    """

    record: PyTree
    weight: Array
    ends: Any
    place: Any
    total: int
    axis: str

    def size(self) -> int:
        """The number n of records over all devices."""
        return self.total

    def where(self, index: Array) -> Array:
        """Which local record each row has; the number of records for rows of other devices."""
        share, here = self.weight.shape[0], jax.lax.axis_index(_bound(self.axis))
        if self.ends is None:
            device, local = index // share, index % share
        else:
            place = _of_run(self.ends, self.place, index)
            local, device = jnp.divmod(place, jax.lax.axis_size(self.axis))
        return jnp.where(device == here, local, share)

    def rows(self, index: Array) -> PyTree:
        """The records at these rows of the whole database, on every device."""
        local = self.where(index)
        mine = local < self.weight.shape[0]
        found = jax.tree.map(lambda leaf: leaf[jnp.where(mine, local, 0)], self.record)
        blank = jax.tree.map(lambda leaf: _choose(mine, leaf, jnp.zeros_like(leaf)), found)
        return jax.lax.psum(blank, self.axis)

    def parts(self) -> tuple[Part, ...]:
        """The local rows, to be summed over the axis."""
        return (Part(self.record, self.weight, _bound(self.axis)),)

    def overwritten(self, slots: "Overlay") -> "RowShard":
        """Overwrite plain rows where they lie; put new distinct records on the first device.

        The other devices get as many blank records, since all must hold the same number.
        """
        if self.ends is None:
            local = dataclasses.replace(slots, index=self.where(slots.index))
            return self.holding(as_form(self.record).overwritten(local))
        first = jax.lax.axis_index(self.axis) == 0
        share, devices = self.weight.shape[0], jax.lax.axis_size(self.axis)
        number = (share + jnp.arange(slots.index.shape[0], dtype=self.place.dtype)) * devices
        ends, place = _cut_runs(self.ends, self.place, slots, number)
        weight = _join(slots.left, (slots.written & first).astype(slots.left.dtype))
        record = _blank_unused(jax.tree.map(_join, self.record, slots.record), weight)
        return RowShard(record, weight, ends, place, self.total, self.axis)


def _bound(axis: str) -> str:
    """The axis, after a check that this code runs on a mesh that has it."""
    try:
        jax.lax.axis_size(axis)
    except NameError:
        raise InputError(
            "the database's rows are split over a mesh that this call does not have; give the "
            "mesh, or join the rows with dd.sharding.join_rows."
        ) from None
    return axis


def _blank_unused(record: PyTree, count: Array) -> PyTree:
    """Zeros in place of records that no row has."""
    return jax.tree.map(lambda leaf: _choose(count > 0, leaf, jnp.zeros_like(leaf)), record)


def _count_outside(inside: Array, part: Part) -> Array:
    """How many rows have a record outside the domain."""
    count = jnp.sum(jnp.where(inside, 0, part.weight.astype(jnp.int32)), dtype=jnp.int32)
    return count if part.axis is None else jax.lax.psum(count, part.axis)


def _join(first: Array, second: Array) -> Array:
    return jnp.concatenate([first, second])


def _choose(condition: Array, new: Array, old: Array) -> Array:
    """Rows of `new` where the condition holds, of `old` elsewhere."""
    return jnp.where(condition.reshape(-1, *(1,) * (new.ndim - 1)), new, old)
