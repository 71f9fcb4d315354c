import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dd_jax import erm
from experiments import savings_cases as cases
from experiments import savings_runs as runs
from experiments.context import Context
from experiments.figures import savings
from experiments.savings_cases import Target
from experiments.savings_runs import Measured

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
        case = savings.make_case(CONFIG, row, target)
        return runs.measure(case, target, jax.random.key(key), seeds, served)

    rows = (savings.SECRET, savings.PAPER, savings.OPTIMAL)
    found = {row: run(row, TARGET, 1, 3, 2) for row in rows}
    found[savings.ACCELERATED] = run(savings.ACCELERATED, TARGET._replace(risk=1.0), 2, 8, 6)
    return found


@pytest.mark.slow
def test_meters_are_the_analysis_of_each_row(measured):
    n, order = TARGET.n, 1 + math.log(1e5)
    assert math.isclose(TARGET.order, order)
    target = 10 * KAPPA * order * 2 / (0.2 * 1.0 * n**2)
    assert math.isclose(TARGET.excess_risk, target)
    paper = measured[savings.PAPER]
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
    secret = measured[savings.SECRET]
    assert secret.saving == n * max(savings_by_steps.values())
    assert savings_by_steps[secret.edit / n] == max(savings_by_steps.values())


@pytest.mark.slow
def test_every_run_meets_its_risk_and_the_paper_is_the_dearest_descent(measured):
    for row, found in measured.items():
        assert 0 < found.learned <= found.target, row
        assert 0 < found.edited <= found.target, row
    assert measured[savings.OPTIMAL].edit < measured[savings.PAPER].edit


@pytest.mark.slow
def test_the_random_meter_has_an_interval_and_the_others_none(measured):
    found = measured[savings.ACCELERATED]
    assert found.edit_low < found.edit < found.edit_high
    assert found.edit < found.retrain
    for row in (savings.SECRET, savings.PAPER, savings.OPTIMAL):
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
    assert math.isclose(savings.stated(savings.ACCELERATED, target), 2 * (1 - 2 / 1000))
    assert math.isclose(savings.stated(savings.SECRET, target), 1000 * log(500))
    assert math.isclose(savings.stated(savings.STATELESS, target), 1000 * log(500 / log(12) ** 2))
    assert math.isclose(savings.stated(savings.OPTIMAL, target), 1000 * log(500))
    wide = target._replace(dim=100)
    assert math.isclose(savings.stated(savings.PAPER, wide), 1000 * log(200))


def test_fit_has_the_slope_and_an_interval_that_can_miss():
    x = np.arange(5.0)
    exact = runs.fit(x, 3 * x + 1)
    assert np.allclose([exact.value, exact.low, exact.high], 3)
    rough = runs.fit(x, 3 * x + np.array([0.1, -0.1, 0.0, -0.1, 0.1]))
    assert rough.low < 3 < rough.high
    assert not rough.low < 3.2 < rough.high


def fake(exponent, edit=2.0):
    """`measure` whose savings grow as the stated order to a power."""

    def measure(case, target, key, seeds, served):
        del key, seeds, served
        order = abs(savings.stated(case, target))
        return Measured(edit + order**exponent, edit, edit, edit, 1.0, 0.5, 0.5)

    return measure


@pytest.fixture
def pretend(monkeypatch):
    """`compute` without runs."""

    def results(measure):
        monkeypatch.setattr(savings, "make_case", lambda config, row, target: row)
        monkeypatch.setattr(runs, "measure", measure)
        return savings.compute(CONFIG, Context())

    return results


def test_caption_states_slopes_and_says_where_the_order_fails(pretend):
    followed = savings.caption(CONFIG, pretend(fake(1.0)))
    assert f"{savings.OPTIMAL} 1 [1, 1]" in followed
    assert "Slopes off 1" not in followed
    assert "every run met it" in followed
    steeper = savings.caption(CONFIG, pretend(fake(1.5)))
    assert f"{savings.OPTIMAL} 1.5 [1.5, 1.5]" in steeper
    assert "Slopes off 1" in steeper


def test_caption_and_plot_own_up_to_losses(pretend):
    def losing(case, target, key, seeds, served):
        found = fake(1.0)(case, target, key, seeds, served)
        if case != savings.STATELESS:
            return found
        return found._replace(edit=1e9, edit_low=1e9, edit_high=1e9, edited=2.0)

    results = pretend(losing)
    text = savings.caption(CONFIG, results)
    assert f"{savings.STATELESS} saves nothing at n = 1,000" in text
    assert f"an edit of {savings.STATELESS} costs more than retraining" in text
    assert "NOT EVERY RUN MET IT" in text
    axes = savings.plot(CONFIG, results).axes
    assert axes[0].get_yscale() == "symlog"


def test_results_hold_every_run(pretend):
    results = pretend(fake(1.0))
    assert results[f"n: {savings.OPTIMAL}"].shape == (5, 2 + len(Measured._fields))
    assert results[f"constant: {savings.ACCELERATED}"][:, 0].tolist() == [100, 300, 1e3, 3e3, 1e4]
    figure = savings.plot(CONFIG, results)
    assert [axis.get_yscale() for axis in figure.axes[:5]] == ["log"] * 5


def test_expected_steps_per_e_fold():
    assert math.isclose(savings.steps_per_e_fold(CONFIG, savings.PAPER), 8 * KAPPA)
    assert math.isclose(savings.steps_per_e_fold(CONFIG, savings.SECRET), 1 / math.log(1.4))
    assert math.isclose(savings.steps_per_e_fold(CONFIG, savings.OPTIMAL), 1 / math.log(1.2))


def test_config_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        CONFIG.seeds = 1
