"""A curator on disk: what is saved goes on, is certified, and holds nothing that was deleted."""

import os
import stat

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from problems import signed, soak

import dd_jax as dd
from dd_jax import sealed
from dd_jax.noisy_gd import mechanism

LOSS = dd.losses.logistic()
PROBLEM = dd.Problem(LOSS, 0.1)
N = 30
PLAN = dd.plan_convex(PROBLEM, n=N, dim=4, order=2, eps_dp=1.0, eps_dd=0.1)
CURATOR = mechanism(PROBLEM, PLAN)


def deleting(database, *rows):
    return lambda request, release: dd.deletion(LOSS, database, [rows[request - 1]])


@pytest.fixture(scope="module")
def served():
    database = signed(N, 4)
    respond = deleting(database, 3, 7, 9, 3)
    state, transcript = dd.drive(
        jax.random.key(0), CURATOR, respond, database, num_requests=2, observe=(0,)
    )
    return database, respond, state, transcript


@pytest.mark.parametrize("form", ["plain", "counted"])
def test_what_is_loaded_goes_on_as_if_nothing_had_happened(served, form, tmp_path):
    _, respond, state, transcript = served
    path = tmp_path / "curator.npz"
    rows = dd.compress(state.database) if form == "counted" else state.database
    dd.save(path, PLAN, state._replace(database=rows), transcript)
    plan, loaded, history = dd.load(path, PROBLEM)
    assert plan == PLAN
    one, first = dd.resume(jax.random.key(1), CURATOR, respond, state, num_requests=1)
    other, second = dd.resume(jax.random.key(1), CURATOR, respond, loaded, num_requests=1)
    np.testing.assert_allclose(one.params, other.params, rtol=1e-5)
    before = PLAN.certify([transcript, first], request=3, row=9)
    after = PLAN.certify([*history, second], request=3, row=9)
    assert before == after
    assert before.observed == (0,)


def test_a_look_without_a_request_is_remembered(served, tmp_path):
    _, _, state, transcript = served
    for looked in (False, True):
        after = state._replace(looked=jnp.bool_(looked))
        dd.save(tmp_path / "curator.npz", PLAN, after, transcript)
        assert bool(dd.load(tmp_path / "curator.npz", PROBLEM)[1].looked) is looked


def test_the_file_holds_no_byte_of_a_deleted_record(served, tmp_path):
    database, _, state, transcript = served
    path = tmp_path / "curator.npz"

    def hits(record):
        return np.asarray(record).tobytes() in path.read_bytes()

    dd.save(path, PLAN, state, transcript)
    assert hits(database.features[0])  # a record that stays is found, so the scan can see
    assert not hits(database.features[3])
    assert not hits(database.features[7])
    assert list(tmp_path.iterdir()) == [path]


def test_a_state_and_transcripts_that_do_not_belong_together_are_refused(served, tmp_path):
    database, respond, state, transcript = served
    path = tmp_path / "curator.npz"
    other = dd.plan_convex(PROBLEM, n=N, dim=4, order=2, eps_dp=2.0, eps_dd=0.1)
    with pytest.raises(dd.InputError, match="plan"):
        dd.save(path, other, state, transcript)
    for transcripts in ((), (transcript, transcript)):
        with pytest.raises(dd.InputError, match="transcripts"):
            dd.save(path, PLAN, state, *transcripts)
    _, stranger = dd.drive(jax.random.key(1), CURATOR, respond, database, num_requests=2)
    with pytest.raises(dd.InputError, match="curator"):
        dd.save(path, PLAN, state, stranger)
    assert not path.exists()
    dd.save(path, PLAN, state, transcript)
    with pytest.raises(dd.CertificateRefused):
        dd.load(path, dd.Problem(LOSS, 0.2))


def test_damaged_and_missing_files_are_refused(served, tmp_path):
    _, _, state, transcript = served
    path = tmp_path / "curator.npz"
    with pytest.raises(dd.InputError, match="exist"):
        dd.load(path, PROBLEM)
    dd.save(path, PLAN, state, transcript)
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    for cut in rng.integers(0, len(whole) - 1, soak(10, 40)):
        path.write_bytes(whole[:cut])
        with pytest.raises(dd.InputError):
            dd.load(path, PROBLEM)
    for place in rng.integers(0, len(whole), soak(10, 500)):
        flipped = bytearray(whole)
        flipped[place] ^= 1 << rng.integers(8)
        path.write_bytes(flipped)
        with pytest.raises(dd.InputError, match="damaged"):
            dd.load(path, PROBLEM)
    path.write_bytes(whole)
    about, stored = sealed.read_arrays(path)
    np.savez(path, **stored)  # sound checksums, and no digest
    with pytest.raises(dd.InputError, match="digest"):
        dd.load(path, PROBLEM)
    short = {"history/0/observed": stored["history/0/observed"][:1]}
    rows = {f"database/{leaf}": stored[f"database/{leaf}"][:-1] for leaf in (0, 1)}
    doubles = {"params/0": stored["params/0"].astype(np.float64)}
    for damage in (short, rows, doubles):
        path.write_bytes(sealed.pack_arrays(about, stored | damage))
        with pytest.raises(dd.InputError):
            dd.load(path, PROBLEM)
    path.write_bytes(sealed.pack_arrays({"kind": "another"}, {}))
    with pytest.raises(dd.InputError):
        dd.load(path, PROBLEM)
    with pytest.raises(dd.InputError, match="folder"):
        dd.save(tmp_path / "no" / "folder.npz", PLAN, state, transcript)


def test_saving_again_replaces_the_file_at_once(served, tmp_path, monkeypatch):
    database, respond, state, transcript = served
    path = tmp_path / "curator.npz"
    dd.save(path, PLAN, state, transcript)
    later, more = dd.resume(jax.random.key(1), CURATOR, respond, state, num_requests=1)
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        dd.save(path, PLAN, later, transcript, more)
    monkeypatch.undo()
    assert int(dd.load(path, PROBLEM)[1].served) == 2
    assert list(tmp_path.iterdir()) == [path]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600  # it holds the records
    dd.save(path, PLAN, later, transcript, more)
    assert int(dd.load(path, PROBLEM)[1].served) == 3
    assert np.asarray(database.features[9]).tobytes() not in path.read_bytes()


def test_the_next_batch_is_saved_too(tmp_path):
    plan = dd.plan_convex(PROBLEM, n=N, dim=4, order=2, eps_dp=1.0, eps_dd=0.1, batches=7)
    curator, database = mechanism(PROBLEM, plan), signed(N, 4)
    respond = deleting(database, 3, 7, 9)
    key = jax.random.key(0)
    state, transcript = dd.drive(key, curator, respond, database, num_requests=2)
    dd.save(tmp_path / "curator.npz", plan, state, transcript)
    _, loaded, _ = dd.load(tmp_path / "curator.npz", PROBLEM)
    assert int(loaded.params.batch) == (plan.learn_steps + 2 * plan.delete_steps) % 7
    wrong = state._replace(params=state.params._replace(batch=(state.params.batch + 1) % 7))
    dd.save(tmp_path / "wrong.npz", plan, wrong, transcript)
    with pytest.raises(dd.InputError, match="damaged"):
        dd.load(tmp_path / "wrong.npz", PROBLEM)
    one = dd.resume(jax.random.key(1), curator, respond, state, num_requests=1)[0]
    other = dd.resume(jax.random.key(1), curator, respond, loaded, num_requests=1)[0]
    np.testing.assert_array_equal(one.params.model, other.params.model)
