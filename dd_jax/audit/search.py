"""Worst-case search: which neighbouring pair, which records, which requester show the most?

A certificate speaks of every pair of neighbours and every requester, an audit of the one that it
was run on. The search goes through hand-made worst cases and then improves the best one at random,
greedily, on one part of the seeds. Only the winner is sampled again, with fresh keys: whatever is
then said of it needs no correction for the number of candidates that were tried.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import jax
import numpy as np
from jaxtyping import Array

from dd_jax.audit import samples
from dd_jax.audit.search_candidates import Candidate, hand_made, vary
from dd_jax.audit.search_strategies import Strategy
from dd_jax.ensemble import Pair, neighbours
from dd_jax.errors import InputError
from dd_jax.interaction import adversary_view, interact
from dd_jax.types import Mechanism

__all__ = ["Candidate", "Found", "Tried", "hand_made", "sample", "search", "separation", "vary"]


class Tried(NamedTuple):
    """A candidate's name, and its score on the searching seeds: an estimate, not a bound."""

    name: str
    estimate: float


class Found(NamedTuple):
    """What a search found.

    Attributes:
        candidate: the winner.
        estimate: its score on the searching seeds; chosen as the largest, so biased upwards.
        tried: every candidate in the order in which it was tried.
        pair: releases of the winner's two worlds from fresh, independent keys: what to audit.
    """

    candidate: Candidate
    estimate: float
    tried: tuple[Tried, ...]
    pair: Pair


def search(
    key: Array,
    mechanism: Mechanism,
    candidates: Sequence[Candidate],
    *,
    seeds: int = 512,
    fresh_seeds: int = 10_000,
    rounds: int = 6,
    width: int = 8,
    vary_others: bool = False,
    score: Callable[[Pair], float] | None = None,
) -> Found:
    """The worst of the candidates and of random variations on it, sampled afresh.

    Each round tries `width` variations of the best candidate so far, half of them under its own
    requester and half under the others in turn, with steps that halve from round to round.

    Guarantee: none for the search; statements about `Found.pair` are as good as for a pair that was
    chosen beforehand, since its keys were used for nothing else.

    Args:
        key: splits into the searching part and the fresh part.
        mechanism: the curator; variations stay inside its domain.
        candidates: where to begin, for example `hand_made(...)`; databases of one shape, requesters
            that one claim covers (p-adaptive ones are certified for less).
        seeds: seeds per arm and candidate while searching; the noise is common to both arms and to
            all candidates, so that few are enough.
        fresh_seeds: seeds per arm of `Found.pair`.
        rounds: rounds of variations; 0 tries the candidates alone.
        width: variations per round.
        vary_others: whether variations change the other rows of the database as well.
        score: `Pair -> number`, what is maximised; `separation` by default.
    """
    _check_search(candidates, seeds, fresh_seeds, rounds, width)
    sample_key, vary_key, fresh_key = jax.random.split(key, 3)
    measure = separation if score is None else score
    strategies = list(dict.fromkeys(candidate.strategy for candidate in candidates))
    tried: list[tuple[Candidate, float]] = []

    def evaluate(candidate: Candidate) -> None:
        pair = sample(
            jax.random.clone(sample_key), mechanism, candidate, seeds, noise="common", chunk=seeds
        )
        tried.append((candidate, float(measure(pair))))

    def best() -> tuple[Candidate, float]:
        return max(tried, key=lambda entry: entry[1])

    for candidate in candidates:
        evaluate(candidate)
    for step in range(rounds * width):
        round_number, turn = divmod(step, width)
        leader = best()[0]
        strategy = leader.strategy if turn % 2 == 0 else strategies[step // 2 % len(strategies)]
        varied = vary(
            jax.random.fold_in(vary_key, step),
            leader._replace(strategy=strategy),
            mechanism.domain,
            0.5**round_number,
            vary_others=vary_others,
        )
        evaluate(varied)
    winner, estimate = best()
    pair = sample(fresh_key, mechanism, winner, fresh_seeds, chunk=seeds)
    return Found(winner, estimate, tuple(Tried(c.name, e) for c, e in tried), pair)


def sample(
    key: Array,
    mechanism: Mechanism,
    candidate: Candidate,
    seeds: int,
    *,
    noise: Literal["independent", "common"] = "independent",
    chunk: int | None = None,
) -> Pair:
    """Releases φ_i, φ_{i+1}, … from the target's deletion on, in both worlds, over seeds."""
    row = candidate.neighbour.index[0]
    run = _releases(mechanism, candidate.strategy)
    return neighbours(
        run, key, seeds, candidate.database, candidate.neighbour, row, noise=noise, chunk=chunk
    )


@functools.lru_cache(maxsize=256)
def _releases(mechanism: Mechanism, strategy: Strategy) -> Callable:
    """One function object per curator and requester, so that it is compiled once."""

    def run(key, database, row):
        _, transcript = interact(
            key,
            mechanism,
            strategy.make(row),
            database,
            num_requests=strategy.num_requests,
            observe=strategy.observe,
        )
        return adversary_view(transcript, strategy.request)

    return run


def separation(pair: Pair) -> float:
    """μ̂ = √(δᵀ Σ⁻¹ δ), δ the difference of the means and Σ the covariance within the arms.

    The μ of two Gaussian laws of one covariance, estimated: not a bound. With common noise δ has no
    sampling error where the record's effect is additive.
    """
    present, absent = samples.paired(pair)
    difference = present.mean(axis=0) - absent.mean(axis=0)
    within = np.concatenate([present - present.mean(axis=0), absent - absent.mean(axis=0)])
    covariance = within.T @ within / len(within)
    # Releases may be linearly dependent; the floor is far below anything that seeds resolve.
    floor = 1e-9 * np.trace(covariance) / len(covariance) + np.finfo(np.float64).tiny
    covariance += floor * np.eye(len(covariance))
    return float(np.sqrt(difference @ np.linalg.solve(covariance, difference)))


def _check_search(candidates, seeds, fresh_seeds, rounds, width) -> None:
    if not candidates:
        raise InputError("there is no candidate; begin for example with hand_made(...).")
    for name, value, least in (
        ("seeds", seeds, 2),
        ("fresh_seeds", fresh_seeds, 2),
        ("rounds", rounds, 0),
        ("width", width, 1),
    ):
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
            raise InputError(f"{name} = {value}; give a whole number ≥ {least}.")
