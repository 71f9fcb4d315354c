"""Long streams of replacements: who asks for them, and how releases along them are judged."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, PyTree

import dd_jax as dd
from dd_jax import erm, requesters
from dd_jax.interaction import Observation, Requester
from dd_jax.losses.base import Loss
from dd_jax.noisy_gd import mechanism
from dd_jax.sweeps.deletion import LOSS, schedule


def in_turn(pool: dd.Labelled, num_requests: int, seed: int) -> dd.Edit:
    """Edits fixed in advance: row 0, 1, 2, … and round again gets a random record of the pool."""
    n = len(pool.label)
    picks = np.random.default_rng(seed).integers(0, n, (num_requests, 1))
    rows = (np.arange(num_requests) % n)[:, None]
    record = jax.tree.map(lambda leaf: leaf[picks], pool)
    return dd.Edit(jnp.asarray(rows, jnp.int32), record)


class Memory(NamedTuple):
    """Which record of the pool each row holds."""

    holds: Int[Array, "n"]


def against_the_model(loss: Loss, pool: dd.Labelled) -> Requester:
    """Put the pool's worst fitted record in place of the database's best fitted one, each time.

    Adaptive: it must see every release, and drags the minimiser away from the one just released.
    The database starts as the pool.
    """

    def init(key):
        del key
        return Memory(jnp.arange(len(pool.label), dtype=jnp.int32))

    def act(key, memory: Memory, observation: Observation):
        del key
        losses = jax.vmap(loss.value, in_axes=(None, 0))(observation.release, pool)
        row = jnp.argmin(losses[memory.holds]).astype(jnp.int32)
        pick = jnp.argmax(losses).astype(jnp.int32)
        record = jax.tree.map(lambda leaf: leaf[pick][None], pool)
        return Memory(memory.holds.at[row].set(pick)), dd.Edit(row[None], record)

    return Requester(init, act)


class Judged(NamedTuple):
    """Releases 0, every, 2·every, …: excess risk on their databases, held-out accuracy."""

    risk: Array
    accuracy: Array


def databases(train: dd.Labelled, edits: dd.Edit, every: int) -> dd.Labelled:
    """The database after 0, every, 2·every, … edits, stacked."""

    def step(rows, block):
        rows = _apply(rows, block)
        return rows, rows

    return jax.lax.scan(step, train, _blocks(train, edits, every))[1]


@functools.partial(jax.jit, static_argnums=0)
def minima(loss: Loss, l2, stacked: dd.Labelled) -> Array:
    """The minimiser on each of the stacked databases, each sought from the one before."""

    def step(params, database):
        params = erm.minimise(dd.Problem(loss, l2), database, params).params
        return params, params

    first = jax.tree.map(lambda leaf: leaf[0], stacked)
    return jax.lax.scan(step, loss.template(first), stacked)[1]


def fixed(
    key: Array, setting: Any, edits: dd.Edit, stacked: dd.Labelled, optima: Array, test, every: int
) -> Judged:
    """A stream fixed in advance, so that all seeds share the databases and their minimisers."""
    train = jax.tree.map(lambda leaf: leaf[0], stacked)
    requester = requesters.fixed_stream(edits)
    releases = _transcript(key, setting, requester, (), train).releases[::every]
    return Judged(_risks(setting, releases, stacked, optima), accuracy(releases, test))


def retrained(
    key: Array, setting: Any, stacked: dd.Labelled, optima: Array, test: dd.Labelled
) -> Judged:
    """A model learned from scratch on each of the stacked databases, with noise of its own."""
    keys = jax.random.split(key, len(optima))
    models = jax.vmap(mechanism(_problem(setting), schedule(setting)).learn)(keys, stacked)
    return Judged(_risks(setting, models, stacked, optima), accuracy(models, test))


def adaptive(key: Array, setting: Any, train: dd.Labelled, test, every: int) -> Judged:
    """A requester that sees every release and works against it: each seed its own database."""
    problem, requester = _problem(setting), against_the_model(LOSS(), train)
    transcript = _transcript(key, setting, requester, range(setting.requests), train)
    releases = transcript.releases[::every]

    def judge(carry, xs):
        database, optimum = carry
        release, block = xs
        database = _apply(database, block)
        optimum = erm.minimise(problem, database, optimum).params
        return (database, optimum), erm.excess_risk(problem, release, database, optimum)

    start = (train, problem.loss.template(train))
    blocks = _blocks(train, transcript.edits, every)
    _, risks = jax.lax.scan(judge, start, (releases, blocks))
    return Judged(risks, accuracy(releases, test))


def accuracy(models: Array, test: dd.Labelled) -> Array:
    """Share of held-out records that each model gets right."""
    return jnp.mean(models @ test.features.T * test.label > 0, axis=1)


def _problem(setting: Any) -> dd.Problem:
    return dd.Problem(LOSS(), setting.l2)


def _transcript(key, setting, requester, observe, train) -> dd.Transcript:
    made = mechanism(_problem(setting), schedule(setting))
    served = setting.requests
    return dd.interact(key, made, requester, train, num_requests=served, observe=observe)[1]


def _risks(setting, models, stacked, optima) -> Array:
    judge = functools.partial(erm.excess_risk, _problem(setting))
    return jax.vmap(judge)(models, stacked, optima)


def _apply(database: PyTree, edits: dd.Edit) -> PyTree:
    """One edit after another."""
    return jax.lax.scan(lambda rows, edit: (dd.apply_edit(rows, edit), None), database, edits)[0]


def _blocks(train: dd.Labelled, edits: dd.Edit, every: int) -> dd.Edit:
    """Edits in blocks of `every`, after a block that names no row, for the first release."""
    beyond = jnp.full_like(edits.index[:every], len(train.label))
    none = dd.Edit(beyond, jax.tree.map(lambda leaf: leaf[:every], edits.record))

    def block(first, rest):
        return jnp.concatenate([first, rest]).reshape(-1, every, *rest.shape[1:])

    return jax.tree.map(block, none, edits)
