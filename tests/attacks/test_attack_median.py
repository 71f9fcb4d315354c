"""`thm:adaptive_violation`: measured success against the exact probability and the bounds."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from problems import soak

import dd_jax as dd
from dd_jax.attacks import find, median
from dd_jax.intervals import clopper_pearson, proportion


@pytest.mark.parametrize(("n", "step"), [(5, 4), (7, 4), (7, 6), (9, 5), (9, 9)])
def test_exact_success_by_enumerating_the_requesters_rows(n, step):
    hits = []
    for rows in itertools.combinations(range(n), step - 1):
        database = np.arange(n, dtype=float)
        database[list(rows)] = n // 2
        database[n // 2] = n
        hits.append(np.median(database) == n // 2)
    assert median.exact_success(n, step) == pytest.approx(np.mean(hits))


@pytest.mark.parametrize("n", [5, 21, 101, 1001])
def test_the_bounds_lie_below_the_exact_success(n):
    for step in range(4, min(n, 30) + 1):
        simple, bound = median.theorem_bound_simple(step), median.theorem_bound(n, step)
        assert simple <= bound <= median.exact_success(n, step)


def test_bounds_at_known_values():
    assert median.theorem_bound(101, 4) == pytest.approx(1 - 2 * 1225 / 5050)
    assert median.theorem_bound_simple(4) == 0.5
    assert median.exact_success(101, 4) == pytest.approx(1 - 20825 / 166650)


def interaction(observe):
    database = median.draw_database(jax.random.key(1), 11)
    options = {"num_requests": 6, "observe": observe}
    requester = median.requester(11, 5, jnp.int32(4))
    curator, transcript = dd.interact(
        jax.random.key(2), median.mechanism(), requester, database, **options
    )
    return database, curator, transcript


def test_the_requester_copies_the_first_release_and_the_owner_leaves():
    database, curator, transcript = interaction(observe=(0,))
    secret = database[5]
    assert transcript.releases[0] == secret
    np.testing.assert_array_equal(transcript.edits.record[:, 0], [secret] * 3 + [11_000] * 3)
    np.testing.assert_array_equal(transcript.edits.index[3:, 0], [5, 5, 5])
    assert len(set(transcript.edits.index[:3, 0].tolist())) == 3
    # Repeating the deletion changes nothing: later releases equal the one right after it.
    assert len(set(transcript.releases[4:].tolist())) == 1
    assert curator.database[5] == 11_000
    # Unlearning is perfect at every request.
    for request in range(1, 7):
        edit = jax.tree.map(lambda leaf, i=request - 1: leaf[i], transcript.edits)
        database = dd.apply_edit(database, edit)
        assert transcript.releases[request] == int(np.median(database))


def test_a_requester_shown_nothing_copies_nothing():
    _, _, transcript = interaction(observe=())
    np.testing.assert_array_equal(transcript.edits.record[:3, 0], [0] * 3)


@pytest.mark.slow
def test_success_at_101_records_and_requests_4_to_12():
    seeds = soak(2_000, 10_000)
    result = find("median").run(jax.random.key(0), n=101, step=12, seeds=seeds)
    assert [row["step"] for row in result.rows] == list(range(4, 13))
    for row in result.rows:
        assert row["low"] <= row["exact"] <= row["high"]
        assert row["exact"] == median.exact_success(101, row["step"])
        assert row["bound_simple"] <= row["bound"] < row["exact"]
        # Nine requests and the blind control: each interval at a tenth of the risk.
        hits = round(row["success"] * seeds)
        assert (row["low"], row["high"]) == clopper_pearson(hits, seeds, 1 - 0.001 / 10)
    # Narrow enough to tell the exact value from the bound where they differ.
    assert result.rows[0]["low"] > result.rows[0]["bound"] + 0.3
    assert result.exact == result.rows[-1]["exact"]
    assert [finding.refuted for finding in result.findings] == [True, False, False]


@pytest.mark.parametrize("hits", [0, 40])
def test_the_blind_requester_is_judged_too(hits):
    seen, blind = proportion(875, 1_000, 0.999), proportion(hits, 1_000, 0.999)
    findings = median._findings([median._row(101, 4, seen)], blind)
    assert [finding.refuted for finding in findings] == [True, False, hits > 0]
