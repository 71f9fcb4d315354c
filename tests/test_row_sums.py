"""Sums over rows in chunks count every row once, however the rows divide."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from problems import signed

import dd_jax as dd
from dd_jax import databases, erm
from dd_jax.row_sums import sum_over_rows, weighted

CHUNK = 32


@pytest.mark.parametrize("rows", [20, CHUNK, 3 * CHUNK, 3 * CHUNK + 4])
def test_every_row_counts_once(rows):
    values = jnp.asarray(np.arange(rows) ** 2 % 101, jnp.float32)
    counts = 1 + np.arange(rows) % 3
    database = databases.counted(values, counts)
    seen = []

    def one_chunk(records, weight):
        seen.append(records.shape[0])
        return jnp.sum(weighted(records, weight))

    found = sum_over_rows(one_chunk, database, CHUNK)
    assert float(found) == float(np.asarray(values) @ counts)
    assert max(seen) <= CHUNK


def test_chunks_have_1024_rows_where_nobody_says_otherwise():
    seen = []

    def one_chunk(records, weight):
        seen.append(records.shape[0])
        return jnp.sum(weighted(records, weight))

    assert float(sum_over_rows(one_chunk, jnp.ones(2_500), None)) == 2_500
    assert max(seen) == 1024


@pytest.mark.parametrize("function", [erm.gradient, erm.reference_gradient])
def test_memory_of_a_loss_without_linear_scores_does_not_grow_with_the_rows(function):
    problem = dd.Problem(dd.losses.bounded_network(hidden=3), 0.1, 0.4)

    def held(rows):
        database = signed(rows, 2)
        params = problem.loss.template(database)
        one = jax.jit(functools.partial(function, problem))
        return one.lower(params, database).compile().memory_analysis().temp_size_in_bytes

    assert held(16 * 1024) <= held(4 * 1024)
