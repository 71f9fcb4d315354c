"""What commands say: JSON or text, progress, and in one line what went wrong.

Exit statuses: 0 success, 1 a claim was refuted, 2 bad input, 3 an error of the program itself, or a
lost process of a distributed job.
"""

import contextlib
import json
import math
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from dd_jax.errors import InputError, ProcessLost

BAD_INPUT, INTERNAL_ERROR = 2, 3


def print_json(values: Mapping[str, Any]) -> None:
    """One JSON object on standard output."""
    print(json_text(values))


def json_text(values: Mapping[str, Any]) -> str:
    """One JSON object; NaN and infinity become null, as JSON has neither."""
    return json.dumps(_plain(values), ensure_ascii=False, indent=2)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """A table for people; plain text when the output is not a terminal."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index == 0 else "right", overflow="fold")
    for row in rows:
        table.add_row(*(number(cell) for cell in row))
    Console(width=None if sys.stdout.isatty() else 120).print(table)


def number(value: Any) -> str:
    """Four significant digits for floats, whole numbers in full, text as it is, - for None."""
    if value is None:
        return "-"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.4g}"


def count(number: int, noun: str) -> str:
    """ "1 seed", "2 seeds"."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def say(text: str, stream=None) -> None:
    """Progress goes to standard error, so that a pipe gets the result alone.

    Nobody can be told that it cannot be written, and nothing is lost with it.
    """
    with contextlib.suppress(OSError, ValueError):
        print(text, file=sys.stderr if stream is None else stream, flush=True)


def prepare_streams() -> None:
    """Make the standard streams fit for a program, whatever it was started with.

    A closed one would give its number to the next file, and libraries would write into that file.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            # Standard output that can only be read: what is printed is an error, not lost.
            nowhere = os.open(os.devnull, os.O_WRONLY if name == "stderr" else os.O_RDONLY)
            if nowhere != number:
                os.dup2(nowhere, number)
                os.close(nowhere)
            mode = "r" if name == "stdin" else "w"
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # pyright: ignore[reportAttributeAccessIssue]


@contextmanager
def progress(label: str, *, stream=None) -> Iterator[Callable[[int, int], None]]:
    """A report of (done, total) on standard error, which says at once that the work has begun.

    Compiling takes a while and is silent, so the first line comes before it.
    """
    stream = sys.stderr if stream is None else stream
    if not stream.isatty():
        from dd_jax.sweeps import progress_lines  # not before a command has started JAX

        def line(text: str) -> None:
            say(text, stream)

        line(f"{label}: compiling …")
        yield progress_lines(label, line)
        return
    from rich import progress as bars
    from rich.console import Console

    columns = (
        bars.TextColumn("{task.description}"),
        bars.BarColumn(),
        bars.MofNCompleteColumn(),
        bars.TimeElapsedColumn(),
        bars.TextColumn("left"),
        bars.TimeRemainingColumn(),
    )
    with bars.Progress(*columns, console=Console(file=stream)) as bar:
        task = bar.add_task(f"{label}: compiling …", total=None)
        yield lambda done, total: bar.update(
            task, description=label, completed=done, total=total, refresh=True
        )


def reported(label: str, work: Callable[[], int]) -> int:
    """The exit status of a piece of work; what went wrong is said in one line.

    What it printed is on its way when this returns: a full disk is an error like any other.
    """
    try:
        return _flushed(work)
    except InputError as error:
        say(f"{label}: {error}")
        return BAD_INPUT
    except BrokenPipeError:
        raise  # the reader went away, which is not bad input: see `dd_jax.cli.entry`
    except OSError as error:
        say(f"{label}: {error}; name another place.")
        return BAD_INPUT
    except MemoryError:
        say(f"{label}: out of memory; ask for a smaller run.")
        return BAD_INPUT
    except ProcessLost as error:
        remedy = "start all processes again: complete chunks are kept"
        say(f"{label}: {error}; {remedy}.")
        return INTERNAL_ERROR
    except Exception as error:
        # Status 1 would say that a claim was refuted.
        say(traceback.format_exc().rstrip())
        say(f"{label}: internal error, no claim was judged: {type(error).__name__}: {error}")
        return INTERNAL_ERROR


def _flushed(work: Callable[[], int]) -> int:
    try:
        status = work()
    except SystemExit as done:  # the parser has printed its help
        status = int(done.code or 0)
    sys.stdout.flush()
    return status
