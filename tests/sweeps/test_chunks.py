"""Chunks on disk: the same bytes whatever happens on the way."""

import errno
import io
import os
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dd_jax as dd
from dd_jax import ensemble, files, sharding, sweeps
from dd_jax.sweeps import Stream, runner, store
from dd_jax.sweeps.store import Folder

KEY = jax.random.key(3)
SCALE = jnp.float32(2)


def draw(key, scale):
    return {"a": scale * jax.random.normal(key, (2,)), "b": jnp.arange(3)}


def draw_otherwise(key, scale):
    return {"a": 3 * scale * jax.random.normal(key, (2,)), "b": jnp.arange(3)}


def stream(folder, chunk=4, config=None, name="draw"):
    return Stream(folder, name, {"n": 1} if config is None else config, chunk)


def contents(folder):
    """Every file below a folder, hidden ones too."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    folder = tmp_path_factory.mktemp("unbroken")
    return folder, sweeps.over_seeds(stream(folder), draw, KEY, 11, SCALE)


def the_folder(folder):
    (path,) = folder.iterdir()
    listed = store.read_manifest(path)
    identity = {k: v for k, v in listed.items() if k not in ("chunks", "revisions")}
    return Folder(path, identity)


def test_chunks_are_what_one_run_without_them_gives(unbroken):
    folder, found = unbroken
    expected = dd.over_seeds(draw, KEY, 11, SCALE)
    kept_nothing = sweeps.over_seeds(stream(None), draw, KEY, 11, SCALE)
    for name in ("a", "b"):
        assert isinstance(found[name], np.ndarray)
        np.testing.assert_array_equal(found[name], expected[name])
        np.testing.assert_array_equal(found[name], kept_nothing[name])
    assert len(list(the_folder(folder).path.glob("*.npz"))) == 3


def test_a_mesh_gives_the_same_numbers_and_has_a_folder_of_its_own(unbroken, tmp_path):
    meshed = stream(tmp_path)._replace(mesh=sharding.make_mesh())
    found = sweeps.over_seeds(meshed, draw, KEY, 11, SCALE)
    np.testing.assert_allclose(found["a"], unbroken[1]["a"], rtol=0, atol=1e-6)
    assert the_folder(tmp_path).path.name != the_folder(unbroken[0]).path.name
    assert the_folder(tmp_path).identity["layout"] == {"seeds": 1, "data": 1, "processes": 1}


def test_a_broken_run_resumes_and_ends_with_the_same_bytes(unbroken, tmp_path):
    class Broken(Exception):
        pass

    def stop(done, total):
        seen.append((done, total))
        if done == 8:
            raise Broken

    seen = []
    with pytest.raises(Broken):
        sweeps.over_seeds(stream(tmp_path), draw, KEY, 11, SCALE, progress=stop)
    assert seen == [(4, 11), (8, 11)]
    kept = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.npz")}
    assert len(kept) == 2
    resumed = sweeps.over_seeds(stream(tmp_path), draw, KEY, 11, SCALE)
    assert contents(tmp_path) == contents(unbroken[0])
    np.testing.assert_array_equal(resumed["a"], unbroken[1]["a"])
    assert all(path.stat().st_mtime_ns == written for path, written in kept.items())
    assert store.verify(tmp_path) == []
    assert store.read_manifest(the_folder(tmp_path).path)["prng"] == "threefry2x32"


def test_a_whole_run_computes_nothing_again_and_a_longer_one_goes_on(unbroken, monkeypatch):
    folder, found = unbroken
    monkeypatch.setattr(ensemble, "over_seeds", None)
    again = sweeps.over_seeds(stream(folder), draw, KEY, 9, SCALE)
    np.testing.assert_array_equal(again["a"], found["a"][:9])
    with pytest.raises(TypeError):  # the thirteenth seed would be computed
        sweeps.over_seeds(stream(folder), draw, KEY, 13, SCALE)
    with pytest.raises(TypeError):  # nothing that is there may be used
        sweeps.over_seeds(stream(folder)._replace(resume=False), draw, KEY, 9, SCALE)


@pytest.mark.parametrize(
    ("changed", "fn", "key", "scale"),
    [
        ({"config": {"n": 2}}, draw, KEY, SCALE),
        ({"chunk": 5}, draw, KEY, SCALE),
        ({"name": "other"}, draw, KEY, SCALE),
        ({}, draw_otherwise, KEY, SCALE),
        ({}, draw, jax.random.key(4), SCALE),
        ({}, draw, jax.random.key(3, impl="rbg"), SCALE),
        ({}, draw, KEY, jnp.float32(3)),
    ],
)
def test_what_decides_the_numbers_names_the_folder(changed, fn, key, scale, tmp_path):
    first = sweeps.identity(stream(tmp_path), draw, KEY, (SCALE,))
    other = sweeps.identity(stream(tmp_path, **changed), fn, key, (scale,))
    assert first == sweeps.identity(stream(tmp_path), draw, KEY, (SCALE,))
    assert Folder.open(tmp_path, "x", first).path != Folder.open(tmp_path, "x", other).path


def test_a_constant_inside_the_function_flags_and_a_version_count(tmp_path, monkeypatch):
    def identity(constant):
        def fn(key):
            return constant + jax.random.normal(key, (100,))

        return sweeps.identity(stream(tmp_path), fn, KEY, ())

    one, other = identity(jnp.arange(100.0)), identity(jnp.arange(100.0).at[50].set(-1))
    assert one["program"] != other["program"]
    monkeypatch.setattr(runner, "version", lambda name: "99")
    newer = identity(jnp.arange(100.0))
    assert newer["program"] == one["program"]
    assert newer != one
    assert set(one["versions"]) == {"dd-jax", "jax", "jaxlib", "numpy"}
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_math=true")
    assert identity(jnp.arange(100.0)) != newer


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "renamed"])
def test_a_damaged_chunk_is_found_named_and_made_again(damage, unbroken, tmp_path, caplog):
    shutil.copytree(unbroken[0], tmp_path, dirs_exist_ok=True)
    folder = the_folder(tmp_path)
    victim = folder._files(1)[0]
    content = victim.read_bytes()
    middle = len(content) // 2
    flipped = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
    contained = {"cut": content[:middle], "flipped": flipped, "empty": b"", "renamed": content}
    if damage == "renamed":
        victim = victim.rename(victim.with_name(f"000001-{'0' * 64}.npz"))
    victim.write_bytes(contained[damage])
    folder.list_chunks()
    assert folder.verify() == [victim.name]
    found = sweeps.over_seeds(stream(tmp_path), draw, KEY, 11, SCALE)
    assert victim.name in caplog.text
    np.testing.assert_array_equal(found["a"], unbroken[1]["a"])
    assert contents(tmp_path) == contents(unbroken[0])


def forge(folder, victim, fields):
    """The victim's file with other fields as chunk 1, under the digest of its bytes."""
    with np.load(victim, allow_pickle=False) as arrays:
        named = dict(arrays) | fields
    buffer = io.BytesIO()
    np.savez(buffer, **named)
    name = f"000001-{store.digest(buffer.getvalue())}.npz"
    (folder.path / name).write_bytes(buffer.getvalue())
    return name


@pytest.mark.parametrize(
    "fields", [{}, {"index": 1, "stream": "0" * 64}, {"index": 1, "leaf0": np.zeros((3, 2), "f4")}]
)
def test_a_chunk_of_another_place_stream_or_length_is_made_again(
    fields, unbroken, tmp_path, caplog
):
    """Chunk 2's bytes as chunk 1, with a sound name; of another stream; a chunk that is short."""
    shutil.copytree(unbroken[0], tmp_path, dirs_exist_ok=True)
    folder = the_folder(tmp_path)
    right = folder._files(1)[0]
    name = forge(folder, folder._files(2)[0], fields)
    folder.list_chunks()
    assert folder.verify() == []  # of two files it lists the right one
    right.unlink()
    folder.list_chunks()
    assert folder.verify() == [name]
    found = sweeps.over_seeds(stream(tmp_path), draw, KEY, 11, SCALE)
    assert name in caplog.text
    np.testing.assert_array_equal(found["a"], unbroken[1]["a"])
    assert contents(tmp_path) == contents(unbroken[0])


def test_a_file_is_flushed_aside_and_renamed(tmp_path, monkeypatch):
    """The file that was flushed is the one that has the name, so no reader finds half of it."""
    target, flushed, really = tmp_path / "x", [], os.fsync
    target.write_bytes(b"old")

    def fsync(descriptor):
        flushed.append((os.fstat(descriptor).st_ino, target.read_bytes()))
        really(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    files.place(target, b"new")
    # Then the folder, without which the new name may not outlive a power cut.
    assert flushed == [(target.stat().st_ino, b"old"), (tmp_path.stat().st_ino, b"new")]
    assert target.read_bytes() == b"new"


def test_a_full_disk_is_named_and_leaves_no_half_file(tmp_path, monkeypatch):
    """The kernel's own answer: what is written aside goes to a device that is always full."""
    folder = Folder.open(tmp_path, "x", {})
    before = contents(tmp_path)
    really_open = Path.open

    def full(path, mode="r", *args, **kwargs):
        if path.name.endswith(".part"):
            return really_open(Path("/dev/full"), "wb")
        return really_open(path, mode, *args, **kwargs)

    monkeypatch.setattr(Path, "open", full)
    with pytest.raises(OSError, match="000000-") as refused:
        folder.write(0, [np.zeros(30_000)])
    assert refused.value.errno == errno.ENOSPC
    assert contents(tmp_path) == before


def test_a_damaged_or_altered_manifest_is_found_and_written_again(unbroken, tmp_path, caplog):
    shutil.copytree(unbroken[0], tmp_path, dirs_exist_ok=True)
    path = the_folder(tmp_path).path / store.MANIFEST
    text = path.read_text()
    name = f"{path.parent.name}/{store.MANIFEST}"
    changed = (text[: len(text) // 2], text.replace('"n": 1', '"n": 2'), text + " ", "null", "[]")
    for other in changed:
        path.write_text(other)
        assert store.verify(tmp_path) == [name]
        sweeps.over_seeds(stream(tmp_path), draw, KEY, 11, SCALE)
        assert store.verify(tmp_path) == []
        assert contents(tmp_path) == contents(unbroken[0])
    assert store.MANIFEST in caplog.text


@pytest.mark.parametrize(
    "text",
    [
        "null",
        "[]",
        "3",
        "{}",
        "[" * 100_000,
        '{"chunks": [], "revisions": []}',
        '{"chunks": {"0": null}, "revisions": []}',
        '{"chunks": {"a/b": "x"}, "revisions": []}',
        '{"chunks": {}, "revisions": {}}',
        '{"chunks": {}, "revisions": [3]}',
        '{"chunks": {}, "revisions": [], "n": NaN}',
    ],
)
def test_what_is_no_manifest_is_found_and_written_again(text, tmp_path):
    folder = Folder.open(tmp_path, "x", {"chunk": 1})
    folder.write(0, [np.zeros(1)])
    path = folder.path / store.MANIFEST
    path.write_text(text)
    assert store.verify(tmp_path) == [f"{folder.path.name}/{store.MANIFEST}"]
    Folder.open(tmp_path, "x", {"chunk": 1})
    assert store.verify(tmp_path) == []


def test_the_manifest_of_another_folder_is_named(tmp_path):
    paths = [Folder.open(tmp_path, "x", {"chunk": 1, "n": n}).path for n in (1, 2)]
    shutil.copy(paths[1] / store.MANIFEST, paths[0])
    assert store.verify(tmp_path) == [f"{paths[0].name}/{store.MANIFEST}"]


def test_a_revision_informs_and_does_not_part_streams(unbroken, tmp_path, monkeypatch):
    shutil.copytree(unbroken[0], tmp_path, dirs_exist_ok=True)
    monkeypatch.setattr(store, "revision", lambda: "0" * 40)
    monkeypatch.setattr(ensemble, "over_seeds", None)  # nothing is computed
    sweeps.over_seeds(stream(tmp_path), draw, KEY, 11, SCALE)
    listed = store.read_manifest(the_folder(tmp_path).path)
    assert set(listed["revisions"]) == {
        "0" * 40,
        *store.read_manifest(the_folder(unbroken[0]).path)["revisions"],
    }


def test_the_revision_is_that_of_this_source_or_none(tmp_path, monkeypatch):
    monkeypatch.setattr(store, "__file__", str(tmp_path / "store.py"))
    assert store.revision.__wrapped__() is None


def test_neighbours_are_those_of_the_library(tmp_path):
    def run(key, database):
        return database.sum() + jax.random.normal(key)

    database = jnp.arange(4.0)
    edit = dd.replacement([2], jnp.array([10.0]))
    seen = []
    key = jax.random.key(5)
    found = sweeps.neighbours(
        stream(tmp_path),
        run,
        jax.random.clone(key),
        6,
        database,
        edit,
        progress=lambda *at: seen.append(at),
    )
    expected = dd.neighbours(run, key, 6, database, edit)
    for arm, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(arm, other)
    assert seen == [(4, 12), (6, 12), (10, 12), (12, 12)]
    assert sorted(path.name.rsplit("-", 1)[0] for path in tmp_path.iterdir()) == [
        "draw-absent",
        "draw-present",
    ]


def test_bad_input_is_refused(tmp_path):
    with pytest.raises(dd.InputError, match="num_seeds"):
        sweeps.over_seeds(stream(tmp_path), draw, KEY, 0, SCALE)
    with pytest.raises(dd.InputError, match="name"):
        sweeps.over_seeds(stream(tmp_path, name="a/b"), draw, KEY, 1, SCALE)
    for config in ({"n": object()}, {"n": float("nan")}):
        with pytest.raises(dd.InputError, match="JSON"):
            Folder.open(tmp_path, "x", {"config": config})
    with pytest.raises(dd.InputError, match="bfloat16"):
        Folder.open(tmp_path, "x", {}).write(0, [np.asarray(jnp.zeros(2, jnp.bfloat16))])
    taken = tmp_path / "taken"
    taken.write_text("mine")
    with pytest.raises(dd.InputError, match="file"):
        Folder.open(taken, "x", {})
    with pytest.raises(dd.InputError, match="nowhere"):
        store.verify(tmp_path / "nowhere")
