"""Three adversaries against one target, in two worlds that differ by its label.

(a) sees one release after the deletion, (b) a hundred, with requests in between that name no row,
(c) designed the requester: it sees the release after learning, guesses the target's label from it
and writes that label into other rows, one request each; then the target is deleted, and the
adversary sees one release. What the adversaries see goes through `dd_jax.attacks.game`.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial
from jaxtyping import Array, PyTree

import dd_jax as dd
from dd_jax.attacks.game import play
from dd_jax.audit import scores
from dd_jax.audit.samples import Outcome, PostDeletionView, Stage, two_worlds
from dd_jax.baselines import base, k_means
from dd_jax.ensemble import Pair
from dd_jax.interaction import Requester
from dd_jax.intervals import Estimate, advantage
from dd_jax.types import Edit, Labelled
from experiments.compare.scene import TARGET_ROW, Scene
from experiments.compare.systems import CLUSTERS, LINEAR, SHARDED, Contestant

SUMMARIES = (1, 3, 10, 30, 100)
FIT_SHARE = 0.3
CHUNK = 256
# Numbers in the databases of a chunk, where every seed has its own.
MOST_NUMBERS = 1.5e8


class Board(NamedTuple):
    """What a contestant works on: records, how a label becomes one, what a release shows.

    A pytree: its functions are bound to their records, which are arguments of what is compiled.

    Attributes:
        database: 𝒟_0, the target in row 0.
        write: `label -> record` (one row): the target's features with this label.
        blank: the record that a deletion leaves.
        read: `release -> (k,)`: what the adversary looks at in one release.
    """

    database: PyTree
    write: Callable[[Array], PyTree]
    blank: PyTree
    read: Callable[[PyTree], Array]


def make_board(scene: Scene, contestant: Contestant) -> Board:
    """The scene as the contestant sees it."""
    target = scene.target
    if contestant.releases == CLUSTERS:
        points = k_means.points(scene.database.features)
        blank = k_means.deletion(points, [TARGET_ROW]).record
        return Board(points, Partial(_write_point, target), blank, Partial(_read_centroids))
    blank = dd.deletion(scene.problem.loss, scene.database, [TARGET_ROW]).record
    read = {LINEAR: _read_model, SHARDED: _read_shards}[contestant.releases]
    return Board(scene.database, Partial(_write_record, target), blank, Partial(read, scene.trace))


def _write_point(target: Array, label):
    return k_means.Points(label * target[None], jnp.ones(1, jnp.int32))


def _write_record(target: Array, label):
    return Labelled(target[None], jnp.asarray(label, target.dtype)[None])


def _read_model(trace: Array, model: Array) -> Array:
    return jnp.stack([model[-1], model @ trace])


def _read_shards(trace: Array, models: Array) -> Array:
    return _read_model(trace, jnp.sum(models, axis=0))


def _read_centroids(centroids: Array) -> Array:
    """The target's own feature in the centroids: its sum, largest and smallest value."""
    own = centroids[:, -1]
    return jnp.stack([jnp.sum(own), jnp.max(own), jnp.min(own)])


def make_requester(board: Board, copies: int) -> Requester:
    """Requests 1 to `copies` write the label read from φ_0 into other rows, the next deletes.

    Later requests name no row. The label is the sign of the target's own feature in φ_0; without
    the target it would be zero in either world.
    """
    n = dd.types.num_records(board.database)

    def act(key, label, observation):
        del key
        seen = jnp.where(board.read(observation.release)[0] > 0, 1.0, -1.0)
        label = jnp.where(observation.request == 1, seen, label)
        request = observation.request
        row = jnp.where(request <= copies, request, jnp.where(request == copies + 1, TARGET_ROW, n))
        if not copies:  # the database is then the same for all seeds, and so is what is exact
            return label, Edit(row[None].astype(jnp.int32), board.blank)
        record = jax.tree.map(
            lambda copy, blank: jnp.where(request <= copies, copy, blank),
            board.write(label),
            board.blank,
        )
        return label, Edit(row[None].astype(jnp.int32), record)

    return Requester(init=lambda key: jnp.float32(0), act=act)


class Sight(NamedTuple):
    """What an adversary keeps: means of what the first 1, 3, 10, … releases show; the first one."""

    means: Array
    first: PyTree


def look(key: Array, view: PostDeletionView, *, read: Callable) -> Sight:
    """The adversary's evidence; the decision rule is fitted on the host."""
    del key
    shown = jax.vmap(read)(view.releases)
    means = [jnp.mean(shown[:count], axis=0) for count in SUMMARIES if count <= len(shown)]
    return Sight(jnp.stack(means), view.first)


def trial(
    key: Array, database: PyTree, board: Board, *, mechanism, copies: int, releases: int
) -> Outcome:
    """One interaction in one world."""
    deletion = copies + 1
    stage = Stage(
        mechanism,
        make_requester(board, copies),
        database,
        TARGET_ROW,
        deletion,
        copies + releases,
        (0,) if copies else (),
    )
    return play(key, stage, functools.partial(look, read=board.read))


def sample(
    key: Array, contestant: Contestant, board: Board, *, copies: int, releases: int, seeds: int
) -> Pair:
    """Both worlds: the target has label +1, or -1 from the start."""
    fn = functools.partial(
        trial,
        mechanism=base.mechanism(contestant.system),
        copies=copies,
        releases=releases,
    )
    other = dd.replacement([TARGET_ROW], board.write(jnp.float32(-1)))
    worlds = (key, seeds, board.database, other, board)
    if contestant.one_by_one:
        return two_worlds(fn, *worlds, neighbours=_one_by_one)
    chunk = min(CHUNK, seeds)
    if contestant.releases != LINEAR:  # linear models share the rows' features, see `make_board`
        held = sum(leaf.size for leaf in jax.tree.leaves(board.database))
        chunk = min(chunk, max(1, round(MOST_NUMBERS / held)))
    return two_worlds(fn, *worlds, chunk=chunk)


def _one_by_one(fn, key: Array, seeds: int, database: PyTree, edit: Edit, board: Board) -> Pair:
    """`dd.neighbours` for a curator that branches: under a vmap it would take both branches."""
    run = jax.jit(lambda keys, *args: jax.lax.map(lambda key: fn(key, *args), keys))
    worlds = (database, dd.apply_edit(database, edit))
    keys = jax.random.split(key, (2, seeds))
    return Pair(*(run(*arm, board) for arm in zip(keys, worlds, strict=True)))


def judge(present: np.ndarray, absent: np.ndarray, confidence: float) -> Estimate:
    """The advantage of a linear test: direction and threshold from 30% of the seeds, judged on 70%.

    The interval is for this test. Its lower limit also bounds the best test from below; its upper
    limit says nothing about other tests.

    Args:
        present, absent: (seeds, …) evidence of each world.
        confidence: of this interval.
    """
    tables = [np.asarray(arm, np.float64).reshape(len(arm), -1) for arm in (present, absent)]
    fitting = max(2, round(FIT_SHARE * len(present)))
    score = scores.linear()
    scorer = score.fit(*(table[:fitting] for table in tables))
    fit_present, fit_absent, present, absent = (
        scores.evaluate(score, scorer, part)
        for part in (*(t[:fitting] for t in tables), *(t[fitting:] for t in tables))
    )
    threshold = _best_threshold(fit_present, fit_absent)
    ones, zeros = (int(np.sum(arm > threshold)) for arm in (present, absent))
    return advantage(ones, zeros, len(present), confidence)


def _best_threshold(present: np.ndarray, absent: np.ndarray) -> float:
    """The threshold at which the two worlds differ most, among midpoints of the fitting scores."""
    both = np.unique(np.concatenate([present, absent]))
    middles = (both[1:] + both[:-1]) / 2 if both.size > 1 else both
    gains = [np.mean(present > t) - np.mean(absent > t) for t in middles]
    return float(middles[int(np.argmax(gains))])
