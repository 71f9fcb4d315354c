"""Re-encoding: what retraining hands over, and that Noisy-GD stays within its certificate."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from problems import deleting, soak
from scipy.stats import norm

import dd_jax as dd
from dd_jax.attacks import find, re_encoding
from dd_jax.audit.samples import PostDeletionView
from dd_jax.intervals import Estimate, clopper_pearson
from dd_jax.losses import logistic
from dd_jax.noisy_gd import Schedule, mechanism

PROBLEM = dd.Problem(logistic(), 0.05)
GROUP = 4


def small_data(name="small"):
    features = np.random.default_rng(3).normal(size=(40, 5)) + np.array([0.5, 0, 0, 0, 0])
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    label = np.where(np.arange(40) % 2, 1.0, -1.0)
    train = dd.Labelled(jnp.asarray(features, jnp.float32), jnp.asarray(label, jnp.float32))
    return dd.data.Dataset(name, train, train, "none", ("-1", "1"))


@pytest.fixture(scope="module")
def scene():
    return re_encoding.build_scene(PROBLEM, small_data().train, GROUP)


def with_label(scene, pick, label):
    target = scene.targets[pick]
    return scene.database._replace(label=scene.database.label.at[target].set(label))


@functools.partial(jax.jit, static_argnums=0)
@functools.partial(jax.vmap, in_axes=(None, 0))
def fit(problem, database):
    return dd.erm.minimise(problem, database).params


def fits(databases):
    return fit(PROBLEM, jax.tree.map(lambda *leaves: jnp.stack(leaves), *databases))


def test_groups_and_targets_part_the_rows(scene):
    label = np.asarray(scene.database.label)
    for side, rows in zip((-1, 1), np.asarray(scene.groups), strict=True):
        assert rows.size == GROUP
        assert np.all(label[rows] == side)
    everyone = np.concatenate([np.ravel(scene.groups), scene.targets])
    np.testing.assert_array_equal(np.sort(everyone), np.arange(40))


def test_the_first_threshold_parts_the_labels_whatever_the_target(scene):
    for label in (1.0, -1.0):
        picks = range(scene.targets.size)
        params = fits([with_label(scene, pick, label) for pick in picks])
        scores = np.sum(params * scene.database.features[scene.targets], axis=1)
        assert np.all((scores - scene.alone) * label > 1e-3)


def test_the_second_threshold_is_halfway_between_the_two_ends(scene):
    for pick in (0, 7):
        rest = re_encoding.without(scene.database, scene.targets[pick][None])
        ends = fits([re_encoding.without(rest, rows) for rows in scene.groups])
        minus, plus = (
            re_encoding.leaning(end, scene.database, scene.groups) for end in (ends[0], ends[1])
        )
        # Who leaves loses: without group -1 the model leans to group +1, and the other way round.
        assert minus > plus + 1e-2
        assert scene.parted[pick] == pytest.approx(float(minus + plus) / 2, abs=1e-4)


def test_leaning_is_the_difference_of_the_groups_losses(scene):
    params = jnp.arange(5, dtype=jnp.float32)
    margins = np.asarray(scene.database.label) * np.asarray(scene.database.features @ params)
    losses = np.log1p(np.exp(-margins))
    minus, plus = (losses[rows].sum() for rows in np.asarray(scene.groups))
    got = re_encoding.leaning(params, scene.database, scene.groups)
    assert got == pytest.approx(minus - plus, rel=1e-5)


def act(scene, pick, release, visible, request):
    observation = dd.Observation(release, jnp.array(visible), jnp.int32(request))
    return re_encoding.requester(scene, pick).act(jax.random.key(0), (), observation)[1]


@pytest.mark.parametrize("side", [0, 1])
def test_the_exposed_group_leaves_and_then_the_target(scene, side):
    pick = 5
    features = scene.database.features[scene.targets[pick]]
    release = features * (scene.alone[pick] + jnp.float32(0.1 if side else -0.1))
    edit = act(scene, pick, release, True, 1)
    np.testing.assert_array_equal(edit.index, scene.groups[side])
    last = act(scene, pick, release, True, 2)
    assert np.all(last.index == scene.targets[pick])
    for leaf in jax.tree.leaves((edit.record, last.record)):
        assert not np.any(leaf)


@pytest.mark.parametrize("shown", [0, 1])
def test_a_requester_that_does_not_look_takes_the_score_for_zero(scene, shown):
    pick = 5
    release = (20 * shown - 10) * scene.database.features[scene.targets[pick]]
    seen = dd.Observation(release, jnp.array(True), jnp.int32(1))
    for looks, side in ((True, shown), (False, int(scene.alone[pick] < 0))):
        edit = re_encoding.requester(scene, pick, looks).act(jax.random.key(0), (), seen)[1]
        np.testing.assert_array_equal(edit.index, scene.groups[side])


def transcript_of(scene, pick, last):
    rows = jnp.stack([scene.groups[0], jnp.full(GROUP, scene.targets[pick])])
    edits = dd.Edit(rows, jnp.zeros((2, GROUP)))
    none = jnp.zeros(2, jnp.int32)
    releases = jnp.stack([jnp.full(5, jnp.nan), jnp.full(5, jnp.nan), last])
    return dd.Transcript(releases, edits, jnp.ones(2, bool), none, none, jnp.int32(0))


@pytest.mark.parametrize("side", [0, 1])
def test_the_adversary_names_the_group_that_left_from_the_last_release_alone(scene, side):
    pick = 3
    rest = re_encoding.without(scene.database, scene.targets[pick][None])
    end = fits([re_encoding.without(rest, scene.groups[side])])[0]
    view = PostDeletionView.cut(transcript_of(scene, pick, end), request=2, row=scene.targets[pick])
    answer = re_encoding.adversary(jax.random.key(0), view, scene=scene, pick=jnp.int32(pick))
    assert answer == (1.0 if side else -1.0)


def test_the_retrained_model_forgets_its_start(scene):
    made = re_encoding.retrained(PROBLEM)
    edit = dd.deletion(logistic(), scene.database, [3, 8])
    got = deleting(made)(jax.random.key(0), scene.database, edit, jnp.full(5, 9.0))
    np.testing.assert_allclose(
        got, fits([dd.apply_edit(scene.database, edit)])[0], rtol=1e-4, atol=1e-5
    )
    assert made.domain is logistic().domain


@pytest.mark.parametrize("observe", [(0,), ()])
def test_the_certified_success_is_that_of_the_gaussian_bound(scene, observe):
    plan = dd.plan_convex(PROBLEM, n=40, dim=5, order=3.0, eps_dp=1.2, eps_dd=0.2)
    got = re_encoding.certified_success(plan, PROBLEM, observe)
    contraction = (1 - plan.step_size * 0.05) ** (2 * plan.delete_steps)
    eps_dd = 1.2 * contraction
    mu = np.sqrt(2 * (eps_dd + len(observe) * 1.2) / 3.0)
    assert got <= norm.cdf(mu / 2) * (1 + 1e-9)
    assert got >= norm.cdf(np.sqrt(2 * eps_dd / 3.0) / 2) * (1 - 1e-9)
    if not observe:
        assert got == pytest.approx(norm.cdf(mu / 2))


def estimate(value, width=0.02):
    return Estimate(value, max(value - width, 0.0), min(value + width, 1.0), 100, 0.999)


@pytest.mark.parametrize(
    ("noisy", "blind", "refuted"),
    [(0.65, 0.5, False), (0.71, 0.5, False), (0.73, 0.5, True), (0.6, 0.6, True)],
)
def test_an_interval_above_its_certificate_counts_against_us(monkeypatch, noisy, blind, refuted):
    measured = iter([estimate(1.0), estimate(0.5), estimate(noisy), estimate(blind)])
    monkeypatch.setattr(re_encoding, "load", small_data)
    monkeypatch.setattr(re_encoding, "build_scene", lambda problem, database, group: None)
    monkeypatch.setattr(re_encoding, "success", lambda *arguments: next(measured))
    result = find("re-encoding").run(jax.random.key(0), group=4)
    assert [finding.refuted for finding in result.findings] == [True, refuted, False]
    assert result.ours_refuted == refuted


def test_without_enough_noise_the_attack_exceeds_the_certificate(scene):
    plan = dd.plan_convex(PROBLEM, n=40, dim=5, order=2.0, eps_dp=1.0, eps_dd=0.1)
    quiet = Schedule(plan.step_size, plan.noise_variance / 1e4, 0.0, 200, 100)
    made = re_encoding.success(
        jax.random.key(0), scene, mechanism(PROBLEM, quiet), (0,), 300, 0.999
    )
    assert made.low > re_encoding.certified_success(plan, PROBLEM, (0,)) + 0.1


@pytest.mark.skipif(soak(True, False), reason="in `make soak`")
@pytest.mark.slow
def test_on_real_data_the_attack_has_power_and_the_certificate_holds(monkeypatch):
    seeds, retrained = soak((256, 64), (2_000, 256))
    monkeypatch.setattr(re_encoding, "MOST_RETRAINED", retrained)
    result = find("re-encoding").run(jax.random.key(1), seeds=seeds, eps_dp=20.0)
    seen, blind, noisy, _ = result.rows
    assert seen["success"] == 1.0
    assert blind["low"] <= 0.5 <= blind["high"]
    assert 0.5 < noisy["low"] <= noisy["certified"] < 1
    assert [row["trials"] for row in result.rows] == [retrained, retrained, seeds, seeds]
    # Four intervals at once, each at a quarter of the risk.
    hits = round(seeds * noisy["success"])
    assert (noisy["low"], noisy["high"]) == clopper_pearson(hits, seeds, 1 - 0.001 / 4)
    assert [finding.refuted for finding in result.findings] == [True, False, False]
    assert [finding.claim.owner for finding in result.findings] == ["prior work", "ours", "ours"]
