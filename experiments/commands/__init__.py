"""The commands of `python -m experiments`, one module each."""

from dd_jax.cli.output import print_json


def list_names(kind: str, names: list[str], as_json: bool) -> int:
    """Print the names, for `--list`; returns the exit status."""
    if as_json:
        print_json({kind: names})
    else:
        print("\n".join(names))
    return 0
