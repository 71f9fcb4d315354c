"""No file that a command writes holds a private row, compiled programs included; and rows are found
where they are.
"""

import gzip
import json
import os
import subprocess
import sys
import zlib

import numpy as np
import pytest
from problems import soak

import dd_jax as dd
from dd_jax import cli
from dd_jax.cli import scanning
from dd_jax.data.own_file import Bounds, load_file

N, DIM = 60, 5
HEADER = ",".join([*(f"x{k}" for k in range(DIM)), "y"])
FILE = ("--data", "my.csv", "--label", "y", "--lower", "0", "--upper", "1")
PLAN = ("--l2", "0.5", "--eps-dp", "1", "--eps-dd", "0.5")
RUN = ("run", *FILE, *PLAN, "--requests", "1", "--seeds", "2", "--save", "run")
LARGEST = ("--requester", "largest_loss", "--adaptivity", "1")
SWEEP = ("sweep", *FILE, *PLAN, "--requests", "2", "--seeds", "2", "--results", "results", *LARGEST)
COMMANDS = soak((RUN,), (RUN, SWEEP))


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """(folder that commands wrote into, rows as they stand in the file and as they are learned)."""
    folder = tmp_path_factory.mktemp("private")
    rows = np.random.default_rng(0).uniform(0, 1, (N, DIM))
    labels = np.where(rows[:, 0] > 0.5, "yes", "no")
    lines = [",".join([*map(repr, row), y]) for row, y in zip(rows.tolist(), labels, strict=True)]
    (folder / "my.csv").write_text("\n".join([HEADER, *lines, ""]))
    cache = {"DD_JAX_COMPILE_CACHE": str(folder / "compiled"), "JAX_PLATFORMS": "cpu"}
    for command in COMMANDS:
        subprocess.run(
            [sys.executable, "-m", "dd_jax.cli", *command],
            cwd=folder,
            env=os.environ | cache,
            check=True,
            capture_output=True,
        )
    data = load_file(folder / "my.csv", label="y", bounds=Bounds(lower=0, upper=1))
    return folder, rows, np.asarray(data.train.features, np.float64)


def searched(folder, rows, capsys, tmp_path):
    """Files that hold a row, and how many rows of planted copies were found."""
    np.savez(tmp_path / "rows.npz", rows=rows)
    status = cli.main(["check", str(folder), "--record", str(tmp_path / "rows.npz"), "--json"])
    found = json.loads(capsys.readouterr().out)
    assert not found["damaged"]
    assert not found["record"]["unread"]
    assert status == (2 if found["record"]["found"] else 0)
    assert found["record"]["control"]["float32"] == len(rows)
    return {one["file"] for one in found["record"]["found"]}, found


def test_no_command_writes_a_row_anywhere(written, capsys, tmp_path):
    folder, raw, learned = written
    found, said = searched(folder, raw, capsys, tmp_path)
    assert found == {"my.csv"}
    assert said["whole"]["compiled programs"] >= 5
    assert said["whole"]["files written together"] >= 3
    found, _ = searched(folder, learned, capsys, tmp_path)
    assert found == set()


def test_rows_are_found_where_they_should_be(written, capsys, tmp_path):
    _, raw, learned = written
    folder = tmp_path / "holds"
    folder.mkdir()
    problem = dd.Problem(dd.losses.logistic(), l2=0.5)
    labels = np.where(raw[: len(learned), 0] > 0.5, 1.0, -1.0)
    rows = dd.Labelled(np.asarray(learned, np.float32), labels.astype(np.float32))
    options = {"n": len(learned), "dim": DIM, "order": 2, "eps_dp": 1.0, "eps_dd": 0.5}
    plan = dd.plan_convex(problem, **options)
    curator = dd.noisy_gd.mechanism(problem, plan)

    def respond(request, release):
        return dd.deletion(problem.loss, rows, [3])

    state, transcript = dd.drive(dd.secret_key(), curator, respond, rows, num_requests=1)
    dd.save(folder / "curator.npz", plan, state, transcript)
    single = learned.astype("<f4")
    (folder / "columns.bin").write_bytes(b"odd" + single.tobytes(order="F"))
    (folder / "packed.program").write_bytes(zlib.compress(b"odd" + single.tobytes()))
    (folder / "one.txt.gz").write_bytes(gzip.compress(str(list(learned[7])).encode()))
    (folder / "noise").write_bytes(np.random.default_rng(1).bytes(100_000))
    np.savez(tmp_path / "rows.npz", rows=learned)
    assert cli.main(["check", str(folder), "--record", str(tmp_path / "rows.npz"), "--json"]) == 2
    found = {
        one["file"]: one["rows"] for one in json.loads(capsys.readouterr().out)["record"]["found"]
    }
    everyone = list(range(len(learned)))
    assert found["columns.bin"] == found["packed.program"] == everyone
    assert found["curator.npz"] == [row for row in everyone if row != 3]  # deleted
    assert found["one.txt.gz"] == [7]
    assert set(found) == {"curator.npz", "columns.bin", "packed.program", "one.txt.gz"}


def test_rows_that_chance_writes_are_refused(tmp_path, capsys):
    (tmp_path / "my.csv").write_text("a,b\n1,0\n0,1\n")
    assert cli.main(["check", str(tmp_path), "--record", str(tmp_path / "my.csv")]) == 2
    assert "digits" in capsys.readouterr().err
    (tmp_path / "my.csv").write_text("words,only\n")
    for record in (str(tmp_path / "my.csv"), str(tmp_path), "/dev/zero"):
        assert cli.main(["check", str(tmp_path), "--record", record]) == 2
        assert capsys.readouterr().err.count("\n") == 1


def test_rows_are_those_of_the_lines_with_numbers(tmp_path):
    path = tmp_path / "my.csv"
    path.write_text('id;x;y\nC1;"1.5";-2e3\nC2;;7\n')
    np.testing.assert_array_equal(scanning.read_rows(path), [[1.5, -2000.0], [7.0, 0.0]])
