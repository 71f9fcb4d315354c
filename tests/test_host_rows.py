"""Rows that stay on the host: the same numbers, in memory that does not grow with n."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from problems import signed

import dd_jax as dd
from dd_jax import databases, erm, host_rows
from dd_jax.host_rows import HostRows
from dd_jax.types import ANY_RECORD

ROWS, DIM, CHUNK = 70, 3, 16
LOSS = dd.losses.logistic()
PROBLEM = dd.Problem(LOSS, 0.1, 0.4, row_chunk=CHUNK)
CURATOR = dd.noisy_gd.mechanism(PROBLEM, dd.noisy_gd.Schedule(0.5, 1e-3, 0.1, 3, 2))


@pytest.fixture(scope="module")
def device_rows():
    return signed(ROWS, DIM)


@pytest.fixture
def host(device_rows, tmp_path):
    """Features in a memory-mapped file, labels in memory."""
    np.save(tmp_path / "features.npy", np.asarray(device_rows.features))
    features = np.load(tmp_path / "features.npy", mmap_mode="r")
    return dd.on_host(dd.Labelled(features, np.asarray(device_rows.label)))


def test_gradients_and_objectives_are_those_of_the_rows(host, device_rows):
    theta = jnp.array([[1.0, -2.0, 0.5], [0.3, 0.0, -1.0]])
    for function in (erm.gradient, erm.reference_gradient, erm.objective):
        one = jax.jit(lambda theta, rows, function=function: function(PROBLEM, theta, rows))
        found, expected = one(theta[0], host), one(theta[0], device_rows)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-7)
    many = jax.jit(jax.vmap(erm.gradient, in_axes=(None, 0, None)))
    expected = many(PROBLEM, theta, device_rows)
    np.testing.assert_allclose(many(PROBLEM, theta, host), expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("clip_norm", [0.1, 0.4])
def test_clipping_counts_the_intercept(host, device_rows, clip_norm):
    """Norms of rows that are fetched have the constant 1 as well."""
    problem = dd.Problem(dd.losses.logistic(intercept=True), 0.1, clip_norm, row_chunk=CHUNK)
    theta = jnp.array([1.0, -2.0, 0.5, 0.3])
    expected = erm.reference_gradient(problem, theta, device_rows)
    np.testing.assert_allclose(erm.gradient(problem, theta, host), expected, rtol=1e-5, atol=1e-7)


def test_an_edit_out_of_range_changes_nothing(host, device_rows):
    """Its row is not asked of the host, which has none."""
    edit = dd.deletion(LOSS, device_rows, [3, ROWS])
    theta = jnp.array([1.0, -2.0, 0.5])
    expected = dd.apply_edit(device_rows, dd.deletion(LOSS, device_rows, [3]))
    for rows in (host, databases.counted(device_rows, np.ones(ROWS, int))):
        found = dd.apply_edit(rows, edit)
        jax.tree.map(np.testing.assert_array_equal, dd.expand(found), expected)
        np.testing.assert_allclose(
            erm.gradient(PROBLEM, theta, found),
            erm.gradient(PROBLEM, theta, expected),
            rtol=1e-5,
            atol=1e-6,
        )


def test_learning_and_deleting_under_drive(host, device_rows):
    def respond(request, release):
        del release
        return dd.deletion(LOSS, device_rows, [3 * request])

    run = [
        dd.drive(jax.random.key(0), CURATOR, respond, rows, num_requests=2)[1]
        for rows in (host, device_rows)
    ]
    np.testing.assert_allclose(run[0].releases, run[1].releases, rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(run[0].edits.index, run[1].edits.index)
    assert run[0].projected_initially == 0


def test_a_driven_stream_can_be_resumed(host, device_rows):
    """Slots of the first part stay, those of the second lie over them."""
    edits = [dd.deletion(LOSS, device_rows, [row]) for row in (3, 6)]
    state, _ = dd.drive(jax.random.key(1), CURATOR, lambda *_: edits[0], host, num_requests=1)
    after, _ = dd.drive(
        jax.random.key(2), CURATOR, lambda *_: edits[1], host, num_requests=1, resume=state
    )
    rows = databases.rows_of(after.database, jnp.array([3, 6, 7]))
    np.testing.assert_array_equal(rows.features[:2], 0)
    np.testing.assert_array_equal(rows.features[2], device_rows.features[7])


def test_the_device_never_holds_the_rows():
    n, dim = 4_096, 8
    rows = dd.on_host(dd.Labelled(np.ones((n, dim), np.float32), np.ones(n, np.float32)))
    learn = jax.jit(CURATOR.learn).lower(jax.random.key(0), rows).compile().memory_analysis()
    held = learn.argument_size_in_bytes + learn.output_size_in_bytes + learn.temp_size_in_bytes
    assert held < 4 * n, "less than one column, let alone n · d"


def test_rows_outside_the_domain_are_refused_or_moved(device_rows):
    features = np.array(device_rows.features)
    features[60] *= 100
    wild = dd.on_host(dd.Labelled(features, np.asarray(device_rows.label)))
    with pytest.raises(dd.InputError, match="in the rows from 0 on: row 60 has feature norm"):
        databases.check(LOSS.domain, wild)
    projected, outside = databases.project(LOSS.domain, wild)
    assert int(outside) == 1
    assert isinstance(projected, HostRows)
    norm = np.linalg.norm(projected.rows(jnp.array([60])).features)
    assert 0.99 < norm <= 1


def test_every_block_of_rows_is_looked_at(device_rows, monkeypatch):
    monkeypatch.setattr(host_rows, "CHECKED_ROWS", 16)
    features = np.array(device_rows.features)
    features[60] *= 100
    wild = dd.on_host(dd.Labelled(features, np.asarray(device_rows.label)))
    with pytest.raises(dd.InputError, match="in the rows from 48 on: row 12 has feature norm"):
        databases.check(LOSS.domain, wild)
    assert int(databases.project(LOSS.domain, wild)[1]) == 1
    features[60] = np.nan
    with pytest.raises(
        dd.InputError, match="from 48 on: the database holds NaN or infinity in row 12"
    ):
        databases.check(ANY_RECORD, wild)


def test_arrays_of_the_device_are_refused(device_rows):
    with pytest.raises(dd.InputError, match="holds arrays of the device; give NumPy arrays"):
        dd.on_host(device_rows)


def test_double_precision_on_the_host_is_single_on_the_device(device_rows):
    rows = dd.on_host(jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), device_rows))
    theta = LOSS.template(databases.records_of(rows)) + 1
    assert theta.dtype == jnp.float32
    expected = erm.gradient(PROBLEM, theta, device_rows)
    np.testing.assert_allclose(erm.gradient(PROBLEM, theta, rows), expected, rtol=1e-5)
