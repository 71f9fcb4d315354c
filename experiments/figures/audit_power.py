"""Audited ≤ exact ≤ certified: what samples prove, what is true and what is promised, per claim.

The linear loss, whose laws are exact, beside logistic regression on real digits, where the truth is
known only to lie between the audited and the certified number. Below: what more seeds give, for the
audited number and for the curators that are broken on purpose. Audits of a few seeds are cut from
one pool of seeds, so that nothing is run twice.
"""

import math
from dataclasses import dataclass

import jax
import numpy as np
from jaxtyping import Array
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.markers import CARETRIGHT

from dd_jax.audit import controls
from dd_jax.audit.settings import base as audits
from dd_jax.audit.settings import find
from dd_jax.audit.settings.base import AuditSetting, Keep
from dd_jax.cli import style
from dd_jax.ensemble import Pair
from dd_jax.intervals import proportion, simultaneous
from experiments.cache import Runner
from experiments.measured import verdict
from experiments.page import Table

TITLE = "What samples prove: audited, exact, certified"
CAPTION = (
    "Above: samples prove that the truth is at least the audited number, the certificate that it "
    "is at most the certified one: on the bar. Where the law is exact the certificates "
    "of the convex theorems for privacy and data-deletion, and for adaptive requests (erratum "
    "E2), are attained, unless rows are recoded, and far below the paper's. Below, left: the "
    "audited number climbs to the truth with more seeds. Right: curators that are broken on "
    "purpose are found."
)
NOTE = (
    "All audited numbers of a panel hold together with the stated confidence. For recoded rows "
    "they are about R_q itself, else about the μ of Gaussian DP, read as q μ²/2. Circles: the "
    "least truth that would have been refuted with probability 0.9. Broken curators are audited "
    "on disjoint seeds, each audit at its own confidence; the correct curator of each is audited "
    "at the largest size."
)

NUMBERS = ("audited", "exact", "certified", "paper", "detectable", "refuted")
CLIMBED = ("audited", "exact", "certified", "detectable")
# These claims are attained, so the audited number can climb to the certified one.
CLIMBING = {
    "dp": ("one release", style.BLUE, "o", style.SOLID),
    "deletion-1": ("deleted", style.ORANGE, "s", style.DASHED),
}
TITLES = {"linear": "linear loss, exact laws", "logistic": "logistic regression, digits"}
LEFT_EDGE = 3e-3


@dataclass(frozen=True)
class Config:
    """Settings of the figure; the quick scale is the default.

    Attributes:
        climb_seeds: sizes of the audits of one claim.
        mutants: names in `dd_jax.audit.controls.CONTROLS`.
        mutant_seeds: seeds of one audit of a mutant in each world.
        mutant_pool: seeds of each curator; audits use disjoint parts of them.
        mutant_audits: the most audits of one size.
        mutant_confidence: of one audit; a correct curator is flagged with at most the remaining
            probability.
    """

    order: float = 2.0
    confidence: float = 0.95
    linear_seeds: int = 50_000
    logistic_seeds: int = 5_000
    logistic_claims: tuple[str, ...] = ("dp", "deletion-1", "adaptive-1-recoding")
    climb_seeds: tuple[int, ...] = (500, 1_500, 5_000, 15_000, 50_000)
    mutants: tuple[str, ...] = (
        "half noise",
        "sensitivity L/n",
        "order dropped in R_q",
        "missing clip",
        "key reused at every step",
        "stale database",
        "last step skipped",
        "secret state kept",
    )
    mutant_seeds: tuple[int, ...] = (300, 1_000, 3_000, 10_000)
    mutant_pool: int = 20_000
    mutant_audits: int = 6
    mutant_confidence: float = 0.999
    seed: int = 0

    def runs(self) -> list[tuple[str, int, tuple[str, ...] | None]]:
        """(setting, seeds, claims) of each panel."""
        return [
            ("linear", self.linear_seeds, None),
            ("logistic", self.logistic_seeds, self.logistic_claims),
        ]


FULL = Config(
    linear_seeds=1_000_000,
    logistic_seeds=50_000,
    climb_seeds=(500, 1_500, 5_000, 15_000, 50_000, 150_000, 500_000),
    mutants=tuple(name for name, control in controls.CONTROLS.items() if not control.is_null),
    mutant_seeds=(300, 1_000, 3_000, 10_000, 20_000),
    mutant_pool=400_000,
    mutant_audits=20,
)


def compute(config: Config, runner: Runner) -> dict[str, np.ndarray]:
    """For every claim, "setting: words", the numbers of `NUMBERS`; NaN where one is unknown."""
    results = {}
    key = jax.random.key(config.seed)
    settings = {name: find(name, config.order) for name, *_ in config.runs()}
    for place, (name, seeds, claims) in enumerate(config.runs()):
        judged = audits.run(
            settings[name],
            jax.random.fold_in(key, place),
            seeds,
            confidence=config.confidence,
            names=claims,
            keep=Keep(runner.folder),
            say=runner.say,
        )
        for found in judged:
            row = found.to_dict() | {"refuted": found.verdict.refuted}
            numbers = [math.nan if row[key] is None else row[key] for key in NUMBERS]
            results[f"{name}: {found.audited.words}"] = np.array(numbers, np.float64)
    climb_key, mutant_key = (jax.random.fold_in(key, len(settings) + k) for k in range(2))
    results |= climb(climb_key, config, settings["linear"], runner)
    return results | mutants(mutant_key, config, runner)


def climb(
    key: Array, config: Config, setting: AuditSetting, runner: Runner
) -> dict[str, np.ndarray]:
    """For each claim of `CLIMBING`, "climb claim: number" over the first seeds of one pool.

    All bounds, of all claims and sizes, hold together with the confidence.
    """
    sizes = config.climb_seeds
    each = simultaneous(config.confidence, len(CLIMBING) * len(sizes))
    results = {"climb seeds": np.array(sizes)}
    keep, say = Keep(runner.folder), runner.say
    for place, case in enumerate(c for c in setting.audited if c.name in CLIMBING):
        case_key = jax.random.fold_in(key, place)
        pool = audits.sample(setting, case.interaction, case_key, max(sizes), keep, say)
        judged = [
            audits.judge(case, setting, _cut(pool, 0, size), each, say).to_dict() for size in sizes
        ]
        for number in CLIMBED:
            results[f"climb {case.name}: {number}"] = np.array([row[number] for row in judged])
    return results


def mutants(key: Array, config: Config, runner: Runner) -> dict[str, np.ndarray]:
    """How many audits of each size flag each mutant, and (of the last size) the correct curator."""
    counts = [min(config.mutant_audits, config.mutant_pool // n) for n in config.mutant_seeds]
    sizes = list(zip(config.mutant_seeds, counts, strict=True))
    flagged, alarms = [], []
    for name in config.mutants:
        runner.say(f"mutant: {name}")
        control = controls.CONTROLS[name]
        # A control's numbers do not depend on which others are run beside it.
        control_key = jax.random.fold_in(key, list(controls.CONTROLS).index(name))
        correct_key, mutant_key = jax.random.split(control_key)
        mutant = control.setting.sample(mutant_key, config.mutant_pool, control.curator)
        correct = control.setting.sample(correct_key, config.mutant_pool)
        wrong, right = control.mutant_statement(), control.correct_statement()
        confidence = config.mutant_confidence
        flagged.append(_flagged(control, mutant, wrong, sizes, confidence))
        alarms += _flagged(control, correct, right, sizes[-1:], confidence)
    return {
        "mutants seeds": np.array(config.mutant_seeds),
        "mutants audits": np.array(counts),
        "mutants flagged": np.array(flagged),
        "mutants correct flagged": np.array(alarms),
    }


def _flagged(control, pool: Pair, statement, sizes, confidence: float) -> list[int]:
    """How many audits flag the pool's curator, for each (size, number of audits)."""
    return [
        sum(
            controls.judge(control, _cut(pool, place, size), statement, confidence).refuted
            for place in range(count)
        )
        for size, count in sizes
    ]


def _cut(pool: Pair, place: int, size: int) -> Pair:
    """The seeds of the audit with this number among those of one size."""
    return Pair(*(np.asarray(arm)[place * size : (place + 1) * size] for arm in pool))


# --- what is shown --------------------------------------------------------------------------------


def _claims(results: dict[str, np.ndarray], name: str) -> dict[str, dict[str, float]]:
    """The numbers of every claim of a setting, under its words."""
    return {
        key.removeprefix(f"{name}: "): dict(zip(NUMBERS, value.tolist(), strict=True))
        for key, value in results.items()
        if key.startswith(f"{name}: ")
    }


def plot(config: Config, results: dict[str, np.ndarray]) -> Figure:
    """Above, one line per claim on a logarithmic axis: where the truth must lie, and the numbers
    on it; below, what more seeds give.
    """
    figure, (above, below) = style.rows(2, height=4.0)
    axes, (climbing, broken) = above.subplots(1, 2), below.subplots(1, 2)
    _draw_climb(climbing, results)
    _draw_mutants(broken, config, results)
    claims = {name: _claims(results, name) for name, *_ in config.runs()}
    most = [np.nanmax([*row.values()]) for found in claims.values() for row in found.values()]
    for axis, (name, seeds, _) in zip(axes, config.runs(), strict=True):
        for place, (words, numbers) in enumerate(reversed(claims[name].items())):
            _draw_claim(axis, place, words, numbers)
        axis.set(xscale="log", xlim=(LEFT_EDGE, 1.5 * max(most)), yticks=[])
        axis.set(ylim=(-0.5, len(claims[name]) - 0.1), title=f"{TITLES[name]} ({seeds:,} seeds)")
        axis.set_xlabel(f"Rényi divergence of order {config.order:g}")
        axis.grid(axis="y", visible=False)
        axis.spines["left"].set_visible(False)
        style.plain_numbers(axis.xaxis)
    style.legend_of_all(above, axes[0], columns=5)
    return figure


def _draw_claim(axis: Axes, place: int, words: str, numbers: dict[str, float]) -> None:
    """One claim: a bar from audited to certified, and a mark for each number."""
    audited = max(numbers["audited"], LEFT_EDGE)
    bar = {"color": style.BLUE, "linewidth": 6, "alpha": 0.3, "solid_capstyle": "butt", "zorder": 1}
    axis.plot([audited, numbers["certified"]], [place, place], **bar)
    # The exact value may lie on the certified one: a small mark inside a tall one shows both.
    for key, label, marker, colour, size in (
        ("audited", "audited: at least", CARETRIGHT, style.BLUE, 8),
        ("exact", "exact", "D", style.BLACK, 5),
        ("certified", "certified: at most", "|", style.BLACK, 18),
        ("paper", "paper's certificate", "x", style.ORANGE, 8),
        ("detectable", "would have been caught", "o", style.GREEN, 8),
    ):
        axis.plot(
            [audited if key == "audited" else numbers[key]],
            [place],
            marker=marker,
            color=colour,
            markerfacecolor="none" if key == "detectable" else colour,
            markersize=size,
            markeredgewidth=2 if key == "certified" else 1.4,
            linestyle="none",
            clip_on=False,
            label=label if place == 0 else None,
            zorder=3 if key == "exact" else 2,
        )
    nothing = "" if numbers["audited"] > LEFT_EDGE else " (nothing shown)"
    axis.text(LEFT_EDGE * 1.15, place + 0.3, words + nothing, fontsize=9)


def _draw_climb(axis: Axes, results: dict[str, np.ndarray]) -> None:
    """Audited and detectable over exact, along the number of seeds."""
    seeds = results["climb seeds"]
    for name, (words, colour, marker, dashes) in CLIMBING.items():
        audited, exact, _, caught = (results[f"climb {name}: {key}"] for key in CLIMBED)
        for numbers, face, what in (
            (caught, "none", "would be caught"),
            (audited, colour, "audited"),
        ):
            look = {"marker": marker, "markerfacecolor": face}
            style.line(axis, seeds, numbers / exact, f"{words}: {what}", colour, dashes, **look)
    style.line(axis, None, 1, "exact, and certified", dashes=style.DOTTED)
    axis.set(xscale="log", xlabel="seeds in each world", ylabel="ratio to the exact value")
    axis.set_title("linear loss: the audited number climbs")
    style.legend_below(axis)


def _draw_mutants(axis: Axes, config: Config, results: dict[str, np.ndarray]) -> None:
    """One cell per mutant and size: the share of audits that flag it, as a number and a shade."""
    sizes, counts, flagged = (results[f"mutants {key}"] for key in ("seeds", "audits", "flagged"))
    share = flagged / counts
    axis.imshow(share, cmap="Blues", vmin=0, vmax=1.3, aspect="auto")
    for row, column in np.ndindex(share.shape):
        text = f"{flagged[row, column]} of {counts[column]}"
        colour = "white" if share[row, column] > 0.7 else style.BLACK
        axis.text(column, row, text, ha="center", va="center", fontsize=9, color=colour)
    axis.set_xticks(range(len(sizes)), [f"{size:,}" for size in sizes])
    axis.set_yticks(range(len(config.mutants)), config.mutants)
    axis.grid(visible=False)
    axis.set(xlabel="seeds in each world", title="broken curators: audits that flag them")


def tables(config: Config, results: dict[str, np.ndarray]) -> list[Table]:
    """Every claim with its numbers, each a Rényi divergence of the configured order."""
    columns = ("claim", "audited", "exact", "certified", "paper", "would be caught", "verdict")
    columns += ("audited / exact", "paper / certified")
    rows = []
    for name, *_ in config.runs():
        for words, numbers in _claims(results, name).items():
            *values, refuted = numbers.values()
            share = numbers["audited"] / numbers["exact"]
            slack = numbers["paper"] / numbers["certified"]
            rows.append((f"{name}: {words}", *values, verdict(refuted), share, slack))
    unit = f"Rényi divergence of order {config.order:g}"
    title = f"Claims, each a {unit}; {config.confidence:.0%} confidence in all of a panel"
    return [
        Table(title, columns, rows, unit),
        _climb_table(config, results),
        mutant_table(config, results),
    ]


def _climb_table(config: Config, results: dict[str, np.ndarray]) -> Table:
    rows = [
        (words, int(seeds), audited, exact, audited / exact, caught / exact)
        for name, (words, *_) in CLIMBING.items()
        for seeds, audited, exact, caught in zip(
            results["climb seeds"],
            *(results[f"climb {name}: {key}"] for key in ("audited", "exact", "detectable")),
            strict=True,
        )
    ]
    columns = ("claim", "seeds", "audited number", "exact", "audited / exact", "caught / exact")
    return Table(
        f"More seeds; {config.confidence:.0%} confidence in all of the panel", columns, rows
    )


def mutant_table(config: Config, results: dict[str, np.ndarray]) -> Table:
    """Every mutant and size with the power's interval; all intervals hold together."""
    sizes, counts, flagged, alarms = (
        results[f"mutants {key}"] for key in ("seeds", "audits", "flagged", "correct flagged")
    )
    each = simultaneous(config.confidence, flagged.size)
    rows = []
    for row, name in enumerate(config.mutants):
        control = controls.CONTROLS[name]
        for column, (size, count) in enumerate(zip(sizes.tolist(), counts.tolist(), strict=True)):
            hits = int(flagged[row, column])
            rate = proportion(hits, count, each)
            alarm = int(alarms[row]) if column == len(sizes) - 1 else None
            cells = (name, control.broken, control.gate, size, count, hits)
            rows.append((*cells, rate.low, rate.high, alarm))
    columns = ("mutant", "what is broken", "gate", "seeds", "audits", "flagged")
    columns += ("power, low", "power, high", "correct curator flagged")
    title = (
        f"Broken curators, each audit at confidence {config.mutant_confidence:g}; intervals of the "
        f"power at {config.confidence:.0%} for all together"
    )
    return Table(title, columns, rows)
