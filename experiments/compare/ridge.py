"""Ridge regression by noisy sums and by Noisy-GD: where each is better, without running either.

Both release k models that together are (ε, δ)-private for a record that stays, after k - 1
deletions. Noisy sums (`baselines.sufficient_statistics`) forget exactly, at the price of one solve,
and pay the whole privacy of a release every time. Noisy-GD pays n gradients per pass and only the
privacy of its new steps.

In the eigenvectors of the mean of aaᵀ (eigenvalues h_i, b_i the mean of ay), the excess of the mean
squared error is ½ Σ h_i [(mean_i - b_i/h_i)² + variance_i]. Noise of the sums enters to first
order, and Noisy-GD's law is that of squared error whose residuals the clip norm of 1 does not
reach. Each system takes its best λ from one grid.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

import dd_jax as dd
from dd_jax.baselines import sufficient_statistics
from dd_jax.guarantees import convex, renyi
from dd_jax.guarantees.streams import Stream

L2_GRID = tuple(float(l2) for l2 in 10.0 ** np.arange(-6, 0.1, 0.5))
# Numbers of steps per request that Noisy-GD may choose from.
STEPS = tuple(2**k for k in range(12))


class Moments(NamedTuple):
    """What squared error needs to know of its records.

    Attributes:
        curvatures: h, the eigenvalues of the mean of aaᵀ, none negative.
        slopes: b, the mean of ay along the eigenvectors; 0 where h is.
    """

    curvatures: np.ndarray
    slopes: np.ndarray

    @classmethod
    def of(cls, records: dd.Labelled) -> "Moments":
        """The moments of records."""
        features = np.asarray(records.features, np.float64)
        values, vectors = np.linalg.eigh(features.T @ features / len(features))
        slopes = vectors.T @ (np.asarray(records.label, np.float64) @ features / len(features))
        seen = values > 1e-9 * values[-1]
        return cls(np.where(seen, values, 0.0), np.where(seen, slopes, 0.0))

    def excess(self, mean: np.ndarray, variance: np.ndarray) -> float:
        """½ Σ h_i [(mean_i - b_i/h_i)² + variance_i]."""
        h, b = self.curvatures, self.slopes
        best = np.divide(b, h, out=np.zeros_like(b), where=h > 0)
        return float(np.sum(h * ((mean - best) ** 2 + variance)) / 2)


class Choice(NamedTuple):
    """A system at its best.

    Attributes:
        risk: excess of the mean squared error of one release. l2: λ.
        passes: over the data, per deletion. flops: of one deletion.
    """

    risk: float
    l2: float
    passes: float
    flops: float


class Target(NamedTuple):
    """What is promised: k releases together (ε, δ), a deleted record a share of that in μ²."""

    n: int
    epsilon: float
    delta: float
    releases: int = 1
    share: float = 0.1


def noisy_sums(moments: Moments, target: Target) -> Choice:
    """Sufficient statistics at the best λ; a deleted record leaves nothing."""
    dim = len(moments.curvatures)
    flops = 2 * dim**3 / 3 + 4 * (2 * dim + 2) ** 2
    return min(Choice(_sums_risk(moments, target, dim, l2), l2, 0.0, flops) for l2 in L2_GRID)


def _sums_risk(moments: Moments, target: Target, dim: int, l2: float) -> float:
    made = sufficient_statistics.calibrate(
        dd.Problem(dd.losses.squared(label_bound=1.0), l2),
        n=target.n,
        dim=dim,
        epsilon=target.epsilon,
        delta=target.delta,
        releases=target.releases,
    )
    whole = moments.curvatures + made.ridge / target.n
    mean = moments.slopes / whole
    # The noise Eθ of the matrix has covariance v_M/2 (‖θ‖² I + θθᵀ).
    spread = made.vector_variance + made.matrix_variance / 2 * (np.sum(mean**2) + mean**2)
    return moments.excess(mean, spread / (target.n * whole) ** 2)


def noisy_gd(moments: Moments, target: Target, batches: int = 1) -> Choice:
    """Noisy-GD at the best λ and number of steps, the noise what both promises need."""
    return min(_gd_choice(moments, target, l2, steps, batches) for l2 in L2_GRID for steps in STEPS)


def _gd_choice(moments: Moments, target: Target, l2, steps: int, batches: int) -> Choice:
    run = convex.Descent(
        order=2,
        lipschitz=1.0,
        l2=l2,
        smoothness=1.0,
        noise_variance=1.0,
        n=target.n,
        step_size=1 / (1 + l2),
        batches=batches,
    )
    budget = renyi.gdp_from_epsilon_delta(target.epsilon, target.delta) ** 2
    learn = batches * math.ceil(20 / (run.step_size * l2 * batches))
    joint = Stream(run, learn, steps).joint(target.releases - 1)
    left = convex.deletion_optimal(run, steps)
    noise = max(joint / budget, left / (target.share * budget))
    run = replace(run, noise_variance=noise)
    whole = moments.curvatures + l2
    kept = 1 - run.step_size * whole
    variance = 2 * run.step_size * noise / (1 - kept**2)
    passes = steps / batches
    flops = 4 * target.n * len(whole) * passes
    return Choice(moments.excess(moments.slopes / whole, variance), l2, passes, flops)


def crossing(moments: Moments, target: Target, batches: int = 1) -> int:
    """The most leading directions of the records for which noisy sums have the smaller risk.

    0 if Noisy-GD has it even for one direction. Found by halving: sums need a ridge of the norm of
    their noise, which grows with √d, and so lose as directions of little curvature are added.
    """

    def sums_win(dim: int) -> bool:
        first = Moments(*(part[-dim:] for part in moments))
        return noisy_sums(first, target).risk < noisy_gd(first, target, batches).risk

    low, high = 0, len(moments.curvatures) + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if sums_win(middle) else (low, middle)
    return low


def as_text(moments: Moments, targets: Iterable[Target], batches: Sequence[int] = (1, 10)) -> str:
    """A Markdown table, a line for each target."""
    heads = [f"Noisy-GD, m = {m}" for m in batches]
    columns = ["n", "releases", "noisy sums", *heads, "flops of a deletion", *heads]
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    for target in targets:
        sums = noisy_sums(moments, target)
        found = [noisy_gd(moments, target, m) for m in batches]
        cells = [f"{target.n:,}", f"{target.releases:,}", f"{sums.risk:.4f}"]
        cells += [f"{choice.risk:.4f} ({choice.passes:.3g} passes)" for choice in found]
        cells += [f"{sums.flops:.2g}", *(f"{choice.flops:.2g}" for choice in found)]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)
