"""Whole interactions: what pairs, multiplicities, adaptive edits and long streams cost."""

from collections.abc import Callable

import jax
import numpy as np

import dd_jax as dd
from dd_jax import databases, requesters
from dd_jax.noisy_gd import Schedule
from experiments.bench import forms

# Sizes of the quick and of the whole benchmark differ in nothing but these.
N, D, SEEDS = 10_000, 50, 1024


def ratios(n: int = N, d: int = D, seeds: int = SEEDS, requests: int = 20) -> dict[str, float]:
    """Cost of each form over its plain counterpart."""
    return {
        "pair_over_one_arm": pair(n, d, seeds),
        "multiplicities_over_distinct": multiplicities(n // 10, d, seeds, copies=1_000),
        "adaptive_overlay_over_fixed_stream": adaptive(n, d, seeds, requests),
        "overlay_bytes": overlay_bytes(n, d, seeds, requests),
        "request_overhead": overhead(n, d, requests=50 * requests),
        "host_loop_over_scan": host_loop(n, d, requests=10 * requests),
    }


def _curator(learn_steps: int = 0, delete_steps: int = 10) -> dd.Mechanism:
    schedule = Schedule(forms.STEP_SIZE, forms.NOISE, 1.0, learn_steps, delete_steps)
    return dd.noisy_gd.mechanism(forms.logistic_problem(), schedule)


def _fixed(database: dd.Labelled, requests: int) -> dd.Requester:
    loss = forms.logistic_problem().loss
    edits = [dd.deletion(loss, database, [row]) for row in range(requests)]
    return requesters.fixed_stream(requesters.stack_edits(edits))


def _coins(database: dd.Labelled) -> dd.Requester:
    """Deletes a row that its coins choose, another for every seed."""
    null = dd.deletion(forms.logistic_problem().loss, database, [0]).record
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


def _seconds(release: Callable, database: dd.Labelled) -> float:
    jitted = jax.jit(release)
    return forms.best_time(lambda: jitted(jax.random.key(0), database), repeats=2)


def pair(n: int, d: int, seeds: int) -> float:
    """Both arms of a neighbouring pair in one batch, over one arm."""
    database, _ = forms.logistic_inputs(n, d, 1)
    curator = _curator(learn_steps=10)
    edit = dd.deletion(forms.logistic_problem().loss, database, [0])

    def one():
        return dd.over_seeds(curator.learn, jax.random.key(0), seeds, database)

    def both():
        return dd.neighbours(curator.learn, jax.random.key(0), seeds, database, edit, shared=True)

    return forms.best_time(both, repeats=3) / forms.best_time(one, repeats=3)


def multiplicities(distinct: int, d: int, seeds: int, copies: int) -> float:
    """N = distinct · copies records held as distinct ones with counts, over those alone."""
    database, params = forms.logistic_inputs(distinct, d, seeds)
    counted = databases.counted(database, np.full(distinct, copies))
    gradient = forms.batched(forms.logistic_problem())
    return forms.best_time(gradient, params, counted) / forms.best_time(gradient, params, database)


def adaptive(n: int, d: int, seeds: int, requests: int) -> float:
    """A stream whose edits differ between seeds, as overlays, over a stream that is fixed.

    The requester picks rows by its coins, so that both streams ask for the same work.
    """
    database, _ = forms.logistic_inputs(n, d, 1)
    curator = _curator()

    def seconds(requester: dd.Requester, overlay: bool) -> float:
        release = _release(curator, requester, requests, overlay)
        return forms.best_time(
            lambda: dd.over_seeds(release, jax.random.key(0), seeds, database), repeats=2
        )

    return seconds(_coins(database), True) / seconds(_fixed(database, requests), False)


def overlay_bytes(n: int, d: int, seeds: int, requests: int) -> int:
    """Bytes of the database's state for all seeds: one base, and slots for each seed."""
    database, _ = forms.logistic_inputs(n, d, 1)
    slots = jax.eval_shape(lambda rows: databases.overlay(rows, requests), database)
    size = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(database))
    total = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(slots))
    return size + seeds * (total - size)


def overhead(n: int, d: int, requests: int, delete_steps: int = 50) -> float:
    """Share of a request's time that is not its gradient steps, for one seed."""
    database, params = forms.logistic_inputs(n, d, 1)
    release = _release(_curator(0, delete_steps), _fixed(database, requests), requests, False)
    stream = _seconds(release, database)
    steps = forms.noisy_steps(forms.logistic_problem(), delete_steps * requests)
    work = forms.best_time(steps, params, database, repeats=2)
    return stream / work - 1


def host_loop(n: int, d: int, requests: int, delete_steps: int = 50) -> float:
    """The donated host loop over the scan, for one seed."""
    database, _ = forms.logistic_inputs(n, d, 1)
    curator = _curator(0, delete_steps)
    loss = forms.logistic_problem().loss
    edits = [dd.deletion(loss, database, [row]) for row in range(requests)]
    release = _release(curator, _fixed(database, requests), requests, False)
    scan = _seconds(release, database)

    def loop():
        _, transcript = dd.drive(
            jax.random.key(0),
            curator,
            lambda request, _: edits[request - 1],
            database,
            num_requests=requests,
        )
        return transcript.releases

    return forms.best_time(loop, repeats=2) / scan
