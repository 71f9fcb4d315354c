"""`Plan`: the settings of a run. `Certificate`: what they guarantee, against whom, on what grounds.

A plan makes certificates and a certificate holds its plan, so both are in one module.
"""

from dataclasses import dataclass, field, replace
from typing import Literal

from dd_jax import checks
from dd_jax.errors import CertificateRefused, InputError
from dd_jax.plans import conditions, settings
from dd_jax.plans.certificate import (
    Assumption,
    Question,
    ask,
    certificate_fields,
    certificate_text,
)
from dd_jax.plans.history import read_deletion
from dd_jax.plans.settings import Settings

Basis = Literal["promise", "transcript"]


@dataclass(frozen=True)
class Plan(Settings):
    """Settings of noisy gradient descent that `dd_jax.noisy_gd.mechanism` runs.

    A plan may be altered with `dataclasses.replace`: `certificate` and `certify` then say what the
    altered settings give, or refuse. The fields are those of `Settings`.
    """

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
        first insertion to its last deletion, whatever happened in between: a record that left and
        came back has the `first_inserted` of its first stay and the `request` that ended its last
        one.

        Args:
            adaptivity: p, how many releases the requester saw between the record's first insertion
                and its last deletion (or up to now, for a record that stays). For non-convex plans
                every release seen since the start counts, also before the insertion.
            request: i ≥ 1, the LAST request that deletes the record; for a record that stays, the
                number of requests served.
            first_inserted: 0 for a record of the initial database, or the request that FIRST
                inserted it.
            observed: which releases were seen, where that is known for all of them; release 0
                follows learning. They decide p; a larger `adaptivity` is refused.
            records: rows judged jointly in `eps_dd_records`; `edits_per_request` unless given.
            delta: also convert to (ε, δ).
            problem: the problem that is run; refused if it is not the plan's.
            reduction: "as_stated" is the reduction theorem (`thm:reduction`) as the paper states
                it; refused where the sound bound is larger (erratum E2).

        Raises:
            CertificateRefused: the plan does not meet the conditions of its theorems.
        """
        plan = self if problem is None else self.of(problem)
        question = ask(
            plan,
            adaptivity=adaptivity,
            request=request,
            first_inserted=first_inserted,
            observed=observed,
            records=records,
            delta=delta,
        )
        return plan.answer(question, reduction)

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
            row: the row that the record was in.
            first_inserted: the request that first inserted the record. Unless given it is 0, the
                safe choice: a transcript does not hold the initial database, and so cannot exclude
                that the record was in it. (With batches: in a row of the same batch, as the
                assumptions say.)
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
        plan = self if problem is None else self.of(problem)
        deletion = read_deletion(plan, transcripts, request, row, first_inserted)
        if records is None:
            records = 1 if deletion.first_inserted else deletion.rows
        if deletion.batches > records:
            raise CertificateRefused(
                f"the record of row {row} was in rows of {deletion.batches} batches before, so it "
                f"counts as {deletion.batches} rows; give records={deletion.batches}, and read "
                f"eps_dd_records."
            )
        question = ask(
            plan,
            request=request,
            first_inserted=deletion.first_inserted,
            observed=deletion.observed,
            records=records,
            delta=delta,
            row=int(row),
            rewritten=deletion.rewritten,
        )
        return plan.answer(question)

    @checks.representable
    def answer(self, question: Question, reduction: str = "sound") -> "Certificate":
        """The certificate that answers a question; `certificate` and `certify` ask it."""
        return Certificate(plan=self, **certificate_fields(self, question, reduction))

    @classmethod
    def from_json(cls, text: str, problem=None) -> "Plan":
        """The plan that `to_json` wrote; what a file says is a claim.

        With a problem, the constants must be that problem's own. Without one they count as
        declared, whatever the file says of proofs.

        Raises:
            InputError: not the text of a plan, or a field of another type.
            CertificateRefused: the plan is for another problem.
        """
        plan = settings.read(cls, text)
        if problem is None:
            return replace(plan, problem=plan.problem.declared)
        return plan.of(problem)


@dataclass(frozen=True)
class Certificate:
    """Numbers that hold for a plan's settings, with their meaning.

    Made by `Plan.certify` from the transcript of what happened, or by `Plan.certificate` for a
    supposed history.

    Every eps is a Rényi divergence of `order`; where `order` is None it is the ε of (ε, delta).

    Attributes:
        plan: the settings that the numbers were computed from.
        basis: "transcript" for what happened, "promise" for a supposed history.
        row: the row that the transcript says was deleted; None for a promise.
        rewritten: the next request that changed that row; releases from it on are not covered.
        claim: the guarantee in one sentence.
        comparator: what a release is compared with, and in which direction.
        comparator_null: the same for eps_dd_null and eps_dd_null_adaptive.
        observer: who looks, and at what.
        adaptivity, request, first_inserted, observed: what was asked, or read from the transcript;
            see `Plan.certificate`.
        order, delta: the unit of the numbers.
        eps_dp: a record that stays, one release, non-adaptive requests. Convex: whatever the
            history. Non-convex and composition: through `request` requests, for any requester.
        eps_dp_run: one run of learning or deletion, from any fixed start.
        eps_dp_adaptive: a record that stays, the next release, when p releases were seen.
        eps_dp_request: the same at this request: the smallest bound that is known to hold.
        eps_dp_joint: a record that stays, all `request` + 1 releases together, any requester.
        eps_dd: a deleted record, non-adaptive requests, after this and every later request.
        eps_dd_adaptive: a deleted record when p releases were seen.
        eps_dd_request: the same at this request: the smallest bound that is known to hold.
        eps_dd_null, eps_dd_null_adaptive: eps_dd and eps_dd_adaptive against the run in which the
            row was empty, a quarter of them as divergences; None where there is no such reference.
            Telling two candidate records apart is bounded by the others, and by advantage_bound.
        eps_dd_records: `records` rows deleted at once, judged jointly.
        records: the number of rows of `eps_dd_records`.
        mu_dp, mu_dd, mu_dd_adaptive: the same as Gaussian DP, or None where that is not proved.
        epsilon_dp, epsilon_dd, epsilon_dd_adaptive: eps_dp, eps_dd and eps_dd_adaptive as the ε of
            (ε, delta); one-sided for deletion from the Gibbs law. None unless delta is given.
        advantage_bound: what any test can gain over guessing whether the deleted record was ever
            present, with a requester of this adaptivity.
        eps_dd_reduction_as_stated: the reduction theorem (`thm:reduction`) as the paper states it.
            False in general (erratum E2); only for comparison.
        risk_bound: excess empirical risk of every released model; None where no bound is known.
            Convex: for every requester. Non-convex: for a history in which no request depends on a
            release, as are risk_bound_request and risk_bound_paper.
        risk_bound_learned, risk_bound_request: of the learned model, and after this request.
        risk_bound_paper: the paper's bound, where its conditions are met.
        assumptions: everything that the numbers rely on, with how each was established.
        warnings: what a reader should know before relying on them.
        loaded: read from a file, so that what it says of a transcript is only the file's claim.
    """

    plan: Plan
    basis: Basis
    row: int | None
    rewritten: int | None
    claim: str
    comparator: str
    observer: str
    adaptivity: int
    request: int
    first_inserted: int
    observed: tuple[int, ...] | None
    order: float | None
    delta: float | None
    eps_dp: float
    eps_dp_run: float
    eps_dp_adaptive: float
    eps_dp_request: float
    eps_dp_joint: float
    eps_dd: float
    eps_dd_adaptive: float
    eps_dd_request: float
    eps_dd_records: float
    records: int
    mu_dp: float | None
    mu_dd: float | None
    mu_dd_adaptive: float | None
    epsilon_dp: float | None
    epsilon_dd: float | None
    epsilon_dd_adaptive: float | None
    advantage_bound: float
    eps_dd_reduction_as_stated: float
    risk_bound: float | None
    risk_bound_learned: float | None
    risk_bound_request: float | None
    risk_bound_paper: float | None
    assumptions: tuple[Assumption, ...]
    warnings: tuple[str, ...]
    eps_dd_null: float | None = field(default=None, metadata={"added": True})
    eps_dd_null_adaptive: float | None = field(default=None, metadata={"added": True})
    comparator_null: str | None = field(default=None, metadata={"added": True})
    loaded: bool = field(default=False, compare=False)

    def to_json(self) -> str:
        """One JSON object with the fields above; `from_json` reads it back."""
        return settings.to_json(self)

    @classmethod
    def from_json(cls, text: str, problem=None) -> "Certificate":
        """The certificate that `to_json` wrote; what a file says is a claim.

        Nothing is recomputed: `is_genuine` tells whether the numbers follow from the plan. With a
        problem, the plan's constants must be that problem's own. Without one they count as
        declared, here and in the assumptions, whatever the file says of proofs.

        Raises:
            InputError: not the text of a certificate, or a field of another type.
            CertificateRefused: the plan is for another problem.
        """
        claimed = settings.read(cls, text)
        plan = Plan.from_json(claimed.plan.to_json(), problem)
        claimed = replace(claimed, plan=plan, loaded=True)
        return replace(claimed, assumptions=claimed._believed_assumptions())

    def _believed_assumptions(self) -> tuple[Assumption, ...]:
        """The assumptions, called proved only where this library issues them as proved."""
        try:
            issued = self.recomputed().assumptions
        except InputError:
            issued = ()
        return tuple(
            replace(a, established="declared by the user")
            if a.established == "proved for this loss" and a not in issued
            else a
            for a in self.assumptions
        )

    def of_record(self, lipschitz: float) -> float:
        """eps_dd_null_adaptive of a record whose gradient is never longer than L_x = `lipschitz`.

        ε · (L_x/L)²; for a GLM L_x = ‖a‖ max|φ'|. For the curator alone: the number depends on the
        record, so whoever is shown it learns something about the record.
        """
        largest = conditions.sensitivity(self.plan.problem, self.plan.protects)
        own = float(checks.positive("lipschitz", lipschitz, most=largest))
        if self.eps_dd_null_adaptive is None or self.order is None or self.plan.exact:
            raise InputError(
                "this certificate has no Rényi number against the null record that scales with a "
                "record; plan a convex or composition run with order, in fast arithmetic."
            )
        return self.eps_dd_null_adaptive * (own / largest) ** 2

    def recomputed(self) -> "Certificate":
        """The certificate of the same plan for the same question, computed again.

        What a transcript established is taken over; `Plan.certify` reads it from the transcript.
        """
        asked = {name: getattr(self, name) for name in Question._fields}
        return self.plan.answer(ask(self.plan, **asked))

    def is_genuine(self, problem=None) -> bool:
        """Whether this library issues exactly this certificate for its plan and question.

        True means that every number and word follows from the plan and, with a problem, that the
        plan is for that problem. It does not mean that the history took place: to check that, give
        the transcript to `Plan.certify` and compare.
        """
        if problem is not None and problem.constants.declared != self.plan.problem.declared:
            return False
        try:
            return self == self.recomputed()
        except InputError:  # refused, so it was never issued
            return False

    def __str__(self):
        return certificate_text(self)
