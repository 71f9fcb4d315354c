"""Rows of the table: cost, secret state, risk, accuracy and what the three adversaries get."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Array

from dd_jax.ensemble import Pair
from dd_jax.errors import CertificateRefused, InputError
from dd_jax.intervals import simultaneous
from experiments.compare import contestants, games, gupta
from experiments.compare.contestant import Contestant
from experiments.compare.costs import Costs, measure_costs
from experiments.compare.judges import Judges, make_judges
from experiments.compare.row import ADVERSARIES, Comparison, Row, mean_over_seeds
from experiments.compare.scene import Config, Scene, make_scene

# Gradient steps per request, times seeds: costlier systems get fewer seeds.
MOST_WORK = 12_000
LEAST_SEEDS = 150
# Releases shown to the patient adversary where all of them are the same.
REPEATED = 3


def run(config: Config, say: Callable[[str], None] = lambda text: None) -> Comparison:
    """Every chosen system on every chosen data set, one confidence for all advantages together.

    A system whose claim cannot be had at the target is left out, with its reason.

    Raises:
        InputError: all of them are.
    """
    chosen = contestants.find(config.systems)
    # Three adversaries in each row, and Gupta et al.'s against two forms of SISA.
    each = simultaneous(config.confidence, 3 * len(chosen) * len(config.data) + len(gupta.PLACES))
    rows: list[Row] = []
    left_out: dict[tuple[str, str], str] = {}
    for place, name in enumerate(config.data):
        if place:
            # Nothing that was compiled for one scene fits another; it would only take room.
            jax.clear_caches()
        key = jax.random.fold_in(jax.random.key(config.seed), place)
        found, refused = _rows(key, make_scene(name, config), chosen, each, say)
        rows += found
        left_out |= {(name, system): why for system, why in refused.items()}
    if not rows:
        reasons = "; ".join(f"{system}: {why.rstrip('.')}" for (_, system), why in left_out.items())
        raise InputError(f"no system can be run at this target: {reasons}.")
    return Comparison(rows, left_out)


def _rows(key: Array, scene: Scene, chosen, each: float, say) -> tuple[list[Row], dict[str, str]]:
    """Costs one system at a time, since time is measured; games two at a time, to use the cores.

    Returns the rows, and why a system has none.
    """
    stream_key, game_key, gupta_key = jax.random.split(key, 3)
    entries, refused = [], {}
    for number, (name, make) in enumerate(chosen.items()):
        try:
            entries.append(_entry(jax.random.fold_in(stream_key, number), scene, name, make))
        except CertificateRefused as why:
            refused[name] = str(why)
    say(f"{scene.name}: costs of {len(entries)} systems measured")
    judges = make_judges(scene)

    def play(numbered) -> Row | str:
        number, entry = numbered
        try:
            row = _row(jax.random.fold_in(game_key, number), scene, entry, judges, each)
        except CertificateRefused as why:
            return str(why)
        say(f"{scene.name}: {entry.name}")
        return row

    with ThreadPoolExecutor(2) as pool:
        played = list(pool.map(play, enumerate(entries)))
    rows = [row for row in played if isinstance(row, Row)]
    pairs = zip(entries, played, strict=True)
    refused |= {entry.name: why for entry, why in pairs if isinstance(why, str)}
    return gupta.with_gupta(gupta_key, rows, each, say), refused


class Entry(NamedTuple):
    """A contestant whose costs are known."""

    name: str
    contestant: Contestant
    board: games.Board
    costs: Costs


def _entry(key: Array, scene: Scene, name: str, make) -> Entry:
    contestant = make(scene)
    board = games.make_board(scene, contestant)
    return Entry(
        name, contestant, board, measure_costs(key, contestant, board, scene.config.stream)
    )


def _row(key: Array, scene: Scene, entry: Entry, judges: Judges, each: float) -> Row:
    quiet_key, adaptive_key = jax.random.split(key)
    config, contestant, costs = scene.config, entry.contestant, entry.costs
    seeds = _affordable_seeds(config, (costs.gradients + scene.dim * costs.hessians) / scene.n)
    play = partial(games.sample, contestant=contestant, board=entry.board, seeds=seeds)
    shown = min(REPEATED, config.releases) if contestant.repeats else config.releases
    quiet = _released(play(quiet_key, copies=0, releases=shown))
    if contestant.repeats and not _all_equal(quiet.present.means):
        raise RuntimeError(f"{entry.name} is said to repeat its release and does not.")
    adaptive = _released(play(adaptive_key, copies=config.copies, releases=1))
    reasons = _reasons(contestant, costs)
    model = quiet.present.first
    return Row(
        data=scene.name,
        system=entry.name,
        setting=contestant.setting,
        guarantee=contestant.system.guarantee,
        **costs._asdict(),
        retrain_ratio=costs.learn_gradients / costs.gradients if costs.gradients else None,
        excess_risk=None if "excess_risk" in reasons else mean_over_seeds(judges.risk(model)),
        accuracy=None
        if "accuracy" in reasons
        else mean_over_seeds(judges.accuracy(contestant.system, model)),
        advantages=(
            games.judge(quiet.present.means[:, :1], quiet.absent.means[:, :1], each),
            games.judge(quiet.present.means, quiet.absent.means, each),
            games.judge(adaptive.present.means, adaptive.absent.means, each),
        ),
        allowed=contestant.allowed,
        seeds=seeds,
        reasons=reasons,
    )


def _released(pair: Pair) -> Pair:
    """The pair, refused if a model in it was withheld, as certified removal may."""
    if not all(np.isfinite(world.means).all() for world in (pair.present, pair.absent)):
        raise CertificateRefused(
            "a release was withheld, since the budget does not cover what training leaves; "
            "give a larger epsilon or delta."
        )
    return pair


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
