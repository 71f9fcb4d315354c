"""Controls: broken curators that the audit must flag, and nulls that it must not.

Most run Noisy-GD with the linear loss, whose certificates are attained, on eleven records on the
line: one target, ±R in the two worlds, and ten records that balance to zero. From a fixed start the
optimal certificate is the exact value and not only a bound, so a mistake that costs even a little
privacy exceeds it, and the law of every release is a known Gaussian. All settings take the same
numbers of steps and requests and differ only in traced numbers: the correct curator is compiled
once for all of them, and once more for each number of batches.

A mistake that breaks a guarantee is judged against the certificate. A mistake that only changes the
law (and may even add noise) is judged against the exact law, because a certificate would hide it.
What breaks a non-convex certificate is judged against draws of the Gibbs law (`GibbsSetting`), what
breaks one in exact arithmetic in two releases that are one step apart (`ExactSetting`).
The seeds were chosen for a power near one at a risk of 1e-5. `run_controls` judges each mutant of
`CONTROLS`, and the correct curator in the same setting by the same gate, and replays both to see
how often each is flagged.
"""

import functools
import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, PyTree

from dd_jax import checks, losses, noisy_gd
from dd_jax.audit import mutants
from dd_jax.audit.claims import (
    AdvantageClaim,
    ApproximateClaim,
    GaussianClaim,
    NumericClaim,
    RenyiClaim,
    Which,
    of_certificate,
)
from dd_jax.audit.exact_law import gaussian_law
from dd_jax.audit.exact_setting import ExactSetting
from dd_jax.audit.gibbs_setting import GibbsSetting
from dd_jax.audit.samples import Stage, one_run, two_worlds
from dd_jax.audit.scores import Score, quadratic
from dd_jax.audit.verdict import audit
from dd_jax.claims import Claim, Finding
from dd_jax.ensemble import Pair
from dd_jax.erm import Problem
from dd_jax.errors import InputError
from dd_jax.guarantees import renyi
from dd_jax.interaction import Requester
from dd_jax.intervals import Estimate, check_confidence, proportion, simultaneous
from dd_jax.noisy_gd import Schedule
from dd_jax.oracles import linear
from dd_jax.plans import Certificate, Plan, plan_convex
from dd_jax.plans.certificate import ask
from dd_jax.types import Edit, Labelled, Mechanism, replacement

ORDER = 2.0
L2 = 1.0
CLIP_NORM = 1.0
LARGEST_RECORD = 3.0
NUM_RECORDS = 11
LEARN_STEPS = 8
DELETE_STEPS = 2
NUM_REQUESTS = 6
CHUNK = 5_000
LOSS = losses.linear(feature_norm=LARGEST_RECORD)
# Clipped, it is a Huber loss: the other records pull the model to 0, and so hide its past.
CURVED_LOSS = losses.squared()
EXACT_LAW = "gaussian_law"
MOST_SEEDS = 100_000
_DELTA = 1e-5
_EPSILON = 0.25
RATE_CONFIDENCE = 0.95

Maker = Callable[[Problem, Any], Mechanism]
"""A curator for a problem and a schedule or plan: `noisy_gd.mechanism` or a mutant of it."""


class Law(NamedTuple):
    """Two Gaussian laws on the line, stated exactly: the distance of their means, one variance."""

    mean_difference: float
    variance: float


@dataclass(frozen=True)
class ControlSetting:
    """The linear loss in one dimension: λ = 1, n = 11, q = 2, K_L = 8, K_U = 2, six requests.

    Gradients are clipped at L = 1. Every request blanks the target's row, or from `deleted_by` on;
    those before it blank another row.

    Attributes:
        rate: ηλ; a step contracts by c = 1 - ηλ.
        eps_dp: ε of one release, which σ² is calibrated to.
        seen: the releases that the observer is given; 0 is the learned model.
        target: R, the target's size; beyond 1 it is clipped.
        random_start: whether learning starts from the plan's Gaussian and not from 0.
        same_record: whether both worlds hold the same record, which makes the setting a null.
        batches: m. row: the target's, which decides its batch.
        deleted_by: the first request that blanks the target's row.
        curved: the clipped squared loss in place of the linear one, with λ = ηλ/(1-ηλ) and so
            η(λ+β) = 1: a step on records that are not clipped forgets the model it starts from.
    """

    rate: float = 0.5
    eps_dp: float = 1.0
    seen: tuple[int, ...] = (1,)
    target: float = 1.0
    random_start: bool = False
    same_record: bool = False
    batches: int = 1
    row: int = 0
    deleted_by: int = 1
    curved: bool = False

    def __str__(self):
        worlds = "the same record twice" if self.same_record else f"±{self.target:g}"
        start = ", random start" if self.random_start else ""
        if self.batches > 1:
            start += f", {self.batches} batches, row {self.row}"
        if self.deleted_by > 1:
            start += f", deleted by request {self.deleted_by}"
        seen = ", ".join(f"φ_{release}" for release in self.seen)
        if len(self.seen) > 2:
            seen = f"φ_{self.seen[0]} … φ_{self.seen[-1]}"
        return f"{worlds}, ηλ = {self.rate:g}, ε_dp = {self.eps_dp:g}{start}, sees {seen}"

    @property
    def problem(self) -> Problem:
        """What is learned."""
        if self.curved:
            return Problem(CURVED_LOSS, self.rate / (1 - self.rate), CLIP_NORM)
        return Problem(LOSS, L2, CLIP_NORM)

    @functools.cached_property
    def plan(self) -> Plan:
        """The optimal plan for ε_dp, with the setting's steps and start."""
        made = plan_convex(
            self.problem,
            n=NUM_RECORDS,
            dim=1,
            order=ORDER,
            eps_dp=self.eps_dp,
            eps_dd=self.eps_dp,
            step_size=self.rate / self.problem.l2,
            batches=self.batches,
        )
        return replace(
            made,
            learn_steps=LEARN_STEPS,
            delete_steps=DELETE_STEPS,
            init_variance=made.init_variance if self.random_start else 0.0,
        )

    def certificate(self) -> Certificate:
        """What the plan guarantees once the target's row was deleted: by batch, as `certify`."""
        return self.plan.answer(ask(self.plan, request=self.deleted_by, row=self.row))

    def gaps(self, release: int) -> np.ndarray:
        """How far the target moves the mean gradient in every step before a release: 2L/b or 0."""
        ends = [LEARN_STEPS + count * DELETE_STEPS for count in (self.deleted_by - 1, release)]
        used = linear.gaps_of_row(CLIP_NORM, NUM_RECORDS, self.batches, self.row, range(min(ends)))
        return np.append(used, np.zeros(ends[1] - len(used)))

    def law(self) -> Law:
        """The exact law of the only release seen, linear loss (`dd_jax.oracles.linear`)."""
        (release,) = self.seen
        plan, gaps = self.plan, self.gaps(release)
        variance = linear.variance(
            L2, plan.noise_variance, plan.step_size, len(gaps), plan.init_variance
        )
        shift = 0.0 if self.same_record else linear.shift_of_steps(L2, gaps, plan.step_size)
        return Law(float(shift), float(variance))

    def sample(
        self,
        key: Array,
        seeds: int,
        make: Maker = noisy_gd.mechanism,
        *,
        mesh: Mesh | None = None,
    ) -> Pair:
        """The releases seen in both worlds, (seeds, releases), for a curator."""
        # The target and ten records that balance, within batches by being null or 0; the neighbour
        # has the target's other value.
        others = np.tile([1.0, -1.0], 5) if self.batches == 1 else np.zeros(NUM_RECORDS - 1)
        database = self._records(np.insert(others, self.row, self.target))
        other = self._records([self.target if self.same_record else -self.target])
        numbers = tuple(jnp.float32(number) for number in Schedule.of(self.plan)[:3])
        places = (jnp.int32(self.row), jnp.int32(self.deleted_by))
        # Whole chunks, so that nothing is compiled again for another number of seeds.
        padded = CHUNK * math.ceil(seeds / CHUNK)
        run = _run(make, self.problem, self.batches)
        worlds = (database, replacement([self.row], other))
        pair = two_worlds(run, key, padded, *worlds, numbers, places, chunk=CHUNK, mesh=mesh)
        return Pair(*(arm[:seeds, list(self.seen)] for arm in pair))

    def _records(self, values) -> PyTree:
        """Records on the line: their features, or their labels where the loss is curved."""
        values = jnp.asarray(values, jnp.float32)
        return Labelled(jnp.ones((len(values), 1)), values) if self.curved else values[:, None]


@functools.cache
def _run(make: Maker, problem: Problem, batches: int) -> Callable:
    """One function object per curator, so that each is compiled once for all settings."""

    def run(key, database, numbers, places):
        steps = {"learn_steps": LEARN_STEPS, "delete_steps": DELETE_STEPS, "batches": batches}
        mechanism = make(problem, Schedule(*numbers, **steps))
        row, deleted_by = places
        null = losses.null_records(problem.loss, database, 1)

        def blank(key, memory, observation):
            del key
            rows = jnp.where(observation.request < deleted_by, (row + 1) % NUM_RECORDS, row)
            return memory, Edit(rows[None], null)

        every = tuple(range(NUM_REQUESTS + 1))
        requester = Requester(lambda key: (), blank)
        stage = Stage(mechanism, requester, database, row, deleted_by, NUM_REQUESTS, kept=every)
        return one_run(key, stage, lambda view: view.releases[:, 0])

    return run


# --- the table: every mistake with its setting, its claim and its gate ---------------------------

Statement = NumericClaim | Law


@dataclass(frozen=True)
class Control:
    """One mistake, the setting in which it shows, and the gate that catches it.

    Attributes:
        name: the name of the mistake, or of the null.
        broken: what is broken, in a sentence.
        setting: where both curators are run.
        gate: a gate of `dd_jax.audit.claims`, or "gaussian_law".
        seeds: seeds per arm, at most 1e5.
        claim: what is claimed in this setting; true of the correct curator.
        curator: the mutant, where the mistake is in the curator.
        mutant_claim: the false claim, where the mistake is in the claim.
        score: how samples of the setting are ordered; by Fisher's discriminant by default.
    """

    name: str
    broken: str
    setting: ControlSetting | GibbsSetting | ExactSetting
    gate: str
    seeds: int
    claim: Callable[[Any], Statement]
    curator: Maker = noisy_gd.mechanism
    mutant_claim: Callable[[Any], Statement] | None = None
    score: Callable[[Any], Score] | None = None

    @property
    def is_null(self) -> bool:
        """Whether nothing is broken: both worlds have one law, and the claim says so."""
        return self.setting.same_record

    def correct_statement(self) -> Statement:
        """What is claimed, and true of the correct curator."""
        return self.claim(self.setting)

    def mutant_statement(self) -> Statement:
        """What is claimed of the mutant, and false."""
        return (self.mutant_claim or self.claim)(self.setting)


def _certified(which: Which, *, at_request: bool = False) -> Callable[[Any], Statement]:
    """What the setting's certificate claims."""
    return lambda setting: of_certificate(setting.certificate(), which, at_request=at_request)


# At request 1, for φ_1 and all that follow; for the learned model; after the deletion.
_deletion = _certified("deletion", at_request=True)
_privacy = _certified("dp")
_advantage = _certified("advantage")


def _approximate(setting: ControlSetting) -> NumericClaim:
    """The exact δ at ε = 1/4 of the certificate's Gaussian DP after the deletion."""
    mu = setting.certificate().mu_dd
    return ApproximateClaim(_EPSILON, float(renyi.gdp_delta(mu, _EPSILON)), name="deletion")


def _converted(setting: ControlSetting) -> NumericClaim:
    """(ε', δ) of the learned model, converted from (q, ε): ε' = ε + log(1/δ)/(q-1)."""
    epsilon = renyi.epsilon_simple(ORDER, setting.eps_dp, _DELTA)
    return ApproximateClaim(float(epsilon), _DELTA, name="privacy of one release")


def _converted_without_order(setting: ControlSetting) -> NumericClaim:
    """The ε of (q, ε) printed as the ε of (ε, δ)."""
    return ApproximateClaim(setting.eps_dp, _DELTA, name="privacy of one release")


def _divided_by_order(setting: ControlSetting) -> NumericClaim:
    """R_q ≤ ε/q: the slope ρ of a linear claim R_q ≤ qρ, printed as its ε."""
    return RenyiClaim(ORDER, setting.eps_dp / ORDER, name="privacy of one release")


def _one_block(setting: ControlSetting) -> NumericClaim:
    """The learned model's number without pooling: all noise hides all of the shift.

    It is the exact value for the linear loss, whose maps all contract by 1 - ηλ alike.
    """
    plan = setting.plan
    numbers = (plan.problem.l2, setting.gaps(0), plan.noise_variance, plan.step_size)
    divergence = float(linear.renyi_of_steps(ORDER, *numbers))
    mu = float(renyi.gdp_from_linear_renyi(ORDER, divergence))
    return RenyiClaim(ORDER, divergence, mu=mu, name="privacy of one release")


_SEQUENCE = tuple(range(1, NUM_REQUESTS + 1))

_MUTANTS = (
    Control(
        "half noise",
        "a step adds N(0, ησ²) in place of N(0, 2ησ²)",
        ControlSetting(eps_dp=4.0),
        "gaussian_mu",
        20_000,
        _deletion,
        mutants.half_noise,
    ),
    Control(
        "missing clip",
        "gradients of norm 3 are used as they are, though certified as clipped at 1",
        ControlSetting(target=3.0),
        "renyi_bins",
        20_000,
        _deletion,
        mutants.missing_clip,
    ),
    Control(
        "regulariser clipped",
        "the clip acts on ∇ℓ + λθ, so clipped records no longer contract",
        ControlSetting(),
        "advantage",
        10_000,
        _advantage,
        mutants.regulariser_clipped,
    ),
    Control(
        "key reused at every step",
        "all steps of a run add the same noise",
        ControlSetting(),
        EXACT_LAW,
        2_000,
        ControlSetting.law,
        mutants.same_noise_every_step,
    ),
    Control(
        "key reused at every request",
        "learning and every deletion draw from one key, so releases give the noise away",
        ControlSetting(seen=(1, 2)),
        "gaussian_mu",
        5_000,
        _deletion,
        mutants.same_key_every_request,
    ),
    Control(
        "key captured as a constant",
        "the noise is the same in every run",
        ControlSetting(random_start=True),
        "renyi_binary",
        5_000,
        _deletion,
        mutants.constant_key,
    ),
    Control(
        "stale model",
        "every deletion begins at the learned model and not at the last one",
        ControlSetting(seen=(2,)),
        EXACT_LAW,
        10_000,
        ControlSetting.law,
        mutants.stale_model,
    ),
    Control(
        "stale database",
        "deletion steps use the database from before the edit",
        ControlSetting(),
        "hockey_stick",
        5_000,
        _approximate,
        mutants.stale_database,
    ),
    Control(
        "last step skipped",
        "a deletion takes K_U - 1 steps",
        ControlSetting(),
        EXACT_LAW,
        5_000,
        ControlSetting.law,
        mutants.last_step_skipped,
    ),
    Control(
        "secret state kept",
        "models are published with noise and continued without it, so later releases average it",
        ControlSetting(rate=0.1, seen=_SEQUENCE),
        "gaussian_mu",
        20_000,
        _deletion,
        mutants.secret_state,
    ),
    Control(
        "sensitivity L/n",
        "σ² is calibrated to the sensitivity L/n where replacing a record moves 2L/n",
        ControlSetting(eps_dp=0.25, seen=(0,)),
        "renyi_variational",
        20_000,
        _privacy,
        mutants.half_sensitivity,
    ),
    Control(
        "order dropped in (ε, δ)",
        "the ε of (q, ε) is printed as the ε of (ε, δ)",
        ControlSetting(seen=(0,)),
        "hockey_stick",
        20_000,
        _converted,
        mutant_claim=_converted_without_order,
    ),
    Control(
        "order dropped in R_q",
        "R_q ≤ ε/q is claimed in place of R_q ≤ ε",
        ControlSetting(seen=(0,)),
        "renyi_bins",
        20_000,
        _privacy,
        mutant_claim=_divided_by_order,
    ),
    Control(
        "batches that were not planned",
        "three batches take turns, with the noise of full passes",
        ControlSetting(row=3, seen=(0,)),
        "gaussian_mu",
        20_000,
        _privacy,
        mutants.unplanned_batches,
    ),
    Control(
        "gap of all rows",
        "σ² is calibrated to 2L/n where replacing a record moves a batch's mean by 2L/b",
        ControlSetting(row=3, seen=(0,), batches=3),
        "renyi_binary",
        5_000,
        _privacy,
        mutants.gap_of_all_rows,
    ),
    Control(
        "batches restarted",
        "every request begins with the first batch",
        ControlSetting(eps_dp=16.0, seen=(NUM_REQUESTS,), batches=3, deleted_by=NUM_REQUESTS),
        "gaussian_mu",
        20_000,
        _deletion,
        mutants.batches_restarted,
    ),
    Control(
        "batch of the deleted row skipped",
        "steps on the batch of the deleted row are left out",
        ControlSetting(eps_dp=16.0, batches=3),
        "gaussian_mu",
        20_000,
        _deletion,
        mutants.batch_skipped,
    ),
    Control(
        "independent batches",
        "every step draws its batch at random",
        ControlSetting(eps_dp=16.0, seen=(3,), batches=3, deleted_by=3),
        "gaussian_mu",
        20_000,
        _deletion,
        mutants.independent_batches,
    ),
    Control(
        "pooling left out",
        "noise from before a record's only use is counted, though other records undo it",
        ControlSetting(
            rate=0.1, eps_dp=16.0, seen=(0,), target=3.0, batches=11, row=7, curved=True
        ),
        "gaussian_mu",
        5_000,
        _privacy,
        mutant_claim=_one_block,
    ),
)

_GIBBS_MUTANTS = tuple(
    Control(
        f"{name}, to the Gibbs law",
        broken,
        GibbsSetting(),
        gate,
        10_000,
        _certified("deletion-gibbs"),
        curator,
        score=lambda setting: quadratic(),
    )
    for name, broken, gate, curator in (
        (
            "half variance",
            "σ² is half of the planned one, in the steps and in the start",
            "renyi_bins",
            mutants.half_variance,
        ),
        (
            "pretrained start",
            "learning starts from a model of other data in place of N(0, σ²/λ I) (erratum E11)",
            "renyi_variational",
            mutants.pretrained_start,
        ),
    )
)

_last_bits = operator.attrgetter("float_noise")

_EXACT_MUTANTS = (
    Control(
        "float noise under an exact certificate",
        "the program runs in float32, under a certificate in exact arithmetic",
        ExactSetting(),
        "renyi_binary",
        1_000,
        _certified("dp-joint"),
        mutants.float_noise,
        score=_last_bits,
    ),
    Control(
        "grid not counted",
        "the state is rounded to a lattice as coarse as the noise, though a fine one is certified",
        ExactSetting(),
        "renyi_binary",
        1_000,
        _certified("dp-joint"),
        mutants.uncounted_grid,
    ),
)

_NULLS = tuple(
    Control(
        f"null{' with batches' if batches > 1 else ''}, {gate}",
        "nothing: both worlds hold the same record, and no difference is claimed",
        ControlSetting(same_record=True, batches=batches),
        gate,
        10_000,
        claim,
    )
    for batches in (1, 3)
    for gate, claim in {
        "gaussian_mu": lambda setting: GaussianClaim(0.0),
        "advantage": lambda setting: AdvantageClaim(0.0),
        "hockey_stick": lambda setting: ApproximateClaim(0.0, 0.0),
        "renyi_binary": lambda setting: RenyiClaim(ORDER, 0.0),
        "renyi_bins": lambda setting: RenyiClaim(ORDER, 0.0),
        "renyi_variational": lambda setting: RenyiClaim(ORDER, 0.0),
        EXACT_LAW: ControlSetting.law,
    }.items()
)

_EXACT_NULL = Control(
    "null in exact arithmetic, renyi_binary",
    "nothing: both worlds hold the same record, and no difference is claimed",
    ExactSetting(same_record=True),
    "renyi_binary",
    1_000,
    lambda setting: RenyiClaim(ORDER, 0.0),
    score=_last_bits,
)

_GIBBS_NULL = Control(
    "null, to the Gibbs law",
    "nothing: both worlds are draws of the Gibbs law, and no difference is claimed",
    GibbsSetting(same_record=True),
    "renyi_bins",
    10_000,
    lambda setting: RenyiClaim(ORDER, 0.0, two_sided=False),
    score=lambda setting: quadratic(),
)

CONTROLS: dict[str, Control] = {
    control.name: control
    for control in (
        *(*_MUTANTS, *_GIBBS_MUTANTS, *_EXACT_MUTANTS),
        *(*_NULLS, _EXACT_NULL, _GIBBS_NULL),
    )
}
"""Every control by name: the mutants first, then the nulls of every gate."""


# --- run and judge ------------------------------------------------------------------------------


def judge(control: Control, pair: Pair, statement: Statement, confidence: float) -> Finding:
    """Whether the control's gate refutes the statement about this pair: whether it is flagged."""
    if isinstance(statement, Law):
        found = gaussian_law(*pair, *statement, confidence=confidence)
        spread = min(found.p_variance_present, found.p_variance_absent)
        shift = min(found.p_shift, found.p_direction)
        claim = Claim("the release has its exact law", "dd_jax.oracles.linear", "control")
        evidence = f"p = {shift:.3g} of the shift, {spread:.3g} of the spread"
        return Finding(claim, found.refuted, evidence)
    scores = None if control.score is None else control.score(control.setting)
    report = audit(pair, statement, gates=(control.gate,), scores=scores, confidence=confidence)
    (verdict,) = report.verdicts
    evidence = (
        f"{statement.unit}: at least {verdict.lower_bound.value:.4g}, "
        f"claimed {statement.claimed:.4g}"
    )
    return Finding(statement, verdict.refuted, evidence)


@dataclass(frozen=True)
class ControlRow:
    """One line of the table of controls.

    Attributes:
        control: its name. kind: "mutant" or "null". broken: what is broken.
        setting: in words. gate: which one.
        seeds: seeds per arm of one audit, fitting included.
        flagged: whether the mutant was flagged; None for a null.
        correct_flagged: whether the correct curator, or the null, was.
        power: how often replays flag the mutant, with an exact interval; None for a null.
        false_alarms: how often replays flag the correct curator, or the null.
        evidence: the numbers behind `flagged`. correct_evidence: those behind `correct_flagged`.
        confidence: that none of the table's correct curators and nulls is flagged.
    """

    control: str
    kind: str
    broken: str
    setting: str
    gate: str
    seeds: int
    flagged: bool | None
    correct_flagged: bool
    power: Estimate | None
    false_alarms: Estimate
    evidence: str | None
    correct_evidence: str
    confidence: float

    @property
    def as_expected(self) -> bool:
        """A mutant flagged and the correct curator not; a null not flagged."""
        return self.flagged is not False and not self.correct_flagged

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; rates with their intervals."""
        found = {field.name: getattr(self, field.name) for field in fields(self)}
        for name in ("power", "false_alarms"):
            found[name] = None if found[name] is None else found[name]._asdict()
        return {**found, "as_expected": self.as_expected}


def run_controls(
    key: Array,
    *,
    names: Sequence[str] | None = None,
    seeds: int | None = None,
    confidence: float = 0.999,
    replays: int = 20,
    mesh: Mesh | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[ControlRow]:
    """The table of (control, gate, seeds, power): what the audit catches, and what it leaves alone.

    Guarantee: with probability at least `confidence` no correct curator and no null of the table is
    flagged (in its first replay), however many controls there are.

    Args:
        key: for all runs.
        names: which controls; all of `CONTROLS` by default.
        seeds: seeds per arm in place of each control's own, at most 1e5.
        confidence: of the whole table.
        replays: how many independent audits `power` and `false_alarms` are counted over; the first
            of them gives `flagged`.
        mesh: devices that share the seeds; rows are not split, because a mutant may use them in
            any way.
        progress: called with (controls done, controls) after each.

    Raises:
        InputError: an unknown name, no replays, a confidence outside (0, 1), seeds out of range.
    """
    wanted = list(CONTROLS) if names is None else list(dict.fromkeys(names))
    unknown = [name for name in wanted if name not in CONTROLS]
    if unknown or not wanted:
        what = f"{unknown[0]!r} is not a control" if unknown else "names is empty"
        raise InputError(f"{what}; choose from {'; '.join(CONTROLS)}.")
    check_confidence(confidence)
    checks.whole("replays", replays, least=1)
    if seeds is not None:
        checks.whole("seeds", seeds, least=1, most=MOST_SEEDS)
    each = simultaneous(confidence, len(wanted))
    rows = []
    for number, name in enumerate(wanted):
        control = CONTROLS[name]
        count = control.seeds if seeds is None else seeds

        def replay(key, curator, statement, control=control, count=count):
            """The gate's judgement on each of the replays."""
            pair = control.setting.sample(key, replays * count, curator, mesh=mesh)
            cut = (np.split(np.asarray(arm), replays) for arm in pair)
            arms = zip(*cut, strict=True)
            return [judge(control, Pair(*each_world), statement, each) for each_world in arms]

        # A control's numbers do not depend on which others are run.
        control_key = jax.random.fold_in(key, list(CONTROLS).index(name))
        correct_key, mutant_key = jax.random.split(control_key)
        correct = replay(correct_key, noisy_gd.mechanism, control.correct_statement())
        mutant = None
        if not control.is_null:
            mutant = replay(mutant_key, control.curator, control.mutant_statement())
        rows.append(
            ControlRow(
                control=name,
                kind="null" if mutant is None else "mutant",
                broken=control.broken,
                setting=str(control.setting),
                gate=control.gate,
                seeds=count,
                flagged=None if mutant is None else mutant[0].refuted,
                correct_flagged=correct[0].refuted,
                power=None if mutant is None else _rate(mutant),
                false_alarms=_rate(correct),
                evidence=None if mutant is None else mutant[0].evidence,
                correct_evidence=correct[0].evidence,
                confidence=confidence,
            )
        )
        if progress is not None:
            progress(number + 1, len(wanted))
    return rows


def _rate(findings: list[Finding]) -> Estimate:
    flagged = sum(finding.refuted for finding in findings)
    return proportion(flagged, len(findings), RATE_CONFIDENCE)
