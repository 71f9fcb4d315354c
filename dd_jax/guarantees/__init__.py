"""The theorems as functions: host-side float64, NumPy and SciPy only, never JAX.

Every function takes scalars or arrays and broadcasts; a scalar comes back as a Python float.
Conditions that can be checked are: beyond them a function raises
`dd_jax.errors.CertificateRefused`.
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
