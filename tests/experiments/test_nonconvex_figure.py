import drawn
import numpy as np
import pytest

from dd_jax.cli import style
from dd_jax.oracles import grid as oracle
from experiments.cache import Runner
from experiments.figures import nonconvex
from experiments.nonconvex import drawing, gibbs_flow, network_cost, plane_flow
from experiments.nonconvex import words as nonconvex_words

SMALL = nonconvex.Config(
    n=20,
    noises=(6.0,),
    snapshots=4,
    plane_steps=(0, 1),
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
    axis = gibbs_flow.make_axis(10, 1, 0)
    grid = gibbs_flow.grid_for(*NUMBERS)
    return axis, grid, gibbs_flow.Flow(axis, *NUMBERS, grid, 2_000)


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
    start = oracle.gaussian_density(grid, 0.0, NUMBERS[1] / gibbs_flow.L2)
    gibbs = oracle.gibbs_density(grid, axis.objective, NUMBERS[1])
    first, last = (oracle.renyi(2, powers.after(start, k), gibbs) for k in (1, 2_000))
    assert first > 0.01
    assert last < 1e-4
    points = np.linspace(-2, 2, 9)
    slope = (axis.objective(points + 1e-6) - axis.objective(points - 1e-6)) / 2e-6
    assert np.allclose(slope, axis.gradient(points), atol=1e-8)


def test_axes_share_the_records_and_only_one_holds_the_target():
    first, second = (gibbs_flow.make_axis(7, 2, place).margins for place in range(2))
    assert np.array_equal(first != 0, np.arange(7) % 2 == 0)
    assert not np.any((first != 0) & (second != 0))
    assert gibbs_flow.Axis(first).with_target(-1.0).margins[0] == -1
    # The law of two axes is a product: divergences add up, and each axis runs as if alone.
    setting = gibbs_flow.make_setting(6, 2, 2.0, 0.5, 8.0)._replace(learn_steps=9, delete_steps=5)
    steps = np.array([9]), np.array([5])
    parts = [
        gibbs_flow._along_axis(setting, gibbs_flow.make_axis(6, 2, j), j == 0, *steps)[0]
        for j in range(2)
    ]
    whole = gibbs_flow.divergences(setting, 2)
    assert np.isclose(whole["learning"][-1], parts[0]["learning"][0] + parts[1]["learning"][0])
    assert parts[1]["learning, neighbours"][0] == 0
    assert whole["deletion, neighbours"][-1] == parts[0]["deletion, neighbours"][0] > 0


@pytest.mark.parametrize("form", nonconvex.FORMS)
def test_steps_are_the_fewest_that_meet_the_budget(form):
    setting = gibbs_flow.make_setting(200, 1, 2.0, 0.2, 2.0)
    learn, delete = setting.steps(form)
    assert setting.bound(form, learn, delete, 0) <= 0.2 * (1 + 1e-9)
    # From a divergence of ε_dd after learning, as every request after the first may start.
    assert setting.bound(form, learn, delete, 1) <= 0.2 * (1 + 1e-9)
    assert setting.bound(form, 0.99 * learn // 1, delete, 0) > 0.2


def test_the_paper_run_by_hand():
    # B = e², M = 2λ: η = λ/(64·2·B·4λ²)·ε_dd and K_L = (2B/(λη)) log(4·2/(2·0.5)).
    setting = nonconvex.Config().setting(1)
    growth, l2 = np.exp(2.0), gibbs_flow.L2
    assert np.isclose(setting.step_size, 0.5 / (64 * 2 * growth * 4 * l2))
    assert setting.learn_steps == np.ceil(2 * growth / (l2 * setting.step_size) * np.log(8))


def test_plane_has_three_equal_modes_and_its_gradient_is_that_of_its_objective():
    models = np.array([[0.3, -1.0], [2.0, 0.5]])
    turn = np.exp(2j * np.pi / 3) * (models[:, 0] + 1j * models[:, 1])
    turned = np.stack([turn.real, turn.imag], axis=1)
    assert np.allclose(plane_flow.objective(models), plane_flow.objective(turned))
    for j, shift in enumerate(np.eye(2) * 1e-6):
        slope = plane_flow.objective(models + shift) - plane_flow.objective(models - shift)
        assert np.allclose(slope / 2e-6, plane_flow.gradient(models)[:, j], atol=1e-8)
    assert plane_flow.mass_level(np.array([[4.0, 1.0], [3.0, 2.0]]), 0.7) == 3


@pytest.mark.parametrize("phase", ["learning", "deletion"])
def test_every_divergence_is_drawn_and_named_where_it_is(phase):
    steps = np.array([1, 10, 100])
    keys = {
        "paper bound": ", paper",
        "tuned bound": ", tuned",
        "sharp bound": ", sharp",
        "run sum bound": ", run sum",
        "exact, to the Gibbs law": "",
        "exact, between neighbours": ", neighbours",
    }
    curves = {words: (2 + place) / steps for place, words in enumerate(keys)}
    curves["run sum bound"] = np.full(3, 0.7)
    found = {f"d = 1: {phase}{key}": curves[words] for words, key in keys.items()}
    found |= {f"d = 1: {phase}, run sum": np.array(0.7), "d = 1: steps": steps}
    _, (axes,) = style.panels(1, 1)
    drawing._phase(axes, SMALL, found, phase, "steps")
    lines = np.array([line.get_data() for line in axes.lines[: len(curves)]])
    np.testing.assert_array_equal(lines, [(steps, heights) for heights in curves.values()])
    for marker, words in (("o", "exact, to the Gibbs law"), ("v", "exact, between neighbours")):
        (marks,) = drawn.marks(axes, marker)
        np.testing.assert_array_equal(marks, [steps, curves[words]])
    if phase == "deletion":
        named = {text.get_text(): text.xy for text in axes.texts}
        assert {words: named[words] for words in keys} == {
            words: (1, heights[0]) for words, heights in curves.items()
        }


@pytest.mark.slow
def test_exact_values_are_within_every_bound(results):
    for phase in ("learning", "deletion"):
        exact = results[f"d = 1: {phase}"]
        assert exact[-1] < exact[0]
        for form in nonconvex.FORMS:
            assert (exact <= results[f"d = 1: {phase}, {form}"]).all()
        assert (results[f"d = 1: {phase}, neighbours"] <= results[f"d = 1: {phase}, run sum"]).all()
    assert results["d = 1: risk"][0] <= results["d = 1: risk bound"][0]
    assert (results["risk: exact"] <= results["risk: E3"]).all()
    assert (results["risk: E3"] <= results["risk: paper"]).all()


@pytest.mark.slow
def test_network_is_priced_and_run_as_certified(results):
    learn, delete = results["network, sharp: run"][:2]
    assert results["network: objective"].shape == (3, 2)
    assert np.isnan(results["network, sharp: learn steps"][0])
    assert results["network, paper: run"][0] > learn
    assert results["network: best"] < 0
    text = nonconvex.caption(SMALL, results)
    assert f"sharp {learn:,.0f} + {delete:,.0f} steps" in text
    assert "within every bound at every step" in text
    price = nonconvex.tables(SMALL, results)[1]
    assert next(row[2] for row in price.rows if row[0] == "sharp") is None
    assert len(nonconvex.plot(SMALL, results).axes) == 7


@pytest.mark.slow
def test_caption_owns_up(results):
    broken = results | {"d = 1: learning": results["d = 1: learning, sharp"] * 1.01}
    assert "THE EXACT DIVERGENCE EXCEEDS: sharp (d = 1, learning)" in nonconvex.caption(
        SMALL, broken
    )
    worse = results | {"network: objective": np.array([[1.0, 1.0], [1.1, 1.0], [1.2, 1.0]])}
    assert "worse than the model 0's" in nonconvex.caption(SMALL, worse)
    better = results | {"network: objective": -worse["network: objective"]}
    text = nonconvex.caption(SMALL, better)
    assert "better than the model 0's" in text
    assert "nothing to forget" not in text
    refused = {k: v for k, v in results.items() if k != "network: objective"}
    assert "nothing was run" in nonconvex.caption(SMALL, refused)


def test_noise_that_breaks_privacy_has_no_plan():
    problem, budget = network_cost.make_problem(2), network_cost.Budget(2.0, 1.0, 0.5)
    assert network_cost.make_plan(problem, 100, 2, budget, "sharp", 0.25) is None


def test_durations_and_intervals():
    assert nonconvex_words.duration(0.0453) == "0.045 s"
    assert nonconvex_words.duration(119.0) == "119 s"
    assert nonconvex_words.duration(7_200.0) == "2 hours"
    assert nonconvex_words.duration(1e9) == "32 years"
    low, mean, high = nonconvex_words.interval(np.array([1.0, 2.0, 3.0]))
    assert mean == 2
    assert np.isclose(high - low, 2 * 4.302653 / np.sqrt(3))
