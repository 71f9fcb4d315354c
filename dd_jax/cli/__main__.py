"""`python -m dd_jax.cli`: the same as `dd-jax`."""

from dd_jax.cli import entry

if __name__ == "__main__":
    entry()
