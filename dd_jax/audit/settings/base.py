"""What an audit of a curator is made of: interactions in two worlds, the claims judged on them.

An `AuditSetting` names both; `run` samples its interactions and judges its claims.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array

from dd_jax import sweeps
from dd_jax.audit import claims, samples, scores
from dd_jax.audit.claims import gates_for
from dd_jax.audit.samples import Interaction
from dd_jax.audit.verdict import Verdict, audit
from dd_jax.ensemble import Pair
from dd_jax.errors import InputError
from dd_jax.intervals import check_confidence, simultaneous
from dd_jax.keys import tagged
from dd_jax.plans import Plan

EPS_DP, EPS_DD = 1.0, 0.1
# The Gaussian route reads a lower bound on μ as R_q = q μ²/2; where the law is far from Gaussian (a
# requester that recodes leaves a coin) only a Rényi bound may be compared with an exact R_q.
GAUSSIAN, EVENT = ("gaussian_mu",), ("renyi_binary",)
# The certificates of linear losses are attained: at the confidence of the numbers, one run in
# twenty would accuse a true one. A verdict takes a fiftieth of their risk.
VERDICT_RISK = 1 / 50


class AuditedClaim(NamedTuple):
    """One claim of the certificate and the samples that it is judged on.

    Attributes:
        name: its short name. words: what it says, for people.
        interaction: the name of the interaction it is judged on.
        releases: the numbers of the releases that the observer holds.
        claim: the optimal certificate's.
        paper: the paper's number for the same claim; None with batches, which it does not cover.
        exact: the true R_q, None where it is not known.
        score, gates: how samples are ordered and judged.
        comparator: draws `(key, seeds) -> models` that take the other world's place, for a claim
            about a law and not about neighbours; None for the other world.
    """

    name: str
    words: str
    interaction: str
    releases: tuple[int, ...]
    claim: claims.NumericClaim
    paper: float | None
    exact: float | None
    score: scores.Score
    gates: tuple[str, ...]
    comparator: Callable[[Array, int], Any] | None = None


class AuditSetting(NamedTuple):
    """Interactions and the claims that are judged on them; `config` goes into manifests.

    `controls` names those of `dd_jax.audit.controls` that are judged beside the claims: a mistake
    that the same kind of gate must flag, and a null that it must not.
    """

    name: str
    summary: str
    config: dict[str, Any]
    plan: Plan
    interactions: dict[str, Interaction]
    audited: tuple[AuditedClaim, ...]
    controls: tuple[str, ...] = ()


def certified(
    plan: Plan, which: claims.Which, adaptivity: int = 0, request: int = 1
) -> tuple[claims.NumericClaim, float | None]:
    """(the claim of the plan's certificate, the paper's number for the same settings)."""
    asked = (adaptivity, request)
    ours = claims.of_certificate(plan.certificate(*asked), which)
    if plan.batches > 1:
        return ours, None
    paper = replace(plan, accountant="paper").certificate(*asked)
    return ours, claims.of_certificate(paper, which).claimed


def gaussian_controls(batches: int) -> tuple[str, ...]:
    """Controls of the gate `gaussian_mu`, which most claims of convex losses are judged by."""
    if batches == 1:
        return "half noise", "null, gaussian_mu"
    return "batch of the deleted row skipped", "null with batches, gaussian_mu"


def targets(n: int, batches: int) -> dict[str, int]:
    """Rows that the target is in, by what is added to the names of claims.

    Full batches treat all rows alike. With batches it matters which one the row is in.
    """
    if batches == 1:
        return {"": 0}
    middle = {"-middle": n // 2} if batches > 2 else {}
    return {"-first": 0, **middle, "-last": n - 1}


def one_event(score: scores.Score, *, share: float, learned: bool) -> scores.Score:
    """On which side of the middle a score is, ±1: the event is stated, so none is chosen by luck.

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


# --- run and judge ------------------------------------------------------------------------------


class Judged(NamedTuple):
    """A claim, what the samples say about it, and the paper's number for it.

    Attributes:
        audited: the claim and how it is judged.
        verdict: refuted or not, and its power, at a risk of `VERDICT_RISK` times that of the
            numbers.
        numbers: the same samples at the given confidence; its lower bound is `audited`.
        seeds: per world, both parts.
    """

    audited: AuditedClaim
    verdict: Verdict
    numbers: Verdict
    seeds: int

    @property
    def slack(self) -> float | None:
        """The paper's ε over the optimal one, for the same settings."""
        paper = self.audited.paper
        return None if paper is None else paper / self.audited.claim.claimed

    @property
    def tightness(self) -> float | None:
        """Audited over exact, where the exact value is known."""
        exact = self.audited.exact
        return None if exact is None else self.numbers.lower_bound.value / exact

    def to_dict(self) -> dict[str, Any]:
        """Plain values; `seeds` counts both parts, `seeds_judged` those that judged."""
        found, paper = self.numbers.to_dict(), self.audited.paper
        return found | {
            "verdict": self.verdict.word,
            "detectable": self.verdict.detectable,
            "blind": self.verdict.blind,
            "seeds_needed": self.verdict.seeds_needed,
            "name": self.audited.name,
            "words": self.audited.words,
            "paper": paper,
            "paper_over_certified": self.slack,
            "audited_over_exact": self.tightness,
            "audited_over_paper": None if paper is None else found["audited"] / paper,
            "seeds": self.seeds,
            "seeds_judged": found["seeds"],
        }


class Keep(NamedTuple):
    """Where chunks are kept, and how they are made.

    Attributes:
        results: the folder for chunks; None keeps none.
        resume: whether chunks that are already in the folder are used.
        mesh: the devices that make them; None for one device.
    """

    results: Path | None
    resume: bool = True
    mesh: Mesh | None = None


def run(
    setting: AuditSetting,
    key: Array,
    seeds: int,
    *,
    confidence: float,
    keep: Keep,
    say: Callable[[str], None],
    names: Sequence[str] | None = None,
) -> list[Judged]:
    """Judge the setting's claims, all of them or those named, at one confidence for all together.

    An interaction that several claims look at is run once. Its key depends on its place in the
    setting alone, so that the same seeds are used whichever claims are chosen.

    Args:
        setting: see `find`.
        key: base key. seeds: per arm.
        confidence: of all numbers together; verdicts take a smaller risk (`VERDICT_RISK`).
        keep: where chunks go.
        say: called with a line of progress between chunks.
        names: claims to judge; all by default.
    """
    check_confidence(confidence)
    known = {audited.name: audited for audited in setting.audited}
    for name in names or ():
        if name not in known:
            raise InputError(
                f"{setting.name} has no claim {name!r}; choose from {', '.join(known)}."
            )
    chosen = [audited for name, audited in known.items() if names is None or name in names]
    each = simultaneous(confidence, len(chosen))
    for audited in chosen:  # refuse before the runs what `audit` would refuse after them
        tests = sum(len(gate.directions) for gate in gates_for(audited.claim, audited.gates))
        alone = simultaneous(verdict_confidence(each), tests)
        samples.check_seeds(seeds, audited.score.share, alone, tests)
    pairs = {}
    for place, name in enumerate(setting.interactions):
        if any(audited.interaction == name for audited in chosen):
            place_key = jax.random.fold_in(key, place)
            pairs[name] = sample(setting, name, place_key, seeds, keep, say)
    found = []
    for audited in chosen:
        pair = pairs[audited.interaction]
        if audited.comparator is not None:
            law = audited.comparator(tagged(key, audited.name), seeds)
            pair = Pair(pair.present, np.broadcast_to(np.asarray(law)[:, None], pair.present.shape))
        found.append(judge(audited, setting, pair, each, say))
    return found


def sample(
    setting: AuditSetting, name: str, key: Array, seeds: int, keep: Keep, say: Callable[[str], None]
) -> Pair:
    """Releases of one interaction in both worlds, leaves (seeds, releases, d)."""
    found = setting.interactions[name]
    label = f"{setting.name}-{name}"
    # One line before anything is compiled, which takes a while and is silent.
    say(f"{label}: {seeds:,} seeds in each of two worlds …")
    chunk = min(found.chunk or seeds, seeds)
    stream = sweeps.Stream(keep.results, label, setting.config, chunk, keep.resume, keep.mesh)
    return found.sample(
        key,
        seeds,
        functools.partial(sweeps.neighbours, stream, progress=sweeps.progress_lines(label, say)),
    )


def judge(
    audited: AuditedClaim,
    setting: AuditSetting,
    pair: Pair,
    confidence: float,
    say: Callable[[str], None],
) -> Judged:
    """One claim against the releases that its observer holds."""
    say(f"{setting.name}: judging {audited.name}")
    kept = setting.interactions[audited.interaction].kept
    columns = [kept.index(release) for release in audited.releases]
    held = Pair(*(np.asarray(arm)[:, columns] for arm in pair))
    judging = functools.partial(
        audit,
        held,
        audited.claim,
        scores=audited.score,
        gates=audited.gates,
        exact=audited.exact,
        independent=True,  # `sweeps.neighbours` gives each world its own keys
    )
    report = judging(confidence=confidence)
    stricter = judging(confidence=verdict_confidence(confidence))
    return Judged(audited, stricter.verdicts[0], report.verdicts[0], report.seeds)


def verdict_confidence(confidence: float) -> float:
    """The confidence of verdicts where the numbers have this one."""
    return 1 - (1 - confidence) * VERDICT_RISK
