"""How a certificate is made: the question, the numbers that answer it, and the words around them.

`NUMBERS` holds, for every kind of plan, the function that computes its numbers from the plan's
settings alone. The modules `convex`, `nonconvex` and `composition` import this one and add theirs.
"""

import math
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from dd_jax import checks
from dd_jax.errors import CertificateRefused, InputError
from dd_jax.guarantees import adaptive, renyi
from dd_jax.plans import arithmetic, conditions, lattice
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
Form = Literal["renyi", "linear", "gaussian"]
"""What a divergence bound is known to hold for: one order, every order linearly, Gaussian DP."""


class Question(NamedTuple):
    """What a certificate is about; see `Plan.certificate` and `Plan.certify`.

    Attributes:
        adaptivity: p.
        request: i ≥ 1, the last request that deletes the record.
        first_inserted: 0, or the request that first inserted the record.
        observed: the releases seen, or None where only their number p is known.
        records: rows judged jointly.
        delta: δ to convert to, or None.
        row: the row that a transcript says was deleted; None for a promise.
        rewritten: the next request that changed that row, if one did.
    """

    adaptivity: int
    request: int
    first_inserted: int
    observed: tuple[int, ...] | None
    records: int
    delta: float | None
    row: int | None = None
    rewritten: int | None = None


def ask(
    plan: Settings,
    *,
    adaptivity=0,
    request=1,
    first_inserted=0,
    observed=None,
    records=None,
    delta=None,
    row=None,
    rewritten=None,
) -> Question:
    """The checked question; where it is known which releases were seen, they decide p.

    For a convex loss, and for the run sums, releases seen before the record was inserted are free:
    both worlds coincide until then. Closeness to the Gibbs law needs a history in which no request
    depends on any release, so there every release since the start counts.
    """
    adaptivity = checks.whole("adaptivity", adaptivity)
    request = checks.whole("request", request, least=1)
    first_inserted = checks.whole("first_inserted", first_inserted)
    if first_inserted >= request:
        raise InputError(
            f"first_inserted = {first_inserted} is not before request = {request}; count "
            f"requests from 1, and give first_inserted=0 for a record of the initial database."
        )
    if observed is not None:
        observed = tuple(sorted({checks.whole("observed", s) for s in observed}))
        since = 0 if plan.kind == "nonconvex" else first_inserted
        listed = sum(since <= s < request for s in observed)
        if adaptivity > listed:
            raise InputError(
                f"adaptivity = {adaptivity} contradicts observed, which lists {listed} of the "
                f"releases that count; list every release that was seen, or leave out "
                f"observed where only their number is known."
            )
        adaptivity = listed
    records = (
        plan.edits_per_request if records is None else checks.whole("records", records, least=1)
    )
    delta = plan.delta if delta is None else float(checks.delta(delta))
    if row is not None:
        checks.whole("row", row, most=plan.n - 1)
    return Question(adaptivity, request, first_inserted, observed, records, delta, row, rewritten)


class Utility(NamedTuple):
    """What the paper's theorem states of the risk at a privacy budget, and the steps it takes."""

    risk: float
    learn_steps: float
    delete_steps: float


class Numbers(NamedTuple):
    """Rényi divergences of one order, and risks; `Certificate` explains each."""

    order: float
    eps_dp: float
    eps_dp_run: float
    eps_dp_adaptive: float
    eps_dp_request: float
    eps_dp_joint: float
    eps_dd: float
    eps_dd_adaptive: float
    eps_dd_request: float
    eps_dd_records: float
    privacy_form: Form  # of every eps_dp; linear in the order in every accountant
    deletion_form: Form  # of eps_dd
    adaptive_form: Form  # of eps_dd_adaptive
    advantage_bound: float
    risk_bound: float | None = None
    risk_bound_learned: float | None = None
    risk_bound_request: float | None = None
    risk_bound_paper: float | None = None
    utility: Utility | None = None
    # Against the null record: a quarter of eps_dd, unless something else is said here.
    eps_dd_null: float | None = None
    eps_dd_null_adaptive: float | None = None


NUMBERS: dict[str, Callable[[Settings, Question], Numbers]] = {}


@dataclass(frozen=True)
class Assumption:
    """One condition that a certificate relies on, and how it was established."""

    statement: str
    established: Grounds

    def __str__(self):
        return f"{self.statement} [{self.established}]"


# --- issued ---------------------------------------------------------------------------------------


def certificate_fields(plan: Settings, question: Question, reduction: str) -> dict[str, Any]:
    """Every field of the certificate that answers a question, except the plan itself."""
    numbers = NUMBERS[plan.kind](plan, question)
    rounding: tuple[str | None, ...] = ()
    if not plan.exact:
        rounding = (arithmetic.check(plan), arithmetic.about_tails(plan, question.delta))
    known = numbers._asdict()
    reported = {
        name: value
        for name, value in known.items()
        if name.startswith("eps_") and not name.startswith("eps_dd_null")
    }
    reported["eps_dd_reduction_as_stated"] = _reduction(numbers, question, reduction)
    has_null = has_null_reference(plan)
    if has_null:
        # The null record moves a gradient by L where another record moves it by 2L, and every bound
        # is quadratic in that.
        for name in ("eps_dd", "eps_dd_adaptive"):
            null = name.replace("eps_dd", "eps_dd_null")
            reported[null] = known[name] / 4 if known[null] is None else known[null]
    if plan.order is None:
        # As the ε at δ, all at once: exact for Gaussian DP, else by the paper's footnote.
        if numbers.privacy_form == "gaussian":
            mus = renyi.gdp_from_linear_renyi(numbers.order, list(reported.values()))
            converted = renyi.gdp_epsilon(mus, question.delta)
        else:
            slopes = [eps / numbers.order for eps in reported.values()]
            convert = renyi.epsilon_tight_linear if plan.exact else renyi.epsilon_paper_linear
            converted = convert(slopes, question.delta)
        reported = dict(zip(reported, converted.tolist(), strict=True))
    return dict(
        basis="promise" if question.row is None else "transcript",
        claim=_claim(plan, question, reported),
        comparator=_comparator(plan, question),
        comparator_null=_comparator_null(plan, question) if has_null else None,
        observer=_observer(question),
        order=plan.order,
        advantage_bound=numbers.advantage_bound,
        assumptions=_assumptions(plan, question),
        warnings=tuple(
            text for text in _warnings(plan, question, numbers, reported, rounding) if text
        ),
        **question._asdict(),
        **reported,
        **_conversions(plan, numbers, question.delta, reported),
        **{name: value for name, value in known.items() if name.startswith("risk_")},
    )


def _conversions(plan: Settings, numbers: Numbers, delta: float | None, reported: dict) -> dict:
    """The headline numbers as μ where that is proved, and as the ε of (ε, δ) where δ is given."""
    converted = {}
    for name, form in (
        ("dp", numbers.privacy_form),
        ("dd", numbers.deletion_form),
        ("dd_adaptive", numbers.adaptive_form),
    ):
        order, eps = numbers.order, getattr(numbers, f"eps_{name}")
        mu = renyi.gdp_from_linear_renyi(order, eps) if form == "gaussian" else None
        if delta is None:
            epsilon = None
        elif plan.order is None:
            epsilon = reported[f"eps_{name}"]
        elif mu is not None:
            epsilon = renyi.gdp_epsilon(mu, delta)
        elif form == "linear":
            epsilon = renyi.epsilon_tight_linear(eps / order, delta)
        else:
            epsilon = renyi.epsilon_tight(order, eps, delta)
        converted |= {f"mu_{name}": mu, f"epsilon_{name}": epsilon}
    return converted


def _reduction(numbers: Numbers, question: Question, reduction: str) -> float:
    """The reduction theorem (`thm:reduction`) as stated; refused if the sound bound is larger."""
    checks.choice("reduction", reduction, ("sound", "as_stated"))
    stated = adaptive.deletion_adaptive_as_stated(
        numbers.eps_dd, numbers.eps_dp_run, question.adaptivity
    )
    if reduction == "as_stated" and numbers.eps_dd_adaptive > stated * (1 + 1e-12):
        raise CertificateRefused(
            f"the reduction as stated gives eps_dd + p·eps_dp = {stated:g} for p = "
            f"{question.adaptivity}, but it is false in general (erratum E2) and the sound bound "
            f"is {numbers.eps_dd_adaptive:g}; use reduction='sound', and read the paper's "
            f"number from eps_dd_reduction_as_stated."
        )
    return stated


def has_null_reference(plan: Settings) -> bool:
    """Whether the run in which a row adds nothing is a reference of this plan.

    It needs a bound on the whole gradient of one record, and neighbouring runs: not labels alone,
    and not the Gibbs law. `_comparator_null` says where it is a law as `dfn:deletion` asks for
    (erratum E16).
    """
    return plan.kind != "nonconvex" and plan.protects == "record"


# --- claim, comparator, observer ------------------------------------------------------------------


def _claim(plan: Settings, question: Question, eps: dict[str, float]) -> str:
    """The deletion guarantee in one sentence."""
    number = "eps_dd_null_adaptive" if plan.reference == "null" else "eps_dd_adaptive"
    bound, thing = f"{eps[number]:.4g}", plan.protects
    if plan.order is not None:
        deletion = f"({plan.order:g}, {bound})-Rényi data deletion"
    else:
        deletion = f"({bound}, {question.delta:g}) data deletion"
    deleted = (
        f"every deleted {thing}"
        if question.row is None
        else f"the {thing} that request {question.request} deleted from row {question.row}"
    )
    # Earlier releases are free, unless the Gibbs law is the comparator.
    always = question.first_inserted == 0 or plan.kind == "nonconvex"
    when = "before the deletion" if always else "while the record was present"
    seen = _releases(question.adaptivity)
    empty = ", compared with the run in which its row was empty" * (plan.reference == "null")
    return f"{deletion} of {deleted}, against a requester that saw {seen} {when}{empty}"


def _comparator(plan: Settings, question: Question) -> str:
    """What a release is compared with, and in which direction."""
    if plan.kind == "nonconvex" and question.adaptivity == 0:
        return (
            "the Gibbs law of the edited database, which never saw the record; one-sided, "
            "from the release to the Gibbs law"
        )
    return "the same run on the neighbouring database that never held the record; both ways"


def _comparator_null(plan: Settings, question: Question) -> str:
    """The run in which the row adds nothing, and whether the paper's definition allows it.

    `dfn:deletion` asks for a law that is a function of 𝒟_0 ∘ ⟨ind, y⟩, the requester and i. The run
    in which row ind adds a zero gradient until it is first edited is one, if the requester and i
    tell ind: with r = 1 and a row that does not depend on releases. Otherwise the law would have to
    know the row that is meant, among r ≥ 2 or among those that a requester may choose when it has
    looked; and for a record that was inserted later, when. These are variants. (The linear loss:
    ⟨1, +L⟩ on (-L, -L) and ⟨2, -L⟩ on (+L, +L) make one database, and the means of the two runs
    differ by twice what one record moves them, so that no law is nearer to both than the half.)
    """
    law = (
        "the same run in which the row added nothing to any gradient from the record's insertion "
        "to its deletion; both ways"
    )
    if plan.edits_per_request > 1 or question.first_inserted > 0:
        return (
            f"{law}; a variant of the paper's definition, as this law knows the row and its "
            f"insertion"
        )
    if question.adaptivity > 0:
        return (
            f"{law}; a law as the paper's definition asks for if the row did not depend on what "
            f"the requester saw, else a variant, as this law knows the row"
        )
    return f"{law}; a law as the paper's definition asks for"


def _observer(question: Question) -> str:
    """Who observes, and what they see."""
    until = f" and before request {question.rewritten}" if question.rewritten else ""
    earlier = "nothing earlier"
    if question.adaptivity:
        earlier = f"{_releases(question.adaptivity)} before it that the requester saw"
    return (
        f"every release made after the deletion{until}, and {earlier}; never intermediate "
        f"iterates, old checkpoints or noise keys"
    )


def _releases(number: int) -> str:
    return {0: "no release", 1: "1 release"}.get(number, f"{number} releases")


# --- assumptions ----------------------------------------------------------------------------------


def _assumptions(plan: Settings, question: Question) -> tuple[Assumption, ...]:
    """Everything that the numbers rely on, with how each was established."""
    found = (
        *_on_the_loss(plan),
        *_on_the_data(plan, question),
        *_on_the_history(plan, question),
        *_on_the_plan(plan),
        *_on_others(plan, question),
    )
    return tuple(Assumption(statement, grounds) for statement, grounds in found)


def _on_the_loss(plan: Settings) -> Iterator[tuple[str, Grounds]]:
    loss, problem, name = plan.problem.loss, plan.problem, plan.problem.loss.name
    proved = loss.established == "proved"
    grounds: Grounds = "proved for this loss" if proved else "declared by the user"
    if plan.kind == "convex":
        yield f"{name} is convex in the model", grounds
    if plan.protects == "label":
        spread = f"{loss.label_sensitivity:g}"
        yield f"replacing a label moves a record's gradient by at most {spread}", grounds
        if problem.lipschitz is None:
            yield f"‖∇ℓ(0; x)‖ ≤ {spread}/2, for the risk bound", grounds
    if problem.clip_norm is not None and problem.lipschitz == problem.clip_norm:
        yield f"record gradients are clipped to norm {problem.clip_norm:g}", "by construction"
    elif plan.protects == "record":
        yield f"{name} is {problem.lipschitz:g}-Lipschitz (L)", grounds
    if plan.kind == "convex" and conditions.only_contracts(problem):
        rate = conditions.constants_of_steps(problem, plan.step_size)[0]
        yield (
            f"clipping {name} leaves no gradient of a convex loss (erratum E1); but {name} is "
            f"convex and λ > β/8, so that every step is {1 - plan.step_size * rate:.6g}-Lipschitz",
            grounds,
        )
    elif problem.clips and plan.kind == "convex":
        yield (
            f"{name} is a single-index GLM, so clipping keeps it convex and smooth; the risk is "
            f"that of the clipped loss",
            grounds,
        )
    if plan.kind != "composition":
        yield f"{name} is {loss.smoothness:g}-smooth (β)", grounds
    if plan.kind == "nonconvex":
        yield f"|{name}| ≤ {loss.bound:g} (b)", grounds
    regulariser = f"the regulariser is (λ/2)‖θ‖² with λ = {problem.l2:g} on every parameter"
    yield regulariser, "by construction"


def _on_the_data(plan: Settings, question: Question) -> Iterator[tuple[str, Grounds]]:
    ran = question.row is not None
    yield (
        f"all {plan.n} records are in the domain: {plan.problem.loss.domain}",
        "checked on the data" if ran else "declared by the user",
    )
    if ran:
        yield (
            "every edit up to the deletion inserted records of the domain only",
            "checked on the data",
        )
    yield (
        "every edit inserts records of the domain only (dd_jax.interact and dd_jax.drive make sure "
        "of it)",
        "required of the deployment",
    )
    if plan.protects == "label":
        yield (
            "edits replace labels only: this is a label-DP certificate, features are not protected",
            "checked on the data" if ran else "required of the deployment",
        )


def _on_the_history(plan: Settings, question: Question) -> Iterator[tuple[str, Grounds]]:
    """What is supposed, or what the transcript says, of the record's stay and of what was seen."""
    request, first, row = question.request, question.first_inserted, question.row
    if plan.batches > 1:
        # A record that follows the batches is in more steps than one that stays where it is.
        yield (
            "the record was never in rows of several batches; one that was counts as a row for "
            "each, in eps_dd_records alone",
            "declared by the user",
        )
    if row is None:
        stay = f"from request {first}" if first else "from the start"
        yield (
            f"the record is present {stay} at the earliest, and request {request} is the last to "
            f"delete it",
            "declared by the user",
        )
        return
    yield (
        f"request {request} of this plan's run on {plan.n} records replaced row {row} by another "
        f"record",
        "checked on the data",
    )
    if first:
        others = "" if question.records == 1 else ", nor was any of the rows judged jointly"
        yield (
            f"the record was not in any row before request {first}{others}",
            "declared by the user",
        )
    until = f" before request {question.rewritten}" if question.rewritten else ""
    yield (
        f"the record does not come back after the deletion{until}, in this row or another",
        "declared by the user",
    )
    shown = numbers_listed(question.observed or ()) or "none"
    yield (
        f"the releases that the requester was shown before the deletion: {shown}",
        "by construction",
    )
    yield "the requester saw no other release in any other way", "required of the deployment"


def _on_the_plan(plan: Settings) -> Iterator[tuple[str, Grounds]]:
    step, start = f"step size {plan.step_size:.6g} meets", f"{plan.init_variance:.6g}"
    if plan.kind == "convex":
        rule = "η ≤ 2/(2λ+β)" if plan.accountant == "optimal" else "η < 1/(λ+β)"
        if conditions.only_contracts(plan.problem):
            rule = "c < 1, c the Lipschitz constant of a step"
        yield f"{step} {rule}", "checked on the plan"
    if plan.batches > 1:
        yield (
            f"step k since the start uses batch k mod {plan.batches}, through all requests; "
            f"batches are consecutive rows, and a row stays in its batch whatever is written to it",
            "by construction",
        )
    if plan.kind == "nonconvex":
        yield f"{step} the conditions of the {plan.accountant} proof", "checked on the plan"
        yield f"the start is N(0, σ²/λ I) exactly, σ²/λ = {start}", "checked on the plan"
    else:
        law = f"start N(0, {start} I)"
        if plan.exact:
            law = f"discrete Gaussian start, of variance at most {start},"
        yield f"the {law} does not depend on the data", "by construction"


def _products(plan: Settings) -> str:
    if plan.problem.precision == "full":
        return "full precision on every platform"
    return "three bfloat16 passes where the platform offers them"


def _on_others(plan: Settings, question: Question) -> Iterator[tuple[str, Grounds]]:
    """What the deployment is responsible for, and what rounding does."""
    for statement in (
        "n is fixed and public; a deletion replaces the record, and the replacement does not "
        "depend on the record it replaces",
        "the requester is one fixed map of the releases it saw, its own edits and coins that are "
        "independent of the noise; it did not itself insert the record; it may know all other rows",
    ):
        yield statement, "required of the deployment"
    if plan.exact:
        yield from _on_exact_arithmetic(plan)
        return
    yield (
        "every step draws fresh Gaussian noise of the planned variance that nobody else knows: "
        "threefry from a key of 64 random bits (dd_jax.secret_key), and nobody tries 2⁶⁴ keys",
        "required of the deployment",
    )
    yield (
        f"rounding in {plan.dtype}, with matrix products in {_products(plan)}, changes the law by "
        f"at most 1%, unless a warning says more",
        "checked on the plan",
    )
    yield (
        "what is published is the model rounded to the plan's grid, far below the noise; the kept "
        "state is not rounded, and never published",
        "required of the deployment" if question.row is None else "by construction",
    )
    yield (
        "observers do not exploit floating point: the numbers are those of exact arithmetic",
        "required of the deployment",
    )


def _on_exact_arithmetic(plan: Settings) -> Iterator[tuple[str, Grounds]]:
    """The parts of the proof that the numbers are those of the program that runs."""
    for part in lattice.parts(plan):
        yield part, "by construction"
    yield (
        "additions and multiplications of float64 and of 64-bit integers are those of the "
        "standards; a platform without float64 is refused",
        "required of the deployment",
    )
    yield (
        "random bits are uniform and secret: ChaCha20 from a key of 256 random bits "
        '(dd_jax.secret_key("chacha20")), and nobody tells its output from random bits',
        "required of the deployment",
    )
    yield (
        "observers see numbers, and not how long the sampler took",
        "required of the deployment",
    )


# --- warnings -------------------------------------------------------------------------------------


def _warnings(
    plan: Settings,
    question: Question,
    numbers: Numbers,
    eps: dict[str, float],
    rounding: tuple[str | None, ...],
) -> Iterator[str | None]:
    """What a reader should know before relying on the numbers; `rounding` has the arithmetic's."""
    if question.rewritten is not None:
        yield (
            f"request {question.rewritten} wrote row {question.row} again: releases from it on are "
            f"not covered; if it brought the record back, certify the request that deletes it last"
        )
    yield plan.problem.loss.caveat
    yield from _about_budgets(plan, eps)
    yield from _about_formulas(plan, question, eps)
    yield _about_risk(plan, numbers.risk_bound)
    yield _about_utility(plan, numbers)
    if max(plan.learn_gradients, plan.delete_gradients) >= BEYOND_REACH:
        years = plan.learn_gradients / 1e9 / (365.25 * 86400)
        yield (
            f"beyond reach: learning takes {float(plan.learn_gradients):.3g} gradients of one "
            f"record ({years:.2g} years at 1e9 a second), each deletion "
            f"{float(plan.delete_gradients):.3g}"
        )
    yield from rounding


def _about_budgets(plan: Settings, eps: dict[str, float]) -> Iterator[str]:
    dp, dd = plan.eps_dp_asked, plan.eps_dd_asked
    # A quarter of a divergence is not a quarter of the ε of (ε, δ).
    private = dp / 4 if plan.reference == "null" and plan.order is not None else dp
    if dd is not None and plan.kind == "convex" and dd >= private:
        yield (
            f"the deletion budget {dd:g} is not below {private:g}, which privacy alone gives: "
            f"deletion needs no step, and one is taken so that the risk stays bounded"
        )
    per_run = "eps_dp_run" if plan.kind == "nonconvex" else "eps_dp"
    deleted = "eps_dd_null" if plan.reference == "null" else "eps_dd"
    for label, name, asked in (("eps_dp", per_run, dp), (deleted, deleted, dd)):
        if asked is not None and eps[name] > asked * (1 + 1e-9):
            yield f"{label} = {eps[name]:.4g} is above the requested {asked:g}"
    if plan.delete_steps == 0:
        yield "no step follows a deletion: the risk grows with every request, without bound"


def _about_formulas(plan: Settings, question: Question, eps: dict[str, float]) -> Iterator[str]:
    if plan.protects == "label":
        yield "label-DP only: features and the presence of a record are not protected"
    if plan.kind == "convex":
        if plan.accountant != "optimal":
            yield (
                f"numbers by the {plan.accountant} accountant; accountant='optimal' certifies the "
                f"same run with smaller ones"
            )
        if question.records > 1:
            yield (
                f"eps_dd is per record; {question.records} rows judged jointly have "
                f"{eps['eps_dd_records']:.4g} (erratum E10)"
            )
        if question.adaptivity:
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
        yield "the run sum grows with every request, for records that stay and for records that go"


def _about_risk(plan: Settings, bound: float | None) -> str | None:
    if bound is None and plan.batches > 1:
        return "no useful risk bound is proved for these batches: measure the risk"
    if bound is None:
        return "no risk bound is known for this loss under this plan"
    if plan.risk_asked is not None and bound > plan.risk_asked * (1 + 1e-9):
        return f"risk_bound = {bound:.4g} is above the requested {plan.risk_asked:g}"
    trivial = trivial_risk(plan)
    if bound < trivial:
        return None
    return (
        f"risk_bound = {bound:.4g} is not better than that of the constant model 0 "
        f"({trivial:.4g}): give more records, larger budgets or a larger l2"
    )


def _about_utility(plan: Settings, numbers: Numbers) -> str | None:
    """A plan without a target risk takes the steps that deletion needs, maybe too few for utility.

    The paper says that they suffice for a small r, and forgets a term (erratum E13).
    """
    bound, stated = numbers.risk_bound, numbers.utility
    if plan.risk_asked is not None or bound is None or stated is None:
        return None
    if bound <= stated.risk or plan.delete_steps >= stated.delete_steps:
        return None
    return (
        f"K_U = {plan.delete_steps:,} deletes, and leaves a risk_bound of {bound:.4g}; utility by "
        f"the paper's theorem takes K_U = {stated.delete_steps:,.0f} and has {stated.risk:.4g} at "
        f"this eps_dp: give target_risk='paper', or a target of your own"
    )


def trivial_risk(plan: Settings) -> float:
    """Excess risk of the model 0: L²/(2λ) for a convex loss, 2b for a bounded one."""
    if plan.kind == "nonconvex":
        return 2 * conditions.require_constant(plan.problem, "bound")
    lipschitz = conditions.risk_lipschitz(plan.problem, plan.protects)
    return lipschitz * (lipschitz / (2 * plan.problem.l2))


# --- printed --------------------------------------------------------------------------------------


def certificate_text(certificate: Any) -> str:
    """The certificate for people."""
    about = "what happened" if certificate.basis == "transcript" else "what a plan promises"
    lines = [
        *_wrapped("", f"Certificate of {about}: {certificate.claim}."),
        *(line for label, text in _rows(certificate) for line in _wrapped(f"  {label:<15} ", text)),
        "  assumptions",
        *(line for a in certificate.assumptions for line in _wrapped("    - ", str(a))),
    ]
    if certificate.warnings:
        lines.append("  warnings")
        lines += [line for text in certificate.warnings for line in _wrapped("    ! ", text)]
    return "\n".join(lines)


def _wrapped(lead: str, text: str) -> list[str]:
    """Lines of at most 100 characters that hang below the lead."""
    return textwrap.wrap(text, 100, initial_indent=lead, subsequent_indent=" " * max(len(lead), 4))


def _rows(certificate: Any):
    unit = (
        f"Rényi, order {certificate.order:g}"
        if certificate.order is not None
        else f"ε at δ = {_shown(certificate.delta)}"
    )
    plan, p, i = certificate.plan, certificate.adaptivity, certificate.request
    yield "made from", _source(certificate)
    yield "compared with", certificate.comparator
    yield "observer", certificate.observer
    yield (
        "plan",
        f"{plan.kind}, accountant {plan.accountant}, loss {plan.problem.loss.name}, n = {plan.n}, "
        f"d = {plan.dim}, η = {plan.step_size:.6g}, σ² = {plan.noise_variance:.6g}, start variance "
        f"{plan.init_variance:.6g}, K_L = {plan.learn_steps:,}, K_U = {plan.delete_steps:,}",
    )
    if plan.batches > 1:
        size = plan.n // plan.batches
        rows = f"{size:,}" if plan.n % plan.batches == 0 else f"{size:,} or {size + 1:,}"
        yield (
            "batches",
            f"{plan.batches} of {rows} rows, in turn; request {i} begins with batch "
            f"{plan.first_batch(i)}",
        )
    yield "unit", unit
    yield (
        "records stay",
        f"one release {certificate.eps_dp:.6g}; after {p} seen {certificate.eps_dp_adaptive:.6g}; "
        f"all {i + 1} releases jointly {certificate.eps_dp_joint:.6g}",
    )
    yield (
        "records go",
        f"nothing seen {certificate.eps_dd:.6g}; {p} seen {certificate.eps_dd_adaptive:.6g}; at "
        f"request {i} {certificate.eps_dd_request:.6g}; {certificate.records} "
        f"row{'s' * (certificate.records != 1)} jointly "
        f"{certificate.eps_dd_records:.6g}",
    )
    if certificate.eps_dd_null is not None:
        yield (
            "null reference",
            f"nothing seen {certificate.eps_dd_null:.6g}; {p} seen "
            f"{certificate.eps_dd_null_adaptive:.6g}; compared with {certificate.comparator_null}",
        )
    gaussian = [f"advantage ≤ {certificate.advantage_bound:.6g}"]
    if certificate.mu_dd_adaptive is not None:
        gaussian.insert(0, f"μ = {certificate.mu_dd_adaptive:.6g}")
    yield "inference", ", ".join(gaussian)
    if certificate.epsilon_dd is not None and certificate.order is not None:
        yield (
            "(ε, δ)",
            f"δ = {_shown(certificate.delta)}: stays {_shown(certificate.epsilon_dp)}, goes "
            f"{_shown(certificate.epsilon_dd)}, with {p} seen "
            f"{_shown(certificate.epsilon_dd_adaptive)}",
        )
    if certificate.risk_bound is not None:
        paper = certificate.risk_bound_paper
        yield (
            "excess risk",
            f"every release ≤ {certificate.risk_bound:.6g}; learned "
            f"{_shown(certificate.risk_bound_learned)}; after request {i} "
            f"{_shown(certificate.risk_bound_request)}"
            + ("" if paper is None or math.isinf(paper) else f"; the paper's bound {paper:.6g}"),
        )
    if p:
        sound = "; it holds for convex losses" if plan.kind == "convex" else ""
        yield (
            "as stated",
            f"the paper's reduction says {certificate.eps_dd_reduction_as_stated:.6g} (false in "
            f"general, erratum E2{sound})",
        )


def _source(certificate: Any) -> str:
    """Whether the history is supposed or was read from a transcript, and on whose word."""
    last = f"request {certificate.request}"
    if certificate.basis == "transcript":
        seen = numbers_listed(certificate.observed or ()) or "none"
        source = (
            f"the transcript of a run: {last} replaced row {certificate.row}; releases shown "
            f"before it: {seen}"
        )
    else:
        source = f"a supposed history, not a run: {last} deletes the record"
    if certificate.first_inserted:
        source += f"; the user says that request {certificate.first_inserted} first inserted it"
    if certificate.loaded:
        source += "; read from a file, which claims this"
    return source


def numbers_listed(values: Sequence[int]) -> str:
    """Ascending numbers in words: "0, 3 to 9, 12"."""
    return ", ".join(
        f"{first} to {last}" if last - first > 1 else ", ".join(map(str, range(first, last + 1)))
        for first, last in runs(values)
    )


def runs(values: Sequence[int]) -> list[tuple[int, int]]:
    """Ascending numbers as pairs of the first and the last of each run without a gap."""
    found: list[tuple[int, int]] = []
    for value in values:
        if found and value == found[-1][1] + 1:
            found[-1] = found[-1][0], value
        else:
            found.append((value, value))
    return found


def _shown(value: float | None) -> str:
    """A number in six digits; a dash for None."""
    return "-" if value is None else f"{value:.6g}"
