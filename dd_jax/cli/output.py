"""What commands say: JSON or text, progress, and in one line what went wrong.

Exit statuses: 0 success, 1 a claim was refuted, 2 bad input, 3 an error of the program itself, or a
lost process of a distributed job.
"""

import json
import math
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


def say(text: str) -> None:
    """Progress goes to standard error, so that a pipe gets the result alone."""
    print(text, file=sys.stderr, flush=True)


@contextmanager
def progress(label: str, *, stream=None) -> Iterator[Callable[[int, int], None]]:
    """A report of (done, total) on standard error, which says at once that the work has begun.

    Compiling takes a while and is silent, so the first line comes before it.
    """
    stream = sys.stderr if stream is None else stream
    if not stream.isatty():
        from dd_jax.sweeps import progress_lines  # not before a command has started JAX

        def line(text: str) -> None:
            print(text, file=stream, flush=True)

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
    """The exit status of a piece of work; what went wrong is said in one line."""
    try:
        return work()
    except InputError as error:
        print(f"{label}: {error}", file=sys.stderr)
        return BAD_INPUT
    except BrokenPipeError:
        raise  # the reader went away, which is not bad input: see `dd_jax.cli.entry`
    except OSError as error:
        print(f"{label}: {error}; name another place.", file=sys.stderr)
        return BAD_INPUT
    except MemoryError:
        print(f"{label}: out of memory; ask for a smaller run.", file=sys.stderr)
        return BAD_INPUT
    except ProcessLost as error:
        remedy = "start all processes again: complete chunks are kept"
        print(f"{label}: {error}; {remedy}.", file=sys.stderr)
        return INTERNAL_ERROR
    except Exception as error:
        # Status 1 would say that a claim was refuted.
        traceback.print_exc()
        print(
            f"{label}: internal error, no claim was judged: {type(error).__name__}: {error}",
            file=sys.stderr,
        )
        return INTERNAL_ERROR
