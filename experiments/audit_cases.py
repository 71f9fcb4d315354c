"""What an audit of Noisy-GD is made of: interactions in two neighbouring worlds, and claims."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, PyTree

import dd_jax as dd
from dd_jax import requesters
from dd_jax.audit import claims, scores
from dd_jax.interaction import Requester, interact, replaces
from dd_jax.plans import Plan

TARGET_ROW = 0
EPS_DP, EPS_DD = 1.0, 0.1
# The Gaussian route reads a lower bound on μ as R_q = q μ²/2; where the law is far from Gaussian (a
# requester that recodes leaves a coin) only a Rényi bound may stand beside an exact R_q.
GAUSSIAN, EVENT = ("gaussian_mu",), ("renyi_binary",)


class Seen(NamedTuple):
    """What an observer sees of one interaction, and whether the record was deleted as asked."""

    releases: PyTree
    deleted: Bool[Array, ""]


class Interaction(NamedTuple):
    """A whole interaction and the two worlds it is run in.

    Attributes:
        run: `(key, database, rows) -> Seen`.
        database: 𝒟. alternative: the edit that makes the neighbour.
        kept: the numbers of the releases that `run` returns.
        chunk: seeds per device call.
    """

    run: Callable[..., Seen]
    database: PyTree
    alternative: dd.Edit
    kept: tuple[int, ...]
    chunk: int


class Case(NamedTuple):
    """One claim of the certificate and the samples that speak about it.

    Attributes:
        name: what `--claim` calls it. words: what it says, for people.
        interaction: the name of the interaction it is judged on.
        releases: the numbers of the releases that the observer holds.
        claim: the optimal certificate's. paper: the paper's number for the same claim.
        exact: the true R_q, None where it is not known.
        score, gates: how samples are ordered and judged.
    """

    name: str
    words: str
    interaction: str
    releases: tuple[int, ...]
    claim: claims.Claim
    paper: float
    exact: float | None
    score: scores.Score
    gates: tuple[str, ...]


class Setting(NamedTuple):
    """Interactions and the claims that are judged on them; `config` goes into manifests."""

    name: str
    summary: str
    config: dict[str, Any]
    plan: Plan
    interactions: dict[str, Interaction]
    cases: tuple[Case, ...]


def make_interaction(
    mechanism,
    requester: Requester,
    worlds: tuple[PyTree, dd.Edit],
    kept: tuple[int, ...],
    *,
    deleted_by: int | None = None,
    observe: tuple[int, ...] = (),
    chunk: int,
) -> Interaction:
    """Served up to the last release that is kept; request `deleted_by` must delete the target."""

    def run(key, database, rows):
        _, transcript = interact(
            key, mechanism, requester, database, num_requests=max(kept), observe=observe
        )
        gone = True if deleted_by is None else replaces(transcript, deleted_by, rows)
        return Seen(transcript.releases[np.array(kept)], jnp.asarray(gone))

    return Interaction(run, *worlds, kept, chunk)


class Certified(NamedTuple):
    """The same settings under the optimal certificate and under the paper's."""

    plan: Plan

    def claim(self, which, adaptivity=0, request=1) -> tuple[claims.Claim, float]:
        """(the claim of the optimal certificate, the paper's number)."""
        certificates = [
            replace(self.plan, accountant=accountant).certificate(adaptivity, request)
            for accountant in ("optimal", "paper")
        ]
        optimal, paper = (claims.of_certificate(found, which) for found in certificates)
        return optimal, paper.certified


def stream(edits: list[dd.Edit]) -> Requester:
    """A non-adaptive requester that makes these requests."""
    return requesters.fixed_stream(requesters.stack_edits(edits))
