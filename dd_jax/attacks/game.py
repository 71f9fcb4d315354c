"""The game every attack plays: a curator, a requester, a deletion, and an adversary after it.

The adversary of the paper's threat model (`sec:deletion_vs_unlearn`) may have designed the
requester but sees only the releases from the deletion on. `PostDeletionView` is that and nothing
else: it can be cut only from the transcript of one interaction, at the request that deletes the
target's row, and `judge` hands an adversary nothing but such a view. A mistake is refused; whoever
forges a transcript (`_replace`) or reaches into Python's own machinery is out of scope.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, PyTree

from dd_jax import checks
from dd_jax.ensemble import Pair, neighbours, over_seeds
from dd_jax.errors import InputError
from dd_jax.interaction import Requester, adversary_view, interact, replaces
from dd_jax.types import Edit, Mechanism, Transcript, apply_edit, is_concrete, num_records

_CUT = object()


class PostDeletionView:
    """φ_i, φ_{i+1}, …: what an adversary holds about a record that request i deleted.

    Attributes:
        releases: the releases from request i on, leaves with that leading axis.
        deleted: whether request i did replace the target's row. Where it did not, the releases are
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
        raise InputError("a PostDeletionView has no subclasses; one could carry more.")

    def __setattr__(self, name, value):
        raise InputError(f"a PostDeletionView is read-only; {name} cannot be set.")

    @classmethod
    def cut(cls, transcript: Transcript, *, request: int, row) -> "PostDeletionView":
        """The view of an adversary interested in the record that `request` deletes from `row`.

        A request deletes a record when it writes the record's row, whatever it writes: in one of
        two neighbouring worlds the replacement may well equal the record.

        Args:
            transcript: what happened in one interaction.
            request: i, from 1.
            row: the target's row, a row of the database; None for a world in which every request is
                empty (r = 0), where nothing is deleted and so nothing is hidden.

        Raises:
            InputError: not the transcript of one interaction, no such request, not one row, or
                (where values are known) a request that leaves the row alone: what came before the
                deletion is not for the adversary.
        """
        _check_cut(transcript, request, row)
        releases = adversary_view(transcript, request)
        idle = transcript.edits.index[request - 1].size == 0
        deleted = replaces(transcript, request, row) if row is not None else jnp.asarray(idle)
        if is_concrete(deleted) and not deleted:
            raise InputError(
                f"request {request} does not replace row {row}; "
                f"cut the view at the request that deletes the target."
            )
        releases = jax.tree.map(
            lambda leaf: jnp.where(deleted, leaf, jnp.zeros_like(leaf)), releases
        )
        return cls(releases, deleted, _CUT)

    @property
    def first(self) -> PyTree:
        """φ_i, the release right after the deletion."""
        return jax.tree.map(lambda leaf: leaf[0], self.releases)


def _check_cut(transcript: Transcript, request: int, row) -> None:
    """Refuse what cannot be one interaction, one request and one row."""
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
    if row is not None and not _is_one_row(row):
        raise InputError(f"row = {row!r}; give one row of the database, a whole number ≥ 0.")


def _is_one_row(row) -> bool:
    one = jnp.ndim(row) == 0 and jnp.issubdtype(jnp.result_type(row), jnp.integer)
    return one and not (is_concrete(row) and row < 0)


Adversary = Callable[[Array, PostDeletionView], PyTree]
"""`(key, view) -> answer`: a pure function of its own coins and the view."""


def judge(key: Array, adversary: Adversary, view: PostDeletionView) -> PyTree:
    """The adversary's answer; refuses to show it anything but a `PostDeletionView`."""
    if type(view) is not PostDeletionView:
        raise InputError(
            f"an adversary is shown a PostDeletionView, not a {type(view).__name__}: "
            f"it sees no transcript and no release from before the deletion."
        )
    return adversary(key, view)


class Stage(NamedTuple):
    """One interaction in which a target is deleted; built anew, from arrays, inside each trial.

    Attributes:
        mechanism: the curator.
        requester: 𝒬, possibly the adversary's design; request `request` must delete the target.
        database: 𝒟_0.
        row: the target's row; None where every request is empty.
        request: i, the request that deletes the target.
        num_requests: how many requests are served; at least i.
        observe: releases the requester is shown; their number is p.
    """

    mechanism: Mechanism
    requester: Requester
    database: PyTree
    row: Any
    request: int
    num_requests: int
    observe: Sequence[int] = ()


class Outcome(NamedTuple):
    """One trial: the adversary's answer (or its score) and whether the target was deleted."""

    answer: PyTree
    deleted: Bool[Array, ""]


def play(key: Array, stage: Stage, adversary: Adversary) -> Outcome:
    """One trial: interact, cut the view at the deletion, ask the adversary."""
    interact_key, adversary_key = jax.random.split(key)
    _, transcript = interact(
        interact_key,
        stage.mechanism,
        stage.requester,
        stage.database,
        num_requests=stage.num_requests,
        observe=stage.observe,
    )
    view = PostDeletionView.cut(transcript, request=stage.request, row=stage.row)
    # An edit of a row that does not exist was dropped: nothing was deleted.
    there = stage.row is None or stage.row < num_records(stage.database)
    return Outcome(judge(adversary_key, adversary, view), view.deleted & there)


def trials(trial: Callable[..., Outcome], key: Array, seeds: int, *args, chunk=None) -> PyTree:
    """Answers of `trial(key, *args)` over seeds, on the host, with a leading seed axis.

    Raises:
        InputError: in some trial the target was not deleted at the stated request.
    """
    return _answers(over_seeds(trial, key, seeds, *args, chunk=chunk))


def membership(
    trial: Callable[..., Outcome],
    key: Array,
    seeds: int,
    database: PyTree,
    alternative: Edit,
    *args,
    chunk=None,
) -> Pair:
    """The membership game of `thm:soundness`: `trial(key, database, *args)` in two worlds.

    `present` holds the answers on 𝒟, `absent` those on 𝒟 ∘ alternative, with independent coins;
    `dd_jax.intervals.advantages` turns them into Adv with an exact interval.

    Raises:
        InputError: in some trial the target was not deleted at the stated request.
    """
    pair = neighbours(trial, key, seeds, database, alternative, *args, chunk=chunk)
    return Pair(_answers(pair.present), _answers(pair.absent))


def _answers(outcome: Outcome) -> PyTree:
    deleted = np.asarray(outcome.deleted)
    if not deleted.all():
        raise InputError(
            f"in {np.sum(~deleted)} of {deleted.size} trials the target was not deleted at the "
            f"stated request; let the requester replace its row there."
        )
    return jax.tree.map(np.asarray, outcome.answer)


def retraining(learn: Callable[[Array, PyTree], PyTree]) -> Mechanism:
    """The curator that retrains at every request: Ā(𝒟, u, ·) = A(𝒟 ∘ u), perfect unlearning."""

    def delete(key, database, edit, state):
        del state
        return learn(key, apply_edit(database, edit))

    return Mechanism(learn, delete)
