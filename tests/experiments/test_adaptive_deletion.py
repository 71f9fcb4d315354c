"""The figure of adaptive deletion: a requester that attains the certificate, and two attacks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from shown import column, shown

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


@pytest.fixture(scope="module")
def results():
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


def test_one_look_arms_the_password(results):
    assert results["password, 1 seen"].tolist() == [1]
    assert results["password, 0 seen low"] < 1 / 4 < results["password, 0 seen high"]
    # q = 2: ε_dd = log(1 + 1/M²), and √(2ε) is the smaller of the two forms.
    assert results["password claimed"] == pytest.approx([np.sqrt(2 * np.log(1 + 1 / 16))])


def test_privacy_is_necessary_where_deletion_retrains(results):
    scale = necessity.noise_scale(CONFIG.n, CONFIG.order, 4.0)
    for curator in (RETRAINS, REMEMBERS):
        truth = necessity.exact(curator, CONFIG.n, scale)
        low, high = (results[f"necessity {curator} {end}"][1] for end in ("low", "high"))
        assert low <= truth.attack <= high
        product = results[f"necessity {curator} product"][1]
        assert product == pytest.approx(truth.learner * truth.deleter, abs=0.05)


def test_tables_say_what_holds_and_what_is_refuted(results):
    (look,), (password,), needed = shown(adaptive_deletion, CONFIG, results)
    assert (look["p"], look["verdict"], look["interval contains it"]) == (2, "consistent", True)
    assert look[adaptive_deletion.BEYOND]
    verdict = "verdict on the reduction as stated"
    assert password[verdict] == "refuted"
    # In the product's interval where deletion retrains, below it where the curator leans.
    assert column(needed, "interval contains it") == [True, True, False, False]
    assert column(needed, "below it") == [False, False, True, True]
    wrong = results | {"looks low": np.ones(1), "password, 1 seen low": np.zeros(1)}
    (look,), (password,), _ = shown(adaptive_deletion, CONFIG, wrong)
    assert (look["verdict"], password[verdict]) == ("refuted", "consistent")
