"""The table of controls: every mistake with its setting, its claim and its gate.

A mistake that breaks a guarantee is judged against the certificate itself, which the linear loss
attains. One that only changes the law (and may even add noise) is judged against the exact law,
where a certificate would hide it. Seeds were chosen for a power near one at a risk of 1e-5.
"""

from collections.abc import Callable
from dataclasses import dataclass

from dd_jax import noisy_gd
from dd_jax.audit import controls_mutants as mutants
from dd_jax.audit.claims import (
    AdvantageClaim,
    ApproximateClaim,
    GaussianClaim,
    NumericClaim,
    RenyiClaim,
    of_certificate,
)
from dd_jax.audit.controls_settings import NUM_REQUESTS, ORDER, Law, Maker, Setting
from dd_jax.guarantees import renyi
from dd_jax.noisy_gd import Schedule

EXACT_LAW = "gaussian_law"
MOST_SEEDS = 100_000
_DELTA = 1e-5
_EPSILON = 0.25

Statement = NumericClaim | Law


@dataclass(frozen=True)
class Control:
    """One mistake, the setting in which it shows, and the gate that catches it.

    Attributes:
        name: of the mistake, or of the null.
        broken: what is broken, in a sentence.
        setting: where both curators are run.
        gate: a gate of `dd_jax.audit.claims`, or "gaussian_law".
        seeds: seeds per arm, at most 1e5.
        claim: what is claimed in this setting; true of the correct curator.
        curator: the mutant, where the mistake is in the curator.
        alter: what it does to the schedule, where the mistake is there.
        mutant_claim: the false claim, where the mistake is in the claim.
    """

    name: str
    broken: str
    setting: Setting
    gate: str
    seeds: int
    claim: Callable[[Setting], Statement]
    curator: Maker = noisy_gd.mechanism
    alter: Callable[[Schedule], Schedule] | None = None
    mutant_claim: Callable[[Setting], Statement] | None = None

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

    def mutant_schedule(self) -> Schedule:
        """The schedule that the mutant runs."""
        schedule = self.setting.schedule
        return schedule if self.alter is None else self.alter(schedule)


def _deletion(setting: Setting) -> NumericClaim:
    """The certificate's deletion claim at request 1, for φ_1 and all that follow."""
    return of_certificate(setting.certificate(), "deletion", at_request=True)


def _privacy(setting: Setting) -> NumericClaim:
    """The certificate's claim for the learned model."""
    return of_certificate(setting.certificate(), "dp")


def _advantage(setting: Setting) -> NumericClaim:
    """The certificate's bound on the membership advantage after the deletion."""
    return of_certificate(setting.certificate(), "advantage")


def _approximate(setting: Setting) -> NumericClaim:
    """The exact δ at ε = 1/4 of the certificate's Gaussian DP after the deletion."""
    mu = setting.certificate().mu_dd
    return ApproximateClaim(_EPSILON, float(renyi.gdp_delta(mu, _EPSILON)), name="deletion")


def _converted(setting: Setting) -> NumericClaim:
    """(ε', δ) of the learned model, converted from (q, ε): ε' = ε + log(1/δ)/(q-1)."""
    epsilon = renyi.epsilon_simple(ORDER, setting.eps_dp, _DELTA)
    return ApproximateClaim(float(epsilon), _DELTA, name="privacy of one release")


def _converted_without_order(setting: Setting) -> NumericClaim:
    """The ε of (q, ε) printed as the ε of (ε, δ)."""
    return ApproximateClaim(setting.eps_dp, _DELTA, name="privacy of one release")


def _divided_by_order(setting: Setting) -> NumericClaim:
    """R_q ≤ ε/q: the slope ρ of a linear claim R_q ≤ qρ, printed as its ε."""
    return RenyiClaim(ORDER, setting.eps_dp / ORDER, name="privacy of one release")


_SEQUENCE = tuple(range(1, NUM_REQUESTS + 1))

_MUTANTS = (
    Control(
        "half noise",
        "a step adds N(0, ησ²) in place of N(0, 2ησ²)",
        Setting(eps_dp=4.0),
        "gaussian_mu",
        20_000,
        _deletion,
        alter=mutants.half_noise,
    ),
    Control(
        "missing clip",
        "gradients of norm 3 are used as they are, though certified as clipped at 1",
        Setting(target=3.0),
        "renyi_bins",
        20_000,
        _deletion,
        mutants.missing_clip,
    ),
    Control(
        "regulariser clipped",
        "the clip acts on ∇ℓ + λθ, so clipped records no longer contract",
        Setting(),
        "advantage",
        10_000,
        _advantage,
        mutants.regulariser_clipped,
    ),
    Control(
        "key reused at every step",
        "all steps of a run add the same noise",
        Setting(),
        EXACT_LAW,
        2_000,
        Setting.law,
        mutants.same_noise_every_step,
    ),
    Control(
        "key reused at every request",
        "learning and every deletion draw from one key, so releases give the noise away",
        Setting(seen=(1, 2)),
        "gaussian_mu",
        5_000,
        _deletion,
        mutants.same_key_every_request,
    ),
    Control(
        "key captured as a constant",
        "the noise is the same in every run",
        Setting(random_start=True),
        "renyi_binary",
        5_000,
        _deletion,
        mutants.constant_key,
    ),
    Control(
        "stale model",
        "every deletion begins at the learned model and not at the last one",
        Setting(seen=(2,)),
        EXACT_LAW,
        10_000,
        Setting.law,
        mutants.stale_model,
    ),
    Control(
        "stale database",
        "deletion steps use the database from before the edit",
        Setting(),
        "hockey_stick",
        5_000,
        _approximate,
        mutants.stale_database,
    ),
    Control(
        "last step skipped",
        "a deletion takes K_U - 1 steps",
        Setting(),
        EXACT_LAW,
        5_000,
        Setting.law,
        alter=mutants.last_step_skipped,
    ),
    Control(
        "secret state kept",
        "models are published with noise and continued without it, so later releases average it",
        Setting(rate=0.1, seen=_SEQUENCE),
        "gaussian_mu",
        20_000,
        _deletion,
        mutants.secret_state,
    ),
    Control(
        "sensitivity L/n",
        "σ² is calibrated to the sensitivity L/n where replacing a record moves 2L/n",
        Setting(eps_dp=0.25, seen=(0,)),
        "renyi_variational",
        20_000,
        _privacy,
        alter=mutants.half_sensitivity,
    ),
    Control(
        "order dropped in (ε, δ)",
        "the ε of (q, ε) is printed as the ε of (ε, δ)",
        Setting(seen=(0,)),
        "hockey_stick",
        20_000,
        _converted,
        mutant_claim=_converted_without_order,
    ),
    Control(
        "order dropped in R_q",
        "R_q ≤ ε/q is claimed in place of R_q ≤ ε",
        Setting(seen=(0,)),
        "renyi_bins",
        20_000,
        _privacy,
        mutant_claim=_divided_by_order,
    ),
)

_NULL = Setting(same_record=True)
_NOTHING = "nothing: both worlds hold the same record, and no difference is claimed"


def _null(gate: str, claim: Callable[[Setting], Statement]) -> Control:
    return Control(f"null, {gate}", _NOTHING, _NULL, gate, 10_000, claim)


def _zero(make: Callable[..., NumericClaim], *numbers: float) -> Callable[[Setting], NumericClaim]:
    return lambda setting: make(*numbers)


_NULLS = (
    _null("gaussian_mu", _zero(GaussianClaim, 0.0)),
    _null("advantage", _zero(AdvantageClaim, 0.0)),
    _null("hockey_stick", _zero(ApproximateClaim, 0.0, 0.0)),
    _null("renyi_binary", _zero(RenyiClaim, ORDER, 0.0)),
    _null("renyi_bins", _zero(RenyiClaim, ORDER, 0.0)),
    _null("renyi_variational", _zero(RenyiClaim, ORDER, 0.0)),
    _null(EXACT_LAW, Setting.law),
)

CONTROLS: dict[str, Control] = {control.name: control for control in (*_MUTANTS, *_NULLS)}
"""Every control by name: the mutants first, then one null per gate."""
