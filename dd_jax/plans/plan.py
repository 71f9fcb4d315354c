"""`Plan`: the settings of a run, the problem they are for, and the budgets that were asked for."""

import hashlib
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, get_args

from dd_jax.constants import ProblemConstants
from dd_jax.errors import CertificateRefused, InputError
from dd_jax.guarantees import checks
from dd_jax.plans import serialise
from dd_jax.plans.conditions import Protects
from dd_jax.plans.numbers import Question, check_unit

if TYPE_CHECKING:
    from dd_jax.plans.certificate import Certificate

Kind = Literal["convex", "nonconvex", "composition"]
Dtype = Literal["float32", "float64"]

FORMULAS = {
    "convex": ("optimal", "unrelaxed", "paper"),
    "nonconvex": ("sharp", "refined", "tuned", "paper"),
    "composition": ("composition",),
}


@dataclass(frozen=True)
class Plan:
    """Settings of noisy gradient descent that `dd_jax.noisy_gd.mechanism` runs.

    A plan may be altered with `dataclasses.replace`: `certificate` and `certify` then say what the
    altered settings give, or refuse.

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

    def certificate(
        self,
        adaptivity: int = 0,
        request: int = 1,
        *,
        first_inserted: int = 0,
        observed: tuple[int, ...] | None = None,
        records: int | None = None,
        delta: float | None = None,
        problem=None,
        reduction: Literal["sound", "as_stated"] = "sound",
    ) -> "Certificate":
        """What this plan promises for a supposed history; `certify` is about what happened.

        Computed from the plan's settings and never from the budgets. A record's clock runs from its
        first insertion to its last deletion, whatever came between: a record that left and came
        back has the `first_inserted` of its first stay and the `request` that ended its last one.

        Args:
            adaptivity: p, how many releases the requester saw between the record's first insertion
                and its last deletion (or up to now, for a record that stays). For non-convex plans
                every release seen since the start counts, also before the insertion.
            request: i ≥ 1, the LAST request that deletes the record; for a record that stays, the
                number of requests served.
            first_inserted: 0 for a record of the initial database, or the request that FIRST
                brought it in.
            observed: which releases were seen, where that is known for all of them; release 0
                follows learning. They decide p; a larger `adaptivity` is refused.
            records: rows judged jointly in `eps_dd_records`; `edits_per_request` unless given.
            delta: also convert to (ε, δ).
            problem: the problem that is run; refused if it is not the plan's.
            reduction: "as_stated" asks for `thm:reduction` as the paper states it; refused where
                the sound bound is larger (erratum E2).

        Raises:
            CertificateRefused: the plan does not meet the conditions of its theorems.
        """
        from dd_jax.plans.issue import issue  # issue needs Plan, so Plan cannot import it above

        plan = self if problem is None else self._of(problem)
        question = Question.make(
            plan, adaptivity, request, first_inserted, observed, records, delta
        )
        return issue(plan, question, reduction)

    def certify(
        self,
        transcripts,
        *,
        request: int,
        row: int,
        first_inserted: int | None = None,
        records: int | None = None,
        delta: float | None = None,
        problem=None,
    ) -> "Certificate":
        """The certificate of what happened: that this request deleted the record of this row.

        The transcripts say which releases the requester was shown, that every record and edit was
        in the domain, and that the row was really replaced.

        Args:
            transcripts: the transcript of the interaction, or those of `dd_jax.drive` and the
                `dd_jax.resume`s after it, in order and from the start.
            request: the last request that deletes the record, counted from 1 over all transcripts.
            row: the row that it was in.
            first_inserted: the request that first brought the record in. Unless given it is 0, the
                safe choice: a transcript does not hold the initial database, and so cannot exclude
                that the record was in it.
            records: rows judged jointly in `eps_dd_records`; unless given those of this request, or
                1 where `first_inserted` is given, which is about one row.
            delta: also convert to (ε, δ).
            problem: the problem that was run; refused if it is not the plan's.

        Raises:
            CertificateRefused: the transcripts are not of this plan, its n or one interaction since
                the start; the request is not among them, does not name the row, or left it as it
                was; a record was outside the domain; a plan that protects labels only saw features
                change; or the plan does not meet the conditions of its theorems.
        """
        from dd_jax.plans.history import read_deletion
        from dd_jax.plans.issue import issue

        plan = self if problem is None else self._of(problem)
        deletion = read_deletion(plan, transcripts, request, row, first_inserted)
        if records is None:
            records = 1 if deletion.first_inserted else deletion.rows
        question = Question.make(
            plan,
            0,
            request,
            deletion.first_inserted,
            deletion.observed,
            records,
            delta,
            int(row),
            deletion.rewritten,
        )
        return issue(plan, question)

    def to_json(self) -> str:
        """One JSON object with the fields above; `from_json` reads it back."""
        return serialise.to_json(self)

    @classmethod
    def from_json(cls, text: str, problem=None) -> "Plan":
        """The plan that `to_json` wrote; what a file says is a claim.

        With a problem, the constants must be that problem's own. Without one they count as
        declared, whatever the file says of proofs.

        Raises:
            InputError: not the text of a plan, or a field of another type.
            CertificateRefused: the plan is for another problem.
        """
        plan = serialise.read(cls, text)
        if problem is None:
            return replace(plan, problem=plan.problem.declared)
        return plan._of(problem)

    def _of(self, problem) -> "Plan":
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
