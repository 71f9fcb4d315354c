"""Several processes, one program: what remains to do after `jax.distributed` has been started.

Every process runs the same program on the same inputs, and `jax.devices()` lists the devices of all
of them, so that a mesh spans processes without further work. This module brings results to every
process, sends data that the first one read to the others, refuses inputs that differ, and reports a
failed collective as a lost process.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager

import jax
import numpy as np
from jax.experimental import multihost_utils
from jaxtyping import PyTree

from dd_jax.errors import InputError, ProcessLost

# Words of the errors that collectives and the coordination service raise when a process is lost.
_LOST = re.compile(r"gloo|nccl|UNAVAILABLE|DEADLINE_EXCEEDED|heartbeat|coordination service", re.I)


def is_first() -> bool:
    """Whether this process is the one that writes files and prints."""
    return jax.process_index() == 0


@contextmanager
def together() -> Iterator[None]:
    """Report the failure of a collective inside the block as `ProcessLost`."""
    try:
        yield
    except ProcessLost:
        raise
    except (ValueError, RuntimeError) as error:
        if jax.process_count() == 1 or not _LOST.search(str(error)):
            raise
        said = str(error).splitlines()[0]
        raise ProcessLost(f"another process ended or does not answer ({said})") from error


def gather(tree: PyTree) -> PyTree:
    """All values of every leaf on every process; a leaf that was spread becomes a NumPy array."""

    def whole(leaf):
        if not isinstance(leaf, jax.Array) or leaf.is_fully_addressable:
            return leaf
        return multihost_utils.process_allgather(leaf, tiled=True)

    with together():
        return jax.tree.map(whole, tree)


def from_first(tree: PyTree) -> PyTree:
    """The first process's arrays on every process; the others pass arrays of the same shapes."""
    with together():
        return multihost_utils.broadcast_one_to_all(tree)


def require_same(what: str, digest: str) -> None:
    """Refuse to continue if processes were given different inputs.

    Args:
        what: names the inputs, for people.
        digest: of this process's inputs, in hexadecimal digits.

    Raises:
        InputError: names the processes that differ from the first.
    """
    if jax.process_count() == 1:
        return
    mine = np.frombuffer(bytes.fromhex(digest), np.uint32)
    with together():
        all_of_them = multihost_utils.process_allgather(mine)
    other = np.flatnonzero(np.any(all_of_them != all_of_them[0], axis=1)).tolist()
    if other:
        raise InputError(
            f"{what} of process {', '.join(map(str, other))} differ from those of process 0; "
            f"start all with the same command, data and versions."
        )
