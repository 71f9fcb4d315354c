"""The pooled accountant at work: the shift between two runs, step by step, and its blocks.

Two runs over cyclic batches differ in one record. Whenever its batch is used, the shift z between
them grows by the gap s; every step shrinks it by c and hides a part a of it in its noise. The bound
is the cheapest way to hide all of it by the end (`dd_jax.guarantees.schedules`).
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dd_jax.cli import style
from dd_jax.guarantees import schedules
from experiments.cache import Runner
from experiments.page import Table

TITLE = "The accountant for batches, step by step"
CAPTION = """\
Two runs over cyclic batches differ in one record. Black: the shift between them; it jumps when the
record's batch is used, shrinks by contraction, and each step's noise hides a part (bars). Shaded:
blocks of steps that share this work at one price; their parts of μ² add up to the bound. Left:
released right after the batch was used, that step must hide the jump alone. Right: later, the work
is shared and cheaper."""
NOTE = (
    "Gap and noise are 1 whenever the batch is used, c = 1 - ηλ; nothing is sampled. The bound of "
    "the pooled accountant is compared with the closed form for cyclic batches, and with what one "
    "common block would say: where the shift would have to be negative for that, it is below the "
    "truth."
)


@dataclass(frozen=True)
class Config:
    """Settings of the figure; the quick scale has fewer passes, which are easier to see."""

    contraction: float = 0.98
    batches: int = 7
    uses: int = 4
    delete_steps: int = 5


FULL = Config(uses=9)


def gaps(config: Config, since: int) -> np.ndarray:
    """s_k: 1 where the record's batch, the last of a pass, is used; then `since` steps without."""
    steps = np.arange(1, config.batches * config.uses + since + 1)
    used = (steps % config.batches == 0) & (steps <= config.batches * config.uses)
    return used.astype(float)


def compute(config: Config, runner: Runner) -> dict[str, np.ndarray]:
    """For both moments of release: gaps s, hidden parts a, shifts z, blocks (first, last, μ²)."""
    del runner
    results: dict[str, np.ndarray] = {}
    for since in (0, config.delete_steps):
        gap = gaps(config, since)
        pool = schedules.pooled(config.contraction, gap, 1.0)
        hidden = hidden_parts(config.contraction, pool)
        found = {
            "gap": gap,
            "hidden": hidden,
            "shift": shifts(config.contraction, gap, hidden),
            "blocks": np.array([(b.first, b.last, b.mu_squared) for b in pool.blocks]),
            "bound": np.array(pool.mu_squared),
            "one block": np.array(one_block(config.contraction, gap)),
            "closed form": np.array(closed_form(config, since)),
        }
        results |= {f"{since}: {name}": values for name, values in found.items()}
    return results


def hidden_parts(contraction: float, pool: schedules.Pool) -> np.ndarray:
    """a_k for unit noise: within a block every step hides in proportion to w_k = c^(T-k)."""
    parts = []
    for block in pool.blocks:
        steps = np.arange(block.first, block.last + 1)
        # A block's ratio is relative to the first step: (P/G) / (c_1 ⋯ c_k) in units of step k.
        parts.append(np.exp(block.ratio) * contraction ** -(steps + 1.0))
    return np.concatenate(parts)


def shifts(contraction: float, gap: np.ndarray, hidden: np.ndarray) -> np.ndarray:
    """z_k = c z_{k-1} + s_k - a_k from z_0 = 0."""
    found, shift = [], 0.0
    for s, a in zip(gap, hidden, strict=True):
        shift = contraction * shift + s - a
        found.append(shift)
    return np.array(found)


def one_block(contraction: float, gap: np.ndarray) -> float:
    """(Σ w s)²/Σ w², which is too small wherever the shift would turn negative."""
    weights = contraction ** np.arange(len(gap))[::-1]
    return float(np.sum(weights * gap) ** 2 / np.sum(weights**2))


def closed_form(config: Config, since: int) -> float:
    """μ² of cyclic batches for unit gap and noise; only c = 1 - ηλ matters."""
    uses, rate = float(config.uses), 1 - config.contraction
    return float(schedules.cyclic(1.0, rate, config.batches, uses, float(since)))


def tables(config: Config, results: dict[str, np.ndarray]) -> list[Table]:
    """The bounds, and every block with its part."""
    bounds, blocks = [], []
    for since in (0, config.delete_steps):
        bound, closed = (float(results[f"{since}: {name}"]) for name in ("bound", "closed form"))
        bounds.append(
            {
                "steps since the last use": since,
                "μ², pooled": bound,
                "μ², closed form": closed,
                "one block would say": float(results[f"{since}: one block"]),
                "least shift": float(results[f"{since}: shift"].min()),
                "verdict": "agree" if np.isclose(bound, closed, rtol=1e-9) else "DIFFER",
            }
        )
        for first, last, part in results[f"{since}: blocks"]:
            blocks.append(
                {
                    "steps since the last use": since,
                    "first step": int(first) + 1,
                    "last step": int(last) + 1,
                    "part of μ²": float(part),
                }
            )
    return [Table.from_rows("Bounds", bounds), Table.from_rows("Blocks", blocks)]


def plot(config: Config, results: dict[str, np.ndarray]) -> Figure:
    """The shift, the hidden parts and the blocks, for both moments of release."""
    figure, axes = style.panels(1, 2, height=3.8)
    for axis, since in zip(axes, (0, config.delete_steps), strict=True):
        _draw(axis, config, since, results)
        axis.sharey(axes[0])
    # Before a step hides its part the shift is highest; the numbers of the blocks stand above it.
    sinces = (0, config.delete_steps)
    highest = max((results[f"{s}: shift"] + results[f"{s}: hidden"]).max() for s in sinces)
    axes[0].set(ylabel="shift z, hidden part a (in gaps)", ylim=(0, 1.2 * float(highest)))
    style.legend_of_all(figure, axes[0], 2)
    return figure


def _draw(axes: Axes, config: Config, since: int, results: dict[str, np.ndarray]) -> None:
    shift = results[f"{since}: shift"]
    steps = np.arange(1, len(shift) + 1)
    gap, hidden = results[f"{since}: gap"], results[f"{since}: hidden"]
    # Where the batch is used, the shift first jumps and is then hidden in part.
    jump, used = config.contraction * np.concatenate([[0.0], shift[:-1]]) + gap, gap > 0
    where = np.concatenate([[0.0], steps, steps[used] - 0.4])
    order = np.argsort(where)
    where, value = where[order], np.concatenate([[0.0], shift, jump[used]])[order]
    colours = (style.BLUE, style.ORANGE)
    words: Any = {"ha": "center", "va": "top", "fontsize": 9}
    top = axes.get_xaxis_transform()
    for place, (first, last, part) in enumerate(results[f"{since}: blocks"]):
        left, right, colour = first + 0.25, last + 1.25, colours[place % 2]
        if part > 0:
            axes.axvspan(left, right, color=colour, alpha=0.13, linewidth=0)
            axes.text((left + right) / 2, 0.98, f"{part:.2f}", transform=top, **words)
    style.line(axes, where, value, "shift z between the runs")
    axes.bar(
        steps, hidden, width=0.7, color=style.GREEN, label="part a that the step's noise hides"
    )
    bound = float(results[f"{since}: bound"])
    when = "right after the batch was used" if since == 0 else f"{since} steps later"
    axes.set(xlabel="step", title=f"released {when}: μ² = {bound:.2f}")
