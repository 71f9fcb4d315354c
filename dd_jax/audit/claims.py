"""Claims that samples can refute: the numbers of a certificate or of any other mechanism.

Every claim is about the two laws that an audit samples, P where the record was present and Q where
it was absent. A `Gate` is one bound that may refute a claim, and how its number reads in the
claim's unit: sound if the claim, where true, implies a ceiling on what the bound bounds from below.
Host-side, no JAX.
"""

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple

from dd_jax import checks
from dd_jax.audit import bounds, power, tails
from dd_jax.claims import Claim, Owner
from dd_jax.errors import InputError
from dd_jax.guarantees import inference, renyi
from dd_jax.plans import Certificate

# Default of a required argument: a missing one is then refused with a message that names it.
_MISSING: Any = None
# A claim that is linear in the order is judged here if it is stated for a higher order.
_JUDGED_ORDER = 2.0
GATES = tuple(name for name in power.METHODS if name != "epsilon_at")

Which = Literal[
    "dp",
    "dp-joint",
    "deletion",
    "deletion-adaptive",
    "deletion-null",
    "deletion-null-adaptive",
    "deletion-gibbs",
    "advantage",
]


class Gate(NamedTuple):
    """One way to refute one claim.

    Attributes:
        name: the bound's name.
        claimed: the ceiling that the claim implies, in the bound's own unit.
        bound: `(fit_present, fit_absent, test_present, test_absent, confidence=) -> LowerBound`.
        detectable: `(fit_seeds=, seeds=, confidence=, power=) -> value` in the bound's unit,
            infinite where no truth is caught.
        to_claim: the bound's unit to the claim's, increasing.
        directions: "P‖Q" and perhaps "Q‖P"; each is a test of its own.
        route: how the number was carried over, where it was.
    """

    name: str
    claimed: float
    bound: Callable[..., bounds.LowerBound]
    detectable: Callable[..., float]
    to_claim: Callable[[float], float] = float
    directions: tuple[str, ...] = ("P‖Q",)
    route: str = ""

    def in_claims_unit(self, bound: bounds.LowerBound) -> bounds.LowerBound:
        """The bound carried over to the claim's unit."""
        method = f"{bound.method}; {self.route}" if self.route else bound.method
        return bound._replace(value=float(self.to_claim(bound.value)), method=method)


def _gate(name: str, claimed: float, **setting: float) -> Gate:
    """A gate in its own unit, with the power that goes with it."""
    return Gate(
        name,
        claimed,
        functools.partial(power.METHODS[name].bound, **setting),
        functools.partial(power.detectable, name, claimed, **setting),
    )


def _gaussian(mu: float | None, to_claim: Callable[[float], float], route: str) -> dict[str, Gate]:
    """Sound only where the claim states μ-GDP itself; a Rényi bound alone would not imply it."""
    if mu is None:
        return {}
    gate = _gate("gaussian_mu", float(mu))
    return {"gaussian_mu": gate._replace(to_claim=to_claim, route=route)}


# --- the claims -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class NumericClaim(Claim, ABC):
    """A claim that states a number; the words of a `Claim` follow from it.

    Attributes:
        claimed: the claimed number. unit: what it counts.
        name: what the claim is about, as reports print it.
        from_certificate: whether `of_certificate` made it; reports say "certified" only then.
    """

    most: ClassVar[float] = math.inf
    """The largest number that could be true."""

    sentence: str = field(init=False, repr=False)
    source: str = field(init=False, repr=False)
    owner: Owner = field(init=False, repr=False)
    claimed: float = field(init=False, repr=False)
    unit: str = field(init=False, repr=False)
    name: str = field(default="", kw_only=True)
    from_certificate: bool = field(default=False, kw_only=True)

    def __post_init__(self):
        claimed, unit = self._stated()
        ours = self.from_certificate
        derived = {
            "claimed": float(claimed),
            "unit": unit,
            "sentence": f"{self.name}: {unit} is at most {float(claimed):.4g}",
            "source": "the certificate" if ours else "stated in numbers",
            "owner": "ours" if ours else "stated",
        }
        for name, value in derived.items():  # the way to set what a frozen dataclass derives
            object.__setattr__(self, name, value)

    @abstractmethod
    def _stated(self) -> tuple[Any, str]:
        """The claimed number, once everything stated was checked, and its unit."""

    @abstractmethod
    def gates(self) -> dict[str, Gate]:
        """The gates that are sound for this claim, the most powerful first.

        A gate is listed only if the claim implies the ceiling that it tests.
        """


@dataclass(frozen=True)
class RenyiClaim(NumericClaim):
    """R_q(P‖Q) ≤ ε, and R_q(Q‖P) ≤ ε where two-sided.

    Attributes:
        order: q > 1. eps: ε ≥ 0.
        two_sided: whether both directions are claimed.
        linear_in_order: whether R_q' ≤ ε q'/q is claimed for every order q'; samples then decide
            at a low order, where they say more.
        mu: a μ for which μ-Gaussian DP is claimed as well, None where it is not. A Rényi bound by
            itself never implies it.
    """

    order: float = _MISSING
    eps: float = _MISSING
    two_sided: bool = True
    linear_in_order: bool = False
    mu: float | None = None
    name: str = field(default="Rényi divergence", kw_only=True)

    def _stated(self):
        if self.order is None:
            raise InputError("a Rényi claim needs an order; give for example order=2 with the eps.")
        if self.eps is None:
            raise InputError("a Rényi claim needs eps; give for example eps=0.1 with the order.")
        tails.renyi_order(self.order)
        _check_mu(self.mu)
        unit = f"Rényi divergence of order {self.order:g}"
        return checks.nonnegative("eps", self.eps), unit

    def gates(self):
        """At the claim's order, or at a lower one where the claim is linear: R_q' ≤ ε q'/q."""
        order = float(min(self.order, _JUDGED_ORDER) if self.linear_in_order else self.order)
        scale = self.order / order
        found = _gaussian(self.mu, functools.partial(renyi.renyi_from_gdp, self.order), "as q μ²/2")
        for name in ("renyi_bins", "renyi_binary", "renyi_variational"):
            found[name] = _gate(name, self.claimed / scale, order=order)._replace(
                to_claim=lambda value: scale * value,
                directions=("P‖Q", "Q‖P") if self.two_sided else ("P‖Q",),
                route="" if scale == 1 else f"judged at order {order:g}",
            )
        return found


@dataclass(frozen=True)
class GaussianClaim(NumericClaim):
    """μ-Gaussian DP: telling P from Q is at least as hard as telling N(0, 1) from N(μ, 1)."""

    mu: float
    name: str = field(default="Gaussian DP", kw_only=True)

    def _stated(self):
        return checks.nonnegative("mu", self.mu), "μ of Gaussian DP"

    def gates(self):
        """Every threshold attains μ."""
        return {"gaussian_mu": _gate("gaussian_mu", self.claimed)}


@dataclass(frozen=True)
class ApproximateClaim(NumericClaim):
    """(ε, δ): P(E) ≤ e^ε Q(E) + δ and Q(E) ≤ e^ε P(E) + δ for every event E.

    Attributes:
        epsilon: ε. delta: δ in [0, 1], the claimed number.
        mu: as in `RenyiClaim`.
    """

    most: ClassVar[float] = 1.0
    epsilon: float
    delta: float
    mu: float | None = None
    name: str = field(default="(ε, δ)-indistinguishability", kw_only=True)

    def _stated(self):
        checks.nonnegative("epsilon", self.epsilon)
        _check_mu(self.mu)
        return checks.probability("delta", self.delta), f"δ at ε = {self.epsilon:.4g}"

    def gates(self):
        """Both directions at no further risk: the bound looks at an event and its complement."""
        carry = functools.partial(renyi.gdp_delta, epsilon=self.epsilon)
        stick = _gate("hockey_stick", self.claimed, epsilon=float(self.epsilon))
        return _gaussian(self.mu, carry, "as the δ of μ at ε") | {"hockey_stick": stick}


@dataclass(frozen=True)
class AdvantageClaim(NumericClaim):
    """P(E) - Q(E) ≤ bound for every event E: what a membership test can gain over guessing."""

    most: ClassVar[float] = 1.0
    bound: float
    name: str = field(default="membership advantage", kw_only=True)

    def _stated(self):
        return checks.probability("bound", self.bound), "advantage"

    def gates(self):
        """One event."""
        return {"advantage": _gate("advantage", self.claimed)}


def _check_mu(mu: float | None) -> None:
    if mu is not None:
        checks.nonnegative("mu", mu)


def claim_list(claims: NumericClaim | Sequence[NumericClaim]) -> tuple[NumericClaim, ...]:
    """One or several claims as a tuple, refused where something else is among them."""
    found: tuple[Any, ...] = tuple(claims) if isinstance(claims, list | tuple) else (claims,)
    if not found:
        raise InputError("there are no claims to audit; give one, e.g. RenyiClaim(order=2, eps=1).")
    for claim in found:
        if isinstance(claim, Certificate):
            raise InputError(
                "a certificate makes several claims; choose one with audit.of_certificate."
            )
        if not isinstance(claim, NumericClaim):
            raise InputError(
                f"{claim!r} is not a claim, because it has no order, delta or advantage; "
                f"give for example RenyiClaim(order=2, eps=0.1)."
            )
    return found


def gates_for(
    claim: NumericClaim, names: Sequence[str] | None = None, *, independent: bool = False
) -> tuple[Gate, ...]:
    """The gates that judge a claim: the named ones that are sound for it, or its default one.

    `independent` says that the arms are independent of each other, for gates that can use it.

    Raises:
        InputError: a name that is not the name of a gate, or only gates that cannot judge this
            claim.
    """
    if isinstance(names, str):
        raise InputError(f"gates = {names!r} is a single name; give a list of names, [{names!r}].")
    unknown = [name for name in names or () if name not in GATES]
    if unknown:
        raise InputError(
            f"gates = {unknown} cannot judge any claim; choose from {', '.join(GATES)}."
        )
    sound = claim.gates()
    wanted = [next(iter(sound))] if names is None else list(dict.fromkeys(names))
    found = [sound[name] for name in wanted if name in sound]
    if not found:
        raise InputError(
            f"gates = {wanted} cannot judge {claim.name!r}; choose from {', '.join(sorted(sound))}."
        )
    return tuple(map(_with_independent_arms, found)) if independent else tuple(found)


def _with_independent_arms(gate: Gate) -> Gate:
    if power.METHODS[gate.name].value is None:  # only bounds from one event can use it
        return gate
    return gate._replace(
        bound=functools.partial(gate.bound, independent=True),
        detectable=functools.partial(gate.detectable, independent=True),
    )


# --- what a certificate claims --------------------------------------------------------------------


# For each statement: its name in reports, the field of its ε, the field of the smaller ε at that
# request alone, and the field that holds μ where the statement is proved as Gaussian DP.
_STATEMENTS = {
    "dp": ("privacy of one release", "eps_dp", "eps_dp_request", "mu_dp"),
    "dp-joint": ("privacy of {} releases together", "eps_dp_joint", "eps_dp_joint", "mu_dp"),
    "deletion": ("deletion", "eps_dd", "eps_dd_request", "mu_dd"),
    "deletion-adaptive": (
        "adaptive deletion",
        "eps_dd_adaptive",
        "eps_dd_request",
        "mu_dd_adaptive",
    ),
    "deletion-null": ("deletion, to the empty row", "eps_dd_null", "eps_dd_null", "mu_dd"),
    "deletion-null-adaptive": (
        "adaptive deletion, to the empty row",
        "eps_dd_null_adaptive",
        "eps_dd_null_adaptive",
        "mu_dd_adaptive",
    ),
}


def of_certificate(
    certificate: Certificate, which: Which = "deletion", *, at_request: bool = False
) -> NumericClaim:
    """What a certificate says about one kind of sample, in the form that samples can refute.

    | which | samples | number |
    |---|---|---|
    | "dp" | one release, the record stays | eps_dp; eps_dp_adaptive where p > 0 |
    | "dp-joint" | the first request + 1 releases, the record stays | eps_dp_joint |
    | "deletion" | releases after the deletion, no release seen before | eps_dd |
    | "deletion-adaptive" | the same, p releases seen before | eps_dd_adaptive |
    | "deletion-null", "deletion-null-adaptive" | the same, the other world's row null from the \
start | eps_dd_null, eps_dd_null_adaptive |
    | "deletion-gibbs" | one release after the deletion as P, draws of its Gibbs law as Q | eps_dd |
    | "advantage" | the same | advantage_bound |

    A non-convex certificate for p = 0 bounds the divergence from the Gibbs law, one-sided, and not
    the divergence between neighbours: a Rényi test of two neighbouring arms would refute it where
    it is true. It implies a bound on the advantage (the soundness theorem, `thm:soundness`), which
    is the claim that is made. "deletion-gibbs" is the divergence itself, for draws of the Gibbs law
    (`gibbs_samples`); it is refused where a release was seen, because only the run sum between
    neighbours, "deletion-adaptive", holds there (erratum E2).

    Args:
        certificate: see `Plan.certificate`.
        which: the row of the table.
        at_request: use the smaller number that holds at the certificate's own request, where the
            certificate has one (eps_dp_request, eps_dd_request).
    """
    if not isinstance(certificate, Certificate):
        raise InputError(
            f"a {type(certificate).__name__} is not a Certificate; make one with "
            f"plan.certificate(...), or state the claim in numbers."
        )
    if which == "advantage":
        return AdvantageClaim(certificate.advantage_bound, from_certificate=True)
    if which == "deletion-gibbs":
        return _to_gibbs_law(certificate, at_request)
    if which not in _STATEMENTS:
        raise InputError(
            f"which = {which!r}; choose from {', '.join(_STATEMENTS)}, deletion-gibbs or advantage."
        )
    seen = certificate.adaptivity > 0
    if which == "deletion" and at_request and seen:
        raise InputError(
            "eps_dd_request counts the releases that were seen; give which='deletion-adaptive', "
            "or a certificate with adaptivity=0."
        )
    name, number, number_at_request, proof = _STATEMENTS[which]
    if which == "dp" and seen:
        number = "eps_dp_adaptive"
    eps = getattr(certificate, number_at_request if at_request else number)
    if eps is None:
        raise InputError(
            f"this certificate has no {number}: its loss or plan has no null reference; choose "
            f"another claim."
        )
    # Against the empty row there are numbers between neighbours only, never from the Gibbs law.
    neighbours = which.startswith(("dp", "deletion-null"))
    neighbours = neighbours or (which == "deletion-adaptive" and seen)
    if certificate.plan.kind == "nonconvex" and not neighbours:
        # The soundness theorem at this ε, or the advantage of the sum over the whole run, which
        # holds for every requester: both are true, so the smaller one is claimed.
        sound = float(inference.advantage_soundness(certificate.order, eps))
        bound = min(sound, certificate.advantage_bound)
        return AdvantageClaim(bound, name="deletion, from the Gibbs law", from_certificate=True)
    proved = getattr(certificate, proof) is not None
    order, delta = certificate.order, certificate.delta
    made: Any = {"name": name.format(certificate.request + 1), "from_certificate": True}
    if order is None:
        assert delta is not None
        mu = float(renyi.gdp_from_epsilon_delta(eps, delta)) if proved else None
        return ApproximateClaim(eps, delta, mu, **made)
    # Rényi bounds between neighbours are all linear in the order.
    mu = float(renyi.gdp_from_linear_renyi(order, eps)) if proved else None
    return RenyiClaim(order, eps, linear_in_order=True, mu=mu, **made)


def _to_gibbs_law(certificate: Certificate, at_request: bool) -> NumericClaim:
    """R_q(release ‖ Gibbs law) ≤ ε_dd, one-sided."""
    if certificate.plan.kind != "nonconvex":
        raise InputError(
            "only a non-convex certificate compares with the Gibbs law; give which='deletion'."
        )
    if certificate.adaptivity:
        raise InputError(
            "closeness to the Gibbs law needs a history in which no release was seen (erratum "
            "E2); give which='deletion-adaptive', with samples of two neighbouring worlds."
        )
    assert certificate.order is not None  # non-convex budgets are Rényi divergences
    return RenyiClaim(
        certificate.order,
        certificate.eps_dd_request if at_request else certificate.eps_dd,
        two_sided=False,
        # The tuned proofs bound every lower order in proportion; the paper's bounds q alone.
        linear_in_order=certificate.plan.accountant != "paper",
        name="deletion, to the Gibbs law",
        from_certificate=True,
    )
