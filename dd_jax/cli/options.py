"""Options: what several commands share, and how they are read.

A command's options are the fields of its `Config`, a frozen dataclass; its docstring is the help.
"""

import contextlib
import dataclasses
import inspect
import io
import itertools
import re
import textwrap
from pathlib import Path
from typing import Annotated, Any

import tyro

from dd_jax import checks, files
from dd_jax.cli import symbols
from dd_jax.errors import InputError

# The types of options whose default the help text does not show: it would say "None" or nothing.
_PLAIN = tyro.conf.arg(help_behavior_hint="")
Switch = Annotated[tyro.conf.FlagCreatePairsOff[bool], _PLAIN]
"""An option without a value."""
MaybeInt = Annotated[int | None, tyro.conf.arg(metavar="INT", help_behavior_hint="")]
MaybeFloat = Annotated[float | None, tyro.conf.arg(metavar="FLOAT", help_behavior_hint="")]
MaybeText = Annotated[str | None, tyro.conf.arg(metavar="STR", help_behavior_hint="")]
MaybePath = Annotated[Path | None, tyro.conf.arg(metavar="PATH", help_behavior_hint="")]
Texts = Annotated[tuple[str, ...], _PLAIN]
Ints = Annotated[tuple[int, ...], _PLAIN]
Floats = Annotated[tuple[float, ...], _PLAIN]

# JAX keeps 32 bits of a seed, so that a larger seed would repeat the noise of a smaller one.
MOST_SEED = 2**32 - 1


def flag(name: str) -> str:
    """A field's name as it is typed."""
    return "--" + name.replace("_", "-")


def renyi_order(config: Any) -> float | None:
    """The Rényi order of --order and --delta: 2 unless one of them says otherwise."""
    return 2.0 if config.order is None and config.delta is None else config.order


def require_at_least(config: Any, **least: int) -> None:
    """Refuse an option, of those that are given, below its least value."""
    for name, value in least.items():
        given = getattr(config, name)
        if given is not None:
            checks.whole(flag(name), given, least=value)


def require_folder(option: str, folder: Path) -> None:
    """Refuse a folder that cannot be written to, before a long run whose results would be lost.

    Nothing is left behind: the folder itself is made when there is something to write.
    """
    made = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not made.is_dir():
        raise InputError(f"{option} {folder}: {made} is a file; name a folder.")
    try:
        with files.temporary_folder(made):
            pass
    except OSError as error:
        raise InputError(
            f"{option} {folder} cannot be written ({error.strerror}); name another folder."
        ) from None


def parse(label: str, kind: type, options: list[str]) -> Any:
    """The options as a `Config`; a message of the parser is shortened to one line."""
    _refuse_repeats(options)
    said = io.StringIO()
    shown = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")  # the encoding of the parser's boxes
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(shown):
            config = tyro.cli(kind, prog=label, args=options, description=inspect.getdoc(kind))
    except SystemExit as done:
        if not done.code:
            shown.seek(0)
            _show_help(shown.read())
            raise
        raise InputError(f"{_first_sentence(said.getvalue())}; see {label} --help.") from None
    _refuse_empty(config, options)
    seed = getattr(config, "seed", None)
    if seed is not None:
        checks.whole("--seed", seed, most=MOST_SEED)
    return config


def _show_help(text: str) -> None:
    """Print the parser's help, its paragraphs as wide as its boxes, and what its symbols mean."""
    description, box, rest = text.partition("╭")
    paragraphs = [_paragraph(part) for part in description.strip("\n").split("\n\n")]
    print("\n\n".join(paragraphs), end=f"\n\n{box}{rest}" if box else "\n")
    if lines := symbols.explained(text):
        print("\n".join(["symbols:", *lines]))


def _paragraph(text: str) -> str:
    """Lines of prose filled; commands, which are indented, as they are."""
    found = []
    for is_command, group in itertools.groupby(text.split("\n"), lambda line: line[:1] == " "):
        lines = list(group)
        found += lines if is_command else [textwrap.fill(" ".join(lines), symbols.WIDTH)]
    return "\n".join(found)


def _refuse_empty(config: Any, options: list[str]) -> None:
    """Refuse an option for several values that has none: the default would be used silently."""
    typed = {option.replace("_", "-") for option in options}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            _refuse_empty(value, options)
        if value == () and flag(field.name) in typed:
            raise InputError(f"{flag(field.name)} has no value; give at least one, or drop it.")


def _refuse_repeats(options: list[str]) -> None:
    """Refuse an option given twice: the parser would silently keep the last value."""
    seen = set()
    for option in options:
        # As the parser reads them: --l2=1, --eps_dd for --eps-dd, --no-save beside --save.
        typed = option.partition("=")[0].replace("_", "-")
        name = typed.removeprefix("--no-").removeprefix("--")
        if typed.startswith("--") and name in seen:
            raise InputError(f"--{name} is given twice; give it once, with all its values.")
        if typed.startswith("--"):
            seen.add(name)


def _first_sentence(box: str) -> str:
    """The first paragraph inside the parser's box, without its frame."""
    lines = [line.strip(" │") for line in box.splitlines()[1:]]

    def is_text(line):
        return any(map(str.isalnum, line))

    inside = itertools.dropwhile(lambda line: not is_text(line), lines)
    said = " ".join(itertools.takewhile(is_text, inside)).rstrip(".:")
    if said.startswith("Missing from"):  # followed by the help of each option that is missing
        return f"give {', '.join(_MISSING.findall(said))}"
    for pattern, reworded in _REWORDED.items():
        said = pattern.sub(reworded, said)
    return said


# The parser's messages about missing options, and about a value of the wrong kind: for an option
# that needs a number, for one that may be left out, and for one with a list of choices.
_MISSING = re.compile(r"(--[\w-]+) [A-Z{]")
_NO_NUMBER = re.compile(
    r"Error parsing (--[\w-]+): (?:invalid literal for (int)|could not convert string to (float))"
    r".*: '(.*)'"
)
_NO_MATCH = re.compile(
    r"Error parsing (--[\w-]+): no type matching (.+) could be instantiated from \[(.*)\]"
)
_NO_PARSE = re.compile(
    r"Error parsing (--[\w-]+): Could not find valid parse for arguments: \[(.*)\]"
)
_NO_CHOICE = re.compile(
    r"invalid choice '(.*)' for argument '(--[\w-]+)'\. Expected one of \((.*)\)"
)


def _of_kind(found: re.Match) -> str:
    option, whole, broken, given = found.groups()
    return f"{option} {given}: give {(whole or broken).upper()}{_hint(given)}"


def _given(values: str) -> str:
    """What was typed, of a list of texts in quotes as the parser shows it."""
    return " ".join(re.findall(r"'([^']*)'", values)) or values


def _hint(given: str) -> str:
    """What was probably meant by what is no number."""
    try:
        several = [float(part) for part in given.split(",") if part]
    except ValueError:
        return ""
    if len(several) == 1 and several[0].is_integer():
        return f", for example {several[0]:.0f}"
    if len(several) < 2:
        return ""
    if re.fullmatch(r"-?\d+,\d+", given):
        return f"; write {given.replace(',', '.')} with a decimal point, or two values with a space"
    return f"; write several values with spaces: {' '.join(filter(None, given.split(',')))}"


def _of_kinds(found: re.Match) -> str:
    option, kinds, values = found.groups()
    given = _given(values)
    wanted = " or ".join(k for k in (k.strip("{}") for k in kinds.split("|")) if k != "None")
    return f"{option} {given}: give {wanted}{_hint(given)}"


def _of_several(found: re.Match) -> str:
    option, values = found.groups()
    given = _given(values)
    hint = _hint(given) or "; give values of the right kind, see --help"
    return f"{option} {given}: no such values{hint}"


def _of_choices(found: re.Match) -> str:
    given, option, choices = found.groups()
    known = sorted(choice.strip("' ") for choice in choices.split(","))
    return f"{option} {given}: give one of {', '.join(name for name in known if name != 'None')}"


_REWORDED = {
    _NO_NUMBER: _of_kind,
    _NO_MATCH: _of_kinds,
    _NO_PARSE: _of_several,
    _NO_CHOICE: _of_choices,
}
