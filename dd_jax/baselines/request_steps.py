"""What Langevin and PNSGD unlearning share: calibrated runs whose length changes with the request.

Their published accountants add up what earlier requests left behind, so that request s needs steps
K_s of its own. A curator then has to know s; where all K_s are equal it need not.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from dd_jax import checks
from dd_jax.baselines.base import cost
from dd_jax.baselines.calibration import Constants, require_float32_noise
from dd_jax.constants import ProblemConstants
from dd_jax.errors import InputError
from dd_jax.guarantees import risk
from dd_jax.noisy_gd import step_key
from dd_jax.plans import conditions


@dataclass(frozen=True)
class Calibration:
    """Settings of learning and of a stream of requests, and the claim they were chosen for.

    `dd_jax.noisy_gd.mechanism` takes it in place of a plan.

    Attributes:
        problem: the constants of the problem that it is for.
        n: number of records, fixed. edits_per_request: r, the most records of one request.
        step_size: η. noise_variance: σ². init_variance: variance of the Gaussian start.
        learn_steps: T steps (passes over the data, for PNSGD) of learning.
        request_steps: K_1, K_2, …, one for each request that the claim covers.
        orders: the Rényi order at which each request's claim is least, None where none is used.
        epsilon, delta: the claim after every request.
        accountant: which formulas.
    """

    problem: ProblemConstants
    n: int
    edits_per_request: int
    step_size: float
    noise_variance: float
    init_variance: float
    learn_steps: int
    request_steps: tuple[int, ...]
    orders: tuple[float | None, ...]
    epsilon: float
    delta: float
    accountant: str

    def __post_init__(self):
        if len(self.request_steps) != len(self.orders) or not self.request_steps:
            raise InputError("give steps and an order for each of at least one request.")

    @property
    def delete_steps(self) -> int:
        """The most steps of any request."""
        return max(self.request_steps)

    @property
    def requests(self) -> int:
        """How many requests the claim covers."""
        return len(self.request_steps)

    @property
    def stream_gradients(self) -> int:
        """Gradients of one record that all the requests take together: n Σ K_s."""
        return self.n * sum(self.request_steps)

    @property
    def keeps(self) -> str:
        """What `start_counter` carries, in words."""
        return "nothing" if _uniform(self) else "the number of requests served, which is no secret"


@dataclass(frozen=True)
class Setting:
    """The checked numbers that a calibration starts from.

    Attributes:
        problem: constants of a convex, smooth, Lipschitz problem.
        lipschitz: G, of one record's loss without the regulariser. smoothness: β.
        step_size: η. noise_variance: σ². epsilon, delta: the target.
        n, edits_per_request, requests, learn_steps: counts.
    """

    problem: ProblemConstants
    lipschitz: float
    smoothness: float
    step_size: float
    noise_variance: float
    epsilon: float
    delta: float
    n: int
    edits_per_request: int
    requests: int
    learn_steps: int

    def calibration(
        self, init_variance, request_steps, orders, accountant, kind=Calibration, **more
    ) -> Any:
        """The calibration with these steps."""
        return kind(
            problem=self.problem,
            n=self.n,
            edits_per_request=self.edits_per_request,
            step_size=self.step_size,
            noise_variance=self.noise_variance,
            init_variance=init_variance,
            learn_steps=self.learn_steps,
            request_steps=tuple(int(steps) for steps in request_steps),
            orders=tuple(orders),
            epsilon=self.epsilon,
            delta=self.delta,
            accountant=accountant,
            **more,
        )


def setting(
    problem,
    *,
    n,
    epsilon,
    delta,
    noise_variance,
    learn_steps,
    requests,
    edits_per_request,
    step_size,
) -> Setting:
    """Check what a calibration is given; η is 1/(λ+β), the largest allowed, unless named.

    Raises:
        InputError: a number out of range, or a step size above that.
        CertificateRefused: the loss is not convex, smooth and Lipschitz.
    """
    problem = problem.constants
    conditions.require_convex(problem, "record")
    smoothness = conditions.require_constant(problem, "smoothness")
    largest = 1 / (problem.l2 + smoothness)
    step_size = largest if step_size is None else float(checks.positive("step_size", step_size))
    if step_size > largest * (1 + 1e-12):
        raise InputError(
            f"step_size = {step_size:g} is above 1/(λ+β) = {largest:g}, which this accountant "
            f"needs; give at most that."
        )
    return Setting(
        problem=problem,
        lipschitz=conditions.sensitivity(problem, "record"),
        smoothness=smoothness,
        step_size=step_size,
        noise_variance=float(checks.positive("noise_variance", noise_variance)),
        epsilon=float(checks.positive("epsilon", epsilon)),
        delta=float(checks.delta(delta)),
        n=int(checks.count("n", n)),
        edits_per_request=int(checks.count("edits_per_request", edits_per_request)),
        requests=int(checks.count("requests", requests)),
        learn_steps=int(checks.count("learn_steps", learn_steps)),
    )


def check_noise(calibration: Calibration) -> None:
    """Refuse noise whose stationary deviation drowns in rounding.

    Raises:
        CertificateRefused: σ² is too small for float32.
    """
    deviation = math.sqrt(
        risk.stationary_variance(
            calibration.problem.l2, calibration.noise_variance, calibration.step_size
        )
    )
    reach = Constants.of_problem(calibration.problem).reach
    require_float32_noise(deviation, reach, "give a larger noise_variance")


def start_counter(calibration: Calibration) -> PyTree:
    """0 requests served, or nothing at all where every request takes as many steps."""
    cost(calibration.n * calibration.delete_steps)  # refuse what the meter cannot hold
    return () if _uniform(calibration) else jnp.zeros((), jnp.int32)


def steps_now(calibration: Calibration, served: PyTree) -> Any:
    """K_s of the next request; the last one's for requests beyond those that the claim covers."""
    if _uniform(calibration):
        return calibration.delete_steps
    counts = jnp.asarray(calibration.request_steps, jnp.int32)
    return counts[jnp.minimum(served, len(calibration.request_steps) - 1)]


def count_one(served: PyTree) -> PyTree:
    """One more request served."""
    return jax.tree.map(lambda number: number + 1, served)


def repeat(key: Array, model: PyTree, num_steps, step: Callable) -> PyTree:
    """K steps `step(step_key, k, model)`, K perhaps traced; keys as in `noisy_gd.run`."""

    def body(k, model):
        return step(step_key(key, k), k, model)

    return jax.lax.fori_loop(0, num_steps, body, model)


def _uniform(calibration: Calibration) -> bool:
    return len(set(calibration.request_steps)) == 1
