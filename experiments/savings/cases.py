"""The systems of `tab:comparision`, each calibrated for one and the same target.

A target is (ε, δ) for a deleted record and a bound α on the excess risk of every release. For each
system its own analysis decides how many steps an edit needs, and how many learning from scratch
needs to be certified for the same α: that is what retraining costs.
"""

import math
from dataclasses import replace
from typing import NamedTuple

import dd_jax as dd
from dd_jax.baselines import noisy_gd_system, noisy_m_a_sgd, perturbed_gd
from dd_jax.baselines.base import Constants, System
from dd_jax.errors import CertificateRefused
from dd_jax.guarantees.risk import delete_steps_convex_paper, excess_risk_convex_paper

MOST_STEPS = 300


class Target(NamedTuple):
    """What every system is asked for.

    Attributes:
        n, dim: records and parameters. l2: λ; L = 1 and β = 1.
        epsilon, delta: what may remain of a deleted record.
        edits: r, records replaced per request. requests: how many are served.
        risk: α, or None for the risk that `thm:unlearning_accuracy_convex` promises at this n.
    """

    n: int
    dim: int
    l2: float
    epsilon: float
    delta: float
    edits: int = 1
    requests: int = 1
    risk: float | None = None

    @property
    def problem(self) -> dd.Problem:
        """Huber regression: 1-Lipschitz, 1-smooth."""
        return dd.Problem(dd.losses.huber(), self.l2)

    @property
    def order(self) -> float:
        """Q = 1 + (2/ε) log(1/δ), at which (q, ε/2)-data-deletion gives (ε, δ)."""
        return 1 + 2 / self.epsilon * math.log(1 / self.delta)

    def theorem_risk(self, eps_dp: float) -> float:
        """10κqdL²/(λ ε_dp n²), `thm:unlearning_accuracy_convex`."""
        return excess_risk_convex_paper(self.order, 1.0, self.l2, 1.0, self.n, self.dim, eps_dp)

    @property
    def excess_risk(self) -> float:
        """α: the one that was asked for, or the theorem's at ε_dp = ε/2."""
        return self.theorem_risk(self.epsilon / 2) if self.risk is None else self.risk


class Case(NamedTuple):
    """A system at a target: the one that serves requests, and the one that learns from scratch.

    They differ where the guarantee of later requests needs longer learning than the risk does.
    """

    serving: System
    retraining: System


def noisy_gd_paper(target: Target) -> Case:
    """Noisy-GD as `thm:unlearning_accuracy_convex` has it, with the most noise that α allows.

    The theorem's risk is 10κqd/(λ ε_dp n²), so α sets ε_dp ≤ ε/2, and ε_dd = ε_dp.
    """
    share = target.theorem_risk(1.0) / target.excess_risk
    budget = min(target.epsilon / 2, share)
    problem = target.problem
    plan = dd.plan_convex(
        problem,
        n=target.n,
        dim=target.dim,
        order=target.order,
        eps_dp=budget,
        eps_dd=budget,
        edits_per_request=target.edits,
        accountant="paper",
    )
    useful = delete_steps_convex_paper(
        target.order, target.l2, 1.0, target.dim, budget, target.edits
    )
    plan = replace(plan, delete_steps=max(plan.delete_steps, int(useful)))
    system = noisy_gd_system.system(problem, plan, delta=target.delta)
    return Case(system, system)


def noisy_gd(target: Target) -> Case:
    """Noisy-GD with the optimal accountant."""
    problem = target.problem
    plan = noisy_gd_system.calibrate(
        problem,
        n=target.n,
        dim=target.dim,
        epsilon=target.epsilon,
        delta=target.delta,
        edits_per_request=target.edits,
        target_risk=target.excess_risk,
    )
    system = noisy_gd_system.system(problem, plan)
    return Case(system, system)


def perturbed(target: Target, secret: bool) -> Case:
    """Perturbed-GD as published, Theorem 9 or 28, with the steps I that save most.

    After I steps a request leaves (S/2)(dist² + dσ²) ≤ α, dist = s γ^I/(1-γ^I); learning from
    scratch takes the least k with (S/2)(γ^{2k}R² + dσ²) ≤ α.

    Raises:
        CertificateRefused: no number of steps reaches the target.
    """
    constants = Constants.of_problem(target.problem)
    best = None
    for steps in range(1, MOST_STEPS):
        made = _perturbed_with(target, constants, secret, steps)
        if made is None:
            continue
        again = _retraining_steps(target, constants, made)
        saved = again - made.delete_steps
        if best is not None and saved < best[0] - 1:
            break
        if math.isfinite(saved) and (best is None or saved > best[0]):
            best = (saved, made, int(again))
    if best is None:
        raise CertificateRefused(f"no number of steps reaches a risk of {target.excess_risk:g}.")
    _, made, again = best
    build = perturbed_gd.system
    problem = target.problem
    return Case(build(problem, made), build(problem, made.replace(learn_steps=again)))


def _perturbed_with(target: Target, constants: Constants, secret: bool, steps: int):
    """The calibration with I = steps, or None where the theorem refuses it."""
    claim = {
        "n": target.n,
        "epsilon": target.epsilon,
        "delta": target.delta,
        "edits_per_request": target.edits,
    }
    try:
        if secret:
            return perturbed_gd.calibrate(constants, delete_steps=steps, **claim)
        return perturbed_gd.calibrate_stateless(
            constants, dim=target.dim, max_requests=target.requests, noise_steps=steps, **claim
        )
    except CertificateRefused:
        return None


def _retraining_steps(target: Target, constants: Constants, made) -> float:
    """The least k that is certified for α; infinite where an edit would not be."""
    left = constants.contraction**made.noise_steps
    lipschitz, l2 = constants.lipschitz, constants.strong_convexity
    distance = 4 * target.edits * lipschitz / (l2 * target.n) * left / (1 - left)
    square = 2 * target.excess_risk / constants.smoothness
    room = square - target.dim * made.noise_deviation**2
    if room <= distance**2:
        return math.inf
    needed = math.log(constants.radius**2 / room) / (-2 * math.log(constants.contraction))
    return max(1, math.ceil(needed))


def accelerated(target: Target, scale: float, batch_factor: int) -> Case:
    """Noisy-m-A-SGD with b = batch_factor·⌈√d⌉ and ρ = scale·√d/n, at most 1.

    Its risk is O(GD√d/(nρ)) with a constant that is not stated, so `scale` is chosen by the risk
    that runs show. T, σ and η depend on n through nρ alone.
    """
    root = math.sqrt(target.dim)
    made = noisy_m_a_sgd.calibrate(
        Constants.of_problem(target.problem),
        n=target.n,
        dim=target.dim,
        stability=min(1.0, scale * root / target.n),
        batch_size=batch_factor * math.ceil(root),
    )
    system = noisy_m_a_sgd.system(target.problem, made)
    return Case(system, system)
