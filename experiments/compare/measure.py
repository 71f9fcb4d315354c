"""Measure every system on every data set: cost, secret state, risk, accuracy, what leaks.

`run` gives a `Row` for each. A value that does not exist is the reason why, as text.
"""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

import dd_jax as dd
from dd_jax import erm
from dd_jax.attacks import find as find_attack
from dd_jax.baselines import base
from dd_jax.ensemble import Pair
from dd_jax.errors import CertificateRefused, InputError
from dd_jax.intervals import Estimate, Mean, mean_over_seeds, simultaneous
from experiments.compare import games, systems
from experiments.compare.scene import Config, Reference, Scene, make_scene
from experiments.compare.systems import Bound, Contestant

# Below this many seeds the patient adversary is shown fewer releases, down to REPEATED of them, and
# the adaptive requester then writes fewer copies; no system gets fewer seeds than the least, which
# still tell an advantage of 1 from 0.
ENOUGH_SEEDS, LEAST_SEEDS, LEAST_COPIES = 60, 24, 4
# Releases shown to the patient adversary if all of them are the same.
REPEATED = 3
MEANS = ("excess_risk", "accuracy")
# Confidence of each mean.
MEAN_CONFIDENCE = 0.95

ADVERSARIES = ("one release", "many releases", "adaptive requester")
BEYOND, WITHIN = "beyond its claim", "within its claim"
LEAKS, LEAKS_MORE = "leaks", "leaks more than its claim allows one release"
NOT_SHOWN = "no leak shown"
SUCCESS = (BEYOND, LEAKS, LEAKS_MORE)
NO_SHARDS = "the attack drains shards, and this system has none"


class Costs(NamedTuple):
    """What one stream of deletions cost.

    Attributes:
        learn_gradients, learn_hessians, gradients, hessians: per-record evaluations: to learn, and
            of the mean request. retrained: share of requests that trained anew.
        seconds: wall time of a request, one interaction on its own.
        secret_bytes: kept besides the release. solves: of the mean request, systems of d unknowns.
    """

    learn_gradients: float
    learn_hessians: float
    gradients: float
    hessians: float
    retrained: float
    seconds: float
    secret_bytes: int
    solves: float = 0.0

    def in_gradients(self, dim: int) -> float:
        """A request in gradients; a Hessian is d of them."""
        return self.gradients + dim * self.hessians


def measure_costs(key: Array, contestant: Contestant, board: games.Board, requests: int) -> Costs:
    """One interaction that deletes rows 1, 2, … one at a time, on a host loop, metered."""
    clock = []

    def respond(request, release):
        jax.block_until_ready(release)
        clock.append(time.perf_counter())
        return dd.replacement([request], board.blank)

    metered = base.metered(contestant.system)
    curator, transcript = dd.drive(
        key, metered, respond, board.database, num_requests=requests, observe=range(requests)
    )
    spent: Any = transcript.releases.cost
    gradients, hessians, retrained = (
        float(np.mean(counts[1:])) for counts in (spent.gradients, spent.hessians, spent.retrained)
    )
    return Costs(
        learn_gradients=float(spent.gradients[0]),
        learn_hessians=float(spent.hessians[0]),
        gradients=gradients,
        hessians=hessians,
        retrained=retrained,
        # The first request is compiled.
        seconds=float(np.median(np.diff(clock)[1:])),
        solves=float(np.mean(spent.solves[1:])),
        secret_bytes=base.stored_bytes(contestant.system, curator.params.value),
    )


class Share(NamedTuple):
    """A system's part of the work: seeds, releases, copies as in `Row`; and what they cost."""

    seeds: int
    releases: int
    copies: int
    work: float


@dataclass(frozen=True)
class Row:
    """A system on one data set; text where a value does not exist, which says why.

    Attributes:
        data, system, setting: which, and the numbers chosen.
        guarantee: the claim as data.
        costs: of a stream of deletions.
        excess_risk, accuracy: of the first release after the target's deletion.
        advantages: of the three adversaries. allowed: by the system's own claim.
        seeds: in each world. releases: that the patient adversary saw. copies: rows that the
            adaptive requester wrote.
        reference: what the row is measured against. dim: d.
        repeats: whether an empty request releases the same model again.
        drained: Gupta et al.'s indicator against SISA, 1/2 under retraining; see `with_gupta`.
    """

    data: str
    system: str
    setting: str
    guarantee: base.Guarantee
    costs: Costs
    excess_risk: Mean | str
    accuracy: Mean | str
    advantages: tuple[Estimate, Estimate, Estimate]
    allowed: tuple[Bound, Bound, Bound]
    seeds: int
    releases: int
    copies: int
    reference: Reference
    dim: int
    repeats: bool = False
    drained: Estimate | str = NO_SHARDS

    @property
    def retrain_ratio(self) -> float | str:
        """Gradients of retraining, the same for all systems, over those of a request."""
        spent = self.costs.in_gradients(self.dim)
        if isinstance(self.reference.retraining, str):
            return self.reference.retraining
        return self.reference.retraining / spent if spent else "a request costs no gradient"

    @property
    def at_majority(self) -> bool:
        """Whether the model, or the noiseless one, is not shown to beat the larger class."""
        majority = self.reference.majority
        own = self.accuracy.low if isinstance(self.accuracy, Mean) else np.inf
        return bool(min(own, self.reference.accuracy) <= majority)

    def verdict(self, adversary: int) -> str:
        """What the samples say of one adversary.

        Where nothing is claimed against this adversary, its advantage is compared with the claim
        for one release.
        """
        low, bound = self.advantages[adversary].low, self.allowed[adversary]
        if not isinstance(bound, str):
            return BEYOND if low > bound else WITHIN
        if low <= 0:
            return NOT_SHOWN
        single = self.allowed[0]
        return LEAKS_MORE if not isinstance(single, str) and low > single else LEAKS

    @property
    def attacks(self) -> tuple[str, ...]:
        """The paper's attacks that succeed: refute the row's claim, or leak where none is made."""
        names = ("reading one release", "averaging releases", "copying by an adaptive requester")
        found = [name for place, name in enumerate(names) if self.verdict(place) in SUCCESS]
        if isinstance(self.drained, Estimate) and self.drained.low > 0.5:
            found.append("draining shards (Gupta et al.)")
        return tuple(found)

    @property
    def reasons(self) -> dict[str, str]:
        """Why a value does not exist, by its name."""
        values = {
            "excess_risk": self.excess_risk,
            "accuracy": self.accuracy,
            "retrain_ratio": self.retrain_ratio,
            "drained": self.drained,
        }
        bounds = zip(ADVERSARIES, self.allowed, strict=True)
        values |= {f"allowed: {adversary}": bound for adversary, bound in bounds}
        if self.repeats:
            values["more releases"] = "an empty request releases the same model again"
        return {name: value for name, value in values.items() if isinstance(value, str)}


class Comparison(NamedTuple):
    """The rows that were measured, and why others could not be, by data set and system."""

    rows: list[Row]
    left_out: dict[tuple[str, str], str]


# --- how good models are --------------------------------------------------------------------------


@jax.jit
def _risks(problem: dd.Problem, models, records, optimum) -> Array:
    """Excess risk of each model."""
    return jax.vmap(lambda model: erm.excess_risk(problem, model, records, optimum))(models)


@partial(jax.jit, static_argnums=0)
def _share_right(predict: Callable, releases, test: dd.Labelled) -> Array:
    """Share of held-out records that each release labels rightly."""
    labels = jax.vmap(predict, in_axes=(0, None))(releases, test.features)
    return jnp.mean((labels == test.label).astype(jnp.float32), axis=1)


# --- draining shards ------------------------------------------------------------------------------

# The adaptive users of Gupta et al. (2021) against SISA, as `dd-jax attack sisa` plays them. They
# need an even number of shards and models that remember, so they are played at the attack's
# own settings, not at those of the table's rows.
GUPTA_SEEDS = 150
GUPTA_DATA = "digits-3-vs-8"
GUPTA_SETTING = f"`dd-jax attack sisa` at its own settings (cosine features), {GUPTA_SEEDS} seeds"
# Rows of the attack's result: plain SISA and SISA with noise, both with users who look.
GUPTA_ROWS = {"sisa": 0, "sisa-private": 1}
# Curators that the attack plays, all with one confidence together.
GUPTA_PLAYED = 4


def with_gupta(key: Array, rows: Sequence[Row], each: float, say: Callable) -> list[Row]:
    """The rows with the rate at which drained shards are named, or the reason why there is none.

    Args:
        key: of the attack. rows: of one data set.
        each: confidence of one interval.
        say: told of progress.
    """
    found = {}
    if any(row.system in GUPTA_ROWS and row.data == GUPTA_DATA for row in rows):
        confidence = 1 - GUPTA_PLAYED * (1 - each)
        result = find_attack("sisa").run(key, seeds=GUPTA_SEEDS, confidence=confidence)
        say(f"{GUPTA_DATA}: the drained shards of Gupta et al.")
        for system, place in GUPTA_ROWS.items():
            line = result.rows[place]
            found[system] = Estimate(line["success"], line["low"], line["high"], GUPTA_SEEDS, each)
    elsewhere = f"played on {GUPTA_DATA} only"
    return [
        replace(row, drained=found.get(row.system, elsewhere)) if row.system in GUPTA_ROWS else row
        for row in rows
    ]


# --- the whole table ------------------------------------------------------------------------------


def run(config: Config, say: Callable[[str], None] = lambda text: None) -> Comparison:
    """Every chosen system on every chosen data set, one confidence for all advantages together.

    A system that cannot meet its claim at the target is left out, with its reason.

    Raises:
        InputError: no system can be run.
    """
    chosen = systems.find(config.systems)
    # Three adversaries in each row, and Gupta et al.'s against two forms of SISA.
    each = simultaneous(config.confidence, 3 * len(chosen) * len(config.data) + len(GUPTA_ROWS))
    rows: list[Row] = []
    left_out: dict[tuple[str, str], str] = {}
    for place, name in enumerate(config.data):
        if place:
            # Programs compiled for one scene do not fit another one and would only take memory.
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
    """Costs are measured one system at a time, games run two at a time to use the cores.

    Returns the rows, and why a system has none.
    """
    stream_key, game_key, gupta_key = jax.random.split(key, 3)
    entries, refused, of_all = [], {}, f"of {len(chosen)} systems"
    for number, (name, make) in enumerate(chosen.items()):
        try:
            contestant = make(scene)
            board = games.make_board(scene, contestant)
            key = jax.random.fold_in(stream_key, number)
            costs = measure_costs(key, contestant, board, scene.config.stream)
        except CertificateRefused as why:
            refused[name] = str(why)
        else:
            share = affordable(scene.config, contestant, costs, scene.dim)
            entries.append((share.work, number, name, contestant, board, costs, share))
        say(f"{scene.name}: costs of {name}, {number + 1} {of_all}")
    reference = scene.reference(_retraining(stream_key, scene))
    # The longest first, so that no core waits for one of them at the end.
    entries.sort(key=lambda entry: entry[:2], reverse=True)
    start, done, whole = time.monotonic(), [], sum(entry[0] for entry in entries)

    def play(entry) -> tuple[int, Row] | None:
        work, number, name, contestant, board, costs, share = entry
        found, measured = None, (contestant, board, costs, share)
        try:
            row_key = jax.random.fold_in(game_key, number)
            found = number, _row(row_key, scene, name, *measured, each, reference)
        except CertificateRefused as why:
            refused[name] = str(why)
        done.append(work)
        # Counted work leaves out compiling and what every game takes besides.
        played = (sum(done) / whole + len(done) / len(entries)) / 2
        left = (time.monotonic() - start) * (1 / played - 1)
        time_left = f", about {left:.0f} s left" if len(done) < len(entries) else ""
        say(f"{scene.name}: games of {name}, {len(done)} of {len(entries)} systems{time_left}")
        return found

    with ThreadPoolExecutor(2) as pool:
        numbered = [found for found in pool.map(play, entries) if found is not None]
    rows = [row for _, row in sorted(numbered, key=lambda found: found[0])]
    refused = {name: refused[name] for name in chosen if name in refused}
    return with_gupta(gupta_key, rows, each, say), refused


def _retraining(key: Array, scene: Scene) -> float | str:
    """Gradients of retraining with Noisy-GD, or why it cannot be calibrated here."""
    try:
        return float(systems.make_retraining(scene).system.learn(key, scene.database)[1].gradients)
    except CertificateRefused as why:
        return str(why)


def _row(
    key: Array,
    scene: Scene,
    name: str,
    contestant: Contestant,
    board: games.Board,
    costs: Costs,
    share: Share,
    each: float,
    reference: Reference,
) -> Row:
    quiet_key, adaptive_key = jax.random.split(key)
    seeds, shown, copies, _ = share
    play = partial(games.sample, contestant=contestant, board=board, seeds=seeds)
    quiet = _released(play(quiet_key, copies=0, releases=shown))
    if contestant.repeats and not _all_equal(quiet.present.means):
        raise RuntimeError(f"{name} is declared to repeat its release but does not.")
    adaptive = _released(play(adaptive_key, copies=copies, releases=1))
    model, risk, accuracy = quiet.present.first, *map(contestant.missing.get, MEANS)
    if risk is None:
        risks = _risks(scene.problem, model, scene.without_target, scene.optimum)
        risk = mean_over_seeds(risks, MEAN_CONFIDENCE)
    if accuracy is None:
        right = _share_right(contestant.system.predict, model, scene.test)
        accuracy = mean_over_seeds(right, MEAN_CONFIDENCE)
    return Row(
        data=scene.name,
        system=name,
        setting=contestant.setting,
        guarantee=contestant.system.guarantee,
        costs=costs,
        excess_risk=risk,
        accuracy=accuracy,
        advantages=(
            games.judge(quiet.present.means[:, :1], quiet.absent.means[:, :1], each),
            games.judge(quiet.present.means, quiet.absent.means, each),
            games.judge(adaptive.present.means, adaptive.absent.means, each),
        ),
        allowed=contestant.allowed,
        seeds=seeds,
        releases=shown,
        copies=copies,
        reference=reference,
        dim=scene.dim,
        repeats=contestant.repeats,
    )


def affordable(config: Config, contestant: Contestant, costs: Costs, dim: int) -> Share:
    """Seeds, releases and copies within `Config.work`: fewer of each where a system is costly.

    Counts decide, not times: the same on every machine.
    """
    learning = costs.learn_gradients + dim * costs.learn_hessians
    most = min(REPEATED, config.releases) if contestant.repeats else config.releases
    choices = [(count, config.copies) for count in reversed(games.SUMMARIES) if count < most]
    choices = [(most, config.copies), *(c for c in choices if c[0] >= REPEATED)]
    choices.append((choices[-1][0], min(LEAST_COPIES, config.copies)))
    for releases, copies in choices:
        requests = copies + 1 + releases
        # A solution of d unknowns is about d²/3 gradients.
        request = costs.in_gradients(dim) + costs.solves * dim**2 / 3
        seed = 2 * dim * (2 * learning + requests * request)
        seeds = round(min(config.seeds, config.work / max(seed, 1)))
        if seeds >= ENOUGH_SEEDS:
            break
    seeds = min(config.seeds, max(LEAST_SEEDS, seeds))
    return Share(seeds, releases, copies, seeds * max(seed, 1.0))


def _released(pair: Pair) -> Pair:
    """The pair; refused if a model was withheld, which certified removal may do."""
    if not all(np.isfinite(world.means).all() for world in (pair.present, pair.absent)):
        raise CertificateRefused(
            "a release was withheld, since the budget does not cover what training leaves; "
            "give a larger epsilon or delta."
        )
    return pair


def _all_equal(means: np.ndarray) -> bool:
    """Whether the means of the first 1 and 3 releases agree up to rounding."""
    return bool(np.allclose(means, means[:, :1], rtol=1e-4, atol=1e-6))
