"""`Certificate`: what a plan guarantees, to whom, against whom, and on what grounds."""

from dataclasses import dataclass
from typing import Literal

from dd_jax.constants import DataCheck
from dd_jax.errors import InputError
from dd_jax.plans import serialise
from dd_jax.plans.plan import Plan

Grounds = Literal[
    "proved for this loss",
    "declared by the user",
    "checked on the data",
    "checked on the plan",
    "by construction",
    "required of the deployment",
]


@dataclass(frozen=True)
class Assumption:
    """One thing that a certificate relies on, and how it was established."""

    statement: str
    established: Grounds

    def __str__(self):
        return f"{self.statement} [{self.established}]"


@dataclass(frozen=True)
class Certificate:
    """Numbers that hold for a plan's settings, with their meaning; made by `Plan.certificate`.

    Every eps is a Rényi divergence of `order`; where `order` is None it is the ε of (ε, delta).

    Attributes:
        plan: the settings that the numbers were computed from.
        claim: the guarantee in one sentence.
        comparator: what a release is compared with, and in which direction.
        observer: who looks, and at what.
        adaptivity, request, inserted, observed: what was asked; see `Plan.certificate`.
        order, delta: the unit of the numbers.
        eps_dp: a record that stays, one release, non-adaptive requests. Convex: whatever the
            history. Non-convex and composition: through `request` requests, for any requester.
        eps_dp_run: one run of learning or deletion, from any fixed start.
        eps_dp_adaptive: a record that stays, the next release, when p releases were seen.
        eps_dp_request: the same at this very request: the smallest bound that is known to hold.
        eps_dp_joint: a record that stays, all `request` + 1 releases together, any requester.
        eps_dd: a deleted record, non-adaptive requests, after this and every later request.
        eps_dd_adaptive: a deleted record when p releases were seen.
        eps_dd_request: the same at this very request: the smallest bound that is known to hold.
        eps_dd_records: `records` rows deleted at once, judged jointly.
        records: the number of rows of `eps_dd_records`.
        mu_dp, mu_dd, mu_dd_adaptive: the same as Gaussian DP, or None where that is not proved.
        epsilon_dp, epsilon_dd, epsilon_dd_adaptive: eps_dp, eps_dd and eps_dd_adaptive as the ε of
            (ε, delta); one-sided for deletion from the Gibbs law. None unless delta is given.
        advantage_bound: what any test can gain on guessing whether the deleted record was ever
            there, against a requester of this adaptivity.
        eps_dd_reduction_as_stated: `thm:reduction` as the paper states it. False in general
            (erratum E2); only for comparison.
        risk_bound: excess empirical risk of every released model; None where no bound is known.
        risk_bound_learned, risk_bound_request: of the learned model, and after this request.
        risk_bound_paper: the paper's bound, where its conditions are met.
        assumptions: everything that the numbers rely on, with how each was established.
        warnings: what a reader should know before relying on them.
    """

    plan: Plan
    claim: str
    comparator: str
    observer: str
    adaptivity: int
    request: int
    inserted: int
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

    def to_json(self) -> str:
        """One JSON object with the fields above; `from_json` reads it back."""
        return serialise.to_json(self)

    @classmethod
    def from_json(cls, text: str) -> "Certificate":
        """The certificate that `to_json` wrote. Nothing is recomputed: see `recomputed`."""
        found = serialise.parse(text, cls)
        found["plan"] = Plan.from_json(found["plan"])
        found["assumptions"] = tuple(
            Assumption(**serialise.parse(a, Assumption)) for a in found["assumptions"]
        )
        found["warnings"] = tuple(found["warnings"])
        if found["observed"] is not None:
            found["observed"] = tuple(found["observed"])
        return cls(**found)

    def recomputed(self, data_check: DataCheck | None = None) -> "Certificate":
        """The certificate of the same plan for the same question, computed again.

        Equal to this one if this one is genuine and was issued with the same data check; for a
        file from elsewhere use `is_genuine`.
        """
        return self.plan.certificate(
            self.adaptivity,
            self.request,
            inserted=self.inserted,
            observed=self.observed,
            records=self.records,
            delta=self.delta,
            data_check=data_check,
        )

    def is_genuine(self, data_check: DataCheck | None = None) -> bool:
        """Whether `Plan.certificate` issues just this certificate.

        Without a data check, a statement that the data were checked is taken on trust.
        """
        claimed = DataCheck(self.plan.n, self.plan.problem.loss.domain)
        candidates = (None, claimed) if data_check is None else (data_check,)
        try:
            return any(self == self.recomputed(check) for check in candidates)
        except InputError:  # refused, so it was never issued
            return False

    def __str__(self):
        from dd_jax.plans.printed import certificate_text

        return certificate_text(self)
