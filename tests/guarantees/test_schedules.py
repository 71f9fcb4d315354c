"""The pooled accountant: golden values, a numerical optimiser, closed forms, exact laws."""

import math
from dataclasses import replace

import numpy as np
import pytest
from problems import soak
from scipy import optimize

from dd_jax.errors import InputError
from dd_jax.guarantees import adaptive, convex, renyi, schedules
from dd_jax.guarantees.convex import Descent
from dd_jax.guarantees.schedules import cyclic, pooled
from dd_jax.oracles import gaussian, grid, linear
from dd_jax.oracles.phases import in_turn


def uses(batches, place, steps, gone=0):
    """The gap of each step: 1 where the record's batch is used, 0 elsewhere and once it is gone."""
    turn = np.arange(steps + gone)
    return ((turn % batches == place) & (turn < steps)).astype(float)


# --- golden values --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("place", "gone", "expected"),
    [
        (7, 0, 1.9151795459),
        (7, 5, 1.0501037776),
        (3, 5, 0.8816884467),
        (1, 0, 1.0049806327),
        (1, 5, 0.8085546819),
    ],
)
def test_golden_values_of_cyclic_batches(place, gone, expected):
    gap = uses(7, place - 1, 63, gone)
    assert pooled(0.98, gap, 1.0).mu_squared == pytest.approx(expected, abs=1e-9)
    closed = cyclic(0.02, 1.0, 7, 9, 7 - place + gone)
    assert closed == pytest.approx(expected, abs=1e-9)


def test_golden_value_of_a_varying_schedule():
    contraction, noise = (0.9, 0.8, 0.95, 0.7, 0.99), (1, 2, 1, 0.5, 1)
    found = pooled(contraction, (1, 0, 2, 0, 0.5), noise).mu_squared
    assert found == pytest.approx(2.0477319648, abs=1e-9)


def test_batches_that_start_again_with_every_request_are_not_cyclic():
    # c = .98, m = 10, K_U = 1: batch 0 is used by every request.
    assert pooled(0.98, np.ones(3000), 1.0).mu_squared > 95.8
    assert cyclic(0.02, 1.0, 10, np.inf, 0) == pytest.approx(1.82, abs=0.005)


@pytest.mark.parametrize(
    ("batches", "noise", "passes"),
    [
        (1, 2.902e-4, (87, 289, 513, 115)),
        (10, 3.379e-4, (7.3, 27.4, 49.9, 10.1)),
        (20, 5.006e-4, (1.4, 11.5, 22.7, 2.8)),
    ],
)
def test_what_batches_buy_on_mnist(batches, noise, passes):
    """Passes of one deletion at ε_dp/2, ε_dp/10, (0.1, δ), and ε_dp/10 from the null record."""
    n = 11_982
    mu = renyi.gdp_from_epsilon_delta(1.0, 1 / n)
    assert mu == pytest.approx(0.309534, abs=1e-6)
    run = Descent(2, 1.0, 1e-3, 0.25, 1.0, n, 1 / 0.251, batches=batches)
    run = replace(run, noise_variance=convex.least_noise(convex.privacy_optimal, run, mu**2))
    assert run.noise_variance == pytest.approx(noise, rel=4e-4)
    budgets = mu**2 / 2, mu**2 / 10, renyi.gdp_from_epsilon_delta(0.1, 1 / n) ** 2, 4 * mu**2 / 10
    steps = [convex.fewest_steps(convex.deletion_optimal, run, eps) for eps in budgets]
    assert np.divide(steps, batches) == pytest.approx(passes)


# --- the minimum over all ways to hide the shift --------------------------------------------------


def random_schedule(rng, steps):
    """Contractions, gaps with many zeros, and noise over two orders of magnitude."""
    contraction = rng.uniform(0.3, 1.1, steps)
    gap = rng.exponential(1.0, steps) * (rng.random(steps) < 0.6)
    gap[rng.integers(steps)] += 1.0
    return contraction, gap, np.exp(rng.uniform(-2, 2, steps))


def numerically(contraction, gap, noise):
    """min Σ a²/ς² over a ≥ 0 with z ≥ 0 and z_T = 0, by sequential quadratic programming."""
    steps = len(gap)
    shift = np.zeros((steps, steps))  # z = fixed - shift @ a
    for k in range(steps):
        shift[k] = (contraction[k] * shift[k - 1] if k else 0) + np.eye(steps)[k]
    fixed = shift @ gap
    deviation = np.sqrt(noise)
    found = optimize.minimize(
        lambda b: b @ b,  # b = a/ς
        gap / deviation,
        jac=lambda b: 2 * b,
        bounds=[(0, None)] * steps,
        constraints=[
            {"type": "ineq", "fun": lambda b: (fixed - shift @ (b * deviation))[:-1]},
            {"type": "eq", "fun": lambda b: (fixed - shift @ (b * deviation))[-1]},
        ],
        method="SLSQP",
        options={"ftol": 1e-15, "maxiter": 1000},
    )
    return found.fun


def over_all_blocks(contraction, gap, noise):
    """The same minimum exactly: every set of steps at which z = 0, of those that keep z ≥ 0."""
    left = np.append(np.cumprod(contraction[:0:-1])[::-1], 1.0)
    shift, spread = left * gap, left**2 * noise
    best = math.inf
    for chosen in range(2 ** (len(gap) - 1)):
        ends = [k + 1 for k in range(len(gap) - 1) if chosen >> k & 1] + [len(gap)]
        hidden, value, start = np.zeros(len(gap)), 0.0, 0
        for end in ends:
            here = slice(start, end)
            total = shift[here].sum()
            hidden[here] = spread[here] * total / spread[here].sum()
            value, start = value + total**2 / spread[here].sum(), end
        if np.all(np.cumsum(hidden - shift) <= 1e-12 * shift.sum()):
            best = min(best, value)
    return best


def test_pooling_is_the_minimum_over_all_ways_to_hide_the_shift():
    rng = np.random.default_rng(0)
    several = 0
    for _ in range(soak(20, 400)):
        schedule = random_schedule(rng, int(rng.integers(1, 9)))
        pool = pooled(*schedule)
        assert pool.mu_squared == pytest.approx(over_all_blocks(*schedule), rel=1e-12)
        assert pool.mu_squared == pytest.approx(numerically(*schedule), rel=1e-6)
        several += len(pool.blocks) > 1
    assert several > 5


def test_blocks_are_in_order_and_cover_the_steps():
    rng = np.random.default_rng(1)
    for _ in range(30):
        pool = pooled(*random_schedule(rng, 25))
        ratios = [block.ratio for block in pool.blocks]
        assert ratios == sorted(ratios)
        assert [b.first for b in pool.blocks[1:]] == [b.last + 1 for b in pool.blocks[:-1]]
        assert (pool.blocks[0].first, pool.blocks[-1].last) == (0, 24)


def test_more_steps_before_and_more_gap_never_help():
    rng = np.random.default_rng(2)
    for _ in range(100):
        contraction, gap, noise = random_schedule(rng, 12)
        whole = pooled(contraction, gap, noise).mu_squared
        for k in (1, 5, 9):
            later = pooled(contraction[k:], gap[k:], noise[k:]).mu_squared
            assert later <= whole * (1 + 1e-12)
        more = rng.exponential(0.3, 12)
        root = math.sqrt(whole) + math.sqrt(pooled(contraction, more, noise).mu_squared)
        assert whole <= pooled(contraction, gap + more, noise).mu_squared * (1 + 1e-12)
        assert pooled(contraction, gap + more, noise).mu_squared <= root**2 * (1 + 1e-12)
        assert pooled(contraction, 3 * gap, noise).mu_squared == pytest.approx(9 * whole, rel=1e-12)
        # A step without the record is post-processing.
        after = pooled([*contraction, 1.0], [*gap, 0.0], [*noise, 0.3]).mu_squared
        assert after <= whole * (1 + 1e-12)


# --- edges ----------------------------------------------------------------------------------------


def test_steps_without_noise_or_without_memory():
    assert pooled(0.9, [1.0, 1.0], [1.0, 0.0]).mu_squared == math.inf
    # A shift that no noise hid yet is carried into the next step: s = 1 + .9 · 1.
    assert pooled(0.9, [1.0, 1.0], [0.0, 1.0]).mu_squared == pytest.approx(1.9**2, rel=1e-14)
    assert pooled(0.9, [1.0, 0.0, 1.0], [0, 0, 2]).mu_squared == pytest.approx(1.81**2 / 2)
    assert pooled(0.9, [1.0, 0.0], [1.0, 0.0]).mu_squared == pytest.approx(1.0)
    assert pooled(0.9, [0.0, 0.0], [1.0, 0.0]).mu_squared == 0.0
    # c = 0 forgets what was before it, also an infinite cost.
    assert pooled([1, 1, 0], [5.0, 5.0, 2.0], [1.0, 0.0, 1.0]).mu_squared == pytest.approx(4.0)
    assert pooled([0.0], [0.0], [0.0]).mu_squared == 0.0


def test_weights_that_underflow():
    late, early = uses(2, 0, 40), np.zeros(5000)
    short = pooled(0.5, late, 1.0).mu_squared
    assert pooled(0.5, [*early, *late], 1.0).mu_squared == pytest.approx(short, rel=1e-12)
    many = pooled(0.5, uses(2, 0, 6000), 1.0).mu_squared
    assert many == pytest.approx(cyclic(0.5, 1.0, 2, np.inf, 1), rel=1e-11)
    gone = pooled(0.5, uses(2, 0, 40, 900), 1.0)
    assert 0 < gone.mu_squared < 1e-300
    # Below the least float, and never 0.
    assert 0 < pooled(1e-200, [1.0, 0.0, 0.0], 1.0).mu_squared < 1e-300


def test_schedules_that_are_refused():
    for bad in ((-0.1, 1, 1), (0.5, -1, 1), (0.5, 1, -1), (0.5, np.nan, 1), (0.5, np.inf, 1)):
        with pytest.raises(InputError):
            pooled(*bad)
    with pytest.raises(InputError, match="shapes"):
        pooled([0.5, 0.5], [1.0, 1.0, 1.0], 1.0)
    with pytest.raises(InputError, match="vectors"):
        pooled(np.full((2, 2), 0.5), 1.0, 1.0)


# --- closed forms ---------------------------------------------------------------------------------


def test_cyclic_batches_in_closed_form():
    rng = np.random.default_rng(3)
    apart = 0
    for case in range(300):
        batches = 1 if case % 10 == 0 else int(rng.integers(1, 13))
        rate = 1.0 if case % 15 == 1 else rng.uniform(0.001, 0.9)
        times = 1 if case % 7 == 2 else int(rng.integers(1, 9))
        since = int(rng.integers(0, 3 * batches))
        gap = np.zeros((times - 1) * batches + 1 + since)
        gap[: (times - 1) * batches + 1 : batches] = 1.0
        pool = pooled(1 - rate, gap, 1.0)
        closed = cyclic(rate, 1.0, batches, times, since)
        assert closed == pytest.approx(pool.mu_squared, rel=1e-11, abs=1e-300)
        apart += len(pool.blocks) > 1
    assert apart > 20


def test_endless_uses_are_the_limit_and_the_supremum():
    for batches, rate, since in ((1, 0.1, 0), (1, 0.1, 4), (6, 0.02, 0), (6, 0.02, 9), (3, 0.5, 1)):
        endless = cyclic(rate, 1.0, batches, np.inf, since)
        assert cyclic(rate, 1.0, batches, 10_000, since) == pytest.approx(endless, rel=1e-13)
        finite = cyclic(rate, 1.0, batches, np.arange(60.0), since)
        assert np.all(np.diff(finite) >= -1e-14)
        assert 0 == finite[0] < finite[-1] <= endless
        later = cyclic(rate, 1.0, batches, np.inf, np.arange(50.0))
        assert np.all(np.diff(later) <= 0)  # the last batch before the deletion is the worst


def test_full_batches_are_the_known_closed_forms():
    rng = np.random.default_rng(4)
    for _ in range(40):
        l2 = rng.uniform(0.1, 2)
        eta, noise = rng.uniform(0.02, 1) / l2, rng.uniform(0.01, 1)
        run = Descent(3.0, rng.uniform(0.2, 3), l2, 0, noise, 50, eta)
        present, gone = int(rng.integers(1, 30)), int(rng.integers(0, 10))
        gap = 2 * run.step_size * run.lipschitz / run.n
        numbers = 1 - run.step_size * l2, gap, 2 * run.step_size * run.noise_variance

        def bound(present, gone=0, numbers=numbers, order=run.order):
            contraction, gap, noise = numbers
            return (
                order / 2 * pooled(contraction, gap * uses(1, 0, present, gone), noise).mu_squared
            )

        same = pytest.approx
        assert convex.privacy_optimal(run, present) == same(bound(present), rel=1e-12)
        deleted = convex.deletion_optimal(run, gone, present)
        assert deleted == same(bound(present, gone), rel=1e-12)
        history = run, present, gone + 1, 4
        every = bound(present) + 4 * bound(gone + 1)
        assert adaptive.privacy_all_releases(*history) == same(every, rel=1e-12)
        seen = bound(present + gone + 1) + bound(2 * (gone + 1), gone + 1)
        intervals = adaptive.deletion_adaptive_intervals(*history, [1])
        assert intervals == same(seen, rel=1e-12)


def test_worst_batch_of_known_step_counts():
    """Where the batch is not known, the bound is the largest over all batches."""
    run = Descent(2.0, 1.0, 0.5, 0, 0.01, 40, 0.1, batches=4)
    numbers = 1 - 0.05, 2 * 0.1 / 10, 2 * 0.1 * 0.01
    for present in (1, 3, 4, 9, 40):
        for gone in (0, 1, 2, 7):
            contraction, gap, noise = numbers
            all_places = [
                pooled(contraction, gap * uses(4, place, present, gone), noise).mu_squared
                for place in range(4)
            ]
            found = convex.deletion_optimal(run, gone, present)
            assert found == pytest.approx(max(all_places), rel=1e-11)


def test_composition_counts_the_uses_of_the_first_batch():
    """By one Gaussian mechanism of gap 2ηL/b, b the smallest batch, for each use."""
    run = Descent(2.0, 1.0, 0.5, 0, 0.01, 41, 0.1, batches=4)
    for steps, count in ((1, 1), (4, 1), (5, 2), (9, 3)):
        gap, noise = 2 * 0.1 / 10, 2 * 0.1 * 0.01
        assert convex.privacy_lipschitz(run, steps) == pytest.approx(count * gap**2 / noise)


def test_fewest_steps_with_batches():
    rng = np.random.default_rng(5)
    for _ in range(100):
        rate, batches = np.exp(rng.uniform(-7, -0.1)), int(rng.integers(2, 40))
        run = Descent(2.0, 1.0, 1.0, 0, 1.0, 400, rate, batches=batches)
        present = np.inf if rng.random() < 0.5 else int(rng.integers(1, 200))
        eps = convex.deletion_optimal(run, 0, present) * np.exp(rng.uniform(-9, 0.2))
        steps = convex.fewest_steps(convex.deletion_optimal, run, eps, present)
        assert convex.deletion_optimal(run, steps, present) <= eps
        assert steps == 0 or convex.deletion_optimal(run, steps - 1, present) > eps
    start = convex.deletion_optimal(run, 0)
    budgets = [2 * start, start / 10, start / 100]  # the first needs no step
    many = convex.fewest_steps(convex.deletion_optimal, run, budgets)
    alone = [convex.fewest_steps(convex.deletion_optimal, run, eps) for eps in budgets]
    assert many.tolist() == alone
    assert alone[0] == 0 < alone[1] < alone[2]


def test_fewest_steps_with_batches_beyond_what_floats_count():
    run = Descent(2.0, 1.0, 1e-17, 0.25, 1.0, 400, 1.0, batches=2)
    eps = convex.deletion_optimal(run, 0) / 10
    steps = convex.fewest_steps(convex.deletion_optimal, run, eps)
    assert steps == pytest.approx(math.log(10) / 2e-17, rel=1e-6)


# --- batches of rows ------------------------------------------------------------------------------


def test_batches_are_consecutive_rows_of_almost_one_size():
    for n in (1, 2, 7, 10, 37, 100):
        for batches in range(1, n + 1):
            bounds = [schedules.first_row(n, batches, j) for j in range(batches + 1)]
            sizes = np.diff(bounds)
            assert (bounds[0], bounds[-1]) == (0, n)
            assert set(sizes) <= {n // batches, -(-n // batches)}
            assert (sizes[0], sizes[-1]) == (sizes.min(), sizes.max())
            members = np.repeat(np.arange(batches), sizes)
            assert [schedules.batch_of_row(n, batches, row) for row in range(n)] == members.tolist()
    assert schedules.first_row(2**31 - 1, 46_340, 46_340) == 2**31 - 1
    for bad in (0, 11, 2.5):
        with pytest.raises(InputError, match="batches"):
            schedules.check_batches(10, bad)


def test_uses_of_a_batch_by_counting():
    for batches in range(1, 8):
        for start in range(0, 15, 2):
            for stop in range(start, start + 18, 3):
                turns = np.arange(start, stop)
                for batch in range(batches):
                    when = turns[turns % batches == batch]
                    times, since = schedules.uses_of(batch, batches, start, stop)
                    assert times == when.size
                    assert when.size == 0 or since == stop - 1 - when[-1]
    assert schedules.uses_of(0, 10, 10**30, 10**30 + 10)[0] == 1


# --- exact laws -----------------------------------------------------------------------------------
#
# A judge compares an accountant with exact laws and returns the least ratio of bound and exact
# value. It is given the accountant, so that it can be seen to catch wrong ones.


def one_block(contraction, gap, noise):
    """A wrong accountant: the shift may go negative, which is right for the linear loss alone."""
    left = np.append(np.cumprod(np.broadcast_to(contraction, len(gap))[:0:-1])[::-1], 1.0)
    return np.sum(left * gap) ** 2 / np.sum(left**2 * noise)


def right(contraction, gap, noise):
    return pooled(contraction, gap, noise).mu_squared


def least_ratio_of_quadratics(accountant, count, seed=0):
    """Quadratic objectives that differ between steps: two runs differ in their linear terms.

    Every map θ ↦ (I - ηH)θ + ηg has a norm of its own, so contractions, gaps and noise all vary.
    """
    rng, least = np.random.default_rng(seed), math.inf
    for _ in range(count):
        dim, steps = int(rng.integers(1, 4)), int(rng.integers(1, 12))
        etas, noises = rng.uniform(0.1, 1.0, steps), np.exp(rng.uniform(-1, 1, steps))
        gap = rng.exponential(1.0, steps) * (rng.random(steps) < rng.uniform(0.1, 1.0))
        gap[rng.integers(steps)] += 0.5
        direction, phases, contraction = np.eye(dim)[0], ([], []), []
        for k in range(steps):
            turn = (
                np.linalg.qr(rng.normal(size=(dim, dim)))[0] if rng.random() < 0.3 else np.eye(dim)
            )
            values = rng.uniform(-1, 1, dim) if rng.random() < 0.5 else rng.uniform(0.5, 1, dim)
            values = np.where(rng.random(dim) < 0.3, 0.0, values)
            hessian = turn @ np.diag((1 - values) / etas[k]) @ turn.T
            hessian = (hessian + hessian.T) / 2
            contraction.append(np.abs(values).max())
            away = direction if rng.random() < 0.7 else rng.normal(size=dim)
            away = away / np.linalg.norm(away) * gap[k] / etas[k]
            middle = rng.normal(size=dim)
            for run, sign in zip(phases, (1, -1), strict=True):
                run.append(gaussian.Phase(hessian, middle + sign * away / 2, 1))
        laws = [gaussian.law_after(run, etas, noises, np.zeros(dim)) for run in phases]
        exact = gaussian.separation(*laws) ** 2
        if exact > 1e-12:
            found = accountant(np.array(contraction), gap, 2 * etas * noises)
            least = min(least, found / exact)
    return least


def test_quadratic_losses_with_varying_contractions_stay_below_the_bound():
    count = soak(200, 20_000)
    assert 1 - 1e-9 < least_ratio_of_quadratics(right, count) < 1.001  # attained
    assert least_ratio_of_quadratics(one_block, 200) < 0.9


def cyclic_database(rng):
    """Scalar records with labels, the rows of each batch, and the batch and row of the target."""
    n, batches = int(rng.integers(4, 13)), int(rng.integers(2, 5))
    rows = np.array_split(np.arange(n), batches)[::-1]  # any sizes that differ by at most one
    features, labels = rng.choice([-1.0, 1.0], n), rng.choice([-1.0, 1.0], n)
    place = int(rng.integers(batches))
    target = int(rng.choice(rows[place]))
    return features * rng.uniform(0.3, 1.0, n), labels, rows, place, target


SLOPES = {
    # φ'(t, y) with |φ'| ≤ 1 and 0 ≤ φ'' ≤ β
    "logistic": (lambda t, y: -y / (1 + np.exp(np.clip(y * t, -500, 500))), 0.25),
    "huber": (lambda t, y: np.clip((t - y) / 0.7, -1, 1), 1 / 0.7),
    "clipped": (lambda t, y: t - 2 * y, 1.0),  # squared, its gradient clipped to norm 1
}


def least_ratio_of_densities(accountant, count, seed=0, null=False):
    """Cyclic batches of a loss in one dimension; a record present for some steps, then replaced.

    In the other world its row held another record, or nothing (`null`), which is half as far away.
    The least ratio is over R_q and, as GDP, over the best test's advantage.
    """
    rng, least = np.random.default_rng(seed), math.inf
    for case in range(count):
        slope, smooth = list(SLOPES.values())[case % len(SLOPES)]
        features, labels, rows, place, target = cyclic_database(rng)
        l2 = rng.uniform(0.05, 1.0)
        eta = rng.uniform(0.2, 1.0) * 2 / (2 * l2 + smooth)
        present, gone = int(rng.integers(1, 9)), int(rng.integers(0, 5))
        size = len(rows[place])
        noise = eta * (2 / size) ** 2 * np.exp(rng.uniform(-1.5, 1.0)) / 2
        after = (0.0, 1.0)  # what replaces the record: it adds nothing

        def batch(which, record, database=(features, labels, slope, target), l2=l2):
            features, labels, slope, target = database
            here = np.isin(which, target)
            a = np.where(here, record[0], features[which])
            y = np.where(here, record[1], labels[which])

            def gradient(theta):
                one = slope(np.multiply.outer(theta, a), y) * a
                return np.clip(one, -1, 1).mean(-1) + l2 * theta

            return grid.Phase(gradient, 1)

        reach = 1 / l2 + 12 * np.sqrt(noise / l2)
        where = grid.grid_for(-reach, reach, eta, noise, 0.2)
        laws = []
        for record in ((1.0, 1.0), after if null else (-1.0, 1.0)):
            runs = [[batch(which, held) for which in rows] for held in (record, after)]
            run = in_turn(runs[0], 0, present) + in_turn(runs[1], present, gone)
            laws.append(grid.law_after(run, eta, noise, 0.1, where))
        gap = (1 if null else 2) * eta / size * uses(len(rows), place, present, gone)
        found = accountant(1 - eta * l2, gap, 2 * eta * noise, len(features) / size)
        for order in (1.5, 3.0):
            exact = max(grid.renyi(order, *laws), grid.renyi(order, *laws[::-1]))
            if exact > 1e-9:
                least = min(least, order * found / 2 / exact)
        exact = grid.total_variation(*laws)
        if exact > 1e-6:
            least = min(least, renyi.gdp_delta(math.sqrt(found), 0.0) / exact)
    return least


def test_densities_of_convex_losses_with_batches_stay_below_the_bound():
    def full(c, gap, noise, _):
        return right(c, gap, noise)

    def too_small(c, gap, noise, batches):  # 2ηL/n in place of 2ηL/b
        return right(c, gap / batches, noise)

    count = soak(12, 300)
    assert least_ratio_of_densities(full, count) > 1 - 1e-6
    assert least_ratio_of_densities(full, count, null=True) > 1 - 1e-6
    assert least_ratio_of_densities(too_small, 12) < 0.9


def least_ratio_of_linear(accountant, count, seed=0):
    """The linear loss in all places, sizes of batches, and step counts."""
    rng, least, attained = np.random.default_rng(seed), math.inf, 0
    for _ in range(count):
        batches, rows, rate = (
            int(rng.integers(1, 12)),
            int(rng.integers(1, 9)),
            rng.uniform(0.005, 0.7),
        )
        place = int(rng.integers(batches)) if rng.random() < 0.6 else 0
        present, gone = int(rng.integers(1, 60)), int(rng.integers(0, 12))
        if rng.random() < 0.5:
            present = -(-present // batches) * batches  # whole passes
        gap = 2 / rows * uses(batches, place, present, gone)
        if not gap.any():
            continue
        noise = rng.uniform(0.1, 3.0)
        exact = linear.renyi_of_steps(2.0, 1.0, gap, noise, rate)
        found = accountant(1 - rate, rate * gap, 2 * rate * noise, batches)
        least = min(least, found / exact)
        if place == 0 and present % batches == 0:
            attained += abs(found / exact - 1) < 1e-11
    return least, attained


def test_linear_loss_attains_the_bound_in_the_first_batch():
    count = soak(150, 600)
    least, attained = least_ratio_of_linear(lambda c, gap, noise, _: right(c, gap, noise), count)
    assert least > 1 - 1e-11
    assert attained > count / 6


def skips_the_last_use(c, gap, noise, _):
    return right(c, np.where(np.arange(gap.size) == np.flatnonzero(gap)[-1], 0, gap), noise)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda c, gap, noise, batches: right(c, gap / batches, noise),  # 2ηL/n
        lambda c, gap, noise, batches: right(c, np.append(gap[1:], 0.0), noise),  # another place
        skips_the_last_use,
    ],
    ids=["gap", "place", "skipped"],
)
def test_wrong_accountants_are_caught_by_the_linear_loss(wrong):
    assert least_ratio_of_linear(wrong, 150)[0] < 0.9
