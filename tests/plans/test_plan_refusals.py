"""Every refusal names the reason and a remedy; the whole text is pinned."""

import dataclasses
import math
import re

import pytest

from dd_jax import constants
from dd_jax.constants import LossConstants, ProblemConstants
from dd_jax.errors import CertificateRefused, InputError
from dd_jax.plans import Plan, plan_composition, plan_convex, plan_nonconvex

LOGISTIC = ProblemConstants(constants.logistic(), 0.1)
TANH = ProblemConstants(constants.tanh_margin(), 2.0)
SOFTMAX = constants.softmax(num_classes=3)
BARE = LossConstants("my loss", True, False)
SIZE = {"n": 100, "dim": 2, "eps_dp": 1.0, "eps_dd": 0.1}


def convex(problem=LOGISTIC, **options):
    return plan_convex(problem, **({"order": 2} | SIZE | options))


def bounded(problem=TANH, **options):
    return plan_nonconvex(problem, **({"order": 2} | SIZE | options))


def labels():
    problem = ProblemConstants(constants.squared(label_bound=1.0), 0.1)
    return convex(problem, protects="label")


def composed(**options):
    settings = {"learn_steps": 9, "delete_steps": 5, "num_requests": 2, "step_size": 0.1}
    budget = {"n": 9, "dim": 1, "order": 2, "eps_dp": 1.0}
    return plan_composition(LOGISTIC, **(budget | settings | options))


def declared(**constants):
    return ProblemConstants(dataclasses.replace(BARE, **constants), 0.1)


def other_problem():
    return convex().certificate(problem=ProblemConstants(constants.logistic(), 0.2))


def adaptive_nonconvex():
    return bounded(n=50, dim=1, eps_dd=0.5).certificate(1, 50, reduction="as_stated")


REFUSED = {
    "a convex certificate for a non-convex loss": (
        lambda: convex(TANH),
        "tanh margin is not convex, so no convex certificate is true of it; use plan_nonconvex "
        "if it is bounded, or plan_composition.",
    ),
    "a clipped loss that is no GLM": (
        lambda: convex(ProblemConstants(SOFTMAX, 0.1, clip_norm=1.0)),
        "clipping softmax to norm 1 leaves no convex certificate: the clipped field of a loss that "
        "is no single-index GLM need be neither a gradient nor monotone (erratum E1); give "
        "clip_norm ≥ L = 1.41421, where clipping never acts, or use plan_composition, which holds "
        "for every clipped loss.",
    ),
    "a clipped loss of unknown L that is no GLM": (
        lambda: convex(ProblemConstants(dataclasses.replace(BARE, smoothness=1.0), 0.1, 1.0)),
        "clipping my loss to norm 1 leaves no convex certificate: the clipped field of a loss that "
        "is no single-index GLM need be neither a gradient nor monotone (erratum E1); drop the "
        "clip norm, or use plan_composition, which holds for every clipped loss.",
    ),
    "no smoothness": (
        lambda: convex(declared(lipschitz=1.0)),
        "smoothness of my loss is not known: the certificate needs β, the smoothness of one "
        "record's loss; declare smoothness, or use a loss of the catalogue that has it.",
    ),
    "no Lipschitz constant": (
        lambda: convex(declared(smoothness=1.0)),
        "lipschitz of my loss is not known: the certificate needs L, the Lipschitz constant of one "
        "record's loss; declare lipschitz, or use a loss of the catalogue that has it.",
    ),
    "no label sensitivity": (
        lambda: convex(protects="label"),
        "label_sensitivity of logistic is not known: the certificate needs the sensitivity of one "
        "record's gradient to its label; declare label_sensitivity, or use a loss of the catalogue "
        "that has it.",
    ),
    "an unbounded loss": (
        lambda: bounded(LOGISTIC),
        "logistic has no bound b on |loss|, which the non-convex certificate needs (ReLU networks, "
        "cross-entropy and squared error have none); use a bounded loss such as tanh_margin or "
        "bounded_network, or plan_composition.",
    ),
    "a clipped bounded loss": (
        lambda: bounded(ProblemConstants(constants.tanh_margin(), 2.0, clip_norm=0.5)),
        "clipping tanh margin to norm 0.5 leaves no non-convex certificate: the clipped field is "
        "no bounded loss's gradient, even in one dimension (erratum E1); give clip_norm ≥ L = 1, "
        "where clipping never acts, or use plan_composition.",
    ),
    "a step size beyond the optimal condition": (
        lambda: convex(step_size=4.5),
        "step_size = 4.5 is not at most 2/(2λ+β) = 4.4444444444444446, which this bound needs; "
        "give a step size of at most 4.4444444444444446.",
    ),
    "a step size beyond the paper's condition": (
        lambda: convex(accountant="paper", step_size=3.0),
        "step_size = 3 is not below 1/(λ+β) = 2.8571428571428572, which this bound needs; give a "
        "step size smaller than 2.8571428571428572.",
    ),
    "a step size altered afterwards": (
        lambda: dataclasses.replace(convex(), step_size=5.0).certificate(),
        "step_size = 5 is not at most 2/(2λ+β) = 4.4444444444444446, which this bound needs; give "
        "a step size of at most 4.4444444444444446.",
    ),
    "a non-convex step size beyond both conditions": (
        lambda: bounded(form="paper", noise_variance=4.0, step_size=0.1),
        "step_size = 0.1 is above λ/(64qBM²) · min(ε_dd/d, 1/q) = 3.74627e-05, which the paper's "
        "proof needs; give at most 3.74627e-05, or use the tuned bound.",
    ),
    "noise below the budget": (
        lambda: convex(noise_variance=1e-9),
        "noise_variance = 1e-09 breaks the privacy budget, which needs 0.00342857; give at least "
        "that, or a larger eps_dp.",
    ),
    "non-convex noise below the budget": (
        lambda: bounded(n=2, noise_variance=1.0, eps_dd=0.5, eps_dp=0.01),
        "noise_variance = 1 breaks the privacy budget: a run of 43087 steps has eps_dp = 4.90196, "
        "above 0.01; give no noise_variance to have the least one chosen, or a larger one.",
    ),
    "a target below what the noise allows": (
        lambda: convex(target_risk=1e-6),
        "target_excess_risk = 1e-06 is not above 0.014, the least that this noise allows; give a "
        "larger target, or less noise (more records, or a larger budget).",
    ),
    "(ε, δ) for the paper's accountant": (
        lambda: convex(order=None, delta=1e-5, accountant="paper"),
        "(ε, δ) budgets go through Gaussian DP, which the bounds of accountant='paper' do not "
        "give; use accountant='optimal' with a convex loss, or give order and Rényi budgets.",
    ),
    "another non-convex start": (
        lambda: dataclasses.replace(
            bounded(noise_variance=4.0, eps_dd=0.5), init_variance=1.0
        ).certificate(),
        "the start N(0, 1 I) has no non-convex deletion certificate, which holds from N(0, σ²/λ I) "
        "only (erratum E11: a pretrained start broke it); give init_variance = 2.",
    ),
    "labels of a non-convex plan": (
        lambda: dataclasses.replace(bounded(noise_variance=4.0, eps_dd=0.5), protects="label"),
        "protects = 'label' has no certificate for nonconvex plans; give protects='record', or use "
        "plan_convex for a convex loss.",
    ),
    "labels of a composition plan": (
        lambda: dataclasses.replace(composed(), protects="label"),
        "protects = 'label' has no certificate for composition plans; give protects='record', or "
        "use plan_convex for a convex loss.",
    ),
    "a label plan turned into another kind": (
        lambda: dataclasses.replace(
            labels(), kind="composition", accountant="composition"
        ).certificate(),
        "protects = 'label' has no certificate for composition plans; give protects='record', or "
        "use plan_convex for a convex loss.",
    ),
    "another problem": (
        other_problem,
        f"the plan was made for {LOGISTIC}, not for "
        f"{ProblemConstants(constants.logistic(), 0.2)}; plan again for the problem that is "
        f"run.",
    ),
    "more edits than records": (
        lambda: convex(edits_per_request=101).certificate(),
        "edits_per_request = 101 exceeds n = 100, but a request replaces distinct records; give "
        "edits_per_request ≤ n.",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    make, text = REFUSED[name]
    with pytest.raises(CertificateRefused) as error:
        make()
    assert rough(str(error.value)) == rough(text)


def rough(text):
    """The text with its numbers in four digits."""
    return re.sub(r"\d+\.\d+(e-?\d+)?", lambda found: f"{float(found[0]):.4g}", text)


@pytest.mark.parametrize("excess", [-0.05, -1e-6, 1e-8, 1e-6, 0.05])
def test_a_non_convex_start_that_is_slightly_off_is_refused(excess):
    plan = bounded(noise_variance=4.0, eps_dd=0.5)
    off = dataclasses.replace(plan, init_variance=plan.init_variance * (1 + excess))
    with pytest.raises(CertificateRefused, match="has no non-convex deletion certificate"):
        off.certificate()
    rounded = dataclasses.replace(plan, init_variance=plan.init_variance * (1 + 1e-14))
    assert rounded.certificate().eps_dd == plan.certificate().eps_dd


def test_different_domains_never_read_alike():
    bounds = [0.1, 1 / 3, 0.5, 1.0, math.nextafter(1.0, 2.0), 2.5, 1e6, 1234567.0, 1e-7, 3e90]
    texts = {
        constants.squared(feature_norm=x, label_bound=y).domain for x in bounds for y in bounds
    }
    assert len(texts) == len(bounds) ** 2
    assert constants.squared(feature_norm=2, label_bound=1e6).domain == (
        "‖features‖ ≤ 2, label in [-1e+06, 1e+06]"
    )


def test_the_reduction_as_stated_is_refused_where_the_sound_bound_is_larger():
    with pytest.raises(CertificateRefused) as error:
        adaptive_nonconvex()
    assert str(error.value).startswith("the reduction as stated gives eps_dd + p·eps_dp = ")
    assert str(error.value).endswith(
        "use reduction='sound', and read the paper's number from eps_dd_reduction_as_stated."
    )
    plan = convex()
    as_stated = plan.certificate(2, reduction="as_stated")
    assert as_stated == plan.certificate(2)  # for convex losses the number is sound


BAD_INPUT = {
    "zero budget": (
        lambda: convex(eps_dp=0.0),
        "eps_dp = 0.0 is not a positive finite number; give eps_dp > 0.",
    ),
    "negative budget": (
        lambda: convex(eps_dd=-0.1),
        "eps_dd = -0.1 is not a positive finite number; give eps_dd > 0.",
    ),
    "infinite budget": (
        lambda: bounded(eps_dp=math.inf),
        "eps_dp = inf is not a positive finite number; give eps_dp > 0.",
    ),
    "NaN budget": (
        lambda: convex(eps_dd=math.nan),
        "eps_dd = nan is not a positive finite number; give eps_dd > 0.",
    ),
    "order 1": (
        lambda: convex(order=1),
        "order = 1 is not a Rényi order; give a finite order > 1.",
    ),
    "non-convex order": (
        lambda: bounded(order=0.5),
        "order = 0.5 is not a Rényi order; give a finite order > 1.",
    ),
    "no unit": (
        lambda: convex(order=None),
        "give either order (budgets are Rényi divergences of that order) or delta (budgets are the "
        "ε of (ε, δ)), and not both.",
    ),
    "two units": (
        lambda: convex(delta=1e-5),
        "give either order (budgets are Rényi divergences of that order) or delta (budgets are the "
        "ε of (ε, δ)), and not both.",
    ),
    "delta": (
        lambda: convex(order=None, delta=1.0),
        "delta = 1.0 is not in (0, 1); give for example delta=1e-5.",
    ),
    "accountant": (
        lambda: convex(accountant="moments"),
        "accountant = 'moments' is not known; give one of paper, unrelaxed, optimal.",
    ),
    "form": (
        lambda: bounded(form="optimal"),
        "form = 'optimal' is not known; give one of sharp, refined, tuned, paper.",
    ),
    "protects": (
        lambda: convex(protects="features"),
        "protects = 'features' is not known; give 'record' or 'label'.",
    ),
    "constant loss": (
        lambda: convex(declared(lipschitz=0.0, smoothness=0.0)),
        "the gradient of my loss does not depend on the record (L = 0), so there is nothing to "
        "protect; give a positive Lipschitz constant.",
    ),
    "records": (
        lambda: convex(n=0),
        "n = 0 is not a finite whole number ≥ 1; give 1, 2, 3, ….",
    ),
    "step size": (
        lambda: convex(step_size=-1.0),
        "step_size = -1.0 is not a positive finite number; give step_size > 0.",
    ),
    "non-convex step size alone": (
        lambda: bounded(step_size=0.1),
        "step_size = 0.1 needs a noise_variance with it, as each decides the other's range; give "
        "both, or neither to have them chosen.",
    ),
    "request": (
        lambda: convex().certificate(request=0),
        "request = 0 is not a whole number ≥ 1; give one.",
    ),
    "adaptivity": (
        lambda: convex().certificate(adaptivity=-1),
        "adaptivity = -1 is not a whole number ≥ 0; give one.",
    ),
    "insertion": (
        lambda: convex().certificate(request=2, first_inserted=2),
        "first_inserted = 2 is not before request = 2; count requests from 1, and give "
        "first_inserted=0 for a record of the initial database.",
    ),
    "reduction": (
        lambda: convex().certificate(reduction="paper"),
        "reduction = 'paper' is not known; give one of sound, as_stated.",
    ),
    "infinite steps": (
        lambda: dataclasses.replace(convex(), learn_steps=math.inf),
        "learn_steps = inf is not a finite whole number ≥ 0; give 0, 1, 2, ….",
    ),
    "kind": (
        lambda: dataclasses.replace(convex(), kind="concave"),
        "kind = 'concave' is not known; give one of convex, nonconvex, composition.",
    ),
    "accountant of another kind": (
        lambda: dataclasses.replace(convex(), accountant="sharp"),
        "accountant = 'sharp' is not known for convex plans; give one of optimal, unrelaxed, "
        "paper.",
    ),
    "infinite start": (
        lambda: dataclasses.replace(convex(), init_variance=math.inf),
        "init_variance = inf is not a finite number ≥ 0; give one that is.",
    ),
    "composition without a step": (
        lambda: composed(learn_steps=0, num_requests=0),
        "learn_steps = 0 is no run; give at least one step.",
    ),
}


@pytest.mark.parametrize("name", BAD_INPUT)
def test_bad_input(name):
    make, text = BAD_INPUT[name]
    with pytest.raises(InputError) as error:
        make()
    assert str(error.value) == text


def test_a_plan_for_another_kind_of_loss_is_refused_when_it_is_certified():
    """A plan cannot be turned into a certificate of another family by renaming it."""
    plan = dataclasses.replace(convex(), kind="nonconvex", accountant="sharp")
    with pytest.raises(CertificateRefused, match="logistic has no bound b"):
        plan.certificate()
    plan = dataclasses.replace(bounded(noise_variance=4.0, eps_dd=0.5))
    disguised = dataclasses.replace(plan, kind="convex", accountant="optimal")
    with pytest.raises(CertificateRefused, match="tanh margin is not convex"):
        disguised.certificate()
    clipped = dataclasses.replace(convex(), problem=ProblemConstants(SOFTMAX, 0.1, 1.0))
    with pytest.raises(CertificateRefused, match="clipping softmax to norm 1"):
        clipped.certificate()
    assert isinstance(plan, Plan)
