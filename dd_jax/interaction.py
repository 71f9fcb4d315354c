"""The interaction between a curator and an update requester (`alg:interact`).

`interact` is one scan over requests, for requesters written in JAX; `drive` is a host loop around a
donated jitted step, for requesters that are any Python. Both hold records to the mechanism's
domain, and both show the requester a release only at the steps named in `observe`: what it
remembers is then a function of those p releases, its own edits and its own coins, so p-adaptivity
(`dfn:updreq`) is enforced rather than trusted.
"""

import contextlib
import functools
import signal
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Int, PyTree

from dd_jax import checks, databases, sharding
from dd_jax.errors import EditRefused, InputError
from dd_jax.keys import tagged
from dd_jax.types import (
    CuratorState,
    Edit,
    Mechanism,
    Transcript,
    acceptable_rows,
    as_form,
    check_edit,
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
    overlay: bool = False,
    mesh: Mesh | None = None,
) -> tuple[CuratorState, Transcript]:
    """Serve `num_requests` edit requests: learn, then delete and publish after each of them.

    Pure: vmap it over keys, or call it plainly: it is compiled once for a mechanism, a requester,
    the counts and the shapes. What these two close over is read then and never again, and what was
    compiled keeps it, records too, until `jax.clear_caches()`. Under a vmap over keys alone the
    database stays unbatched for as long as the requester's edits do not depend on the key; where
    they do, `overlay` keeps it unbatched, at the price of i·r more rows in every gradient and n
    bytes for each key.

    Args:
        key: the interaction's only source of randomness.
        mechanism: the curator (A, Ā, f_pub) and its record domain.
        requester: 𝒬.
        database: 𝒟_0. Where its values are known it is checked against the domain before anything
            is computed; inside jit it is projected and counted.
        num_requests: how many requests are served.
        observe: indices s of the releases φ_s that the requester is shown (p = their number).
        overlay: serve edits from an `Overlay` over the database instead of a changed copy of it;
            the same law, equal up to rounding. For mechanisms that use the database through
            `dd_jax.erm` alone, as Noisy-GD does. Counted and split databases are always served so.
        mesh: devices that share the rows (the data axis of `dd_jax.sharding.make_mesh`), for one
            interaction on a database too large for one of them; under jit give it split
            (`dd_jax.sharding.split_rows`). The final database stays split. For many seeds give the
            mesh to `dd.over_seeds`.

    Returns:
        The curator's final state (model and database) and the transcript. The database holds none
        of the records that edits replaced (`dd_jax.databases.compact`); under a vmap over keys
        that is a database for each key, which the compiler leaves out where nobody uses it.

    Raises:
        InputError: a record outside the domain, or an observable index out of range.
    """
    observed = _observed_mask(observe, num_requests)
    if requester.max_requests is not None and num_requests > requester.max_requests:
        raise InputError(
            f"num_requests = {num_requests}, but the requester's stream holds "
            f"{requester.max_requests}; lengthen the stream or ask for fewer requests."
        )
    if not isinstance(database, databases.RowShard) and is_concrete(database):
        check_database(database, mechanism)
    if mesh is not None and not isinstance(database, databases.RowShard):
        database = sharding.split_rows(database, mesh)
    if not _is_hashable((mechanism, requester)):
        # Functions that do not say what they equal: traced every time.
        run = _whole_interaction if mesh is None else _split_interaction
    else:
        run = _interact if mesh is None else _interact_split
    how = (num_requests, tuple(observed.tolist()), overlay if mesh is None else mesh)
    return run(mechanism, requester, *how, key, database)


def _is_hashable(value) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


def _split_interaction(mechanism, requester, num_requests, observed, mesh, key, database):
    """`interact` on a database whose rows are split over a mesh."""
    fixed = (mechanism, requester, num_requests, observed, False)
    return sharding.over_rows(functools.partial(_whole_interaction, *fixed), mesh)(key, database)


def _whole_interaction(mechanism, requester, num_requests, observed, overlay, key, database):
    """`interact` where every argument is checked."""
    database, outside = databases.project(mechanism.domain, database)
    state, release = _learn(mechanism, key, database)
    memory = requester.init(tagged(key, "requester"))
    if overlay or as_form(database).overlaid:
        edits_per_request = _edit_size(requester, memory, release)
        database = databases.overlay(database, num_requests * edits_per_request)

    def serve(carry, xs):
        curator, release, memory = carry
        request, visible = xs
        request_key = _request_key(key, request)
        observation = Observation(_mask(release, visible), visible, request)
        memory, edit = requester.act(tagged(request_key, "requester"), memory, observation)
        curator, release, events = _serve(mechanism, request_key, curator, edit)
        return (curator, release, memory), (release, *events)

    start = (_first_state(mechanism, key, state, database), release, memory)
    xs = (jnp.arange(1, num_requests + 1, dtype=jnp.int32), jnp.asarray(np.asarray(observed, bool)))
    (curator, _, _), (releases, edits, *events) = jax.lax.scan(serve, start, xs)
    releases = jax.tree.map(lambda a, rest: jnp.concatenate([a[None], rest]), release, releases)
    transcript = _transcript(curator, releases, edits, np.asarray(observed, bool), events, outside)
    return _compacted(curator), transcript


# Compiled once for a mechanism, a requester, the counts, the mesh and the shapes.
_interact = jax.jit(_whole_interaction, static_argnums=(0, 1, 2, 3, 4))
_interact_split = jax.jit(_split_interaction, static_argnums=(0, 1, 2, 3, 4))


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

    With the same key and edits it makes the same models as `interact` (`alg:interact`). Every edit
    is checked before it is served. A refused edit leaves nothing half done and nothing served is
    ever lost: every error, of `respond` and a Ctrl-C too, carries the curator's state and the
    transcript so far as its attributes `curator` and `transcript`, and `resume` goes on from there.
    A row that is replaced by what it held already (deleted twice) is warned of at the end.

    Args:
        key: the interaction's only source of randomness.
        mechanism: the curator; reuse the same object to reuse its compiled step.
        respond: `(request, release) -> edit` with release φ_{i-1} at the steps named in `observe`
            and None otherwise. What it sees is what the certificate counts: do not let it look
            at releases by another way.
        database: 𝒟_0; it is copied, never modified. A `Counted` one is served from an `Overlay`
            with room for all requests, and is a `Counted` one again at the end.
        num_requests: how many requests are served.
        observe: indices of the releases shown to `respond`.

    Raises:
        InputError: a record outside the domain, or an observable index out of range.
        EditRefused: an edit that cannot be applied as asked, or of another size r than the first.
    """
    observed = _observed_mask(observe, num_requests)
    check_database(database, mechanism)
    curator, release, outside = _start_step(mechanism, key, database)
    return _drive(key, mechanism, respond, curator, release, outside, observed)


def resume(
    key: Array,
    mechanism: Mechanism,
    respond: Callable[[int, PyTree | None], Edit],
    state: CuratorState,
    *,
    num_requests: int,
    observe: Sequence[int] = (),
) -> tuple[CuratorState, Transcript]:
    """`drive` for a curator that has learned and served before: from its state, without learning.

    Requests and releases go on being counted where the state stands, here, in `respond` and in
    `observe`, and their noise with them: a key that served the earlier requests may go on. Two
    resumes of the SAME state need a fresh key each, or they draw the same noise. A certificate of
    what happened is made from all transcripts of one curator in their order (`Plan.certify`). The
    current model is published again as the first release: for a mechanism that publishes with noise
    the same release under the key that made it, and one more under another key.

    Args:
        key, mechanism, respond, num_requests: as in `drive`.
        state: the state that `interact`, `drive`, `resume` or `load` returned, or that an error
            carries; it is copied, never modified.
        observe: indices of the releases shown to `respond`, from `state.served` on.

    Raises:
        InputError: a state of another plan, of other sizes, or with NaN; else as `drive`.
        EditRefused: as `drive`.
    """
    served = _check_state(mechanism, state)
    observed = _observed_mask(observe, num_requests, served)
    # What a domain leaves alone stays: the records were brought into it before.
    curator = jax.tree.map(jnp.array, state)
    release = jax.jit(mechanism.publish)(_publish_key(key, served), curator.params)
    return _drive(key, mechanism, respond, curator, release, jnp.int32(0), observed)


def _drive(key, mechanism: Mechanism, respond, curator, release, outside, observed):
    start = curator.database
    served, looked = int(curator.served), bool(curator.looked)
    # A look that led to no request counts for the next one, whoever makes it.
    counted = observed.copy()
    counted[:1] |= looked
    releases, events = [release], []

    def so_far() -> tuple[CuratorState, Transcript]:
        edits, counts = stack(events) if events else _no_events(start)
        state = _compacted(curator._replace(looked=jnp.bool_(looked)))
        seen, counts = counted[: len(events)], _counts(counts, edits)
        return state, _transcript(state, stack(releases), edits, seen, counts, outside, served)

    try:
        with _held_back() as interrupts:
            for visible in observed.tolist():
                request = served + len(events) + 1
                looked = looked or visible
                edit = respond(request, release if visible else None)
                try:
                    check_edit(curator.database, edit, mechanism.domain)
                    _check_size(edit, events)
                except InputError as error:
                    raise EditRefused(f"request {request}: {error}", *so_far()) from None
                if not events and as_form(start).overlaid:
                    slots = len(observed) * edit.index.shape[0]
                    curator = curator._replace(database=databases.overlay(curator.database, slots))
                interrupts.hold()
                # What never changes is not worth an argument of every step.
                names = {name: getattr(curator, name) for name in ("plan", "run", "looked")}
                curator, release, event = _request_step(
                    mechanism, key, curator._replace(**dict.fromkeys(names)), edit
                )
                curator, looked = curator._replace(**names), False
                releases.append(release)
                events.append(event)
                interrupts.let_go()
        state, transcript = so_far()
    except EditRefused:
        raise
    except BaseException as error:
        error.curator, error.transcript = so_far()  # pyright: ignore
        error.add_note(
            f"{len(events)} requests were served; this error's curator and transcript hold them."
        )
        raise
    _report_unchanged(transcript)
    return state, transcript


def _report_unchanged(transcript: Transcript) -> None:
    """Say which rows were replaced by what they held already: they had been deleted before."""
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(transcript.unchanged)]
    found = np.argwhere(np.all(leaves, axis=0)) if leaves[0].size else ()
    if len(found):
        before = 1 + int(transcript.served_before)
        rows = np.asarray(transcript.edits.index)
        named = [f"row {rows[i, j]} by request {before + i}" for i, j in found[:5]]
        more = f" and {len(found) - 5} more" if len(found) > 5 else ""
        warnings.warn(
            f"replaced by what it held already, so that nothing was deleted: {', '.join(named)}"
            f"{more}.",
            stacklevel=4,
        )


class _Interrupts:
    """Ctrl-C, held back while a request is served: a state that was donated must not get lost."""

    def __init__(self, before: Callable):
        self.before, self.held, self.pending = before, False, None

    def __call__(self, *call):
        if self.held:
            self.pending = call
        else:
            self.before(*call)

    def hold(self) -> None:
        self.held = True

    def let_go(self) -> None:
        """Deliver what came in the meantime."""
        self.held = False
        if self.pending is not None:
            call, self.pending = self.pending, None
            self.before(*call)


@contextlib.contextmanager
def _held_back() -> Iterator[_Interrupts]:
    """Interrupts that can be held back; only Python's main thread ever gets any."""
    before = signal.getsignal(signal.SIGINT)
    interrupts = _Interrupts(before if callable(before) else lambda *call: None)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield interrupts
        return
    signal.signal(signal.SIGINT, interrupts)
    try:
        yield interrupts
    finally:
        signal.signal(signal.SIGINT, before)


def adversary_view(transcript: Transcript, request: int) -> PyTree:
    """φ_i, φ_{i+1}, …: all that the adversary of `thm:soundness` is given of a record that request
    i deleted. Releases before the deletion, edits and counters stay with the analyst.

    For the transcript of one interaction; vmap it over the transcripts of many seeds.
    """
    last = jax.tree.leaves(transcript.releases)[0].shape[0] - 1
    if not 1 <= request <= last:
        raise InputError(f"request = {request}; the transcript holds requests 1 to {last}.")
    return jax.tree.map(lambda leaf: leaf[request:], transcript.releases)


def replaces(transcript: Transcript, request: int, rows) -> Bool[Array, ""]:
    """Whether request i replaced every one of these rows: whether it deleted their records."""
    # A request that was not served replaced nothing; an array would lend it its last row.
    edited = transcript.edits.index.at[request - 1].get(mode="fill", fill_value=-1)
    return jnp.all(jnp.any(edited[:, None] == jnp.atleast_1d(rows), axis=0))


def check_database(database: PyTree, mechanism: Mechanism) -> None:
    """Refuse a database with no rows, NaN, or records outside the mechanism's domain."""
    databases.check(mechanism.domain, database)


def _learn(mechanism: Mechanism, key: Array, database: PyTree) -> tuple[PyTree, PyTree]:
    state = mechanism.learn(tagged(key, "learn"), database)
    return state, mechanism.publish(_publish_key(key, 0), state)


def _first_state(mechanism: Mechanism, key: Array, params, database: PyTree) -> CuratorState:
    run = jax.random.bits(tagged(key, "run"), (2,), jnp.uint32)
    words = jnp.asarray(mechanism.fingerprint)
    return CuratorState(params, database, jnp.int32(0), words, run, jnp.bool_(False))


def _request_key(key: Array, request) -> Array:
    """The key of request i; counted over a curator's life, so that none is drawn from twice."""
    return jax.random.fold_in(tagged(key, "request"), request)


def _publish_key(key: Array, release) -> Array:
    return tagged(_request_key(key, release), "publish")


def _edit_size(requester: Requester, memory, release: PyTree) -> int:
    """r, the number of rows of the requester's edits."""
    first = Observation(release, jnp.array(True), jnp.array(1, jnp.int32))
    _, edit = jax.eval_shape(requester.act, jax.random.key(0), memory, first)
    return edit.index.shape[0]


def _serve(mechanism: Mechanism, key: Array, curator: CuratorState, edit: Edit):
    """One turn of `alg:interact`: edit the database, delete, publish."""
    record, inside = mechanism.domain.project(edit.record)
    edit = Edit(edit.index, record)
    rejected = count_rejected(curator.database, edit)
    unchanged = _unchanged(curator.database, edit)
    before, after = curator.database, as_form(curator.database).serve(edit)
    state = mechanism.delete(tagged(key, "delete"), before, edit, after, curator.params)
    release = mechanism.publish(tagged(key, "publish"), state)
    curator = curator._replace(params=state, database=after, served=curator.served + 1)
    return curator, release, (edit, _count_outside(inside), rejected, unchanged)


def _unchanged(database: PyTree, edit: Edit) -> PyTree:
    """In the record's structure, per row of the edit: whether it already held just this value."""
    accepted = acceptable_rows(edit.index, num_records(database))
    held = databases.rows_of(database, jnp.where(accepted, edit.index, 0))

    def leaf(old, new):
        return accepted & jnp.all(old == new, axis=tuple(range(1, new.ndim)))

    return jax.tree.map(leaf, held, edit.record)


def _compacted(curator: CuratorState) -> CuratorState:
    """The state without the records that edits replaced."""
    return curator._replace(database=databases.compact(curator.database))


def _transcript(
    curator: CuratorState, releases, edits, observed, events, outside, served_before=0
) -> Transcript:
    projected, rejected, unchanged = events
    return Transcript(
        releases,
        edits,
        jnp.asarray(observed),
        projected,
        rejected,
        outside,
        unchanged,
        jnp.int32(served_before),
        jnp.int32(num_records(curator.database)),
        curator.plan,
        curator.run,
    )


@functools.partial(jax.jit, static_argnums=0)
def _start_step(mechanism: Mechanism, key: Array, database: PyTree):
    """The curator's first state."""
    database, outside = databases.project(mechanism.domain, database)
    state, release = _learn(mechanism, key, database)
    # The caller's arrays must survive the donated steps that follow.
    curator = jax.tree.map(jnp.copy, _first_state(mechanism, key, state, database))
    return curator, release, outside


def _check_state(mechanism: Mechanism, state: CuratorState) -> int:
    """Refuse a state that this mechanism did not make; return how many requests it has served."""
    if not isinstance(state, CuratorState):
        raise InputError(
            f"the state is of type {type(state).__name__}; give the CuratorState to go on from."
        )
    served = np.asarray(state.served)
    if served.shape or served.dtype.kind != "i" or served < 0:
        raise InputError(f"state.served = {state.served}; give the state as it was returned.")
    if not np.array_equal(np.asarray(state.plan), mechanism.fingerprint):
        raise InputError(
            "the state was made by a mechanism of another plan; go on with the plan that it was "
            "learned under, or learn again."
        )
    if not all(np.isfinite(np.asarray(leaf)).all() for leaf in jax.tree.leaves(state.params)):
        raise InputError("state.params holds NaN or infinity; go on from an undamaged state.")
    check_database(state.database, mechanism)
    expected = jax.eval_shape(mechanism.learn, jax.random.key(0), state.database)
    found = jax.eval_shape(lambda params: params, state.params)
    if expected != found:
        raise InputError(
            f"state.params is {found}, but this mechanism keeps {expected}; go on from a state "
            f"that it made."
        )
    return int(served)


def _check_size(edit: Edit, events: list) -> None:
    if events and edit.index.shape != events[0][0].index.shape:
        raise InputError(
            f"the edit replaces {edit.index.shape[0]} rows, the first one "
            f"{events[0][0].index.shape[0]}; give every edit of a stream the same r."
        )


@functools.partial(jax.jit, static_argnums=0, donate_argnums=2)
def _request_step(mechanism: Mechanism, key: Array, curator: CuratorState, edit: Edit):
    request_key = _request_key(key, curator.served + 1)
    curator, release, (edit, *counts) = _serve(mechanism, request_key, curator, edit)
    # One short array: between two requests every array that is returned costs time.
    flat = [jnp.ravel(leaf).astype(jnp.int32) for leaf in jax.tree.leaves(counts)]
    return curator, release, (edit, jnp.concatenate(flat))


def _counts(counts: Array, edits: Edit) -> list[PyTree]:
    """Projected, rejected and unchanged, from what `_request_step` packed."""
    leaves, structure = jax.tree.flatten(edits.record)
    packed = np.asarray(counts)
    unchanged = np.split(packed[:, 2:] != 0, len(leaves), axis=1)
    arrays = [packed[:, 0], packed[:, 1], *unchanged]
    projected, rejected, *unchanged = jax.tree.map(jnp.asarray, arrays)
    return [projected, rejected, jax.tree.unflatten(structure, unchanged)]


def _observed_mask(observe: Sequence[int], num_requests: int, served: int = 0) -> np.ndarray:
    """Which of the releases before each request are shown; numbered over a curator's life."""
    checks.whole("num_requests", num_requests)
    if not isinstance(observe, Sequence | range | np.ndarray) or not all(
        map(checks.is_whole, observe)
    ):
        raise InputError(f"observe = {observe!r}; give a sequence of release numbers, e.g. (0, 3).")
    mask = np.zeros(num_requests, dtype=bool)
    for index in observe:
        if not served <= index < served + num_requests:
            raise InputError(
                f"observe names release {index}; a requester that makes {num_requests} requests "
                f"can be shown releases {served} to {served + num_requests - 1}."
            )
        mask[index - served] = True
    return mask


def _mask(release: PyTree, visible: Array) -> PyTree:
    return jax.tree.map(lambda leaf: jnp.where(visible, leaf, jnp.zeros_like(leaf)), release)


def _count_outside(inside: Array) -> Array:
    return jnp.sum(~inside, dtype=jnp.int32)


def stack(trees: Sequence[PyTree]) -> Any:
    """Trees of one structure as one, with a leading axis.

    On the host where values are known: a thousand short arrays then cost no operation each.
    """
    return jax.tree.map(lambda *leaves: _stack_leaves(leaves), *trees)


def _stack_leaves(leaves: Sequence[Array]) -> Array:
    if not is_concrete(leaves) or jnp.issubdtype(leaves[0].dtype, jax.dtypes.extended):
        return jnp.stack(leaves)
    return jax.device_put(np.stack([np.asarray(leaf) for leaf in leaves]))


def _no_events(database: PyTree):
    """Edits and counters of an interaction without requests."""
    record = jax.tree.map(
        lambda leaf: jnp.zeros((0, 0, *leaf.shape[1:]), leaf.dtype), databases.records_of(database)
    )
    return Edit(jnp.zeros((0, 0), jnp.int32), record), jnp.zeros((0, 2), jnp.int32)
