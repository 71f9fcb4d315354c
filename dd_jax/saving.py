"""A curator on disk: everything that is needed to continue, and to certify what happened.

That is the unrounded model, the EDITED database (the original one still holds the deleted records),
the number of served requests, the plan, and the history of edits and observations. Old releases and
the records of edits are left out: they would be copies of deleted data.
"""

import os
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dd_jax import files, sealed
from dd_jax.databases import expand
from dd_jax.erm import Problem
from dd_jax.errors import InputError
from dd_jax.noisy_gd import AtBatch
from dd_jax.plans import Plan
from dd_jax.types import CuratorState, Edit, Labelled, Transcript, num_records

KIND = "curator"
FORMAT = 2
# What is kept of a transcript, besides the rows of its edits and which of them changed nothing.
_HISTORY = (
    "observed",
    "projected",
    "rejected",
    "projected_initially",
    "served_before",
    "n",
    "plan",
    "run",
)


def save(
    path: str | os.PathLike, plan: Plan, state: CuratorState, *transcripts: Transcript
) -> None:
    """Write a curator's state, its plan and its history to one NPZ file, which `load` reads.

    The file is written completely or not at all. A file of the same name is replaced, and with it
    the records that were deleted since it was written.

    Args:
        path: the file.
        plan: the plan of the curator's mechanism.
        state: the state that `interact`, `drive` or `resume` returned last.
        *transcripts: all of its transcripts, in order.

    Raises:
        InputError: a state of another plan, a database that is neither `Labelled` rows nor one
            array, transcripts that do not lead to this state.
    """
    if not np.array_equal(np.asarray(state.plan), np.asarray(plan.fingerprint, np.uint32)):
        raise InputError("the state was made under another plan; give the plan of its mechanism.")
    served = sum(transcript.observed.shape[0] for transcript in transcripts)
    if any(not np.array_equal(transcript.run, state.run) for transcript in transcripts):
        raise InputError("the transcripts belong to another curator; give this one's, in order.")
    if served != int(state.served):
        raise InputError(
            f"the state has served {int(state.served)} requests, the transcripts hold {served}; "
            f"give all transcripts of this curator, in order."
        )
    database = expand(state.database)
    if not isinstance(database, Labelled) and not hasattr(database, "shape"):
        raise InputError(
            f"the database is of type {type(database).__name__}, which cannot be saved; give "
            f"dd.Labelled rows or one array."
        )
    arrays = _numbered("params", state.params) | _numbered("database", database)
    arrays |= {"run": np.asarray(state.run), "looked": np.asarray(state.looked)}
    for place, transcript in enumerate(transcripts):
        history = {name: getattr(transcript, name) for name in _HISTORY}
        arrays |= {f"history/{place}/{name}": np.asarray(part) for name, part in history.items()}
        arrays[f"history/{place}/index"] = np.asarray(transcript.edits.index)
        arrays |= _numbered(f"history/{place}/unchanged", transcript.unchanged)
    about = {
        "kind": KIND,
        "format": FORMAT,
        "plan": plan.to_json(),
        "labelled": isinstance(database, Labelled),
        "served": int(state.served),
        "transcripts": len(transcripts),
    }
    content = sealed.pack_arrays(about, arrays)
    try:
        with files.whole_file(Path(path), private=True) as file:
            file.write(content)
    except OSError as error:
        raise InputError(f"{path} cannot be written ({error.strerror}); name another.") from None


def load(
    path: str | os.PathLike, problem: Problem
) -> tuple[Plan, CuratorState, tuple[Transcript, ...]]:
    """The plan, the state and the transcripts that `save` wrote, for the problem they belong to.

    The transcripts have neither releases nor records of edits; `Plan.certify` needs none.

    Raises:
        InputError: the file does not exist or is damaged.
        CertificateRefused: the file's plan is not for this problem.
    """
    about, arrays = _read(Path(path))
    try:
        if about["format"] != FORMAT:
            raise InputError(
                f"{path} has format {about['format']}, but this version reads {FORMAT}; load it "
                f"with the version that wrote it."
            )
        plan = Plan.from_json(about["plan"], problem)
        database = _leaves(arrays, "database")
        database = Labelled(*database) if about["labelled"] else database[0]
        template = jax.eval_shape(problem.loss.template, database)
        if plan.batches > 1:
            next_batch: Any = jax.ShapeDtypeStruct((), jnp.int32)
            template = AtBatch(template, next_batch)
        params = jax.tree.unflatten(jax.tree.structure(template), _leaves(arrays, "params"))
        fits = jax.tree.map(
            lambda a, b: a.shape == b.shape and a.dtype == b.dtype, template, params
        )
        if num_records(database) != plan.n or not all(jax.tree.leaves(fits)):
            raise ValueError("sizes")
        if plan.batches > 1 and int(params.batch) != plan.first_batch(about["served"] + 1):
            raise ValueError("batch")
        words = jnp.asarray(np.asarray(plan.fingerprint, np.uint32))
        rest = (_held(arrays["run"]), _held(arrays["looked"]))
        state = CuratorState(params, database, jnp.int32(about["served"]), words, *rest)
        structure = jax.tree.structure(database)
        transcripts = tuple(
            _transcript(arrays, f"history/{place}", structure)
            for place in range(about["transcripts"])
        )
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path} is damaged; restore it, or learn again.") from None
    return plan, state, transcripts


def _numbered(name: str, tree: Any) -> dict[str, np.ndarray]:
    leaves = jax.tree.leaves(tree)
    return {f"{name}/{place}": np.asarray(leaf) for place, leaf in enumerate(leaves)}


def _leaves(arrays: dict[str, np.ndarray], name: str) -> list[jax.Array]:
    count = sum(key.startswith(f"{name}/") for key in arrays)
    return [_held(arrays[f"{name}/{place}"]) for place in range(count)]


def _held(array: np.ndarray) -> jax.Array:
    """The array on the device; refused if JAX would change its type (without 64 bits it does)."""
    held = jnp.asarray(array)
    if held.dtype != array.dtype:
        raise InputError(f"the file holds {array.dtype} arrays; load it with 64 bits enabled.")
    return held


def _transcript(arrays: dict[str, np.ndarray], name: str, structure) -> Transcript:
    history = {part: jnp.asarray(arrays[f"{name}/{part}"]) for part in _HISTORY}
    unchanged = jax.tree.unflatten(structure, _leaves(arrays, f"{name}/unchanged"))
    edits = Edit(jnp.asarray(arrays[f"{name}/index"]), None)
    lengths = {len(history[part]) for part in ("observed", "projected", "rejected")}
    if lengths != {len(edits.index)} or any(
        leaf.shape != edits.index.shape for leaf in jax.tree.leaves(unchanged)
    ):
        raise ValueError("lengths")
    return Transcript(releases=None, edits=edits, unchanged=unchanged, **history)


def _read(path: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    try:
        return sealed.read_arrays(path)
    except FileNotFoundError:
        raise InputError(f"{path} does not exist; give the file that dd.save wrote.") from None
    except ValueError as error:
        raise InputError(f"{path} is damaged: {error}; restore it, or learn again.") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}); name another.") from None
