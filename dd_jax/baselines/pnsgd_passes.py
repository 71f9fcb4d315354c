"""How many passes PNSGD unlearning needs, by the published bounds. Write c = 1 - ηλ."""

import math
from dataclasses import dataclass

import numpy as np

from dd_jax import checks
from dd_jax.baselines import request_steps
from dd_jax.baselines.calibration import root_slope
from dd_jax.baselines.request_steps import Calibration, Setting
from dd_jax.guarantees import convex, floats
from dd_jax.plans.numbers import whole


@dataclass(frozen=True)
class PnsgdCalibration(Calibration):
    """`Calibration` in passes over the data, with batches of b places and a projection radius R.

    Attributes:
        batch_size: b.
        radius: R, or None for no projection; the claim then takes learning as converged.
        distances: Z_1, Z_2, …, the bound on how far request s starts from retraining (W∞).
    """

    batch_size: int
    radius: float | None
    distances: tuple[float, ...]

    @property
    def batches(self) -> int:
        """L = ⌈n/b⌉."""
        return -(-self.n // self.batch_size)


def calibrate(
    problem,
    *,
    n: int,
    epsilon: float,
    delta: float,
    noise_variance: float,
    batch_size: int,
    learn_epochs: int,
    radius: float | None = None,
    requests: int = 1,
    edits_per_request: int = 1,
    step_size: float | None = None,
) -> PnsgdCalibration:
    """The fewest passes K_1, …, K_i, at least one each, after which every release meets (ε, δ).

    Z = 2ηGr / (b(1 - c^l)),  Z_1 = Z + 2R c^{Tl},  Z_{s+1} = Z_s c^{K_s l} + Z
    K_s is the least with min_q [ε_s(q) + log(1/δ)/(q-1)] ≤ ε; the first request uses
    the plain form and later ones the sharper one, as the authors do. All are linear in q, so the
    condition is slope ≤ (√(log(1/δ) + ε) - √(log(1/δ)))².

    Guarantee: (ε, δ)-unlearning against converged retraining with the same batches.
    Assumes: convex, L-Lipschitz (or clipped single-index), β-smooth loss; η ≤ 1/(λ+β);
        non-adaptive requests; replace-one; r records of one request may share a batch.

    Args:
        problem: the regularised problem, or its constants.
        n: number of records. epsilon, delta: the target after every request.
        noise_variance: σ². batch_size: b. learn_epochs: T.
        radius: R > 0 of the projection; None takes learning as converged (T → ∞), unprojected.
        requests: i, how many requests the claim covers. edits_per_request: r.
        step_size: η; 1/(λ+β) unless given.
    """
    case = request_steps.setting(
        problem,
        n=n,
        epsilon=epsilon,
        delta=delta,
        noise_variance=noise_variance,
        learn_steps=learn_epochs,
        requests=requests,
        edits_per_request=edits_per_request,
        step_size=step_size,
    )
    batch_size = _batch_size(batch_size, case.n)
    radius = None if radius is None else float(checks.positive("radius", radius))
    epochs, distances = passes(case, batch_size, radius)
    best_order = 1 + math.sqrt(-math.log(case.delta)) / root_slope(case.epsilon, case.delta)
    return case.calibration(
        2 * case.noise_variance / case.problem.l2,
        epochs,
        [float(best_order)] * case.requests,
        "published",
        PnsgdCalibration,
        batch_size=batch_size,
        radius=radius,
        distances=tuple(distances),
    )


def _batch_size(batch_size, n: int) -> int:
    return checks.whole("batch_size", batch_size, least=1, most=n)


def unlearning_renyi(order, distance, contraction, noise_variance, step_size, steps, *, sharp):
    """What K' steps leave of a distance Z from retraining, as published.

    ε(q) = q Z² c^{2K'} / (2ησ²), or sharper q Z² / (2ησ²) · (1-c²) c^{2K'} / (1 - c^{2K'})

    Guarantee: R_q of the release from retraining, K' ≥ 1. Twice the least that is true of the
    sharper form's argument, since one step adds variance 2ησ² and not ησ².
    Assumes: c-Lipschitz steps. Chien et al. 2024b; the sharper form is the one of their code.
    """
    steps = checks.count("steps", steps)
    scale = floats.product(checks.order(order), distance, distance, 1 / (2 * step_size))
    left = contraction ** (2 * steps)
    share = (1 - contraction**2) / (1 - left) if sharp else 1.0
    return floats.plain(floats.product(scale, 1 / noise_variance, left, share))


def batch_distance(lipschitz, step_size, contraction, batch_size, batches, records=1):
    """Z = 2ηGr / (b(1 - c^l)), how far converged runs on neighbouring databases can be (W∞)."""
    sensitivity = 2 * step_size * lipschitz * records / batch_size
    return sensitivity / (1 - contraction**batches)


def passes(case: Setting, batch_size: int, radius) -> tuple[list[int], list[float]]:
    """K_s and Z_s, one request after another."""
    contraction = 1 - case.step_size * case.problem.l2
    batches = -(-case.n // batch_size)
    fresh = batch_distance(
        case.lipschitz, case.step_size, contraction, batch_size, batches, case.edits_per_request
    )
    unconverged = (
        0.0 if radius is None else 2 * radius * contraction ** (case.learn_steps * batches)
    )
    target = root_slope(case.epsilon, case.delta) ** 2
    exponent = convex.contraction_exponent(case.step_size, case.problem.l2, 2 * batches)
    distance, epochs, distances = fresh + unconverged, [], []
    for request in range(case.requests):
        slope = distance**2 / (2 * case.step_size * case.noise_variance)
        # c^{2Kl} ≤ target/slope, or (1-c²)y/(1-y) ≤ target/slope for y = c^{2Kl}
        ratio = target / slope
        least = ratio if request == 0 else ratio / (ratio + 1 - contraction**2)
        count = np.ceil(np.log(least) / exponent)
        epochs.append(max(1, whole("request_steps", count)))
        distances.append(float(distance))
        distance = distance * contraction ** (epochs[-1] * batches) + fresh
    return epochs, distances
