"""Deletion without convexity: laws that flow to their Gibbs law, bounds on it, and what it costs.

Exact laws in one and two dimensions against the paper's bound and the tuned ones, the risk against
both risk bounds, and a bounded network at its own certificate.
"""

from dataclasses import dataclass

import jax
import numpy as np
from matplotlib.figure import Figure

from dd_jax.guarantees import adaptive, convex, risk
from dd_jax.oracles import grid as oracle
from experiments.cache import Runner
from experiments.nonconvex import drawing as nonconvex_plot
from experiments.nonconvex import gibbs_flow, network_cost, plane_flow
from experiments.nonconvex import words as nonconvex_words
from experiments.nonconvex.drawing import FORMS
from experiments.page import Table

TITLE = "Deletion without convexity: the Gibbs law, its bounds and their price"
THINNED = 5


@dataclass(frozen=True)
class Config:
    """Settings of the figure; the quick scale is the default."""

    n: int = 200
    order: float = 2.0
    eps_dp: float = 1.0
    eps_dd: float = 0.5
    noises: tuple[float, ...] = (2.0, 4.0)  # σ² in one dimension, in two, …
    snapshots: int = 16
    plane_steps: tuple[int, ...] = (0, 4, 16, 64)
    risk_noises: tuple[float, float] = (0.05, 8.0)
    points: int = 20
    hidden: int = 2
    network_n: int = 100
    network_noises: tuple[float, float] = (0.3, 8.0)
    network_noise: float = 1.0
    network_seeds: int = 32
    seed: int = 0

    @property
    def budget(self) -> network_cost.Budget:
        """What the network's certificate has to meet."""
        return network_cost.Budget(self.order, self.eps_dp, self.eps_dd)

    def setting(self, dim: int) -> gibbs_flow.Setting:
        """The run in this many dimensions, at the paper's step size."""
        noise = self.noises[dim - 1]
        return gibbs_flow.make_setting(self.n, dim, self.order, self.eps_dd, noise)


FULL = Config(
    noises=(1.5, 2.0), snapshots=40, points=80, plane_steps=(0, 4, 16, 256), network_noise=0.5
)


def compute(config: Config, runner: Runner) -> dict[str, np.ndarray]:
    """Densities, "d = …: …" divergences with their bounds, risks over σ², and the network's."""
    results = {}
    for dim in range(1, len(config.noises) + 1):
        runner.say(f"exact laws, d = {dim}")
        found = _divergences(config, dim)
        results |= {f"d = {dim}: {name}": values for name, values in found.items()}
    runner.say("a picture in the plane")
    plane = plane_flow.snapshots(config.plane_steps)
    results |= {f"plane: {name}": values for name, values in plane._asdict().items()}
    return results | _risks(config) | _network(config, runner)


def _divergences(config: Config, dim: int) -> dict[str, np.ndarray]:
    """Exact R_q and every bound along learning and one deletion."""
    setting = config.setting(dim)
    found = gibbs_flow.divergences(setting, config.snapshots)
    for name in ("models", "laws", "Gibbs"):
        # A curve needs fewer points than the law; only the line is drawn.
        law = found.pop(name)[..., ::THINNED]
        found |= {name: law} if dim == 1 else {}
    learn, delete = found["learn steps"], found["delete steps"]
    for form in FORMS:
        found[f"learning, {form}"] = setting.bound(form, learn, 1, 0)
        found[f"deletion, {form}"] = setting.bound(form, setting.learn_steps, delete, 1)
        found[f"steps, {form}"] = np.array(setting.steps(form))
    loss = (gibbs_flow.LIPSCHITZ, gibbs_flow.L2, gibbs_flow.SMOOTHNESS)
    numbers = (setting.noise_variance, setting.n, setting.step_size)
    run = convex.Descent(config.order, *loss, *numbers)
    found["learning, run sum"] = convex.privacy_lipschitz(run, learn)
    steps = (setting.learn_steps, setting.delete_steps)
    found["deletion, run sum"] = np.array(adaptive.deletion_run_sum(run, *steps, 1))
    constants = (gibbs_flow.LIPSCHITZ, gibbs_flow.L2, gibbs_flow.SMOOTHNESS, gibbs_flow.BOUND)
    sizes = (*constants, setting.noise_variance, dim)
    sharp = setting.bound("sharp", setting.learn_steps, 1, 0)
    found["risk bound"] = np.array(
        [
            risk.excess_risk_nonconvex(run, gibbs_flow.BOUND, dim, sharp),
            risk.excess_risk_nonconvex_paper(*sizes, sharp),
        ]
    )
    return found


def _risks(config: Config) -> dict[str, np.ndarray]:
    """Excess risk of the Gibbs law in one dimension over σ², exact and by both bounds."""
    noises = np.geomspace(*config.risk_noises, config.points)
    axis = gibbs_flow.make_axis(config.n, 1, 0)
    constants = (gibbs_flow.L2, gibbs_flow.SMOOTHNESS, gibbs_flow.BOUND)
    exact = []
    for noise in noises:
        reach = 8 * np.sqrt(noise / gibbs_flow.L2) + gibbs_flow.LIPSCHITZ / gibbs_flow.L2
        grid = oracle.make_grid(-reach, reach, 2_001)
        exact.append(
            gibbs_flow.excess_risk(axis, oracle.gibbs_density(grid, axis.objective, noise))
        )
    models = np.linspace(-2, 2, 4_001)
    return {
        "risk: noise": noises,
        "risk: exact": np.array(exact),
        "risk: E3": risk.gibbs_excess_risk(gibbs_flow.LIPSCHITZ, *constants, noises, 1),
        "risk: paper": risk.gibbs_excess_risk_paper(*constants, noises, 1),
        "risk: model 0": -axis.objective(models).min()[None],
    }


def _network(config: Config, runner: Runner) -> dict[str, np.ndarray]:
    """Certified steps over σ², and the network run at one noise with the sharp plan."""
    problem = network_cost.make_problem(config.hidden)
    sizes = (problem, config.network_n, config.hidden, config.budget)
    noises = np.geomspace(*config.network_noises, config.points)
    key = jax.random.key(config.seed)
    keys = jax.random.split(key, 3)
    results = {"network: noise": noises}
    for form, table in network_cost.costs(*sizes, noises).items():
        columns = zip(network_cost.COSTS, table.T, strict=True)
        results |= {f"network, {form}: {name}": values for name, values in columns}
    plans = network_cost.costs(*sizes, np.array([config.network_noise]))
    results |= {f"network, {form}: run": table[0] for form, table in plans.items()}
    runner.say("network: time of a step")
    timed = network_cost.seconds_per_step(keys[0], problem, config.network_n)
    best = network_cost.best_objective(keys[1], problem, config.network_n)
    results |= {"network: seconds per step": np.array(timed), "network: best": np.array(best)}
    plan = network_cost.make_plan(*sizes, "sharp", config.network_noise)
    if plan is None:
        return results
    run = network_cost.run(runner, keys[2], problem, plan, config.network_seeds)
    return results | {f"network: {name}": np.asarray(values) for name, values in run.items()}


def plot(config: Config, results: dict[str, np.ndarray]) -> Figure:
    """Six panels: two flows, two phases of R_q, risk, and the network's cost."""
    return nonconvex_plot.draw(config, results)


def caption(config: Config, results: dict[str, np.ndarray]) -> str:
    """What to see, with the numbers of this run."""
    return nonconvex_words.caption(config, results)


def tables(config: Config, results: dict[str, np.ndarray]) -> list[Table]:
    """Exact values beside bounds, and the network's price over the noise."""
    return nonconvex_words.tables(config, results)
