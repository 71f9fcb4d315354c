"""What a deletion saves over learning without convexity: the paper's claim and what follows.

The paper's remark after the non-convex trade-off theorem (`thm:deletion_accuracy_nonconvex`) puts
ε_dd = log(B)/4 and claims a saving of order dn log(n/r) gradients. Its own step counts give
K_L - K_U = (2B/(λη)) log(1/(½ + 2r/n)), at most (2B/(λη)) log 2 (erratum E12).
"""

from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure

from dd_jax.cli import style
from dd_jax.constants import tanh_margin
from dd_jax.guarantees import nonconvex
from experiments.cache import Runner
from experiments.page import Table

TITLE = "Deletion without convexity: what a request saves"
CAPTION = """\
Steps that a deletion saves over learning, in units of 2B/(λη), on a bounded non-convex loss. The
paper claims growth as log(n/r) (dashed). Its own step counts (crosses) save log(1/(½ + 2r/n))
(black): never more than log 2 however large n is (dotted), and nothing from r = n/4 on. The table
has the steps of the tuned and the sharp accountant beside them."""
NOTE = (
    "The remark after the non-convex trade-off theorem takes ε_dd = log(B)/4, B = exp(4b/σ²); so "
    "does this figure. Every count is the planner's own at the noise of the configuration; nothing "
    "is sampled. One step costs n gradients of one record, for learning and for deletion alike. "
    "Where the sharp accountant needs no step to learn, the start is within ε_dd of the Gibbs law "
    "by itself, so that nothing has to be learned and the remark's comparison is empty."
)

L2 = 0.77
BOUND = 1.0  # b of the tanh margin
FORMS = ("paper", "tuned", "sharp")


@dataclass(frozen=True)
class Config:
    """Settings of the figure; the full scale has more points."""

    order: float = 2.0
    dim: int = 1
    noise_variance: float = 1.0
    records: int = 1
    n: int = 1000
    points: int = 9


FULL = Config(points=17)


def sizes(config: Config) -> np.ndarray:
    """n from 10 to a million, at `records` edited per request."""
    return np.unique(np.round(np.geomspace(10, 1e6, config.points)).astype(int))


def edits(config: Config) -> np.ndarray:
    """r from 1 to n/2 at the configuration's n."""
    return np.unique(np.round(np.geomspace(1, config.n / 2, config.points)).astype(int))


def claimed(n, records):
    """log(n/r), the paper's saving up to its constant."""
    return np.log(n / records)


def corrected(n, records):
    """log(1/(½ + 2r/n)), what its step counts give."""
    return -np.log(0.5 + 2 * records / n)


def eps_dd(config: Config) -> float:
    """ε_dd = log(B)/4 = b/σ², the remark's."""
    return BOUND / config.noise_variance


def steps(config: Config, n: int, records: int, form: str) -> tuple[float, float, float]:
    """(K_L, K_U, 2B/(λη)) of a form."""
    loss = tanh_margin()
    constants = (loss.lipschitz, L2, loss.smoothness, BOUND)
    problem = nonconvex.Bounded(config.order, *constants, n, config.dim, records)
    noise = config.noise_variance
    found = nonconvex.PROOFS[form].settings(problem, noise, eps_dd(config))
    unit = 2 * np.exp(4 * BOUND / noise) / (L2 * found.step_size)
    return found.learn_steps, found.delete_steps, unit


def compute(config: Config, runner: Runner) -> dict[str, np.ndarray]:
    """ "n: …" over n at fixed r, "r: …" over r at fixed n: `places` (n, r), and steps by form."""
    del runner
    places = {
        "n": [(int(n), config.records) for n in sizes(config)],
        "r": [(config.n, int(r)) for r in edits(config)],
    }
    results = {}
    for axis, pairs in places.items():
        results[f"{axis}: places"] = np.array(pairs)
        for form in FORMS:
            results[f"{axis}: {form}"] = np.array([steps(config, *pair, form) for pair in pairs])
    return results


def saved(counts: np.ndarray) -> np.ndarray:
    """K_L - K_U in units of 2B/(λη)."""
    learn, delete, unit = counts.T
    return (learn - delete) / unit


def tables(config: Config, results: dict[str, np.ndarray]) -> list[Table]:
    """What is saved at every place with the verdict on the claim, and everybody's steps."""
    del config
    savings, counts = [], []
    for axis in ("n", "r"):
        own = saved(results[f"{axis}: paper"])
        for place, (n, records) in enumerate(results[f"{axis}: places"].tolist()):
            exact = float(corrected(n, records))
            agrees = np.isclose(own[place], exact, rtol=1e-3, atol=1e-3)
            where = {"n": n, "r": records}
            savings.append(
                where
                | {
                    "claimed, log(n/r)": float(claimed(n, records)),
                    "corrected": exact,
                    "by the step counts": float(own[place]),
                    "verdict": "corrected" if agrees else "NOT EXPLAINED",
                }
            )
            row = dict(where)
            for form in FORMS:
                learn, delete, _ = results[f"{axis}: {form}"][place]
                row |= {f"K_L, {form}": int(learn), f"K_U, {form}": int(delete)}
            counts.append(row)
    return [
        Table.from_rows("What a deletion saves, in units of 2B/(λη)", savings),
        Table.from_rows("Steps", counts),
    ]


def plot(config: Config, results: dict[str, np.ndarray]) -> Figure:
    """The saving over n and over r."""
    figure, axes = style.panels(1, 2, height=3.8)
    for panel, axis in zip(axes, ("n", "r"), strict=True):
        n, records = results[f"{axis}: places"].T
        where = n if axis == "n" else records
        style.line(panel, where, claimed(n, records), "paper's claim, log(n/r)", style.ORANGE, "--")
        style.line(panel, where, corrected(n, records), "corrected, log(1/(½ + 2r/n))")
        own = saved(results[f"{axis}: paper"])
        panel.plot(where, own, "x", color=style.BLUE, ms=7, label="by the theorem's step counts")
        style.line(panel, None, np.log(2), "log 2", style.BLACK, style.DOTTED)
        panel.set(xscale="log")
    axes[0].set(
        xlabel=f"records n, r = {config.records}", ylabel="saved steps, in units of 2B/(λη)"
    )
    axes[1].set(xlabel=f"records r that one request edits, n = {config.n:,}")
    axes[1].axhline(0, color=style.BLACK, linewidth=0.8)
    style.legend_of_all(figure, axes[0], 4)
    return figure
