"""What is read from a file is a claim: types are checked, and nothing is called proved for it."""

import copy
import dataclasses
import json
import random

import pytest
from problems import soak

from dd_jax import constants
from dd_jax.constants import LossConstants, ProblemConstants
from dd_jax.errors import CertificateRefused, InputError
from dd_jax.plans import Certificate, Plan, plan_composition, plan_convex, plan_nonconvex

LOGISTIC = ProblemConstants(constants.logistic(), 0.1)
BUDGETS = {"n": 1000, "dim": 3, "order": 2, "eps_dp": 1.0}
PLANS = {
    "convex": plan_convex(LOGISTIC, eps_dd=0.1, **BUDGETS),
    "delta": plan_convex(LOGISTIC, **(BUDGETS | {"order": None, "delta": 1e-5, "eps_dd": 0.1})),
    "label": plan_convex(
        ProblemConstants(constants.squared(label_bound=1.0), 0.1),
        eps_dd=0.1,
        protects="label",
        **BUDGETS,
    ),
    "nonconvex": plan_nonconvex(
        ProblemConstants(constants.tanh_margin(), 2.0),
        eps_dd=0.5,
        noise_variance=4.0,
        **BUDGETS,
    ),
    "composition": plan_composition(
        ProblemConstants(constants.softmax(num_classes=3), 0.1, clip_norm=0.5),
        learn_steps=100,
        delete_steps=5,
        num_requests=10,
        step_size=0.2,
        **BUDGETS,
    ),
}


def grounds(certificate):
    return {assumption.established for assumption in certificate.assumptions}


def edited(text, **changes):
    """The JSON with fields of the loss changed."""
    found = json.loads(text)
    problem = found["problem"] if "problem" in found else found["plan"]["problem"]
    problem["loss"] |= changes
    return json.dumps(found)


def test_an_edited_constant_is_never_called_proved():
    """A file that says 0.001 for the Lipschitz constant of logistic, and that it is proved."""
    text = edited(PLANS["convex"].to_json(), lipschitz=0.001)
    plan = Plan.from_json(text)
    assert plan.problem.loss.established == "declared"
    issued = plan.certificate()
    assert "proved for this loss" not in grounds(issued)
    assert "proved for this loss" not in str(issued)
    with pytest.raises(CertificateRefused, match="problem"):
        Plan.from_json(text, LOGISTIC)
    forged = dataclasses.replace(PLANS["convex"], problem=plan.problem).certificate().to_json()
    forged = forged.replace("declared by the user", "proved for this loss")
    read = Certificate.from_json(forged.replace('"declared"', '"proved"'))
    assert "proved for this loss" not in grounds(read)
    assert not read.is_genuine(LOGISTIC)
    with pytest.raises(CertificateRefused, match="problem"):
        Certificate.from_json(forged, LOGISTIC)


def test_a_file_without_the_precision_of_products_is_of_full_precision():
    """As written before there was another: the plan and its fingerprint stay what they were."""
    plan = PLANS["convex"]
    assert "precision" not in plan.to_json()
    assert Plan.from_json(plan.to_json(), LOGISTIC) == plan
    coarser = dataclasses.replace(LOGISTIC, precision="bfloat16x3")
    other = dataclasses.replace(plan, problem=coarser)
    assert other.fingerprint != plan.fingerprint
    assert Plan.from_json(other.to_json(), coarser) == other
    for text, problem in ((other.to_json(), LOGISTIC), (plan.to_json(), coarser)):
        with pytest.raises(CertificateRefused, match="problem"):
            Plan.from_json(text, problem)


@pytest.mark.parametrize("name", PLANS)
def test_a_problem_vouches_for_the_constants_and_a_file_does_not(name):
    plan = PLANS[name]
    read = Plan.from_json(plan.to_json())
    assert read.problem == plan.problem.declared
    assert Plan.from_json(read.to_json(), plan.problem) == plan
    assert read.fingerprint == plan.fingerprint
    assert len(plan.fingerprint) == 4
    assert all(isinstance(word, int) and 0 <= word < 2**32 for word in plan.fingerprint)
    assert dataclasses.replace(plan, learn_steps=7).fingerprint != plan.fingerprint
    other = dataclasses.replace(plan.problem, l2=plan.problem.l2 * 2)
    for issued in (
        plan.certificate(),
        plan.certificate(2, 5, first_inserted=1, records=4, delta=1e-6),
        plan.certificate(request=3, observed=(0, 2)),
    ):
        text = issued.to_json()
        alone = Certificate.from_json(text)
        assert "proved for this loss" not in grounds(alone)
        assert alone.is_genuine()
        assert alone.is_genuine(plan.problem)
        assert not alone.is_genuine(other)
        vouched = Certificate.from_json(text, plan.problem)
        assert vouched == issued == vouched.recomputed()
        assert vouched.is_genuine(plan.problem)
        assert vouched.loaded
        assert json.loads(vouched.to_json()) == json.loads(text) | {"loaded": True}
        assert not dataclasses.replace(vouched, eps_dd=vouched.eps_dd / 2).is_genuine()


def test_a_certificate_is_told_from_a_forgery():
    plan = PLANS["convex"]
    issued = plan.certificate(1, 2)
    forgeries = (
        {"warnings": ()},
        {"assumptions": issued.assumptions[1:]},
        {"basis": "transcript"},  # a promise that is called a transcript
        {"basis": "transcript", "row": 3},
        {"observed": ()},  # what would be refused was never issued
        {"plan": dataclasses.replace(plan, step_size=5.0)},
    )
    for certificate in (issued, Certificate.from_json(issued.to_json())):
        assert certificate.is_genuine()
        for changes in forgeries:
            assert not dataclasses.replace(certificate, **changes).is_genuine()


def test_infinite_numbers_survive_json():
    certificate = dataclasses.replace(PLANS["convex"], delete_steps=0).certificate()
    assert json.loads(certificate.to_json())["risk_bound"] == "inf"
    assert Certificate.from_json(certificate.to_json(), LOGISTIC) == certificate


def test_a_forged_assumption_is_not_called_proved_even_with_the_right_problem():
    found = json.loads(PLANS["convex"].certificate().to_json())
    found["assumptions"][1]["statement"] = "logistic is 0.001-Lipschitz (L)"
    found["assumptions"][1]["established"] = "proved for this loss"
    read = Certificate.from_json(json.dumps(found), LOGISTIC)
    assert read.assumptions[1].established == "declared by the user"
    assert not read.is_genuine()


@pytest.mark.parametrize(
    "changes",
    [
        {"convex": "no"},
        {"convex": 1},
        {"convex": None},
        {"single_index": "false"},
        {"lipschitz": "1"},
        {"lipschitz": True},
        {"lipschitz": [1.0]},
        {"lipschitz": 10**400},
        {"smoothness": -1.0},
        {"established": "believed"},
        {"name": None},
        {"domain": 3},
    ],
)
def test_odd_types_of_a_loss_are_refused(changes):
    with pytest.raises(InputError):
        Plan.from_json(edited(PLANS["convex"].to_json(), **changes))
    with pytest.raises(InputError):
        Certificate.from_json(edited(PLANS["convex"].certificate().to_json(), **changes))


@pytest.mark.parametrize("text", ["null", "[]", '"x"', "", "{", "{}", "NaN", None, 3, b"{}"])
def test_what_is_not_a_json_object_is_refused(text):
    for kind in (Plan, Certificate):
        with pytest.raises(InputError, match="to_json"):
            kind.from_json(text)


def test_constants_made_by_hand_are_checked_too():
    for changes in ({"convex": "no"}, {"single_index": 0}, {"lipschitz": "1"}):
        with pytest.raises(InputError):
            LossConstants(**({"name": "x", "convex": True, "single_index": True} | changes))


ODD = (
    None, True, False, 0, 1, -1, 3, 0.5, -2.5, 1e-300, 1e300, 10**30, 10**400, "", "inf", "no",
    "proved", "promise", "transcript", "convex", "label", "float64", [], [0], [[]], ["x"], {},
    {"a": 1},
)  # fmt: skip


def places(value, path=()):
    """Every field of a JSON object, nested ones too."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield (*path, key)
            yield from places(item, (*path, key))
    if isinstance(value, list):
        for position, item in enumerate(value):
            yield (*path, position)
            yield from places(item, (*path, position))


def altered(found, draw):
    """One field changed, removed, or one added."""
    found = copy.deepcopy(found)
    *outer, last = draw.choice(list(places(found)))
    inside = found
    for key in outer:
        inside = inside[key]
    action = draw.random()
    if action < 0.85:
        inside[last] = copy.deepcopy(draw.choice(ODD))
    elif action < 0.95:
        del inside[last]
    elif isinstance(inside, dict):
        inside["more"] = 1
    return json.dumps(found)


@pytest.mark.parametrize("name", PLANS)
def test_a_row_that_the_records_do_not_have_is_no_word_of_this_library(name):
    """Also one that no array could count."""
    values = json.loads(PLANS[name].certificate().to_json())
    for row in (-1, 10**6, 10**400):
        assert not Certificate.from_json(json.dumps(values | {"row": row})).is_genuine()


@pytest.mark.parametrize("name", PLANS)
def test_random_edits_of_a_file_give_a_refusal_or_a_claim(name):
    """Never a TypeError or KeyError, and never the word of a proof."""
    draw = random.Random(f"edits of {name}")
    plan = PLANS[name]
    texts = {Plan: plan.to_json(), Certificate: plan.certificate(1, 3, delta=1e-6).to_json()}
    accepted = 0
    for kind, text in texts.items():
        found = json.loads(text)
        for _ in range(soak(100, 400)):
            forged = altered(found, draw)
            try:
                read = kind.from_json(forged)
                accepted += 1
                if kind is Plan:
                    assert len(read.fingerprint) == 4
                    read = read.certificate(1, 2)
                assert "proved for this loss" not in grounds(read)
                assert str(read)
                assert isinstance(read.is_genuine(), bool)
                assert kind.from_json(texts[kind]).to_json()
            except InputError:
                continue
    assert accepted > 5
