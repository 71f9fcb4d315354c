"""docs/theorems.md and docs/errata.md name functions, tests, attacks and numbers that exist."""

import ast
import functools
import importlib
import inspect
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from paper_labels import EQUATIONS, HEADINGS, STATEMENTS

import dd_jax as dd
from dd_jax.attacks import ATTACKS
from dd_jax.errors import CertificateRefused
from dd_jax.guarantees import adaptive, inference, nonconvex, risk
from dd_jax.guarantees.convex import Descent, deletion_optimal, privacy_optimal
from dd_jax.oracles import gaussian, linear

ROOT = Path(__file__).parent.parent
LABEL = re.compile(r"`((?:thm|lem|dfn|def|alg|rem|eqn|tab|fig|subfig|s?sec|subsec|app):[\w:]+)`")
PATH = re.compile(r"`(dd_jax(?:\.\w+)+)`")
NODE = re.compile(r"`(tests/[\w/]+\.py::\w+)`")
DETAILS = ("label", "statement", "function", "test", "note")
CHECKS = ("label", "name", "statement", "check", "verdict")
VERDICTS = ("label", "name", "verdict")


def read(name):
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


def rows_of(header):
    """The rows of every table of theorems.md with these columns, as lists of cells."""
    rows, found = [], None
    for line in read("theorems.md").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")] if line[:1] == "|" else None
        if cells is None:
            found = None
        elif found is None:
            found = tuple(cells)
            assert found in (DETAILS, CHECKS, VERDICTS), line
        elif set(line) != set("|-"):
            assert len(cells) == len(found), line
            rows += [cells] * (found == header)
    assert rows
    return rows


# (label or None, function, test)
ROWS = [
    (None if row[0] == "—" else row[0].strip("`"), row[2].strip("`"), row[3].strip("`"))
    for row in rows_of(DETAILS)
]
# (labels, what is said of them, verdict)
JUDGED = [
    (LABEL.findall(row[0]), " ".join(row[1:-1]), row[-1])
    for header in (CHECKS, VERDICTS)
    for row in rows_of(header)
]


def resolve(path):
    """The object that a dotted path names."""
    names = path.split(".")
    for end in range(len(names), 0, -1):
        try:
            found = importlib.import_module(".".join(names[:end]))
        except ModuleNotFoundError:
            continue
        return functools.reduce(getattr, names[end:], found)
    raise ModuleNotFoundError(path)


@functools.cache
def functions_of(file):
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("path", sorted({path for _, path, _ in ROWS}))
def test_functions_of_the_table_exist_and_name_their_labels(path):
    found = resolve(path)
    text = f"{inspect.getdoc(found)} {inspect.getdoc(inspect.getmodule(found))}"
    for label, other, _ in ROWS:
        if other == path and label:
            assert f"`{label}`" in text, f"the docstring of {path} does not name {label}"


@pytest.mark.parametrize("page", ["theorems.md", "errata.md"])
def test_tests_exist(page):
    nodes = NODE.findall(read(page))
    assert nodes
    if page == "theorems.md":
        assert len(nodes) >= len(ROWS) + len(rows_of(CHECKS))
    for node in nodes:
        file, name = node.split("::")
        assert name in functions_of(file), node


def test_every_label_of_the_paper_has_one_verdict():
    judged = [label for labels, _, _ in JUDGED for label in labels]
    assert sorted(judged) == sorted(STATEMENTS + EQUATIONS)


@pytest.mark.parametrize(("labels", "said", "verdict"), JUDGED, ids=[row[0][0] for row in JUDGED])
def test_verdicts_have_their_grounds(labels, said, verdict):
    """Done: in a table or a check, itself or what it belongs to. Corrected: in that erratum."""
    grounds = set(labels) | (set(LABEL.findall(said)) if labels[0].startswith("eqn") else set())
    computed = {label for label, _, _ in ROWS} | {row[0].strip("`") for row in rows_of(CHECKS)}
    word, _, reason = re.match(r"(done|corrected|out of scope)(: |, |; |$)(.*)", verdict).groups()
    if word == "out of scope":
        assert len(reason) > 5
        assert not computed & set(labels)
    else:
        assert computed & grounds or NODE.search(said)
    errata = re.findall(r"\bE\d+\b", reason)
    assert errata or word != "corrected"
    if not labels[0].startswith("eqn"):
        for number in errata:
            assert any(f"`{label}`" in erratum(number) for label in labels), (labels, number)


def erratum(number):
    """The text of one erratum, E1 for example."""
    return re.split(r"^## ", read("errata.md").split(f"\n## {number} ")[1], flags=re.M)[0]


def test_no_page_and_no_module_names_a_label_that_the_paper_does_not_have():
    known = {*STATEMENTS, *EQUATIONS, *HEADINGS}
    named = 0
    for folder, kind in (("docs", "*.md"), ("dd_jax", "*.py"), ("experiments", "*.py")):
        for file in sorted((ROOT / folder).rglob(kind)):
            found = set(LABEL.findall(file.read_text(encoding="utf-8")))
            assert found <= known, (file.name, found - known)
            named += len(found)
    assert named > len(STATEMENTS)


def test_labels_named_in_guarantees_are_in_the_table():
    listed = {label for label, _, _ in ROWS}
    for file in sorted((ROOT / "dd_jax" / "guarantees").glob("*.py")):
        for label in LABEL.findall(file.read_text(encoding="utf-8")):
            assert label in listed, f"{file.name} names {label}, the table does not"


def test_functions_and_attacks_of_the_errata_exist():
    text = read("errata.md")
    for path in PATH.findall(text):
        resolve(path)
    named = set(re.findall(r"dd-jax attack ([a-z][a-z-]*)", text))
    assert named
    assert named <= set(ATTACKS)


def test_every_erratum_has_its_section_and_its_row():
    text = read("errata.md")
    for number in range(1, 17):
        assert re.search(rf"^## E{number} ", text, re.MULTILINE)
        assert f"| [E{number}](#e{number}-" in text


# What the errata print beyond their code blocks.

TANH = (0.77, 0.77, 1)  # λ, β, b


def risk_of_the_papers_plan(n):
    case = nonconvex.Bounded(2, 1, *TANH, n, 2)
    found = nonconvex.noise_nonconvex_paper(case, 1.0, 0.5)
    return risk.excess_risk_nonconvex_paper(case, found.noise_variance, 0.5)


@pytest.mark.parametrize(
    ("printed", "value", "tolerance"),
    [
        ("1.3·10⁴ at n = 10³", lambda: risk_of_the_papers_plan(1e3) / 1.3e4, 0.02),
        ("3.2·10⁷ at 10⁵", lambda: risk_of_the_papers_plan(1e5) / 3.2e7, 0.02),
        ("1.3·10¹¹ at 10⁷", lambda: risk_of_the_papers_plan(1e7) / 1.3e11, 0.04),
        (
            "its proof 9.3·10⁻⁷",
            lambda: (
                nonconvex.step_size_limit_paper(nonconvex.Bounded(10, 1, *TANH, 1, 1), 1, 0.5)
                / 9.3e-7
            ),
            0.01,
        ),
        ("| 0.447 | 0.447 |", lambda: inference.advantage_soundness_paper(10, 0.1) / 0.447, 1e-3),
        ("| 0.447 | 0.173 |", lambda: inference.advantage_soundness(10, 0.1) / 0.173, 2e-3),
        ("| 0.158 |", lambda: inference.advantage_neighbours_linear(2, 0.1) / 0.158, 1e-3),
        ("| 0.071 |", lambda: inference.advantage_neighbours_linear(10, 0.1) / 0.0707, 1e-3),
        ("| 0.126 |", lambda: inference.advantage_gdp(np.sqrt(0.1)) / 0.1256, 1e-3),
        ("| 0.056 |", lambda: inference.advantage_gdp(np.sqrt(0.02)) / 0.0564, 1e-3),
        ("0.031 for δ = 0.5", lambda: inference.deletion_necessary(2, 0.5) / 0.03125, 1e-6),
        ("0.493 for δ = 0.9", lambda: inference.deletion_necessary(2, 0.9) / 0.4935, 1e-3),
        ("paper's: 0.328", lambda: inference.deletion_necessary_paper(2, 0.9) / 0.328, 1e-3),
        ("1.523 at ε_dp = 1", lambda: adaptive.recoding_leak_staying(2, 1) / 1.523, 1e-3),
        ("sides are 0.097 and 0.25", lambda: (np.log(2) - 0.5) / 2 / 0.097, 1e-2),
        (
            "R₂ = 0.443",
            lambda: linear.renyi(2, 3, 1, 4e-4, 100, 0.25, 10**4, delete_steps=5) / 0.443,
            2e-3,
        ),
        (
            "one row 0.049",
            lambda: deletion_optimal(Descent(2, 1, 1, 0, 4e-4, 100, 0.25), 5) / 0.0493,
            2e-3,
        ),
        (
            "0.4375 exactly",
            lambda: linear.renyi(2, 1, 1, 4e-4, 100, 0.25, np.inf) / 2 / 0.4375,
            1e-9,
        ),
        (
            "0.4375 by `dd_jax.guarantees.convex.privacy_optimal`",
            lambda: privacy_optimal(Descent(2, 1, 1, 0, 4e-4, 100, 0.25), np.inf) / 2 / 0.4375,
            1e-9,
        ),
    ],
)
def test_numbers_printed_in_the_errata(printed, value, tolerance):
    assert printed in " ".join(read("errata.md").split())
    assert value() == pytest.approx(1, rel=tolerance)


@pytest.mark.parametrize(
    ("dim", "n", "noise", "printed"),
    [(1, 200, 1, "2.6·10⁴ / 3.2·10³"), (2, 1000, 2, "0 / 64"), (10, 1000, 4, "0 / 40")],
)
def test_sharp_steps_printed_in_the_errata(dim, n, noise, printed):
    assert f"| {printed} |" in read("errata.md")
    found = nonconvex.settings_nonconvex_tuned(nonconvex.Bounded(2, 1, *TANH, n, dim), noise, 0.5)
    for steps, text in zip(found[2:], printed.split(" / "), strict=True):
        mantissa, _, exponent = text.partition("·10")
        assert steps == pytest.approx(
            float(mantissa) * 10 ** "⁰¹²³⁴".find(exponent or "⁰"), rel=0.02
        )


# Erratum E1.


def test_clipping_is_refused_where_the_lemmas_fail():
    softmax = dd.Problem(dd.losses.softmax(num_classes=3), l2=0.05, clip_norm=0.5)
    budgets = {"n": 1000, "dim": 3, "order": 2, "eps_dp": 1, "eps_dd": 0.5}
    with pytest.raises(CertificateRefused, match="E1"):
        dd.plans.plan_convex(softmax, **budgets)
    tanh = dd.Problem(dd.losses.tanh_margin(), l2=0.77, clip_norm=0.5)
    with pytest.raises(CertificateRefused, match="E1"):
        dd.plans.plan_nonconvex(tanh, **budgets)


def test_clipped_softmax_is_smooth_but_neither_a_gradient_nor_monotone():
    loss = dd.losses.softmax(num_classes=3)
    problem = dd.Problem(loss, l2=1e-9, clip_norm=0.5)
    record = dd.Labelled(jnp.ones((1, 1)), jnp.zeros(1, jnp.int32))
    thetas = 2 * jax.random.normal(jax.random.key(0), (200, 1, 3))

    def jacobian(theta):
        return jax.jacobian(lambda t: dd.erm.gradient(problem, t, record))(theta).reshape(3, 3)

    jacobians = np.asarray(jax.jit(jax.vmap(jacobian))(thetas))
    transposed = np.swapaxes(jacobians, 1, 2)
    assert np.abs(jacobians - transposed).max() > 1e-3
    assert np.linalg.eigvalsh((jacobians + transposed) / 2).min() < -1e-3
    assert np.linalg.norm(jacobians, ord=2, axis=(1, 2)).max() <= loss.constants.smoothness


@pytest.mark.parametrize(("steps", "certified"), [(5, 0.0173), (20, 9.04e-8)])
def test_curvature_beyond_the_declared_one_is_never_forgotten(steps, certified):
    """Ridge, features of norm 2 declared as 1; labels ±1/2 make L = 1 right."""
    n, l2, eta = 100, 0.5, 1 / 1.5
    noise = 2 * (2 - eta * l2) / (l2 * n**2)

    def phase(label, steps):
        return gaussian.ridge_phase(np.full((n, 1), 2.0), np.eye(n)[0] * label, l2, steps)

    laws = [
        gaussian.law_after([phase(label, 50), phase(0, steps)], eta, noise, [0.0])
        for label in (0.5, -0.5)
    ]
    declared = deletion_optimal(Descent(2, 1, l2, 1, noise, n, eta), steps)
    assert declared == pytest.approx(certified, rel=1e-2)
    assert gaussian.renyi(2, *laws) == pytest.approx(1 / 15)
    with pytest.raises(CertificateRefused, match="step_size"):
        deletion_optimal(Descent(2, 1, l2, 4, noise, n, eta), steps)
