"""The table as people read it, as CSV and as JSON; where a value is missing its reason stands."""

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from experiments.arena import measure
from experiments.arena.measure import ADVERSARIES, Row
from experiments.arena.settings import Config

PROMISED = ("system", "notion", "ε, δ", "private\nrest", "secret\nbytes")
COSTS = ("system", "gradients", "Hess.", "ms", "ratio", "excess\nrisk", "accu-\nracy")
WIDEST_NAME = 20
SEEN = ("system", "(a) 1 release", "(b) many", "(c) adaptive")
MARKS = {measure.BEYOND: "!", measure.LEAKS: "*", measure.LEAKS_MORE: "**"}


def promised(rows: Sequence[Row]) -> list[tuple]:
    """What each system claims and what it keeps to do so."""
    return [
        (
            label(row),
            row.guarantee.notion,
            claim(row),
            private(row),
            row.secret_bytes,
        )
        for row in rows
    ]


def label(row: Row) -> str:
    """The system's name, in two lines if it is long: tables have to fit into 80 columns."""
    if len(row.system) <= WIDEST_NAME:
        return row.system
    return row.system.replace("-gd-", "-gd-\n")


def claim(row: Row) -> str:
    """ε and δ of the claim; why there are none."""
    epsilon, delta = row.guarantee.epsilon, row.guarantee.delta
    if epsilon is None:
        return "none"
    if not epsilon:
        return "exact"
    return f"{epsilon:.3g}" + ("" if delta is None else f", {delta:.0e}")


def private(row: Row) -> str:
    """The first word on the privacy of the other records: yes, no or partly."""
    return row.guarantee.private.replace(",", " ").replace(":", " ").split()[0]


def costs(rows: Sequence[Row]) -> list[tuple]:
    """What a request costs and how good the release after it is."""
    return [
        (
            label(row),
            round(row.gradients),
            round(row.hessians),
            f"{1e3 * row.seconds:.2g}",
            None if row.retrain_ratio is None else f"{row.retrain_ratio:.3g}",
            None if row.excess_risk is None else _mean(row.excess_risk, ".2g"),
            None if row.accuracy is None else _mean(row.accuracy, ".3f"),
        )
        for row in rows
    ]


def _mean(mean, style: str) -> str:
    return f"{mean.value:{style}}\n±{mean.high - mean.value:.1g}"


def seen(rows: Sequence[Row]) -> list[tuple]:
    """What the three adversaries get, with limits, beside what the system's claim allows."""
    return [(label(row), *(_cell(row, place) for place in range(3))) for row in rows]


def _cell(row: Row, place: int) -> str:
    found, bound = row.advantages[place], row.allowed[place]
    value, low, high = (_short(number) for number in (found.value, found.low, found.high))
    limits = f"{value} ({low}, {high})"
    allowed = "no claim" if bound is None else f"claim ≤ {_short(bound)}"
    return f"{limits}\n{allowed} {MARKS.get(row.verdict(place), '')}".rstrip()


def _short(number: float) -> str:
    """Two decimals without the leading zero."""
    return f"{number:.2f}".replace("0.", ".", 1)


def notes(rows: Sequence[Row]) -> list[str]:
    """One line per system: settings, what is kept, which attacks succeed, and every reason."""
    lines = []
    for row in rows:
        parts = [row.setting, f"keeps {row.guarantee.keeps}"]
        if row.attacks:
            parts.append(f"succeeds: {', '.join(row.attacks)}")
        if row.drained is not None:
            parts.append(
                f"drained shards named at a rate of {row.drained.value:.2f} "
                f"({row.drained.low:.2f}, {row.drained.high:.2f}), 1/2 under retraining"
            )
        parts += [f"no {name.removeprefix('allowed: ')}: {why}" for name, why in _cells(row)]
        lines.append(f"{row.system}: " + "; ".join(parts) + f"; {row.seeds} seeds")
    return lines


def _cells(row: Row) -> list[tuple[str, str]]:
    """Missing measurements; missing claims stand in the table itself."""
    words = {"excess_risk": "excess risk", "retrain_ratio": "ratio"}
    return [
        (words.get(name, name), why)
        for name, why in row.reasons.items()
        if not name.startswith("allowed")
    ]


def to_dict(row: Row) -> dict[str, Any]:
    """A row as plain values; `reasons` says why a value is null."""
    values = asdict(row)
    values["guarantee"] = asdict(row.guarantee)
    for name in ("excess_risk", "accuracy", "drained"):
        found = getattr(row, name)
        values[name] = None if found is None else found._asdict()
    values["advantages"] = {
        adversary: {
            **row.advantages[place]._asdict(),
            "allowed": row.allowed[place],
            "verdict": row.verdict(place),
        }
        for place, adversary in enumerate(ADVERSARIES)
    }
    del values["allowed"]
    return {**values, "attacks": list(row.attacks)}


def to_json(config: Config, rows: Sequence[Row], seconds: float) -> dict[str, Any]:
    """The whole comparison as plain values."""
    return {
        "config": asdict(config),
        "seconds": round(seconds, 1),
        "confidence": f"{config.confidence:g} for all advantages together; 0.95 for each mean",
        "rows": [to_dict(row) for row in rows],
    }


def to_csv(rows: Sequence[Row]) -> str:
    """One line per row; a missing value is written as its reason in square brackets."""
    buffer = io.StringIO()
    flat = [_flat(row) for row in rows]
    writer = csv.DictWriter(buffer, fieldnames=list(flat[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)
    return buffer.getvalue()


def _flat(row: Row) -> dict[str, Any]:
    def mean(name):
        found, why = getattr(row, name), f"[{row.reasons.get(name)}]"
        parts = ("value", "low", "high")
        keys = (name, f"{name}_low", f"{name}_high")
        return {
            key: why if found is None else getattr(found, part)
            for key, part in zip(keys, parts, strict=True)
        }

    values = {
        "data": row.data,
        "system": row.system,
        "notion": row.guarantee.notion,
        "epsilon": _or(row.guarantee.epsilon, "no number is claimed"),
        "delta": _or(row.guarantee.delta, "no number is claimed"),
        "rest_private": row.guarantee.private,
        "keeps": row.guarantee.keeps,
        "secret_bytes": row.secret_bytes,
        "learn_gradients": row.learn_gradients,
        "gradients": row.gradients,
        "hessians": row.hessians,
        "retrained": row.retrained,
        "seconds": row.seconds,
        "retrain_ratio": _or(row.retrain_ratio, row.reasons.get("retrain_ratio")),
        **mean("excess_risk"),
        **mean("accuracy"),
    }
    for place, adversary in enumerate(ADVERSARIES):
        found, name = row.advantages[place], adversary.replace(" ", "_")
        values |= {
            name: found.value,
            f"{name}_low": found.low,
            f"{name}_high": found.high,
            f"{name}_allowed": _or(row.allowed[place], row.reasons.get(f"allowed: {adversary}")),
            f"{name}_verdict": row.verdict(place),
        }
    return {**values, "attacks": "; ".join(row.attacks), "seeds": row.seeds, "setting": row.setting}


def _or(value, reason: str | None):
    return f"[{reason}]" if value is None else value


def json_text(values: dict[str, Any]) -> str:
    """The JSON file's text."""
    return json.dumps(values, ensure_ascii=False, indent=2, allow_nan=False) + "\n"
