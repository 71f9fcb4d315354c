"""What a certificate may rely on: the constants of a loss and of a regularised problem.

Plain host-side data, so that accounting never imports JAX. The losses of `dd_jax.losses` each have
a `LossConstants`; `dd_jax.erm.Problem.constants` adds the regulariser and the clip
norm. Below are the constants of the catalogue's losses, each proved from the declared domain:
`dd_jax.losses` builds its losses on these, and `dd-jax plan` reads them without loading JAX.

The declared bound on the feature norm is called R. An intercept appends a constant 1 to the
features, so that R² becomes R² + 1 in every constant. Everywhere R stands for R(1 + ROUNDING), as a
domain accepts every row up to that norm. For a single-index loss φ(⟨a, θ⟩, y) with |φ'| ≤ s and
|φ''| ≤ k: L = s·R and β = k·R².
"""

import math
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

from dd_jax import checks
from dd_jax.errors import InputError

Established = Literal["proved", "declared"]
# How matrix products are computed (`dd_jax.products`), and the share of a product that three
# bfloat16 passes lose: the product of the second parts of both factors (2⁻¹⁶), and what two parts
# leave of each factor (2⁻¹⁷). Three passes of TF32, on a GPU, lose less.
Precision = Literal["full", "bfloat16x3"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)
THREE_PASS_ROUNDOFF = 2 * 2.0**-16
# Rows normalised in float32 miss their norm by a few roundings (2⁻²³), so domains accept norms up
# to R(1 + ROUNDING); every constant here counts with that norm.
ROUNDING = 2.0**-21
# Norms whose squares are floats.
_MOST = 1e100
# max |tanh''| = 4 / (3√3), at tanh² = 1/3.
TANH_CURVATURE = 4 / (3 * math.sqrt(3))


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
        caveat: what a reader must know about how records were brought into the domain, or an empty
            text; it is a warning of every certificate.
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
            checked = checks.finite_nonnegative(f"{self.name}: {label}", value)
            object.__setattr__(self, label, float(checked))
        checks.choice("established", self.established, get_args(Established))


@dataclass(frozen=True)
class ProblemConstants:
    """A regularised problem ℒ(θ) = mean ℓ(θ; x) + (λ/2)‖θ‖², as accounting sees it.

    Attributes:
        loss: constants of the per-record loss ℓ, before clipping.
        l2: λ, the regulariser's constant.
        clip_norm: the norm that per-record gradients are clipped to, or None.
        precision: how matrix products are computed.
    """

    loss: LossConstants
    l2: float
    clip_norm: float | None = field(default=None)
    # Files of older versions do not have it (`plans.settings`).
    precision: Precision = field(default="full", metadata={"added": True})

    def __post_init__(self):
        object.__setattr__(self, "l2", float(checks.positive("l2", self.l2)))
        if self.clip_norm is not None:
            clip_norm = float(checks.positive("clip_norm", self.clip_norm))
            object.__setattr__(self, "clip_norm", clip_norm)
        checks.choice("precision", self.precision, PRECISIONS)

    @property
    def constants(self) -> "ProblemConstants":
        """This object itself, so that functions accept a `Problem` or its constants."""
        return self

    @property
    def declared(self) -> "ProblemConstants":
        """The same numbers, marked as declared: what a file says is only a claim."""
        return replace(self, loss=replace(self.loss, established="declared"))

    @property
    def clips(self) -> bool:
        """Whether clipping can change a gradient at all (the clip norm is below L)."""
        return self.clip_norm is not None and (
            self.loss.lipschitz is None or self.clip_norm < self.loss.lipschitz
        )

    @property
    def lipschitz(self) -> float | None:
        """The L of the gradients that are used: the smaller of the loss's L and the clip norm."""
        known = [v for v in (self.loss.lipschitz, self.clip_norm) if v is not None]
        return min(known) if known else None


# --- exact arithmetic -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Shape:
    """A single-index loss φ(⟨a, θ⟩, y) whose slope exact arithmetic computes.

    Attributes:
        radius: R, the bound on ‖a‖. slope: sup |φ'|. curvature: sup |φ''|.
        fall: sup over records of ℓ(0; x) - inf ℓ(·; x).
    """

    radius: float
    slope: float
    curvature: float
    fall: float


def exact_shape(loss: LossConstants) -> Shape | None:
    """The shape of a loss that `losses.exact_slopes` has, read off its constants; else None."""
    steep, curved = loss.lipschitz, loss.smoothness
    if not loss.single_index or steep is None or curved is None:
        return None
    if loss.name == "Huber":
        radius = math.sqrt(curved)
        return Shape(radius, steep / radius, 1.0, math.inf)
    if loss.name not in ("logistic", "smoothed hinge", "linear"):
        return None
    curvature = curved / steep**2
    fall = {"logistic": math.log(2), "linear": math.inf}.get(loss.name)
    if fall is None:  # 1 - γ/2 with γ = 1/curvature, or 1/(2γ) where the corner reaches 0
        fall = curvature / 2 if curvature < 1 else 1 - 1 / (2 * curvature)
    return Shape(steep, 1.0, curvature, fall)


# --- the catalogue --------------------------------------------------------------------------------

CatalogueLoss = Literal[
    "logistic",
    "smoothed_hinge",
    "huber",
    "squared",
    "linear",
    "softmax",
    "one_vs_rest",
    "tanh_margin",
    "bounded_network",
]
CATALOGUE: tuple[CatalogueLoss, ...] = get_args(CatalogueLoss)
# Losses of records whose label is the number of a class, not a sign.
OF_CLASSES: tuple[CatalogueLoss, ...] = ("softmax", "one_vs_rest")


def logistic(*, feature_norm: float = 1.0, intercept: bool = False) -> LossConstants:
    """log(1 + exp(-y⟨a, θ⟩)), y in [-1, 1]: L = R, β = R²/4, convex, unbounded."""
    radius = _radius(feature_norm, intercept)
    return _single_index("logistic", radius, 1.0, 0.25, _margins(feature_norm))


def smoothed_hinge(
    *, smoothing: float = 1.0, feature_norm: float = 1.0, intercept: bool = False
) -> LossConstants:
    """Hinge loss rounded over a margin width γ = smoothing: L = R, β = R²/γ."""
    checks.positive("smoothing", smoothing)
    radius = _radius(feature_norm, intercept)
    return _single_index("smoothed hinge", radius, 1.0, 1 / smoothing, _margins(feature_norm))


def tanh_margin(*, feature_norm: float = 1.0, intercept: bool = False) -> LossConstants:
    """-tanh(y⟨a, θ⟩), not convex: b = 1, L = R, β = 4R²/(3√3)."""
    radius, domain = _radius(feature_norm, intercept), _margins(feature_norm)
    found = _single_index("tanh margin", radius, 1.0, TANH_CURVATURE, domain)
    return replace(found, convex=False, bound=1.0)


def linear(*, feature_norm: float = 1.0) -> LossConstants:
    """-⟨x, θ⟩ of a bare feature vector x: L = R, β = 0."""
    domain = describe_domain(feature_norm)
    return _single_index("linear", _radius(feature_norm, False), 1.0, 0.0, domain)


def huber(
    *, threshold: float = 1.0, feature_norm: float = 1.0, intercept: bool = False
) -> LossConstants:
    """Quadratic up to δ = threshold, linear beyond: L = δR, β = R², any label."""
    checks.positive("threshold", threshold)
    radius, domain = _radius(feature_norm, intercept), describe_domain(feature_norm)
    found = _single_index("Huber", radius, threshold, 1.0, domain)
    return replace(found, label_sensitivity=2 * threshold * radius)


def squared(
    *, feature_norm: float = 1.0, label_bound: float | None = None, intercept: bool = False
) -> LossConstants:
    """(⟨a, θ⟩ - y)²/2: β = R², no L over all θ; label sensitivity 2·R·label_bound."""
    radius, domain, change = _radius(feature_norm, intercept), describe_domain(feature_norm), None
    if label_bound is not None:
        checks.positive("label_bound", label_bound)
        domain = describe_domain(feature_norm, -label_bound, label_bound)
        change = 2 * label_bound * radius
    found = _single_index("squared error", radius, None, 1.0, domain)
    return replace(found, label_sensitivity=change)


def softmax(
    *, num_classes: int, feature_norm: float = 1.0, intercept: bool = False
) -> LossConstants:
    """Cross-entropy over C classes: L = √2·R, β = R²/2, convex, not a single-index loss.

    The gradient is a ⊗ (p - e_y) with ‖p - e_y‖ ≤ √2; the Hessian in the scores, diag(p) - ppᵀ, has
    norm at most 1/2.
    """
    checks.whole("num_classes", num_classes, least=2, most=2**31)
    radius = _radius(feature_norm, intercept)
    return LossConstants(
        name="softmax",
        convex=True,
        single_index=False,
        lipschitz=math.sqrt(2) * radius,
        smoothness=radius**2 / 2,
        domain=describe_domain(feature_norm, 0, num_classes - 1),
        established="proved",
    )


def one_vs_rest(
    *, num_classes: int, feature_norm: float = 1.0, intercept: bool = False
) -> LossConstants:
    """Sum of C logistic losses, one class against the rest each: L = √C·R, β = R²/4, convex.

    The gradient is a ⊗ s with |s_c| ≤ 1 for every class; the Hessian has one block for each class,
    at most R²/4. So a certificate is about all C models together: its divergences are C times those
    of one of them.
    """
    checks.whole("num_classes", num_classes, least=2)
    radius = _radius(feature_norm, intercept)
    return LossConstants(
        name="one versus rest",
        convex=True,
        single_index=False,
        lipschitz=math.sqrt(num_classes) * radius,
        smoothness=radius**2 / 4,
        domain=describe_domain(feature_norm, 0, num_classes - 1),
        established="proved",
    )


def bounded_network(
    *,
    hidden: int,
    output_norm: float = 1.0,
    feature_norm: float = 1.0,
    intercept: bool = False,
) -> LossConstants:
    """-tanh(y f(θ; a)), f one hidden tanh layer with fixed output weights of norm V.

    b = 1, L = V·R, β = k·(V² + V/√hidden)·R² with k = 4/(3√3). ∇f has blocks v_j tanh'(u_j) a, so
    ‖∇f‖ ≤ ‖v‖R; the Hessian is ψ''·∇f∇fᵀ plus ψ' times a block-diagonal matrix with blocks
    v_j tanh''(u_j) aaᵀ, where |ψ''| ≤ k, |ψ'| ≤ 1.
    """
    checks.whole("hidden", hidden, least=1, most=2**31)
    checks.positive("output_norm", output_norm, most=_MOST)
    radius = _radius(feature_norm, intercept)
    curvature = TANH_CURVATURE * (output_norm**2 + output_norm / math.sqrt(hidden))
    return LossConstants(
        name="bounded network",
        convex=False,
        single_index=False,
        lipschitz=output_norm * radius,
        smoothness=curvature * radius**2,
        bound=1.0,
        domain=describe_domain(feature_norm, -1.0, 1.0),
        established="proved",
    )


def describe_domain(
    feature_norm: float, label_low: float | None = None, label_high: float | None = None
) -> str:
    """The records that the constants hold for, in words; different bounds give different words."""
    bounds = f"‖features‖ ≤ {_exact(feature_norm)}"
    if label_low is not None and label_high is not None:
        bounds += f", label in [{_exact(label_low)}, {_exact(label_high)}]"
    return bounds


def _exact(value: float) -> str:
    """The number in few digits where those are all it has, else in all of them."""
    short = f"{value:g}"
    return short if float(short) == value else repr(float(value))


def _radius(feature_norm: float, intercept: bool) -> float:
    """A bound on the norm of the feature vector that the loss uses, for any accepted row."""
    checks.positive("feature_norm", feature_norm, most=_MOST)
    return math.hypot(feature_norm * (1 + ROUNDING), int(intercept))


def _margins(feature_norm: float) -> str:
    """The domain of a loss of the margin y⟨a, θ⟩."""
    return describe_domain(feature_norm, -1.0, 1.0)


def _single_index(
    name: str, radius: float, slope: float | None, curvature: float, domain: str
) -> LossConstants:
    """φ(⟨a, θ⟩, y), convex, with |φ'| ≤ slope (if any) and |φ''| ≤ curvature, ‖a‖ ≤ radius."""
    return LossConstants(
        name=name,
        convex=True,
        single_index=True,
        lipschitz=None if slope is None else slope * radius,
        smoothness=curvature * radius**2,
        domain=domain,
        established="proved",
    )
