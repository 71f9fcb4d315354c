"""Nothing is traced twice: repeated calls, streams and services reuse the programs they have."""

import contextlib

import jax
import numpy as np
from problems import signed

import dd_jax as dd
from dd_jax import chacha
from dd_jax.cli import serving
from dd_jax.data.own_file import OwnData
from dd_jax.noisy_gd import Schedule, mechanism

LOSS = dd.losses.logistic()
CURATOR = mechanism(dd.Problem(LOSS, 0.1), Schedule(0.5, 1e-3, 1.0, 2, 1))
DATABASE = signed(12, 3)


@contextlib.contextmanager
def traces():
    """What JAX traces and compiles inside, by name."""
    found = []

    def listen(event, seconds, *, fun_name="", **details):
        del seconds, details
        # "bind" is what the suite's own check of reused keys traces.
        if event.endswith("jaxpr_trace_duration") and fun_name != "bind":
            found.append(f"traced {fun_name}")
        if event.endswith("backend_compile_duration"):
            found.append(f"compiled {fun_name}")

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield found
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)


def deletions(rows):
    return [dd.deletion(LOSS, DATABASE, [row]) for row in rows]


def assert_second_call_adds_none(call):
    with traces() as first:
        call(1)
    with traces() as second:
        call(2)
    assert first
    assert second == []


def test_edits_and_streams_are_made_without_a_program():
    with traces() as found:
        dd.requesters.stack_edits(deletions([3, 5, 7]))
    assert found == []


def test_a_host_loop_of_any_rows_and_key():
    edits = deletions(range(8))
    keys = list(jax.random.split(jax.random.key(0), 3))

    def call(number):
        dd.drive(
            keys[number],
            CURATOR,
            lambda request, release: edits[number + request],
            DATABASE,
            num_requests=4,
            observe=(0, 2),
        )

    assert_second_call_adds_none(call)


def test_a_host_loop_in_exact_arithmetic_with_keys_of_chacha():
    problem = dd.Problem(LOSS, 0.1)
    budgets = {"n": 12, "dim": 3, "order": 2, "eps_dp": 4.0, "eps_dd": 1.0}
    curator = mechanism(problem, dd.plan_convex(problem, arithmetic="exact", **budgets))
    edits = deletions(range(8))

    def call(number):
        key, other = jax.random.split(jax.random.key(number, impl=chacha.GENERATOR))
        respond = lambda request, release: edits[number + request]  # noqa: E731
        state, _ = dd.drive(key, curator, respond, DATABASE, num_requests=2)
        # A service goes on with one request at a time.
        for _ in range(2):
            other, now = jax.random.split(other)
            state, _ = dd.resume(now, curator, respond, state, num_requests=1)

    call(1)
    with traces() as found:
        call(2)
    assert not [name for name in found if name.startswith("compiled")]  # only types are checked


def test_an_interaction_under_jit_whose_stream_is_an_argument():
    streams = [dd.requesters.stack_edits(deletions(rows)) for rows in ([1, 2], [3, 4], [5, 6])]
    keys = list(jax.random.split(jax.random.key(0), 3))

    @jax.jit
    def run(key, database, stream):
        requester = dd.requesters.fixed_stream(stream)
        return dd.interact(key, CURATOR, requester, database, num_requests=2, overlay=True)

    assert_second_call_adds_none(lambda number: run(keys[number], DATABASE, streams[number]))


def test_both_arms_of_pairs():
    edits = deletions(range(3))
    keys = list(jax.random.split(jax.random.key(0), 3))

    def call(number):
        dd.neighbours(CURATOR.learn, keys[number], 4, DATABASE, edits[number], shared=True)

    assert_second_call_adds_none(call)


def test_a_service():
    train = dd.Labelled(np.asarray(DATABASE.features), np.asarray(DATABASE.label))
    data = OwnData(train, train, np.arange(12), ("a", "b", "c"), ("0", "1"), "as they are", "")
    budgets = {"order": 2.0, "eps_dp": 9.0, "eps_dd": 9.0}
    made = [
        serving.make(data, np.array(rows), loss="logistic", l2=1.0, intercept=False, **budgets)
        for rows in ([[4], [0]], [[1], [2]])
    ]
    # The same problem and plan, as one operator has them for all of its streams.
    streams = [made[0], made[0], serving.Service(**(vars(made[0]) | {"stream": made[1].stream}))]
    keys = list(jax.random.split(jax.random.key(0), 3))
    assert_second_call_adds_none(
        lambda number: serving.serve(keys[number], streams[number], seeds=4, say=lambda text: None)
    )
