"""Update requesters (`dfn:updreq`): fixed, random and adversarial streams, and an adaptive one."""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.tree_util import Partial
from jaxtyping import Array, Bool, PyTree

from dd_jax import checks, products
from dd_jax.errors import InputError
from dd_jax.interaction import Observation, Requester, stack
from dd_jax.losses.base import Loss, deletion, null_records
from dd_jax.types import Edit, num_records


def stack_edits(edits: list[Edit]) -> Edit:
    """A stream u_1 … u_i of edits of the same size r, with leading axis i."""
    if not edits:
        raise InputError("the stream is empty; give at least one edit.")
    sizes = {edit.index.shape[0] for edit in edits}
    if len(sizes) > 1:
        raise InputError(
            f"the stream's edits have sizes {sorted(sizes)}; give every edit the same r."
        )
    return stack(edits)


def fixed_stream(stream: Edit) -> Requester:
    """A non-adaptive requester: request i is entry i of the stream, whatever is released.

    Its edits do not depend on a key, so under a vmap over seeds the database is not copied.
    """
    if jnp.ndim(stream.index) != 2:
        raise InputError(
            f"the stream's index has shape {jnp.shape(stream.index)}; "
            f"stack single edits with dd.requesters.stack_edits."
        )

    stream = _own(stream)
    return Requester(_no_memory, Partial(_next_edit, stream), max_requests=stream.index.shape[0])


def _no_memory(key):
    del key
    return ()


def _next_edit(stream: Edit, key, memory, observation: Observation):
    del key
    return memory, jax.tree.map(lambda leaf: leaf[observation.request - 1], stream)


def deletions(loss: Loss, database: PyTree, rows: Sequence[int]) -> Requester:
    """A non-adaptive requester: request i deletes the i-th of these rows, each of them once."""
    again = sorted({row for row in rows if list(rows).count(row) > 1})
    if again:
        raise InputError(f"row {again[0]} is named twice; a record is deleted once.")
    return fixed_stream(stack_edits([deletion(loss, database, [row]) for row in rows]))


def random_replacement(n: int, pool: PyTree, *, edits_per_request: int = 1) -> Requester:
    """A non-adaptive requester: r distinct random rows get random records of a public pool."""
    checks.whole("edits_per_request", edits_per_request, least=1, most=n)
    pool_size = _pool_size(pool)

    def act(pool, key, memory, observation):
        del observation
        row_key, record_key = jax.random.split(key)
        rows = jax.random.choice(row_key, n, (edits_per_request,), replace=False)
        picks = jax.random.randint(record_key, (edits_per_request,), 0, pool_size)
        record = jax.tree.map(lambda leaf: leaf[picks], pool)
        return memory, Edit(rows.astype(jnp.int32), record)

    return Requester(_no_memory, Partial(act, _own(pool)))


def churn(row: int, pool: PyTree) -> Requester:
    """A non-adaptive adversary: rewrites one row at every request, cycling through a pool.

    With two records of opposite gradients the optimum moves by 2L/(λn) each time, the most that one
    row can do.
    """
    checks.whole("row", row)
    pool_size = _pool_size(pool)

    def act(pool, key, memory, observation):
        del key
        pick = (observation.request - 1) % pool_size
        record = jax.tree.map(lambda leaf: leaf[pick][None], pool)
        return memory, Edit(jnp.full((1,), row, jnp.int32), record)

    return Requester(_no_memory, Partial(act, _own(pool)))


def _own(tree: Any) -> Any:
    """Copies as JAX arrays: NumPy arrays could change later, after a program was compiled."""
    return jax.tree.map(lambda leaf: leaf if isinstance(leaf, jax.Array) else jnp.array(leaf), tree)


def _pool_size(pool: PyTree) -> int:
    size = num_records(pool)
    if size < 1:
        raise InputError("the pool is empty; give at least one record to put into rows.")
    return size


class LossMemory(NamedTuple):
    """The last release seen, and the rows not yet deleted."""

    release: PyTree
    alive: Bool[Array, "n"]


def largest_loss(loss: Loss, database: PyTree, *, edits_per_request: int = 1) -> Requester:
    """An adaptive requester: deletes the r records with the largest loss under the last model seen.

    It knows the initial database. Before its first observation it uses the zero model. Each row is
    deleted at most once: the loss's null record is put in its place.
    """
    n, database = num_records(database), _own(database)
    checks.whole("edits_per_request", edits_per_request, least=1, most=n)
    null = null_records(loss, database, edits_per_request)

    def init(database, key):
        del key
        return LossMemory(loss.template(database), jnp.ones(n, dtype=bool))

    def act(database, null, key, memory, observation: Observation):
        del key
        release = jax.tree.map(
            lambda seen, last: jnp.where(observation.visible, seen, last),
            observation.release,
            memory.release,
        )
        losses = products.full(jax.vmap(loss.value, in_axes=(None, 0)))(release, database)
        alive = jnp.where(memory.alive, losses, -jnp.inf)
        rows = jax.lax.top_k(alive, edits_per_request)[1].astype(jnp.int32)
        return LossMemory(release, memory.alive.at[rows].set(False)), Edit(rows, null)

    return Requester(
        Partial(init, database), Partial(act, database, null), max_requests=n // edits_per_request
    )


def shown_first(requester: Requester, count: Any) -> Requester:
    """The requester, for which only the first `count` releases are visible; it may be traced.

    A driver's `observe` decides what a certificate counts, and is static: a sweep over p shows all
    releases to this requester, and compiles once.
    """

    return dataclasses.replace(requester, act=Partial(_act_on_first, requester, count))


def _act_on_first(requester: Requester, count, key, memory, observation: Observation):
    visible = observation.visible & (observation.request <= count)
    release = jax.tree.map(
        lambda leaf: jnp.where(visible, leaf, jnp.zeros_like(leaf)), observation.release
    )
    return requester.act(key, memory, observation._replace(release=release, visible=visible))


def sign_recoder(n: int, *, deletes: bool, target: int = 0) -> Requester:
    """An adaptive requester in one dimension that copies sign(φ_0) into the database.

    It writes sign(φ_0) into every row except the target's; if it `deletes`, it writes 0 into that
    row. If it is not shown φ_0, it writes 0 everywhere.
    """
    rows = jnp.arange(n, dtype=jnp.int32)
    rows = rows if deletes else jnp.delete(rows, target)

    def act(key, memory, observation):
        del key
        seen = jnp.where(observation.visible, jnp.sign(observation.release), memory)
        record = jnp.where(rows[:, None] == target, jnp.zeros_like(seen), seen)
        return seen, Edit(rows, record)

    return Requester(init=lambda key: jnp.zeros(1, jnp.float32), act=act)
