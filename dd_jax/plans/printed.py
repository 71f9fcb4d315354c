"""A certificate as it is printed for people."""

import math
import textwrap
from typing import Any

_ABOUT = {"transcript": "what happened", "promise": "what a plan promises"}


def certificate_text(certificate: Any) -> str:
    """The certificate for people."""
    lines = [
        *_wrapped("", f"Certificate of {_ABOUT[certificate.basis]}: {certificate.claim}."),
        *(line for label, text in _rows(certificate) for line in _wrapped(f"  {label:<15} ", text)),
        "  assumptions",
        *(line for a in certificate.assumptions for line in _wrapped("    - ", str(a))),
    ]
    if certificate.warnings:
        lines.append("  warnings")
        lines += [line for text in certificate.warnings for line in _wrapped("    ! ", text)]
    return "\n".join(lines)


def _wrapped(lead: str, text: str) -> list[str]:
    """Lines of at most 100 characters that hang below the lead."""
    return textwrap.wrap(text, 100, initial_indent=lead, subsequent_indent=" " * max(len(lead), 4))


def _rows(certificate: Any):
    unit = (
        f"Rényi, order {certificate.order:g}"
        if certificate.order is not None
        else f"ε at δ = {_shown(certificate.delta)}"
    )
    plan, p, i = certificate.plan, certificate.adaptivity, certificate.request
    yield "made from", _source(certificate)
    yield "compared with", certificate.comparator
    yield "observer", certificate.observer
    yield (
        "plan",
        f"{plan.kind}, accountant {plan.accountant}, loss {plan.problem.loss.name}, n = {plan.n}, "
        f"d = {plan.dim}, η = {plan.step_size:.6g}, σ² = {plan.noise_variance:.6g}, start variance "
        f"{plan.init_variance:.6g}, K_L = {plan.learn_steps:,}, K_U = {plan.delete_steps:,}",
    )
    yield "unit", unit
    yield (
        "records stay",
        f"one release {certificate.eps_dp:.6g}; after {p} seen {certificate.eps_dp_adaptive:.6g}; "
        f"all {i + 1} releases jointly {certificate.eps_dp_joint:.6g}",
    )
    yield (
        "records go",
        f"nothing seen {certificate.eps_dd:.6g}; {p} seen {certificate.eps_dd_adaptive:.6g}; at "
        f"request {i} {certificate.eps_dd_request:.6g}; {certificate.records} "
        f"row{'s' * (certificate.records != 1)} jointly "
        f"{certificate.eps_dd_records:.6g}",
    )
    gaussian = [f"advantage ≤ {certificate.advantage_bound:.6g}"]
    if certificate.mu_dd_adaptive is not None:
        gaussian.insert(0, f"μ = {certificate.mu_dd_adaptive:.6g}")
    yield "inference", ", ".join(gaussian)
    if certificate.epsilon_dd is not None and certificate.order is not None:
        yield (
            "(ε, δ)",
            f"δ = {_shown(certificate.delta)}: stays {_shown(certificate.epsilon_dp)}, goes "
            f"{_shown(certificate.epsilon_dd)}, with {p} seen "
            f"{_shown(certificate.epsilon_dd_adaptive)}",
        )
    if certificate.risk_bound is not None:
        paper = certificate.risk_bound_paper
        yield (
            "excess risk",
            f"every release ≤ {certificate.risk_bound:.6g}; learned "
            f"{_shown(certificate.risk_bound_learned)}; after request {i} "
            f"{_shown(certificate.risk_bound_request)}"
            + ("" if paper is None or math.isinf(paper) else f"; the paper's bound {paper:.6g}"),
        )
    if p:
        sound = "; it holds for convex losses" if plan.kind == "convex" else ""
        yield (
            "as stated",
            f"the paper's reduction says {certificate.eps_dd_reduction_as_stated:.6g} (false in "
            f"general, erratum E2{sound})",
        )


def _source(certificate: Any) -> str:
    """Whether the history is supposed or was read from a transcript, and who says so."""
    last = f"request {certificate.request}"
    if certificate.basis == "transcript":
        seen = ", ".join(map(str, certificate.observed or ())) or "none"
        source = (
            f"the transcript of a run: {last} replaced row {certificate.row}; releases shown "
            f"before it: {seen}"
        )
    else:
        source = f"a supposed history, no run: {last} deletes the record"
    if certificate.first_inserted:
        source += f"; by the user's word it first came in with request {certificate.first_inserted}"
    if certificate.loaded:
        source += "; read from a file, whose word this is"
    return source


def _shown(value: float | None) -> str:
    """A number in six digits; a dash for one that is not there."""
    return "-" if value is None else f"{value:.6g}"
