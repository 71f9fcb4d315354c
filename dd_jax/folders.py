"""Where files that outlive a run are kept: the user's cache folder, unless a variable says."""

import os
from pathlib import Path

from dd_jax.errors import InputError


def cache_folder(variable: str, *below: str) -> Path:
    """The folder that the environment variable names, or dd_jax in the user's cache folder.

    Args:
        variable: environment variable that moves the folder.
        *below: folders below dd_jax, where the variable is not set.

    Raises:
        InputError: there is no home folder to put it in.
    """
    named = os.environ.get(variable)
    try:
        if named:
            return Path(named).expanduser()
        home = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    except RuntimeError:
        raise InputError(f"no home folder was found; set {variable} to a folder.") from None
    return home.joinpath("dd_jax", *below)
