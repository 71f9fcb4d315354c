"""A secret state: releases that are each close to retraining leak together what was deleted.

Left: the secret count of `thm:unlrn_vs_forget`, as stated and repaired (erratum E6). Right:
Noisy-GD that publishes noisy models and goes on from the model without the noise, beside Noisy-GD
itself, which keeps nothing but what it released.
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

TITLE = "A secret state leaks over later releases"

SECRET, STATELESS = "secret state", "Noisy-GD"
CURATORS = {SECRET: mutants.secret_state, STATELESS: noisy_gd.mechanism}


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


def plot(config: Config, results: dict[str, np.ndarray]) -> Figure:
    """Advantage over the number of releases seen after the deletion."""
    figure, (left, right) = style.panels(1, 2, height=4.2)
    _counts(left, config, results)
    seen = np.array(config.setting.seen)
    looks = {
        SECRET: (style.ORANGE, "s", style.DASHED, "hidden model"),
        STATELESS: (style.BLUE, "o", style.SOLID, "Noisy-GD, nothing hidden"),
    }
    for name, (colour, marker, dashes, label) in looks.items():
        measured.draw(right, seen, results, name, label=label, colour=colour, marker=marker)
        line = results[f"{name} exact"]
        right.plot(seen, line, color=colour, linestyle=dashes, label=f"{label}: exact")
    certified = float(results["certified"])
    right.axhline(
        certified,
        color=style.BLACK,
        linestyle=style.DOTTED,
        label="certified, all releases together",
    )
    right.set(xlabel="releases seen after the deletion", ylabel="advantage", ylim=(0, None))
    right.set_title("linear loss, every release alone as certified", fontsize=10)
    style.legend_below(right)
    return figure


def _counts(axis: Axes, config: Config, results: dict[str, np.ndarray]) -> None:
    looks = {REPAIRED: (style.ORANGE, "sD^"), AS_STATED: (style.BLUE, "ovx")}
    for variant, (colour, markers) in looks.items():
        for request, marker, dashes in zip(
            config.requests, markers, (style.SOLID, style.DASHED, style.DOTTED), strict=False
        ):
            name, seen = _count(variant, request), results["releases seen"]
            label = f"{variant}, i = {request}"
            measured.draw(axis, seen, results, name, label=label, colour=colour, marker=marker)
            axis.plot(seen, results[f"{name} exact"], color=colour, linestyle=dashes)
    one = float(results["one release allows"])
    axis.axhline(one, color=style.BLACK, linestyle="-.", label="most that one release allows")
    axis.set(
        xscale="log",
        xlabel="releases seen after the deletion",
        ylabel="advantage of the best test",
        ylim=(-0.1, 1.05),
    )
    title = f"secret count, every release within ε = {config.epsilon:g} of retraining"
    axis.set_title(title, fontsize=10)
    style.legend_below(axis)


def caption(config: Config, results: dict[str, np.ndarray]) -> str:
    """What to see, with the numbers of this run."""
    first = config.requests[0]
    repaired, stated = (_count(variant, first) for variant in (REPAIRED, AS_STATED))
    low, last = results[f"{repaired} low"][-1], results["releases seen"][-1]
    one = float(results["one release allows"])
    limit = float(results[f"{stated} limit"])
    certified = float(results["certified"])
    secret, honest = results[f"{SECRET} low"], results[f"{STATELESS} low"]
    held = np.all(honest <= certified)
    where = np.flatnonzero(secret > certified)
    broken = (
        f"beyond what is certified from {where[0] + 1} releases on"
        if len(where)
        else "not shown to be beyond what is certified with these seeds"
    )
    names = [_count(variant, i) for variant in (AS_STATED, REPAIRED) for i in config.requests]
    misses = sum(_misses(results, name) for name in names)
    return (
        f"Left: a curator that counts and hides a tally of deleted records; lines are exact, marks "
        f"measured ({misses} of the intervals miss their line). Repaired, the record deleted at "
        f"request {first} is told with advantage at least {low:.3f} after {last:,} releases, "
        f"{'beyond' if low > one else 'not shown to be beyond'} the {one:.3f} that one release "
        f"allows: what thm:unlrn_vs_forget says. As stated it never exceeds "
        f"{limit:.3f} at i = {first}, whatever the number of releases (erratum E6). A curator "
        f"without the tally releases the same in both worlds, and no test has an advantage. "
        f"Right: models published with noise while training goes on from the model without it, "
        f"advantage up to {secret.max():.3f} at least, {broken}; Noisy-GD, whose state is what it "
        f"publishes, {'is not shown to be beyond' if held else 'EXCEEDS'} the certified "
        f"{certified:.3f} however many releases are seen (thm:data_deletion_convex). Intervals are "
        f"exact and hold together with confidence {config.confidence:g} ({config.seeds:,} and "
        f"{config.gd_seeds:,} seeds in each world)."
    )


def _misses(results: dict[str, np.ndarray], name: str) -> int:
    """How many intervals do not contain the exact value, up to its rounding."""
    value, low, high = (results[f"{name} {end}"] for end in ("exact", "low", "high"))
    return int(np.sum((value < low - ROUNDING) | (value > high + ROUNDING)))
