"""A database that stays in host memory or in a file, and visits the device chunk by chunk.

    rows = dd.on_host(dd.Labelled(np.load("features.npy", mmap_mode="r"), labels))

Every sum over its records fetches one chunk after the other inside the compiled program, so that
the device holds a chunk and never the n·d numbers; `learn` and `delete` are the same programs as
for rows on the device, and their numbers are the same up to rounding. Chunks are fetched in turn:
the transfer is not hidden behind the computation.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from dd_jax.databases import Form
from dd_jax.errors import InputError
from dd_jax.types import Domain, Part, check_finite, num_records

# Rows that are looked at together on the host.
CHECKED_ROWS = 2**16


@dataclass(frozen=True, eq=False)
class _Source:
    """Arrays of the host, static under jit and told apart by identity."""

    leaves: PyTree


@functools.partial(
    jax.tree_util.register_dataclass, data_fields=(), meta_fields=("source", "domain", "precision")
)
@dataclass(frozen=True)
class HostRows(Form):
    """Rows on the host; build it with `on_host`. Edits lay an `Overlay` over it.

    Do not change the arrays while it is in use.

    Attributes:
        source: the arrays.
        domain: where set, every record is moved into it when it is fetched.
        precision: where set, the type that floating-point numbers get once they are on the device;
            they arrive there as singles, since JAX's callbacks know no `jax.enable_x64`.
    """

    source: _Source
    domain: Domain | None = None
    precision: Any = None

    def size(self) -> int:
        """N, the number of records."""
        return num_records(self.source.leaves)

    def example(self) -> PyTree:
        """One blank row of the right shapes."""
        blank = jax.tree.map(
            lambda leaf: jnp.zeros((1, *leaf.shape[1:]), self._arrives_as(leaf)), self.source.leaves
        )
        return self._in_precision(blank)

    def stored(self) -> tuple[PyTree, ...]:
        """The arrays."""
        return (self.source.leaves,)

    def check(self, domain: Domain) -> None:
        """Refuse NaN and records outside the domain, naming the row; block by block."""
        for first, rows in self._blocks():
            try:
                check_finite(rows)
                domain.check(rows)
            except InputError as error:
                raise InputError(f"in the rows from {first} on: {error}") from None

    def rows(self, index: Array) -> PyTree:
        """The records at these rows."""
        return self._fetch(lambda leaf, rows: leaf[np.asarray(rows)], index, index.shape)

    def cut(self, first: Array | int, count: int) -> PyTree:
        """`count` consecutive records."""
        start = jnp.asarray(first, jnp.int32)
        return self._fetch(lambda leaf, at: leaf[int(at) : int(at) + count], start, (count,))

    def parts(self) -> tuple[Part, ...]:
        """One part: itself, to be cut into chunks."""
        return (Part(self, None),)

    def project(self, domain: Domain) -> tuple["HostRows", Array]:
        """Every record moved into the domain when it is fetched, and how many are outside."""
        with jax.ensure_compile_time_eval():
            outside = sum(
                int(jnp.sum(~domain.project(jax.tree.map(jnp.asarray, rows))[1]))
                for _, rows in self._blocks()
            )
        return replace(self, domain=domain), jnp.asarray(outside, jnp.int32)

    def _blocks(self):
        for first in range(0, self.size(), CHECKED_ROWS):
            block = slice(first, first + CHECKED_ROWS)
            yield first, jax.tree.map(lambda leaf, block=block: leaf[block], self.source.leaves)

    def _fetch(self, take: Callable, where: Array, shape: tuple[int, ...]) -> PyTree:
        leaves = self.source.leaves
        shapes = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct((*shape, *leaf.shape[1:]), self._arrives_as(leaf)),
            leaves,
        )

        def fetch(where):
            return jax.tree.map(
                lambda leaf, like: np.asarray(take(leaf, where), like.dtype), leaves, shapes
            )

        arrived = jax.pure_callback(fetch, shapes, where, vmap_method="broadcast_all")
        records = self._in_precision(arrived)
        return records if self.domain is None else self.domain.project(records)[0]

    def _arrives_as(self, leaf: Any) -> np.dtype:
        """The type of a leaf's numbers: of single precision unless 64 bits are enabled."""
        if self.precision is None:
            return jax.dtypes.canonicalize_dtype(leaf.dtype)
        with jax.enable_x64(False):
            return jax.dtypes.canonicalize_dtype(leaf.dtype)

    def _in_precision(self, records: PyTree) -> PyTree:
        if self.precision is None:
            return records
        return jax.tree.map(
            lambda leaf: leaf.astype(self.precision) if leaf.dtype == np.float32 else leaf, records
        )


def on_host(database: PyTree) -> HostRows:
    """A database of NumPy arrays (memory-mapped ones too) that stays where it is.

    Raises:
        InputError: arrays of the device, which are there already.
    """
    if any(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(database)):
        raise InputError(
            "the database holds arrays of the device; give NumPy arrays, or use it as it is."
        )
    num_records(database)
    return HostRows(_Source(database))
