"""Programs that are started: what they answer, and that they end with their owner."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from dd_jax import programs

# It starts a program of its own, tells both numbers, and would go on for long.
LONG = "sleep 1000 & echo $$ $! > numbers; wait"


def numbers(folder: Path) -> list[int]:
    """The processes of `LONG`, when it has told them."""
    while not (text := (folder / "numbers").read_text() if (folder / "numbers").exists() else ""):
        time.sleep(0.01)
    return [int(number) for number in text.split()]


def lives(number: int) -> bool:
    """Whether a process still runs; one that ended and was not waited for does not."""
    try:
        state = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


def wait_for_the_end_of(found: list[int]) -> None:
    while any(map(lives, found)):
        time.sleep(0.01)


def test_a_program_answers(tmp_path):
    done = programs.run(
        ["sh", "-c", "cat; pwd; echo $GIVEN >&2; exit 7"],
        folder=tmp_path,
        variables={"GIVEN": "word"},
    )
    assert (done.returncode, done.stdout, done.stderr) == (7, f"{tmp_path}\n", "word\n")
    assert programs.run(["there-is-no-such-program"]).returncode


def test_a_program_that_takes_too_long_is_killed_with_all_that_it_started(tmp_path):
    told, seconds = tmp_path / "numbers", 0.25
    while not (told.exists() and told.stat().st_size):  # on a busy machine it begins late
        seconds *= 2
        with pytest.raises(subprocess.TimeoutExpired):
            programs.run(["sh", "-c", LONG], folder=tmp_path, seconds=seconds)
    wait_for_the_end_of(numbers(tmp_path))


def test_a_program_ends_with_its_owner_even_if_that_is_killed(tmp_path):
    code = f"from dd_jax import programs; programs.run(['sh', '-c', {LONG!r}])"
    owner = subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path)
    found = numbers(tmp_path)
    assert all(map(lives, found))
    owner.kill()
    owner.wait()
    wait_for_the_end_of(found)
