"""`Settings`: the numbers of a run, its problem, and the budgets that were asked for."""

import hashlib
import math
from dataclasses import dataclass, replace
from typing import Literal, Self, get_args

from dd_jax import checks
from dd_jax.constants import ProblemConstants
from dd_jax.errors import CertificateRefused, InputError
from dd_jax.plans import serialise
from dd_jax.plans.conditions import Protects
from dd_jax.plans.numbers import check_unit

Kind = Literal["convex", "nonconvex", "composition"]
Dtype = Literal["float32", "float64"]

FORMULAS = {
    "convex": ("optimal", "unrelaxed", "paper"),
    "nonconvex": ("sharp", "refined", "tuned", "paper"),
    "composition": ("composition",),
}


@dataclass(frozen=True)
class Settings:
    """The fields of a `Plan`, checked; what its certificates are computed from.

    Attributes:
        problem: the constants of the problem that the plan is for.
        n: number of records, fixed.
        dim: d, number of parameters.
        order: q of the Rényi budgets, or None for budgets in (ε, δ).
        delta: δ of the budgets in (ε, δ), or None for Rényi budgets.
        step_size: η.
        noise_variance: σ²; one step adds N(0, 2ησ² I).
        init_variance: variance of the Gaussian start N(0, v₀ I).
        learn_steps: K_L.
        delete_steps: K_U.
        edits_per_request: r, the most records that one request replaces.
        kind: which family of theorems certifies the plan.
        accountant: which formulas of that family.
        protects: "record", or "label" where edits and neighbours differ in labels only.
        eps_dp_asked: the privacy budget, in the plan's unit; the certificate does not rely on it.
        eps_dd_asked: the deletion budget, or None where none was asked for.
        risk_asked: the target excess risk, or None.
        dtype: the floating type that is run; a certificate is refused where its rounding matters.
    """

    problem: ProblemConstants
    n: int
    dim: int
    order: float | None
    delta: float | None
    step_size: float
    noise_variance: float
    init_variance: float
    learn_steps: int
    delete_steps: int
    edits_per_request: int
    kind: Kind
    accountant: str
    eps_dp_asked: float
    eps_dd_asked: float | None = None
    risk_asked: float | None = None
    protects: Protects = "record"
    dtype: Dtype = "float32"

    def __post_init__(self):
        _check_formulas(self.kind, self.accountant)
        for name, known in (("protects", Protects), ("dtype", Dtype)):
            if getattr(self, name) not in get_args(known):
                raise InputError(
                    f"{name} = {getattr(self, name)!r} is not known; give one of "
                    f"{', '.join(get_args(known))}."
                )
        check_unit(self.order, self.delta, self.accountant)
        if self.kind != "convex" and self.protects != "record":
            raise CertificateRefused(
                f"protects = {self.protects!r} has no certificate for {self.kind} plans; give "
                f"protects='record', or use plan_convex for a convex loss."
            )
        for name in ("step_size", "noise_variance", "eps_dp_asked"):
            self._set(name, float(checks.positive(name, getattr(self, name))))
        for name in ("order", "delta", "eps_dd_asked", "risk_asked"):
            if getattr(self, name) is not None:
                self._set(name, float(checks.positive(name, getattr(self, name))))
        init_variance = float(checks.nonnegative("init_variance", self.init_variance))
        self._set("init_variance", init_variance)
        if math.isinf(init_variance):
            raise InputError("init_variance = inf is not a variance; give a finite number ≥ 0.")
        for name in ("n", "dim", "edits_per_request"):
            self._set(name, int(checks.count(name, getattr(self, name))))
        for name in ("learn_steps", "delete_steps"):
            value = float(checks.steps(name, getattr(self, name)))
            if math.isinf(value):
                raise InputError(f"{name} = inf cannot be run; give a finite number of steps.")
            self._set(name, int(getattr(self, name)))

    def _set(self, name, value):
        object.__setattr__(self, name, value)

    @property
    def learn_gradients(self) -> int:
        """Gradients of one record that learning takes: n K_L."""
        return self.n * self.learn_steps

    @property
    def delete_gradients(self) -> int:
        """Gradients of one record that one request takes: n K_U."""
        return self.n * self.delete_steps

    @property
    def fingerprint(self) -> tuple[int, ...]:
        """Four whole numbers below 2³² that tell this plan from any other.

        They are the same for a plan and for its copy that was read from a file.
        """
        text = replace(self, problem=self.problem.declared).to_json()
        digest = hashlib.sha256(text.encode()).digest()
        return tuple(int.from_bytes(digest[4 * k : 4 * k + 4], "big") for k in range(4))

    def to_json(self) -> str:
        """One JSON object with the fields above; `from_json` reads it back."""
        return serialise.to_json(self)

    def of(self, problem) -> Self:
        """This plan with the constants of a problem, refused unless they are the plan's."""
        if problem.constants.declared != self.problem.declared:
            raise CertificateRefused(
                f"the plan was made for {self.problem}, not for {problem.constants}; "
                f"plan again for the problem that is run."
            )
        return replace(self, problem=problem.constants)


def _check_formulas(kind, accountant):
    if kind not in FORMULAS:
        raise InputError(f"kind = {kind!r} is not known; give one of {', '.join(FORMULAS)}.")
    if accountant not in FORMULAS[kind]:
        raise InputError(
            f"accountant = {accountant!r} is not known for {kind} plans; "
            f"give one of {', '.join(FORMULAS[kind])}."
        )
