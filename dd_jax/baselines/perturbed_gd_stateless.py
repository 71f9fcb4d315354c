"""Noise and steps of perturbed gradient descent that starts from the published model.

Neel, Roth & Sharifi-Malvajerdi 2021, Theorem 28; see `perturbed_gd_noise` for what is shared.
"""

import math

from dd_jax import checks
from dd_jax.baselines.calibration import Constants, require_float32_noise
from dd_jax.baselines.perturbed_gd_noise import (
    Calibration,
    Form,
    check_form,
    gamma_of,
    learn_steps,
    shift,
)
from dd_jax.errors import CertificateRefused


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
    """Noise and steps for the form that starts from the published model.

    With A = √(2log(2/δ) + 2ε) - √(2log(2/δ)), B = 2√(2d) γ^I/(1 - γ^I) and s as in `calibrate`:

        σ = 8rGγ^I/(mn(1-γ^I)(√(2log(2/δ)+3ε) - √(2log(2/δ)+2ε)))    as published
        σ = 2sγ^I/((1-γ^I)(A - B)), A > B                 at its best, and as the proof needs
        I ≥ log(√(2d)/((1-γ)(√(2log(2/δ)+ε) - √(2log(2/δ)))))/log(1/γ)    as published

    At its best any I with A > B will do; the least with B ≤ A/2 is taken unless one is given.

    A request runs T_i = I + ⌈log log(4di/δ)/log(1/γ)⌉ steps. T_i at i = max_requests is used for
    every request, so that not even a counter is kept; σ is for I, not for T_i.

    Guarantee: (ε, δ)-unlearning of each release up to `max_requests`. The published σ is smaller
    than its own proof needs for some I where γ < 1/2; the conditions then say so.
    Assumes: as `calibrate`. Neel et al. 2021, Theorem 28.

    Raises:
        CertificateRefused: too few noise_steps for the theorem, or so many that float32 cannot
            hold the noise.
    """
    gamma, dim = gamma_of(constants), int(checks.count("dim", dim))
    max_requests = int(checks.count("max_requests", max_requests))
    published = check_form(form, epsilon, delta)
    least = _least_steps(form, gamma, dim, epsilon, delta)
    steps = least if noise_steps is None else int(checks.count("noise_steps", noise_steps))
    if form == "published" and steps < least:
        raise CertificateRefused(f"noise_steps = {steps}; Theorem 28 needs at least {least}.")
    moved, lipschitz = shift(constants, form, n, edits_per_request)
    needed = _stateless_noise(gamma**steps, dim, epsilon, delta, moved)
    noise = needed
    if form == "published":
        noise = 2 * moved * gamma**steps / ((1 - gamma**steps) * _increment(epsilon, delta, 2, 3))
        if noise < needed:
            published += (f"the published noise; its proof needs {needed:g}, not {noise:g}",)
    elif not math.isfinite(needed):
        raise CertificateRefused(
            f"noise_steps = {steps} cannot work off the noise of the model that it starts from; "
            f"give at least {least}."
        )
    fewer = f"fewer noise_steps than {steps}" if steps > least else "a smaller epsilon or delta"
    require_float32_noise(noise, constants.reach, f"give {fewer}")
    tail = math.ceil(math.log(math.log(4 * dim * max_requests / delta)) / -math.log(gamma))
    return Calibration(
        constants=constants,
        secret=False,
        form=form,
        n=n,
        edits_per_request=edits_per_request,
        epsilon=float(epsilon),
        delta=float(delta),
        learn_steps=learn_steps(constants, n, lipschitz, steps),
        delete_steps=steps + tail,
        noise_steps=steps,
        noise_deviation=noise,
        conditions=(f"at most {max_requests} requests", *published),
    )


def _increment(epsilon, delta, low: float, high: float) -> float:
    """√(2log(2/δ) + high·ε) - √(2log(2/δ) + low·ε), without cancellation."""
    base = 2 * math.log(2 / float(checks.delta(delta)))
    epsilon = float(checks.positive("epsilon", epsilon))
    return (
        (high - low)
        * epsilon
        / (math.sqrt(base + high * epsilon) + math.sqrt(base + low * epsilon))
    )


def _least_steps(form: Form, gamma: float, dim: int, epsilon, delta) -> int:
    """The least I: Theorem 28's, or the first for which B ≤ A/2: σ is at most doubled by B."""
    root = math.sqrt(2 * dim)
    if form == "published":
        target = (1 - gamma) * _increment(epsilon, delta, 0, 1) / root
    else:
        odds = _increment(epsilon, delta, 0, 2) / (4 * root)
        target = odds / (1 + odds)
    return max(1, math.ceil(math.log(target) / math.log(gamma)))


def _stateless_noise(left: float, dim: int, epsilon, delta, shift: float) -> float:
    """σ = 2sγ^I/((1-γ^I)(A - B)); infinite where A ≤ B. `left` is γ^I."""
    room = _increment(epsilon, delta, 0, 2) - 2 * math.sqrt(2 * dim) * left / (1 - left)
    return 2 * shift * left / ((1 - left) * room) if room > 0 else math.inf
