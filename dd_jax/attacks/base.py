"""What an attack is and what it reports: settings, a result with findings, a picture.

This module does not import JAX.

An attack's file ends in `ATTACK = Attack(...)`, and `dd_jax.attacks` names it in one line. Its
`play(key, settings)` returns an `AttackResult`; the same key and settings give the same one.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Literal

from dd_jax import checks
from dd_jax.claims import Claim, Finding
from dd_jax.errors import InputError
from dd_jax.intervals import Estimate, check_confidence

CONFIDENCE = 0.999
# Up to 360 intervals share 1 - confidence; double precision must still tell their shares from 0.
MOST_CONFIDENCE = 1 - 1e-10
MOST_SEEDS = 10_000_000
LARGEST_NUMBER = 2**31 - 1


def number(default: float, check: Callable[..., Any], **limits: float) -> Any:
    """A field of `Settings`: its default, and the validator of `dd_jax.checks` for it."""
    return field(default=default, metadata={"check": functools.partial(check, **limits)})


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What every attack is run with; an attack with further parameters has a subclass.

    Attributes:
        seeds: independent trials, in each arm where there are two.
        confidence: of all intervals at once.
    """

    seeds: int = 10_000
    confidence: float = CONFIDENCE

    def __post_init__(self):
        for name, value in asdict(self).items():
            if isinstance(value, int) and value > LARGEST_NUMBER:
                raise InputError(
                    f"{name} = {value}; give at most {LARGEST_NUMBER} (32-bit numbers)."
                )
        checks.whole("seeds", self.seeds, least=1, most=MOST_SEEDS)
        check_confidence(self.confidence)
        if self.confidence > MOST_CONFIDENCE:
            raise InputError(f"confidence = {self.confidence!r}; give at most 1 - 1e-10.")
        for each in fields(self):
            if "check" in each.metadata:
                each.metadata["check"](each.name, getattr(self, each.name))


@dataclass(frozen=True, kw_only=True)
class RenyiSettings(Settings):
    """Settings of an attack on a Rényi divergence: also its order q."""

    order: float = number(2.0, lambda name, value: checks.order(value))


@dataclass(frozen=True, kw_only=True)
class PlanSettings(RenyiSettings):
    """Settings of an attack on a plan of Noisy-GD: also λ, ε_dp and ε_dd."""

    l2: float = 1.0
    eps_dp: float = 1.0
    eps_dd: float = 0.1

    @property
    def budgets(self) -> dict[str, Any]:
        """Order and budgets, as keyword arguments of a planner."""
        return {"order": self.order, "eps_dp": self.eps_dp, "eps_dd": self.eps_dd}


@dataclass(frozen=True)
class AttackResult:
    """The outcome of an attack over many seeds.

    Attributes:
        measure: what `estimate` estimates: "success probability" or "advantage".
        estimate: the point estimate, its exact interval, trials (per arm) and confidence.
        bound: the limit that a claim sets to the measure; `bound_means` says which claim it is, and
            whether the limit is an upper or a lower one.
        findings: the claims tested.
        exact: the measure computed exactly, where it is known.
        rows: the measure along a parameter (requests, releases, variants), made with `row`.
        theory: further theoretical values by name.
        attack, parameters: its name, and what it was run with; `Attack.run` fills them in.
    """

    measure: Literal["success probability", "advantage"]
    estimate: Estimate
    bound: float
    bound_means: str
    findings: tuple[Finding, ...]
    exact: float | None = None
    rows: tuple[Mapping[str, Any], ...] = ()
    theory: Mapping[str, float] = field(default_factory=dict)
    attack: str = ""
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
            "findings": [
                {
                    "claim": finding.claim.sentence,
                    "source": finding.claim.source,
                    "owner": finding.claim.owner,
                    "refuted": finding.refuted,
                    "evidence": finding.evidence,
                }
                for finding in self.findings
            ],
            "rows": [dict(row) for row in self.rows],
            "parameters": dict(self.parameters),
        }


@dataclass(frozen=True)
class Picture:
    """How an attack's rows become a picture; `dd_jax.cli.attack_pictures` draws it.

    Attributes:
        kind: "intervals" has a line per row, "curves" the measure against a parameter, "against"
            the measure against what is certified, "divergences" Rényi divergences per row.
        rows: columns that name a row (intervals, divergences), or the horizontal axis (the others).
        references: columns drawn beside the measurement, with what to call them.
        series: column that tells curves apart, if any.
        logarithmic: whether the axis that carries the attack's parameter is logarithmic.
        bound: what to call the result's own bound; None to leave it out.
    """

    kind: Literal["intervals", "curves", "against", "divergences"]
    rows: tuple[str, ...]
    references: Mapping[str, str] = field(default_factory=dict)
    series: str = ""
    logarithmic: bool = False
    bound: str | None = None


@dataclass(frozen=True)
class Attack:
    """An attack: a program that tests a claim about deletion.

    Attributes:
        name: as the command line spells it.
        summary: one line.
        claim: the headline claim that it tests, and whose that is.
        play: `(key, settings) -> AttackResult`, with a JAX key.
        picture: how to draw its result.
        settings: the class of its settings, whose defaults are the attack's.
        reports: whether `play` takes a third argument, a report of (done, total), because it takes
            long.
    """

    name: str
    summary: str
    claim: Claim
    play: Callable[..., AttackResult]
    picture: Picture
    settings: type[Settings] = Settings
    reports: bool = False

    @property
    def defaults(self) -> dict[str, int | float]:
        """Its parameters and their default values."""
        return asdict(self.settings())

    def run(
        self, key: Any, progress: Callable[[int, int], None] | None = None, **overrides: float
    ) -> AttackResult:
        """Play it: `key` is a JAX key, `overrides` replace defaults.

        Args:
            key: of all randomness.
            progress: told (done, total) by an attack that takes long.
            **overrides: fields of the attack's settings.

        Raises:
            InputError: a parameter that this attack does not have, or a value it cannot use.
        """
        names = [each.name for each in fields(self.settings)]
        unknown = sorted(set(overrides) - set(names))
        if unknown:
            raise InputError(
                f"the attack {self.name} has no parameter {unknown[0]}; it has {', '.join(names)}."
            )
        # The checked overrides have the names of fields, whose types are numbers.
        settings = self.settings(**overrides)  # pyright: ignore[reportArgumentType]
        told = (progress or (lambda done, total: None),) if self.reports else ()
        result = self.play(key, settings, *told)
        # Its interval is one of several; the stated confidence holds for all of them together.
        estimate = result.estimate._replace(confidence=settings.confidence)
        return replace(result, attack=self.name, estimate=estimate, parameters=asdict(settings))


def row(
    labels: Mapping[str, Any], estimate: Estimate, exact: float | None, **more: float | None
) -> dict[str, Any]:
    """One row of a result: its labels, the estimate, its interval, the exact value if known."""
    values = {"success": estimate.value, "low": estimate.low, "high": estimate.high}
    return {**labels, **values, "exact": exact, **more}


def exact_law(
    what: str, source: str, rows: Sequence[Mapping[str, Any]], rounding: float = 0.0
) -> Finding:
    """Our claim that computed values are the true ones: refuted if an interval misses its value.

    Args:
        what: the claim in words.
        source: the function that computes the values.
        rows: made with `row`, with simultaneous intervals; rows without an exact value are ignored.
        rounding: numerical error allowed in the computed values.
    """
    known = [each for each in rows if each["exact"] is not None]
    missed = [
        each
        for each in known
        if not each["low"] - rounding <= each["exact"] <= each["high"] + rounding
    ]
    evidence = f"{len(known) - len(missed)} of {len(known)} intervals contain the computed value"
    if missed:
        first = missed[0]
        evidence += f"; {first['exact']:.4g} is outside [{first['low']:.4g}, {first['high']:.4g}]"
    return Finding(Claim(what, source, "ours"), bool(missed), evidence)
