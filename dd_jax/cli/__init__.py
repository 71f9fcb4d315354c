"""The command line, `dd-jax`: one module per command, imported only when it is used.

A command module has a frozen dataclass `Config` (its fields are the options, its docstring the
help) and `main(config) -> int`. Exit statuses: see `output`. `python -m experiments` is another
`Program` of the same kind.
"""

import contextlib
import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from dd_jax.cli import signals

# Other modules are imported inside functions: the less is loaded before `signals.watch`, the fewer
# interrupts come before it.


class Program(NamedTuple):
    """A program with commands.

    Attributes:
        name: what a person types. summary: what it is for, in one sentence.
        package: the package that has a module for each command.
        commands: the commands, with one line about each.
        kept: of commands that were interrupted, what is not lost.
        elsewhere: commands of another program that people look for here: what to type instead.
    """

    name: str
    summary: str
    package: str
    commands: Mapping[str, str]
    kept: Mapping[str, str] = {}
    elsewhere: Mapping[str, str] = {}


COMMANDS = {
    "attack": "play an attack: its success, an exact interval, theory and the claim it refutes",
    "audit": "test a certificate with samples: audited, exact and certified numbers side by side",
    "check": "verify the files of earlier runs, and look for private rows in them",
    "curate": "serve real deletions for months: a store, exactly-once requests, receipts",
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
    {"sweep": "complete chunks are kept, and the same command goes on from them"},
    {name: f"python -m experiments {name}" for name in ("bench", "compare", "embed", "report")},
)


def main(arguments: Sequence[str] | None = None, program: Program = DD_JAX) -> int:
    """Run one command; returns the exit status."""
    from dd_jax.cli.output import reported

    label, work = _asked(list(sys.argv[1:] if arguments is None else arguments), program)
    return reported(label, work)


def _asked(arguments: list[str], program: Program) -> tuple[str, Callable[[], int]]:
    """What the arguments ask for, and how it calls itself."""
    from dd_jax.cli.compile_cache import FLAG
    from dd_jax.cli.output import BAD_INPUT, say

    def usage() -> int:
        print(_usage(program))
        return 0 if arguments else BAD_INPUT

    def version() -> int:
        print(importlib.import_module("importlib.metadata").version("dd-jax"))
        return 0

    def unknown() -> int:
        remedy = f"choose one of {', '.join(sorted(program.commands))}"
        if name in program.elsewhere:
            remedy = f"from a checkout, run `{program.elsewhere[name]}`"
        say(f"{program.name}: no command {name!r}; {remedy}.")
        return BAD_INPUT

    arguments = [argument for argument in arguments if argument != FLAG]
    name, *options = arguments or ["--help"]
    if name in program.commands:
        return f"{program.name} {name}", lambda: _run(program, name, options)
    other = {"-h": usage, "--help": usage, "--version": version}
    return program.name, other.get(name, unknown)


def _usage(program: Program) -> str:
    import textwrap

    from dd_jax.cli.compile_cache import FLAG, OFF, VARIABLE
    from dd_jax.cli.symbols import WIDTH

    def filled(text: str, rest: str = "") -> str:
        return textwrap.fill(text, WIDTH, subsequent_indent=rest, break_on_hyphens=False)

    width = max(map(len, program.commands)) + 4
    rows = [
        filled(f"  {name}".ljust(width) + program.commands[name], " " * width)
        for name in sorted(program.commands)
    ]
    return "\n".join(
        (
            f"usage: {program.name} COMMAND [options]\n\n{program.summary}\n\ncommands:",
            *rows,
            "",
            filled(
                f"`{program.name} COMMAND --help` explains a command's options. Every command "
                f"takes {FLAG}: compile anew, and keep no compiled programs. The environment "
                f"variable {VARIABLE} names the folder that they are kept in, or is {OFF}."
            ),
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
    """Console entry point; does not return."""
    name = sys.argv[1] if len(sys.argv) > 1 and sys.argv[1] in program.commands else ""
    signals.watch(f"{program.name} {name}".rstrip(), program.kept.get(name, ""))
    from dd_jax.cli import compile_cache, output

    output.prepare_streams()
    if compile_cache.FLAG in sys.argv:
        compile_cache.disable()
    else:
        compile_cache.enable()
    with output.heartbeat(f"{program.name} {name}") if name else contextlib.nullcontext():
        status = main(program=program)
    signals.leave(status)
