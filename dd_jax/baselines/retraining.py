"""Retraining with Noisy-GD at every request: the reference for exactness and for cost."""

from dd_jax.baselines import noisy_gd_system
from dd_jax.baselines.base import Guarantee, System
from dd_jax.erm import Problem
from dd_jax.plans import Plan

GUARANTEE = Guarantee(
    notion="exact unlearning",
    epsilon=0.0,
    delta=0.0,
    private="yes: every release by its plan's ε_dp",
    adaptive="yes: p ε_dp for p releases seen, since edits may depend on them (erratum E2)",
    keeps="nothing",
    conditions=("fresh noise at every request", "edits that do not depend on earlier releases"),
    reference="the definition of unlearning",
)


def system(problem: Problem, plan: Plan) -> System:
    """Learn again on the edited database with fresh noise; for budgets see `noisy_gd_system`.

    Guarantee: exact for requests fixed in advance: a release depends only on the edited database
    and on its own noise.
    Cost: n K_L gradients, to learn and per request.
    """
    served = noisy_gd_system.system(problem, plan)

    def delete(key, before, edit, after, state):
        del before, edit, state
        return served.learn(key, after)

    return served._replace(name="retraining", delete=delete, guarantee=GUARANTEE)
