"""The saving without convexity: the paper's step counts give the correction, not the claim."""

import numpy as np
from shown import shown

from experiments.cache import Runner
from experiments.figures import nonconvex_saving as figure


def test_the_step_counts_save_what_the_correction_says_and_never_more_than_log_2():
    config = figure.Config(points=4)
    results = figure.compute(config, Runner())
    savings, steps = shown(figure, config, results)
    assert {row["verdict"] for row in savings} == {"corrected"}
    over_n = [row for row in savings if row["r"] == 1]
    assert all(row["by the step counts"] < np.log(2) for row in savings)
    assert max(row["claimed, log(n/r)"] for row in over_n) > 13
    # Positive exactly up to a quarter of the records.
    assert figure.steps(config, 1000, 249, "paper")[0] > figure.steps(config, 1000, 249, "paper")[1]
    assert figure.steps(config, 1000, 251, "paper")[0] < figure.steps(config, 1000, 251, "paper")[1]
    assert len(steps) == len(savings)


def test_a_wrong_correction_would_be_reported(monkeypatch):
    config = figure.Config(points=3)
    results = figure.compute(config, Runner())
    monkeypatch.setattr(figure, "corrected", figure.claimed)
    savings, _ = shown(figure, config, results)
    assert {row["verdict"] for row in savings} == {"NOT EXPLAINED"}
