"""What commands print: tables of 80 columns, symbols that are explained, hints, signs of life."""

import io
import re
import time

import pytest

from dd_jax import cli
from dd_jax.attacks import ATTACKS
from dd_jax.cli import output, symbols
from dd_jax.sweeps import progress_lines
from experiments.__main__ import PROGRAM

COMMANDS = [(program, name) for program in (cli.DD_JAX, PROGRAM) for name in program.commands]
# As a reader sees them: Greek letters, K with an index, single letters between spaces or signs.
READ = re.compile(r"[α-ωϕ]\w*|K_\w|(?<![\w'’.‖-])[B-HJ-Zb-hj-z](?=[\s,.;:)²]|$)")
EXAMPLE = re.compile(r"^ +(?:dd-jax|python) .*(?:\\\n.*)?$", re.MULTILINE)


@pytest.mark.parametrize(("program", "name"), COMMANDS, ids=lambda value: str(value)[:20])
def test_a_help_text_fits_and_defines_every_symbol(program, name, capsys):
    assert cli.main([name, "--help"], program) == 0
    shown = capsys.readouterr().out
    assert max(map(len, EXAMPLE.sub("", shown).splitlines())) <= 80
    text, _, defined = shown.partition("\nsymbols:\n")
    words = {line.split(":")[0].strip() for line in defined.splitlines()}
    explained = "\n".join(line.partition(":")[2] for line in defined.splitlines())
    used = set(READ.findall(EXAMPLE.sub("", text))) | set(symbols.named_in(explained))
    missing = {symbol for symbol in used if symbol not in words and f"{symbol}²" not in words}
    assert not missing


@pytest.mark.parametrize("words", ["--help", "attack --list"])
def test_a_list_fits(words, capsys):
    assert cli.main(words.split()) == 0
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 80
    names = cli.COMMANDS if words == "--help" else ATTACKS
    assert all(re.search(rf"^ *{name}  ", shown, re.MULTILINE) for name in names)


def test_a_symbol_is_found_as_such_and_in_no_word():
    assert symbols.named_in("the ε of (ε, δ); η² and σ²") == ["η", "σ²", "ε", "δ"]
    assert symbols.named_in("ε_dp, K_U (r, p)") == ["ε_dp", "r", "p", "K_U"]
    assert symbols.named_in("record's a-b, --n, dd-jax, R. Smith, e.g. this") == []


WIDE = [f"column number {i}" for i in range(14)]


@pytest.mark.parametrize(
    ("columns", "cells"),
    [
        (("a", "b"), [["x", "1"], ["y", "-22.5"]]),
        (WIDE, [["name", *("12345.678" for _ in WIDE[1:])]] * 2),
        (("what", "prose", "more"), [["one", "word " * 30, "2"], ["two", "other " * 20, "3"]]),
        (("what", "name"), [["one", "x" * 60], ["two", "a line\nand one"]]),
        (("request", "rows"), []),
    ],
)
def test_a_table_fits_and_loses_nothing(columns, cells):
    lines = output.table_lines(columns, cells)
    assert max(map(len, lines)) <= 80
    assert all(line == line.rstrip() for line in lines)
    text = " ".join(lines).split()
    for word in (*(w for column in columns for w in column.split()),):
        assert word in text
    for row in cells:
        for cell in row:
            assert all(word in text for word in cell.split())


def test_numbers_stand_on_the_right_and_text_on_the_left():
    lines = output.table_lines(
        ("name", "n", "verdict"), [["a", "1", "no"], ["bcd", "1,000", "yes"]]
    )
    assert lines[0] == "name      n  verdict"
    assert lines[2:] == ["a         1  no", "bcd   1,000  yes"]


def test_a_table_explains_the_symbols_of_its_headings(capsys):
    output.print_table("title", ("κ", "rows r"), [(1, 2)])
    shown = capsys.readouterr().out
    assert "κ: condition number" in shown
    assert all(f"  {symbol}: " in shown for symbol in "λβθ")  # which κ is explained by


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ("run --data x --l2 0.01,0.05", "0.01 0.05"),
        ("sweep --l2 0.01,0.05", "0.01 0.05"),
        ("run --data x --l2 0,05", "write 0.05"),
        ("plan --n 1e4 --dim 3 --l2 1 --eps-dp 1 --eps-dd 1", "10000"),
        ("run --data x --requests 1e2", "100"),
        ("run --data x --l2 ten", "FLOAT"),
    ],
)
def test_common_slips_get_a_hint(words, hint, capsys):
    assert cli.main(words.split()) == 2
    said = capsys.readouterr().err
    assert hint in said
    assert said.count("\n") == 1


def test_a_long_silence_is_broken_and_a_short_one_is_not(monkeypatch):
    heard = io.StringIO()
    monkeypatch.setattr("sys.stderr", heard)
    with output.heartbeat("dd-jax test", after=0.05):
        deadline = time.monotonic() + 20
        while heard.getvalue().count("working") < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
    assert heard.getvalue().count("dd-jax test: still working") >= 2
    with output.heartbeat("dd-jax test", after=1e9):
        pass
    assert heard.getvalue().count("\n") == heard.getvalue().count("working")


def test_one_slow_chunk_does_not_rule_what_is_said_to_be_left(monkeypatch):
    """The first chunk waits for the compiler, and another of twenty for a second program."""
    seconds = iter([0, 10, *range(12, 32, 2), 72, *range(74, 92, 2)])
    monkeypatch.setattr("dd_jax.sweeps.runner.time.monotonic", lambda: next(seconds))
    said = []
    tick = progress_lines("sweep", said.append)
    for done in range(1, 22):
        tick(done, 21)
    assert said[0] == "sweep: 1 of 21 runs, at most about 200 s left"
    assert said[1] == "sweep: 2 of 21 runs, about 38 s left"
    assert said[10].endswith("about 20 s left")
    assert said[11].endswith("about 90 s left")  # after 42 s in place of 2
    assert said[-1] == "sweep: 21 of 21 runs, 90 s"


@pytest.mark.parametrize(
    ("options", "named"), [("", "--label"), ("--label y", "--fill-missing")], ids=["label", "fill"]
)
def test_a_file_that_needs_one_more_option_names_it(options, named, tmp_path, capsys):
    (tmp_path / "my.csv").write_text("a,y\n1,u\n,v\n3,u\n")
    assert cli.main(["run", "--data", str(tmp_path / "my.csv"), *options.split()]) == 2
    assert named in capsys.readouterr().err.splitlines()[-1]
