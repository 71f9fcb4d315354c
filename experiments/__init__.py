"""Figures, tables and benchmarks, one short file each: `dd-jax report`, `dd-jax bench`."""
