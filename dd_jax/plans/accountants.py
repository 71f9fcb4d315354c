"""The accountants of convex plans, and their formulas at a plan's constants."""

import math
from collections.abc import Callable
from typing import NamedTuple

from dd_jax.constants import ProblemConstants
from dd_jax.errors import CertificateRefused, InputError
from dd_jax.guarantees import deletion, privacy
from dd_jax.plans import conditions


class Accountant(NamedTuple):
    """One way to account: its bounds, their inverses and its default step size times λ+β."""

    privacy: Callable
    deletion: Callable
    noise_variance: Callable
    delete_steps: Callable
    default_step: float


ACCOUNTANTS = {
    "paper": Accountant(
        privacy.privacy_paper,
        deletion.deletion_paper,
        privacy.noise_variance_paper,
        deletion.delete_steps_paper,
        0.5,
    ),
    "unrelaxed": Accountant(
        privacy.privacy_unrelaxed,
        deletion.deletion_unrelaxed,
        privacy.noise_variance_unrelaxed,
        deletion.delete_steps_unrelaxed,
        0.5,
    ),
    "optimal": Accountant(
        privacy.privacy_optimal,
        deletion.deletion_optimal,
        privacy.noise_variance_optimal,
        deletion.delete_steps_optimal,
        1.0,
    ),
}


def accountant_rules(accountant: str) -> Accountant:
    """The accountant of this name."""
    if accountant not in ACCOUNTANTS:
        raise InputError(
            f"accountant = {accountant!r} is not known; give one of {', '.join(ACCOUNTANTS)}."
        )
    return ACCOUNTANTS[accountant]


class Case(NamedTuple):
    """What is run, but for the noise and the number of steps."""

    problem: ProblemConstants
    n: int
    dim: int
    step_size: float
    edits_per_request: int
    protects: conditions.Protects

    def bound(self, formula, order, noise_variance, *steps):
        """A formula of the guarantees at these constants."""
        lipschitz = conditions.sensitivity(self.problem, self.protects)
        constants = (order, lipschitz, self.problem.l2, noise_variance, self.n, self.step_size)
        return formula(*constants, *steps, smoothness=self.problem.loss.smoothness)

    def risk(self, formula, noise_variance, *rest, with_n=True):
        """A risk formula of the guarantees at these constants."""
        problem = self.problem
        lipschitz = conditions.risk_lipschitz(problem, self.protects)
        size = (self.n, self.dim) if with_n else (self.dim,)
        constants = (lipschitz, problem.l2, problem.loss.smoothness, noise_variance, *size)
        return formula(*constants, self.step_size, *rest)


def whole(name: str, steps: float) -> int:
    """A step count as an integer, refused where it overflowed."""
    if not math.isfinite(steps):
        raise CertificateRefused(
            f"{name} overflows: no run of finite length meets these budgets; "
            f"give larger budgets, more records or a larger l2."
        )
    return int(steps)
