"""Every system of the comparison in a small setting: the table that conformance tests walk.

To add a system: write a cached factory and put an `Entry` into `SYSTEMS`. Keep it tiny (n ≈ 12, a
few steps): everything in the table is run for hundreds of seeds.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from problems import signed

import dd_jax as dd
from dd_jax.baselines import fixed_model, noisy_gd_system, retraining
from dd_jax.baselines.base import System
from dd_jax.requesters import stack_edits

N, DIM = 12, 2
PROBLEM = dd.Problem(dd.losses.logistic(), l2=0.2)
DATABASE = signed(N, DIM, seed=3)


class Entry(NamedTuple):
    """One system in a small setting, and what is claimed of it there.

    Attributes:
        make: cached factory of the system.
        database: 𝒟_0.
        stream: the edits, leading axis = requests (the same r in each).
        learn_gradients: `Cost.gradients` of learning by hand, None where a run decides it.
        delete_gradients: `Cost.gradients` of each request by hand, None where a run decides it.
        exact: the release after the stream is claimed to have the law of learning on the edited
            database.
        mutant: cached factory of a broken version that the exactness test must catch.
        quiet: cached factory without any noise: its releases must not depend on the key.
        moves: whether a release depends on the records at all.
    """

    make: Callable[[], System]
    database: Any
    stream: dd.Edit
    learn_gradients: int | None = None
    delete_gradients: int | None = None
    exact: bool = False
    mutant: Callable[[], System] | None = None
    quiet: Callable[[], System] | None = None
    moves: bool = True


def deletions(*rows: int) -> dd.Edit:
    """A stream that blanks one row of `DATABASE` per request."""
    return stack_edits([dd.deletion(PROBLEM.loss, DATABASE, [row]) for row in rows])


def replacements(*rows: int) -> dd.Edit:
    """A stream that puts one far-off record into one row of `DATABASE` per request."""
    record = dd.Labelled(jnp.array([[1.0, 0.0]]), jnp.array([-1.0]))
    return stack_edits([dd.replacement([row], record) for row in rows])


STREAM = jax.tree.map(lambda *leaves: jnp.concatenate(leaves), deletions(2), replacements(5))


@functools.cache
def plan(accountant: str = "optimal", epsilon: float = 1.0) -> dd.Plan:
    """A short plan for the small problem."""
    return noisy_gd_system.calibrate(
        PROBLEM,
        n=N,
        dim=DIM,
        epsilon=epsilon,
        delta=1e-2,
        epsilon_private=3 * epsilon,
        accountant=accountant,
    )


def noisy(accountant: str) -> Entry:
    """Noisy-GD by one of its accountants."""
    made = plan(accountant)
    return Entry(
        functools.cache(lambda: noisy_gd_system.system(PROBLEM, made, delta=1e-2)),
        DATABASE,
        STREAM,
        learn_gradients=N * made.learn_steps,
        delete_gradients=N * made.delete_steps,
    )


# Little noise, so that few seeds tell a stale record from a fresh one.
LOUD = plan(epsilon=20.0)


@functools.cache
def retrained() -> System:
    return retraining.system(PROBLEM, LOUD)


@functools.cache
def forgetful() -> System:
    """Retraining that leaves the edit out."""
    good = retrained()
    return good._replace(delete=lambda key, database, edit, state: good.learn(key, database))


SYSTEMS: dict[str, Entry] = {
    "noisy-gd": noisy("optimal"),
    "noisy-gd-paper": noisy("paper"),
    "retraining": Entry(
        retrained,
        DATABASE,
        STREAM,
        learn_gradients=N * LOUD.learn_steps,
        delete_gradients=N * LOUD.learn_steps,
        exact=True,
        mutant=forgetful,
    ),
    "fixed-model": Entry(
        functools.cache(lambda: fixed_model.system(PROBLEM)),
        DATABASE,
        STREAM,
        learn_gradients=0,
        delete_gradients=0,
        exact=True,
        moves=False,
    ),
}
