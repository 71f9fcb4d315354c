"""How many passes PNSGD unlearning needs, by the published bounds. Write c = 1 - ηλ."""

import numpy as np

from dd_jax.baselines.calibration import root_slope
from dd_jax.baselines.request_steps import Setting
from dd_jax.guarantees import checks, privacy
from dd_jax.plans.convex import whole


def unlearning_renyi(order, distance, contraction, noise_variance, step_size, steps, *, sharp):
    """What K' steps leave of a distance Z from retraining, as published.

    ε(q) = q Z² c^{2K'} / (2ησ²), or sharper q Z² / (2ησ²) · (1-c²) c^{2K'} / (1 - c^{2K'})

    Guarantee: R_q of the release from retraining, K' ≥ 1. Twice the least that is true of the
    sharper form's argument, since one step adds variance 2ησ² and not ησ².
    Assumes: c-Lipschitz steps. Chien et al. 2024b; the sharper form is the one of their code.
    """
    steps = checks.count("steps", steps)
    scale = checks.product(checks.order(order), distance, distance, 1 / (2 * step_size))
    left = contraction ** (2 * steps)
    share = (1 - contraction**2) / (1 - left) if sharp else 1.0
    return checks.plain(checks.product(scale, 1 / noise_variance, left, share))


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
    exponent = privacy.contraction_exponent(case.step_size, case.problem.l2, 2 * batches)
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
