"""The convex certificate of a clipped loss that is not a single-index GLM, refuted (erratum E1).

Two kinds of convex quadratic records, mirror images with one stiff axis each, are clipped at L = 1.
The mean of their clipped gradients has a negative curvature along the axis of symmetry, and the
regulariser λ is just large enough to cancel it. Nothing contracts along that axis, so a record
moves the model at every step and is never forgotten. The paper's lemma on clipping
(`lem:clipping_retains_convexity`) would let its convex trade-off theorem
(`thm:unlearning_accuracy_convex`) certify ε_dp and ε_dd for this problem.

There are n records but few distinct ones, so a row here stands for `count` equal records. The mean
of clipped gradients is the same as with n rows, and so is the law of every model.
"""

import functools
from dataclasses import dataclass, replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from dd_jax import checks
from dd_jax.attacks.base import Attack, AttackResult, Picture, RenyiSettings, number
from dd_jax.attacks.separation import FEWEST_SAMPLES, Separation, separate
from dd_jax.audit.samples import Outcome, Stage, one_run, two_worlds
from dd_jax.claims import Claim, Finding
from dd_jax.constants import LossConstants
from dd_jax.erm import Problem
from dd_jax.errors import CertificateRefused, InputError
from dd_jax.guarantees import inference
from dd_jax.intervals import simultaneous
from dd_jax.losses.base import Loss
from dd_jax.noisy_gd import Schedule, mechanism
from dd_jax.plans import Certificate, Plan, plan_convex
from dd_jax.requesters import deletions
from dd_jax.types import Edit, num_records, replacement

CLIP_NORM = 1.0
SHARE = 0.266
GRADIENT_NORM = 1.5
STIFF, SOFT = 1.0, 0.02
STIFF_AXIS = np.array([np.sqrt(3) / 2, 0.5])
SLOPE_AXIS = np.array([1.0, 0.0])
DIMENSION = 2
EPS_DP, EPS_DD = 1.0, 0.1
FEWEST_RECORDS, MOST_RECORDS = 1_000, 1_000_000
TARGET_ROW = 3
LEARNED, DELETED = "after learning", "after deletion"


@dataclass(frozen=True, kw_only=True)
class ClippingSettings(RenyiSettings):
    """n records, few enough for float32 to resolve one; half of the seeds fit the test."""

    seeds: int = number(4_000, checks.whole, least=FEWEST_SAMPLES)
    confidence: float = 1 - 1e-6
    n: int = number(100_000, checks.whole, least=FEWEST_RECORDS, most=MOST_RECORDS)


class Records(NamedTuple):
    """`count` equal records with the loss θᵀHθ/2 + ⟨g, θ⟩: H = curvature, g = slope."""

    curvature: Float[Array, "*m 2 2"]
    slope: Float[Array, "*m 2"]
    count: Float[Array, "*m"]


def loss(name: str, *, single_index: bool) -> Loss:
    """The quadratic loss of `Records`: convex, β = 1, Lipschitz only once clipped."""
    constants = LossConstants(
        name, convex=True, single_index=single_index, smoothness=STIFF, domain="H ≤ I"
    )
    return Loss(_value, constants, _template, null_record=_null, batch_gradient=_sum_of_gradients)


def _value(params, record):
    return params @ record.curvature @ params / 2 + record.slope @ params


def _template(database):
    return jnp.zeros(2, database.slope.dtype)


def _null(database):
    zero = jax.tree.map(lambda leaf: jnp.zeros_like(leaf[0]), database)
    return zero._replace(count=jnp.ones_like(zero.count))


def _sum_of_gradients(params, rows, clip_norm, weight):
    """(m/n) Σ count · clip(Hθ + g) over m rows: divided by m, the mean over n records."""
    if weight is not None:
        raise InputError("these records already have counts; give them as plain rows.")
    gradients = rows.curvature @ params + rows.slope
    norms = jnp.sqrt(jnp.sum(gradients**2, axis=-1))
    clip = jnp.asarray(clip_norm, norms.dtype)
    factor = rows.count * clip / jnp.maximum(norms, clip)
    return factor @ gradients * (num_records(rows) / jnp.sum(rows.count))


class Shape(NamedTuple):
    """The two mirrored kinds of records and what follows from them.

    Attributes:
        curvatures, slopes: H and g of the two kinds; ‖g‖ = 1.5, so both are clipped at θ = 0.
        axis: e, the axis of symmetry.
        balance: slope of the linear records that cancel the mean clipped gradient at θ = 0.
        bend: eᵀJe, the curvature along e of the mean clipped field at θ = 0, without λ.
    """

    curvatures: np.ndarray
    slopes: np.ndarray
    axis: np.ndarray
    balance: np.ndarray
    bend: float


def shape(*, single_index: bool) -> Shape:
    """The counterexample, or its single-index twin: curvature and slope on the stiff axes only.

    With u = g/‖g‖ the clipped field's Jacobian is (1/‖g‖)(I - uuᵀ)H; e is the eigenvector of its
    symmetric part with the most negative eigenvalue, for the first kind, and the second kind is the
    mirror image about e. Single-index records have u along the stiff axis, and a Jacobian of zero.
    """
    stiff = np.outer(STIFF_AXIS, STIFF_AXIS)
    skew = STIFF * stiff + SOFT * (np.eye(2) - stiff)
    axis = np.linalg.eigh(_symmetric(_clipped_jacobian(skew, SLOPE_AXIS)))[1][:, 0]
    axis = axis * np.sign(axis @ SLOPE_AXIS)
    first, direction = (STIFF * stiff, STIFF_AXIS) if single_index else (skew, SLOPE_AXIS)
    mirror = 2 * np.outer(axis, axis) - np.eye(2)
    mean = 2 * SHARE * (direction @ axis) * axis
    return Shape(
        np.stack([first, mirror @ first @ mirror]),
        GRADIENT_NORM * np.stack([direction, mirror @ direction]),
        axis,
        -mean / (1 - 2 * SHARE),
        float(2 * SHARE * axis @ _clipped_jacobian(first, direction) @ axis),
    )


def _clipped_jacobian(curvature, direction) -> np.ndarray:
    return (np.eye(2) - np.outer(direction, direction)) @ curvature / GRADIENT_NORM


def _symmetric(matrix) -> np.ndarray:
    return (matrix + matrix.T) / 2


def database(form: Shape, n: int) -> Records:
    """Both kinds, the balancing linear records, and the target, a linear record with slope -e."""
    kind = round(SHARE * n)
    flat = np.zeros((2, 2, 2))
    return Records(
        jnp.asarray(np.concatenate([form.curvatures, flat]), jnp.float32),
        jnp.asarray(np.stack([*form.slopes, form.balance, -form.axis]), jnp.float32),
        jnp.asarray([kind, kind, n - 2 * kind - 1, 1], jnp.float32),
    )


def alternative(form: Shape) -> Edit:
    """The neighbour: the target's slope is e instead of -e."""
    flat, slope = jnp.zeros((1, 2, 2), jnp.float32), jnp.asarray(form.axis[None], jnp.float32)
    return replacement([TARGET_ROW], Records(flat, slope, jnp.ones(1, jnp.float32)))


def problem(*, single_index: bool) -> Problem:
    """The clipped problem; λ = -(curvature along e of the counterexample), κ about 25."""
    name = "quadratic_glm" if single_index else "quadratic"
    l2 = -shape(single_index=False).bend
    return Problem(loss(name, single_index=single_index), l2, CLIP_NORM)


def trial(key: Array, records: Records, *, case: Problem, schedule: Schedule) -> Outcome:
    """Learn, then delete the target: θ_0 for the privacy claim, θ_1 for the deletion claim."""
    stream = deletions(case.loss, records, [TARGET_ROW])
    curator = mechanism(case, schedule)
    stage = Stage(curator, stream, records, TARGET_ROW, 1, 1, kept=(0, 1))
    return one_run(key, stage, lambda view: {LEARNED: view.releases[0], DELETED: view.releases[1]})


def measure(key: Array, case: Problem, plan: Plan, order, seeds: int, confidence: float) -> dict:
    """Sound lower bounds on the divergence of neighbouring runs, by release."""
    form = shape(single_index=case.loss.constants.single_index)
    fn = functools.partial(trial, case=case, schedule=Schedule.of(plan))
    pair = two_worlds(fn, key, seeds, database(form, plan.n), alternative(form), chunk=seeds)
    return {
        release: separate(pair.present[release], pair.absent[release], order, confidence)
        for release in (LEARNED, DELETED)
    }


def linearised_renyi(plan: Plan, order: float, delete_steps: int) -> float:
    """R_q = qΔ²/(2 Var) to first order at θ = 0, where the field along e is flat.

    With Δ = 2ηK_L/n and Var = v₀ + 2ησ²(K_L + K_U): both grow without limit, and so does R_q.
    """
    shift = 2 * plan.step_size * plan.learn_steps / plan.n
    steps = plan.learn_steps + delete_steps
    variance = plan.init_variance + 2 * plan.step_size * plan.noise_variance * steps
    return float(order * shift**2 / (2 * variance))


def refusal(case: Problem, n: int, order: float) -> str:
    """Why `plan_convex` refuses this problem; empty if it does not."""
    try:
        plan_convex(case, n=n, dim=DIMENSION, order=order, eps_dp=EPS_DP, eps_dd=EPS_DD)
    except CertificateRefused as refused:
        return str(refused)
    return ""


def attack(key: Array, settings: ClippingSettings) -> AttackResult:
    """Both clipped problems under the settings of the paper's theorem, and what samples refute."""
    n, order = settings.n, settings.order
    skew, twin = (problem(single_index=single_index) for single_index in (False, True))
    # Both problems have the same λ, β and L, which are all that the theorem depends on.
    plan = plan_convex(
        twin, n=n, dim=DIMENSION, order=order, eps_dp=EPS_DP, eps_dd=EPS_DD, accountant="paper"
    )
    stated, tight = plan.certificate(), replace(plan, accountant="optimal").certificate()
    each = simultaneous(settings.confidence, 4)
    keys = jax.random.split(key)
    broken, sound = (
        measure(part, case, plan, order, settings.seeds, each)
        for part, case in zip(keys, (skew, twin), strict=True)
    )
    skew_rows, twin_rows = _rows("not a GLM", broken, stated), _rows("GLM", sound, tight)
    return AttackResult(
        measure="advantage",
        estimate=broken[DELETED].advantage,
        bound=float(inference.advantage_neighbours_linear(order, stated.eps_dd)),
        bound_means="what the refuted certificate allows after the deletion, √(ε_dd/(2q))",
        findings=_findings(skew_rows, twin_rows, refusal(skew, n, order)),
        rows=(*skew_rows, *twin_rows),
        theory={
            "renyi_linearised_after_learning": linearised_renyi(plan, order, 0),
            "renyi_linearised_after_deletion": linearised_renyi(plan, order, plan.delete_steps),
            "learn_steps": plan.learn_steps,
            "delete_steps": plan.delete_steps,
        },
    )


def _rows(name: str, measured: dict[str, Separation], certificate: Certificate) -> list[dict]:
    bounds = {LEARNED: certificate.eps_dp, DELETED: certificate.eps_dd}
    return [
        {
            "clipped loss": name,
            "release": release,
            "advantage": found.advantage.value,
            "renyi_at_least": found.renyi_low,
            "certified": bounds[release],
        }
        for release, found in measured.items()
    ]


def _findings(skew_rows, twin_rows, refused: str) -> tuple[Finding, ...]:
    kept = Claim(
        "clipping a single-index loss keeps its convex certificate",
        "dd_jax.plans.plan_convex",
        "ours",
    )
    refuses = Claim(
        "no convex certificate is issued for a clipped loss that is not single-index",
        "dd_jax.plans.conditions.require_convex",
        "ours",
    )
    return (
        _finding(ATTACK.claim, skew_rows),
        _finding(kept, twin_rows),
        Finding(refuses, not refused, refused or "a certificate was issued"),
    )


def _finding(claim: Claim, rows: list[dict]) -> Finding:
    """Refuted if a divergence is beyond what was certified for its release."""
    return Finding(
        claim,
        any(each["renyi_at_least"] > each["certified"] for each in rows),
        "; ".join(
            f"{each['release']} the divergence is at least {each['renyi_at_least']:.4g}, "
            f"certified {each['certified']:.4g}"
            for each in rows
        ),
    )


ATTACK = Attack(
    "clipping",
    "a clipped convex loss that is not a GLM is never forgotten, in spite of its certificate",
    Claim(
        "gradient clipping keeps convexity, so thm:unlearning_accuracy_convex certifies "
        "(q, ε_dp)-Rényi DP and (q, ε_dd)-data-deletion with any clipped convex loss",
        "lem:clipping_retains_convexity (erratum E1)",
        "paper",
    ),
    attack,
    Picture("divergences", ("clipped loss", "release"), {"renyi_at_least": "", "certified": ""}),
    ClippingSettings,
)
