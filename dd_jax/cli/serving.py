"""What `dd-jax run` does: it serves a stream of deletions as an operator would, and judges it.

The unrounded model and the edited database are kept between requests; a release is rounded to a
grid. A deleted row is replaced by the loss's null record, and every release is judged on the
database that it was trained on.
"""

import contextlib
import functools
import json
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from scipy import stats

from dd_jax import erm, losses, noisy_gd, products, requesters
from dd_jax.cli.output import count
from dd_jax.cli.tuning import Tried, Tuned
from dd_jax.data.models import Model
from dd_jax.data.own_file import OwnData, loss_for, with_intercept
from dd_jax.ensemble import over_seeds
from dd_jax.erm import Problem
from dd_jax.errors import InputError
from dd_jax.guarantees import risk
from dd_jax.interaction import interact
from dd_jax.intervals import mean_over_seeds, simultaneous
from dd_jax.keys import tagged
from dd_jax.losses import deletion
from dd_jax.plans import (
    Certificate,
    Chosen,
    Plan,
    arithmetic,
    choose_l2,
    plan_convex,
    plan_nonconvex,
)
from dd_jax.plans.settings import edited_descent
from dd_jax.sweeps import progress_lines
from dd_jax.sweeps.deletion import check_work
from dd_jax.types import Edit, Labelled, Transcript, apply_edit

CHUNK = 10
# Confidence of all intervals of a table together.
CONFIDENCE = 0.95
# Share of held-out rows. A gain that is at most this small is not worth more seeds or rows.
_NO_GAIN = 0.01


@dataclass(frozen=True)
class Service:
    """What is run.

    Attributes:
        problem, plan: the regularised problem, and a plan for it.
        train: the private records. test: held-out records, perhaps none.
        stream: rows of `train` that each request deletes, requests × r.
        adaptivity: the first p releases are shown to the requester.
        assumed: how settings were chosen that were left to this program.
        tried: values of λ that were tried on public data, if any were.
    """

    problem: Problem
    plan: Plan
    train: Labelled
    test: Labelled
    stream: np.ndarray
    adaptivity: int = 0
    assumed: tuple[str, ...] = ()
    tried: tuple[Tried, ...] = ()


def make(
    data: OwnData,
    stream: np.ndarray,
    *,
    loss: str | None,
    l2: float | Literal["auto"],
    intercept: bool,
    adaptivity: int = 0,
    tune: Callable[..., Tuned] | None = None,
    **budgets: Any,
) -> Service:
    """The service on a file or task: its problem, and a plan that meets the budgets.

    Args:
        data: records with rows in the unit ball, and how they got there.
        stream: rows of the training records to delete, requests × r.
        loss: name of a loss of the catalogue; None for logistic, or softmax for more than two
            classes.
        l2: λ, or "auto" for `plans.choose_l2`.
        intercept: whether a constant 1 is appended to the features.
        adaptivity: the first p releases are shown to the requester; at most one per request.
        tune: `tuning.choose` on public data, for l2 = "auto".
        **budgets: as `dd.plan_convex` takes them; of a loss that is not convex, those that
            `dd.plan_nonconvex` takes too.
    """
    data = with_intercept(data) if intercept else data
    made = loss_for(data, loss, intercept=intercept)
    dim = math.prod(jax.eval_shape(made.template, data.train).shape)
    sizes = {"n": len(data.train.label), "dim": dim, "edits_per_request": stream.shape[1]}
    assumed, tried = [], ()
    if l2 == "auto":
        chosen = _chosen_l2(made, sizes, budgets)
        l2, words = chosen.l2, str(chosen)
        if tune is not None:
            of_loss = {"constants": made.constants, "classes": len(data.classes), "loss": loss}
            of_loss |= {"intercept": intercept, "expected_requests": len(stream)}
            l2, tried, words = tune(around=l2, **of_loss, **sizes, **budgets)
        assumed.append(words)
    problem = Problem(made, l2)
    plan = _plan(problem, expected_requests=len(stream), **sizes, **budgets)
    if budgets.get("batches") == "auto":
        assumed.append(
            f"{plan.batches:,} batches m cost least for learning and {len(stream)} requests"
        )
    losses.check_data(problem.loss, data.train)
    return Service(problem, plan, data.train, data.test, stream, adaptivity, tuple(assumed), tried)


def _chosen_l2(loss: losses.Loss, sizes: dict[str, int], budgets: dict[str, Any]) -> Chosen:
    """λ from what is public, for the budgets of a convex loss."""
    if not loss.constants.convex:
        raise InputError(f"--l2 auto is for convex losses, and {loss.name} is not; give --l2.")
    of_budgets = ("eps_dp", "eps_dd", "order", "delta", "accountant", "noise_variance", "reference")
    kept = {name: budgets[name] for name in of_budgets if name in budgets}
    return choose_l2(loss.constants, **sizes, **kept)


def _plan(
    problem: Problem,
    *,
    accountant: Any = "optimal",
    delta: float | None = None,
    batches: int | Literal["auto"] = 1,
    reference: Any = "replaced",
    arithmetic: Any = "fast",
    learn_steps: int | None = None,
    expected_requests: int,
    **common: Any,
) -> Plan:
    """The plan of the loss's kind; an option that its kind does not have is refused."""
    cycle = {"batches": batches, "reference": reference, "learn_steps": learn_steps}
    cycle["arithmetic"] = arithmetic
    if problem.loss.constants.convex:
        cycle["expected_requests"] = expected_requests
        return plan_convex(problem, accountant=accountant, delta=delta, **cycle, **common)
    odd = {
        "--delta": delta is not None,
        "--batches": batches != 1,
        "--reference": reference != "replaced",
        "--arithmetic exact": arithmetic != "fast",
        "--learn-steps": learn_steps is not None,
        "--accountant": accountant == "unrelaxed",
    }
    for option in (name for name, given in odd.items() if given):
        raise InputError(
            f"{option} is for convex losses, and {problem.loss.constants.name} is not; drop it."
        )
    return plan_nonconvex(problem, form="paper" if accountant == "paper" else "sharp", **common)


def certificate(service: Service, transcript: Transcript) -> Certificate:
    """The certificate of the first row of the last request."""
    last = len(service.stream)
    return service.plan.certify(transcript, request=last, row=int(service.stream[-1][0]))


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
            Without convexity: of the stationary points that risks are compared with.
        zero_risk: excess risk of the model θ = 0 on the first database.
        risk_error: how much the excess risks can be too small, because the minimisers are exact to
            rounding only: the largest ‖∇ℒ(θ*)‖²/(2λ); None without convexity.
        seconds: wall time.
        right: share of the seeds whose last release classifies each held-out record; or None.
        transcript: of the first seed.
    """

    risk: np.ndarray
    accuracy: np.ndarray | None
    exact_accuracy: np.ndarray | None
    zero_risk: float
    risk_error: float | None
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
    columns = service.train.features.shape[1]
    check_work(service.plan, columns, len(service.stream), seeds, at_once=seeds)
    loss, train = service.problem.loss, service.train
    learn, delete, run = _programs(service.problem, service.plan, service.adaptivity)
    stream = requesters.stack_edits([deletion(loss, train, rows) for rows in service.stream])
    run_key, *timing_keys = _keys(key)
    say("compiling, and timing one model")
    edit = deletion(loss, train, service.stream[0])
    seconds = _timed(learn, delete, train, edit, *timing_keys)
    longest = seeds * (seconds.learn + len(service.stream) * seconds.request)
    say(f"learning and serving {count(seeds, 'seed')}: about {longest:.3g} s, if nothing compiles")
    progress = progress_lines("learning and serving", say)
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

    def request(key, train, edit, model):
        return mechanism.delete(key, train, edit, apply_edit(train, edit), model)

    return jax.jit(mechanism.learn), jax.jit(request), run


@jax.jit
def _keys(key):
    """One key for the runs, and two to time learning and deletion with."""
    return tuple(tagged(key, purpose) for purpose in ("runs", "timed learning", "timed deletion"))


def _timed(learn, delete, train, edit, learn_key, delete_key) -> Seconds:
    """Both programs are compiled first and then run separately, as by a curator with one model."""
    start = time.perf_counter()
    lowered = learn.lower(learn_key, train)
    learn, state = lowered.compile(), lowered.out_info
    delete = delete.lower(delete_key, train, edit, state).compile()
    compiled = time.perf_counter() - start
    model, learned = _clocked(lambda: learn(learn_key, train))
    _, served = _clocked(lambda: delete(delete_key, train, edit, model))
    return Seconds(compiled, learned, served)


def _clocked(call: Callable[[], Any]) -> tuple[Any, float]:
    """The result of a call and its wall time; the median of up to five calls if they are short."""
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
    convex = problem.loss.constants.convex
    risk_error = float(norms.max()) ** 2 / (2 * float(problem.l2)) if convex else None
    if not len(test.label):
        accuracy = exact = right = None
    return Served(risk.T, accuracy, exact, float(zero_risk), risk_error, seconds, right)


@jax.jit
@products.full
def _judge(problem: Problem, models, train: Labelled, test: Labelled, stream: Edit):
    """Every release on its own database and on the held-out records."""
    requests = range(len(stream.index) + 1)
    found = erm.judge_stream(problem, jnp.swapaxes(models, 0, 1), train, stream, requests)
    optima, norms, *_ = found.minimum
    zero_risk = erm.excess_risk(problem, problem.loss.template(train), train, optima[0])
    accuracy, exact = (erm.accuracy(found, test) for found in (models, optima))
    right = jnp.mean(erm.correct(models[:, -1], test), axis=0)
    return found.risk, norms, zero_risk, accuracy, exact, right


# --- a line for every release --------------------------------------------------------------------


def lines(service: Service, served: Served) -> list[dict[str, Any]]:
    """A dictionary for every release, the learned model first, then one for every request.

    Before request i a requester saw at most p releases, and at most the i that existed.
    """
    plan, worst = service.plan, 0.0
    learned = {
        "risk_bound": plan.certificate().risk_bound_learned,
        "gradients": plan.learn_gradients,
    }
    of_requests = (*_RATIOS, "eps_dd", "eps_dd_so_far", "advantage_bound")
    found = [_measured(served, 0, []) | learned | dict.fromkeys(of_requests)]
    for request, rows in enumerate(service.stream, start=1):
        issued = plan.certificate(min(service.adaptivity, request), request)
        worst = max(worst, issued.eps_dd_request)
        found.append(
            _measured(served, request, rows.tolist())
            | {
                "risk_bound": issued.risk_bound_request,
                "gradients": plan.delete_gradients,
                **_retraining(plan, issued.risk_bound_request),
                "eps_dd": issued.eps_dd_adaptive,
                "eps_dd_so_far": worst,
                "advantage_bound": issued.advantage_bound,
            }
        )
    return found


_RATIOS = ("relearn_ratio", "same_risk_ratio", "ratio")


def _retraining(plan: Plan, risk_bound: float | None) -> dict[str, float | None]:
    """Gradients of retraining divided by those of a request, in two ways, and the smaller ratio.

    The first way learns again as planned. The second learns from scratch, with the plan's noise,
    until the risk bound is that of the request; its ratio is None if the noise alone exceeds that
    bound by rounding.
    """
    relearn, same_risk = plan.learn_steps / plan.delete_steps, None
    if risk_bound is not None and plan.kind == "convex":
        run, start = edited_descent(plan), plan.init_variance
        with contextlib.suppress(InputError):
            steps = risk.learn_steps_convex(run, plan.dim, risk_bound, start)
            same_risk = max(1, int(steps)) / plan.delete_steps
    smaller = relearn if same_risk is None else min(relearn, same_risk)
    return dict(zip(_RATIOS, (relearn, same_risk, smaller), strict=True))


def _measured(served: Served, request: int, rows: list[int]) -> dict[str, Any]:
    values: dict[str, Any] = {"request": request, "rows": rows}
    seeds, releases = served.risk.shape
    lowest = 0.0 if served.risk_error is not None else -math.inf  # see `erm.judge_stream`
    measured = (
        ("excess_risk", served.risk, lowest, math.inf),
        ("accuracy", served.accuracy, 0.0, 1.0),
    )
    for name, found, least, most in measured:
        mean = low = high = None
        if found is not None and seeds > 1:
            each = simultaneous(CONFIDENCE, releases)
            interval = mean_over_seeds(found[:, request], each, least=least, most=most)
            mean, low, high = map(float, interval)
        elif found is not None:
            mean = float(found[0, request])
        values |= {name: mean, f"{name}_low": low, f"{name}_high": high}
    exact = served.exact_accuracy
    return values | {"exact_accuracy": None if exact is None else float(exact[request])}


# --- the whole answer -----------------------------------------------------------------------------

_PLAN = (
    "step_size",
    "noise_variance",
    "init_variance",
    "learn_steps",
    "delete_steps",
    "batches",
    "reference",
)


def summary(
    name: str,
    data: OwnData,
    service: Service,
    served: Served,
    certificate: Certificate,
    seed: int | None,
) -> dict[str, Any]:
    """Everything that was found, as JSON values.

    Args:
        name: of the data. data: as loaded.
        service, served: what was run and what it showed.
        certificate: of the last request.
        seed: of a rehearsal; None where the key was secret.
    """
    plan = service.plan
    return {
        "rehearsal": seed is not None,
        "seed": seed,
        "data": {
            "name": name,
            "training_rows": plan.n,
            "held_out_rows": len(service.test.label),
            "features": data.train.features.shape[1],
            "parameters": plan.dim,
            "classes": dict(zip(_labels(data), data.classes, strict=True)),
            "preprocessing": data.preprocessing,
            "measured": list(data.encoding.measured) if data.encoding else [],
            "majority_accuracy": _majority(data),
        },
        "plan": {key: getattr(plan, key) for key in _PLAN}
        | {"loss": plan.problem.loss.name, "l2": plan.problem.l2, "accountant": plan.accountant}
        | {"order": plan.order, "delta": plan.delta, "edits_per_request": plan.edits_per_request},
        "requests": [line | _named(data, line["rows"]) for line in lines(service, served)],
        "assumed": list(service.assumed),
        "tried": [one._asdict() for one in service.tried],
        "learn_gradients": plan.learn_gradients,
        "request_gradients": plan.delete_gradients,
        "seeds": len(served.risk),
        "confidence": CONFIDENCE,
        "risk_of_zero": served.zero_risk,
        "risk_error": served.risk_error,
        "kept": {"model": plan.dim, "grid": arithmetic.publication_grid(plan), "rows": plan.n},
        "seconds": served.seconds._asdict(),
        "warnings": [
            *_about_accuracy(data, served, _has_intercept(data, service)),
            *_about_risk(served, certificate.risk_bound_request),
            *_about_people(data),
            *certificate.warnings,
        ],
        "certificate": json.loads(certificate.to_json()),
    }


def _labels(data: OwnData) -> tuple[str, ...]:
    """What the classes became, in their order."""
    return ("-1", "1") if len(data.classes) == 2 else tuple(map(str, range(len(data.classes))))


def _named(data: OwnData, records: list[int]) -> dict[str, list]:
    """The rows of the file, and the ids where there are any, of training records."""
    rows = [int(data.rows[record]) for record in records]
    return {"rows": rows, "ids": [] if data.ids is None else [str(data.ids[row]) for row in rows]}


def _has_intercept(data: OwnData, service: Service) -> bool:
    return service.train.features.shape[1] > data.train.features.shape[1]


def released(
    data: OwnData, service: Service, served: Served, certificate: Certificate, reading: Any
) -> Model:
    """The last release of the first seed, which the certificate is about, to take away."""
    assert data.encoding is not None
    return Model(
        weights=np.asarray(served.transcript.releases)[-1],
        encoding=data.encoding,
        classes=data.classes,
        intercept=_has_intercept(data, service),
        label=reading.label or "label",  # an NPZ file's, unless it is named
        ids=reading.id,
        certificate=certificate.to_json(),
    )


def rehearsed(certificate: Certificate, seed: int) -> Certificate:
    """The certificate of a run whose noise can be guessed: its first warning, so not genuine."""
    text = (
        f"REHEARSAL: the noise came from seed {seed}, and anybody can repeat it, so that no "
        f"guarantee holds for these releases; leave the seed out for a secret key"
    )
    return replace(certificate, warnings=(text, *certificate.warnings))


def _majority(data: OwnData) -> float | None:
    """The accuracy of the better constant answer for all held-out rows."""
    return float(np.mean(_has_larger_class(data))) if len(data.test.label) else None


def _has_larger_class(data: OwnData) -> np.ndarray:
    """Which held-out rows belong to the larger class."""
    label = np.asarray(data.test.label)
    values, counts = np.unique(label, return_counts=True)
    return label == values[len(counts) - 1 - np.argmax(counts[::-1])]


def _about_accuracy(data: OwnData, served: Served, intercept: bool) -> list[str]:
    """A warning if the last releases are not better than one answer for all rows, or not provably.

    The gain is judged row by row, with its spread over rows and over seeds.
    """
    if served.right is None or served.accuracy is None or served.exact_accuracy is None:
        return []
    same = _has_larger_class(data)
    gain, margin = _gain(served.right - same, served.accuracy[:, -1])
    if gain > margin:
        return []
    majority, exact = float(np.mean(same)), float(served.exact_accuracy[-1])
    found = (
        f"after the last request the accuracy on held-out rows is {gain + majority:.3f}, and the "
        f"same answer for all of them has {majority:.3f}"
    )
    if gain > 0 and gain + margin > _NO_GAIN:
        rows, seeds = len(same), len(served.accuracy)
        return [
            f"NOT SHOWN TO BE BETTER THAN ONE CLASS: {found}; with {count(rows, 'held-out row')} "
            f"and {count(seeds, 'seed')} a gain up to {min(margin, 1.0):.2g} can be chance; give "
            f"more seeds or more held-out rows"
        ]
    remedy = (
        "give more records, larger budgets or a larger l2"
        if exact - majority > margin
        else f"give a smaller l2, {'' if intercept else 'an intercept, '}columns scaled to their "
        f"real ranges, better columns or more records"
    )
    return [
        f"NO BETTER THAN ONE CLASS: {found}; without noise it would be {exact:.3f}, so {remedy}"
    ]


def _gain(by_row: np.ndarray, by_seed: np.ndarray) -> tuple[float, float]:
    """The mean gain, and the largest gain that chance explains, one-sided at `CONFIDENCE`."""
    parts = [np.asarray(part, np.float64) for part in (by_row, by_seed) if len(part) > 1]
    if len(by_row) < 2:
        return float(np.mean(by_row)), math.inf
    error = math.sqrt(sum(part.var(ddof=1) / len(part) for part in parts))
    quantile = float(stats.t.isf(1 - CONFIDENCE, min(map(len, parts)) - 1))
    return float(np.mean(by_row)), quantile * error


def _about_people(data: OwnData) -> list[str]:
    """A warning if somebody has several of the training rows."""
    if data.ids is None:
        return []
    most = int(np.unique(data.ids[data.rows], return_counts=True)[1].max())
    if most == 1:
        return []
    return [
        f"ONE ROW, NOT ONE PERSON: an id has up to {most:,} rows, and what is promised for records "
        f"that stay is about one row each; --delete-ids takes all rows of an id, and the "
        f"certificate has a number for them jointly"
    ]


def _about_risk(served: Served, risk_bound: float | None) -> list[str]:
    """A warning if the model is not better than the model 0, or is not promised to be."""
    mean, zero = float(served.risk[:, -1].mean()), served.zero_risk
    remedy = "give more records, larger budgets or a larger l2"
    if mean >= zero:
        return [
            f"NOTHING LEARNED: after the last request the mean excess risk {mean:.3g} is not below "
            f"that of the model 0 ({zero:.3g}), because of the noise; {remedy}"
        ]
    if risk_bound is not None and risk_bound > zero:
        return [
            f"NOTHING PROMISED: the certified risk bound {risk_bound:.3g} is above the excess risk "
            f"of the model 0 ({zero:.3g}), so that the certificate does not promise a better model "
            f"than that one, although the measured mean is {mean:.3g}; {remedy}"
        ]
    return []
