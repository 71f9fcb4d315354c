"""Which certificate a problem may have: the constants it needs, and the cases that are refused."""

import math
from typing import Literal

from dd_jax.constants import ProblemConstants
from dd_jax.errors import CertificateRefused, InputError

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
            f"monotone (erratum E1); {_unclip(problem)}, or use plan_composition, which holds for "
            f"every clipped loss."
        )
    require_constant(problem, "smoothness")
    sensitivity(problem, protects)


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


def _unclip(problem: ProblemConstants) -> str:
    if problem.loss.lipschitz is None:
        return "drop the clip norm"
    return f"give clip_norm ≥ L = {problem.loss.lipschitz:g}, where clipping never acts"
