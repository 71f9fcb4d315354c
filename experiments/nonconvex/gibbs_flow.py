"""Exact laws of noisy gradient descent on a non-convex loss, at the tiny steps of its certificates.

The loss is -tanh(y⟨a, θ⟩) with features along the axes, so that the law is a product over axes and
one axis at a time is exact in any dimension. Certified step sizes need 10⁵ steps and more: powers
of one step's kernel by repeated squaring give the law after any number of them.
"""

from typing import NamedTuple

import numpy as np

from dd_jax.constants import TANH_CURVATURE
from dd_jax.guarantees import nonconvex
from dd_jax.oracles import grid as oracle

L2 = SMOOTHNESS = TANH_CURVATURE
LIPSCHITZ = BOUND = 1.0
# Spacing in standard deviations of one step's noise: the trapezoid rule errs by exp(-2π²/0.8²),
# as the laws here are much wider than one step.
_FINENESS = 0.8
_TAIL = 6.5  # standard deviations of the start that the grid reaches beyond any drift
_TINY = 1e-290


class Axis(NamedTuple):
    """ℒ along one axis: the mean of -tanh(m_i θ) over all n records, plus λθ²/2.

    Attributes:
        margins: m = y·a of every record, at most 1 in size; 0 for records of other axes.
    """

    margins: np.ndarray

    def objective(self, models: np.ndarray) -> np.ndarray:
        """ℒ at every model."""
        return -np.tanh(np.outer(models, self.margins)).mean(axis=1) + L2 / 2 * models**2

    def gradient(self, models: np.ndarray) -> np.ndarray:
        """ℒ' at every model."""
        slopes = 1 - np.tanh(np.outer(models, self.margins)) ** 2
        return -slopes @ self.margins / len(self.margins) + L2 * models

    def with_target(self, margin: float) -> "Axis":
        """The same with this margin in row 0."""
        return Axis(np.append(margin, self.margins[1:]))


def make_axis(n: int, dim: int, place: int) -> Axis:
    """Every dim-th record, from row `place` on, with margins spread over [0.2, 1]."""
    margins = np.zeros(n)
    margins[place::dim] = np.linspace(1.0, 0.2, len(margins[place::dim]))
    return Axis(margins)


def grid_for(step_size: float, noise_variance: float) -> oracle.Grid:
    """Wide enough for every law of a run, fine enough for its steps."""
    reach = _TAIL * np.sqrt(noise_variance / L2) + LIPSCHITZ / L2
    spacing = _FINENESS * np.sqrt(2 * step_size * noise_variance)
    return oracle.make_grid(-reach, reach, int(np.ceil(2 * reach / spacing)) + 1)


class Flow:
    """The law after any number of steps on one database, along one axis."""

    def __init__(self, axis: Axis, step_size, noise_variance, grid: oracle.Grid, most_steps: int):
        points = grid.axes[0]
        targets = points - step_size * axis.gradient(points)
        deviation = np.sqrt(2 * step_size * noise_variance)
        kernel = np.exp(-0.5 * ((points[None, :] - targets[:, None]) / deviation) ** 2)
        kernel *= grid.cell / (deviation * np.sqrt(2 * np.pi))
        self._powers = [_without_tiny(kernel)]
        while 2 ** len(self._powers) <= most_steps:
            self._powers.append(_without_tiny(self._powers[-1] @ self._powers[-1]))

    def after(self, start: oracle.Density, steps: int) -> oracle.Density:
        """The law after K ≤ most_steps steps: one product for every bit of K."""
        values = start.values
        for place, power in enumerate(self._powers):
            if steps >> place & 1:
                values = values @ power
        return oracle.Density(start.grid, values)


def _without_tiny(kernel: np.ndarray) -> np.ndarray:
    """Subnormal numbers would slow every product."""
    kernel[kernel < _TINY] = 0.0
    return kernel


class Setting(NamedTuple):
    """A run at the paper's step size, at which every bound holds.

    Attributes:
        n, dim, order, eps_dd: what the steps were chosen for.
        noise_variance: σ². step_size: η, the largest that the paper allows.
        learn_steps, delete_steps: the paper's.
    """

    n: int
    dim: int
    order: float
    eps_dd: float
    noise_variance: float
    step_size: float
    learn_steps: int
    delete_steps: int

    def bound(self, form: str, learn_steps, delete_steps, request: int):
        """Bound on R_q to the Gibbs law after learning (request 0) or one deletion (1)."""
        run = (self.noise_variance, self.step_size, learn_steps, delete_steps, request)
        return nonconvex.PROOFS[form].deletion(bounded(self.n, self.dim, self.order), *run)

    def steps(self, form: str) -> tuple[float, float]:
        """(K_L, K_U) that a form needs for its budget at this step size."""
        run = (self.noise_variance, self.eps_dd, self.step_size)
        found = nonconvex.PROOFS[form].settings(bounded(self.n, self.dim, self.order), *run)
        return max(1.0, found.learn_steps), max(1.0, found.delete_steps)


def bounded(n: int, dim: int, order: float) -> nonconvex.Bounded:
    """The problem as the bounds take it."""
    return nonconvex.Bounded(order, LIPSCHITZ, L2, SMOOTHNESS, BOUND, n, dim)


def make_setting(n: int, dim: int, order: float, eps_dd: float, noise_variance: float) -> Setting:
    """The paper's step size and steps for a deletion budget."""
    found = nonconvex.settings_nonconvex_paper(bounded(n, dim, order), noise_variance, eps_dd)
    steps = int(found.learn_steps), int(found.delete_steps)
    return Setting(n, dim, order, eps_dd, noise_variance, found.step_size, *steps)


def divergences(setting: Setting, snapshots: int) -> dict[str, np.ndarray]:
    """Exact R_q along learning and one deletion of row 0, summed over the axes.

    Returns:
        "learn steps" and "delete steps", and for each phase R_q from the Gibbs law of its database
        and R_q between runs whose row 0 differs; "risk" of the learned and the deleted model; along
        the first axis "models", "laws" while learning and the "Gibbs" law that they tend to.
    """
    learn = _spread(setting.learn_steps, snapshots)
    delete = _spread(setting.delete_steps, snapshots)
    parts = [
        _along_axis(setting, make_axis(setting.n, setting.dim, j), j == 0, learn, delete)
        for j in range(setting.dim)
    ]
    exact = {name: np.sum([part[0][name] for part in parts], axis=0) for name in parts[0][0]}
    return {"learn steps": learn, "delete steps": delete} | exact | parts[0][1]


def _along_axis(
    setting: Setting, axis: Axis, holds_target: bool, learn: np.ndarray, delete: np.ndarray
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Both phases along one axis, which may hold the record that is deleted: numbers, and laws."""
    numbers = (setting.step_size, setting.noise_variance)
    grid = grid_for(*numbers)
    start = oracle.gaussian_density(grid, 0.0, setting.noise_variance / L2)
    worlds = [axis, axis.with_target(-1.0)] if holds_target else [axis]
    edited = axis.with_target(0.0) if holds_target else axis
    most = max(setting.learn_steps, setting.delete_steps)
    flows = [Flow(world, *numbers, grid, most) for world in worlds]
    gibbs, gibbs_edited = (
        oracle.gibbs_density(grid, world.objective, setting.noise_variance)
        for world in (axis, edited)
    )
    runs = [[flow.after(start, int(k)) for k in learn] for flow in flows]
    after = Flow(edited, *numbers, grid, setting.delete_steps) if holds_target else flows[0]
    later = [[after.after(run[-1], int(k)) for k in delete] for run in runs]

    def to(first: list[oracle.Density], others) -> np.ndarray:
        pairs = zip(first, others, strict=True)
        return np.array([oracle.renyi(setting.order, p, other) for p, other in pairs])

    found = {
        "learning": to(runs[0], [gibbs] * len(learn)),
        "learning, neighbours": to(runs[0], runs[-1]),
        "deletion": to(later[0], [gibbs_edited] * len(delete)),
        "deletion, neighbours": to(later[0], later[-1]),
        "risk": np.array([excess_risk(axis, runs[0][-1]), excess_risk(edited, later[0][-1])]),
    }
    laws = np.stack([law.values for law in runs[0]])
    return found, {"models": grid.models, "laws": laws, "Gibbs": gibbs.values}


def excess_risk(axis: Axis, law: oracle.Density) -> float:
    """E[ℒ] - min ℒ along one axis, the minimum over the grid."""
    return oracle.expectation(axis.objective, law) - axis.objective(law.grid.models).min()


def _spread(most: int, count: int) -> np.ndarray:
    """Whole numbers from 1 to `most`, evenly on a logarithmic axis."""
    return np.unique(np.round(np.geomspace(1, most, count)).astype(int))
