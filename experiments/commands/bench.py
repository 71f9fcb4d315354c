"""`python -m experiments bench`: speed as ratios to this machine's matrix product."""

import json
import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from dd_jax import programs
from dd_jax.cli.output import print_json, print_table, say
from dd_jax.errors import InputError

# This package is not installed: another process finds it here.
CHECKOUT = Path(__file__).parents[2]
# How the libraries that NumPy may be built with are told to use one thread.
BLAS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
ONE_THREAD: dict[str, str] = dict.fromkeys(BLAS, "1")
COLUMNS = {
    "of GEMM": "gemm_ratio",
    "of slopes": "elementwise_ratio",
    "× grad of mean": "grad_of_mean_ratio",
    "× vmap(grad)": "vmap_grad_ratio",
    "× NumPy": "numpy_ratio",
    "× PyTorch": "torch_ratio",
    "× PyTorch, no clip": "torch_unclipped_ratio",
    "bytes": "peak_bytes",
}
# What is printed of a store's life: in words, and what its number is multiplied with.
LIFE = {
    "steps": ("steps of a deletion, without a store: ms", 1e3),
    "first": ("a deletion, median of the first 100: ms", 1e3),
    "last": ("the same of the last 100 of 1,000: ms", 1e3),
    "last_over_first": ("last over first", 1),
    "run_of_many": ("a run for 100 owners: ms", 1e3),
    "memory_first": ("memory in the first 100: MB", 1),
    "memory_last": ("memory after 1,000: MB", 1),
    "store": ("the store, with 2,000 receipts: MB", 1),
    "open": ("opening it: s", 1),
    "verify": ("verifying it: s", 1),
}


@dataclass(frozen=True)
class Config:
    """Time clipped gradients for many seeds, and whole streams, as ratios taken in one run.

    Ratios are best of several; absolute times are not kept, because they describe the machine and
    its other users more than the code. A number that is worse by more than 15% than the median of
    the last five runs on this kind of processor is listed. The columns of PyTorch need the extra
    `bench`.
    """

    cores: int = 1
    """With more than one core, measure only the cell that spreads its seeds over as many devices.
    A run on one core also measures that cell, with two."""
    quick: bool = False
    """Measure only the kernel, without streams and growth."""
    curator: bool = False
    """Instead: what a deletion of `dd-jax curate` costs beside its steps, in a thousand of them, in
    milliseconds of processor time. About six minutes."""
    history: Path = Path("results/bench.jsonl")
    """File with past results."""
    figure: Path = Path("results/bench.png")
    """File for the figure."""
    json: bool = False
    """Print one JSON object."""


def main(config: Config) -> int:
    """Run the benchmark, print its tables and save its figure."""
    if config.curator:
        return _lives(config)
    available = _available(config.cores)
    for option, path in (("--history", config.history), ("--figure", config.figure)):
        _check_file(option, path)
    if config.cores > 1:
        _pin(available, config.cores)
        from experiments.bench.run import sharded

        print_json(sharded(config.cores))
        return 0
    _load_numpy_with_one_thread()
    # Before this process is pinned to one core, because a child process inherits the pinning.
    apart = _two_cores() if len(available) > 1 else ()
    _pin(available, 1)
    from experiments.bench import run

    past = run.past_runs(config.history)
    result = run.benchmark(
        quick=config.quick,
        with_cells=apart,
        progress=say,
    )
    result["regressions"] = run.regressions(result, past)
    run.remember(config.history, result)
    run.draw(result, config.figure)
    if config.json:
        print_json(result)
    else:
        _print(result)
        print(f"Figure: {config.figure}. Past runs: {config.history}.")
    return 0


def _lives(config: Config) -> int:
    """A store in each arithmetic, in a folder that is removed."""
    from experiments.bench import curator

    lives = {}
    for arithmetic in ("exact", "fast"):
        with tempfile.TemporaryDirectory() as folder:
            lives[arithmetic] = curator.life(Path(folder), arithmetic, say=say)
    if config.json:
        print_json(lives)
        return 0
    rows = [
        (words, *(life[key] * scale for life in lives.values()))
        for key, (words, scale) in LIFE.items()
    ]
    print_table("20,000 rows of 30 columns", ["", *lives], rows)
    return 0


def _load_numpy_with_one_thread() -> None:
    """Start the program again, unless NumPy was loaded with one thread.

    NumPy counts the cores when it is loaded, which is before this process is held to one of them.
    Its threads would then wait for each other in a loop, and the time would count as NumPy's.
    """
    if any(os.environ.get(name) != value for name, value in ONE_THREAD.items()):
        os.environ.update(ONE_THREAD)
        os.execv(sys.executable, [sys.executable, "-m", "experiments", *sys.argv[1:]])


def _check_file(option: str, path: Path) -> None:
    """Refuse a file that cannot be written, before minutes of measuring."""
    if path.is_dir():
        raise InputError(f"{option} {path} is a folder; name a file.")
    above = next(folder for folder in path.absolute().parents if folder.exists())
    if not above.is_dir() or not os.access(path if path.exists() else above, os.W_OK):
        raise InputError(f"{option} {path} cannot be written; name another file.")


def _available(cores: int) -> list[int]:
    if not hasattr(os, "sched_setaffinity"):
        raise InputError("bench pins itself to cores, which this system cannot do; use Linux.")
    available = sorted(os.sched_getaffinity(0))
    if not 1 <= cores <= len(available):
        raise InputError(f"--cores {cores}: this process may use 1 to {len(available)}.")
    return available


def _pin(available: list[int], cores: int) -> None:
    """Hold the process to some cores; must be done before JAX starts its threads."""
    os.sched_setaffinity(0, available[-cores:])
    flag = (
        "--xla_cpu_multi_thread_eigen=false"
        if cores == 1
        else f"--xla_force_host_platform_device_count={cores}"
    )
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flag}".strip()


def _two_cores() -> tuple[dict, ...]:
    """The cell with two cores, measured by a process that has two devices."""
    say("seeds over 2 cores …")
    command = [sys.executable, "-m", "experiments", "bench", "--cores", "2", "--json"]
    done = programs.run(command, folder=CHECKOUT)
    if done.returncode:
        raise RuntimeError(f"the cell with two cores was not measured: {done.stderr}")
    return tuple(json.loads(done.stdout)["cells"])


def _print(result: dict) -> None:
    from experiments.bench.run import cell_name
    from experiments.bench.streams import LIMITS

    rows = [
        (cell_name(cell), *(_with_target(cell, key) for key in COLUMNS.values()))
        for cell in result["cells"]
    ]
    print_table("Ratios of one run (in brackets: wanted)", ["setting", *COLUMNS], rows)
    others = [(name, now, LIMITS.get(name)) for name, now in result.get("ratios", {}).items()]
    others += [
        (f"exponent of time in {axis}", found["time_exponent"], None)
        for axis, found in result.get("growth", {}).items()
    ]
    if others:
        print_table("Streams and growth", ["ratio", "now", "wanted: at most"], others)
    worse = [(name, *found.values()) for name, found in result["regressions"].items()]
    if worse:
        print_table("WORSE by more than 15%", ["number", "now", "median of past runs"], worse)
    else:
        print("No number is worse by more than 15% than the median of past runs.")


def _with_target(cell: dict, key: str) -> str | float | None:
    value, least = cell[key], cell["targets"].get(key)
    return value if value is None or least is None else f"{value:.4g} [{least:g}]"
