"""Langevin unlearning (Chien et al. 2024): Noisy-GD's steps under an accountant of its own.

    θ ← θ - η ∇ℒ_𝒟(θ) + √(2ησ²) N(0, I),   η ≤ 1/(λ+β),   θ_0 ~ N(0, (2σ²/λ) I)

Learning and unlearning take the same steps; the published accountant compares a release with
retraining and pays for every earlier request by doubling its Rényi order. `accountant="optimal"`
runs the same steps under the data-deletion certificate of `dd_jax.guarantees.convex`, whose
number of steps does not grow with the requests.
"""

from typing import Literal, NamedTuple

from jaxtyping import Array, PyTree

from dd_jax import noisy_gd
from dd_jax.baselines import request_steps
from dd_jax.baselines.base import Guarantee, System, cost, label_of, publish_part
from dd_jax.baselines.calibration import check_planned_edit
from dd_jax.baselines.langevin_steps import optimal_steps, published_steps
from dd_jax.baselines.request_steps import Calibration
from dd_jax.erm import Problem
from dd_jax.errors import InputError


class LangevinState(NamedTuple):
    """The model, which is released, and the number of requests served where that matters."""

    model: PyTree
    served: PyTree


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
    `langevin_steps.unlearning_renyi`. Optimal: the least K for which `deletion_optimal_mu` gives
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
    case = request_steps.setting(
        problem,
        n=n,
        epsilon=epsilon,
        delta=delta,
        noise_variance=noise_variance,
        learn_steps=learn_steps,
        requests=requests,
        edits_per_request=edits_per_request,
        step_size=step_size,
    )
    if accountant == "published":
        steps, orders = published_steps(case)
    elif accountant == "optimal":
        steps, orders = [optimal_steps(case)] * case.requests, [None] * case.requests
    else:
        raise InputError(
            f"accountant = {accountant!r} is not known; give 'published' or 'optimal'."
        )
    return case.calibration(2 * case.noise_variance / case.problem.l2, steps, orders, accountant)


def system(problem: Problem, calibration: Calibration) -> System:
    """Langevin unlearning with these settings; the release is the model.

    Cost: n T gradients to learn, n K_s at request s.

    Raises:
        InputError: a calibration for another problem, or, when it is run, for another n or fewer
            records per request.
        CertificateRefused: noise that float32 cannot hold.
    """
    request_steps.check_noise(calibration)
    made = noisy_gd.mechanism(problem, calibration)
    numbers = (calibration.step_size, calibration.noise_variance)

    def learn(key: Array, database: PyTree):
        state = LangevinState(made.learn(key, database), request_steps.start_counter(calibration))
        return state, cost(calibration.n * calibration.learn_steps, retrained=1)

    def delete(key: Array, before: PyTree, edit, after: PyTree, state: LangevinState):
        check_planned_edit(edit, calibration.edits_per_request)
        count = request_steps.steps_now(calibration, state.served)

        def step(step_key, k, model):
            del k
            return noisy_gd.step(step_key, model, after, problem, *numbers)

        model = request_steps.repeat(key, state.model, count, step)
        served = request_steps.count_one(state.served)
        return LangevinState(model, served), cost(count * calibration.n)

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
    shared = (
        "convex, Lipschitz (or clipped single-index), smooth loss; λ > 0",
        "η ≤ 1/(λ+β)",
        f"at most {calibration.edits_per_request} records per request, replaced, n fixed",
    )
    if calibration.accountant == "optimal":
        return Guarantee(
            notion="data-deletion",
            epsilon=calibration.epsilon,
            delta=calibration.delta,
            order=None,
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
