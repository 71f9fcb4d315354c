"""SISA as a mechanism, and the adaptive attack on its shards."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from problems import deleting

import dd_jax as dd
from dd_jax.attacks import find, sisa
from dd_jax.audit.samples import PostDeletionView
from dd_jax.baselines import sisa as sisa_mechanism
from dd_jax.errors import InputError
from dd_jax.intervals import clopper_pearson, proportion
from dd_jax.losses import deletion, logistic, softmax

SHARDS = 3
RECORDS = 10


@pytest.fixture(scope="module")
def database():
    features = jax.random.normal(jax.random.key(0), (RECORDS, 4))
    features = features / jnp.linalg.norm(features, axis=1, keepdims=True)
    return dd.Labelled(features, jnp.sign(features[:, 0]))


def training(**changes):
    plain = sisa_mechanism.Training(dd.Problem(logistic(), 0.1), 5, 2.0)
    return plain._replace(**changes)


def learned(database, **changes):
    made = sisa_mechanism.mechanism(training(**changes), SHARDS)
    return made, jax.jit(made.learn)(jax.random.key(1), database)


@pytest.fixture(scope="module")
def plain(database):
    """A mechanism without noise, and its state after learning."""
    return learned(database)


def by_hand(database, rows, steps=5, step_size=2.0, l2=0.1):
    """Gradient descent on the shard's mean loss, four places, in float64."""
    rows = [row for row in np.asarray(rows) if row < RECORDS]
    features, label = (np.asarray(leaf, np.float64)[rows] for leaf in database)
    theta = np.zeros(4)
    for _ in range(steps):
        pull = label / (1 + np.exp(label * (features @ theta)))
        theta -= step_size * (l2 * theta - pull @ features / 4)
    return theta


def test_every_record_is_dealt_once_and_shards_are_alike():
    n, shards = RECORDS, SHARDS
    deals = jax.vmap(lambda key: sisa_mechanism.draw_deal(key, n, shards))(
        jax.random.split(jax.random.key(0), 400)
    )
    rows = np.sort(np.asarray(deals).reshape(400, -1), axis=1)
    np.testing.assert_array_equal(rows[:, :n], np.tile(np.arange(n), (400, 1)))
    sizes = np.mean(np.sum(np.asarray(deals) < n, axis=2), axis=0)
    np.testing.assert_allclose(sizes, n / shards, atol=0.15)
    shard_of_first = np.argwhere(np.asarray(deals) == 0)[:, 1]
    assert np.all(np.bincount(shard_of_first, minlength=shards) > 400 / shards / 2)


def test_each_model_is_trained_on_its_shard_alone(database, plain):
    _, state = plain
    for rows, model in zip(state.deal, state.models, strict=True):
        np.testing.assert_allclose(model, by_hand(database, rows), atol=1e-5)


def test_a_divided_vote_is_zero():
    vote, models = sisa_mechanism.vote_of(logistic()), jnp.array([[1.0], [1.0], [-1.0]])
    np.testing.assert_array_equal(vote(models, jnp.array([[2.0], [-3.0], [0.0]])), [1, -1, 0])
    assert vote(models[1:], jnp.ones((1, 1)))[0] == 0


def test_users_leave_whose_surest_model_is_in_the_first_half():
    users = dd.Labelled(jnp.eye(4), jnp.array([1.0, 1.0, -1.0, -1.0]))
    # Row 0 is surest of shard 1 but is the target; 1 of shard 0; 2 of shard 1; 3 of shard 0.
    models = jnp.array([[0.0, 2.0, 1.0, -3.0], [5.0, 1.0, -1.0, -2.0]])
    ask = sisa.requester(users)
    seen = dd.Observation(models, jnp.array(True), jnp.int32(1))
    _, edit = ask.act(jax.random.key(0), (), seen)
    np.testing.assert_array_equal(edit.index, [0, 1, 4, 3])
    assert not np.any(edit.record.features)
    assert not np.any(edit.record.label)


@pytest.mark.parametrize(("visible", "looks"), [(False, True), (True, False)])
def test_users_who_see_nothing_or_do_not_look_toss_coins(visible, looks):
    users = dd.Labelled(jnp.ones((500, 1)), jnp.ones(500))
    blind = dd.Observation(jnp.zeros((2, 1)), jnp.array(visible), jnp.int32(1))
    _, edit = sisa.requester(users, looks).act(jax.random.key(0), (), blind)
    assert edit.index[0] == 0
    assert 200 < np.sum(np.asarray(edit.index) < 500) < 300


def view_of(models):
    edits = dd.Edit(jnp.zeros((1, 1), jnp.int32), jnp.zeros((1, 1)))
    none = jnp.zeros(1, jnp.int32)
    releases = jnp.stack([jnp.zeros_like(models), models])
    transcript = dd.Transcript(releases, edits, jnp.ones(1, bool), none, none, jnp.int32(0))
    return PostDeletionView.cut(transcript, request=1, row=0)


@pytest.mark.parametrize(("models", "drained"), [([1, 1, -1, 1], False), ([-1, 1, 1, 1], True)])
def test_the_adversary_names_the_poorer_half(models, drained):
    held_out = dd.Labelled(jnp.array([[1.0], [2.0], [-1.0], [1.0]]), jnp.array([1.0, 1, -1, -1]))
    reading = sisa.adversary(
        jax.random.key(0), view_of(jnp.array(models, jnp.float32)[:, None]), held_out=held_out
    )
    assert reading.drained == drained
    assert reading.accuracy == 0.75


def test_the_adversary_breaks_ties_by_a_coin():
    held_out = dd.Labelled(jnp.ones((2, 1)), jnp.ones(2))
    keys = jax.random.split(jax.random.key(0), 400)
    view = view_of(jnp.ones((2, 1)))
    guess = jax.vmap(lambda key: sisa.adversary(key, view, held_out=held_out).drained)
    drained = jax.jit(guess)(keys)
    assert 150 < np.sum(drained) < 250


def test_the_retrained_curator_deals_anew(database, plain):
    made, state = plain
    fresh = sisa.fresh_deal(made)
    edit = deletion(logistic(), database, [0])
    after = jax.jit(deleting(fresh))(jax.random.key(2), database, edit, state)
    assert np.any(after.deal != state.deal)
    again = jax.jit(fresh.learn)(jax.random.key(2), dd.apply_edit(database, edit))
    np.testing.assert_array_equal(after.models, again.models)
    np.testing.assert_array_equal(fresh.publish(jax.random.key(0), state), state.models)
    assert fresh.domain is made.domain


@pytest.mark.parametrize("hits", [60, 80])
def test_noise_that_leaves_the_rate_above_chance_hides_nothing(hits):
    def judged(*counts):
        cases = zip(sisa.cases(2, 1.0), counts, strict=True)
        rows = [sisa._row(case, proportion(k, 100, 0.99), 1.0) for case, k in cases]
        return sisa._findings(rows)

    findings = judged(90, hits, 50, 50)
    assert [finding.refuted for finding in findings] == [True, hits == 80, False]
    findings = judged(55, 50, 50, 80)
    assert [finding.refuted for finding in findings] == [False, False, True]


@pytest.mark.slow
def test_plain_shards_are_read_and_noisy_or_fresh_ones_are_not():
    result = find("sisa").run(jax.random.key(0), seeds=50)
    plain, private, at_random, fresh = result.rows
    assert plain["low"] > 0.65
    assert private["success"] < plain["low"]
    for null in (private, at_random, fresh):
        assert null["low"] <= 0.5 <= null["high"]
    # Four intervals at once, each at a quarter of the risk.
    hits = round(50 * plain["success"])
    assert (plain["low"], plain["high"]) == clopper_pearson(hits, 50, 1 - 0.001 / 4)
    assert [row["exact"] for row in result.rows] == [None, None, 0.5, 0.5]
    assert private["accuracy"] < plain["accuracy"] < at_random["accuracy"]
    assert [finding.refuted for finding in result.findings] == [True, False, False]
    assert result.findings[2].claim.owner == "ours"
    assert result.bound == 0.5


def test_shards_that_cannot_be_trained_are_refused(database):
    with pytest.raises(InputError, match="clip_norm"):
        sisa_mechanism.mechanism(training(noise_multiplier=1.0), SHARDS)
    classes = dd.Problem(softmax(num_classes=3, intercept=True), 0.1)
    with pytest.raises(InputError, match="null record"):
        learned(database, problem=classes)
