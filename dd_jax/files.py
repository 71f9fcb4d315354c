"""Files that outlive a run: where they are kept, how they are written and read safely."""

import contextlib
import itertools
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from dd_jax.errors import InputError

_COUNT = itertools.count()


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


@contextlib.contextmanager
def whole_file(target: Path, *, private: bool = False) -> Iterator[BinaryIO]:
    """A temporary file that becomes the target: flushed and renamed on success, else removed.

    Every writer has its own temporary name, so that two of them can write one target.

    Args:
        target: the final name; an older file of this name is replaced in one step.
        private: only the user can read it, whatever the umask is.

    Raises:
        OSError: the system's message, with the name of the file that could not be written.
    """
    aside = target.with_name(f".{_host()}.{os.getpid()}.{next(_COUNT)}.part")
    try:
        aside.touch(0o600 if private else 0o666, exist_ok=False)
        with aside.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, target)
        _flush_folder(target.parent)
    except OSError as error:
        # The system reports a full disk without the name of the file.
        raise OSError(error.errno, f"{error.strerror} while writing", str(target)) from error
    finally:
        aside.unlink(missing_ok=True)


def place(target: Path, content: bytes) -> None:
    """Write a file completely or not at all; see `whole_file`."""
    with whole_file(target) as file:
        file.write(content)


def place_texts(folder: Path, texts: Mapping[str, str]) -> list[str]:
    """Write texts by their names into a folder, made if it is missing; returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        place(folder / name, text.encode())
    return [str(folder / name) for name in texts]


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


def remove_leftovers(folder: Path) -> None:
    """Remove the temporary files of writers on this machine that are no longer running."""
    for path in folder.glob(".*.part"):
        found = re.fullmatch(rf"\.{re.escape(_host())}\.(\d+)\.\d+\.part", path.name)
        if found and not _is_running(int(found.group(1))):
            path.unlink(missing_ok=True)


def _host() -> str:
    import socket  # imported here: a command that starts needs only `cache_folder`

    return socket.gethostname()


def _flush_folder(path: Path) -> None:
    """Flush a folder: only then does a rename in it survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
