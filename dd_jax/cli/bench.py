"""`dd-jax bench`: speed as ratios to this machine's matrix product."""

import os
import sys
from dataclasses import dataclass
from pathlib import Path

from dd_jax.cli.output import print_json, print_table
from dd_jax.errors import InputError

COLUMNS = {
    "of GEMM": "gemm_ratio",
    "of slopes": "elementwise_ratio",
    "× grad of mean": "grad_of_mean_ratio",
    "× vmap(grad)": "vmap_grad_ratio",
    "× NumPy": "numpy_ratio",
    "× PyTorch": "torch_ratio",
    "bytes": "peak_bytes",
}


@dataclass(frozen=True)
class Config:
    """Time clipped gradients for many seeds, and whole streams, as ratios taken in one run.

    Ratios are best of several; absolute times are not kept, because they describe the machine and
    its other users more than the code. The column of PyTorch needs the extra `bench`.
    """

    cores: int = 1
    """Cores to use; with more than one, seeds are spread over as many devices."""
    quick: bool = False
    """The kernel's cells alone, without streams and growth."""
    history: Path = Path("results/bench.jsonl")
    """File that past results are kept in; the last one is shown beside this one."""
    json: bool = False
    """Print one JSON object."""


def main(config: Config) -> int:
    """Run the benchmark and print its tables."""
    _pin(config.cores)
    from experiments.bench.run import benchmark, remember

    result = benchmark(
        cores=config.cores,
        quick=config.quick,
        progress=lambda text: print(text, file=sys.stderr),
    )
    last = remember(config.history, result)
    if config.json:
        print_json(result)
    else:
        _print(result, last)
    return 0


def _pin(cores: int) -> None:
    """Hold the process to some cores; must be done before JAX starts its threads."""
    if not hasattr(os, "sched_setaffinity"):
        raise InputError("bench pins itself to cores, which this system does not offer; use Linux.")
    available = sorted(os.sched_getaffinity(0))
    if not 1 <= cores <= len(available):
        raise InputError(f"--cores {cores}: this machine lets us use 1 to {len(available)}.")
    os.sched_setaffinity(0, available[:cores])
    flag = (
        "--xla_cpu_multi_thread_eigen=false"
        if cores == 1
        else f"--xla_force_host_platform_device_count={cores}"
    )
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flag}".strip()


def _print(result: dict, last: dict | None) -> None:
    cores = f"{result['cores']} core" + "s" * (result["cores"] > 1)
    title = f"GEMM: {result['gemm_gflops']:.0f} Gflop/s on {cores}"
    rows = [
        (f"{_name(cell)}", *(cell[key] for key in COLUMNS.values())) for cell in result["cells"]
    ]
    if rows:
        print_table(title, ["setting", *COLUMNS], rows)
    numbers = _numbers(result)
    before = {} if last is None else _numbers(last)
    since = "no earlier run" if last is None else f"run of {last['date']}"
    compared = [(name, value, before.get(name)) for name, value in numbers.items()]
    print_table(title, ["ratio", "now", since], compared)


def _name(cell: dict) -> str:
    return f"{cell['loss']}, n={cell['n']:,}, d={cell['d']}, S={cell['seeds']:,}"


def _numbers(result: dict) -> dict[str, float]:
    """Everything that a later run is compared with, by name."""
    found = {f"of GEMM: {_name(cell)}": cell["gemm_ratio"] for cell in result["cells"]}
    found |= result.get("ratios", {})
    found |= {f"exponent of time in {name}": e for name, e in result.get("growth", {}).items()}
    if "sharded_gemm_ratio" in result:
        found["seeds over devices, of GEMM"] = result["sharded_gemm_ratio"]
    return found
