"""The worst-case search: it finds what is worst, and what it says of it holds on fresh seeds."""

import functools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dd_jax as dd
from dd_jax.audit import search as searching
from dd_jax.audit import search_strategies as strategies
from dd_jax.audit.claims import GaussianClaim, of_certificate
from dd_jax.audit.search import Candidate, hand_made, search, separation, vary
from dd_jax.audit.verdict import audit
from dd_jax.ensemble import Pair
from dd_jax.oracles import gaussian

N, DIM, ROW = 10, 2, 3
BLANK = jnp.zeros((1, DIM), jnp.float32)
POOL = jnp.asarray([[1.0, 0.0], [-1.0, 0.0]], jnp.float32)
FIRST = strategies.deleted_first(BLANK)
RECODING = strategies.recoding(BLANK, POOL, POOL[0], N)
SEEDS = 256


@pytest.fixture(scope="module")
def plan():
    problem = dd.Problem(dd.losses.linear(), 1.0)
    made = dd.plan_convex(
        problem,
        n=N,
        dim=DIM,
        order=2.0,
        eps_dp=1.0,
        eps_dd=0.25,
        step_size=0.5,
        edits_per_request=N,
    )
    return replace(made, learn_steps=8, init_variance=0.0)


@pytest.fixture(scope="module")
def curator(plan):
    return dd.noisy_gd.mechanism(dd.Problem(dd.losses.linear(), 1.0), plan)


@pytest.fixture(scope="module")
def database():
    rows = np.random.default_rng(0).normal(size=(N, DIM))
    return jnp.asarray(0.2 * rows, jnp.float32)


def exact_renyi(plan, candidate):
    """R_2 of the release after the only request, by the exact laws of the candidate's worlds."""
    laws = []
    for world in (
        candidate.database,
        dd.apply_edit(candidate.database, candidate.neighbour),
    ):
        after = dd.apply_edit(world, dd.Edit(candidate.neighbour.index, BLANK))
        phases = [
            gaussian.linear_phase(np.asarray(rows, np.float64), 1.0, steps)
            for rows, steps in ((world, plan.learn_steps), (after, plan.delete_steps))
        ]
        laws.append(gaussian.law_after(phases, plan.step_size, plan.noise_variance, np.zeros(DIM)))
    return gaussian.renyi(2.0, *laws)


def test_greedy_search_finds_the_exact_worst_pair(plan, curator, database):
    """From a harmless pair: two records of full norm and opposite directions, wherever they lie."""
    harmless = dd.replacement([ROW], jnp.asarray([[0.3, 0.0]], jnp.float32))
    start = Candidate("harmless", FIRST, database, harmless)
    found = search(
        jax.random.key(0), curator, [start], seeds=SEEDS, fresh_seeds=20_000, rounds=6, width=8
    )
    certificate = plan.certificate(request=1)
    worst = certificate.eps_dd_request
    assert exact_renyi(plan, start) < 0.2 * worst
    assert 0.99 * worst <= exact_renyi(plan, found.candidate) <= worst * (1 + 1e-6)
    assert len(found.tried) == 1 + 6 * 8
    assert found.tried[0].name == "harmless"
    assert found.estimate == max(entry.estimate for entry in found.tried)
    assert found.estimate == pytest.approx(np.sqrt(worst), rel=0.15)
    claim = of_certificate(certificate, "deletion", at_request=True)
    (verdict,) = audit(found.pair, claim, confidence=0.999).verdicts
    assert verdict.consistent
    assert verdict.lower_bound.value > 0.6 * worst


def test_hand_made_cases_hold_the_worst_pair_and_the_adaptive_requester(plan, curator, database):
    candidates = hand_made(curator.domain, database, [FIRST, RECODING], BLANK)
    assert len(candidates) == 2 * 2 * 3 * 2
    assert {int(c.neighbour.index[0]) for c in candidates} == {0, N - 1}
    worst = max(exact_renyi(plan, c) for c in candidates if c.strategy is FIRST)
    certificate = plan.certificate(1, 1, observed=(0,))
    assert 0.99 < worst / plan.certificate(request=1).eps_dd_request < 1 + 1e-6
    found = search(
        jax.random.key(1), curator, candidates, seeds=SEEDS, fresh_seeds=20_000, rounds=0
    )
    assert found.candidate.strategy is RECODING
    assert len(found.tried) == len(candidates)
    unseen = of_certificate(plan.certificate(request=1), "deletion")
    seen = of_certificate(certificate, "deletion-adaptive")
    report = audit(found.pair, [unseen, seen], gates=["renyi_bins"], confidence=0.999)
    assert [verdict.word for verdict in report.verdicts] == ["refuted", "consistent"]


def test_logistic_regression_stays_within_its_certificate():
    problem = dd.Problem(dd.losses.logistic(), 0.5)
    plan = dd.plan_convex(problem, n=N, dim=DIM, order=2.0, eps_dp=4.0, eps_dd=1.0)
    plan = replace(plan, learn_steps=6)
    angles = 2.4 * np.arange(N)
    features = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    database = dd.Labelled(
        jnp.asarray(0.5 * features, jnp.float32),
        jnp.asarray(np.where(angles % 3 < 1, 1.0, -1.0), jnp.float32),
    )
    blank = dd.deletion(problem.loss, database, [0]).record
    curator = dd.noisy_gd.mechanism(problem, plan)
    start = hand_made(curator.domain, database, [strategies.deleted_first(blank)], blank, rows=(0,))
    found = search(
        jax.random.key(2),
        curator,
        start,
        seeds=SEEDS,
        fresh_seeds=10_000,
        rounds=1,
        width=2,
        vary_others=True,
    )
    curator.domain.check(found.candidate.database)
    certificate = plan.certificate(request=1)
    claim = of_certificate(certificate, "deletion")
    (verdict,) = audit(found.pair, claim, confidence=0.999).verdicts
    assert verdict.consistent
    assert 0 < verdict.lower_bound.value <= certificate.eps_dd
    # The slope of the logistic loss at 0 is half of its bound.
    assert found.estimate > 0.3 * certificate.mu_dd


def test_what_was_searched_on_is_not_what_is_judged(database):
    """A curator that ignores its data: the search picks noise, the fresh seeds show none."""

    def learn(key, database):
        del database
        return jax.random.normal(key, (DIM,))

    blind = dd.Mechanism(learn, lambda key, database, edit, state: learn(key, database))
    one = Candidate("any", FIRST, database, dd.replacement([0], BLANK))
    hits, searched = [], []

    def lucky(pair: Pair) -> float:
        # What an overfitted search would report: the best of many looks at independent noise.
        hits.append(float(np.mean(np.asarray(pair.present)[:32])))
        searched.append(np.asarray(pair.present)[:, 0, 0])
        return hits[-1]

    found = search(
        jax.random.key(3), blind, [one], seeds=64, fresh_seeds=5_000, rounds=1, width=3, score=lucky
    )
    (verdict,) = audit(found.pair, GaussianClaim(0.0), confidence=0.999).verdicts
    assert verdict.consistent
    assert len(hits) == 4
    # Common noise: the candidates differ in nothing, so neither do their scores.
    assert len(set(hits)) == 1
    present, absent = (np.asarray(arm) for arm in found.pair)
    # The curator's output is its noise: no draw of the search is seen again in either arm.
    for arm in (present, absent):
        assert not np.isin(searched[0], arm[:, 0, 0]).any()
    assert present.shape == (5_000, 1, DIM)
    assert abs(np.corrcoef(present[:, 0, 0], absent[:, 0, 0])[0, 1]) < 0.06
    again = search(jax.random.key(3), blind, [one], seeds=64, fresh_seeds=5_000, rounds=0, width=3)
    assert again.estimate == 0.0
    np.testing.assert_array_equal(again.pair.present, found.pair.present)


def test_the_score_is_the_separation_of_gaussians():
    rng = np.random.default_rng(0)
    mixing = np.array([[1.0, 0.0], [0.8, 0.5]])
    noise = rng.normal(size=(200_000, 2)) @ mixing.T
    shift = np.array([0.3, -0.2])
    exact = np.linalg.norm(np.linalg.solve(mixing, shift))
    assert separation(Pair(noise + shift, noise)) == pytest.approx(exact, rel=0.01)
    # Linearly dependent releases: a copy adds nothing.
    doubled = np.concatenate([noise, noise[:, :1]], axis=1)
    moved = doubled + np.append(shift, shift[0])
    assert separation(Pair(moved, doubled)) == pytest.approx(exact, rel=0.01)


def ledger():
    """A curator without noise whose model is the database it has seen last."""

    def delete(key, database, edit, state):
        del key, state
        return dd.apply_edit(database, edit)

    return dd.Mechanism(lambda key, database: database, delete)


def transcript_of(strategy, database, row):
    run = compiled_transcript(strategy)
    return run(jax.random.key(0), database, jnp.int32(row))


@functools.cache
def compiled_transcript(strategy):
    """Compiled once for every row."""

    def run(key, database, row):
        return dd.interact(
            key,
            ledger(),
            strategy.make(row),
            database,
            num_requests=strategy.num_requests,
            observe=strategy.observe,
        )[1]

    return jax.jit(run)


def test_what_the_requesters_do(database):
    later = strategies.deleted_last(BLANK, N, num_requests=3)
    told = transcript_of(later, database, N - 1)
    assert told.edits.index[:, 0].tolist() == [0, 1, N - 1]
    assert later.request == 3
    np.testing.assert_array_equal(told.edits.record, np.zeros((3, 1, DIM)))

    first = transcript_of(strategies.deleted_first(BLANK, num_requests=2), database, ROW)
    assert first.edits.index[:, 0].tolist() == [ROW, ROW]

    churned = strategies.deleted_after_churn(BLANK, POOL, N, num_requests=8)
    for row in (0, ROW, N - 1):
        told = transcript_of(churned, database, row)
        rows = told.edits.index[:, 0].tolist()
        assert rows[-1] == row
        assert row not in rows[:-1]
        assert set(rows) <= set(range(N))
        assert len(set(rows)) > 2
        assert np.all(np.abs(np.asarray(told.edits.record)[:-1, 0, 0]) == 1)
        np.testing.assert_array_equal(told.edits.record[-1], BLANK)


READS_THE_ROW = strategies.recoding(
    BLANK, POOL, jnp.zeros((N, DIM), jnp.float32).at[ROW, 0].set(1), N, num_requests=2
)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_recoding_writes_what_it_saw_and_blanks_the_target(database, sign):
    world = database.at[ROW, 0].set(sign)
    told = transcript_of(READS_THE_ROW, world, ROW)
    assert told.observed.tolist() == [True, False]
    expected = np.tile([sign, 0.0], (N, 1))
    expected[ROW] = 0
    for request in range(2):
        np.testing.assert_array_equal(told.edits.record[request], expected)


def test_variations_stay_in_the_domain_and_change_what_they_should(database):
    domain = dd.losses.linear().domain
    start = Candidate("start", FIRST, database, dd.replacement([ROW], BLANK))
    moved = vary(jax.random.key(0), start, domain, 8.0)
    changed = np.any(np.asarray(moved.database) != np.asarray(database), axis=1)
    assert np.flatnonzero(changed).tolist() == [ROW]
    assert not np.array_equal(moved.neighbour.record, BLANK)
    all_moved = vary(jax.random.key(0), start, domain, 8.0, vary_others=True)
    assert np.all(np.any(np.asarray(all_moved.database) != np.asarray(database), axis=1))
    for candidate in (moved, all_moved):
        domain.check(candidate.database)
        domain.check(candidate.neighbour.record)
    classes = dd.Labelled(database, jnp.arange(N, dtype=jnp.int32) % 3)
    record = dd.Labelled(BLANK, jnp.zeros(1, jnp.int32))
    kind = Candidate("classes", FIRST, classes, dd.replacement([ROW], record))
    labelled = vary(jax.random.key(1), kind, dd.losses.softmax(num_classes=3).domain, 1.0)
    assert labelled.database.label.dtype == jnp.int32
    assert set(np.asarray(labelled.database.label).tolist()) <= {0, 1, 2}


def test_labelled_records_are_opposed_by_their_features(database):
    labels = jnp.asarray(np.where(np.arange(N) % 2, 1.0, -1.0), jnp.float32)
    loss = dd.losses.logistic()
    table = dd.Labelled(database, labels)
    blank = dd.deletion(loss, table, [0]).record
    found = hand_made(loss.domain, table, [FIRST], blank, rows=(ROW,))
    extreme = next(c for c in found if c.name.startswith("extreme record against opposite"))
    record = jax.tree.map(lambda leaf: leaf[ROW], extreme.database)
    assert float(jnp.linalg.norm(record.features)) == pytest.approx(1, abs=1e-5)
    np.testing.assert_array_equal(extreme.neighbour.record.features[0], -record.features)
    assert extreme.neighbour.record.label[0] == record.label


def test_bad_input_is_refused(curator, database):
    one = Candidate("one", FIRST, database, dd.replacement([0], BLANK))
    key = jax.random.key(0)
    with pytest.raises(dd.InputError, match="there is no candidate"):
        search(key, curator, [])
    for name, value in (("seeds", 1), ("fresh_seeds", 0), ("rounds", -1), ("width", 0)):
        with pytest.raises(dd.InputError, match=f"^{name} = "):
            search(key, curator, [one], **{name: value})
    with pytest.raises(dd.InputError, match="rows 0 to 9"):
        hand_made(curator.domain, database, [FIRST], BLANK, rows=(N,))
    with pytest.raises(dd.InputError, match="blank holds 2 records"):
        strategies.deleted_first(POOL)
    with pytest.raises(dd.InputError, match="at least 2"):
        strategies.deleted_last(BLANK, N, num_requests=1)
    with pytest.raises(dd.InputError, match="recoding takes two"):
        strategies.recoding(BLANK, BLANK, BLANK[0], N)


def test_one_compilation_serves_every_pair(curator, database):
    run = searching._releases(curator, FIRST)
    assert run is searching._releases(curator, FIRST)
