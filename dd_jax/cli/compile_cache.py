"""Compiled programs are kept between runs of `dd-jax`: a second run of the same shapes loads them.

The console program alone turns this on, never `import dd_jax`, and through JAX's own environment
variables, so that commands that need no JAX do not load it. JAX's key of an entry names the
program, the versions, the flags and the processor's features.
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
    """Keep compiled programs, unless the user says otherwise or there is no good place for them.

    A folder that cannot be used leaves everything as it would be without one; if the user named
    it, one line says so. A folder of JAX's own variable is left to JAX.
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
    # An entry that another process is still writing, or that was cut off, is compiled again.
    warnings.filterwarnings("ignore", message="Error (reading|writing) persistent compilation")


def disable() -> None:
    """Keep and load nothing, whatever folder JAX's own variable names."""
    os.environ["JAX_ENABLE_COMPILATION_CACHE"] = "false"


def _prepare(folder: Path) -> None:
    """Make the folder; refuse one that others can write to, since what it holds will be run."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.stat()
    mine = not hasattr(os, "getuid") or found.st_uid == os.getuid()
    if not mine or (os.name == "posix" and found.st_mode & 0o022):
        raise InputError(f"{folder} belongs to, or can be written by, others; name another folder.")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise InputError(f"{folder} cannot be written; name another folder.")


def _forget_old(folder: Path) -> None:
    """Delete entries made long ago: this bounds the folder and, in time, mends damaged ones."""
    oldest = time.time() - _DAYS_KEPT * 24 * 3600
    # Other processes may be deleting the same files.
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                if entry.name.endswith("-cache") and entry.stat().st_mtime < oldest:
                    os.unlink(entry)
