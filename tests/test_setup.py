"""The set-up installs the files whose digests the lock names, and nothing else."""

import base64
import hashlib
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# Makes an environment in no time: it borrows the pip of the one that runs the tests.
PYTHON = """#!/bin/sh
if [ "$2" != venv ]; then exec "{python}" "$@"; fi
"{python}" "$@" --without-pip && cd "$3"/lib/python*/site-packages || exit
echo "{packages}" > borrowed.pth
"""
PROJECT = """
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
[project]
name = "made-project"
version = "1"
"""
# Gives a wheel that was made before.
BACKEND = """
import shutil
def build_editable(folder, *_):
    shutil.copy("made_project-1-py3-none-any.whl", folder)
    return "made_project-1-py3-none-any.whl"
"""


def write_wheel(folder: Path, name: str) -> str:
    """A wheel of one module; returns the digest of the file."""
    about = f"{name}-1.dist-info"
    contents = {
        f"{name}.py": "",
        f"{about}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n",
        f"{about}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    lines = [f"{file},{_record(text)},{len(text)}\n" for file, text in contents.items()]
    contents[f"{about}/RECORD"] = "".join([*lines, f"{about}/RECORD,,\n"])
    path = folder / f"{name}-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for file, text in contents.items():
            wheel.writestr(file, text)
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _record(text: str) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest())
    return f"sha256={digest.rstrip(b'=').decode()}"


@pytest.fixture
def checkout(tmp_path):
    """The Makefile with a project, whose lock names one wheel; and the digest of the wheel."""
    shutil.copy(ROOT / "Makefile", tmp_path)
    (tmp_path / "pyproject.toml").write_text(PROJECT)
    (tmp_path / "backend.py").write_text(BACKEND)
    python = tmp_path / "python"
    packages = sysconfig.get_paths()["purelib"]
    python.write_text(PYTHON.format(python=sys.executable, packages=packages))
    python.chmod(0o755)
    write_wheel(tmp_path, "made_project")
    return tmp_path, write_wheel(tmp_path, "made_package")


def set_up(folder: Path) -> subprocess.CompletedProcess:
    environment = {
        "PATH": "/usr/bin:/bin",
        "PIP_CONFIG_FILE": "/dev/null",
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(folder),
        "HOME": str(folder),
    }
    command = ["make", "setup", f"PYTHON={folder}/python"]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


def test_the_set_up_takes_the_named_file_and_refuses_another_or_one_without_a_digest(checkout):
    folder, digest = checkout
    other = digest[:-1] + ("0" if digest[-1] != "0" else "1")
    for lock in (f"made-package==1 --hash=sha256:{other}\n", "made-package==1\n"):
        (folder / "requirements.lock").write_text(lock)
        refused = set_up(folder)
        assert refused.returncode != 0
        assert "hash" in refused.stderr.lower()
        assert not [*folder.glob(".venv/lib/python*/site-packages/made_package.py")]
        assert not (folder / ".venv" / ".ready").exists()
    (folder / "requirements.lock").write_text(f"made-package==1 --hash=sha256:{digest}\n")
    done = set_up(folder)
    assert done.returncode == 0, done.stderr
    for name in ("made_package", "made_project"):
        assert [*folder.glob(f".venv/lib/python*/site-packages/{name}.py")]


@pytest.mark.parametrize("name", ["requirements.lock", "requirements-targets.lock"])
def test_every_package_of_the_locks_has_a_version_and_digests(name):
    """Also the build backend; and no place to download from is named."""
    entries = (ROOT / name).read_text().split("\n", 2)[2].replace("\\\n", "").splitlines()
    assert len(entries) > 50
    for entry in entries:
        assert "==" in entry.split()[0]
        assert " --hash=sha256:" in entry
        assert "://" not in entry
    assert any(entry.startswith("setuptools==") for entry in entries)


def test_both_locks_name_the_same_versions():
    first, second = (
        {line.split()[0] for line in (ROOT / name).read_text().splitlines() if "==" in line}
        for name in ("requirements.lock", "requirements-targets.lock")
    )
    assert first <= second
