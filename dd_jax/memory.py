"""How much memory a process may still use, and a refusal of work that would need more.

Whoever chooses the size of some work estimates its bytes from the shapes alone and calls `require`
before anything is read or computed. Without this the system ends the process in the middle, and
others with it.
"""

import math
import re
from pathlib import Path

from dd_jax.errors import InputError

# Files that say how much memory a container may use and uses, in both versions of Linux's groups.
_GROUPS = (
    ("sys/fs/cgroup", "memory.max", "memory.current"),
    ("sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
)


def available(root: Path = Path("/")) -> float:
    """Bytes that can be used without swapping: of the machine and of every group around us.

    Infinite where the system does not say.

    Args:
        root: where `proc` and `sys` are.
    """
    found = re.search(r"MemAvailable:\s+(\d+) kB", _text(root / "proc/meminfo"))
    least = math.inf if found is None else 1024.0 * int(found[1])
    lines = _text(root / "proc/self/cgroup").splitlines()
    own = {Path(line.rpartition(":")[2].lstrip("/")) for line in lines} | {Path()}
    for folder, most, used in _GROUPS:
        for group in {around for one in own for around in (one, *one.parents)}:
            place = root / folder / group
            limit, usage = (_text(place / name).strip() for name in (most, used))
            if limit.isdecimal() and usage.isdecimal():
                # Cached files count as used, and are dropped when memory is needed.
                cached = re.search(
                    r"^(?:total_)?inactive_file (\d+)", _text(place / "memory.stat"), re.M
                )
                free = int(limit) - int(usage) + (0 if cached is None else int(cached[1]))
                least = min(least, max(0.0, free))
    return least


def require(needed: float, what: str, remedy: str) -> None:
    """Refuse work that needs more memory than there is.

    Args:
        needed: an estimate, in bytes.
        what: the work, with its sizes; the beginning of a sentence.
        remedy: what makes it smaller; the end of a sentence.

    Raises:
        InputError: more is needed than is available; the message has both numbers.
    """
    free = available()
    if needed > free:
        raise InputError(
            f"{what} would need about {_gigabytes(needed)} of memory, and {_gigabytes(free)} are "
            f"available; {remedy}."
        )


def _gigabytes(size: float) -> str:
    return f"{size / 1e9:,.3g} GB" if size < 1e13 else f"{size / 1e12:,.0f} TB"


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError):
        return ""
