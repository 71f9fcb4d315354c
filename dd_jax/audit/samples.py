"""Samples for an audit: releases of neighbouring interactions, as two tables of equal shape.

An audit sees nothing of a mechanism but two pytrees of outputs with a leading seed axis, `present`
from runs on 𝒟 and `absent` from runs on its neighbour. `neighbouring_releases` makes them for a
`Mechanism`; any other program may make its own.
"""

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Bool, PyTree

from dd_jax.audit import precision, tails
from dd_jax.ensemble import Pair, neighbours
from dd_jax.errors import InputError
from dd_jax.interaction import Requester, adversary_view, check_database, interact, replaces
from dd_jax.types import Edit, Mechanism, check_edit


class Samples(NamedTuple):
    """Outputs of two neighbouring runs as (seeds, D) tables of float64, row s being seed s."""

    present: np.ndarray
    absent: np.ndarray

    @property
    def seeds(self) -> int:
        """Seeds per arm."""
        return len(self.present)


def paired(pair: Any) -> Samples:
    """(present, absent) as two tables, refused unless they can be compared.

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
    return Samples(flatten(present, "present"), flatten(absent, "absent"))


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
            f"{wrong[0]}; mend the mechanism, or release a finite code for such outputs."
        )
    return table


def _numbers(leaf: Any, name: str) -> np.ndarray:
    """One leaf as float64; refuses keys, text and complex numbers."""
    kind = getattr(leaf, "dtype", None) or np.asarray(leaf).dtype
    if not any(jnp.issubdtype(kind, real) for real in (np.bool_, np.integer, np.floating)):
        raise InputError(f"{name} holds {kind}; release real numbers, whole numbers or booleans.")
    return np.asarray(leaf).astype(np.float64)


def split(samples: Samples, share: float) -> tuple[Samples, Samples]:
    """Parts A (the first seeds, to choose on) and B (the others, to judge on).

    Args:
        samples: both arms.
        share: the part of the seeds that goes to A; both parts get at least one.
    """
    cut = fit_seeds(samples.seeds, share)
    return (
        Samples(samples.present[:cut], samples.absent[:cut]),
        Samples(samples.present[cut:], samples.absent[cut:]),
    )


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
            f"test{'s' * (tests > 1)}: even arms that never overlap would show nothing; "
            f"give at least {enough} seeds per arm."
        )


# --- releases of a mechanism --------------------------------------------------------------------


class _Outcome(NamedTuple):
    """What an observer sees of one interaction, and whether the record was deleted as asked."""

    releases: PyTree
    deleted: Bool[Array, ""]


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
        requester: 𝒬, the same in both arms. What it puts in the deleted record's place must not
            depend on that record, or no deletion guarantee speaks of it.
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
            request leaves the rows alone, or a mechanism that stays in single precision where its
            noise needs double.
    """
    check_database(database, mechanism)
    check_edit(database, alternative, mechanism.domain)
    if request is not None and not 1 <= request <= num_requests:
        raise InputError(
            f"request = {request}; the interaction serves requests 1 to {num_requests}."
        )
    rows = alternative.index

    def run(requester, database, alternative):
        one = _interaction(mechanism, requester, num_requests, request, tuple(observe))
        coins = jax.random.clone(key)  # the same in either precision; one of the runs is dropped
        how = {"chunk": chunk, "mesh": mesh, "progress": progress}
        return neighbours(one, coins, seeds, database, alternative, rows, **how)

    pair = run(requester, database, alternative)
    pair = _resolved(run, pair, requester, database, alternative)
    kept = sum(int(np.sum(~np.asarray(arm.deleted))) for arm in pair)
    if kept:
        raise InputError(
            f"in {kept} of {2 * seeds} interactions request {request} does not replace "
            f"row {np.asarray(rows).tolist()}; name the request that deletes the record."
        )
    return Pair(pair.present.releases, pair.absent.releases)


def _resolved(run, pair: Pair, requester, database, alternative) -> Pair:
    """The pair, or one made in double precision where single is too coarse for its noise."""
    single = [arm.releases for arm in pair]
    coarse = precision.too_coarse(single)
    if not coarse and not precision.stands_still(single):
        return pair
    with jax.enable_x64(True):
        double = precision.cast((database, alternative), jnp.float64)
        # As NumPy arrays: outside this block JAX would round them again.
        again = jax.tree.map(np.asarray, run(precision.in_double(requester), *double))
    releases = [arm.releases for arm in again]
    if precision.too_coarse(releases):
        raise InputError(
            "the mechanism makes numbers of float32 that are too coarse for its noise, whatever "
            "its database holds; give its models and noise the type of the records."
        )
    if not coarse and not precision.moves_again(single, releases):
        return pair
    precision.announce()
    return again


@functools.lru_cache(maxsize=64)
def _interaction(mechanism, requester, num_requests, request, observe):
    """One function object per setting, so that `over_seeds` compiles each once."""

    def run(key, database, rows):
        _, transcript = interact(
            key, mechanism, requester, database, num_requests=num_requests, observe=observe
        )
        if request is None:
            return _Outcome(transcript.releases, jnp.asarray(True))
        return _Outcome(adversary_view(transcript, request), replaces(transcript, request, rows))

    return run


def one_release(pair: Pair, number: int) -> Pair:
    """Release `number` alone (from 0, or from -1 backwards), out of a pair of sequences."""
    return Pair(*(jax.tree.map(lambda leaf: leaf[:, number], arm) for arm in pair))
