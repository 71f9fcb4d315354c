"""No record is part of a compiled program: `dd-jax` keeps programs on disk, also after a deletion.

Every program that commands and requesters left in a folder is searched for four consecutive values
of any record, along rows and columns, in single and double precision.
"""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from problems import soak

import dd_jax as dd
from dd_jax.cli import compile_cache
from dd_jax.data.own_file import load_file

ROOT = Path(__file__).parents[1]

WIDTH = 4
# Commands on private rows, then requesters, in one process with the cache on.
COMMANDS = """
import sys
from dd_jax.cli import compile_cache
assert compile_cache.enable() is not None
from dd_jax import cli
for line in sys.argv[1:]:
    assert cli.main(line.split()) == 0, line
"""
REQUESTERS = """
import sys
from dd_jax.cli import compile_cache
assert compile_cache.enable() is not None
import jax
import jax.numpy as jnp
import numpy as np
import dd_jax as dd
from jax.tree_util import Partial

rows = dd.data.load("digits-3-vs-8").train
loss = dd.losses.logistic()
curator = dd.noisy_gd.mechanism(dd.Problem(loss, 0.1), dd.noisy_gd.Schedule(0.5, 1e-3, 1.0, 2, 1))
blank = dd.deletion(loss, rows, [0]).record

def worst(rows, key, memory, observation):
    row = jnp.argmin(rows.label * (rows.features @ observation.release)).astype(jnp.int32)
    return memory, dd.Edit(row[None], blank)

def serve(requester):
    dd.interact(jax.random.key(0), curator, requester, rows, num_requests=1, observe=(0,))

if sys.argv[1] == "bound":
    serve(dd.Requester(lambda key: (), Partial(worst, rows)))
    serve(dd.requesters.largest_loss(loss, rows))
    serve(dd.requesters.churn(3, rows))
    record = jax.tree.map(lambda leaf: leaf[5], rows)
    score = dd.audit.scores.deleted_record_loss(loss, record, loss.template(rows))
    models = np.random.default_rng(0).normal(size=(2, 30, 64))
    score.fit(*models)(models[0])
else:
    serve(dd.Requester(lambda key: (), lambda *asked: worst(rows, *asked)))
"""


def run(tmp_path, code, *arguments):
    """The programs that a process left in a folder of its own, by their names."""
    folder = tmp_path / "compiled"
    without = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        # The experiments are not installed.
        env=without | {compile_cache.VARIABLE: str(folder), "PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = dict(compile_cache.programs(folder))
    assert found
    assert all(path.name in found for path in folder.iterdir()), "files that nobody looks at"
    return found


def holding(programs, *tables):
    """The programs that hold a piece of a table."""
    pieces = {piece for table in tables for piece in pieces_of(np.asarray(table))}
    assert pieces
    return {name for name, content in programs.items() if holds(content, pieces)}


def pieces_of(table):
    """Four consecutive values, none of them zero or equal, of every row and column, as bytes."""
    for lines in (table, table.T):
        for dtype in (np.float32, np.float64):
            windows = np.lib.stride_tricks.sliding_window_view(lines.astype(dtype), WIDTH, axis=1)
            for values in windows.reshape(-1, WIDTH):
                if len(set(values.tolist()) - {0.0}) == WIDTH:
                    yield values.tobytes()


def holds(content, pieces):
    """Whether one of the pieces is somewhere in the bytes, at any place."""
    beginnings = np.array(sorted({int.from_bytes(piece[:8], "little") for piece in pieces}), "u8")
    for offset in range(8):
        words = np.frombuffer(content[offset:][: (len(content) - offset) // 8 * 8], "<u8")
        for place in np.flatnonzero(np.isin(words, beginnings)):
            start = offset + 8 * int(place)
            if any(content[start : start + size] in pieces for size in (4 * WIDTH, 8 * WIDTH)):
                return True
    return False


def digits():
    return dd.data.load("digits-3-vs-8").train.features


def test_a_piece_is_found_at_any_place():
    table = np.arange(1.0, 25.0).reshape(4, 6) / 7
    pieces = set(pieces_of(table))
    assert len(pieces) == 2 * (4 * 3 + 6 * 1)
    for dtype, part in ((np.float32, table[2, 1:5]), (np.float64, table[:, 3])):
        content = part.astype(dtype).tobytes()
        for offset in range(9):
            assert holds(b"\7" * offset + content + b"\7" * 5, pieces)
            assert not holds(b"\7" * offset + content[:-1] + b"\7" * 5, pieces)


def test_records_that_a_function_closes_over_are_found(tmp_path):
    assert holding(run(tmp_path, REQUESTERS, "closing"), digits())


def test_requesters_and_scores_leave_no_record(tmp_path):
    assert holding(run(tmp_path, REQUESTERS, "bound"), digits()) == set()


def test_commands_on_a_private_file_leave_no_record(tmp_path):
    """`run` and an adaptive `sweep`; the rows as they are in the file, and as they are scaled."""
    rng = np.random.default_rng(7)
    raw = rng.uniform(0, 10, (60, 5))
    lines = [",".join(map(repr, [*row, k % 2])) for k, row in enumerate(raw.tolist())]
    (tmp_path / "mine.csv").write_text("\n".join(["a,b,c,d,e,y", *lines]))
    scaled = load_file(tmp_path / "mine.csv", label="y").train.features
    read = "--data mine.csv --label y --eps-dp 90 --eps-dd 90 --l2 0.5 --requests 2 --seeds 2"
    asked = [
        f"run {read} --save saved",
        f"sweep {read} --requester largest_loss --adaptivity 1 --results swept",
    ]
    assert holding(run(tmp_path, COMMANDS, *asked), raw, scaled) == set()


@pytest.mark.skipif(soak(True, False), reason="a minute and more; under `make soak`")
@pytest.mark.parametrize(
    "line",
    ["audit logistic --seeds 400 --no-save", "attack re-encoding --seeds 100 --group 5"],
)
def test_audits_and_attacks_on_digits_leave_no_record(tmp_path, line):
    assert holding(run(tmp_path, COMMANDS, line), digits()) == set()


@pytest.mark.skipif(soak(True, False), reason="minutes; under `make soak`")
def test_the_comparison_leaves_no_record(tmp_path):
    code = COMMANDS.replace("from dd_jax import cli", "from experiments.__main__ import PROGRAM")
    code = code.replace("cli.main(line.split())", "cli.main(line.split(), PROGRAM)")
    code = code.replace("import sys\n", "import sys\nfrom dd_jax import cli\n", 1)
    line = "compare --data digits-3-vs-8 --records 64 --seeds 100 --results swept"
    assert holding(run(tmp_path, code, line), digits()) == set()
