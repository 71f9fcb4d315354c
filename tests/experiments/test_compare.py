import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import norm
from small_comparison import SMALL

import dd_jax as dd
from dd_jax.baselines import base, newton, noisy_fine_tuning
from dd_jax.data import fetch
from dd_jax.ensemble import Pair
from dd_jax.errors import CertificateRefused, InputError
from experiments.compare import games, measure, systems
from experiments.compare.scene import Config, default_data, make_scene


@pytest.fixture(scope="module")
def scene():
    return make_scene("synthetic", SMALL)


# --- the scene ------------------------------------------------------------------------------------


def test_the_target_alone_has_its_own_feature_and_lies_in_the_domain(scene):
    assert scene.n == 24
    assert np.count_nonzero(scene.database.features[:, -1]) == 1
    assert scene.target[-1] == pytest.approx(math.sqrt(0.9), rel=1e-3)
    scene.problem.loss.domain.check(scene.database)
    assert not np.any(scene.test.features[:, -1])


def test_the_three_optima_have_no_gradient_and_differ_as_the_labels_do(scene):
    present, absent, _ = scene._optima
    assert present[-1] > 0.01 > -0.01 > absent[-1]
    assert abs(scene.optimum[-1]) < 1e-6
    assert np.linalg.norm(scene.trace) == pytest.approx(1, rel=1e-5)
    assert scene.trace[-1] == 0


def test_quadratic_risk_is_the_risk_of_small_noise(scene):
    gone = dd.apply_edit(scene.database, dd.deletion(scene.problem.loss, scene.database, [0]))
    features, label = (np.asarray(leaf, np.float64) for leaf in gone)
    optimum = np.asarray(scene.optimum, np.float64)
    noise = 0.05 * np.asarray(jax.random.normal(jax.random.key(0), (20_000, scene.dim)))

    def objective(models):
        losses = np.logaddexp(0, -(models @ features.T) * label)
        # A null record has no features: its loss is a constant.
        return losses.mean(axis=1) + scene.problem.l2 / 2 * np.sum(models**2, axis=1)

    risk = objective(optimum + noise) - objective(optimum[None])
    # The Hessian is over the other records, n/(n-1) of the curvature; hence 6%.
    expected = systems.quadratic_risk(scene, 0.05**2)
    assert np.mean(risk) == pytest.approx(expected, rel=0.06)


@pytest.mark.parametrize(
    ("word", "use"),
    [
        ("nowhere", lambda: Config(data=("nowhere",))),
        ("data", lambda: Config(data=())),
        ("synthetic", lambda: Config(data=("synthetic", "synthetic"))),
        ("sisa", lambda: Config(systems=("sisa", "noisy-gd", "sisa"))),
        ("epsilon", lambda: Config(epsilon=0.0)),
        ("delta", lambda: Config(delta=1.0)),
        ("seeds", lambda: Config(seeds=10)),
        ("records", lambda: Config(records=5)),
        ("confidence", lambda: Config(confidence=1.5)),
        ("l2", lambda: Config(l2=0.0)),
        ("private_factor", lambda: Config(private_factor=0.5)),
        ("digits-3-vs-8", lambda: make_scene("digits-3-vs-8", Config(records=5000))),
        ("oracle", lambda: systems.find(("oracle",))),
    ],
)
def test_bad_settings_are_refused(word, use):
    with pytest.raises(InputError, match=word):
        use()


def test_the_reference_is_the_noiseless_model_and_the_larger_class(scene):
    found = scene.reference(5.0)
    score = np.asarray(scene.test.features, np.float64) @ np.asarray(scene.optimum)
    label = np.asarray(scene.test.label)
    assert found.accuracy == np.mean(score * label > 0)
    assert found.majority == pytest.approx(max(np.mean(label > 0), np.mean(label < 0)))
    assert found.retraining == 5


def test_all_records_are_used_unless_a_number_is_given():
    small = Config(l2=0.1)
    assert make_scene("digits-3-vs-8", small).n == 267
    assert small.l2_of("adult") == 0.1 > Config().l2_of("adult")


@pytest.mark.parametrize(
    ("fetched", "expected"),
    [
        ({"mnist", "adult"}, ("mnist-3-vs-8", "adult")),
        ({"adult"}, ("adult",)),
        (set(), ("digits-3-vs-8", "breast-cancer")),
    ],
)
def test_large_data_are_the_default_where_they_were_fetched(fetched, expected, monkeypatch):
    monkeypatch.setattr(fetch, "is_cached", lambda name: name in fetched)
    assert default_data() == expected


def costs_of(gradients, *, learn=(0.0, 0.0), hessians=0.0):
    return measure.Costs(*learn, gradients, hessians, 0.0, 0.1, 0)


def test_costly_systems_get_fewer_releases_first_and_then_fewer_seeds(scene):
    made, config = leaky(scene, 0.0), Config()

    def affordable(gradients, **more):
        return measure.affordable(config, made, costs_of(gradients, **more), 10)[:3]

    assert affordable(1e3) == (250, 100, 16)
    # 5·10¹¹ over 2 worlds, 10 features, 10 releases and 17 requests before them, 1.5·10⁷ each.
    assert affordable(1.5e7) == (round(5e11 / (2 * 10 * 27 * 1.5e7)), 10, 16)
    # Ten features: a Hessian is ten gradients, in learning too, which both games do.
    assert affordable(1e6, hessians=1.4e6) == affordable(1.5e7)
    assert affordable(0.0, learn=(0.0, 4e7)) == (round(5e11 / (2 * 10 * 2 * 4e8)), 3, 4)
    assert affordable(1e8) == (round(5e11 / (2 * 10 * 8 * 1e8)), 3, 4)
    assert affordable(1e9) == (measure.LEAST_SEEDS, 3, 4)
    solving = costs_of(0.0)._replace(solves=3e6)
    assert measure.affordable(config, made, solving, 10)[:3] == affordable(1e8)
    repeating = dataclasses.replace(made, repeats=True)
    assert measure.affordable(config, repeating, costs_of(1e3), 10)[1] == measure.REPEATED
    # What the games of both worlds cost, by which the longest are found.
    share = measure.affordable(config, made, costs_of(1e3), 10)
    assert share.work == 250 * 2 * 10 * (16 + 1 + 100) * 1e3


# --- what claims allow ----------------------------------------------------------------------------


def test_unlearning_allows_what_two_hops_of_randomised_response_reach():
    # With δ = 0 the bound is the total variation of a coin of odds e^{2ε}.
    odds = math.exp(2.0)
    assert systems.allowed_by_unlearning(1.0, 0.0) == pytest.approx((odds - 1) / (odds + 1))
    assert systems.allowed_by_unlearning(0.0, 0.01) == pytest.approx(0.02)
    assert systems.allowed_by_unlearning(50.0, 1e-5) == 1.0


def test_every_system_is_set_up_and_states_why_a_claim_is_missing(scene):
    for name, make in systems.CONTESTANTS.items():
        made = make(scene)
        assert all(bound or isinstance(bound, float) for bound in made.allowed), name
        if made.system.guarantee.notion == "data-deletion":
            quiet, many, adaptive = made.allowed
            assert not isinstance(quiet, str), name
            assert not isinstance(adaptive, str), name
            assert many == quiet <= adaptive, name


def bounds(made):
    """What the claim allows, None where it names nothing."""
    return tuple(None if isinstance(bound, str) else bound for bound in made.allowed)


def exact_mu(epsilon, delta):
    """μ of the Gaussian pair that is exactly (ε, δ)-indistinguishable."""

    def excess(mu):
        tails = (norm.cdf(mu / 2 * sign - epsilon / mu) for sign in (1, -1))
        return next(tails) - math.exp(epsilon) * next(tails) - delta

    return brentq(excess, 1e-3, 10)


def test_certified_advantages_by_hand(scene):
    # λ = 1/10 and η = 1/(λ+¼): a step leaves 5/7 of a distance; noise for (3, δ)-privacy, at any n.
    stays = exact_mu(3.0, 1e-5)
    steps = math.ceil(math.log(stays / exact_mu(1.0, 1e-5)) / math.log(7 / 5))
    gone = stays * (5 / 7) ** steps
    quiet, adaptive, again = (
        2 * norm.cdf(mu / 2) - 1 for mu in (gone, math.hypot(gone, stays), stays)
    )
    assert [round(bound, 3) for bound in (quiet, adaptive, again)] == [0.104, 0.298, 0.281]
    for name, expected in {
        "noisy-gd": (quiet, quiet, adaptive),
        "langevin-optimal": (quiet, quiet, adaptive),
        "retraining": (0, 0, again),
        "sufficient-statistics": (0, 0, again),
        "sisa": (0, 0, None),
    }.items():
        assert bounds(systems.CONTESTANTS[name](scene)) == pytest.approx(expected), name


@pytest.mark.parametrize(
    ("name", "lasting"),
    [
        ("perturbed-gd", False),
        ("sekhari", False),
        ("perturbed-gd-stateless", True),
        ("noisy-fine-tuning", True),
        ("langevin", True),
        ("pnsgd", True),
        ("certified-removal", True),
    ],
)
def test_many_releases_are_bounded_where_the_first_determines_the_later_ones(scene, name, lasting):
    made = systems.CONTESTANTS[name](scene)
    one, many, adaptive = bounds(made)
    assert one == pytest.approx(math.tanh(1), abs=1e-4)
    assert (many, adaptive) == (one if lasting else None, None)


def test_retraining_takes_no_step_more_than_the_rule_needs(scene):
    plan = systems.noisy_gd_plan(scene)
    steps = systems._steps_from_scratch(scene, plan)
    hessian = np.asarray(newton.hessian(scene.problem, scene.optimum, scene.rest), np.float64)
    optimum = np.asarray(scene.optimum, np.float64)
    left = np.eye(scene.dim) - plan.step_size * hessian

    def risk(count):
        power = np.linalg.matrix_power(left, count)
        spread = plan.init_variance * np.trace(power @ hessian @ power)
        return (optimum @ power @ hessian @ power @ optimum + spread) / 2

    room = 0.1 * systems.noisy_gd_risk(scene, plan)
    assert risk(steps) <= room * 1.001
    assert steps == 1 or risk(steps - 1) > room * 0.999


def test_a_vote_of_shards_decides():
    assert systems.SHARDS % 2 == 1


def test_free_numbers_keep_to_the_risk_that_is_allowed(scene):
    made = systems.CONTESTANTS["perturbed-gd"](scene)
    noise = float(made.setting.split("noise ")[1])
    assert systems.quadratic_risk(scene, noise**2) <= SMALL.quiet_risk * 1.02
    louder = systems.CONTESTANTS["perturbed-gd-equal-risk"](scene)
    louder_noise = float(louder.setting.split("noise ")[1])
    equal = systems.noisy_gd_risk(scene, systems.noisy_gd_plan(scene))
    assert noise < louder_noise
    assert systems.quadratic_risk(scene, louder_noise**2) <= equal * 1.02


def test_removal_tilts_by_as_much_as_the_risk_allows(scene):
    # b moves the minimiser by H⁻¹b/n, and ½ E⟨b, H⁻¹b⟩/n² is what that adds to the risk.
    noise = float(systems.CONTESTANTS["certified-removal"](scene).setting.split("= ")[1])
    hessian = np.asarray(newton.hessian(scene.problem, scene.optimum, scene.rest), np.float64)
    risk = noise**2 * np.trace(np.linalg.inv(hessian)) / (2 * scene.n**2)
    assert risk == pytest.approx(SMALL.quiet_risk, rel=0.02)


def test_fine_tuning_ends_with_as_many_quiet_steps_as_the_risk_asks_for(scene):
    step_size = 1 / 0.35
    tuning = noisy_fine_tuning.calibrate(
        epsilon=1.0,
        delta=1e-5,
        model_clip=2 * float(np.linalg.norm(scene.optimum)),
        gradient_clip=0.5,
        step_size=step_size,
        l2=0.1,
        learn_steps=1,
    )
    setting = systems.CONTESTANTS["noisy-fine-tuning"](scene).setting
    noisy, quiet = (int(part.split(": ")[1]) for part in setting.split(", "))
    assert noisy == tuning.num_steps

    def risk(steps):
        left = (1 - step_size * 0.1) ** (2 * steps)
        return systems.quadratic_risk(scene, noisy * tuning.noise_variance * left)

    assert risk(quiet) <= SMALL.quiet_risk * 1.001 < risk(quiet - 1)


@pytest.mark.parametrize(
    ("name", "requests"), [("pnsgd", 1 + 3), ("perturbed-gd-stateless", 4 + 3)]
)
def test_a_claim_covers_every_request_that_is_made(scene, name, requests):
    made = systems.CONTESTANTS[name](scene)
    assert any(f" {requests} requests" in words for words in made.system.guarantee.conditions)


# --- the games ------------------------------------------------------------------------------------


def leaky(scene, keeps: float):
    """A curator whose release is the sum of the own feature times label, `keeps` of it for ever."""

    def signal(database):
        return database.label @ database.features[:, -1:]

    def learn(key, database):
        return jnp.stack([signal(database)[0], 0.0]), base.cost()

    def delete(key, before, edit, after, state):
        now = signal(after)[0]
        gone = jnp.where(edit.index[0] == 0, state[0], state[1])
        return jnp.stack([now, gone]), base.cost()

    def publish(key, state):
        noise = jax.random.normal(key, (2,))
        model = jnp.zeros(scene.dim).at[-1].set(state[0] + keeps * state[1] + noise[0])
        return model.at[0].set(noise[1])

    system = systems.CONTESTANTS["fixed-model"](scene).system
    system = system._replace(learn=learn, delete=delete, publish=publish)
    return systems.Contestant(system, systems.LINEAR, "", (0.0, 0.0, 0.0))


def play(scene, keeps, *, copies, releases, one_by_one=False):
    made = dataclasses.replace(leaky(scene, keeps), one_by_one=one_by_one)
    board = games.make_board(scene, made)
    return games.sample(jax.random.key(3), made, board, copies=copies, releases=releases, seeds=300)


def test_many_releases_reveal_what_a_secret_state_keeps_and_one_hardly_does(scene):
    pair = play(scene, 0.3, copies=0, releases=100)
    one = games.judge(pair.present.means[:, :1], pair.absent.means[:, :1], 0.99)
    many = games.judge(pair.present.means, pair.absent.means, 0.99)
    # Two means ± 0.3 √0.9 with deviation 1, and 1/10 after a hundred.
    assert one.contains(math.erf(0.3 * math.sqrt(0.9) / math.sqrt(2)))
    assert many.low > 0.9


def test_an_adaptive_requester_copies_the_label_through_a_curator_that_forgets(scene):
    pair = play(scene, 0.0, copies=4, releases=1, one_by_one=True)
    found = games.judge(pair.present.means, pair.absent.means, 0.99)
    # φ_0 shows the label with error Φ(-√0.9); four copies are then read without one.
    assert found.contains(math.erf(math.sqrt(0.9 / 2)))
    assert found.low > 0.4
    assert pair.present.first.shape == (300, scene.dim)


def test_the_judge_is_not_fooled_by_its_own_fit():
    draws = np.asarray(jax.random.normal(jax.random.key(0), (2, 200, 40)))
    assert games.judge(draws[0], draws[1], 0.95).contains(0.0)
    assert games.judge(np.zeros((100, 2)), np.zeros((100, 2)), 0.95).value == 0


def test_risk_is_judged_once_the_target_is_gone(scene):
    judged = (scene.problem, scene._optima, scene.without_target, scene.optimum)
    present, absent, gone = np.asarray(measure._risks(*judged))
    assert abs(gone) < 1e-6
    assert min(present, absent) > 1e-4


def test_a_withheld_model_is_refused():
    shown, withheld = (games.Sight(np.full((4, 1, 2), edge), None) for edge in (0.0, np.nan))
    assert measure._released(Pair(shown, shown)).present is shown
    for pair in (Pair(shown, withheld), Pair(withheld, shown)):
        with pytest.raises(CertificateRefused, match="withheld"):
            measure._released(pair)


def test_each_adversary_is_judged_by_what_it_sees(scene, monkeypatch):
    """One release shows nothing, the mean of three shows the label, copies show it at once."""
    asked = []

    def sample(key, contestant, board, *, copies, releases, seeds):
        asked.append((copies, releases))
        sign = np.where(np.arange(seeds) % 2, 1.0, -1.0)
        seen = np.stack([sign, sign + 5 * (releases > 1)], axis=1)[:, :, None]
        worlds = (seen + 9 * (copies > 0), np.where(copies, -1.0, [[[1.0], [-1.0]]]) * seen)
        return Pair(*(games.Sight(world, np.zeros((seeds, scene.dim))) for world in worlds))

    monkeypatch.setattr(games, "sample", sample)
    made = leaky(scene, 0.0)
    costs = costs_of(1.0)
    share = measure.affordable(scene.config, made, costs, scene.dim)
    measured = (games.make_board(scene, made), costs, share, 0.99, scene.reference(1.0))
    found = measure._row(jax.random.key(0), scene, "leaky", made, *measured)
    assert asked == [(0, 3), (4, 1)]
    one, many, adaptive = found.advantages
    assert one.contains(0.0)
    assert (many.value, adaptive.value) == (1, 1)
    repeating = dataclasses.replace(made, repeats=True)
    with pytest.raises(RuntimeError, match="repeat"):
        measure._row(jax.random.key(0), scene, "leaky", repeating, *measured)
