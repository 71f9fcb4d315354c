"""The interaction between a curator and an update requester (`alg:interact`).

`interact` is one scan over requests, for requesters written in JAX; `drive` is a host loop around a
donated jitted step, for requesters that are any Python. Both hold records to the mechanism's
domain, and both show the requester a release only at the steps named in `observe`: what it
remembers is then a function of those p releases, its own edits and its own coins, so p-adaptivity
(`dfn:updreq`) is enforced rather than trusted.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, PyTree

from dd_jax.errors import InputError
from dd_jax.types import (
    CuratorState,
    Edit,
    Mechanism,
    Transcript,
    apply_edit,
    check_edit,
    check_finite,
    count_rejected,
    is_concrete,
    num_records,
)


class Observation(NamedTuple):
    """What a requester is shown before it makes request i.

    Attributes:
        release: φ_{i-1} where visible, zeros otherwise.
        visible: whether i - 1 is one of the observable indices.
        request: i, from 1.
    """

    release: PyTree
    visible: Bool[Array, ""]
    request: Int[Array, ""]


class Requester(NamedTuple):
    """An update requester 𝒬 with a memory of its own.

    Attributes:
        init: `key -> memory`.
        act: `(key, memory, observation) -> (memory, edit)`; every edit has the same r.
        max_requests: how many requests it can make, or None for any number.
    """

    init: Callable[[Array], Any]
    act: Callable[[Array, Any, Observation], tuple[Any, Edit]]
    max_requests: int | None = None


def interact(
    key: Array,
    mechanism: Mechanism,
    requester: Requester,
    database: PyTree,
    *,
    num_requests: int,
    observe: Sequence[int] = (),
) -> tuple[CuratorState, Transcript]:
    """Serve `num_requests` edit requests: learn, then delete and publish after each of them.

    Pure: jit it, vmap it over keys. Under a vmap over keys alone the database stays unbatched for
    as long as the requester's edits do not depend on the key.

    Args:
        key: the interaction's only source of randomness.
        mechanism: the curator (A, Ā, f_pub) and its record domain.
        requester: 𝒬.
        database: 𝒟_0. Where its values are known it is checked against the domain before anything
            is computed; inside jit it is projected and counted.
        num_requests: how many requests are served.
        observe: indices s of the releases φ_s that the requester is shown (p = their number).

    Returns:
        The curator's final state (model and database) and the transcript.

    Raises:
        InputError: a record outside the domain, or an observable index out of range.
    """
    observed = _observed_mask(observe, num_requests)
    if requester.max_requests is not None and num_requests > requester.max_requests:
        raise InputError(
            f"num_requests = {num_requests}, but the requester's stream holds "
            f"{requester.max_requests}; lengthen the stream or ask for fewer requests."
        )
    if is_concrete(database):
        check_database(database, mechanism)
    database, inside = mechanism.domain.project(database)
    learn_key, init_key, stream_key = jax.random.split(key, 3)
    state, release = _learn(mechanism, learn_key, database)

    def serve(carry, xs):
        curator, release, memory = carry
        request, visible = xs
        act_key, request_key = jax.random.split(jax.random.fold_in(stream_key, request))
        observation = Observation(_mask(release, visible), visible, request)
        memory, edit = requester.act(act_key, memory, observation)
        curator, release, events = _serve(mechanism, request_key, curator, edit)
        return (curator, release, memory), (release, *events)

    start = (CuratorState(state, database), release, requester.init(init_key))
    xs = (jnp.arange(1, num_requests + 1, dtype=jnp.int32), jnp.asarray(observed))
    (curator, _, _), (releases, edits, projected, rejected) = jax.lax.scan(serve, start, xs)
    releases = jax.tree.map(lambda a, rest: jnp.concatenate([a[None], rest]), release, releases)
    transcript = Transcript(
        releases, edits, jnp.asarray(observed), projected, rejected, _count_outside(inside)
    )
    return curator, transcript


def drive(
    key: Array,
    mechanism: Mechanism,
    respond: Callable[[int, PyTree | None], Edit],
    database: PyTree,
    *,
    num_requests: int,
    observe: Sequence[int] = (),
) -> tuple[CuratorState, Transcript]:
    """`interact` for a requester that is any Python: a host loop around one donated jitted step.

    With the same key and edits it makes the same models as `interact`. Every edit is checked before
    it is served; a refused edit leaves nothing half done.

    Args:
        key: the interaction's only source of randomness.
        mechanism: the curator; reuse the same object to reuse its compiled step.
        respond: `(request, release) -> edit` with release φ_{i-1} at the steps named in `observe`
            and None otherwise. What it sees is what the certificate counts: do not let it look
            at releases by another way.
        database: 𝒟_0; it is copied, never modified.
        num_requests: how many requests are served.
        observe: indices of the releases shown to `respond`.

    Raises:
        InputError: a record or edit outside the domain, an edit that cannot be applied, or an
            observable index out of range.
    """
    observed = _observed_mask(observe, num_requests)
    check_database(database, mechanism)
    learn_key, _, stream_key = jax.random.split(key, 3)
    database, inside, state, release = _start_step(mechanism, learn_key, database)
    curator = CuratorState(state, database)
    releases, events = [release], []
    for request in range(1, num_requests + 1):
        edit = respond(request, release if observed[request - 1] else None)
        check_edit(curator.database, edit, mechanism.domain)
        curator, release, event = _request_step(mechanism, stream_key, request, curator, edit)
        releases.append(release)
        events.append(event)
    edits, projected, rejected = _stack(events) if events else _no_events(database)
    transcript = Transcript(
        _stack(releases), edits, jnp.asarray(observed), projected, rejected, _count_outside(inside)
    )
    return curator, transcript


def adversary_view(transcript: Transcript, request: int) -> PyTree:
    """φ_i, φ_{i+1}, …: all that the adversary of `thm:soundness` is given of a record that request
    i deleted. Releases before the deletion, edits and counters stay with the analyst.
    """
    last = jax.tree.leaves(transcript.releases)[0].shape[0] - 1
    if not 1 <= request <= last:
        raise InputError(f"request = {request}; the transcript holds requests 1 to {last}.")
    return jax.tree.map(lambda leaf: leaf[request:], transcript.releases)


def check_database(database: PyTree, mechanism: Mechanism) -> None:
    """Refuse a database with no rows, NaN, or records outside the mechanism's domain."""
    if num_records(database) < 1:
        raise InputError("the database is empty; give at least one record.")
    check_finite(database)
    mechanism.domain.check(database)


def _learn(mechanism: Mechanism, key: Array, database: PyTree) -> tuple[PyTree, PyTree]:
    learn_key, publish_key = jax.random.split(key)
    state = mechanism.learn(learn_key, database)
    return state, mechanism.publish(publish_key, state)


def _serve(mechanism: Mechanism, key: Array, curator: CuratorState, edit: Edit):
    """One turn of `alg:interact`: delete, publish, then edit the database."""
    delete_key, publish_key = jax.random.split(key)
    record, inside = mechanism.domain.project(edit.record)
    edit = Edit(edit.index, record)
    rejected = count_rejected(curator.database, edit)
    state = mechanism.delete(delete_key, curator.database, edit, curator.params)
    release = mechanism.publish(publish_key, state)
    curator = CuratorState(state, apply_edit(curator.database, edit))
    return curator, release, (edit, _count_outside(inside), rejected)


@functools.partial(jax.jit, static_argnums=0)
def _start_step(mechanism: Mechanism, key: Array, database: PyTree):
    database, inside = mechanism.domain.project(database)
    # The caller's arrays must survive the donated steps that follow.
    database = jax.tree.map(jnp.copy, database)
    return database, inside, *_learn(mechanism, key, database)


@functools.partial(jax.jit, static_argnums=0, donate_argnums=3)
def _request_step(mechanism: Mechanism, stream_key: Array, request, curator, edit: Edit):
    _, request_key = jax.random.split(jax.random.fold_in(stream_key, request))
    return _serve(mechanism, request_key, curator, edit)


def _observed_mask(observe: Sequence[int], num_requests: int) -> np.ndarray:
    if num_requests < 0:
        raise InputError(f"num_requests = {num_requests}; give a whole number ≥ 0.")
    mask = np.zeros(num_requests, dtype=bool)
    for index in observe:
        if not 0 <= index < num_requests:
            raise InputError(
                f"observe names release {index}; a requester that makes {num_requests} requests "
                f"can be shown releases 0 to {num_requests - 1}."
            )
        mask[index] = True
    return mask


def _mask(release: PyTree, visible: Array) -> PyTree:
    return jax.tree.map(lambda leaf: jnp.where(visible, leaf, jnp.zeros_like(leaf)), release)


def _count_outside(inside: Array) -> Array:
    return jnp.sum(~inside, dtype=jnp.int32)


def _stack(trees: list) -> Any:
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


def _no_events(database: PyTree):
    """Edits and counters of an interaction without requests."""
    record = jax.tree.map(lambda leaf: jnp.zeros((0, 0, *leaf.shape[1:]), leaf.dtype), database)
    none = jnp.zeros(0, jnp.int32)
    return Edit(jnp.zeros((0, 0), jnp.int32), record), none, none
