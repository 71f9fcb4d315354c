"""From budgets to plans to runs: excess risk and accuracy after learning and after deletions.

A `Question` states budgets on a data set; its plan has the numbers of a run, and `judged` runs it.
All numbers of a plan are inputs of the compiled program, step counts too, so that a sweep over
budgets, regularisers and noise compiles once for each data set and size.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array

from dd_jax import data, erm, losses, noisy_gd, requesters
from dd_jax.erm import Problem
from dd_jax.errors import InputError
from dd_jax.interaction import interact
from dd_jax.plans import Certificate, Plan, plan_convex
from dd_jax.types import Edit, Labelled

LOSS = losses.logistic


@dataclass(frozen=True)
class Question:
    """Budgets on a data set; see `dd.plan_convex`.

    Attributes:
        data: name of the data set, of which the first n records are used. dim: parameters d.
        l2, clip_norm: of the problem.
        eps_dp, eps_dd, order, delta: the budgets and their unit.
        noise_variance, step_size: given values, or None for those of the plan.
        requests: deletions that are served.
    """

    data: str
    n: int
    dim: int
    l2: float
    eps_dp: float
    eps_dd: float
    order: float | None = 2.0
    delta: float | None = None
    clip_norm: float | None = None
    noise_variance: float | None = None
    step_size: float | None = None
    requests: int = 10

    @property
    def problem(self) -> Problem:
        """Logistic regression at the question's λ and clip norm."""
        return Problem(LOSS(), self.l2, self.clip_norm)

    def plan(self) -> Plan:
        """The optimal accountant's plan; refused if no plan meets the budgets."""
        return plan_convex(
            self.problem,
            n=self.n,
            dim=self.dim,
            eps_dp=self.eps_dp,
            eps_dd=self.eps_dd,
            order=self.order,
            delta=self.delta,
            step_size=self.step_size,
            noise_variance=self.noise_variance,
        )


@dataclass(frozen=True)
class PlannedRun:
    """What is run: `data`, `n` and `requests` are static, the numbers of the plan are traced."""

    data: str
    n: int
    requests: int
    l2: float
    clip_norm: float | None
    step_size: float
    noise_variance: float
    init_variance: float
    learn_steps: int
    delete_steps: int


TRACED = ("l2", "clip_norm", *noisy_gd.Schedule._fields)


def planned_run(question: Question, plan: Plan) -> PlannedRun:
    """The run that a plan describes."""
    asked = {name: getattr(question, name) for name in ("data", "n", "requests", "l2", "clip_norm")}
    return PlannedRun(**asked, **noisy_gd.Schedule.of(plan)._asdict())


class Outcome(NamedTuple):
    """Excess empirical risk on the current database and held-out accuracy of one run."""

    risk_learned: Array
    risk_edited: Array
    accuracy_learned: Array
    accuracy_edited: Array


def judged(key: Array, run: PlannedRun, train: Labelled, test: Labelled) -> Outcome:
    """Learn, delete the first records one by one, and judge the first and the last release."""
    problem = Problem(LOSS(), run.l2, run.clip_norm)
    rows = jnp.arange(run.requests, dtype=jnp.int32)[:, None]
    null = losses.null_records(problem.loss, train, 1)
    edits = jax.vmap(lambda index: Edit(index, null))(rows)
    stream = requesters.fixed_stream(edits)
    mechanism = noisy_gd.mechanism(problem, noisy_gd.Schedule.of(run))
    _, transcript = interact(key, mechanism, stream, train, num_requests=run.requests)
    # Two slices: a gather would make TPUs copy all releases first.
    models = jnp.stack([transcript.releases[0], transcript.releases[-1]])
    found = erm.judge_stream(problem, models[:, None], train, edits, (0, run.requests))
    return Outcome(*found.risk[:, 0], *erm.accuracy(models, test))


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


def answers(questions: Sequence[Question], run: Callable[[list[PlannedRun]], list]) -> list[Answer]:
    """Plan every question and run the plans; questions with the same plan share one run.

    Args:
        questions: what to plan.
        run: outcomes of planned runs over seeds, such as `sweeps.run` with `judged`.

    Raises:
        InputError: no question has a plan; the message is the first one's reason.
    """
    planned = [_planned(question) for question in questions]
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


def _planned(question: Question) -> Answer:
    try:
        plan = question.plan()
        return Answer(question, plan, plan.certificate(request=question.requests))
    except InputError as error:
        return Answer(question, refused=str(error))


def first_records(dataset: data.Dataset, n: int) -> tuple[Labelled, Labelled]:
    """The first n training records, and all held-out ones."""
    return jax.tree.map(lambda leaf: leaf[:n], dataset.train), dataset.test
