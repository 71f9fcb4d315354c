"""Sums over rows in chunks count every row once, however the rows divide."""

import jax.numpy as jnp
import numpy as np
import pytest

from dd_jax import databases
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
