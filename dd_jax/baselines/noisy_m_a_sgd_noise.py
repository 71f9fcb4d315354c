"""Noise, steps and step size of noisy-m-A-SGD (Ullah et al. 2021)."""

import math
from dataclasses import dataclass

from dd_jax import checks
from dd_jax.baselines.calibration import Constants
from dd_jax.errors import CertificateRefused


@dataclass(frozen=True)
class Calibration:
    """Settings of a run and the stability ρ that they were made for.

    Attributes:
        stability: ρ, the total variation that replacing one record can cause.
        n: number of records. batch_size: b. num_steps: T.
        step_size: η. radius: R of the ball that is projected onto.
        noise_deviation: σ of each coordinate of θ_t.
        constants: those of the problem that the settings are for, None for settings of one's own.
    """

    stability: float
    n: int
    batch_size: int
    num_steps: int
    step_size: float
    radius: float
    noise_deviation: float
    constants: Constants | None = None

    def recompute_bound(self, edits_per_request: int = 1) -> float:
        """P[a request reruns steps] ≤ r ρ √T / 8: T steps, b/n each to hit, G/(bσ) to reject."""
        rows = float(checks.count("edits_per_request", edits_per_request))
        return min(1.0, rows * self.stability * math.sqrt(self.num_steps) / 8)


def calibrate(
    constants: Constants,
    *,
    n: int,
    dim: int,
    stability: float,
    batch_size: int,
    num_steps: int | None = None,
) -> Calibration:
    """Noise, steps and step size for total-variation stability ρ; unlearning is exact for any.

        T = max{(ρn)²/(bd), √(SDρn/(G√d)), (ρn)²/(16b²)},  σ = 8√T G/(nρ)
        η = min{1/(2S), D/(√(2G²/b + σ²d) T^{3/2})}

    The last term of T is the theorem's condition on it; T is rounded up.

    Guarantee: ρ-TV-stable learning; the recomputation probability of `recompute_bound`.
    Assumes: convex, S-smooth, G-Lipschitz loss on a ball of diameter D; ρ ≤ 1.
    Ullah et al. 2021, noisy-m-A-SGD; η as in its proof.

    Raises:
        CertificateRefused: ρ above 1, or a number of steps below the theorem's condition.
    """
    n, dim, batch = (
        int(checks.count(name, value))
        for name, value in (("n", n), ("dim", dim), ("batch_size", batch_size))
    )
    rho = float(checks.positive("stability", stability))
    if rho > 1:
        raise CertificateRefused(f"stability = {rho:g}; a total variation is at most 1.")
    checks.whole("batch_size", batch, least=1, most=n)
    big_g, diameter = constants.lipschitz, constants.diameter
    needed = max(1, math.ceil((rho * n) ** 2 / (16 * batch**2)))
    accurate = max(
        (rho * n) ** 2 / (batch * dim),
        math.sqrt(constants.smoothness * diameter * rho * n / (big_g * math.sqrt(dim))),
    )
    steps = max(needed, math.ceil(accurate)) if num_steps is None else num_steps
    steps = int(checks.count("num_steps", steps))
    if steps < needed:
        raise CertificateRefused(
            f"num_steps = {steps} is below (ρn)²/(16b²): give at least {needed}, "
            f"larger batches or a smaller stability."
        )
    noise = 8 * math.sqrt(steps) * big_g / (n * rho)
    spread = math.sqrt(2 * big_g**2 / batch + noise**2 * dim)
    step_size = min(1 / (2 * constants.smoothness), diameter / (spread * steps**1.5))
    return Calibration(rho, n, batch, steps, step_size, constants.radius, noise, constants)
