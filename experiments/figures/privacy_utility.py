"""Excess risk and accuracy over ε_dp and n, and the order O(q d / (ε_dp n²)) fitted to the risk.

Synthetic databases of every n hold the same few records, repeated, so that all have one and the
same objective and n acts through the noise and through what one deletion changes. Accuracy is that
of real digits, held out.
"""

from dataclasses import dataclass

import jax
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dd_jax import data
from dd_jax.cli import style
from dd_jax.guarantees.risk import excess_risk_convex_paper
from dd_jax.intervals import mean_over_seeds, simultaneous
from dd_jax.sweeps import deletion as deletion_sweep
from dd_jax.sweeps import grid
from dd_jax.sweeps.deletion import Question
from experiments import utility_order
from experiments.cache import Runner
from experiments.page import Table

TITLE = "Privacy against utility"


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
        train = utility_order.synthetic(setting.n, int(setting.data.split("-")[1]), config.seed)
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


# --- what is shown ------------------------------------------------------------------------------

_LOOKS = (
    (style.BLUE, "o"),
    (style.ORANGE, "s"),
    (style.GREEN, "D"),
    (style.RED, "^"),
    (style.BLACK, "v"),
    (style.BLUE, "P"),
)


def plot(config: Config, results: dict[str, np.ndarray]) -> Figure:
    """Risk over q d/(ε_dp n²) with its fitted order and the bounds, and accuracy over ε_dp."""
    figure, (risk, accuracy) = style.panels(1, 2, height=4.2)
    _draw_risk(risk, config, results)
    order = np.argsort(results["synthetic_scale"])
    scale, bound = results["synthetic_scale"][order], results["synthetic_bound"][order]
    risk.plot(scale, bound, style.DOTTED, color=style.BLACK, label="certified bound on the mean")
    whole, *_ = _exponents(config, results).values()
    risk.plot(scale, _fitted(scale, whole, results), color=style.BLACK, lw=1, label=_slope(whole))
    constant = _paper_bound(config)
    risk.plot(scale, constant * scale, "-.", color=style.RED, label="the paper's bound, its plan")
    risk.set(
        xscale="log",
        yscale="log",
        xlabel="$q\\,d\\,/\\,(ε_{dp}\\,n^2)$",
        ylabel="excess empirical risk",
    )
    _draw_accuracy(accuracy, config, results)
    accuracy.set(xscale="log", xlabel="$ε_{dp}$", ylabel="held-out accuracy")
    for panel in (risk, accuracy):
        style.legend_below(panel)
    return figure


def _fitted(scale: np.ndarray, fit: utility_order.Fit, results: dict[str, np.ndarray]):
    """The fitted power of q d/(ε_dp n²), through the middle of the measured logarithms."""
    offset = np.log(results["synthetic_risk_edited"].mean(axis=0)).mean()
    middle = np.log(results["synthetic_scale"]).mean()
    return np.exp(offset + fit.value * (np.log(scale) - middle))


def _slope(fit: utility_order.Fit) -> str:
    return f"fitted slope {fit.value:.3f} [{fit.low:.3f}, {fit.high:.3f}]; stated {fit.stated:g}"


def _paper_bound(config: Config) -> float:
    """10κL²/λ, which `thm:unlearning_accuracy_convex` multiplies by q d/(ε_dp n²)."""
    smoothness = deletion_sweep.LOSS().constants.smoothness
    return excess_risk_convex_paper(2, 1.0, config.l2, smoothness, 1, 1, 1.0) / 2


def _draw_risk(panel: Axes, config: Config, results: dict[str, np.ndarray]) -> None:
    risk = results["synthetic_risk_edited"]
    found = mean_over_seeds(risk, simultaneous(config.confidence, risk.shape[1]))
    for n, (colour, marker) in zip(config.sizes, _LOOKS, strict=False):
        here = results["synthetic_n"] == n
        ends = [values[here] for values in found]
        style.error_bars(
            panel,
            results["synthetic_scale"][here],
            *ends,
            label=f"n = {n:,}",
            colour=colour,
            marker=marker,
        )


def _draw_accuracy(panel: Axes, config: Config, results: dict[str, np.ndarray]) -> None:
    values = results["real_accuracy_edited"]
    found = mean_over_seeds(values, simultaneous(config.confidence, values.shape[1]))
    for n, (colour, marker) in zip(config.real_sizes, _LOOKS, strict=False):
        here = results["real_n"] == n
        ends = [column[here] for column in found]
        where = results["real_eps_dp"][here]
        label = f"n = {n}, after {config.requests} deletions"
        style.error_bars(panel, where, *ends, label=label, colour=colour, marker=marker)
        learned = results["real_accuracy_learned"].mean(axis=0)[here]
        panel.plot(where, learned, style.DASHED, color=colour, label=f"n = {n}, learned")


def caption(config: Config, results: dict[str, np.ndarray]) -> str:
    """What to see, with the numbers of this run."""
    fitted = _exponents(config, results)
    (stated, slope, low, high), *_ = fitted.values()
    if low <= stated <= high:
        verdict = "the interval contains the stated order, 1"
    elif low > stated:
        verdict = "the interval lies above the stated order, 1: risk falls faster than it"
    else:
        verdict = "the interval lies below the stated order, 1: risk falls more slowly than it"
    others = ", ".join(
        f"{value:.3f} [{a:.3f}, {b:.3f}] in {name} (stated {told:g})"
        for name, (told, value, a, b) in list(fitted.items())[1:]
    )
    accuracy = results["real_accuracy_edited"].mean(axis=0)
    last = accuracy[results["real_n"] == config.real_sizes[-1]]
    return (
        f"Left: excess risk after {config.requests} deletions on synthetic records, means over "
        f"{config.seeds:,} seeds with t-intervals. Fitted slope in q d/(ε_dp n²): {slope:.3f} "
        f"[{low:.3f}, {high:.3f}]; {verdict}. Exponents: {others}. These intervals hold together "
        f"with confidence {config.confidence:g}; they tell of chance alone, not of curvature. "
        f"{_against_bounds(config, results)} Right: held-out accuracy on "
        f"{config.dataset}; with n = {config.real_sizes[-1]} records it goes from {last[0]:.3f} at "
        f"ε_dp = {config.eps_dp[0]:g} to {last[-1]:.3f} at ε_dp = {config.eps_dp[-1]:g}. "
        f"ε_dd = {config.share:g} ε_dp, order {config.order:g}, λ = {config.l2:g}. Tests "
        f"thm:unlearning_accuracy_convex, part 3."
    )


def _exponents(config: Config, results: dict[str, np.ndarray]) -> dict[str, utility_order.Fit]:
    columns = {key: results[f"synthetic_{key}"] for key in ("scale", "eps_dp", "n", "dim")}
    risk = results["synthetic_risk_edited"]
    return utility_order.exponents(risk, columns, config.confidence)


def _against_bounds(config: Config, results: dict[str, np.ndarray]) -> str:
    risk, bound = results["synthetic_risk_edited"], results["synthetic_bound"]
    found = mean_over_seeds(risk, simultaneous(config.confidence, risk.shape[1]))
    above = int(np.sum(found.low > bound))
    share = f"The means reach at most {(found.value / bound).max():.0%} of the certified bound"
    if above:
        return f"{share}, and {above} of {len(bound)} lie above it beyond chance."
    return f"{share}."


def tables(config: Config, results: dict[str, np.ndarray]) -> list[Table]:
    """The fitted exponents beside the stated ones."""
    rows = [
        (name, stated, value, low, high, "yes" if low <= stated <= high else "no")
        for name, (stated, value, low, high) in _exponents(config, results).items()
    ]
    columns = ("in", "stated", "fitted", "low", "high", "interval contains it")
    return [Table("Exponents of the mean excess risk", columns, rows)]
