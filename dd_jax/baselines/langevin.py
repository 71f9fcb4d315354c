"""Langevin unlearning (Chien et al. 2024): the steps of Noisy-GD with another accountant.

    θ ← θ - η ∇ℒ_𝒟(θ) + √(2ησ²) N(0, I),   η ≤ 1/(λ+β),   θ_0 ~ N(0, (2σ²/λ) I)

Learning and unlearning take the same steps. The published accountant compares a release with
retraining and doubles the Rényi order for every earlier request, so that the number of steps K_s
differs between requests. The curator must then keep the number s of the request; where all K_s are
equal it need not.
`accountant="optimal"` runs the same steps under the data-deletion certificate of
`dd_jax.guarantees.convex`, whose number of steps does not grow with the requests.
"""

import math
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from dd_jax import checks, noisy_gd
from dd_jax.baselines.base import (
    Constants,
    Guarantee,
    System,
    check_planned_edit,
    cost,
    label_of,
    publish_part,
    require_float32_noise,
)
from dd_jax.constants import ProblemConstants
from dd_jax.erm import Problem
from dd_jax.errors import InputError
from dd_jax.guarantees import floats, renyi, risk
from dd_jax.guarantees.convex import Descent, deletion_optimal, fewest_steps
from dd_jax.plans import conditions
from dd_jax.plans.settings import whole

_GRID = 400
_ZOOMS = 4
_MOST_REQUESTS = 900

# --- the published bounds ------------------------------------------------------------------------


def privacy_renyi(run: Descent):
    """Rényi DP of one release after any number of steps: ε₀(q) = 4 q G² r² / (λ σ² n²).

    Guarantee: (q, ε₀)-Rényi DP of one release for non-adaptive requests.
    Assumes: η ≤ 1/(λ+β), a start independent of the data. Chien et al. 2024; the privacy theorem
    of Noisy-GD, `thm:chourasia`.
    """
    shift = floats.product(run.lipschitz, run.records, 1 / run.n)
    l2 = checks.positive("l2", run.l2)
    return floats.plain(floats.product(4, run.order, shift, shift, 1 / l2, 1 / run.noise_variance))


def unlearning_renyi(run: Descent, steps):
    """The divergence of the s-th release from retraining, as published.

    ε_1(q) = e^{-ηλK_1/q} ε₀(q)
    ε_s(q) = e^{-ηλK_s/q} · (q - 1/2)/(q - 1) · [ε₀(2q) + ε_{s-1}(2q)]

    Guarantee: R_q of the release after the last request from retraining on the same records for as
    many steps, non-adaptive requests.
    Assumes: η ≤ 1/(λ+β), start N(0, 2σ²/λ I). Chien et al. 2024, sequential form as in their code.

    Args:
        run: the run; its order may be an array, its `records` are r of each request.
        steps: K_1, …, K_s.
    """
    if len(steps) == 0:
        raise InputError("steps is empty; give the steps of at least one request.")
    steps = checks.steps("steps", steps)
    rate = run.step_size * run.l2
    remains = _inherited(run.order, _slope(run), rate, steps[:-1])
    return floats.plain(remains * np.exp(-rate * steps[-1] / run.order))


def _slope(run: Descent) -> float:
    """ε₀(q)/q, the same for every order."""
    return privacy_renyi(replace(run, order=2)) / 2


def _inherited(order, slope, rate, earlier):
    """The ε_s(q) of request s before its own steps: ε₀(q), or the sum by the triangle inequality.

    ε₀(q) = slope · q, rate = ηλ; `earlier` holds K_1, …, K_{s-1}. The first request is at order
    2^{s-1} q, so the sum is built from there down to q.
    """
    current = order * 2.0 ** len(earlier)
    total = slope * current
    for steps in earlier:
        kept = total * np.exp(-rate * steps / current)
        factor = (current - 1) / (current - 2)  # (q - 1/2)/(q - 1) at half the order
        total, current = factor * (slope * current + kept), current / 2
    return total


def _published_steps(run: Descent, epsilon, delta, requests) -> tuple[list[int], list[float]]:
    """K_s = ⌈min_q (q/(ηλ)) log(inherited(q) / (ε - log(1/δ)/(q-1)))⌉ and its q, for each s."""
    if requests > _MOST_REQUESTS:
        raise InputError(
            f"requests = {requests} doubles the order beyond the range of float64; give at most "
            f"{_MOST_REQUESTS}, or accountant='optimal'."
        )
    slope, rate = _slope(run), run.step_size * run.l2
    steps: list[int] = []
    orders: list[float] = []
    for _ in range(requests):

        def needed(order, room):
            return order / rate * (np.log(_inherited(order, slope, rate, steps)) - np.log(room))

        least, order = _least_over_orders(needed, epsilon, delta)
        steps.append(max(1, whole("request_steps", np.ceil(least))))
        orders.append(order)
    return steps, orders


def _least_over_orders(value, epsilon: float, delta: float) -> tuple[float, float]:
    """min over q of value(q, room(q)), room = ε - log(1/δ)/(q-1) > 0, and where it is attained.

    A logarithmic grid above the least order that leaves room, zoomed in around its best point.
    """
    spare = -np.log(delta) / epsilon
    low, high = -12.0, 12.0
    best, order = np.inf, np.inf
    for _ in range(_ZOOMS):
        grid = np.linspace(low, high, _GRID)
        orders = 1 + spare * (1 + np.exp(grid))
        with np.errstate(over="ignore", invalid="ignore"):
            room = epsilon * np.exp(grid) / (1 + np.exp(grid))
            found = value(orders, room)
        place = int(np.argmin(found))
        if found[place] < best:
            best, order = float(found[place]), float(orders[place])
        width = 2 * (high - low) / _GRID
        low, high = grid[place] - width, grid[place] + width
    return best, order


def _optimal_steps(run: Descent, epsilon: float, delta: float) -> int:
    """The least K ≥ 1 for which `deletion_optimal_mu` gives (ε, δ) by exact Gaussian DP."""
    mu = renyi.gdp_from_epsilon_delta(epsilon, delta)
    return max(1, whole("request_steps", fewest_steps(deletion_optimal, run, mu**2)))


# --- calibration, which PNSGD shares -------------------------------------------------------------


@dataclass(frozen=True)
class Calibration:
    """Settings of learning and of a stream of requests, and the claim they were chosen for.

    `dd_jax.noisy_gd.mechanism` takes it in place of a plan.

    Attributes:
        problem: the constants of the problem that it is for.
        n: number of records, fixed. edits_per_request: r, the most records of one request.
        step_size: η. noise_variance: σ².
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
    def init_variance(self) -> float:
        """2σ²/λ, variance of the Gaussian start."""
        return 2 * self.noise_variance / self.problem.l2

    @property
    def delete_steps(self) -> int:
        """The most steps of any request."""
        return max(self.request_steps)

    @property
    def requests(self) -> int:
        """How many requests the claim covers."""
        return len(self.request_steps)

    @property
    def uniform(self) -> bool:
        """Whether every request takes the same number of steps, so that no counter is needed."""
        return len(set(self.request_steps)) == 1

    @property
    def keeps(self) -> str:
        """What the counter of `before_requests` holds, in words."""
        return "nothing" if self.uniform else "the number of requests served, which is not secret"

    @property
    def conditions(self) -> tuple[str, ...]:
        """What every claim about the run needs, in words."""
        return (
            "convex, Lipschitz (or clipped single-index), smooth loss; λ > 0",
            "η ≤ 1/(λ+β)",
            f"at most {self.edits_per_request} records per request, replaced, n fixed",
        )

    def before_requests(self) -> PyTree:
        """The counter after learning: 0 requests served, or nothing at all where none is needed."""
        cost(self.n * self.delete_steps)  # refuse what the meter cannot hold
        return () if self.uniform else jnp.zeros((), jnp.int32)

    def next_request(self, served: PyTree) -> tuple[Any, PyTree]:
        """(K_s, counter) of the next request; the last K_s for requests beyond the claim."""
        if self.uniform:
            return self.delete_steps, served
        counts = jnp.asarray(self.request_steps, jnp.int32)
        return counts[jnp.minimum(served, len(self.request_steps) - 1)], served + 1

    def check_noise(self) -> None:
        """Refuse noise whose stationary deviation is lost in rounding.

        Raises:
            CertificateRefused: σ² is too small for float32.
        """
        variance = risk.stationary_variance(self.problem.l2, self.noise_variance, self.step_size)
        reach = Constants.of_problem(self.problem).reach
        require_float32_noise(math.sqrt(variance), reach, "give a larger noise_variance")


def run_of(
    problem, *, n, noise_variance, edits_per_request: int = 1, step_size: float | None = None
) -> Descent:
    """The run that a calibration is for; η is 1/(λ+β), the largest allowed, unless named.

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
    return Descent(
        order=2,
        lipschitz=conditions.sensitivity(problem, "record"),
        l2=problem.l2,
        smoothness=smoothness,
        noise_variance=noise_variance,
        n=n,
        step_size=step_size,
        records=checks.count("edits_per_request", edits_per_request),
    )


def calibrate(
    problem,
    *,
    n: int,
    epsilon: float,
    delta: float,
    noise_variance: float,
    learn_steps: int,
    requests: int = 1,
    edits_per_request: int = 1,
    step_size: float | None = None,
    accountant: Literal["published", "optimal"] = "published",
) -> Calibration:
    """The fewest steps K_1, …, K_i, at least one each, after which every release meets (ε, δ).

    Published: the least K_s with min_q [ε_s(q) + log(1/δ)/(q-1)] ≤ ε, where ε_s is
    `unlearning_renyi`. Optimal: the least K for which `deletion_optimal_mu` gives
    (ε, δ) by exact Gaussian DP, r records of one request judged jointly.

    Guarantee: (ε, δ)-unlearning against retraining, or (ε, δ)-data-deletion if "optimal".
    Assumes: convex, L-Lipschitz (or clipped single-index), β-smooth loss; η ≤ 1/(λ+β);
        non-adaptive requests; replace-one.

    Args:
        problem: the regularised problem, or its constants.
        n: number of records. epsilon, delta: the target after every request.
        noise_variance: σ². learn_steps: T.
        requests: i, how many requests the claim covers. edits_per_request: r.
        step_size: η; 1/(λ+β) unless given.
        accountant: "published" or "optimal".
    """
    run = run_of(
        problem,
        n=n,
        noise_variance=noise_variance,
        edits_per_request=edits_per_request,
        step_size=step_size,
    )
    epsilon, delta = float(checks.positive("epsilon", epsilon)), float(checks.delta(delta))
    requests = int(checks.count("requests", requests))
    if checks.choice("accountant", accountant, ("published", "optimal")) == "published":
        steps, orders = _published_steps(run, epsilon, delta, requests)
    else:
        steps = [_optimal_steps(run, epsilon, delta)] * requests
        orders = [None] * requests
    return Calibration(
        **settings_of(problem, run, learn_steps),
        request_steps=tuple(steps),
        orders=tuple(orders),
        epsilon=epsilon,
        delta=delta,
        accountant=accountant,
    )


def settings_of(problem, run: Descent, learn_steps) -> dict[str, Any]:
    """The fields of a `Calibration` that no accountant chooses."""
    return {
        "problem": problem.constants,
        "n": int(run.n),
        "edits_per_request": int(run.records),
        "step_size": run.step_size,
        "noise_variance": run.noise_variance,
        "learn_steps": int(checks.count("learn_steps", learn_steps)),
    }


# --- the system ----------------------------------------------------------------------------------


class LangevinState(NamedTuple):
    """The model, which is released, and the number of requests served where that matters."""

    model: PyTree
    served: PyTree


def system(problem: Problem, calibration: Calibration) -> System:
    """Langevin unlearning with these settings; the release is the model.

    Cost: n T gradients to learn, n K_s at request s.

    Raises:
        InputError: a calibration for another problem, or, when it is run, for another n or fewer
            records per request.
        CertificateRefused: noise that float32 cannot hold.
    """
    calibration.check_noise()
    made = noisy_gd.mechanism(problem, calibration)

    def learn(key: Array, database: PyTree):
        state = LangevinState(made.learn(key, database), calibration.before_requests())
        return state, cost(calibration.n * calibration.learn_steps, retrained=1)

    def delete(key: Array, before: PyTree, edit, after: PyTree, state: LangevinState):
        check_planned_edit(edit, calibration.edits_per_request)
        steps, served = calibration.next_request(state.served)
        model = noisy_gd.run(
            key,
            state.model,
            after,
            problem,
            step_size=calibration.step_size,
            noise_variance=calibration.noise_variance,
            num_steps=steps,
        )
        return LangevinState(model, served), cost(steps * calibration.n)

    return System(
        name="langevin" if calibration.accountant == "published" else "langevin-optimal",
        learn=learn,
        delete=delete,
        publish=publish_part,
        predict=label_of(problem.loss),
        secret=lambda state: state.served,
        guarantee=guarantee(calibration),
        domain=made.domain,
    )


def guarantee(calibration: Calibration) -> Guarantee:
    """The claim that the calibration was made for, as data."""
    shared = calibration.conditions
    if calibration.accountant == "optimal":
        return Guarantee(
            notion="data-deletion",
            epsilon=calibration.epsilon,
            delta=calibration.delta,
            private="yes: every release, and all of them together",
            adaptive="yes: + μ_dp² for each release that the requester saw (erratum E2)",
            keeps=calibration.keeps,
            conditions=(*shared, "non-adaptive requests, any number of them"),
            reference="Chien et al. 2024 for the steps; Gaussian DP accountant of dd_jax",
        )
    return Guarantee(
        notion="Rényi unlearning",
        epsilon=calibration.epsilon,
        delta=calibration.delta,
        order=calibration.orders[-1],
        private="yes: one release is (q, 4qG²/(λσ²n²))-Rényi DP",
        adaptive="sequential requests fixed in advance only",
        keeps=calibration.keeps,
        conditions=(
            *shared,
            "start N(0, 2σ²/λ I)",
            f"at most {calibration.requests} requests",
            "compared with retraining for as many steps; the order doubles with every request",
        ),
        reference="Chien et al. 2024 (Langevin unlearning), strongly convex and sequential forms",
    )
