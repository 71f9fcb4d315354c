"""Samples for an audit or an attack: what is seen of interactions in two neighbouring worlds.

`one_run` runs one interaction, cuts out what its observer holds and says whether the record was
deleted; `two_worlds` does this over seeds on a database 𝒟 and on its neighbour. An audit sees only
the two pytrees of outputs, with a leading seed axis; any other program may make them.

The adversary of the paper's threat model (`sec:deletion_vs_unlearn`, deletion against unlearning)
holds a `PostDeletionView`, which can be cut only from the transcript of one interaction, at the
request that deletes the target's row. Mistakes are refused; a forged transcript (`_replace`) or a
use of Python's private attributes is out of scope.
"""

import functools
import math
import warnings
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jax.tree_util import Partial
from jaxtyping import Array, Bool, PyTree

from dd_jax import checks, ensemble
from dd_jax.audit import tails
from dd_jax.ensemble import Pair
from dd_jax.errors import InputError
from dd_jax.interaction import (
    Observation,
    Requester,
    adversary_view,
    check_database,
    interact,
    replaces,
)
from dd_jax.types import Edit, Mechanism, Transcript, check_edit, is_concrete, num_records

_CUT = object()


# --- one interaction -------------------------------------------------------------------------


class PostDeletionView:
    """φ_i, φ_{i+1}, …: what an adversary holds about a record that request i deleted.

    Attributes:
        releases: the releases from request i on, leaves with that leading axis.
        deleted: whether request i replaced the target's row. Where it did not, the releases are
            blank (zeros), as a masked observation is.
    """

    __slots__ = ("deleted", "releases")

    releases: PyTree
    deleted: Bool[Array, ""]

    def __init__(self, releases: PyTree, deleted: Array, _token: object = None):
        if _token is not _CUT:
            raise InputError(
                "a PostDeletionView is not built by hand; "
                "cut it from a transcript with PostDeletionView.cut(transcript, request=i, row=j)."
            )
        object.__setattr__(self, "releases", releases)
        object.__setattr__(self, "deleted", deleted)

    def __init_subclass__(cls, **options):
        raise InputError(
            "a PostDeletionView has no subclasses, because one could carry more; "
            "use the view that cut returns."
        )

    def __setattr__(self, name, value):
        raise InputError(f"a PostDeletionView is read-only; {name} cannot be set.")

    @classmethod
    def cut(cls, transcript: Transcript, *, request: int, row) -> "PostDeletionView":
        """The view of an adversary interested in the record that `request` deletes from `row`.

        A request deletes a record when it writes the record's row, whatever it writes: in one of
        the two neighbouring worlds the replacement may equal the record.

        Args:
            transcript: what happened in one interaction.
            request: i, from 1.
            row: the target's row, a row of the database; None for a world in which every request is
                empty (r = 0), where nothing is deleted and so nothing is hidden.

        Raises:
            InputError: not the transcript of one interaction, no such request, not one row, or
                (where values are known) a request that does not write the row: the adversary may
                not see what came before the deletion.
        """
        if row is not None and jnp.ndim(row) != 0:
            raise InputError(f"row = {row!r}; give one row of the database, a whole number ≥ 0.")
        return cls._cut(transcript, request, row)

    @classmethod
    def _cut(cls, transcript: Transcript, request: int, rows) -> "PostDeletionView":
        """`cut` for a record or for a group of them, all of which the request must replace."""
        _check_cut(transcript, request, rows)
        releases = adversary_view(transcript, request)
        idle = transcript.edits.index[request - 1].size == 0
        deleted = replaces(transcript, request, rows) if rows is not None else jnp.asarray(idle)
        if is_concrete(deleted) and not deleted:
            raise InputError(
                f"request {request} does not replace row {rows}; "
                f"cut the view at the request that deletes the target."
            )
        return cls(_blank_unless(deleted, releases), deleted, _CUT)

    @property
    def first(self) -> PyTree:
        """φ_i, the release right after the deletion."""
        return jax.tree.map(lambda leaf: leaf[0], self.releases)


def _blank_unless(deleted: Array, releases: PyTree) -> PyTree:
    """The releases, or zeros where the record was not deleted."""
    return jax.tree.map(lambda leaf: jnp.where(deleted, leaf, jnp.zeros_like(leaf)), releases)


def _check_cut(transcript: Transcript, request: int, rows) -> None:
    """Refuse what cannot be one interaction, one request and rows of a database."""
    if not isinstance(transcript, Transcript):
        raise InputError(
            f"a view is cut from a Transcript, not from a {type(transcript).__name__}."
        )
    if transcript.edits.index.ndim != 2:
        raise InputError(
            f"the transcript's edits have shape {transcript.edits.index.shape}, "
            f"one interaction's (requests, r); cut inside the vmap over seeds."
        )
    checks.whole("request", request, least=1)
    if rows is None:
        return
    whole = jnp.issubdtype(jnp.result_type(rows), jnp.integer)
    if not whole or (is_concrete(rows) and np.any(np.asarray(rows) < 0)):
        raise InputError(f"row = {rows!r}; give one row of the database, a whole number ≥ 0.")


class KeptReleases(NamedTuple):
    """Releases chosen by number, also from before a deletion: what an analyst holds.

    Attributes:
        releases: leaves with a leading axis of releases; blank where `deleted` is false.
        deleted: whether the stated request replaced the rows; true where none was stated.
    """

    releases: PyTree
    deleted: Bool[Array, ""]


class Stage(NamedTuple):
    """One interaction and what is seen of it; built from arrays inside each run.

    Attributes:
        mechanism: the curator.
        requester: 𝒬, possibly the adversary's design; request `request` must delete the target.
        database: 𝒟_0.
        row: the target's row, or rows of a group; None where every request is empty.
        request: i, the request that deletes the target; 0 where the target stays. It may be traced.
            Both 0 and a traced number need `kept`.
        num_requests: how many requests are served; at least i.
        observe: releases the requester is shown; their number is p.
        kept: numbers of the releases seen. None: those from the deletion on, a `PostDeletionView`.
    """

    mechanism: Mechanism
    requester: Requester
    database: PyTree
    row: Any
    request: Any
    num_requests: int
    observe: Sequence[int] = ()
    kept: tuple[int, ...] | None = None


class Outcome(NamedTuple):
    """One run: what was made of the view, and whether the target was deleted as stated."""

    answer: PyTree
    deleted: Bool[Array, ""]


def one_run(
    key: Array, stage: Stage, look: Callable[[Any], PyTree] = attrgetter("releases")
) -> Outcome:
    """Interact in one world, cut the view, and turn it into an answer on the device.

    Args:
        key: of the interaction.
        stage: what is run and what is seen of it.
        look: `view -> answer`; all releases of the view by default.
    """
    _, transcript = interact(
        key,
        stage.mechanism,
        stage.requester,
        stage.database,
        num_requests=stage.num_requests,
        observe=stage.observe,
    )
    if stage.kept is None:
        view = PostDeletionView._cut(transcript, stage.request, stage.row)  # pyright: ignore
    else:
        deleted = (stage.request == 0) | replaces(transcript, stage.request, stage.row)
        kept = jax.tree.map(lambda leaf: leaf[np.array(stage.kept)], transcript.releases)
        view = KeptReleases(_blank_unless(deleted, kept), jnp.asarray(deleted))
    # An edit of a row that does not exist was dropped: nothing was deleted.
    there = stage.row is None or jnp.all(jnp.asarray(stage.row) < num_records(stage.database))
    return Outcome(look(view), view.deleted & there)


def trials(
    trial: Callable[..., Outcome], key: Array, seeds: int, *args, chunk=None, progress=None
) -> PyTree:
    """Answers of `trial(key, *args)` over seeds, on the host, with a leading seed axis.

    Raises:
        InputError: in some trial the target was not deleted at the stated request.
    """
    outcome = ensemble.over_seeds(trial, key, seeds, *args, chunk=chunk, progress=progress)
    return _answers(outcome)[0]


def two_worlds(
    trial: Callable[..., Outcome],
    key: Array,
    seeds: int,
    database: PyTree,
    alternative: Edit,
    *args: PyTree,
    in_double: Callable[..., Outcome] | None = None,
    neighbours: Callable[..., Pair] = ensemble.neighbours,
    **options,
) -> Pair:
    """The membership game of the soundness theorem (`thm:soundness`): a trial in two worlds.

    `present` holds the answers of `trial(key, database, *args)` on 𝒟, `absent` those on
    𝒟 ∘ alternative, with independent coins.
    For booleans `dd_jax.intervals.advantages` turns them into Adv with an exact interval.

    Args:
        trial: see `one_run`; give the same object for the same program, so that it is compiled
            once.
        key: base key. seeds: per world.
        database: 𝒟. alternative: the edit that makes the neighbour.
        *args: further arguments of the trial.
        in_double: the same trial for records in double precision. It makes those answers again for
            which single precision is too coarse (see `too_coarse`), and a `PrecisionNotice` says
            so; without it such answers stay as they are.
        neighbours: the function that runs the worlds: `dd.neighbours`, or `sweeps.neighbours`,
            which keeps its chunks.
        **options: for `neighbours`: chunk, mesh, progress.

    Raises:
        InputError: in some run the target was not deleted at the stated request, or the mechanism
            stays in single precision where its noise needs double.
    """

    def run(trial, database, alternative):
        # The same coins in both precisions; at most one of the two runs is used.
        coins = jax.random.clone(key)
        return neighbours(trial, coins, seeds, database, alternative, *args, **options)

    pair = run(trial, database, alternative)
    if in_double is not None:
        pair = _resolved(pair, functools.partial(run, in_double), database, alternative)
    return Pair(*_answers(*pair))


def _answers(*outcomes: Outcome) -> list[PyTree]:
    """The answers of each world, on the host; refused unless every run deleted the record."""
    deleted = np.concatenate([np.asarray(outcome.deleted) for outcome in outcomes])
    if not deleted.all():
        raise InputError(
            f"in {np.sum(~deleted)} of {deleted.size} interactions the record was not deleted at "
            f"the stated request; name the request that replaces its row."
        )
    return [jax.tree.map(np.asarray, outcome.answer) for outcome in outcomes]


class Interaction(NamedTuple):
    """A whole interaction and the two worlds it is run in.

    Attributes:
        mechanism: the curator.
        requester: 𝒬; interactions whose requesters differ in arrays alone share a program.
        database: 𝒟. alternative: the edit that makes the neighbour.
        kept: the numbers of the releases that are kept; the last of them ends the interaction.
        deleted_by: the request that must delete the target, 0 if it stays.
        chunk: seeds per device call.
        observe: releases the requester is shown.
    """

    mechanism: Mechanism
    requester: Requester
    database: PyTree
    alternative: Edit
    kept: tuple[int, ...]
    deleted_by: int
    chunk: int | None
    observe: tuple[int, ...] = ()

    def sample(self, key: Array, seeds: int, neighbours=ensemble.neighbours, **options) -> Pair:
        """The kept releases in both worlds, leaves (seeds, releases, …); see `two_worlds`."""
        program = (self.mechanism, self.kept, self.observe)
        return two_worlds(
            _trial(*program),
            key,
            seeds,
            self.database,
            self.alternative,
            self.alternative.index,
            jnp.int32(self.deleted_by),
            self.requester,
            in_double=_trial(*program, double=True),
            neighbours=neighbours,
            **options,
        )


@functools.lru_cache(maxsize=64)
def _trial(mechanism, kept, observe, double=False):
    """One function object per program, so that interactions which share it compile it once."""

    def trial(key, database, rows, deleted_by, requester):
        requester = in_double(requester) if double else requester
        return one_run(
            key,
            Stage(mechanism, requester, database, rows, deleted_by, max(kept), observe, kept),
        )

    return trial


def neighbouring_releases(
    key: Array,
    mechanism: Mechanism,
    requester: Requester,
    database: PyTree,
    alternative: Edit,
    *,
    num_requests: int,
    request: int | None = None,
    observe: tuple[int, ...] = (),
    seeds: int,
    chunk: int | None = None,
    mesh: Mesh | None = None,
    progress=None,
) -> Pair:
    """Whole interactions on a database and on its neighbour, as an observer sees them.

    Compiled once for one mechanism, requester and schedule of observations: databases, alternatives
    and keys may vary. Releases that spread by less than 100 units in the last place of single
    precision, or not at all, are made again in double precision, and a `PrecisionNotice` says so.

    Args:
        key: base key; the arms have independent coins.
        mechanism: the curator.
        requester: 𝒬, the same in both arms. The record that it writes in place of the deleted one
            must not depend on that record; otherwise no deletion guarantee applies.
        database: 𝒟, the world in which the record is present.
        alternative: the replacement that makes the neighbour: the rows whose records are judged.
        num_requests: how many requests are served.
        request: i, the request that deletes the alternative's rows: the observer is given φ_i,
            φ_{i+1}, … (`adversary_view`), for claims of deletion. None: all of φ_0, φ_1, …, for
            claims of privacy of records that stay.
        observe: releases the requester is shown; p of them before the deletion.
        seeds: seeds per arm.
        chunk, mesh, progress: as in `dd.over_seeds`.

    Returns:
        A `Pair` of releases, leaves of shape (seeds, releases, …).

    Raises:
        InputError: a record outside the domain, a request out of range, interactions in which the
            request does not write the rows, or a mechanism that stays in single precision where its
            noise needs double.
    """
    check_database(database, mechanism)
    check_edit(database, alternative, mechanism.domain)
    if request is not None and not 1 <= request <= num_requests:
        raise InputError(
            f"request = {request}; the interaction serves requests 1 to {num_requests}."
        )
    first = 0 if request is None else request
    kept, worlds = tuple(range(first, num_requests + 1)), (database, alternative)
    found = Interaction(mechanism, requester, *worlds, kept, first, chunk, tuple(observe))
    return found.sample(key, seeds, chunk=chunk, mesh=mesh, progress=progress)


def one_release(pair: Pair, number: int) -> Pair:
    """Release `number` alone (from 0, or from -1 backwards), out of a pair of sequences."""
    return Pair(*(jax.tree.map(lambda leaf: leaf[:, number], arm) for arm in pair))


# --- single precision, where it would spoil a check ---------------------------------------------

# Samples are judged by how they spread. Where their standard deviation is below a hundred units in
# the last place of their size, rounding is part of what is seen: a sound bound may fail, or a leak
# may be rounded away.
SAFE_ULPS = 100
# Seeds that the spread is read from.
LOOKED_AT = 256


class PrecisionNotice(UserWarning):
    """Single precision was too coarse; the numbers are of a run in double precision."""


def too_coarse(outputs: PyTree) -> bool:
    """Whether a single-precision output spreads by less than 100 units in its last place.

    Args:
        outputs: leaves with a leading seed axis. Not counted: whole numbers, double precision, and
            numbers that are the same in every seed (see `stands_still`).
    """

    def coarse(leaf):
        ulp = np.finfo(np.float32).eps * np.abs(leaf).max(axis=0).astype(np.float64)
        spread = leaf.astype(np.float64).std(axis=0)
        return _moves(leaf) & (spread < SAFE_ULPS * ulp)

    return any(np.any(coarse(leaf)) for leaf in _singles(outputs))


def stands_still(outputs: PyTree) -> bool:
    """Whether a single-precision output is the same in every seed and not a whole number (a code).

    Such an output has no noise, or noise so small that all of it was rounded away; only a run in
    double precision can tell which.
    """
    return any(np.any(~_moves(leaf) & (leaf[0] % 1 != 0)) for leaf in _singles(outputs))


def moves_again(single: PyTree, double: PyTree) -> bool:
    """Whether a number that stands still in single precision has noise in double."""
    pairs = zip(jax.tree.leaves(single), jax.tree.leaves(double), strict=True)
    return any(np.any(_moves(np.asarray(b)) & ~_moves(np.asarray(a))) for a, b in pairs)


def _singles(outputs: PyTree) -> list[np.ndarray]:
    leaves = [np.asarray(leaf)[:LOOKED_AT] for leaf in jax.tree.leaves(outputs)]
    return [leaf for leaf in leaves if leaf.dtype == np.float32]


def _moves(leaf: np.ndarray) -> np.ndarray:
    """Which numbers are not the same in every seed."""
    return np.any(leaf != leaf[0], axis=0)


def _cast(tree: PyTree, dtype) -> PyTree:
    """Floating-point leaves in this precision, the others as they are."""

    def leaf(array):
        floating = jnp.issubdtype(jnp.result_type(array), jnp.floating)
        return jnp.asarray(array, dtype) if floating else jnp.asarray(array)

    return jax.tree.map(leaf, tree)


def in_double(requester: Requester) -> Requester:
    """The requester in an interaction in double precision: it sees singles, its edits are doubles.

    What it sees is rounded, which is post-processing; its requests are unchanged. It computes in
    single precision, as it was written to do.
    """

    rounded = Partial(_init_in_single, requester), Partial(_act_in_single, requester)
    return Requester(*rounded, max_requests=requester.max_requests)


def _init_in_single(requester: Requester, key):
    with jax.enable_x64(False):
        return _cast(requester.init(key), jnp.float32)


def _act_in_single(requester: Requester, key, memory, observation: Observation):
    seen = Observation(*_cast(tuple(observation), jnp.float32))
    with jax.enable_x64(False):
        memory, edit = requester.act(key, memory, seen)
        memory = _cast(memory, jnp.float32)
    return memory, Edit(edit.index, _cast(edit.record, jnp.float64))


def _resolved(pair: Pair, again: Callable[..., Pair], database, alternative: Edit) -> Pair:
    """The pair, or one made in double precision where single is too coarse for its noise."""
    single = [arm.answer for arm in pair]
    coarse = too_coarse(single)
    if not coarse and not stands_still(single):
        return pair
    with jax.enable_x64(True):
        # As NumPy arrays: outside this block JAX would round them again.
        double = jax.tree.map(np.asarray, again(*_cast((database, alternative), jnp.float64)))
    answers = [arm.answer for arm in double]
    if too_coarse(answers):
        raise InputError(
            "the mechanism's releases stay float32, which is too coarse for its noise, even when "
            "its records are float64; give its models and noise the type of the records."
        )
    if not coarse and not moves_again(single, answers):
        return pair
    warnings.warn(
        "the releases spread by less than 100 units in the last place of single precision; the "
        "interactions were run again in double precision.",
        PrecisionNotice,
        stacklevel=5,
    )
    return double


# --- tables of samples ---------------------------------------------------------------------------


def paired(pair: Any) -> Pair:
    """(present, absent) as (seeds, D) tables of float64, refused unless they can be compared.

    Raises:
        InputError: not two pytrees, unequal structures or shapes, no seeds, NaN or infinity.
    """
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise InputError(
            f"the pair is a {type(pair).__name__}; give (present, absent), two pytrees of outputs "
            f"with a leading seed axis, as dd.neighbours does."
        )
    structures = [jax.tree.structure(arm) for arm in pair]
    if structures[0] != structures[1]:
        raise InputError(
            f"present has structure {structures[0]}, absent {structures[1]}; "
            f"give outputs of one mechanism."
        )
    shapes = [[np.shape(leaf) for leaf in jax.tree.leaves(arm)] for arm in pair]
    if shapes[0] != shapes[1]:
        raise InputError(
            f"present has shapes {shapes[0]}, absent {shapes[1]}; "
            f"give both arms the same seeds and outputs."
        )
    present, absent = pair
    return Pair(flatten(present, "present"), flatten(absent, "absent"))


def flatten(outputs: PyTree, name: str = "the outputs") -> np.ndarray:
    """A pytree with a leading seed axis as one (S, D) table of float64, leaf after leaf.

    A leaf of shape (S, k, d) (k releases) takes k·d columns, release after release.
    """
    leaves = [_numbers(leaf, name) for leaf in jax.tree.leaves(outputs)]
    shapes = [leaf.shape for leaf in leaves]
    if not leaves or any(not shape for shape in shapes) or len({s[0] for s in shapes}) > 1:
        raise InputError(
            f"{name} has leaves of shapes {shapes}; give every leaf the same leading seed axis."
        )
    seeds = shapes[0][0]
    if not seeds or not sum(leaf.size for leaf in leaves):
        raise InputError(f"{name} has leaves of shapes {shapes}; give at least one seed of output.")
    table = np.concatenate([leaf.reshape(seeds, -1) for leaf in leaves], axis=1)
    wrong = np.flatnonzero(~np.isfinite(table).all(axis=1))
    if wrong.size:
        raise InputError(
            f"{name} holds NaN or infinity in {wrong.size} of {seeds} seeds, first in seed "
            f"{wrong[0]}; correct the mechanism, or release a finite code for such outputs."
        )
    return table


def _numbers(leaf: Any, name: str) -> np.ndarray:
    """One leaf as float64; refuses keys, text and complex numbers."""
    kind = getattr(leaf, "dtype", None) or np.asarray(leaf).dtype
    if not any(jnp.issubdtype(kind, real) for real in (np.bool_, np.integer, np.floating)):
        raise InputError(f"{name} holds {kind}; release real numbers, whole numbers or booleans.")
    return np.asarray(leaf).astype(np.float64)


def split(samples: Pair, share: float) -> tuple[Pair, Pair]:
    """Parts A (the first seeds, to choose on) and B (the others, to judge on).

    Args:
        samples: both arms, as tables.
        share: the part of the seeds that goes to A; both parts get at least one.
    """
    cut = fit_seeds(len(samples.present), share)
    return Pair(*(arm[:cut] for arm in samples)), Pair(*(arm[cut:] for arm in samples))


def fit_seeds(seeds: int, share: float) -> int:
    """Seeds that go to part A."""
    return min(max(round(seeds * share), 1), seeds - 1)


def check_seeds(seeds: int, share: float, confidence: float, tests: int) -> None:
    """Refuse an audit that could not refute anything, whatever the samples.

    Args:
        seeds: seeds per arm in all. share: the part that goes to A.
        confidence: of one test. tests: how many share the risk.
    """
    needed = tails.fewest_seeds(confidence)
    if seeds - fit_seeds(seeds, share) < needed or seeds < 2:
        enough = math.ceil(needed / (1 - share)) + 1
        raise InputError(
            f"{seeds} seeds per arm are too few for this confidence over {tests} "
            f"test{'s' * (tests > 1)}, so that even arms that never overlap would show nothing; "
            f"give at least {enough} seeds per arm."
        )
