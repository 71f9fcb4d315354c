"""The report's page: one file with its style, script and pictures inside, which loads nothing.

The same figures give the same bytes: no date, and only times that were saved with the arrays.
"""

import base64
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jinja2
import numpy as np

from dd_jax.plans import Certificate
from experiments import cache

Status = Literal["computed", "saved", "missing data", "failed"]
# A table with these columns holds claims that were compared with samples.
CLAIM_COLUMNS = ("certified", "exact", "audited", "verdict")
MOST_CLAIMS = 12
# A larger drawing (many marks) is shown as pixels.
LARGEST_DRAWING = 1_000_000


class Table(NamedTuple):
    """Rows that the page shows as a table that can be sorted.

    Attributes:
        title: a line above the table.
        columns: a heading for each column.
        rows: cells: numbers, text, or None where a cell has no value.
        unit: what the numbers of a table of claims are, for the cards.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    unit: str = ""

    @classmethod
    def from_rows(cls, title: str, rows: Sequence[Mapping[str, Any]], unit: str = "") -> "Table":
        """A table from rows that all have the same headings, in the same order."""
        return cls(title, tuple(rows[0]) if rows else (), [tuple(r.values()) for r in rows], unit)

    @classmethod
    def from_columns(cls, title: str, *groups: Mapping[str, Any]) -> "Table":
        """A table from its columns by heading; a single value is repeated in every row.

        The rows of further groups, with the same headings, are appended.
        """
        rows = []
        for group in groups:
            cells = [c.tolist() if isinstance(c, np.ndarray) else c for c in group.values()]
            length = max(len(column) for column in cells if np.ndim(column))
            columns = [column if np.ndim(column) else [column] * length for column in cells]
            rows += zip(*columns, strict=True)
        return cls(title, tuple(groups[0]), rows)


@dataclass(frozen=True)
class Made:
    """A figure as the page shows it, or why it is missing.

    Attributes:
        name: the figure's module. title: its heading.
        status: computed, drawn from saved arrays, or why it is missing.
        problem: why it is missing. command: what to run to get its data.
        config: its settings. seconds: how long its arrays took. revision: Git revision then.
        caption: what to see. note: how it was made.
        image: a picture as a data URL. inches: how wide it was drawn.
        files: label → file beside the page.
        tables: tables below the figure. certificate: what it runs under.
        opening: (heading, number, words) of the tiles with which the page begins.
    """

    name: str
    title: str
    status: Status
    problem: str | None = None
    command: str | None = None
    config: dict[str, Any] = field(default_factory=dict)
    seconds: float | None = None
    revision: str | None = None
    caption: str = ""
    note: str = ""
    image: str = ""
    inches: float = 10.0
    files: dict[str, str] = field(default_factory=dict)
    tables: tuple[Table, ...] = ()
    certificate: Certificate | None = None
    opening: Sequence[tuple[str, str, str]] = ()


class ClaimRow(NamedTuple):
    """A claim of a certificate, with the truth and what samples prove.

    Attributes:
        words: what is claimed.
        certified: the promise, an upper bound. exact: the truth, None where it is unknown.
        audited: what samples prove, a lower bound. verdict: "refuted" or another word.
        figure: the figure whose table has it. unit: what its numbers are.
    """

    words: str
    certified: float
    exact: float | None
    audited: float
    verdict: str
    figure: str
    unit: str = ""

    @property
    def refuted(self) -> bool:
        """Whether samples prove more than was promised."""
        return self.verdict == "refuted"


def claims(made: Sequence[Made]) -> tuple[ClaimRow, ...]:
    """The rows of every table that has the columns of a claim; its first column has the words."""
    found = []
    for figure in made:
        for table in figure.tables:
            if set(CLAIM_COLUMNS) <= set(table.columns):
                places = [list(table.columns).index(name) for name in CLAIM_COLUMNS]
                for row in table.rows:
                    certified, exact, audited, verdict = (_plain(row[k]) for k in places)
                    numbers = (str(row[0]), certified, exact, audited, verdict)
                    found.append(ClaimRow(*numbers, figure.name, table.unit))
    return tuple(found)


def render(made: Sequence[Made], found: Sequence[ClaimRow], scale: str) -> str:
    """The whole page."""
    shown = sorted(found, key=lambda claim: not claim.refuted)[:MOST_CLAIMS]
    return _template().render(
        figures=made,
        claims=[_claim_card(claim) for claim in shown],
        num_claims=len(found),
        certificates=[
            _certificate_card(figure.title, figure.certificate)
            for figure in made
            if figure.certificate is not None
        ],
        scale=scale,
        environment=_environment(made),
        seeds=_seeds(made),
    )


def image(drawing: bytes, pixels: bytes) -> str:
    """A data URL of the drawing (SVG), or of the pixels (PNG) where the drawing is too large."""
    kind, content = ("svg+xml", drawing) if len(drawing) <= LARGEST_DRAWING else ("png", pixels)
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"


def _claim_card(claim: ClaimRow) -> dict[str, Any]:
    """A claim with places, in percent, on an axis that begins at 0."""
    numbers = [claim.certified, claim.exact, claim.audited]
    right = 1.12 * max((x for x in numbers if x is not None and math.isfinite(x)), default=1.0)
    places = [None if x is None or not right else min(100.0, 100 * x / right) for x in numbers]
    named = zip(("certified_at", "exact_at", "audited_at"), places, strict=True)
    return claim._asdict() | {"refuted": claim.refuted} | dict(named)


def _environment(made: Sequence[Made]) -> dict[str, str]:
    revisions = sorted({_revision(figure.revision) for figure in made if figure.revision})
    return {
        "device": cache.device(),
        "random numbers": cache.generator(),
        "revision": ", ".join(revisions) or "not a clone",
        **cache.versions(),
    }


def _revision(name: str) -> str:
    digest, _, changed = name.partition("-")
    return f"{digest[:12]}{' with changes' if changed else ''}"


def _seeds(made: Sequence[Made]) -> Table:
    rows = [
        (figure.name, name, value)
        for figure in made
        for name, value in figure.config.items()
        if "seed" in name
    ]
    return Table("Seeds of every figure", ("figure", "setting", "value"), rows)


# --- certificates -----------------------------------------------------------------------------


def _certificate_card(title: str, certificate: Certificate) -> dict[str, Any]:
    """What the template needs; `title` is the title of the figure that has the certificate."""
    return {
        "title": title,
        "claim": certificate.claim,
        "unit": _unit(certificate),
        "numbers": _numbers(certificate),
        "meaning": [
            ("compared with", certificate.comparator),
            ("seen by", certificate.observer),
        ],
        "plan": _plan(certificate),
        "assumptions": [(a.statement, a.established) for a in certificate.assumptions],
        "warnings": certificate.warnings,
        "text": str(certificate),
    }


def _unit(certificate: Certificate) -> str:
    if certificate.order is None:
        return f"the ε of (ε, δ) at δ = {certificate.delta:g}"
    return f"a Rényi divergence of order {certificate.order:g}"


def _numbers(certificate: Certificate) -> list[tuple[str, float, str]]:
    """(symbol, bound, what it bounds)."""
    p = certificate.adaptivity
    seen = "1 release" if p == 1 else f"{p} releases"
    found = [
        ("ε_dp", certificate.eps_dp, "for a record that stays, in one release"),
        ("ε_dd", certificate.eps_dd, "for a deleted record, if the requester saw no release"),
    ]
    if p:
        words = f"for a deleted record, if the requester saw {seen} before"
        found.append((f"ε_dd, {seen} seen", certificate.eps_dd_adaptive, words))
    words = f"over chance, of any test for a deleted record{f', {seen} seen' if p else ''}"
    found.append(("advantage", certificate.advantage_bound, words))
    if certificate.risk_bound is not None:
        words = "mean excess risk of any release on its own records"
        found.append(("risk", certificate.risk_bound, words))
    return found


def _plan(certificate: Certificate) -> list[tuple[str, str]]:
    plan = certificate.plan
    return [
        ("loss", f"{plan.problem.loss.name}, λ = {plan.problem.l2:g}"),
        ("accountant", f"{plan.accountant}, {plan.kind}"),
        ("records", f"n = {plan.n:,}, d = {plan.dim:,}"),
        ("noise", f"σ² = {plan.noise_variance:.4g}, step size η = {plan.step_size:.4g}"),
        ("steps", f"K_L = {plan.learn_steps:,} to learn, K_U = {plan.delete_steps:,} per request"),
    ]


# --- text ---------------------------------------------------------------------------------------


def _plain(value: Any) -> Any:
    """A Python value for a NumPy one; None for NaN."""
    value = value.item() if hasattr(value, "item") else value
    return None if isinstance(value, float) and math.isnan(value) else value


def _text(value: Any) -> str:
    """Floats with four significant digits or all digits before the point; a dash for None."""
    value = _plain(value)
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        if not math.isfinite(value):
            return "∞" if value > 0 else "−∞"
        return f"{value:,.0f}" if 1e3 <= abs(value) < 1e7 else f"{value:.4g}"
    if isinstance(value, list | tuple):
        return ", ".join(map(_text, value)) or "none"
    return str(value)


def _order(value: Any) -> str:
    """What a column is sorted by: numbers as JavaScript reads them, empty for no value."""
    value = _plain(value)
    if value is None:
        return ""
    if isinstance(value, bool | int | float):
        number = float(value)
        return repr(number) if math.isfinite(number) else f"{'-' * (number < 0)}Infinity"
    return str(value)


def _is_numeric(table: Table, column: int) -> bool:
    cells = [_plain(row[column]) for row in table.rows]
    return all(cell is None or isinstance(cell, int | float) for cell in cells)


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 3600 else f"{seconds / 3600:.1f} h"


def _template() -> jinja2.Template:
    here = jinja2.FileSystemLoader(Path(__file__).parent / "templates")
    made = jinja2.Environment(
        loader=here,
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {"text": _text, "order": _order, "duration": _duration}
    made.tests["numeric"] = _is_numeric
    return made.get_template("page.html.j2")
