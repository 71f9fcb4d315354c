"""Verdicts: what two sets of outputs say about claims, with one risk for everything tested.

`audit` splits its risk 1 - confidence evenly over scores × claims × gates × directions, so that the
probability of refuting any true claim at all is at most that risk, and so is the probability that
any of the lower bounds it prints is false. A claim that states μ of Gaussian DP is judged through
μ; the bound on μ is then converted to the claim's unit. The result bounds that quantity itself only
for Gaussian laws, and it is marked. "Consistent" never means proved: a verdict also states the
smallest violation that the audit would have caught, and an audit that could not have noticed a
threefold violation says so first.
"""

import functools
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from dd_jax.audit import samples
from dd_jax.audit.bounds import LowerBound
from dd_jax.audit.claims import Gate, NumericClaim, claim_list, gates_for
from dd_jax.audit.scores import Score, evaluate, score_list
from dd_jax.claims import Finding
from dd_jax.ensemble import Pair
from dd_jax.errors import InputError
from dd_jax.intervals import check_confidence, simultaneous
from dd_jax.plans.settings import to_plain

# A violation of this factor is what an audit should be able to notice.
VIOLATION = 3
MOST_SEEDS = 10**9


class GateResult(NamedTuple):
    """One test: a score, a gate and a direction.

    Attributes:
        score, gate, direction: which test; "P‖Q" is present against absent.
        refuted: whether it contradicts the claim.
        lower_bound: in the claim's unit, at the confidence of this one test.
        detectable: the smallest truth, in the claim's unit, that this test refutes with the stated
            power if the two laws are N(μ, 1) and N(0, 1) and the score is their likelihood ratio
            (for a score of one event: if they are coins Φ(±μ/2)); None where no truth is.
        through_mu: whether `lower_bound` is a bound on μ of Gaussian DP read in the claim's unit.
    """

    score: str
    gate: str
    direction: str
    refuted: bool
    lower_bound: LowerBound
    detectable: float | None
    through_mu: bool = False


@dataclass(frozen=True)
class Verdict(Finding):
    """What the samples say about one claim, by all tests together.

    Attributes:
        claim: the claim.
        refuted: whether some test contradicts it.
        evidence: the verdict in one sentence, without the warning.
        best: the test with the largest lower bound.
        detectable: the smallest violation that this audit would have caught with probability
            `power`; see `GateResult.detectable`.
        power: that probability.
        exact: the true value in the claim's unit, where the caller knows it.
        confidence: of all verdicts of the report together.
        tests: what each test found.
        reach: seeds per arm, fitting included, to what `detectable` would be with so many.
    """

    claim: NumericClaim
    evidence: str = field(init=False, repr=False, compare=False)
    best: GateResult
    detectable: float | None
    power: float
    exact: float | None
    confidence: float
    tests: tuple[GateResult, ...]
    reach: Callable[[int], float] = field(default=lambda seeds: np.inf, repr=False, compare=False)

    def __post_init__(self):
        object.__setattr__(self, "evidence", self._sentence())

    @property
    def blind(self) -> bool:
        """Whether a truth of three times the claim could have gone unnoticed.

        Always false where no such truth exists: for a claim of 0 or infinity, or of a probability
        above 1/3.
        """
        violation = VIOLATION * self.claim.claimed
        if self.refuted or not 0 < violation < self.claim.most:
            return False
        return self.detectable is None or self.detectable > violation

    @functools.cached_property
    def seeds_needed(self) -> int | None:
        """Seeds per arm that would notice a threefold violation, in two digits; None if this
        audit's do, or if no number up to `MOST_SEEDS` does.
        """
        if not self.blind:
            return None
        most = max(test.lower_bound.seeds for test in self.tests)
        return _fewest(lambda seeds: self.reach(seeds) <= VIOLATION * self.claim.claimed, most)

    @property
    def warning(self) -> str:
        """What to know before reading a verdict that says little; nothing if it says enough."""
        if not self.blind:
            return ""
        needed = self.seeds_needed
        remedy = (
            f"no number of seeds up to {MOST_SEEDS:,} would do, so use another score or gate"
            if needed is None
            else f"{needed:,} seeds per arm would do"
        )
        return f"COULD NOT HAVE NOTICED a threefold violation of {self.claim.name} ({remedy})"

    @property
    def consistent(self) -> bool:
        """Whether no test contradicts the claim."""
        return not self.refuted

    @property
    def lower_bound(self) -> LowerBound:
        """The largest lower bound, in the claim's unit; at `confidence` for the whole report.

        Where `best.through_mu`, it is the claim's quantity for the Gaussian pair of that μ.
        """
        return self.best.lower_bound._replace(confidence=self.confidence)

    @property
    def word(self) -> str:
        """`refuted` or `consistent`."""
        return "refuted" if self.refuted else "consistent"

    def to_dict(self) -> dict[str, Any]:
        """The verdict as plain values: audited, exact, certified, and how they came about."""
        return {
            "claim": self.claim.name,
            "unit": self.claim.unit,
            "verdict": self.word,
            "audited": self.lower_bound.value,
            "exact": self.exact,
            "claimed": self.claim.claimed,
            "certified": self.claim.claimed if self.claim.from_certificate else None,
            "confidence": self.confidence,
            "seeds": self.best.lower_bound.seeds,
            "score": self.best.score,
            "gate": self.best.gate,
            "direction": self.best.direction,
            "method": self.best.lower_bound.method,
            "through_mu": self.best.through_mu,
            "detectable": self.detectable,
            "power": self.power,
            "blind": self.blind,
            "seeds_needed": self.seeds_needed,
        }

    def __str__(self):
        return f"{self.warning}; {self.evidence}" if self.blind else self.evidence

    def _sentence(self) -> str:
        exact = "" if self.exact is None else f", exact {self.exact:.4g}"
        reads = " through μ" if self.best.through_mu else ""
        caught = "nothing" if self.detectable is None else f"a truth of {self.detectable:.4g}"
        promised = "certified" if self.claim.from_certificate else "claimed"
        return (
            f"{self.claim.name}: {self.word}; audited {self.lower_bound.value:.4g}"
            f"{reads}{exact}, "
            f"{promised} {self.claim.claimed:.4g} ({self.claim.unit}; {self.best.score} score, "
            f"{self.best.gate}, {self.best.direction}); "
            f"would have caught {caught} with probability {self.power:g}"
        )


@dataclass(frozen=True)
class Report:
    """All verdicts of one audit.

    Attributes:
        verdicts: one per claim, in the order given.
        confidence: with at least this probability no true claim is refuted and every lower bound
            printed is true (of μ itself, where it is marked as read through μ).
        seeds: seeds per arm, fitting included.
        tests: how many tests shared the risk.
    """

    verdicts: tuple[Verdict, ...]
    confidence: float
    seeds: int
    tests: int

    @property
    def refuted(self) -> bool:
        """Whether any claim is refuted."""
        return any(verdict.refuted for verdict in self.verdicts)

    @property
    def consistent(self) -> bool:
        """Whether no claim is refuted."""
        return not self.refuted

    def to_json(self) -> str:
        """One JSON object, with the verdicts as a list; infinity is the text "inf"."""
        plain = {
            "confidence": self.confidence,
            "seeds": self.seeds,
            "tests": self.tests,
            "refuted": self.refuted,
            "verdicts": [
                {name: to_plain(value) for name, value in verdict.to_dict().items()}
                for verdict in self.verdicts
            ],
        }
        return json.dumps(plain, ensure_ascii=False, indent=2, allow_nan=False)

    def __str__(self):
        head = (
            f"{self.seeds} seeds per arm, {self.tests} test{'s' * (self.tests > 1)}, "
            f"{100 * self.confidence:g}% confidence in all together"
        )
        warnings = (verdict.warning for verdict in self.verdicts if verdict.blind)
        return "\n".join([*warnings, head, *(f"- {verdict.evidence}" for verdict in self.verdicts)])


def audit(
    pair: Any,
    claims: NumericClaim | Sequence[NumericClaim],
    *,
    scores: Score | Sequence[Score] | None = None,
    confidence: float = 0.95,
    gates: Sequence[str] | None = None,
    exact: float | Sequence[float | None] | None = None,
    power: float = 0.9,
    independent: bool = False,
) -> Report:
    """Judge claims about a pair of neighbouring runs.

    Guarantee: with probability at least `confidence` over the seeds, no true claim is refuted and
    no printed lower bound exceeds the truth, whatever the outputs and however bad the scores. A
    bound read through μ (`GateResult.through_mu`) bounds μ of Gaussian DP; as a divergence or δ it
    is the truth's lower bound for Gaussian laws alone.
    Assumes: within each arm the seeds are independent and of one law. Between the arms any
    dependence is allowed, unless `independent` is set.

    Args:
        pair: (present, absent), pytrees of outputs with a leading seed axis.
        claims: one or several, see `dd_jax.audit.claims`.
        scores: one or several, see `dd_jax.audit.scores`; default `linear()`.
        confidence: of the whole report.
        gates: names of the gates to use where they are sound for a claim; by default those that
            see most. Each further gate, score or claim takes its part of the risk.
        exact: the true value in the claim's unit where it is known; one per claim if a sequence.
        power: of the violations in `Verdict.detectable`.
        independent: the arms are independent of each other, as `neighbouring_releases` and
            `dd.neighbours` draw them by default; gates of one event then show more.

    Raises:
        InputError: samples that cannot be compared, NaN, too few seeds, no claims, a confidence
            outside (0, 1), gates that say nothing about a claim.
    """
    check_confidence(confidence)
    claimed, scored = claim_list(claims), score_list(scores)
    truths = _truths(exact, len(claimed))
    gated = [gates_for(claim, gates, independent=independent) for claim in claimed]
    tests = len(scored) * sum(len(gate.directions) for found in gated for gate in found)
    each = simultaneous(confidence, tests)
    outputs = samples.paired(pair)
    seeds = len(outputs.present)
    scores_of = [_scores(outputs, score, each, tests) for score in scored]
    verdicts = []
    for claim, found, truth in zip(claimed, gated, truths, strict=True):
        results = tuple(
            _test(gate, direction, score, values, each, power)
            for score, values in zip(scored, scores_of, strict=True)
            for gate in found
            for direction in gate.directions
        )
        caught = [result.detectable for result in results if result.detectable is not None]
        verdicts.append(
            Verdict(
                claim=claim,
                refuted=any(result.refuted for result in results),
                best=max(results, key=lambda result: (result.refuted, result.lower_bound.value)),
                detectable=min(caught, default=None),
                power=power,
                exact=truth,
                confidence=confidence,
                tests=results,
                reach=functools.partial(_reach, found, scored, each, power),
            )
        )
    return Report(tuple(verdicts), confidence, seeds, tests)


def _truths(exact, count: int) -> list[float | None]:
    values = list(exact) if isinstance(exact, list | tuple) else [exact] * count
    if len(values) != count:
        raise InputError(f"{len(values)} exact values for {count} claims; give one per claim.")
    return [None if value is None else float(value) for value in values]


def _scores(outputs: Pair, score: Score, confidence: float, tests: int) -> list[np.ndarray]:
    """Fit on part A, apply to both parts: A present and absent, B present and absent."""
    samples.check_seeds(len(outputs.present), score.share, confidence, tests)
    fit, test = samples.split(outputs, score.share)
    scorer = score.fit(fit.present, fit.absent)
    return [evaluate(score, scorer, table) for table in (*fit, *test)]


def _test(gate: Gate, direction: str, score: Score, values, confidence, power) -> GateResult:
    fit_present, fit_absent, test_present, test_absent = values
    if direction == "Q‖P":
        values = -fit_absent, -fit_present, -test_absent, -test_present
    found = gate.bound(*values, confidence=confidence)
    caught = _caught(gate, score, len(fit_present), found.seeds, confidence, power)
    return GateResult(
        score=score.name,
        gate=gate.name,
        direction=direction,
        refuted=not found.value <= gate.claimed,  # so that a bound of NaN refutes
        lower_bound=gate.in_claims_unit(found),
        detectable=None if np.isinf(caught) else caught,
        through_mu=gate.name == "gaussian_mu" and gate.route != "",
    )


def _caught(gate: Gate, score: Score, fit_seeds: int, seeds: int, confidence, power) -> float:
    """The least truth, in the claim's unit, that so many seeds would refute; perhaps infinite."""
    value = gate.detectable(
        fit_seeds=fit_seeds,
        seeds=seeds,
        confidence=confidence,
        power=power,
        one_event=score.one_event,
    )
    return float(gate.to_claim(value)) if np.isfinite(value) else np.inf


def _reach(gates: Sequence[Gate], scores: Sequence[Score], confidence, power, seeds: int) -> float:
    """The least truth that some test would have caught with so many seeds per arm."""
    fits = [(score, samples.fit_seeds(seeds, score.share)) for score in scores]
    return min(
        _caught(gate, score, fit, seeds - fit, confidence, power)
        for gate in gates
        for score, fit in fits
    )


def _fewest(enough: Callable[[int], bool], seeds: int) -> int | None:
    """The fewest seeds beyond these that are enough, rounded up to two digits."""
    low, high = seeds, 4 * seeds
    while not enough(high):
        low, high = high, 4 * high
        if high > MOST_SEEDS:
            return None
    while high > 1.05 * low + 1:
        middle = round(math.sqrt(low * high))
        low, high = (low, middle) if enough(middle) else (middle, high)
    unit = 10 ** max(len(str(high)) - 2, 0)
    needed = -(-high // unit) * unit
    while not enough(needed):  # the power of some gates is not quite monotone
        needed += unit
    return needed
