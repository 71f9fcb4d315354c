"""Perturbed gradient descent (Neel, Roth & Sharifi-Malvajerdi 2021), with and without a secret.

Projected gradient descent towards the optimum, then Gaussian noise; what is published is not
projected. The secret form continues from the iterate before the noise (Theorems 9 and 10), the
other form from the published model (Theorem 28).

The paper's requests insert or delete; here a request replaces r records at fixed n, so its
condition n_i ≥ n/2 always holds. "published" is the paper's own noise; "best" is what the same
proofs give for replacement at fixed n.
"""

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, Literal

from dd_jax import checks
from dd_jax.baselines.base import (
    Constants,
    Guarantee,
    System,
    check_planned,
    check_planned_edit,
    cost,
    descend,
    label_of,
    nothing,
    perturb,
    require_float32_noise,
    root_slope,
)
from dd_jax.erm import Problem
from dd_jax.errors import CertificateRefused
from dd_jax.types import publish_model

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
        """The radius R of the ball that is projected onto."""
        return self.constants.radius

    def replace(self, **changes) -> "Calibration":
        """A copy with other numbers, for which nothing is claimed."""
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
    """The noise of the form that keeps its iterate secret, at I = delete_steps steps per request.

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
    fields, moved, first_steps = _begin(constants, form, n, edits_per_request, epsilon, delta)
    fields["conditions"] = ("the iterate before the noise stays secret", *fields["conditions"])
    steps = int(checks.count("delete_steps", delete_steps))
    left = constants.contraction**steps
    gap = root_slope(epsilon, delta) * math.sqrt(2)
    noise = 2 * moved * left / ((1 - left) * gap)
    require_float32_noise(noise, constants.reach, f"give fewer delete_steps than {steps}")
    return Calibration(
        **fields,
        secret=True,
        learn_steps=steps + first_steps,
        delete_steps=steps,
        noise_steps=steps,
        noise_deviation=noise,
    )


def calibrate_stateless(
    constants: Constants,
    *,
    n: int,
    dim: int,
    epsilon: float,
    delta: float,
    max_requests: int,
    noise_steps: int | None = None,
    edits_per_request: int = 1,
    form: Form = "published",
) -> Calibration:
    """The noise and the steps of the form that starts from the published model.

    With A = √(2log(2/δ) + 2ε) - √(2log(2/δ)), B = 2√(2d) γ^I/(1 - γ^I) and s as in `calibrate`:

        σ = 8rGγ^I/(mn(1-γ^I)(√(2log(2/δ)+3ε) - √(2log(2/δ)+2ε)))    as published
        σ = 2sγ^I/((1-γ^I)(A - B)), A > B                 at its best, and as the proof needs
        I ≥ log(√(2d)/((1-γ)(√(2log(2/δ)+ε) - √(2log(2/δ)))))/log(1/γ)    as published

    In the "best" form any I with A > B is allowed; by default the least I with B ≤ A/2 is taken.

    A request runs T_i = I + ⌈log log(4di/δ)/log(1/γ)⌉ steps. T_i at i = max_requests is used for
    every request, so that not even a counter is kept; σ is for I, not for T_i.

    Guarantee: (ε, δ)-unlearning of each release up to `max_requests`. The published σ is smaller
    than its own proof needs for some I where γ < 1/2; the conditions then say so.
    Assumes: as `calibrate`. Neel et al. 2021, Theorem 28.

    Raises:
        CertificateRefused: too few noise_steps for the theorem, or so many that float32 cannot
            hold the noise.
    """
    fields, moved, first_steps = _begin(constants, form, n, edits_per_request, epsilon, delta)
    gamma, dim = constants.contraction, int(checks.count("dim", dim))
    max_requests = int(checks.count("max_requests", max_requests))
    least = _least_steps(form, gamma, dim, epsilon, delta)
    steps = least if noise_steps is None else int(checks.count("noise_steps", noise_steps))
    if form == "published" and steps < least:
        raise CertificateRefused(
            f"noise_steps = {steps} is too small for Theorem 28; give at least {least}."
        )
    distance = moved * gamma**steps / (1 - gamma**steps)
    room = _increment(epsilon, delta, 0, 2)  # A - B
    room -= 2 * math.sqrt(2 * dim) * gamma**steps / (1 - gamma**steps)
    noise = needed = 2 * distance / room if room > 0 else math.inf
    fields["conditions"] = (f"at most {max_requests} requests", *fields["conditions"])
    if form == "published":
        noise = 2 * distance / _increment(epsilon, delta, 2, 3)
        if noise < needed:
            short = f"the published noise; its proof needs {needed:g}, not {noise:g}"
            fields["conditions"] += (short,)
    elif not math.isfinite(needed):
        raise CertificateRefused(
            f"noise_steps = {steps} does not remove the noise of the model that it starts from; "
            f"give at least {least}."
        )
    fewer = f"fewer noise_steps than {steps}" if steps > least else "a smaller epsilon or delta"
    require_float32_noise(noise, constants.reach, f"give {fewer}")
    tail = math.ceil(math.log(math.log(4 * dim * max_requests / delta)) / -math.log(gamma))
    return Calibration(
        **fields,
        secret=False,
        learn_steps=steps + first_steps,
        delete_steps=steps + tail,
        noise_steps=steps,
        noise_deviation=noise,
    )


def _begin(constants: Constants, form: Form, n, rows, epsilon, delta):
    """Check the arguments of both calibrations; γ = 0, where no noise is defined, is refused.

    Returns the fields of a `Calibration` that are known at once; s, how far one request can move
    the optimum; and ⌈log(Dmn/(2G))/log(1/γ)⌉, the steps that learning takes beyond a request's.
    """
    published = checks.choice("form", form, ("published", "best")) == "published"
    n, rows = int(checks.count("n", n)), int(checks.count("edits_per_request", rows))
    epsilon, delta = float(checks.positive("epsilon", epsilon)), float(checks.delta(delta))
    if constants.contraction == 0:
        raise CertificateRefused(
            "smoothness equals strong_convexity, so γ = 0 and the formulas have no meaning; "
            "declare a larger smoothness."
        )
    if published and epsilon > -math.log(delta):
        raise CertificateRefused(
            f"epsilon = {epsilon:g} is above log(1/δ) = {-math.log(delta):g}, and the "
            f"published theorem is for ε = O(log(1/δ)); give a smaller epsilon or delta, or "
            f"form='best'."
        )
    lipschitz = constants.lipschitz if published else constants.record_lipschitz
    convexity = constants.strong_convexity
    ratio = constants.diameter * convexity * n / (2 * lipschitz)
    fields: dict[str, Any] = {
        "constants": constants,
        "form": form,
        "n": n,
        "edits_per_request": rows,
        "epsilon": epsilon,
        "delta": delta,
        "conditions": ("ε = O(log(1/δ))", "n_i ≥ n/2 (n is fixed here)") if published else (),
    }
    moved = (4 if published else 2) * rows * lipschitz / (convexity * n)
    return fields, moved, max(0, math.ceil(math.log(ratio) / -math.log(constants.contraction)))


def _increment(epsilon, delta, low: float, high: float) -> float:
    """√(2log(2/δ) + high·ε) - √(2log(2/δ) + low·ε), without cancellation."""
    base = 2 * math.log(2 / delta)
    total = math.sqrt(base + high * epsilon) + math.sqrt(base + low * epsilon)
    return (high - low) * epsilon / total


def _least_steps(form: Form, gamma: float, dim: int, epsilon, delta) -> int:
    """The least I: Theorem 28's, or the first for which B ≤ A/2: σ is at most doubled by B."""
    root = math.sqrt(2 * dim)
    if form == "published":
        target = (1 - gamma) * _increment(epsilon, delta, 0, 1) / root
    else:
        odds = _increment(epsilon, delta, 0, 2) / (4 * root)
        target = odds / (1 + odds)
    return max(1, math.ceil(math.log(target) / math.log(gamma)))


def system(problem: Problem, calibration: Calibration) -> System:
    """Perturbed-GD with this calibration.

    Cost: n T gradients to learn, n T_i per request.

    Raises:
        CertificateRefused: a claim that was made for another problem.
        InputError: when run, a database or an edit of another size than calibrated for.
    """
    made = calibration
    if made.epsilon is not None:
        made.constants.check_covers(problem)

    def move(params, database, num_steps):
        return descend(
            params,
            database,
            problem,
            step_size=made.step_size,
            radius=made.radius,
            num_steps=num_steps,
        )

    def noisy(key, params):
        return perturb(key, params, made.noise_deviation)

    def learn(key, database):
        check_planned(database, made.n)
        params = move(problem.loss.template(database), database, made.learn_steps)
        spent = cost(made.n * made.learn_steps, retrained=1)
        return (params if made.secret else noisy(key, params)), spent

    def delete(key, before, edit, after, state):
        check_planned_edit(edit, made.edits_per_request)
        params = move(state, after, made.delete_steps)
        return (params if made.secret else noisy(key, params)), cost(made.n * made.delete_steps)

    return System(
        name="perturbed-gd"
        + ("" if made.secret else "-stateless")
        + ("-best" if made.form == "best" else ""),
        learn=learn,
        delete=delete,
        publish=noisy if made.secret else publish_model,
        predict=label_of(problem.loss),
        secret=(lambda state: state) if made.secret else nothing,
        guarantee=_guarantee(made),
        domain=problem.loss.domain,
    )


def _guarantee(made: Calibration) -> Guarantee:
    theorem = "Theorems 9 and 10" if made.secret else "Theorem 28"
    claimed = made.epsilon is not None
    return Guarantee(
        notion="(ε,δ)-unlearning" if claimed else "none",
        epsilon=made.epsilon,
        delta=made.delta,
        adaptive=("claimed" if made.secret else "claimed for the same algorithm")
        if claimed
        else "no",
        keeps="the iterate before the noise" if made.secret else "nothing",
        conditions=(
            "strongly convex, smooth, Lipschitz loss on the ball",
            "each release is judged alone",
            *made.conditions,
        ),
        reference=f"Neel, Roth & Sharifi-Malvajerdi 2021, {theorem}"
        + ("" if made.form == "published" else ", re-derived for replacement at fixed n"),
    )
