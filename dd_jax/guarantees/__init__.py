"""The theorems as functions: host-side float64, NumPy and SciPy only, never JAX.

Every function takes scalars or arrays and broadcasts; a scalar result is a Python float. Where a
condition of a theorem can be checked it is, and `dd_jax.errors.CertificateRefused` is raised where
it fails. docs/theorems.md lists every statement of the paper by its label and name.
"""

from dd_jax.guarantees import (
    adaptive,
    convex,
    floats,
    inference,
    nonconvex,
    renyi,
    risk,
)

__all__ = [
    "adaptive",
    "convex",
    "floats",
    "inference",
    "nonconvex",
    "renyi",
    "risk",
]
