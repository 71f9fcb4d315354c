"""What a certificate may rely on: the constants of a loss and of a regularised problem.

Plain host-side data without JAX, so that accounting never imports it. `dd_jax.losses` attaches a
`LossConstants` to every loss; `dd_jax.erm.Problem.constants` adds the regulariser and the clip
norm.
"""

import math
from dataclasses import dataclass, field, replace
from numbers import Real
from typing import Any, Literal, get_args

from dd_jax.errors import InputError

Established = Literal["proved", "declared"]


@dataclass(frozen=True)
class LossConstants:
    """Constants of one record's loss ℓ(θ; x), valid for every record of its declared domain 𝒳.

    A constant that is `None` is not known; certificates that need it are refused.

    Attributes:
        name: the loss, as messages and certificates print it.
        convex: ℓ(·; x) is convex for every x in 𝒳.
        single_index: ℓ(θ; x) = φ(⟨a, θ⟩, y) with one fixed feature vector a per record (a GLM):
            the only convex losses that stay convex under clipping.
        lipschitz: L, sup ‖∇ℓ‖.
        smoothness: β, the Lipschitz constant of ∇ℓ.
        bound: b, sup |ℓ|.
        label_sensitivity: sup ‖∇ℓ(θ; a, y) - ∇ℓ(θ; a, y')‖ when only the label changes; it plays
            the part of 2L in a label-DP certificate.
        domain: the declared bounds on records that the constants follow from, in words.
        established: "proved" for the catalogue, "declared" for a user's own loss.
        caveat: what a reader must know of how records were brought into the domain, or nothing;
            every certificate warns of it.
    """

    name: str
    convex: bool
    single_index: bool
    lipschitz: float | None = None
    smoothness: float | None = None
    bound: float | None = None
    label_sensitivity: float | None = None
    domain: str = "any record"
    established: Established = "declared"
    caveat: str = ""

    def __post_init__(self):
        for label in ("convex", "single_index"):
            value = getattr(self, label)
            if not isinstance(value, bool):
                raise InputError(f"{self.name}: {label} = {value!r}; give True or False.")
        for label in ("lipschitz", "smoothness", "bound", "label_sensitivity"):
            value = getattr(self, label)
            if value is None:
                continue
            if not (_is_finite(value) and value >= 0):
                raise InputError(
                    f"{self.name}: {label} = {value!r} is not a finite number ≥ 0; "
                    f"give a finite value, or None where it is not known."
                )
            object.__setattr__(self, label, float(value))
        if self.established not in get_args(Established):
            raise InputError(
                f"{self.name}: established = {self.established!r}; give 'proved' or 'declared'."
            )


@dataclass(frozen=True)
class ProblemConstants:
    """A regularised problem ℒ(θ) = mean ℓ(θ; x) + (λ/2)‖θ‖², as accounting sees it.

    Attributes:
        loss: constants of the per-record loss ℓ, before clipping.
        l2: λ, the regulariser's constant.
        clip_norm: the norm that per-record gradients are clipped to, or None.
    """

    loss: LossConstants
    l2: float
    clip_norm: float | None = field(default=None)

    def __post_init__(self):
        if not (_is_finite(self.l2) and self.l2 > 0):
            raise InputError(
                f"l2 = {self.l2!r} is not a positive finite number; "
                f"the certificates need λ > 0: give for example l2=0.01."
            )
        object.__setattr__(self, "l2", float(self.l2))
        if self.clip_norm is None:
            return
        if not (_is_finite(self.clip_norm) and self.clip_norm > 0):
            raise InputError(
                f"clip_norm = {self.clip_norm!r} is not a positive finite number; "
                f"give the norm to clip per-record gradients to, or None."
            )
        object.__setattr__(self, "clip_norm", float(self.clip_norm))

    @property
    def constants(self) -> "ProblemConstants":
        """Itself, so that a `Problem` and its constants are accepted alike."""
        return self

    @property
    def declared(self) -> "ProblemConstants":
        """The same numbers, for which nobody but the user vouches: what a file can say of them."""
        return replace(self, loss=replace(self.loss, established="declared"))

    @property
    def clips(self) -> bool:
        """Whether clipping can change a gradient at all (the clip norm is below L)."""
        return self.clip_norm is not None and (
            self.loss.lipschitz is None or self.clip_norm < self.loss.lipschitz
        )

    @property
    def lipschitz(self) -> float | None:
        """L of the gradients that are used: the smaller of the loss's L and the clip norm."""
        known = [v for v in (self.loss.lipschitz, self.clip_norm) if v is not None]
        return min(known) if known else None


def _is_finite(value: Any) -> bool:
    try:
        return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:  # a whole number beyond every float
        return False
