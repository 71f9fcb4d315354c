"""How many steps Langevin unlearning needs: the published recursion and the optimal certificate."""

import numpy as np

from dd_jax import checks
from dd_jax.baselines import request_steps
from dd_jax.baselines.request_steps import Setting
from dd_jax.errors import InputError
from dd_jax.guarantees import floats, renyi
from dd_jax.guarantees.convex import Descent, deletion_optimal, fewest_steps
from dd_jax.plans.numbers import whole

_GRID = 400
_ZOOMS = 4
_MOST_REQUESTS = 900


def privacy_renyi(order, lipschitz, l2, noise_variance, n, *, records=1):
    """ε₀(q) = 4 q G² r² / (λ σ² n²), Rényi DP of one release after any number of steps.

    Guarantee: (q, ε₀)-Rényi DP of one release for non-adaptive requests.
    Assumes: η ≤ 1/(λ+β), a start independent of the data. Chien et al. 2024; `thm:chourasia`.
    """
    order, l2 = checks.order(order), checks.positive("l2", l2)
    noise = checks.positive("noise_variance", noise_variance)
    shift = floats.product(checks.nonnegative("lipschitz", lipschitz), records, 1 / n)
    return floats.plain(floats.product(4, order, shift, shift, 1 / l2, 1 / noise))


def unlearning_renyi(order, lipschitz, l2, noise_variance, n, step_size, steps, *, records=1):
    """What the s-th release still tells apart from retraining, as published.

    ε_1(q) = e^{-ηλK_1/q} ε₀(q)
    ε_s(q) = e^{-ηλK_s/q} · (q - 1/2)/(q - 1) · [ε₀(2q) + ε_{s-1}(2q)]

    Guarantee: R_q of the release after the last request from retraining on the same records for as
    many steps, non-adaptive requests.
    Assumes: η ≤ 1/(λ+β), start N(0, 2σ²/λ I). Chien et al. 2024, sequential form as in their code.

    Args:
        order: q > 1, a number or an array.
        lipschitz, l2, noise_variance, n, step_size: G, λ, σ², n, η.
        steps: K_1, …, K_s. records: r per request.
    """
    if len(steps) == 0:
        raise InputError("steps is empty; give the steps of at least one request.")
    steps = checks.steps("steps", steps)
    order, rate = checks.order(order), checks.positive("step_size", step_size) * l2
    slope = privacy_renyi(2, lipschitz, l2, noise_variance, n, records=records) / 2
    remains = _inherited(order, slope, rate, steps[:-1])
    return floats.plain(remains * np.exp(-rate * steps[-1] / order))


def _inherited(order, slope, rate, earlier):
    """ε_s(q) without the decay of its own steps: ε₀(q), or what the triangle inequality adds up.

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


def noise_variance_for_steps(
    problem, *, n: int, epsilon: float, delta: float, steps: int, step_size: float | None = None
) -> float:
    """The least σ² for which K steps serve one request of one record, by the published accountant.

    σ² = min_q e^{-ηλK/q} 4qG² / (λ n² (ε - log(1/δ)/(q-1))): ε₀ is proportional to 1/σ².
    """
    case = request_steps.setting(
        problem,
        n=n,
        epsilon=epsilon,
        delta=delta,
        noise_variance=1.0,
        learn_steps=1,
        requests=1,
        edits_per_request=1,
        step_size=step_size,
    )
    steps = int(checks.count("steps", steps))

    def variance(order, room):
        unit = (case.lipschitz, case.problem.l2, 1.0, case.n, case.step_size)
        return unlearning_renyi(order, *unit, [steps]) / room

    return _least_over_orders(variance, case)[0] * (1 + 1e-12)


def published_steps(case: Setting) -> tuple[list[int], list[float]]:
    """K_s = ⌈min_q (q/(ηλ)) log(inherited(q) / (ε - log(1/δ)/(q-1)))⌉, request by request."""
    if case.requests > _MOST_REQUESTS:
        raise InputError(
            f"requests = {case.requests} doubles the order beyond any float; give at most "
            f"{_MOST_REQUESTS}, or accountant='optimal'."
        )
    l2, records = case.problem.l2, case.edits_per_request
    unit = privacy_renyi(2, case.lipschitz, l2, case.noise_variance, case.n, records=records) / 2
    rate = case.step_size * l2
    steps: list[int] = []
    orders: list[float] = []
    for _ in range(case.requests):

        def needed(order, room):
            return order / rate * (np.log(_inherited(order, unit, rate, steps)) - np.log(room))

        least, order = _least_over_orders(needed, case)
        steps.append(max(1, whole("request_steps", np.ceil(least))))
        orders.append(order)
    return steps, orders


def _least_over_orders(value, case: Setting) -> tuple[float, float]:
    """min over q of value(q, room(q)), room = ε - log(1/δ)/(q-1) > 0, and where it is attained.

    A logarithmic grid above the least order that leaves room, zoomed in around its best point.
    """
    spare = -np.log(case.delta) / case.epsilon
    low, high = -12.0, 12.0
    best, order = np.inf, np.inf
    for _ in range(_ZOOMS):
        grid = np.linspace(low, high, _GRID)
        orders = 1 + spare * (1 + np.exp(grid))
        with np.errstate(over="ignore", invalid="ignore"):
            room = case.epsilon * np.exp(grid) / (1 + np.exp(grid))
            found = value(orders, room)
        place = int(np.argmin(found))
        if found[place] < best:
            best, order = float(found[place]), float(orders[place])
        width = 2 * (high - low) / _GRID
        low, high = grid[place] - width, grid[place] + width
    return best, order


def optimal_steps(case: Setting) -> int:
    """The least K ≥ 1 for which `deletion_optimal_mu` gives (ε, δ) by exact Gaussian DP."""
    run = Descent(
        order=2,
        lipschitz=case.lipschitz,
        l2=case.problem.l2,
        smoothness=case.smoothness,
        noise_variance=case.noise_variance,
        n=case.n,
        step_size=case.step_size,
        records=case.edits_per_request,
    )
    mu = renyi.gdp_from_epsilon_delta(case.epsilon, case.delta)
    steps = fewest_steps(deletion_optimal, run, mu**2)
    return max(1, whole("request_steps", steps))
