"""Audited ≤ exact ≤ certified: what samples prove, what is true and what is promised, per claim.

The linear loss, whose laws are exact, beside logistic regression on real digits, where the truth is
known only to lie between the audited and the certified number. Below: what more seeds give, for the
audited number and for the curators that are broken on purpose.
"""

import math
from dataclasses import dataclass

import jax
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.markers import CARETRIGHT
from matplotlib.ticker import FuncFormatter

from dd_jax.audit.controls import CONTROLS
from dd_jax.audit.settings import base as audits
from dd_jax.audit.settings import find
from dd_jax.cli import style
from experiments import audit_growth
from experiments.cache import Runner
from experiments.page import Table

NUMBERS = ("audited", "exact", "certified", "paper", "detectable", "refuted")
LEFT_EDGE = 3e-3
# Claims that are attained, so that the audited number can climb to the certified one.
CLIMBING = {"dp": "one release", "deletion-1": "deleted"}

TITLE = "What samples prove: audited, exact, certified"


@dataclass(frozen=True)
class Config:
    """Settings of the figure; the quick scale is the default."""

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
    mutants=tuple(name for name, control in CONTROLS.items() if not control.is_null),
    mutant_seeds=(300, 1_000, 3_000, 10_000, 20_000),
    mutant_pool=400_000,
    mutant_audits=20,
)


def compute(config: Config, runner: Runner) -> dict[str, np.ndarray]:
    """For every claim, "setting: words", the numbers of `NUMBERS`; NaN where one is unknown."""
    results = {}
    key, told = jax.random.key(config.seed), {"keep": audits.Keep(runner.folder), "say": runner.say}
    settings = {name: find(name, config.order) for name, *_ in config.runs()}
    for place, (name, seeds, claims) in enumerate(config.runs()):
        judged = audits.run(
            settings[name],
            jax.random.fold_in(key, place),
            seeds,
            confidence=config.confidence,
            names=claims,
            **told,
        )
        for found in judged:
            row = found.to_dict() | {"refuted": found.verdict.refuted}
            numbers = [math.nan if row[key] is None else row[key] for key in NUMBERS]
            results[f"{name}: {found.case.words}"] = np.array(numbers, np.float64)
    climb_key, mutant_key = (jax.random.fold_in(key, len(settings) + k) for k in range(2))
    results |= audit_growth.climb(
        settings["linear"],
        climb_key,
        tuple(CLIMBING),
        config.climb_seeds,
        confidence=config.confidence,
        **told,
    )
    return results | audit_growth.mutants(
        mutant_key,
        config.mutants,
        config.mutant_seeds,
        pool=config.mutant_pool,
        replays=config.mutant_audits,
        confidence=config.mutant_confidence,
        say=runner.say,
    )


def _claims(config: Config, results: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The arrays that hold the numbers of a claim."""
    names = tuple(f"{name}: " for name, *_ in config.runs())
    return {key: value for key, value in results.items() if key.startswith(names)}


def plot(config: Config, results: dict[str, np.ndarray]) -> Figure:
    """Above, one line per claim on a logarithmic axis: where the truth must lie, and the numbers
    on it; below, what more seeds give.
    """
    figure, (above, below) = style.rows(2, height=4.0)
    axes, (climbing, broken) = above.subplots(1, 2), below.subplots(1, 2)
    audit_growth.draw_climb(climbing, results, CLIMBING)
    audit_growth.draw_mutants(broken, results, config.mutants)
    results = _claims(config, results)
    right = 1.5 * max(np.nanmax(numbers) for numbers in results.values())
    titles = {"linear": "linear loss, exact laws", "logistic": "logistic regression, digits"}
    for axis, (name, seeds, _) in zip(axes, config.runs(), strict=True):
        rows = {k.split(": ", 1)[1]: v for k, v in results.items() if k.startswith(f"{name}: ")}
        for place, (words, numbers) in enumerate(reversed(rows.items())):
            _claim(axis, place, words, dict(zip(NUMBERS, numbers, strict=True)))
        axis.set(xscale="log", xlim=(LEFT_EDGE, right), ylim=(-0.5, len(rows) - 0.1), yticks=[])
        axis.set_xlabel(f"Rényi divergence of order {config.order:g}")
        axis.set_title(f"{titles[name]} ({seeds:,} seeds)", fontsize=10)
        axis.grid(axis="y", visible=False)
        axis.spines["left"].set_visible(False)
        axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    handles, labels = axes[0].get_legend_handles_labels()
    above.legend(handles, labels, loc="outside lower center", ncols=5, fontsize=9)
    return figure


def _claim(axis: Axes, place: int, words: str, numbers: dict[str, float]) -> None:
    """One claim: a bar from audited to certified, and a mark for each number."""
    audited = max(numbers["audited"], LEFT_EDGE)
    span = [audited, numbers["certified"]]
    axis.plot(
        span,
        [place, place],
        color=style.BLUE,
        linewidth=6,
        alpha=0.3,
        solid_capstyle="butt",
        zorder=1,
    )
    marks = (
        ("audited", "audited: at least", CARETRIGHT, style.BLUE, style.BLUE),
        ("exact", "exact", "D", style.BLACK, style.BLACK),
        ("certified", "certified: at most", "|", style.BLACK, style.BLACK),
        ("paper", "paper's certificate", "x", style.ORANGE, style.ORANGE),
        ("detectable", "would have been caught", "o", style.GREEN, "none"),
    )
    for key, label, marker, colour, face in marks:
        value = audited if key == "audited" else numbers[key]
        # The exact value may lie on the certified one: a small mark inside a tall one shows both.
        size = {"certified": 18, "exact": 5}.get(key, 8)
        axis.plot(
            [value],
            [place],
            marker=marker,
            color=colour,
            markerfacecolor=face,
            markersize=size,
            markeredgewidth=2 if key == "certified" else 1.4,
            linestyle="none",
            clip_on=False,
            label=label if place == 0 else None,
            zorder=3 if key == "exact" else 2,
        )
    nothing = "" if numbers["audited"] > LEFT_EDGE else " (nothing shown)"
    axis.text(LEFT_EDGE * 1.15, place + 0.3, words + nothing, fontsize=9)


def tables(config: Config, results: dict[str, np.ndarray]) -> list[Table]:
    """Every claim with its numbers, each a Rényi divergence of the configured order."""
    columns = ("claim", "audited", "exact", "certified", "paper", "would be caught", "verdict")
    rows = [
        (words, *numbers[:5].tolist(), "refuted" if numbers[5] else "consistent")
        for words, numbers in _claims(config, results).items()
    ]
    unit = f"Rényi divergence of order {config.order:g}"
    return [
        Table(f"Claims, each a {unit}", columns, rows, unit),
        audit_growth.mutant_table(results, config.mutants, config.confidence),
    ]


def caption(config: Config, results: dict[str, np.ndarray]) -> str:
    """What to see, with the numbers of this run."""
    table = np.stack(list(_claims(config, results).values()))
    audited, exact, certified, paper, _, refutations = table.T
    shares = audited / exact
    refuted = int(np.sum(refutations))
    verdict = "No claim is refuted" if not refuted else f"{refuted} CLAIMS ARE REFUTED"
    slack = paper / certified
    return (
        f"Above: what {config.confidence:.0%} confidence in all claims of a panel together gives. "
        f"Samples prove that the truth is at least the audited number, the certificate that it "
        f"is at most the certified one: it lies on the bar (for recoded rows R_q itself, else "
        f"the μ of Gaussian DP read as q μ²/2). {verdict}; circles mark the least truth that "
        f"would have been refuted with probability 0.9. Where the law is exact the audit reaches "
        f"{np.nanmin(shares):.0%} to {np.nanmax(shares):.0%} of the truth, and the certificate is "
        f"attained unless the requester recodes rows. The paper's certificate for the same runs is "
        f"{slack.min():.2g} to {slack.max():.2g} times the optimal one. Tests thm:chourasia, "
        f"thm:data_deletion_convex and the reduction as repaired in erratum E2. "
        + audit_growth.caption(
            results,
            tuple(CLIMBING),
            config.mutants,
            confidence=config.confidence,
            mutant_confidence=config.mutant_confidence,
        )
    )
