"""Promises that hold for the package as a whole."""

import ast
import importlib
import inspect
import pkgutil
import subprocess
import sys
from pathlib import Path

import jax
import pytest

import dd_jax

ROOT = Path(__file__).parent.parent
MODULES = sorted(info.name for info in pkgutil.walk_packages(dd_jax.__path__, prefix="dd_jax."))


def test_import_layers_point_one_way():
    lint = Path(sys.executable).parent / "lint-imports"
    done = subprocess.run([lint], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_the_suite_runs_strict():
    assert jax.config.jax_debug_key_reuse
    assert jax.config.jax_numpy_dtype_promotion == "strict"
    key = jax.random.key(0)
    jax.random.normal(key)
    with pytest.raises(jax.errors.KeyReuseError):
        jax.random.normal(key)


@pytest.mark.parametrize("name", MODULES)
def test_every_public_function_and_class_is_documented(name):
    module = importlib.import_module(name)
    assert module.__doc__, name
    for member_name, member in vars(module).items():
        if member_name.startswith("_") or getattr(member, "__module__", None) != name:
            continue
        # Cached functions (the loss catalogue) are objects around the function they wrap.
        if inspect.isfunction(inspect.unwrap(member)) or inspect.isclass(member):
            assert inspect.getdoc(member), f"{name}.{member_name}"


@pytest.mark.parametrize("name", dd_jax.__all__)
def test_every_public_name_resolves(name):
    assert getattr(dd_jax, name) is not None


def test_unknown_names_are_attribute_errors():
    with pytest.raises(AttributeError, match="nothing"):
        _ = dd_jax.nothing


def test_accounting_does_not_import_jax():
    modules = "dd_jax.guarantees, dd_jax.plans, dd_jax.oracles"
    code = f"import sys, {modules}; assert 'jax' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_no_global_randomness_in_the_library():
    """Every draw goes through an explicit key: no numpy or random module generators."""
    for path in (ROOT / "dd_jax").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and node.attr == "random":
                assert isinstance(node.value, ast.Name), path
                assert node.value.id == "jax", path
