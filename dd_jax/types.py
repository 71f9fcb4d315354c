"""The paper's vocabulary: edits, mechanisms, the record domain, curator state, transcript.

A database 𝒟 is any pytree whose leaves share a leading axis of n records. An edit request u
replaces records at r distinct rows, atomically, so n never changes (`dfn:updreq`). Everything
here is a NamedTuple of arrays or of pure functions and passes through jit, vmap and scan.
"""

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Bool, Int, PyTree

from dd_jax.errors import InputError


class Labelled(NamedTuple):
    """A supervised record x = (a, y); as a database its leaves carry the leading axis n."""

    features: Any
    label: Any


class Edit(NamedTuple):
    """An edit request u = {⟨ind_j, y_j⟩}: r replacements at distinct rows, applied at once."""

    index: Int[Array, "r"]
    record: PyTree


class Domain(NamedTuple):
    """The record domain 𝒳 that a guarantee's constants are valid on.

    Attributes:
        describe: the domain in words, as certificates print it.
        check: `records -> None`; raises `InputError` at the host boundary, naming the row.
        project: `records -> (records, inside)`; moves every record into 𝒳 and marks the ones that
            were there already; pure, for use inside a scan where nothing can be raised.
    """

    describe: str
    check: Callable[[PyTree], None]
    project: Callable[[PyTree], tuple[PyTree, Bool[Array, "n"]]]


def project_finite(records: PyTree) -> tuple[PyTree, Array]:
    """Blank every record that holds NaN or infinity (zeros in its floating leaves), and mark it."""
    n = num_records(records)
    inside = jnp.ones(n, dtype=bool)
    for leaf in jax.tree.leaves(records):
        if jnp.issubdtype(leaf.dtype, jnp.inexact):
            inside &= jnp.all(jnp.isfinite(leaf), axis=tuple(range(1, leaf.ndim)))

    def blank(leaf):
        if not jnp.issubdtype(leaf.dtype, jnp.inexact):
            return leaf
        return jnp.where(inside.reshape(n, *(1,) * (leaf.ndim - 1)), leaf, jnp.zeros_like(leaf))

    return jax.tree.map(blank, records), inside


def _check_any(records: PyTree) -> None:
    check_finite(records)


ANY_RECORD = Domain("any finite record", _check_any, project_finite)


def publish_model(key: Array, state: PyTree) -> PyTree:
    """f_pub(θ) = θ: the model itself is released and nothing stays secret (a stateless curator)."""
    del key
    return state


NO_PLAN = np.zeros(4, np.uint32)
NO_RUN = np.zeros(2, np.uint32)


class Mechanism(NamedTuple):
    """A curator (A, Ā, f_pub) and the record domain that it admits.

    Attributes:
        learn: A, `(key, database) -> state`.
        delete: Ā, `(key, before, edit, after, state) -> state` with the database before and after
            the edit; the driver applies the edit: before ∘ edit = after.
        publish: f_pub, `(key, state) -> release`. Statelessness in the paper's sense is visible
            here: a mechanism with a secret state publishes something other than its (rounded)
            state.
        domain: 𝒳; the driver enforces it on the database and on every edit.
        plan: the plan that it was made from, or None.
    """

    learn: Callable[[Array, PyTree], PyTree]
    delete: Callable[[Array, PyTree, Edit, PyTree, PyTree], PyTree]
    publish: Callable[[Array, PyTree], PyTree] = publish_model
    domain: Domain = ANY_RECORD
    plan: Any = None

    @property
    def fingerprint(self) -> np.ndarray:
        """Four words that distinguish its plan from others; zeros where it has none."""
        words = (0, 0, 0, 0) if self.plan is None else self.plan.fingerprint
        return np.asarray(words, np.uint32)


class CuratorState(NamedTuple):
    """What the curator holds between requests; all of it is needed to continue (`dd.save`).

    Attributes:
        params: the mechanism's state. For a stateless curator this is the model before rounding,
            which is not what is published.
        database: 𝒟_i.
        served: i, the number of requests served so far.
        plan: fingerprint of the mechanism's plan.
        run: two words that distinguish this curator from others of the same plan.
        looked: whether the newest release was shown to a requester whose request was not served.
    """

    params: PyTree
    database: PyTree
    served: Any = np.int32(0)
    plan: Any = NO_PLAN
    run: Any = NO_RUN
    looked: Any = np.bool_(False)


class Transcript(NamedTuple):
    """What happened in an interaction of i requests, for the analyst.

    Attributes:
        releases: φ_0 … φ_i, leaves with leading axis i + 1.
        edits: u_1 … u_i as they were applied, leaves with leading axis i.
        observed: which of φ_0 … φ_{i-1} the requester was shown; its sum is the p of p-adaptivity.
        projected: per request, records that lay outside the domain and were moved into it.
        rejected: per request, replacements not applied because their row was out of range or
            named twice.
        projected_initially: records of 𝒟_0 that were moved into the domain.
        unchanged: in the record's structure, per request and row: whether the row already held
            exactly this value. Where this is true in all leaves, nothing was replaced: the row had
            been deleted before.
        served_before: requests that were served before this transcript began.
        n: number of records.
        plan: fingerprint of the mechanism's plan.
        run: two words that name the curator, the same in all of its transcripts.
    """

    releases: PyTree
    edits: Edit
    observed: Bool[Array, "i"]
    projected: Int[Array, "i"]
    rejected: Int[Array, "i"]
    projected_initially: Int[Array, ""]
    unchanged: PyTree = None
    served_before: Any = np.int32(0)
    n: Any = np.int32(0)
    plan: Any = NO_PLAN
    run: Any = NO_RUN


class Part(NamedTuple):
    """Rows that a sum over a database's records runs over.

    Attributes:
        records: leaves with a leading axis.
        weight: how often each row counts; None for once.
        axis: the mesh axis that the rows are split over, or None.
        within: `(first, stop) -> weight`, how often each record counts in the rows first ≤ k <
            stop alone; None where record k is row k, so that these rows can be cut out.
    """

    records: PyTree
    weight: Any
    axis: str | None = None
    within: Callable[[Array, Array], Array] | None = None


class Form(ABC):
    """A form of a database: plain rows, or one of the other forms in `dd_jax.databases`.

    The library uses a database only through these methods, so that a new form is one class.

    Attributes:
        overlaid: whether a driver serves requests from an overlay instead of a changed copy.
    """

    overlaid = True

    @abstractmethod
    def size(self) -> int:
        """The number n of records that it stands for."""

    @abstractmethod
    def example(self) -> PyTree:
        """Rows with the structure, the shapes and the types of its records."""

    @abstractmethod
    def rows(self, index: Array) -> PyTree:
        """The records at these rows."""

    @abstractmethod
    def parts(self) -> tuple[Part, ...]:
        """The parts that a sum over its records runs over."""

    @abstractmethod
    def stored(self) -> tuple[PyTree, ...]:
        """The records that are held, so that their values can be checked."""

    @abstractmethod
    def project(self, domain: "Domain") -> tuple[Any, Array]:
        """The database with every record moved into the domain, and how many were outside."""

    @abstractmethod
    def apply_edit(self, edit: Edit) -> Any:
        """𝒟 ∘ u."""

    def serve(self, edit: Edit) -> Any:
        """𝒟 ∘ u for a driver that has already reserved room for all of its edits."""
        return self.apply_edit(edit)

    def compact(self) -> Any:
        """The same rows, in arrays that hold none of the records that edits replaced."""
        return self


class Rows(Form):
    """A form that an overlay may lie over: the records held, and which of them each row has."""

    record: PyTree

    @abstractmethod
    def where(self, index: Array) -> Array:
        """Which held record each row has; the number of held records for rows of other devices."""

    @abstractmethod
    def holding(self, record: PyTree) -> Any:
        """The database with these records in place of the ones that are held."""

    @abstractmethod
    def overwritten(self, slots: Any) -> Any:
        """The database with an overlay's records in their rows, without the replaced records."""

    def example(self) -> PyTree:
        """The records that are held."""
        return self.record

    def stored(self) -> tuple[PyTree, ...]:
        """The records that are held, as one tree."""
        return (self.record,)


class Plain(Rows):
    """One row per record: a pytree whose leaves share a leading axis."""

    overlaid = False

    def __init__(self, record: PyTree):
        self.record = record

    def size(self) -> int:
        """The leading axis shared by all leaves."""
        leaves = jax.tree.leaves(self.record)
        if not leaves:
            raise InputError(
                "the database has no arrays; give a pytree whose leaves share a row axis."
            )
        shapes = [np.shape(leaf) for leaf in leaves]
        if any(not shape for shape in shapes) or len({shape[0] for shape in shapes}) > 1:
            raise InputError(
                f"the database's leaves have shapes {shapes}; "
                f"give every leaf the same leading axis n."
            )
        return shapes[0][0]

    def rows(self, index: Array) -> PyTree:
        """The records at these rows."""
        return jax.tree.map(lambda leaf: leaf[index], self.record)

    def parts(self) -> tuple[Part, ...]:
        """All rows, each once."""
        return (Part(self.record, None),)

    def project(self, domain: Domain) -> tuple[PyTree, Array]:
        """Every row moved into the domain, and how many were outside."""
        records, inside = domain.project(self.record)
        return records, jnp.sum(~inside, dtype=jnp.int32)

    def apply_edit(self, edit: Edit) -> PyTree:
        """𝒟 ∘ u, a copy with some rows overwritten."""
        check_records_match(self.record, edit)
        n = self.size()
        return self._with_rows(jnp.where(acceptable_rows(edit.index, n), edit.index, n), edit)

    def compact(self) -> PyTree:
        """The rows themselves: nothing else is held."""
        return self.record

    def where(self, index: Array) -> Array:
        """Row i is record i."""
        return index

    def holding(self, record: PyTree) -> PyTree:
        """Other rows."""
        return record

    def overwritten(self, slots: Any) -> PyTree:
        """The rows with the records of the slots in use written into them."""
        return self._with_rows(jnp.where(slots.written, slots.index, self.size()), slots)

    def _with_rows(self, index: Array, new: Any) -> PyTree:
        """`new.record` in these rows; an index beyond the last row drops its record."""
        return jax.tree.map(
            lambda leaf, row: jnp.asarray(leaf).at[index].set(row, mode="drop"),
            self.record,
            new.record,
        )


def as_form(database: PyTree) -> Any:
    """The database as its `Form`."""
    return database if isinstance(database, Form) else Plain(database)


def num_records(database: PyTree) -> int:
    """The number n of records: the leading axis shared by all leaves."""
    return as_form(database).size()


def apply_edit(database: PyTree, edit: Edit) -> PyTree:
    """𝒟 ∘ u: replace the edit's rows, all at once.

    Pure; works under jit, vmap and scan, and commutes for edits of disjoint rows (`dfn:updreq`).
    What a row held before its last edit leaves no trace (`rem:non_adap_independence`).
    Rows outside [0, n) and second mentions of a row are dropped: use `check_edit` to refuse them on
    the host, or read `Transcript.rejected`.

    Raises:
        InputError: the records have another structure, shape or dtype than the database's rows.
            Nothing is ever broadcast or cast into a row.
    """
    return as_form(database).apply_edit(edit)


def count_rejected(database: PyTree, edit: Edit) -> Int[Array, ""]:
    """Count the edit's replacements that `apply_edit` drops (row out of range or repeated)."""
    return jnp.sum(~acceptable_rows(edit.index, num_records(database)), dtype=jnp.int32)


def acceptable_rows(index: Array, n: int) -> Array:
    """Which of an edit's replacements `apply_edit` makes: in range, first mention of their row."""
    position = jnp.arange(index.shape[0])
    earlier = (index[:, None] == index[None, :]) & (position[None, :] < position[:, None])
    return (index >= 0) & (index < n) & ~jnp.any(earlier, axis=1)


def replacement(indices, records: PyTree) -> Edit:
    """The edit that puts `records` (leading axis r) into the given rows (`dfn:updreq`).

    Raises:
        InputError: the indices are not whole numbers that can name a row.
    """
    rows = np.atleast_1d(np.asarray(indices))
    if rows.size and not np.issubdtype(rows.dtype, np.integer):
        raise InputError(
            f"rows {rows.tolist()} have dtype {rows.dtype}; give row numbers as whole numbers."
        )
    if rows.size and (rows.max() > np.iinfo(np.int32).max or rows.min() < 0):
        wrong = rows[(rows > np.iinfo(np.int32).max) | (rows < 0)][0]
        raise InputError(f"row {wrong} is out of range; rows run from 0 to n - 1.")
    return Edit(index=jax.device_put(rows.astype(np.int32)), record=records)


def is_concrete(tree: PyTree) -> bool:
    """Whether every leaf holds values that the host can look at (no tracers)."""
    return not any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(tree))


def dtype_of(leaf) -> np.dtype:
    """The type that JAX gives a leaf; JAX's own arrays do not need the slow `result_type`."""
    return leaf.dtype if isinstance(leaf, jax.Array) else jnp.result_type(leaf)


def check_finite(records: PyTree, what: str = "the database") -> None:
    """Refuse NaN and infinity in floating-point leaves, naming the row."""
    if all(map(_is_finite, jax.tree.leaves(records))):
        return
    for path, leaf in jax.tree.leaves_with_path(records):
        if not _is_finite(leaf):
            array = np.asarray(leaf)
            finite = np.isfinite(array).reshape(array.shape[0], -1).all(axis=1)
            name = jax.tree_util.keystr(path) or "the records"
            raise InputError(
                f"{what} holds NaN or infinity in row {np.flatnonzero(~finite)[0]} of {name}; "
                f"remove or impute that record first."
            )


def _is_finite(leaf) -> bool:
    array = np.asarray(leaf)
    return array.dtype.kind in "biuSU" or bool(np.isfinite(array).all())


def check_edit(database: PyTree, edit: Edit, domain: Domain = ANY_RECORD) -> None:
    """Refuse an edit that cannot be applied exactly as given, before anything is changed.

    Raises:
        InputError: the edit is empty, longer than the database, names a row twice or out of range,
            or its records have another structure, shape or dtype than the database's, or are not
            finite, or lie outside the domain.
    """
    if not isinstance(edit, Edit):
        raise InputError(
            f"the edit is of type {type(edit).__name__}; "
            f"build it with dd.deletion or dd.replacement."
        )
    n = num_records(database)
    _check_rows(np.asarray(edit.index), n)
    check_records_match(database, edit)
    check_finite(edit.record, "the edit")
    domain.check(edit.record)


def _check_rows(index: np.ndarray, n: int) -> None:
    if index.ndim != 1 or not np.issubdtype(index.dtype, np.integer):
        raise InputError(
            f"edit.index has shape {index.shape} and dtype {index.dtype}; "
            f"give a vector of row numbers."
        )
    if index.size == 0:
        raise InputError("the edit is empty; name at least one row to replace.")
    if index.size > n:
        raise InputError(
            f"the edit names {index.size} rows of a database of {n}; name at most {n}."
        )
    # In plain Python: edits are short, and between two requests a call of NumPy is far slower than
    # repeated, because the steps have just filled the caches with other data.
    rows = sorted(index.tolist())
    if rows[0] < 0 or rows[-1] >= n:
        outside = rows[0] if rows[0] < 0 else rows[-1]
        raise InputError(f"row {outside} is out of range; rows run from 0 to {n - 1}.")
    for row, following in itertools.pairwise(rows):
        if row == following:
            raise InputError(f"row {row} is named twice; an edit's rows are distinct.")


def check_records_match(database: PyTree, edit: Edit) -> None:
    """Refuse records of another structure, shape or dtype than the database's rows.

    These facts are static, so this check also works inside jit and scan.
    """
    database = as_form(database).example()
    if jax.tree.structure(database) != jax.tree.structure(edit.record):
        raise InputError(
            f"the edit's records have structure {jax.tree.structure(edit.record)}, the database "
            f"{jax.tree.structure(database)}; build the records with the database's own type."
        )
    r = np.shape(edit.index)[0]
    for old, new in zip(jax.tree.leaves(database), jax.tree.leaves(edit.record), strict=True):
        expected = (r, *np.shape(old)[1:])
        if np.shape(new) != expected:
            raise InputError(
                f"the edit's records have shape {np.shape(new)}; "
                f"{r} rows of this database need shape {expected}."
            )
        if dtype_of(new) != dtype_of(old):
            raise InputError(
                f"the edit's records have dtype {dtype_of(new)}; "
                f"convert them to the database's {dtype_of(old)}."
            )
