"""What more seeds give an audit: bounds that climb to the truth, and mutants that are found.

Every audit of a few seeds is cut from one pool of seeds, so that nothing is run twice.
"""

from collections.abc import Callable, Sequence

import jax
import numpy as np
from jaxtyping import Array
from matplotlib.axes import Axes

from dd_jax.audit import controls
from dd_jax.audit.settings import base as audits
from dd_jax.audit.settings.base import AuditSetting
from dd_jax.cli import style
from dd_jax.ensemble import Pair
from dd_jax.intervals import proportion, simultaneous
from experiments.page import Table

CLIMB, MUTANTS = "climb", "mutants"
NUMBERS = ("audited", "exact", "certified", "detectable")
Say = Callable[[str], None]


def climb(
    setting: AuditSetting,
    key: Array,
    names: Sequence[str],
    sizes: Sequence[int],
    *,
    confidence: float,
    keep: audits.Keep,
    say: Say,
) -> dict[str, np.ndarray]:
    """For each named claim, "climb claim: number" over the first `sizes` seeds of one pool.

    All bounds, of all claims and sizes, hold together with the confidence.
    """
    each = simultaneous(confidence, len(names) * len(sizes))
    results = {f"{CLIMB} seeds": np.array(sizes)}
    for place, case in enumerate(c for c in setting.cases if c.name in names):
        case_key = jax.random.fold_in(key, place)
        pool = audits.sample(setting, case.interaction, case_key, max(sizes), keep, say)
        judged = [
            audits.judge(case, setting, _cut(pool, 0, size), each, say).to_dict() for size in sizes
        ]
        for number in NUMBERS:
            results[f"{CLIMB} {case.name}: {number}"] = np.array([row[number] for row in judged])
    return results


def mutants(
    key: Array,
    names: Sequence[str],
    sizes: Sequence[int],
    *,
    pool: int,
    replays: int,
    confidence: float,
    say: Say,
) -> dict[str, np.ndarray]:
    """How many audits of each size flag each mutant, and (of the last size) the correct curator.

    Args:
        key: for all runs.
        names: mutants of `dd_jax.audit.controls.CONTROLS`.
        sizes: seeds of one audit in each world.
        pool: seeds of each curator, which the audits share out.
        replays: the most audits of one size.
        confidence: of one audit: it flags a correct curator with at most this probability left.
        say: told what is being done.
    """
    counts = [min(replays, pool // size) for size in sizes]
    audits = list(zip(sizes, counts, strict=True))
    flagged, alarms = [], []
    for name in names:
        say(f"mutant: {name}")
        control = controls.CONTROLS[name]
        # A control's numbers do not depend on which others are run beside it.
        control_key = jax.random.fold_in(key, list(controls.CONTROLS).index(name))
        correct_key, mutant_key = jax.random.split(control_key)
        schedule = control.mutant_schedule()
        mutant = control.setting.sample(mutant_key, pool, control.curator, schedule)
        correct = control.setting.sample(correct_key, pool)
        wrong, right = control.mutant_statement(), control.correct_statement()
        flagged.append(_flagged(control, mutant, wrong, audits, confidence))
        alarms += _flagged(control, correct, right, audits[-1:], confidence)
    return {
        f"{MUTANTS} seeds": np.array(sizes),
        f"{MUTANTS} audits": np.array(counts),
        f"{MUTANTS} flagged": np.array(flagged),
        f"{MUTANTS} correct flagged": np.array(alarms),
    }


def _flagged(control, pool: Pair, statement, audits, confidence: float) -> list[int]:
    """How many audits flag the pool's curator, for each (size, number of audits)."""
    return [
        sum(
            controls.judge(control, _cut(pool, place, size), statement, confidence).refuted
            for place in range(count)
        )
        for size, count in audits
    ]


def _cut(pool: Pair, place: int, size: int) -> Pair:
    """The seeds of the audit with this number among those of one size."""
    return Pair(*(np.asarray(arm)[place * size : (place + 1) * size] for arm in pool))


def draw_climb(axis: Axes, results: dict[str, np.ndarray], words: dict[str, str]) -> None:
    """Audited and detectable over exact, along the number of seeds; `words` names the claims."""
    seeds = results[f"{CLIMB} seeds"]
    looks = ((style.BLUE, "o", style.SOLID), (style.ORANGE, "s", style.DASHED))
    for (name, label), (colour, marker, dashes) in zip(words.items(), looks, strict=True):
        audited, exact, _, caught = (results[f"{CLIMB} {name}: {key}"] for key in NUMBERS)
        for numbers, face, what in (
            (caught, "none", "would be caught"),
            (audited, colour, "audited"),
        ):
            axis.plot(
                seeds,
                numbers / exact,
                color=colour,
                linestyle=dashes,
                marker=marker,
                markerfacecolor=face,
                label=f"{label}: {what}",
            )
    axis.axhline(1, color=style.BLACK, linestyle=style.DOTTED, label="exact, and certified")
    axis.set(xscale="log", xlabel="seeds in each world", ylabel="ratio to the exact value")
    axis.set_title("linear loss: the audited number climbs", fontsize=10)
    style.legend_below(axis)


def draw_mutants(axis: Axes, results: dict[str, np.ndarray], names: Sequence[str]) -> None:
    """One cell per mutant and size: the share of audits that flag it, as a number and a shade."""
    sizes, counts, flagged = (results[f"{MUTANTS} {key}"] for key in ("seeds", "audits", "flagged"))
    share = flagged / counts
    axis.imshow(share, cmap="Blues", vmin=0, vmax=1.3, aspect="auto")
    for row, column in np.ndindex(share.shape):
        text = f"{flagged[row, column]} of {counts[column]}"
        colour = "white" if share[row, column] > 0.7 else style.BLACK
        axis.text(column, row, text, ha="center", va="center", fontsize=9, color=colour)
    axis.set_xticks(range(len(sizes)), [f"{size:,}" for size in sizes])
    axis.set_yticks(range(len(names)), names)
    axis.grid(visible=False)
    axis.set_xlabel("seeds in each world")
    axis.set_title("broken curators: audits that flag them", fontsize=10)


def mutant_table(results: dict[str, np.ndarray], names: Sequence[str], confidence: float) -> Table:
    """Every mutant and size with the power's interval; all intervals hold together."""
    sizes, counts, flagged, alarms = (
        results[f"{MUTANTS} {key}"] for key in ("seeds", "audits", "flagged", "correct flagged")
    )
    each = simultaneous(confidence, flagged.size)
    rows = []
    for row, name in enumerate(names):
        control = controls.CONTROLS[name]
        for column, (size, count) in enumerate(zip(sizes.tolist(), counts.tolist(), strict=True)):
            hits = int(flagged[row, column])
            rate = proportion(hits, count, each)
            alarm = int(alarms[row]) if column == len(sizes) - 1 else None
            cells = (name, control.broken, control.gate, size, count, hits)
            rows.append((*cells, rate.low, rate.high, alarm))
    columns = ("mutant", "what is broken", "gate", "seeds", "audits", "flagged")
    columns += ("power, low", "power, high", "correct curator flagged")
    title = f"Broken curators; intervals of the power at {confidence:.0%} for all together"
    return Table(title, columns, rows)


def caption(
    results: dict[str, np.ndarray],
    claims: Sequence[str],
    names: Sequence[str],
    *,
    confidence: float,
    mutant_confidence: float,
) -> str:
    """What to see in both panels, with the numbers of this run."""
    seeds = results[f"{CLIMB} seeds"]
    shares = [
        results[f"{CLIMB} {name}: audited"] / results[f"{CLIMB} {name}: exact"] for name in claims
    ]
    first, last = (max(share[place] for share in shares) for place in (0, -1))
    flagged, counts, alarms = (
        results[f"{MUTANTS} {key}"] for key in ("flagged", "audits", "correct flagged")
    )
    found = int(np.sum(np.any(flagged == counts, axis=1)))
    known = sum(not control.is_null for control in controls.CONTROLS.values())
    return (
        f"Below, left: the best audited number is {first:.0%} of the truth with {seeds[0]:,} seeds "
        f"and {last:.0%} with {seeds[-1]:,} (all bounds of the panel together at "
        f"{confidence:.0%}); hollow marks, the least truth that would be refuted, fall to it. "
        f"Right: {len(names)} of the {known} broken curators that ship with the audit, in audits "
        f"of disjoint seeds at confidence {mutant_confidence:g} each: {found} are flagged by all "
        f"audits of some size; the correct curators are flagged by {int(np.sum(alarms))} of "
        f"{len(names) * int(counts[-1])} audits of the largest size."
    )
