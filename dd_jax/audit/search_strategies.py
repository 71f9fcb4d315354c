"""Hand-made requesters for the search: who deletes a target, when, and what was done before.

A `Strategy` makes a requester for a target's row. The row is traced, so that one compiled
interaction serves every row, record and database that the search tries.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, PyTree

from dd_jax import requesters
from dd_jax.errors import InputError
from dd_jax.interaction import Requester
from dd_jax.types import Edit, num_records


class Strategy(NamedTuple):
    """A way to have a target deleted.

    Attributes:
        name: in words.
        make: `row -> Requester`; request `request` replaces the target's row.
        request: i, the request that deletes the target.
        num_requests: how many requests are served; at least i.
        observe: the releases that the requester is shown; p is their number.
    """

    name: str
    make: Callable[[Array], Requester]
    request: int = 1
    num_requests: int = 1
    observe: tuple[int, ...] = ()


def deleted_first(blank: PyTree, *, num_requests: int = 1) -> Strategy:
    """Request 1 deletes the target; those that follow change nothing and add deletion steps.

    Args:
        blank: what is put into the target's row, with leading axis 1: as a rule the loss's null
            record, `dd.deletion(loss, database, [0]).record`.
        num_requests: how many requests are served.
    """
    _check(blank, num_requests, 1)

    def make(row):
        return _stateless(lambda key, request: _one(row, blank))

    return Strategy("deleted first", make, 1, num_requests)


def deleted_last(blank: PyTree, n: int, *, num_requests: int = 2) -> Strategy:
    """Requests 1 … i - 1 blank the rows that follow the target's, request i the target's."""
    _check(blank, num_requests, 2)

    def make(row):
        def edit(key, request):
            return _one(jnp.where(request < num_requests, (row + request) % n, row), blank)

        return _stateless(edit)

    return Strategy("deleted last", make, num_requests, num_requests)


def deleted_after_churn(blank: PyTree, pool: PyTree, n: int, *, num_requests: int = 2) -> Strategy:
    """Random records of a public pool go into random other rows; request i deletes the target."""
    _check(blank, num_requests, 2)
    others = requesters.random_replacement(n - 1, pool)

    def make(row):
        def act(key, memory, observation):
            memory, churned = others.act(key, memory, observation)
            # Rows 0 … n - 2 of the requester stand for all rows but the target's.
            index = churned.index + (churned.index >= row).astype(jnp.int32)
            early = observation.request < num_requests
            return memory, jax.tree.map(
                lambda first, last: jnp.where(early, first, last),
                Edit(index, churned.record),
                _one(row, blank),
            )

        return Requester(others.init, act)

    return Strategy("deleted after churn", make, num_requests, num_requests)


def recoding(
    blank: PyTree, pool: PyTree, direction: PyTree, n: int, *, num_requests: int = 1
) -> Strategy:
    """Sees φ_0 and puts what its sign says of the target into all other rows (erratum E2).

    Request 1 replaces all n rows: the target's by `blank`, the others by `pool[0]` where ⟨φ_0,
    direction⟩ ≥ 0 and by `pool[1]` elsewhere. Those that follow write the same again.

    Args:
        blank: as in `deleted_first`.
        pool: two records, with leading axis 2.
        direction: a model; the side of φ_0 on which the target would leave it.
        n: number of records.
        num_requests: how many requests are served.
    """
    _check(blank, num_requests, 1)
    if num_records(pool) != 2:
        raise InputError(f"the pool holds {num_records(pool)} records; recoding takes two.")
    weights = ravel_pytree(direction)[0]
    rows = jnp.arange(n, dtype=jnp.int32)

    def make(row):
        def act(key, memory, observation):
            del key
            score = ravel_pytree(observation.release)[0] @ weights
            side = jnp.where(observation.visible, score >= 0, memory)

            def write(pair, null):
                new = jnp.broadcast_to(jnp.where(side, pair[0], pair[1]), (n, *pair.shape[1:]))
                target = (rows == row).reshape(n, *(1,) * (pair.ndim - 1))
                return jnp.where(target, null, new)

            return side, Edit(rows, jax.tree.map(write, pool, blank))

        return Requester(lambda key: jnp.array(True), act)

    return Strategy("recoding", make, 1, num_requests, (0,))


def _stateless(edit: Callable[[Array, Array], Edit]) -> Requester:
    """A requester without memory that looks at nothing but the request's number."""
    return Requester(
        lambda key: (), lambda key, memory, observation: (memory, edit(key, observation.request))
    )


def _one(row, record: PyTree) -> Edit:
    return Edit(jnp.asarray(row, jnp.int32)[None], jax.tree.map(jnp.asarray, record))


def _check(blank: PyTree, num_requests: int, least: int) -> None:
    if num_records(blank) != 1:
        raise InputError(
            f"blank holds {num_records(blank)} records; give one, with leading axis 1."
        )
    if num_requests < least:
        raise InputError(f"num_requests = {num_requests}; this strategy makes at least {least}.")
