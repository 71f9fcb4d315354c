"""What an audit of Noisy-GD is made of: interactions in two neighbouring worlds, and claims."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, PyTree

from dd_jax.audit import claims, scores
from dd_jax.interaction import Requester, interact, replaces
from dd_jax.plans import Plan
from dd_jax.types import Edit, Mechanism

TARGET_ROW = 0
EPS_DP, EPS_DD = 1.0, 0.1
# The Gaussian route reads a lower bound on μ as R_q = q μ²/2; where the law is far from Gaussian (a
# requester that recodes leaves a coin) only a Rényi bound may stand beside an exact R_q.
GAUSSIAN, EVENT = ("gaussian_mu",), ("renyi_binary",)


class Seen(NamedTuple):
    """What an observer sees of one interaction, and whether the record was deleted as asked."""

    releases: PyTree
    deleted: Bool[Array, ""]


Run = Callable[..., Seen]
"""`(key, database, rows, deleted_by, *args) -> Seen`; compiled once for all its arguments."""


class Interaction(NamedTuple):
    """A whole interaction and the two worlds it is run in.

    Attributes:
        run: what is run; interactions that share it share its compiled program.
        database: 𝒟. alternative: the edit that makes the neighbour.
        kept: the numbers of the releases that `run` returns.
        deleted_by: the request that must delete the target, 0 if it stays.
        args: what else `run` is given.
        chunk: seeds per device call.
    """

    run: Run
    database: PyTree
    alternative: Edit
    kept: tuple[int, ...]
    deleted_by: int
    args: tuple
    chunk: int

    @property
    def all_args(self) -> tuple:
        """Everything that `run` is given after the database."""
        return (self.alternative.index, jnp.int32(self.deleted_by), *self.args)


def make_run(
    mechanism: Mechanism,
    make_requester: Callable[..., Requester],
    kept: tuple[int, ...],
    observe: tuple[int, ...] = (),
) -> Run:
    """Serve the requester made of `args` up to the last release that is kept."""

    def run(key, database, rows, deleted_by, *args):
        requester = make_requester(*args)
        _, transcript = interact(
            key, mechanism, requester, database, num_requests=max(kept), observe=observe
        )
        gone = (deleted_by == 0) | replaces(transcript, deleted_by, rows)
        return Seen(transcript.releases[np.array(kept)], gone)

    return run


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
        return optimal, paper.claimed


def one_event(score: scores.Score, *, share: float, learned: bool) -> scores.Score:
    """Which side of the middle a score is on, ±1: the event is stated, and none is chosen by luck.

    Between Gaussians of one variance every event attains μ, and the middle one has the narrowest
    limits.

    Args:
        score: the score whose sign is taken.
        share: of the seeds that are spent on fitting.
        learned: whether the middle is that of the fitting seeds' means; 0 otherwise, where the
            score is a log-likelihood ratio.
    """

    def fit(present, absent):
        scorer = score.fit(present, absent)
        middle = (np.mean(scorer(present)) + np.mean(scorer(absent))) / 2 if learned else 0.0
        return lambda table: np.sign(scorer(table) - middle)

    return scores.Score(f"{score.name}, side", fit, share, one_event=True)
