"""One row of the table: cost, secret state, risk, accuracy and what the three adversaries get."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from scipy import stats

import dd_jax as dd
from dd_jax import erm
from dd_jax.attacks.catalogue import find as find_attack
from dd_jax.baselines import base
from dd_jax.intervals import Estimate, simultaneous
from experiments.arena import contestants, games
from experiments.arena.contestant import Contestant
from experiments.arena.costs import Costs, measure_costs
from experiments.arena.settings import Config, Scene, make_scene

ADVERSARIES = ("one release", "many releases", "adaptive requester")
BEYOND, WITHIN = "beyond its claim", "within its claim"
LEAKS, LEAKS_MORE = "leaks", "leaks more than its claim allows one release"
NOT_SHOWN = "no leak shown"
VERDICTS = (BEYOND, WITHIN, LEAKS, LEAKS_MORE, NOT_SHOWN)
SUCCESS = (BEYOND, LEAKS, LEAKS_MORE)
# Gradient steps per request, times seeds: costlier systems get fewer seeds.
MOST_WORK = 12_000
LEAST_SEEDS = 150
# Releases shown to the patient adversary where all of them are the same.
REPEATED = 3
GUPTA_SEEDS = 150
GUPTA_DATA = "digits-3-vs-8"


class Mean(NamedTuple):
    """A mean over seeds with a 95% interval by Student's t."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Row:
    """A system on one data set; None where something does not apply, with the reason beside it.

    Attributes:
        data, system, setting: which, and the numbers chosen.
        guarantee: the claim as data.
        learn_gradients, gradients, hessians: per-record evaluations: to learn, and of the mean
            request of a stream of deletions. retrained: share of requests that trained anew.
        seconds: wall time of a request, one interaction on its own.
        retrain_ratio: learn_gradients / gradients.
        secret_bytes: kept besides the release.
        excess_risk, accuracy: of the release after the target's deletion.
        advantages: of the three adversaries. allowed: by the system's own claim.
        seeds: in each world.
        drained: Gupta et al.'s indicator against SISA, 1/2 under retraining.
        reasons: for every value that is None, by its name.
    """

    data: str
    system: str
    setting: str
    guarantee: base.Guarantee
    learn_gradients: float
    gradients: float
    hessians: float
    retrained: float
    seconds: float
    retrain_ratio: float | None
    secret_bytes: int
    excess_risk: Mean | None
    accuracy: Mean | None
    advantages: tuple[Estimate, Estimate, Estimate]
    allowed: tuple[float | None, float | None, float | None]
    seeds: int
    drained: Estimate | None = None
    reasons: dict[str, str] = field(default_factory=dict)

    def verdict(self, adversary: int) -> str:
        """What the samples say of one adversary, one of `VERDICTS`.

        Where nothing is claimed against this adversary, the claim for one release is the measure of
        how much it gets.
        """
        low, bound, single = (
            self.advantages[adversary].low,
            self.allowed[adversary],
            self.allowed[0],
        )
        if bound is not None:
            return BEYOND if low > bound else WITHIN
        if low <= 0:
            return NOT_SHOWN
        return LEAKS_MORE if single is not None and low > single else LEAKS

    @property
    def attacks(self) -> tuple[str, ...]:
        """The paper's attacks that succeed: refute the row's claim, or leak where none is made."""
        names = ("reading one release", "averaging releases", "copying by an adaptive requester")
        found = [name for place, name in enumerate(names) if self.verdict(place) in SUCCESS]
        if self.drained is not None and self.drained.low > 0.5:
            found.append("draining shards (Gupta et al.)")
        return tuple(found)


def run(config: Config, say: Callable[[str], None] = lambda text: None) -> list[Row]:
    """Every chosen system on every chosen data set, one confidence for all advantages together."""
    chosen = contestants.find(config.systems)
    # Three adversaries in each row, and Gupta et al.'s against two forms of SISA.
    each = simultaneous(config.confidence, 3 * len(chosen) * len(config.data) + 2)
    rows = []
    for place, name in enumerate(config.data):
        if place:
            # Nothing that was compiled for one scene fits another; it would only take room.
            jax.clear_caches()
        key = jax.random.fold_in(jax.random.key(config.seed), place)
        rows += _rows(key, make_scene(name, config), chosen, each, say)
    return rows


def _rows(key: Array, scene: Scene, chosen, each: float, say) -> list[Row]:
    """Costs one system at a time, since time is measured; games two at a time, to use the cores."""
    stream_key, game_key, gupta_key = jax.random.split(key, 3)
    entries = []
    for number, (name, make) in enumerate(chosen.items()):
        contestant = make(scene)
        board = games.make_board(scene, contestant)
        costs = measure_costs(
            jax.random.fold_in(stream_key, number), contestant, board, scene.config.stream
        )
        entries.append(Entry(name, contestant, board, costs))
    say(f"{scene.name}: costs of {len(entries)} systems measured")
    judges = Judges(_risk_judge(scene), _accuracy_judge(scene))

    def play(numbered):
        number, entry = numbered
        row = _row(jax.random.fold_in(game_key, number), scene, entry, judges, each)
        say(f"{scene.name}: {entry.name}")
        return row

    with ThreadPoolExecutor(2) as pool:
        rows = list(pool.map(play, enumerate(entries)))
    if scene.name == GUPTA_DATA:
        rows = _with_gupta(gupta_key, rows, each, say)
    return rows


class Entry(NamedTuple):
    """A contestant whose costs are known."""

    name: str
    contestant: Contestant
    board: games.Board
    costs: Costs


class Judges(NamedTuple):
    """How models are judged in a scene; compiled once."""

    risk: Callable[[Any], Any]
    accuracy: Callable[[base.System, Any], np.ndarray]


def _row(key: Array, scene: Scene, entry: Entry, judges: "Judges", each: float) -> Row:
    quiet_key, adaptive_key = jax.random.split(key)
    config, contestant, costs = scene.config, entry.contestant, entry.costs
    seeds = _affordable_seeds(config, (costs.gradients + scene.dim * costs.hessians) / scene.n)
    play = partial(games.sample, contestant=contestant, board=entry.board, seeds=seeds)
    shown = min(REPEATED, config.releases) if contestant.repeats else config.releases
    quiet = play(quiet_key, copies=0, releases=shown)
    if contestant.repeats and not _all_equal(quiet.present.means):
        raise RuntimeError(f"{entry.name} is said to repeat its release and does not.")
    adaptive = play(adaptive_key, copies=config.copies, releases=1)
    reasons = _reasons(contestant, costs)
    model = quiet.present.first
    return Row(
        data=scene.name,
        system=entry.name,
        setting=contestant.setting,
        guarantee=contestant.system.guarantee,
        **costs._asdict(),
        retrain_ratio=costs.learn_gradients / costs.gradients if costs.gradients else None,
        excess_risk=None if "excess_risk" in reasons else _mean(judges.risk(model)),
        accuracy=None
        if "accuracy" in reasons
        else _mean(judges.accuracy(contestant.system, model)),
        advantages=(
            games.judge(quiet.present.means[:, :1], quiet.absent.means[:, :1], each),
            games.judge(quiet.present.means, quiet.absent.means, each),
            games.judge(adaptive.present.means, adaptive.absent.means, each),
        ),
        allowed=contestant.allowed,
        seeds=seeds,
        reasons=reasons,
    )


def _all_equal(means: np.ndarray) -> bool:
    """Whether the means of the first 1 and 3 releases agree up to rounding."""
    return bool(np.allclose(means, means[:, :1], rtol=1e-4, atol=1e-6))


def _affordable_seeds(config: Config, steps: float) -> int:
    """All seeds where a request takes few passes over the data, fewer where it takes many."""
    return min(config.seeds, max(LEAST_SEEDS, round(MOST_WORK / max(steps, 1))))


def _reasons(contestant: Contestant, costs: Costs) -> dict[str, str]:
    reasons = dict(contestant.missing)
    for adversary, why in zip(ADVERSARIES, contestant.why_not, strict=True):
        if why:
            reasons[f"allowed: {adversary}"] = why
    if contestant.repeats:
        reasons["more releases"] = "an empty request releases the same model again"
    if not costs.gradients:
        reasons["retrain_ratio"] = "a request costs no gradient"
    return reasons


def _risk_judge(scene: Scene) -> Callable[[Any], np.ndarray]:
    """Excess risk of each model on the records once the target is gone; compiled once per scene."""
    gone = dd.apply_edit(scene.database, dd.deletion(scene.problem.loss, scene.database, [0]))
    optimum = scene.optimum

    @jax.jit
    def judge(models):
        return jax.vmap(lambda model: erm.excess_risk(scene.problem, model, gone, optimum))(models)

    return judge


def _accuracy_judge(scene: Scene) -> Callable[[base.System, Any], np.ndarray]:
    """Share of held-out records that each release labels rightly; compiled once per predictor."""

    @partial(jax.jit, static_argnums=0)
    def judge(predict, releases):
        labels = jax.vmap(lambda release: predict(release, scene.test.features))(releases)
        return jnp.mean((labels == scene.test.label).astype(jnp.float32), axis=1)

    return lambda system, releases: np.asarray(judge(system.predict, releases))


def _mean(values) -> Mean:
    values = np.asarray(values, np.float64)
    centre = float(np.mean(values))
    half = float(stats.t.isf(0.025, len(values) - 1) * stats.sem(values))
    return Mean(centre, centre - half, centre + half)


def _with_gupta(key, rows: list[Row], each: float, say) -> list[Row]:
    """Gupta et al.'s drained shards against both forms of SISA, as `dd-jax attack sisa` does."""
    cases = {"sisa": 0, "sisa-private": 1}
    if not any(row.system in cases for row in rows):
        return rows
    result = find_attack("sisa").run(key, seeds=GUPTA_SEEDS, confidence=1 - 4 * (1 - each))
    say(f"{GUPTA_DATA}: the drained shards of Gupta et al.")

    def estimate(place):
        found = result.rows[place]
        return Estimate(found["success"], found["low"], found["high"], GUPTA_SEEDS, each)

    return [
        replace(row, drained=estimate(cases[row.system])) if row.system in cases else row
        for row in rows
    ]
