"""What the low bits tell in exact arithmetic: what a certificate allows, and nothing more.

The observer of `low_bits` knows everything except the target's label, and sees a single noisy step.
In fast arithmetic she reads the label from bits that the noise cannot reach. In exact arithmetic
every model is a whole multiple of Δ under both labels, so that the test for the values that float
noise can take finds nothing; the best test there is, the likelihood ratio of the noise that each
label needs, is the one that the certificate bounds. After a deletion the candidates' databases have
the same sums to the last bit, in every form, and no test tells them apart.
"""

import functools
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from dd_jax import databases, exact_gd
from dd_jax.attacks import low_bits
from dd_jax.attacks.base import Attack, AttackResult, Picture, row
from dd_jax.attacks.low_bits import OTHER_ROW, TARGET_ROW, LowBitsSettings, Scene, Seen
from dd_jax.audit.float_steps import Step
from dd_jax.claims import Claim, Finding
from dd_jax.erm import gradient
from dd_jax.guarantees import inference
from dd_jax.interaction import Requester, interact
from dd_jax.intervals import simultaneous
from dd_jax.losses import deletion
from dd_jax.noisy_gd import mechanism
from dd_jax.plans import lattice, plan_convex
from dd_jax.types import apply_edit

BEST, FLOATS = "likelihood", "float values"
COLUMNS = ("target", "arithmetic", "observer")
FORMS = {"plain": {}, "overlay": {"overlay": True}, "counted": {}}


class Watched(NamedTuple):
    """One run: what the test for float noise sees, and the best test's log likelihood ratio."""

    seen: Seen
    ratio: Array


def exact_scene(scene: Scene) -> Scene:
    """The same problem and worlds, planned in exact arithmetic, with one step per request."""
    plan = scene.plan
    budgets: dict[str, Any] = {"eps_dp": plan.eps_dp_asked, "eps_dd": plan.eps_dd_asked}
    budgets["order"] = plan.order
    made = plan_convex(scene.problem, n=plan.n, dim=plan.dim, arithmetic="exact", **budgets)
    return scene._replace(plan=replace(made, delete_steps=1))


def certified(scene: Scene) -> tuple[float, float]:
    """The advantage allowed against a record that stays, from two releases, and a deleted one."""
    certificate = scene.plan.certificate(request=1)
    stays = inference.advantage_neighbours_linear(scene.plan.order, certificate.eps_dp_joint)
    return stays, certificate.advantage_bound


def log_ratio(scene: Scene, before: Array, after: Array, worlds) -> Array:
    """Log likelihood of the second database minus the first's, for words of one step's models.

    The noise that a database needs is Z = I' - centre(I), with P(Z) ∝ 2^-(Z/2^κ)².
    """
    unit = 2.0 ** lattice.of(scene.plan).noise_bits
    with jax.enable_x64(True):
        first, second = (lax.bitcast_convert_type(words, jnp.int64) for words in (before, after))

        def square(world):
            centre = exact_gd.centre_of(scene.problem, world, scene.plan)(first, jnp.int32(0))
            return ((second - centre).astype(jnp.float64) / unit) ** 2

        minus, plus = (square(world) for world in worlds)
        return jnp.sum(minus - plus).astype(jnp.float32)


def staying_trial(key: Array, database, worlds, *, scene: Scene) -> Watched:
    """Another record is deleted, the target stays; the observer knows the whole state before it."""
    problem, plan = scene.problem, scene.plan
    curator = mechanism(problem, plan)
    learn_key, delete_key = jax.random.split(key)
    edit = deletion(problem.loss, database, [OTHER_ROW])
    before = curator.learn(learn_key, database)
    after = curator.delete(delete_key, database, edit, apply_edit(database, edit), before)
    edited = [apply_edit(world, edit) for world in worlds]
    model, end = (exact_gd.model(words, plan) for words in (before, after))
    slopes = jnp.stack([gradient(problem, model, world) for world in edited])
    return Watched(Seen(model, end, slopes), log_ratio(scene, before, after, edited))


def deleted_trial(key: Array, database, worlds, *, scene: Scene, form: str, releases: int) -> Array:
    """The target is deleted; the observer sees every state from then on."""
    problem = scene.problem
    curator = mechanism(problem, scene.plan)._replace(publish=lambda key, state: state)
    edit = deletion(problem.loss, database, [TARGET_ROW])
    again = Requester(init=lambda key: (), act=lambda key, memory, seen: (memory, edit))
    how = {"num_requests": releases + 1, **FORMS[form]}
    _, happened = interact(key, curator, again, database, **how)
    seen = happened.releases[1:]
    edited = [apply_edit(world, edit) for world in worlds]
    pairs = (seen[:-1], seen[1:])
    return jnp.sum(lax.map(lambda pair: log_ratio(scene, pair[0], pair[1], edited), pairs))


def observe(key: Array, trial, scene: Scene, seeds: int, worlds) -> list[Any]:
    """What a trial gives in both worlds, on the host."""
    keys = jax.random.split(key, 2)
    return [
        low_bits.watch_runs(keys[w], trial, scene._replace(worlds=worlds), w, seeds) for w in (0, 1)
    ]


def float_scores(scene: Scene, seen: list[Seen]) -> low_bits.Scores:
    """The scores of the observer who counts the values of float noise."""
    step = Step.of(scene.plan)
    minus, plus = (step.log_ratio(each.before, each.slopes, each.after) for each in seen)
    return minus, plus


def attack(key: Array, settings: LowBitsSettings) -> AttackResult:
    """The advantage of every observer, in fast and in exact arithmetic, beside the certificate."""
    keys = iter(jax.random.split(key, 24))
    scene = low_bits.make_scene(next(keys), settings)
    exact, each = exact_scene(scene), simultaneous(settings.confidence, 7)
    stays, gone = certified(exact)
    rows, estimates = [], []

    def add(score: low_bits.Scores, allowed: float, *labels: str) -> None:
        estimate = low_bits.judged(next(keys), score, each)
        names: dict[str, Any] = dict(zip(COLUMNS, labels, strict=True))
        rows.append(row(names, estimate, None, certified=allowed))
        estimates.append(estimate)

    for published in (low_bits.AS_IT_IS, low_bits.ON_A_GRID):
        trial = functools.partial(low_bits.staying_trial, scene=scene, published=published)
        score = low_bits.observe(next(keys), trial, scene, settings.seeds)
        add(score, scene.certified, low_bits.STAYS, f"fast, {published}", FLOATS)
    trial = functools.partial(staying_trial, scene=exact)
    found = observe(next(keys), trial, exact, settings.seeds, exact.worlds)
    floats = float_scores(exact, [watched.seen for watched in found])
    add(floats, stays, low_bits.STAYS, "exact", FLOATS)
    add((found[0].ratio, found[1].ratio), stays, low_bits.STAYS, "exact", BEST)
    for form in FORMS:
        worlds = exact.worlds
        if form == "counted":
            worlds = (databases.compress(worlds[0]), databases.compress(worlds[1]))
        how = {"scene": exact, "form": form, "releases": settings.releases}
        ratios = observe(
            next(keys), functools.partial(deleted_trial, **how), exact, settings.seeds, worlds
        )
        add((ratios[0], ratios[1]), gone, f"deleted, {form}", "exact", BEST)
    ours = Claim(
        "certificates in exact arithmetic hold against observers of every bit",
        "dd_jax.plans.plan_convex(arithmetic='exact')",
        "ours",
    )
    return AttackResult(
        measure="advantage",
        estimate=estimates[3],
        bound=stays,
        bound_means="what the certificate in exact arithmetic allows from two releases",
        findings=(_finding(ATTACK.claim, rows[:1]), _finding(ours, rows[2:])),
        rows=tuple(rows),
        theory={"lattice_spacing": lattice.of(exact.plan).spacing},
    )


def _finding(claim: Claim, rows) -> Finding:
    """Refuted if the lower limit of some row is beyond what is certified."""
    worst = max(rows, key=lambda each: each["low"] - each["certified"])
    return Finding(
        claim,
        worst["low"] > worst["certified"],
        f"advantage at least {worst['low']:.4f} where {worst['certified']:.4f} is certified "
        f"({worst['target']}, {worst['arithmetic']}, by {worst['observer']})",
    )


ATTACK = Attack(
    "exact-bits",
    "the last bits of models reveal a label in fast arithmetic, and nothing in exact arithmetic",
    Claim(
        "a certificate about real numbers holds for float32 releases published as they are",
        "dd_jax.noisy_gd.Schedule, which has no certificate",
        "control",
    ),
    attack,
    Picture("intervals", COLUMNS, {"certified": "certified"}),
    LowBitsSettings,
)
