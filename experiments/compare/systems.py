"""The systems of the comparison, each set up for a scene, with what its own claim allows.

Three kinds: those whose noise protects the records that stay (all run at the noise of Noisy-GD's
plan, so that they have its risk), those whose state after a request has the law of retraining, and
those that claim closeness to retraining and give the other records no privacy. The free number of
the last (steps, noise) is the cheapest that adds at most `Config.quiet_risk` to the excess risk:
the reason to give up privacy is accuracy.

Noise of variance v_i along a direction of curvature h_i adds ½ Σ h_i v_i to the excess risk, to
second order.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

import dd_jax as dd
from dd_jax.baselines import (
    certified_removal,
    dc_k_means,
    fixed_model,
    langevin,
    noisy_fine_tuning,
    noisy_gd_system,
    noisy_m_a_sgd,
    perturbed_gd,
    pnsgd,
    projective_residual,
    q_k_means,
    retraining,
    sekhari,
    sisa,
    sufficient_statistics,
)
from dd_jax.baselines.base import Constants, Guarantee, System, linear_labels
from dd_jax.baselines.perturbed_gd import Form
from dd_jax.errors import InputError
from dd_jax.guarantees import convex, inference
from experiments.compare.scene import Scene

LINEAR, SHARDED, CLUSTERS = "linear", "shards", "clusters"
BATCH, BATCHES = 64, 10
# The number of shards is odd: an even number can tie and then names no class.
SHARDS, SLICES, SHARD_STEPS, PRIVATE_SHARD_STEPS = 5, 2, 30, 6
K, ITERATIONS, SPACING = 2, 3, 0.05
MOST_STEPS = 1000

# Why a claim says nothing of an adversary.
ONE_RELEASE = "the claim is for one release, and later ones draw on a secret state"
NOT_ADAPTIVE = "the claim is for requests that do not depend on releases"
AS_EDITED = "for adaptive requests the claim compares with retraining on the rows as edited"
NOT_KNOWN = "claimed by its authors with constants that are unknown here"
NOTHING = "nothing is claimed"

Bound = float | str
"""The largest advantage that a claim allows, or why it names none."""


@dataclass(frozen=True)
class Contestant:
    """A system in a scene.

    Attributes:
        system: the system.
        releases: what is released: LINEAR (a model), SHARDED (several) or CLUSTERS (centroids).
        setting: the numbers that were chosen, in words.
        allowed: by its own claim, after one release, after many, and to an adaptive requester.
        missing: columns without a value, and why.
        one_by_one: whether interactions run one after another. If a request may train anew, many
            interactions side by side would all train whenever one of them does.
        repeats: whether an empty request releases the unchanged state again. The patient adversary
            is then shown a few releases, and it is checked that they are the same.
    """

    system: System
    releases: str
    setting: str
    allowed: tuple[Bound, Bound, Bound]
    missing: dict[str, str] = field(default_factory=dict)
    one_by_one: bool = False
    repeats: bool = False


EXACT = (0.0, 0.0, NOT_ADAPTIVE)


def unlearning(
    guarantee: Guarantee, *, lasting: bool, adaptive: str = NOT_ADAPTIVE
) -> tuple[Bound, Bound, Bound]:
    """(ε, δ)-unlearning: a bound for one release, but none for adaptive requests.

    Args:
        guarantee: the claim.
        lasting: whether the first release after the deletion, with what has the same law in both
            worlds, determines the law of all later ones. They are then post-processing of it, and
            its bound holds for all of them together.
        adaptive: why there is no bound against an adaptive requester.
    """
    bound = allowed_by_unlearning(guarantee.epsilon or 0.0, guarantee.delta or 0.0)
    return bound, bound if lasting else ONE_RELEASE, adaptive


def allowed_by_unlearning(epsilon: float, delta: float) -> float:
    """The largest advantage between two laws that are both (ε, δ)-close to a third one.

    Each is (2ε, δ(1 + e^ε))-close to the other, and (e, d)-closeness allows (eᵉ - 1 + 2d)/(eᵉ + 1).
    """
    pair = 2 * epsilon
    spare = 2 * delta * (1 + math.exp(epsilon))
    return min(1.0, math.tanh(pair / 2) + spare / (math.exp(pair) + 1))


def quadratic_risk(scene: Scene, variance) -> float:
    """½ Σ h_i v_i for noise of these variances along the Hessian's directions."""
    return float(np.sum(scene.curvatures * variance) / 2)


# --- private systems, at the noise of Noisy-GD's plan ---------------------------------------------


def noisy_gd_plan(scene: Scene, accountant: str = "optimal", batches: int = 1) -> dd.Plan:
    """Noisy-GD's plan for the scene's target."""
    return noisy_gd_system.calibrate(
        scene.problem,
        dim=scene.dim,
        epsilon_private=scene.config.epsilon_private,
        accountant=accountant,
        batches=batches,
        **scene.target_claim,
    )


def noisy_gd_risk(scene: Scene, plan: dd.Plan) -> float:
    """`quadratic_risk` of Noisy-GD's stationary law: v_i = 2ησ²/(1 - (1 - ηh_i)²)."""
    contraction = 1 - plan.step_size * scene.curvatures
    return quadratic_risk(scene, 2 * plan.step_size * plan.noise_variance / (1 - contraction**2))


def make_noisy_gd(scene: Scene, accountant: str = "optimal", batches: int = 1) -> Contestant:
    """Noisy-GD by one of its accountants, bounded by its own certificate."""
    plan = noisy_gd_plan(scene, accountant, batches)
    system = noisy_gd_system.system(scene.problem, plan, delta=scene.config.delta)
    quiet, adaptive = (plan.certificate(adaptivity=p).advantage_bound for p in (0, 1))
    setting = f"σ² = {plan.noise_variance:.3g}, {plan.learn_steps} steps, then {plan.delete_steps}"
    if batches > 1:
        setting += f", each over one of {batches} batches"
    return Contestant(system, LINEAR, setting, (quiet, quiet, adaptive))


def make_retraining(scene: Scene) -> Contestant:
    """Retraining with Noisy-GD: private as its plan is or more, exact by definition."""
    plan = noisy_gd_plan(scene)
    bound = float(inference.advantage_gdp(plan.certificate().mu_dp))
    plan = replace(plan, learn_steps=min(plan.learn_steps, _steps_from_scratch(scene, plan)))
    system = retraining.system(scene.problem, plan)
    return Contestant(system, LINEAR, f"{plan.learn_steps} steps each time", (0.0, 0.0, bound))


def _steps_from_scratch(scene: Scene, plan: dd.Plan) -> int:
    """The fewest steps after which the start adds at most a tenth of Noisy-GD's risk.

    To second order k steps leave ½ Σ h_i (1 - ηh_i)^{2k} (θ*_i² + the start's variance). The h_i
    are the scene's own curvatures; the plan's bound uses their smallest possible value.
    """
    start = np.asarray(scene.weights) ** 2 + plan.init_variance
    left = 1 - plan.step_size * scene.curvatures
    room = 0.1 * noisy_gd_risk(scene, plan)
    steps = 1
    while quadratic_risk(scene, start * left ** (2 * steps)) > room:
        steps += 1
    return steps


def make_fixed_model(scene: Scene) -> Contestant:
    """A fixed model, which does not depend on any record."""
    missing = {"accuracy": "θ = 0 names no class"}
    return Contestant(
        fixed_model.system(scene.problem), LINEAR, "θ = 0", (0.0, 0.0, 0.0), missing=missing
    )


def make_langevin(scene: Scene, accountant: str) -> Contestant:
    """Langevin unlearning by its own accountant, for one request, or by ours for any number."""
    plan = noisy_gd_plan(scene)
    calibrate = partial(
        langevin.calibrate,
        scene.problem,
        noise_variance=plan.noise_variance,
        learn_steps=plan.learn_steps,
        accountant=accountant,
        **scene.target_claim,
    )
    made = calibrate()
    system = langevin.system(scene.problem, made)
    setting = f"σ² of noisy-gd, {made.learn_steps} steps, then {made.delete_steps}"
    if accountant == "optimal":
        return Contestant(system, LINEAR, setting, _gaussian_bounds(scene, made))
    later = calibrate(requests=10).request_steps[-1]
    setting += f" (claim for 1 request; the tenth of ten would need {later})"
    return Contestant(system, LINEAR, setting, unlearning(system.guarantee, lasting=True))


def _gaussian_bounds(scene: Scene, made) -> tuple[float, float, float]:
    """Advantages under μ_dd, and √(μ_dd² + μ_dp²) where one release was seen (erratum E2)."""
    smoothness = scene.problem.constants.loss.smoothness or 0.0
    numbers = (scene.problem.l2, smoothness, made.noise_variance, scene.n, made.step_size)
    run = convex.Descent(2, 1.0, *numbers)
    gone = convex.deletion_optimal_mu(run, made.delete_steps)
    stays = convex.privacy_optimal_mu(run, math.inf)
    quiet, adaptive = (float(inference.advantage_gdp(mu)) for mu in (gone, math.hypot(gone, stays)))
    return quiet, quiet, adaptive


def make_pnsgd(scene: Scene) -> Contestant:
    """PNSGD unlearning, its claim covering every request that is made here.

    The claim holds for every order of the batches, which both worlds draw alike: together with the
    order the first release determines the law of all later ones.
    """
    plan = noisy_gd_plan(scene)
    made = pnsgd.calibrate(
        scene.problem,
        noise_variance=plan.noise_variance,
        batch_size=min(BATCH, scene.n),
        learn_epochs=plan.learn_steps,
        radius=1 / scene.problem.l2,
        requests=scene.config.releases + 1,
        **scene.target_claim,
    )
    system = pnsgd.system(scene.problem, made)
    later = " or ".join(map(str, sorted(set(made.request_steps))))
    setting = (
        f"σ² of noisy-gd, batches of {made.batch_size}, {made.learn_steps} passes, then {later}"
    )
    return Contestant(system, LINEAR, setting, unlearning(system.guarantee, lasting=True))


SQUARED = {"excess_risk": "it minimises squared error, not the logistic loss"}


def make_sufficient_statistics(scene: Scene) -> Contestant:
    """Ridge regression on the labels, each release as private as one of Noisy-GD's plan.

    A deleted record leaves nothing: what an adaptive requester knows of it, it saw in one release.
    """
    problem = dd.Problem(dd.losses.squared(label_bound=1.0), scene.problem.l2)
    made = sufficient_statistics.calibrate(
        problem,
        n=scene.n,
        dim=scene.dim,
        epsilon=scene.config.epsilon_private,
        delta=scene.config.delta,
    )
    seen = float(inference.advantage_gdp(made.mu))
    setting = f"v_M = {made.matrix_variance:.3g}, v_v = {made.vector_variance:.3g}"
    system = sufficient_statistics.system(problem, made)
    return Contestant(system, LINEAR, setting, (0.0, 0.0, seen), SQUARED)


# --- exact unlearning, for requests fixed in advance ----------------------------------------------


def make_noisy_m_a_sgd(scene: Scene) -> Contestant:
    """Noisy-m-A-SGD, as stable in total variation as (ε, 0) would have it."""
    rho = math.tanh(scene.config.epsilon / 2)
    made = noisy_m_a_sgd.calibrate(
        Constants.of_problem(scene.problem),
        n=scene.n,
        dim=scene.dim,
        stability=rho,
        batch_size=min(BATCH, scene.n),
    )
    setting = f"ρ = {rho:.3g}, T = {made.num_steps}, batches of {made.batch_size}"
    system = noisy_m_a_sgd.system(scene.problem, made)
    return Contestant(system, LINEAR, setting, EXACT, one_by_one=True, repeats=True)


VOTE = {"excess_risk": "a majority vote has no loss of its own"}


def make_sisa(scene: Scene) -> Contestant:
    """SISA without noise."""
    training = sisa.Training(scene.problem, SHARD_STEPS, scene.step_size)
    system = sisa.system(training, SHARDS, SLICES)
    setting = f"{SHARDS} shards of {SLICES} slices, {SHARD_STEPS} steps"
    return Contestant(system, SHARDED, setting, EXACT, VOTE, repeats=True)


def make_private_sisa(scene: Scene) -> Contestant:
    """Noise for (ε_private, δ) of one training of one shard."""
    config = scene.config
    noise = sisa.calibrate(PRIVATE_SHARD_STEPS, epsilon=config.epsilon_private, delta=config.delta)
    problem = dd.Problem(scene.problem.loss, scene.problem.l2, clip_norm=1.0)
    training = sisa.Training(problem, PRIVATE_SHARD_STEPS, scene.step_size, noise)
    setting = f"{SHARDS} shards, {PRIVATE_SHARD_STEPS} steps, noise multiplier {noise:.3g}"
    system = sisa.system(training, SHARDS)
    return Contestant(system, SHARDED, setting, (0.0, 0.0, NOT_KNOWN), VOTE, repeats=True)


CLUSTERING = {
    "excess_risk": "k-means has no classification risk",
    "accuracy": "k-means predicts no label",
}


def make_q_k_means(scene: Scene) -> Contestant:
    """The spacing for a chance of 1/2 to retrain, or a fixed one if no spacing reaches that."""
    sizes = {"n": scene.n, "dim": scene.dim, "clusters": K, "iterations": ITERATIONS}
    try:
        spacing = q_k_means.calibrate(diameter=2.0, retrain_probability=0.5, **sizes)
        setting = f"k = {K}, spacing {spacing:.3g}"
    except InputError as refused:
        spacing = SPACING
        setting = f"k = {K}, spacing {spacing:g}; no calibration: {str(refused).rstrip('.')}"
    system = q_k_means.system(clusters=K, iterations=ITERATIONS, spacing=spacing)
    return Contestant(system, CLUSTERS, setting, EXACT, CLUSTERING, repeats=True)


def make_dc_k_means(scene: Scene) -> Contestant:
    """DC-k-means with the cheapest tree of one level."""
    branching = dc_k_means.calibrate(n=scene.n, clusters=K)
    system = dc_k_means.system(clusters=K, iterations=ITERATIONS, branching=branching)
    setting = f"k = {K}, {branching} leaves"
    return Contestant(system, CLUSTERS, setting, EXACT, CLUSTERING, repeats=True)


# --- closeness to retraining, without privacy for the rest ----------------------------------------


def make_perturbed_gd(scene: Scene, form: Form, *, equal_risk: bool = False) -> Contestant:
    """The form with a secret, at the least I whose noise is quiet, or no worse than Noisy-GD's."""
    risk = noisy_gd_risk(scene, noisy_gd_plan(scene)) if equal_risk else scene.config.quiet_risk
    for steps in range(1, MOST_STEPS):
        made = perturbed_gd.calibrate(
            Constants.of_problem(scene.problem), delete_steps=steps, form=form, **scene.target_claim
        )
        if quadratic_risk(scene, made.noise_deviation**2) <= risk:
            break
    setting = f"I = {made.delete_steps}, noise {made.noise_deviation:.3g}"
    if quadratic_risk(scene, made.noise_deviation**2) > risk:
        setting += f", more than the rule allows: no I below {MOST_STEPS} needs less"
    system = perturbed_gd.system(scene.problem, made)
    allowed = unlearning(system.guarantee, lasting=False, adaptive=AS_EDITED)
    return Contestant(system, LINEAR, setting, allowed)


def make_stateless_perturbed_gd(scene: Scene, form: Form) -> Contestant:
    """The form that restarts from the published model, at the steps that it asks for."""
    made = perturbed_gd.calibrate_stateless(
        Constants.of_problem(scene.problem),
        dim=scene.dim,
        max_requests=scene.config.releases + scene.config.copies,
        form=form,
        **scene.target_claim,
    )
    setting = f"I = {made.noise_steps}, {made.delete_steps} steps, noise {made.noise_deviation:.3g}"
    system = perturbed_gd.system(scene.problem, made)
    allowed = unlearning(system.guarantee, lasting=True, adaptive=AS_EDITED)
    return Contestant(system, LINEAR, setting, allowed)


def make_certified_removal(scene: Scene) -> Contestant:
    """The risk that b adds, ½ σ² Σ 1/h_i / n², sets its σ; the budget decides who retrains.

    An empty request changes nothing, so a hundred releases are the same one. (After a withheld
    model comes one with a fresh b, which uses no secret either.)
    """
    spread = np.sum(1 / scene.curvatures) / (2 * scene.n**2)
    wanted = math.sqrt(scene.config.quiet_risk / spread)
    noise = max(wanted, certified_removal.least_noise(scene.problem, scene.n))
    system = certified_removal.system(
        scene.problem, noise=noise, epsilon=scene.config.epsilon, delta=scene.config.delta
    )
    allowed = unlearning(system.guarantee, lasting=True)
    setting = f"σ of b = {noise:.3g}"
    if noise > wanted:
        setting += f", the least that single precision resolves; the rule asks for {wanted:.3g}"
    return Contestant(system, LINEAR, setting, allowed, one_by_one=True, repeats=True)


def make_sekhari(scene: Scene) -> Contestant:
    """Newton-step unlearning for batches of one record, the least noise that it can have."""
    noise = sekhari.calibrate(scene.problem, capacity=1, **scene.target_claim)
    system = sekhari.system(scene.problem, noise=noise, capacity=1, **scene.target_claim)
    setting = f"batches of one record, noise {noise:.3g}"
    return Contestant(system, LINEAR, setting, unlearning(system.guarantee, lasting=False))


def make_projective_residual(scene: Scene) -> Contestant:
    """The projective residual update, which claims nothing."""
    system = projective_residual.system(scene.problem)
    allowed = (NOTHING, NOTHING, NOTHING)
    return Contestant(system, LINEAR, "nothing to choose", allowed, repeats=True)


def make_noisy_fine_tuning(scene: Scene) -> Contestant:
    """Clips at the optimum's norm; the risk rule sets the number of quiet steps at the end."""
    config, step_size = scene.config, scene.step_size
    calibrate = partial(
        noisy_fine_tuning.calibrate,
        epsilon=config.epsilon,
        delta=config.delta,
        model_clip=2 * float(np.linalg.norm(scene.optimum)),
        gradient_clip=0.5,
        step_size=step_size,
        l2=scene.problem.l2,
        learn_steps=50,
    )
    made = calibrate()
    # Isotropic noise of this variance adds the quiet risk.
    quiet_variance = config.quiet_risk / quadratic_risk(scene, 1.0)
    spread = made.num_steps * made.noise_variance / quiet_variance
    quiet = math.ceil(math.log(spread) / (2 * -math.log1p(-step_size * scene.problem.l2)))
    made = calibrate(final_steps=max(0, quiet))
    system = noisy_fine_tuning.system(scene.problem.loss, made, predict=linear_labels)
    setting = f"noisy steps: {made.num_steps}, quiet ones: {made.final_steps}"
    return Contestant(system, LINEAR, setting, unlearning(system.guarantee, lasting=True))


CONTESTANTS: dict[str, Callable[[Scene], Contestant]] = {
    "noisy-gd": make_noisy_gd,
    "noisy-gd-batches": partial(make_noisy_gd, batches=BATCHES),
    "noisy-gd-paper": partial(make_noisy_gd, accountant="paper"),
    "retraining": make_retraining,
    "fixed-model": make_fixed_model,
    "perturbed-gd": partial(make_perturbed_gd, form="published"),
    "perturbed-gd-best": partial(make_perturbed_gd, form="best"),
    "perturbed-gd-equal-risk": partial(make_perturbed_gd, form="best", equal_risk=True),
    "perturbed-gd-stateless": partial(make_stateless_perturbed_gd, form="published"),
    "perturbed-gd-stateless-best": partial(make_stateless_perturbed_gd, form="best"),
    "noisy-m-a-sgd": make_noisy_m_a_sgd,
    "sisa": make_sisa,
    "sisa-private": make_private_sisa,
    "certified-removal": make_certified_removal,
    "sekhari": make_sekhari,
    "projective-residual": make_projective_residual,
    "q-k-means": make_q_k_means,
    "dc-k-means": make_dc_k_means,
    "langevin": partial(make_langevin, accountant="published"),
    "langevin-optimal": partial(make_langevin, accountant="optimal"),
    "pnsgd": make_pnsgd,
    "noisy-fine-tuning": make_noisy_fine_tuning,
    "sufficient-statistics": make_sufficient_statistics,
}
"""Every system of the comparison, by its name on the command line."""


def find(names: tuple[str, ...]) -> dict[str, Callable[[Scene], Contestant]]:
    """The named systems, all of them if none is named.

    Raises:
        InputError: a name that is not known.
    """
    for name in names:
        if name not in CONTESTANTS:
            raise InputError(f"no system {name!r}; choose from {', '.join(CONTESTANTS)}.")
    return {name: CONTESTANTS[name] for name in names or CONTESTANTS}
