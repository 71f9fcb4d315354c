"""`Plan`: the settings of a run, the problem they are for, and the budgets that were asked for."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from dd_jax.constants import DataCheck, LossConstants, ProblemConstants
from dd_jax.errors import CertificateRefused, InputError
from dd_jax.guarantees import checks
from dd_jax.plans import serialise
from dd_jax.plans.conditions import Protects
from dd_jax.plans.numbers import Question, check_unit

if TYPE_CHECKING:
    from dd_jax.plans.certificate import Certificate

Kind = Literal["convex", "nonconvex", "composition"]

FORMULAS = {
    "convex": ("optimal", "unrelaxed", "paper"),
    "nonconvex": ("sharp", "refined", "tuned", "paper"),
    "composition": ("composition",),
}


@dataclass(frozen=True)
class Plan:
    """Settings of noisy gradient descent that `dd_jax.noisy_gd.mechanism` runs.

    A plan may be altered with `dataclasses.replace`: `certificate` then says what the altered
    settings give, or refuses.

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
    dtype: str = "float32"

    @property
    def fingerprint(self):
        import hashlib
        d = hashlib.sha256(self.to_json().encode()).digest()
        return tuple(int.from_bytes(d[4*i:4*i+4], "big") for i in range(4))

    def __post_init__(self):
        _check_formulas(self.kind, self.accountant)
        check_unit(self.order, self.delta, self.accountant)
        if self.kind != "convex" and self.protects != "record":
            raise CertificateRefused(
                f"protects = {self.protects!r} has no certificate for {self.kind} plans; give "
                f"protects='record', or use plan_convex for a convex loss."
            )
        for name in ("step_size", "noise_variance"):
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

    def certificate(
        self,
        adaptivity: int = 0,
        request: int = 1,
        *,
        inserted: int = 0,
        observed: tuple[int, ...] | None = None,
        records: int | None = None,
        delta: float | None = None,
        problem=None,
        data_check: DataCheck | None = None,
        reduction: Literal["sound", "as_stated"] = "sound",
    ) -> "Certificate":
        """What this plan's settings guarantee, computed from them and never from the budgets.

        Args:
            adaptivity: p, how many releases the requester saw between the record's insertion and
                its deletion (or up to now, for a record that stays).
            request: i ≥ 1, the request that deletes the record; for a record that stays, the number
                of requests served.
            inserted: 0 for a record of the initial database, or the request that brought it in.
            observed: which releases were seen, where that is known for all of them; release 0
                follows learning. They decide p; a larger `adaptivity` is refused.
            records: rows judged jointly in `eps_dd_records`; `edits_per_request` unless given.
            delta: also convert to (ε, δ).
            problem: the problem that is run; refused if it is not the plan's.
            data_check: what `dd_jax.losses.check_data` returned for the database that is run.
            reduction: "as_stated" asks for `thm:reduction` as the paper states it; refused where
                the sound bound is larger (erratum E2).

        Raises:
            CertificateRefused: the plan does not meet the conditions of its theorems.
        """
        from dd_jax.plans.issue import issue  # issue needs Plan, so Plan cannot import it above

        if problem is not None and problem.constants != self.problem:
            raise CertificateRefused(
                f"the plan was made for {self.problem}, not for {problem.constants}; "
                f"plan again for the problem that is run."
            )
        question = Question.make(self, adaptivity, request, inserted, observed, records, delta)
        return issue(self, question, data_check, reduction)

    def to_json(self) -> str:
        """One JSON object with the fields above; `from_json` reads it back."""
        return serialise.to_json(self)

    @classmethod
    def from_json(cls, text: str) -> "Plan":
        """The plan that `to_json` wrote."""
        found = serialise.parse(text, cls)
        problem = serialise.parse(found.pop("problem"), ProblemConstants)
        loss = LossConstants(**serialise.parse(problem.pop("loss"), LossConstants))
        return cls(problem=ProblemConstants(loss=loss, **problem), **found)


def _check_formulas(kind, accountant):
    if kind not in FORMULAS:
        raise InputError(f"kind = {kind!r} is not known; give one of {', '.join(FORMULAS)}.")
    if accountant not in FORMULAS[kind]:
        raise InputError(
            f"accountant = {accountant!r} is not known for {kind} plans; "
            f"give one of {', '.join(FORMULAS[kind])}."
        )
