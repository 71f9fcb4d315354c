"""Noisy sufficient statistics: exact integers, the law of a release, the attained sensitivity."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from problems import deleting, signed
from scipy import stats
from scipy.optimize import brentq, minimize

import dd_jax as dd
from dd_jax.baselines import sufficient_statistics as system_file
from dd_jax.errors import CertificateRefused, InputError

N, DIM, L2 = 40, 3, 0.05
PROBLEM = dd.Problem(dd.losses.squared(label_bound=1.0), L2)
DATABASE = signed(N, DIM, seed=2)
CLAIM = {"n": N, "dim": DIM, "epsilon": 1.0, "delta": 1e-3}
MADE = system_file.calibrate(PROBLEM, **CLAIM)


@pytest.fixture(scope="module")
def made():
    """The system, and its learn and delete compiled."""
    system = system_file.system(PROBLEM, MADE)
    return system, jax.jit(system.learn), jax.jit(deleting(system))


def integers(records, bits=7) -> np.ndarray:
    """The records on the grid of 4^-bits, in Python's own way."""
    rows = np.concatenate([np.asarray(records.features), np.asarray(records.label)[:, None]], 1)
    return np.trunc(rows.astype(np.float64) * 4**bits).astype(np.int64)


def joined(statistics, bits=7) -> np.ndarray:
    """Σ zzᵀ in 64-bit integers from the sums of limbs."""
    half = statistics.shape[0] // 2
    whole = np.asarray(statistics, np.int64)
    cross = whole[:half, half:] + whole[half:, :half]
    return (whole[:half, :half] << 2 * bits) + (cross << bits) + whole[half:, half:]


# --- what is kept ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "bits"), [(40, 7), (1500, 7), (2500, 5)])
def test_the_sums_are_exact_over_several_chunks(n, bits):
    records = signed(n, DIM, seed=5)
    if bits == 5:  # rows at the corner of the range, where a sum grows fastest
        corner = jnp.zeros((n, DIM)).at[:, 0].set(jnp.where(jnp.arange(n) % 3, 1.0, -1.0))
        records = dd.Labelled(corner, records.label)
    found = joined(system_file.sums(PROBLEM, records, bits), bits)
    rows = integers(records, bits)
    np.testing.assert_array_equal(found, rows.T @ rows)
    matrix, vector = system_file.moments(system_file.sums(PROBLEM, records, bits), bits)
    exact = (rows.T @ rows) / 16.0 ** (bits)
    np.testing.assert_allclose(matrix, exact[:-1, :-1], rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(vector, exact[:-1, -1], rtol=1e-6, atol=1e-6)


def test_sums_that_one_product_of_single_precision_would_round_are_exact():
    n = 4097
    ones = dd.Labelled(jnp.full((n, 1), 0.999), jnp.full(n, 0.999))
    rows = system_file.limbs(jnp.full((n, 2), 0.999), 7)
    exact = np.asarray(rows, np.int64).T @ np.asarray(rows, np.int64)
    assert exact.max() > 2**24
    assert (exact.astype(np.float32) != exact).any()
    np.testing.assert_array_equal(system_file.sums(PROBLEM, ones, 7), exact)


def test_no_trace_of_a_deleted_record_is_kept(made):
    """Bit for bit the sums of a database that never held it, whatever came and went before."""
    _, learn, delete = made
    key = jax.random.key(0)
    record = dd.Labelled(jnp.array([[0.3, -0.7, 0.1]]), jnp.array([0.123]))
    edits = [
        dd.replacement([7], record),
        dd.deletion(PROBLEM.loss, DATABASE, [3]),
        dd.replacement([7], record._replace(label=jnp.array([-1.0]))),
        dd.deletion(PROBLEM.loss, DATABASE, [7]),
    ]
    database, state = DATABASE, learn(key, DATABASE)[0]
    for edit in edits:
        state, _ = delete(key, database, edit, state)
        database = dd.apply_edit(database, edit)
        np.testing.assert_array_equal(state, learn(key, database)[0])
    never = dd.apply_edit(DATABASE, dd.deletion(PROBLEM.loss, DATABASE, [3, 7]))
    np.testing.assert_array_equal(state, learn(key, never)[0])
    # Floating-point sums would keep a trace: this is what the integers are for.
    rows = np.asarray(DATABASE.features)
    total = np.einsum("ni,nj->ij", rows, rows)
    again = (total + 1e4 * np.outer(rows[0], rows[0])) - 1e4 * np.outer(rows[0], rows[0])
    assert (again != total).any()


def test_limbs_never_lengthen_a_row_and_are_within_a_grid_step():
    values = jax.random.uniform(jax.random.key(1), (200, 4), minval=-1.1, maxval=1.1)
    for bits in (3, 7):
        whole = np.asarray(system_file.limbs(values, bits), np.float64)
        back = whole[:, :4] / 2**bits + whole[:, 4:] / 4**bits
        inside = np.clip(values, -1, 1)
        assert np.all(np.abs(back) <= np.abs(inside))
        assert np.all(np.abs(back - inside) < 4.0**-bits)
        assert np.abs(whole).max() <= 2**bits


# --- privacy --------------------------------------------------------------------------------------


def change(pair, matrix_variance, vector_variance):
    """‖aaᵀ - a'a'ᵀ‖²/v_M + ‖ay - a'y'‖²/v_v for two records of the domain, given freely."""
    a, b = (v / max(1.0, np.linalg.norm(v)) for v in (pair[:2], pair[2:4]))
    y, z = np.clip(pair[4:], -1, 1)
    matrix = np.outer(a, a) - np.outer(b, b)
    return np.sum(matrix**2) / matrix_variance + np.sum((a * y - b * z) ** 2) / vector_variance


@pytest.mark.parametrize("ratio", [0.2, 0.5, 1.0, 1.9, 3.0])
def test_the_sensitivity_is_attained_and_never_exceeded(ratio):
    bound = system_file.release_mu_squared(ratio, 1.0)
    # A third dimension adds nothing: two rows span a plane.
    cosine = min(1.0, ratio / 2)
    worst = np.array([1, 0, cosine, math.sqrt(1 - cosine**2), 1, -1])
    assert change(worst, ratio, 1.0) == pytest.approx(bound, rel=1e-12)
    rng = np.random.default_rng(0)
    starts = rng.normal(size=(12, 6)) * 2
    found = [minimize(lambda p: -change(p, ratio, 1.0), s, method="Nelder-Mead") for s in starts]
    best = max(-result.fun for result in found)
    assert bound * 0.99 < best <= bound * (1 + 1e-12)
    # The textbook's separate suprema: √2 and 2, more than both together.
    assert bound <= 2 / ratio + 4


def test_the_noise_is_the_least_for_the_target_and_releases_compose():
    def delta(mu):
        tails = stats.norm.cdf([mu / 2 - 1 / mu, -mu / 2 - 1 / mu])
        return tails[0] - math.e * tails[1]

    mu: float = brentq(lambda mu: delta(mu) - 1e-3, 0.1, 2)
    assert MADE.mu == pytest.approx(mu, rel=1e-6)
    spent = system_file.release_mu_squared(MADE.matrix_variance, MADE.vector_variance)
    assert spent == pytest.approx(mu**2, rel=1e-5)
    assert spent <= mu**2
    nine = system_file.calibrate(PROBLEM, releases=9, **CLAIM)
    assert nine.vector_variance == pytest.approx(9 * MADE.vector_variance)
    assert nine.mu == pytest.approx(mu / 3, rel=1e-6)
    assert nine.epsilon < 1 == pytest.approx(MADE.epsilon)


def test_the_law_of_a_release(made):
    system, learn, _ = made
    state = learn(jax.random.key(0), DATABASE)[0]
    keys = jax.random.split(jax.random.key(4), 4000)
    noisy = jax.jit(jax.vmap(lambda key: system_file.noisy_moments(key, state, MADE)))
    matrix, vector = map(np.asarray, noisy(keys))
    exact = integers(DATABASE)
    exact = (exact.T @ exact) / 4.0**14
    noise = (matrix - exact[:-1, :-1]) / math.sqrt(MADE.matrix_variance)
    shift = (vector - exact[:-1, -1]) / math.sqrt(MADE.vector_variance)
    np.testing.assert_array_equal(noise, np.swapaxes(noise, 1, 2))
    upper = [
        noise[:, i, j] * (1 if i == j else math.sqrt(2)) for i in range(3) for j in range(i, 3)
    ]
    every = np.stack([*upper, *shift.T])
    for values in every:
        assert stats.kstest(values, "norm").pvalue > 1e-4
    assert np.abs(np.corrcoef(every) - np.eye(9)).max() < 0.08
    # The model is the ridge solution of these numbers alone.
    again = jax.random.split(jax.random.key(4), 4000)
    models = jax.jit(jax.vmap(lambda key: system.publish(key, state)))(again[:50])
    ridge = N * L2 + math.sqrt(MADE.matrix_variance / 2) * (2 * math.sqrt(DIM) + 4)
    shifted = matrix[:50].astype(np.float64) + ridge * np.eye(DIM)
    expected = np.linalg.solve(shifted, vector[:50, :, None])[..., 0]
    np.testing.assert_allclose(models, expected, rtol=1e-4, atol=1e-5)


def test_the_ridge_keeps_the_sum_positive():
    """Even where all records are null: half of it would not be enough."""
    rng = np.random.default_rng(0)
    for dim, draws in ((DIM, 4000), (60, 100)):
        norm = system_file.calibrate(PROBLEM, **(CLAIM | {"dim": dim})).noise_norm
        square = rng.normal(size=(draws, dim, dim)) * math.sqrt(MADE.matrix_variance)
        least = np.linalg.eigvalsh((square + np.swapaxes(square, 1, 2)) / 2)[:, 0]
        assert np.mean(least < -norm) <= 2 * math.exp(-4)
        assert np.mean(least < -0.5 * norm) > 0.05


# --- refusals -------------------------------------------------------------------------------------


def with_loss(**options):
    return dd.Problem(dd.losses.squared(**options), L2)


@pytest.mark.parametrize(
    ("error", "word", "use"),
    [
        (InputError, "rescale", lambda: system_file.calibrate(with_loss(), **CLAIM)),
        (
            InputError,
            "rescale",
            lambda: system_file.calibrate(with_loss(label_bound=2.0), **CLAIM),
        ),
        (
            InputError,
            "rescale",
            lambda: system_file.calibrate(with_loss(label_bound=1.0, feature_norm=1.5), **CLAIM),
        ),
        (
            InputError,
            "squared",
            lambda: system_file.calibrate(dd.Problem(dd.losses.logistic(), L2), **CLAIM),
        ),
        (InputError, "overflow", lambda: system_file.largest_bits(2**31 // 64 + 1)),
        (
            CertificateRefused,
            "float32",
            lambda: system_file.system(
                PROBLEM, system_file.calibrate(PROBLEM, **(CLAIM | {"n": 10**7}))
            ),
        ),
        (
            InputError,
            "l2",
            lambda: system_file.system(dd.Problem(PROBLEM.loss, 0.1), MADE),
        ),
        (
            CertificateRefused,
            "calibrated",
            lambda: system_file.system(PROBLEM, MADE).learn(
                jax.random.key(0), signed(N + 1, DIM, seed=1)
            ),
        ),
    ],
)
def test_what_cannot_be_exact_or_private_is_refused(error, word, use):
    with pytest.raises(error, match=word):
        use()


def test_the_grid_is_as_fine_as_the_sums_allow():
    assert [system_file.largest_bits(n) for n in (2, 131_071, 131_072, 33_554_431)] == [7, 7, 6, 3]
