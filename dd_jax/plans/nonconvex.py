"""Plans for bounded losses that need not be convex, by closeness to the Gibbs law."""

from typing import Literal

from dd_jax import checks
from dd_jax.errors import CertificateRefused, InputError
from dd_jax.guarantees import nonconvex
from dd_jax.guarantees.convex import Descent, privacy_lipschitz
from dd_jax.plans import conditions
from dd_jax.plans.nonconvex_numbers import bounded
from dd_jax.plans.numbers import check_unit, whole
from dd_jax.plans.plan import Plan
from dd_jax.plans.settings import FORMULAS, Dtype


def plan_nonconvex(
    problem,
    *,
    n: int,
    dim: int,
    order: float,
    eps_dp: float,
    eps_dd: float,
    edits_per_request: int = 1,
    form: Literal["sharp", "refined", "tuned", "paper"] = "sharp",
    step_size: float | None = None,
    noise_variance: float | None = None,
    dtype: Dtype = "float32",
) -> Plan:
    """Settings that meet privacy and deletion budgets, for a bounded loss that need not be convex.

    More noise means fewer steps, fewer steps mean less noise for privacy: σ² is the least that fits
    (one root, found by bisection in log σ²), η and the steps follow from it. The budget eps_dp is
    for each run of learning or deletion; a record that stays through i requests is in i + 1 of them
    (erratum E9). Step counts beyond reach are computed all the same, and the certificate says what
    they cost.

    Guarantee: what `Plan.certificate` says.
    Assumes: loss L-Lipschitz, β-smooth and bounded by b, not clipped.
    `thm:deletion_accuracy_nonconvex` with errata E4, E5, E11.

    Args:
        problem: a `dd_jax.Problem` or its constants.
        n: number of records. dim: d, number of parameters.
        order: q. eps_dp: Rényi budget of one run. eps_dd: divergence from the Gibbs law.
        edits_per_request: r.
        form: "paper" follows the theorem, the others keep more of its proof; "sharp" the most.
        step_size: η; needs `noise_variance` too. The one with the fewest steps by default.
        noise_variance: a σ² of your own; refused where it breaks the privacy budget.
        dtype: the floating type that is run, "float32" or "float64".
    """
    problem = problem.constants
    if form not in FORMULAS["nonconvex"]:
        raise InputError(
            f"form = {form!r} is not known; give one of {', '.join(FORMULAS['nonconvex'])}."
        )
    conditions.require_nonconvex(problem)
    if order is None:
        raise InputError(
            "non-convex budgets are Rényi divergences, and no order was given; give order, for "
            "example 2."
        )
    check_unit(order, None, form)
    budgets = (float(checks.positive("eps_dp", eps_dp)), float(checks.positive("eps_dd", eps_dd)))
    if noise_variance is None and step_size is not None:
        raise InputError(
            f"step_size = {step_size} needs a noise_variance with it, as each decides the other's "
            f"range; give both, or neither to have them chosen."
        )
    proof, case = nonconvex.PROOFS[form], bounded(problem, order, n, dim, edits_per_request)
    if noise_variance is None:
        found = proof.noise(case, *budgets)
    else:
        found = proof.settings(case, noise_variance, budgets[1], step_size)
        _require_privacy(case, found, budgets[0])
    return Plan(
        problem=problem,
        n=n,
        dim=dim,
        order=float(order),
        delta=None,
        step_size=found.step_size,
        noise_variance=found.noise_variance,
        init_variance=found.noise_variance / problem.l2,
        learn_steps=max(1, whole("learn_steps", found.learn_steps)),
        delete_steps=max(1, whole("delete_steps", found.delete_steps)),
        edits_per_request=edits_per_request,
        kind="nonconvex",
        accountant=form,
        eps_dp_asked=budgets[0],
        eps_dd_asked=budgets[1],
        dtype=dtype,
    )


def _require_privacy(problem, found, eps_dp) -> None:
    """Refuse a noise of the user's own that breaks the privacy budget."""
    steps = max(1.0, found.learn_steps, found.delete_steps)
    run = Descent(
        problem.order,
        problem.lipschitz,
        problem.l2,
        problem.smoothness,
        found.noise_variance,
        problem.n,
        found.step_size,
    )
    per_run = privacy_lipschitz(run, steps)
    if per_run > eps_dp * (1 + 1e-12):
        raise CertificateRefused(
            f"noise_variance = {found.noise_variance:g} breaks the privacy budget: a run of "
            f"{steps:g} steps has eps_dp = {per_run:g}, above {eps_dp:g}; give no noise_variance "
            f"to have the least one chosen, or a larger one."
        )
