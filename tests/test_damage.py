"""Random damage to every kind of file: each is named by `dd-jax check`, and none is used."""

import json
import os
import random
import shutil
import zlib
from pathlib import Path

import numpy as np
import pytest
from problems import soak

from dd_jax import cli, files, memory, sealed
from dd_jax.cli import compile_cache, verifying
from dd_jax.data import fetch
from dd_jax.errors import MissingData
from dd_jax.sweeps import store
from experiments import cache, report

IDENTITY = {"name": "made", "chunk": 4, "seed": 0}
LEAVES = [np.arange(8.0).reshape(4, 2), np.arange(4)]
SAVED = cache.Saved({"value": np.arange(5.0) / 3}, {"config": {"seed": 0}}, 1.5, None)
RUN = {"run.json": b'{"seeds": 20}', "run.csv": b"a,b\n1,2\n", "certificate.json": b"{}"}
PAGES = {"report.html": b"<html>page</html>", "one.svg": b"<svg/>", "one.csv": b"array,index\n"}
PROGRAM = "jit_made-0123"
STREAM = f"made-{store.digest_of_json(IDENTITY)[: store.SHORT]}"


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A folder with files of every kind."""
    folder = tmp_path_factory.mktemp("whole")
    stream = store.Folder.open(folder / "sweep", "made", IDENTITY)
    for index in range(2):
        stream.write(index, LEAVES)
    stream.list_chunks()
    files.place_together(folder, "run", RUN)
    cache.write(folder / "one-quick.npz", SAVED)
    for name, content in PAGES.items():
        files.place(folder / name, content)
    listed = {name: sealed.digest(content) for name, content in PAGES.items()}
    files.place(folder / report.LIST, sealed.pack_list(listed))
    files.place(folder / "targets.json", sealed.pack_json({"answers": [1, 2.5]}))
    compile_cache.Programs(folder).put(PROGRAM, zlib.compress(bytes(300)))
    (folder / "mine.csv").write_text("a,b\n1,2\n")
    return folder


# --- what reads each kind: the content, or an exception or None that says it is damaged ----------


def chunk(path: Path):
    return store.Folder(path.parent, IDENTITY).read(int(path.name.split("-")[0]))


def group(path: Path):
    return files.read_together(path.parent, "run")[path.name]


READERS = {
    "chunks": chunk,
    "manifests": lambda path: store.read_manifest(path.parent),
    "arrays, models and curators": cache.read,
    "files written together": group,
    "answers": lambda path: sealed.unpack_json(path.read_bytes()),
    "compiled programs": lambda path: compile_cache.Programs(path.parent).get(PROGRAM),
    "lists": lambda path: sealed.unpack_list(path.read_bytes()),
}


def used(kind: str, path: Path) -> bool:
    """Whether a reader takes the file."""
    try:
        return bool(READERS[kind](path))
    except (FileNotFoundError, ValueError):
        return False


# --- damage ---------------------------------------------------------------------------------------


def damaged(content: bytes, chance: random.Random) -> bytes | None:
    """The content with a flipped bit, cut, with zeros, other bytes or more of them; None: gone."""
    place = chance.randrange(len(content))
    until = min(len(content), place + chance.randint(1, 64))
    ways = (
        content[:place] + bytes([content[place] ^ 1 << chance.randrange(8)]) + content[place + 1 :],
        content[:place],
        content[:place] + bytes(until - place) + content[until:],
        content[:place] + chance.randbytes(until - place) + content[until:],
        content[:place] + chance.randbytes(8) + content[place:],
        content[place:],
        b"",
        None,
    )
    changed = ways[chance.randrange(len(ways))]
    return damaged(content, chance) if changed == content else changed


def test_every_random_damage_is_named_and_nothing_damaged_is_used(whole, tmp_path):
    folder, chance = tmp_path / "copy", random.Random(0)
    shutil.copytree(whole, folder, symlinks=True)
    known = verifying.verify(folder)
    assert not known.damaged
    assert {one.kind for one in known.seen} == {*READERS, "pages and figures"}
    assert known.others == ["mine.csv"]
    for one in known.seen:
        assert one.kind not in READERS or used(one.kind, folder / one.file)
    for number in range(soak(80, 500)):
        victim = known.seen[number % len(known.seen)]
        path = folder / victim.file
        content = path.read_bytes()
        change = damaged(content, chance)
        alone = victim.kind in ("arrays, models and curators", "answers", "compiled programs")
        if alone and change is None:  # nothing says that there was such a file
            continue
        path.resolve().unlink() if change is None else path.write_bytes(change)
        named = {one.file for one in verifying.verify(folder).damaged}
        assert named & {victim.file, report.PAGE}, (victim, change)
        assert len(named) == 1 or victim.kind == "lists"
        assert victim.kind not in READERS or not used(victim.kind, path)
        path.write_bytes(content)
        assert not verifying.verify(folder).damaged


def test_the_command_names_what_is_damaged(whole, tmp_path, capsys):
    folder = tmp_path / "copy"
    shutil.copytree(whole, folder, symlinks=True)
    assert cli.main(["check", str(folder)]) == 0
    said = capsys.readouterr().out
    assert "DAMAGED" not in said
    assert "mine.csv" in said
    (folder / "one.svg").write_bytes(b"<svg></svg>")
    (folder / "run.csv").unlink()
    (folder / "run.csv").write_bytes(b"a,b\n1,3\n")  # as an editor writes, in place of the link
    (folder / ".dd_jax-0.part").touch()
    assert cli.main(["check", str(folder), "--json"]) == 2
    found = json.loads(capsys.readouterr().out)
    assert {one["file"] for one in found["damaged"]} == {"one.svg", "run.csv"}
    assert found["unfinished"] == [".dd_jax-0.part"]
    assert found["whole"]["chunks"] == 2
    assert cli.main(["check", str(tmp_path / "nowhere")]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_an_unfinished_report_and_a_copy_without_links(whole, tmp_path):
    shutil.copytree(whole, tmp_path / "copy")  # links become files
    assert not verifying.verify(tmp_path / "copy").damaged
    listed = tmp_path / "copy" / report.LIST
    listed.write_text("".join(listed.read_text().splitlines(keepends=True)[1:]))
    (cut,) = verifying.verify(tmp_path / "copy").damaged  # its own digest has gone
    assert cut.file == report.LIST
    listed.unlink()
    (unlisted,) = verifying.verify(tmp_path / "copy").damaged
    assert unlisted.file == report.PAGE


def test_what_lies_elsewhere_is_searched_or_named(tmp_path, capsys):
    """Links inside the folder lead to what is searched anyway; a folder elsewhere is not."""
    (tmp_path / "rows.csv").write_text("a,b\n1.23456789,2.3456789\n0.34567891,4.5678912\n")
    folder = tmp_path / "results"
    files.place_together(folder / "saved", "run", RUN)
    (folder / "latest").symlink_to("saved")
    (folder / "circle").symlink_to("circle")
    check = ["check", str(folder), "--record", str(tmp_path / "rows.csv"), "--json"]
    assert cli.main(check) == 0
    (tmp_path / "elsewhere").mkdir()
    (folder / "moved").symlink_to("../elsewhere")
    capsys.readouterr()
    assert cli.main(check) == 2
    said = json.loads(capsys.readouterr().out)
    assert said["others"] == ["circle", "moved"]
    assert [one["file"] for one in said["record"]["unread"]] == ["moved"]
    shutil.copy(tmp_path / "rows.csv", tmp_path / "elsewhere" / "copy")
    (folder / "copy.csv").symlink_to("../elsewhere/copy")
    assert cli.main(check) == 2
    said = json.loads(capsys.readouterr().out)
    assert [one["file"] for one in said["record"]["found"]] == ["copy.csv"]


def test_what_is_larger_than_memory_is_named(tmp_path, monkeypatch, capsys):
    """And the other files are looked at."""
    (tmp_path / "rows.csv").write_text("a,b\n1.23456789,2.3456789\n0.34567891,4.5678912\n")
    folder = tmp_path / "results"
    files.place_together(folder, "run", RUN)
    (folder / "large").write_bytes(bytes(20_000))
    monkeypatch.setattr(memory, "available", lambda: 20_000)
    check = ["check", str(folder), "--record", str(tmp_path / "rows.csv"), "--json"]
    assert cli.main(check) == 2
    said = json.loads(capsys.readouterr().out)
    assert said["whole"] == {"files written together": len(RUN)}
    assert [one["file"] for one in said["damaged"]] == ["large"]
    assert [one["file"] for one in said["record"]["unread"]] == ["large"]


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is closed to the administrator")
def test_what_is_closed_is_named(tmp_path, capsys):
    for name in ("folder/closed", "file"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "file" / "closed.json").write_text("{}")
    for path in (tmp_path / "folder" / "closed", tmp_path / "file" / "closed.json"):
        path.chmod(0)
        assert [one.file for one in verifying.verify(path.parent).damaged] == [path.name]
        assert cli.main(["check", str(path)]) == 2
        assert capsys.readouterr().err.count("\n") == 1
        path.chmod(0o700)


def test_files_of_an_earlier_version_are_damaged_or_of_others(whole, tmp_path):
    """A manifest without a digest is named; arrays without one may be of any program."""
    folder = tmp_path / "copy"
    shutil.copytree(whole, folder, symlinks=True)
    manifest = folder / "sweep" / STREAM / store.MANIFEST
    manifest.write_text(json.dumps(store.read_manifest(manifest.parent)))
    np.savez(folder / "one-full.npz", value=np.arange(3))
    found = verifying.verify(folder)
    assert [one.file for one in found.damaged] == [str(manifest.relative_to(folder))]
    assert "one-full.npz" in found.others


def test_a_data_set_has_its_pinned_numbers_or_is_named(tmp_path, monkeypatch):
    arrays = {"features": np.arange(6.0).reshape(3, 2)}
    pinned = fetch.Pinned("made", fetch.digest(arrays), ())
    monkeypatch.setattr(fetch, "PINNED", {"made": pinned})
    monkeypatch.setenv(fetch.FOLDER_VARIABLE, str(tmp_path))
    path, chance = tmp_path / "made.npz", random.Random(1)
    np.savez(path, **arrays)
    content = path.read_bytes()
    (seen,) = verifying.verify(tmp_path).seen
    assert (seen.kind, seen.damage) == ("data sets", None)
    for _ in range(soak(20, 200)):
        path.write_bytes(damaged(content, chance) or b"")
        (seen,) = verifying.verify(tmp_path).seen
        try:
            np.testing.assert_array_equal(fetch.arrays("made")["features"], arrays["features"])
            assert seen.damage is None  # what changed is a date, or the like
        except MissingData:
            assert seen.damage is not None
