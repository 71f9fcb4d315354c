"""The benchmark's ratios are of one computation in several forms, and past runs are kept."""

import dataclasses

import numpy as np
import pytest

from dd_jax import databases, erm
from experiments.bench import cells, forms, run, streams


def test_every_form_computes_the_same_gradient(monkeypatch):
    """A ratio between different computations would mean nothing."""
    monkeypatch.setattr(forms, "CLIP_NORM", 1e6)
    database, params = forms.logistic_inputs(50, 4, 3)
    problem = forms.logistic_problem()
    ours = forms.batched(problem)(params, database)
    mean = forms.batched(problem, forms.grad_of_mean)(params, database)
    np.testing.assert_allclose(ours, mean, atol=1e-6)
    monkeypatch.setattr(forms, "CLIP_NORM", 0.3)
    problem = forms.logistic_problem()
    ours = forms.batched(problem)(params, database)
    np.testing.assert_allclose(
        ours, forms.numpy_gradient(np.asarray(params), database)(), atol=1e-6
    )
    np.testing.assert_allclose(ours, forms.per_record(problem, 50)(params, database), atol=1e-6)
    assert np.abs(np.asarray(ours - mean)).max() > 1e-3, "clipping acts"


@pytest.mark.slow
def test_a_cell_measures_ratios_of_the_same_run():
    setting = cells.Setting(200, 5, 16, reference_seeds=4)
    cell = cells.measure(setting, gemm=1e9, cores=1)
    assert (cell.n, cell.d, cell.seeds, cell.cores, cell.torch_ratio) == (200, 5, 16, 1, None)
    for name in ("gemm_ratio", "grad_of_mean_ratio", "vmap_grad_ratio", "numpy_ratio"):
        assert getattr(cell, name) > 0
    # Database, models, gradients and limits at least; never one gradient per record and seed.
    assert 4 * (200 * 6 + 2 * 16 * 5) <= cell.peak_bytes < 4 * 200 * 5 * 16
    network = cells.measure(dataclasses.replace(setting, hidden=3), gemm=1e9, cores=1)
    assert network.loss == "network 5-3-1, clipped"
    assert network.vmap_grad_ratio > 0


@pytest.mark.slow
def test_streams_are_measured():
    found = streams.ratios(n=200, d=3, seeds=4, requests=1)
    assert found.pop("request_overhead") > -1
    assert all(value > 0 for value in found.values())


def test_an_overlays_state_is_one_base_and_slots_per_seed():
    # Base: 10 rows of 3 features and a label; a slot: row, old and new record, a flag.
    assert streams.overlay_bytes(10, 3, 7, 2) == 10 * 4 * 4 + 7 * 2 * (4 + 2 * 4 * 4 + 1)


def test_exponents_are_slopes_of_logarithms():
    assert streams._exponent([(10, 2.0), (100, 200.0), (1000, 20_000.0)]) == pytest.approx(2)


def test_past_results_are_kept_and_the_last_of_the_same_cores_is_found(tmp_path):
    path = tmp_path / "deep" / "bench.jsonl"
    results = [{"cores": 1, "cells": [], "growth": {"n": float(k)}} for k in range(3)]
    assert run.remember(path, results[0]) is None
    assert run.remember(path, {"cores": 2, "cells": []}) is None
    last = run.remember(path, results[1])
    assert last["growth"] == {"n": 0.0}
    assert {"date", "versions", "machine"} <= last.keys()
    assert run.remember(path, results[2])["growth"] == {"n": 1.0}


def test_multiplicities_and_copies_have_the_same_gradient():
    """What `streams.multiplicities` times is the gradient of the expanded database."""
    database, params = forms.logistic_inputs(6, 2, 1)
    counted = databases.counted(database, np.full(6, 5))
    problem = forms.logistic_problem()
    plain = erm.gradient(problem, params[0], databases.expand(counted))
    np.testing.assert_allclose(erm.gradient(problem, params[0], counted), plain, atol=1e-7)
