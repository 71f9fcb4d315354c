"""Processes of `test_files` that write; they never load JAX, so that they start quickly.

`python tests/file_writers.py group FOLDER NAME TURNS` replaces a group of files again and again;
`hang FOLDER BELOW` is in the middle of writing until it is killed. Both print a line at the start.
"""

import signal
import sys
from pathlib import Path

from dd_jax import files

NAMES = ("run.json", "run.csv", "certificate.json")


def contents(writing: object) -> dict[str, bytes]:
    """Files that all say which writing they are of."""
    return {name: f"{writing} {name} ".encode() * 2_000 for name in NAMES}


def group(folder: str, name: str, turns: str) -> None:
    print("ready", flush=True)
    for turn in range(int(turns)):
        files.place_together(Path(folder), "run", contents(f"{name}.{turn}"))


def hang(folder: str, below: str) -> None:
    a, b = Path(folder), Path(below)
    parts = (files.whole_file(a / "a"), files.whole_file(b / "b"), files.temporary_folder(a))
    with parts[0], parts[1], parts[2] as made:
        (made / "half").touch()
        print("ready", flush=True)
        signal.pause()


if __name__ == "__main__":
    {"group": group, "hang": hang}[sys.argv[1]](*sys.argv[2:])
