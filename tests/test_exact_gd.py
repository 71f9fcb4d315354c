"""Exact arithmetic: slopes, gradients and whole runs against rational numbers and exact laws."""

import functools
import math
import os
import subprocess
import sys
from dataclasses import replace
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from problems import features, signed, soak
from scipy import stats

import dd_jax as dd
from dd_jax import CertificateRefused, InputError, chacha, exact_gd, noisy_gd
from dd_jax.constants import exact_shape
from dd_jax.guarantees import schedules
from dd_jax.losses import exact_slopes
from dd_jax.oracles import lattice as laws
from dd_jax.plans import lattice
from dd_jax.plans.settings import descent

N, DIM = 23, 3


def planned(loss, n=N, dim=DIM, l2=0.05, **how):
    problem = dd.Problem(loss, l2, row_chunk=how.pop("row_chunk", None))
    budgets = {"order": 2.0, "eps_dp": 1.0, "eps_dd": 0.1} | how
    return problem, dd.plan_convex(problem, n=n, dim=dim, arithmetic="exact", **budgets)


def huber_data(n, dim):
    rng = np.random.default_rng(5)
    return dd.Labelled(features(n, dim), jnp.asarray(rng.normal(size=n) * 3, jnp.float32))


CASES = {
    "logistic": (dd.losses.logistic(), signed(N, DIM)),
    "logistic-intercept": (dd.losses.logistic(intercept=True), signed(N, DIM - 1)),
    "smoothed-hinge": (dd.losses.smoothed_hinge(smoothing=0.3), signed(N, DIM)),
    "huber": (dd.losses.huber(threshold=0.7), huber_data(N, DIM)),
    "linear": (dd.losses.linear(), features(N, DIM)),
}


# --- slopes ---------------------------------------------------------------------------------------


def slope_meant(name, t, y):
    """The slope that the proof is about, as a rational number."""
    if name == "linear":
        return Fraction(-1)
    if name == "smoothed-hinge":
        return -min(max((1 - t) / Fraction(0.3), 0), 1)
    if name == "huber":
        return min(max(t - y, -Fraction(0.7)), Fraction(0.7))
    knots = exact_slopes.logistic_knots()
    place = min(max(t, -24), 24) * 256 + 24 * 256
    low = min(math.floor(place), len(knots) - 2)
    rise = int(knots[low + 1]) - int(knots[low])
    return (int(knots[low]) + rise * (place - low)) / Fraction(2**32)


@pytest.mark.parametrize("name", CASES)
def test_slopes_are_the_nearest_whole_numbers(name):
    loss = CASES[name][0]
    score_bits, slope_bits = 32, 26
    rng = np.random.default_rng(1)
    score = (rng.normal(size=300) * 4 * 2**score_bits).astype(np.int64)
    score[:4] = [0, 2**score_bits, 40 << score_bits, -(40 << score_bits)]
    label = (rng.normal(size=300) * 2**score_bits).astype(np.int64)
    with jax.enable_x64(True):
        found = loss.scores.exact(jnp.asarray(score), jnp.asarray(label), score_bits, slope_bits)
    for t, y, slope in zip(score.tolist(), label.tolist(), np.asarray(found).tolist(), strict=True):
        unit = Fraction(1, 2**score_bits)
        exact = slope_meant(name.split("-intercept")[0], t * unit, y * unit)
        assert abs(Fraction(slope, 2**slope_bits) - exact) <= Fraction(1, 2 ** (slope_bits + 1)) + (
            Fraction(1, 2**50)
        )


def test_the_interpolated_logistic_slope_is_convex_and_no_steeper():
    knots = exact_slopes.logistic_knots()
    rise = np.diff(knots)
    assert np.all(rise >= 0)
    assert rise.max() * 2**exact_slopes.KNOT_BITS <= 2**30  # 1/4 in multiples of 2⁻³²
    assert (knots[0], knots[-1]) == (-(2**32), 0)
    z = np.linspace(-25, 25, 100_001)
    place = np.linspace(-24, 24, len(knots))
    off = np.interp(z, place, knots / 2.0**32) + 1 / (1 + np.exp(z))
    assert np.abs(off).max() < 2e-7


# --- one step -------------------------------------------------------------------------------------


def worst_records(name, loss, database):
    """Records and models with large scores and gradients that add up."""
    rng = np.random.default_rng(3)
    direction = rng.normal(size=DIM)
    direction /= np.linalg.norm(direction)
    if name == "linear":
        return jnp.asarray(np.broadcast_to(0.99 * direction, (N, DIM)), jnp.float32)
    rows = np.asarray(database.features).copy()
    rows[: N // 2] = 0.99 * direction[: rows.shape[1]]
    return dd.Labelled(jnp.asarray(rows, jnp.float32), database.label)


@pytest.mark.parametrize("name", CASES)
def test_a_step_is_within_the_stated_error_of_rational_arithmetic(name, monkeypatch):
    loss, database = CASES[name]
    if name == "huber":  # so coarse that the scores are most of the error
        monkeypatch.setattr(lattice, "SCORE_BITS", (16, 16))
    if name == "linear":  # or the step
        monkeypatch.setattr(lattice, "STEP_BITS", (12, 12))
    # Two batches of 11 and 12 rows, or all.
    batches = 2 if name == "smoothed-hinge" else 1
    problem, plan = planned(loss, batches=batches)
    numbers = lattice.of(plan)
    rng, error = np.random.default_rng(0), 0.0
    records = worst_records(name, loss, database)
    with jax.enable_x64(True):
        fine = exact_gd.descent_of(problem, records, plan)
        centre = exact_gd.centre_of(problem, records, plan)
        descend = jax.jit(lambda *at: (fine(*at), centre(*at)))
    a, y = cut_records(loss, numbers, records)
    for k, size in enumerate((1.0, 0.02, 1e-4)[: soak(2, 3)]):
        box, batch = 2**numbers.box_bits, k % batches
        first, stop = (schedules.first_row(N, batches, batch + more) for more in (0, 1))
        state = rng.integers(-int(box * size), int(box * size), DIM)
        with jax.enable_x64(True):
            found, ends = map(np.asarray, descend(jnp.asarray(state), jnp.int32(batch)))
        unit = 2**numbers.step_bits
        # Rounding is to the nearest point; towards zero it would be off by up to twice as much.
        assert np.all(np.abs(ends * unit - found) <= unit // 2)
        # In units of Δ, with every number as a fraction.
        spacing, eta = Fraction(numbers.spacing), Fraction(plan.step_size)
        theta = [int(i) * spacing for i in state]
        total = [Fraction(0)] * DIM
        for row, label in zip(a[first:stop], y[first:stop], strict=True):
            t = sum(p * q for p, q in zip(row, theta, strict=True))
            slope = slope_meant(name.split("-intercept")[0], t, label)
            total = [s + slope * p for s, p in zip(total, row, strict=True)]
        l2 = Fraction(problem.l2)
        for j in range(DIM):
            exact = theta[j] - eta * (total[j] / (stop - first) + l2 * theta[j])
            off = int(found[j]) * spacing / 2**numbers.step_bits - exact
            error = max(error, abs(float(off)))
    assert error <= plan.step_size * numbers.gradient_error
    assert error > 0 or name == "linear"


def cut_records(loss, numbers, records):
    """The features, times labels for a margin loss, and labels, as fractions."""
    part, label = loss.scores.split(records)
    part, label = np.asarray(part, np.float64), np.asarray(label, np.float64)
    if loss.scores.intercept:
        part = np.concatenate([part, np.ones((len(part), 1))], axis=1)
    if loss.scores.margin:
        part = part * label[:, None]
    whole = np.trunc(part * 2.0**numbers.feature_bits).astype(int)
    rows = [[Fraction(int(x), 2**numbers.feature_bits) for x in row] for row in whole]
    unit = 2**numbers.score_bits
    return rows, [Fraction(round(float(y) * unit), unit) for y in label]


def test_a_step_is_the_centre_and_noise_clamped_to_the_box():
    loss, database = CASES["logistic"]
    problem, plan = planned(loss, batches=2)
    box, ends, centres = 2 ** lattice.of(plan).box_bits, [], []
    state = np.array([3 * box // 2, box // 5, -box // 7])
    words = jnp.asarray(state.view(np.uint32).reshape(DIM, 2))
    fixed = jax.random.key(0), words, database, problem, plan
    run = jax.jit(lambda batch: exact_gd.run(*fixed, num_steps=1, first_batch=batch))
    for batch in (0, 1):
        end = np.ascontiguousarray(np.asarray(run(batch)))
        ends.append(end.view(np.int64)[:, 0])
        with jax.enable_x64(True):
            centre = exact_gd.centre_of(problem, database, plan)
            centres.append(np.asarray(centre(jnp.asarray(state), jnp.int32(batch))))
    noise = [end[1:] - centre[1:] for end, centre in zip(ends, centres, strict=True)]
    assert ends[0][0] == ends[1][0] == box < centres[0][0]
    assert np.array_equal(*noise)
    assert np.all(noise[0] != 0)
    assert not np.array_equal(*centres)


def test_a_record_outside_the_ball_adds_nothing():
    loss, database = CASES["logistic"]
    problem, plan = planned(loss)
    state = jnp.arange(DIM, dtype=jnp.int32) * 1000

    def descended(row):
        rows = database._replace(features=database.features.at[4].set(row))
        with jax.enable_x64(True):
            descend = exact_gd.descent_of(problem, rows, plan)
            return np.asarray(descend(state.astype(jnp.int64), jnp.int32(0)))

    assert np.array_equal(descended(0.7), descended(0.0))
    assert not np.array_equal(descended(0.5), descended(0.0))


# --- whole runs -----------------------------------------------------------------------------------


def released(problem, plan, database, key=0, **how):
    requester = dd.requesters.random_replacement(n=N, pool=signed(N, DIM, seed=9))
    curator = noisy_gd.mechanism(problem, plan)
    state, happened = dd.interact(
        jax.random.key(key), curator, requester, database, num_requests=2, **how
    )
    return np.asarray(state.params), np.asarray(happened.releases)


def test_the_bits_do_not_depend_on_how_a_run_is_computed():
    loss, database = CASES["logistic"]
    problem, plan = planned(loss)
    state = jnp.asarray(np.random.default_rng(2).integers(-(10**6), 10**6, (4, DIM)), jnp.int32)

    def descended(problem, database, many=False):
        with jax.enable_x64(True):
            descend = exact_gd.descent_of(problem, database, plan)
            whole, first = state.astype(jnp.int64), jnp.int32(0)
            if many:
                return np.asarray(jax.jit(jax.vmap(descend, (0, None)))(whole, first))
            return np.stack([np.asarray(jax.jit(descend)(one, first)) for one in whole[:2]])

    expected = descended(problem, database)
    assert np.array_equal(expected, descended(replace(problem, row_chunk=5), database))
    assert np.array_equal(expected, descended(problem, dd.databases.compress(database)))
    for rows in (None, 5):
        many = descended(replace(problem, row_chunk=rows), database, many=True)
        assert np.array_equal(expected, many[:2])

    plan = replace(plan, learn_steps=2, delete_steps=1)
    curator = noisy_gd.mechanism(problem, plan)
    keys = jnp.stack([jax.random.key(k) for k in range(3)])
    many = jax.jit(jax.vmap(curator.learn, (0, None)))(keys, database)
    assert many.dtype == np.uint32
    assert np.array_equal(many[1], jax.jit(curator.learn)(jax.random.key(1), database))
    whole, seen = released(problem, plan, database)
    assert seen.dtype == np.float32
    overlaid, seen_over_it = released(problem, plan, database, overlay=True)
    assert np.array_equal(whole, overlaid)
    assert np.array_equal(seen, seen_over_it)


FORCED = """
import jax, numpy as np, sys
import dd_jax as dd
from dd_jax import noisy_gd, sharding
sys.path.insert(0, {tests!r})
from problems import signed
from test_exact_gd import planned
database = signed(24, 3)
problem, plan = planned(dd.losses.logistic(), n=24)
curator = noisy_gd.mechanism(problem, plan)
requester = dd.requesters.random_replacement(n=24, pool=signed(24, 3, seed=9))
def run(**how):
    return dd.interact(jax.random.key(0), curator, requester, database, num_requests=2, **how)[1]
alone = run().releases
split = run(mesh=sharding.make_mesh(data=8, seeds=1)).releases
assert np.array_equal(np.asarray(alone), np.asarray(split))
print("same")
"""


@pytest.mark.skipif(not soak(False, True), reason="a process of its own; in `make soak`")
def test_the_bits_do_not_depend_on_how_many_devices_share_the_rows():
    tests = os.path.dirname(__file__)
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=8"}
    code = FORCED.format(tests=tests)
    env = {**os.environ, **flags}
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "same", done.stderr[-2000:]


def test_the_program_has_the_law_of_the_oracle():
    """The linear loss in one dimension, on a lattice so coarse that a step is few points."""
    records = jnp.asarray(np.linspace(-1, 1, N)[:, None] ** 3 * 0.9 + 0.05, jnp.float32)
    problem, plan = planned(dd.losses.linear(), dim=1, l2=0.5, step_size=1.0)  # c = 1/2
    plan = replace(plan, lattice_bits=8, init_variance=0.0, learn_steps=3)
    numbers = lattice.of(plan)
    cut = np.trunc(np.asarray(records, float) * 2.0**numbers.feature_bits) / 2**numbers.feature_bits
    drift = plan.step_size * cut.mean() / numbers.spacing
    contraction = 1 - numbers.shrink / 2**numbers.step_bits
    parameter = 256 / math.sqrt(2 * math.log(2))
    law = laws.linear_law(contraction, [drift] * 3, parameter)
    count = soak(2000, 40_000)
    keys = jax.random.split(jax.random.key(4), count)
    words = jax.jit(jax.vmap(noisy_gd.mechanism(problem, plan).learn, (0, None)))(keys, records)
    seen = np.ascontiguousarray(np.asarray(words)).view(np.int64)[:, 0, 0]

    def chance_of(law):
        """How likely samples this far from a law are, in 20 bins of about equal size."""
        total = np.cumsum(law.mass)
        edges = law.first + np.searchsorted(total, np.arange(1, 20) / 20)
        chance = np.diff(np.concatenate([[0], total[edges - law.first], [1]]))
        bins = np.bincount(np.searchsorted(edges, seen), minlength=20)
        return stats.chisquare(bins, chance * count).pvalue

    assert chance_of(law) > 1e-3
    # The laws of programs with a mistake: half the drift, more noise.
    for push, noise in ((drift / 2, parameter), (drift, 1.2 * parameter)):
        assert chance_of(laws.linear_law(contraction, [push] * 3, noise)) < 1e-6


def test_batches_a_host_loop_and_a_secret_generator():
    loss, database = CASES["logistic"]
    problem, plan = planned(loss, batches=2)
    curator = noisy_gd.mechanism(problem, plan)
    generator = soak(None, chacha.GENERATOR)
    key = functools.partial(jax.random.key, 3, impl=generator)
    edit = dd.deletion(loss, database, [4])
    state, happened = dd.drive(key(), curator, lambda i, _: edit, database, num_requests=1)
    assert state.params.model.shape == (DIM, 2)
    assert int(state.params.batch) == (plan.learn_steps + plan.delete_steps) % 2
    certificate = plan.certify(happened, request=1, row=4)
    assert certificate.eps_dd <= 0.1
    assert "exact in any order" in str(certificate).replace("\n      ", " ")


# --- plans ----------------------------------------------------------------------------------------


def test_rounding_costs_one_percent_of_each_budget():
    for how in ({}, {"batches": 3}, {"reference": "null"}, {"order": None, "delta": 1e-3}):
        problem, plan = planned(dd.losses.logistic(), n=500, **how)
        fast = dd.plan_convex(
            problem, n=500, dim=DIM, **({"order": 2.0, "eps_dp": 1.0, "eps_dd": 0.1} | how)
        )
        exact = plan.certificate()
        deleted = exact.eps_dd_null if "reference" in how else exact.eps_dd
        assert exact.eps_dp <= 1.0
        assert deleted <= 0.1
        if "delta" not in how:  # its conversion from the divergence is a looser one
            assert plan.noise_variance <= 1.02 * fast.noise_variance
        assert exact.mu_dd is None
        assert exact.advantage_bound < 1
        assert dd.Plan.from_json(plan.to_json(), problem) == plan
        again = dd.Certificate.from_json(exact.to_json(), problem)
        assert again.is_genuine(problem)


@pytest.mark.parametrize(
    ("loss", "how"),
    [
        (dd.losses.logistic(), {"batches": 7}),
        (dd.losses.logistic(feature_norm=3.0, intercept=True), {"dim": 2000}),
        (dd.losses.smoothed_hinge(smoothing=0.1), {}),
        (dd.losses.huber(threshold=3.0, feature_norm=0.5), {}),
        (dd.losses.linear(), {"dim": 300}),
    ],
)
def test_no_number_is_larger_than_the_proof_says(loss, how):
    problem, plan = planned(loss, **{"n": 10**5, "dim": 30} | how)
    at, eta = lattice.of(plan), plan.step_size
    radius, slope = at.shape.radius, at.shape.slope
    rows, record = math.ceil(plan.n / plan.batches), at.shape.radius * 2.0**at.feature_bits
    reach = math.sqrt(plan.dim) * 2.0**at.box_bits  # of a model, in Δ
    assert record * reach < 2**53
    assert rows * 2.0**at.slope_bits * slope * record < 2**53
    assert radius * reach * at.spacing * 2.0**at.score_bits < 2**61
    push = eta * radius * slope / at.spacing
    assert (2.0**at.box_bits + push) * 2.0**at.step_bits < 2**62
    # The noise is that of the certificate, the start no wider, and the box holds the optimum.
    noise = 2.0**at.noise_bits * at.spacing / math.sqrt(2 * math.log(2))
    assert noise == pytest.approx(math.sqrt(2 * eta * plan.noise_variance), rel=1e-12)
    wide = noise * 2.0 ** (at.start_bits - at.noise_bits)
    assert wide**2 <= plan.init_variance * (1 + 1e-9)
    assert at.box > min(radius * slope / problem.l2, math.sqrt(2 * at.shape.fall / problem.l2))


def test_features_keep_their_bits_whatever_their_unit():
    for norm in (1e-6, 1.0, 1e4):
        _, plan = planned(dd.losses.logistic(feature_norm=norm), l2=0.05 * norm**2)
        assert norm * 2.0 ** lattice.of(plan).feature_bits >= 2**16


def test_numbers_are_those_of_the_counted_schedule():
    """The certificate adds a floor to the number of real numbers: never below the pooled bound."""
    _, plan = planned(dd.losses.logistic(), n=500)
    plan = replace(plan, lattice_bits=10)  # coarse, so that rounding counts
    run, found = descent(plan), plan.certificate(request=3)
    steps = plan.learn_steps + 3 * plan.delete_steps
    present = steps - plan.delete_steps
    gaps = np.where(np.arange(steps) < present, 2 * run.step_size / 500 * run.lipschitz, 0.0)
    noise = 2 * run.step_size * run.noise_variance
    contraction = 1 - run.step_size * run.l2
    pool = schedules.pooled(contraction, gaps + lattice.gap(plan), noise)
    uncounted = schedules.pooled(contraction, gaps, noise)
    assert found.eps_dd_request >= pool.mu_squared * (1 - 1e-12) > 1.05 * uncounted.mu_squared


def test_rounding_is_counted_in_every_number():
    _, plan = planned(dd.losses.logistic(), n=500)
    plan = replace(plan, lattice_bits=10)
    ideal = replace(plan, arithmetic="fast", lattice_bits=None)
    found, less = (p.certificate(request=3, adaptivity=2) for p in (plan, ideal))
    for name in (each for each in vars(found) if each.startswith(("eps_", "risk_bound"))):
        known = getattr(less, name)
        assert known is None or getattr(found, name) > 1.001 * known, name
    assert found.advantage_bound > less.advantage_bound


@pytest.mark.parametrize(
    ("loss", "how"),
    [
        (dd.losses.softmax(num_classes=3), {}),
        (dd.losses.squared(label_bound=1.0), {"protects": "label"}),
        (dd.losses.logistic(), {"learn_factors": ((1.0, 1.0),), "delete_factors": ((1.0, 1.0),)}),
        (dd.losses.logistic(), {"accountant": "paper"}),
        (dd.losses.logistic(), {"eps_dp": 1e-7, "eps_dd": 1e-12, "n": 10**7}),
        (dd.losses.logistic(), {"arithmetic": "sloppy"}),
    ],
)
def test_what_has_no_proof_is_refused(loss, how):
    asked = {"n": 100, "dim": 3, "order": 2.0, "eps_dp": 1.0, "eps_dd": 0.1, "arithmetic": "exact"}
    with pytest.raises(InputError):
        dd.plan_convex(dd.Problem(loss, 0.05), **(asked | how))


def test_clipping_and_foreign_losses_are_refused():
    problem = dd.Problem(dd.losses.logistic(), 0.05, clip_norm=0.5)
    with pytest.raises(CertificateRefused, match="clipping"):
        dd.plan_convex(problem, n=9, dim=2, order=2.0, eps_dp=1, eps_dd=0.1, arithmetic="exact")
    own = dd.losses.from_scores(
        dd.losses.logistic().scores._replace(exact=None),
        dd.losses.logistic().constants,
        dd.losses.logistic().domain,
    )
    problem, plan = planned(dd.losses.logistic())
    with pytest.raises(InputError, match="exact"):
        noisy_gd.mechanism(dd.Problem(own, 0.05), plan.of(dd.Problem(own, 0.05)))


def test_platforms_without_doubles_are_refused(monkeypatch):
    problem, plan = planned(CASES["linear"][0])
    key, database = jax.random.key(0), CASES["linear"][1]
    words = exact_gd.start(key, plan)
    monkeypatch.setattr(jax, "default_backend", lambda: "tpu")
    with pytest.raises(InputError, match="float64"):
        exact_gd.run(key, words, database, problem, plan, num_steps=1, first_batch=jnp.int32(0))


def test_shapes_are_read_off_the_constants():
    for loss, curvature in (
        (dd.losses.logistic(feature_norm=2.0), 0.25),
        (dd.losses.smoothed_hinge(smoothing=0.5), 2.0),
        (dd.losses.huber(threshold=0.7, feature_norm=3.0), 1.0),
        (dd.losses.linear(), 0.0),
    ):
        shape, known = exact_shape(loss.constants), loss.constants
        assert shape.slope * shape.radius == pytest.approx(known.lipschitz)
        assert shape.curvature == pytest.approx(curvature)
        assert shape.curvature * shape.radius**2 == pytest.approx(known.smoothness)
