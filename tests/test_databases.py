"""Counted, overlaid and shared databases have the meaning of the plain one."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from problems import CATALOGUE, signed, soak

import dd_jax as dd
from dd_jax import databases, erm, types
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
    assert again.count.tolist() == [2, 1, 3], "in the order of their first rows"
    equal(dd.compress(dd.expand(again)), again)


def test_a_counted_database_needs_no_number_per_row():
    compact = databases.counted(signed(3, 2), [2_000_000_000, 0, 1])
    assert sum(leaf.size for leaf in jax.tree.leaves(compact)) == 3 * 3 + 3 * 3
    edited = dd.apply_edit(compact, dd.replacement([1_999_999_999, 7], signed(2, 2, seed=3)))
    assert sorted(edited.count.tolist()) == [1, 1, 1, 1_999_999_998]
    found = databases.rows_of(edited, jnp.array([6, 7, 8, 1_999_999_999, 2_000_000_000]))
    old, new = signed(3, 2).features, signed(2, 2, seed=3).features
    equal(found.features, jnp.stack([old[0], new[1], old[0], new[0], old[2]]))


@pytest.mark.parametrize(
    ("name", "clip_norm"), [("logistic-intercept", None), ("softmax", 0.3), ("network", 0.3)]
)
def test_sums_over_a_counted_database_are_sums_over_its_rows(name, clip_norm):
    case = CATALOGUE[name]
    distinct = case.make(5, 3, 0, jnp.float32)
    compact = databases.counted(distinct, [3, 1, 2, 0, 4])
    problem = dd.Problem(case.loss, 0.1, clip_norm, row_chunk=4)
    params = jax.tree.map(lambda leaf: leaf + 0.3, case.loss.template(distinct))

    @jax.jit
    def sums(database):
        forms = (erm.gradient, erm.reference_gradient, erm.objective)
        return [form(problem, params, database) for form in forms]

    close(sums(compact), sums(dd.expand(compact)))


CHASER = dd.requesters.largest_loss(LOSS, signed(30, 3))


def chased(key, database, overlay):
    """Requests that each depend on the release before them."""
    curator, transcript = dd.interact(
        key, CURATOR, CHASER, database, num_requests=10, observe=range(10), overlay=overlay
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

    def held(overlay):
        def chunk(seeds, database):
            keys = jax.vmap(jax.random.key)(seeds)
            return jax.vmap(lambda key: model(key, database, overlay))(keys)

        program = jax.jit(chunk).lower(jnp.arange(seeds), database).compile()
        return program.memory_analysis().temp_size_in_bytes

    # Of features alone; the (seeds, rows) blocks of losses, which are the requester's own, and of
    # weights, of a byte each, are smaller.
    a_database_per_seed = seeds * 2_000 * 3 * 4
    assert held(overlay=False) > a_database_per_seed > held(overlay=True)


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
    with pytest.raises(dd.InputError, match="beyond"):
        databases.check(LOSS.domain, compact)


@pytest.mark.parametrize(
    "count",
    [[1, 2], [1.0, 2.0, 3.0], [1, -1, 2], [0, 0, 0], [2**31 - 1, 1, 0], [2**63 - 1, 1, 0]],
    ids=["too few", "fractions", "negative", "none", "beyond int32", "beyond int64"],
)
def test_counts_that_cannot_be_are_refused(count):
    with pytest.raises(dd.InputError, match="count"):
        databases.counted(signed(3, 2), count)


@pytest.mark.filterwarnings("ignore:replaced by")
def test_the_host_loop_serves_a_compact_database_like_its_rows():
    """A later deletion does not undo an earlier one."""
    compact = dd.compress(signed(8, 3))
    edits = [dd.deletion(LOSS, compact, rows) for rows in ([1, 4], [5, 1], [2, 7])]
    (one, seen), (other, expected) = (
        dd.drive(jax.random.key(0), CURATOR, lambda i, _: edits[i - 1], rows, num_requests=3)
        for rows in (compact, dd.expand(compact))
    )
    np.testing.assert_allclose(seen.releases, expected.releases, rtol=1e-4, atol=1e-6)
    equal(dd.expand(one.database), other.database)


def test_empty_slots_of_an_overlay_count_nothing():
    """For a loss whose gradient at a blank record is not zero."""
    case = CATALOGUE["squared-intercept"]
    rows = case.make(9, 3, 0, jnp.float32)
    gradient = jax.jit(functools.partial(erm.gradient, dd.Problem(case.loss, 0.1), jnp.ones(4)))
    np.testing.assert_allclose(gradient(databases.overlay(rows, 3)), gradient(rows), rtol=1e-6)


def test_what_lies_in_slots_is_checked_too():
    rows = jnp.ones((3, 2))
    written = databases.overlay(rows, 2).write(dd.replacement([1], jnp.full((1, 2), jnp.inf)))
    databases.check(types.ANY_RECORD, databases.overlay(rows, 2))
    with pytest.raises(dd.InputError, match="NaN"):
        databases.check(types.ANY_RECORD, written)


def test_records_in_slots_are_counted_where_they_lie_outside_the_domain():
    domain = dd.losses.feature_domain(1.0)
    written = databases.overlay(jnp.array([[0.5], [3.0], [0.1]]), 2).write(
        dd.replacement([0], jnp.array([[2.0]]))
    )
    inside, outside = databases.project(domain, written)
    assert outside == 2
    np.testing.assert_allclose(databases.expand(inside), [[1.0], [1.0], [0.1]], rtol=1e-6)


def test_only_plain_rows_are_compressed():
    rows = signed(4, 2)
    for word, database in {
        "Counted": databases.compress(rows),
        "Overlay": databases.overlay(rows, 1),
        "no rows": jax.tree.map(lambda leaf: leaf[:0], rows),
    }.items():
        with pytest.raises(dd.InputError, match=word):
            databases.compress(database)


def histories(count, n, requests):
    """Edits of three rows; rows and records come back, some rows are named twice or missing."""
    rng = np.random.default_rng(3)
    few = rng.integers(0, 5, (count, requests, 3))
    index = np.where(rng.random(few.shape) < 0.6, few, rng.integers(-1, n + 1, few.shape))
    new = signed(9, 3, seed=8)
    records = jax.tree.map(lambda *leaves: jnp.concatenate(leaves), signed(7, 3), new)
    chosen = rng.integers(0, 16, few.shape)
    return dd.Edit(jnp.asarray(index, jnp.int32), jax.tree.map(lambda leaf: leaf[chosen], records))


FORMS = {
    "overlay": lambda rows: databases.overlay(rows, 1),
    "compressed": dd.compress,
    "counted": lambda rows: databases.counted(rows, np.ones(len(rows.label), int)),
    "overlay of compressed": lambda rows: databases.overlay(dd.compress(rows), 2),
}
THETA = jnp.array([0.5, -1.0, 2.0])


def rows_and_gradient(database):
    return dd.expand(database), erm.gradient(PROBLEM, THETA, database)


def after(database, edits, requests):
    """One edit after the other, and what is left after `compact`."""
    for request in range(requests):
        edit = jax.tree.map(lambda leaf, request=request: leaf[request], edits)
        database = dd.apply_edit(database, edit)
    return rows_and_gradient(database), rows_and_gradient(databases.compact(database))


def written(database, edits, requests):
    """The same in slots that are there from the start, as an interaction serves them."""
    layered = databases.overlay(database, 3 * requests)
    layered, _ = jax.lax.scan(lambda rows, edit: (rows.write(edit), None), layered, edits)
    return rows_and_gradient(layered), rows_and_gradient(databases.compact(layered))


def rows_with_copies():
    order = np.array([3, 0, 0, 5, 1, 3, 6, 2, 0, 4, 5])
    return jax.tree.map(lambda leaf: leaf[order], signed(7, 3))


@functools.cache
def histories_left(serve, form):
    rows, requests = rows_with_copies(), 3
    database = FORMS[form](rows) if form else rows
    edits = histories(soak(100, 300), len(rows.label), requests)
    return jax.jit(jax.vmap(lambda edits: serve(database, edits, requests)))(edits)


@pytest.mark.parametrize(
    ("serve", "form"),
    [
        *((after, form) for form in ("overlay", "compressed", "overlay of compressed")),
        *((written, form) for form in ("overlay", "compressed", "counted")),
    ],
)
def test_random_histories_leave_the_plain_rows_in_every_form(serve, form):
    plain = histories_left(after, None)[0]
    for rows, gradients in histories_left(serve, form):
        equal(rows, plain[0])
        np.testing.assert_allclose(gradients, plain[1], atol=1e-6)


@pytest.mark.parametrize("form", ["compressed", "overlay of compressed"])
def test_random_histories_on_the_host_leave_the_plain_rows(form):
    """Where values are known, records that no row has are dropped and none is held twice."""
    rows = rows_with_copies()
    edits = jax.tree.map(np.asarray, histories(1, len(rows.label), 4))
    database = FORMS[form](rows)
    for request in range(4):
        edit = jax.tree.map(lambda leaf, request=request: jnp.asarray(leaf[0, request]), edits)
        database, rows = dd.apply_edit(database, edit), dd.apply_edit(rows, edit)
    compact = databases.compact(database)
    equal(dd.expand(compact), rows)
    distinct, times = np.unique(rows.features, axis=0, return_counts=True)
    order = np.lexsort(np.asarray(compact.record.features).T[::-1])
    equal(compact.record.features[order], distinct)
    equal(compact.count[order], times)


def test_a_row_that_is_replaced_again_keeps_its_slot_and_overlays_do_not_nest():
    rows = signed(5, 2)
    layers = databases.overlay(rows, 1)
    for seed in range(5):
        layers = layers.write(dd.replacement([3], signed(1, 2, seed=seed + 9)))
    assert layers.left.tolist() == [1, 1, 1, 0, 1]
    assert layers.left.dtype == jnp.int8
    assert databases.overlay(layers, 2).base is rows
    assert databases.overlay(layers, 2).written.tolist() == [True, False, False]
    with pytest.raises(dd.InputError, match="slots"):
        layers.write(dd.replacement([2], signed(1, 2)))
    equal(dd.expand(layers), dd.apply_edit(rows, dd.replacement([3], signed(1, 2, seed=13))))


def test_a_compact_database_does_not_grow_with_its_edits():
    compact = dd.compress(signed(9, 2))
    for request in range(9):
        compact = dd.apply_edit(compact, dd.deletion(LOSS, compact, [request % 4]))
    assert compact.count.tolist() == [4, 1, 1, 1, 1, 1]
    assert compact.ends.tolist() == [4, 5, 6, 7, 8, 9]


@pytest.mark.parametrize(
    ("form", "name", "clip_norm"),
    [
        ("plain", "logistic-intercept", 0.3),
        ("plain", "softmax", None),
        ("plain", "network", 0.3),
        ("counted", "logistic-intercept", None),
        ("counted", "softmax", 0.3),
    ],
)
def test_not_a_bit_of_a_replaced_record_reaches_a_later_model(form, name, clip_norm):
    """Two worlds that differ in a record have the same gradients once it was replaced."""
    case = CATALOGUE[name]
    rows, other = (case.make(20, 3, seed, jnp.float32) for seed in (0, 1))
    neighbour = dd.apply_edit(rows, dd.replacement([7], jax.tree.map(lambda x: x[:1], other)))
    theirs = jax.tree.map(lambda leaf: leaf[1:3], other)
    template = case.loss.template(rows)
    models = jax.tree.map(lambda leaf: jnp.stack([leaf + 0.3, leaf - 0.2]), template)
    problem = dd.Problem(case.loss, 0.1, clip_norm, row_chunk=8)

    def gradients(database):
        if form == "counted":
            database = databases.counted(database, np.ones(20, int))
        # A second row that is another for each model, so that their weights differ.
        edits = dd.Edit(jnp.array([[7, 3], [4, 7]], jnp.int32), theirs)
        axes = dd.Edit(0, None)
        layered = databases.overlay(database, 2)

        def gradient(theta, edit):
            return erm.gradient(problem, theta, layered.write(edit))

        return jax.jit(jax.vmap(gradient, in_axes=(0, axes)))(models, edits)

    equal(gradients(rows), gradients(neighbour))


SQUARED = dd.losses.squared(label_bound=1.0)
FITTER = mechanism(dd.Problem(SQUARED, 0.1, 0.4), Schedule(0.5, 0.01, 1.0, 3, 2))


def with_labels(rows):
    """Labels that are as telling as features."""
    label = np.random.default_rng(9).uniform(-1, 1, len(rows.label))
    return rows._replace(label=jnp.asarray(label, jnp.float32))


def numbers_found(tree, rows, index):
    """Which of a record's numbers occur, byte by byte, in any array of the tree."""
    held = b"|".join(np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(tree))
    record = jax.tree.map(lambda leaf: np.asarray(leaf[index]), rows)
    numbers = np.concatenate([np.ravel(leaf) for leaf in record])
    return [number.tobytes() in held for number in numbers]


TARGETS = [[0, 1], [4, 7], [4, 2]]


def scan(database, overlay=True):
    edits = [dd.deletion(SQUARED, database, rows) for rows in TARGETS]
    requester = dd.requesters.fixed_stream(dd.requesters.stack_edits(edits))
    key = jax.random.key(0)
    return dd.interact(key, FITTER, requester, database, num_requests=3, overlay=overlay)[0]


def loop(database):
    edits = [dd.deletion(SQUARED, database, rows) for rows in TARGETS]
    key = jax.random.key(0)
    return dd.drive(key, FITTER, lambda i, _: edits[i - 1], database, num_requests=3)[0]


@pytest.mark.filterwarnings("ignore:replaced by")
@pytest.mark.parametrize(
    ("form", "serve"),
    [
        *((form, scan) for form in soak(("plain", "overlay of compressed"), ("plain", *FORMS))),
        ("plain", functools.partial(scan, overlay=False)),
        ("compressed", jax.jit(scan)),
        *((form, loop) for form in soak(("plain", "compressed"), ("plain", *FORMS))),
    ],
)
def test_a_state_holds_nothing_of_a_deleted_record(form, serve):
    rows = with_labels(signed(12, 3))
    database = rows if form == "plain" else FORMS[form](rows)
    after = serve(database)
    for row in (2, 4, 7):
        assert all(numbers_found(database, rows, row)), "the search finds what is there"
        assert not any(numbers_found(after, rows, row))
    assert all(numbers_found(after, rows, 3))
    edit = dd.deletion(SQUARED, rows, [0, 1, 2, 4, 7])
    equal(dd.expand(after.database), dd.apply_edit(rows, edit))
