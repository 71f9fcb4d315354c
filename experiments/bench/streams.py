"""Whole interactions: what pairs, multiplicities, adaptive edits and long streams cost."""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

import dd_jax as dd
from dd_jax import databases, ensemble, erm, requesters
from dd_jax.noisy_gd import Schedule
from experiments.bench import kernel

# The largest wanted value of each ratio.
LIMITS = {
    "pair_over_one_arm": 2.1,
    "pair_memory_over_one_arm": 1.2,
    "multiplicities_over_distinct": 1.2,
    "adaptive_overlay_over_fixed_stream": 1.3,
    "overlay_bytes": 100e6,
    "request_overhead_with_noise": 0.05,
    "host_loop_over_scan": 1.1,
    "batch_gradient_one_seed": 1.1,
    "batch_gradient_all_seeds": 1.1,
}
# Rows of the batches that are timed.
BATCH_ROWS = 600


def ratios(
    n: int = 10_000, d: int = 50, seeds: int = 1024, requests: int = 20, wide: int = 785
) -> dict[str, float]:
    """Cost of each form over its plain counterpart; batches are of `wide` rows, and of d too."""
    overhead, over_gradients = request_overhead(n, d, requests=50 * requests)
    return {
        "pair_over_one_arm": pair(n, d, seeds),
        "pair_memory_over_one_arm": pair_memory(n, d, seeds),
        "multiplicities_over_distinct": multiplicities(n // 10, d, seeds, copies=1_000),
        "adaptive_overlay_over_fixed_stream": adaptive(n, d, seeds, requests),
        "overlay_bytes": overlay_bytes(n, d, seeds, requests),
        "request_overhead": overhead,
        "request_overhead_with_noise": over_gradients,
        "host_loop_over_scan": host_loop(n, d, requests=50 * requests),
        "batch_gradient_one_seed": batch_gradient(n, wide, 1),
        "batch_gradient_all_seeds": batch_gradient(n, wide, seeds),
        "batch_gradient_one_seed_narrow": batch_gradient(n, d, 1),
        "batch_gradient_all_seeds_narrow": batch_gradient(n, d, seeds),
        "batch_step_one_seed": batch_step(n, wide, 1),
        "batch_step_all_seeds": batch_step(n, wide, seeds),
    }


def best_ratio(first: Callable, second: Callable, repeats: int = 5) -> float:
    """Shortest processor time of the first call over that of the second, taken in turns."""
    seconds = kernel.best_times({"first": first, "second": second}, repeats=repeats)
    return seconds["first"] / seconds["second"]


def _curator(learn_steps: int = 0, delete_steps: int = 10) -> dd.Mechanism:
    schedule = Schedule(kernel.STEP_SIZE, kernel.NOISE, 1.0, learn_steps, delete_steps)
    return dd.noisy_gd.mechanism(kernel.logistic_problem(), schedule)


def _fixed(database: dd.Labelled, requests: int) -> dd.Requester:
    loss = kernel.logistic_problem().loss
    return requesters.deletions(loss, database, range(requests))


def _coins(database: dd.Labelled) -> dd.Requester:
    """Deletes a random row, a different one for every seed."""
    null = dd.losses.null_records(kernel.logistic_problem().loss, database, 1)
    n = len(database.label)

    def act(key, memory, observation):
        del observation
        return memory, dd.Edit(jax.random.randint(key, (1,), 0, n), null)

    return dd.Requester(init=lambda key: (), act=act)


def _release(curator, requester, requests: int, overlay: bool) -> Callable:
    def release(key, database):
        _, transcript = dd.interact(
            key,
            curator,
            requester,
            database,
            num_requests=requests,
            overlay=overlay,
        )
        return transcript.releases[-1]

    return release


def pair(n: int, d: int, seeds: int) -> float:
    """Both arms of a neighbouring pair in one batch, over one arm."""
    database, edit = _neighbour(n, d)
    learn = _curator(learn_steps=10).learn

    def one():
        return dd.over_seeds(learn, jax.random.key(0), seeds, database)

    def both():
        return dd.neighbours(learn, jax.random.key(0), seeds, database, edit, shared=True)

    return best_ratio(both, one)


def _neighbour(n: int, d: int) -> tuple[dd.Labelled, dd.Edit]:
    database, _ = kernel.logistic_inputs(n, d, 1)
    return database, dd.deletion(kernel.logistic_problem().loss, database, [0])


def pair_memory(n: int, d: int, seeds: int) -> float:
    """Bytes of the compiled program for every record of the database: both arms over one arm."""
    learn = _curator(learn_steps=10).learn

    def one(n: int) -> int:
        database, _ = _neighbour(n, d)
        return kernel.peak_bytes(ensemble.program(learn, jax.random.key(0), seeds, database))

    def both(n: int) -> int:
        keys, arms = jax.random.split(jax.random.key(0)), ensemble._both_arms(learn)
        return kernel.peak_bytes(ensemble.program(arms, keys, seeds // 2, *_neighbour(n, d), ()))

    return record_bytes(both, n) / record_bytes(one, n)


def record_bytes(program_bytes: Callable[[int], int], n: int) -> float:
    """How much a program's memory grows per record: the database and every copy of it."""
    return (program_bytes(2 * n) - program_bytes(n)) / n


def multiplicities(distinct: int, d: int, seeds: int, copies: int) -> float:
    """Distinct records with counts (n = distinct · copies), over the distinct records alone."""
    database, params = kernel.logistic_inputs(distinct, d, seeds)
    counted = databases.counted(database, np.full(distinct, copies))
    gradient = kernel.batched(kernel.logistic_problem())
    return best_ratio(
        lambda: gradient(params, counted), lambda: gradient(params, database), repeats=15
    )


def adaptive(n: int, d: int, seeds: int, requests: int) -> float:
    """A stream whose edits differ between seeds, as overlays, over a fixed stream.

    The requester picks rows at random, so that both streams need the same work.
    """
    database, _ = kernel.logistic_inputs(n, d, 1)
    curator = _curator()

    def stream(requester: dd.Requester, overlay: bool) -> Callable:
        release = _release(curator, requester, requests, overlay)
        return lambda: dd.over_seeds(release, jax.random.key(0), seeds, database)

    return best_ratio(
        stream(_coins(database), True), stream(_fixed(database, requests), False), repeats=2
    )


def overlay_bytes(n: int, d: int, seeds: int, requests: int) -> int:
    """Bytes of the databases of all seeds: one base, and per seed its weights and slots."""
    database, _ = kernel.logistic_inputs(n, d, 1)
    slots = jax.eval_shape(lambda rows: databases.overlay(rows, requests), database)
    size = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(database))
    total = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(slots))
    return size + seeds * (total - size)


def request_overhead(n: int, d: int, requests: int, delete_steps: int = 50) -> tuple[float, float]:
    """Share of a request's time beyond its noisy steps, and beyond their gradients; one seed."""
    database, params = kernel.logistic_inputs(n, d, 1)
    stream = jax.jit(
        _release(_curator(0, delete_steps), _fixed(database, requests), requests, False)
    )
    steps = delete_steps * requests
    noisy = jax.jit(kernel.noisy_run(kernel.logistic_problem(), steps))
    plain = jax.jit(_plain_steps(steps))
    calls = {
        "stream": lambda: stream(jax.random.key(0), database),
        "noisy": lambda: noisy(jax.random.key(0), params[0], database),
        "plain": lambda: plain(jax.random.key(0), params[0], database),
    }
    seconds = kernel.best_times(calls, repeats=2)
    stream_seconds = seconds["stream"]
    return stream_seconds / seconds["noisy"] - 1, stream_seconds / seconds["plain"] - 1


def _plain_steps(num_steps: int) -> Callable:
    """`kernel.noisy_run` without its noise: gradients and steps alone."""
    problem = kernel.logistic_problem()

    def run(key, params, database):
        del key

        def step(params, _):
            return params - kernel.STEP_SIZE * erm.gradient(problem, params, database), None

        return jax.lax.scan(step, params, None, num_steps)[0]

    return run


def host_loop(n: int, d: int, requests: int, delete_steps: int = 50) -> float:
    """The donated host loop over the scan, for one seed."""
    database, _ = kernel.logistic_inputs(n, d, 1)
    curator = _curator(0, delete_steps)
    loss = kernel.logistic_problem().loss
    edits = [dd.deletion(loss, database, [row]) for row in range(requests)]
    scan = jax.jit(_release(curator, _fixed(database, requests), requests, False))

    def loop():
        _, transcript = dd.drive(
            jax.random.key(0),
            curator,
            lambda request, _: edits[request - 1],
            database,
            num_requests=requests,
        )
        return transcript.releases

    return best_ratio(loop, lambda: scan(jax.random.key(0), database), repeats=4)


def batch_gradient(n: int, d: int, seeds: int) -> float:
    """Gradients of all batches of 600 rows, one after the other, over one gradient of all rows."""
    batches = max(n // BATCH_ROWS, 1)
    database, params = kernel.logistic_inputs(batches * BATCH_ROWS, d, seeds)
    problem, passes = kernel.logistic_problem(), 20 if seeds == 1 else 1

    def gradients(batches: int) -> Callable:
        def run(params, database):
            slope = erm.gradient_of(problem, database, batches)

            def one(k, params):
                batch = () if batches == 1 else (k % batches,)
                found = jax.vmap(lambda theta: slope(theta, *batch))(params)
                # One number of it keeps the whole gradient alive, and is all that is added.
                return params.at[0, 0].add(1e-9 * jax.lax.optimization_barrier(found)[0, 0])

            return jax.lax.fori_loop(0, passes * batches, one, params)

        return functools.partial(jax.jit(run), params, database)

    return best_ratio(gradients(batches), gradients(1), repeats=15)


def batch_step(n: int, d: int, seeds: int) -> float:
    """Whole noisy steps, over batches of 600 rows and over all rows, for the same passes."""
    batches = max(n // BATCH_ROWS, 1)
    database, params = kernel.logistic_inputs(batches * BATCH_ROWS, d, seeds)
    passes = 20 if seeds == 1 else 1

    def steps(batches: int) -> Callable:
        run = kernel.noisy_run(kernel.logistic_problem(), passes * batches, batches=batches)
        keys = jax.vmap(jax.random.key)(jnp.arange(seeds))
        return functools.partial(
            jax.jit(jax.vmap(run, in_axes=(0, 0, None))), keys, params, database
        )

    return best_ratio(steps(batches), steps(1), repeats=7)
