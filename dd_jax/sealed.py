"""Contents that carry their own digest: arrays with JSON about them, JSON, and lists of files.

Reading verifies the digest over all bytes, so that damage is found wherever it is. A digest is no
signature: whoever writes the file can write another digest. `owned` and `verify` recognise these
files from outside, for `dd-jax check`.
"""

import hashlib
import io
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dd_jax import files

# The first member of an NPZ file, and the first value of a JSON object.
ABOUT = "__about__"
_BEGIN_ARRAYS = f"{ABOUT}.npy".encode()
_BEGIN_JSON = b'{\n "written by": "dd-jax",'
# How the digest at the end of an NPZ file begins, and its length.
_MARK = b"sha256:"
_LENGTH = len(_MARK) + 64
_END_JSON = b' "sha256": "'
_BEGIN_LIST = "# sha256 of what follows: "
LIST = ".sha256"
_DAMAGED = "its bytes do not have their digest"


def digest(content: bytes) -> str:
    """SHA-256 in hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()


# --- arrays ---------------------------------------------------------------------------------------


def pack_arrays(
    about: Mapping[str, Any], arrays: Mapping[str, Any], *, compressed: bool = False
) -> bytes:
    """An NPZ file with JSON values about its arrays, which ends in the digest of all before it.

    The digest is the archive's comment, so that every reader of NPZ files can read the arrays.
    Equal contents give equal bytes.

    Args:
        about: JSON values; "kind" says to people what the file is.
        arrays: by their names; no objects.
        compressed: whether they are worth the time of compressing.

    Raises:
        ValueError: an array of Python objects, which only a pickle can store.
    """
    import zipfile  # here and below: imported late, so that a command starts quickly

    import numpy as np

    buffer = io.BytesIO()
    write: Any = np.savez_compressed if compressed else np.savez
    text = np.asarray(json.dumps(about, sort_keys=True))
    write(buffer, allow_pickle=False, **{ABOUT: text, **arrays})
    with zipfile.ZipFile(buffer, "a") as archive:
        archive.comment = bytes(_LENGTH)
    content = buffer.getvalue()[:-_LENGTH]
    return content + _MARK + digest(content).encode()


def read_arrays(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """What `pack_arrays` was given: (about, arrays).

    Raises:
        OSError: the file cannot be opened.
        ValueError: its bytes do not have their digest; the text says so, in a few words.
    """
    import numpy as np

    content = files.read(path)
    _check_arrays(content)
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as stored:
            arrays = dict(stored)
        return json.loads(str(arrays.pop(ABOUT))), arrays
    except (AttributeError, KeyError, TypeError, ValueError):
        raise ValueError("it holds something else") from None


def _check_arrays(content: bytes) -> None:
    if content[-_LENGTH:] == _MARK + digest(content[:-_LENGTH]).encode():
        return
    if _MARK in content[-_LENGTH:]:
        raise ValueError(_DAMAGED)
    raise ValueError("it has no digest: its end is missing, or an earlier version wrote it")


# --- JSON -----------------------------------------------------------------------------------------


def pack_json(values: Mapping[str, Any]) -> bytes:
    """A JSON object as text for people, which ends in the digest of its values.

    Raises:
        TypeError, ValueError: what JSON cannot hold.
    """
    plain = json.loads(json.dumps(values, sort_keys=True, allow_nan=False))
    found = digest(json.dumps(plain).encode())
    whole = {"written by": "dd-jax", **plain, "sha256": found}
    return f"{json.dumps(whole, indent=1, ensure_ascii=False)}\n".encode()


def unpack_json(content: bytes) -> dict[str, Any]:
    """What `pack_json` was given.

    Raises:
        ValueError: the bytes are not those of `pack_json`; the text says so, in a few words.
    """
    try:
        values = json.loads(content)
        del values["written by"], values["sha256"]
        whole = pack_json(values)
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError):
        raise ValueError("it is not JSON with a digest") from None
    if content != whole:
        raise ValueError(_DAMAGED)
    return values


# --- lists of files -------------------------------------------------------------------------------


def pack_list(digests: Mapping[str, str]) -> bytes:
    """A list of files by name, as `sha256sum --check` reads it, with its own digest on top."""
    lines = "".join(f"{found}  {name}\n" for name, found in sorted(digests.items()))
    return f"{_BEGIN_LIST}{digest(lines.encode())}\n{lines}".encode()


def unpack_list(content: bytes) -> dict[str, str]:
    """The digests that `pack_list` was given, by name.

    Raises:
        ValueError: the bytes are not those of `pack_list`; the text says so, in a few words.
    """
    try:
        rows = [line.split("  ", 1) for line in content.decode().splitlines()[1:]]
        digests = {name: found for found, name in rows}
    except ValueError:
        raise ValueError("it is not a list of digests") from None
    if content != pack_list(digests):
        raise ValueError(_DAMAGED)
    return digests


# --- seen from outside ----------------------------------------------------------------------------


def owned(path: Path, content: bytes) -> bool:
    """Whether the bytes are, or were before some damage, of one of the functions above.

    Their beginning and their end are both looked at, because either may be lost.
    """
    if path.suffix == LIST:
        return not re.match(rb"[0-9a-f]{64} ", content)  # as `sha256sum` itself begins
    if path.suffix == ".npz":
        return _BEGIN_ARRAYS in content[:80] or _MARK in content[-_LENGTH:]
    return content.startswith(_BEGIN_JSON) or _END_JSON in content[-90:]


def verify(path: Path, content: bytes) -> None:
    """Check an owned file's bytes.

    Raises:
        ValueError: they are damaged; the text says how, in a few words.
    """
    if path.suffix == LIST:
        unpack_list(content)
    elif path.suffix == ".npz":
        _check_arrays(content)
    else:
        unpack_json(content)
