"""Sums over a database's rows, chunk by chunk: what every gradient and objective is made of."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from dd_jax.databases import parts
from dd_jax.types import Part, num_records

# Rows per pass where nobody says otherwise and a form cannot see how many models there are.
DEFAULT_ROWS = 1024


def weighted(values: Array, weight: Array | None) -> Array:
    """Rows times their weights."""
    if weight is None:
        return values
    return values * weight.astype(values.dtype).reshape(-1, *(1,) * (values.ndim - 1))


def sum_over_parts(one_part: Callable[[Part], Any], database: PyTree) -> PyTree:
    """Σ of `one_part(part)` over what a database is made of; one all-reduce per split part."""
    totals = []
    for part in parts(database):
        total = one_part(part)
        totals.append(total if part.axis is None else jax.lax.psum(total, part.axis))
    return jax.tree.map(lambda *leaves: functools.reduce(jnp.add, leaves), *totals)


def sum_over_rows(one_chunk: Callable[..., Any], database: PyTree, row_chunk: int | None) -> PyTree:
    """Σ of `one_chunk(records, weight)` over chunks of a database's rows (None: of 1024)."""
    rows = DEFAULT_ROWS if row_chunk is None else row_chunk
    return sum_over_parts(lambda part: sum_over_chunks(one_chunk, part, rows), database)


def sum_over_chunks(one_chunk: Callable[..., Any], part: Part, row_chunk: int) -> PyTree:
    """Add up `one_chunk` over consecutive rows; the last, shorter chunk is done apart."""
    chunks, rest = divmod(num_records(part.records), row_chunk)
    rows = (part.records, part.weight)

    def add(total, chunk):
        here = _cut(rows, chunk * row_chunk, row_chunk)
        return jax.tree.map(jnp.add, total, one_chunk(*here)), None

    total = one_chunk(*(_cut(rows, chunks * row_chunk, rest) if rest else _cut(rows, 0, row_chunk)))
    if chunks + bool(rest) <= 1:
        return total
    return jax.lax.scan(add, total, jnp.arange(0 if rest else 1, chunks))[0]


def _cut(rows: PyTree, first: Array | int, count: int) -> PyTree:
    """Consecutive rows, one cut at a time: a database reshaped into chunks may be a copy of it."""
    return jax.tree.map(lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, first, count), rows)
