"""Figures, tables and benchmarks: one short file each, run by `dd-jax report` and `dd-jax bench`."""
