"""Certificates say what a plan's settings really give, and which looks count; they survive JSON."""

import dataclasses
import math

import jax
import numpy as np
import pytest

import dd_jax as dd
from dd_jax import constants
from dd_jax.constants import LossConstants, ProblemConstants
from dd_jax.errors import InputError
from dd_jax.guarantees import adaptive, inference, nonconvex, renyi, risk
from dd_jax.guarantees.convex import (
    ACCOUNTANTS,
    Descent,
    deletion_optimal,
    privacy_lipschitz,
    privacy_optimal,
)
from dd_jax.oracles import linear
from dd_jax.plans import (
    Certificate,
    arithmetic,
    plan_composition,
    plan_convex,
    plan_nonconvex,
)

LOGISTIC = ProblemConstants(constants.logistic(), 0.1)
TANH = ProblemConstants(constants.tanh_margin(), 2.0)
CLIPPED = ProblemConstants(constants.softmax(num_classes=3), 0.1, clip_norm=0.5)


def convex(**options):
    defaults = {"n": 1000, "dim": 10, "order": 2, "eps_dp": 1.0, "eps_dd": 0.1}
    return plan_convex(LOGISTIC, **(defaults | options))


def bounded(**options):
    defaults = {"n": 100, "dim": 1, "order": 2, "eps_dp": 1.0, "eps_dd": 0.5}
    return plan_nonconvex(TANH, **(defaults | {"noise_variance": 4.0} | options))


def composed(**options):
    defaults = {"n": 1000, "dim": 30, "order": 2, "eps_dp": 1.0, "num_requests": 10}
    defaults |= {"learn_steps": 100, "delete_steps": 5, "step_size": 0.2}
    return plan_composition(CLIPPED, **(defaults | options))


PLANS = {
    "optimal": convex,
    "unrelaxed": lambda: convex(accountant="unrelaxed"),
    "paper": lambda: convex(accountant="paper", edits_per_request=3),
    "gaussian": lambda: convex(order=None, delta=1e-5),
    "label": lambda: plan_convex(
        ProblemConstants(constants.squared(label_bound=1.0), 0.1),
        n=1000,
        dim=10,
        order=2,
        eps_dp=1.0,
        eps_dd=0.1,
        protects="label",
    ),
    "nonconvex": bounded,
    "nonconvex paper": lambda: bounded(form="paper", noise_variance=None, dtype="float64"),
    "composition": composed,
}


def warned(certificate, words):
    return any(words in text for text in certificate.warnings)


# --- numbers ------------------------------------------------------------------------------------


def logistic_run(plan):
    smoothness = LOGISTIC.loss.smoothness
    sizes = (plan.noise_variance, 1000, plan.step_size)
    return Descent(2, LOGISTIC.lipschitz, 0.1, smoothness, *sizes)


def test_convex_numbers_are_the_guarantees_at_the_plans_settings():
    plan = convex(edits_per_request=3)
    certificate = plan.certificate(2, 4)
    run = logistic_run(plan)
    eps_dp = privacy_optimal(run, math.inf)
    eps_dd = deletion_optimal(run, plan.delete_steps)
    steps = (plan.learn_steps, plan.delete_steps)
    assert certificate.eps_dp == eps_dp == certificate.eps_dp_run
    assert certificate.eps_dp_adaptive == pytest.approx(3 * eps_dp)
    joint = adaptive.privacy_all_releases(run, *steps, 4)
    assert certificate.eps_dp_joint == pytest.approx(joint)
    assert certificate.eps_dp_request == pytest.approx(min(3 * eps_dp, joint))
    assert certificate.eps_dd == eps_dd
    assert certificate.eps_dd_adaptive == pytest.approx(eps_dd + 2 * eps_dp)
    before = adaptive.privacy_all_releases(run, *steps, 3)
    assert certificate.eps_dd_request == pytest.approx(min(eps_dd + 2 * eps_dp, before))
    assert certificate.eps_dd_records == pytest.approx(9 * (eps_dd + 2 * eps_dp))
    assert certificate.records == 3
    assert certificate.mu_dd == pytest.approx(math.sqrt(eps_dd))
    assert certificate.mu_dd_adaptive == pytest.approx(math.sqrt(eps_dd + 2 * eps_dp))
    assert certificate.advantage_bound == inference.advantage_gdp(certificate.mu_dd_adaptive)
    assert certificate.eps_dd_reduction_as_stated == certificate.eps_dd_adaptive
    edited = dataclasses.replace(run, records=3)
    assert certificate.risk_bound_request == risk.excess_risk_convex(edited, 10, *steps, 4)
    limits = [risk.excess_risk_convex(edited, 10, *steps, request) for request in (0, math.inf)]
    assert certificate.risk_bound == max(limits)
    assert certificate.risk_bound_learned == limits[0]


def test_the_risk_bound_covers_the_learned_model_and_every_later_one():
    falling = convex().certificate(request=10**6)
    assert falling.risk_bound == falling.risk_bound_learned > falling.risk_bound_request
    rising = convex(edits_per_request=100).certificate(request=10**6)
    assert rising.risk_bound_learned < rising.risk_bound_request
    assert rising.risk_bound == pytest.approx(rising.risk_bound_request)


def test_known_looks_make_the_bound_smaller():
    plan = convex()
    run = logistic_run(plan)
    steps = (plan.learn_steps, plan.delete_steps)
    seen = plan.certificate(request=5, observed=(1, 4), first_inserted=1)
    assert seen.adaptivity == 2
    assert seen.observed == (1, 4)
    expected = adaptive.deletion_adaptive_intervals(run, *steps, 5, [1, 4], first_inserted=1)
    assert seen.eps_dd_request == pytest.approx(expected)
    assert seen.eps_dd_request < seen.eps_dd_adaptive
    expected = adaptive.privacy_adaptive_intervals(run, *steps, 5, [1, 4], first_inserted=1)
    assert seen.eps_dp_request == pytest.approx(expected)
    # Releases before the insertion and after the deletion are free.
    assert plan.certificate(request=5, observed=(0, 5, 9), first_inserted=1).adaptivity == 0
    # A look just before the deletion leaves nothing to the deletion itself.
    last = plan.certificate(request=1, observed=(0,))
    assert last.eps_dd_request == pytest.approx(privacy_optimal(run, plan.learn_steps))


def test_a_record_present_for_few_steps_leaves_less():
    plan = convex()
    young = plan.certificate(request=3, first_inserted=2)
    old = plan.certificate(request=3)
    assert young.eps_dd == old.eps_dd
    assert young.eps_dd_request < old.eps_dd_request <= old.eps_dd
    assert young.eps_dp_joint < old.eps_dp_joint


@pytest.mark.parametrize("accountant", ["unrelaxed", "paper"])
def test_other_accountants_use_their_own_formulas_and_prove_no_gaussian_dp(accountant):
    plan = convex(accountant=accountant)
    certificate = plan.certificate(1, 2, delta=1e-5)
    run = logistic_run(plan)
    bound, remains, _ = ACCOUNTANTS[accountant]
    eps_dp, eps_dd = bound(run, math.inf), remains(run, plan.delete_steps)
    assert (certificate.eps_dp, certificate.eps_dd) == (eps_dp, eps_dd)
    first, later = (bound(run, k) for k in (plan.learn_steps, plan.delete_steps))
    assert certificate.eps_dp_joint == pytest.approx(first + 2 * later)
    assert certificate.eps_dd_request == pytest.approx(min(eps_dd + eps_dp, first + later))
    assert certificate.mu_dp is None
    assert certificate.mu_dd_adaptive is None
    assert certificate.advantage_bound == pytest.approx(math.sqrt((eps_dd + eps_dp) / 4))
    for name in ("dp", "dd", "dd_adaptive"):  # converted by the divergence, as no μ is proved
        eps, epsilon = (getattr(certificate, f"{unit}_{name}") for unit in ("eps", "epsilon"))
        assert epsilon == renyi.epsilon_tight_linear(eps / 2, 1e-5)
        assert epsilon > renyi.gdp_epsilon(math.sqrt(eps), 1e-5) * 1.01
    optimal = dataclasses.replace(plan, accountant="optimal").certificate(1, 2, delta=1e-5)
    for name in ("eps_dp", "eps_dd", "eps_dd_adaptive", "epsilon_dp", "advantage_bound"):
        assert getattr(optimal, name) < getattr(certificate, name)


def test_nonconvex_numbers():
    plan = bounded(edits_per_request=2)
    unseen, seen = plan.certificate(request=3), plan.certificate(1, 3)
    curvature = (TANH.l2, TANH.loss.smoothness)
    run = Descent(2, TANH.lipschitz, *curvature, plan.noise_variance, 100, plan.step_size)
    steps = (plan.learn_steps, plan.delete_steps)
    shape = nonconvex.Bounded(2, 1.0, 2.0, TANH.loss.smoothness, 1.0, 100, 1, records=2)
    noise = (plan.noise_variance, plan.step_size)
    gibbs = nonconvex.deletion_nonconvex_tuned(shape, *noise, *steps)
    assert unseen.eps_dd == gibbs == unseen.eps_dd_adaptive == unseen.eps_dd_records
    assert unseen.eps_dd_request == nonconvex.deletion_nonconvex_tuned(shape, *noise, *steps, 3)
    run_sum = adaptive.deletion_run_sum(run, *steps, 3)
    assert seen.eps_dd == gibbs
    assert seen.eps_dd_adaptive == run_sum == seen.eps_dd_request
    assert seen.eps_dd_records == pytest.approx(4 * run_sum)
    stays = adaptive.privacy_run_sum(run, *steps, 3)
    for certificate in (unseen, seen):
        assert certificate.eps_dp == certificate.eps_dp_joint == stays
        assert certificate.eps_dp_run == privacy_lipschitz(run, max(steps))
        assert certificate.eps_dp > certificate.eps_dp_run
        assert certificate.risk_bound_paper > 2  # vacuous
    # The divergence from the Gibbs law is not Gaussian DP, whoever asks.
    assert unseen.mu_dd is None
    assert seen.mu_dd is None
    delta = [plan.certificate(p, 3, delta=1e-5).epsilon_dd for p in (0, 1)]
    assert delta == [renyi.epsilon_tight(2, gibbs, 1e-5)] * 2
    assert seen.mu_dd_adaptive == pytest.approx(math.sqrt(run_sum))
    assert unseen.advantage_bound == pytest.approx(
        min(inference.advantage_soundness(2, gibbs), seen.advantage_bound)
    )
    assert "Gibbs" in unseen.comparator
    assert "Gibbs" not in seen.comparator


def test_nonconvex_risk_relies_on_the_gibbs_law_only_where_nothing_was_seen():
    plan = bounded(n=10**6, noise_variance=0.3)
    unseen, seen = plan.certificate(), plan.certificate(1)
    square = risk.released_second_moment(1.0, 2.0, 0.3, 1, plan.step_size)
    assert seen.risk_bound == pytest.approx(2 + square)
    assert seen.risk_bound_request == seen.risk_bound
    assert unseen.risk_bound < seen.risk_bound / 2


@pytest.mark.parametrize("form", ["sharp", "refined", "tuned", "paper"])
def test_least_nonconvex_noise_meets_both_budgets_and_wastes_none(form):
    plan = bounded(form=form, noise_variance=None, n=50, eps_dp=0.3)
    certificate = plan.certificate()
    assert certificate.eps_dp_run == pytest.approx(0.3, rel=1e-3)
    assert certificate.eps_dp_run <= 0.3 * (1 + 1e-12)
    assert certificate.eps_dd <= 0.5
    assert plan.init_variance == pytest.approx(plan.noise_variance / 2.0)


def test_a_plan_beyond_reach_is_computed_and_says_so():
    plan = plan_nonconvex(
        ProblemConstants(constants.tanh_margin(), 0.01),
        n=10**6,
        dim=1000,
        order=4,
        eps_dp=1.0,
        eps_dd=0.01,
        dtype="float64",
    )
    assert plan.learn_gradients > 1e15
    assert warned(plan.certificate(), "beyond reach")
    assert not warned(bounded().certificate(), "beyond reach")


def test_a_composition_of_several_rows_grows_by_their_square():
    plan = composed(edits_per_request=2)
    certificate = plan.certificate(1, 4)
    assert certificate.eps_dd_records == pytest.approx(4 * certificate.eps_dd)
    assert plan.certificate(1, 4, records=5).eps_dd_records == pytest.approx(
        25 * certificate.eps_dd
    )
    assert plan.certificate(1, 4, records=1).eps_dd_records == certificate.eps_dd


def test_composition_covers_clipped_losses_that_nothing_else_does():
    plan = composed()
    certificate = plan.certificate(3, 10)
    assert certificate.eps_dp == pytest.approx(1.0)
    assert certificate.eps_dp == plan.certificate(0, 10).eps_dp_joint
    assert certificate.eps_dd == pytest.approx(145 / 150)
    assert certificate.risk_bound is None
    gaussian = composed(order=None, delta=1e-6)
    assert gaussian.certificate(0, 10).eps_dp == pytest.approx(1.0)


# --- what a plan altered by hand gets -----------------------------------------------------------


@pytest.mark.parametrize("name", PLANS)
def test_altered_settings_get_their_own_certificate(name, monkeypatch):
    monkeypatch.setattr(arithmetic, "check", lambda plan: None)  # of accounting alone
    plan = PLANS[name]()
    honest = plan.certificate()
    halved = {"noise_variance": plan.noise_variance / 2}
    if plan.kind == "nonconvex":
        halved["init_variance"] = plan.init_variance / 2
    if name == "nonconvex paper":
        halved["step_size"] = plan.step_size * 1e-40  # its limit falls with the noise
    weaker = dataclasses.replace(plan, **halved).certificate()
    if name != "nonconvex paper":
        assert weaker.eps_dp > honest.eps_dp * 1.1
    assert weaker.eps_dd > honest.eps_dd * 1.1
    assert weaker.eps_dp != plan.eps_dp_asked
    if plan.kind == "convex":
        assert warned(weaker, "requested")
        shorter = dataclasses.replace(plan, delete_steps=plan.delete_steps - 1).certificate()
        assert shorter.eps_dd > honest.eps_dd


def test_budgets_do_not_enter_the_numbers():
    plan = convex()
    other = dataclasses.replace(plan, eps_dp_asked=50.0, eps_dd_asked=40.0, risk_asked=3.0)
    numbers = {
        f.name: getattr(plan.certificate(), f.name)
        for f in dataclasses.fields(Certificate)
        if f.name not in ("plan", "warnings")
    }
    assert numbers == {name: getattr(other.certificate(), name) for name in numbers}


def test_no_deletion_step_is_certified_as_it_is():
    certificate = dataclasses.replace(convex(), delete_steps=0).certificate()
    assert certificate.eps_dd == certificate.eps_dp
    assert certificate.risk_bound == math.inf
    assert warned(certificate, "no step")


# --- meaning ------------------------------------------------------------------------------------


def test_assumptions_say_how_each_was_established():
    def grounds(plan):
        return {a.statement: a.established for a in plan.certificate().assumptions}

    own = LossConstants("my loss", True, False, lipschitz=1.0, smoothness=1.0)
    declared = plan_convex(
        ProblemConstants(own, 0.1), n=100, dim=1, order=2, eps_dp=1.0, eps_dd=0.1
    )
    for plan, name, expected in (
        (convex(), "logistic", "proved for this loss"),
        (declared, "my loss", "declared by the user"),
    ):
        found = grounds(plan)
        of_the_loss = {how for text, how in found.items() if text.startswith(name)}
        assert of_the_loss == {expected}
        (step,) = (how for text, how in found.items() if text.startswith("step size"))
        assert step == "checked on the plan"
        (domain,) = (how for text, how in found.items() if f"all {plan.n} records" in text)
        assert domain == "declared by the user"


def test_a_caveat_of_the_domain_is_a_warning_of_every_certificate():
    loss = dataclasses.replace(LOGISTIC.loss, caveat="the ranges were measured")
    plan = dataclasses.replace(convex(), problem=dataclasses.replace(LOGISTIC, loss=loss))
    issued = plan.certificate(adaptivity=1, request=2)
    assert issued.warnings[0] == "the ranges were measured"
    assert issued.warnings[1:] == convex().certificate(adaptivity=1, request=2).warnings


def test_warnings_are_given_where_they_are_due_and_nowhere_else():
    useless = plan_convex(LOGISTIC, n=2, dim=100, order=2, eps_dp=0.1, eps_dd=0.01)
    assert warned(useless.certificate(), "risk_bound =")
    assert warned(bounded().certificate(), "depended on")  # risks of non-adaptive histories
    assert warned(PLANS["label"]().certificate(), "label-DP")
    assert warned(PLANS["paper"]().certificate(), "accountant")
    assert warned(convex(eps_dd=1.0).certificate(), "deletion budget")
    assert convex().certificate().warnings == ()


@pytest.mark.parametrize("name", PLANS)
def test_text_holds_the_numbers_and_the_grounds(name):
    certificate = PLANS[name]().certificate(1, 2)
    text = str(certificate)
    assert max(map(len, text.splitlines())) <= 100
    flat = " ".join(text.split())
    for part in (certificate.comparator, *certificate.warnings, *certificate.assumptions):
        assert " ".join(str(part).split()) in flat
    for number in (certificate.eps_dp, certificate.eps_dd, certificate.eps_dd_adaptive):
        assert f"{number:.6g}" in flat


def test_stable_field_names():
    names = [f.name for f in dataclasses.fields(Certificate)]
    assert names == [
        "plan", "basis", "row", "rewritten", "claim", "comparator", "observer", "adaptivity",
        "request", "first_inserted", "observed", "order", "delta", "eps_dp", "eps_dp_run",
        "eps_dp_adaptive", "eps_dp_request",
        "eps_dp_joint", "eps_dd", "eps_dd_adaptive", "eps_dd_request", "eps_dd_records", "records",
        "mu_dp", "mu_dd", "mu_dd_adaptive", "epsilon_dp", "epsilon_dd", "epsilon_dd_adaptive",
        "advantage_bound", "eps_dd_reduction_as_stated", "risk_bound", "risk_bound_learned",
        "risk_bound_request", "risk_bound_paper", "assumptions", "warnings", "eps_dd_null",
        "eps_dd_null_adaptive", "comparator_null", "loaded",
    ]  # fmt: skip


def test_a_mechanism_runs_from_a_plan_and_from_no_other_problem():
    problem, other = (dd.Problem(dd.losses.logistic(), l2=l2) for l2 in (0.1, 0.2))
    plan = dd.plan_convex(problem, n=4, dim=2, order=2, eps_dp=1.0, eps_dd=0.1)
    database = dd.Labelled(np.full((4, 2), 0.5, np.float32), np.ones(4, np.float32))
    mechanism = dd.noisy_gd.mechanism(problem, plan)
    assert mechanism.learn(jax.random.key(0), database).shape == (2,)
    with pytest.raises(InputError, match="problem"):
        dd.noisy_gd.mechanism(other, plan)


# --- clocks, and which looks count ----------------------------------------------------------------


def linear_plan():
    """The example of a record that comes back: q = 2, η = 1/4, λ = L = 1, K_L = 40, K_U = 1."""
    loss = LossConstants("linear", True, True, lipschitz=1.0, smoothness=0.0)
    plan = plan_convex(ProblemConstants(loss, 1.0), n=100, dim=1, order=2, eps_dp=1.0, eps_dd=0.5)
    settings = {"step_size": 0.25, "noise_variance": 4e-4, "learn_steps": 40, "delete_steps": 1}
    return dataclasses.replace(plan, init_variance=0.0, **settings)


def exact(plan, present):
    """R_q of a linear loss after runs in which the record was there, or not."""
    steps = [plan.learn_steps, *[plan.delete_steps] * (len(present) - 1)]
    shift, rate = 0.0, 1 - plan.step_size * plan.problem.l2
    for count, there in zip(steps, present, strict=True):
        for _ in range(count):
            shift = rate * shift + there * plan.step_size * 2 / plan.n
    spread = linear.variance(1.0, plan.noise_variance, plan.step_size, sum(steps), 0.0)
    return plan.order * shift**2 / (2 * spread)


def test_a_record_that_left_and_came_back_counts_from_its_first_stay():
    plan = linear_plan()
    # In the database, deleted by request 1, back with request 2, deleted by request 3.
    truth = exact(plan, [True, False, True, False])
    assert truth == pytest.approx(0.325, abs=5e-4)
    assert plan.certificate(request=3, first_inserted=0).eps_dd_request >= truth
    # The clock of the last stay alone would be false.
    last_stay = plan.certificate(request=3, first_inserted=2).eps_dd_request
    assert last_stay == pytest.approx(0.045, abs=5e-4)
    # So it is for a record that is still there.
    truth = exact(plan, [True, False, True])
    first, second = (plan.certificate(request=2, first_inserted=j) for j in (0, 1))
    assert first.eps_dp_request >= truth > second.eps_dp_request
    assert first.eps_dp_joint >= truth > second.eps_dp_joint


def test_random_histories_of_one_row_stay_below_the_certificate():
    rng = np.random.default_rng(5)
    plan = linear_plan()
    for _ in range(100):
        present = rng.random(int(rng.integers(2, 9))) < 0.5
        present[-1] = False
        if not present.any():
            continue
        held = np.flatnonzero(present).tolist()
        first, last = held[0], held[-1] + 1
        truth = exact(plan, present[: last + 1])
        issued = plan.certificate(request=last, first_inserted=first)
        assert truth <= issued.eps_dd_request * (1 + 1e-9)


def test_a_look_before_the_insertion_counts_for_non_convex_plans():
    """A requester that writes one bit of the first model into another row leaves R₂ = 2.41 to the
    Gibbs law, conditionally on the edits, where 0.250 would be certified without that look."""
    plan = bounded(n=20000, eps_dd=0.3, noise_variance=2.0)
    unseen, seen, later = (
        plan.certificate(request=3, first_inserted=2, observed=observed)
        for observed in ((), (0,), (3, 7))
    )
    assert unseen.adaptivity == later.adaptivity == 0  # a look after the deletion is free
    assert unseen.eps_dd_adaptive == unseen.eps_dd <= 0.3
    assert "Gibbs" in unseen.comparator
    # The answer is the run sum between neighbouring runs, and no number about the Gibbs law.
    assert seen.adaptivity == 1
    assert "Gibbs" not in seen.comparator
    run_sum = plan.certificate(1, 3, first_inserted=2)
    assert seen.eps_dd_adaptive == run_sum.eps_dd_adaptive == seen.eps_dd_request


def test_a_look_before_the_insertion_is_free_for_convex_plans():
    plan = linear_plan()
    free = plan.certificate(request=3, first_inserted=2, observed=(0,))
    assert free.adaptivity == 0
    assert free.eps_dd_request == plan.certificate(request=3, first_inserted=2).eps_dd_request
