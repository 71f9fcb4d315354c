"""A comparison as it is shown: printed tables, CSV, JSON and the figure.

A value that does not exist is replaced by its reason: below the tables, in square brackets in the
CSV, under `reasons` in the JSON.
"""

import csv
import io
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from dd_jax import files
from dd_jax.cli import style
from dd_jax.cli.output import json_text
from dd_jax.intervals import Estimate, Mean
from experiments.compare.measure import (
    ADVERSARIES,
    BEYOND,
    GUPTA_SETTING,
    LEAKS,
    LEAKS_MORE,
    MEAN_CONFIDENCE,
    NO_SHARDS,
    Comparison,
    Row,
)
from experiments.compare.scene import Config, Reference
from experiments.page import Table

CAPTION = (
    "What a request costs, with the accuracy after it, and what three adversaries learn about a "
    "deleted record. Systems that are accurate but not private show the record to an adaptive "
    "requester, who copies it (the theorem that privacy is necessary); a secret state may show it "
    "over many releases (the theorem that unlearning is not deletion); a claim of data-deletion "
    "must hold against all three. Systems as in the paper's table of comparison."
)
MARKS = {BEYOND: "!", LEAKS: "*", LEAKS_MORE: "**"}
AT_MAJORITY = "†"
WIDTH, WIDEST_NAME = 80, 20


def refuted(rows: Sequence[Row]) -> list[str]:
    """Rows whose data-deletion claim, this library's own, is refuted by samples."""
    return [
        f"{row.system} ({row.data})"
        for row in rows
        if row.guarantee.notion == "data-deletion"
        and any(row.verdict(place) == BEYOND for place in range(3))
    ]


# --- printed, in at most 80 columns ---------------------------------------------------------------


def printed(rows: Sequence[Row]) -> list[Table]:
    """What each system promises and keeps, what a request costs, what the adversaries learn.

    The number behind "no claim" is that of its reason in `footnotes`.
    """
    reasons = _missing_claims(rows)
    return [
        Table(
            "what is promised, and what is kept",
            ("system", "notion", "ε, δ", "private\nrest", "secret\nbytes"),
            [_promised(row) for row in rows],
        ),
        Table(
            "a request, and the model after it",
            ("system", "gradients", "Hess.", "ms", "ratio", "excess\nrisk", "accu-\nracy"),
            [*_references(rows[0].reference), *(_cost(row) for row in rows)],
        ),
        Table(
            "advantage against the deleted record",
            ("system", "(a) 1 release", "(b) many", "(c) adaptive"),
            [(_label(row), *(_cell(row, place, reasons) for place in range(3))) for row in rows],
        ),
    ]


def _promised(row: Row) -> tuple:
    claim = row.guarantee
    # The first word on the privacy of the other records: yes, no or partly.
    private = claim.private.replace(",", " ").replace(":", " ").split()[0]
    return _label(row), claim.notion, _claim(row), private, row.costs.secret_bytes


def _references(found: Reference) -> list[tuple]:
    """Accuracies that every row below is measured against."""
    accuracies = {"(noiseless model)": found.accuracy, "(the larger class)": found.majority}
    return [(name, *[None] * 5, f"{value:.3f}") for name, value in accuracies.items()]


def _cost(row: Row) -> tuple:
    costs, ratio = row.costs, row.retrain_ratio
    return (
        _label(row),
        round(costs.gradients),
        round(costs.hessians),
        f"{1e3 * costs.seconds:.2g}",
        None if isinstance(ratio, str) else f"{ratio:.3g}",
        _mean(row.excess_risk, ".2g"),
        _mean(row.accuracy, ".3f", AT_MAJORITY if row.at_majority else ""),
    )


def _label(row: Row) -> str:
    """The system's name, in two lines if it is long: tables have to fit into 80 columns."""
    if len(row.system) <= WIDEST_NAME:
        return row.system
    return row.system.replace("-gd-", "-gd-\n")


def _claim(row: Row) -> str:
    epsilon, delta = row.guarantee.epsilon, row.guarantee.delta
    if epsilon is None:
        return "none"
    if not epsilon:
        return "exact"
    return f"{epsilon:.3g}" + ("" if delta is None else f", {delta:.0e}")


def _mean(mean, form: str, mark: str = "") -> str | None:
    if isinstance(mean, str):
        return None
    return f"{mean.value:{form}}{mark}\n±{mean.high - mean.value:.1g}"


def _cell(row: Row, place: int, reasons: list[str]) -> str:
    """An advantage with its limits, above what the claim allows and the mark of the verdict."""
    found, bound = row.advantages[place], row.allowed[place]
    value, low, high = (_short(number) for number in (found.value, found.low, found.high))
    if isinstance(bound, str):
        allowed = f"no claim [{1 + reasons.index(bound)}]"
    else:
        allowed = f"claim ≤ {_short(bound)}"
    return f"{value} ({low}, {high})\n{allowed} {MARKS.get(row.verdict(place), '')}".rstrip()


def _short(number: float) -> str:
    """Two decimals without the leading zero."""
    return f"{number:.2f}".replace("0.", ".", 1)


def _missing_claims(rows: Sequence[Row]) -> list[str]:
    bounds = (bound for row in rows for bound in row.allowed if isinstance(bound, str))
    return list(dict.fromkeys(bounds))


def footnotes(rows: Sequence[Row]) -> list[str]:
    """Why nothing is claimed, once for each reason."""
    found = enumerate(_missing_claims(rows), 1)
    return [wrapped(f"[{number}] no claim: {why}.", "  ") for number, why in found]


def notes(rows: Sequence[Row]) -> list[str]:
    """A paragraph per system: settings, what is kept, which attacks succeed, and every reason."""
    labels = {
        "excess_risk": "excess risk",
        "accuracy": "accuracy",
        "more releases": "more releases",
        "retrain_ratio": "ratio",
        "drained": "draining of shards",
    }
    lines = []
    for row in rows:
        parts = [row.setting, f"keeps {row.guarantee.keeps}", f"succeeds: {_attacks(row)}"]
        if not isinstance(row.drained, str):
            parts.append(
                f"drained shards named at a rate of {row.drained.value:.2f} "
                f"({row.drained.low:.2f}, {row.drained.high:.2f}), 1/2 under retraining, by "
                f"{GUPTA_SETTING}"
            )
        reasons = {name: row.reasons[name] for name in labels if name in row.reasons}
        parts += [f"no {labels[name]}: {why}" for name, why in reasons.items() if why != NO_SHARDS]
        parts.append(f"{row.seeds} seeds, {row.releases} releases, {row.copies} copies")
        lines.append(wrapped(f"{row.system}: {'; '.join(parts)}.", "  "))
    return lines


def _attacks(row: Row) -> str:
    return ", ".join(row.attacks) or "none"


def problem(config: Config, rows: Sequence[Row]) -> str:
    """λ, d and the retraining that every ratio is measured against, in a line."""
    row = rows[0]
    retraining = row.reference.retraining
    cost = retraining if isinstance(retraining, str) else f"{retraining:,.0f} gradients"
    return wrapped(f"λ = {config.l2_of(row.data):g}, d = {row.dim}; one retraining: {cost}.", "  ")


def left_out(reasons: Mapping[tuple[str, str], str], data: str) -> list[str]:
    """Why systems have no row on a data set."""
    found = ((system, why) for (name, system), why in reasons.items() if name == data)
    return [wrapped(f"{system}: left out: {why}", "  ") for system, why in found]


def legend(config: Config) -> list[str]:
    """How to read the printed tables."""
    return [
        wrapped(line)
        for line in (
            f"Target ε = {config.epsilon:g}, δ = {config.delta:g}.",
            "gradients, Hess.: per-record gradients and Hessians of the mean request of a stream "
            f"of {config.stream} deletions; ratio: gradients of one retraining, the same for all "
            f"rows, over those of a request, a Hessian as d of them. {AT_MAJORITY}: not shown to "
            "beat the larger class.",
            "advantage: value (limits); all limits hold together with probability "
            f"{config.confidence:g}. claim: the most that the system's own claim allows. "
            "!: beyond its claim. *: above 0 where nothing is claimed. **: and above what the "
            "claim allows one release.",
        )
    ]


def wrapped(line: str, indent: str = "") -> str:
    """A paragraph of at most `WIDTH` columns; names with hyphens stay whole."""
    return textwrap.fill(
        line, WIDTH, initial_indent=indent, subsequent_indent=2 * indent, break_on_hyphens=False
    )


# --- files ----------------------------------------------------------------------------------------


def to_json(
    config: Config, found: Comparison, seconds: float, cpu_seconds: float
) -> dict[str, Any]:
    """The whole comparison as plain values."""
    return {
        "caption": CAPTION,
        "config": asdict(config),
        "seconds": round(seconds, 1),
        "cpu_seconds": round(cpu_seconds, 1),
        "confidence": f"{config.confidence:g} for all advantages together; {MEAN_CONFIDENCE:g} "
        "for each mean",
        "refuted": refuted(found.rows),
        "rows": [_as_dict(row) for row in found.rows],
        "left_out": [
            {"data": data, "system": system, "why": why}
            for (data, system), why in found.left_out.items()
        ],
    }


def _as_dict(row: Row) -> dict[str, Any]:
    """A row as plain values; `reasons` says why a value is null."""
    values: dict[str, Any] = {**vars(row), **row.costs._asdict()}
    values |= {"guarantee": asdict(row.guarantee), "retrain_ratio": row.retrain_ratio}
    for name in ("retrain_ratio", "excess_risk", "accuracy", "drained"):
        values[name] = _plain(values[name])
    values["advantages"] = {
        adversary: {
            **row.advantages[place]._asdict(),
            "allowed": _plain(row.allowed[place]),
            "verdict": row.verdict(place),
        }
        for place, adversary in enumerate(ADVERSARIES)
    }
    values |= {"reference": row.reference._asdict(), "at_majority": row.at_majority}
    del values["allowed"], values["costs"], values["repeats"]
    return {**values, "reasons": row.reasons, "attacks": list(row.attacks)}


def _plain(value: Estimate | Mean | float | str) -> Any:
    if isinstance(value, str):
        return None
    return value._asdict() if isinstance(value, Estimate | Mean) else value


def to_csv(found: Comparison) -> str:
    """One line per system and data set; a missing value is its reason in square brackets."""
    buffer = io.StringIO()
    lines = [_as_line(row) for row in found.rows]
    for (data, system), why in found.left_out.items():
        lines.append(dict.fromkeys(lines[0], f"[{why}]") | {"data": data, "system": system})
    writer = csv.DictWriter(buffer, fieldnames=list(lines[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return buffer.getvalue()


def _as_line(row: Row) -> dict[str, Any]:
    no_number = "[no number is claimed]"
    epsilon, delta = row.guarantee.epsilon, row.guarantee.delta
    counts = ("secret_bytes", "learn_gradients", "learn_hessians")
    counts = (*counts, "gradients", "hessians", "retrained", "seconds")
    values = {
        "data": row.data,
        "system": row.system,
        "notion": row.guarantee.notion,
        "epsilon": no_number if epsilon is None else epsilon,
        "delta": no_number if delta is None else delta,
        "rest_private": row.guarantee.private,
        "keeps": row.guarantee.keeps,
        **{name: getattr(row.costs, name) for name in counts},
        "retrain_ratio": _or_reason(row.retrain_ratio),
        **_with_limits("excess_risk", row.excess_risk),
        **_with_limits("accuracy", row.accuracy),
        "noiseless_accuracy": row.reference.accuracy,
        "majority": row.reference.majority,
        "at_majority": "yes" if row.at_majority else "no",
        **_with_limits("drained", row.drained),
    }
    for place, adversary in enumerate(ADVERSARIES):
        name = adversary.replace(" ", "_")
        values |= _with_limits(name, row.advantages[place])
        values[f"{name}_allowed"] = _or_reason(row.allowed[place])
        values[f"{name}_verdict"] = row.verdict(place)
    return {
        **values,
        "attacks": _attacks(row),
        "seeds": row.seeds,
        "releases": row.releases,
        "copies": row.copies,
        "setting": row.setting,
    }


def _with_limits(name: str, found) -> dict[str, Any]:
    keys = (name, f"{name}_low", f"{name}_high")
    if isinstance(found, str):
        return dict.fromkeys(keys, _or_reason(found))
    return dict(zip(keys, map(float, (found.value, found.low, found.high)), strict=True))


def _or_reason(value):
    return f"[{value}]" if isinstance(value, str) else value


def write(
    results: Path, name: str, *, table: str, values: dict[str, Any], figure: Figure
) -> list[str]:
    """Write `name`.csv, .json, .svg, .pdf and .png into the folder; returns the paths.

    The figure is closed.
    """
    contents = {"csv": table.encode(), "json": f"{json_text(values)}\n".encode()}
    contents |= {suffix: style.drawn(figure, suffix) for suffix in ("svg", "pdf", "png")}
    style.plt.close(figure)
    named = {f"{name}.{suffix}": content for suffix, content in contents.items()}
    return files.place_together(results, name, named)


# --- the figure -----------------------------------------------------------------------------------

KINDS = (
    ("(a) one release", "o", style.BLUE, 0.22),
    ("(b) many releases", "s", style.GREEN, 0.0),
    ("(c) adaptive requester", "D", style.ORANGE, -0.22),
)
BOUND = {"marker": "|", "markersize": 6, "markeredgewidth": 1.6, "color": style.BLACK}
BARS = {
    "nothing is kept": {"facecolor": style.BLUE, "alpha": 0.6},
    "a secret state is kept": {"facecolor": style.RED, "alpha": 0.6, "hatch": "///"},
}


def plot(rows: Sequence[Row]) -> Figure:
    """One line per system, cheapest on top: cost on the left, advantages on the right."""
    names = list(dict.fromkeys(row.data for row in rows))
    count = max(sum(row.data == name for row in rows) for name in names)
    figure, axes = style.panels(len(names), 2)
    lines = textwrap.wrap(CAPTION, 150, break_on_hyphens=False)
    figure.set_size_inches(10.5, len(names) * (1.2 + 0.27 * count) + 0.5 + 0.16 * len(lines))
    for place, name in enumerate(names):
        chosen = sorted((r for r in rows if r.data == name), key=lambda row: -row.costs.gradients)
        cost, gain = axes[2 * place], axes[2 * place + 1]
        for stripe in range(0, len(chosen), 2):
            for axis in (cost, gain):
                axis.axhspan(stripe - 0.5, stripe + 0.5, color=style.BLACK, alpha=0.04, linewidth=0)
        _draw_costs(cost, chosen)
        _draw_advantages(gain, chosen)
        cost.set_title(name, fontsize=10, loc="left")
    figure.legend(handles=_handles(), loc="outside upper center", ncols=6, fontsize=8)
    figure.supxlabel("\n".join(lines), fontsize=8, x=0.01, ha="left")
    return figure


def _handles() -> list:
    """A mark for everything that a panel may show, whichever rows there are."""
    kinds = [
        Line2D([], [], marker=marker, markersize=4, color=colour, linewidth=1.2, label=label)
        for label, marker, colour, _ in KINDS
    ]
    bars = [Patch(label=label, **look) for label, look in BARS.items()]
    return [*kinds, Line2D([], [], linestyle="none", label="allowed by its claim", **BOUND), *bars]


def _draw_costs(axis: Axes, rows: Sequence[Row]) -> None:
    least = 0.5
    spent = [row.costs.gradients for row in rows]
    free, kept = BARS.values()
    for place, (gradients, row) in enumerate(zip(spent, rows, strict=True)):
        look = kept if row.costs.secret_bytes else free
        axis.barh(place, max(gradients - least, 0), left=least, height=0.6, **look)
        right = "" if isinstance(row.accuracy, str) else f"  {row.accuracy.value:.0%} right"
        axis.text(0.7 + gradients, place, f" {gradients:,.0f}{right}", va="center", fontsize=7)
    axis.set_yticks(range(len(rows)), [row.system for row in rows], fontsize=8)
    most = 50 * (max(*spent, 1.5) - least)
    axis.set(xscale="log", xlim=(least, most), ylim=(-0.6, len(rows) - 0.4))
    axis.set_xlabel("per-record gradients of a request", fontsize=9)
    axis.grid(axis="y", visible=False)


def _draw_advantages(axis: Axes, rows: Sequence[Row]) -> None:
    for kind, (_, marker, colour, shift) in enumerate(KINDS):
        for place, row in enumerate(rows):
            found, bound, height = row.advantages[kind], row.allowed[kind], place + shift
            axis.plot([found.low, found.high], [height] * 2, color=colour, linewidth=1.2)
            axis.plot([found.value], [height], marker, markersize=4, color=colour)
            if not isinstance(bound, str):
                axis.plot([bound], [height], linestyle="none", **BOUND)
    axis.axvline(0, color=style.BLACK, linewidth=0.6)
    axis.set(xlim=(-0.4, 1.05), ylim=(-0.6, len(rows) - 0.4), yticks=[])
    axis.set_xlabel("advantage against the deleted record, exact limits", fontsize=9)
    axis.grid(axis="y", visible=False)
