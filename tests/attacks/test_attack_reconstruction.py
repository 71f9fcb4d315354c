"""Reconstruction: where the median walks, what it publishes, and that the certificate holds."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from dd_jax.attacks import find, reconstruction
from dd_jax.attacks.reconstruction import Rows, exact_advantage
from dd_jax.types import Labelled

SHAPES = [Rows(25, 49, 25), Rows(50, 32, 17), Rows(7, 3, 1), Rows(3, 9, 1), Rows(4, 2, 20)]


def walk(rows: Rows, honest: np.ndarray) -> list[float]:
    """The lower median after each deletion, by sorting what is left."""
    found = []
    for deletions in range(rows.low + 1):
        left = [*honest, *[-1.0] * (rows.low - deletions), *[1.0] * rows.high]
        found.append(sorted(left)[(len(left) - 1) // 2])
    return found


@pytest.mark.parametrize("rows", SHAPES)
def test_the_median_is_the_honest_record_of_the_stated_rank(rows):
    honest = np.random.default_rng(1).uniform(-0.5, 0.5, rows.honest)
    ranked = dict(enumerate(np.sort(honest)))
    medians = walk(rows, honest)
    for deletions, median in enumerate(medians):
        rank = rows.rank(deletions)
        assert median == ranked.get(rank, -1.0 if rank < 0 else 1.0)
        published = {ranked[rank] for rank in rows.published(deletions)}
        assert published == set(medians[: deletions + 1]) & set(honest)


def test_the_defaults_publish_every_honest_record():
    rows = find("reconstruction").settings().rows
    assert list(rows.published(rows.low)) == list(range(rows.honest))
    assert sum(rows) == 99


@pytest.mark.parametrize("rows", [Rows(7, 3, 1), Rows(3, 9, 1)])
def test_the_service_walks_as_sorting_does(rows):
    honest = reconstruction.draw_honest(jax.random.key(2), rows)
    service = reconstruction.median_service()
    got = reconstruction.releases(jax.random.key(0), honest, service, rows)
    np.testing.assert_array_equal(got, np.float32(walk(rows, np.asarray(honest))))


def test_a_deleted_row_does_not_count():
    database = Labelled(jnp.array([[1.0], [0.0], [1.0], [1.0]]), jnp.array([0.3, 0.0, 0.1, 0.2]))
    released = reconstruction.median_service().learn(jax.random.key(0), database)
    np.testing.assert_array_equal(released, np.float32([0.2]))


@pytest.mark.parametrize("tolerance", [0.0, 0.02, 0.2])
@pytest.mark.parametrize("rows", [Rows(7, 3, 1), Rows(5, 4, 2)])
def test_the_exact_advantage_is_that_of_draws(rows, tolerance):
    """20,000 draws; a value that is off by 0.005 is rejected."""
    honest = np.sort(np.random.default_rng(4).uniform(size=(20_000, rows.honest)))
    shown = honest[:, list(rows.published(rows.low))]
    present = np.abs(honest[:, :, None] - shown[:, None]).min(axis=-1) <= tolerance
    # Another record is hit with the length of all intervals together.
    ends = np.minimum(shown[:, 0], tolerance) + np.minimum(1 - shown[:, -1], tolerance)
    absent = ends + np.minimum(np.diff(shown), 2 * tolerance).sum(axis=1)
    got = present.mean() - absent.mean()
    assert exact_advantage(rows, rows.low, tolerance) == pytest.approx(got, abs=0.005)
    if tolerance == 0:
        assert got == pytest.approx(len(rows.published(rows.low)) / rows.honest)


def test_nothing_is_published_where_the_walk_stays_among_the_adversarys_own():
    rows = Rows(4, 2, 20)
    assert not rows.published(rows.low)
    assert exact_advantage(rows, rows.low, 0.01) == 0.0


def test_what_is_certified_grows_from_one_release_to_all_of_them():
    settings = find("reconstruction").settings()
    plan = reconstruction.make_plan(settings)
    contraction = 1 - plan.step_size * settings.l2
    kept = contraction**plan.learn_steps, contraction**plan.delete_steps
    learning, request = ((1 - left) / (1 + left) for left in kept)
    for deletions in (0, 1, 49):
        # q = 2, and one release is certified for any number of steps of learning.
        eps = 0.05 * (learning + deletions * request if deletions else 1)
        expected = 2 * stats.norm.cdf(np.sqrt(eps) / 2) - 1
        found = reconstruction.certified_advantage(plan, deletions)
        assert found == pytest.approx(expected, rel=1e-4)


def test_retraining_publishes_those_who_stay_and_noisy_gd_does_not():
    """The control with a quarter of the noise is refuted; certificate, null and exact law stand."""
    told = []
    result = find("reconstruction").run(
        jax.random.key(5), lambda done, total: told.append(done / total), seeds=1_000
    )
    assert told == [(1 + done) / len(told) for done in range(len(told))]
    owners = [finding.claim.owner for finding in result.findings if finding.refuted]
    assert owners == ["prior work", "control"]
    assert result.exact == 1.0
    assert result.estimate.low > 0.95
    last = result.rows[-1]
    assert last["low"] < 0.01 < last["high"] < last["certified"] < 0.5
