"""The median: unlearning is perfect, and a requester that saw one release names what was deleted.

Left: a curator that recomputes the median equals retraining after every request, (0, 0) and
adaptive, yet the deleted record is released again. Right: the same requester, which copies what it
saw into other rows, against Noisy-GD, whose first release reveals little.
"""

import functools
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dd_jax.attacks import against_noisy_gd as noisy
from dd_jax.attacks import median
from dd_jax.audit.samples import trials
from dd_jax.cli import style
from dd_jax.intervals import proportions, simultaneous
from experiments import measured
from experiments.cache import Runner
from experiments.page import Table

TITLE = "Perfect unlearning, and the deleted record is named"
CAPTION = (
    "Left: the model is the median, recomputed at every request, so that unlearning is perfect. A "
    "requester that saw the first release copies it into random rows before its owner deletes it; "
    "the adversary then names the deleted record, except with a probability that halves with every "
    "request (the theorem that adaptive requests violate deletion). Right: the same requester "
    "against Noisy-GD stays within the certificate for one release seen (erratum E2), and beyond "
    "the one for requests fixed in advance."
)
NOTE = (
    "All intervals are exact and hold together with the stated confidence. Hollow triangles are "
    "upper limits where no trial failed. As a control, a requester that is shown no release copies "
    "at random (last table). Right: linear loss, κ = 2 and K_U = 3, so that "
    "ε_dd = ε_dp (1 - 1/κ)^(2 K_U)."
)

COPIES, CERTIFIED, FIXED = "copies", "certified, 1 release seen", "certified, fixed requests"
# κ and K_U of the plan: ε_dd = ε_dp (1 - 1/κ)^(2 K_U).
CONDITION, DELETE_STEPS = 2.0, 3


@dataclass(frozen=True)
class Config:
    """Settings of the figure; the quick scale is the default."""

    records: tuple[int, ...] = (11, 101)
    last_request: int = 10
    seeds: int = 10_000
    gd_records: int = 20
    gd_seeds: int = 5_000
    budgets: tuple[float, ...] = (0.0625, 0.25, 1.0, 4.0, 16.0)
    order: float = 2.0
    confidence: float = 0.999
    seed: int = 0

    def requests(self, n: int) -> list[int]:
        """The requests that delete the median of n records, one in each run."""
        return list(range(median.FIRST_STEP, min(self.last_request, n - 1) + 1))

    @property
    def intervals(self) -> int:
        """How many runs share the risk: one for each n, the blind requester, and each ε_dp."""
        return len(self.records) + 1 + len(self.budgets)


FULL = Config(records=(11, 101, 1001), last_request=14, seeds=100_000, gd_seeds=200_000)


def compute(config: Config, runner: Runner) -> dict[str, np.ndarray]:
    """Failures of the adversary over the request that deletes, and advantages over ε_dp."""
    each = simultaneous(config.confidence, config.intervals)
    median_key, blind_key, gd_key = jax.random.split(jax.random.key(config.seed), 3)
    results = {}
    for n in config.records:
        runner.say(f"median of {n} records, {config.seeds:,} seeds for each request")
        results |= _failures(jax.random.fold_in(median_key, n), config, n, each)
    runner.say("median, a requester that is shown nothing")
    results |= _blind(blind_key, config, each)
    runner.say(f"Noisy-GD at {len(config.budgets)} budgets, {config.gd_seeds:,} seeds")
    return results | _noisy_gd(gd_key, config, each)


def _failures(key, config: Config, n: int, confidence: float) -> dict[str, np.ndarray]:
    """How often the adversary does not name the record, beside the exact value and the bound."""
    steps = config.requests(n)
    trial = functools.partial(median.trial, n=n, num_requests=steps[-1])
    named = [trials(trial, jax.random.fold_in(key, i), config.seeds, jnp.int32(i)) for i in steps]
    return measured.columns(f"n={n}", proportions(~np.stack(named, axis=1), confidence)) | {
        f"n={n} request": np.array(steps),
        f"n={n} exact": np.array([1 - median.exact_success(n, i) for i in steps]),
        f"n={n} at most": np.array([1 - median.theorem_bound_simple(i) for i in steps]),
    }


def _blind(key, config: Config, confidence: float) -> dict[str, np.ndarray]:
    """How often the record is named if the requester is shown no release."""
    n = config.records[0]
    last = config.requests(n)[-1]
    trial = functools.partial(median.trial, n=n, num_requests=last, observe=())
    hits = trials(trial, key, config.seeds, jnp.int32(last))
    return measured.columns("blind success", proportions(hits, confidence))


def _noisy_gd(key, config: Config, confidence: float) -> dict[str, np.ndarray]:
    """The copying requester's advantage, and what is certified with it and for fixed requests."""
    n, kept = config.gd_records, (1 - 1 / CONDITION) ** (2 * DELETE_STEPS)
    found, bounds = [], []
    for place, eps in enumerate(config.budgets):
        cases = [
            noisy.make_case(
                "linear",
                noisy.Configuration(CONDITION, eps, eps * kept, observed, n - 1),
                n,
                config.order,
            )
            for observed in (0, 1)
        ]
        place_key = jax.random.fold_in(key, place)
        pair = noisy.releases(place_key, cases[1], noisy.COPY, config.gd_seeds)
        found.append(noisy.sign_attack(pair, noisy.COPY, confidence))
        bounds.append([noisy.certified(case, config.order)[0] for case in cases])
    fixed, certified = np.array(bounds).T
    return measured.columns(COPIES, found) | {
        "eps_dp": np.array(config.budgets),
        FIXED: fixed,
        CERTIFIED: certified,
    }


# --- what is shown --------------------------------------------------------------------------------


def plot(config: Config, results: dict[str, np.ndarray]) -> Figure:
    """Failures of the adversary on a logarithmic axis, and its advantage against Noisy-GD."""
    figure, (left, right) = style.panels(1, 2, height=4.2)
    _draw_failures(left, config, results)
    _draw_noisy_gd(right, results)
    for axis in (left, right):
        style.legend_below(axis)
    return figure


def _draw_failures(axis: Axes, config: Config, results: dict[str, np.ndarray]) -> None:
    """Measured failures, a triangle where there were none, the exact lines and the bound."""
    looks = zip(
        (style.BLUE, style.ORANGE, style.GREEN),
        "osD",
        (style.SOLID, style.DASHED, "-."),
        strict=True,
    )
    for n, (colour, marker, dashes) in zip(config.records, looks, strict=False):
        name, step = f"n={n}", results[f"n={n} request"]
        seen = results[name] > 0
        ends = [np.where(seen, end, np.nan) for end in measured.interval(results, name).values()]
        label = f"measured, n = {n}"
        style.error_bars(axis, step, *ends, label=label, colour=colour, marker=marker)
        axis.plot(step[~seen], results[f"{name} high"][~seen], "v", color=colour, mfc="none")
        exact = np.where(results[f"{name} exact"] > 0, results[f"{name} exact"], np.nan)
        style.line(axis, step, exact, f"exact, n = {n}", colour, dashes)
    axis.plot([], [], "v", color=style.BLACK, mfc="none", label="no failure seen: upper limit")
    most, label = results[f"{name} at most"], "theorem: at most $2^{-(i-3)}$"
    style.line(axis, step, most, label, dashes=style.DOTTED)
    axis.set(xlabel="request i that deletes the record", ylabel="P[deleted record is not named]")
    axis.set(yscale="log", ylim=(0.2 / config.seeds, 1))
    axis.set_title("median, equal to retraining after every request")


def _draw_noisy_gd(axis: Axes, results: dict[str, np.ndarray]) -> None:
    eps = results["eps_dp"]
    measured.draw(axis, eps, results, COPIES, label="copying requester, measured")
    style.line(axis, eps, results[CERTIFIED], CERTIFIED)
    style.line(axis, eps, results[FIXED], FIXED, dashes=style.DOTTED)
    style.line(axis, None, 1, "retraining, no noise", style.ORANGE, style.DASHED)
    axis.set(xscale="log", ylim=(0, 1.05), ylabel="advantage on the deleted record")
    axis.set_xlabel(r"$\varepsilon_{dp}$ of one release")
    axis.set_title("the requester that copies, against Noisy-GD")


def tables(config: Config, results: dict[str, np.ndarray]) -> list[Table]:
    """Failures over n and the request, advantages over ε_dp, and the blind control."""
    failures = []
    for n in config.records:
        name = f"n={n}"
        exact, most = results[f"{name} exact"], results[f"{name} at most"]
        group = {
            "n": n,
            "request i": results[f"{name} request"],
            **measured.interval(results, name),
            "exact": exact,
            "interval contains it": measured.contains(results, name, exact),
            "theorem: at most": most,
            "verdict": measured.verdicts(results[f"{name} low"] > most),
        }
        failures.append(group)
    low = results[f"{COPIES} low"]
    advantages = {
        "ε_dp": config.budgets,
        **measured.interval(results, COPIES),
        CERTIFIED: results[CERTIFIED],
        "verdict": measured.verdicts(low > results[CERTIFIED]),
        FIXED: results[FIXED],
        "shown beyond it": low > results[FIXED],
    }
    blind = {"n": config.records[0], **measured.interval(results, "blind success")}
    together = f"confidence {config.confidence:g} in all"
    return [
        Table.from_columns(
            f"P[deleted record is not named]; {config.seeds:,} seeds, {together}", *failures
        ),
        Table.from_columns(
            f"Advantage of the copying requester; {config.gd_seeds:,} seeds, {together}", advantages
        ),
        Table.from_columns("P[record is named] if no release is seen", blind),
    ]
