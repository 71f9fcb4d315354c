"""What a composition plan gives: the runs that saw a record, added up."""

from dd_jax.guarantees import adaptive, inference, privacy, renyi
from dd_jax.plans import conditions
from dd_jax.plans.numbers import Numbers, Question, internal_order
from dd_jax.plans.settings import Settings


def composition_numbers(plan: Settings, question: Question) -> Numbers:
    """The run sums at this request: `deletion_run_sum` and `privacy_run_sum`."""
    order, lipschitz = internal_order(plan), conditions.sensitivity(plan.problem, "record")
    constants = (order, lipschitz, plan.noise_variance, plan.n, plan.step_size)
    steps = (plan.learn_steps, plan.delete_steps, question.request)
    stays = adaptive.privacy_run_sum(*constants, *steps, first_inserted=question.first_inserted)
    goes, goes_jointly = (
        adaptive.deletion_run_sum(
            *constants, *steps, first_inserted=question.first_inserted, records=records
        )
        for records in (1, question.records)
    )
    return Numbers(
        order=order,
        eps_dp=stays,
        eps_dp_run=privacy.privacy_lipschitz(*constants, max(plan.learn_steps, plan.delete_steps)),
        eps_dp_adaptive=stays,
        eps_dp_request=stays,
        eps_dp_joint=stays,
        eps_dd=goes,
        eps_dd_adaptive=goes,
        eps_dd_request=goes,
        eps_dd_records=goes_jointly,
        gaussian=True,
        deletion_form="gaussian",
        adaptive_form="gaussian",
        advantage_bound=inference.advantage_gdp(renyi.gdp_from_linear_renyi(order, goes)),
        risk_bound=None,
        risk_bound_learned=None,
        risk_bound_request=None,
        risk_bound_paper=None,
    )
