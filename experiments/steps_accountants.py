"""How many steps a deletion needs, and how much noise privacy needs, by each accountant.

All of them account for the same run: full-batch noisy gradient descent on a λ-strongly convex,
(λ+β)-smooth problem with L-Lipschitz losses, here λ = L = 1. None of the counts depends on n.
"""

import math
from typing import NamedTuple

from dd_jax.baselines import langevin_steps, pnsgd_passes, request_steps
from dd_jax.baselines.calibration import root_slope
from dd_jax.constants import LossConstants, ProblemConstants
from dd_jax.plans import plan_convex

N, DIM, L2, LIPSCHITZ = 1_000, 10, 1.0, 1.0
# What each claims: Noisy-GD's three about neighbouring runs, the peers' about retraining.
NOTIONS = {
    "paper": "data-deletion",
    "unrelaxed": "data-deletion",
    "optimal": "data-deletion",
    "Langevin": "Rényi unlearning",
    "PNSGD": "Rényi unlearning",
}


class Budget(NamedTuple):
    """Privacy of one release and what may remain of a deleted record.

    Attributes:
        eps_dp, eps_dd: ε of (ε, δ), or Rényi divergences of order q.
        delta: δ, None for Rényi divergences. order: q, None for (ε, δ).
    """

    eps_dp: float
    eps_dd: float
    delta: float | None = None
    order: float | None = None

    @property
    def linear(self) -> tuple[float, float, float]:
        """(q, ε_dp, ε_dd) for bounds linear in q; (ε, δ) by `rem:renyi_onesided` at its best q."""
        if self.delta is None:
            assert self.order is not None
            return self.order, self.eps_dp, self.eps_dd
        private, deleted = (2 * root_slope(e, self.delta) ** 2 for e in self[:2])
        return 2.0, private, deleted


class Problem(NamedTuple):
    """A condition number and a step size in units of 1/M."""

    kappa: float
    move: float = 0.5

    @property
    def smoothness(self) -> float:
        """β = (κ - 1) λ."""
        return (self.kappa - 1) * L2

    @property
    def step_size(self) -> float:
        """η."""
        return self.move / (self.kappa * L2)

    @property
    def constants(self) -> ProblemConstants:
        """λ, β and L as accounting sees them."""
        loss = LossConstants("example", True, True, LIPSCHITZ, self.smoothness)
        return ProblemConstants(loss, L2)


def paper_noise(budget: Budget) -> float:
    """σ² = 4qL²/(λ ε_dp n²), by `thm:chourasia` and by Langevin unlearning alike, whatever η."""
    order, eps_dp, _ = budget.linear
    return 4 * order * LIPSCHITZ**2 / (L2 * eps_dp * N**2) * (1 + 1e-12)


def noise(accountant: str, problem: Problem, budget: Budget) -> float:
    """The least σ² for which one release is private, by the accountant's own bound."""
    return _plan(accountant, problem, budget, None).noise_variance


def own_steps(problem: Problem, budget: Budget) -> int:
    """K_U of the optimal accountant at its own, smaller, noise."""
    return _plan("optimal", problem, budget, None).delete_steps


def steps(accountant: str, problem: Problem, budget: Budget) -> float:
    """K_U ≥ 1 at the paper's noise; NaN where the accountant does not allow the step size."""
    if problem.move > largest_move(accountant, problem.kappa) * (1 + 1e-12):
        return math.nan
    variance = paper_noise(budget)
    if accountant in ("paper", "unrelaxed", "optimal"):
        return _plan(accountant, problem, budget, variance).delete_steps
    if budget.delta is None:
        return _published_at_order(accountant, problem, budget, variance)
    case = request_steps.setting(
        problem.constants,
        n=N,
        epsilon=budget.eps_dd,
        delta=budget.delta,
        noise_variance=variance,
        learn_steps=1,
        requests=1,
        edits_per_request=1,
        step_size=problem.step_size,
    )
    if accountant == "Langevin":
        return langevin_steps.published_steps(case)[0][0]
    return pnsgd_passes.passes(case, N, None)[0][0]


def largest_move(accountant: str, kappa: float) -> float:
    """ηM at most: 2M/(2λ+β) for the optimal bound, below 1 for the paper's, 1 for the peers'."""
    return {"optimal": 2 * kappa / (kappa + 1), "paper": 0.999, "unrelaxed": 0.999}.get(
        accountant, 1.0
    )


def _plan(accountant, problem: Problem, budget: Budget, variance: float | None):
    options = {"n": N, "dim": DIM, "step_size": problem.step_size, "accountant": accountant}
    if accountant == "optimal" and budget.delta is not None:
        budgets = {"eps_dp": budget.eps_dp, "eps_dd": budget.eps_dd, "delta": budget.delta}
    else:
        order, eps_dp, eps_dd = budget.linear
        budgets = {"eps_dp": eps_dp, "eps_dd": eps_dd, "order": order}
    return plan_convex(problem.constants, noise_variance=variance, **budgets, **options)


def _published_at_order(accountant: str, problem: Problem, budget: Budget, variance: float) -> int:
    """The least K ≥ 1 for which a peer's published bound at order q is within ε_dd."""
    order, rate = budget.linear[0], problem.step_size * L2
    if accountant == "Langevin":
        start = langevin_steps.privacy_renyi(order, LIPSCHITZ, L2, variance, N)
        exponent = rate / order
    else:
        far = pnsgd_passes.batch_distance(LIPSCHITZ, problem.step_size, 1 - rate, N, 1)
        start = order * far**2 / (2 * problem.step_size * variance)
        exponent = -2 * math.log1p(-rate)
    needed = math.log(start / budget.eps_dd) / exponent
    return max(1, math.ceil(needed - 1e-9))
