"""From budgets to plans to runs: excess risk and accuracy after learning and after deletions.

A `Question` states a loss and budgets on a data set; its plan has the numbers of a run, and
`judged` runs it. All numbers of a plan are inputs of the compiled program, step counts too, so that
a sweep over budgets, regularisers, noise, accountants and what a requester sees compiles once for
each data set, loss and size.
"""

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from dd_jax import checks, data, erm, losses, memory, noisy_gd, products, requesters
from dd_jax.constants import CATALOGUE, OF_CLASSES, Precision
from dd_jax.erm import Problem
from dd_jax.errors import InputError
from dd_jax.interaction import Requester, interact
from dd_jax.losses import Loss
from dd_jax.plans import FORMULAS, Certificate, Plan, Reference, plan_convex, plan_nonconvex
from dd_jax.types import Edit, Labelled, apply_edit

LOSS = losses.logistic
LOSS_OPTIONS = ("smoothing", "threshold", "hidden", "output_norm")
RequesterName = Literal["in_order", "largest_loss"]
# The most multiplications of a feature by a parameter: about a day on one core.
MOST_WORK = 1e14
# Step counts are numbers of 32 bits on the device.
_MOST_STEPS = 2**31 - 1


@dataclass(frozen=True)
class Question:
    """A loss and budgets on a data set; see `dd.plan_convex` and `dd.plan_nonconvex`.

    Attributes:
        data: name of the data set, of which the first n records are used. dim: features d.
        l2, clip_norm, precision: of the problem.
        eps_dp, eps_dd, order, delta: the budgets and their unit.
        accountant: formulas of the plan; None for the tightest.
        noise_variance, step_size: given values, or None for those of the plan.
        loss: a loss of the catalogue; those that are not convex get non-convex plans.
        smoothing, threshold, hidden, output_norm: options of the loss, None for its own value.
        intercept: whether a constant 1 is appended to the features.
        requests, edits_per_request: deletions that are served, r records each.
        requester: "in_order" deletes the first records, whatever is released; "largest_loss" is
            adaptive and deletes those with the largest loss under the last model it was shown.
        adaptivity: p, releases that the requester may have seen; the first p are shown.
        batches: m, cyclic batches of consecutive rows; 1 for full passes.
        reference: what eps_dd is compared with, the "replaced" record or the "null" record.
    """

    data: str
    n: int
    dim: int
    l2: float = 0.05
    eps_dp: float = 1.0
    eps_dd: float = 0.1
    order: float | None = 2.0
    delta: float | None = None
    clip_norm: float | None = None
    noise_variance: float | None = None
    step_size: float | None = None
    requests: int = 10
    edits_per_request: int = 1
    adaptivity: int = 0
    requester: RequesterName = "in_order"
    accountant: str | None = None
    loss: str = "logistic"
    smoothing: float | None = None
    threshold: float | None = None
    hidden: int | None = None
    output_norm: float | None = None
    intercept: bool = False
    precision: Precision = "full"
    batches: int = 1
    reference: Reference = "replaced"

    @property
    def problem(self) -> Problem:
        """The regularised problem."""
        return problem_of(self)

    @property
    def parameters(self) -> int:
        """How many numbers a model has."""
        blank = Labelled(np.zeros((1, self.dim), np.float32), np.zeros(1, np.float32))
        model = jax.eval_shape(self.problem.loss.template, records_for(self, blank))
        return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(model))

    def plan(self) -> Plan:
        """The accountant's plan; refused if no plan meets the budgets."""
        problem = self.problem
        convex = problem.loss.constants.convex
        known = FORMULAS["convex" if convex else "nonconvex"]
        formulas: Any = known[0] if self.accountant is None else self.accountant
        common: dict[str, Any] = {
            "n": self.n,
            "dim": self.parameters,
            "order": self.order,
            "eps_dp": self.eps_dp,
            "eps_dd": self.eps_dd,
            "edits_per_request": self.edits_per_request,
            "step_size": self.step_size,
            "noise_variance": self.noise_variance,
        }
        if convex:
            cycle: dict[str, Any] = {"batches": self.batches, "reference": self.reference}
            return plan_convex(problem, delta=self.delta, accountant=formulas, **common, **cycle)
        if self.batches != 1 or self.reference != "replaced":
            raise InputError(
                f"{self.loss} is not convex, so it has neither batches nor the null reference; "
                f"give batches 1 and reference replaced."
            )
        if self.delta is not None:
            raise InputError(
                f"{self.loss} is not convex, and its budgets are Rényi divergences; give an order "
                f"instead of delta = {self.delta:g}."
            )
        return plan_nonconvex(problem, form=formulas, **common)


def problem_of(asked: Any) -> Problem:
    """The problem of a question or of a planned run, whose numbers may be traced."""
    return Problem(_loss(asked), asked.l2, asked.clip_norm, precision=asked.precision)


def _loss(asked: Any) -> Loss:
    checks.choice("loss", asked.loss, CATALOGUE)
    make = getattr(losses, asked.loss)
    options = {name: getattr(asked, name) for name in LOSS_OPTIONS}
    options = {name: value for name, value in options.items() if value is not None}
    taken = inspect.signature(make).parameters
    for name in options:
        if name not in taken:
            raise InputError(f"the loss {asked.loss} takes no {name}; leave it out.")
    if "hidden" in taken and "hidden" not in options:
        raise InputError(f"the loss {asked.loss} needs hidden, its number of units; give it.")
    if asked.loss in OF_CLASSES:
        options["num_classes"] = 2
    return make(feature_norm=math.sqrt(2) if asked.intercept else 1.0, **options)


def records_for(asked: Any, records: Labelled) -> PyTree:
    """Records with labels ±1 as the loss takes them.

    The constant 1 of an intercept is a feature like the others here, so that a row of zeros is a
    null record of every loss.
    """
    features, label = records
    if np.issubdtype(label.dtype, np.integer):
        raise InputError(
            "the records have class numbers, of more than two classes, and a sweep is of two; give "
            "records with labels ±1."
        )
    if asked.intercept:
        ones = np.ones((len(label), 1), features.dtype)
        features = np.concatenate([np.asarray(features), ones], axis=1)
    if asked.loss == "linear":
        return jax.device_put(np.asarray(features) * np.asarray(label)[:, None])
    if asked.loss in OF_CLASSES:
        label = (np.asarray(label) > 0).astype(np.int32)
    return Labelled(*map(jax.device_put, (features, label)))


@dataclass(frozen=True)
class PlannedRun:
    """What is run: the numbers of the plan are traced (`TRACED`), everything else is static."""

    data: str
    n: int
    requests: int
    edits_per_request: int
    requester: RequesterName
    loss: str
    smoothing: float | None
    threshold: float | None
    hidden: int | None
    output_norm: float | None
    intercept: bool
    precision: Precision
    l2: float
    clip_norm: float | None
    adaptivity: int
    step_size: float
    noise_variance: float
    init_variance: float
    learn_steps: int
    delete_steps: int
    batches: int


_ASKED = tuple(name for name in PlannedRun.__dataclass_fields__ if name in Question.__annotations__)
_NUMBERS = ("step_size", "noise_variance", "init_variance", "learn_steps", "delete_steps")
TRACED = ("l2", "clip_norm", "adaptivity", *_NUMBERS)


def planned_run(question: Question, plan: Plan) -> PlannedRun:
    """The run that a plan describes."""
    asked = {name: getattr(question, name) for name in _ASKED}
    if question.requester == "in_order":  # it never looks, so that all p share one run
        asked["adaptivity"] = 0
    schedule = noisy_gd.Schedule.of(plan)
    numbers = {name: getattr(schedule, name) for name in (*_NUMBERS, "batches")}
    return PlannedRun(**asked | numbers)


class Outcome(NamedTuple):
    """What one run gave, after learning and after the last request.

    Attributes:
        risk_learned, risk_edited: excess empirical risk on the current database; NaN where the loss
            is not convex, as no minimiser is known then.
        accuracy_learned, accuracy_edited: share of held-out records that have a smaller loss with
            their own label than with the other one; NaN without such records.
        objective_learned, objective_edited: the regularised empirical risk itself.
        outside: records that were outside the loss's domain, and edits that were not applied.
    """

    risk_learned: Array
    risk_edited: Array
    accuracy_learned: Array
    accuracy_edited: Array
    objective_learned: Array
    objective_edited: Array
    outside: Array


def judged(key: Array, run: PlannedRun, train: PyTree, test: PyTree) -> Outcome:
    """Learn, serve the requester's deletions, and judge the first and the last release.

    Args:
        key: of this run.
        run: the setting.
        train, test: private and held-out records, as `records_for` gives them.
    """
    problem = problem_of(run)
    adaptive = run.requester != "in_order"
    _, transcript = interact(
        key,
        noisy_gd.mechanism(problem, noisy_gd.Schedule.of(run)),
        _requester(run, problem.loss, train),
        train,
        num_requests=run.requests,
        observe=range(run.requests) if adaptive else (),
        overlay=adaptive,  # each seed has its own edits; its rows need no copy for them
    )
    # Two slices: a gather would make TPUs copy all releases first.
    first, last = (jax.tree.map(lambda leaf, i=i: leaf[i], transcript.releases) for i in (0, -1))
    models = jax.tree.map(lambda *leaves: jnp.stack(leaves), first, last)
    edits = transcript.edits
    edited = jax.lax.scan(lambda rows, edit: (apply_edit(rows, edit), None), train, edits)[0]
    risk = jnp.full(2, jnp.nan)
    if problem.loss.constants.convex:
        each = jax.tree.map(lambda leaf: leaf[:, None], models)
        risk = erm.judge_stream(problem, each, train, edits, (0, run.requests)).risk[:, 0]
    accuracy = _accuracy(problem.loss, models, test, _other_class(run.loss, test))
    outside = (transcript.projected, transcript.rejected, transcript.projected_initially)
    return Outcome(
        risk_learned=risk[0],
        risk_edited=risk[1],
        accuracy_learned=accuracy[0],
        accuracy_edited=accuracy[1],
        objective_learned=erm.objective(problem, first, train),
        objective_edited=erm.objective(problem, last, edited),
        outside=jnp.asarray(sum(jnp.sum(count) for count in outside)),
    )


def _requester(run: PlannedRun, loss: Loss, train: PyTree) -> Requester:
    size = run.edits_per_request
    if run.requester == "in_order":
        rows = jnp.arange(run.requests * size, dtype=jnp.int32).reshape(-1, size)
        null = losses.null_records(loss, train, size)
        return requesters.fixed_stream(jax.vmap(lambda index: Edit(index, null))(rows))
    chosen = requesters.largest_loss(loss, train, edits_per_request=size)
    return requesters.shown_first(chosen, run.adaptivity)


@products.full
def _accuracy(loss: Loss, models: PyTree, test: PyTree, other: PyTree) -> Array:
    """Share of records whose loss is below that of the same record in the other class."""

    def of_one(model):
        own, wrong = (jax.vmap(loss.value, (None, 0))(model, rows) for rows in (test, other))
        return jnp.mean(own < wrong)

    return jax.vmap(of_one)(models)


def _other_class(loss: str, records: PyTree) -> PyTree:
    if loss == "linear":
        return -records
    return records._replace(label=1 - records.label if loss in OF_CLASSES else -records.label)


class Answer(NamedTuple):
    """A question with its plan and its runs, or the reason why it has none.

    Attributes:
        question: what was asked.
        plan, certificate: the plan, and its certificate after the last request; None if refused.
        outcome: leaves with a leading axis of seeds; None if refused.
        refused: the reason, or None.
    """

    question: Question
    plan: Plan | None = None
    certificate: Certificate | None = None
    outcome: Outcome | None = None
    refused: str | None = None


def answers(
    questions: Sequence[Question],
    run: Callable[[list[PlannedRun]], list],
    *,
    seeds: int = 1,
    at_once: int | None = None,
) -> list[Answer]:
    """Plan every question and run the plans; questions with the same plan share one run.

    Args:
        questions: what to plan.
        run: outcomes of planned runs over seeds, such as `sweeps.run` with `judged`.
        seeds: runs of each plan; a plan with more work than anybody would wait for is refused.
        at_once: runs in memory at the same time, all seeds by default.

    Raises:
        InputError: no question has a plan; the message is the first one's reason.
    """
    held = seeds if at_once is None else min(at_once, seeds)
    planned = [_planned(question, seeds, held) for question in questions]
    reasons = [answer.refused for answer in planned]
    if None not in reasons:
        raise InputError(f"no setting has a plan: {reasons[0]}")
    asked = [None if a.plan is None else planned_run(a.question, a.plan) for a in planned]
    once = list(dict.fromkeys(one for one in asked if one is not None))
    found = dict(zip(once, run(once), strict=True))
    return [
        answer if one is None else answer._replace(outcome=Outcome(*found[one]))
        for answer, one in zip(planned, asked, strict=True)
    ]


def _planned(question: Question, seeds: int, at_once: int) -> Answer:
    try:
        plan = question.plan()
        certificate = plan.certificate(question.adaptivity, question.requests)
        check_work(plan, question.dim, question.requests, seeds, at_once)
    except InputError as error:
        return Answer(question, refused=str(error))
    return Answer(question, plan, certificate)


def check_work(plan: Plan, columns: int, requests: int, seeds: int, at_once: int) -> None:
    """Refuse a plan whose runs would not end within days, or not fit into memory.

    Args:
        plan: what is run. columns: numbers in a record.
        requests, seeds: how often.
        at_once: runs whose releases and edits are held at the same time.
    """
    releases, edits = requests + 1, requests * plan.edits_per_request
    # Three times each: an edited database, and what judges the releases, are copies.
    memory.require(
        3 * 4 * (plan.n * columns + at_once * (releases * plan.dim + edits * columns)),
        f"{plan.n:,} records of {columns:,} numbers, with {releases:,} releases and {edits:,} "
        f"edits of {at_once:,} runs at once,",
        "give fewer seeds, requests, records or columns",
    )
    steps = plan.learn_steps + requests * plan.delete_steps
    work = plan.n / plan.batches * plan.dim * steps * seeds
    if work > MOST_WORK or max(plan.learn_steps, plan.delete_steps) > _MOST_STEPS:
        # Without convexity the steps grow exponentially as the noise falls, and budgets set it.
        fewer = "l2 or budgets" if plan.kind == "convex" else "noise_variance (σ²) or eps_dd"
        raise InputError(
            f"learning takes {plan.learn_steps:,} steps and a request {plan.delete_steps:,}, each "
            f"over {plan.n // plan.batches:,} records, too many to run with {seeds} seeds; give a "
            f"larger {fewer}, or fewer seeds."
        )


def first_records(dataset: data.Dataset, n: int) -> tuple[Labelled, Labelled]:
    """The first n training records, and all held-out ones."""
    return jax.tree.map(lambda leaf: leaf[:n], dataset.train), dataset.test
