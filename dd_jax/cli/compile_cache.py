"""Compiled programs are kept between runs of `dd-jax`: a second run of the same shapes loads them.

Only the console program turns this on, never `import dd_jax`. It waits until JAX is imported, so
that commands which do not need JAX do not load it. The key of a program is made by JAX from the
program, the versions, the flags and the processor's features.

A kept program ends in a digest of its key and itself: one that was damaged, or has another one's
name, is compiled again. What a program is given (records) is not part of it; what it closes over is
(`tests/test_compiled_records.py` looks for records in the files).
"""

import contextlib
import hashlib
import importlib.abc
import importlib.util
import os
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dd_jax import files
from dd_jax.cli.output import say
from dd_jax.errors import InputError

VARIABLE = "DD_JAX_COMPILE_CACHE"
FLAG = "--no-compile-cache"
OFF = "off"
_DAYS_KEPT = 30
# Every program is kept, however small and quick to compile: a run needs all of its programs.
_SETTINGS = {
    "jax_persistent_cache_min_compile_time_secs": 0.0,
    "jax_persistent_cache_min_entry_size_bytes": -1,
}
SUFFIX = ".program"
# Files of JAX's own cache, which earlier versions kept here: they have no digest, and some held
# records as constants.
_EARLIER = ("-cache", "-atime")
_CACHE_MODULE = "jax._src.compilation_cache"


def enable() -> Path | None:
    """Keep compiled programs, unless the user turned this off or no folder can be used.

    If the folder cannot be used, nothing is kept; if the user named that folder, one line says so.
    A folder that JAX's own variable names is left to JAX.

    Returns:
        the folder that programs are kept in, or None.
    """
    named = os.environ.get(VARIABLE, "")
    if named.lower() == OFF:
        disable()
        return None
    if "JAX_COMPILATION_CACHE_DIR" in os.environ:
        return None
    try:
        folder = files.cache_folder(VARIABLE, "compiled")
        _prepare(folder)
    except (InputError, OSError) as error:
        if named:
            say(f"dd-jax: compiled programs are not kept: {error}")
        return None
    _forget_old(folder)
    loaded = sys.modules.get(_CACHE_MODULE)
    if loaded is None:
        sys.meta_path.insert(0, _WhenLoaded(folder))
    else:
        _use(loaded, folder)
    # JAX warns about a program that it cannot load or keep, and compiles it, so that the warning
    # helps nobody.
    warnings.filterwarnings("ignore", message="Error (reading|writing) persistent compilation")
    return folder


def disable() -> None:
    """Keep and load nothing, even if JAX's own variable names a folder."""
    os.environ["JAX_ENABLE_COMPILATION_CACHE"] = "false"


class Programs:
    """The cache that JAX is given in place of its own: a file for each program."""

    def __init__(self, folder: Path):
        self._path = folder

    def get(self, key: str) -> bytes | None:
        """The program, or None where none is kept; a damaged one is named and compiled again."""
        try:
            content = (self._path / f"{key}{SUFFIX}").read_bytes()
        except FileNotFoundError:
            return None
        program = verified(key, content)
        if program is None:
            say(f"dd-jax: the compiled program {key[:60]} is damaged; it is compiled again")
        return program

    def put(self, key: str, value: bytes) -> None:
        """Keep a program, whole or not at all: JAX goes on where the disk is full."""
        files.place(self._path / f"{key}{SUFFIX}", value + _digest(key, value))


def programs(folder: Path) -> Iterator[tuple[str, bytes | None]]:
    """The name and the content of every kept program, uncompressed; None where it is damaged."""
    from jax._src.compilation_cache import decompress_executable

    for path in sorted(folder.glob(f"*{SUFFIX}")):
        found = verified(path.name.removesuffix(SUFFIX), path.read_bytes())
        yield path.name, None if found is None else decompress_executable(found)


def _digest(key: str, program: bytes) -> bytes:
    return hashlib.sha256(key.encode() + b"\n" + program).digest()


def verified(key: str, content: bytes) -> bytes | None:
    """The program in front of its digest; None if it is damaged."""
    size = hashlib.sha256().digest_size
    program = content[:-size]
    return program if content[-size:] == _digest(key, program) else None


class _WhenLoaded(importlib.abc.MetaPathFinder):
    """Puts `Programs` in place of JAX's cache on import; JAX has no public way for it."""

    def __init__(self, folder: Path):
        self._folder = folder

    def find_spec(self, fullname, path=None, target=None):
        """The module of JAX's cache, followed by `_use`."""
        del path, target
        if fullname != _CACHE_MODULE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is None or spec.loader is None:
            return None
        load = spec.loader.exec_module

        def load_and_use(module):
            load(module)
            _use(module, self._folder)

        spec.loader.exec_module = load_and_use
        return spec


def _use(cache_module: Any, folder: Path) -> None:
    """Give JAX the folder and `Programs`; settings that the user made are left alone."""
    cache_module.get_file_cache = lambda path: (Programs(Path(path)), path)
    settings = cache_module.config.config
    for name, value in _SETTINGS.items():
        if name.upper() not in os.environ:
            settings.update(name, value)
    settings.update("jax_compilation_cache_dir", str(folder))


def _prepare(folder: Path) -> None:
    """Make the folder; refuse one that others can write to, because its contents are executed."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.stat()
    mine = not hasattr(os, "getuid") or found.st_uid == os.getuid()
    if not mine or (os.name == "posix" and found.st_mode & 0o022):
        raise InputError(f"{folder} can be written by other users; name a folder of your own.")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise InputError(f"{folder} cannot be written; name another folder.")


def _forget_old(folder: Path) -> None:
    """Delete old programs, which bounds the size of the folder, and those of earlier versions."""
    oldest = time.time() - _DAYS_KEPT * 24 * 3600
    # Other processes may be deleting the same files.
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                old = entry.name.endswith(SUFFIX) and entry.stat().st_mtime < oldest
                if old or entry.name.endswith(_EARLIER):
                    os.unlink(entry)
