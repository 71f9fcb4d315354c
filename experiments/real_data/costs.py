"""What a deletion costs on a data set, by every accountant, beside retraining.

The privacy of one release is (ε, δ = 1/n) by exact Gaussian DP, that is μ_dp. How little may remain
of a deleted record is asked in two units. As a share of a Rényi divergence, R_q ≤ ε_dp/s with ε_dp
= q μ_dp²/2: the same μ_dp/√s at every order. Or as the ε of (ε/s, δ), which is a smaller μ.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

import dd_jax as dd
from dd_jax.baselines import langevin
from dd_jax.guarantees import renyi, risk
from dd_jax.plans.numbers import edited_descent

# Bounds between neighbours are linear in the order, so this choice moves no number of steps.
ORDER = 2.0
SHARES = (2, 10)


class Setting(NamedTuple):
    """A data set's size, λ, and what is asked of the curator; δ = 1/n."""

    problem: dd.Problem
    n: int
    dim: int
    epsilon: float
    deletions: int

    @property
    def delta(self) -> float:
        """δ = 1/n."""
        return 1 / self.n

    @property
    def mu_dp(self) -> float:
        """The μ of Gaussian DP that is (ε, δ)."""
        return renyi.gdp_from_epsilon_delta(self.epsilon, self.delta)

    @property
    def targets(self) -> list["Target"]:
        """What may remain of a deleted record, see `targets`."""
        return list(targets(self.epsilon, self.n))


class Target(NamedTuple):
    """What may remain of a deleted record: a μ, in the unit it was asked in.

    Attributes:
        words: for tables.
        share: s. mu: of Gaussian DP.
        is_renyi: whether s divides the Rényi divergence, or else the ε of (ε, δ).
    """

    words: str
    share: int
    mu: float
    is_renyi: bool


def targets(epsilon: float, n: int) -> Iterator[Target]:
    """The shares of the Rényi divergence, then those of ε, where one release is (ε, 1/n)-DP."""
    for share in SHARES:
        mu = renyi.gdp_from_epsilon_delta(epsilon, 1 / n) / math.sqrt(share)
        yield Target(f"Rényi divergence ε_dp/{share}", share, mu, True)
    for share in SHARES:
        mu = renyi.gdp_from_epsilon_delta(epsilon / share, 1 / n)
        yield Target(f"(ε/{share}, δ)", share, mu, False)


def make_plan(setting: Setting, target: Target, **options) -> dd.Plan:
    """The plan with μ_dp for one release and the target's μ after a deletion."""
    to_eps = ORDER / 2
    return dd.plan_convex(
        setting.problem,
        n=setting.n,
        dim=setting.dim,
        order=ORDER,
        eps_dp=to_eps * setting.mu_dp**2,
        eps_dd=to_eps * target.mu**2,
        **options,
    )


class Cost(NamedTuple):
    """Steps of full gradients, a pass over the data each; NaN where nothing is stated.

    Attributes:
        delete: K_U of the optimal accountant. learn: K_L.
        retrain: the fewest steps from scratch with the risk bound that every release has.
        retrain_last: the same, with the smaller bound of the release after the last deletion.
        paper_delete, paper_learn: the paper's for the same divergences.
        paper_delete_risk: the paper's with its risk bound as well.
        langevin_first: Langevin's published steps for the first deletion, at the same σ².
        langevin: the mean over all deletions, in which each one inherits from those before.
        risk_bound, risk_bound_last: the two bounds on the excess risk.
    """

    delete: float
    learn: float
    retrain: float
    retrain_last: float
    paper_delete: float
    paper_learn: float
    paper_delete_risk: float
    langevin_first: float
    langevin: float
    risk_bound: float
    risk_bound_last: float


def cost(setting: Setting, target: Target) -> Cost:
    """Every number of steps for one target."""
    plan = make_plan(setting, target)
    certificate = plan.certificate(request=setting.deletions)
    last = certificate.risk_bound_request
    assert certificate.risk_bound is not None
    assert last is not None
    return Cost(
        plan.delete_steps,
        plan.learn_steps,
        retraining_steps(plan, certificate.risk_bound),
        retraining_steps(plan, last),
        *_paper(setting, target),
        *_langevin(setting, target, plan),
        certificate.risk_bound,
        last,
    )


def retraining_steps(plan: dd.Plan, risk_bound: float) -> float:
    """The fewest K_L, at the plan's η and σ², whose certified excess risk is at most the bound."""
    return risk.learn_steps_convex(edited_descent(plan), plan.dim, risk_bound, plan.init_variance)


def _paper(setting: Setting, target: Target) -> tuple[float, float, float]:
    """(K_U, K_L, K_U with the risk bound); the paper states Rényi divergences only."""
    if not target.is_renyi:
        return math.nan, math.nan, math.nan
    plan = make_plan(setting, target, accountant="paper")
    constants = plan.problem
    for_risk = risk.delete_steps_convex_paper(
        ORDER, constants.l2, constants.loss.smoothness, plan.dim, plan.eps_dp_asked
    )
    return plan.delete_steps, plan.learn_steps, max(plan.delete_steps, for_risk)


def _langevin(setting: Setting, target: Target, plan: dd.Plan) -> tuple[float, float]:
    made = langevin.calibrate(
        setting.problem,
        n=setting.n,
        epsilon=renyi.gdp_epsilon(target.mu, setting.delta),
        delta=setting.delta,
        noise_variance=plan.noise_variance,
        learn_steps=plan.learn_steps,
        requests=setting.deletions,
    )
    return made.request_steps[0], float(np.mean(made.request_steps))
