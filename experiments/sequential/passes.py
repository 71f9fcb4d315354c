"""What a stream of deletions costs each system, in passes over the data: its calibrations.

One pass is one gradient of every record.
"""

import math
from typing import NamedTuple

import numpy as np

import dd_jax as dd
from dd_jax.baselines import langevin, perturbed_gd, pnsgd
from dd_jax.baselines.base import Constants
from dd_jax.baselines.perturbed_gd import Form
from dd_jax.guarantees import convex, renyi
from dd_jax.plans import conditions

LAZY_REQUESTS = 10


class Setting(NamedTuple):
    """What all systems share.

    Attributes:
        problem: λ and the loss. n, dim: records and parameters.
        epsilon, delta: the target after every request. deletions: how many records go in all.
    """

    problem: dd.Problem
    n: int
    dim: int
    epsilon: float
    delta: float
    deletions: int

    @property
    def claim(self) -> dict:
        """The arguments that calibrations share."""
        return {"n": self.n, "epsilon": self.epsilon, "delta": self.delta}

    @property
    def smoothness(self) -> float:
        """β."""
        return conditions.require_constant(self.problem.constants, "smoothness")

    @property
    def step_size(self) -> float:
        """η = 1/(λ+β), the largest that Langevin and PNSGD allow."""
        return 1 / (self.problem.l2 + self.smoothness)

    @property
    def long_step(self) -> float:
        """η = 2/(2λ+β), the largest that the optimal accountant allows; it contracts most."""
        return 2 / (2 * self.problem.l2 + self.smoothness)

    @property
    def private_noise(self) -> float:
        """The least σ² for which one release of Noisy-GD is (ε, δ)-DP by itself."""
        return dd.plan_convex(
            self.problem,
            eps_dp=self.epsilon,
            eps_dd=self.epsilon,
            delta=self.delta,
            **self._run(self.long_step),
        ).noise_variance

    def learn_steps(self, noise_variance: float, step_size: float) -> int:
        """K_A of Noisy-GD with a given noise, for a certified 1.1 times the least risk."""
        run = self._run(step_size)
        mu = convex.privacy_optimal_mu(self.descent(noise_variance, step_size), np.inf)
        private = max(self.epsilon, renyi.gdp_epsilon(mu, self.delta)) * (1 + 1e-9)
        budgets = {"eps_dp": private, "eps_dd": self.epsilon, "delta": self.delta}
        plan = dd.plan_convex(self.problem, noise_variance=noise_variance, **budgets, **run)
        return plan.learn_steps

    def descent(self, noise_variance: float, step_size: float, records: int = 1) -> convex.Descent:
        """The run, of order 2."""
        constants = (self.problem.constants.lipschitz, self.problem.l2, self.smoothness)
        return convex.Descent(2, *constants, noise_variance, self.n, step_size, records)

    def _run(self, step_size: float) -> dict:
        return {"n": self.n, "dim": self.dim, "step_size": step_size}


def noisy_gd_passes(setting: Setting, noise_variance: float, requests: int) -> float:
    """K_Ā of every request by the optimal accountant, at least one; see `langevin_passes`."""
    run = setting.descent(noise_variance, setting.long_step, setting.deletions // requests)
    mu = renyi.gdp_from_epsilon_delta(setting.epsilon, setting.delta)
    steps = convex.fewest_steps(convex.deletion_optimal, run, mu**2)
    return float(requests * max(1, steps))


def langevin_passes(setting: Setting, noise_variance: float, requests: int) -> float:
    """Σ K_s by Langevin's published accountant, the deletions dealt evenly to the requests."""
    made = langevin.calibrate(
        setting.problem,
        noise_variance=noise_variance,
        learn_steps=1,
        requests=requests,
        edits_per_request=setting.deletions // requests,
        **setting.claim,
    )
    return float(sum(made.request_steps))


def lazy_passes(setting: Setting, noise_variance: float, batch_size: int) -> float:
    """One pass per `LAZY_REQUESTS` single deletions, where every release is (ε, δ)-DP by itself.

    A request in between is answered by the model as it is. Guarantee: (ε, δ)-data-deletion of each
    record alone, right after its request: the deletion bound at K_Ā = 0 is the privacy bound.
    Infinite where the noise is too small for that. The passes only keep the risk from growing.
    """
    del batch_size
    private = noise_variance >= setting.private_noise * (1 - 1e-12)
    return math.ceil(setting.deletions / LAZY_REQUESTS) if private else math.inf


def pnsgd_passes(setting: Setting, noise_variance: float, batch_size: int) -> float:
    """Σ K_s of PNSGD for single deletions, learning taken as converged."""
    made = pnsgd.calibrate(
        setting.problem,
        noise_variance=noise_variance,
        batch_size=batch_size,
        learn_epochs=1,
        requests=setting.deletions,
        **setting.claim,
    )
    return float(sum(made.request_steps))


def perturbed_calibration(setting: Setting, form: Form) -> perturbed_gd.Calibration:
    """Perturbed-GD from the published model (Theorem 28) for single deletions."""
    return perturbed_gd.calibrate_stateless(
        Constants.of_problem(setting.problem),
        dim=setting.dim,
        max_requests=setting.deletions,
        form=form,
        **setting.claim,
    )
