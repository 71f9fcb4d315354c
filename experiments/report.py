"""The main job: every figure with its data, and one self-contained page that shows them."""

import csv
import io
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, NamedTuple

import matplotlib.pyplot as plt
import numpy as np

from dd_jax import files, sealed
from dd_jax.cli import style
from dd_jax.cli.verifying import LIST, PAGE
from dd_jax.errors import MissingData
from dd_jax.sweeps import store
from experiments import cache, figures, page, points

Scale = Literal["quick", "full"]
Say = Callable[["Schedule", str], None]
Place = Callable[[str, bytes], None]


@dataclass(frozen=True)
class Options:
    """What to make and where.

    Attributes:
        results: folder to write to; made if it is missing.
        scale: which of a figure's two configurations.
        names: figures to make; all by default.
        recompute: ignore saved arrays, and keep no chunks of seeds.
    """

    results: Path
    scale: Scale = "quick"
    names: Sequence[str] = ()
    recompute: bool = False


class Job(NamedTuple):
    """A figure to make: its module and configuration, what decides its numbers, what is saved.

    Attributes:
        saved: arrays that may be drawn as they are, or None.
        damage: why the file of arrays cannot be used, or None.
        expected: seconds that an earlier run took, or None.
    """

    module: ModuleType
    config: Any
    identity: dict[str, Any]
    saved: cache.Saved | None
    damage: str | None
    expected: float | None


@dataclass(frozen=True)
class Report:
    """The result of a report.

    Attributes:
        path: the page.
        made: every figure, in the order of the page.
        claims: the audited claims, see `page.ClaimRow`.
    """

    path: Path
    made: tuple[page.Made, ...]
    claims: tuple[page.ClaimRow, ...]


def write_report(options: Options, say: Say) -> Report:
    """Compute or read every figure's arrays, draw them, and write the page.

    Arrays are saved with everything that decided them. If nothing of that has changed, they are
    not computed again, so a killed report goes on where it stopped. A figure that cannot be made
    becomes a card on the page that says why. The digests of all other files are written with the
    page; while they are not, nothing says that these files are whole.

    Raises:
        InputError: a name that is not a figure.
    """
    names = figures.chosen(options.names)
    options.results.mkdir(parents=True, exist_ok=True)
    jobs = {name: _attempt(_prepare, name, options) for name in names}
    schedule = Schedule({name: _expected(job) for name, job in jobs.items()})
    made, digests = [], _taken_list(options.results / LIST)

    def place(file: str, content: bytes) -> None:
        digests[file] = sealed.digest(content)
        files.place(options.results / file, content)

    for name, job in jobs.items():
        made.append(_make(name, job, options, place, lambda text: say(schedule, text)))
        schedule.finish(name)
    say(schedule, "writing the page")
    claims = page.claims(made)
    text = page.render(made, claims, options.scale)
    place(PAGE, text.encode())
    files.place(options.results / LIST, sealed.pack_list(digests))
    return Report(options.results / PAGE, tuple(made), claims)


def _taken_list(path: Path) -> dict[str, str]:
    """The digests of an earlier report, whose list is removed: files are about to change."""
    try:
        found = sealed.unpack_list(path.read_bytes())
    except (FileNotFoundError, ValueError):
        found = {}
    path.unlink(missing_ok=True)
    return found


def _attempt(fn: Callable, *args) -> Any:
    """The function's value, or what it raised: one broken figure must not stop the others."""
    try:
        return fn(*args)
    except Exception as error:
        return error


def _prepare(name: str, options: Options) -> Job:
    module = figures.load(name)
    quick = getattr(module, "quick", module.Config)
    config = module.FULL if options.scale == "full" else quick()
    identity = cache.identity(Path(str(module.__file__)), config)
    damage = None
    try:
        found = cache.read(_arrays_file(name, options))
    except ValueError as error:
        found, damage = None, str(error)
    fits = found is not None and found.identity == identity and not options.recompute
    return Job(module, config, identity, found if fits else None, damage, found and found.seconds)


def _arrays_file(name: str, options: Options) -> Path:
    return options.results / f"{name}-{options.scale}.npz"


def _expected(job: Job | Exception) -> float | None:
    if isinstance(job, Exception) or job.saved is not None:
        return 0.0
    return job.expected


def _make(
    name: str, job: Job | Exception, options: Options, place: Place, say: Callable
) -> page.Made:
    """The figure with its files; a card where it cannot be made."""
    try:
        if isinstance(job, Exception):
            raise job
        return _draw(name, job, options, place, lambda text: say(f"{name}: {text}"))
    except MissingData as error:
        say(f"{name}: left out, {error}")
        return page.Made(
            name, _title(name, job), "missing data", problem=str(error), command=error.command
        )
    except Exception as error:
        say(f"{name}: FAILED\n{traceback.format_exc()}")
        problem = f"{type(error).__name__}: {error}"
        return page.Made(name, _title(name, job), "failed", problem=problem)
    finally:
        plt.close("all")


def _title(name: str, job: Job | Exception) -> str:
    return name if isinstance(job, Exception) else job.module.TITLE


def _draw(
    name: str, job: Job, options: Options, place: Place, say: Callable[[str], None]
) -> page.Made:
    module, config = job.module, job.config
    if job.damage is not None:
        say(f"{_arrays_file(name, options)} is damaged and made again: {job.damage}")
    if job.saved is not None:
        say("drawn from the saved arrays, nothing has changed")
    kept = job.saved or _compute(name, job, options, say)
    figure = module.plot(config, kept.arrays)
    named = {"NPZ": _arrays_file(name, options).name}
    content = {"csv": points.as_csv(figure).encode()}
    content |= {suffix: style.drawn(figure, suffix) for suffix in ("pdf", "svg", "png")}
    for suffix, written in content.items():
        named[suffix.upper()] = f"{name}.{suffix}"
        place(named[suffix.upper()], written)
    tables = tuple(module.tables(config, kept.arrays))
    for number, table in enumerate(tables, 1):
        named[f"Table {number}"] = f"{name}-table-{number}.csv"
        place(named[f"Table {number}"], _table_csv(table).encode())
    return page.Made(
        name,
        module.TITLE,
        "computed" if job.saved is None else "saved",
        config=asdict(config),
        seconds=kept.seconds,
        revision=kept.revision,
        caption=module.CAPTION,
        note=module.NOTE,
        image=page.image(content["svg"], content["png"]),
        inches=float(figure.get_figwidth()),
        files=named,
        tables=tables,
        certificate=module.certificate(config) if hasattr(module, "certificate") else None,
        opening=module.opening(config, kept.arrays) if hasattr(module, "opening") else (),
    )


def _compute(name: str, job: Job, options: Options, say: Callable[[str], None]) -> cache.Saved:
    """The figure's arrays, saved before anything is drawn: a broken plot loses nothing."""
    say("computing")
    start = time.monotonic()
    folder = None if options.recompute else options.results / "chunks"
    runner = cache.Runner(say, folder, {"figure": name, **job.identity["config"]})
    computed = job.module.compute(job.config, runner)
    arrays: cache.Arrays = {key: np.asarray(value) for key, value in computed.items()}
    seconds = round(time.monotonic() - start, 1)
    found = cache.Saved(arrays, job.identity, seconds, store.revision())
    cache.write(_arrays_file(name, options), found)
    return found


def _table_csv(table: page.Table) -> str:
    """The table as the page shows it; an empty cell has no value."""
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerows([table.columns, *table.rows])
    return buffer.getvalue()


# --- progress -------------------------------------------------------------------------------------


class Schedule:
    """Figures in their order, and the time that is left by what each took in an earlier run.

    A figure that never ran is expected to take the mean time of the others.
    """

    def __init__(
        self, expected: Mapping[str, float | None], clock: Callable[[], float] = time.monotonic
    ):
        """Start the clock.

        Args:
            expected: seconds by figure, 0 where nothing is computed, None where nothing is known.
            clock: seconds since some moment.
        """
        self._ahead, self._total, self._clock = dict(expected), len(expected), clock
        self._known = [seconds for seconds in expected.values() if seconds]
        self._first = self._last = clock()

    def finish(self, name: str) -> None:
        """The current figure is done; the next one begins."""
        now = self._clock()
        if self._ahead.pop(name) is None:
            self._known.append(now - self._last)
        self._last = now

    def left(self) -> float | None:
        """Expected seconds for the rest; None if nothing is known yet."""
        if not self._known and None in self._ahead.values():
            return None
        usual = float(np.mean(self._known)) if self._known else 0.0
        guesses = [usual if seconds is None else seconds for seconds in self._ahead.values()]
        running = self._clock() - self._last
        return max(guesses[0] - running, 0.0) + sum(guesses[1:]) if guesses else 0.0

    def words(self) -> str:
        """The number of the figure, the time so far and the expected time left."""
        left = round(self.left() or 0.0)
        rest = f", about {clock(left)} left" if left else ""
        number = min(self._total - len(self._ahead) + 1, self._total)
        return f"{number}/{self._total}, {clock(self._clock() - self._first)}{rest}"


def clock(seconds: float) -> str:
    """Minutes and seconds, with hours from one hour on."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
