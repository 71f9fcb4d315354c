"""The controls: every mutant is what it says, is flagged, and the correct curator is not."""

import json
from dataclasses import replace

import jax
import numpy as np
import pytest
from problems import soak
from scipy import stats

import dd_jax as dd
from dd_jax import audit
from dd_jax.audit import exact_setting, mutants
from dd_jax.audit.claims import GaussianClaim, gates_for
from dd_jax.audit.controls import (
    CONTROLS,
    DELETE_STEPS,
    LEARN_STEPS,
    NUM_RECORDS,
    ControlSetting,
    Law,
    judge,
    run_controls,
)
from dd_jax.audit.samples import paired
from dd_jax.guarantees import convex, lattice, renyi, schedules
from dd_jax.oracles import lattice as integers
from dd_jax.oracles import linear

# The mistakes against the Gibbs law take long to compile: `make soak` has them.
RUN = [name for name in CONTROLS if CONTROLS[name].is_null or soak("Gibbs" not in name, True)]
MUTANTS = [name for name in RUN if not CONTROLS[name].is_null]
NULLS = [name for name in RUN if CONTROLS[name].is_null]
SEEDS = 20_000
REPLAYS = soak(1, 20)


@pytest.fixture(scope="module")
def rows():
    found = run_controls(jax.random.key(0), names=RUN, replays=REPLAYS)
    return {row.control: row for row in found}


@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_are_flagged_and_the_correct_curator_is_not(rows, name):
    row = rows[name]
    assert row.kind == "mutant"
    assert row.flagged, row
    assert not row.correct_flagged, row
    assert row.as_expected
    found = json.loads(json.dumps(row.to_dict(), allow_nan=False))
    assert found["as_expected"]
    assert found["power"]["value"] >= 0.9
    assert (row.false_alarms.value, row.false_alarms.trials) == (0, REPLAYS)


@pytest.mark.parametrize("name", NULLS)
def test_nulls_are_not_flagged(rows, name):
    row = rows[name]
    assert (row.kind, row.flagged, row.power, row.evidence) == ("null", None, None, None)
    assert not row.correct_flagged, row
    assert row.as_expected


def test_the_table_holds_every_mistake_and_a_null_for_every_gate(rows):
    makers = {
        value
        for name, value in vars(mutants).items()
        if getattr(value, "__module__", "") == mutants.__name__ and not name.startswith("_")
    }
    mistakes = [control for control in CONTROLS.values() if not control.is_null]
    assert {control.curator for control in mistakes} == makers | {dd.noisy_gd.mechanism}
    nulls = [control for control in CONTROLS.values() if control.is_null]
    assert {control.gate for control in mistakes} == {control.gate for control in nulls}
    assert {row.confidence for row in rows.values()} == {0.999}
    # Each gate is sound for its claim: `gates_for` refuses those that are not.
    for control in CONTROLS.values():
        for statement in (control.correct_statement(), control.mutant_statement()):
            if not isinstance(statement, Law):
                assert len(gates_for(statement, (control.gate,))) == 1


# --- the settings and the mutants are what they say ---------------------------------------------


def separation(pair) -> float:
    """μ̂ = √(δᵀ Σ⁻¹ δ), δ the difference of the means and Σ the covariance within the arms."""
    present, absent = paired(pair)
    difference = present.mean(axis=0) - absent.mean(axis=0)
    within = np.concatenate([present - present.mean(axis=0), absent - absent.mean(axis=0)])
    covariance = within.T @ within / len(within)
    # Releases may be linearly dependent; the floor is far below anything that seeds resolve.
    covariance += 1e-9 * np.trace(covariance) / len(covariance) * np.eye(len(covariance))
    return float(np.sqrt(difference @ np.linalg.solve(covariance, difference)))


def mu_of(control, **changes):
    """The estimated μ of a mutant in the control's setting, or in a changed one."""
    setting = replace(control.setting, **changes)
    pair = setting.sample(jax.random.key(7), SEEDS, control.curator)
    return separation(pair), np.var(pair.present[:, -1].astype(np.float64))


def certified_mu(setting, request=1):
    return renyi.gdp_from_linear_renyi(
        2.0, setting.plan.certificate(request=request).eps_dd_request
    )


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_the_certificate_is_attained_in_the_settings(rate):
    setting = ControlSetting(rate=rate)
    law = setting.law()
    assert law.mean_difference / np.sqrt(law.variance) == pytest.approx(certified_mu(setting))
    learned = ControlSetting(rate=rate, seen=(0,)).law()
    numbers = (2.0, 1.0, 1.0, setting.plan.noise_variance, NUM_RECORDS, rate, LEARN_STEPS)
    assert learned.mean_difference**2 / learned.variance == pytest.approx(linear.renyi(*numbers))
    if rate == 0.5:
        assert learned.mean_difference**2 / learned.variance > 0.99 * setting.eps_dp


def test_less_noise_is_more_separation():
    half, whole = CONTROLS["half noise"], certified_mu(CONTROLS["half noise"].setting)
    assert mu_of(half)[0] == pytest.approx(np.sqrt(2) * whole, rel=0.05)
    quarter = CONTROLS["sensitivity L/n"]
    law = quarter.setting.law()
    exact = law.mean_difference / np.sqrt(law.variance)
    assert mu_of(quarter)[0] == pytest.approx(2 * exact, rel=0.05)
    # What a calibration to half of the Lipschitz constant gives.
    setting = quarter.setting
    run = convex.Descent(2.0, 0.5, 1.0, 0.0, 1.0, NUM_RECORDS, setting.plan.step_size)
    wrong = convex.least_noise(convex.privacy_optimal, run, setting.eps_dp)
    assert setting.plan.noise_variance / 4 == pytest.approx(wrong)


def test_without_the_clip_a_record_counts_in_full():
    control = CONTROLS["missing clip"]
    assert mu_of(control)[0] == pytest.approx(3 * certified_mu(control.setting), rel=0.05)
    assert mu_of(control, target=1.0)[0] == pytest.approx(certified_mu(control.setting), rel=0.1)


def test_clipping_the_regulariser_halves_the_contraction():
    """Half of the balanced records are clipped at either side of 0, so that λ acts as λ/2."""
    control = CONTROLS["regulariser clipped"]
    plan = control.setting.plan
    estimate, variance = mu_of(control)
    exact = linear.renyi(
        2.0, 1.0, 0.5, plan.noise_variance, NUM_RECORDS, 0.5, LEARN_STEPS, delete_steps=DELETE_STEPS
    )
    assert estimate == pytest.approx(np.sqrt(exact), rel=0.15)
    steps = LEARN_STEPS + DELETE_STEPS
    assert variance == pytest.approx(linear.variance(0.5, plan.noise_variance, 0.5, steps), rel=0.1)


def test_reused_keys():
    """One noise for all steps adds up coherently; one for all requests undoes the deletion."""
    control = CONTROLS["key reused at every step"]
    plan, c = control.setting.plan, 0.5
    scale = 2 * plan.step_size * plan.noise_variance
    geometric = [(1 - c**k) / (1 - c) for k in (LEARN_STEPS, DELETE_STEPS)]
    variance = scale * (c ** (2 * DELETE_STEPS) * geometric[0] ** 2 + geometric[1] ** 2)
    assert mu_of(control)[1] == pytest.approx(variance, rel=0.05)
    law = control.setting.law()
    # More noise than certified: only the exact law can object.
    assert variance > 1.5 * law.variance

    learned = ControlSetting(seen=(0,)).law()
    undone = learned.mean_difference / np.sqrt(learned.variance)
    assert mu_of(CONTROLS["key reused at every request"])[0] == pytest.approx(undone, rel=0.05)

    pair = CONTROLS["key captured as a constant"].setting.sample(
        jax.random.key(1), 100, mutants.constant_key
    )
    assert separation(pair) > 100


def test_stale_models_and_databases_keep_the_record():
    stale = CONTROLS["stale model"]
    assert mu_of(stale)[0] == pytest.approx(certified_mu(stale.setting), rel=0.1)
    database = CONTROLS["stale database"]
    learned = ControlSetting(seen=(0,)).law()
    staying = learned.mean_difference / np.sqrt(learned.variance)
    assert mu_of(database)[0] == pytest.approx(staying, rel=0.05)
    skipped, law = CONTROLS["last step skipped"], ControlSetting().law()
    assert mu_of(skipped)[0] == pytest.approx(
        2 * law.mean_difference / np.sqrt(law.variance), rel=0.05
    )


def test_a_secret_state_is_averaged_out():
    """One release is as certified; k of them add up c^{2K_U j}, j < k, of its μ²."""
    control = CONTROLS["secret state kept"]
    first = certified_mu(control.setting)
    decay = (1 - control.setting.rate) ** (2 * DELETE_STEPS)
    assert mu_of(control, seen=(1,))[0] == pytest.approx(first, rel=0.05)
    joint = first * np.sqrt(np.sum(decay ** np.arange(6)))
    assert mu_of(control)[0] == pytest.approx(joint, rel=0.05)


def test_batches_used_otherwise_than_planned():
    """Each by the gaps of the steps that it really takes: Δ²/Var of the linear loss."""

    def mu(setting, gaps, noise=1.0):
        plan = setting.plan
        numbers = (gaps, noise * plan.noise_variance, plan.step_size)
        return np.sqrt(linear.renyi_of_steps(2.0, 1.0, *numbers))

    unplanned = CONTROLS["batches that were not planned"]
    assert mu_of(unplanned)[0] == pytest.approx(
        mu(unplanned.setting, replace(unplanned.setting, batches=3).gaps(0)), rel=0.05
    )
    less = CONTROLS["gap of all rows"]
    assert mu_of(less)[0] == pytest.approx(mu(less.setting, less.setting.gaps(0), 1 / 9), rel=0.05)
    # The two steps of a request are on batches 0 and 1, and the record's is batch 0.
    restarted = CONTROLS["batches restarted"]
    gaps = restarted.setting.gaps(6)
    gaps[LEARN_STEPS:] = [gaps[0], 0] * 5 + [0, 0]
    assert mu_of(restarted)[0] == pytest.approx(mu(restarted.setting, gaps), rel=0.1)
    # Of the steps 8 and 9, on batches 2 and 0, the second is left out.
    skipped = CONTROLS["batch of the deleted row skipped"]
    assert mu_of(skipped)[0] == pytest.approx(
        mu(skipped.setting, skipped.setting.gaps(1)[:-1]), rel=0.05
    )
    for control in (restarted, skipped):
        setting = control.setting
        law = setting.law()
        exact = law.mean_difference**2 / law.variance
        # The last uses are one block here, so what is certified is the exact value.
        assert exact == pytest.approx(setting.certificate().eps_dd_request, rel=1e-6)
        assert setting.certificate().eps_dd_request < setting.plan.certificate().eps_dd_request


def patterns(batches, steps):
    """All ways in which independent draws may use a batch, with their probabilities."""
    uses = (np.arange(2**steps)[:, None] >> np.arange(steps)) & 1
    return uses, np.prod(np.where(uses == 1, 1 / batches, 1 - 1 / batches), axis=1)


def mixture_densities(uses, weights, shift_of_step, points):
    """Densities of the two worlds in units of the noise's deviation: mixtures over the uses."""
    shift = uses @ shift_of_step
    return [weights @ stats.norm.pdf(points, side * shift[:, None] / 2) for side in (1.0, -1.0)]


def test_independent_batches_leave_the_mixture_over_their_uses():
    control = CONTROLS["independent batches"]
    setting, plan = control.setting, control.setting.plan
    present, total = LEARN_STEPS + 2 * DELETE_STEPS, LEARN_STEPS + 3 * DELETE_STEPS
    spread = linear.variance(1.0, plan.noise_variance, plan.step_size, total)
    shift = 0.5 ** (total - 1 - np.arange(present)) * plan.step_size * 2 / 3 / np.sqrt(spread)
    points = np.linspace(-12, 12, 2401)
    first, second = mixture_densities(*patterns(3, present), shift, points)
    advantage = np.sum(np.abs(first - second)) * (points[1] - points[0]) / 2
    truth = 2 * stats.norm.ppf((1 + advantage) / 2)
    assert truth**2 > 5 * setting.certificate().eps_dd_request
    pair = setting.sample(jax.random.key(7), SEEDS, control.curator)
    ones, zeros = (float(np.mean(arm > 0)) for arm in pair)
    assert ones - zeros == pytest.approx(advantage, abs=4 * np.sqrt(0.5 / SEEDS))


def test_the_number_of_full_batches_is_false_for_independent_ones():
    """Why random orders are refused: R_2 is 15 times what full batches would have."""
    batches, steps, contraction, gap = 11, 8, 0.5, 8.0
    weight = contraction ** np.arange(steps)[::-1]
    deviation = np.sqrt(np.sum(weight**2))
    points = np.linspace(-20, 20, 8001)
    first, second = mixture_densities(*patterns(batches, steps), gap * weight / deviation, points)
    exact = np.log(np.sum(first**2 / second) * (points[1] - points[0]))
    full = schedules.pooled(contraction, np.full(steps, gap / batches), 1.0).mu_squared
    assert exact > 15 * full


def test_one_block_is_exact_for_the_linear_loss_and_false_for_a_curved_one():
    control = CONTROLS["pooling left out"]
    one_block, pooled = control.mutant_statement(), control.correct_statement()
    estimate, _ = mu_of(control)
    assert one_block.mu < 0.8 * estimate < estimate < pooled.mu
    # The linear loss with the same steps and noise.
    setting = replace(control.setting, curved=False, target=1.0)
    plan = setting.plan
    exact = linear.renyi_of_steps(2.0, 1.0, setting.gaps(0), plan.noise_variance, plan.step_size)
    assert separation(setting.sample(jax.random.key(7), SEEDS)) == pytest.approx(
        np.sqrt(exact), rel=0.05
    )


def test_float_noise_shows_in_the_last_bits_alone():
    control = CONTROLS["float noise under an exact certificate"]
    setting, claim = control.setting, control.correct_statement()
    pair = setting.sample(jax.random.key(7), 2000, control.curator)
    gate = {"gates": ["renyi_binary"]}
    for blind in (audit.linear(), audit.quadratic()):
        assert audit.audit(pair, claim, scores=blind, **gate).verdicts[0].consistent
    (verdict,) = audit.audit(pair, claim, scores=setting.float_noise, **gate).verdicts
    assert verdict.lower_bound.value > 100 * claim.claimed
    # In nearly every run the right world has more draws that lead to the release.
    score = setting.float_noise.fit(*paired(pair))
    assert np.mean(score(pair.present) > 0) > 0.99
    assert np.mean(score(pair.absent) < 0) > 0.99


def test_a_coarse_grid_has_the_law_of_the_rounded_program():
    """A coordinate of φ_0, in units of the spacing, against the enumerated law of the integers."""
    control = CONTROLS["grid not counted"]
    plan, seeds = control.setting.plan, 2000
    spacing = np.sqrt(2 * plan.step_size * plan.noise_variance) / lattice.DEVIATION
    push = plan.step_size * exact_setting.TARGET[0] / NUM_RECORDS / spacing
    laws = [
        integers.linear_law(
            0.5,
            np.full(plan.learn_steps, side * push),
            lattice.DEVIATION,
            rounding=lambda x: np.floor(x + 0.5),
        )
        for side in (1, -1)
    ]
    pair = control.setting.sample(jax.random.key(7), seeds, control.curator)
    for law, arm in zip(laws, pair, strict=True):
        states = arm[:, : exact_setting.DIM].astype(np.float64) / spacing
        np.testing.assert_allclose(states, np.rint(states), atol=1e-4)
        counts = np.bincount(np.rint(states).astype(int).ravel() + 30, minlength=61)
        places = law.first + np.arange(len(law.mass))
        inner = np.abs(places) <= 3
        chance = law.mass[inner]
        seen = counts[places[inner] + 30]
        rest = [counts.sum() - seen.sum(), counts.sum() * (1 - chance.sum())]
        expected = np.append(chance * counts.sum(), rest[1])
        assert stats.chisquare(np.append(seen, rest[0]), expected).pvalue > 1e-3
    # One release of the program is already far beyond what is certified for two.
    claimed = control.correct_statement().claimed
    assert exact_setting.DIM * integers.renyi(2.0, *laws) > 50 * claimed


# --- the table can fail -------------------------------------------------------------------------


def test_a_mutant_that_is_not_broken_is_reported(monkeypatch):
    """Nothing altered: not flagged, so not as expected. And a null that is none is flagged."""
    sound = replace(CONTROLS["half noise"], curator=dd.noisy_gd.mechanism)
    monkeypatch.setitem(CONTROLS, "half noise", sound)
    apart = replace(CONTROLS["null, gaussian_law"].setting, same_record=False)
    claimed = CONTROLS["null, gaussian_law"].correct_statement()
    broken = replace(CONTROLS["null, gaussian_law"], setting=apart, claim=lambda setting: claimed)
    monkeypatch.setitem(CONTROLS, "null, gaussian_law", broken)
    names = ["half noise", "null, gaussian_law"]
    first, second = run_controls(jax.random.key(2), names=names, replays=2)
    assert first.flagged is False
    assert not first.as_expected
    assert first.power.value == 0
    assert second.correct_flagged
    assert not second.as_expected
    assert second.false_alarms.value == 1


def test_judgements_depend_on_the_claim():
    control = CONTROLS["half noise"]
    pair = control.setting.sample(jax.random.key(3), SEEDS)
    mu = certified_mu(control.setting)
    assert not judge(control, pair, GaussianClaim(mu), 0.999).refuted
    found = judge(control, pair, GaussianClaim(mu / 2), 0.999)
    assert found.refuted


def test_a_choice_of_controls_gives_the_same_rows(rows):
    names = ["last step skipped", "null, gaussian_law"]
    for row in run_controls(jax.random.key(0), names=names, replays=REPLAYS):
        # The exact law's p-values do not depend on how many share the risk.
        assert row.correct_evidence == rows[row.control].correct_evidence
        assert row.evidence == rows[row.control].evidence
    (few,) = run_controls(jax.random.key(0), names=["last step skipped"], seeds=300, replays=12)
    assert few.seeds == 300
    # A few of the seeds: caught often, not always; the rate comes with its exact interval.
    assert 0 < few.power.value < 1
    assert few.power.trials == 12
    assert few.power.low < few.power.value < few.power.high
    assert few.false_alarms.value == 0


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"names": ["nothing"]}, "'nothing'"),
        ({"names": []}, "names"),
        ({"seeds": 100_001}, "seeds"),
        ({"replays": 0}, "replays"),
        ({"confidence": 1}, "confidence"),
        ({"names": ["half noise"], "seeds": 3, "replays": 1}, "too few"),
    ],
)
def test_bad_input_is_refused(change, word):
    with pytest.raises(dd.InputError, match=word):
        run_controls(jax.random.key(0), **change)
