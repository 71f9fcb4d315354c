"""What calibrations share: the constants of a problem on a ball, and (ε, δ) as a divergence."""

import math
from dataclasses import dataclass

from dd_jax.errors import InputError
from dd_jax.guarantees import checks
from dd_jax.plans.conditions import require_convex
from dd_jax.types import num_records


@dataclass(frozen=True)
class Constants:
    """A strongly convex problem on the ball of radius R around 0, as the compared papers see it.

    Attributes:
        strong_convexity: m of one record's regularised loss.
        smoothness: S of one record's regularised loss.
        lipschitz: G of one record's regularised loss on the ball.
        record_lipschitz: G₀, the same without the regulariser, which two records share.
        radius: R; the domain's diameter is D = 2R.
    """

    strong_convexity: float
    smoothness: float
    lipschitz: float
    record_lipschitz: float
    radius: float

    def __post_init__(self):
        for name, value in vars(self).items():
            object.__setattr__(self, name, float(checks.positive(name, value)))
        if self.smoothness < self.strong_convexity:
            raise InputError(
                f"smoothness = {self.smoothness:g} is below strong_convexity = "
                f"{self.strong_convexity:g}; give S ≥ m."
            )

    @classmethod
    def of_problem(cls, problem, radius: float | None = None) -> "Constants":
        """m = λ, S = β + λ, G = L + λR, G₀ = L; R = L/λ unless given, which moves no optimum.

        Assumes: a convex, L-Lipschitz (or clipped single-index), β-smooth loss.

        Raises:
            CertificateRefused: the loss is not of that kind.
        """
        problem = problem.constants
        require_convex(problem, "record")
        lipschitz, l2 = problem.lipschitz, problem.l2
        radius = lipschitz / l2 if radius is None else radius
        return cls(
            strong_convexity=l2,
            smoothness=problem.loss.smoothness + l2,
            lipschitz=lipschitz + l2 * radius,
            record_lipschitz=lipschitz,
            radius=radius,
        )

    @property
    def diameter(self) -> float:
        """D = 2R."""
        return 2 * self.radius

    @property
    def contraction(self) -> float:
        """γ = (S - m)/(S + m), what one gradient step of 2/(S + m) leaves of a distance."""
        total = self.smoothness + self.strong_convexity
        return (self.smoothness - self.strong_convexity) / total

    @property
    def step_size(self) -> float:
        """η = 2/(S + m)."""
        return 2 / (self.smoothness + self.strong_convexity)


def root_slope(epsilon, delta) -> float:
    """√ρ = √(log(1/δ) + ε) - √(log(1/δ)): the claim R_q ≤ qρ for all q that gives (ε, δ).

    The inverse of ε = ρ + 2√(ρ log(1/δ)), written without cancellation.
    Assumes: ε > 0 and 0 < δ < 1.
    """
    epsilon = float(checks.positive("epsilon", epsilon))
    spare = -math.log(float(checks.delta(delta)))
    return epsilon / (math.sqrt(spare + epsilon) + math.sqrt(spare))


def check_planned(database, n: int) -> None:
    """Refuse a database of another size than the noise was made for (static, so jit is no veil)."""
    found = num_records(database)
    if found != n:
        raise InputError(
            f"the system was calibrated for n = {n}, the database has {found} records; "
            f"calibrate again with n={found}."
        )


def check_planned_edit(edit, rows: int) -> None:
    """Refuse an edit of more rows than the noise was made for."""
    found = edit.index.shape[0]
    if found > rows:
        raise InputError(
            f"the edit replaces {found} rows, the system was calibrated for {rows} per request; "
            f"split the edit or calibrate with edits_per_request={found}."
        )
