"""Which certificate a problem may have: the constants it needs, and the cases that are refused."""

import math
from typing import Literal

from dd_jax.constants import LossConstants, ProblemConstants
from dd_jax.errors import CertificateRefused, InputError
from dd_jax.guarantees import clipping

Protects = Literal["record", "label"]

_NAMES = {
    "lipschitz": "L, the Lipschitz constant of one record's loss",
    "smoothness": "β, the smoothness of one record's loss",
    "bound": "b, a bound on the absolute value of one record's loss",
    "label_sensitivity": "the sensitivity of one record's gradient to its label",
}


def require_convex(problem: ProblemConstants, protects: Protects) -> None:
    """Refuse a convex certificate unless the field is a convex, smooth loss's gradient.

    Erratum E1: clipping keeps convexity for single-index losses only, although the lemma on
    clipping and convexity (`lem:clipping_retains_convexity`) says more. It always keeps β, by the
    lemma on clipping and smoothness (`lem:clipping_retains_smoothness`).
    """
    loss = problem.loss
    if not loss.convex:
        raise CertificateRefused(
            f"{loss.name} is not convex, so a convex certificate would be false for it; use "
            f"plan_nonconvex if it is bounded, or plan_composition."
        )
    if problem.clips and not loss.single_index:
        raise CertificateRefused(
            f"clipping {loss.name} to norm {problem.clip_norm:g} leaves no convex certificate: the "
            f"loss is not a single-index GLM, so the clipped field may be neither a gradient nor "
            f"monotone (erratum E1); {_unclip(problem)}, plan Noisy-GD with l2 above "
            f"β/8{_eighth(loss)}, or use plan_composition, which holds for every clipped loss."
        )
    require_constant(problem, "smoothness")
    sensitivity(problem, protects)


def only_contracts(problem: ProblemConstants) -> bool:
    """Whether clipping leaves no gradient, but may leave a contraction (`guarantees.clipping`)."""
    loss = problem.loss
    return problem.clips and loss.convex and not loss.single_index and loss.smoothness is not None


def require_contraction(
    problem: ProblemConstants, protects: Protects, accountant: str, varies: bool
) -> None:
    """Refuse a plan of convex kind unless its steps contract.

    Beside the losses of `require_convex` these are the clipped ones that are not single-index, if
    λ > β/8 (erratum E1), by the one accountant that asks for a contraction and no more.
    """
    if not only_contracts(problem) or 8 * problem.l2 <= require_constant(problem, "smoothness"):
        require_convex(problem, protects)
    elif accountant != "optimal" or varies:
        raise CertificateRefused(
            f"clipping {problem.loss.name} to norm {problem.clip_norm:g} leaves a contraction and "
            f"no gradient (erratum E1), for which accountant={accountant!r} or steps that vary "
            f"have no proof; use accountant='optimal' with one step size, or plan_composition."
        )


def constants_of_steps(problem: ProblemConstants, step_size: float) -> tuple[float, float]:
    """λ and β as the bounds of convex plans take them.

    Where clipping leaves a contraction and no gradient, they are those of the steps with the same
    contraction (`guarantees.clipping`).
    """
    smoothness = require_constant(problem, "smoothness")
    if only_contracts(problem):
        return clipping.contraction_rate(step_size, problem.l2, smoothness), 0.0
    return problem.l2, smoothness


def require_nonconvex(problem: ProblemConstants) -> None:
    """Refuse the Gibbs-law certificate unless the loss itself is bounded, Lipschitz and smooth.

    Erratum E1: a clipped loss need not stay bounded, although the lemma on clipping and boundedness
    (`lem:clipping_retains_boundedness`) says so.
    """
    loss = problem.loss
    if loss.bound is None:
        raise CertificateRefused(
            f"{loss.name} has no bound b on |loss|, which the non-convex certificate needs (ReLU "
            f"networks, cross-entropy and squared error have none); use a bounded loss such as "
            f"tanh_margin or bounded_network, or plan_composition."
        )
    if problem.clips:
        raise CertificateRefused(
            f"clipping {loss.name} to norm {problem.clip_norm:g} leaves no non-convex certificate: "
            f"the clipped field is not the gradient of a bounded loss, even in one dimension "
            f"(erratum E1); {_unclip(problem)}, or use plan_composition."
        )
    require_constant(problem, "smoothness")
    sensitivity(problem, "record")


def require_constant(problem: ProblemConstants, name: str) -> float:
    """A constant of the loss, refused where it is not known."""
    value = getattr(problem.loss, name)
    if value is None:
        raise CertificateRefused(
            f"{name} of {problem.loss.name} is not known: the certificate needs {_NAMES[name]}; "
            f"declare {name}, or use a loss of the catalogue that has it."
        )
    return value


def sensitivity(problem: ProblemConstants, protects: Protects) -> float:
    """Half of how far replacing one record (or its label alone) can move its gradient: L.

    Clipping projects on a ball, which never increases a difference, so a clipped gradient has the
    smaller of the two.
    """
    if protects == "record":
        value = problem.lipschitz
        if value is None:
            require_constant(problem, "lipschitz")
    elif protects == "label":
        spread = require_constant(problem, "label_sensitivity")
        value = min(spread / 2, problem.lipschitz or math.inf)
    else:
        raise InputError(f"protects = {protects!r} is not known; give 'record' or 'label'.")
    if not value:
        raise InputError(
            f"the gradient of {problem.loss.name} does not depend on the {protects} (L = 0), so "
            f"there is nothing to protect; give a positive Lipschitz constant."
        )
    return value


def risk_lipschitz(problem: ProblemConstants, protects: Protects) -> float:
    """The L of risk bounds: ‖∇ℓ(0; x)‖ is at most L, and an edit moves a gradient by at most 2L."""
    if problem.lipschitz is not None:
        return problem.lipschitz
    return sensitivity(problem, protects)


def _eighth(loss: LossConstants) -> str:
    return "" if loss.smoothness is None else f" = {loss.smoothness / 8:g}"


def _unclip(problem: ProblemConstants) -> str:
    if problem.loss.lipschitz is None:
        return "drop the clip norm"
    return f"give clip_norm ≥ L = {problem.loss.lipschitz:g}, where clipping never acts"
