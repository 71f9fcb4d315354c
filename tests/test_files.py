"""Files that appear whole, groups of files that change at once, and what killed writers leave."""

import errno
import fcntl
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import file_writers
import pytest
from file_writers import NAMES, contents
from problems import soak

from dd_jax import files
from dd_jax.sweeps.store import Folder


def writing_of(found: dict[str, bytes]) -> str:
    """Which writing a group is of; fails if it is of two, or not whole."""
    (writing,) = {content.split()[0].decode() for content in found.values()}
    assert found == contents(writing)
    return writing


def writer(*arguments: object) -> subprocess.Popen:
    """A process of `file_writers` that has begun."""
    command = [sys.executable, file_writers.__file__, *map(str, arguments)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert process.stdout is not None
    with process.stdout:
        process.stdout.readline()
    return process


def kill(process: subprocess.Popen) -> None:
    process.kill()
    assert process.wait() == -signal.SIGKILL


def hidden(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if path.name.startswith(".")}


@pytest.mark.parametrize("links", [True, False])
def test_of_two_writers_of_a_new_file_the_first_one_stays(tmp_path, links, monkeypatch):
    def refused(*paths):
        raise OSError(errno.ENOSYS, "no links here")

    if not links:
        monkeypatch.setattr(os, "link", refused)

    def write(content, meanwhile=lambda: None):
        with files.whole_file(tmp_path / "a", replace=False) as file:
            meanwhile()
            file.write(content)

    with pytest.raises(FileExistsError):
        write(b"second", meanwhile=lambda: write(b"first"))
    assert (tmp_path / "a").read_bytes() == b"first"
    assert not hidden(tmp_path)
    files.place(tmp_path / "a", b"third")
    assert (tmp_path / "a").read_bytes() == b"third"


def test_a_group_is_plain_files_for_a_person(tmp_path):
    for writing in (1, 2):
        paths = files.place_together(tmp_path / "new", "run", contents(writing))
        assert paths == [str(tmp_path / "new" / name) for name in NAMES]
        assert {Path(path).name: Path(path).read_bytes() for path in paths} == contents(writing)
        assert writing_of(files.read_together(tmp_path / "new", "run")) == str(writing)
    assert len(hidden(tmp_path / "new")) == 2  # the link, and what it leads to
    files.place_together(tmp_path / "new", "other", {"x": b"x"})
    assert writing_of(files.read_together(tmp_path / "new", "run")) == "2"


@pytest.mark.parametrize("follow", [True, False])
def test_a_copy_of_a_group_can_be_read_and_written(tmp_path, follow):
    files.place_together(tmp_path / "a", "run", contents("old"))
    shutil.copytree(tmp_path / "a", tmp_path / "b", symlinks=not follow)
    assert writing_of(files.read_together(tmp_path / "b", "run")) == "old"
    (tmp_path / "b" / ".run-notes").touch()  # of the user
    files.place_together(tmp_path / "b", "run", contents("new"))
    assert (tmp_path / "b" / "run.json").read_bytes() == contents("new")["run.json"]
    assert writing_of(files.read_together(tmp_path / "b", "run")) == "new"
    assert writing_of(files.read_together(tmp_path / "a", "run")) == "old"
    assert len(hidden(tmp_path / "b")) == 3
    assert (tmp_path / "b" / ".run-notes").exists()


def test_where_plain_files_stood_the_last_goes_first(tmp_path):
    """A writer that stops in the middle must not leave new files beside an old certificate."""
    (tmp_path / NAMES[0]).mkdir()  # nothing can replace it
    (tmp_path / NAMES[-1]).write_bytes(b"old")
    with pytest.raises(OSError, match="writing"):
        files.place_together(tmp_path, "run", contents("x"))
    assert not (tmp_path / NAMES[-1]).exists()


def test_a_line_that_the_list_of_a_copy_has_lost_is_missed(tmp_path):
    files.place_together(tmp_path / "a", "run", contents("x"))
    shutil.copytree(tmp_path / "a", tmp_path / "b")  # links become files
    sums = tmp_path / "b" / ".run" / files.SUMS
    sums.write_text("".join(sums.read_text().splitlines(keepends=True)[1:]))
    with pytest.raises(ValueError, match=files.SUMS):
        files.read_together(tmp_path / "b", "run")


def test_a_damaged_file_of_a_group_is_named(tmp_path):
    with pytest.raises(FileNotFoundError):
        files.read_together(tmp_path, "run")
    files.place_together(tmp_path, "run", contents("x"))
    (tmp_path / "run.csv").write_bytes(b"x")
    with pytest.raises(ValueError, match=r"run\.csv"):
        files.read_together(tmp_path, "run")
    sums = tmp_path / ".run" / files.SUMS
    whole = sums.read_bytes()
    sums.write_bytes(whole[:-1])
    with pytest.raises(ValueError, match=files.SUMS):
        files.read_together(tmp_path, "run")
    sums.write_bytes(whole)
    (tmp_path / ".run" / "run.csv").unlink()
    with pytest.raises(ValueError, match=r"run\.csv"):
        files.read_together(tmp_path, "run")


def test_killed_writers_leave_the_old_group_or_the_new_one(tmp_path):
    """Also where plain files of these names were before: never some of each."""
    chance, seen, half = random.Random(0), set(), 0
    for name in NAMES:
        (tmp_path / name).write_bytes(b"plain")
    for life in range(soak(15, 400)):
        # On a busy machine it takes long to begin, and the first writing to end.
        wanted = f".{('dd_jax', 'run')[life % 2]}-*"
        before = set(tmp_path.glob(wanted))
        process = writer("group", tmp_path, life, 1_000_000)
        while set(tmp_path.glob(wanted)) <= before:
            assert process.poll() is None
            time.sleep(0.001)
        time.sleep(chance.uniform(0, 0.01))
        kill(process)
        half += any(tmp_path.glob(".dd_jax-*"))
        if (tmp_path / ".run").exists():
            writing = writing_of(files.read_together(tmp_path, "run"))
            assert writing_of({name: (tmp_path / name).read_bytes() for name in NAMES}) == writing
            seen.add(writing)
        else:  # killed before the first writing: the certificate goes first, and nothing is mixed
            left = [(tmp_path / name).exists() for name in NAMES]
            assert left == sorted(left, reverse=True)
    print(f"{half} kills left something half written; {len(seen)} different groups were read")
    assert half
    assert seen
    files.remove_leftovers(tmp_path)
    files.place_together(tmp_path, "run", contents("last"))
    assert len(hidden(tmp_path)) == 2


def test_two_writers_and_a_reader_never_meet_a_mixed_group(tmp_path):
    files.place_together(tmp_path, "run", contents("first"))
    writers = [writer("group", tmp_path, name, soak(40, 500)) for name in "ab"]
    seen, reads = set(), 0
    while any(process.poll() is None for process in writers):
        seen.add(writing_of(files.read_together(tmp_path, "run")))
        reads += 1
    print(f"{reads} reads, {len(seen)} different groups")
    assert [process.returncode for process in writers] == [0, 0]
    files.place_together(tmp_path, "run", contents("last"))
    assert len(hidden(tmp_path)) == 2


def test_leftovers_of_the_dead_go_and_those_of_the_living_stay(tmp_path):
    """By a lock that ends with its process; in the results' root as well as below."""
    stream = Folder.open(tmp_path, "x", {}).path
    (stream / ".other.part").touch()  # of another program
    process = writer("hang", tmp_path, stream)
    for left in (3, 0):
        Folder.open(tmp_path, "x", {})
        assert len([*tmp_path.rglob(".dd_jax-*.part")]) == left
        if left:
            kill(process)
    assert (stream / ".other.part").exists()


def test_what_this_process_writes_can_be_removed_at_once(tmp_path):
    def interrupted():
        with files.whole_file(tmp_path / "a"), files.temporary_folder(tmp_path) as folder:
            (folder / "half").touch()
            files.remove_unfinished()
            assert list(tmp_path.iterdir()) == []

    with pytest.raises(OSError, match="while writing"):
        interrupted()


# --- two writers at once, moment by moment --------------------------------------------------------


def test_who_cleans_up_takes_nothing_from_a_writer(tmp_path, monkeypatch):
    """Another process looks for leftovers whenever a name changes."""
    replace = os.replace

    def later(*names: Path) -> None:
        files.remove_leftovers(tmp_path)
        replace(*names)

    monkeypatch.setattr(os, "replace", later)
    files.place(tmp_path / "one", b"x")
    files.place_together(tmp_path, "run", contents("x"))
    assert writing_of(files.read_together(tmp_path, "run")) == "x"


def test_what_goes_is_locked_until_it_is_gone(tmp_path, monkeypatch):
    """Else a writer that waits for the lock would get it, and then lose what it has begun."""
    left = tmp_path / ".dd_jax-0.part"
    left.touch()

    def remove(path: Path) -> None:
        with path.open() as other, pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path.unlink()

    monkeypatch.setattr(files, "_remove", remove)
    files.remove_leftovers(tmp_path)
    assert not left.exists()


def test_a_group_that_was_linked_just_now_stays(tmp_path, monkeypatch):
    """Its writer makes the link, and ends, after another one has listed it as replaced."""
    files.place_together(tmp_path, "run", contents("one"))
    (one,) = tmp_path.glob(".run-*")
    shutil.copytree(one, tmp_path / "kept")
    files.place_together(tmp_path, "run", contents("two"))
    shutil.move(tmp_path / "kept", one)
    flock = fcntl.flock

    def ends(lock: int, how: int) -> None:
        (tmp_path / ".run").unlink()
        (tmp_path / ".run").symlink_to(one.name)
        flock(lock, how)

    monkeypatch.setattr(fcntl, "flock", ends)
    files._remove_replaced(tmp_path, "run")
    assert writing_of(files.read_together(tmp_path, "run")) == "one"
