"""The same program on many devices: seeds along one axis of a mesh, rows along the other.

Seeds never talk to each other, so spreading them needs no communication; a database whose rows are
split needs one sum over devices per step. Both are `jax.shard_map` over a mesh of `jax.devices()`,
which are those of all processes once `jax.distributed` runs (`initialise`).
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import PyTree

from dd_jax.databases import RowShard
from dd_jax.errors import InputError
from dd_jax.types import Compact, num_records

SEEDS, DATA = "seeds", "data"


def make_mesh(
    seeds: int | None = None, data: int = 1, *, devices: Sequence[Any] | None = None
) -> Mesh:
    """A mesh over (seeds, data): how many devices share the seeds, how many the rows.

    Args:
        seeds: devices along the seeds axis; by default all that `data` leaves.
        data: devices along the data axis.
        devices: the devices to use; by default those of all processes.

    Raises:
        InputError: another number of devices than there are.
    """
    found = list(jax.devices() if devices is None else devices)
    if data < 1 or (seeds is None and len(found) % data):
        raise InputError(f"data = {data}; give a divisor of the {len(found)} devices.")
    seeds = len(found) // data if seeds is None else seeds
    if seeds < 1 or seeds * data > len(found):
        raise InputError(
            f"a mesh of {seeds} × {data} needs {seeds * data} devices; there are {len(found)}."
        )
    return Mesh(np.array(found[: seeds * data]).reshape(seeds, data), (SEEDS, DATA))


def split_rows(database: PyTree, mesh: Mesh) -> RowShard:
    """A plain database with its rows spread over the mesh's data axis.

    Give it to `dd.over_seeds` with the same mesh. Rows that fill the last device's share count
    nothing.
    """
    if isinstance(database, Compact):
        raise InputError(
            f"the database is of type {type(database).__name__}; split plain rows (dd.expand)."
        )
    n = num_records(database)
    devices = mesh.shape[DATA]
    share = math.ceil(n / devices)
    place = NamedSharding(mesh, PartitionSpec(DATA))

    def spread(leaf):
        rows = np.asarray(leaf)
        padded = np.concatenate(
            [rows, np.zeros((share * devices - n, *rows.shape[1:]), rows.dtype)]
        )
        return jax.make_array_from_callback(padded.shape, place, lambda index: padded[index])

    weight = spread(np.ones(n, np.int32))
    return RowShard(jax.tree.map(spread, database), weight, n, DATA)


def round_up(chunk: int, mesh: Mesh) -> int:
    """The least number of seeds ≥ chunk that the devices share evenly."""
    devices = mesh.shape[SEEDS]
    return math.ceil(chunk / devices) * devices


def over_mesh(run: Callable, mesh: Mesh, args: PyTree) -> Callable:
    """`run(seeds, key, args)` with seeds, and the rows of split databases, spread over a mesh."""

    def spec(leaf):
        rows = PartitionSpec(DATA) if isinstance(leaf, RowShard) else PartitionSpec()
        return jax.tree.map(lambda _: rows, leaf)

    specs = jax.tree.map(spec, args, is_leaf=lambda leaf: isinstance(leaf, RowShard))
    seeds = PartitionSpec(SEEDS)
    # Every device of a data axis ends a step with the same sum; the check cannot see that through a
    # scan.
    return jax.shard_map(
        run,
        mesh=mesh,
        in_specs=(seeds, PartitionSpec(), specs),
        out_specs=seeds,
        check_vma=False,
    )
