"""`python -m dd_jax.cli`: the same as `dd-jax`."""

from dd_jax.cli import entry

entry()
