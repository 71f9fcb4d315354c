"""The command line, `dd-jax`: one module per command, imported only when it is used.

A command module has a frozen dataclass `Config` (its fields are the options, its docstring the
help) and `main(config) -> int`. Exit statuses: see `output`. `python -m experiments` is another
`Program` of the same kind.
"""

import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from dd_jax.cli import compile_cache
from dd_jax.cli.output import BAD_INPUT, reported


class Program(NamedTuple):
    """A program with commands.

    Attributes:
        name: what a person types. summary: what it is for, in one sentence.
        package: the package that has a module for each command.
        commands: the commands, with one line about each.
        elsewhere: commands of another program that people look for here: what to type instead.
    """

    name: str
    summary: str
    package: str
    commands: Mapping[str, str]
    elsewhere: Mapping[str, str] = {}


COMMANDS = {
    "attack": "play an attack: its success, an exact interval, theory and the claim it refutes",
    "audit": "test a certificate with samples: audited, exact and certified numbers side by side",
    "check": "verify the files of earlier runs, and look for private rows in them",
    "data": "list the data sets, and download those that are not part of the package",
    "plan": "turn budgets into a step size, noise and steps, and print the certificate",
    "predict": "classes of new rows, by a model that `dd-jax run --save` released",
    "run": "learn on your data, serve deletions, and show what each costs and what is certified",
    "sweep": "a grid of budgets, regularisers and noise: cost, risk and accuracy over seeds",
    "targets": "size a sweep for TPUs and GPUs by their own compilers: memory, collectives, time",
}
DD_JAX = Program(
    "dd-jax",
    "Certified data deletion in JAX.",
    "dd_jax.cli",
    COMMANDS,
    {name: f"python -m experiments {name}" for name in ("bench", "compare", "report")},
)

FOR_ALL = f"""Every command takes {compile_cache.FLAG}:
compile anew, and keep no compiled programs. The environment variable {compile_cache.VARIABLE}
names the folder that they are kept in, or is {compile_cache.OFF}."""


def main(arguments: Sequence[str] | None = None, program: Program = DD_JAX) -> int:
    """Run one command; returns the exit status."""
    arguments = sys.argv[1:] if arguments is None else arguments
    arguments = [argument for argument in arguments if argument != compile_cache.FLAG]
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_usage(program))
        return 0 if arguments else BAD_INPUT
    if arguments[0] == "--version":
        print(importlib.import_module("importlib.metadata").version("dd-jax"))
        return 0
    name, *options = arguments
    if name not in program.commands:
        remedy = f"choose one of {', '.join(sorted(program.commands))}"
        if name in program.elsewhere:
            remedy = f"from a checkout, run `{program.elsewhere[name]}`"
        print(f"{program.name}: no command {name!r}; {remedy}.", file=sys.stderr)
        return BAD_INPUT
    return reported(f"{program.name} {name}", lambda: _run(program, name, options))


def _usage(program: Program) -> str:
    width = max(map(len, program.commands))
    rows = [f"  {name:<{width}}  {program.commands[name]}" for name in sorted(program.commands)]
    return "\n".join(
        (
            f"usage: {program.name} COMMAND [options]\n\n{program.summary}\n\ncommands:",
            *rows,
            f"\n`{program.name} COMMAND --help` explains a command's options. {FOR_ALL}",
        )
    )


def _run(program: Program, name: str, options: list[str]) -> int:
    from dd_jax.cli.options import parse  # the parser is loaded only when a command runs

    command = importlib.import_module(f"{program.package}.{name}")
    label = f"{program.name} {name}"
    config = parse(label, command.Config, options)
    devices = getattr(config, "devices", None)
    return command.main(config) if devices is None else devices.run(label, config, command.main)


def entry(program: Program = DD_JAX) -> None:
    """Console entry point; a reader that closes the pipe early (`| head`) ends it quietly."""
    if compile_cache.FLAG in sys.argv:
        compile_cache.disable()
    else:
        compile_cache.enable()
    try:
        status = main(program=program)
        sys.stdout.flush()
    except BrokenPipeError:
        # Nothing can be written any more. The interpreter flushes at exit, and would fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 0
    sys.exit(status)
