"""Excess risk and accuracy over ε_dp and n, and the order O(q d / (ε_dp n²)) fitted to the risk.

Synthetic databases of every n hold the same few records, repeated, so that all have one and the
same objective and n acts through the noise and through what one deletion changes. Accuracy is that
of real digits, held out.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import dd_jax as dd
from dd_jax import data
from dd_jax.cli import style
from dd_jax.guarantees.renyi import gdp_epsilon, gdp_from_linear_renyi
from dd_jax.guarantees.risk import excess_risk_convex_paper, least_risk_order
from dd_jax.intervals import mean_over_seeds, simultaneous
from dd_jax.sweeps import deletion as deletion_sweep
from dd_jax.sweeps import grid
from dd_jax.sweeps.deletion import Question
from experiments.cache import Runner
from experiments.measured import verdict
from experiments.page import Table

TITLE = "Privacy against utility"
CAPTION = (
    "Left: mean excess risk after a stream of deletions against q d/(ε_dp n²), the order that "
    "the paper states for it (convex accuracy theorem, part 3). The risk lies on one line for "
    "every n, below the certified bound; the paper's is higher. Bars: the order below which no "
    "(ε, δ)-DP algorithm stays (Bassily et al. 2014), its constant drawn as 1. Right: what the "
    "privacy budget costs in held-out accuracy on digits, after learning and after deletions."
)
NOTE = (
    "The lower bound is (L²/λ) min{1, d/(ε²n²)}, at the ε that these runs have for δ = 1/n²; its "
    "constant is not known. Synthetic databases of every n repeat the same 50 records, so that "
    "all have one objective and n acts through the noise and through what one deletion changes. "
    "ε_dd is a fixed share of ε_dp. Marks are means over seeds with t-intervals. Exponents are "
    "least-squares slopes of the logarithm of the mean risk in 10 blocks of seeds, with "
    "t-intervals over the blocks that hold together; they account for chance only, not for "
    "curvature."
)
# Records that synthetic databases repeat, and blocks of seeds that each give a slope.
BASE, BLOCKS = 50, 10
# The exponent of the risk in each column, by the theorem.
STATED = {
    "q d/(ε_dp n²)": ("scale", 1.0),
    "ε_dp": ("eps_dp", -1.0),
    "n": ("n", -2.0),
    "d": ("dim", 1.0),
}
LOOKS = (
    (style.BLUE, "o"),
    (style.ORANGE, "s"),
    (style.GREEN, "D"),
    (style.RED, "^"),
    (style.BLACK, "v"),
    (style.BLUE, "P"),
)


@dataclass(frozen=True)
class Config:
    """Settings of the figure; the quick scale is the default.

    Attributes:
        sizes, dims: n and d of synthetic databases; n in multiples of 50.
        real_sizes: first n training records of `dataset`.
        share: ε_dd / ε_dp.
        confidence: of all fitted exponents together, and of all means of a panel together.
    """

    sizes: tuple[int, ...] = (250, 1_000, 4_000)
    dims: tuple[int, ...] = (16,)
    eps_dp: tuple[float, ...] = (0.1, 0.3, 1.0, 3.0, 10.0)
    dataset: str = "digits-3-vs-8"
    real_sizes: tuple[int, ...] = (67, 267)
    order: float = 2.0
    share: float = 0.1
    l2: float = 0.1
    requests: int = 5
    seeds: int = 200
    confidence: float = 0.95
    seed: int = 0


FULL = Config(
    sizes=(250, 500, 1_000, 2_000, 4_000, 8_000),
    dims=(8, 16, 32, 64),
    eps_dp=(0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0),
    real_sizes=(67, 133, 267),
    requests=20,
    seeds=2_000,
)


def synthetic(n: int, dim: int, seed: int) -> dd.Labelled:
    """50 unit-norm records with noisy labels of a linear teacher, repeated to n rows."""
    if n % BASE:
        raise dd.InputError(f"n = {n} is not a multiple of {BASE}; give a multiple.")
    chance = np.random.default_rng((seed, dim))
    features = chance.normal(size=(BASE, dim))
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    label = np.sign(features @ chance.normal(size=dim) + 0.3 * chance.normal(size=BASE))
    return dd.Labelled(
        jnp.asarray(np.tile(features, (n // BASE, 1)), jnp.float32),
        jnp.asarray(np.tile(label, n // BASE), jnp.float32),
    )


def compute(config: Config, runner: Runner) -> dict[str, np.ndarray]:
    """For every setting its n, d, ε_dp, bounds, and risk and accuracy over seeds."""
    loaded = data.load(config.dataset)
    real_dim = loaded.train.features.shape[1]
    parts = {
        "synthetic": [("synthetic", n, dim) for dim in config.dims for n in config.sizes],
        "real": [(config.dataset, n, real_dim) for n in config.real_sizes],
    }

    def records(setting):
        if setting.data == config.dataset:
            return deletion_sweep.first_records(loaded, setting.n)
        train = synthetic(setting.n, int(setting.data.split("-")[1]), config.seed)
        return train, train

    results = {}
    for part, places in parts.items():
        questions = [q for place in places for q in _questions(config, *place)]

        def run(settings, part=part):
            return runner.sweep(
                f"privacy-utility-{part}",
                deletion_sweep.judged,
                jax.random.key(config.seed),
                config.seeds,
                settings,
                traced=deletion_sweep.TRACED,
                arguments=records,
                chunk=2_000,
            )

        results |= _arrays(config, part, deletion_sweep.answers(questions, run))
    return results


def _questions(config: Config, name: str, n: int, dim: int) -> list[Question]:
    label = name if name == config.dataset else f"{name}-{dim}"
    base = Question(
        label, n, dim, config.l2, 1.0, config.share, config.order, requests=config.requests
    )
    return [
        question
        for eps_dp in config.eps_dp
        for question in grid(base, eps_dp=(eps_dp,), eps_dd=(config.share * eps_dp,))
    ]


def _arrays(config: Config, part: str, found: list) -> dict[str, np.ndarray]:
    """One column per setting."""
    names = deletion_sweep.Outcome._fields
    columns = {name: np.stack([getattr(a.outcome, name) for a in found], axis=1) for name in names}
    for name in ("n", "dim", "eps_dp"):
        columns[name] = np.array([getattr(a.question, name) for a in found], float)
    columns["bound"] = np.array([a.certificate.risk_bound_request for a in found])
    columns["scale"] = config.order * columns["dim"] / (columns["eps_dp"] * columns["n"] ** 2)
    return {f"{part}_{name}": values for name, values in columns.items()}


# --- the fitted order -----------------------------------------------------------------------------


class Fit(NamedTuple):
    """A stated exponent, and the fitted one with its interval."""

    stated: float
    value: float
    low: float
    high: float


def exponents(
    risk: np.ndarray, columns: Mapping[str, np.ndarray], confidence: float
) -> dict[str, Fit]:
    """Fitted exponents of the mean risk, in q d/(ε_dp n²), and in each part of it that varies.

    The seeds fall into 10 blocks; each gives least-squares slopes of the logarithm of its mean
    risk; the interval of their mean is a t-interval over the independent blocks.

    Args:
        risk: (seeds, settings).
        columns: `scale`, `eps_dp`, `n`, `dim` of every setting.
        confidence: of all intervals together.
    """
    logs = {name: np.log(columns[key]) for name, (key, _) in STATED.items()}
    whole, *parts = [name for name in logs if np.ptp(logs[name]) > 0]
    blocks = np.log([block.mean(axis=0) for block in np.array_split(risk, BLOCKS)])
    each = simultaneous(confidence, 1 + len(parts))
    fitted = {}
    for names in ([whole], parts):
        found = mean_over_seeds(_slopes([logs[name] for name in names], blocks), each)
        for name, *values in zip(names, *found, strict=True):
            fitted[name] = Fit(STATED[name][1], *map(float, values))
    return fitted


def _slopes(logs: list[np.ndarray], blocks: np.ndarray) -> np.ndarray:
    """Least-squares slopes of each block on the given logarithms, (blocks, slopes)."""
    design = np.column_stack([np.ones(blocks.shape[1]), *logs])
    return np.linalg.lstsq(design, blocks.T, rcond=None)[0][1:].T


# --- what is shown --------------------------------------------------------------------------------


def plot(config: Config, results: dict[str, np.ndarray]) -> Figure:
    """Risk over q d/(ε_dp n²) with its fitted order and the bounds, and accuracy over ε_dp."""
    figure, (risk, accuracy) = style.panels(1, 2, height=4.2)
    everywhere = simultaneous(config.confidence, results["synthetic_risk_edited"].shape[1])
    found = mean_over_seeds(results["synthetic_risk_edited"], everywhere)
    labels = {n: f"n = {n:,}" for n in config.sizes}
    _draw_means(risk, labels, results["synthetic_n"], results["synthetic_scale"], found)
    order = np.argsort(results["synthetic_scale"])
    scale, bound = results["synthetic_scale"][order], results["synthetic_bound"][order]
    style.line(risk, scale, bound, "certified bound on the mean", dashes=style.DOTTED)
    fitted = next(iter(_exponents(config, results).values()))
    label = f"fitted: slope {fitted.value:.3f} (stated: {fitted.stated:g})"
    style.line(risk, scale, _through_the_middle(scale, fitted, results), label, lw=1)
    paper = _paper_bound(config) * scale
    style.line(risk, scale, paper, "the paper's bound, its plan", style.RED, "-.")
    style.line(
        risk,
        results["synthetic_scale"],
        lower_bounds(config, results),
        "order of the lower bound of (ε, 1/n²)-DP",
        dashes="none",
        marker="_",
        markersize=9,
    )
    risk.set(xscale="log", yscale="log", ylabel="excess empirical risk")
    risk.set_xlabel(r"$q\,d\,/\,(\varepsilon_{dp}\,n^2)$")
    _draw_accuracy(accuracy, config, results)
    for panel in (risk, accuracy):
        style.legend_below(panel)
    return figure


def _draw_means(panel: Axes, labels: dict[int, str], sizes, where, found) -> None:
    """Means with their intervals, each n with its own marker."""
    for (n, label), (colour, marker) in zip(labels.items(), LOOKS, strict=False):
        here = sizes == n
        ends = [values[here] for values in found]
        style.error_bars(panel, where[here], *ends, label=label, colour=colour, marker=marker)


def _draw_accuracy(panel: Axes, config: Config, results: dict[str, np.ndarray]) -> None:
    values, sizes, eps_dp = (results[f"real_{k}"] for k in ("accuracy_edited", "n", "eps_dp"))
    found = mean_over_seeds(values, simultaneous(config.confidence, values.shape[1]))
    labels = {n: f"n = {n}, after {config.requests} deletions" for n in config.real_sizes}
    _draw_means(panel, labels, sizes, eps_dp, found)
    learned = results["real_accuracy_learned"].mean(axis=0)
    for n, (colour, _) in zip(config.real_sizes, LOOKS, strict=False):
        here, label = sizes == n, f"n = {n}, after learning"
        style.line(panel, eps_dp[here], learned[here], label, colour, style.DASHED)
    panel.set(xscale="log", xlabel=r"$\varepsilon_{dp}$", ylabel="held-out accuracy")


def _through_the_middle(scale: np.ndarray, fit: Fit, results: dict[str, np.ndarray]) -> np.ndarray:
    """The fitted power of q d/(ε_dp n²), through the middle of the measured logarithms."""
    offset = np.log(results["synthetic_risk_edited"].mean(axis=0)).mean()
    middle = np.log(results["synthetic_scale"]).mean()
    return np.exp(offset + fit.value * (np.log(scale) - middle))


def _paper_bound(config: Config) -> float:
    """The convex accuracy theorem's factor 10κL²/λ of q d/(ε_dp n²)."""
    smoothness = deletion_sweep.LOSS().constants.smoothness
    return excess_risk_convex_paper(2, 1.0, config.l2, smoothness, 1, 1, 1.0) / 2


def lower_bounds(config: Config, results: dict[str, np.ndarray]) -> np.ndarray:
    """What (ε, δ)-DP costs any algorithm, up to a constant, at the ε of each run for δ = 1/n²."""
    n, dim, eps_dp = (results[f"synthetic_{name}"] for name in ("n", "dim", "eps_dp"))
    epsilon = gdp_epsilon(gdp_from_linear_renyi(config.order, eps_dp), 1 / n**2)
    return least_risk_order(1.0, config.l2, n, dim, epsilon)


def _exponents(config: Config, results: dict[str, np.ndarray]) -> dict[str, Fit]:
    columns = {key: results[f"synthetic_{key}"] for key, _ in STATED.values()}
    return exponents(results["synthetic_risk_edited"], columns, config.confidence)


def tables(config: Config, results: dict[str, np.ndarray]) -> list[Table]:
    """The fitted exponents beside the stated ones, the means beside their bounds, accuracy."""
    fits = [
        (name, stated, value, low, high, low <= stated <= high)
        for name, (stated, value, low, high) in _exponents(config, results).items()
    ]
    together = f"intervals at {config.confidence:.0%} for all together"
    return [
        Table(
            f"Exponents of the mean excess risk; {together}",
            ("in", "stated", "fitted", "low", "high", "interval contains it"),
            fits,
        ),
        Table(
            f"Mean excess risk after {config.requests} deletions against its bound; {together}",
            (
                "n",
                "d",
                "means",
                "mean / bound, least",
                "largest",
                "mean / order of the lower bound, least",
                "shown above it",
                "verdict",
            ),
            list(_against_bounds(config, results)),
        ),
        Table(
            f"Held-out accuracy on {config.dataset}; {together}",
            ("n", "ε_dp", "after learning", f"after {config.requests} deletions", "low", "high"),
            _accuracies(config, results),
        ),
    ]


def _against_bounds(config: Config, results: dict[str, np.ndarray]) -> Iterator[tuple]:
    """One row per n and d, over all ε_dp."""
    risk = results["synthetic_risk_edited"]
    found = mean_over_seeds(risk, simultaneous(config.confidence, risk.shape[1]))
    bound = results["synthetic_bound"]
    share, above = found.value / bound, found.low > bound
    over_least = found.value / lower_bounds(config, results)
    for dim in config.dims:
        for n in config.sizes:
            here = (results["synthetic_n"] == n) & (results["synthetic_dim"] == dim)
            count, over, shares = int(here.sum()), int(above[here].sum()), share[here]
            least = over_least[here].min()
            yield n, dim, count, shares.min(), shares.max(), least, over, verdict(over)


def _accuracies(config: Config, results: dict[str, np.ndarray]) -> list[tuple]:
    """One row per n and ε_dp."""
    values = results["real_accuracy_edited"]
    found = mean_over_seeds(values, simultaneous(config.confidence, values.shape[1]))
    learned = results["real_accuracy_learned"].mean(axis=0)
    columns = (results["real_n"].astype(int), results["real_eps_dp"], learned, *found)
    return list(zip(*columns, strict=True))
