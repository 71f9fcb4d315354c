"""What a served stream says: a line per release, the answer as one object, and its files."""

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
from scipy import stats

from dd_jax.data.own_file import OwnData
from dd_jax.errors import InputError
from dd_jax.guarantees import risk
from dd_jax.plans import Certificate, Plan, arithmetic
from dd_jax.plans.numbers import edited_descent
from dd_jax.serving import Served, Service

# Of all intervals of a table together.
CONFIDENCE = 0.95
# Of held-out rows: more seeds and more rows are no remedy for a gain that is at most so small.
_NO_GAIN = 0.01


def lines(service: Service, served: Served) -> list[dict[str, Any]]:
    """A dictionary for every release, the learned model first, then one for every request.

    A requester saw at most p releases, and at most the i there were.
    """
    plan = service.plan
    found = [_measured(served, 0) | _learned(plan)]
    worst = 0.0
    for request, rows in enumerate(service.stream, start=1):
        issued = plan.certificate(min(service.adaptivity, request), request)
        worst = max(worst, issued.eps_dd_request)
        found.append(
            _measured(served, request)
            | {
                "rows": rows.tolist(),
                "risk_bound": issued.risk_bound_request,
                "gradients": plan.delete_gradients,
                **_retraining(plan, issued.risk_bound_request),
                "eps_dd": issued.eps_dd_adaptive,
                "eps_dd_so_far": worst,
                "advantage_bound": issued.advantage_bound,
            }
        )
    return found


def _learned(plan: Plan) -> dict[str, Any]:
    return {
        "rows": [],
        "risk_bound": plan.certificate().risk_bound_learned,
        "gradients": plan.learn_gradients,
        **dict.fromkeys(("relearn_ratio", "same_risk_ratio", "ratio")),
        "eps_dd": None,
        "eps_dd_so_far": None,
        "advantage_bound": None,
    }


def _retraining(plan: Plan, risk_bound: float | None) -> dict[str, float | None]:
    """Gradients of retraining over those of a request, in two ways, and the smaller of the two.

    Learning again as planned, and learning until the risk bound is that of the request.
    """
    relearn = plan.learn_steps / plan.delete_steps
    steps = None if risk_bound is None else same_risk_steps(plan, risk_bound)
    same_risk = None if steps is None else steps / plan.delete_steps
    smaller = relearn if same_risk is None else min(relearn, same_risk)
    return {"relearn_ratio": relearn, "same_risk_ratio": same_risk, "ratio": smaller}


def _measured(served: Served, request: int) -> dict[str, Any]:
    values: dict[str, Any] = {"request": request}
    releases = served.risk.shape[1]
    measured = (("excess_risk", served.risk, math.inf), ("accuracy", served.accuracy, 1.0))
    for name, found, most in measured:
        mean = low = high = None
        if found is not None:
            each = 1 - (1 - CONFIDENCE) / releases
            mean, low, high = mean_interval(found[:, request], each, most)
        values |= {name: mean, f"{name}_low": low, f"{name}_high": high}
    exact = served.exact_accuracy
    return values | {"exact_accuracy": None if exact is None else float(exact[request])}


def mean_interval(
    values: np.ndarray, confidence: float, most: float = math.inf
) -> tuple[float, float | None, float | None]:
    """The mean of values from 0 to `most` and its t-interval there, None from a single value."""
    values = np.asarray(values, np.float64)
    mean = float(values.mean())
    if len(values) < 2:
        return mean, None, None
    error = float(values.std(ddof=1)) / len(values) ** 0.5
    half = error * float(stats.t.isf((1 - confidence) / 2, len(values) - 1))
    low, high = (min(max(limit, 0.0), most) for limit in (mean - half, mean + half))
    return mean, low, high


def same_risk_steps(plan: Plan, target: float) -> int | None:
    """Fewest steps from scratch, with the plan's noise, whose risk bound is within the target.

    None where rounding leaves no room between the target and the least that the noise allows.
    """
    try:
        steps = risk.learn_steps_convex(edited_descent(plan), plan.dim, target, plan.init_variance)
    except InputError:
        return None
    return max(1, int(steps))


# --- the whole answer -----------------------------------------------------------------------------

_PLAN = ("step_size", "noise_variance", "init_variance", "learn_steps", "delete_steps")


def summary(
    name: str,
    data: OwnData,
    service: Service,
    served: Served,
    certificate: Certificate,
    seed: int | None,
) -> dict[str, Any]:
    """Everything that was found, as JSON values.

    Args:
        name: of the data. data: as loaded.
        service, served: what was run and what it showed.
        certificate: of the last request.
        seed: of a rehearsal; None where the key was secret.
    """
    plan = service.plan
    return {
        "rehearsal": seed is not None,
        "seed": seed,
        "data": {
            "name": name,
            "training_rows": plan.n,
            "held_out_rows": len(service.test.label),
            "features": data.train.features.shape[1],
            "parameters": plan.dim,
            "classes": dict(zip(("-1", "1"), data.classes, strict=True)),
            "preprocessing": data.preprocessing,
            "measured_bounds": bool(data.caveat),
            "majority_accuracy": _majority(data),
        },
        "plan": {key: getattr(plan, key) for key in _PLAN}
        | {"loss": plan.problem.loss.name, "l2": plan.problem.l2, "accountant": plan.accountant}
        | {"order": plan.order, "delta": plan.delta, "edits_per_request": plan.edits_per_request},
        "requests": _with_file_rows(lines(service, served), data),
        "learn_gradients": plan.learn_gradients,
        "request_gradients": plan.delete_gradients,
        "seeds": len(served.risk),
        "confidence": CONFIDENCE,
        "risk_of_zero": served.zero_risk,
        "risk_error": served.risk_error,
        "kept": {"model": plan.dim, "grid": arithmetic.publication_grid(plan), "rows": plan.n},
        "seconds": served.seconds._asdict(),
        "warnings": [
            *_about_accuracy(data, served, plan.dim > data.train.features.shape[1]),
            *_about_risk(served, certificate.risk_bound_request),
            *certificate.warnings,
        ],
        "certificate": json.loads(certificate.to_json()),
    }


def rehearsed(certificate: Certificate, seed: int) -> Certificate:
    """The certificate of a run whose noise can be guessed, which says so; no genuine one."""
    text = (
        f"REHEARSAL: the noise came from seed {seed} and can be made again by anybody, so that no "
        f"guarantee holds for what was released here; leave the seed out for a secret key"
    )
    return replace(certificate, warnings=(text, *certificate.warnings))


def _majority(data: OwnData) -> float | None:
    """The most that one answer for all held-out rows gets right."""
    return float(np.mean(_has_larger_class(data))) if len(data.test.label) else None


def _has_larger_class(data: OwnData) -> np.ndarray:
    """Which held-out rows have the class that most of them have."""
    label = np.asarray(data.test.label)
    return label == (1.0 if np.mean(label) >= 0 else -1.0)


def _about_accuracy(data: OwnData, served: Served, intercept: bool) -> list[str]:
    """A warning where the last releases are no better than one answer for all rows, or not shown
    to be.

    Judged row by row, with the spread over rows and that over seeds.
    """
    if served.right is None or served.accuracy is None or served.exact_accuracy is None:
        return []
    same = _has_larger_class(data)
    gain, margin = _gain(served.right - same, served.accuracy[:, -1])
    if gain > margin:
        return []
    majority, exact = float(np.mean(same)), float(served.exact_accuracy[-1])
    found = (
        f"after the last request {gain + majority:.3f} of the held-out rows are classified "
        f"rightly, and {majority:.3f} by the same answer for all of them"
    )
    if gain > 0 and gain + margin > _NO_GAIN:
        rows, seeds = len(same), len(served.accuracy)
        return [
            f"NOT SHOWN TO BE BETTER THAN ONE CLASS: {found}; with {rows} held-out "
            f"row{'s' * (rows != 1)} and {seeds} seed{'s' * (seeds != 1)} a gain up to "
            f"{min(margin, 1.0):.2g} can be chance; give more seeds or more held-out rows"
        ]
    remedy = (
        "give more records, larger budgets or a larger l2"
        if exact - majority > margin
        else f"give a smaller l2, {'' if intercept else 'an intercept, '}columns scaled to their "
        f"real ranges, better columns or more records"
    )
    return [
        f"NO BETTER THAN ONE CLASS: {found}; without noise it would be {exact:.3f}, so {remedy}"
    ]


def _gain(by_row: np.ndarray, by_seed: np.ndarray) -> tuple[float, float]:
    """The mean gain, and the most that chance explains of it, one-sided at `CONFIDENCE`."""
    parts = [np.asarray(part, np.float64) for part in (by_row, by_seed) if len(part) > 1]
    if len(by_row) < 2:
        return float(np.mean(by_row)), math.inf
    error = math.sqrt(sum(part.var(ddof=1) / len(part) for part in parts))
    quantile = float(stats.t.isf(1 - CONFIDENCE, min(map(len, parts)) - 1))
    return float(np.mean(by_row)), quantile * error


def _about_risk(served: Served, risk_bound: float | None) -> list[str]:
    """A warning where the noise leaves nothing of what was learned, or nothing is promised."""
    mean, zero = float(served.risk[:, -1].mean()), served.zero_risk
    remedy = "give more records, larger budgets or a larger l2"
    if mean >= zero:
        return [
            f"NOTHING LEARNED: after the last request the mean excess risk {mean:.3g} is not below "
            f"that of the model 0 ({zero:.3g}), so that the noise leaves nothing; {remedy}"
        ]
    if risk_bound is not None and risk_bound > zero:
        return [
            f"NOTHING PROMISED: the certified risk bound {risk_bound:.3g} is above the excess risk "
            f"of the model 0 ({zero:.3g}), so that the certificate promises no better model than "
            f"that one, though the measured mean is {mean:.3g}; {remedy}"
        ]
    return []


def _with_file_rows(found: list[dict], data: OwnData) -> list[dict]:
    """Rows by their number in the file instead of among the training records."""
    return [
        {"request": line["request"], "rows": [int(data.rows[row]) for row in line.pop("rows")]}
        | line
        for line in found
    ]
