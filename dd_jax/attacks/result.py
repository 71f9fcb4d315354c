"""What an attack reports: an estimate with its exact interval, the theory beside it, the claims.

Host-side, no JAX.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from dd_jax.claims import Claim, Finding
from dd_jax.intervals import Estimate


@dataclass(frozen=True)
class AttackResult:
    """The outcome of an attack over many seeds.

    Attributes:
        attack: its name.
        measure: what `estimate` estimates: "success probability" or "advantage".
        estimate: the point estimate, its exact interval, trials (per arm) and confidence.
        bound: the number a claim puts on the measure; `bound_means` says which claim, which way.
        exact: the measure computed exactly, where it is known.
        findings: the claims tested.
        rows: the measure along a parameter (requests, releases, variants), made with `row`.
        theory: further theoretical values by name.
        parameters: what the attack was run with; `Attack.run` fills them in.
    """

    attack: str
    measure: Literal["success probability", "advantage"]
    estimate: Estimate
    bound: float
    bound_means: str
    findings: tuple[Finding, ...]
    exact: float | None = None
    rows: tuple[Mapping[str, Any], ...] = ()
    theory: Mapping[str, float] = field(default_factory=dict)
    parameters: Mapping[str, Any] = field(default_factory=dict)

    @property
    def refuted(self) -> tuple[Claim, ...]:
        """The claims that the samples refute."""
        return tuple(finding.claim for finding in self.findings if finding.refuted)

    @property
    def ours_refuted(self) -> bool:
        """Whether a claim of this library is refuted: the command line's exit status 1."""
        return any(claim.owner == "ours" for claim in self.refuted)

    def to_json(self) -> dict[str, Any]:
        """Plain values, for one JSON object."""
        return {
            "attack": self.attack,
            "measure": self.measure,
            "success": self.estimate.value,
            "confidence_interval": [self.estimate.low, self.estimate.high],
            "confidence": self.estimate.confidence,
            "trials": self.estimate.trials,
            "bound": self.bound,
            "bound_means": self.bound_means,
            "exact": self.exact,
            "theory": dict(self.theory),
            "refutes": [claim.sentence for claim in self.refuted],
            "ours_refuted": self.ours_refuted,
            "findings": [_finding_json(finding) for finding in self.findings],
            "rows": [dict(row) for row in self.rows],
            "parameters": dict(self.parameters),
        }


def _finding_json(finding: Finding) -> dict[str, Any]:
    return {
        "claim": finding.claim.sentence,
        "source": finding.claim.source,
        "owner": finding.claim.owner,
        "refuted": finding.refuted,
        "evidence": finding.evidence,
    }


def row(
    labels: Mapping[str, Any], estimate: Estimate, exact: float | None, **more: float | None
) -> dict[str, Any]:
    """One row of a result: its labels, the estimate, its interval, the exact value if known."""
    values = {"success": estimate.value, "low": estimate.low, "high": estimate.high}
    return {**labels, **values, "exact": exact, **more}


def exact_law_finding(
    what: str, source: str, pairs: list[tuple[Estimate, float]], rounding: float = 0.0
) -> Finding:
    """Our claim that computed values are the true ones: refuted if an interval misses its value.

    Args:
        what: the claim in words.
        source: the function that computes the values.
        pairs: estimates (simultaneous intervals) and the values computed for them.
        rounding: numerical error allowed in the computed values.
    """
    missed = [
        (estimate, value)
        for estimate, value in pairs
        if not estimate.low - rounding <= value <= estimate.high + rounding
    ]
    evidence = f"{len(pairs) - len(missed)} of {len(pairs)} intervals contain the computed value"
    if missed:
        estimate, value = missed[0]
        evidence += f"; {value:.4g} is outside [{estimate.low:.4g}, {estimate.high:.4g}]"
    return Finding(Claim(what, source, "ours"), bool(missed), evidence)
