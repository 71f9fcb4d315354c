"""Claims that samples can refute: plain numbers from anyone's mechanism, or a certificate's.

Every claim is about the two laws that an audit samples, P where the record was present and Q where
it was absent. A `Gate` is one bound that may refute a claim, and how its number reads in the
claim's unit: sound if the claim, where true, implies a ceiling on what the bound bounds from below.
Host-side, no JAX.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from dd_jax import checks
from dd_jax.audit import bounds, power, tails
from dd_jax.claims import Claim, Owner
from dd_jax.errors import InputError
from dd_jax.guarantees import inference, renyi
from dd_jax.plans import Certificate

# In place of a required argument, so that its absence is refused in words.
_MISSING: Any = None

Which = Literal["dp", "dp-joint", "deletion", "deletion-adaptive", "advantage"]


@dataclass(frozen=True)
class NumericClaim(Claim):
    """A claim that states a number; the words of a `Claim` follow from it.

    Attributes:
        name: what the claim is about, as reports print it.
        from_certificate: whether `of_certificate` made it. Only then reports say "certified".
    """

    sentence: str = field(init=False, repr=False)
    source: str = field(init=False, repr=False)
    owner: Owner = field(init=False, repr=False)
    name: str = field(default="", kw_only=True)
    from_certificate: bool = field(default=False, kw_only=True)

    def __post_init__(self):
        ours = self.from_certificate
        words = {
            "sentence": f"{self.name}: {self.unit} is at most {self.claimed:.4g}",
            "source": "the certificate" if ours else "stated in numbers",
            "owner": "ours" if ours else "stated",
        }
        for name, value in words.items():  # the way to set what a frozen dataclass derives
            object.__setattr__(self, name, value)

    @property
    def claimed(self) -> float:
        """The claimed number."""
        raise NotImplementedError

    @property
    def unit(self) -> str:
        """What the number counts."""
        raise NotImplementedError


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

    def __post_init__(self):
        if self.order is None:
            raise InputError("a Rényi claim needs its order; give order=2, say, with the eps.")
        if self.eps is None:
            raise InputError("a Rényi claim needs its number; give eps=0.1, say, with the order.")
        tails.renyi_order(self.order)
        checks.nonnegative("eps", self.eps)
        if self.mu is not None:
            checks.nonnegative("mu", self.mu)
        super().__post_init__()

    @property
    def claimed(self) -> float:
        """ε."""
        return float(self.eps)

    @property
    def unit(self) -> str:
        """The divergence and its order."""
        return f"Rényi divergence of order {self.order:g}"


@dataclass(frozen=True)
class GaussianClaim(NumericClaim):
    """μ-Gaussian DP: telling P from Q is as hard as telling N(0, 1) from N(μ, 1), or harder."""

    mu: float
    name: str = field(default="Gaussian DP", kw_only=True)

    def __post_init__(self):
        checks.nonnegative("mu", self.mu)
        super().__post_init__()

    @property
    def claimed(self) -> float:
        """μ."""
        return float(self.mu)

    @property
    def unit(self) -> str:
        """Which number it is."""
        return "μ of Gaussian DP"


@dataclass(frozen=True)
class ApproximateClaim(NumericClaim):
    """(ε, δ): P(E) ≤ e^ε Q(E) + δ and Q(E) ≤ e^ε P(E) + δ for every event E.

    Attributes:
        epsilon: ε. delta: δ in [0, 1], the claimed number.
        mu: as in `RenyiClaim`.
    """

    epsilon: float
    delta: float
    mu: float | None = None
    name: str = field(default="(ε, δ)-indistinguishability", kw_only=True)

    def __post_init__(self):
        checks.nonnegative("epsilon", self.epsilon)
        checks.probability("delta", self.delta)
        if self.mu is not None:
            checks.nonnegative("mu", self.mu)
        super().__post_init__()

    @property
    def claimed(self) -> float:
        """δ."""
        return float(self.delta)

    @property
    def unit(self) -> str:
        """δ, and the ε at which it is."""
        return f"δ at ε = {self.epsilon:.4g}"


@dataclass(frozen=True)
class AdvantageClaim(NumericClaim):
    """P(E) - Q(E) ≤ bound for every event E: what any membership test can gain on guessing."""

    bound: float
    name: str = field(default="membership advantage", kw_only=True)

    def __post_init__(self):
        checks.probability("bound", self.bound)
        super().__post_init__()

    @property
    def claimed(self) -> float:
        """The bound."""
        return float(self.bound)

    @property
    def unit(self) -> str:
        """Which number it is."""
        return "advantage"


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
    | "advantage" | the same | advantage_bound |

    A non-convex certificate for p = 0 bounds the divergence from the Gibbs law, one-sided, and not
    that between neighbours: a Rényi test of two neighbouring arms would refute it where it is
    true. What it implies for the two arms is an advantage (`thm:soundness`), and that is the claim.

    Args:
        certificate: see `Plan.certificate`.
        which: the row of the table.
        at_request: the smaller number that holds at the certificate's very request, where the
            certificate has one (eps_dp_request, eps_dd_request).
    """
    if not isinstance(certificate, Certificate):
        raise InputError(
            f"a {type(certificate).__name__} is not a Certificate; make one with "
            f"plan.certificate(...), or state the claim in numbers."
        )
    if which == "advantage":
        return AdvantageClaim(certificate.advantage_bound, from_certificate=True)
    name = _field(certificate, which, at_request)
    if which.startswith("deletion") and _is_gibbs(certificate, which):
        bound = _gibbs_advantage(certificate, getattr(certificate, name))
        return AdvantageClaim(bound, name="deletion, from the Gibbs law", from_certificate=True)
    return _between_neighbours(certificate, which, getattr(certificate, name))


def _field(certificate: Certificate, which: str, at_request: bool) -> str:
    seen = certificate.adaptivity > 0
    fields = {
        "dp": "eps_dp_adaptive" if seen else "eps_dp",
        "dp-joint": "eps_dp_joint",
        "deletion": "eps_dd",
        "deletion-adaptive": "eps_dd_adaptive",
    }
    if which not in fields:
        raise InputError(f"which = {which!r}; choose from {', '.join(fields)} or advantage.")
    if not at_request or which == "dp-joint":
        return fields[which]
    if which == "deletion" and seen:
        raise InputError(
            "eps_dd_request counts the releases that were seen; ask for which='deletion-adaptive', "
            "or for a certificate with adaptivity=0."
        )
    return "eps_dp_request" if which == "dp" else "eps_dd_request"


def _is_gibbs(certificate: Certificate, which: str) -> bool:
    adaptive = which == "deletion-adaptive" and certificate.adaptivity > 0
    return certificate.plan.kind == "nonconvex" and not adaptive


def _gibbs_advantage(certificate: Certificate, eps: float) -> float:
    """`thm:soundness` at this ε, or the run sum's advantage, which holds for any requester."""
    sound = float(inference.advantage_soundness(certificate.order, eps))
    return min(sound, certificate.advantage_bound)


def _between_neighbours(certificate: Certificate, which: str, eps: float) -> NumericClaim:
    """Rényi bounds between neighbours; all of them are linear in the order."""
    proofs = {"deletion": certificate.mu_dd, "deletion-adaptive": certificate.mu_dd_adaptive}
    proved = proofs.get(which, certificate.mu_dp) is not None
    name = _NAMES[which].format(releases=certificate.request + 1)
    if certificate.order is None:
        assert certificate.delta is not None
        mu = float(renyi.gdp_from_epsilon_delta(eps, certificate.delta))
        return ApproximateClaim(
            eps, certificate.delta, mu if proved else None, name=name, from_certificate=True
        )
    mu = float(renyi.gdp_from_linear_renyi(certificate.order, eps)) if proved else None
    return RenyiClaim(
        certificate.order, eps, linear_in_order=True, mu=mu, name=name, from_certificate=True
    )


_NAMES = {
    "dp": "privacy of one release",
    "dp-joint": "privacy of {releases} releases together",
    "deletion": "deletion",
    "deletion-adaptive": "adaptive deletion",
}


def claim_list(claims: NumericClaim | Sequence[NumericClaim]) -> tuple[NumericClaim, ...]:
    """One or several claims as a tuple, refused where something else is among them."""
    found: tuple[Any, ...] = tuple(claims) if isinstance(claims, list | tuple) else (claims,)
    if not found:
        raise InputError("there are no claims to audit; give one, e.g. RenyiClaim(order=2, eps=1).")
    for claim in found:
        if isinstance(claim, Certificate):
            raise InputError(
                "a certificate makes several claims; say which with audit.of_certificate."
            )
        if not isinstance(claim, NumericClaim):
            raise InputError(
                f"{claim!r} is no claim: it names no order, delta or advantage; "
                f"give for example RenyiClaim(order=2, eps=0.1)."
            )
    return found


# --- gates: which bound may refute which claim ---------------------------------------------------

# No gate is listed here for a claim that does not imply its ceiling.
# A claim that is linear in the order is judged here if it is stated for a higher order.
_JUDGED_ORDER = 2.0
_RENYI = {
    "renyi_binary": bounds.renyi_binary,
    "renyi_bins": bounds.renyi_bins,
    "renyi_variational": bounds.renyi_variational,
}
_RENYI_DEFAULT = ("renyi_bins",)
_ONE_EVENT = ("advantage", "gaussian_mu", "hockey_stick", "renyi_binary")


class Gate(NamedTuple):
    """One way to refute one claim.

    Attributes:
        name: the bound's name.
        claimed: the ceiling that the claim implies, in the bound's own unit.
        bound: `(fit_present, fit_absent, test_present, test_absent, confidence=) -> LowerBound`.
        to_claim: the bound's unit to the claim's, increasing.
        detectable: `(fit_seeds=, seeds=, confidence=, power=) -> value` in the bound's unit,
            infinite where no truth is caught.
        directions: "P‖Q" and perhaps "Q‖P"; each is a test of its own.
        route: how the number was carried over, where it was.
    """

    name: str
    claimed: float
    bound: Callable[..., bounds.LowerBound]
    to_claim: Callable[[float], float]
    detectable: Callable[..., float]
    directions: tuple[str, ...] = ("P‖Q",)
    route: str = ""

    def in_claims_unit(self, bound: bounds.LowerBound) -> bounds.LowerBound:
        """The bound carried over to the claim's unit."""
        method = f"{bound.method}; {self.route}" if self.route else bound.method
        return bound._replace(value=float(self.to_claim(bound.value)), method=method)


def gates_for(
    claim: NumericClaim, names: Sequence[str] | None = None, *, independent: bool = False
) -> tuple[Gate, ...]:
    """The gates that judge a claim: the named ones that are sound for it, or its default ones.

    `independent` says that the arms are independent of each other, for gates that can use it.

    Raises:
        InputError: a name that is no gate's, or none that says anything about this claim.
    """
    _check_names(names)
    sound = _sound_gates(claim)
    if independent:
        sound = {name: _with_independent_arms(gate) for name, gate in sound.items()}
    wanted = _default(claim) if names is None else tuple(dict.fromkeys(names))
    found = tuple(sound[name] for name in wanted if name in sound)
    if not found:
        raise InputError(
            f"gates = {list(wanted)} cannot judge {claim.name!r}; choose from {', '.join(sound)}."
        )
    return found


def _check_names(names: Sequence[str] | None) -> None:
    if isinstance(names, str):
        raise InputError(f"gates = {names!r} is one word; give a list of names, [{names!r}].")
    unknown = [name for name in names or () if name not in (*_ONE_EVENT, *_RENYI)]
    if unknown:
        choices = ", ".join(dict.fromkeys((*_ONE_EVENT, *_RENYI)))
        raise InputError(f"gates = {unknown} cannot judge any claim; choose from {choices}.")


def _with_independent_arms(gate: Gate) -> Gate:
    if gate.name not in _ONE_EVENT:
        return gate
    return gate._replace(
        bound=functools.partial(gate.bound, independent=True),
        detectable=functools.partial(gate.detectable, independent=True),
    )


def _proved_mu(claim: NumericClaim) -> float | None:
    """The μ of Gaussian DP that the claim states, if it states one."""
    return getattr(claim, "mu", None)


def _default(claim: NumericClaim) -> tuple[str, ...]:
    """The gate that sees most; with a proved μ that is the Gaussian one."""
    if isinstance(claim, AdvantageClaim):
        return ("advantage",)
    if _proved_mu(claim) is not None:
        return ("gaussian_mu",)
    return _RENYI_DEFAULT if isinstance(claim, RenyiClaim) else ("hockey_stick",)


def _sound_gates(claim: NumericClaim) -> dict[str, Gate]:
    if isinstance(claim, AdvantageClaim):
        return {"advantage": _advantage(claim)}
    gates = {}
    mu = _proved_mu(claim)
    if mu is not None:
        gates["gaussian_mu"] = _gaussian(claim, mu)
    if isinstance(claim, RenyiClaim):
        gates |= {name: _renyi(claim, name) for name in _RENYI}
    if isinstance(claim, ApproximateClaim):
        gates["hockey_stick"] = _hockey_stick(claim)
    return gates


def _advantage(claim: AdvantageClaim) -> Gate:
    return _gate("advantage", claim.claimed, bounds.advantage)


def _gaussian(claim: NumericClaim, mu: float) -> Gate:
    """Sound because the claim states μ-GDP itself; a Rényi bound alone would not imply it."""
    gate = _gate("gaussian_mu", float(mu), bounds.gaussian_mu)
    if isinstance(claim, RenyiClaim):
        carry = functools.partial(renyi.renyi_from_gdp, claim.order)
        return gate._replace(to_claim=carry, route="as q μ²/2")
    if isinstance(claim, ApproximateClaim):
        carry = functools.partial(renyi.gdp_delta, epsilon=claim.epsilon)
        return gate._replace(to_claim=carry, route="as the δ of μ at ε")
    return gate


def _hockey_stick(claim: ApproximateClaim) -> Gate:
    """Both directions at no further risk: the bound looks at an event and at its complement."""
    return _gate("hockey_stick", claim.claimed, bounds.hockey_stick, epsilon=float(claim.epsilon))


def _renyi(claim: RenyiClaim, name: str) -> Gate:
    """At the claim's order, or at a lower one where the claim is linear: R_q' ≤ ε q'/q."""
    order = float(min(claim.order, _JUDGED_ORDER) if claim.linear_in_order else claim.order)
    scale = claim.order / order
    return _gate(name, claim.claimed / scale, _RENYI[name], order=order)._replace(
        to_claim=lambda value: scale * value,
        directions=("P‖Q", "Q‖P") if claim.two_sided else ("P‖Q",),
        route="" if scale == 1 else f"judged at order {order:g}",
    )


def _gate(name: str, claimed: float, bound: Callable, **setting: float) -> Gate:
    """A gate in its own unit, with the power that goes with it."""
    return Gate(
        name,
        claimed,
        functools.partial(bound, **setting),
        _same,
        functools.partial(power.detectable, name, claimed, **setting),
    )


def _same(value: float) -> float:
    return value
