"""Exact laws of Noisy-GD through learning and any stream of edits, to test certificates against.

`gaussian` covers every quadratic loss, `linear` the linear loss in closed form (with the requester
that recodes the database, erratum E2), and `grid` any loss in one or two dimensions; `phases` makes
runs of batches that take turns. Everything runs on the host, in float64 with NumPy and SciPy.
"""

from dd_jax.oracles import gaussian, grid, linear, phases

__all__ = ["gaussian", "grid", "linear", "phases"]
