"""What calibrations share: the constants of a problem on a ball, and (ε, δ) as a divergence."""

import math
from dataclasses import dataclass

from dd_jax import checks
from dd_jax.errors import CertificateRefused, InputError
from dd_jax.guarantees import floats
from dd_jax.plans.conditions import require_convex
from dd_jax.types import num_records

# Of one record, for every label in the domain of a catalogue loss that is never negative.
VALUE_AT_ZERO = {"logistic": math.log(2)}


@dataclass(frozen=True)
class Constants:
    """A strongly convex problem on the ball of radius R around 0, as the compared papers see it.

    Attributes:
        strong_convexity: m of one record's regularised loss.
        smoothness: S of one record's regularised loss.
        lipschitz: G of one record's regularised loss on the ball.
        record_lipschitz: G₀, the same without the regulariser, which two records share.
        radius: R; the domain's diameter is D = 2R.
        reach: bound on the norm of the minimiser, R unless a smaller one is known.
    """

    strong_convexity: float
    smoothness: float
    lipschitz: float
    record_lipschitz: float
    radius: float
    reach: float = math.inf

    def __post_init__(self):
        radius = float(checks.positive("radius", self.radius))
        object.__setattr__(self, "reach", min(self.reach, radius))
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

        (λ/2)‖θ*‖² ≤ ℒ(0) bounds the minimiser where the loss is known at 0: log 2 if logistic.

        Assumes: a convex, L-Lipschitz (or clipped single-index), β-smooth loss.

        Raises:
            CertificateRefused: the loss is not of that kind.
        """
        problem = problem.constants
        require_convex(problem, "record")
        lipschitz, l2 = problem.lipschitz, problem.l2
        radius = lipschitz / l2 if radius is None else radius
        at_zero = VALUE_AT_ZERO.get(problem.loss.name) if _as_proved(problem) else None
        return cls(
            strong_convexity=l2,
            smoothness=problem.loss.smoothness + l2,
            lipschitz=lipschitz + l2 * radius,
            record_lipschitz=lipschitz,
            radius=radius,
            reach=math.inf if at_zero is None else math.sqrt(2 * at_zero / l2),
        )

    def check_covers(self, problem) -> None:
        """Refuse a problem that these constants are not true of.

        Raises:
            CertificateRefused: m above λ, or S, G or G₀ below what the problem has on the ball.
        """
        true = Constants.of_problem(problem, self.radius)
        spare = 1 + 1e-9
        if (
            self.strong_convexity > true.strong_convexity * spare
            or self.smoothness * spare < true.smoothness
            or self.lipschitz * spare < true.lipschitz
            or self.record_lipschitz * spare < true.record_lipschitz
        ):
            raise CertificateRefused(
                "the calibration was made for another problem: its constants are not true of this "
                "one; calibrate with Constants.of_problem(problem)."
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


def _as_proved(problem) -> bool:
    """Whether the loss is the catalogue's own and not clipped."""
    return problem.loss.established == "proved" and problem.clip_norm is None


def require_float32_noise(deviation: float, reach: float, remedy: str) -> None:
    """Refuse noise that drowns in the rounding of a model of norm `reach`.

    Raises:
        CertificateRefused: the deviation is below `floats.least_float32_noise`.
    """
    least = floats.least_float32_noise(reach)
    if deviation < least:
        raise CertificateRefused(
            f"noise of deviation {deviation:.3g} is below {least:.3g}, 100 float32 roundings of a "
            f"model of norm {reach:.3g}, and would hide nothing; {remedy}."
        )


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
