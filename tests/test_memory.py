"""Work that does not fit is refused in one line, before anything is read or computed."""

import csv
import io

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dd_jax as dd
from dd_jax import cli, memory, sweeps
from dd_jax.data import own_file, tables
from dd_jax.errors import InputError
from dd_jax.sweeps import deletion
from experiments.compare import scene

MEGABYTE = 1_000_000


@pytest.fixture
def small(monkeypatch):
    """A machine with one megabyte."""
    monkeypatch.setattr(memory, "available", lambda: MEGABYTE)


def test_the_least_of_the_machine_and_of_the_groups_around_it_is_available(tmp_path):
    """Of both versions of control groups; cached files of a group can be dropped."""

    def write(name, text):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    assert memory.available(tmp_path) == np.inf
    write("proc/meminfo", "MemTotal: 9000 kB\nMemAvailable:    5000 kB\n")
    assert memory.available(tmp_path) == 5000 * 1024
    write("proc/self/cgroup", "0::/jobs/mine\n")
    write("sys/fs/cgroup/jobs/mine/memory.max", "max\n")
    write("sys/fs/cgroup/jobs/mine/memory.current", "700\n")
    assert memory.available(tmp_path) == 5000 * 1024
    write("sys/fs/cgroup/jobs/memory.max", "4000\n")
    write("sys/fs/cgroup/jobs/memory.current", "3000\n")
    assert memory.available(tmp_path) == 1000
    write("sys/fs/cgroup/jobs/memory.stat", "anon 1\ninactive_file 250\n")
    assert memory.available(tmp_path) == 1250
    write("proc/self/cgroup", "5:memory:/old\n4:cpu:/other\n")
    write("sys/fs/cgroup/memory/old/memory.limit_in_bytes", "900\n")
    write("sys/fs/cgroup/memory/old/memory.usage_in_bytes", "950\n")
    write("sys/fs/cgroup/memory/old/memory.stat", "total_inactive_file 10\n")
    assert memory.available(tmp_path) == 0


def test_this_machine_has_memory():
    assert memory.available() > MEGABYTE


def refused(call, *words):
    with pytest.raises(InputError, match="memory") as error:
        call()
    text = str(error.value)
    assert "\n" not in text
    assert all(word in text for word in ("GB", *words))


def test_tables_are_refused_from_their_headers(small, tmp_path, monkeypatch):
    """The array is never loaded, the text never parsed."""
    path = tmp_path / "wide.npz"
    np.savez_compressed(path, features=np.zeros((2, 20_000), np.float32), label=np.arange(2))
    monkeypatch.setattr(tables, "_array", lambda *_: pytest.fail("it was read"))
    refused(lambda: tables.read_npz(path), "20,000 columns")
    path = tmp_path / "long.csv"
    path.write_text("a,b,y\n" + "1.5,2.5,0\n" * 30_000)
    monkeypatch.setattr(tables, "_number", lambda *_: pytest.fail("it was parsed"))
    refused(lambda: tables.read_csv(path, label="y"), "30,000 rows of 3 columns")


def test_the_estimate_of_a_table_covers_what_reading_and_scaling_take(tmp_path, monkeypatch):
    import tracemalloc

    rng = np.random.default_rng(0)
    path = tmp_path / "table.npz"
    np.savez(path, features=rng.uniform(size=(300, 400)), label=rng.integers(0, 2, 300))
    asked = []
    monkeypatch.setattr(memory, "require", lambda needed, *_: asked.append(needed))
    own_file.load_file(path)  # what is imported and cached once is not counted
    tracemalloc.start()
    own_file.load_file(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < asked[-1] < 4 * peak


def test_a_header_longer_than_a_field_may_be_is_read(tmp_path):
    names = [f"column number {k}" for k in range(12_000)]
    assert sum(map(len, names)) > csv.field_size_limit()
    text = io.StringIO()
    writer = csv.writer(text, delimiter=";")
    writer.writerows([["y", *names], *([label] + [0.5] * len(names) for label in (0, 1))])
    (tmp_path / "wide.csv").write_text(text.getvalue())
    table = tables.read_csv(tmp_path / "wide.csv", label="y")
    assert table.columns == tuple(names)


def test_outputs_of_many_seeds_are_refused_after_the_first_ones(small):
    seen = []

    def fn(key):
        return jax.random.normal(key, (100,))

    def over(seeds):
        done = lambda *count: seen.append(count)  # noqa: E731
        return dd.over_seeds(fn, jax.random.key(0), seeds, chunk=10, progress=done)

    assert over(100).shape == (100, 100)
    seen.clear()
    refused(lambda: over(2000), "2,000 seeds", "400 bytes")
    assert not seen


def test_streams_are_refused_before_the_first_seed(small, monkeypatch, tmp_path):
    monkeypatch.setattr(dd.ensemble, "over_seeds", lambda *_, **__: pytest.fail("it ran"))
    stream = sweeps.Stream(tmp_path, "many", {}, 10)
    draw = lambda key: jnp.zeros(100)  # noqa: E731
    refused(lambda: sweeps.over_seeds(stream, draw, jax.random.key(0), 2000), "2,000 seeds")
    assert not list(tmp_path.iterdir())


def test_runs_and_sweeps_are_refused_by_their_sizes(small):
    question = deletion.Question("any", n=1000, dim=10, eps_dp=9.0, eps_dd=9.0)
    plan = question.plan()
    deletion.check_work(plan, 10, requests=10, seeds=10, at_once=10)
    for columns, requests, at_once in ((10_000, 10, 10), (10, 10_000, 10), (10, 10, 10_000)):
        refused(lambda c=columns, r=requests, a=at_once: deletion.check_work(plan, c, r, 10, a))
    refused(lambda: deletion.answers([question], lambda runs: [], seeds=9999, at_once=5000))


def test_compare_refuses_more_records_than_fit(small):
    refused(
        lambda: scene.make_scene("synthetic", scene.Config(data=("synthetic",), records=10**8)),
        "100,000,000 records",
    )


def test_a_command_says_it_in_one_line_with_status_2(small, capsys, tmp_path):
    path = tmp_path / "wide.npz"
    np.savez_compressed(path, features=np.zeros((2, 20_000)), label=np.arange(2))
    assert cli.main(["run", "--data", str(path)]) == 2
    *_, last = capsys.readouterr().err.splitlines()
    assert "memory" in last
