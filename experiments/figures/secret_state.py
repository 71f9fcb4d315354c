"""A secret state: releases that are each close to retraining together leak what was deleted.

Left: the secret count of the theorem that unlearning is not forgetting (`thm:unlrn_vs_forget`), as
stated and repaired (erratum E6). Right: Noisy-GD that publishes noisy models and goes on from the
model without the noise, beside Noisy-GD itself, which keeps only what it released.
"""

from dataclasses import dataclass

import jax
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dd_jax import attacks, noisy_gd
from dd_jax.attacks.against_noisy_gd import shadow_attack
from dd_jax.attacks.secret_count import AS_STATED, REPAIRED, ROUNDING
from dd_jax.audit import controls, mutants
from dd_jax.cli import style
from dd_jax.ensemble import Pair
from dd_jax.guarantees import inference, renyi
from dd_jax.intervals import simultaneous
from dd_jax.oracles import linear
from experiments import measured
from experiments.cache import Runner
from experiments.page import Table

TITLE = "A secret state leaks over later releases"
CAPTION = (
    "Left: a curator that hides a tally of deleted records. Every release alone is close to "
    "retraining, yet together they reveal the deleted record, beyond what one release allows "
    "(the theorem that unlearning is not forgetting, as repaired in erratum E6); as stated the "
    "advantage stops below that, however many are seen. Right: models published with noise while "
    "training goes on without it violate their certificate; Noisy-GD, which hides nothing, stays "
    "within it (the convex data-deletion theorem)."
)
NOTE = (
    "Marks are measured, with exact intervals that hold all together with the stated confidence; "
    "lines are exact; i is the request that deletes the record. A curator without the tally "
    "releases the same in both worlds, and no test has an advantage. Right: linear loss; the "
    "certificate is for all releases after the deletion together, as later ones are computed from "
    "the first."
)

SECRET, STATELESS = "secret state", "Noisy-GD"
CURATORS = {SECRET: mutants.secret_state, STATELESS: noisy_gd.mechanism}
LOOKS = {
    SECRET: (style.ORANGE, "s", style.DASHED, "hidden model"),
    STATELESS: (style.BLUE, "o", style.SOLID, "nothing hidden"),
}


@dataclass(frozen=True)
class Config:
    """Settings of the figure; the quick scale is the default."""

    epsilon: float = 1.0
    requests: tuple[int, ...] = (1, 3)
    releases: int = 400
    seeds: int = 1_500
    gd_eps_dp: float = 4.0
    gd_seeds: int = 20_000
    confidence: float = 0.999
    seed: int = 0

    @property
    def setting(self) -> controls.ControlSetting:
        """Noisy-GD with the linear loss; the observer sees every release from the deletion on."""
        seen = tuple(range(1, controls.NUM_REQUESTS + 1))
        return controls.ControlSetting(rate=0.1, eps_dp=self.gd_eps_dp, seen=seen)


FULL = Config(requests=(1, 2, 3), releases=10_000, seeds=5_000, gd_seeds=100_000)


def compute(config: Config, runner: Runner) -> dict[str, np.ndarray]:
    """Advantages along the number of releases, measured and exact, of both kinds of curators."""
    each = simultaneous(config.confidence, len(config.requests) + len(CURATORS))
    count_key, gd_key = jax.random.split(jax.random.key(config.seed))
    results = {}
    for request in config.requests:
        runner.say(f"secret count, deleted at request {request}: {config.releases:,} releases")
        found = attacks.find("secret-count").run(
            jax.random.fold_in(count_key, request),
            step=request,
            releases=config.releases,
            epsilon=config.epsilon,
            seeds=config.seeds,
            confidence=each,
        )
        for variant in (AS_STATED, REPAIRED):
            rows = [row for row in found.rows if row["variant"] == variant]
            results |= measured.from_rows(_count(variant, request), rows)
            results["releases seen"] = np.array([row["releases"] for row in rows])
        results["one release allows"] = np.array(found.bound)
        limit = found.theory["as_stated_any_number_of_releases_at_most"]
        results[f"{_count(AS_STATED, request)} limit"] = np.array(limit)
    for place, (name, make) in enumerate(CURATORS.items()):
        runner.say(f"{name}: {config.gd_seeds:,} seeds in each of two worlds")
        key = jax.random.fold_in(gd_key, place)
        pair = config.setting.sample(key, config.gd_seeds, make)
        estimates = [
            shadow_attack(_first(pair, m), simultaneous(each, controls.NUM_REQUESTS))
            for m in config.setting.seen
        ]
        results |= measured.columns(name, estimates) | {f"{name} exact": exact(config, name)}
    eps = config.setting.certificate().eps_dd_request
    mu = renyi.gdp_from_linear_renyi(controls.ORDER, eps)
    return results | {"certified": np.array(inference.advantage_gdp(mu))}


def _first(pair: Pair, releases: int) -> Pair:
    """What an observer of the first releases after the deletion holds."""
    return Pair(*(arm[:, :releases] for arm in pair))


def _count(variant: str, request: int) -> str:
    return f"count {variant} i={request}"


def exact(config: Config, name: str) -> np.ndarray:
    """The best test's advantage after 1, 2, … releases: 2Φ(μ/2) - 1.

    Noisy-GD is a chain that left the record behind at φ_1, so all releases tell what φ_1 tells. A
    hidden model that decays by c^K_U between releases of fresh noise v has μ² = Σ_j Δ_j²/v.
    """
    plan, seen = config.setting.plan, np.array(config.setting.seen)
    spread = linear.variance(
        plan.problem.l2,
        plan.noise_variance,
        plan.step_size,
        plan.learn_steps + plan.delete_steps,
    )
    shift = linear.mean_shift(
        controls.CLIP_NORM,
        plan.problem.l2,
        plan.n,
        plan.step_size,
        plan.learn_steps,
        plan.delete_steps * seen,
    )
    squares = np.cumsum(shift**2) if name == SECRET else np.full(len(seen), shift[0] ** 2)
    return np.asarray(renyi.advantage_from_gdp(np.sqrt(squares / spread)))


# --- what is shown --------------------------------------------------------------------------------


def plot(config: Config, results: dict[str, np.ndarray]) -> Figure:
    """Advantage over the number of releases seen after the deletion."""
    figure, (left, right) = style.panels(1, 2, height=4.4)
    _draw_counts(left, config, results)
    seen = config.setting.seen
    for name, (colour, marker, dashes, words) in LOOKS.items():
        measured.draw(right, seen, results, name, label=words, colour=colour, marker=marker)
        style.line(right, seen, results[f"{name} exact"], None, colour, dashes)
    style.line(right, None, results["certified"], "certified", dashes=style.DOTTED)
    right.set(ylim=(0, None), title="linear loss")
    left.set_ylabel("advantage of the best test")
    for axis in (left, right):
        axis.set_xlabel("releases seen after the deletion")
        axis.plot([], [], color="0.5", label="exact (marks: measured)")
        style.legend_below(axis)
    return figure


def _draw_counts(axis: Axes, config: Config, results: dict[str, np.ndarray]) -> None:
    """Both variants; a stroke and a mark for each request of the deletion."""
    looks = {REPAIRED: (style.ORANGE, "sD^"), AS_STATED: (style.BLUE, "ovx")}
    strokes = (style.SOLID, style.DASHED, style.DOTTED)
    seen = results["releases seen"]
    for variant, (colour, markers) in looks.items():
        for request, marker, dashes in zip(config.requests, markers, strokes, strict=False):
            name, label = _count(variant, request), f"{variant}, $i = {request}$"
            measured.draw(axis, seen, results, name, label=label, colour=colour, marker=marker)
            style.line(axis, seen, results[f"{name} exact"], None, colour, dashes)
    style.line(axis, None, results["one release allows"], "one release allows", dashes="-.")
    axis.set(xscale="log", ylim=(-0.1, 1.05))
    axis.set_title(rf"secret count, each release within $\varepsilon = {config.epsilon:g}$")
    style.plain_numbers(axis.xaxis)


def tables(config: Config, results: dict[str, np.ndarray]) -> list[Table]:
    """What is told after every number of releases, by each count and each curator."""
    one, together = results["one release allows"], f"confidence {config.confidence:g} in all"
    counts = []
    for variant in (AS_STATED, REPAIRED):
        for request in config.requests:
            name = _count(variant, request)
            exact = results[f"{name} exact"]
            group = {
                "variant": variant,
                "deleted at request": request,
                "releases seen": results["releases seen"],
                **measured.interval(results, name),
                "exact": exact,
                "interval contains it": measured.contains(results, name, exact, ROUNDING),
                "any number of releases: at most": results.get(f"{name} limit"),
                "one release allows": one,
                "shown beyond it": results[f"{name} low"] > one,
            }
            counts.append(group)
    certified, curators = results["certified"], []
    for name, (*_, words) in LOOKS.items():
        group = {
            "curator": words,
            "releases seen": config.setting.seen,
            **measured.interval(results, name),
            "exact": results[f"{name} exact"],
            "certified": certified,
            "verdict": measured.verdicts(results[f"{name} low"] > certified),
        }
        curators.append(group)
    return [
        Table.from_columns(f"Secret count; {config.seeds:,} seeds, {together}", *counts),
        Table.from_columns(
            f"Noisy-GD; {config.gd_seeds:,} seeds in each world, {together}", *curators
        ),
    ]
