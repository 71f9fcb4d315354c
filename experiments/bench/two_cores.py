"""Seeds spread over the devices of several cores, beside the matrix product on all of them."""

import time

import jax
import jax.numpy as jnp

import dd_jax as dd
from experiments.bench import forms
from experiments.bench.cells import Cell


def measure(cores: int, n: int = 10_000, d: int = 50, seeds: int = 1024, steps: int = 10) -> Cell:
    """Noisy steps of seeds sharded over one device for each core.

    The yardstick is the better of one product that all cores share and of one product for each.
    """
    database, _ = forms.logistic_inputs(n, d, 1)
    schedule = dd.noisy_gd.Schedule(forms.STEP_SIZE, forms.NOISE, 1.0, steps, 0)
    learn = dd.noisy_gd.mechanism(forms.logistic_problem(), schedule).learn
    mesh = dd.sharding.make_mesh(cores)

    def ours():
        return dd.over_seeds(learn, jax.random.key(0), seeds, database, mesh=mesh)

    size = max(forms.GEMM_SIZES)
    squares = jax.device_put(
        jnp.ones((cores, size, size), jnp.float32),
        jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("seeds")),
    )
    each = jax.jit(jax.vmap(jnp.matmul))
    functions = forms.matrix_products() | {"ours": ours, "each": lambda: each(squares, squares)}
    seconds = forms.best_times(functions, repeats=7, clock=time.perf_counter)
    gemm = max(forms.gemm_rate(seconds), cores * 2 * size**3 / seconds["each"])
    return Cell(
        loss="logistic, clipped",
        n=n,
        d=d,
        seeds=seeds,
        cores=cores,
        gemm_ratio=4 * n * d * seeds * steps / seconds["ours"] / gemm,
        targets={"gemm_ratio": 0.85},
    )
