"""Clipping: the paper's certificate of a clipped convex loss, beaten by samples (erratum E1).

Records with one stiff axis each are clipped at L = 1. If the loss is not a single-index GLM, the
mean clipped field is flat along an axis, nothing contracts there, and no number of deletion steps
forgets a record; a bound that adds up the steps still holds. Its single-index twin is forgotten.
"""

import functools
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import dd_jax as dd
from dd_jax import erm
from dd_jax.attacks import clipping as attack
from dd_jax.attacks.separation import separate
from dd_jax.cli import style
from dd_jax.intervals import simultaneous
from dd_jax.noisy_gd import Schedule, mechanism
from dd_jax.plans import Plan, plan_convex
from dd_jax.requesters import churn
from experiments import measured
from experiments.cache import Runner
from experiments.page import Table

TITLE = "Clipping keeps convexity for GLMs only"
CAPTION = (
    "Top left: the mean clipped gradient along one axis. Convexity needs a slope of at least λ; a "
    "clipped GLM has it, and clipped losses that are not GLMs are flat there (erratum E1, against "
    "the lemma that clipping retains convexity). Top right: nothing contracts along that axis, and "
    "samples prove that a deleted record stays, far beyond the paper's certificate; plan_convex "
    "refuses this problem, and the sum over steps of plan_composition holds. Below: the GLM "
    "forgets as certified."
)
NOTE = (
    "Records with one stiff axis each, clipped at L = 1. Marks are lower bounds on the Rényi "
    "divergence of the two worlds, by an event that one half of the seeds chooses and the other "
    "half judges; all hold together with the stated confidence, and a mark is missing where "
    "nothing is shown. 'To first order' is the truth right after learning."
)

KINDS = {"not a GLM": False, "GLM": True}
FAR, POINTS = 0.3, 61
CHUNK = 4_000


@dataclass(frozen=True)
class Config:
    """Settings of the figure; the quick scale is the default."""

    n: int = 100_000
    order: float = 2.0
    requests: tuple[int, ...] = (0, 1, 2, 4)
    seeds: int = 4_000
    confidence: float = 0.999
    seed: int = 0

    def plan(self) -> Plan:
        """The settings of the convex accuracy theorem, `thm:unlearning_accuracy_convex`."""
        return plan_convex(
            attack.problem(single_index=True),
            n=self.n,
            dim=attack.DIMENSION,
            order=self.order,
            eps_dp=attack.EPS_DP,
            eps_dd=attack.EPS_DD,
            accountant="paper",
        )


FULL = Config(requests=(0, 1, 2, 3, 4, 6, 8), seeds=100_000)


def compute(config: Config, runner: Runner) -> dict[str, np.ndarray]:
    """What samples prove of R_q along the steps after the deletion, and what is certified."""
    plan = config.plan()
    each = simultaneous(config.confidence, len(KINDS) * len(config.requests))
    results = {"steps": plan.delete_steps * np.array(config.requests)}
    for place, (name, single_index) in enumerate(KINDS.items()):
        runner.say(f"{name}: {plan.learn_steps} steps of learning, {config.seeds:,} seeds")
        key = jax.random.fold_in(jax.random.key(config.seed), place)
        present, absent = _releases(key, config, plan, single_index, runner)
        found = [separate(*pair, config.order, each) for pair in zip(present, absent, strict=True)]
        results[f"{name} proved"] = np.array([separation.renyi_low for separation in found])
        results |= {f"{name} {key}": value for key, value in _field(plan, single_index).items()}
    return results | _bounds(config, plan)


def _releases(key, config: Config, plan: Plan, single_index: bool, runner: Runner):
    """Models after each of the requests in both worlds, (requests, seeds, 2) each."""
    form, case = attack.shape(single_index=single_index), attack.problem(single_index=single_index)
    schedule = Schedule.of(plan)
    database, other = attack.database(form, plan.n), attack.alternative(form)
    null = dd.deletion(case.loss, database, [attack.TARGET_ROW]).record
    fn = functools.partial(
        _trial, case=case, schedule=schedule, null=null, requests=config.requests
    )
    arms = []
    for world, arm_key in enumerate(jax.random.split(key)):
        rows = database if world == 0 else dd.apply_edit(database, other)
        name = f"clipping-{'glm' if single_index else 'noglm'}-{world}"
        models = runner.over_seeds(name, fn, arm_key, config.seeds, rows, chunk=CHUNK)
        arms.append(np.moveaxis(models, 1, 0))
    return arms


def _trial(key, records, *, case, schedule, null, requests):
    """Request 1 blanks the target; later ones blank it again and so only add steps."""
    blanks = churn(attack.TARGET_ROW, null)
    _, transcript = dd.interact(
        key, mechanism(case, schedule), blanks, records, num_requests=max(requests)
    )
    return transcript.releases[np.array(requests)]


def _field(plan: Plan, single_index: bool) -> dict[str, np.ndarray]:
    """The regularised mean clipped gradient along the axis of symmetry, e: ⟨e, ∇(t e)⟩."""
    form, case = attack.shape(single_index=single_index), attack.problem(single_index=single_index)
    where = jnp.linspace(-FAR, FAR, POINTS)
    axis = jnp.asarray(form.axis, jnp.float32)
    database = attack.database(form, plan.n)
    along = jax.vmap(lambda t: erm.gradient(case, t * axis, database) @ axis)(where)
    return {"where": np.asarray(where, float), "field": np.asarray(along, float)}


def _bounds(config: Config, plan: Plan) -> dict[str, np.ndarray]:
    """Certificates of the same runs: the paper's, the optimal one, and the sum over steps."""
    summed = replace(
        plan,
        kind="composition",
        accountant="composition",
        problem=attack.problem(single_index=False).constants,
    )

    def along(made: Plan):
        later = [replace(made, delete_steps=m * plan.delete_steps) for m in config.requests if m]
        first = made.certificate()
        return np.array([first.eps_dp_run, *(after.certificate().eps_dd for after in later)])

    return {
        "paper": along(plan),
        "optimal": along(replace(plan, accountant="optimal")),
        "composition": along(summed),
        "linearised": np.array(
            [
                attack.linearised_renyi(plan, config.order, m * plan.delete_steps)
                for m in config.requests
            ]
        ),
        "l2": np.array(attack.problem(single_index=False).l2),
        "refused": np.array(
            bool(attack.refusal(attack.problem(single_index=False), plan.n, config.order))
        ),
    }


# --- what is shown --------------------------------------------------------------------------------


def plot(config: Config, results: dict[str, np.ndarray]) -> Figure:
    """The field along the flat axis, and R_q along the steps for both kinds of losses."""
    figure, (field, skew, twin), place = style.three_panels(height=4.2)
    _draw_field(field, results)
    paper = ("paper", "paper's certificate", style.ORANGE, "-.")
    composition = ("composition", "certified by plan_composition", style.BLACK, style.SOLID)
    first = ("linearised", "to first order", style.BLUE, style.DOTTED)
    optimal = ("optimal", "certified by plan_convex", style.BLACK, style.SOLID)
    top = 2 * max(results["composition"].max(), results["paper"].max())
    for axis, name, lines in (
        (skew, "not a GLM", (composition, first, paper)),
        (twin, "GLM", (paper, optimal)),
    ):
        steps, proved = results["steps"], results[f"{name} proved"]
        for key, *look in lines:
            style.line(axis, steps, results[key], *look)
        shown, label = proved > 0, "proved by samples: at least"
        axis.plot(steps[shown], proved[shown], "^", color=style.BLUE, label=label)
        axis.set(yscale="log", ylim=(1e-6, top), ylabel=f"$R_{{{config.order:g}}}$ of the worlds")
        axis.set_xlabel("steps since the deletion (0: the learned model)")
        axis.set_title(f"clipped, {name}")
    for axis in (field, skew):
        style.legend_below(axis, columns=1)
    style.legend_in(place, twin)
    return figure


def _draw_field(axis: Axes, results: dict[str, np.ndarray]) -> None:
    looks = {"not a GLM": (style.ORANGE, style.DASHED), "GLM": (style.BLUE, style.SOLID)}
    for name, look in looks.items():
        along = results[f"{name} field"]
        style.line(axis, results[f"{name} where"], along, f"clipped, {name}", *look)
    where = results["GLM where"]
    asked = float(results["l2"]) * where
    style.line(axis, where, asked, "λt: needed for convexity", dashes=style.DOTTED)
    axis.set(xlabel="t, model along the axis of symmetry", ylabel="mean clipped gradient, with λt")
    axis.set_title("what pulls the model back")


def tables(config: Config, results: dict[str, np.ndarray]) -> list[Table]:
    """What samples prove against every certificate, and the slopes of the fields."""
    against, slopes = [], []
    for name, certificate, plan in (
        ("not a GLM", "composition", "plan_composition"),
        ("GLM", "optimal", "plan_convex"),
    ):
        proved = results[f"{name} proved"]
        group = {
            "loss": name,
            "steps since the deletion": results["steps"],
            "proved: at least": proved,
            "certified": results[certificate],
            "by": plan,
            "verdict": measured.verdicts(proved > results[certificate]),
            "paper's certificate": results["paper"],
            "verdict on the paper's": measured.verdicts(proved > results["paper"]),
        }
        against.append(group)
        refused = name == "not a GLM" and bool(results["refused"])
        slopes.append((name, float(results["l2"]), _slope(results, name), refused))
    order, together = f"{config.order:g}", f"confidence {config.confidence:g} in all"
    return [
        Table.from_columns(
            f"R_{order} of the two worlds; {config.seeds:,} seeds, {together}", *against
        ),
        Table(
            "The mean clipped gradient along the axis",
            ("loss", "slope that convexity needs", "slope at 0", "plan_convex refuses"),
            slopes,
        ),
    ]


def _slope(results: dict[str, np.ndarray], name: str) -> float:
    """The field's slope at 0, to four digits: float32 gradients have no more."""
    slopes = np.gradient(results[f"{name} field"], results[f"{name} where"])
    return round(float(slopes[POINTS // 2]), 4) + 0.0
