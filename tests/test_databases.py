"""Counted, overlaid and shared databases have the meaning of the plain one."""

import functools

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest
from problems import CATALOGUE, signed

import dd_jax as dd
from dd_jax import databases, erm
from dd_jax.noisy_gd import Schedule, mechanism

LOSS = dd.losses.logistic()
PROBLEM = dd.Problem(LOSS, 0.1, 0.4, row_chunk=8)
CURATOR = mechanism(PROBLEM, Schedule(0.5, 0.01, 1.0, 3, 2))


def repeated(database, counts):
    return jax.tree.map(lambda leaf: jnp.repeat(leaf, np.array(counts), axis=0), database)


def close(a, b):
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6), a, b)


def equal(a, b):
    jax.tree.map(np.testing.assert_array_equal, a, b)


def test_a_counted_database_has_the_rows_that_it_stands_for():
    distinct, counts = signed(4, 3), [2, 0, 1, 3]
    compact = databases.counted(distinct, counts)
    assert databases.num_records(compact) == 6
    equal(dd.expand(compact), repeated(distinct, counts))
    again = dd.compress(repeated(distinct, counts))
    assert again.total == 6
    assert sorted(again.count.tolist()) == [1, 2, 3]
    equal(dd.compress(dd.expand(again)), again)


@pytest.mark.parametrize("name", ["logistic-intercept", "softmax", "network"])
@pytest.mark.parametrize("clip_norm", [None, 0.3])
def test_sums_over_a_counted_database_are_sums_over_its_rows(name, clip_norm):
    case = CATALOGUE[name]
    distinct = case.make(5, 3, 0, jnp.float32)
    compact = databases.counted(distinct, [3, 1, 2, 0, 4])
    problem = dd.Problem(case.loss, 0.1, clip_norm, row_chunk=4)
    params = jax.tree.map(lambda leaf: leaf + 0.3, case.loss.template(distinct))
    for form in (erm.gradient, erm.reference_gradient, erm.objective):
        found, plain = form(problem, params, compact), form(problem, params, dd.expand(compact))
        close(found, plain)


def test_an_overlay_is_the_edited_database_however_often_a_row_is_edited():
    database, new = signed(9, 3), signed(9, 3, seed=5)

    def edit(rows, places):
        return dd.replacement(rows, jax.tree.map(lambda leaf: leaf[jnp.array(places)], new))

    stream = [
        edit([4, 1], [0, 1]),
        edit([1, 7], [2, 3]),
        edit([1, 1], [4, 5]),
        edit([4, 99], [6, 7]),
    ]
    plain, layered = database, databases.overlay(database, 1)
    reserved = databases.overlay(database, 8)
    theta = jnp.array([0.5, -1.0, 2.0])
    for change in stream:
        plain, layered = dd.apply_edit(plain, change), dd.apply_edit(layered, change)
        reserved = reserved.write(change)
        for found in (layered, reserved):
            equal(dd.expand(found), plain)
            for form in (erm.gradient, erm.objective):
                a, b = form(PROBLEM, theta, found), form(PROBLEM, theta, plain)
                np.testing.assert_allclose(a, b, atol=1e-6)


def test_edits_of_a_counted_database_count_single_records():
    compact = databases.counted(signed(3, 2), [5, 1, 2])
    edited = dd.apply_edit(compact, dd.deletion(LOSS, compact.record, [0, 7]))
    plain = dd.apply_edit(dd.expand(compact), dd.deletion(LOSS, compact.record, [0, 7]))
    equal(dd.expand(edited), plain)
    np.testing.assert_allclose(
        erm.minimise(PROBLEM, edited).params, erm.minimise(PROBLEM, plain).params, atol=1e-5
    )


CHASER = dd.requesters.largest_loss(LOSS, signed(30, 3))


def chased(key, database, overlay):
    """20 requests that each depend on the release before them."""
    curator, transcript = dd.interact(
        key, CURATOR, CHASER, database, num_requests=20, observe=range(20), overlay=overlay
    )
    return transcript, dd.expand(curator.database)


copied, overlaid = (functools.partial(chased, overlay=overlay) for overlay in (False, True))


def within_a_millionth(a, b):
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=0, atol=1e-6), a, b)


def test_adaptive_edits_of_an_overlay_make_the_same_interaction():
    plain = dd.over_seeds(copied, jax.random.key(0), 6, signed(30, 3))
    over = dd.over_seeds(overlaid, jax.random.key(0), 6, signed(30, 3))
    within_a_millionth(plain, over)
    assert len(np.unique(plain[0].edits.index, axis=0)) > 1, "the seeds' edits differ"


def test_an_interaction_on_a_counted_database_is_the_one_on_its_rows():
    compact = databases.counted(signed(6, 3), [9, 1, 4, 0, 5, 11])
    within_a_millionth(
        dd.over_seeds(overlaid, jax.random.key(1), 6, compact),
        dd.over_seeds(copied, jax.random.key(1), 6, dd.expand(compact)),
    )


def test_an_overlay_never_holds_a_database_per_seed():
    database, seeds = signed(2_000, 3), 64
    requester = dd.requesters.largest_loss(LOSS, database)

    def model(key, database, overlay):
        _, transcript = dd.interact(
            key, CURATOR, requester, database, num_requests=2, observe=(0, 1), overlay=overlay
        )
        return transcript.releases[-1]

    def largest(overlay):
        def chunk(seeds, database):
            keys = jax.vmap(jax.random.key)(seeds)
            return jax.vmap(lambda key: model(key, database, overlay))(keys)

        jaxpr = jax.make_jaxpr(chunk)(jnp.arange(seeds), database)
        sizes = [leaf.aval.size for eqn in _equations(jaxpr.jaxpr) for leaf in eqn.outvars]
        return max(sizes)

    # The (seeds, rows) block of losses is the requester's own; features would be three times that.
    assert largest(overlay=True) <= seeds * 2_000
    assert largest(overlay=False) >= 3 * seeds * 2_000


def _equations(jaxpr):
    for equation in jaxpr.eqns:
        yield equation
        for inner in jax.extend.core.jaxprs_in_params(equation.params):
            yield from _equations(inner)


def test_a_shared_pair_is_the_pair():
    database, edit = signed(20, 3), dd.deletion(LOSS, signed(20, 3), [3])
    stream = dd.requesters.fixed_stream(
        jax.tree.map(lambda leaf: leaf[None], dd.deletion(LOSS, database, [5]))
    )

    def release(key, database):
        return dd.interact(key, CURATOR, stream, database, num_requests=1)[1].releases[-1]

    for noise in ("independent", "common"):
        apart, shared = (
            dd.neighbours(release, jax.random.key(1), 5, database, edit, noise=noise, shared=shared)
            for shared in (False, True)
        )
        close(apart, shared)
        assert np.abs(np.asarray(apart.present - apart.absent)).max() > 1e-3


def test_records_outside_the_domain_are_counted_with_their_multiplicity():
    long_row = signed(3, 2, norm=5.0)
    compact = databases.counted(long_row, [4, 1, 2])
    projected, outside = databases.project(LOSS.domain, databases.overlay(compact, 2))
    assert int(outside) == 7
    databases.check(LOSS.domain, projected)
    with pytest.raises(dd.InputError, match="beyond the declared"):
        databases.check(LOSS.domain, compact)


@pytest.mark.parametrize("count", [[1, 2], [1.0, 2.0, 3.0], [1, -1, 2], [0, 0, 0]])
def test_counts_that_are_none_are_refused(count):
    with pytest.raises(dd.InputError, match="one whole number ≥ 0 per record"):
        databases.counted(signed(3, 2), count)


def test_the_host_loop_serves_counted_rows():
    counted = dd.compress(signed(4, 3))
    edit = dd.deletion(LOSS, counted.record, [1])
    run = [
        dd.drive(jax.random.key(0), CURATOR, lambda *_: edit, rows, num_requests=1)[1]
        for rows in (counted, dd.expand(counted))
    ]
    np.testing.assert_allclose(run[0].releases, run[1].releases, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("targets", [[[1], [5], [2]], [[1, 4], [5, 1], [2, 7]]])
def test_the_host_loop_keeps_every_edit_of_a_compact_database(targets):
    """A later deletion does not undo an earlier one."""
    compact = dd.compress(signed(8, 3))
    plain = dd.expand(compact)
    edits = [dd.deletion(LOSS, plain, rows) for rows in targets]

    def respond(request, release):
        del release
        return edits[request - 1]

    curator, _ = dd.drive(jax.random.key(0), CURATOR, respond, compact, num_requests=3)
    equal(dd.expand(curator.database), functools.reduce(dd.apply_edit, edits, plain))


def test_only_plain_rows_are_compressed():
    rows = signed(4, 2)
    for database, words in (
        (databases.compress(rows), "of type Counted; give plain rows"),
        (databases.overlay(rows, 1), "of type Overlay; give plain rows"),
        (jax.tree.map(lambda leaf: leaf[:0], rows), "has no rows"),
    ):
        with pytest.raises(dd.InputError, match=words):
            databases.compress(database)
