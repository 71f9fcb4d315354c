"""The words of a certificate: claim, comparator, observer, assumptions and warnings."""

from dataclasses import dataclass
from typing import Literal

from dd_jax.plans import conditions
from dd_jax.plans.numbers import Numbers, Question
from dd_jax.plans.settings import Settings

# More gradients of single records than this are called beyond reach: 11 days at 1e9 a second.
BEYOND_REACH = 1e15

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


def claim(plan: Settings, question: Question, eps: dict[str, float]) -> str:
    """The deletion guarantee in one sentence."""
    thing = "label" if plan.protects == "label" else "record"
    deleted = (
        f"every deleted {thing}"
        if question.row is None
        else f"the {thing} that request {question.request} deleted from row {question.row}"
    )
    if plan.order is not None:
        bound = f"({plan.order:g}, {eps['eps_dd_adaptive']:.4g})-Rényi data deletion"
    else:
        bound = f"({eps['eps_dd_adaptive']:.4g}, {question.delta:g}) data deletion"
    return (
        f"{bound} of {deleted}, against a requester that saw "
        f"{_releases(question.adaptivity)} {_when(plan, question)}"
    )


def _when(plan: Settings, question: Question) -> str:
    """Which releases count: earlier ones are free unless the Gibbs law is the comparator."""
    if question.first_inserted == 0 or plan.kind == "nonconvex":
        return "before the deletion"
    return "while the record was there"


def comparator(plan: Settings, question: Question) -> str:
    """What a release is compared with, and in which direction."""
    if plan.kind == "nonconvex" and question.adaptivity == 0:
        return (
            "the Gibbs law of the edited database, which never saw the record; one-sided, "
            "from the release to the Gibbs law"
        )
    return "the same run on the neighbouring database that never held the record; both ways"


def observer(plan: Settings, question: Question) -> str:
    """Who looks, and at what."""
    until = f" and before request {question.rewritten}" if question.rewritten else ""
    seen = f"every release made after the deletion{until}, and nothing earlier"
    if question.adaptivity:
        seen = (
            f"every release made after the deletion{until}, and {_releases(question.adaptivity)} "
            f"before it that the requester saw"
        )
    return f"{seen}; never intermediate iterates, old checkpoints or noise keys"


def _releases(number: int) -> str:
    return {0: "no release", 1: "1 release"}.get(number, f"{number} releases")


# --- assumptions ---------------------------------------------------------------------------------


def assumptions(plan: Settings, question: Question) -> tuple[Assumption, ...]:
    """Everything that the numbers rely on, with how each was established."""
    return (
        *_on_the_loss(plan),
        *_on_the_data(plan, question),
        *_on_the_history(plan, question),
        *_on_the_plan(plan),
        *_on_others(),
        *_on_arithmetic(plan, question),
    )


def _on_the_loss(plan: Settings):
    loss, problem = plan.problem.loss, plan.problem
    grounds: Grounds = (
        "proved for this loss" if loss.established == "proved" else "declared by the user"
    )
    if plan.kind == "convex":
        yield Assumption(f"{loss.name} is convex in the model", grounds)
    if plan.protects == "label":
        spread = f"{loss.label_sensitivity:g}"
        yield Assumption(
            f"replacing a label moves a record's gradient by at most {spread}", grounds
        )
        if problem.lipschitz is None:
            yield Assumption(f"‖∇ℓ(0; x)‖ ≤ {spread}/2, for the risk bound", grounds)
    if problem.clip_norm is not None and problem.lipschitz == problem.clip_norm:
        yield Assumption(
            f"record gradients are clipped to norm {problem.clip_norm:g}", "by construction"
        )
    elif plan.protects == "record":
        yield Assumption(f"{loss.name} is {problem.lipschitz:g}-Lipschitz (L)", grounds)
    if problem.clips and plan.kind == "convex":
        yield Assumption(
            f"{loss.name} is a single-index GLM, so clipping keeps it convex and smooth; the risk "
            f"is that of the clipped loss",
            grounds,
        )
    if plan.kind != "composition":
        yield Assumption(f"{loss.name} is {loss.smoothness:g}-smooth (β)", grounds)
    if plan.kind == "nonconvex":
        yield Assumption(f"|{loss.name}| ≤ {loss.bound:g} (b)", grounds)
    yield Assumption(
        f"the regulariser is (λ/2)‖θ‖² with λ = {problem.l2:g} on every parameter",
        "by construction",
    )


def _on_the_data(plan: Settings, question: Question):
    ran = question.row is not None
    yield Assumption(
        f"all {plan.n} records are in the domain: {plan.problem.loss.domain}",
        "checked on the data" if ran else "declared by the user",
    )
    if ran:
        yield Assumption(
            "every edit up to the deletion brought in records of the domain only",
            "checked on the data",
        )
    yield Assumption(
        "every edit brings in records of the domain only (dd_jax.interact and dd_jax.drive see to "
        "it)",
        "required of the deployment",
    )
    if plan.protects == "label":
        yield Assumption(
            "edits replace labels only: this is a label-DP certificate, features are not protected",
            "checked on the data" if ran else "required of the deployment",
        )


def _on_the_history(plan: Settings, question: Question):
    """What is supposed, or what the transcript says, of the record's stay and of what was seen."""
    request, first = question.request, question.first_inserted
    stay = f"in from request {first} on" if first else "there from the start"
    if question.row is None:
        yield Assumption(
            f"the record is {stay} at the earliest, and request {request} is the last to delete it",
            "declared by the user",
        )
        return
    yield Assumption(
        f"request {request} of this plan's run on {plan.n} records replaced row {question.row} by "
        f"another record",
        "checked on the data",
    )
    if first:
        yield Assumption(
            f"the record was in no row before request {first} wrote row {question.row}"
            + ("" if question.records == 1 else ", nor was any of the rows judged jointly"),
            "declared by the user",
        )
    until = f" before request {question.rewritten}" if question.rewritten else ""
    yield Assumption(
        f"the record does not come back after the deletion{until}, in this row or another",
        "declared by the user",
    )
    shown = ", ".join(map(str, question.observed or ())) or "none"
    yield Assumption(
        f"the releases that the requester was shown before the deletion: {shown}",
        "by construction",
    )
    yield Assumption(
        "the requester saw no other release by another way", "required of the deployment"
    )


def _on_the_plan(plan: Settings):
    if plan.kind == "convex":
        rule = "η ≤ 2/(2λ+β)" if plan.accountant == "optimal" else "η < 1/(λ+β)"
        yield Assumption(f"step size {plan.step_size:.6g} meets {rule}", "checked on the plan")
    if plan.kind == "nonconvex":
        yield Assumption(
            f"step size {plan.step_size:.6g} meets the conditions of the {plan.accountant} proof",
            "checked on the plan",
        )
        yield Assumption(
            f"the start is N(0, σ²/λ I) exactly, σ²/λ = {plan.init_variance:.6g}",
            "checked on the plan",
        )
    else:
        yield Assumption(
            f"the start N(0, {plan.init_variance:.6g} I) does not depend on the data",
            "by construction",
        )


def _on_others():
    for statement in (
        "n is fixed and public; a deletion replaces the record, and the replacement does not "
        "depend on the record it replaces",
        "the requester is one fixed map of the releases it saw, its own edits and coins that are "
        "independent of the noise; it did not itself insert the record; it may know all other rows",
        "every step draws fresh Gaussian noise of the planned variance that nobody else knows: "
        "threefry from a key of 64 random bits (dd_jax.secret_key), and nobody tries 2⁶⁴ keys",
    ):
        yield Assumption(statement, "required of the deployment")


def _on_arithmetic(plan: Settings, question: Question):
    yield Assumption(
        f"rounding in {plan.dtype} changes the law by at most 1%, unless a warning says more",
        "checked on the plan",
    )
    yield Assumption(
        "what is published is the model rounded to the plan's grid, far below the noise; the kept "
        "state is not rounded, and never published",
        "required of the deployment" if question.row is None else "by construction",
    )
    yield Assumption(
        "observers do not exploit floating point: the numbers are those of exact arithmetic",
        "required of the deployment",
    )


# --- warnings ------------------------------------------------------------------------------------


def warnings(
    plan: Settings,
    question: Question,
    numbers: Numbers,
    eps: dict[str, float],
    rounding: tuple[str | None, ...],
) -> tuple[str, ...]:
    """What a reader should know before relying on the numbers; `rounding` is of the arithmetic."""
    return tuple(
        text
        for text in (
            _about_return(question),
            plan.problem.loss.caveat,
            *_about_budgets(plan, eps),
            *_about_formulas(plan, question, eps),
            _about_risk(plan, numbers),
            _about_cost(plan),
            *rounding,
        )
        if text
    )


def _about_return(question: Question) -> str | None:
    if question.rewritten is None:
        return None
    return (
        f"request {question.rewritten} wrote row {question.row} again: releases from it on are not "
        f"covered; if it brought the record back, certify the request that deletes it for good"
    )


def _about_budgets(plan: Settings, eps):
    dp, dd = plan.eps_dp_asked, plan.eps_dd_asked
    if dd is not None and plan.kind == "convex" and dd >= dp:
        yield (
            f"the deletion budget {dd:g} is not below the privacy budget {dp:g}: deletion needs no "
            f"step, and one is taken so that the risk stays bounded"
        )
    pairs = [("eps_dp", "eps_dp_run" if plan.kind == "nonconvex" else "eps_dp", dp)]
    pairs += [("eps_dd", "eps_dd", dd)] if dd is not None else []
    for label, name, asked in pairs:
        if eps[name] > asked * (1 + 1e-9):
            yield f"{label} = {eps[name]:.4g} is above the {asked:g} that was asked for"
    if plan.delete_steps == 0:
        yield "no step follows a deletion: the risk grows with every request, without bound"


def _about_formulas(plan: Settings, question: Question, eps):
    if plan.protects == "label":
        yield "label-DP only: features and the presence of a record are not protected"
    if plan.kind == "convex" and plan.accountant != "optimal":
        yield (
            f"numbers by the {plan.accountant} accountant; accountant='optimal' certifies the same "
            f"run with smaller ones"
        )
    if question.records > 1 and plan.kind == "convex":
        yield (
            f"eps_dd is per record; {question.records} rows judged jointly have "
            f"{eps['eps_dd_records']:.4g} (erratum E10)"
        )
    if plan.kind == "convex" and question.adaptivity:
        yield (
            f"eps_dd = {eps['eps_dd']:.4g} alone is false against this requester (erratum E2); "
            f"eps_dd_adaptive holds"
        )
    if plan.kind == "nonconvex":
        yield (
            f"eps_dp is the sum over the runs that saw the record and grows with every request; "
            f"one run alone has {eps['eps_dp_run']:.4g} (erratum E9)"
        )
        yield "risk_bound_paper is vacuous (erratum E3): the model 0 does better"
        yield (
            "the risk bounds of the models after a request hold for histories in which no request "
            "depended on a release"
        )
        if question.adaptivity:
            yield (
                "the Gibbs-law bound does not survive a requester that saw a release (erratum E2); "
                "eps_dd_adaptive is the run sum and grows with every request"
            )
    if plan.kind == "composition":
        yield "the run sum grows with every request, for records that stay and that go"


def _about_risk(plan: Settings, numbers: Numbers) -> str | None:
    if numbers.risk_bound is None:
        return "no risk bound is known for this loss under this plan"
    trivial = _risk_of_zero(plan)
    if plan.risk_asked is not None and numbers.risk_bound > plan.risk_asked * (1 + 1e-9):
        return f"risk_bound = {numbers.risk_bound:.4g} is above the {plan.risk_asked:g} asked for"
    if numbers.risk_bound >= trivial:
        return (
            f"risk_bound = {numbers.risk_bound:.4g} is no better than that of the constant model 0 "
            f"({trivial:.4g}): give more records, larger budgets or a larger l2"
        )
    return None


def _risk_of_zero(plan: Settings) -> float:
    """Excess risk of θ = 0: L²/(2λ) for a convex loss, 2b for a bounded one."""
    if plan.kind == "nonconvex":
        return 2 * conditions.require_constant(plan.problem, "bound")
    lipschitz = conditions.risk_lipschitz(plan.problem, plan.protects)
    return lipschitz * (lipschitz / (2 * plan.problem.l2))


def _about_cost(plan: Settings) -> str | None:
    if max(plan.learn_gradients, plan.delete_gradients) < BEYOND_REACH:
        return None
    years = plan.learn_gradients / 1e9 / (365.25 * 86400)
    return (
        f"beyond reach: learning takes {float(plan.learn_gradients):.3g} gradients of one record "
        f"({years:.2g} years at 1e9 a second), each deletion {float(plan.delete_gradients):.3g}"
    )
