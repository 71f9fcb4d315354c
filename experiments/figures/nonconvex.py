"""Deletion without convexity: laws that flow to their Gibbs law, bounds on it, and what it costs.

Exact laws in one and two dimensions against the paper's bound and the tuned ones, the risk against
both risk bounds, and a bounded network at its own certificate; the picture has one dimension.
"""

import math
import time
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import dd_jax as dd
from dd_jax import erm
from dd_jax.cli import style
from dd_jax.constants import TANH_CURVATURE
from dd_jax.errors import CertificateRefused
from dd_jax.guarantees import adaptive, convex, nonconvex, risk
from dd_jax.intervals import mean_over_seeds
from dd_jax.oracles import grid as oracle
from dd_jax.plans import Plan
from experiments.cache import Runner
from experiments.measured import verdict
from experiments.page import Table

TITLE = "Deletion without convexity: the Gibbs law, its bounds and their price"
CAPTION = """\
On a non-convex loss the law of noisy gradient descent flows to the Gibbs law of its database.
Exact Rényi divergences from that law while learning and after a deletion, under the bound of the
non-convex trade-off theorem and its tuned and sharp forms: a certificate needs each bound at the
dotted budget, and the truth is far below. Triangles: two neighbouring runs under the run sum, which
holds for requesters that saw a release."""
NOTE = """\
The loss is -tanh(y⟨a, θ⟩) with λ = β, started from N(0, σ²/λ I). Features lie along the axes, so
that the law is a product over axes and exact in any dimension; the paper's step size is used, at
which every bound holds. The paper's bound is taken with both of its step conditions (erratum E4);
tuned and sharp are the forms of erratum E5, the run sum that of erratum E2.

The network has tanh units with fixed output weights under the same loss. Its steps are those that
plans certify, the times are extrapolated from a short run on this machine, and nothing is stated
where the noise breaks the privacy budget. Where K_L = 1 the start is already within ε_dd and
nothing is learned. One plan is run as certified: compare its objective with that of the model 0,
which is 0."""

FORMS = ("paper", "tuned", "sharp")
PHASES = {"learning": "learn steps", "deletion": "delete steps"}
LOOKS: dict[str, Any] = {
    "paper": {"color": style.ORANGE, "linestyle": style.DASHED},
    "tuned": {"color": style.GREEN, "linestyle": "-."},
    "sharp": {"color": style.BLUE, "linestyle": style.SOLID},
}
# The loss -tanh of a margin of at most 1, and λ = β.
L2 = SMOOTHNESS = TANH_CURVATURE
LIPSCHITZ = BOUND = 1.0


@dataclass(frozen=True)
class Config:
    """Settings of the figure; the quick scale is the default."""

    n: int = 200
    order: float = 2.0
    eps_dp: float = 1.0
    eps_dd: float = 0.5
    noises: tuple[float, ...] = (2.0, 4.0)  # σ² in one dimension, in two, …
    snapshots: int = 16
    risk_noises: tuple[float, float] = (0.05, 8.0)
    points: int = 20
    hidden: int = 2
    network_n: int = 100
    network_noises: tuple[float, float] = (0.3, 8.0)
    network_noise: float = 1.0
    network_seeds: int = 32
    seed: int = 0


FULL = Config(noises=(1.5, 2.0), snapshots=40, points=80, network_noise=0.5)


def compute(config: Config, runner: Runner) -> dict[str, np.ndarray]:
    """ "d = …: …" divergences with their bounds, risks over σ², and the network's."""
    results = {}
    for dim in range(1, len(config.noises) + 1):
        runner.say(f"exact laws, d = {dim}")
        found = _divergences(config, dim)
        results |= {f"d = {dim}: {name}": values for name, values in found.items()}
    return results | _risks(config) | _network(config, runner)


# --- exact laws, at the tiny steps of their certificates ------------------------------------------


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

    def excess_risk(self, law: oracle.Density) -> float:
        """E[ℒ] - min ℒ, the minimum over the grid."""
        return oracle.expectation(self.objective, law) - self.objective(law.grid.models).min()


def make_axis(n: int, dim: int, place: int) -> Axis:
    """Every dim-th record, from row `place` on, with margins spread over [0.2, 1]."""
    margins = np.zeros(n)
    margins[place::dim] = np.linspace(1.0, 0.2, len(margins[place::dim]))
    return Axis(margins)


def flow_grid(step_size: float, noise_variance: float) -> oracle.Grid:
    """Wide enough for every law of a run, fine enough for its steps.

    It reaches 6.5 standard deviations of the start beyond any drift. With a spacing of 0.8 standard
    deviations of one step's noise the trapezoid rule errs by exp(-2π²/0.8²), as the laws here are
    much wider than one step.
    """
    reach = 6.5 * np.sqrt(noise_variance / L2) + LIPSCHITZ / L2
    spacing = 0.8 * np.sqrt(2 * step_size * noise_variance)
    return oracle.make_grid(-reach, reach, int(np.ceil(2 * reach / spacing)) + 1)


class Flow:
    """The law after any number of steps on one database, along one axis.

    Certified step sizes need 10⁵ steps and more: powers of one step's kernel by repeated squaring
    give the law after any number of them.
    """

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
    """Set tiny values to 0: subnormal numbers would slow every product."""
    kernel[kernel < 1e-290] = 0.0
    return kernel


class CertifiedRun(NamedTuple):
    """A run at the paper's step size, at which every bound holds.

    Attributes:
        problem, eps_dd: what the steps were chosen for.
        noise_variance: σ². step_size: η, the largest that the paper allows.
        learn_steps, delete_steps: the paper's.
    """

    problem: nonconvex.Bounded
    eps_dd: float
    noise_variance: float
    step_size: float
    learn_steps: int
    delete_steps: int

    def bound(self, form: str, learn_steps, delete_steps, request: int):
        """Bound on R_q to the Gibbs law after learning (request 0) or one deletion (1)."""
        run = (self.noise_variance, self.step_size, learn_steps, delete_steps)
        return nonconvex.PROOFS[form].deletion(self.problem, *run, request=request)

    def steps(self, form: str) -> tuple[float, float]:
        """(K_L, K_U) that a form needs for its budget at this step size."""
        run = (self.noise_variance, self.eps_dd, self.step_size)
        found = nonconvex.PROOFS[form].settings(self.problem, *run)
        return max(1.0, found.learn_steps), max(1.0, found.delete_steps)


def certified_run(n: int, dim: int, order: float, eps_dd: float, noise: float) -> CertifiedRun:
    """The paper's step size and steps for a deletion budget."""
    problem = nonconvex.Bounded(order, LIPSCHITZ, L2, SMOOTHNESS, BOUND, n, dim)
    found = nonconvex.settings_nonconvex_paper(problem, noise, eps_dd)
    steps = int(found.learn_steps), int(found.delete_steps)
    return CertifiedRun(problem, eps_dd, noise, found.step_size, *steps)


def divergences(run: CertifiedRun, snapshots: int) -> dict[str, np.ndarray]:
    """Exact R_q along learning and one deletion of row 0, summed over the axes.

    Returns:
        "learn steps" and "delete steps", and for each phase R_q from the Gibbs law of its database
        and R_q between runs whose row 0 differs; "risk" of the learned and the deleted model.
    """
    learn, delete = _spread(run.learn_steps, snapshots), _spread(run.delete_steps, snapshots)
    n, dim = int(run.problem.n), int(run.problem.dim)
    axes = [make_axis(n, dim, place) for place in range(dim)]
    parts = [along_axis(run, axis, j == 0, learn, delete) for j, axis in enumerate(axes)]
    exact = {name: np.sum([part[name] for part in parts], axis=0) for name in parts[0]}
    return {"learn steps": learn, "delete steps": delete} | exact


def along_axis(
    run: CertifiedRun, axis: Axis, holds_target: bool, learn: np.ndarray, delete: np.ndarray
) -> dict[str, np.ndarray]:
    """Both phases along one axis, which may hold the record that is deleted."""
    numbers = (run.step_size, run.noise_variance)
    grid = flow_grid(*numbers)
    start = oracle.gaussian_density(grid, 0.0, run.noise_variance / L2)
    worlds = [axis, axis.with_target(-1.0)] if holds_target else [axis]
    edited = axis.with_target(0.0) if holds_target else axis
    most = max(run.learn_steps, run.delete_steps)
    flows = [Flow(world, *numbers, grid, most) for world in worlds]
    gibbs, gibbs_edited = (
        oracle.gibbs_density(grid, world.objective, run.noise_variance) for world in (axis, edited)
    )
    learned = [[flow.after(start, int(k)) for k in learn] for flow in flows]
    after = Flow(edited, *numbers, grid, run.delete_steps) if holds_target else flows[0]
    deleted = [[after.after(laws[-1], int(k)) for k in delete] for laws in learned]

    def apart(first: list[oracle.Density], others) -> np.ndarray:
        pairs = zip(first, others, strict=True)
        return np.array([oracle.renyi(run.problem.order, p, other) for p, other in pairs])

    risks = (axis.excess_risk(learned[0][-1]), edited.excess_risk(deleted[0][-1]))
    return {
        "learning": apart(learned[0], [gibbs] * len(learn)),
        "learning, neighbours": apart(learned[0], learned[-1]),
        "deletion": apart(deleted[0], [gibbs_edited] * len(delete)),
        "deletion, neighbours": apart(deleted[0], deleted[-1]),
        "risk": np.array(risks),
    }


def _spread(most: int, count: int) -> np.ndarray:
    """Whole numbers from 1 to `most`, evenly on a logarithmic axis."""
    return np.unique(np.round(np.geomspace(1, most, count)).astype(int))


def _divergences(config: Config, dim: int) -> dict[str, np.ndarray]:
    """Exact R_q and every bound along learning and one deletion."""
    run = certified_run(config.n, dim, config.order, config.eps_dd, config.noises[dim - 1])
    found = divergences(run, config.snapshots)
    learn, delete = found["learn steps"], found["delete steps"]
    for form in FORMS:
        found[f"learning, {form}"] = run.bound(form, learn, 1, 0)
        found[f"deletion, {form}"] = run.bound(form, run.learn_steps, delete, 1)
        found[f"steps, {form}"] = np.array(run.steps(form))
    numbers = (run.noise_variance, config.n, run.step_size)
    descent = convex.Descent(config.order, LIPSCHITZ, L2, SMOOTHNESS, *numbers)
    found["learning, run sum"] = convex.privacy_lipschitz(descent, learn)
    steps = (run.learn_steps, run.delete_steps)
    found["deletion, run sum"] = np.array(adaptive.deletion_run_sum(descent, *steps, 1))
    sharp = run.bound("sharp", run.learn_steps, 1, 0)
    mended = risk.excess_risk_nonconvex(run.problem, run.noise_variance, run.step_size, sharp)
    paper = risk.excess_risk_nonconvex_paper(run.problem, run.noise_variance, sharp)
    found["risk bound"] = np.array([mended, paper])
    return found


def _risks(config: Config) -> dict[str, np.ndarray]:
    """Excess risk of the Gibbs law in one dimension over σ², exact and by both bounds."""
    noises = np.geomspace(*config.risk_noises, config.points)
    axis = make_axis(config.n, 1, 0)
    problem = nonconvex.Bounded(config.order, LIPSCHITZ, L2, SMOOTHNESS, BOUND, config.n, 1)
    exact = []
    for noise in noises:
        reach = 8 * np.sqrt(noise / L2) + LIPSCHITZ / L2
        grid = oracle.make_grid(-reach, reach, 2_001)
        exact.append(axis.excess_risk(oracle.gibbs_density(grid, axis.objective, noise)))
    return {
        "risk: noise": noises,
        "risk: exact": np.array(exact),
        "risk: E3": risk.gibbs_excess_risk(problem, noises),
        "risk: paper": risk.gibbs_excess_risk_paper(problem, noises),
        "risk: model 0": -axis.objective(np.linspace(-2, 2, 4_001)).min()[None],
    }


# --- a bounded network: what its certificate costs, and what is left of learning at that price ----

FEATURES, DELETED_ROW = 2, 0
PRICED = ("paper", "sharp")
COSTS = ("learn steps", "delete steps", "step size", "risk bound")
TIMED_STEPS = 2_000


def network(hidden: int) -> dd.Problem:
    """The network with λ = β."""
    loss = dd.losses.bounded_network(hidden=hidden)
    assert loss.constants.smoothness is not None
    return dd.Problem(loss, loss.constants.smoothness)


def network_database(n: int) -> dd.Labelled:
    """Unit-norm features on a circle, labelled by the side of a line."""
    angles = 2.4 * jnp.arange(n, dtype=jnp.float32)
    features = jnp.stack([jnp.cos(angles), jnp.sin(angles)], axis=1)
    return dd.Labelled(features, jnp.where(features[:, 0] + features[:, 1] > 0, 1.0, -1.0))


def network_plan(config: Config, form: str, noise: float) -> Plan | None:
    """The plan at this noise, None where it breaks the privacy budget."""
    try:
        return dd.plan_nonconvex(
            network(config.hidden),
            n=config.network_n,
            dim=config.hidden * FEATURES,
            order=config.order,
            eps_dp=config.eps_dp,
            eps_dd=config.eps_dd,
            form=form,  # pyright: ignore[reportArgumentType]
            noise_variance=noise,
        )
    except CertificateRefused:
        return None


def _costs(plan: Plan | None) -> tuple:
    """The plan's `COSTS`; NaN if there is no plan."""
    if plan is None:
        return (math.nan,) * len(COSTS)
    return plan.learn_steps, plan.delete_steps, plan.step_size, plan.certificate().risk_bound


def _network(config: Config, runner: Runner) -> dict[str, np.ndarray]:
    """Certified steps over σ², and the network run at one noise with the sharp plan."""
    problem, n = network(config.hidden), config.network_n
    noises = np.geomspace(*config.network_noises, config.points)
    time_key, best_key, run_key = jax.random.split(jax.random.key(config.seed), 3)
    results = {"network: noise": noises}
    for form in PRICED:
        asked = (*noises.tolist(), config.network_noise)
        costs = [_costs(network_plan(config, form, noise)) for noise in asked]
        *over_noise, run = np.array(costs, np.float64)
        columns = zip(COSTS, np.transpose(over_noise), strict=True)
        results |= {f"network, {form}: {name}": values for name, values in columns}
        results[f"network, {form}: run"] = run
    runner.say("network: time of a step")
    results["network: seconds per step"] = np.array(_seconds_per_step(time_key, problem, n))
    results["network: best"] = np.array(_best_objective(best_key, problem, n))
    plan = network_plan(config, "sharp", config.network_noise)
    if plan is None:
        return results
    found = _run_network(runner, run_key, problem, plan, config.network_seeds)
    return results | {f"network: {name}": np.asarray(values) for name, values in found.items()}


def _run_network(
    runner: Runner, key: Array, problem: dd.Problem, plan: Plan, seeds: int
) -> dict[str, np.ndarray]:
    """Objective, loss without regulariser and accuracy of learned and deleted models, (seeds, 2).

    The deletion blanks one row; each model is judged on the database that it was trained on.
    """
    database = network_database(plan.n)
    edit = dd.deletion(problem.loss, database, [DELETED_ROW])
    mechanism = dd.noisy_gd.mechanism(problem, plan)

    def judge(model: PyTree, rows: dd.Labelled):
        losses = jax.vmap(problem.loss.value, in_axes=(None, 0))(model, rows)
        accuracy = jnp.mean((losses < 0).astype(jnp.float32))
        return erm.objective(problem, model, rows), jnp.mean(losses), accuracy

    def interaction(key, database, edit):
        keys = jax.random.split(key)
        edited = dd.apply_edit(database, edit)
        learned = mechanism.learn(keys[0], database)
        deleted = mechanism.delete(keys[1], database, edit, edited, learned)
        judged = (judge(learned, database), judge(deleted, edited))
        return jax.tree.map(lambda *values: jnp.stack(values), *judged)

    found = runner.over_seeds("network", interaction, key, seeds, database, edit)
    return dict(zip(("objective", "loss", "accuracy"), found, strict=True))


def _best_objective(key: Array, problem: dd.Problem, n: int, starts=8, steps=2_000) -> float:
    """The least ℒ that noiseless descent finds from several starts."""
    database = network_database(n)
    template = problem.loss.template(database)
    numbers = {"step_size": 0.5 / problem.l2, "noise_variance": 0.0, "num_steps": steps}

    def descend(key):
        start = dd.noisy_gd.standard_normal_like(key, template)
        return erm.objective(
            problem, dd.noisy_gd.run(key, start, database, problem, **numbers), database
        )

    return float(jnp.min(jax.jit(jax.vmap(descend))(jax.random.split(key, starts))))


def _seconds_per_step(key: Array, problem: dd.Problem, n: int) -> float:
    """Wall time of one step of one model on this machine, from a short run that is thrown away."""
    database = network_database(n)
    template = problem.loss.template(database)

    @jax.jit
    def short(key):
        numbers = {"step_size": 1e-4, "noise_variance": 1.0, "num_steps": TIMED_STEPS}
        return dd.noisy_gd.run(key, template, database, problem, **numbers)

    keys = jax.random.split(key)
    jax.block_until_ready(short(keys[0]))
    begin = time.perf_counter()
    jax.block_until_ready(short(keys[1]))
    return (time.perf_counter() - begin) / TIMED_STEPS


# --- tables ---------------------------------------------------------------------------------------


def tables(config: Config, results: dict[str, np.ndarray]) -> list[Table]:
    """Exact values beside bounds, the steps and the risk, and the network's price."""
    return [
        _divergence_table(config, results),
        _steps_table(config, results),
        _risk_table(config, results),
        _price_table(results),
        _run_table(config, results),
    ]


def _divergence_table(config: Config, results: dict[str, np.ndarray]) -> Table:
    """R_q to the Gibbs law with its bounds, between neighbours with the run sum.

    At the first and last step shown of each phase; verdicts are over all steps.
    """
    rows = []
    for dim, noise in enumerate(config.noises, start=1):
        for phase, clock in PHASES.items():
            found = {
                name: results[f"d = {dim}: {phase}{end}"]
                for name, end in (("exact", ""), ("between", ", neighbours"), ("sum", ", run sum"))
            } | {form: results[f"d = {dim}: {phase}, {form}"] for form in FORMS}
            steps = results[f"d = {dim}: {clock}"]
            table = {name: np.broadcast_to(values, steps.shape) for name, values in found.items()}
            held = [table["exact"] <= table[form] for form in FORMS]
            held.append(table["between"] <= table["sum"])
            for place in (0, -1):
                cells = (table[name][place] for name in ("exact", *FORMS, "between", "sum"))
                rows.append([dim, noise, phase, steps[place], *cells, verdict(not np.all(held))])
    bounds = (*FORMS, "neighbours", "run sum", "verdict")
    columns = ("d", "σ²", "phase", "steps", "to the Gibbs law", *bounds)
    return Table(f"Exact Rényi divergences of order {config.order:g} and bounds", columns, rows)


def _steps_table(config: Config, results: dict[str, np.ndarray]) -> Table:
    rows = [
        (dim, form, *results[f"d = {dim}: steps, {form}"])
        for dim in range(1, len(config.noises) + 1)
        for form in FORMS
    ]
    title = f"Steps for ε_dd = {config.eps_dd:g}, at the paper's step size"
    return Table(title, ("d", "form", "K_L", "K_U"), rows)


def _risk_table(config: Config, results: dict[str, np.ndarray]) -> Table:
    exact, mended, stated = (results[f"risk: {name}"] for name in ("exact", "E3", "paper"))
    zero, noises = float(results["risk: model 0"][0]), results["risk: noise"]
    useful = [noises[values < zero] for values in (exact, mended, stated)]
    rows: list[tuple] = [
        ("least of the Gibbs law over the noises shown", exact.min(), mended.min(), stated.min()),
        (
            f"largest σ² shown with less than the model 0's {zero:.2g}",
            *(below.max() if below.size else None for below in useful),
        ),
    ]
    held = np.all((exact <= mended) & (exact <= stated))
    rows = [(*row, verdict(not held)) for row in rows]
    for dim in range(1, len(config.noises) + 1):
        learned, bounds = results[f"d = {dim}: risk"][0], results[f"d = {dim}: risk bound"]
        rows.append(
            (f"learned model, d = {dim}", learned, *bounds, verdict(np.any(learned > bounds)))
        )
    return Table("Excess risk", ("what", "exact", "E3", "paper", "verdict"), rows)


def _price_table(results: dict[str, np.ndarray]) -> Table:
    """Steps, time and risk bound over the noise."""
    seconds = float(results["network: seconds per step"])
    groups = []
    for form in PRICED:
        costs = {name: results[f"network, {form}: {name}"] for name in COSTS}
        spent = (costs["learn steps"] + costs["delete steps"]) * seconds
        first = {"form": form, "σ²": results["network: noise"]}
        groups.append(first | costs | {"seconds for one model": spent})
    title = "The network's certificate; empty where it breaks the privacy budget"
    return Table.from_columns(title, *groups)


def _run_table(config: Config, results: dict[str, np.ndarray]) -> Table:
    """What the certified run of the network reached, against the model 0, whose objective is 0."""
    rows = []
    if "network: objective" in results:
        mean, low, high = mean_over_seeds(results["network: objective"][:, 0], 0.95)
        worse, better = "worse than the model 0", "better than the model 0"
        words = worse if low > 0 else better if high < 0 else "not told from the model 0"
        accuracy, best = results["network: accuracy"].mean(axis=0), results["network: best"]
        steps = results["network, sharp: run"][:2]
        rows = [(config.network_noise, *steps, mean, low, high, best, *accuracy, words)]
    objective = ("objective learned", "95% low", "95% high", "best found")
    accuracy = ("accuracy learned", "after the deletion", "verdict")
    return Table(
        f"The network run as certified, {config.network_seeds} seeds",
        ("σ²", "K_L", "K_U", *objective, *accuracy),
        rows,
    )


# --- the picture ----------------------------------------------------------------------------------


def plot(config: Config, results: dict[str, np.ndarray]) -> Figure:
    """The divergence while learning and after a deletion, in one dimension."""
    figure, panels = style.panels(1, 2, height=4.4)
    for axis, phase in zip(panels, PHASES, strict=True):
        _draw_phase(axis, config, results, phase)
    panels[0].set_ylabel(f"Rényi divergence of order {config.order:g}")
    style.legend_of_all(figure, panels[0], 3)
    return figure


def _draw_phase(axis: Axes, config: Config, results: dict[str, np.ndarray], phase: str) -> None:
    """R_q to the Gibbs law and between neighbours, in one dimension, along one phase."""
    steps = results[f"d = 1: {PHASES[phase]}"]
    for form in FORMS:
        values = results[f"d = 1: {phase}, {form}"]
        axis.plot(steps, values, linewidth=2, label=f"{form} bound", **LOOKS[form])
    look: Any = {"color": style.BLACK, "marker": "o", "linestyle": "", "markersize": 4}
    axis.plot(steps, results[f"d = 1: {phase}"], label="exact, to the Gibbs law", **look)
    summed = np.broadcast_to(results[f"d = 1: {phase}, run sum"], steps.shape)
    style.line(axis, steps, summed, "run sum bound", style.RED, style.DOTTED, linewidth=2)
    between = results[f"d = 1: {phase}, neighbours"]
    look |= {"color": style.RED, "marker": "v"}
    axis.plot(steps, between, label="exact, between neighbours", **look)
    axis.axhline(config.eps_dd, color=style.BLACK, linewidth=1, linestyle=style.DOTTED)
    budget = rf"$\varepsilon_{{dd}} = {config.eps_dd:g}$"
    axis.annotate(
        budget,
        (0, config.eps_dd),
        (4, 3 if phase == "learning" else -12),
        xycoords=axis.get_yaxis_transform(),
        textcoords="offset points",
        fontsize=9,
    )
    axis.set_title({"learning": "while learning", "deletion": "after a deletion"}[phase])
    axis.set(xscale="log", yscale="log", xlabel="steps", ylim=(1e-7, 10))
