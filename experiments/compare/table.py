"""The table as people read it; where a value is missing its reason stands below."""

import textwrap
from collections.abc import Mapping, Sequence

from experiments.compare import gupta
from experiments.compare.row import ADVERSARIES, BEYOND, LEAKS, LEAKS_MORE, Row

PROMISED = ("system", "notion", "ε, δ", "private\nrest", "secret\nbytes")
COSTS = ("system", "gradients", "Hess.", "ms", "ratio", "excess\nrisk", "accu-\nracy")
WIDEST_NAME = 20
SEEN = ("system", "(a) 1 release", "(b) many", "(c) adaptive")
MARKS = {BEYOND: "!", LEAKS: "*", LEAKS_MORE: "**"}
WIDTH = 100


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
    """What the three adversaries get, with limits, beside what the system's claim allows.

    The number behind "no claim" is that of its reason in `footnotes`.
    """
    numbers = {why: number for number, why in enumerate(_missing_claims(rows), 1)}
    return [(label(row), *(_cell(row, place, numbers) for place in range(3))) for row in rows]


def footnotes(rows: Sequence[Row]) -> list[str]:
    """Why nothing is claimed, once for each reason."""
    found = enumerate(_missing_claims(rows), 1)
    return [wrapped(f"[{number}] no claim: {why}.", "  ") for number, why in found]


def _missing_claims(rows: Sequence[Row]) -> list[str]:
    found = (_why_no_claim(row, k) for row in rows for k in range(3) if row.allowed[k] is None)
    return list(dict.fromkeys(found))


def _why_no_claim(row: Row, place: int) -> str:
    return row.reasons[f"allowed: {ADVERSARIES[place]}"]


def _cell(row: Row, place: int, numbers: dict[str, int]) -> str:
    found, bound = row.advantages[place], row.allowed[place]
    value, low, high = (_short(number) for number in (found.value, found.low, found.high))
    limits = f"{value} ({low}, {high})"
    if bound is None:
        allowed = f"no claim [{numbers[_why_no_claim(row, place)]}]"
    else:
        allowed = f"claim ≤ {_short(bound)}"
    return f"{limits}\n{allowed} {MARKS.get(row.verdict(place), '')}".rstrip()


def _short(number: float) -> str:
    """Two decimals without the leading zero."""
    return f"{number:.2f}".replace("0.", ".", 1)


def notes(rows: Sequence[Row]) -> list[str]:
    """A paragraph per system: settings, what is kept, which attacks succeed, and every reason."""
    lines = []
    for row in rows:
        parts = [row.setting, f"keeps {row.guarantee.keeps}", f"succeeds: {attacks(row)}"]
        if row.drained is not None:
            parts.append(
                f"drained shards named at a rate of {row.drained.value:.2f} "
                f"({row.drained.low:.2f}, {row.drained.high:.2f}), 1/2 under retraining, by "
                f"{gupta.SETTING}"
            )
        parts += [f"no {name}: {why}" for name, why in _missing_cells(row)]
        lines.append(wrapped(f"{row.system}: {'; '.join(parts)}; {row.seeds} seeds.", "  "))
    return lines


def left_out(reasons: Mapping[tuple[str, str], str], data: str) -> list[str]:
    """Why systems have no row on a data set."""
    found = ((system, why) for (name, system), why in reasons.items() if name == data)
    return [wrapped(f"{system}: left out: {why}", "  ") for system, why in found]


def attacks(row: Row) -> str:
    """The attacks that succeed, in words."""
    return ", ".join(row.attacks) or "none"


def _missing_cells(row: Row) -> list[tuple[str, str]]:
    """Missing measurements; missing claims have their footnotes."""
    words = {
        "excess_risk": "excess risk",
        "retrain_ratio": "ratio",
        "drained": "draining of shards",
    }
    return [
        (words.get(name, name), why)
        for name, why in row.reasons.items()
        if not name.startswith("allowed") and why != gupta.NO_SHARDS
    ]


def wrapped(line: str, indent: str = "") -> str:
    """A paragraph of at most `WIDTH` columns; names with hyphens stay whole."""
    return textwrap.fill(
        line, WIDTH, initial_indent=indent, subsequent_indent=2 * indent, break_on_hyphens=False
    )
