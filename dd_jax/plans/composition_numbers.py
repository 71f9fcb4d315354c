"""What a composition plan gives: the runs that saw a record, added up."""

from dataclasses import replace

from dd_jax.guarantees import adaptive, inference, renyi
from dd_jax.guarantees.convex import privacy_lipschitz
from dd_jax.plans.numbers import Numbers, Question, descent
from dd_jax.plans.settings import Settings


def composition_numbers(plan: Settings, question: Question) -> Numbers:
    """The run sums at this request: `deletion_run_sum` and `privacy_run_sum`."""
    run, first = descent(plan), question.first_inserted
    steps = (plan.learn_steps, plan.delete_steps, question.request)
    stays = adaptive.privacy_run_sum(run, *steps, first_inserted=first)
    goes, goes_jointly = (
        adaptive.deletion_run_sum(replace(run, records=records), *steps, first_inserted=first)
        for records in (1, question.records)
    )
    return Numbers(
        order=run.order,
        eps_dp=stays,
        eps_dp_run=privacy_lipschitz(run, max(plan.learn_steps, plan.delete_steps)),
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
        advantage_bound=inference.advantage_gdp(renyi.gdp_from_linear_renyi(run.order, goes)),
        risk_bound=None,
        risk_bound_learned=None,
        risk_bound_request=None,
        risk_bound_paper=None,
    )
