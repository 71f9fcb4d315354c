"""Compile less where a program is small and runs a few times only."""

from collections.abc import Callable

import jax

# Numbers in a database from which on optimised code pays.
LONG = 200_000


def jit(function: Callable, size: int) -> Callable:
    """`jax.jit`, without optimisation if the database holds few numbers.

    Code that is ready sooner then beats code that runs faster.
    """
    quick = {"xla_backend_optimization_level": "0"}
    return jax.jit(function, compiler_options=quick if size < LONG else None)
