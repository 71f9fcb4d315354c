import numpy as np
import pytest
from shown import column, shown

from dd_jax.oracles import grid as oracle
from experiments.cache import Runner
from experiments.figures import nonconvex
from experiments.figures.nonconvex import Axis, Flow, make_axis

SMALL = nonconvex.Config(
    n=20,
    noises=(6.0,),
    snapshots=4,
    points=5,
    network_n=6,
    network_noise=8.0,
    network_seeds=3,
)
NUMBERS = (0.01, 1.5)  # η and σ²


@pytest.fixture(scope="module")
def results():
    return nonconvex.compute(SMALL, Runner())


@pytest.fixture(scope="module")
def flow():
    axis = make_axis(10, 1, 0)
    grid = nonconvex.flow_grid(*NUMBERS)
    return axis, grid, Flow(axis, *NUMBERS, grid, 2_000)


def test_flow_is_the_law_of_the_oracle_at_any_number_of_steps(flow):
    axis, grid, powers = flow
    start = oracle.gaussian_density(grid, 0.3, 0.5)
    fine = oracle.make_grid(*grid.low, *grid.high, 2 * grid.size[0] - 1)
    phase = oracle.Phase(axis.gradient, 37)
    known = oracle.law_after([phase], *NUMBERS, oracle.gaussian_density(fine, 0.3, 0.5), fine)
    found = powers.after(start, 37)
    assert np.allclose(found.values, known.values[::2], atol=1e-10)
    again = powers.after(powers.after(start, 5), 32)
    assert np.allclose(found.values, again.values, atol=1e-13)


def test_flow_ends_at_the_gibbs_law_and_its_gradient_is_that_of_its_objective(flow):
    axis, grid, powers = flow
    start = oracle.gaussian_density(grid, 0.0, NUMBERS[1] / nonconvex.L2)
    gibbs = oracle.gibbs_density(grid, axis.objective, NUMBERS[1])
    first, last = (oracle.renyi(2, powers.after(start, k), gibbs) for k in (1, 2_000))
    assert first > 0.01
    assert last < 1e-4
    points = np.linspace(-2, 2, 9)
    slope = (axis.objective(points + 1e-6) - axis.objective(points - 1e-6)) / 2e-6
    assert np.allclose(slope, axis.gradient(points), atol=1e-8)


def test_axes_share_the_records_and_only_one_holds_the_target():
    first, second = (make_axis(7, 2, place).margins for place in range(2))
    assert np.array_equal(first != 0, np.arange(7) % 2 == 0)
    assert not np.any((first != 0) & (second != 0))
    assert Axis(first).with_target(-1.0).margins[0] == -1
    # The law of two axes is a product: divergences add up, and each axis runs as if alone.
    run = nonconvex.certified_run(6, 2, 2.0, 0.5, 8.0)._replace(learn_steps=9, delete_steps=5)
    steps = np.array([9]), np.array([5])
    parts = [nonconvex.along_axis(run, make_axis(6, 2, j), j == 0, *steps) for j in range(2)]
    whole = nonconvex.divergences(run, 2)
    assert np.isclose(whole["learning"][-1], parts[0]["learning"][0] + parts[1]["learning"][0])
    assert parts[1]["learning, neighbours"][0] == 0
    assert whole["deletion, neighbours"][-1] == parts[0]["deletion, neighbours"][0] > 0


@pytest.mark.parametrize("form", nonconvex.FORMS)
def test_steps_are_the_fewest_that_meet_the_budget(form):
    run = nonconvex.certified_run(200, 1, 2.0, 0.2, 2.0)
    learn, delete = run.steps(form)
    assert run.bound(form, learn, delete, 0) <= 0.2 * (1 + 1e-9)
    # From a divergence of ε_dd after learning, as every request after the first may start.
    assert run.bound(form, learn, delete, 1) <= 0.2 * (1 + 1e-9)
    assert run.bound(form, 0.99 * learn // 1, delete, 0) > 0.2


@pytest.mark.slow
def test_a_tiny_run_stays_within_every_bound(results):
    for phase in nonconvex.PHASES:
        exact = results[f"d = 1: {phase}"]
        assert exact[-1] < exact[0]
        for form in nonconvex.FORMS:
            assert (exact <= results[f"d = 1: {phase}, {form}"]).all()
        assert (results[f"d = 1: {phase}, neighbours"] <= results[f"d = 1: {phase}, run sum"]).all()
    assert results["d = 1: risk"][0] <= results["d = 1: risk bound"][0]
    assert (results["risk: exact"] <= results["risk: E3"]).all()
    assert (results["risk: E3"] <= results["risk: paper"]).all()
    divergences, _, risks, price, (network,) = shown(nonconvex, SMALL, results)
    assert set(column(divergences + risks, "verdict")) == {"consistent"}
    # The network: refused at the least noise, priced and run as certified at the largest.
    learn, delete = results["network, sharp: run"][:2]
    assert results["network: objective"].shape == (3, 2)
    assert np.isnan(next(row["learn steps"] for row in price if row["form"] == "sharp"))
    assert results["network, paper: run"][0] > learn
    assert results["network: best"] < 0
    assert (network["K_L"], network["K_U"]) == (learn, delete)


@pytest.mark.slow
def test_tables_say_what_is_refuted_worse_or_not_run(results):
    wrong = results | {
        "d = 1: learning": results["d = 1: learning, sharp"] * 1.01,
        "network: objective": np.array([[1.0, 1.0], [1.1, 1.0], [1.2, 1.0]]),
    }
    divergences, *_, (network,) = shown(nonconvex, SMALL, wrong)
    assert divergences[0]["verdict"] == "refuted"
    assert "worse" in network["verdict"]
    refused = {name: values for name, values in results.items() if name != "network: objective"}
    assert not nonconvex.tables(SMALL, refused)[4].rows
