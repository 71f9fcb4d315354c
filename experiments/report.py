"""The main job: every figure with its data, and one self-contained page that shows them."""

import csv
import io
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, NamedTuple

import matplotlib.pyplot as plt
import numpy as np

from dd_jax.errors import MissingData
from dd_jax.sweeps import store
from experiments import figures, page, saved
from experiments.context import Context
from experiments.saved import Arrays, Saved
from experiments.schedule import Schedule

PAGE = "report.html"
Scale = Literal["quick", "full"]
Say = Callable[[Schedule, str], None]


@dataclass(frozen=True)
class Options:
    """What to make and where.

    Attributes:
        results: folder to write to; made if it is missing.
        scale: which of a figure's two configurations.
        names: figures to make; all by default.
        recompute: compute even where saved arrays would do, and keep no chunks of seeds.
    """

    results: Path
    scale: Scale = "quick"
    names: Sequence[str] = ()
    recompute: bool = False


class Job(NamedTuple):
    """A figure to make: its module and configuration, what decides its numbers, what is saved.

    Attributes:
        saved: arrays that may be drawn as they are, or None.
        expected: seconds that an earlier run took, or None.
    """

    module: ModuleType
    config: Any
    identity: dict[str, Any]
    saved: Saved | None
    expected: float | None


@dataclass(frozen=True)
class Report:
    """What a report came to.

    Attributes:
        path: the page.
        made: every figure, in the order of the page.
        claims: the audited claims, see `page.Claim`.
    """

    path: Path
    made: tuple[page.Made, ...]
    claims: tuple[page.Claim, ...]


def write_report(options: Options, say: Say) -> Report:
    """Compute or read every figure's arrays, draw them, and write the page.

    Arrays are saved with everything that decided them. Where the same would be computed again they
    are drawn as they are, so that a killed report goes on where it stopped. A figure that cannot be
    made becomes a card on the page that says why.

    Raises:
        InputError: a name that is no figure's.
    """
    names = figures.chosen(options.names)
    options.results.mkdir(parents=True, exist_ok=True)
    jobs = {name: _attempt(_prepare, name, options) for name in names}
    schedule = Schedule({name: _expected(job) for name, job in jobs.items()})
    made = []
    for name, job in jobs.items():
        made.append(_make(name, job, options, lambda text: say(schedule, text)))
        schedule.finish(name)
    say(schedule, "writing the page")
    claims = page.claims(made)
    text = page.render(made, claims, options.scale)
    store.place(options.results / PAGE, text.encode())
    return Report(options.results / PAGE, tuple(made), claims)


def _attempt(fn: Callable, *args) -> Any:
    """The function's value, or what it raised: one broken figure must not stop the others."""
    try:
        return fn(*args)
    except Exception as error:
        return error


def _prepare(name: str, options: Options) -> Job:
    module = figures.load(name)
    config = module.FULL if options.scale == "full" else module.Config()
    identity = saved.identity(Path(str(module.__file__)), config)
    found = saved.read(_arrays_file(name, options))
    fits = found is not None and found.identity == identity and not options.recompute
    return Job(module, config, identity, found if fits else None, found and found.seconds)


def _arrays_file(name: str, options: Options) -> Path:
    return options.results / f"{name}-{options.scale}.npz"


def _expected(job: Job | Exception) -> float | None:
    if isinstance(job, Exception) or job.saved is not None:
        return 0.0
    return job.expected


def _make(name: str, job: Job | Exception, options: Options, say: Callable) -> page.Made:
    """The figure with its files; a card where it cannot be made."""
    try:
        if isinstance(job, Exception):
            raise job
        return _draw(name, job, options, lambda text: say(f"{name}: {text}"))
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


def _draw(name: str, job: Job, options: Options, say: Callable[[str], None]) -> page.Made:
    module, config = job.module, job.config
    if job.saved is not None:
        say("drawn from the saved arrays, nothing has changed")
    kept = job.saved or _compute(name, job, options, say)
    figure = module.plot(config, kept.arrays)
    files = {"NPZ": _arrays_file(name, options).name}
    content = {"csv": _as_csv(kept.arrays).encode()}
    content |= {suffix: _render(figure, suffix) for suffix in ("pdf", "svg", "png")}
    for suffix, written in content.items():
        files[suffix.upper()] = f"{name}.{suffix}"
        store.place(options.results / f"{name}.{suffix}", written)
    return page.Made(
        name,
        module.TITLE,
        "computed" if job.saved is None else "saved",
        config=asdict(config),
        seconds=kept.seconds,
        revision=kept.revision,
        caption=module.caption(config, kept.arrays),
        image=page.image(content["svg"], content["png"]),
        inches=float(figure.get_figwidth()),
        files=files,
        tables=tuple(module.tables(config, kept.arrays)) if hasattr(module, "tables") else (),
        certificate=module.certificate(config) if hasattr(module, "certificate") else None,
    )


def _compute(name: str, job: Job, options: Options, say: Callable[[str], None]) -> Saved:
    """The figure's arrays, saved before anything is drawn: a broken plot loses nothing."""
    say("computing")
    start = time.monotonic()
    folder = None if options.recompute else options.results / "chunks"
    context = Context(say, folder, {"figure": name, **job.identity["config"]})
    computed = job.module.compute(job.config, context)
    arrays: Arrays = {key: np.asarray(value) for key, value in computed.items()}
    seconds = round(time.monotonic() - start, 1)
    found = Saved(arrays, job.identity, seconds, store.revision())
    saved.write(_arrays_file(name, options), found)
    return found


def _render(figure, suffix: str) -> bytes:
    # Dates would make the same run write different bytes.
    metadata = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {}}[suffix]
    buffer = io.BytesIO()
    figure.savefig(buffer, format=suffix, dpi=150, metadata=metadata)
    return buffer.getvalue()


def _as_csv(arrays: Arrays) -> str:
    """Long form: array name, index along each axis, value."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(["array", "index", "value"])
    for name, array in arrays.items():
        for index, value in np.ndenumerate(array):
            writer.writerow([name, " ".join(map(str, index)), _cell(value)])
    return buffer.getvalue()


def _cell(value: Any) -> str:
    return f"{float(value):.9g}" if np.asarray(value).dtype.kind in "biuf" else str(value)
