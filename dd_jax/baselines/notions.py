"""Which system meets which notion of deletion: the table, by samples and by exact laws.

All systems learn the mean of numbers in [-1, 1] (the linear loss, λ = 1), where every law is known:
a Gaussian, a point, or one point for each deal into shards. The target, row 0, is +1 or -1 and all
other rows are 0. In the streams request 1 writes +1/2 into row 1, request 2 deletes the target (0),
and request 3 asks for what is there already. The adaptive requester writes -1/2 instead unless the
first number of the first release is positive: one bit of the target, or of the deal.
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from scipy import stats

from dd_jax.audit.notions import Judged, Scene, judge
from dd_jax.baselines import base, noisy_gd_system, perturbed_gd, retraining, sisa
from dd_jax.erm import Problem
from dd_jax.guarantees import renyi
from dd_jax.interaction import Requester
from dd_jax.intervals import simultaneous
from dd_jax.losses import linear as linear_loss
from dd_jax.oracles import linear as law
from dd_jax.plans import Plan, plan_convex
from dd_jax.types import Edit, Mechanism, replacement

EPSILON, DELTA = 1.0, 0.01
N, TARGET_ROW, CODED_ROW, OTHER_ROW = 10, 0, 1, 2
DELETED_BY = 2
CODE = 0.5
SHARDS = 2
ANSWER, ANSWER_IF_EMPTY = -1.0, -0.5
PERTURBED_STEPS = 3
SEEDS = 50_000


# --- the scene ------------------------------------------------------------------------------------


def _edits(rows: Sequence[int], values: Sequence[float]) -> Edit:
    """One request for each row and value, in a stream."""
    index = jnp.asarray(rows, jnp.int32)[:, None]
    return Edit(index, jnp.asarray(values, jnp.float32)[:, None, None])


def coding_requester() -> Requester:
    """Writes the sign of the first release into another row, deletes the target, asks for nothing.

    A release that is not positive counts as negative.
    """

    def act(key, memory, observation):
        del key
        code = jnp.where(jnp.ravel(observation.release)[0] > 0, CODE, -CODE)
        memory = jnp.where(observation.request == 1, code, memory)
        rows = jnp.array([CODED_ROW, TARGET_ROW, OTHER_ROW], jnp.int32)
        row = rows[observation.request - 1]
        value = jnp.where(row == CODED_ROW, memory, 0.0)
        return memory, Edit(row[None], value[None, None])

    return Requester(init=lambda key: jnp.float32(0), act=act)


@functools.cache
def scene() -> Scene:
    """The records and requests of the table."""
    return Scene(
        database=jnp.zeros((N, 1), jnp.float32).at[TARGET_ROW].set(1.0),
        edit=replacement([TARGET_ROW], jnp.zeros((1, 1), jnp.float32)),
        stream=_edits([CODED_ROW, TARGET_ROW, OTHER_ROW], [CODE, 0.0, 0.0]),
        requester=coding_requester(),
        observe=(0,),
        deleted_by=DELETED_BY,
        alternative=replacement([TARGET_ROW], -jnp.ones((1, 1), jnp.float32)),
    )


# --- exact laws -----------------------------------------------------------------------------------
# λ = 1, so the minimiser is the mean of the records, Σx/n.


def _targets(side: float, bit: float) -> list[float]:
    """The mean of the records after learning and after each request; the target is `side`."""
    coded = bit * CODE
    return [side / N, (side + coded) / N, coded / N, coded / N]


class OneModel(NamedTuple):
    """A system with one model, θ_0 = learn·m_0 and θ_i = memory·θ_{i-1} + gain·m_i + offset.

    m_i is the mean of the records after request i.

    Attributes:
        learn, memory, gain, offset: see above.
        idle_offset: the offset of an empty request.
        variance: of the Gaussian noise in a release.
        kept_variance: of the noise in what the curator keeps.
        carried: whether the noise of a release is carried on by the next one (as an autoregression
            of constant variance); otherwise every release has its own.
    """

    learn: float = 1.0
    memory: float = 0.0
    gain: float = 1.0
    offset: float = 0.0
    idle_offset: float = 0.0
    variance: float = 0.0
    kept_variance: float = 0.0
    carried: bool = False

    def means(self, targets: Sequence[float]) -> list[float]:
        """The means of the model after learning and after each request."""
        found = [self.learn * targets[0]]
        for target in targets[1:]:
            found.append(self.memory * found[-1] + self.gain * target + self.offset)
        return found

    def exact(self, notion: str, epsilon: float) -> float:
        """The least δ at ε of the notion, in the table's scene."""
        fixed = _targets(1.0, 1.0)
        alone = self.means([1 / N, 0.0])[1]
        if notion in ("ginart", "guo", "whole-state"):
            variance = self.kept_variance if notion == "whole-state" else self.variance
            return _gaussian_delta([alone], variance, epsilon)
        if notion == "sekhari":
            return _gaussian_delta([alone - self.idle_offset], self.variance, epsilon)
        if notion == "unlearning":
            return max(self._steps(fixed, epsilon))
        if notion == "adaptive-unlearning":
            return max(self._branches(epsilon))
        if notion == "deletion":
            worlds = (self.means(_targets(side, 1.0))[DELETED_BY:] for side in (1.0, -1.0))
            gaps = [one - other for one, other in zip(*worlds, strict=True)]
            # A carried noise makes the later releases functions of the first one and fresh coins.
            return _gaussian_delta(gaps[:1] if self.carried else gaps, self.variance, epsilon)
        return self._adaptive_deletion(epsilon)

    def _steps(self, targets: Sequence[float], epsilon: float) -> Iterator[float]:
        """φ_i against a model that was learned on 𝒟_i, step by step."""
        pairs = zip(self.means(targets)[1:], targets[1:], strict=True)
        for mean, target in pairs:
            yield _gaussian_delta([mean - self.learn * target], self.variance, epsilon)

    def _branches(self, epsilon: float) -> Iterator[float]:
        """The same given the requester's bit, the sign of the first release."""
        deviation = math.sqrt(self.variance)
        for bit in (1.0, -1.0):
            targets = _targets(1.0, bit)
            chance = self._chance(1.0, bit)
            if not self.carried:
                yield from self._steps(targets, epsilon) if chance else ()
                continue
            pairs = zip(self.means(targets)[1:], targets[1:], strict=True)
            for step, (mean, target) in enumerate(pairs, start=1):
                anew = self.learn * target
                line = _line(deviation, mean, anew)
                served = self._with_bit(line, step, mean, 1.0, bit) / chance
                retrained = stats.norm.pdf(line, anew, deviation)
                yield _numeric_delta(served, retrained, line[1] - line[0], epsilon)

    def _chance(self, side: float, bit: float) -> float:
        """The probability of the bit where the target is `side`."""
        start = self.learn * side / N
        if not self.variance:
            return float((start > 0) == (bit > 0))
        return float(stats.norm.cdf(bit * start / math.sqrt(self.variance)))

    def _with_bit(self, points, step: int, mean: float, side: float, bit: float) -> np.ndarray:
        """The density of φ_i together with the bit."""
        decay = self.memory**step if self.carried else 0.0
        deviation = math.sqrt(self.variance)
        # φ_0 given φ_i is Gaussian, and the bit is its sign.
        seen = self.learn * side / N + decay * (points - mean)
        spread = deviation * math.sqrt(1 - decay**2)
        return stats.norm.pdf(points, mean, deviation) * stats.norm.cdf(bit * seen / spread)

    def _adaptive_deletion(self, epsilon: float) -> float:
        """Both releases from the deletion on, in the worlds of +1 and -1; on a grid."""
        sides = (1.0, -1.0)
        if not self.variance:
            one, other = (self.means(_targets(side, side))[DELETED_BY:] for side in sides)
            return float(not np.allclose(one, other))
        deviation = math.sqrt(self.variance)
        means = {key: self.means(_targets(*key)) for key in itertools.product(sides, sides)}
        line = _line(deviation, *(mean for path in means.values() for mean in path[DELETED_BY:]))
        decay = self.memory if self.carried else 0.0
        spread = deviation * math.sqrt(1 - decay**2)

        def density(side: float) -> np.ndarray:
            total = np.zeros((len(line), len(line)))
            for bit in sides:
                _, _, second, third = means[side, bit]
                first = self._with_bit(line, DELETED_BY, second, side, bit)
                centre = third + decay * (line[:, None] - second)
                total += first[:, None] * stats.norm.pdf(line, centre, spread)
            return total

        return _numeric_delta(density(1.0), density(-1.0), (line[1] - line[0]) ** 2, epsilon)


def _gaussian_delta(gaps: Sequence[float], variance: float, epsilon: float) -> float:
    """δ at ε of independent Gaussians whose means differ by the gaps; of points if no noise."""
    distance = math.hypot(*gaps)
    if not variance:
        return float(distance > 1e-9)
    return float(renyi.gdp_delta(distance / math.sqrt(variance), epsilon))


def _line(deviation: float, *centres: float) -> np.ndarray:
    """Points that cover Gaussians at these centres."""
    low, high = min(centres) - 7 * deviation, max(centres) + 7 * deviation
    return np.linspace(low, high, 1 + math.ceil(20 * (high - low) / deviation))


def _numeric_delta(present: np.ndarray, absent: np.ndarray, cell: float, epsilon: float) -> float:
    """max over both directions of ∫ (p - e^ε q)₊, by a sum over cells (or over points, cell 1)."""
    factor = math.exp(epsilon)
    directions = (present - factor * absent, absent - factor * present)
    return float(max(np.sum(np.maximum(excess, 0)) for excess in directions) * cell)


class Shards:
    """SISA with two shards: a release is a point for each deal of the two rows that matter."""

    def exact(self, notion: str, epsilon: float) -> float:
        """The least δ at ε. A release depends on the deal and on the records of the time alone, and
        a deal that nobody looked at is as good as a new one.
        """
        fresh = self.deals()
        if notion == "adaptive-unlearning":
            found = []
            for bit, step in itertools.product((1.0, -1.0), (1, 2, 3)):
                # The first model is positive iff the target (+1) is in the first shard.
                seen = {deal: p for deal, p in fresh.items() if (deal[0] == 0) == (bit > 0)}
                total = sum(seen.values())
                given = {deal: p / total for deal, p in seen.items()}
                values = (1.0 if step < DELETED_BY else 0.0, bit * CODE)
                served, anew = self._releases(given, values), self._releases(fresh, values)
                found.append(_points_delta(served, anew, epsilon))
            return max(found)
        if notion == "adaptive-deletion":
            return _points_delta(self._recoded(fresh, 1.0), self._recoded(fresh, -1.0), epsilon)
        return 0.0

    def _recoded(self, deals: dict[tuple[int, int], float], side: float) -> dict[tuple, float]:
        """The law after the deletion, where the target was `side` and the requester looked."""
        found: dict[tuple, float] = {}
        for deal, p in deals.items():
            bit = 1.0 if deal[0] == 0 and side > 0 else -1.0
            for point, chance in self._releases({deal: p}, (0.0, bit * CODE)).items():
                found[point] = found.get(point, 0.0) + chance
        return found

    @staticmethod
    def deals() -> dict[tuple[int, int], float]:
        """Shards of the target and of the coded row, with their probabilities."""
        places = N // SHARDS
        together, apart = ((places - 1) / (N - 1) / 2, places / (N - 1) / 2)
        return {(a, b): together if a == b else apart for a in (0, 1) for b in (0, 1)}

    @staticmethod
    def _releases(deals: dict[tuple[int, int], float], values: tuple[float, float]):
        """The law of both models, up to a factor, where the two rows hold these values."""
        found: dict[tuple, float] = {}
        for deal, p in deals.items():
            models = [0.0, 0.0]
            for shard, value in zip(deal, values, strict=True):
                models[shard] += value
            found[tuple(models)] = found.get(tuple(models), 0.0) + p
        return found


def _points_delta(present: dict, absent: dict, epsilon: float) -> float:
    points = sorted({*present, *absent})
    one, other = (np.array([arm.get(point, 0.0) for point in points]) for arm in (present, absent))
    return _numeric_delta(one, other, 1.0, epsilon)


# --- the systems ----------------------------------------------------------------------------------


class Entry(NamedTuple):
    """A row of the table.

    Attributes:
        mechanism: the curator. exact: `(notion, ε) -> δ`.
        certified: the notions that this library certifies for it at (ε, δ).
        role: "system", a "control" that fails every notion, or a "null" that meets every older one.
    """

    mechanism: Mechanism
    exact: Callable[[str, float], float]
    certified: tuple[str, ...] = ()
    role: str = "system"


def problem() -> Problem:
    """The mean of numbers in [-1, 1]: the linear loss with λ = 1."""
    return Problem(linear_loss(), 1.0)


@functools.cache
def make_plan() -> Plan:
    """Noisy-GD's plan: with one release seen, deletion is still certified at (ε, δ)."""
    budgets: dict[str, Any] = {"eps_dp": 0.8, "eps_dd": 0.3, "delta": DELTA}
    return plan_convex(problem(), n=N, dim=1, step_size=0.2, **budgets)


def _mean(key: Array, database: Array) -> Array:
    del key
    return jnp.mean(database, axis=0)


def _answers(if_empty: float) -> Mechanism:
    """Learns the mean; answers every request with a fixed model, an empty one with another."""

    def delete(key, before, edit, after, state):
        del key, before, after
        return jnp.full_like(state, ANSWER if edit.index.shape[0] else if_empty)

    return Mechanism(_mean, delete)


@functools.cache
def entries() -> dict[str, Entry]:
    """All rows."""
    plan, learned = make_plan(), problem()
    contraction = 1 - plan.step_size
    after = {steps: contraction**steps for steps in (plan.learn_steps, plan.delete_steps)}
    variance = float(
        law.variance(1.0, plan.noise_variance, plan.step_size, plan.learn_steps, plan.init_variance)
    )
    fit = 1 - after[plan.learn_steps]
    noisy = OneModel(
        learn=fit,
        memory=after[plan.delete_steps],
        gain=1 - after[plan.delete_steps],
        variance=variance,
        kept_variance=variance,
        carried=True,
    )
    # Declared smoother than it is: the published formulas need S > m.
    constants = dataclasses.replace(base.Constants.of_problem(learned), smoothness=2.0)
    perturbed = perturbed_gd.calibrate(
        constants, n=N, epsilon=EPSILON, delta=DELTA, delete_steps=PERTURBED_STEPS, form="best"
    )
    slow = 1 - perturbed.step_size
    keeps = slow**perturbed.delete_steps
    training = sisa.Training(learned, num_steps=8, step_size=0.5)
    return {
        "noisy-gd": Entry(
            base.mechanism(noisy_gd_system.system(learned, plan)),
            noisy.exact,
            ("deletion", "adaptive-deletion"),
        ),
        "retraining": Entry(
            Mechanism(_mean, lambda k, b, e, after, s: _mean(k, after)), OneModel().exact
        ),
        "sisa": Entry(sisa.mechanism(training, SHARDS), Shards().exact),
        "perturbed-gd": Entry(
            base.mechanism(perturbed_gd.system(learned, perturbed)),
            OneModel(
                learn=1 - slow**perturbed.learn_steps,
                memory=keeps,
                gain=1 - keeps,
                variance=perturbed.noise_deviation**2,
            ).exact,
        ),
        "fixed-model": Entry(
            _answers(ANSWER),
            OneModel(gain=0.0, offset=ANSWER, idle_offset=ANSWER).exact,
        ),
        "two-outputs": Entry(
            _answers(ANSWER_IF_EMPTY),
            OneModel(gain=0.0, offset=ANSWER, idle_offset=ANSWER_IF_EMPTY).exact,
        ),
        "noisy-retraining": Entry(
            base.mechanism(retraining.system(learned, plan)),
            OneModel(learn=fit, gain=fit, variance=variance, kept_variance=variance).exact,
            role="null",
        ),
        "does-nothing": Entry(
            Mechanism(_mean, lambda k, b, e, a, state: state),
            OneModel(memory=1.0, gain=0.0).exact,
            role="control",
        ),
    }


# --- the table ------------------------------------------------------------------------------------


class Cell(NamedTuple):
    """One system and one notion.

    Attributes:
        system, notion: which. role: of the system.
        allowed: δ of the notion, at `epsilon`.
        audited: what samples show of δ at least; exact: the least δ that is true in this scene.
        refuted: whether the samples refute the notion. met: whether the exact law meets it.
        would_catch: the least δ that these samples would have shown to be above what is allowed.
        certified: whether this library certifies it.
    """

    system: str
    notion: str
    role: str
    epsilon: float
    allowed: float
    audited: float
    exact: float
    refuted: bool
    met: bool
    would_catch: float | None
    certified: bool

    @property
    def word(self) -> str:
        """Whether the exact law meets the notion; "fails?" where the samples do not show it."""
        return "meets" if self.met else "fails" if self.refuted else "fails?"

    @property
    def as_expected(self) -> bool:
        """Samples do not contradict the exact law, and certificates and roles hold."""
        sound = self.audited <= self.exact + ROUNDING and not (self.refuted and self.met)
        kept = self.met or not self.certified
        older = "deletion" not in self.notion
        null = self.role != "null" or not older or not self.refuted
        control = self.role != "control" or self.refuted
        return sound and kept and null and control


# Outputs are rounded before they are compared, and float32 rounds them too.
ROUNDING = 1e-4


def table(
    key: Array,
    *,
    seeds: int,
    confidence: float = 0.999,
    systems: Sequence[str] | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> list[Cell]:
    """Judge every system by every notion, at (1, 0.01); one confidence for the whole table."""
    rows = entries() if systems is None else {name: entries()[name] for name in systems}
    each = simultaneous(confidence, len(rows))
    cells = []
    for place, name in enumerate(entries()):
        if name not in rows:
            continue
        say(f"notions: {name}, {seeds:,} seeds in each arm")
        judged = judge(
            jax.random.fold_in(key, place),
            rows[name].mechanism,
            scene(),
            epsilon=EPSILON,
            delta=DELTA,
            seeds=seeds,
            confidence=each,
        )
        cells += [_cell(name, rows[name], found) for found in judged]
    return cells


def _cell(name: str, entry: Entry, judged: Judged) -> Cell:
    notion = judged.notion
    epsilon, allowed = (0.0, 0.0) if notion.exact else (EPSILON, DELTA)
    exact = entry.exact(notion.name, epsilon)
    caught = [found.detectable for found in judged.verdicts if found.detectable is not None]
    return Cell(
        system=name,
        notion=notion.name,
        role=entry.role,
        epsilon=epsilon,
        allowed=allowed,
        audited=judged.audited,
        exact=exact,
        refuted=judged.refuted,
        met=exact <= allowed,
        would_catch=min(caught, default=None),
        certified=notion.name in entry.certified,
    )
