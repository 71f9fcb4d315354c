"""A curator's whole life by batch: intervals, suprema and joint numbers against exact laws."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from problems import soak

from dd_jax.errors import CertificateRefused, InputError
from dd_jax.guarantees import convex
from dd_jax.guarantees.convex import Descent
from dd_jax.guarantees.schedules import pooled
from dd_jax.guarantees.streams import Stream
from dd_jax.oracles import gaussian
from dd_jax.oracles.phases import in_turn

RUN = Descent(2.0, 1.0, 0.5, 0, 0.01, 23, 0.1, batches=4)  # q, L, λ, β, σ², n, η


def factors(rng, steps):
    """Factors of η and σ² for each step; η never grows."""
    return tuple(zip(rng.uniform(0.2, 1.0, steps), rng.uniform(0.3, 3.0, steps), strict=True))


def random_stream(rng, varies):
    n = int(rng.integers(6, 40))
    l2 = rng.uniform(0.1, 2)
    sizes = (1 + rng.exponential(2), rng.uniform(0.1, 3), l2, 0, rng.uniform(0.01, 1), n)
    batches = int(rng.integers(1, min(n, 7) + 1))
    run = Descent(*sizes, rng.uniform(0.02, 1) / l2, batches=batches)
    learn, delete = int(rng.integers(1, 25)), int(rng.integers(1, 9))
    if not varies:
        return Stream(run, learn, delete)
    given = factors(rng, learn), factors(rng, delete) if rng.random() < 0.7 else None
    return Stream(run, learn, delete, *given)


# --- exact laws of the linear loss ----------------------------------------------------------------


def schedule(stream, request):
    """η and σ² of every step through a request."""
    ones = (1.0, 1.0)
    learn = stream.learn or (ones,) * stream.learn_steps
    delete = stream.delete or (ones,) * stream.delete_steps
    both = np.array([*learn, *delete * request])
    return stream.run.step_size * both[:, 0], stream.run.noise_variance * both[:, 1]


def exact_joint(stream, request, seen, inserted, row, deleted):
    """R_q of the releases seen and of release i jointly, for ±L in one row of the linear loss.

    The record comes in with request `inserted` (0: is there from the start); if it is deleted, then
    by the last request. Both worlds hold the same record elsewhere.
    """
    run, batches, n = stream.run, stream.batches, int(stream.run.n)
    bounds = [j * n // batches for j in range(batches + 1)]
    laws = []
    for sign in (1, -1):
        phases, taken = [], 0
        for i in range(request + 1):
            records = np.full((n, 1), 0.3)
            if inserted <= i < request or (i == request and not deleted):
                records[row] = sign * run.lipschitz
            turns = [
                gaussian.linear_phase(records[low:high], run.l2, 1)
                for low, high in itertools.pairwise(bounds)
            ]
            steps = stream.delete_steps if i else stream.learn_steps
            phases += [phase for one in range(steps) for phase in in_turn(turns, taken + one, 1)]
            taken += steps
        ends = [stream.learn_steps + i * stream.delete_steps - 1 for i in (*seen, request)]
        numbers = schedule(stream, request)
        laws.append(gaussian.joint_law(phases, *numbers, [0.0], released=ends))
    return run.order / 2 * gaussian.separation(*laws) ** 2


def judged(count, varies, wrong=lambda stream, row, batch: (stream, batch)):
    """Least ratios of bound and exact value, deleted and staying, and how often it is attained."""
    rng = np.random.default_rng(7)
    goes, stays, attained = [], [], 0
    while len(goes) < count:
        stream, request = random_stream(rng, varies), int(rng.integers(1, 5))
        inserted = int(rng.integers(0, request)) if rng.random() < 0.5 else 0
        seen = [s for s in range(request) if rng.random() < 0.4]
        n, batches = int(stream.run.n), stream.batches
        row = int(rng.integers(n)) if rng.random() < 0.6 else 0
        batch = next(j for j in range(batches) if row < (j + 1) * n // batches)
        given, place = wrong(stream, row, batch)
        known = {"first_inserted": inserted, "batch": place}
        exact = exact_joint(stream, request, seen, inserted, row, True)
        bound = given.deletion_at(request, seen, **known)
        if exact > 1e-12:
            goes.append(bound / exact)
            whole = stream.learn_steps % stream.batches == 0 and not seen
            attained += whole and batch == inserted == 0 and abs(bound / exact - 1) < 1e-9
        else:
            assert bound < 1e-9
        exact = exact_joint(stream, request, seen, inserted, row, False)
        if exact > 1e-12:
            stays.append(given.privacy_at(request, seen, **known) / exact)
    return min(goes), min(stays), attained


@pytest.mark.parametrize("varies", [False, True])
def test_no_stream_of_the_linear_loss_exceeds_its_bounds(varies):
    goes, stays, attained = judged(soak(25, 600), varies)
    assert min(goes, stays) > 1 - 1e-9
    assert attained > 0


@pytest.mark.parametrize(
    "wrong",
    [
        # 2ηL/n in place of 2ηL/b
        lambda s, row, batch: (
            replace(s, run=replace(s.run, lipschitz=s.run.lipschitz / s.batches)),
            batch,
        ),
        # the batch after the record's
        lambda s, row, batch: (s, (batch + 1) % s.batches),
        # batches of another number
        lambda s, row, batch: (replace(s, run=replace(s.run, batches=1)), 0),
    ],
    ids=["gap", "place", "full"],
)
def test_wrong_streams_are_caught(wrong):
    assert min(judged(12, False, wrong)[:2]) < 0.9


def test_all_releases_jointly_against_the_exact_law():
    rng = np.random.default_rng(8)
    for case in range(soak(10, 200)):
        stream, request = random_stream(rng, varies=case % 2 == 1), int(rng.integers(1, 6))
        row = int(rng.integers(int(stream.run.n)))
        exact = exact_joint(stream, request, range(request), 0, row, False)
        assert exact <= stream.joint(request) * (1 + 1e-9)
        # Every release seen is the interval form.
        seen = stream.privacy_at(request, range(request))
        assert seen == pytest.approx(stream.joint(request), rel=1e-9)


# --- suprema over all requests --------------------------------------------------------------------


def test_suprema_of_varying_schedules_bound_every_request_and_are_reached():
    rng = np.random.default_rng(9)
    for _ in range(soak(4, 100)):
        stream = random_stream(rng, varies=True)
        requests = range(41)
        private = [stream.privacy_at(i) for i in requests]
        deleted = [stream.deletion_at(i) for i in requests if i]
        assert max(private) <= stream.privacy
        assert max(deleted) <= stream.deletion
        late = stream.end(40) * math.log1p(-stream.run.step_size * stream.run.l2 * 0.2)
        if late < -30:
            assert max(private) == pytest.approx(stream.privacy, rel=1e-9)
            assert max(deleted) == pytest.approx(stream.deletion, rel=1e-9)


def test_a_schedule_whose_worst_request_is_late():
    """Learning is gentle and noisy, requests are not: the supremum is not among the first ones."""
    learn, delete = ((0.01, 100.0),) * 9, ((1.0, 0.1), (0.5, 1.0), (1.0, 0.1))
    stream = Stream(RUN, 9, 3, learn, delete)
    early = stream.privacy_at(0)
    late = max(stream.privacy_at(i) for i in range(200, 204))
    assert early < 0.1 * late
    assert stream.privacy == pytest.approx(late, rel=1e-9)


def test_factors_of_ones_are_the_constant_schedule():
    for batches, learn, delete in ((1, 5, 2), (4, 12, 3), (5, 7, 5), (3, 9, 1)):
        run = replace(RUN, batches=batches)
        plain = Stream(run, learn, delete)
        ones = Stream(run, learn, delete, ((1.0, 1.0),) * learn, ((1.0, 1.0),) * delete)
        assert ones.privacy == pytest.approx(plain.privacy, rel=1e-9)
        assert ones.deletion == pytest.approx(plain.deletion, rel=1e-9)
        assert ones.privacy >= plain.privacy * (1 - 1e-12)
        for request, seen, first in ((1, [], 0), (3, [0, 2], 0), (4, [3], 1), (7, [], 3)):
            for name in ("privacy_at", "deletion_at"):
                known = {"first_inserted": first, "batch": batches - 1}
                one, two = (getattr(s, name)(request, seen, **known) for s in (plain, ones))
                assert one == pytest.approx(two, rel=1e-10)
            assert plain.joint(request) == pytest.approx(ones.joint(request), rel=1e-10)


def test_constant_suprema_bound_every_request():
    rng = np.random.default_rng(10)
    for _ in range(12):
        stream = random_stream(rng, varies=False)
        for request in (1, 2, 3, 5, 11):
            assert stream.privacy_at(request) <= stream.privacy * (1 + 1e-12)
            assert stream.deletion_at(request) <= stream.deletion * (1 + 1e-12)
            for batch in range(stream.batches):
                own = stream.deletion_at(request, batch=batch)
                assert own <= stream.deletion_at(request) * (1 + 1e-12)


# --- what it contains -----------------------------------------------------------------------------


def test_full_batches_are_the_constant_bounds():
    stream = Stream(replace(RUN, batches=1), 8, 3)
    assert stream.privacy == convex.privacy_optimal(stream.run, np.inf)
    assert stream.deletion == convex.deletion_optimal(stream.run, 3)
    assert stream.privacy_at(5) == convex.privacy_optimal(stream.run, 8 + 5 * 3)
    assert stream.deletion_at(5) == convex.deletion_optimal(stream.run, 3, present=8 + 4 * 3)
    # Release 2 was seen: what came before it, and what remains of the steps since then.
    seen = convex.privacy_optimal(stream.run, 8 + 2 * 3)
    since = convex.deletion_optimal(stream.run, 3, present=2 * 3)
    assert stream.deletion_at(5, [2]) == pytest.approx(seen + since, rel=1e-13)


def test_joint_numbers_of_many_requests_by_adding_them_up():
    stream = Stream(RUN, 10, 3)
    per_run = [stream.left(np.arange(4), 0, 10, 10)]
    per_run += [stream.left(np.arange(4), k, k + 3, k + 3) for k in range(10, 10 + 3 * 50, 3)]
    assert stream.joint(50) == pytest.approx(np.sum(per_run, axis=0).max(), rel=1e-12)
    late = np.sum(per_run[7:], axis=0)
    assert stream.joint(50, first_inserted=7, batch=2) == pytest.approx(late[2], rel=1e-12)


def test_several_records_in_one_batch_add_their_gaps():
    stream = Stream(RUN, 8, 3)
    three = replace(stream, run=replace(RUN, records=3))
    assert three.deletion == pytest.approx(9 * stream.deletion, rel=1e-12)
    assert three.privacy_at(4) == pytest.approx(9 * stream.privacy_at(4), rel=1e-12)


def test_one_batch_by_its_steps():
    """A record of batch 2 of 4, by hand: steps 2, 6, 10, …; the counter goes on."""
    stream, request = Stream(RUN, 7, 3), 3
    gap = np.array([k % 4 == 2 for k in range(7 + 2 * 3)] + [False] * 3)
    mu_squared = pooled(0.95, gap * 2 * 0.1 / 5, 2 * 0.1 * 0.01).mu_squared
    assert stream.deletion_at(request, batch=2) == pytest.approx(mu_squared, rel=1e-11)


def test_a_long_history_of_varying_steps_has_the_supremum():
    stream = Stream(replace(RUN, step_size=0.5), 2, 2, None, ((1.0, 1.0), (0.5, 2.0)))
    for at, supremum in (
        (stream.deletion_at, stream.deletion),
        (stream.privacy_at, stream.privacy),
    ):
        assert at(10**9) == supremum
        assert at(1000) <= supremum * (1 + 1e-12)
        assert at(1000) == pytest.approx(at(1008), rel=1e-9)
        assert at(10**9, observed=[10**9 - 40]) > supremum


# --- refusals -------------------------------------------------------------------------------------


def test_what_is_refused():
    with pytest.raises(InputError, match="learn"):
        Stream(RUN, 3, 2, ((1.0, 1.0),) * 2)
    for bad in (-1.0, 0.0, math.nan):
        with pytest.raises(InputError, match="delete_factors"):
            Stream(RUN, 1, 1, None, ((1.0, bad),))
    with pytest.raises(CertificateRefused, match="step_size"):
        Stream(RUN, 2, 1, ((1.0, 1.0), (90.0, 1.0)))
    with pytest.raises(CertificateRefused, match="step_size"):
        Stream(replace(RUN, step_size=90.0), 1, 1, ((0.01, 1.0),))
    with pytest.raises(CertificateRefused, match="delete_steps"):
        Stream(RUN, 1, 0, ((1.0, 1.0),)).privacy  # noqa: B018
    slow = replace(RUN, step_size=1e-7)
    with pytest.raises(CertificateRefused, match="slowly"):
        Stream(slow, 1, 1000, ((1.0, 1.0),)).deletion  # noqa: B018
