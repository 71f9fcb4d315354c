"""`dd-jax audit SETTING`: run a setting's interactions in both worlds, and judge its claims."""

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array

from dd_jax import sweeps
from dd_jax.audit.claims import gates_for
from dd_jax.audit.samples import check_seeds
from dd_jax.audit.settings import linear as audit_linear
from dd_jax.audit.settings import logistic as audit_logistic
from dd_jax.audit.settings.cases import Case, Interaction, Setting
from dd_jax.audit.verdict import Verdict, audit
from dd_jax.ensemble import Pair
from dd_jax.errors import InputError
from dd_jax.intervals import check_confidence, simultaneous

SETTINGS: dict[str, Callable[[float], Setting]] = {
    "linear": audit_linear.setting,
    "logistic": audit_logistic.setting,
}
# Enough to see a certificate broken by half; the linear setting is cheap.
DEFAULT_SEEDS = {"linear": 100_000, "logistic": 15_000}


# The certificates of linear losses are attained: at the confidence of the numbers, one run in
# twenty would accuse a true one. A verdict takes a fiftieth of their risk.
VERDICT_RISK = 1 / 50


class Judged(NamedTuple):
    """A claim, what the samples say about it, and the paper's number for it.

    Attributes:
        case: the claim and how it is judged.
        verdict: refuted or not, and its power, at a risk of `VERDICT_RISK` times that of the
            numbers.
        numbers: the same samples at the confidence asked for; its lower bound is `audited`.
        seeds: per world, both parts.
    """

    case: Case
    verdict: Verdict
    numbers: Verdict
    seeds: int

    @property
    def slack(self) -> float:
        """The paper's ε over the optimal one, for the same settings."""
        return self.case.paper / self.case.claim.claimed

    @property
    def tightness(self) -> float | None:
        """Audited over exact, where the exact value is known."""
        return None if self.case.exact is None else self.numbers.lower_bound.value / self.case.exact

    def to_dict(self) -> dict[str, Any]:
        """Plain values; `seeds` counts both parts, `seeds_judged` those that judged."""
        found = self.numbers.to_dict()
        return found | {
            "verdict": self.verdict.word,
            "detectable": self.verdict.detectable,
            "blind": self.verdict.blind,
            "seeds_needed": self.verdict.seeds_needed,
            "name": self.case.name,
            "words": self.case.words,
            "paper": self.case.paper,
            "paper_over_certified": self.slack,
            "audited_over_exact": self.tightness,
            "audited_over_paper": found["audited"] / self.case.paper,
            "seeds": self.seeds,
            "seeds_judged": found["seeds"],
        }


class Keep(NamedTuple):
    """Where chunks go (None: nowhere), whether those that are there are used, and the devices that
    make them (None: one).
    """

    results: Path | None
    resume: bool = True
    mesh: Mesh | None = None


@functools.cache
def find(name: str, order: float) -> Setting:
    """A setting by name, with its budgets at a Rényi order; one object, so that what it runs is
    compiled once.
    """
    if name not in SETTINGS:
        raise InputError(f"no setting {name!r}; choose one of {', '.join(sorted(SETTINGS))}.")
    return SETTINGS[name](order)


def run(
    setting: Setting,
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
    setting alone, so that the same seeds are used whichever claims are asked for.

    Args:
        setting: see `find`.
        key: base key. seeds: per arm.
        confidence: of all numbers together; verdicts take a smaller risk (`VERDICT_RISK`).
        keep: where chunks go.
        say: told what is being done, between chunks.
        names: claims to judge; all by default.
    """
    check_confidence(confidence)
    cases = _chosen(setting, names)
    each = simultaneous(confidence, len(cases))
    for case in cases:
        _check_seeds(case, seeds, verdict_confidence(each))
    needed = [name for name in setting.interactions if any(c.interaction == name for c in cases)]
    pairs = {}
    for place, name in enumerate(setting.interactions):
        if name in needed:
            place_key = jax.random.fold_in(key, place)
            pairs[name] = sample(setting, name, place_key, seeds, keep, say)
    return [judge(case, setting, pairs[case.interaction], each, say) for case in cases]


def _chosen(setting: Setting, names: Sequence[str] | None) -> list[Case]:
    known = {case.name: case for case in setting.cases}
    for name in names or ():
        if name not in known:
            raise InputError(
                f"{setting.name} has no claim {name!r}; choose from {', '.join(known)}."
            )
    return [case for case in setting.cases if names is None or case.name in names]


def _check_seeds(case: Case, seeds: int, confidence: float) -> None:
    """Refuse before anything is run what `audit` would refuse after it."""
    tests = sum(len(gate.directions) for gate in gates_for(case.claim, case.gates))
    check_seeds(seeds, case.score.share, simultaneous(confidence, tests), tests)


def sample(
    setting: Setting, name: str, key: Array, seeds: int, keep: Keep, say: Callable[[str], None]
) -> Pair:
    """Releases of one interaction in both worlds, leaves (seeds, releases, d)."""
    found: Interaction = setting.interactions[name]
    label = f"{setting.name}-{name}"
    # One line before anything is compiled, which takes a while and is silent.
    say(f"{label}: {seeds:,} seeds in each of two worlds …")
    chunk = min(found.chunk, seeds)
    stream = sweeps.Stream(keep.results, label, setting.config, chunk, keep.resume, keep.mesh)
    return found.sample(
        key,
        seeds,
        functools.partial(sweeps.neighbours, stream, progress=sweeps.progress_lines(label, say)),
    )


def judge(
    case: Case, setting: Setting, pair: Pair, confidence: float, say: Callable[[str], None]
) -> Judged:
    """One claim against the releases that its observer holds."""
    say(f"{setting.name}: judging {case.name}")
    kept = setting.interactions[case.interaction].kept
    columns = [kept.index(release) for release in case.releases]
    held = Pair(*(np.asarray(arm)[:, columns] for arm in pair))
    judging = functools.partial(
        audit,
        held,
        case.claim,
        scores=case.score,
        gates=case.gates,
        exact=case.exact,
        independent=True,  # `sweeps.neighbours` gives each world its own keys
    )
    report = judging(confidence=confidence)
    stricter = judging(confidence=verdict_confidence(confidence))
    return Judged(case, stricter.verdicts[0], report.verdicts[0], report.seeds)


def verdict_confidence(confidence: float) -> float:
    """The confidence of verdicts where the numbers have this one."""
    return 1 - (1 - confidence) * VERDICT_RISK
