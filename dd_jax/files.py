"""Files that outlive a run: where they are kept, how they are written and read safely."""

import contextlib
import errno
import fcntl
import hashlib
import os
import re
import secrets
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from dd_jax import memory
from dd_jax.errors import InputError

SUMS = "SHA256SUMS"
# How often a temporary name may be lost to another process that cleans up.
_TRIES = 100
_GROUP_FOLDER = re.compile(r"(\.[^/]+)-[0-9a-f]{16}-[0-9a-f]{16}")
# What this process is writing just now, and the folders where it looked for leftovers of others.
_UNFINISHED: set[Path] = set()
_LOOKED: set[Path] = set()
# Held by a thread while it begins or ends a piece of writing.
_TURN = threading.RLock()


def cache_folder(variable: str, *below: str) -> Path:
    """The folder that the environment variable names, or dd_jax in the user's cache folder.

    Args:
        variable: environment variable that moves the folder.
        *below: folders below dd_jax, if the variable is not set.

    Raises:
        InputError: no home folder was found.
    """
    named = os.environ.get(variable)
    try:
        if named:
            return Path(named).expanduser()
        home = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    except RuntimeError:
        raise InputError(f"no home folder was found; set {variable} to a folder.") from None
    return home.joinpath("dd_jax", *below)


# --- one file -------------------------------------------------------------------------------------


@contextlib.contextmanager
def whole_file(target: Path, *, private: bool = False, replace: bool = True) -> Iterator[BinaryIO]:
    """A temporary file that becomes the target: flushed and renamed on success, else removed.

    Every writer has its own temporary name, so that two of them can write one target.

    Args:
        target: the final name; an older file of this name is replaced in one step.
        private: only the user can read it, whatever the umask is.
        replace: false keeps an older file, and of two writers at once the first one's.

    Raises:
        OSError: the system's message, with the name of the file that could not be written.
    """
    try:
        with _held(target.parent, lambda path: _touch(path, private)) as aside:
            with aside.open("wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            (os.replace if replace else _only_if_new)(aside, target)
            _flush_folder(target.parent)
    except OSError as error:
        # The system reports a full disk without the name of the file.
        raise OSError(error.errno, f"{error.strerror} while writing", str(target)) from error


def _only_if_new(aside: Path, target: Path) -> None:
    """Give a file a second name, which nothing else has; the first one is removed by its owner."""
    try:
        os.link(aside, target)
    except FileExistsError:
        raise
    except OSError:  # a file system without links: two writers at once are not told apart
        if os.path.lexists(target):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST)) from None
        os.replace(aside, target)


def place(target: Path, content: bytes) -> None:
    """Write a file completely or not at all; see `whole_file`."""
    with whole_file(target) as file:
        file.write(content)


# --- several files at once ------------------------------------------------------------------------


def place_together(folder: Path, group: str, contents: Mapping[str, bytes]) -> list[str]:
    """Write files by their names into a folder, so that all of them change in one step.

    The files lie in a hidden folder, beside a list of their digests, whose own digest is in the
    folder's name. `.group` is a link to it, and every name is a link through `.group`: replacing
    this one link replaces all files. A process
    that is killed leaves the old files or the new ones, never some of each. Read several of them
    with `read_together`.

    Args:
        folder: made if it is missing. group: a word that names these files in the folder.
        contents: the files; where plain files have their names, the last of them goes first.

    Returns:
        the paths of the files.

    Raises:
        OSError: the system's message, with the name of the folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lines = [f"{_digest(content)}  {name}\n" for name, content in contents.items()]
    sums = "".join(lines).encode()
    link = folder / f".{group}"
    try:
        with _held(folder, lambda path: path.mkdir()) as aside:
            for name, content in (*contents.items(), (SUMS, sums)):
                with (aside / name).open("xb") as file:
                    file.write(content)
                    file.flush()
                    os.fsync(file.fileno())
            _flush_folder(aside)
            whole = folder / f".{group}-{_digest(sums)[:16]}-{secrets.token_hex(8)}"
            with _TURN:
                for name in reversed(list(contents)):
                    _link(aside, folder / name, f"{link.name}/{name}")
                aside.rename(whole)
                if link.is_dir() and not link.is_symlink():  # a copy without its links
                    link.rename(folder / f".{group}-{secrets.token_hex(8)}-{secrets.token_hex(8)}")
                _link(whole, link, whole.name)
            _flush_folder(folder)
    except OSError as error:
        raise OSError(error.errno, f"{error.strerror} while writing into", str(folder)) from error
    _remove_replaced(folder, group)
    return [str(folder / name) for name in contents]


def read_together(folder: Path, group: str) -> dict[str, bytes]:
    """The files of a group by their names, all of one writing; also in a copy without its links.

    Raises:
        FileNotFoundError: nothing was written.
        ValueError: a file is missing or differs from its digest; the text names it.
    """
    if not os.path.lexists(folder / f".{group}"):
        raise FileNotFoundError(errno.ENOENT, "nothing was written", str(folder / f".{group}"))
    found, damages = _look(folder, group)
    for name, damage in damages.items():
        if damage is not None:
            raise ValueError(f"{folder / name} is damaged: {damage}")
    return found


def groups_in(folder: Path) -> list[str]:
    """The groups that were written into a folder; also in a copy without its links."""
    found = []
    for path in sorted(folder.glob(".*")):
        if path.is_symlink():
            leads_to = _GROUP_FOLDER.fullmatch(os.readlink(path))
            if leads_to and leads_to[1] == path.name:
                found.append(path.name[1:])
        elif path.is_dir() and not _GROUP_FOLDER.fullmatch(path.name) and (path / SUMS).is_file():
            found.append(path.name[1:])
    return found


def examine_together(folder: Path, group: str) -> dict[str, str | None]:
    """Every file of a group by its name, with what is wrong with it or None."""
    return _look(folder, group)[1]


def _look(folder: Path, group: str) -> tuple[dict[str, bytes], dict[str, str | None]]:
    """(contents, what is wrong with each or None) of a group; writers may replace it meanwhile."""
    link = folder / f".{group}"
    while True:
        leads_to = os.readlink(link) if link.is_symlink() else None
        found = _look_once(folder, link.name, leads_to)
        if leads_to == (os.readlink(link) if link.is_symlink() else None):
            return found


def _look_once(
    folder: Path, link: str, leads_to: str | None
) -> tuple[dict[str, bytes], dict[str, str | None]]:
    damaged = "its bytes do not have their digest"
    sums_name = f"{link}/{SUMS}"
    contents: dict[str, bytes] = {}
    try:
        sums = (folder / (leads_to or link) / SUMS).read_bytes()
        pairs = [line.split("  ", 1) for line in sums.decode().splitlines()]
        wanted = {name: digest for digest, name in pairs}
    except OSError:
        return {}, {sums_name: "it is missing"}
    except ValueError:
        return {}, {sums_name: damaged}
    # A copy whose links were followed has the folder twice, once with the digest in its name.
    names = [leads_to] if leads_to else [path.name for path in folder.glob(f"{link}-*")]
    if not any(name.startswith(f"{link}-{_digest(sums)[:16]}-") for name in names):
        return {}, {sums_name: damaged}
    damages: dict[str, str | None] = {}
    for name, digest in wanted.items():
        try:
            contents[name] = (folder / name).read_bytes()
            damages[name] = None if _digest(contents[name]) == digest else damaged
        except OSError:
            damages[name] = "it is missing"
    return contents, damages


def is_group_folder(name: str) -> bool:
    """Whether a folder of this name holds the files of a group, and is read through its link."""
    return _GROUP_FOLDER.fullmatch(name) is not None


def is_unfinished(name: str) -> bool:
    """Whether a file or folder of this name is what a writer has not finished."""
    return name.startswith(".dd_jax-") and name.endswith(".part")


def _link(held: Path, path: Path, leads_to: str) -> None:
    """Make a link, or replace what has its name, in one step.

    A link cannot be locked. It is made in a folder that is, where no other process removes it.
    """
    if path.is_symlink() and os.readlink(path) == leads_to:
        return
    made = _new_name(held)
    made.symlink_to(leads_to)
    os.replace(made, path)


def _remove_replaced(folder: Path, group: str) -> None:
    """Remove the folders of earlier writings.

    Writers make the link while they hold the lock, so that a folder which is free and not linked
    never will be.
    """
    link = folder / f".{group}"
    for path in folder.glob(f"{link.name}-*"):
        if is_group_folder(path.name):
            _remove_free(path, lambda path=path: path.name != os.readlink(link))


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


# --- reading -------------------------------------------------------------------------------------


def read(path: Path) -> bytes:
    """The bytes of a file that somebody named.

    Raises:
        OSError: it cannot be read; or it is a device, which may have no end, or larger than memory.
    """
    if path.is_char_device() or path.is_block_device():
        raise OSError(errno.EINVAL, "It is a device, not a file", str(path))
    if path.stat().st_size > memory.available() / 2:
        raise OSError(errno.EFBIG, "It is larger than half of the memory", str(path))
    return path.read_bytes()


def read_arrays(path: Path) -> dict[str, Any]:
    """The arrays of an NPZ file by their names; nothing in it is ever executed.

    Raises:
        OSError: the file cannot be opened.
        ValueError: it is damaged, or not an NPZ file; the text says how, in one line.
    """
    import zipfile  # imported here, so that a command starts quickly
    import zlib

    import numpy as np

    # RuntimeError: flags that zipfile does not know, such as encryption. TypeError: a file with one
    # array, which is not an archive.
    damaged = (ValueError, EOFError, KeyError, TypeError, RuntimeError)
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            return dict(stored)
    except (*damaged, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(" ".join(str(error).split())[:120]) from None


# --- what writers leave behind --------------------------------------------------------------------


def remove_leftovers(folder: Path) -> None:
    """Remove the temporary files and folders of writers that are no longer running.

    A writer holds a lock on what it writes, which ends with it, however it ends. A process number
    would say nothing: two containers may have the same ones.
    """
    for path in folder.glob(".dd_jax-*.part"):
        _remove_free(path)


def stop_writing() -> None:
    """Let no other thread begin or finish a piece of writing: this process ends now."""
    _TURN.acquire(timeout=1)  # a thread that no fork brought along may hold it


def remove_unfinished() -> None:
    """Remove what this process is writing, before it ends in the middle."""
    for path in list(_UNFINISHED):
        _remove(path)


@contextlib.contextmanager
def temporary_folder(folder: Path) -> Iterator[Path]:
    """A folder inside another one that is removed at the end.

    If the process is killed, `remove_leftovers` finds it.
    """
    with _held(folder, lambda path: path.mkdir(0o700)) as aside:
        yield aside


@contextlib.contextmanager
def _held(folder: Path, make: Callable[[Path], None]) -> Iterator[Path]:
    """A temporary name that others leave alone while this process lives; removed at the end.

    The first time in a folder, what killed processes left there is removed.
    """
    with _TURN:
        aside, lock = _begin(folder, make)
    try:
        yield aside
    finally:
        with _TURN:
            _remove(aside)
            _UNFINISHED.discard(aside)
            os.close(lock)


def _begin(folder: Path, make: Callable[[Path], None]) -> tuple[Path, int]:
    """The path of what was made, and the descriptor that locks it."""
    if folder not in _LOOKED:
        _LOOKED.add(folder)
        remove_leftovers(folder)
    tries = _TRIES
    while True:
        aside, tries = _new_name(folder), tries - 1
        _UNFINISHED.add(aside)
        try:
            make(aside)
            lock = _open(aside)
        except FileNotFoundError:
            # The folder is missing, or `remove_leftovers` of another process came before the lock.
            # Some folders, such as /proc, say the same of every name.
            _UNFINISHED.discard(aside)
            if folder.is_dir() and tries:
                continue
            raise
        except BaseException:
            _UNFINISHED.discard(aside)
            raise
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(lock, fcntl.LOCK_EX)
        if aside.exists():
            return aside, lock
        os.close(lock)
        _UNFINISHED.discard(aside)


def _new_name(folder: Path) -> Path:
    """Random, since neither the host nor the process tells two containers apart."""
    return folder / f".dd_jax-{secrets.token_hex(8)}.part"


def _open(path: Path) -> int:
    """A descriptor to lock; network file systems lock only files that are open for writing."""
    return os.open(path, os.O_NOFOLLOW | (os.O_RDONLY if path.is_dir() else os.O_RDWR))


def _touch(path: Path, private: bool) -> None:
    path.touch(0o600 if private else 0o666, exist_ok=False)


def _remove_free(path: Path, useless: Callable[[], bool] = lambda: True) -> None:
    """Remove what no process holds, if it is useless; what cannot be told stays.

    All of it under the lock: whoever waits for the lock then sees that the name is gone, and
    whoever had it has finished.
    """
    with contextlib.suppress(OSError):
        lock = _open(path)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if useless():
                _remove(path)
        finally:
            os.close(lock)


def _remove(path: Path) -> None:
    """Remove a file, a link or a folder, as far as possible; others may be removing it too."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
        return
    with contextlib.suppress(OSError):
        path.unlink()


def _flush_folder(path: Path) -> None:
    """Flush a folder: only then does a rename in it survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
