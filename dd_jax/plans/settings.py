"""`Settings`: the numbers of a run, its problem, and the budgets that were requested.

Also here: the units of budgets, the run in the form that bounds take, and the JSON of plans and
certificates.
"""

import hashlib
import json
import math
from dataclasses import dataclass, field, fields, is_dataclass, replace
from types import UnionType
from typing import Any, Literal, Self, get_args, get_origin, get_type_hints

import numpy as np

from dd_jax import checks
from dd_jax.constants import ProblemConstants
from dd_jax.errors import CertificateRefused, InputError
from dd_jax.guarantees import renyi, schedules
from dd_jax.guarantees.convex import Descent
from dd_jax.guarantees.streams import Factors, Stream, pairs
from dd_jax.plans import conditions, lattice
from dd_jax.plans.conditions import Protects

Kind = Literal["convex", "nonconvex", "composition"]
Dtype = Literal["float32", "float64"]
Reference = Literal["replaced", "null"]
Arithmetic = Literal["fast", "exact"]

FORMULAS = {
    "convex": ("optimal", "unrelaxed", "paper"),
    "nonconvex": ("sharp", "refined", "tuned", "paper"),
    "composition": ("composition",),
}
# Formulas that are proved as Gaussian DP.
GAUSSIAN = ("optimal", "composition")


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
        eps_dd_asked: the deletion budget, or None where there was none.
        risk_asked: the target excess risk, or None.
        dtype: the floating type that is run; a certificate is refused where its rounding matters.
        batches: m, cyclic batches of consecutive rows, one per step; 1 for full passes.
        reference: what eps_dd_asked compares a deleted record with: the record that "replaced" it,
            or the "null" record, which adds nothing (`guarantees.streams`).
        learn_factors, delete_factors: for each step of learning and of a request a pair of factors,
            of η and of σ²; None where all steps are alike.
        arithmetic: "fast" runs in floating point and is certified for real numbers; "exact" runs on
            a lattice and is certified as it runs (`plans.lattice`).
        lattice_bits: κ, how much finer than the noise the lattice of exact arithmetic is.
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
    batches: int = field(default=1, metadata={"added": True})
    reference: Reference = field(default="replaced", metadata={"added": True})
    learn_factors: Factors | None = field(default=None, metadata={"added": True})
    delete_factors: Factors | None = field(default=None, metadata={"added": True})
    arithmetic: Arithmetic = field(default="fast", metadata={"added": True})
    lattice_bits: int | None = field(default=None, metadata={"added": True})

    def __post_init__(self):
        checks.choice("kind", self.kind, FORMULAS)
        if self.accountant not in FORMULAS[self.kind]:
            raise InputError(
                f"accountant = {self.accountant!r} is not known for {self.kind} plans; "
                f"give one of {', '.join(FORMULAS[self.kind])}."
            )
        for name, known in (
            *(("protects", Protects), ("dtype", Dtype), ("reference", Reference)),
            ("arithmetic", Arithmetic),
        ):
            checks.choice(name, getattr(self, name), get_args(known))
        check_unit(self.order, self.delta, self.kind)
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
        init_variance = checks.finite_nonnegative("init_variance", self.init_variance)
        self._set("init_variance", float(init_variance))
        for name in ("n", "dim", "edits_per_request"):
            self._set(name, int(checks.count(name, getattr(self, name))))
        for name in ("learn_steps", "delete_steps"):
            checks.steps(name, getattr(self, name), endless=False)
            self._set(name, int(getattr(self, name)))
        self._set("batches", schedules.check_batches(self.n, self.batches))
        self._check_schedule()
        if self.exact:
            low, high = lattice.NOISE_BITS
            bits = checks.whole("lattice_bits", self.lattice_bits, least=low, most=high)
            self._set("lattice_bits", bits)
            lattice.require(self)

    @property
    def exact(self) -> bool:
        """Whether the run is in exact arithmetic."""
        return self.arithmetic == "exact"

    def _check_schedule(self) -> None:
        if self.reference == "null" and (self.kind == "nonconvex" or self.protects == "label"):
            raise CertificateRefused(
                "the null reference is for convex and composition plans that protect whole "
                "records; use reference='replaced'."
            )
        if self.batches == 1 and not self.varies:
            return
        if self.kind != "convex" or self.accountant != "optimal":
            raise CertificateRefused(
                f"batches and varying steps have no certificate in {self.kind} plans with "
                f"accountant={self.accountant!r}; use plan_convex with accountant='optimal', or "
                f"full batches."
            )
        for name in ("learn", "delete"):
            factors, steps = getattr(self, f"{name}_factors"), getattr(self, f"{name}_steps")
            self._set(f"{name}_factors", pairs(f"{name}_factors", factors, steps))

    def _set(self, name, value):
        object.__setattr__(self, name, value)

    @property
    def learn_gradients(self) -> int:
        """Gradients of one record that learning takes: n K_L / m."""
        return self._gradients(self.learn_steps)

    @property
    def delete_gradients(self) -> int:
        """Gradients of one record that one request takes: n K_U / m."""
        return self._gradients(self.delete_steps)

    def _gradients(self, steps: int) -> int:
        # Batches differ by one row; over a cycle they add up to n.
        return -(-self.n * steps // self.batches)

    @property
    def varies(self) -> bool:
        """Whether step sizes or noise differ between steps."""
        return self.learn_factors is not None or self.delete_factors is not None

    @property
    def factors(self) -> np.ndarray:
        """The factors of η and σ² of all steps that differ, shape (steps, 2)."""
        given = [f for f in (self.learn_factors, self.delete_factors) if f is not None]
        return np.concatenate([*given, np.ones((1, 2))])

    def first_batch(self, request: int) -> int:
        """The batch that request i begins with; the counter goes on through all requests."""
        return (self.learn_steps + (request - 1) * self.delete_steps) % self.batches

    @property
    def fingerprint(self) -> tuple[int, ...]:
        """Four whole numbers below 2³² that distinguish this plan from any other.

        They are the same for a plan and for its copy that was read from a file.
        """
        text = replace(self, problem=self.problem.declared).to_json()
        digest = hashlib.sha256(text.encode()).digest()
        return tuple(int.from_bytes(digest[4 * k : 4 * k + 4], "big") for k in range(4))

    def to_json(self) -> str:
        """One JSON object with the fields above; `from_json` reads it back."""
        return to_json(self)

    def of(self, problem) -> Self:
        """This plan with the constants of a problem, refused unless they are the plan's."""
        if problem.constants.declared != self.problem.declared:
            raise CertificateRefused(
                f"the plan was made for {self.problem}, not for {problem.constants}; "
                f"plan again for the problem that is run."
            )
        return replace(self, problem=problem.constants)


# --- units of budgets -----------------------------------------------------------------------------


def check_unit(order, delta, kind: Kind) -> None:
    """Refuse unless exactly one of order and δ is given, δ only where bounds hold at any order."""
    if (order is None) == (delta is None):
        raise InputError(
            "give either order (budgets are Rényi divergences of that order) or delta (budgets are "
            "the ε of (ε, δ)), and not both."
        )
    if order is not None:
        checks.order(order)
        return
    checks.delta(delta)
    if kind == "nonconvex":
        raise CertificateRefused(
            "(ε, δ) budgets need bounds that hold at every order, and non-convex plans are for one "
            "order; use a convex loss, or give order and Rényi budgets."
        )


def to_renyi(
    order, delta, eps_dp, eps_dd, accountant, arithmetic: Arithmetic = "fast"
) -> tuple[float, float, float]:
    """(order, ε_dp, ε_dd) of the budgets of a convex or composition plan.

    (ε, δ) become the μ that exact Gaussian DP allows. The paper's own bounds and its unrelaxed
    proof are not Gaussian DP, but linear in the order: there (ε, δ) become the divergence and the
    order of the paper's footnote, `renyi.renyi_from_epsilon_delta`, brought to order 2. In exact
    arithmetic they become what a bound linear in the order may be at its best order.
    """
    check_unit(order, delta, "convex")
    eps_dp, eps_dd = (float(checks.positive(*b)) for b in (("eps_dp", eps_dp), ("eps_dd", eps_dd)))
    if order is not None:
        return float(order), eps_dp, eps_dd
    if arithmetic == "exact":
        dp, dd = renyi.linear_from_epsilon_delta(np.asarray([eps_dp, eps_dd]), delta)
        return 2.0, 2 * float(dp), 2 * float(dd)
    return 2.0, _at_order_two(eps_dp, delta, accountant), _at_order_two(eps_dd, delta, accountant)


def _at_order_two(epsilon, delta, accountant) -> float:
    """The Rényi divergence of order 2 that a bound of this accountant may have for (ε, δ)."""
    if accountant in GAUSSIAN:
        mu = renyi.gdp_from_epsilon_delta(epsilon, delta)
        return mu * mu
    order, eps = renyi.renyi_from_epsilon_delta(epsilon, delta)
    return 2 * (eps / order)


def whole(name: str, steps: float) -> int:
    """A step count as an integer, refused where it overflowed."""
    if not math.isfinite(steps):
        raise CertificateRefused(
            f"{name} overflows: no run of finite length meets these budgets; "
            f"give larger budgets, more records or a larger l2."
        )
    return int(steps)


# --- the run, as bounds take it -------------------------------------------------------------------


def internal_order(plan) -> float:
    """The order that a plan's numbers are computed at; under Gaussian DP any order will do."""
    return 2.0 if plan.order is None else float(plan.order)


def descent(plan) -> Descent:
    """The run of a plan, as bounds on privacy and deletion of one record take it."""
    problem = plan.problem
    if plan.kind == "convex":
        l2, smoothness = conditions.constants_of_steps(problem, plan.step_size)
    else:
        known = problem.loss.smoothness
        l2, smoothness = problem.l2, math.inf if known is None else known
    return Descent(
        order=internal_order(plan),
        lipschitz=conditions.sensitivity(problem, plan.protects),
        l2=l2,
        smoothness=smoothness,
        noise_variance=plan.noise_variance,
        n=plan.n,
        step_size=plan.step_size,
        batches=plan.batches,
    )


def stream(plan) -> Stream:
    """The whole life of a plan's curator, by batch."""
    return Stream(
        descent(plan),
        plan.learn_steps,
        plan.delete_steps,
        plan.learn_factors,
        plan.delete_factors,
        lattice.gap(plan) if plan.exact else 0.0,
    )


def edited_descent(plan) -> Descent:
    """The run of a plan, as risk bounds take it: their own L, and r records edited by a request."""
    lipschitz = conditions.risk_lipschitz(plan.problem, plan.protects)
    return replace(descent(plan), lipschitz=lipschitz, records=plan.edits_per_request)


# --- as JSON --------------------------------------------------------------------------------------
#
# Infinities are the text "inf", everything else is plain JSON. A field that was added after files
# had been written is left out while it has its default: older files are read, and the fingerprints
# of their plans stay the same. What is read is only a claim of
# the file: `read` checks the type of every field, and the constructors check their values;
# `Plan.from_json` and `Certificate.from_json` decide what is believed.


def to_json(value: Any) -> str:
    """One JSON object for a dataclass, its fields in order."""
    return json.dumps(to_plain(value), ensure_ascii=False, indent=2, allow_nan=False)


def to_plain(value: Any) -> Any:
    """Dataclasses as dictionaries, tuples as lists, infinity as text."""
    if is_dataclass(value):
        shown = {f.name: getattr(value, f.name) for f in fields(value)}
        kept = {f.name for f in fields(value) if not f.metadata.get("added")}
        kept |= {f.name for f in fields(value) if shown[f.name] != f.default}
        return {name: to_plain(item) for name, item in shown.items() if name in kept}
    if isinstance(value, list | tuple):
        return [to_plain(item) for item in value]
    if isinstance(value, float) and math.isinf(value):
        return "inf"
    return value


def read(kind: type, text: str) -> Any:
    """The dataclass that `to_json` wrote, refused unless every field has the type it should."""
    if not isinstance(text, str):
        raise InputError(
            f"{type(text).__name__} is not the text of a {kind.__name__}; give what to_json wrote."
        )
    try:
        found = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise InputError(f"this is not JSON ({error}); give what to_json wrote.") from None
    return _value(kind, found, kind.__name__)


def _no_constant(name: str):
    raise ValueError(f"{name} is not a JSON number")


def _value(kind: Any, found: Any, where: str) -> Any:
    """`found` as a value of this annotation."""
    if is_dataclass(kind):
        return _fields(kind, found, where)
    if get_origin(kind) is UnionType:
        wanted, *_ = (part for part in get_args(kind) if part is not type(None))
        return None if found is None else _value(wanted, found, where)
    if get_origin(kind) is tuple:
        if not isinstance(found, list):
            raise _odd(where, found, "a list")
        return tuple(_value(get_args(kind)[0], item, where) for item in found)
    if get_origin(kind) is Literal:
        if not isinstance(found, str) or found not in get_args(kind):
            raise _odd(where, found, f"one of {', '.join(get_args(kind))}")
        return found
    if kind is float:
        return _number(found, where)
    if not isinstance(found, kind) or (kind is int and isinstance(found, bool)):
        raise _odd(where, found, {int: "a whole number", bool: "true or false"}.get(kind, "a text"))
    return found


def _fields(kind: Any, found: Any, where: str) -> Any:
    wanted = {f.name for f in fields(kind)}
    if isinstance(found, dict):
        wanted -= {f.name for f in fields(kind) if f.metadata.get("added")} - set(found)
    if not isinstance(found, dict) or set(found) != wanted:
        odd = sorted(wanted.symmetric_difference(found if isinstance(found, dict) else ()))
        raise InputError(
            f"this is not a {kind.__name__}: fields {', '.join(odd)} are missing or unknown; "
            f"give what to_json wrote."
        )
    types = get_type_hints(kind)
    return kind(
        **{name: _value(types[name], value, f"{where}.{name}") for name, value in found.items()}
    )


def _number(found: Any, where: str) -> float:
    if found == "inf":
        return math.inf
    if isinstance(found, int | float) and not isinstance(found, bool):
        try:
            number = float(found)
        except OverflowError:
            number = math.inf
        if math.isfinite(number):
            return number
    raise _odd(where, found, "a finite number")


def _odd(where: str, found: Any, wanted: str) -> InputError:
    shown = json.dumps(found, ensure_ascii=False)
    shown = shown if len(shown) <= 60 else shown[:60] + "…"
    return InputError(f"{where} = {shown} is not {wanted}; give what to_json wrote.")
