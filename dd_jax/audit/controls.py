"""Controls: broken curators that the audit must flag, and nulls that it must not.

`run_controls` judges each mutant of `CONTROLS`, and the correct curator in the same setting by the
same gate, and replays both to see how often each is flagged.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array

from dd_jax import checks
from dd_jax.audit.controls_settings import Law
from dd_jax.audit.controls_table import CONTROLS, MOST_SEEDS, Control, Statement
from dd_jax.audit.exact_law import gaussian_law
from dd_jax.audit.verdict import audit
from dd_jax.ensemble import Pair
from dd_jax.errors import InputError
from dd_jax.intervals import Estimate, check_confidence, proportion, simultaneous

__all__ = ["CONTROLS", "Control", "ControlRow", "judge", "run_controls"]

RATE_CONFIDENCE = 0.95


class Judgement(NamedTuple):
    """Whether a pair was flagged, and the numbers that say so."""

    flagged: bool
    evidence: str


def judge(control: Control, pair: Pair, statement: Statement, confidence: float) -> Judgement:
    """Whether the control's gate refutes the statement about this pair."""
    if isinstance(statement, Law):
        found = gaussian_law(*pair, *statement, confidence=confidence)
        spread = min(found.p_variance_present, found.p_variance_absent)
        shift = min(found.p_shift, found.p_direction)
        return Judgement(found.refuted, f"p = {shift:.3g} of the shift, {spread:.3g} of the spread")
    report = audit(pair, statement, gates=(control.gate,), confidence=confidence)
    (verdict,) = report.verdicts
    return Judgement(
        verdict.refuted,
        f"{statement.unit}: at least {verdict.lower_bound.value:.4g}, "
        f"claimed {statement.claimed:.4g}",
    )


@dataclass(frozen=True)
class ControlRow:
    """One line of the table of controls.

    Attributes:
        control: its name. kind: "mutant" or "null". broken: what is broken.
        setting: in words. gate: which one.
        seeds: seeds per arm of one audit, fitting included.
        flagged: whether the mutant was flagged; None for a null.
        correct_flagged: whether the correct curator, or the null, was.
        power: how often replays flag the mutant, with an exact interval; None for a null.
        false_alarms: how often replays flag the correct curator, or the null.
        evidence: the numbers behind `flagged`. correct_evidence: those behind `correct_flagged`.
        confidence: that none of the table's correct curators and nulls is flagged.
    """

    control: str
    kind: str
    broken: str
    setting: str
    gate: str
    seeds: int
    flagged: bool | None
    correct_flagged: bool
    power: Estimate | None
    false_alarms: Estimate
    evidence: str | None
    correct_evidence: str
    confidence: float

    @property
    def as_expected(self) -> bool:
        """A mutant flagged and the correct curator not; a null not flagged."""
        return self.flagged is not False and not self.correct_flagged

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; rates with their intervals."""
        found = {field.name: getattr(self, field.name) for field in fields(self)}
        for name in ("power", "false_alarms"):
            found[name] = None if found[name] is None else found[name]._asdict()
        return {**found, "as_expected": self.as_expected}


def run_controls(
    key: Array,
    *,
    names: Sequence[str] | None = None,
    seeds: int | None = None,
    confidence: float = 0.999,
    replays: int = 20,
    mesh: Mesh | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[ControlRow]:
    """The table of (control, gate, seeds, power): what the audit catches, and what it leaves alone.

    Guarantee: with probability at least `confidence` no correct curator and no null of the table is
    flagged (in its first replay), however many controls there are.

    Args:
        key: for all runs.
        names: which controls; all of `CONTROLS` by default.
        seeds: seeds per arm in place of each control's own, at most 1e5.
        confidence: of the whole table.
        replays: how many independent audits `power` and `false_alarms` are counted over; the first
            of them gives `flagged`.
        mesh: devices that share the seeds; rows are not split, as mutants use them as they like.
        progress: called with (controls done, controls) after each.

    Raises:
        InputError: an unknown name, no replays, a confidence outside (0, 1), seeds out of range.
    """
    chosen = _chosen(names)
    check_confidence(confidence)
    checks.whole("replays", replays, least=1, most=None)
    if seeds is not None:
        checks.whole("seeds", seeds, least=1, most=MOST_SEEDS)
    each = simultaneous(confidence, len(chosen))
    rows = []
    for number, control in enumerate(chosen):
        # A control's numbers do not depend on which others are run beside it.
        control_key = jax.random.fold_in(key, list(CONTROLS).index(control.name))
        count = control.seeds if seeds is None else seeds
        rows.append(_row(control_key, control, count, each, confidence, replays, mesh))
        if progress is not None:
            progress(number + 1, len(chosen))
    return rows


def _row(key, control: Control, seeds, each, confidence, replays, mesh) -> ControlRow:
    correct_key, mutant_key = jax.random.split(key)
    correct = _replay(
        control,
        control.setting.sample(correct_key, replays * seeds, mesh=mesh),
        control.correct_statement(),
        each,
        replays,
    )
    mutant = None
    if not control.is_null:
        pair = control.setting.sample(
            mutant_key, replays * seeds, control.curator, control.mutant_schedule(), mesh=mesh
        )
        mutant = _replay(control, pair, control.mutant_statement(), each, replays)
    return ControlRow(
        control=control.name,
        kind="null" if control.is_null else "mutant",
        broken=control.broken,
        setting=str(control.setting),
        gate=control.gate,
        seeds=seeds,
        flagged=None if mutant is None else mutant[0].flagged,
        correct_flagged=correct[0].flagged,
        power=None if mutant is None else _rate(mutant),
        false_alarms=_rate(correct),
        evidence=None if mutant is None else mutant[0].evidence,
        correct_evidence=correct[0].evidence,
        confidence=confidence,
    )


def _replay(control, pair: Pair, statement, confidence, replays) -> list[Judgement]:
    """The gate's judgement on each of the replays that the pair's seeds are cut into."""
    cut = [np.split(np.asarray(arm), replays) for arm in pair]
    return [judge(control, Pair(*arms), statement, confidence) for arms in zip(*cut, strict=True)]


def _rate(judgements: list[Judgement]) -> Estimate:
    flagged = sum(judgement.flagged for judgement in judgements)
    return proportion(flagged, len(judgements), RATE_CONFIDENCE)


def _chosen(names: Sequence[str] | None) -> list[Control]:
    wanted = list(CONTROLS) if names is None else list(dict.fromkeys(names))
    unknown = [name for name in wanted if name not in CONTROLS]
    if unknown or not wanted:
        what = f"{unknown[0]!r} is no control" if unknown else "no control is named"
        raise InputError(f"{what}; choose from {'; '.join(CONTROLS)}.")
    return [CONTROLS[name] for name in wanted]
