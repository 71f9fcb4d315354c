"""`dd-jax bench`: speed as ratios to this machine's matrix product."""

import os
import sys
from dataclasses import dataclass

from dd_jax.cli.output import print_json, print_table
from dd_jax.errors import InputError


@dataclass(frozen=True)
class Config:
    """Time one clipped gradient for many seeds and set it beside the machine's own matrix product.

    Ratios are best of several in one run; absolute times are not kept, because they describe the
    machine and its other users more than the code.
    """

    cores: int = 1
    """Cores to use."""
    json: bool = False
    """Print one JSON object."""


def main(config: Config) -> int:
    """Run the benchmark and print its table."""
    if not hasattr(os, "sched_setaffinity"):
        raise InputError("bench pins itself to cores, which this system does not offer; use Linux.")
    available = sorted(os.sched_getaffinity(0))
    if not 1 <= config.cores <= len(available):
        raise InputError(f"--cores {config.cores}: this machine lets us use 1 to {len(available)}.")
    # Both must be set before JAX starts its threads.
    os.sched_setaffinity(0, available[: config.cores])
    if config.cores == 1:
        single = "--xla_cpu_multi_thread_eigen=false"
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {single}".strip()
    from experiments.benchmark import benchmark

    result = benchmark(cores=config.cores, progress=lambda text: print(text, file=sys.stderr))
    if config.json:
        print_json(result)
        return 0
    columns = ["setting", "of GEMM", "× grad of mean", "× vmap(grad)", "× NumPy"]
    rows = [
        (
            f"{cell['loss']}, n={cell['n']:,}, d={cell['d']}, S={cell['seeds']:,}",
            f"{cell['gemm_ratio']:.0%}",
            cell["grad_of_mean_ratio"],
            "–" if cell["vmap_grad_ratio"] is None else cell["vmap_grad_ratio"],
            cell["numpy_ratio"],
        )
        for cell in result["cells"]
    ]
    cores = f"{result['cores']} core" + "s" * (result["cores"] > 1)
    print_table(f"GEMM: {result['gemm_gflops']:.0f} Gflop/s on {cores}", columns, rows)
    return 0
