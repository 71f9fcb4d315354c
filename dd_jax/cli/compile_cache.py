"""Compiled programs are kept between runs of `dd-jax`: a second run of the same shapes loads them.

Only the console program turns this on, never `import dd_jax`. It sets JAX's own environment
variables, so that commands which do not need JAX do not load it. The key of an entry is made by JAX
from the program, the versions, the flags and the processor's features.
"""

import contextlib
import os
import sys
import time
import warnings
from pathlib import Path

from dd_jax.errors import InputError
from dd_jax.files import cache_folder

VARIABLE = "DD_JAX_COMPILE_CACHE"
FLAG = "--no-compile-cache"
OFF = "off"
_DAYS_KEPT = 30
# Every program is kept, however small and quick to compile: a run needs all of its programs.
_SETTINGS = {
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
}


def enable() -> None:
    """Keep compiled programs, unless the user turned this off or no folder can be used.

    If the folder cannot be used, nothing is kept; if the user named that folder, one line says so.
    A folder that JAX's own variable names is left to JAX.
    """
    named = os.environ.get(VARIABLE, "")
    if named.lower() == OFF:
        disable()
        return
    if "JAX_COMPILATION_CACHE_DIR" in os.environ:
        return
    try:
        folder = cache_folder(VARIABLE, "compiled")
        _prepare(folder)
    except (InputError, OSError) as error:
        if named:
            print(f"dd-jax: compiled programs are not kept: {error}", file=sys.stderr)
        return
    _forget_old(folder)
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(folder)
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)
    # JAX warns about an entry that is incomplete (another process is writing it, or was killed) and
    # compiles it again, so that the warning helps nobody.
    warnings.filterwarnings("ignore", message="Error (reading|writing) persistent compilation")


def disable() -> None:
    """Keep and load nothing, even if JAX's own variable names a folder."""
    os.environ["JAX_ENABLE_COMPILATION_CACHE"] = "false"


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
    """Delete old entries: this bounds the size of the folder and removes damaged ones in time."""
    oldest = time.time() - _DAYS_KEPT * 24 * 3600
    # Other processes may be deleting the same files.
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                if entry.name.endswith("-cache") and entry.stat().st_mtime < oldest:
                    os.unlink(entry)
