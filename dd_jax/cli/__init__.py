"""The command line, `dd-jax`: one module per command, imported only when it is asked for.

A command module has a frozen dataclass `Config` (its fields are the options, its docstring the
help) and `main(config) -> int`. Exit statuses: see `status`. `python -m experiments` is another
`Program` of the same kind.
"""

import contextlib
import importlib
import io
import itertools
import os
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from dd_jax.cli import compile_cache
from dd_jax.cli.status import BAD_INPUT, reported
from dd_jax.errors import InputError


class Program(NamedTuple):
    """A program with commands.

    Attributes:
        name: what a person types. summary: what it is for, in one sentence.
        package: the package that has a module for each command.
        commands: the commands, with one line about each.
    """

    name: str
    summary: str
    package: str
    commands: Mapping[str, str]


COMMANDS = {
    "attack": "a violation as a program: success, exact interval, theory and the claim it refutes",
    "audit": "what samples say of a certificate: audited, exact and certified side by side",
    "data": "what data there are, and the pinned fetcher",
    "plan": "budgets to step size, noise and steps, with the certificate of what they give",
    "run": "learn on your data, serve deletions, and show what each costs and what is certified",
    "sweep": "a grid of budgets, regularisers and noise: cost, risk and accuracy over seeds",
}
DD_JAX = Program("dd-jax", "Certified data deletion in JAX.", "dd_jax.cli", COMMANDS)

# JAX folds a seed into 32 bits; larger ones would repeat smaller ones.
MOST_SEED = 2**32 - 1

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
        print(
            f"{program.name}: no command {name!r}; choose one of "
            f"{', '.join(sorted(program.commands))}.",
            file=sys.stderr,
        )
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
    command = importlib.import_module(f"{program.package}.{name}")
    config = parse(f"{program.name} {name}", command.Config, options)
    seed = getattr(config, "seed", None)
    if seed is not None and not 0 <= seed <= MOST_SEED:
        raise InputError(f"--seed {seed}: give a whole number from 0 to {MOST_SEED}.")
    devices = getattr(config, "devices", None)
    if devices is not None:
        devices.check()
    if devices is None or not devices.distributed:
        return command.main(config)
    from dd_jax.cli.supervise import supervised

    return supervised(f"{program.name} {name}", config, lambda: command.main(config))


def parse(label: str, kind: type, options: list[str]) -> Any:
    """The options as a `Config`; what the parser has to say of bad ones is cut to one line."""
    import inspect

    import tyro

    _refuse_repeats(options)
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            return tyro.cli(kind, prog=label, args=options, description=inspect.getdoc(kind))
    except SystemExit as done:
        if not done.code:
            raise
        raise InputError(f"{_first_sentence(said.getvalue())}; see {label} --help.") from None


def _refuse_repeats(options: list[str]) -> None:
    """The parser keeps the last of an option's values, without a word about the others."""
    seen = set()
    for option in options:
        # As the parser reads them: --l2=1, --eps_dd for --eps-dd, --no-save beside --save.
        flag = option.partition("=")[0].replace("_", "-")
        name = flag.removeprefix("--no-").removeprefix("--")
        if flag.startswith("--") and name in seen:
            raise InputError(f"--{name} is given twice; give it once, with all its values.")
        if flag.startswith("--"):
            seen.add(name)


def _first_sentence(box: str) -> str:
    """The first paragraph inside the parser's box, without its frame."""
    lines = [line.strip(" │") for line in box.splitlines()[1:]]

    def is_text(line):
        return any(map(str.isalnum, line))

    inside = itertools.dropwhile(lambda line: not is_text(line), lines)
    said = " ".join(itertools.takewhile(is_text, inside)).rstrip(".:")
    return _NO_NUMBER.sub(_of_kind, _NO_MATCH.sub(_of_kinds, said))


# What the parser says of a value of the wrong kind: for an option that needs a number, and for one
# that may be left out.
_NO_NUMBER = re.compile(
    r"Error parsing (--[\w-]+): (?:invalid literal for (int)|could not convert string to (float))"
    r".*: '(.*)'"
)
_NO_MATCH = re.compile(
    r"Error parsing (--[\w-]+): no type matching (.+) could be instantiated from \[(.*)\]"
)


def _of_kind(found: re.Match) -> str:
    option, whole, broken, given = found.groups()
    return f"{option} {given}: give {(whole or broken).upper()}"


def _of_kinds(found: re.Match) -> str:
    option, kinds, values = found.groups()
    given = " ".join(value.strip("' ") for value in values.split(","))
    wanted = " or ".join(k for k in (k.strip("{}") for k in kinds.split("|")) if k != "None")
    return f"{option} {given}: give {wanted}"


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
        # Nothing can be written any more; spare the interpreter's own flush at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 0
    sys.exit(status)
