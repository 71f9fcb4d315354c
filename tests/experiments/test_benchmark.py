import pytest

from experiments import benchmark


@pytest.mark.slow
def test_a_cell_measures_ratios_of_the_same_run(monkeypatch):
    monkeypatch.setattr(benchmark, "CELLS", ((200, 5, 16, True),))
    lines = []
    result = benchmark.benchmark(cores=1, progress=lines.append)
    (cell,) = result["cells"]
    assert (cell["n"], cell["d"], cell["seeds"], cell["cores"]) == (200, 5, 16, 1)
    for name in ("gemm_ratio", "grad_of_mean_ratio", "vmap_grad_ratio", "numpy_ratio"):
        assert cell[name] > 0
    assert cell["torch_ratio"] is None
    assert result["gemm_gflops"] > 0
    assert len(lines) == 2


def test_every_form_computes_the_same_gradient():
    """A ratio between different computations would mean nothing."""
    import numpy as np

    import dd_jax as dd
    from dd_jax import erm

    database, params = benchmark._inputs(50, 4, 3)
    problem = dd.Problem(dd.losses.logistic(), 0.01, 1e6)
    ours = benchmark._batched(erm.gradient, problem)(params, database)
    mean = benchmark._batched(benchmark._grad_of_mean, problem)(params, database)
    loop = benchmark._numpy_gradient(np.asarray(params), database, 0.01, 1e6)()
    np.testing.assert_allclose(ours, mean, atol=1e-6)
    np.testing.assert_allclose(ours, loop, atol=1e-6)
