"""The threat model: adversaries get post-deletion releases and nothing else."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from problems import deleting

import dd_jax as dd
from dd_jax.attacks.game import judge, play, retraining
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


def first_release(key, view):
    del key
    return view.first


def stage(row=1, request=2):
    return Stage(SUM, fixed_stream(STREAM), DATABASE, row, request, 3)


def test_a_view_is_the_releases_from_the_deletion_on(transcript):
    view = PostDeletionView.cut(transcript, request=2, row=1)
    np.testing.assert_array_equal(transcript.releases, [111, 211, 201, 301])
    np.testing.assert_array_equal(view.releases, [201, 301])
    assert view.first == 201
    assert view.deleted


def test_a_view_cannot_be_built_by_hand(transcript):
    message = (
        "a PostDeletionView is not built by hand; "
        "cut it from a transcript with PostDeletionView.cut(transcript, request=i, row=j)."
    )
    with pytest.raises(InputError) as error:
        PostDeletionView(transcript.releases, jnp.asarray(True))
    assert str(error.value) == message


def test_a_view_is_read_only(transcript):
    view = PostDeletionView.cut(transcript, request=2, row=1)
    with pytest.raises(InputError, match="read-only; releases cannot be set"):
        view.releases = transcript.releases
    with pytest.raises(InputError, match="read-only; transcript cannot be set"):
        view.transcript = transcript
    assert not hasattr(view, "__dict__")


def test_a_view_holds_no_way_back_to_the_transcript(transcript):
    view = PostDeletionView.cut(transcript, request=2, row=1)
    held = [getattr(view, name) for name in view.__slots__]
    assert jax.tree.leaves(held)[0].shape == jnp.shape(view.deleted)
    assert sum(np.size(leaf) for leaf in jax.tree.leaves(held)) == 3


@pytest.mark.parametrize("request_number", [1, 3])
def test_a_view_is_cut_only_where_the_target_is_deleted(transcript, request_number):
    with pytest.raises(InputError) as error:
        PostDeletionView.cut(transcript, request=request_number, row=1)
    assert str(error.value) == (
        f"request {request_number} does not replace row 1; "
        "cut the view at the request that deletes the target."
    )


@pytest.mark.parametrize("request_number", [0, 4, -1])
def test_release_zero_and_beyond_are_out_of_reach(transcript, request_number):
    with pytest.raises(InputError, match=r"holds requests 1 to 3|not a whole number ≥ 1"):
        PostDeletionView.cut(transcript, request=request_number, row=1)


def test_a_view_is_cut_only_from_a_transcript(transcript):
    with pytest.raises(InputError, match="cut from a Transcript, not from a ArrayImpl"):
        PostDeletionView.cut(transcript.releases, request=2, row=1)


def test_a_view_is_cut_from_one_interaction_and_not_from_many(transcript):
    batch = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), transcript)
    with pytest.raises(InputError, match=r"edits have shape \(2, 3, 1\).*cut inside the vmap"):
        PostDeletionView.cut(batch, request=1, row=1)


@pytest.mark.parametrize("row", [jnp.arange(3), jnp.array([1]), -1, 1.0, True])
def test_a_view_is_about_one_row(transcript, row):
    with pytest.raises(InputError, match="give one row of the database, a whole number ≥ 0"):
        PostDeletionView.cut(transcript, request=2, row=row)


@pytest.mark.parametrize("request_number", [True, 2.0, None])
def test_a_request_is_a_whole_number(transcript, request_number):
    with pytest.raises(InputError, match="is not a whole number ≥ 1"):
        PostDeletionView.cut(transcript, request=request_number, row=1)


def test_a_view_has_no_subclasses():
    with pytest.raises(InputError, match="has no subclasses"):
        type("Leaky", (PostDeletionView,), {"__setattr__": object.__setattr__})


@pytest.mark.parametrize("row", [3, jnp.int32(3)])
def test_a_row_that_does_not_exist_was_not_deleted(row):
    nowhere = dd.Edit(jnp.array([[3]], jnp.int32), jnp.zeros((1, 1)))
    scene = Stage(SUM, fixed_stream(nowhere), DATABASE, row, 1, 1)
    assert not play(jax.random.key(0), scene, first_release).deleted


def test_the_judge_shows_an_adversary_nothing_else(transcript):
    shown = (transcript, transcript.releases, tuple(transcript), dd.adversary_view(transcript, 2))
    for thing in shown:
        with pytest.raises(InputError) as error:
            judge(jax.random.key(0), first_release, thing)
        assert str(error.value) == (
            f"an adversary is shown a PostDeletionView, not a {type(thing).__name__}: "
            "it sees no transcript and no release from before the deletion."
        )


def test_rows_may_be_left_out_only_where_no_request_edits_anything(transcript):
    with pytest.raises(InputError, match="request 2 does not replace row None"):
        PostDeletionView.cut(transcript, request=2, row=None)
    nothing = fixed_stream(dd.Edit(jnp.zeros((1, 0), jnp.int32), jnp.zeros((1, 0))))
    idle = dd.interact(jax.random.key(0), SUM, nothing, DATABASE, num_requests=1)[1]
    assert PostDeletionView.cut(idle, request=1, row=None).first == 111


def test_under_tracing_a_wrong_cut_is_blank():
    def run(row):
        return play(jax.random.key(1), stage(row), first_release)

    right, wrong = jax.jit(run)(1), jax.jit(run)(0)
    assert (right.answer, bool(right.deleted)) == (201, True)
    assert (wrong.answer, bool(wrong.deleted)) == (0, False)


def test_trials_in_which_the_target_stays_are_refused():
    with pytest.raises(InputError) as error:
        trials(lambda key: play(key, stage(row=0), first_release), jax.random.key(0), 5)
    assert str(error.value) == (
        "in 5 of 5 interactions the record was not deleted at the stated request; "
        "name the request that replaces its row."
    )


def test_one_trial_in_which_the_target_stays_is_enough():
    def trial(key):
        return Outcome(jnp.zeros(()), jax.random.bernoulli(key))

    with pytest.raises(InputError, match="of 20 interactions the record was not deleted"):
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


def test_the_adversary_has_coins_of_its_own():
    def coin(key, view):
        return jax.random.uniform(key) + 0 * view.first

    first, second = (play(jax.random.key(k), stage(), coin).answer for k in (0, 1))
    assert first != second


def test_the_adversary_cannot_play_the_curators_coins():
    noisy = retraining(lambda key, database: jnp.sum(database) + jax.random.normal(key))

    def replay(key, view):
        _, again = dd.interact(key, noisy, fixed_stream(STREAM), DATABASE, num_requests=3)
        return again.releases[2] == view.first

    assert not play(jax.random.key(0), stage()._replace(mechanism=noisy), replay).answer


def test_retraining_forgets_its_state(transcript):
    edit = dd.replacement([0], jnp.array([3.0]))
    state = deleting(SUM)(jax.random.key(0), DATABASE, edit, jnp.float32(jnp.nan))
    assert state == 113
