"""The figure of adaptive deletion: a requester that attains the certificate, and the rows read."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dd_jax as dd
from dd_jax.attacks import necessity, recoding
from dd_jax.attacks.necessity import REMEMBERS, RETRAINS
from dd_jax.guarantees import inference
from dd_jax.interaction import Observation
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
        scale = necessity.noise_scale(10, order, epsilon)
        rows = []
        for curator in (RETRAINS, REMEMBERS):
            truth = necessity.exact(curator, 10, scale)
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
        patch.setattr(adaptive_deletion.attacks, "find", lambda name: FakeNecessity())
        return adaptive_deletion.compute(CONFIG, Runner())


def test_the_requester_knows_the_likelihood_ratio_of_the_chain():
    """By the joint law of three releases, whose means are ±m and whose covariances decay."""
    seen = np.array([0.3, -0.5, 0.1], np.float32)
    curious = adaptive_deletion.waiting_recoder(CONFIG.n, 3, DECAY)
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
        bounds = adaptive_deletion.bounds(PLAN, CONFIG.order, seen)
        assert adaptive_deletion.exact_advantage(PLAN, seen) == pytest.approx(expected, rel=1e-3)
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
    truth = necessity.exact(REMEMBERS, 10, necessity.noise_scale(10, CONFIG.order, 4.0))
    product = results[f"necessity {REMEMBERS} product"][1]
    assert product == pytest.approx(truth.learner * truth.deleter)
    assert results[f"necessity {REMEMBERS}"].tolist() == [0, 0]
    retrained = results[f"necessity {RETRAINS}"]
    np.testing.assert_allclose(retrained, results[f"necessity {RETRAINS} product"])
    assert results["necessity at least"] == pytest.approx([0.1, 0.4])


def test_tables_say_what_holds_and_what_is_refuted(results):
    adaptive_deletion.plot(CONFIG, results)
    looks, passwords, necessity = adaptive_deletion.tables(CONFIG, results)
    (look,) = (dict(zip(looks.columns, row, strict=True)) for row in looks.rows)
    assert (look["p"], look["verdict"]) == (2, "consistent")
    assert look["interval contains it"]
    assert look[adaptive_deletion.BEYOND]
    assert passwords.rows[0][-1] == "refuted"
    # In the product's interval where deletion retrains, below it where the curator leans.
    assert [row[-3:-1] for row in necessity.rows] == [(True, False)] * 2 + [(False, True)] * 2
    wrong = results | {"looks low": np.ones(1), "password, 1 seen low": np.zeros(1)}
    looks, passwords, _ = adaptive_deletion.tables(CONFIG, wrong)
    assert "refuted" in looks.rows[0]
    assert passwords.rows[0][-1] == "consistent"
