"""The benchmark's ratios are of one computation in several forms, and past runs are kept."""

import dataclasses
import json

import jax
import numpy as np
import pytest
from problems import soak

import dd_jax as dd
from dd_jax import cli, erm
from experiments.__main__ import PROGRAM
from experiments.bench import curator, kernel, run, streams


@pytest.fixture
def known_times(monkeypatch):
    """Sets the time of each function by its name; the functions run once."""

    def become(times):
        def best_times(functions, **_):
            jax.block_until_ready([function() for function in functions.values()])
            return {name: times[name] for name in functions}

        monkeypatch.setattr(kernel, "best_times", best_times)

    return become


# --- what is timed --------------------------------------------------------------------------------


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
    theirs = kernel.numpy_gradient(database)(np.asarray(params))
    np.testing.assert_allclose(ours, theirs, atol=1e-6)
    np.testing.assert_allclose(ours, kernel.per_record(problem, 50)(params, database), atol=1e-6)
    assert np.abs(np.asarray(ours - mean)).max() > 1e-3, "clipping acts"


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


def test_the_numpy_loop_makes_our_steps(monkeypatch):
    monkeypatch.setattr(kernel, "NOISE", 0.0)
    database, params = kernel.logistic_inputs(50, 4, 1)
    ours = kernel.noisy_steps(kernel.logistic_problem(), 5)(params, database)[0]
    theirs = kernel.numpy_steps(database, np.asarray(params[0]), 5)()
    np.testing.assert_allclose(ours, theirs, atol=1e-6)
    assert theirs.dtype == np.float32


def test_the_torch_loop_makes_our_steps(monkeypatch):
    pytest.importorskip("torch")
    monkeypatch.setattr(kernel, "NOISE", 0.0)
    database, params = kernel.logistic_inputs(50, 4, 1)
    ours = kernel.noisy_steps(kernel.logistic_problem(), 5)(params, database)[0]
    theirs = kernel.torch_steps(database, np.asarray(params[0]), 5, clipped=True)()
    np.testing.assert_allclose(ours, theirs, atol=1e-6)


def test_the_shortest_time_of_each_form_counts():
    ticks = iter([0, 5, 10, 12, 20, 23, 30, 39])
    found = kernel.best_times(
        {"one": lambda: 1, "other": lambda: 2}, repeats=2, clock=lambda: next(ticks)
    )
    assert found == {"one": 3, "other": 2}


# --- what is made of the times --------------------------------------------------------------------


@pytest.mark.parametrize("kind", [{}, {"classes": 3}, {"hidden": 2}], ids=str)
def test_ratios_are_of_best_times_each_for_all_seeds(monkeypatch, known_times, kind):
    """The reference ran with half of the seeds; useful work is 4 flop per row, weight and seed."""
    monkeypatch.setattr(kernel, "GEMM_SIZES", (64,))
    monkeypatch.setattr(kernel, "_torch_ratios", lambda *_: {})
    known = {"gemm 64": 2.0, "ours": 4.0, "slopes": 1.0, "grad of mean": 8.0, "numpy": 12.0}
    known_times(known | {"per record": 100.0})
    cell = kernel.measure(kernel.Workload(200, 5, 16, reference_seeds=8, **kind))
    weights = 16 * 5 * (kind.get("classes") or kind.get("hidden") or 1)
    assert cell.gemm_ratio == pytest.approx((4 * 200 * weights / 4.0) / (2 * 64**3 / 2.0))
    assert cell.vmap_grad_ratio == 50
    plain = (cell.elementwise_ratio, cell.grad_of_mean_ratio, cell.numpy_ratio)
    assert plain == ((None,) * 3 if kind else (0.25, 2, 3))
    # Database and models at least; never one gradient per record and seed.
    assert 4 * (200 * 6 + weights) <= cell.peak_bytes < 4 * 200 * weights
    if not kind.get("hidden"):
        assert cell.peak_bytes <= cell.formula_bytes


def test_a_cell_of_one_model_times_a_run(monkeypatch, known_times):
    monkeypatch.setattr(kernel, "GEMM_SIZES", (64,))
    known_times({"gemm 64": 2.0, "ours": 4.0, "numpy": 12.0})
    cell = kernel.measure(kernel.Workload(200, 5, 1, steps=30))
    assert cell.gemm_ratio == pytest.approx((30 * 4 * 200 * 5 / 4.0) / (2 * 64**3 / 2.0))
    assert cell.numpy_ratio == 3
    assert cell.peak_bytes <= cell.formula_bytes


@pytest.mark.skipif(soak(True, False), reason="many programs, in `make soak`")
@pytest.mark.slow
def test_streams_are_measured(known_times):
    known_times({"first": 3.0, "second": 2.0, "stream": 6.0, "noisy": 5.0, "plain": 4.0})
    found = streams.ratios(n=200, d=3, seeds=4, requests=1, wide=4)
    assert found.pop("overlay_bytes") == streams.overlay_bytes(200, 3, 4, 1)
    assert found.pop("pair_memory_over_one_arm") == pytest.approx(1, abs=0.05)
    assert found.pop("request_overhead") == pytest.approx(0.2)
    assert found.pop("request_overhead_with_noise") == pytest.approx(0.5)
    assert set(found.values()) == {1.5}


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


def test_an_overlays_state_is_one_base_and_slots_per_seed():
    # Base: 10 rows of 3 features and a label; a byte for each of them; a slot: row, record, a flag.
    assert streams.overlay_bytes(10, 3, 7, 2) == 10 * 4 * 4 + 7 * (10 + 2 * (4 + 4 * 4 + 1))


def test_growth_times_each_axis_and_holds_memory_to_the_formula(monkeypatch):
    assert kernel.exponent((10, 100, 1000), (2.0, 200.0, 20_000.0)) == pytest.approx(2)
    monkeypatch.setattr(kernel, "BASE", {"n": 40, "d": 2, "seeds": 2, "steps": 1})
    monkeypatch.setattr(kernel, "AXES", {"n": (40, 400)})
    found = kernel.growth(repeats=1)["n"]
    decade = np.log10(found["seconds"][1] / found["seconds"][0])
    assert found["time_exponent"] == pytest.approx(decade)
    assert all(np.array(found["bytes"]) <= found["formula_bytes"])


def test_a_store_is_used_up_and_timed(tmp_path, monkeypatch):
    """The eight owners are deleted, one by one and together; each deletion takes a second more."""
    monkeypatch.setattr(curator, "WINDOW", 2)
    monkeypatch.setattr(kernel, "best_times", lambda functions: dict.fromkeys(functions, 0.5))
    clock, served = [0.0], []
    delete, sizes = dd.curator.Curator.delete, {"rows": 8, "columns": 2, "say": lambda text: None}

    def later(store, ids, **options):
        served.append(ids)
        clock[0] += len(served)
        return delete(store, ids, **options)

    monkeypatch.setattr(dd.curator.Curator, "delete", later)
    monkeypatch.setattr(curator.time, "process_time", lambda: clock[0])
    found = curator.life(tmp_path, "fast", single=4, runs=2, owners=2, **sizes)
    assert [len(ids) for ids in served] == [1, 1, 1, 1, 2, 2]
    assert len({name for ids in served for name in ids}) == 8
    assert (found["steps"], found["first"], found["last"]) == (0.5, 1.5, 3.5)
    assert (found["run_of_many"], found["open"]) == (5.5, 0)
    with dd.curator.open(tmp_path / "fast.store") as store:
        assert store.status()["owners"] == 0


# --- past runs ------------------------------------------------------------------------------------


def a_result(ratio: float, loop=1.0, overhead=0.0, held=100) -> dict:
    cell = kernel.Cell("logistic", 10, 2, 3, 1, gemm_ratio=ratio, targets={"gemm_ratio": 0.5})
    cell = dataclasses.replace(cell, peak_bytes=held)
    ratios = {"host_loop_over_scan": loop, "request_overhead": overhead}
    return {"cells": [dataclasses.asdict(cell)], "ratios": ratios, "regressions": {}}


def test_a_fall_below_past_runs_is_named(tmp_path):
    path = tmp_path / "deep" / "bench.jsonl"
    assert run.past_runs(path) == []
    for ratio in (0.1, 0.6, 0.7, 0.8):
        run.remember(path, a_result(ratio))
    past = run.past_runs(path)
    # The median is 0.65: one slow run does not count.
    name = "gemm_ratio: logistic, n=10, d=2, S=3"
    assert run.regressions(a_result(0.56), past) == {}
    assert run.regressions(a_result(0.55), past)[name]["before"] == pytest.approx(0.65)
    # Lines that are cut off or have another format are skipped, as are other machines.
    whole = path.read_text()
    path.write_text(f"\n{whole[:40]}\n[1]\n{{}}\n{whole}" + whole[:40])
    assert run.past_runs(path) == past
    other = [entry | {"machine": "another"} for entry in past]
    path.write_text("".join(f"{json.dumps(entry)}\n" for entry in other))
    assert run.past_runs(path) == []


def test_the_last_five_runs_are_the_yardstick():
    past = [a_result(ratio) for ratio in [0.1] * 6 + [0.9] * 5]
    (found,) = run.regressions(a_result(0.5), past).values()
    assert found == {"now": 0.5, "before": 0.9}


def test_a_cost_that_grew_is_named():
    past = [a_result(0.5, 1.0, -0.01, 100)]
    assert run.regressions(a_result(0.5, 1.14, 0.12, 114), past) == {}
    assert run.regressions(a_result(0.5, 0.5, -0.4, 10), past) == {}, "smaller is better"
    assert set(run.regressions(a_result(0.5, 1.16, 0.15, 116), past)) == {
        "host_loop_over_scan",
        "request_overhead",
        "peak_bytes: logistic, n=10, d=2, S=3",
    }


# --- the command ----------------------------------------------------------------------------------


def test_files_that_cannot_be_written_are_refused_before_anything_is_measured(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    for option, path in (("--history", tmp_path), ("--figure", tmp_path / "file" / "x.png")):
        assert cli.main(["bench", option, str(path)], PROGRAM) == 2
        assert option in capsys.readouterr().err


def test_the_figure_is_drawn(tmp_path):
    seconds = {"sizes": [1, 10], "seconds": [1.0, 10.0], "time_exponent": 1.0}
    growth = {"n": seconds | {"bytes": [5, 50], "formula_bytes": [6, 60]}}
    run.draw(a_result(0.4) | {"growth": growth}, tmp_path / "bench.png")
    assert (tmp_path / "bench.png").stat().st_size > 10_000
