import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from exact_laws import p_value, quadratic_law
from problems import CATALOGUE, deleting, features, signed, soak

import dd_jax as dd
from dd_jax import erm, noisy_gd
from dd_jax.keys import tagged
from dd_jax.noisy_gd import Schedule
from dd_jax.plans import arithmetic
from dd_jax.requesters import fixed_stream, stack_edits

RUN = {"step_size": 0.5, "noise_variance": 1e-2}


@pytest.fixture
def setting():
    database = signed(60, 4)
    problem = dd.Problem(dd.losses.logistic(), 0.1, 0.3)
    return problem, jnp.ones(4), database


def test_step_is_the_update_of_the_algorithm(setting):
    problem, params, database = setting
    key = jax.random.key(0)
    moved = noisy_gd.step(jax.random.clone(key), params, database, problem, 0.5, 1e-2)
    noise = jax.random.normal(key, (4,))
    expected = params - 0.5 * erm.gradient(problem, params, database) + np.sqrt(0.01) * noise
    np.testing.assert_allclose(moved, expected, rtol=1e-6)


def test_one_long_run_passes_through_every_shorter_one(setting):
    problem, params, database = setting
    key = jax.random.key(1)
    path = noisy_gd.trajectory(key, params, database, problem, num_steps=7, **RUN)
    for steps in (1, np.int64(4), jnp.int32(7)):
        end = noisy_gd.run(key, params, database, problem, num_steps=steps, **RUN)
        np.testing.assert_allclose(path[steps - 1], end, rtol=1e-6)
    same = noisy_gd.run(key, params, database, problem, num_steps=0, **RUN)
    np.testing.assert_array_equal(same, params)


def test_a_run_can_be_continued(setting):
    problem, params, database = setting
    key = jax.random.key(2)
    whole = noisy_gd.run(key, params, database, problem, num_steps=6, **RUN)
    half = noisy_gd.run(key, params, database, problem, num_steps=2, **RUN)
    rest = noisy_gd.run(key, half, database, problem, num_steps=4, first_step=2, **RUN)
    np.testing.assert_allclose(rest, whole, rtol=1e-6)
    counted = jax.jit(
        lambda first, steps: noisy_gd.run(
            key, half, database, problem, num_steps=steps, first_step=first, **RUN
        )
    )
    np.testing.assert_allclose(counted(2, 4), whole, rtol=1e-6)


def test_steps_that_cannot_be_run_are_refused(setting):
    problem, params, database = setting

    def models(num_steps, form=noisy_gd.trajectory):
        return form(jax.random.key(2), params, database, problem, num_steps=num_steps, **RUN)

    assert models(np.array(3)).shape == (3, 4)
    for attempt in (lambda: jax.jit(models)(3), lambda: models(-1, noisy_gd.run)):
        with pytest.raises(dd.InputError, match="num_steps"):
            attempt()


def test_different_steps_and_seeds_draw_different_noise(setting):
    problem, params, database = setting
    flat = dd.Problem(problem.loss, 1e-9, 1e-9)
    path = noisy_gd.trajectory(jax.random.key(3), params, database, flat, num_steps=3, **RUN)
    increments = np.diff(np.concatenate([params[None], path]), axis=0)
    assert len(np.unique(np.round(increments, 6))) == 12


@pytest.mark.parametrize("name", ["logistic", "network-intercept"])
def test_optax_form_equals_run(name):
    case = CATALOGUE[name]
    database = case.make(40, 3, 0, jnp.float32)
    problem = dd.Problem(case.loss, 0.2, 0.4)
    params = noisy_gd.standard_normal_like(jax.random.key(4), case.loss.template(database))
    key = jax.random.key(5)
    expected = noisy_gd.run(key, params, database, problem, num_steps=5, **RUN)
    transform = noisy_gd.as_optax(key, l2=0.2, **RUN)
    state = transform.init(params)

    @jax.jit
    def follow(params, state):
        regularised = erm.gradient(problem, params, database)
        means = jax.tree.map(lambda g, w: g - 0.2 * w, regularised, params)
        updates, state = transform.update(means, state, params)
        return optax.apply_updates(params, updates), state

    for _ in range(5):
        params, state = follow(params, state)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), params, expected
    )
    with pytest.raises(dd.InputError, match="params"):
        transform.update(params, state)


def test_mechanism_learns_from_the_gaussian_start_and_deletes_from_the_last_model(setting):
    problem, _, database = setting
    plan = Schedule(0.5, 1e-2, 4.0, 3, 2)
    mechanism = noisy_gd.mechanism(problem, plan)
    key = jax.random.key(6)
    replay = jax.random.clone(key)
    start = 2.0 * jax.random.normal(tagged(key, "start"), (4,))
    learned = noisy_gd.run(key, start, database, problem, num_steps=3, **RUN)
    np.testing.assert_allclose(mechanism.learn(replay, database), learned, rtol=1e-6)
    edit = dd.deletion(problem.loss, database, [7])
    deleted = noisy_gd.run(
        jax.random.key(7), learned, dd.apply_edit(database, edit), problem, num_steps=2, **RUN
    )
    np.testing.assert_allclose(
        deleting(mechanism)(jax.random.key(7), database, edit, learned), deleted, rtol=1e-6
    )
    np.testing.assert_array_equal(mechanism.publish(jax.random.key(8), learned), learned)
    assert mechanism.domain is problem.loss.domain


def test_a_mechanism_refuses_a_plan_for_another_problem(setting):
    """Traced numbers may be any: without this a vmapped λ would run under one λ's certificate."""
    with pytest.raises(dd.InputError, match="plan again"):
        noisy_gd.mechanism(setting[0], planned())
    with pytest.raises(dd.InputError, match="traced"):
        jax.vmap(lambda l2: noisy_gd.mechanism(dd.Problem(LOSS, l2), planned()) and l2)(
            jnp.array([0.1, 0.2])
        )


LOSS = dd.losses.logistic()
PLANNED = dd.Problem(LOSS, 0.1)


def planned(n=60, dim=4, **more):
    return dd.plan_convex(PLANNED, n=n, dim=dim, order=2, eps_dp=1.0, eps_dd=0.5, **more)


PLANS = {
    "n = 100000": {"n": 100_000},
    "dim = 7": {"dim": 7},
    "float64": {"dtype": "float64"},
}


@pytest.mark.parametrize("word", PLANS)
def test_a_plan_serves_only_the_sizes_it_was_made_for(setting, word):
    database = setting[2]
    edit = dd.deletion(LOSS, database, [0])
    curator = noisy_gd.mechanism(PLANNED, planned(**PLANS[word]))
    with pytest.raises(dd.InputError, match=word):
        jax.jit(curator.learn)(jax.random.key(0), database)
    with pytest.raises(dd.InputError, match=word):
        jax.jit(deleting(curator))(jax.random.key(0), database, edit, jnp.zeros(4))


def test_a_plan_serves_no_longer_edits_than_it_was_made_for(setting):
    delete = deleting(noisy_gd.mechanism(PLANNED, planned()))
    edit = dd.deletion(LOSS, setting[2], [0, 1])
    with pytest.raises(dd.InputError, match="edits_per_request=2"):
        delete(jax.random.key(0), setting[2], edit, jnp.zeros(4))


def test_what_is_published_is_rounded_and_what_is_kept_is_not(setting):
    database = setting[2]
    plan = planned()
    mechanism = noisy_gd.mechanism(PLANNED, plan)
    grid = arithmetic.publication_grid(plan)
    assert arithmetic.noise_deviation(plan) / 64 < grid <= arithmetic.noise_deviation(plan) / 32
    requester = dd.requesters.deletions(LOSS, database, [3, 5])
    state, transcript = dd.interact(
        jax.random.key(0), mechanism, requester, database, num_requests=2
    )
    released = np.asarray(transcript.releases[-1], np.float64)
    np.testing.assert_array_equal(released, grid * np.round(np.asarray(state.params) / grid))
    assert np.any(np.asarray(state.params) != released)
    # The same numbers without a plan publish the model as it is: the models kept are the same.
    unrounded, _ = dd.interact(
        jax.random.key(0),
        noisy_gd.mechanism(PLANNED, Schedule.of(plan)),
        requester,
        database,
        num_requests=2,
    )
    np.testing.assert_array_equal(state.params, unrounded.params)
    # Where the grid is below the spacing of floats a model stays as it is, however large.
    huge = jnp.array([3e38, -1e30, 1e9, jnp.finfo(jnp.float32).max])
    np.testing.assert_array_equal(mechanism.publish(jax.random.key(0), huge), huge)


@pytest.mark.parametrize("noise", [1e-60, 1e60])
def test_noise_that_single_precision_cannot_hold_is_refused(setting, noise):
    mechanism = noisy_gd.mechanism(PLANNED, Schedule(0.5, noise, 1.0, 1, 1))
    with pytest.raises(dd.InputError, match="float32"):
        mechanism.learn(jax.random.key(0), setting[2])


BAD_SCHEDULES = {
    "step_size": -1.0,
    "noise_variance": -1.0,
    "init_variance": float("nan"),
    "learn_steps": 2.5,
    "delete_steps": -1,
}


@pytest.mark.parametrize("name", BAD_SCHEDULES)
def test_schedules_that_cannot_be_run_are_refused(name):
    schedule = Schedule(1.0, 1.0, 1.0, 1, 1)._replace(**{name: BAD_SCHEDULES[name]})
    with pytest.raises(dd.InputError, match=name):
        noisy_gd.mechanism(PLANNED, schedule)


def test_what_equals_a_kept_schedule_is_refused_all_the_same():
    kept = Schedule(0.5, 1e-3, 1.0, 2, 1)
    assert noisy_gd.mechanism(PLANNED, kept) is noisy_gd.mechanism(PLANNED, Schedule(*kept))
    for wrong in (kept._replace(learn_steps=2.0), kept._replace(delete_steps=True)):
        assert wrong == kept
        with pytest.raises(dd.InputError, match="whole number"):
            noisy_gd.mechanism(PLANNED, wrong)


def test_numbers_that_may_change_make_a_mechanism_anew():
    class Numbers:
        step_size, noise_variance, init_variance, learn_steps, delete_steps = 0.5, 1e-3, 1.0, 2, 1

    numbers, database, key = Numbers(), signed(6, 3), jax.random.key(0)
    noisy_gd.mechanism(PLANNED, numbers).learn(key, database)
    numbers.step_size, numbers.learn_steps = 0.1, 5
    changed = noisy_gd.mechanism(PLANNED, numbers).learn(key, database)
    fresh = noisy_gd.mechanism(PLANNED, Schedule.of(numbers)).learn(key, database)
    np.testing.assert_array_equal(changed, fresh)


def test_leaves_of_a_model_draw_independent_noise():
    keys = jax.random.split(jax.random.key(0), 4000)
    template = {"a": jnp.zeros(1), "b": jnp.zeros(1)}
    draws = jax.vmap(lambda key: noisy_gd.standard_normal_like(key, template))(keys)
    correlation = np.corrcoef(draws["a"][:, 0], draws["b"][:, 0])[0, 1]
    assert abs(correlation) < 4.5 / np.sqrt(4000)


def test_a_sweep_traces_each_function_once(setting):
    problem, params, database = setting

    @functools.partial(jax.jit, static_argnames="num_steps")
    @chex.assert_max_traces(n=1)
    def run(key, problem, step_size, noise_variance, *, num_steps):
        return noisy_gd.run(
            key,
            params,
            database,
            problem,
            step_size=step_size,
            noise_variance=noise_variance,
            num_steps=num_steps,
        )

    ends = set()
    for i in range(10):
        swept = dd.Problem(problem.loss, 0.1, 0.1 + 0.01 * i)
        end = run(jax.random.key(0), swept, 0.01 * (i + 1), 1e-3 * (i + 1), num_steps=2)
        ends.add(float(end[0]))
    assert len(ends) == 10


# --- batches and steps that vary ------------------------------------------------------------------


@pytest.mark.parametrize("batches", [7, 60])
def test_batches_take_turns(setting, batches):
    """By hand, step by step, also with steps that vary and a traced number of steps."""
    problem, params, database = setting
    key, steps = jax.random.key(3), 9
    eta, noise = np.linspace(0.5, 0.1, steps), np.linspace(1e-2, 3e-2, steps)
    numbers = {"step_size": eta, "noise_variance": noise}
    cycle = {"batches": batches, "first_batch": 5}
    expected = params
    for k in range(steps):
        batch = (5 + k) % batches
        rows = slice(batch * 60 // batches, (batch + 1) * 60 // batches)
        own = jax.tree.map(lambda leaf, rows=rows: leaf[rows], database)
        step_key = noisy_gd.step_key(jax.random.clone(key), k)
        expected = noisy_gd.step(step_key, expected, own, problem, eta[k], noise[k])
    run = functools.partial(noisy_gd.run, **numbers, **cycle)
    found = run(jax.random.clone(key), params, database, problem, num_steps=steps)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    traced = jax.jit(lambda count: run(key, params, database, problem, num_steps=count))(steps)
    np.testing.assert_allclose(traced, expected, rtol=1e-5)
    path = noisy_gd.trajectory(
        jax.random.clone(key), params, database, problem, num_steps=steps, **numbers, **cycle
    )
    np.testing.assert_allclose(path[-1], expected, rtol=1e-5)


def test_a_request_goes_on_with_the_batch_that_comes_next(setting):
    """Through learning and requests, in the scan and in the host loop, saved by nobody."""
    problem, _, database = setting
    schedule = Schedule(0.5, 1e-2, 0.1, 4, 3, batches=7)
    curator = noisy_gd.mechanism(problem, schedule)
    edits = [dd.deletion(problem.loss, database, [row]) for row in (1, 30, 59)]
    requester = fixed_stream(stack_edits(edits))
    state, transcript = dd.interact(jax.random.key(4), curator, requester, database, num_requests=3)
    assert int(state.params.batch) == (4 + 3 * 3) % 7
    np.testing.assert_array_equal(transcript.releases[-1], state.params.model)
    _, seen = dd.drive(
        jax.random.key(4), curator, lambda i, _: edits[i - 1], database, num_requests=3
    )
    np.testing.assert_allclose(seen.releases, transcript.releases, rtol=1e-5)
    overlaid = dd.interact(
        jax.random.key(4), curator, requester, database, num_requests=3, overlay=True
    )[1]
    np.testing.assert_allclose(overlaid.releases, transcript.releases, rtol=1e-5)
    # By hand, from the learned model: request 1 begins with batch 4.
    key = jax.random.key(9)
    learned = curator.learn(jax.random.clone(key), database)
    assert int(learned.batch) == 4
    after = dd.apply_edit(database, edits[0])
    served = curator.delete(jax.random.clone(key), database, edits[0], after, learned)
    numbers = {"step_size": 0.5, "noise_variance": 1e-2, "num_steps": 3, "batches": 7}
    by_hand = noisy_gd.run(key, learned.model, after, problem, first_batch=4, **numbers)
    np.testing.assert_allclose(served.model, by_hand, rtol=1e-6)


def test_a_curator_takes_the_steps_of_its_factors(setting):
    problem, _, database = setting
    learn, delete = ((1.0, 2.0), (0.5, 1.0)), ((0.2, 3.0), (0.4, 0.5), (0.6, 0.7))
    schedule = Schedule(0.5, 1e-2, 0.0, 2, 3, 7, learn, delete)
    curator, key = noisy_gd.mechanism(problem, schedule), jax.random.key(5)
    model, edit = jnp.zeros(4), dd.deletion(problem.loss, database, [20])
    learned = curator.learn(jax.random.clone(key), database)
    after = dd.apply_edit(database, edit)
    served = curator.delete(jax.random.clone(key), database, edit, after, learned)
    runs = ((learn, 0, database, learned), (delete, 2, after, served))
    for factors, first, rows, found in runs:
        eta, noise = np.array(factors).T * [[0.5], [1e-2]]
        numbers = {"step_size": eta, "noise_variance": noise, "num_steps": len(factors)}
        cycle = {"batches": 7, "first_batch": first}
        model = noisy_gd.run(jax.random.clone(key), model, rows, problem, **numbers, **cycle)
        np.testing.assert_allclose(found.model, model, rtol=1e-6)


def test_steps_of_another_number_are_refused(setting):
    problem, params, database = setting
    with pytest.raises(dd.InputError, match="step_size"):
        noisy_gd.run(
            jax.random.key(0),
            params,
            database,
            problem,
            step_size=np.ones(3),
            noise_variance=1.0,
            num_steps=4,
        )


@pytest.mark.parametrize("batch", [-1, 3, 1.5])
def test_a_batch_that_does_not_exist_is_refused(setting, batch):
    problem, params, database = setting
    numbers = {"step_size": 0.5, "noise_variance": 1.0, "num_steps": 4}
    for run in (noisy_gd.run, noisy_gd.trajectory):
        with pytest.raises(dd.InputError, match="first_batch"):
            run(
                jax.random.key(0),
                params,
                database,
                problem,
                batches=3,
                first_batch=batch,
                **numbers,
            )


@pytest.mark.parametrize("factors", ["half", ((1.0, -1.0),), ((1.0, 1.0),) * 2, (1.0, 1.0)])
def test_factors_that_cannot_be_run_are_refused(setting, factors):
    with pytest.raises(dd.InputError, match="learn_factors"):
        noisy_gd.mechanism(setting[0], Schedule(0.5, 1e-2, 0.1, 1, 3, 1, factors))


def test_rows_split_over_devices_have_no_batches(setting):
    problem, _, database = setting
    curator = noisy_gd.mechanism(problem, Schedule(0.5, 1e-2, 0.1, 4, 3, batches=3))
    requester = fixed_stream(stack_edits([dd.deletion(problem.loss, database, [1])]))
    mesh = dd.sharding.make_mesh(data=1)
    with pytest.raises(dd.InputError, match="batches"):
        dd.interact(jax.random.key(0), curator, requester, database, num_requests=1, mesh=mesh)


# --- Exact laws: learn, then 20 edits, 20,000 seeds -----------------------------------------------

SEEDS, REQUESTS, DIM, N = 20_000, 20, 3, 8
CHUNK = SEEDS // 2
TRUE = Schedule(0.4, 0.02, 0.5, 4, 2)
IN_TURN = TRUE._replace(batches=3)  # of 2, 3 and 3 rows; requests begin with batch 1, 0, 2, …
L2 = 0.5


def linear_case():
    """Linear loss: every edit replaces a record by its opposite."""
    database = features(N, DIM, seed=1)
    edits = [
        dd.replacement([i % N], -database[i % N][None] * (1 + i) / 30) for i in range(REQUESTS)
    ]

    def phase(rows, steps):
        rows = np.asarray(rows, np.float64)
        return L2 * np.eye(DIM), rows.mean(axis=0), steps

    return dd.losses.linear(), database, edits, phase


def ridge_case():
    """Ridge regression: every edit replaces one label."""
    database = signed(N, DIM, seed=3)
    edits = []
    for i in range(REQUESTS):
        row, label = database.features[i % N][None], (-1.0) ** (i + i // N) * jnp.ones(1)
        edits.append(dd.replacement([i % N], dd.Labelled(row, label)))

    def phase(rows, steps):
        a, y = np.asarray(rows.features, np.float64), np.asarray(rows.label, np.float64)
        return a.T @ a / len(y) + L2 * np.eye(DIM), a.T @ y / len(y), steps

    return dd.losses.squared(label_bound=1.0), database, edits, phase


CASES = {"linear": linear_case, "label ridge": ridge_case}


def batch_law(name):
    """The law with batches: a phase for every step, on the rows of its batch."""
    _, database, edits, phase = CASES[name]()
    phases, batch = [], 0
    for edit, steps in [(None, IN_TURN.learn_steps), *((e, IN_TURN.delete_steps) for e in edits)]:
        database = database if edit is None else dd.apply_edit(database, edit)
        for _ in range(steps):
            rows = slice(batch * N // 3, (batch + 1) * N // 3)
            phases.append(phase(jax.tree.map(lambda leaf, rows=rows: leaf[rows], database), 1))
            batch = (batch + 1) % 3
    return quadratic_law(phases, *IN_TURN[:3], DIM)


@functools.cache
def expected_law(name):
    _, database, edits, phase = CASES[name]()
    phases = [phase(database, TRUE.learn_steps)]
    for edit in edits:
        database = dd.apply_edit(database, edit)
        phases.append(phase(database, TRUE.delete_steps))
    return quadratic_law(phases, TRUE.step_size, TRUE.noise_variance, TRUE.init_variance, DIM)


def stale_database(mechanism):
    """A mutant that trains on the database before the edit."""

    def delete(key, before, edit, after, state):
        return mechanism.delete(key, before, edit, before, state)

    return mechanism._replace(delete=delete)


def reused_key(mechanism):
    """A mutant whose deletions all draw the same noise."""

    def delete(key, before, edit, after, state):
        key = jax.random.fold_in(jax.random.key(0), 1)
        return mechanism.delete(key, before, edit, after, state)

    return mechanism._replace(delete=delete)


def as_it_is(mechanism):
    return mechanism


@functools.cache
def last_release(name, learn_steps, delete_steps, batches, mutate):
    """One function object per program: schedules that differ in their numbers alone share it."""
    loss, _, edits, _ = CASES[name]()
    requester = fixed_stream(stack_edits(edits))

    def run(key, database, numbers):
        schedule = Schedule(*numbers, learn_steps, delete_steps, batches)
        mechanism = mutate(noisy_gd.mechanism(dd.Problem(loss, L2), schedule))
        _, transcript = dd.interact(key, mechanism, requester, database, num_requests=REQUESTS)
        return transcript.releases[-1]

    return run


def samples(name, schedule=TRUE, mutate=as_it_is, seeds=SEEDS):
    numbers = tuple(map(jnp.float32, schedule[:3]))
    fn = last_release(name, *schedule[3:6], mutate)
    database = CASES[name]()[1]
    return np.asarray(dd.over_seeds(fn, jax.random.key(11), seeds, database, numbers, chunk=CHUNK))


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_twenty_thousand_seeds_follow_the_exact_law(name):
    assert p_value(samples(name), expected_law(name)) > 1e-3


def restarted(mechanism):
    """A mutant that begins every request with batch 0."""

    def delete(key, before, edit, after, state):
        state = state._replace(batch=jnp.zeros_like(state.batch))
        return mechanism.delete(key, before, edit, after, state)

    return mechanism._replace(delete=delete)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_batches_follow_the_exact_law_and_restarting_them_does_not(name):
    law = batch_law(name)
    assert p_value(samples(name, IN_TURN, seeds=CHUNK), law) > 1e-3
    assert p_value(samples(name, IN_TURN, restarted, CHUNK), law) < 1e-9


# The last number is the seeds that show the mutant: half of the test's own are enough for most.
MUTANTS = {
    "noise × 0.8": (TRUE._replace(noise_variance=0.8 * TRUE.noise_variance), as_it_is, CHUNK),
    "noise × 1.25": (TRUE._replace(noise_variance=1.25 * TRUE.noise_variance), as_it_is, CHUNK),
    "step size × 1.25": (TRUE._replace(step_size=1.25 * TRUE.step_size), as_it_is, SEEDS),
    "one step too few": (TRUE._replace(delete_steps=TRUE.delete_steps - 1), as_it_is, CHUNK),
    "one step too many": (TRUE._replace(delete_steps=TRUE.delete_steps + 1), as_it_is, CHUNK),
    "stale database": (TRUE, stale_database, CHUNK),
    "reused key": (TRUE, reused_key, CHUNK),
}


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS)
@pytest.mark.parametrize("name", soak(["label ridge"], CASES))
def test_mutants_are_rejected(name, mutant):
    assert p_value(samples(name, *MUTANTS[mutant]), expected_law(name)) < 1e-9


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_wrong_number_of_learning_steps_is_rejected(name):
    """Read right after learning: later deletions would wash the difference out."""
    loss, database, _, phase = CASES[name]()
    law = quadratic_law([phase(database, TRUE.learn_steps)], 0.4, 0.02, 0.5, DIM)
    p_values = {}
    for change in (0, -1, 1):
        plan = TRUE._replace(learn_steps=TRUE.learn_steps + change)
        learn = noisy_gd.mechanism(dd.Problem(loss, L2), plan).learn
        drawn = dd.over_seeds(learn, jax.random.key(12), CHUNK, database, chunk=CHUNK)
        p_values[change] = p_value(np.asarray(drawn), law)
    assert p_values[0] > 1e-3
    assert max(p_values[-1], p_values[1]) < 1e-9
