"""What an audit of Noisy-GD is made of: interactions in two neighbouring worlds, and claims."""

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from dd_jax.audit import claims, samples, scores
from dd_jax.ensemble import Pair
from dd_jax.interaction import Requester
from dd_jax.plans import Plan
from dd_jax.types import Edit, Mechanism

TARGET_ROW = 0
EPS_DP, EPS_DD = 1.0, 0.1
# The Gaussian route reads a lower bound on μ as R_q = q μ²/2; where the law is far from Gaussian (a
# requester that recodes leaves a coin) only a Rényi bound may stand beside an exact R_q.
GAUSSIAN, EVENT = ("gaussian_mu",), ("renyi_binary",)


class Interaction(NamedTuple):
    """A whole interaction and the two worlds it is run in.

    Attributes:
        mechanism: the curator.
        make_requester: 𝒬 from `args`.
        database: 𝒟. alternative: the edit that makes the neighbour.
        kept: the numbers of the releases that are kept; the last of them ends the interaction.
        deleted_by: the request that must delete the target, 0 if it stays.
        args: what else differs between interactions that share one compiled program.
        chunk: seeds per device call.
        observe: releases the requester is shown.
    """

    mechanism: Mechanism
    make_requester: Callable[..., Requester]
    database: PyTree
    alternative: Edit
    kept: tuple[int, ...]
    deleted_by: int
    args: tuple
    chunk: int
    observe: tuple[int, ...] = ()

    def sample(self, key: Array, seeds: int, neighbours: Callable[..., Pair]) -> Pair:
        """The kept releases in both worlds, leaves (seeds, releases, …); see `two_worlds`."""
        program = (self.mechanism, self.make_requester, self.kept, self.observe)
        return samples.two_worlds(
            _trial(*program),
            key,
            seeds,
            self.database,
            self.alternative,
            self.alternative.index,
            jnp.int32(self.deleted_by),
            *self.args,
            in_double=_trial(*program, double=True),
            neighbours=neighbours,
        )


@functools.lru_cache(maxsize=64)
def _trial(mechanism, make_requester, kept, observe, double=False):
    """One function object per program, so that interactions which share it compile it once."""

    def trial(key, database, rows, deleted_by, *args):
        requester = make_requester(*args)
        requester = samples.in_double(requester) if double else requester
        stage = samples.Stage(
            mechanism, requester, database, rows, deleted_by, max(kept), observe, kept
        )
        return samples.one_run(key, stage)

    return trial


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
    claim: claims.NumericClaim
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

    def claim(self, which, adaptivity=0, request=1) -> tuple[claims.NumericClaim, float]:
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
