"""When single precision would spoil a check, and how an interaction is run in double instead.

Samples are judged by how they spread. Where their standard deviation is within a hundred units in
the last place of their size, rounding is part of what is seen: a sound bound may fail, or a leak be
rounded away.
"""

import functools
import warnings

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from dd_jax.interaction import Observation, Requester
from dd_jax.types import Edit

SAFE_ULPS = 100
# Seeds that the spread is read from.
LOOKED_AT = 256


class PrecisionNotice(UserWarning):
    """Single precision was too coarse; the numbers are of a run in double precision."""


def too_coarse(outputs: PyTree) -> bool:
    """Whether a single-precision output spreads by less than 100 units in its last place.

    Args:
        outputs: leaves with a leading seed axis. Whole numbers and double precision are left out,
            and numbers that are the same in every seed (see `stands_still`).
    """

    def coarse(leaf):
        ulp = np.finfo(np.float32).eps * np.abs(leaf).max(axis=0).astype(np.float64)
        spread = leaf.astype(np.float64).std(axis=0)
        return _moves(leaf) & (spread < SAFE_ULPS * ulp)

    return any(np.any(coarse(leaf)) for leaf in _singles(outputs))


def stands_still(outputs: PyTree) -> bool:
    """Whether a single-precision output is the same in every seed, and no whole number (a code).

    It has no noise, or noise so small that all of it was rounded away; only a run in double
    precision can tell.
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


def announce() -> None:
    """Say that the run was made again in double precision."""
    warnings.warn(
        "the releases spread by less than 100 units in the last place of single precision; the "
        "interactions were run again in double precision.",
        PrecisionNotice,
        stacklevel=4,
    )


def cast(tree: PyTree, dtype) -> PyTree:
    """Floating-point leaves in this precision, the others as they are."""

    def leaf(array):
        floating = jnp.issubdtype(jnp.result_type(array), jnp.floating)
        return jnp.asarray(array, dtype) if floating else jnp.asarray(array)

    return jax.tree.map(leaf, tree)


@functools.lru_cache(maxsize=64)
def in_double(requester: Requester) -> Requester:
    """The requester in an interaction in double precision: it sees singles, its edits are doubles.

    What it is shown is rounded, which is post-processing; what it asks for is unchanged. Numbers
    that it makes itself are singles too, as they were when it was written.
    """

    def init(key):
        with jax.enable_x64(False):
            return cast(requester.init(key), jnp.float32)

    def act(key, memory, observation):
        seen = Observation(*cast(tuple(observation), jnp.float32))
        with jax.enable_x64(False):
            memory, edit = requester.act(key, memory, seen)
            memory = cast(memory, jnp.float32)
        return memory, Edit(edit.index, cast(edit.record, jnp.float64))

    return Requester(init, act, requester.max_requests)
