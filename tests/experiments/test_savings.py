import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import dd_jax as dd
from dd_jax import erm
from dd_jax.baselines import base
from experiments.cache import Runner
from experiments.figures import savings
from experiments.savings import cases, orders, points, runs
from experiments.savings.cases import Target
from experiments.savings.runs import Measured

TARGET = Target(n=400, dim=2, l2=0.2, epsilon=2.0, delta=1e-5, requests=2)
KAPPA = 6.0
CONFIG = savings.Config()


def test_closed_form_risk_is_that_of_the_problem():
    records = runs.database(TARGET._replace(n=6))
    records = records._replace(label=records.label.at[0].set(-runs.FAR))
    optimum = jnp.array([4 / 6 / 0.2, 0.0])
    problem = TARGET.problem
    assert np.allclose(erm.gradient(problem, optimum, records), 0, atol=1e-6)
    model = jnp.array([1.3, -0.4])
    expected = erm.excess_risk(problem, model, records, optimum)
    assert np.isclose(runs.excess_risk(TARGET, model, records), expected, rtol=1e-3)


def test_edits_turn_fresh_rows_round():
    stream = runs.edits(TARGET._replace(edits=2), served=3)
    assert np.array_equal(stream.index, [[0, 1], [2, 3], [4, 5]])
    assert (stream.record.label == -runs.FAR).all()


@pytest.fixture(scope="module")
def measured():
    def run(row, target, key, seeds, served):
        case = points.make_case(CONFIG, row, target)
        return runs.measure(case, target, jax.random.key(key), seeds, served)

    rows = (orders.SECRET, orders.PAPER, orders.OPTIMAL)
    found = {row: run(row, TARGET, 1, 3, 2) for row in rows}
    found[orders.ACCELERATED] = run(orders.ACCELERATED, TARGET._replace(risk=1.0), 2, 8, 6)
    return found


@pytest.mark.slow
def test_meters_are_the_analysis_of_each_row(measured):
    n, order = TARGET.n, 1 + math.log(1e5)
    assert math.isclose(TARGET.order, order)
    target = 10 * KAPPA * order * 2 / (0.2 * 1.0 * n**2)
    assert math.isclose(TARGET.excess_risk, target)
    paper = measured[orders.PAPER]
    assert paper.retrain == n * math.ceil(4 * KAPPA * math.log(n**2 / (4 * order * 2)))
    assert paper.edit == n * math.ceil(4 * KAPPA * math.log(5 * KAPPA))
    # Theorem 9 by hand: the best I, and the k that leaves as much as noise allows.
    gamma, spare = 1 / 1.4, math.log(1e5)
    savings_by_steps = {}
    for steps in range(1, 30):
        left = gamma**steps / (1 - gamma**steps)
        noise = 4 * math.sqrt(2) * 2 * left / (0.2 * n * (math.sqrt(spare + 2) - math.sqrt(spare)))
        room = 2 * target / 1.2 - 2 * noise**2
        if room > (4 * 2 / (0.2 * n) * left) ** 2:
            again = math.ceil(math.log(25 / room) / (2 * math.log(1.4)))
            savings_by_steps[steps] = again - steps
    secret = measured[orders.SECRET]
    assert secret.saving == n * max(savings_by_steps.values())
    assert savings_by_steps[secret.edit / n] == max(savings_by_steps.values())


@pytest.mark.slow
def test_every_run_meets_its_risk_and_the_paper_is_the_dearest_descent(measured):
    for row, found in measured.items():
        assert 0 < found.learned <= found.target, row
        assert 0 < found.edited <= found.target, row
    assert measured[orders.OPTIMAL].edit < measured[orders.PAPER].edit


@pytest.mark.slow
def test_the_random_meter_has_an_interval_and_the_others_none(measured):
    found = measured[orders.ACCELERATED]
    assert found.edit_low < found.edit < found.edit_high
    assert found.edit < found.retrain
    for row in (orders.SECRET, orders.PAPER, orders.OPTIMAL):
        assert measured[row].edit_low == measured[row].edit == measured[row].edit_high


def test_a_looser_risk_gives_the_paper_more_noise_and_not_fewer_records():
    tight, loose = (cases.noisy_gd_paper(TARGET._replace(risk=risk)) for risk in (None, 1.0))
    assert loose.serving.guarantee.epsilon < tight.serving.guarantee.epsilon


def test_an_impossible_risk_is_refused():
    with pytest.raises(cases.CertificateRefused, match="no number of steps"):
        cases.perturbed(TARGET._replace(risk=1e-200), secret=True)


def test_stated_orders_by_hand():
    target = TARGET._replace(n=1000, dim=4, requests=3, edits=2)
    log = math.log
    assert math.isclose(orders.stated(orders.ACCELERATED, target), 2 * (1 - 2 / 1000))
    assert math.isclose(orders.stated(orders.SECRET, target), 1000 * log(500))
    assert math.isclose(orders.stated(orders.STATELESS, target), 1000 * log(500 / log(12) ** 2))
    assert math.isclose(orders.stated(orders.OPTIMAL, target), 1000 * log(500))
    wide = target._replace(dim=100)
    assert math.isclose(orders.stated(orders.PAPER, wide), 1000 * log(200))


def test_fit_has_the_slope_and_an_interval_that_can_miss():
    x = np.arange(5.0)
    exact = runs.fit(x, 3 * x + 1)
    assert np.allclose([exact.value, exact.low, exact.high], 3)
    rough = runs.fit(x, 3 * x + np.array([0.1, -0.1, 0.0, -0.1, 0.1]))
    assert rough.low < 3 < rough.high
    assert not rough.low < 3.2 < rough.high


def test_the_interval_of_a_slope_is_students():
    x, y = np.arange(5.0), np.array([0.1, 1.4, 1.9, 3.3, 3.9])
    found, known = runs.fit(x, y), stats.linregress(x, y)
    # The 97.5% quantile of Student's t with 3 degrees of freedom.
    half = 3.182446305 * known.stderr
    assert found == pytest.approx((known.slope, known.slope - half, known.slope + half))


def test_every_point_asks_for_what_its_place_says():
    varied = {"n": "n", "constant": "n", "d": "dim", "epsilon": "epsilon", "r": "edits"}
    base = CONFIG.target
    for point in points.points(CONFIG):
        changed = {varied[point.panel]: point.place}
        if point.panel == "constant" or point.row == orders.ACCELERATED:
            changed["risk"] = CONFIG.constant_risk
        assert point.target == base._replace(**changed), point


def test_a_dear_edit_saves_little():
    run = [1.0, 2.0, *Measured(10.0, 4.0, 3.0, 6.0, 1.0, 0.5, 0.9)]
    found = orders.line({"n: row": np.array([run])}, "n", "row")
    assert (found.saving, found.low, found.high, found.worst_risk) == (6, 4, 7, 0.9)


def fake(exponent, edit=2.0):
    """`measure` whose savings grow as the stated order to a power."""

    def measure(case, target, key, seeds, served):
        assert (seeds, served) == ((8, 10) if case == orders.ACCELERATED else (2, 2))
        order = abs(orders.stated(case, target))
        return Measured(edit + order**exponent, edit, edit, edit, 1.0, 0.5, 0.5)

    return measure


@pytest.fixture
def pretend(monkeypatch):
    """`compute` without runs."""

    def results(measure):
        monkeypatch.setattr(points, "make_case", lambda config, row, target: row)
        monkeypatch.setattr(runs, "measure", measure)
        return savings.compute(CONFIG, Runner())

    return results


def test_caption_and_table_state_slopes_and_whether_they_are_the_stated_ones(pretend):
    results = pretend(fake(1.0))
    growth = next(g for g in orders.growths(results) if (g.panel, g.row) == ("n", orders.OPTIMAL))
    # Stated n log(εn/√d) over the sizes, by an independent fit.
    order = [n * math.log(2 * n / math.sqrt(5)) for n in CONFIG.sizes]
    expected = np.polyfit(np.log(CONFIG.sizes), np.log(order), 1)[0]
    assert growth.stated == pytest.approx(expected)
    assert growth.slope.value == pytest.approx(expected)
    followed = savings.caption(CONFIG, results)
    assert f"{orders.OPTIMAL}, stated n log min{{n, εn/√d}}: 1.13" in followed
    assert "NOT as stated" not in followed
    assert "every run met it" in followed
    steeper = pretend(fake(1.5))
    words = "NOT as stated but steeper, which the constants inside the logarithm do not explain"
    assert words in savings.caption(CONFIG, steeper)
    assert "NOT as stated but flatter" in savings.caption(CONFIG, pretend(fake(0.5)))
    rows = savings.tables(CONFIG, steeper)[0].rows
    assert all(len(row) == 8 for row in rows)
    n_row = next(row for row in rows if row[0] == orders.PAPER and row[2] == "n")
    assert n_row[3] == pytest.approx(1.5 * expected)


@pytest.mark.parametrize(
    ("slope", "stated", "verdict"),
    [
        ((0.5, 0.4, 0.6), 0.5, orders.AS_STATED),
        ((0.5, -0.1, 1.1), 0.5, orders.NOT_RESOLVED),
        ((0.5, -0.1, 1.1), 0.004, orders.AS_STATED),
        ((0.5, 0.4, 0.6), 0.7, orders.FLATTER),
        ((0.5, 0.4, 0.6), 0.3, orders.STEEPER),
    ],
)
def test_what_a_slope_says(slope, stated, verdict):
    growth = orders.Growth("d", orders.PAPER, runs.Slope(*slope), stated, ())
    assert growth.verdict == verdict


def test_constants_inside_the_logarithm_explain_a_slope_only_where_they_do():
    n = np.array(CONFIG.sizes, float)
    rate = orders.steps_per_e_fold(0.2, orders.OPTIMAL)

    def results(passes):
        line = [
            n,
            n * np.log(2 * n / math.sqrt(5)),
            n * (passes + 1),
            n,
            n,
            n,
            0 * n + 1,
            0 * n,
            0 * n,
        ]
        return {f"n: {orders.OPTIMAL}": np.stack(line, axis=1)}

    found = orders.straight(results(rate * np.log(n) - 20), orders.OPTIMAL, CONFIG.target)
    slope = next(orders.growths(results(rate * np.log(n) - 20))).slope
    assert found.measured.value == pytest.approx(rate)
    assert found.near == pytest.approx(slope.value)
    assert abs(found.far - found.far_stated) < 0.05
    other = orders.straight(results(n**0.5), orders.OPTIMAL, CONFIG.target)
    slope = next(orders.growths(results(n**0.5))).slope
    assert not slope.low <= other.near <= slope.high


def test_risk_is_that_of_the_edited_records():
    """A curator that always releases the minimiser has no excess risk, on the edited records."""

    def minimiser(records):
        return jnp.mean(records.features * jnp.sign(records.label)[:, None], axis=0) / 0.2

    target = TARGET._replace(n=20)
    system = cases.noisy_gd(target).serving._replace(
        learn=lambda key, records: (minimiser(records), base.cost()),
        delete=lambda key, records, edit, state: (
            minimiser(dd.apply_edit(records, edit)),
            base.cost(jnp.sum(edit.index)),
        ),
    )
    found = runs.measure(cases.Case(system, system), target, jax.random.key(0), 2, 2)
    assert abs(found.learned) < 1e-6
    assert abs(found.edited) < 1e-6
    # Requests 1 and 2 cost 0 and 1 for every seed: the interval is over seeds.
    assert (found.edit_low, found.edit, found.edit_high) == (0.5, 0.5, 0.5)


def test_caption_and_plot_own_up_to_losses(pretend):
    def losing(case, target, key, seeds, served):
        found = fake(1.0)(case, target, key, seeds, served)
        if case != orders.STATELESS:
            return found
        return found._replace(edit=1e9, edit_low=1e9, edit_high=1e9, edited=2.0)

    results = pretend(losing)
    text = savings.caption(CONFIG, results)
    assert f"{orders.NO_SLOPE}, saving nothing at 1,000, 3,000" in text
    assert f"an edit of {orders.STATELESS} costs more than retraining" in text
    assert "NOT EVERY RUN MET IT" in text
    axes = savings.plot(CONFIG, results).axes
    assert axes[0].get_yscale() == "symlog"


def test_results_hold_every_run(pretend):
    results = pretend(fake(1.0))
    assert results[f"n: {orders.OPTIMAL}"].shape == (5, 2 + len(Measured._fields))
    assert results[f"constant: {orders.ACCELERATED}"][:, 0].tolist() == [100, 300, 1e3, 3e3, 1e4]
    figure = savings.plot(CONFIG, results)
    assert [axis.get_yscale() for axis in figure.axes[:5]] == ["log"] * 5


def test_the_stated_order_is_drawn_dashed_through_its_largest_point(pretend):
    results = pretend(fake(1.5))
    axis = savings.plot(CONFIG, results).axes[0]
    dashed = [one for one in axis.lines if one.get_linestyle() == "--"]
    for row, drawn in zip(orders.DESCENTS, dashed, strict=True):
        found = orders.line(results, "n", row)
        assert drawn.get_ydata()[-1] == pytest.approx(found.saving[-1])
        np.testing.assert_allclose(
            np.divide(drawn.get_ydata(), drawn.get_ydata()[-1]), found.stated / found.stated[-1]
        )


def test_expected_steps_per_e_fold():
    assert math.isclose(orders.steps_per_e_fold(CONFIG.l2, orders.PAPER), 8 * KAPPA)
    assert math.isclose(orders.steps_per_e_fold(CONFIG.l2, orders.SECRET), 1 / math.log(1.4))
    assert math.isclose(orders.steps_per_e_fold(CONFIG.l2, orders.OPTIMAL), 1 / math.log(1.2))


def test_config_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        CONFIG.seeds = 1
