"""The same program on many devices: seeds along one axis of a mesh, rows along the other.

Seeds are independent, so spreading them needs no communication; a database whose rows are split
needs one sum over devices per step. Both use `jax.shard_map` over a mesh of `jax.devices()`, which
are the devices of all processes once `jax.distributed` runs (`dd_jax.processes`).
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import PyTree

from dd_jax.databases import Counted, RowShard
from dd_jax.errors import InputError
from dd_jax.types import CuratorState, as_form, num_records

SEEDS, DATA = "seeds", "data"


def make_mesh(
    seeds: int | None = None, data: int = 1, *, devices: Sequence[Any] | None = None
) -> Mesh:
    """A mesh over (seeds, data): how many devices share the seeds, how many the rows.

    Args:
        seeds: devices along the seeds axis; by default the number of devices divided by `data`.
        data: devices along the data axis.
        devices: the devices to use; by default those of all processes.

    Raises:
        InputError: the mesh needs more devices than there are, or uses no device of some process.
    """
    found = list(jax.devices() if devices is None else devices)
    if data < 1 or (seeds is None and len(found) % data):
        raise InputError(f"data = {data}; give a divisor of the {len(found)} devices.")
    seeds = len(found) // data if seeds is None else seeds
    if seeds < 1 or seeds * data > len(found):
        raise InputError(
            f"a mesh of {seeds} × {data} needs {seeds * data} devices, but there are {len(found)}; "
            f"make the mesh smaller."
        )
    used = found[: seeds * data]
    if {device.process_index for device in used} != {device.process_index for device in found}:
        raise InputError(
            f"a mesh of {seeds} × {data} leaves out all devices of some process; "
            f"use more of the {len(found)} devices."
        )
    return Mesh(np.array(used).reshape(seeds, data), (SEEDS, DATA))


def spread(database: PyTree, mesh: Mesh | None) -> PyTree:
    """The database, with its rows split where the mesh has more than one device for them."""
    if mesh is None or mesh.shape[DATA] == 1:
        return database
    return split_rows(database, mesh)


def split_rows(database: PyTree, mesh: Mesh) -> RowShard:
    """A plain or counted database with its records spread over the mesh's data axis.

    Give it to `dd.over_seeds` or `dd.interact` with the same mesh. The padding of the last device's
    share has weight 0. No device gets more than its share; for rows that do not fit on one device,
    give NumPy arrays.
    """
    counted = isinstance(database, Counted)
    if as_form(database).overlaid and not counted:
        raise InputError(
            f"the database is of type {type(database).__name__}; split plain rows (dd.expand)."
        )
    n, devices = num_records(database), mesh.shape[DATA]
    record = database.record if counted else database
    weight = np.asarray(database.count) if counted else np.ones(n, np.int8)
    share = math.ceil(len(weight) / devices)

    def put(array, spec):
        sharding = NamedSharding(mesh, spec)
        return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])

    def spread(leaf):
        rows = np.asarray(leaf)
        padding = [(0, share * devices - len(rows))] + [(0, 0)] * (rows.ndim - 1)
        return put(np.pad(rows, padding), PartitionSpec(DATA))

    ends = place = None
    if counted:
        device, local = np.divmod(np.asarray(database.place), share)
        ends = put(np.asarray(database.ends), PartitionSpec())
        place = put(local * devices + device, PartitionSpec())
    return RowShard(jax.tree.map(spread, record), spread(weight), ends, place, n, DATA)


def join_rows(split: RowShard) -> PyTree:
    """The plain rows of a split database, on the host: the inverse of `split_rows`.

    Use it to save a curator that was served on a mesh, or to continue without the mesh:
    `state._replace(database=dd.sharding.join_rows(state.database))`.
    """
    record = jax.tree.map(np.asarray, split.record)
    if split.ends is None:
        return jax.tree.map(lambda leaf: leaf[: split.total], record)
    where: Any = split.weight.sharding
    devices = where.mesh.shape[split.axis]
    local, device = np.divmod(np.asarray(split.place), devices)
    place = device * (len(split.weight) // devices) + local
    lengths = np.diff(np.asarray(split.ends, np.int64), prepend=0)
    return jax.tree.map(lambda leaf: leaf[np.repeat(place, lengths)], record)


def round_up(chunk: int, mesh: Mesh) -> int:
    """The least number of seeds ≥ chunk that the devices share evenly."""
    devices = mesh.shape[SEEDS]
    return math.ceil(chunk / devices) * devices


def over_mesh(run: Callable, mesh: Mesh, args: PyTree) -> Callable:
    """`run(seeds, key, args)` with seeds, and the rows of split databases, spread over a mesh."""
    specs = jax.tree.map(
        lambda leaf: specs_of(leaf) if isinstance(leaf, RowShard) else PartitionSpec(),
        args,
        is_leaf=lambda leaf: isinstance(leaf, RowShard),
    )
    seeds = PartitionSpec(SEEDS)
    # All devices of a data axis end a step with the same sum (psum), but JAX's check (check_vma)
    # cannot prove this through a scan.
    return jax.shard_map(
        run,
        mesh=mesh,
        in_specs=(seeds, PartitionSpec(), specs),
        out_specs=seeds,
        check_vma=False,
    )


def over_rows(run: Callable, mesh: Mesh) -> Callable:
    """`run(key, split, given) -> (state, rest)` on a database with rows split over a mesh.

    What `run` returns is the same on every device, except the state's database, which stays split.
    """
    whole: Any = PartitionSpec()

    def spread_run(key, split, given):
        where = specs_of(split)
        state = {name: where if name == "database" else whole for name in CuratorState._fields}
        split_run = jax.shard_map(
            run,
            mesh=mesh,
            in_specs=(whole, where, whole),
            out_specs=(CuratorState(**state), whole),
            check_vma=False,
        )
        return split_run(key, split, given)

    return spread_run


def specs_of(split: RowShard) -> Any:
    """Where the arrays of a split database lie: records on their devices, the map on all."""
    runs = None if split.ends is None else PartitionSpec()
    specs: Any = jax.tree.map(lambda _: PartitionSpec(DATA), split)
    return dataclasses.replace(specs, ends=runs, place=runs)
