"""Exact laws of Noisy-GD through learning and any stream of edits: what certificates are held to.

`gaussian` covers every quadratic loss, `linear` the linear loss in closed form (with the requester
that recodes the database, erratum E2), and `grid` any loss in one or two dimensions. All of it is
NumPy and SciPy in float64 on the host.
"""

from dd_jax.oracles import gaussian, grid, linear

__all__ = ["gaussian", "grid", "linear"]
