"""The benchmark's ratios are of one computation in several forms, and past runs are kept."""

import dataclasses
import json

import jax
import numpy as np
import pytest

from dd_jax import cli, databases, erm
from experiments.__main__ import PROGRAM
from experiments.bench import kernel, run, streams
from experiments.commands import bench


def test_every_form_computes_the_same_gradient(monkeypatch):
    """A ratio between different computations would mean nothing."""
    monkeypatch.setattr(kernel, "CLIP_NORM", 1e6)
    database, params = kernel.logistic_inputs(50, 4, 3)
    problem = kernel.logistic_problem()
    ours = kernel.batched(problem)(params, database)
    mean = kernel.batched(problem, kernel.grad_of_mean)(params, database)
    np.testing.assert_allclose(ours, mean, atol=1e-6)
    monkeypatch.setattr(kernel, "CLIP_NORM", 0.3)
    problem = kernel.logistic_problem()
    ours = kernel.batched(problem)(params, database)
    np.testing.assert_allclose(
        ours, kernel.numpy_gradient(np.asarray(params), database)(), atol=1e-6
    )
    np.testing.assert_allclose(ours, kernel.per_record(problem, 50)(params, database), atol=1e-6)
    assert np.abs(np.asarray(ours - mean)).max() > 1e-3, "clipping acts"


@pytest.mark.slow
def test_a_cell_measures_ratios_of_the_same_run(monkeypatch):
    monkeypatch.setattr(kernel, "GEMM_SIZES", (64,))
    monkeypatch.setattr(kernel.importlib.util, "find_spec", lambda name: None)
    setting = kernel.Workload(200, 5, 16, reference_seeds=4, torch_steps=1)
    cell = kernel.measure(setting)
    assert (cell.n, cell.d, cell.seeds, cell.cores, cell.torch_ratio) == (200, 5, 16, 1, None)
    for name in ("gemm_ratio", "grad_of_mean_ratio", "vmap_grad_ratio", "numpy_ratio"):
        assert getattr(cell, name) > 0
    # Database, models and gradients at least; never one gradient per record and seed.
    assert 4 * (200 * 6 + 2 * 16 * 5) <= cell.peak_bytes < 4 * 200 * 5 * 16
    assert cell.peak_bytes <= cell.formula_bytes
    network = kernel.measure(dataclasses.replace(setting, hidden=3))
    assert network.loss == "network 5-3-1, clipped"
    assert network.vmap_grad_ratio > 0
    softmax = kernel.measure(dataclasses.replace(setting, classes=3))
    assert softmax.loss == "softmax, 3 classes, clipped"
    assert softmax.peak_bytes <= softmax.formula_bytes


@pytest.mark.slow
def test_streams_are_measured():
    found = streams.ratios(n=200, d=3, seeds=4, requests=1)
    assert found.pop("request_overhead") > -1
    assert found.pop("request_overhead_with_noise") > -1
    assert all(value > 0 for value in found.values())


def test_steps_without_noise_are_the_gradient_work_of_the_noisy_ones():
    """The overhead of a request is measured against the same steps in the same form."""
    database, params = kernel.logistic_inputs(30, 3, 1)
    quiet, plain = (
        steps(jax.random.key(0), params[0], database)
        for steps in (
            kernel.noisy_run(kernel.logistic_problem(), 7, noise=0.0),
            streams._plain_steps(7),
        )
    )
    np.testing.assert_allclose(quiet, plain, atol=1e-6)
    assert np.abs(np.asarray(plain - params[0])).max() > 0.01


def test_a_second_copy_of_the_database_would_show():
    """A record is 5 features and a label of 4 bytes, in each copy."""

    def bytes_of(n, copies):
        database, params = kernel.logistic_inputs(n, 5, 2)
        stack = jax.tree.map(lambda leaf: np.stack([leaf] * copies), database)
        step = jax.vmap(lambda theta, rows: erm.gradient(kernel.logistic_problem(), theta, rows))
        return kernel.peak_bytes(jax.jit(step).lower(params[:copies], stack))

    one, two = (streams.record_bytes(lambda n, c=c: bytes_of(n, c), 3_000) for c in (1, 2))
    assert one >= 4 * 6
    assert two > 1.9 * one
    assert streams.pair_memory(3_000, 5, 4) == pytest.approx(1, abs=0.05)


def test_an_overlays_state_is_one_base_and_slots_per_seed():
    # Base: 10 rows of 3 features and a label; a byte for each of them; a slot: row, record, a flag.
    assert streams.overlay_bytes(10, 3, 7, 2) == 10 * 4 * 4 + 7 * (10 + 2 * (4 + 4 * 4 + 1))


def test_exponents_are_slopes_of_logarithms():
    assert kernel.exponent((10, 100, 1000), (2.0, 200.0, 20_000.0)) == pytest.approx(2)


def test_growth_times_each_axis_and_holds_memory_to_the_formula(monkeypatch):
    monkeypatch.setattr(kernel, "BASE", {"n": 40, "d": 2, "seeds": 2, "steps": 1})
    monkeypatch.setattr(kernel, "AXES", {"n": (40, 400)})
    found = kernel.growth(repeats=1)["n"]
    decade = np.log10(found["seconds"][1] / found["seconds"][0])
    assert found["time_exponent"] == pytest.approx(decade)
    assert all(np.array(found["bytes"]) <= found["formula_bytes"])


def a_result(ratio: float) -> dict:
    cell = kernel.Cell("logistic", 10, 2, 3, 1, gemm_ratio=ratio, targets={"gemm_ratio": 0.5})
    return {"cells": [dataclasses.asdict(cell)], "regressions": {}}


def test_a_fall_below_past_runs_is_named(tmp_path):
    path = tmp_path / "deep" / "bench.jsonl"
    assert run.past_runs(path) == []
    for ratio in (0.1, 0.6, 0.7, 0.8):
        run.remember(path, a_result(ratio))
    past = run.past_runs(path)
    assert {"date", "versions", "machine"} <= past[0].keys()
    # The median is 0.65: one slow run is no yardstick.
    name = "gemm_ratio: logistic, n=10, d=2, S=3"
    assert run.regressions(a_result(0.56), past) == {}
    assert run.regressions(a_result(0.55), past)[name]["before"] == pytest.approx(0.65)
    other = [entry | {"machine": "another"} for entry in past]
    path.write_text("".join(f"{json.dumps(entry)}\n" for entry in other))
    assert run.past_runs(path) == []


def test_the_last_five_runs_are_the_yardstick():
    past = [a_result(ratio) for ratio in (0.1, 0.1, 0.1, 0.9, 0.9, 0.9, 0.9, 0.9)]
    (found,) = run.regressions(a_result(0.5), past).values()
    assert found == {"now": 0.5, "before": 0.9}


def test_a_cost_that_grew_is_named():
    def result(loop, overhead, held):
        made = a_result(0.5) | {
            "ratios": {"host_loop_over_scan": loop, "request_overhead": overhead}
        }
        made["cells"][0]["peak_bytes"] = held
        return made

    past = [result(1.0, -0.01, 100)]
    assert run.regressions(result(1.14, 0.12, 114), past) == {}
    assert run.regressions(result(0.5, -0.4, 10), past) == {}, "smaller is better"
    assert set(run.regressions(result(1.16, 0.15, 116), past)) == {
        "host_loop_over_scan",
        "request_overhead",
        "peak_bytes: logistic, n=10, d=2, S=3",
    }


def test_lines_that_are_no_past_run_are_passed_over(tmp_path):
    path = tmp_path / "bench.jsonl"
    run.remember(path, a_result(0.5))
    whole = path.read_text()
    path.write_text(f"\n{whole[:40]}\n[1]\n{{}}\n{whole}" + whole[:40])
    assert [entry["cells"] for entry in run.past_runs(path)] == [a_result(0.5)["cells"]]


def test_files_that_cannot_be_written_are_refused_before_anything_is_measured(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    for option, path, words in (
        ("--history", tmp_path, "is a folder; name a file."),
        ("--figure", tmp_path / "file" / "x.png", "cannot be written; name another file."),
    ):
        assert cli.main(["bench", option, str(path)], PROGRAM) == 2
        assert capsys.readouterr().err == f"python -m experiments bench: {option} {path} {words}\n"


def test_ratios_are_of_best_times_each_for_all_seeds(monkeypatch):
    """Times that are known give ratios that are known; the reference ran with half of the seeds."""
    known = {"gemm 64": 2.0, "ours": 4.0, "slopes": 1.0, "grad of mean": 8.0, "numpy": 12.0}
    monkeypatch.setattr(kernel, "GEMM_SIZES", (64,))
    monkeypatch.setattr(kernel, "_torch_ratios", lambda *_: {})
    monkeypatch.setattr(kernel, "best_times", lambda functions, **_: known | {"per record": 100.0})
    cell = kernel.measure(kernel.Workload(20, 3, 4, reference_seeds=2))
    assert cell.gemm_ratio == pytest.approx((4 * 20 * 3 * 4 / 4.0) / (2 * 64**3 / 2.0))
    assert (cell.elementwise_ratio, cell.grad_of_mean_ratio, cell.numpy_ratio) == (0.25, 2, 3)
    assert cell.vmap_grad_ratio == 50


def test_the_shortest_time_of_each_form_counts():
    ticks = iter([0, 5, 10, 12, 20, 23, 30, 39])
    found = kernel.best_times(
        {"one": lambda: 1, "other": lambda: 2}, repeats=2, clock=lambda: next(ticks)
    )
    assert found == {"one": 3, "other": 2}


def test_the_torch_loop_makes_our_steps(monkeypatch):
    pytest.importorskip("torch")
    monkeypatch.setattr(kernel, "NOISE", 0.0)
    database, params = kernel.logistic_inputs(50, 4, 1)
    ours = kernel.noisy_steps(kernel.logistic_problem(), 5)(params, database)[0]
    theirs = kernel.torch_steps(database, np.asarray(params[0]), 5, clipped=True)()
    np.testing.assert_allclose(ours, theirs, atol=1e-6)


def test_the_figure_and_the_tables_show_every_cell(tmp_path, capsys):
    result = a_result(0.4) | {"ratios": {"pair_over_one_arm": 1.9}}
    result["growth"] = {
        "n": {
            "sizes": [1, 10],
            "seconds": [1.0, 10.0],
            "time_exponent": 1.0,
            "bytes": [5, 50],
            "formula_bytes": [6, 60],
        }
    }
    run.draw(result, tmp_path / "bench.png")
    assert (tmp_path / "bench.png").stat().st_size > 10_000
    result["regressions"] = run.regressions(result, [a_result(0.8)])
    bench._print(result)
    printed = capsys.readouterr().out
    assert "0.4 [0.5]" in printed
    assert "WORSE by more than 15%" in printed


def test_multiplicities_and_copies_have_the_same_gradient():
    """What `streams.multiplicities` times is the gradient of the expanded database."""
    database, params = kernel.logistic_inputs(6, 2, 1)
    counted = databases.counted(database, np.full(6, 5))
    problem = kernel.logistic_problem()
    plain = erm.gradient(problem, params[0], databases.expand(counted))
    np.testing.assert_allclose(erm.gradient(problem, params[0], counted), plain, atol=1e-7)
