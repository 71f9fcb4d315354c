"""The command line, `dd-jax`: one module per command, imported only when it is asked for.

A command module has a frozen dataclass `Config` (its fields are the options, its docstring the
help) and `main(config) -> int`. Exit status: 0 fine, 1 a claim was refuted, 2 bad input.
"""

import importlib
import os
import sys
from collections.abc import Sequence

from dd_jax.errors import InputError

COMMANDS = {
    "attack": "a violation as a program: success, exact interval, theory and the claim it refutes",
    "audit": "what samples say of a certificate: audited, exact and certified side by side",
    "bench": "speed of the gradient kernels as ratios to this machine's matrix product",
    "data": "what data there are, and the pinned fetcher",
    "plan": "budgets to step size, noise and steps, with the certificate of what they give",
    "report": "every figure and table, and one page that shows them",
}

USAGE = "usage: dd-jax COMMAND [options]\n\nCertified data deletion in JAX.\n\ncommands:\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_usage())
        return 0 if arguments else 2
    if arguments[0] == "--version":
        print(importlib.import_module("importlib.metadata").version("dd-jax"))
        return 0
    name, *options = arguments
    if name not in COMMANDS:
        print(
            f"dd-jax: no command {name!r}; choose one of {', '.join(sorted(COMMANDS))}.",
            file=sys.stderr,
        )
        return 2
    try:
        return _run(name, options)
    except InputError as error:
        print(f"dd-jax {name}: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        raise  # the reader went away, which is no bad input: see `entry`
    except OSError as error:
        print(f"dd-jax {name}: {error}; name another place.", file=sys.stderr)
        return 2


def _usage() -> str:
    width = max(map(len, COMMANDS))
    rows = [f"  {name:<{width}}  {COMMANDS[name]}" for name in sorted(COMMANDS)]
    return USAGE + "\n".join(rows) + "\n\n`dd-jax COMMAND --help` explains a command's options."


def _run(name: str, options: list[str]) -> int:
    import inspect

    import tyro

    command = importlib.import_module(f"dd_jax.cli.{name}")
    config = tyro.cli(
        command.Config,
        prog=f"dd-jax {name}",
        args=options,
        description=inspect.getdoc(command.Config),
    )
    return command.main(config)


def entry() -> None:
    """Console entry point; a reader that closes the pipe early (`| head`) ends it quietly."""
    try:
        status = main()
        sys.stdout.flush()
    except BrokenPipeError:
        # Nothing can be written any more; spare the interpreter's own flush at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 0
    sys.exit(status)
