"""The figure of audits: what more seeds give, and what its tables say."""

from dataclasses import replace

import jax
import numpy as np
import pytest
from shown import column, shown

from dd_jax.audit.settings import base as audits
from dd_jax.audit.settings import find
from dd_jax.audit.settings.base import Keep
from dd_jax.ensemble import Pair
from dd_jax.intervals import simultaneous
from experiments.cache import Runner
from experiments.figures import audit_power

CONFIG = audit_power.Config(climb_seeds=(500, 2_000))


def test_growth_is_that_of_audits_of_the_first_seeds():
    """One pool serves all sizes, each judged at the confidence of all bounds together."""
    key, runner = jax.random.key(3), Runner()
    linear = find("linear", 2.0)
    found = audit_power.climb(key, CONFIG, linear, runner)
    (case,) = [case for case in linear.audited if case.name == "deletion-1"]
    case_key = jax.random.fold_in(key, 1)
    pool = audits.sample(linear, "deleted", case_key, 2_000, Keep(None), runner.say)
    for place, size in enumerate(CONFIG.climb_seeds):
        first = Pair(*(arm[:size] for arm in pool))
        each = simultaneous(0.95, 4)
        row = audits.judge(case, linear, first, each, runner.say).to_dict()
        for number in audit_power.CLIMBED:
            assert found[f"climb deletion-1: {number}"][place] == row[number]
    for name in audit_power.CLIMBING:
        audited, exact, _, caught = (found[f"climb {name}: {key}"] for key in audit_power.CLIMBED)
        assert (audited < exact).all()
        assert exact[1] < caught[1] < caught[0]


def test_mutants_are_found_with_enough_seeds_and_nulls_never():
    names = ("half noise", "null, gaussian_mu")
    config = replace(
        CONFIG, mutants=names, mutant_seeds=(300, 5_000), mutant_pool=10_000, mutant_audits=3
    )
    found = audit_power.mutants(jax.random.key(0), config, Runner())
    assert found["mutants audits"].tolist() == [3, 2]
    assert found["mutants flagged"].tolist() == [[0, 2], [0, 0]]
    assert found["mutants correct flagged"].tolist() == [0, 0]
    table = audit_power.mutant_table(config, found)
    name, _, gate, *cells, low, high, alarms = table.rows[1]
    assert (name, gate, *cells, alarms) == ("half noise", "gaussian_mu", 5000, 2, 2, 0)
    # Clopper-Pearson of 2 in 2, with a quarter of the risk of 0.05.
    assert (low, high) == (pytest.approx((0.05 / 4 / 2) ** 0.5), 1.0)
    assert table.rows[0][-1] is None


def test_tables_and_picture_have_every_claim():
    config = replace(CONFIG, mutants=("half noise", "missing clip"))
    results = {
        "linear: one release": np.array([0.9, 1.0, 1.0, 2.0, 1.2, 0]),
        "linear: recoded": np.array([0.4, 0.5, 1.1, 3.3, 1.5, 0]),
        "logistic: deleted": np.array([0.0, np.nan, 0.1, 1.3, 0.2, 1]),
        "climb seeds": np.array([500, 50_000]),
        "mutants seeds": np.array([300, 3_000]),
        "mutants audits": np.array([6, 2]),
        "mutants flagged": np.array([[1, 2], [0, 1]]),
        "mutants correct flagged": np.array([0, 1]),
    }
    for name in audit_power.CLIMBING:
        results |= {f"climb {name}: {key}": np.ones(2) for key in audit_power.CLIMBED}
    claims, *_ = shown(audit_power, config, results)
    assert column(claims, "verdict") == ["consistent", "consistent", "refuted"]
    assert column(claims, "audited") == [0.9, 0.4, 0.0]
    assert column(claims, "paper / certified") == pytest.approx([2, 3, 13])
