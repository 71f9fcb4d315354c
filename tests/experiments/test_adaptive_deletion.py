"""The figure of adaptive deletion: a requester that attains the certificate, and the rows read."""

import types
from dataclasses import replace

import drawn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dd_jax as dd
from dd_jax.attacks import necessity_curators, recoding
from dd_jax.attacks.necessity_curators import REMEMBERS, RETRAINS
from dd_jax.guarantees import inference
from dd_jax.interaction import Observation
from experiments import adaptive_runs, waiting_recoder
from experiments.cache import Runner
from experiments.figures import adaptive_deletion

CONFIG = adaptive_deletion.Config(
    n=10, eps_dp=1.0, looks=(2,), seeds=2_000, passwords=(4,), budgets=(1.0, 4.0)
)
PLAN = recoding.make_plan(CONFIG.n, CONFIG.order, CONFIG.eps_dp)
DECAY = (1 - PLAN.step_size) ** PLAN.delete_steps


class FakeNecessity:
    """The attack's rows at their exact values, without playing it."""

    def run(self, key, *, epsilon, order, seeds, confidence):
        del key, seeds, confidence
        scale = necessity_curators.noise_scale(10, order, epsilon)
        rows = []
        for curator in (RETRAINS, REMEMBERS):
            truth = necessity_curators.exact(curator, 10, scale)
            named = {
                "Adv(Test)": truth.learner,
                "Adv(Test̄) from θ = +1": truth.deleter,
                "P[Test̄ = 1] from θ = +1": truth.rates[0],
                "Adv(Test̄) from θ = -1": truth.deleter,
                "Adv(MI)": truth.attack,
                "Adv(MI), swapped requester": truth.swapped,
            }
            rows += [
                {"curator": curator, "what": what, "exact": value, "success": value}
                | {"low": value - 0.01, "high": value + 0.01}
                for what, value in named.items()
            ]
        return types.SimpleNamespace(rows=rows, theory={"epsilon_at_least": epsilon / 10})


@pytest.fixture(scope="module")
def results():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(adaptive_runs.attacks, "find", lambda name: FakeNecessity())
        return adaptive_deletion.compute(CONFIG, Runner())


def test_the_requester_knows_the_likelihood_ratio_of_the_chain():
    """By the joint law of three releases, whose means are ±m and whose covariances decay."""
    seen = np.array([0.3, -0.5, 0.1], np.float32)
    curious = waiting_recoder.requester(CONFIG.n, 3, DECAY)
    act, key = jax.jit(curious.act), jax.random.key(0)
    memory, rows = curious.init(key), jnp.zeros((CONFIG.n, 1)).at[0].set(1)
    for request, release in enumerate(seen, start=1):
        look = Observation(jnp.asarray([release]), jnp.asarray(True), jnp.int32(request))
        memory, edit = act(key, memory, look)
        before, rows = rows, dd.apply_edit(rows, edit)
        if request < 3:
            np.testing.assert_array_equal(rows, before)
    spread = 0.04
    gap = np.abs(np.subtract.outer(np.arange(3), np.arange(3)))
    ratio = 2 * 0.1 * np.ones(3) @ np.linalg.solve(spread * DECAY**gap, seen)
    assert float(memory.ratio[0]) * 2 * 0.1 / spread == pytest.approx(ratio, rel=1e-4)
    assert rows[:, 0].tolist() == [0] + [np.sign(ratio)] * (CONFIG.n - 2) + [0]


def test_the_certificate_is_attained_with_and_without_looks(results):
    """μ² = ε_dd, and ε_dp + ε_dp (1 - c^K_U)/(1 + c^K_U) with two releases seen (q = 2)."""
    for seen, squares in ((0, DECAY**2), (2, 1 + (1 - DECAY) / (1 + DECAY))):
        expected = inference.advantage_gdp(squares**0.5)
        bounds = adaptive_runs._bounds(PLAN, CONFIG.order, seen)
        assert waiting_recoder.exact(PLAN, seen) == pytest.approx(expected, rel=1e-3)
        assert bounds["intervals"] == pytest.approx(expected, rel=1e-3)
        assert bounds["intervals"] <= bounds["certified"] * (1 + 1e-9) < bounds["paper"]
    assert results["looks low"] <= results["looks exact"] <= results["looks high"]
    assert results["looks low"] > results["looks fixed"]
    assert results["looks intervals"] == bounds["intervals"]


def test_one_look_arms_the_password(results):
    assert results["password, 1 seen"].tolist() == [1]
    assert results["password, 0 seen low"] < 1 / 4 < results["password, 0 seen high"]
    # q = 2: ε_dd = log(1 + 1/M²), and √(2ε) is the smaller of the two forms.
    assert results["password claimed"] == pytest.approx([np.sqrt(2 * np.log(1 + 1 / 16))])


def test_rows_of_the_necessity_attack_are_read_by_curator(results):
    truth = necessity_curators.exact(
        REMEMBERS, 10, necessity_curators.noise_scale(10, CONFIG.order, 4.0)
    )
    product = results[f"necessity {REMEMBERS} product"][1]
    assert product == pytest.approx(truth.learner * truth.deleter)
    assert results[f"necessity {REMEMBERS}"].tolist() == [0, 0]
    retrained = results[f"necessity {RETRAINS}"]
    np.testing.assert_allclose(retrained, results[f"necessity {RETRAINS} product"])
    assert results["necessity at least"] == pytest.approx([0.1, 0.4])


def test_caption_table_and_picture(results):
    caption = adaptive_deletion.caption(CONFIG, results)
    assert "is not shown to be beyond the certificate" in caption
    assert "is beaten at p = 2." in caption
    assert "at ε = 4 no ε below 0.4" in caption
    assert "at 1 of 1 values of M" in caption
    assert "in its interval at 2 of 2 values of ε" in caption
    assert "stays below the product at 2 of 2" in caption
    wrong = results | {"looks low": np.ones(1), "password, 1 seen low": np.zeros(1)}
    caption = adaptive_deletion.caption(CONFIG, wrong)
    assert "EXCEEDS the certificate" in caption
    assert "DO NOT ALL CONTAIN" in caption
    assert "at 0 of 1 values of M" in caption
    (table,) = adaptive_deletion.tables(CONFIG, results)
    assert [row[0] for row in table.rows] == [2]
    assert table.rows[0][1] == results["looks"][0]
    assert CONFIG.runs == replace(CONFIG, seeds=1).runs == 1 + 2 + 2


def test_every_curator_and_bound_is_drawn_under_its_own_name(results):
    found = results | {
        f"necessity {REMEMBERS} product": np.array([0.1, 0.2]),
        f"necessity {REMEMBERS}": np.array([0.01, 0.02]),
    }
    left, middle, right = adaptive_deletion.plot(CONFIG, found).axes
    named = {label: f"looks {name}" for name, (label, _) in adaptive_deletion.BOUNDS.items()}
    for label, name in ({"best requester, measured": "looks"} | named).items():
        np.testing.assert_array_equal(drawn.curve(left, label), [[2], found[name]])
    for label, heights in (
        ("requester sees 1 release, measured", found["password, 1 seen"]),
        ("requester sees 0 releases, measured", found["password, 0 seen"]),
        ("exact, no release seen: 1/M", [0.25]),
        ("thm:reduction as stated allows", found["password claimed"]),
    ):
        np.testing.assert_array_equal(drawn.curve(middle, label), [[4], heights])
    for label, name in (
        ("retrains: certified, p = 1", "necessity certified"),
        ("retrains: measured", f"necessity {RETRAINS}"),
        ("retrains: product of tests", f"necessity {RETRAINS} product"),
        ("leans against its model: measured", f"necessity {REMEMBERS}"),
        ("leans against its model: product of tests", f"necessity {REMEMBERS} product"),
    ):
        np.testing.assert_array_equal(drawn.curve(right, label), [CONFIG.budgets, found[name]])
