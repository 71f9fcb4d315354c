"""The exact law of a recoded release, linear loss: what `dd_jax.attacks.recoding` is held against.

Host-side, no JAX.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import integrate, stats

from dd_jax.oracles import linear
from dd_jax.plans import Plan

L2, LIPSCHITZ = 1.0, 1.0


class Law(NamedTuple):
    """The release given φ_0 = t is N(c^k t + sign(t)·push ± offset, fresh); t ~ N(±mean, variance).

    ± is the target; k steps follow the recoding. The same law as `oracles.linear.recoding_renyi`.
    """

    mean: float
    variance: float
    decay: float
    offset: float
    push: float
    fresh: float

    def probability(self, side: int, intervals: Sequence[tuple[float, float]]) -> float:
        """P[release in the union of disjoint intervals | target = side]."""
        deviation = math.sqrt(self.variance)

        def integrand(size, sign):
            centre = self.decay * sign * size + sign * self.push + side * self.offset
            ends = (np.asarray(intervals) - centre) / math.sqrt(self.fresh)
            inside = np.sum(stats.norm.cdf(ends[:, 1]) - stats.norm.cdf(ends[:, 0]))
            return stats.norm.pdf(sign * size, side * self.mean, deviation) * inside

        far = self.mean + 12 * deviation
        return sum(integrate.quad(integrand, 0, far, args=(sign,))[0] for sign in (1, -1))

    def advantage(self, intervals: Sequence[tuple[float, float]]) -> float:
        """Exact advantage of the test that guesses +1 on the intervals."""
        return self.probability(1, intervals) - self.probability(-1, intervals)

    def coin(self) -> float:
        """P[sign(φ_0) = target]."""
        return float(stats.norm.cdf(self.mean / math.sqrt(self.variance)))

    def staying_test(self) -> list[tuple[float, float]]:
        """Where the coin and the model's place around ±push together speak for +1.

        The log-likelihood ratio is ±log(p/(1-p)) + 2·offset·(release ∓ push)/fresh.
        """
        lead = math.log(self.coin() / (1 - self.coin())) * self.fresh / (2 * self.offset)
        return [(self.push - lead, math.inf), (min(lead - self.push, 0.0), 0.0)]


def law(plan: Plan, present_steps: int, delete_steps: int) -> Law:
    """The law of a release: the target stays for K_I steps after the recoding, then K_U without."""
    constants = (LIPSCHITZ, L2, plan.n, plan.step_size)
    after = present_steps + delete_steps
    rate = (L2, plan.noise_variance, plan.step_size)
    return Law(
        mean=linear.mean_shift(*constants, plan.learn_steps, 0) / 2,
        variance=linear.variance(*rate, plan.learn_steps, plan.init_variance),
        decay=(1 - plan.step_size * L2) ** after,
        offset=linear.mean_shift(*constants, present_steps, delete_steps) / 2,
        push=(plan.n - 1) * linear.mean_shift(*constants, after, 0) / 2,
        fresh=linear.variance(*rate, after),
    )


def exact_renyi(plan: Plan, order: float, present_steps: int, delete_steps: int) -> float:
    """R_q of the release, by quadrature: `oracles.linear.recoding_renyi`."""
    constants = (order, LIPSCHITZ, L2, plan.noise_variance, plan.n, plan.step_size)
    steps = (plan.learn_steps, present_steps, delete_steps)
    return linear.recoding_renyi(*constants, *steps, plan.init_variance)
