"""Noise and steps of perturbed gradient descent (Neel, Roth & Sharifi-Malvajerdi 2021).

The paper's requests insert or delete; here a request replaces r records at fixed n, so its
condition n_i ≥ n/2 always holds. "published" is the paper's own noise; "best" is what the same
proofs give for replacement at fixed n.
"""

import dataclasses
import math
from dataclasses import dataclass
from typing import Literal

from dd_jax import checks
from dd_jax.baselines.calibration import Constants, require_float32_noise, root_slope
from dd_jax.errors import CertificateRefused, InputError

Form = Literal["published", "best"]


@dataclass(frozen=True)
class Calibration:
    """What a run of Perturbed-GD needs, and what it was made for.

    Attributes:
        constants: those of the problem that the noise is for.
        secret: whether the iterate before the noise is kept (Theorems 9, 10).
        form: "published", or "best" for replacement at fixed n.
        n, edits_per_request: the sizes that the noise is for.
        epsilon, delta: (ε, δ) of the claim, None where nothing is claimed.
        learn_steps: T. delete_steps: T_i, what a request runs.
        noise_steps: I, the steps that the noise relies on.
        noise_deviation: σ of each coordinate of the noise.
        conditions: what the claim needs, in words.
    """

    constants: Constants
    secret: bool
    form: Form
    n: int
    edits_per_request: int
    epsilon: float | None
    delta: float | None
    learn_steps: int
    delete_steps: int
    noise_steps: int
    noise_deviation: float
    conditions: tuple[str, ...]

    @property
    def step_size(self) -> float:
        """η = 2/(S + m)."""
        return self.constants.step_size

    @property
    def radius(self) -> float:
        """R of the ball that is projected onto."""
        return self.constants.radius

    def replace(self, **changes) -> "Calibration":
        """A copy with other numbers, for which nothing is claimed any more."""
        return dataclasses.replace(self, **{**changes, "epsilon": None, "delta": None})


def calibrate(
    constants: Constants,
    *,
    n: int,
    epsilon: float,
    delta: float,
    delete_steps: int,
    edits_per_request: int = 1,
    form: Form = "published",
) -> Calibration:
    """Noise for the form that keeps its iterate secret, at I = delete_steps steps per request.

        σ = 4√2 r G γ^I / (m n (1 - γ^I) (√(log(1/δ) + ε) - √(log(1/δ))))    as published
        σ = 2√2 r G₀γ^I / (m n (1 - γ^I) (√(log(1/δ) + ε) - √(log(1/δ))))    at its best

    One request moves the optimum by s = 4G/(mn) as published (n_i ≥ n/2), by s = 2G₀/(mn) where a
    record is replaced at fixed n and the regulariser cancels. Both the unlearned and the retrained
    iterate are then within s γ^I/(1 - γ^I) of the optimum. T = I + ⌈log(Dmn/(2G))/log(1/γ)⌉.

    Guarantee: (ε, δ)-unlearning of each release, for any number of requests.
    Assumes: `Constants`; as published ε ≤ log(1/δ), reading its ε = O(log(1/δ)) with constant 1.
    Neel et al. 2021, Theorem 9; with `Constants.of_problem` Theorem 10, whose mD, the part of the
    regulariser in G, is mR on a ball around 0.

    Raises:
        CertificateRefused: a condition of the theorem fails, or float32 cannot hold the noise.
    """
    steps = int(checks.count("delete_steps", delete_steps))
    gap = root_slope(epsilon, delta) * math.sqrt(2)
    moved, lipschitz = shift(constants, form, n, edits_per_request)
    published = check_form(form, epsilon, delta)
    left = gamma_of(constants) ** steps
    noise = 2 * moved * left / ((1 - left) * gap)
    require_float32_noise(noise, constants.reach, f"give fewer delete_steps than {steps}")
    return Calibration(
        constants=constants,
        secret=True,
        form=form,
        n=n,
        edits_per_request=edits_per_request,
        epsilon=float(epsilon),
        delta=float(delta),
        learn_steps=learn_steps(constants, n, lipschitz, steps),
        delete_steps=steps,
        noise_steps=steps,
        noise_deviation=noise,
        conditions=("the iterate before the noise stays secret", *published),
    )


def check_form(form: Form, epsilon, delta) -> tuple[str, ...]:
    """The published theorems' own conditions; refused where they fail."""
    if form not in ("published", "best"):
        raise InputError(f"form = {form!r} is not known; give 'published' or 'best'.")
    if form == "best":
        return ()
    limit = -math.log(float(checks.delta(delta)))
    if epsilon > limit:
        raise CertificateRefused(
            f"epsilon = {epsilon:g} is above log(1/δ) = {limit:g}, and the published theorem is "
            f"for ε = O(log(1/δ)); give a smaller epsilon or delta, or form='best'."
        )
    return ("ε = O(log(1/δ))", "n_i ≥ n/2 (n is fixed here)")


def gamma_of(constants: Constants) -> float:
    """γ, refused at 0, where one step reaches the optimum and no noise is defined."""
    if constants.contraction == 0:
        raise CertificateRefused(
            "smoothness equals strong_convexity, so γ = 0 and the formulas have no meaning; "
            "declare a larger smoothness."
        )
    return constants.contraction


def shift(constants: Constants, form: Form, n, rows) -> tuple[float, float]:
    """(s, G): how far one request can move the optimum, and the Lipschitz constant behind it."""
    n, rows = float(checks.count("n", n)), float(checks.count("edits_per_request", rows))
    lipschitz, factor = (
        (constants.lipschitz, 4) if form == "published" else (constants.record_lipschitz, 2)
    )
    return factor * rows * lipschitz / (constants.strong_convexity * n), lipschitz


def learn_steps(constants: Constants, n, lipschitz: float, steps: int) -> int:
    """T = I + ⌈log(Dmn/(2G))/log(1/γ)⌉, at least I."""
    ratio = constants.diameter * constants.strong_convexity * n / (2 * lipschitz)
    return steps + max(0, math.ceil(math.log(ratio) / -math.log(constants.contraction)))
