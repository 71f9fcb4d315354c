"""A stream of deletions as an operator would serve it: risk, accuracy, cost and certificate.

The unrounded model and the edited database are kept between requests; what is released is the model
rounded to a grid. A deleted row is replaced by the loss's null record, and every release is judged
on the database it was trained on.
"""

import functools
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from dd_jax import erm, losses, noisy_gd, requesters
from dd_jax.data.own_file import OwnData, with_preprocessing
from dd_jax.ensemble import over_seeds
from dd_jax.erm import Problem
from dd_jax.errors import InputError
from dd_jax.interaction import interact
from dd_jax.keys import tagged
from dd_jax.losses import deletion
from dd_jax.plans import Certificate, Plan, plan_convex
from dd_jax.types import Edit, Labelled, Transcript, apply_edit

CHUNK = 10
# Products of one number of a record with one of a model: about a day on one core.
MOST_WORK = 1e14


@dataclass(frozen=True)
class Service:
    """What is run.

    Attributes:
        problem, plan: the regularised problem, and a convex plan for it.
        train: the private records. test: held-out records, perhaps none.
        stream: rows of `train` that each request deletes, requests × r.
        adaptivity: p, releases that are shown to whoever asks, the first ones.
    """

    problem: Problem
    plan: Plan
    train: Labelled
    test: Labelled
    stream: np.ndarray
    adaptivity: int = 0


def make(
    data: OwnData,
    stream: np.ndarray,
    *,
    loss: str,
    l2: float,
    intercept: bool,
    adaptivity: int = 0,
    **budgets: Any,
) -> Service:
    """The service of a file or task: its problem, and a plan that meets the budgets.

    Args:
        data: records with rows in the unit ball, and how they got there.
        stream: rows of the training records to delete, requests × r.
        loss: name of a loss of the catalogue. l2: λ.
        intercept: whether a constant 1 is appended to the features.
        adaptivity: p, releases that are shown to whoever asks; at most as many as requests.
        **budgets: as `dd.plan_convex` takes them.
    """
    norm = 1.0
    if intercept:
        data = data._replace(train=_with_ones(data.train), test=_with_ones(data.test))
        words = f"{data.preprocessing}, then a constant 1 appended"
        data, norm = data._replace(preprocessing=words), math.sqrt(2.0)
    made = getattr(losses, loss)(feature_norm=norm)
    problem = Problem(with_preprocessing(made, data), l2)
    n, dim = data.train.features.shape
    plan = plan_convex(problem, n=n, dim=dim, edits_per_request=stream.shape[1], **budgets)
    losses.check_data(problem.loss, data.train)
    return Service(problem, plan, data.train, data.test, stream, adaptivity)


def certificate(service: Service, transcript: Transcript) -> Certificate:
    """The certificate of the first row of the last request."""
    last = len(service.stream)
    return service.plan.certify(transcript, request=last, row=int(service.stream[-1][0]))


def _with_ones(records: Labelled) -> Labelled:
    features = np.asarray(records.features)
    ones = np.ones((len(features), 1), features.dtype)
    return records._replace(features=jax.device_put(np.concatenate([features, ones], axis=1)))


class Seconds(NamedTuple):
    """Wall time of one model on this machine: both programs, learning, one request.

    Programs that an earlier run kept are loaded, not compiled.
    """

    compile: float
    learn: float
    request: float


class Served(NamedTuple):
    """What runs of a service showed.

    Attributes:
        risk: excess risk of every release on its own database, seeds × (requests + 1).
        accuracy: share of held-out records that it classifies, the same shape; None without any.
        exact_accuracy: the same of the exact minimisers, without noise, (requests + 1); or None.
        zero_risk: excess risk of the model θ = 0 on the first database.
        risk_error: how much the excess risks can be too small, because the minimisers are exact to
            rounding only: the largest ‖∇ℒ(θ*)‖²/(2λ).
        seconds: wall time.
        right: share of the seeds whose last release classifies each held-out record; or None.
        transcript: of the first seed.
    """

    risk: np.ndarray
    accuracy: np.ndarray | None
    exact_accuracy: np.ndarray | None
    zero_risk: float
    risk_error: float
    seconds: Seconds
    right: np.ndarray | None = None
    transcript: Any = None


def serve(key: Array, service: Service, *, seeds: int, say: Callable[[str], None]) -> Served:
    """Learn and serve the stream for many seeds, and judge every release.

    Args:
        key: of all runs.
        service: what is run.
        seeds: how many independent runs.
        say: told what is being done.
    """
    _check_work(service.plan, len(service.stream), seeds)
    loss, train = service.problem.loss, service.train
    learn, delete, run = _programs(service.problem, service.plan, service.adaptivity)
    stream = requesters.stack_edits([deletion(loss, train, rows) for rows in service.stream])
    run_key, *timing_keys = _keys(key)
    say("compiling, and timing one model")
    edit = deletion(loss, train, service.stream[0])
    seconds = _timed(learn, delete, train, edit, *timing_keys)
    longest = seeds * (seconds.learn + len(service.stream) * seconds.request)
    say(f"learning and serving {seeds} seed{'s' * (seeds != 1)}, in at most about {longest:.3g} s")

    def progress(done, total):
        say(f"{done} of {total} seed{'s' * (total != 1)}")

    found = over_seeds(run, run_key, seeds, train, stream, chunk=CHUNK, progress=progress)
    say("judging releases against exact minimisers")
    served = _judged(service, found.releases, stream, seconds)
    return served._replace(transcript=jax.tree.map(lambda leaf: np.asarray(leaf)[0], found))


@functools.lru_cache(maxsize=8)
def _programs(problem: Problem, plan: Plan, adaptivity: int):
    """Learning, deletion, and a whole interaction; the same objects every time.

    The stream is an input of the program, so that other rows need no other program.
    """
    mechanism = noisy_gd.mechanism(problem, plan)

    def run(key, train, stream):
        requester, shown = requesters.fixed_stream(stream), range(adaptivity)
        _, transcript = interact(
            key, mechanism, requester, train, num_requests=len(stream.index), observe=shown
        )
        return transcript

    return jax.jit(mechanism.learn), jax.jit(mechanism.delete), run


@jax.jit
def _keys(key):
    """One key for the runs, and two to time learning and deletion with."""
    return tuple(tagged(key, purpose) for purpose in ("runs", "timed learning", "timed deletion"))


def _check_work(plan: Plan, requests: int, seeds: int) -> None:
    steps = plan.learn_steps + requests * plan.delete_steps
    if float(plan.n * plan.dim) * steps * seeds > MOST_WORK:
        raise InputError(
            f"learning takes {plan.learn_steps:,} steps and a request {plan.delete_steps:,}, each "
            f"over {plan.n:,} records of {plan.dim} numbers, too many for {seeds} seeds; give a "
            f"larger l2, larger budgets or fewer seeds."
        )


def _timed(learn, delete, train, edit, learn_key, delete_key) -> Seconds:
    """Both programs compiled ahead and run apart, as a curator with one model would."""
    start = time.perf_counter()
    lowered = learn.lower(learn_key, train)
    learn, state = lowered.compile(), lowered.out_info
    delete = delete.lower(delete_key, train, edit, state).compile()
    compiled = time.perf_counter() - start
    model, learned = _clocked(lambda: learn(learn_key, train))
    _, served = _clocked(lambda: delete(delete_key, train, edit, model))
    return Seconds(compiled, learned, served)


def _clocked(call: Callable[[], Any]) -> tuple[Any, float]:
    """What a call returns and its wall time, the median of five where one is short."""
    taken, result = [], None
    while not taken or (len(taken) < 5 and sum(taken) < 1.0):
        start = time.perf_counter()
        result = jax.block_until_ready(call())
        taken.append(time.perf_counter() - start)
    return result, statistics.median(taken)


def _judged(service: Service, models, stream: Edit, seconds: Seconds) -> Served:
    """Every release on its own database."""
    problem, test = service.problem, service.test
    found = _judge(problem, models, service.train, test, stream)
    risk, norms, zero_risk, accuracy, exact, right = map(np.asarray, found)
    risk_error = float(norms.max()) ** 2 / (2 * float(problem.l2))
    if not len(test.label):
        accuracy = exact = right = None
    return Served(risk.T, accuracy, exact, float(zero_risk), risk_error, seconds, right)


@jax.jit
def _judge(problem: Problem, models, train: Labelled, test: Labelled, stream: Edit):
    """One pass over the stream; the minimisers follow it, each from the last."""
    zero = problem.loss.template(train)

    def judge(carry, xs):
        database, optimum = carry
        models, edit = xs
        database = apply_edit(database, edit)
        optimum, norm, *_ = erm.minimise(problem, database, optimum)
        risk = jax.vmap(lambda model: erm.excess_risk(problem, model, database, optimum))
        return (database, optimum), (optimum, norm, risk(models), risk(zero[None])[0])

    # Before the first request: an edit of no row, since rows out of range are dropped.
    nothing = jax.tree.map(lambda leaf: leaf[:1], stream)
    nothing = nothing._replace(index=jnp.full_like(nothing.index, -1))
    edits = jax.tree.map(lambda *leaves: jnp.concatenate(leaves), nothing, stream)
    xs = (jnp.swapaxes(models, 0, 1), edits)
    _, (optima, norms, risks, zero_risks) = jax.lax.scan(judge, (train, zero), xs)
    accuracy, exact = (jnp.mean(_right(found, test), axis=-1) for found in (models, optima))
    right = jnp.mean(_right(models[:, -1], test), axis=0)
    return risks, norms, zero_risks[0], accuracy, exact, right


def _right(models, test: Labelled):
    """Which records are on the right side; the boundary itself is wrong."""
    return models @ test.features.T * test.label > 0
