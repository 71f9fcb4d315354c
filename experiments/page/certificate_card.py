"""A certificate as the page shows it: the claim, its numbers in words, and what it rests on."""

from typing import Any

from dd_jax.plans import Certificate


def card(title: str, certificate: Certificate) -> dict[str, Any]:
    """What the template needs; `title` is that of the figure which runs under the certificate."""
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
