"""λ for `dd-jax run --l2 auto --tune`: of a few values one that is good on public records.

Nothing here sees a private record: it gets sizes, constants, budgets and public records.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from dd_jax import erm, losses, noisy_gd
from dd_jax.constants import LossConstants, ProblemConstants
from dd_jax.data.own_file import OwnData, loss_for, with_intercept
from dd_jax.ensemble import over_seeds
from dd_jax.erm import Problem
from dd_jax.errors import InputError
from dd_jax.plans import Plan, plan_convex

SEEDS = 5
# What λ = "auto" is multiplied with, the largest first: half decades.
FACTORS = tuple(10 ** (half / 2) for half in range(2, -5, -1))
# Multiplications of one value of λ, some minutes; those that need more are left out.
_MOST_WORK = 1e12


class Tried(NamedTuple):
    """A value of λ, and the mean accuracy on held-out public records of models learned with it."""

    l2: float
    accuracy: float


class Tuned(NamedTuple):
    """The chosen λ, all that were tried, and in words how it was chosen and what was assumed."""

    l2: float
    tried: tuple[Tried, ...]
    words: str


def choose(
    public: OwnData,
    name: str,
    *,
    around: float,
    constants: LossConstants,
    classes: int,
    loss: str | None,
    intercept: bool,
    say: Callable[[str], None],
    n: int,
    dim: int,
    **budgets: Any,
) -> Tuned:
    """The largest λ whose plan for the private sizes learns as well as any on public records.

    Each plan's step size, noise, steps and batches are run on at most n public records. As well is
    within one standard error of the best accuracy: a larger λ takes fewer steps. The key is fixed,
    so that equal arguments give equal answers.

    Args:
        public, name: the public data, some of them held out, and what they are called.
        around: the middle of the values that are tried.
        constants: of the private problem's loss. classes: how many it has.
        loss, intercept: as `serving.make` takes them.
        say: told what is being done.
        n, dim: private sizes.
        **budgets: of `plan_convex`, the other sizes among them.

    Raises:
        InputError: public data with another number of classes, or no value of λ has a plan that
            can be tried.
    """
    if len(public.classes) != classes:
        raise InputError(
            f"--tune {name} has {len(public.classes)} classes and --data has {classes}; name "
            f"public data with as many."
        )
    public = with_intercept(public) if intercept else public
    made = loss_for(public, loss, intercept=intercept)
    losses.check_data(made, public.train)
    train = _some(public.train, n)
    rows, held_out = len(train.label), len(public.test.label)
    parameters = made.template(train).size
    tried, refused = [], None
    for l2 in (around * factor for factor in FACTORS):
        try:
            plan = plan_convex(ProblemConstants(constants, l2), n=n, dim=dim, **budgets)
        except InputError as error:
            refused = refused or error
            continue
        if rows / plan.batches * parameters * plan.learn_steps * SEEDS <= _MOST_WORK:
            say(f"λ = {l2:.3g}: {plan.learn_steps:,} steps on the public {name} …")
            tried.append(Tried(l2, _accuracy(Problem(made, l2), plan, train, public.test)))
    if not tried:
        raise refused or InputError(
            f"--tune {name} takes too long for every λ; give --l2 a number."
        )
    best = max(one.accuracy for one in tried)
    share = (held_out * best + 1) / (held_out + 2)  # so that no error at all is not taken for sure
    enough = best - math.sqrt(share * (1 - share) / held_out)
    chosen = next(one for one in tried if one.accuracy >= enough)
    sizes = f"{parameters:,} parameters instead of {dim:,}, {rows:,} records instead of {n:,}"
    words = (
        f"λ = {chosen.l2:.4g} was chosen on public data: of {len(tried)} values it is the largest "
        f"whose mean accuracy ({chosen.accuracy:.3f}) is within a standard error of the best "
        f"({best:.3f}), on {held_out:,} held-out rows of {name}, with {SEEDS} models each, learned "
        f"with the plan's steps and noise; no private row was used; assumed: what is good on "
        f"{name} ({sizes}) is good on the private data too"
    )
    return Tuned(chosen.l2, tuple(tried), words)


def _some(records: Any, most: int) -> Any:
    """At most so many of the records, in their order, always the same ones."""
    n = len(records.label)
    kept = np.sort(np.asarray(jax.random.permutation(jax.random.key(0), n))[:most])
    return jax.tree.map(lambda leaf: leaf[kept], records)


def _accuracy(problem: Problem, plan: Plan, train: Any, test: Any) -> float:
    """Mean share of held-out records that models of the plan's settings get right."""
    learn = _learner(min(plan.batches, len(train.label)))
    schedule = noisy_gd.Schedule.of(plan)._replace(batches=1)  # its number is the program's
    models = over_seeds(learn, jax.random.key(0), SEEDS, problem, schedule, train)
    # A mean of counts, so that equal models have equal accuracies.
    return float(np.mean(erm.correct(np.asarray(models), jax.tree.map(np.asarray, test))))


@functools.lru_cache(maxsize=32)
def _learner(batches: int):
    """Learning with so many batches; the same program for every λ, noise and number of steps."""

    def learn(key, problem, schedule, train):
        mechanism = noisy_gd.mechanism(problem, schedule._replace(batches=batches))
        state = mechanism.learn(key, train)
        return state if batches == 1 else state.model

    return learn
