"""How far a run is and how long it will take: a bar on a terminal, plain lines in a pipe."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Tick = Callable[[int, int], None]

# Share of the newest step in the pace: chunks found on disk take no time, and are soon forgotten.
_NEWEST = 0.5
_SECONDS_BETWEEN_LINES = 1.0


def lines(label: str, say: Callable[[str], None]) -> Tick:
    """A report of (done, total) in lines of text, at most one in a second, the last one always."""
    last_line = last_tick = start = time.monotonic()
    last_done, pace = 0, 0.0

    def tick(done: int, total: int) -> None:
        nonlocal last_line, last_tick, last_done, pace
        now = time.monotonic()
        newest = (now - last_tick) / max(done - last_done, 1)
        pace = _NEWEST * newest + (1 - _NEWEST) * pace if last_done else newest
        last_tick, last_done = now, done
        if now - last_line < _SECONDS_BETWEEN_LINES and done < total:
            return
        last_line = now
        left = (
            f"about {pace * (total - done):.0f} s left" if done < total else f"{now - start:.0f} s"
        )
        say(f"{label}: {done:,} of {total:,} runs, {left}")

    return tick


@contextmanager
def shown(label: str, *, stream=None) -> Iterator[Tick]:
    """A report of (done, total) on standard error, which says at once that the work has begun.

    Compiling takes a while and is silent, so the first line comes before it.
    """
    stream = sys.stderr if stream is None else stream
    if not stream.isatty():

        def say(text: str) -> None:
            print(text, file=stream, flush=True)

        say(f"{label}: compiling …")
        yield lines(label, say)
        return
    from rich import progress
    from rich.console import Console

    columns = (
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TimeElapsedColumn(),
        progress.TextColumn("left"),
        progress.TimeRemainingColumn(),
    )
    with progress.Progress(*columns, console=Console(file=stream)) as bar:
        task = bar.add_task(f"{label}: compiling …", total=None)
        yield lambda done, total: bar.update(
            task, description=label, completed=done, total=total, refresh=True
        )
