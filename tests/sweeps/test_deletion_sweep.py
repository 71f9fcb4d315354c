"""Runs with traced plans against `dd.drive` with the library's own mechanism, key for key."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize

import dd_jax as dd
from dd_jax import erm
from dd_jax.sweeps import deletion as deletion_sweep
from dd_jax.sweeps.deletion import Question
from experiments.figures import privacy_utility, risk_stream

TRAIN = privacy_utility.synthetic(50, 4, seed=0)
TEST = jax.tree.map(lambda leaf: leaf[:30], privacy_utility.synthetic(50, 4, seed=1))
QUESTION = Question("synthetic-4", 50, 4, l2=0.2, eps_dp=1.0, eps_dd=0.2, requests=4)
PLAN = QUESTION.plan()
SETTING = deletion_sweep.planned_run(QUESTION, PLAN)
# The sweep judges models before they are rounded to be published.
CURATOR = dd.noisy_gd.mechanism(QUESTION.problem, dd.noisy_gd.Schedule.of(SETTING))
KEY = jax.random.key(5)


def objective(model, records):
    margin = np.asarray(records.label, float) * (np.asarray(records.features, float) @ model)
    return np.logaddexp(0, -margin).mean() + 0.1 * model @ model


def excess_risk(model, records):
    best = optimize.minimize(objective, np.zeros(4), args=(records,), tol=1e-12).fun
    return objective(np.asarray(model, float), records) - best


def accuracy(model):
    return np.mean(np.asarray(TEST.features @ model) * np.asarray(TEST.label) > 0)


def edited(records, edits, count):
    """A host loop over the first `count` edits."""
    rows = [np.array(leaf) for leaf in records]
    for k in range(count):
        for leaf, new in zip(rows, edits.record, strict=True):
            leaf[np.asarray(edits.index[k])] = np.asarray(new[k])
    return dd.Labelled(*rows)


def traced(setting):
    """The setting with arrays in its traced fields, as `sweep` hands it over."""
    values = {name: getattr(setting, name) for name in deletion_sweep.TRACED}
    return {name: value for name, value in values.items() if value is not None}


def call(fn, *args):
    return jax.jit(
        lambda key, values, *args: fn(key, dataclasses.replace(SETTING, **values), *args)
    )(jax.random.clone(KEY), traced(SETTING), *args)


@pytest.mark.slow
def test_the_first_and_the_last_release_are_judged_on_their_databases():
    def respond(request, release):
        del release
        return dd.deletion(QUESTION.problem.loss, TRAIN, [request - 1])

    curator, transcript = dd.drive(jax.random.clone(KEY), CURATOR, respond, TRAIN, num_requests=4)
    found = call(deletion_sweep.judged, TRAIN, TEST)
    first, last = transcript.releases[0], transcript.releases[-1]
    expected = [
        excess_risk(first, TRAIN),
        excess_risk(last, curator.database),
        accuracy(first),
        accuracy(last),
    ]
    np.testing.assert_allclose(found[:4], expected, rtol=2e-3)


@pytest.mark.slow
def test_an_adaptive_stream_is_the_one_that_sees_releases_and_works_against_them():
    holds = np.arange(50)

    def respond(request, release):
        del request
        margin = np.asarray(TRAIN.label) * (np.asarray(TRAIN.features) @ np.asarray(release))
        losses = np.logaddexp(0, -margin)
        row, pick = int(np.argmin(losses[holds])), int(np.argmax(losses))
        holds[row] = pick
        record = jax.tree.map(lambda leaf: leaf[pick][None], TRAIN)
        return dd.replacement([row], record)

    _, transcript = dd.drive(
        jax.random.clone(KEY), CURATOR, respond, TRAIN, num_requests=4, observe=range(4)
    )
    found = call(lambda *args: risk_stream.adaptive(*args, every=2), TRAIN, TEST)
    states = [edited(TRAIN, transcript.edits, count) for count in (0, 2, 4)]
    releases = transcript.releases[::2]
    risks = [excess_risk(model, rows) for model, rows in zip(releases, states, strict=True)]
    np.testing.assert_allclose(found.risk, risks, rtol=2e-3)
    np.testing.assert_allclose(found.accuracy, [accuracy(model) for model in releases], rtol=1e-6)


def test_databases_along_a_stream_and_their_minimisers():
    edits = risk_stream.in_turn(TRAIN, 104, seed=3)
    assert edits.index[:, 0].tolist() == [i % 50 for i in range(104)]
    stacked = risk_stream.databases(TRAIN, edits, 26)
    models = jnp.zeros((5, 1, 4))
    judged = erm.judge_stream(QUESTION.problem, models, TRAIN, edits, range(0, 105, 26))
    assert stacked.label.shape == (5, 50)
    for place in range(5):
        rows = edited(TRAIN, edits, 26 * place)
        np.testing.assert_array_equal(stacked.features[place], rows.features)
        np.testing.assert_array_equal(stacked.label[place], rows.label)
        assert excess_risk(judged.minimum.params[place], rows) < 1e-6
        np.testing.assert_allclose(judged.risk[place], excess_risk(np.zeros(4), rows), rtol=1e-3)
    uneven = erm.judge_stream(QUESTION.problem, models[:3], TRAIN, edits, (0, 26, 104))
    np.testing.assert_allclose(uneven.risk, judged.risk[np.array([0, 1, 4])], rtol=1e-5)


def test_questions_with_one_plan_are_run_once_and_refused_ones_are_not():
    noise = 2 * PLAN.noise_variance
    questions = [
        dataclasses.replace(QUESTION, noise_variance=noise, eps_dp=1.0),
        dataclasses.replace(QUESTION, noise_variance=noise, eps_dp=0.9),
        dataclasses.replace(QUESTION, noise_variance=noise / 100),
        QUESTION,
    ]
    asked = []

    def run(settings):
        asked.extend(settings)
        return [(np.full(2, k),) * 7 for k in range(len(settings))]

    found = deletion_sweep.answers(questions, run)
    assert [setting.noise_variance for setting in asked] == [noise, PLAN.noise_variance]
    assert asked[1] == SETTING
    assert [a.outcome.risk_edited[0] for a in found if a.outcome] == [0, 0, 1]
    assert "noise_variance" in found[2].refused
    assert found[3].certificate.risk_bound_request == PLAN.certificate(request=4).risk_bound_request
    with pytest.raises(dd.InputError, match="noise_variance"):
        deletion_sweep.answers(questions[2:3], run)


def test_a_sweep_over_batches_is_the_interaction_with_batches():
    asked = dataclasses.replace(QUESTION, batches=7)
    setting = deletion_sweep.planned_run(asked, asked.plan())
    outcome = deletion_sweep.judged(KEY, setting, TRAIN, TEST)
    curator = dd.noisy_gd.mechanism(asked.problem, dd.noisy_gd.Schedule.of(asked.plan()))
    edits = [dd.deletion(asked.problem.loss, TRAIN, [row]) for row in range(4)]
    _, transcript = dd.drive(KEY, curator, lambda i, _: edits[i - 1], TRAIN, num_requests=4)
    expected = erm.objective(asked.problem, transcript.releases[0], TRAIN)
    assert float(outcome.objective_learned) == pytest.approx(float(expected), rel=1e-5)
    full = CURATOR.learn(jax.random.key(5), TRAIN)
    assert np.abs(np.asarray(full - transcript.releases[0])).max() > 1e-3
