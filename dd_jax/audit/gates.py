"""Gates: which bound may refute which claim, and how its number reads in the claim's unit.

A gate is sound for a claim if the claim, where true, implies a ceiling on what the gate bounds from
below. No gate is listed here for a claim that does not imply its ceiling. Host-side, no JAX.
"""

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

from dd_jax.audit import bounds, power
from dd_jax.audit.claims import (
    AdvantageClaim,
    ApproximateClaim,
    Claim,
    GaussianClaim,
    RenyiClaim,
)
from dd_jax.audit.types import LowerBound
from dd_jax.errors import InputError
from dd_jax.guarantees import renyi

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
    bound: Callable[..., LowerBound]
    to_claim: Callable[[float], float]
    detectable: Callable[..., float]
    directions: tuple[str, ...] = ("P‖Q",)
    route: str = ""

    def in_claims_unit(self, bound: LowerBound) -> LowerBound:
        """The bound carried over to the claim's unit."""
        method = f"{bound.method}; {self.route}" if self.route else bound.method
        return bound._replace(value=float(self.to_claim(bound.value)), method=method)


def gates_for(
    claim: Claim, names: Sequence[str] | None = None, *, independent: bool = False
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


def _default(claim: Claim) -> tuple[str, ...]:
    """The gate that sees most; with a proved μ that is the Gaussian one."""
    if isinstance(claim, AdvantageClaim):
        return ("advantage",)
    if claim.mu is not None:
        return ("gaussian_mu",)
    return _RENYI_DEFAULT if isinstance(claim, RenyiClaim) else ("hockey_stick",)


def _sound_gates(claim: Claim) -> dict[str, Gate]:
    if isinstance(claim, AdvantageClaim):
        return {"advantage": _advantage(claim)}
    gates = {}
    if claim.mu is not None:
        gates["gaussian_mu"] = _gaussian(claim, claim.mu)
    if isinstance(claim, RenyiClaim):
        gates |= {name: _renyi(claim, name) for name in _RENYI}
    if isinstance(claim, ApproximateClaim):
        gates["hockey_stick"] = _hockey_stick(claim)
    return gates


def _advantage(claim: AdvantageClaim) -> Gate:
    return _gate("advantage", claim.claimed, bounds.advantage)


def _gaussian(claim: RenyiClaim | GaussianClaim | ApproximateClaim, mu: float) -> Gate:
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
