"""Adaptive requesters: what it costs that they see p releases, and why privacy is necessary.

Left: Noisy-GD against the best requester that sees p releases. Middle: the mechanism that refutes
the reduction as the paper states it. Right: the attack in the proof that privacy is necessary, and
a curator on which it fails.
"""

import functools
import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dd_jax import attacks, losses
from dd_jax.attacks import password, recoding
from dd_jax.attacks.game import play
from dd_jax.attacks.necessity import REMEMBERS, RETRAINS
from dd_jax.attacks.recoding import L2, LIPSCHITZ
from dd_jax.audit.samples import Outcome, Stage, two_worlds
from dd_jax.cli import style
from dd_jax.erm import Problem
from dd_jax.guarantees import adaptive, inference, renyi
from dd_jax.interaction import Requester
from dd_jax.intervals import Estimate, advantages, simultaneous
from dd_jax.noisy_gd import Schedule, mechanism
from dd_jax.oracles import linear
from dd_jax.plans import Plan
from dd_jax.types import Edit, replacement
from experiments import measured
from experiments.cache import Runner
from experiments.page import Table

TITLE = "Adaptive requests: what a look costs, and what privacy is for"
CAPTION = (
    "Top left: a requester that sees p releases, then recodes the other rows by them, attains this "
    "library's certificate for it and exceeds the bound for fixed requests (erratum E2). "
    "Top right: one look breaks what the paper's reduction to fixed requests allows "
    "as stated. Below: the attack that shows that privacy is necessary has the "
    "product of two tests' advantages if deletion retrains; a curator that leans against its own "
    "model escapes it (erratum E8)."
)
NOTE = (
    "All intervals are exact and hold together with the stated confidence. Left: linear loss, the "
    "target ±1 among rows of zeros; the requester waits, and with the request that deletes the "
    "target writes the sign of the likelihood ratio of all it saw into all other rows but one. "
    "Middle: a curator with ε_dp = 0 and an ε_dd for fixed requests that falls with M, the number "
    "of passwords. Right: a test of the learner is turned into rows; ε at least is the smallest "
    "deletion guarantee that the theorem leaves possible."
)

BOUNDS = {
    "paper": ("the paper's reduction and soundness", "-."),
    "certified": (r"certified: $\varepsilon_{dd} + p\,\varepsilon_{dp}$", style.DASHED),
    "intervals": ("certified, releases known", style.SOLID),
    "fixed": (r"certified for fixed requests: $\varepsilon_{dd}$", style.DOTTED),
}
CURATORS = {
    RETRAINS: (style.BLUE, "o", style.SOLID, "retrains"),
    REMEMBERS: (style.ORANGE, "s", style.DASHED, "leans against its model"),
}
BEYOND = "beyond the bound for fixed requests"
TARGET_ROW = recoding.TARGET_ROW


@dataclass(frozen=True)
class Config:
    """Settings of the figure; the quick scale is the default."""

    order: float = 2.0
    eps_dp: float = 0.25
    n: int = 40
    looks: tuple[int, ...] = (0, 1, 2, 4, 8)
    seeds: int = 20_000
    passwords: tuple[int, ...] = (2, 10, 100, 1_000)
    budgets: tuple[float, ...] = (0.25, 1.0, 4.0, 16.0)
    confidence: float = 0.999
    seed: int = 0

    @property
    def each(self) -> float:
        """The confidence of one group of intervals that makes all of them hold together."""
        groups = len(self.looks) + 2 * len(self.passwords) + len(self.budgets)
        return simultaneous(self.confidence, groups)


FULL = Config(
    looks=(0, 1, 2, 4, 8, 16),
    seeds=500_000,
    passwords=(2, 10, 100, 1_000, 10_000),
    budgets=(0.0625, 0.25, 1.0, 4.0, 16.0),
)


# --- the best requester: it watches, and recodes at the end ---------------------------------------


class Seen(NamedTuple):
    """The log-likelihood ratio of the releases seen, up to a factor, and the last of them."""

    ratio: Array
    last: Array


def deletion_request(seen: int) -> int:
    """The request that deletes the target: the one right after the last release seen."""
    return max(seen, 1)


def waiting_recoder(n: int, seen: int, decay: float) -> Requester:
    """Watches `seen` releases, each a run of contraction `decay` after the one before it.

    It leaves the rows alone until the request that deletes the target; then it writes the sign of
    the likelihood ratio of φ_0 … φ_{p-1} into the other rows, and the models that follow sit on
    that side (erratum E2). Given its predecessor, a release has the mean decay·φ ± (1 - decay)/(nλ)
    and a variance in proportion to 1 - decay²: its log-likelihood ratio is
    (φ' - decay·φ)/(1 + decay), in units of φ_0's own.
    """
    request = deletion_request(seen)
    # Until the target is deleted, slot 0 edits the last row, so that every edit has the same r.
    others = jnp.arange(n - 1, dtype=jnp.int32).at[0].set(n - 1)

    def init(key):
        del key
        return Seen(jnp.zeros(1, jnp.float32), jnp.zeros(1, jnp.float32))

    def act(key, memory, observation):
        del key
        first = observation.request == 1
        news = (observation.release - decay * memory.last) / (1 + decay)
        news = jnp.where(first, observation.release, news)
        ratio = memory.ratio + jnp.where(observation.visible, news, jnp.float32(0))
        now = observation.request == request
        coded = jnp.where(now, jnp.sign(ratio), jnp.float32(0))
        record = jnp.broadcast_to(coded, (n - 1, 1)).at[0].set(0)
        rows = others.at[0].set(jnp.where(now, jnp.int32(TARGET_ROW), others[0]))
        return Seen(ratio, observation.release), Edit(rows, record)

    return Requester(init, act)


def _recoding_trial(key: Array, records: Array, schedule, *, steps: tuple, seen: int) -> Outcome:
    """The target goes right after the last release seen; guess the side of the next release."""
    numbers = Schedule(*schedule, *steps)
    curator = mechanism(Problem(losses.linear(), L2), numbers)
    decay = (1 - numbers.step_size * L2) ** numbers.delete_steps
    request = deletion_request(seen)
    curious = waiting_recoder(records.shape[0], seen, decay)
    stage = Stage(curator, curious, records, TARGET_ROW, request, request, tuple(range(seen)))
    return play(key, stage, recoding.adversary)


def recoding_advantage(
    key: Array, plan: Plan, seen: int, seeds: int, confidence: float
) -> Estimate:
    """The adversary's advantage after the requester, with an exact interval."""
    records = jnp.zeros((plan.n, 1), jnp.float32).at[TARGET_ROW].set(1)
    other = replacement([TARGET_ROW], -jnp.ones((1, 1), jnp.float32))
    schedule = (plan.step_size, plan.noise_variance, plan.init_variance)
    steps = (plan.learn_steps, plan.delete_steps)
    fn = functools.partial(_recoding_trial, steps=steps, seen=seen)
    pair = two_worlds(fn, key, seeds, records, other, schedule)
    return advantages(pair.present, pair.absent, confidence)[0]


def exact_advantage(plan: Plan, seen: int) -> float:
    """2Φ(μ/2) - 1 with the μ of the p releases seen, or of the release itself where p = 0.

    The rows outweigh the noise: the chance that a release lies on their other side is neglected.
    """
    numbers = (2.0, LIPSCHITZ, L2, plan.noise_variance, plan.n, plan.step_size)
    gone = plan.delete_steps if seen == 0 else 0
    squares = float(
        linear.renyi(
            *numbers, plan.learn_steps, delete_steps=gone, init_variance=plan.init_variance
        )
    )
    if seen > 1:
        squares += (seen - 1) * float(linear.renyi(*numbers, plan.delete_steps))
    return float(renyi.advantage_from_gdp(math.sqrt(squares)))


def bounds(plan: Plan, order: float, seen: int) -> dict[str, float]:
    """Advantages that are certified, by us and by the paper, with `seen` releases."""
    request = deletion_request(seen)
    found = plan.certificate(request=request, observed=tuple(range(seen)))
    stated = replace(plan, accountant="paper").certificate(seen, request)

    def gaussian(eps):
        return float(inference.advantage_gdp(renyi.gdp_from_linear_renyi(order, eps)))

    return {
        "paper": float(inference.advantage_soundness(order, stated.eps_dd_adaptive)),
        "certified": gaussian(found.eps_dd_adaptive),
        "intervals": gaussian(found.eps_dd_request),
        "fixed": gaussian(found.eps_dd),
    }


# --- the numbers ----------------------------------------------------------------------------------


def compute(config: Config, runner: Runner) -> dict[str, np.ndarray]:
    """Advantages over p, over the number of passwords and over ε, with exact values and bounds."""
    looks_key, passwords_key, budgets_key = jax.random.split(jax.random.key(config.seed), 3)
    results = _over_looks(looks_key, config, runner)
    runner.say(f"password: {config.seeds:,} seeds for each number of passwords")
    results |= _over_passwords(passwords_key, config)
    runner.say(f"necessity: {config.seeds:,} seeds at each of {len(config.budgets)} budgets")
    return results | _over_budgets(budgets_key, config)


def _over_looks(key: Array, config: Config, runner: Runner) -> dict[str, np.ndarray]:
    """Noisy-GD against `waiting_recoder`, at each p, and every bound."""
    plan = recoding.make_plan(config.n, config.order, config.eps_dp)
    estimates = []
    for seen in config.looks:
        runner.say(f"Noisy-GD, a requester that sees {seen} releases: {config.seeds:,} seeds")
        look_key = jax.random.fold_in(key, seen)
        estimates.append(recoding_advantage(look_key, plan, seen, config.seeds, config.each))
    certified = [bounds(plan, config.order, seen) for seen in config.looks]
    return measured.columns("looks", estimates) | {
        "looks exact": np.array([exact_advantage(plan, seen) for seen in config.looks]),
        **{f"looks {name}": np.array([bound[name] for bound in certified]) for name in BOUNDS},
    }


def _password_trial(key, database, passwords, *, observe):
    """`password.trial` with a traced number of passwords: compiled once for all of them."""
    return password.trial(key, database, passwords=passwords, observe=observe)


def _over_passwords(key: Array, config: Config) -> dict[str, np.ndarray]:
    """The bit of a deleted record, read by a requester that sees one release, or none."""
    database, other = jnp.array([1, 0], jnp.int32), replacement([0], jnp.zeros(1, jnp.int32))
    results = {}
    for observe in ((0,), ()):
        fn = functools.partial(_password_trial, observe=observe)
        estimates = []
        for place, count in enumerate(config.passwords):
            case_key = jax.random.fold_in(jax.random.fold_in(key, len(observe)), place)
            pair = two_worlds(fn, case_key, config.seeds, database, other, jnp.int32(count))
            estimates += advantages(pair.present, pair.absent, config.each)
        results |= measured.columns(f"password, {len(observe)} seen", estimates)
    fixed = [password.nonadaptive_epsilon(config.order, count) for count in config.passwords]
    claimed = [adaptive.deletion_adaptive_as_stated(eps, 0.0, 1) for eps in fixed]
    allowed = np.array(inference.advantage_soundness(config.order, claimed))
    return results | {"password claimed": allowed}


def _over_budgets(key: Array, config: Config) -> dict[str, np.ndarray]:
    """The attack that proves privacy necessary (`thm:dp_necessary`), on two curators, at each ε."""
    rows, necessary = [], []
    for place, eps in enumerate(config.budgets):
        found = attacks.find("necessity").run(
            jax.random.fold_in(key, place),
            epsilon=eps,
            order=config.order,
            seeds=config.seeds,
            confidence=config.each,
        )
        rows += found.rows
        necessary.append(found.theory["epsilon_at_least"])
    results = {"necessity at least": np.array(necessary)}
    for curator in CURATORS:
        of_curator = [row for row in rows if row["curator"] == curator]
        tests = [
            np.array([row["exact"] for row in of_curator if row["what"].startswith(what)])
            for what in ("Adv(Test)", "Adv(Test̄) from θ = +")
        ]
        attack = [row for row in of_curator if row["what"] == "Adv(MI)"]
        results |= measured.from_rows(f"necessity {curator}", attack)
        results[f"necessity {curator} product"] = np.prod(tests, axis=0)
    mu = renyi.gdp_from_linear_renyi(config.order, np.array(config.budgets))
    return results | {"necessity certified": np.asarray(inference.advantage_gdp(mu))}


# --- what is shown --------------------------------------------------------------------------------


def plot(config: Config, results: dict[str, np.ndarray]) -> Figure:
    """Three panels: over p, over the number of passwords, over ε."""
    figure, (looks, passwords, necessity), place = style.three_panels(height=4.6)
    _draw_looks(looks, config, results)
    _draw_passwords(passwords, config, results)
    _draw_necessity(necessity, config, results)
    for axis in (looks, passwords, necessity):
        axis.set(ylim=(-0.08, 1.08), ylabel="advantage on the deleted record")
    for axis in (looks, passwords):
        style.legend_below(axis, columns=1)
    style.legend_in(place, necessity)
    return figure


def _draw_looks(axis: Axes, config: Config, results) -> None:
    measured.draw(axis, config.looks, results, "looks", label="best requester, measured")
    for name, (label, dashes) in BOUNDS.items():
        colour = style.ORANGE if name == "paper" else style.BLACK
        style.line(axis, config.looks, results[f"looks {name}"], label, colour, dashes)
    axis.set(xlabel="releases $p$ that the requester sees", xticks=config.looks)
    axis.set_title(rf"Noisy-GD, $\varepsilon_{{dp}} = {config.eps_dp:g}$")


def _draw_passwords(axis: Axes, config: Config, results) -> None:
    where = np.array(config.passwords)
    for seen, words, look in (
        (1, "1 release seen", {"colour": style.ORANGE, "marker": "s"}),
        (0, "no release seen", {"colour": style.BLUE, "marker": "o"}),
    ):
        measured.draw(axis, where, results, f"password, {seen} seen", label=words, **look)
    style.line(axis, where, 1 / where, "no release seen, exact: $1/M$", style.BLUE)
    allowed = results["password claimed"]
    style.line(axis, where, allowed, "the paper's reduction allows", style.ORANGE, "-.")
    axis.set(xscale="log", xlabel="number of passwords $M$")
    axis.set_title(r"password curator, $\varepsilon_{dp} = 0$")
    style.plain_numbers(axis.xaxis)


def _draw_necessity(axis: Axes, config: Config, results) -> None:
    where = config.budgets
    style.line(axis, where, results["necessity certified"], "certified, $p = 1$")
    for curator, (colour, marker, dashes, words) in CURATORS.items():
        name, label = f"necessity {curator}", f"{words}: measured"
        measured.draw(axis, where, results, name, label=label, colour=colour, marker=marker)
        product, label = results[f"{name} product"], f"{words}: product of tests"
        style.line(axis, where, product, label, colour, dashes)
    axis.set(xscale="log", xlabel=r"$\varepsilon$ of one release")
    axis.set_title("the attack that makes privacy necessary")
    style.plain_log_ticks(axis.xaxis)


def tables(config: Config, results: dict[str, np.ndarray]) -> list[Table]:
    """The numbers of the three panels, and what they decide."""
    together = f"confidence {config.confidence:g} in all, {config.seeds:,} seeds in each world"
    tightest, certified = results["looks intervals"], results["looks certified"]
    low, exact = results["looks low"], results["looks exact"]
    looks = {
        "p": config.looks,
        **measured.interval(results, "looks"),
        "exact": exact,
        "interval contains it": measured.contains(results, "looks", exact),
        "tightest": tightest,
        "certified": certified,
        "verdict": measured.verdicts(low > np.minimum(certified, tightest)),
        "paper": results["looks paper"],
        BEYOND: low > results["looks fixed"],
    }
    allowed = results["password claimed"]
    passwords = {
        "M": config.passwords,
        **{
            f"{seen} seen: {end}": column
            for seen in (0, 1)
            for end, column in measured.interval(results, f"password, {seen} seen").items()
        },
        "allowed": allowed,
        "verdict on the reduction as stated": measured.verdicts(
            results["password, 1 seen low"] > allowed
        ),
    }
    necessity = []
    for curator, (*_, words) in CURATORS.items():
        name = f"necessity {curator}"
        product = results[f"{name} product"]
        group = {
            "deletion": words,
            "ε": config.budgets,
            **measured.interval(results, name),
            "product of tests": product,
            "interval contains it": measured.contains(results, name, product),
            "below it": results[f"{name} high"] < product,
            "ε_dd at least": results["necessity at least"] if curator == RETRAINS else None,
        }
        necessity.append(group)
    return [
        Table.from_columns(f"Noisy-GD: advantage of the best requester over p; {together}", looks),
        Table.from_columns(
            "Password curator: advantage, and what the paper's reduction allows", passwords
        ),
        Table.from_columns("The attack that makes privacy necessary", *necessity),
    ]
