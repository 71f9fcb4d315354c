"""The table as CSV and as JSON; where a value is missing its reason stands."""

import csv
import io
import json
from dataclasses import asdict
from typing import Any

from experiments.compare.row import ADVERSARIES, Comparison, Row
from experiments.compare.scene import Config
from experiments.compare.table import attacks


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


def to_json(config: Config, found: Comparison, seconds: float, caption: str = "") -> dict[str, Any]:
    """The whole comparison as plain values."""
    left_out = [
        {"data": data, "system": system, "why": why}
        for (data, system), why in found.left_out.items()
    ]
    return {
        "caption": caption,
        "config": asdict(config),
        "seconds": round(seconds, 1),
        "confidence": f"{config.confidence:g} for all advantages together; 0.95 for each mean",
        "rows": [to_dict(row) for row in found.rows],
        "left_out": left_out,
    }


def to_csv(found: Comparison) -> str:
    """One line per system and data set; a missing value is its reason in square brackets."""
    buffer = io.StringIO()
    flat = [_flat(row) for row in found.rows]
    for (data, system), why in found.left_out.items():
        flat.append(dict.fromkeys(flat[0], f"[{why}]") | {"data": data, "system": system})
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
        **mean("drained"),
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
    return {**values, "attacks": attacks(row), "seeds": row.seeds, "setting": row.setting}


def _or(value, reason: str | None):
    return f"[{reason}]" if value is None else value


def json_text(values: dict[str, Any]) -> str:
    """The JSON file's text."""
    return json.dumps(values, ensure_ascii=False, indent=2, allow_nan=False) + "\n"
