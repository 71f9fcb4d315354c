"""What is refused, by whom, and the one word that names the cause."""

import dataclasses
import math

import pytest

from dd_jax import constants
from dd_jax.constants import LossConstants, ProblemConstants
from dd_jax.errors import CertificateRefused, InputError
from dd_jax.plans import plan_composition, plan_convex, plan_nonconvex

LOGISTIC = ProblemConstants(constants.logistic(), 0.1)
TANH = ProblemConstants(constants.tanh_margin(), 2.0)
SOFTMAX = constants.softmax(num_classes=3)
BARE = LossConstants("my loss", True, False)
SIZE = {"n": 100, "dim": 2, "eps_dp": 1.0, "eps_dd": 0.1}


def convex(problem=LOGISTIC, **options):
    return plan_convex(problem, **({"order": 2} | SIZE | options))


def bounded(problem=TANH, **options):
    return plan_nonconvex(problem, **({"order": 2} | SIZE | options))


def noisy(**changes):
    """A non-convex plan that holds, altered."""
    return dataclasses.replace(bounded(noise_variance=4.0, eps_dd=0.5), **changes)


def labels():
    problem = ProblemConstants(constants.squared(label_bound=1.0), 0.1)
    return convex(problem, protects="label")


def composed(**options):
    settings = {"learn_steps": 9, "delete_steps": 5, "num_requests": 2, "step_size": 0.1}
    budget = {"n": 9, "dim": 1, "order": 2, "eps_dp": 1.0}
    return plan_composition(LOGISTIC, **(budget | settings | options))


def declared(clip_norm=None, **constants):
    return ProblemConstants(dataclasses.replace(BARE, **constants), 0.1, clip_norm)


def altered(**changes):
    return dataclasses.replace(convex(), **changes).certificate()


COMPOSITION = {"kind": "composition", "accountant": "composition"}
REFUSED = {
    "a convex certificate for a non-convex loss": (lambda: convex(TANH), "convex"),
    "a clipped loss that is not a GLM": (
        lambda: convex(ProblemConstants(SOFTMAX, 0.06, clip_norm=1.0)),
        "clip_norm ≥",
    ),
    "a contraction by the paper's proof": (
        lambda: convex(ProblemConstants(SOFTMAX, 0.1, clip_norm=1.0), accountant="unrelaxed"),
        "accountant",
    ),
    "a contraction with a step too large for it": (
        lambda: convex(ProblemConstants(SOFTMAX, 0.1, clip_norm=1.0), step_size=2.8),
        "contract",
    ),
    "a contraction with a target risk": (
        lambda: convex(ProblemConstants(SOFTMAX, 0.1, clip_norm=1.0), target_risk="paper"),
        "target_risk",
    ),
    "a contraction whose steps vary": (
        lambda: convex(
            ProblemConstants(SOFTMAX, 0.1, clip_norm=1.0),
            learn_steps=1,
            delete_factors=((1.0, 1.0),),
        ),
        "vary",
    ),
    "a clipped loss of unknown L that is not a GLM": (
        lambda: convex(declared(1.0, smoothness=1.0)),
        "clipping",
    ),
    "no smoothness": (lambda: convex(declared(lipschitz=1.0)), "smoothness"),
    "no Lipschitz constant": (lambda: convex(declared(smoothness=1.0)), "lipschitz"),
    "no label sensitivity": (lambda: convex(protects="label"), "label_sensitivity"),
    "an unbounded loss": (lambda: bounded(LOGISTIC), "bound"),
    "a clipped bounded loss": (
        lambda: bounded(ProblemConstants(constants.tanh_margin(), 2.0, clip_norm=0.5)),
        "clip_norm",
    ),
    "a step size beyond the optimal condition": (lambda: convex(step_size=4.5), "step_size"),
    "a step size beyond the paper's condition": (
        lambda: convex(accountant="paper", step_size=3.0),
        "step_size",
    ),
    "a step size altered afterwards": (lambda: altered(step_size=5.0), "step_size"),
    "a non-convex step size beyond both conditions": (
        lambda: bounded(form="paper", noise_variance=4.0, step_size=0.1),
        "step_size",
    ),
    "noise just below the budget": (
        lambda: convex(noise_variance=0.999 * convex().noise_variance),
        "noise_variance",
    ),
    "non-convex noise below the budget": (
        lambda: bounded(n=2, noise_variance=1.0, eps_dd=0.5, eps_dp=0.01),
        "noise_variance",
    ),
    "a target below what the noise allows": (lambda: convex(target_risk=1e-6), "target"),
    "batches in a shuffled order": (lambda: convex(batches="shuffled"), "shuffle"),
    "batches drawn independently": (lambda: convex(batches="iid"), "number of full batches"),
    "Poisson batches": (lambda: convex(batches="poisson"), "contract"),
    "a plan altered to random batches": (lambda: altered(batches="iid"), "random"),
    "(ε, δ) for a non-convex plan": (lambda: noisy(order=None, delta=1e-5), "order"),
    "another non-convex start": (lambda: noisy(init_variance=1.0).certificate(), "init_variance"),
    "labels of a non-convex plan": (lambda: noisy(protects="label"), "protects"),
    "labels of a composition plan": (
        lambda: dataclasses.replace(composed(), protects="label"),
        "protects",
    ),
    "a label plan turned into another kind": (
        lambda: dataclasses.replace(labels(), **COMPOSITION).certificate(),
        "protects",
    ),
    "another problem": (
        lambda: convex().certificate(problem=ProblemConstants(constants.logistic(), 0.2)),
        "problem",
    ),
    "more edits than records": (
        lambda: convex(edits_per_request=101).certificate(),
        "edits_per_request",
    ),
    "a convex plan renamed to a non-convex one": (
        lambda: altered(kind="nonconvex", accountant="sharp"),
        "bound",
    ),
    "a non-convex plan renamed to a convex one": (
        lambda: noisy(kind="convex", accountant="optimal").certificate(),
        "convex",
    ),
    "a plan whose loss became another": (
        lambda: altered(problem=ProblemConstants(SOFTMAX, 0.06, 1.0)),
        "clipping",
    ),
    "the reduction as stated, where the sound bound is larger": (
        lambda: bounded(n=50, dim=1, eps_dd=0.5).certificate(1, 50, reduction="as_stated"),
        "reduction",
    ),
}
BAD_INPUT = {
    "zero budget": (lambda: convex(eps_dp=0.0), "eps_dp"),
    "negative budget": (lambda: convex(eps_dd=-0.1), "eps_dd"),
    "infinite budget": (lambda: bounded(eps_dp=math.inf), "eps_dp"),
    "NaN budget": (lambda: convex(eps_dd=math.nan), "eps_dd"),
    "order 1": (lambda: convex(order=1), "order"),
    "non-convex order": (lambda: bounded(order=0.5), "order"),
    "non-convex without an order": (lambda: bounded(order=None), "order"),
    "no unit": (lambda: convex(order=None), "delta"),
    "two units": (lambda: convex(delta=1e-5), "delta"),
    "delta": (lambda: convex(order=None, delta=1.0), "delta"),
    "accountant": (lambda: convex(accountant="moments"), "accountant"),
    "form": (lambda: bounded(form="optimal"), "form"),
    "protects": (lambda: convex(protects="features"), "protects"),
    "constant loss": (lambda: convex(declared(lipschitz=0.0, smoothness=0.0)), "L = 0"),
    "records": (lambda: convex(n=0), "n = 0"),
    "step size": (lambda: convex(step_size=-1.0), "step_size"),
    "non-convex step size alone": (lambda: bounded(step_size=0.1), "noise_variance"),
    "request": (lambda: convex().certificate(request=0), "request"),
    "adaptivity": (lambda: convex().certificate(adaptivity=-1), "adaptivity"),
    "insertion": (lambda: convex().certificate(request=2, first_inserted=2), "first_inserted"),
    "reduction": (lambda: convex().certificate(reduction="paper"), "reduction"),
    "infinite steps": (lambda: altered(learn_steps=math.inf), "learn_steps"),
    "kind": (lambda: altered(kind="concave"), "kind"),
    "accountant of another kind": (lambda: altered(accountant="sharp"), "accountant"),
    "infinite start": (lambda: altered(init_variance=math.inf), "init_variance"),
    "composition without a step": (
        lambda: composed(learn_steps=0, num_requests=0),
        "learn_steps",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    make, word = REFUSED[name]
    with pytest.raises(CertificateRefused, match=word):
        make()


@pytest.mark.parametrize("name", BAD_INPUT)
def test_bad_input(name):
    make, word = BAD_INPUT[name]
    with pytest.raises(InputError, match=word) as error:
        make()
    assert not isinstance(error.value, CertificateRefused)


@pytest.mark.parametrize("excess", [-0.05, -1e-6, 1e-8, 1e-6])
def test_a_non_convex_start_that_is_slightly_off_is_refused(excess):
    plan = noisy()
    off = dataclasses.replace(plan, init_variance=plan.init_variance * (1 + excess))
    with pytest.raises(CertificateRefused, match="init_variance"):
        off.certificate()
    rounded = dataclasses.replace(plan, init_variance=plan.init_variance * (1 + 1e-14))
    assert rounded.certificate().eps_dd == plan.certificate().eps_dd


def test_the_reduction_as_stated_is_sound_for_convex_losses():
    plan = convex()
    assert plan.certificate(2, reduction="as_stated") == plan.certificate(2)


def test_different_domains_never_read_alike():
    bounds = [0.1, 1 / 3, 1.0, math.nextafter(1.0, 2.0), 1e6, 1234567.0, 1e-7]
    texts = {
        constants.squared(feature_norm=x, label_bound=y).domain for x in bounds for y in bounds
    }
    assert len(texts) == len(bounds) ** 2
