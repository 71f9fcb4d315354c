"""Databases in other forms than one row per record, with the same meaning.

    Counted     distinct records with multiplicities: a step costs their number, not n
    Overlay     a shared database and the rows that edits replaced in it
    RowShard    the rows that one device of a mesh holds (`dd_jax.sharding`)
    HostRows    rows that stay in host memory or in a file (`dd_jax.host_rows`)

Under a vmap over seeds, edits that depend on the seed would copy a plain database for every seed,
n·d·S numbers; an overlay keeps the base once and carries n·d + 2·S·i·r·d for i requests of r rows.
The forms nest. Each says what it is made of (`parts`), and the gradient is a sum over parts: an
overlay adds its new records and takes away those they replaced, so that it equals the plain form up
to rounding.
"""

import dataclasses
import functools
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from dd_jax.errors import InputError
from dd_jax.types import (
    Compact,
    Domain,
    Edit,
    Part,
    acceptable_rows,
    check_finite,
    check_records_match,
    num_records,
)


def parts(database: PyTree) -> tuple[Part, ...]:
    """What sums over a database's records are made of."""
    return database.parts() if isinstance(database, Compact) else (Part(database, None),)


def records_of(database: PyTree) -> PyTree:
    """Rows with the structure, the shapes and the types of the database's records."""
    return database.example() if isinstance(database, Compact) else database


def rows_of(database: PyTree, index: Array) -> PyTree:
    """The records at these rows, which must be in range."""
    if isinstance(database, Compact):
        return database.rows(index)
    return jax.tree.map(lambda leaf: leaf[index], database)


def project(domain: Domain, database: PyTree) -> tuple[PyTree, Array]:
    """Every record moved into the domain, and how many were outside."""
    if isinstance(database, Compact):
        return database.project(domain)
    records, inside = domain.project(database)
    return records, jnp.sum(~inside, dtype=jnp.int32)


def check(domain: Domain, database: PyTree) -> None:
    """Refuse a database with no rows, NaN, or records outside the domain.

    Raises:
        InputError: names the row.
    """
    if num_records(database) < 1:
        raise InputError("the database is empty; give at least one record.")
    if isinstance(database, Form):
        database.check(domain)
    else:
        check_finite(database)
        domain.check(database)


class Form(Compact):
    """What the forms share: an edit lies in slots of its own, on top."""

    def apply_edit(self, edit: Edit) -> "Overlay":
        """𝒟 ∘ u."""
        return overlay(self, edit.index.shape[0]).write(0, edit)

    def stored(self) -> tuple[PyTree, ...]:
        """The records that are held, for a look at their values."""
        return (self.example(),)

    def check(self, domain: Domain) -> None:
        """Refuse NaN and records outside the domain, naming the row."""
        for records in self.stored():
            check_finite(records)
            domain.check(records)


@functools.partial(
    jax.tree_util.register_dataclass, data_fields=("record", "count"), meta_fields=("total",)
)
@dataclass(frozen=True)
class Counted(Form):
    """Distinct records and how often each occurs; build it with `compress`.

    Row numbers are those of the expanded database: record 0 fills the first count[0] rows, and so
    on. Edits lay an `Overlay` over it.

    Attributes:
        record: distinct records, leaves with leading axis m.
        count: multiplicities, whole numbers.
        total: n, their sum (static).
    """

    record: PyTree
    count: Array
    total: int

    def size(self) -> int:
        """N, the number of records."""
        return self.total

    def example(self) -> PyTree:
        """The distinct records."""
        return self.record

    def rows(self, index: Array) -> PyTree:
        """The records at rows of the expanded database."""
        place = jnp.searchsorted(jnp.cumsum(self.count), index, side="right")
        return jax.tree.map(lambda leaf: leaf[place], self.record)

    def parts(self) -> tuple[Part, ...]:
        """One part: the distinct records, weighted by their counts."""
        return (Part(self.record, self.count),)

    def project(self, domain: Domain) -> tuple["Counted", Array]:
        """Every record moved into the domain, and how many were outside."""
        record, inside = domain.project(self.record)
        outside = jnp.sum(jnp.where(inside, 0, self.count), dtype=jnp.int32)
        return Counted(record, self.count, self.total), outside


def compress(database: PyTree) -> Counted:
    """The distinct records of a database with their multiplicities, on the host.

    `expand` gives back the same records in another order: equal ones stand together.

    Raises:
        InputError: the database has no rows, or is in another form already.
    """
    if isinstance(database, Compact):
        raise InputError(
            f"the database is of type {type(database).__name__}; give plain rows to compress."
        )
    n = num_records(database)
    if n == 0:
        raise InputError("the database has no rows; give at least one record.")
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(database)]
    raw = [np.ascontiguousarray(leaf).reshape(n, -1).view(np.uint8) for leaf in leaves]
    _, first, count = np.unique(
        np.concatenate(raw, axis=1), axis=0, return_index=True, return_counts=True
    )
    record = jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf)[first]), database)
    return Counted(record, jnp.asarray(count, jnp.int32), n)


def counted(record: PyTree, count) -> Counted:
    """Records with given multiplicities.

    Raises:
        InputError: counts that are not one whole number ≥ 0 per record, or that sum to nothing.
    """
    number = np.asarray(count)
    whole = np.issubdtype(number.dtype, np.integer) and number.shape == (num_records(record),)
    if not whole or (number < 0).any() or not 0 < number.sum() <= np.iinfo(np.int32).max:
        raise InputError(
            f"count has dtype {number.dtype} and shape {number.shape} for {num_records(record)} "
            f"records; give one whole number ≥ 0 per record, not all zero."
        )
    return Counted(record, jnp.asarray(number, jnp.int32), int(number.sum()))


def expand(database: PyTree) -> PyTree:
    """The plain form of a database: one row per record, with every edit made."""
    if not isinstance(database, Compact):
        return database
    return rows_of(database, jnp.arange(num_records(database)))


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=("base", "index", "record", "previous", "written"),
    meta_fields=(),
)
@dataclass(frozen=True)
class Overlay(Form):
    """A database that is not touched, and slots for the records that replace some of its rows.

    A slot remembers the record that it replaced, so that a row can be replaced again and again.

    Attributes:
        base: the database below, of any form.
        index: (slots,) rows; of no meaning where nothing was written.
        record: the records put there. previous: the records that they replaced.
        written: (slots,) which slots are in use.
    """

    base: PyTree
    index: Array
    record: PyTree
    previous: PyTree
    written: Array

    def size(self) -> int:
        """N, the number of records."""
        return num_records(self.base)

    def example(self) -> PyTree:
        """Records of the base."""
        return records_of(self.base)

    def stored(self) -> tuple[PyTree, ...]:
        """The base's records, and those written over them."""
        base = self.base.stored() if isinstance(self.base, Compact) else (self.base,)
        used = np.flatnonzero(np.asarray(self.written))
        if not used.size:
            return base
        return (*base, jax.tree.map(lambda leaf: leaf[used], self.record))

    def rows(self, index: Array) -> PyTree:
        """The records at these rows: the last one written there, or the base's."""
        slot = jnp.arange(self.index.shape[0])
        here = (index[:, None] == self.index) & self.written
        last = jnp.max(jnp.where(here, slot, -1), axis=1)
        below = rows_of(self.base, index)
        return jax.tree.map(lambda old, new: _choose(last >= 0, new[last], old), below, self.record)

    def parts(self) -> tuple[Part, ...]:
        """The base's parts, then the new records (+1) and those that they replaced (-1)."""
        both = jax.tree.map(lambda a, b: jnp.concatenate([a, b]), self.record, self.previous)
        sign = self.written.astype(jnp.int32)
        return (*parts(self.base), Part(both, jnp.concatenate([sign, -sign])))

    def project(self, domain: Domain) -> tuple["Overlay", Array]:
        """Every record moved into the domain, and how many of the base were outside."""
        base, outside = project(domain, self.base)
        record, previous = domain.project(self.record)[0], domain.project(self.previous)[0]
        return Overlay(base, self.index, record, previous, self.written), outside

    def write(self, first, edit: Edit) -> "Overlay":
        """The edit in the slots from `first` on; rows out of range or named twice are dropped."""
        check_records_match(self, edit)
        accepted = acceptable_rows(edit.index, self.size())
        previous = self.rows(jnp.where(accepted, edit.index, 0))

        def put(old, new):
            return jax.lax.dynamic_update_slice_in_dim(old, new, first, axis=0)

        return Overlay(
            self.base,
            put(self.index, edit.index.astype(self.index.dtype)),
            jax.tree.map(put, self.record, edit.record),
            jax.tree.map(put, self.previous, previous),
            put(self.written, accepted),
        )


def overlay(database: PyTree, slots: int) -> Overlay:
    """A database with empty slots over it."""

    def blank() -> PyTree:
        # Arrays of their own for old and new records: a donated step may take both.
        return jax.tree.map(
            lambda leaf: jnp.zeros((slots, *leaf.shape[1:]), leaf.dtype), records_of(database)
        )

    return Overlay(database, jnp.zeros(slots, jnp.int32), blank(), blank(), jnp.zeros(slots, bool))


def stack_slots(*overlays: Overlay) -> Overlay:
    """The slots of overlays over one base, stacked, without the base: it is there once.

    Take one of them and lay it over the base again with `dataclasses.replace(slots, base=base)`.
    """
    slots = [dataclasses.replace(each, base=None) for each in overlays]
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *slots)


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=("record", "weight", "first"),
    meta_fields=("total", "axis"),
)
@dataclass(frozen=True)
class RowShard(Form):
    """The rows that this device holds of a database split over a mesh axis; inside shard_map only.

    Attributes:
        record: local records. weight: how often each occurs; 0 for what pads a device's share.
        first: the number of each record's first row in the whole database.
        total: n over all devices (static). axis: name of the mesh axis (static).
    """

    record: PyTree
    weight: Array
    first: Array
    total: int
    axis: str

    def size(self) -> int:
        """N, the number of records over all devices."""
        return self.total

    def example(self) -> PyTree:
        """Local rows."""
        return self.record

    def rows(self, index: Array) -> PyTree:
        """The records at these rows of the whole database, on every device."""
        ends = self.first + self.weight
        local = jnp.searchsorted(ends, index, side="right")
        mine = (index >= self.first[0]) & (index < ends[-1])
        found = jax.tree.map(lambda leaf: leaf[jnp.where(mine, local, 0)], self.record)
        blank = jax.tree.map(lambda leaf: _choose(mine, leaf, jnp.zeros_like(leaf)), found)
        return jax.lax.psum(blank, self.axis)

    def parts(self) -> tuple[Part, ...]:
        """The local rows, to be summed over the axis."""
        return (Part(self.record, self.weight, self.axis),)

    def project(self, domain: Domain) -> tuple["RowShard", Array]:
        """Every record moved into the domain, and how many were outside."""
        record, inside = domain.project(self.record)
        outside = jnp.sum(jnp.where(inside, 0, self.weight), dtype=jnp.int32)
        shard = RowShard(record, self.weight, self.first, self.total, self.axis)
        return shard, jax.lax.psum(outside, self.axis)


def _choose(condition: Array, new: Array, old: Array) -> Array:
    """Rows of `new` where the condition holds, of `old` elsewhere."""
    return jnp.where(condition.reshape(-1, *(1,) * (new.ndim - 1)), new, old)
