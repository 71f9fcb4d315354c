"""The interaction between a curator and an update requester (`alg:interact`).

The function `interact` is one scan over requests, for requesters written in JAX. The function
`drive` is a host loop around a donated jitted step, for requesters that are any Python code. Both
enforce the mechanism's domain, and both show the requester a release only at the steps named in
`observe`. What a requester remembers is then a function of those p releases, its own edits
and its own random choices, so p-adaptivity (`dfn:updreq`) is enforced and need not be trusted.
"""

import contextlib
import functools
import signal
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jax.tree_util import Partial
from jaxtyping import Array, Bool, Int, PyTree

from dd_jax import checks, databases, products, sharding
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


@functools.partial(
    jax.tree_util.register_dataclass, data_fields=("init", "act"), meta_fields=("max_requests",)
)
@dataclass(frozen=True)
class Requester:
    """An update requester 𝒬 with its memory: a pytree of what its functions are bound to.

    A function that needs records takes them first, and is bound to them by
    `jax.tree_util.Partial(act, records)`. They are then arguments of the compiled programs.
    Arrays that a plain function closes over become part of the programs, which are kept on disk.

    Attributes:
        init: `key -> memory`.
        act: `(key, memory, observation) -> (memory, edit)`; every edit has the same r.
        max_requests: how many requests it can make, or None for any number.
    """

    init: Callable[[Array], Any]
    act: Callable[[Array, Any, Observation], tuple[Any, Edit]]
    max_requests: int | None = None

    def __post_init__(self):
        for name in ("init", "act"):
            function = getattr(self, name)
            # Pytree operations also put things in place of functions that are none.
            if callable(function) and not isinstance(function, Partial):
                object.__setattr__(self, name, Partial(function))


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

    Pure: vmap it over keys, or call it without jit: it is compiled once for a mechanism, a
    requester's functions, the counts and the shapes. The database and what a requester is bound to
    are arguments of the program. Arrays that the mechanism or a requester's function closes over
    are read once, at compile time; they become part of the program, and of the copy of it that
    `dd-jax` keeps on disk. Under a vmap over keys the database is not copied as long as the
    requester's edits do not depend on the key. Where they do, `overlay` avoids the copies, at the
    cost of i·r more rows in every gradient and n bytes for each key.

    Args:
        key: the interaction's only source of randomness.
        mechanism: the curator (A, Ā, f_pub) and its record domain.
        requester: 𝒬.
        database: 𝒟_0. Where its values are known they are checked against the domain before
            anything is computed; inside jit records outside are projected and counted.
        num_requests: how many requests are served.
        observe: indices s of the releases φ_s that the requester is shown (p = their number).
        overlay: serve edits from an `Overlay` over the database instead of a changed copy of it;
            the law is the same, the numbers are equal up to rounding. For mechanisms that use the
            database only through `dd_jax.erm`, as Noisy-GD does. Counted and split databases are
            always served in this way.
        mesh: devices that share the rows (the data axis of `dd_jax.sharding.make_mesh`), for one
            interaction on a database too large for one device; under jit give the database already
            split (`dd_jax.sharding.split_rows`). The final database stays split. For many seeds
            give the mesh to `dd.over_seeds` instead.

    Returns:
        The curator's final state (model and database) and the transcript. The database holds none
        of the records that edits replaced (`dd_jax.databases.compact`). Under a vmap over keys this
        is one database for each key; the compiler leaves it out where the result is not used.

    Raises:
        InputError: a record outside the domain, or an observable index out of range.
    """
    observed = _observed_mask(observe, num_requests)
    if requester.max_requests is not None and num_requests > requester.max_requests:
        raise InputError(
            f"num_requests = {num_requests}, but the requester can make only "
            f"{requester.max_requests}; lengthen its stream or lower num_requests."
        )
    if not isinstance(database, databases.RowShard) and is_concrete(database):
        check_database(database, mechanism)
    if mesh is not None and not isinstance(database, databases.RowShard):
        database = sharding.split_rows(database, mesh)
    if not _is_hashable((mechanism, jax.tree.structure(requester))):
        # Without a hash JAX cannot look up a compiled program: traced at every call.
        run = _whole_interaction if mesh is None else _split_interaction
    else:
        run = _interact if mesh is None else _interact_split
    how = (num_requests, tuple(observed.tolist()), overlay if mesh is None else mesh)
    return run(mechanism, *how, key, database, requester)


def _is_hashable(value) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


def _split_interaction(mechanism, num_requests, observed, mesh, key, database, requester):
    """`interact` on a database whose rows are split over a mesh."""
    run = functools.partial(_whole_interaction, mechanism, num_requests, observed, False)
    return sharding.over_rows(run, mesh)(key, database, requester)


@products.full
def _whole_interaction(mechanism, num_requests, observed, overlay, key, database, requester):
    """`interact`, after its arguments were checked.

    Products are computed in full precision, also inside mechanisms and requesters that name none.
    """
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


# Compiled once for a mechanism, a requester's functions, the counts, the mesh and the shapes.
_interact = jax.jit(_whole_interaction, static_argnums=(0, 1, 2, 3))
_interact_split = jax.jit(_split_interaction, static_argnums=(0, 1, 2, 3))


def drive(
    key: Array,
    mechanism: Mechanism,
    respond: Callable[[int, PyTree | None], Edit],
    database: PyTree,
    *,
    num_requests: int,
    observe: Sequence[int] = (),
) -> tuple[CuratorState, Transcript]:
    """`interact` for a requester that is any Python code: a host loop around a donated jitted step.

    With the same key and edits it makes the same models as `interact` (`alg:interact`). Every edit
    is checked before it is served. A refused edit changes nothing, and no served request is ever
    lost: every error (also one raised by `respond`, or a Ctrl-C) carries the curator's state and
    the transcript so far as its attributes `curator` and `transcript`, and `resume` continues from
    there. At the end a warning names rows that were replaced by the value they already held (rows
    deleted twice).

    Args:
        key: the interaction's only source of randomness.
        mechanism: the curator; reuse the same object to reuse its compiled step.
        respond: `(request, release) -> edit` with release φ_{i-1} at the steps named in `observe`
            and None otherwise. The certificate counts only these: do not let it see releases in
            any other way.
        database: 𝒟_0; it is copied, never modified. A `Counted` database is served from an
            `Overlay` with slots for all requests, and is `Counted` again at the end.
        num_requests: how many requests are served.
        observe: indices of the releases shown to `respond`.

    Raises:
        InputError: a record outside the domain, or an observable index out of range.
        EditRefused: an edit that cannot be applied as given, or of another size r than the first.
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

    Requests and releases are numbered on from `state.served`, also in `respond` and in `observe`.
    The noise of a request depends on the key and this number, so the key of the earlier requests
    may be used again. Two calls of `resume` with the SAME state need different keys, or they draw
    the same noise. A certificate of what happened takes all transcripts of one curator in their
    order (`Plan.certify`). The current model is published again as the first release. For a
    mechanism that publishes with noise this is the same release if the key is the same, and an
    additional release under another key.

    Args:
        key, mechanism, respond, num_requests: as in `drive`.
        state: the state that `interact`, `drive`, `resume` or `load` returned, or that an error
            carries. It is copied, never modified.
        observe: indices of the releases shown to `respond`, from `state.served` on.

    Raises:
        InputError: a state of another plan, of other sizes, or with NaN; else as `drive`.
        EditRefused: as `drive`.
    """
    served = _check_state(mechanism, state)
    observed = _observed_mask(observe, num_requests, served)
    # The records are not projected again: the driver that made this state has done so.
    curator = jax.tree.map(jnp.array, state)
    release = _publish_again(mechanism, _publish_key(key, served), curator.params)
    return _drive(key, mechanism, respond, curator, release, jnp.int32(0), observed)


def _drive(key, mechanism: Mechanism, respond, curator, release, outside, observed):
    start = curator.database
    served, looked = int(curator.served), bool(curator.looked)
    # A release that was shown but not followed by a served request counts as seen by the next
    # request: the same person may be asking again.
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
                # These never change inside a step; every argument of a jitted call costs time.
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
            f"{len(events)} requests were served; the error's attributes curator and transcript "
            f"hold them."
        )
        raise
    _report_unchanged(transcript)
    return state, transcript


def _report_unchanged(transcript: Transcript) -> None:
    """Warn of rows that were replaced by the value they already held: they had been deleted."""
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(transcript.unchanged)]
    found = np.argwhere(np.all(leaves, axis=0)) if leaves[0].size else ()
    if len(found):
        before = 1 + int(transcript.served_before)
        rows = np.asarray(transcript.edits.index)
        named = [f"row {rows[i, j]} by request {before + i}" for i, j in found[:5]]
        more = f" and {len(found) - 5} more" if len(found) > 5 else ""
        warnings.warn(
            f"replaced by the value it already held, so that nothing was deleted: "
            f"{', '.join(named)}{more}.",
            stacklevel=4,
        )


class _Interrupts:
    """Ctrl-C, delayed while a request is served.

    The step destroys the old state (it is donated); an interrupt between the call and the
    assignment of the new state would lose both.
    """

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
        """Deliver an interrupt that arrived in the meantime."""
        self.held = False
        if self.pending is not None:
            call, self.pending = self.pending, None
            self.before(*call)


@contextlib.contextmanager
def _held_back() -> Iterator[_Interrupts]:
    """Make interrupts delayable; only Python's main thread receives them or may set handlers."""
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
    """The releases φ_i, φ_{i+1}, … that an adversary sees of a record deleted by request i.

    This is all that the adversary of the soundness theorem (`thm:soundness`) is given. Releases
    before the deletion, edits and counters stay with the analyst.

    For the transcript of one interaction; vmap it over the transcripts of many seeds.
    """
    last = jax.tree.leaves(transcript.releases)[0].shape[0] - 1
    if not 1 <= request <= last:
        raise InputError(f"request = {request}; the transcript holds requests 1 to {last}.")
    return jax.tree.map(lambda leaf: leaf[request:], transcript.releases)


def replaces(transcript: Transcript, request: int, rows) -> Bool[Array, ""]:
    """Whether request i replaced every one of these rows, that is, deleted their records."""
    # A request that was not served replaced nothing, nor did request 0, the learning: plain
    # indexing would be clamped to the last request, or count from the end.
    index = transcript.edits.index
    edited = index.at[request - 1].get(mode="fill", fill_value=-1, wrap_negative_indices=False)
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
    """The key of request i, counted over a curator's life, so that no key is used twice."""
    return jax.random.fold_in(tagged(key, "request"), request)


def _publish_key(key: Array, release) -> Array:
    return tagged(_request_key(key, release), "publish")


def _edit_size(requester: Requester, memory, release: PyTree) -> int:
    """The number r of rows in each of the requester's edits."""
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
    """In the record's structure, per row of the edit: whether it already held this value."""
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
@products.full
def _start_step(mechanism: Mechanism, key: Array, database: PyTree):
    """The curator's first state."""
    database, outside = databases.project(mechanism.domain, database)
    state, release = _learn(mechanism, key, database)
    # A copy: the donated steps that follow would otherwise destroy the caller's arrays.
    curator = jax.tree.map(jnp.copy, _first_state(mechanism, key, state, database))
    return curator, release, outside


@functools.partial(jax.jit, static_argnums=0)
@products.full
def _publish_again(mechanism: Mechanism, key: Array, params: PyTree) -> PyTree:
    return mechanism.publish(key, params)


def _check_state(mechanism: Mechanism, state: CuratorState) -> int:
    """Refuse a state that this mechanism did not make; return how many requests it has served."""
    if not isinstance(state, CuratorState):
        raise InputError(
            f"the state is of type {type(state).__name__}; give the CuratorState to continue from."
        )
    served = np.asarray(state.served)
    if served.shape or served.dtype.kind != "i" or served < 0:
        raise InputError(f"state.served = {state.served}; give the state as it was returned.")
    if not np.array_equal(np.asarray(state.plan), mechanism.fingerprint):
        raise InputError(
            "the state was made by a mechanism of another plan; continue with the plan that it was "
            "learned with, or learn again."
        )
    if not all(np.isfinite(np.asarray(leaf)).all() for leaf in jax.tree.leaves(state.params)):
        raise InputError("state.params holds NaN or infinity; continue from an undamaged state.")
    check_database(state.database, mechanism)
    expected = jax.eval_shape(mechanism.learn, jax.random.key(0), state.database)
    found = jax.eval_shape(lambda params: params, state.params)
    if expected != found:
        raise InputError(
            f"state.params is {found}, but this mechanism keeps {expected}; continue from a state "
            f"that it made."
        )
    return int(served)


def _check_size(edit: Edit, events: list) -> None:
    if events and edit.index.shape != events[0][0].index.shape:
        raise InputError(
            f"the edit replaces {edit.index.shape[0]} rows, but the first edit replaced "
            f"{events[0][0].index.shape[0]}; give every edit of a stream the same r."
        )


@functools.partial(jax.jit, static_argnums=0, donate_argnums=2)
@products.full
def _request_step(mechanism: Mechanism, key: Array, curator: CuratorState, edit: Edit):
    request_key = _request_key(key, curator.served + 1)
    curator, release, (edit, *counts) = _serve(mechanism, request_key, curator, edit)
    # All counters in one short array: every array that a jitted call returns costs time.
    flat = [jnp.ravel(leaf).astype(jnp.int32) for leaf in jax.tree.leaves(counts)]
    return curator, release, (edit, jnp.concatenate(flat))


def _counts(counts: Array, edits: Edit) -> list[PyTree]:
    """Unpack projected, rejected and unchanged from the arrays of `_request_step`."""
    leaves, structure = jax.tree.flatten(edits.record)
    packed = np.asarray(counts)
    unchanged = np.split(packed[:, 2:] != 0, len(leaves), axis=1)
    arrays = [packed[:, 0], packed[:, 1], *unchanged]
    projected, rejected, *unchanged = jax.tree.map(jnp.asarray, arrays)
    return [projected, rejected, jax.tree.unflatten(structure, unchanged)]


def _observed_mask(observe: Sequence[int], num_requests: int, served: int = 0) -> np.ndarray:
    """Whether the release before each request is shown; numbered over a curator's life."""
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
    """Trees of one structure as one tree, with a leading axis.

    With NumPy where values are known: `jnp.stack` would start an operation for each of a thousand
    short arrays.
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
