"""The threat model: adversaries get post-deletion releases and nothing else."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from problems import deleting

import dd_jax as dd
from dd_jax.attacks.game import first_release, judge, play, retraining
from dd_jax.audit.samples import Outcome, PostDeletionView, Stage, trials, two_worlds
from dd_jax.errors import InputError
from dd_jax.requesters import fixed_stream

SUM = retraining(lambda key, database: jnp.sum(database))
DATABASE = jnp.array([1.0, 10.0, 100.0])
# Request 1 edits row 2, request 2 deletes row 1, request 3 edits row 2 again.
STREAM = dd.Edit(jnp.array([[2], [1], [2]], jnp.int32), jnp.array([[200.0], [0.0], [300.0]]))


@pytest.fixture(scope="module")
def transcript():
    key = jax.random.key(0)
    return dd.interact(key, SUM, fixed_stream(STREAM), DATABASE, num_requests=3)[1]


def stage(row=1, request=2):
    return Stage(SUM, fixed_stream(STREAM), DATABASE, row, request, 3)


def test_a_view_is_the_releases_from_the_deletion_on_and_nothing_else(transcript):
    view = PostDeletionView.cut(transcript, request=2, row=1)
    np.testing.assert_array_equal(transcript.releases, [111, 211, 201, 301])
    np.testing.assert_array_equal(view.releases, [201, 301])
    assert view.first == 201
    assert view.deleted
    # No way back to the transcript: two releases and a flag are all that it holds.
    assert not hasattr(view, "__dict__")
    held = [getattr(view, name) for name in view.__slots__]
    assert sum(np.size(leaf) for leaf in jax.tree.leaves(held)) == 3


def test_a_view_is_not_made_changed_or_extended_by_hand(transcript):
    view = PostDeletionView.cut(transcript, request=2, row=1)
    with pytest.raises(InputError, match="by hand"):
        PostDeletionView(transcript.releases, jnp.asarray(True))
    for name in ("releases", "transcript"):
        with pytest.raises(InputError, match="read-only"):
            setattr(view, name, transcript)
    with pytest.raises(InputError, match="subclasses"):
        type("Leaky", (PostDeletionView,), {"__setattr__": object.__setattr__})


@pytest.mark.parametrize(
    ("request_number", "row", "word"),
    [
        *((number, 1, "replace") for number in (1, 3)),
        *((number, 1, "request") for number in (0, 4, -1, True, 2.0, None)),
        *((2, row, "one row") for row in (jnp.arange(3), jnp.array([1]), -1, 1.0, True)),
        (2, None, "None"),
    ],
)
def test_a_view_is_cut_only_where_one_target_is_deleted(transcript, request_number, row, word):
    with pytest.raises(InputError, match=word):
        PostDeletionView.cut(transcript, request=request_number, row=row)


def test_a_view_is_cut_only_from_the_transcript_of_one_interaction(transcript):
    with pytest.raises(InputError, match="Transcript"):
        PostDeletionView.cut(transcript.releases, request=2, row=1)
    batch = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), transcript)
    with pytest.raises(InputError, match="vmap"):
        PostDeletionView.cut(batch, request=1, row=1)


def test_rows_may_be_left_out_where_no_request_edits_anything():
    nothing = fixed_stream(dd.Edit(jnp.zeros((1, 0), jnp.int32), jnp.zeros((1, 0))))
    idle = dd.interact(jax.random.key(0), SUM, nothing, DATABASE, num_requests=1)[1]
    assert PostDeletionView.cut(idle, request=1, row=None).first == 111


@pytest.mark.parametrize("row", [3, jnp.int32(3)])
def test_a_row_that_does_not_exist_was_not_deleted(row):
    nowhere = dd.Edit(jnp.array([[3]], jnp.int32), jnp.zeros((1, 1)))
    scene = Stage(SUM, fixed_stream(nowhere), DATABASE, row, 1, 1)
    assert not play(jax.random.key(0), scene, first_release).deleted


def test_the_judge_shows_an_adversary_nothing_else(transcript):
    shown = (transcript, transcript.releases, tuple(transcript), dd.adversary_view(transcript, 2))
    for thing in shown:
        with pytest.raises(InputError, match=type(thing).__name__):
            judge(jax.random.key(0), first_release, thing)


def test_under_tracing_a_wrong_cut_is_blank():
    def run(row):
        return play(jax.random.key(1), stage(row), first_release)

    right, wrong = jax.jit(run)(1), jax.jit(run)(0)
    assert (right.answer, bool(right.deleted)) == (201, True)
    assert (wrong.answer, bool(wrong.deleted)) == (0, False)


def test_trials_are_refused_if_the_target_stays_in_any_of_them():
    def trial(key):
        return Outcome(jnp.zeros(()), jax.random.bernoulli(key, 0.9))

    with pytest.raises(InputError, match="of 20"):
        trials(trial, jax.random.key(0), 20)


def test_membership_compares_neighbouring_databases_with_independent_coins():
    def trial(key, database):
        outcome = play(key, stage()._replace(database=database), first_release)
        coin = jax.random.uniform(jax.random.fold_in(key, 7))
        return Outcome((outcome.answer, coin), outcome.deleted)

    alternative = dd.replacement([0], jnp.array([5.0]))
    pair = two_worlds(trial, jax.random.key(0), 4, DATABASE, alternative)
    np.testing.assert_array_equal(pair.present[0], np.full(4, 201))
    np.testing.assert_array_equal(pair.absent[0], np.full(4, 205))
    assert len({*pair.present[1].tolist(), *pair.absent[1].tolist()}) == 8


def test_the_adversary_has_coins_of_its_own_and_not_the_curators():
    def coin(key, view):
        return jax.random.uniform(key) + 0 * view.first

    first, second = (play(jax.random.key(k), stage(), coin).answer for k in (0, 1))
    assert first != second

    noisy = retraining(lambda key, database: jnp.sum(database) + jax.random.normal(key))

    def replay(key, view):
        _, again = dd.interact(key, noisy, fixed_stream(STREAM), DATABASE, num_requests=3)
        return again.releases[2] == view.first

    assert not play(jax.random.key(0), stage()._replace(mechanism=noisy), replay).answer


def test_retraining_forgets_its_state():
    edit = dd.replacement([0], jnp.array([3.0]))
    state = deleting(SUM)(jax.random.key(0), DATABASE, edit, jnp.float32(jnp.nan))
    assert state == 113
