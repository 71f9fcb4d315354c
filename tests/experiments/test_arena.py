import csv
import dataclasses
import io
import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dd_jax as dd
from dd_jax.baselines import base
from dd_jax.errors import InputError
from dd_jax.intervals import Estimate
from experiments.arena import contestant, contestants, games, measure, plot, save, settings, table

SMALL = settings.Config(
    data=("synthetic",),
    systems=("perturbed-gd", "fixed-model"),
    seeds=100,
    records=24,
    releases=3,
    copies=4,
    stream=3,
)


@pytest.fixture(scope="module")
def scene():
    return settings.make_scene("synthetic", SMALL)


@pytest.fixture(scope="module")
def rows():
    return measure.run(SMALL)


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
    expected = contestant.quadratic_risk(scene, 0.05**2)
    assert np.mean(risk) == pytest.approx(expected, rel=0.06)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"data": ("nowhere",)}, "no data set 'nowhere'"),
        ({"data": ()}, "no data set is named"),
        ({"epsilon": 0.0}, "epsilon = 0"),
        ({"delta": 1.0}, "delta = 1"),
        ({"seeds": 10}, "seeds = 10"),
        ({"records": 5}, "records = 5"),
        ({"confidence": 1.5}, "confidence"),
        ({"private_factor": 0.5}, "private_factor"),
    ],
)
def test_bad_settings_are_refused(changes, words):
    with pytest.raises(InputError, match=words):
        settings.Config(**changes)


def test_more_records_than_there_are_is_refused():
    with pytest.raises(InputError, match="digits-3-vs-8 has"):
        settings.make_scene("digits-3-vs-8", settings.Config(records=5000))


def test_an_unknown_system_is_refused():
    with pytest.raises(InputError, match="no system 'oracle'"):
        contestants.find(("oracle",))


# --- what claims allow ----------------------------------------------------------------------------


def test_unlearning_allows_what_two_hops_of_randomised_response_reach():
    # With δ = 0 the bound is the total variation of a coin of odds e^{2ε}.
    odds = math.exp(2.0)
    assert contestant.allowed_by_unlearning(1.0, 0.0) == pytest.approx((odds - 1) / (odds + 1))
    assert contestant.allowed_by_unlearning(0.0, 0.01) == pytest.approx(0.02)
    assert contestant.allowed_by_unlearning(50.0, 1e-5) == 1.0


def test_every_system_is_set_up_and_states_why_a_claim_is_missing(scene):
    for name, make in contestants.CONTESTANTS.items():
        made = make(scene)
        for bound, why in zip(made.allowed, made.why_not, strict=True):
            assert (bound is None) == bool(why), name
        if made.system.guarantee.notion == "data-deletion":
            quiet, many, adaptive = made.allowed
            assert quiet is not None, name
            assert adaptive is not None, name
            assert many == quiet <= adaptive, name


def test_free_numbers_keep_to_the_risk_that_is_allowed(scene):
    made = contestants.CONTESTANTS["perturbed-gd"](scene)
    noise = float(made.setting.split("noise ")[1])
    assert contestant.quadratic_risk(scene, noise**2) <= SMALL.quiet_risk * 1.02
    louder = contestants.CONTESTANTS["perturbed-gd-equal-risk"](scene)
    assert float(louder.setting.split("noise ")[1]) > noise


# --- the games ------------------------------------------------------------------------------------


def leaky(scene, keeps: float):
    """A curator whose release is the sum of the own feature times label, `keeps` of it for ever."""

    def signal(database):
        return database.label @ database.features[:, -1:]

    def learn(key, database):
        return jnp.stack([signal(database)[0], 0.0]), base.cost()

    def delete(key, database, edit, state):
        now = signal(dd.apply_edit(database, edit))[0]
        gone = jnp.where(edit.index[0] == 0, state[0], state[1])
        return jnp.stack([now, gone]), base.cost()

    def publish(key, state):
        noise = jax.random.normal(key, (2,))
        model = jnp.zeros(scene.dim).at[-1].set(state[0] + keeps * state[1] + noise[0])
        return model.at[0].set(noise[1])

    system = contestants.CONTESTANTS["fixed-model"](scene).system
    system = system._replace(learn=learn, delete=delete, publish=publish)
    return contestant.Contestant(system, contestant.LINEAR, "", (0.0, 0.0, 0.0))


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


# --- rows and files -------------------------------------------------------------------------------


def test_rows_measure_cost_secret_and_risk(rows):
    perturbed, fixed = rows
    assert perturbed.gradients % 24 == 0
    assert perturbed.retrain_ratio == perturbed.learn_gradients / perturbed.gradients > 1
    assert perturbed.secret_bytes == 4 * (settings.SYNTHETIC_DIM + 1)
    assert 0 < perturbed.excess_risk.value < 1e-3 < fixed.excess_risk.value
    assert perturbed.accuracy.value > 0.8
    assert perturbed.seconds > 0
    assert (fixed.gradients, fixed.retrain_ratio, fixed.accuracy) == (0, None, None)
    assert {"accuracy", "retrain_ratio"} <= set(fixed.reasons)


def test_the_secret_state_leaks_to_an_adaptive_requester_and_the_fixed_model_never(rows):
    perturbed, fixed = rows
    assert perturbed.advantages[2].low > 0.6
    assert perturbed.verdict(0) == measure.WITHIN
    assert all(found.value == 0 for found in fixed.advantages)
    assert fixed.attacks == ()


def make_row(row, low, allowed):
    found = Estimate(low + 0.1, low, low + 0.2, 70, 0.99)
    return dataclasses.replace(row, advantages=(found,) * 3, allowed=allowed)


@pytest.mark.parametrize(
    ("low", "allowed", "verdict"),
    [
        (0.5, (0.4, 0.4, 0.4), measure.BEYOND),
        (0.3, (0.4, 0.4, 0.4), measure.WITHIN),
        (0.3, (0.4, None, None), measure.LEAKS),
        (0.5, (0.6, None, None), measure.LEAKS),
        (0.5, (0.4, None, None), measure.LEAKS_MORE),
        (0.1, (None, None, None), measure.LEAKS),
        (-0.1, (0.0, None, None), measure.NOT_SHOWN),
    ],
)
def test_verdicts(rows, low, allowed, verdict):
    row = make_row(rows[0], low, allowed)
    assert row.verdict(1) == verdict
    assert ("averaging releases" in row.attacks) == (verdict in measure.SUCCESS)


def test_no_cell_of_the_csv_is_empty_and_missing_ones_carry_a_reason(rows):
    lines = list(csv.DictReader(io.StringIO(table.to_csv(rows))))
    assert [line["system"] for line in lines] == ["perturbed-gd", "fixed-model"]
    for line in lines:
        empty = {name for name, cell in line.items() if not cell} - {"attacks"}
        assert not empty
        assert "[None]" not in line.values()
    assert lines[1]["accuracy"] == "[θ = 0 names no class]"
    assert lines[0]["many_releases_allowed"] == "[the claim is for one release]"


def test_json_text_reads_back_with_reasons(rows):
    values = json.loads(table.json_text(table.to_json(SMALL, rows, 1.0)))
    fixed = values["rows"][1]
    assert fixed["accuracy"] is None
    assert fixed["reasons"]["accuracy"]
    assert fixed["advantages"]["one release"]["allowed"] == 0
    assert values["config"]["epsilon"] == 1


def test_printed_tables_have_their_columns(rows):
    for columns, lines in (
        (table.PROMISED, table.promised(rows)),
        (table.COSTS, table.costs(rows)),
        (table.SEEN, table.seen(rows)),
    ):
        assert all(len(line) == len(columns) for line in lines)
    assert "θ = 0 names no class" in table.notes(rows)[1]
    marked = table.seen([make_row(rows[0], 0.5, (0.4, None, None))])[0]
    assert marked[1].endswith("claim ≤ .40 !")
    assert marked[2].endswith("no claim **")


def test_tables_fit_into_eighty_columns(rows):
    wide = dataclasses.replace(
        make_row(rows[0], -0.25, (0.4, None, None)), system="perturbed-gd-stateless-best"
    )
    for columns, lines in (
        (table.PROMISED, table.promised([wide])),
        (table.COSTS, table.costs([wide])),
        (table.SEEN, table.seen([wide])),
    ):
        widest = [
            max(len(part) for part in (*head.split("\n"), *str(cell).split("\n")))
            for head, cell in zip(columns, lines[0], strict=True)
        ]
        assert sum(widest) + 3 * len(widest) + 1 <= 80


def test_files_are_written_whole_and_the_figure_shows_every_row(rows, tmp_path):
    files = save.save(tmp_path / "new", rows, table.to_json(SMALL, rows, 1.0))
    assert [file.rsplit(".", 1)[1] for file in files] == ["csv", "json", "svg", "pdf", "png"]
    assert not list((tmp_path / "new").glob("*.part"))
    figure = plot.plot(rows)
    labels = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert sorted(labels) == ["fixed-model", "perturbed-gd"]
    assert "perturbed-gd" in plot.caption(rows)
