"""The paper's Noisy-GD (definition `dfn:noisy_gd_unlrn`) as a system to compare.

It keeps nothing but its release.
"""

from dataclasses import replace

from dd_jax import noisy_gd
from dd_jax.baselines.base import Guarantee, System, cost, label_of, root_slope
from dd_jax.erm import Problem
from dd_jax.errors import InputError
from dd_jax.guarantees import risk
from dd_jax.plans import Plan, conditions, plan_convex

NAMES = {"optimal": "noisy-gd", "paper": "noisy-gd-paper", "unrelaxed": "noisy-gd-unrelaxed"}


def calibrate(
    problem,
    *,
    n: int,
    dim: int,
    epsilon: float,
    delta: float,
    epsilon_private: float | None = None,
    accountant: str = "optimal",
    edits_per_request: int = 1,
    **options,
) -> Plan:
    """A plan whose deleted records are (ε, δ)-indistinguishable from records that were never there.

    The optimal accountant uses exact Gaussian DP. The paper's bounds are linear in the order,
    R_q ≤ qρ, and its one-sided conversion (`rem:renyi_onesided`) at the best order gives
    ε = ρ + 2√(ρ log(1/δ)); the plan then has order 2 and budgets 2ρ, since no number of steps
    depends on the order.

    Guarantee: (ε, δ) for deleted records and (epsilon_private, δ) for records that stay.
    Assumes: what `plan_convex` assumes. The convex accuracy theorem,
    `thm:unlearning_accuracy_convex`.

    Args:
        problem: the regularised problem.
        n: number of records. dim: d, number of parameters.
        epsilon, delta: the target for one deleted record.
        epsilon_private: ε of one release for a record that stays; `epsilon` unless given.
        accountant: "optimal", "unrelaxed" or "paper".
        edits_per_request: r.
        **options: passed to `plan_convex` (`target_risk`, `step_size`, …).

    Raises:
        InputError: epsilon_private is below epsilon: every release then already meets epsilon.
    """
    epsilon_private = epsilon if epsilon_private is None else epsilon_private
    if epsilon_private < epsilon:
        raise InputError(
            f"epsilon_private = {epsilon_private:g} is below epsilon = {epsilon:g}; "
            f"such a release needs no deletion: give at least {epsilon:g}."
        )
    sizes = {"n": n, "dim": dim, "edits_per_request": edits_per_request, "accountant": accountant}
    if accountant == "optimal":
        budgets = {"eps_dp": epsilon_private, "eps_dd": epsilon, "delta": delta}
    else:
        private, deleted = (2 * root_slope(e, delta) ** 2 for e in (epsilon_private, epsilon))
        budgets = {"eps_dp": private, "eps_dd": deleted, "order": 2}
    return plan_convex(problem, **sizes, **budgets, **options)


def with_risk_steps(plan: Plan) -> Plan:
    """The paper's plan with the deletion steps that its risk bound needs, if those are more.

    Assumes: a plan of the accountant "paper". `thm:unlearning_accuracy_convex`, part 3.
    """
    smoothness = conditions.require_constant(plan.problem, "smoothness")
    numbers = (plan.order, plan.problem.l2, smoothness, plan.dim, plan.eps_dp_asked)
    useful = risk.delete_steps_convex_paper(*numbers, plan.edits_per_request)
    return replace(plan, delete_steps=max(plan.delete_steps, int(useful)))


def system(problem: Problem, plan: Plan, *, delta: float | None = None) -> System:
    """Noisy-GD with this plan; the release is all that it carries, rounded to the plan's grid.

    Cost: n K_L gradients to learn, n K_U per request.

    Args:
        problem: the problem that the plan was made for.
        plan: from `calibrate` or `plan_convex`.
        delta: state the guarantee as (ε, δ), where the plan is in Rényi divergences.
    """
    made = noisy_gd.mechanism(problem, plan)

    def learn(key, database):
        return made.learn(key, database), cost(plan.learn_gradients, retrained=1)

    def delete(key, before, edit, after, state):
        return made.delete(key, before, edit, after, state), cost(plan.delete_gradients)

    return System(
        name=NAMES.get(plan.accountant, "noisy-gd"),
        learn=learn,
        delete=delete,
        publish=made.publish,
        predict=label_of(problem.loss),
        guarantee=guarantee(plan, delta),
        domain=made.domain,
    )


def guarantee(plan: Plan, delta: float | None = None) -> Guarantee:
    """The plan's certificate for one record and non-adaptive requests, as data."""
    certificate = plan.certificate(delta=delta)
    in_pairs = certificate.delta is not None
    return Guarantee(
        notion="data-deletion",
        epsilon=certificate.epsilon_dd if in_pairs else certificate.eps_dd,
        delta=certificate.delta,
        order=None if in_pairs else certificate.order,
        private="yes: every release, and all of them together",
        adaptive="yes: + ε_dp for each release that the requester saw (erratum E2)",
        keeps="nothing",
        conditions=tuple(str(assumption) for assumption in certificate.assumptions),
        reference="Chourasia & Shah 2023, thm:unlearning_accuracy_convex"
        + ("; Gaussian DP accountant of dd_jax" if plan.accountant == "optimal" else ""),
    )
