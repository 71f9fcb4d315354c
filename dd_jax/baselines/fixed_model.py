"""A model that is never trained: it costs nothing, is perfectly private, and is least accurate."""

from dd_jax.baselines.base import Guarantee, System, cost, label_of
from dd_jax.erm import Problem

GUARANTEE = Guarantee(
    notion="data-deletion",
    epsilon=0.0,
    delta=0.0,
    private="yes, trivially: the release depends on no record",
    adaptive="yes, trivially",
    keeps="nothing",
    conditions=(),
    reference="the trivial reference point",
)


def system(problem: Problem) -> System:
    """Release the model θ = 0 whatever the records are; no gradient is evaluated."""

    def learn(key, database):
        del key
        return problem.loss.template(database), cost()

    def delete(key, before, edit, after, state):
        del key, before, edit, after
        return state, cost()

    return System(
        name="fixed-model",
        learn=learn,
        delete=delete,
        predict=label_of(problem.loss),
        guarantee=GUARANTEE,
        domain=problem.loss.domain,
    )
