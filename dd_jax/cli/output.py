"""What commands say: JSON or text, progress, and in one line what went wrong.

Exit statuses: 0 success, 1 a claim was refuted, 2 bad input, 3 an error of the program itself, or a
lost process of a distributed job, 141 the reader of the output went away.
"""

import contextlib
import json
import math
import os
import re
import signal
import sys
import textwrap
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from dd_jax.cli import symbols
from dd_jax.errors import InputError, ProcessLost

BAD_INPUT, INTERNAL_ERROR = 2, 3
# As of every program that a closed pipe ends, such as `| head`; 0 would say that all is well.
CLOSED_PIPE = 128 + signal.SIGPIPE


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
    """A table for people, at most 80 columns wide, with what the symbols of its headings mean."""
    cells = [[number(cell) for cell in row] for row in rows]
    if title:
        print(textwrap.fill(title, symbols.WIDTH))
    print("\n".join(table_lines(columns, cells)))
    for line in symbols.explained("; ".join(columns)):
        print(line)


_GAP = 2  # spaces between columns
_WORD = re.compile(r"[^\W\d]{2}")
_NARROW = 16  # a column of text is not made narrower than this, or than its longest word


def table_lines(columns: Sequence[str], cells: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table; where it is too wide, its text is broken, and then its columns.

    Columns that do not fit follow below, behind the first column again.
    """
    natural = [_width(column, [row[i] for row in cells]) for i, column in enumerate(columns)]
    widths = _narrowed(natural, cells)
    if _whole(widths) > symbols.WIDTH:  # text is broken only where that makes everything fit
        room = symbols.WIDTH - natural[0] - _GAP
        widths = [natural[0], *(min(width, room) for width in natural[1:])]
    lines, first = [], 0
    while first < len(columns):
        part, room = ([] if first == 0 else [0]), symbols.WIDTH
        room -= sum(widths[i] + _GAP for i in part)
        while first < len(columns) and (widths[first] <= room or not part or part == [0]):
            part.append(first)
            room -= widths[first] + _GAP
            first += 1
        lines += [""] * bool(lines) + _block(part, widths, columns, cells)
    return lines


def _whole(widths: Sequence[int]) -> int:
    return sum(widths) + _GAP * (len(widths) - 1)


def _narrowed(widths: Sequence[int], cells: Sequence[Sequence[str]]) -> list[int]:
    """Widths that fit, if breaking the text of the widest columns is enough."""
    found = list(widths)
    least = [
        max([_NARROW, *(len(word) for row in cells for word in row[i].split())])
        for i in range(len(widths))
    ]
    while _whole(found) > symbols.WIDTH:
        spare = [width - low for width, low in zip(found, least, strict=True)]
        if max(spare) <= 0:
            break
        found[spare.index(max(spare))] -= 1
    return found


def _width(column: str, cells: Sequence[str]) -> int:
    """The room that a column needs, whose heading may be broken between words."""
    return max(len(line) for text in (*column.split(), *cells, "-") for line in text.split("\n"))


def _block(
    part: Sequence[int],
    widths: Sequence[int],
    columns: Sequence[str],
    cells: Sequence[Sequence[str]],
) -> list[str]:
    """Some of the columns: headings, a rule, rows."""
    found: list[str] = []
    texts_in = {i for i in part if i == 0 or any(_WORD.search(row[i]) for row in cells)}
    for number_of_row, row in enumerate((columns, *cells)):
        broken = {
            i: [
                part
                for line in row[i].split("\n")
                for part in textwrap.wrap(line, widths[i]) or [""]
            ]
            for i in part
        }
        height = max(map(len, broken.values()))
        for line in range(height):
            texts = []
            for i in part:
                lines = broken[i]
                if number_of_row == 0:  # headings stand on the rule
                    lines = [""] * (height - len(lines)) + lines
                text = lines[line] if line < len(lines) else ""
                texts.append(text.ljust(widths[i]) if i in texts_in else text.rjust(widths[i]))
            found.append((" " * _GAP).join(texts).rstrip())
        if number_of_row == 0:
            found.append("─" * (sum(widths[i] for i in part) + _GAP * (len(part) - 1)))
    return found


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
    _SILENT_SINCE[0] = time.monotonic()
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


# When something was last said, for `heartbeat`.
_SILENT_SINCE = [time.monotonic()]


@contextmanager
def heartbeat(label: str, *, after: float = 2.0) -> Iterator[None]:
    """A line on standard error whenever a command was silent for so many seconds, then twice that.

    It says that the command is alive, not how long it will take: work that can be counted reports
    by `progress`.
    """
    start, done = time.monotonic(), threading.Event()
    _SILENT_SINCE[0] = start

    def beat() -> None:
        wait = after
        while not done.wait(min(wait, 0.5)):
            now = time.monotonic()
            if now - _SILENT_SINCE[0] >= wait:
                say(f"{label}: still working, {now - start:.0f} s")
                wait *= 2

    watcher = threading.Thread(target=beat, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()


@contextmanager
def progress(
    label: str, *, things: str = "runs", stream=None
) -> Iterator[Callable[[int, int], None]]:
    """A report of (done, total) things on standard error; says at once that the work has begun.

    Compiling takes a while and is silent, so the first line comes before it.
    """
    stream = sys.stderr if stream is None else stream
    if not stream.isatty():
        from dd_jax.sweeps import progress_lines  # not before a command has started JAX

        def line(text: str) -> None:
            say(text, stream)

        line(f"{label}: compiling …")
        yield progress_lines(label, line, things)
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
        _SILENT_SINCE[0] = math.inf  # a bar moves by itself
        yield lambda done, total: bar.update(
            task, description=label, completed=done, total=total, refresh=True
        )
    _SILENT_SINCE[0] = time.monotonic()


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
        return CLOSED_PIPE
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
