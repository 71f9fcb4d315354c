"""The README and docs/: Python blocks and notebooks run, commands parse, links lead somewhere."""

import ast
import importlib
import re
import runpy
import shlex
from pathlib import Path
from types import SimpleNamespace

import pytest

import dd_jax as dd
from dd_jax import cli
from dd_jax.attacks import ATTACKS
from dd_jax.cli.options import parse
from experiments import figures
from experiments.__main__ import PROGRAM

ROOT = Path(__file__).parent.parent
write_notebooks = SimpleNamespace(**runpy.run_path(str(ROOT / "docs/write_notebooks.py")))
# It only puts the README and the contents into the site.
INDEX = ROOT / "docs/index.md"
PAGES = [ROOT / "README.md", *sorted({*(ROOT / "docs").rglob("*.md")} - {INDEX})]
FENCED = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
INDENTED = re.compile(r"(?:^ {4}.*\n)+", re.MULTILINE)
INLINE = re.compile(r"`([^`]+)`")
LINK = re.compile(r"\]\((?!https?://)([^)#\s]*)(?:#([^)\s]+))?\)")
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
COMMAND = re.compile(r"(?:\.venv\/bin\/)?(dd-jax|python -m experiments) +([a-z][^#|]*)")
PROGRAMS = {program.name: program for program in (cli.DD_JAX, PROGRAM)}


def name_of(page):
    return str(page.relative_to(ROOT))


def text_of(page):
    return page.read_text(encoding="utf-8")


def blocks(page):
    return [code for language, code in FENCED.findall(text_of(page)) if language == "python"]


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)], ids=name_of)
def test_code_blocks_run(page):
    namespace = {}
    for number, block in enumerate(blocks(page)):
        exec(compile(block, f"{page.name}, block {number}", "exec"), namespace)


@pytest.mark.parametrize("path", sorted((ROOT / "docs/notebooks").glob("*.py")), ids=name_of)
def test_notebooks_run(path, capsys):
    """What a notebook claims is asserted inside it."""
    assert text_of(path).count("assert ") >= 3
    runpy.run_path(str(path), run_name="__main__")
    assert capsys.readouterr().out


@pytest.mark.parametrize("path", sorted((ROOT / "docs/notebooks").glob("*.py")), ids=name_of)
def test_pages_of_notebooks_have_their_text_and_code_and_some_output(path):
    """What was printed may differ between machines; everything else is the notebook's."""
    found = text_of(path.with_suffix(".md"))
    printed = re.findall(r"^```text\n(.*?)^```\n+", found, re.DOTALL | re.MULTILINE)
    assert len("".join(printed)) > 100
    without = re.sub(r"^```text\n.*?^```\n+", "", found, flags=re.DOTALL | re.MULTILINE)
    source = text_of(path)
    silent = [""] * sum(kind == "code" for kind, _ in write_notebooks.cells(source))
    assert without.strip() == write_notebooks.page(source, silent).strip()


# The site.


def test_every_public_module_is_in_the_reference():
    listed = set(re.findall(r"^   (dd_jax[\w.]+)$", text_of(ROOT / "docs/api.rst"), re.MULTILINE))
    for name in listed:
        assert importlib.import_module(name).__doc__
    for name in {*dd._SUBMODULES, *dd._NAMES.values()}:
        parts = re.compile(rf"dd_jax\.{name}(\.|$)")
        assert any(map(parts.match, listed)), name


def test_every_page_is_in_the_contents_of_the_site():
    contents = text_of(INDEX).split("\n")
    for page in PAGES:
        if page.is_relative_to(ROOT / "docs"):
            place = str(page.relative_to(ROOT / "docs").with_suffix(""))
            assert place in contents or place.startswith("attacks/"), place


# Commands.


def shell_lines(text):
    """Lines of shell blocks, fenced without a language or indented, and inline code."""
    prose = FENCED.sub("", text)
    shell = [code for language, code in FENCED.findall(text) if language in ("", "sh")]
    shell += INDENTED.findall(prose)
    yield from (line.strip() for code in shell for line in code.splitlines())
    yield from (" ".join(span.split()) for span in INLINE.findall(prose))


def commands_of(text):
    """Every program with its arguments; those with a … or in capitals are patterns."""
    for line in shell_lines(text):
        found = COMMAND.match(line)
        if found and "…" not in line:
            yield [found[1], *shlex.split(found[2])]


COMMANDS = sorted({(name_of(page), *line) for page in PAGES for line in commands_of(text_of(page))})


@pytest.mark.parametrize("line", COMMANDS, ids=" ".join)
def test_commands_are_ones_that_the_command_line_takes(line):
    _, program, name, *options = line
    assert name in PROGRAMS[program].commands
    if "--help" in options or (not options and name in ("curate", "plan", "predict", "run")):
        return  # named in prose, without the options that it must have
    module = importlib.import_module(f"{PROGRAMS[program].package}.{name}")
    config = parse(name, module.Config, options)
    if name == "attack" and config.name is not None:
        assert config.name in ATTACKS
    if name == "report":
        figures.chosen(config.figures)


def test_the_readme_shows_every_command_and_no_other():
    shown = {tuple(line[:2]) for line in commands_of(text_of(ROOT / "README.md"))}
    assert shown == {(program, name) for program in PROGRAMS for name in PROGRAMS[program].commands}


def test_python_lines_of_shell_blocks_import_what_exists():
    lines = [line for page in PAGES for line in shell_lines(text_of(page)) if "python -c" in line]
    for line in lines:
        tree = ast.parse(shlex.split(line)[2])
        imports = [node for node in tree.body if isinstance(node, ast.ImportFrom | ast.Import)]
        exec(compile(ast.Module(imports, []), line, "exec"), {})


def test_files_named_in_the_docs_exist():
    for page in PAGES:
        for span in INLINE.findall(FENCED.sub("", text_of(page))):
            if re.fullmatch(r"(dd_jax|docs|experiments|tests)/[\w/.-]*", span):
                assert (ROOT / span).exists(), f"{page.name} names {span}"


def test_make_targets_named_in_the_docs_exist():
    targets = set(re.findall(r"^([a-z]+(?: [a-z]+)*):", text_of(ROOT / "Makefile"), re.MULTILINE))
    known = {name for group in targets for name in group.split()}
    for page in PAGES:
        for line in shell_lines(text_of(page)):
            if found := re.match(r"make ([a-z]+)\b", line):
                assert found[1] in known, f"{page.name}: {line}"


# Links.


def anchors(page):
    """Anchors as GitHub makes them: lower case, words and hyphens, spaces to hyphens."""
    prose = FENCED.sub("", text_of(page))
    found = [re.sub(r"[^\w\- ]", "", title.lower()) for title in HEADING.findall(prose)]
    return {title.strip().replace(" ", "-") for title in found}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page):
    for target, anchor in LINK.findall(FENCED.sub("", text_of(page))):
        place = (page.parent / target).resolve() if target else page
        assert place.exists(), f"{page.name} links to {target}"
        assert place.is_relative_to(ROOT)
        if anchor:
            assert anchor in anchors(place), f"{page.name} links to {target}#{anchor}"


def test_every_page_can_be_reached_from_the_readme():
    reached, waiting = set(), [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        reached.add(page)
        if page.suffix == ".md":
            targets = [
                (page.parent / target).resolve() for target, _ in LINK.findall(text_of(page))
            ]
            waiting += [place for place in targets if place not in reached and place.is_file()]
    wanted = {*PAGES, *(ROOT / "docs/notebooks").glob("*.py"), *(ROOT / "docs").rglob("*.svg")}
    assert wanted <= reached, sorted(map(name_of, wanted - reached))
