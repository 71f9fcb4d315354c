"""What all systems of the comparison share: claim, cost meter, calibration checks, steps.

A `System` is a `Mechanism` whose learn and delete also say what they cost. `mechanism` drops the
cost; `metered` publishes it with every release, so that a transcript holds the cost per request.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, PyTree

from dd_jax import checks, products
from dd_jax.erm import Problem, gradient
from dd_jax.errors import CertificateRefused, InputError
from dd_jax.guarantees import floats
from dd_jax.losses import Loss
from dd_jax.losses.base import linear_scores
from dd_jax.noisy_gd import standard_normal_like
from dd_jax.plans.conditions import require_convex
from dd_jax.types import (
    ANY_RECORD,
    Domain,
    Edit,
    Mechanism,
    acceptable_rows,
    num_records,
    publish_model,
)

# Loss of one record at θ = 0, whatever its label, for catalogue losses that are never negative.
VALUE_AT_ZERO = {"logistic": math.log(2)}

# --- what a system is and claims -----------------------------------------------------------------


@dataclass(frozen=True)
class Guarantee:
    """What a system's authors claim for it, as data: a claim, not a finding.

    Attributes:
        notion: what is compared with what: "data-deletion", "exact unlearning",
            "(ε,δ)-unlearning", "Rényi unlearning", "certified removal" or "none".
        reference: authors, year, statement.
        keeps: what the curator keeps besides the release, in words.
        conditions: everything that the claim needs.
        epsilon: ε of the claim, 0 where it is exact, None where there is no number.
        delta: δ of an (ε, δ) claim, else None.
        order: Rényi order q of a Rényi claim, else None.
        private: whether records that stay have differential privacy too, in words.
        adaptive: what the authors claim for adaptive requests, in words.
    """

    notion: str
    reference: str
    keeps: str
    conditions: tuple[str, ...]
    epsilon: float | None = None
    delta: float | None = None
    order: float | None = None
    private: str = "no"
    adaptive: str = "no claim found"


class Cost(NamedTuple):
    """What learning or one request cost, counted exactly.

    Attributes:
        gradients: gradient evaluations of single records (for k-means: comparisons of a record
            with all centroids).
        hessians: Hessian evaluations of single records.
        solves: factorisations or solutions of a system of d unknowns, or of one per edited record.
        retrained: 1 if everything was retrained from its start (a deal into shards or leaves may
            stay), else 0; where only a part is redone, `gradients` tells how large it was.
    """

    gradients: Int[Array, ""]
    hessians: Int[Array, ""]
    solves: Int[Array, ""]
    retrained: Int[Array, ""]


def cost(
    gradients: int | Array = 0,
    hessians: int | Array = 0,
    solves: int | Array = 0,
    retrained: int | Array = 0,
) -> Cost:
    """A `Cost` from counts, static or traced.

    Raises:
        InputError: a static count too large for the meter's 32 bits.
    """
    counts = (gradients, hessians, solves, retrained)
    for count in counts:
        if isinstance(count, int) and not 0 <= count <= np.iinfo(np.int32).max:
            raise InputError(f"a cost of {count} does not fit the meter; run fewer steps or rows.")
    return Cost(*(jnp.asarray(count, jnp.int32) for count in counts))


def nothing(state: Any) -> PyTree:
    """The secret part of a system that carries only its release: nothing."""
    del state
    return ()


def add_costs(first: Cost, second: Cost) -> Cost:
    """What two parts of one request cost together."""
    return jax.tree.map(jnp.add, first, second)


class _Parts(NamedTuple):
    name: str
    learn: Callable[[Array, PyTree], tuple[Any, Cost]]
    delete: Callable[[Array, PyTree, Edit, PyTree, Any], tuple[Any, Cost]]
    predict: Callable[[PyTree, Array], Array]
    guarantee: Guarantee
    publish: Callable[[Array, Any], PyTree] = publish_model
    secret: Callable[[Any], PyTree] = nothing
    domain: Domain = ANY_RECORD


class System(_Parts):
    """A curator to compare: what it does, what that costs, what it keeps, what it claims.

    Matrix products inside its functions are computed in full precision, also without a driver.

    Attributes:
        name: its name in tables and on the command line.
        learn: `(key, database) -> (state, Cost)`.
        delete: `(key, before, edit, after, state) -> (state, Cost)`, as a `Mechanism`'s.
        predict: `(release, features) -> label of each row`.
        guarantee: the authors' claim.
        publish: `(key, state) -> release`; the state itself unless given.
        secret: `state -> pytree` of what is kept and not released; nothing unless given.
        domain: the records that it admits.
    """

    __slots__ = ()

    def __new__(cls, *args, **named):
        """The system, with its functions in full precision."""
        made = super().__new__(cls, *args, **named)
        names = ("learn", "delete", "predict", "publish")
        return made._replace(**{name: products.full(getattr(made, name)) for name in names})


def mechanism(system: System) -> Mechanism:
    """The system as a plain `Mechanism`; the compiler drops the meter with its unused counts."""

    def learn(key, database):
        return system.learn(key, database)[0]

    def delete(key, before, edit, after, state):
        return system.delete(key, before, edit, after, state)[0]

    return Mechanism(learn, delete, system.publish, system.domain)


class Metered(NamedTuple):
    """A release (or a state) and the cost of the request that made it."""

    value: PyTree
    cost: Cost


def metered(system: System) -> Mechanism:
    """The system with its meter shown: every release is a `Metered`.

    For the analyst. An adversary or requester must be given `value` alone, since the cost of a
    request can depend on the deleted record.
    """

    def learn(key, database):
        return Metered(*system.learn(key, database))

    def delete(key, before, edit, after, state):
        return Metered(*system.delete(key, before, edit, after, state.value))

    def publish(key, state):
        return Metered(system.publish(key, state.value), state.cost)

    return Mechanism(learn, delete, publish, system.domain)


def stored_bytes(system: System, state: PyTree) -> int:
    """Bytes kept besides the release, from the state that is really carried."""
    return sum(leaf.nbytes for leaf in jax.tree.leaves(system.secret(state)))


class Replaced(NamedTuple):
    """What an edit takes out and puts in, for systems that work on the difference.

    Attributes:
        old, new: r records each, leaving and entering.
        accepted: which replacements are made; the others count for nothing.
    """

    old: PyTree
    new: PyTree
    accepted: Bool[Array, "r"]


def replaced(database: PyTree, edit: Edit) -> Replaced:
    """The records that `apply_edit` would exchange, with the database BEFORE the edit."""
    n = num_records(database)
    rows = jnp.clip(edit.index, 0, n - 1)
    old = jax.tree.map(lambda leaf: jnp.asarray(leaf)[rows], database)
    return Replaced(old, edit.record, acceptable_rows(edit.index, n))


def label_of(loss: Loss) -> Callable[[Array, Array], Array]:
    """The labels that a model of this loss gives to rows, `(model, features) -> labels`.

    The label is the sign of a single score, or the number of the largest of several scores; an
    intercept is the model's last row. A loss whose scores are not known is taken to be linear.
    """
    scores = loss.scores
    if scores is None or (scores.num_scores is None and not scores.intercept):
        return linear_labels

    @products.full
    def label(release, features):
        values = linear_scores(scores, release, features)
        return jnp.sign(values) if scores.num_scores is None else jnp.argmax(values, axis=-1)

    return label


def publish_part(key: Array, state: Any) -> PyTree:
    """f_pub: the state's `model`; whatever else is carried stays secret."""
    del key
    return state.model


def linear_labels(release: Array, features: Array) -> Array:
    """The labels ±1 that a linear model gives to rows; 0 on its boundary."""
    return jnp.sign(products.dot("full", features, release))


# --- what calibrations share ---------------------------------------------------------------------


@dataclass(frozen=True)
class Constants:
    """A strongly convex problem on the ball of radius R around 0, as the compared papers see it.

    Attributes:
        strong_convexity: m of one record's regularised loss.
        smoothness: S of one record's regularised loss.
        lipschitz: G of one record's regularised loss on the ball.
        record_lipschitz: G₀, the same without the regulariser, which two records share.
        radius: R; the domain's diameter is D = 2R.
        reach: bound on the norm of the minimiser, R unless a smaller one is known.
    """

    strong_convexity: float
    smoothness: float
    lipschitz: float
    record_lipschitz: float
    radius: float
    reach: float = math.inf

    def __post_init__(self):
        radius = float(checks.positive("radius", self.radius))
        object.__setattr__(self, "reach", min(self.reach, radius))
        for name, value in vars(self).items():
            object.__setattr__(self, name, float(checks.positive(name, value)))
        if self.smoothness < self.strong_convexity:
            raise InputError(
                f"smoothness = {self.smoothness:g} is below strong_convexity = "
                f"{self.strong_convexity:g}; give S ≥ m."
            )

    @classmethod
    def of_problem(cls, problem, radius: float | None = None) -> "Constants":
        """The constants m = λ, S = β + λ, G = L + λR and G₀ = L of a regularised problem.

        The radius is R = L/λ unless given: the minimiser lies in that ball, so the projection does
        not move it. Where the loss at 0 is known (log 2 for the logistic loss), (λ/2)‖θ*‖² ≤ ℒ(0)
        bounds the minimiser more tightly.

        Assumes: a convex, L-Lipschitz (or clipped single-index), β-smooth loss.

        Raises:
            CertificateRefused: the loss is not of that kind, or its products are not in full
                precision: no arithmetic check covers these systems.
        """
        problem = problem.constants
        require_convex(problem, "record")
        if problem.precision != "full":
            raise CertificateRefused(
                f"precision = {problem.precision!r} is checked for plans of Noisy-GD only; give a "
                f"problem with precision='full'."
            )
        lipschitz, l2 = problem.lipschitz, problem.l2
        radius = lipschitz / l2 if radius is None else radius
        as_proved = problem.loss.established == "proved" and problem.clip_norm is None
        at_zero = VALUE_AT_ZERO.get(problem.loss.name) if as_proved else None
        return cls(
            strong_convexity=l2,
            smoothness=problem.loss.smoothness + l2,
            lipschitz=lipschitz + l2 * radius,
            record_lipschitz=lipschitz,
            radius=radius,
            reach=math.inf if at_zero is None else math.sqrt(2 * at_zero / l2),
        )

    def check_covers(self, problem) -> None:
        """Refuse a problem for which these constants do not hold.

        Raises:
            CertificateRefused: m above λ, or S, G or G₀ below what the problem has on the ball.
        """
        true = Constants.of_problem(problem, self.radius)
        spare = 1 + 1e-9
        if (
            self.strong_convexity > true.strong_convexity * spare
            or self.smoothness * spare < true.smoothness
            or self.lipschitz * spare < true.lipschitz
            or self.record_lipschitz * spare < true.record_lipschitz
        ):
            raise CertificateRefused(
                "the calibration was made for another problem, and its constants do not hold for "
                "this one; calibrate with Constants.of_problem(problem)."
            )

    @property
    def diameter(self) -> float:
        """D = 2R."""
        return 2 * self.radius

    @property
    def contraction(self) -> float:
        """γ = (S - m)/(S + m), what one gradient step of 2/(S + m) leaves of a distance."""
        total = self.smoothness + self.strong_convexity
        return (self.smoothness - self.strong_convexity) / total

    @property
    def step_size(self) -> float:
        """η = 2/(S + m)."""
        return 2 / (self.smoothness + self.strong_convexity)


def root_slope(epsilon, delta) -> float:
    """√ρ = √(log(1/δ) + ε) - √(log(1/δ)): the claim R_q ≤ qρ for all q that gives (ε, δ).

    The inverse of ε = ρ + 2√(ρ log(1/δ)), written without cancellation.
    Assumes: ε > 0 and 0 < δ < 1.
    """
    epsilon = float(checks.positive("epsilon", epsilon))
    spare = -math.log(float(checks.delta(delta)))
    return epsilon / (math.sqrt(spare + epsilon) + math.sqrt(spare))


def require_float32_noise(deviation: float, reach: float, remedy: str) -> None:
    """Refuse noise that drowns in the rounding of a model of norm `reach`.

    Raises:
        CertificateRefused: the deviation is below `floats.least_float32_noise`.
    """
    least = floats.least_float32_noise(reach)
    if deviation < least:
        raise CertificateRefused(
            f"noise of deviation {deviation:.3g} is below {least:.3g}, 100 float32 roundings of a "
            f"model of norm {reach:.3g}, and would hide nothing; {remedy}."
        )


def check_planned(database, n: int) -> None:
    """Refuse a database of another size than the noise was made for (a static size under jit)."""
    found = num_records(database)
    if found != n:
        raise CertificateRefused(
            f"the system was calibrated for n = {n}, the database has {found} records; "
            f"calibrate again with n={found}."
        )


def check_planned_edit(edit, rows: int) -> None:
    """Refuse an edit of more rows than the noise was made for."""
    found = edit.index.shape[0]
    if found > rows:
        raise InputError(
            f"the edit replaces {found} rows, the system was calibrated for {rows} per request; "
            f"split the edit or calibrate with edits_per_request={found}."
        )


# --- steps that are not Noisy-GD's ---------------------------------------------------------------


def project(params: PyTree, radius) -> PyTree:
    """The nearest model in the ball of radius R around 0."""
    leaves = jax.tree.leaves(params)
    norm = jnp.sqrt(sum(jnp.sum(leaf**2) for leaf in leaves))
    limit = jnp.asarray(radius, norm.dtype)
    return jax.tree.map(lambda leaf: leaf * (limit / jnp.maximum(norm, limit)), params)


def projected_step(params: PyTree, slope: PyTree, *, step_size, radius) -> PyTree:
    """P(θ - η g)."""
    moved = jax.tree.map(
        lambda weight, part: weight - jnp.asarray(step_size, weight.dtype) * part, params, slope
    )
    return project(moved, radius)


def descend(
    params: PyTree, database: PyTree, problem: Problem, *, step_size, radius, num_steps: int
) -> PyTree:
    """The model after K steps θ ← P(θ - η ∇ℒ_𝒟(θ)) without noise: n K gradients of records."""

    def body(_, params):
        slope = gradient(problem, params, database)
        return projected_step(params, slope, step_size=step_size, radius=radius)

    return jax.lax.fori_loop(0, num_steps, body, params)


def perturb(key: Array, params: PyTree, deviation) -> PyTree:
    """The model with N(0, deviation² I) added."""
    return jax.tree.map(
        lambda weight, normal: weight + jnp.asarray(deviation, weight.dtype) * normal,
        params,
        standard_normal_like(key, params),
    )
