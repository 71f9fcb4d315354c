import itertools
import json
from pathlib import Path

import fake_figures as fake
import jax
import numpy as np
import pytest

import dd_jax as dd
from experiments import cache, page, report
from experiments.cache import Runner
from experiments.page import Table

ABSENT = dd.MissingData("mnist is not here; run `get it`.", "get it")


def statuses(made: report.Report) -> dict[str, str]:
    return {figure.name: figure.status for figure in made.made}


def points(made: report.Report) -> int:
    """What the table of the first figure says."""
    return made.made[0].tables[0].rows[0][0]


# --- saved arrays -------------------------------------------------------------------------------


def test_what_is_saved_is_drawn_and_not_computed_again(monkeypatch, tmp_path):
    figure = fake.figure("one")
    fake.install(monkeypatch, figure)
    said = []
    first = fake.write(tmp_path, said=said)
    assert "one: computing" in said
    assert statuses(first) == {"one": "computed"}
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    said.clear()
    second = fake.write(tmp_path, said=said)
    assert said[0] == "one: drawn from the saved arrays, nothing has changed"
    assert statuses(second) == {"one": "saved"}
    assert len(figure.calls) == 1
    after = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    assert set(before) == {
        "report.html",
        "one-quick.npz",
        *(f"one.{suffix}" for suffix in ("csv", "pdf", "svg", "png")),
    }
    assert after == before


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("versions", {"jax": "0"}),
        ("generator", "rbg"),
        ("device", "an abacus"),
        ("numerics", {"x64": True}),
        ("sources_digest", "0" * 64),
    ],
)
def test_nothing_is_used_again_once_something_changed(monkeypatch, tmp_path, name, value):
    figure = fake.figure("one")
    fake.install(monkeypatch, figure)
    fake.write(tmp_path)
    monkeypatch.setattr(cache, name, lambda *_: value)
    assert statuses(fake.write(tmp_path)) == {"one": "computed"}
    assert statuses(fake.write(tmp_path)) == {"one": "saved"}
    assert len(figure.calls) == 2


def test_numerics_are_what_changes_digits(monkeypatch):
    found = [cache.numerics()]
    monkeypatch.setenv("XLA_FLAGS", "--another")
    found.append(cache.numerics())
    with jax.enable_x64(True):
        found.append(cache.numerics())
    with jax.default_matmul_precision("highest"):
        found.append(cache.numerics())
    assert all(one != other for one, other in itertools.combinations(found, 2))


def test_another_configuration_is_computed_and_scales_keep_their_own_arrays(monkeypatch, tmp_path):
    figure = fake.figure("one")
    fake.install(monkeypatch, figure)
    assert points(fake.write(tmp_path)) == 4
    assert points(fake.write(tmp_path, scale="full")) == 8
    assert statuses(fake.write(tmp_path)) == {"one": "saved"}
    figure.Config = lambda: fake.Config(points=5)
    assert points(fake.write(tmp_path)) == 5
    assert [config.points for config, _ in figure.calls] == [4, 8, 5]


def test_a_damaged_file_is_computed_again(monkeypatch, tmp_path):
    figure = fake.figure("one")
    fake.install(monkeypatch, figure)
    fake.write(tmp_path)
    file = tmp_path / "one-quick.npz"
    for content in (file.read_bytes()[:-40], b"", b"PK no archive"):
        file.write_bytes(content)
        assert statuses(fake.write(tmp_path)) == {"one": "computed"}
        assert cache.read(file) is not None


def test_a_killed_report_goes_on_where_it_stopped(monkeypatch, tmp_path):
    first, second = fake.figure("first"), fake.figure("second")
    compute, second.compute = second.compute, fake.raising(KeyboardInterrupt())
    fake.install(monkeypatch, first, second)
    with pytest.raises(KeyboardInterrupt):
        fake.write(tmp_path)
    second.compute = compute
    assert statuses(fake.write(tmp_path)) == {"first": "saved", "second": "computed"}
    assert len(first.calls) == 1


def test_chunks_of_seeds_are_kept_beside_the_page_unless_all_is_computed_anew(
    monkeypatch, tmp_path
):
    figure = fake.figure("one")
    fake.install(monkeypatch, figure)
    fake.write(tmp_path)
    fake.write(tmp_path, recompute=True)
    (_, kept), (_, anew) = figure.calls
    assert kept.folder == tmp_path / "chunks"
    assert kept.config == {"figure": "one", "points": 4, "seed": 0}
    assert anew.folder is None


def test_names_for_people_make_folders(tmp_path):
    said = []
    runner = Runner(said.append, tmp_path, {"seed": 0})
    drawn = runner.over_seeds("linear, record present", jax.random.normal, jax.random.key(0), 3)
    assert drawn.shape == (3,)
    assert said[0] == "linear, record present: 3 seeds"
    [folder] = tmp_path.iterdir()
    assert folder.name.startswith("linear-record-present-")


def test_saved_arrays_come_back_as_they_were(tmp_path):
    arrays = {
        "z: β / x": np.array([1.5, np.nan], np.float32),
        "a": np.array(3),
        "words": np.array(["ε", "no"]),
    }
    given = cache.Saved(arrays, {"config": {"seed": 0}}, 1.5, None)
    cache.write(tmp_path / "a.npz", given)
    found = cache.read(tmp_path / "a.npz")
    assert list(found.arrays) == list(arrays)
    for name, array in arrays.items():
        assert found.arrays[name].dtype == array.dtype
        np.testing.assert_array_equal(found.arrays[name], array)
    assert found[1:] == given[1:]
    with pytest.raises(TypeError, match="'a' holds Python objects"):
        cache.write(tmp_path / "b.npz", given._replace(arrays={"a": np.array([None])}))
    assert [path.name for path in tmp_path.iterdir()] == ["a.npz"]


def test_sources_are_the_figure_and_the_experiments_that_it_imports(tmp_path):
    file = tmp_path / "figure.py"
    file.write_text(
        "from dd_jax.cli import style\n"
        "from experiments.page import Table\n"
        "def compute():\n    from experiments.compare import sequential\n"
    )
    here = cache.ROOT / "experiments"
    found = cache._with_imports(file)
    # The cache by way of the stream of deletions that uses it.
    names = {"figure.py", "sequential.py", "cache.py"}
    assert names <= {path.name for path in found}
    assert (
        not {
            cache.ROOT / "dd_jax" / "cli" / "style.py",
            here / "figures" / "__init__.py",
            here / "report.py",
        }
        & found
    )


def test_a_changed_source_has_another_digest(tmp_path):
    file = tmp_path / "figure.py"
    digests = []
    for text in ("a = 1\n", "a = 2\n", "a = 1\n"):
        file.write_text(text)
        digests.append(cache.sources_digest(file))
    assert digests[0] == digests[2] != digests[1]


def test_the_whole_library_counts_as_a_source_but_for_its_command_line(tmp_path, monkeypatch):
    monkeypatch.setattr(cache, "ROOT", tmp_path)
    counts = {"dd_jax/erm.py": True, "dd_jax/losses/base.py": True, "dd_jax/cli/run.py": False}
    for name in ("figure.py", *counts):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("a = 1\n")
    before = cache.sources_digest(tmp_path / "figure.py")
    for name, matters in counts.items():
        (tmp_path / name).write_text("a = 2\n")
        assert (cache.sources_digest(tmp_path / "figure.py") != before) == matters
        (tmp_path / name).write_text("a = 1\n")


# --- what cannot be made ------------------------------------------------------------------------


def test_missing_data_becomes_a_card_that_says_how_to_get_them(monkeypatch, tmp_path):
    real = fake.figure("real", compute=fake.raising(ABSENT))
    fake.install(monkeypatch, fake.figure("one"), real, fake.figure("two"))
    made = fake.write(tmp_path)
    assert statuses(made) == {"one": "computed", "real": "missing data", "two": "computed"}
    assert made.made[1].command == "get it"
    text = made.path.read_text(encoding="utf-8")
    assert "<pre>get it</pre>" in text
    assert "This figure failed" not in text


@pytest.mark.parametrize("broken", ["compute", "plot", "tables", "import"])
def test_a_broken_figure_leaves_the_others_whole(monkeypatch, tmp_path, broken):
    bad = fake.figure("bad")
    error = ZeroDivisionError("not <b>this</b>")
    changed = "Config" if broken == "import" else broken
    working = getattr(bad, changed)
    setattr(bad, changed, fake.raising(error))
    fake.install(monkeypatch, bad, fake.figure("good"))
    said = []
    made = fake.write(tmp_path, said=said)
    assert statuses(made) == {"bad": "failed", "good": "computed"}
    assert "ZeroDivisionError: not &lt;b&gt;this" in made.path.read_text(encoding="utf-8")
    assert any("Traceback" in text for text in said)
    # Arrays are saved before they are drawn: mending a plot costs no computation.
    setattr(bad, changed, working)
    mended = "saved" if broken in ("plot", "tables") else "computed"
    assert statuses(fake.write(tmp_path)) == {"bad": mended, "good": "saved"}


def test_an_unknown_figure_is_refused_before_anything_is_written(monkeypatch, tmp_path):
    fake.install(monkeypatch, fake.figure("one"))
    with pytest.raises(dd.InputError, match="there is no figure 'two'; choose from one"):
        fake.write(tmp_path / "new", names=["two"])
    assert not (tmp_path / "new").exists()


# --- files and the page -------------------------------------------------------------------------


def test_csv_lists_every_value():
    arrays = {"a": np.array([[1.0, 2.0]]), "b": np.array(3.0), "c": np.array(["x, y"])}
    assert report._as_csv(arrays).splitlines() == [
        "array,index,value",
        "a,0 0,1",
        "a,0 1,2",
        "b,,3",
        'c,0,"x, y"',
    ]


def test_claims_are_rows_of_tables_with_their_columns():
    other = Table("Other", ("claim", "verdict"), [("x", "refuted")])
    made = page.Made("one", "One", "computed", tables=(other, fake.CLAIMS))
    tight, unknown = page.claims([made])
    assert tight == ("tight", 1.0, 1.0, 0.9, "consistent", "one", "divergence")
    assert unknown.exact is None
    assert not unknown.refuted


def test_a_refuted_claim_is_always_among_the_cards():
    claims = [
        page.ClaimRow(f"claim {k}", 1.0, None, 0.5, "consistent", "one", "in miles")
        for k in range(14)
    ]
    text = page.render(
        [], [*claims, claims[0]._replace(words="was false", verdict="refuted")], "quick"
    )
    assert text.count('<article class="card">') == page.MOST_CLAIMS
    assert text.count("in miles") == page.MOST_CLAIMS == 12
    assert "12 of 15 claims" in " ".join(text.split())
    assert text.index("was false") < text.index("claim 0")
    assert "claim 11" not in text


def test_a_claim_s_marks_are_where_its_numbers_are():
    """In percent of an axis that ends 12% beyond the largest number."""
    claim = page.ClaimRow("tight", 5.0, 4.0, 2.0, "consistent", "one")
    text = page.render([], [claim], "quick")
    for name, place in (("certified", "89.3"), ("exact", "71.4"), ("audited", "35.7")):
        assert f'<i class="at {name}" style="left:{place}%"></i>' in text
    assert '<i class="span" style="left:35.7%;width:53.6%"></i>' in text
    unknown = page.render([], [claim._replace(exact=None)], "quick")
    assert '"at exact"' not in unknown
    assert '"at audited"' in unknown


def test_the_page_loads_nothing_and_names_only_files_that_are_there(monkeypatch, tmp_path):
    fake.install(monkeypatch, fake.figure("one", tables=lambda *_: [fake.CLAIMS]))
    made = fake.write(tmp_path)
    text = made.path.read_text(encoding="utf-8")
    assert "http://" not in text
    assert "https://" not in text
    assert text.count("src=") == text.count('src="data:image/') == 1
    for file in made.made[0].files.values():
        assert f'href="{file}"' in text
        assert (tmp_path / file).stat().st_size > 0
    assert "<strong>quick</strong> scale" in text


def test_a_certificate_is_shown_with_its_numbers_and_assumptions(monkeypatch, tmp_path):
    problem = dd.Problem(dd.losses.logistic(), 0.05)
    plan = dd.plan_convex(problem, n=267, dim=64, order=2, eps_dp=1.0, eps_dd=0.1)
    issued = plan.certificate(1, 1)
    fake.install(monkeypatch, fake.figure("one", certificate=lambda config: issued))
    text = fake.write(tmp_path).path.read_text(encoding="utf-8")
    for number in (issued.eps_dp, issued.eps_dd, issued.eps_dd_adaptive, issued.advantage_bound):
        assert f"<b>≤ {number:.4g}</b>" in text
    assert text.count("<li>") - text.count('<li><a href="#') == len(issued.assumptions)
    assert "Each ε is a Rényi divergence of order 2." in text
    assert f"K_L = {plan.learn_steps} to learn, K_U = {plan.delete_steps} per request" in text
    assert f"σ² = {plan.noise_variance:.4g}, step size η = {plan.step_size:.4g}" in text


def test_numbers_and_what_columns_are_sorted_by():
    cells = [None, np.nan, True, np.int64(12345), 0.000123456, np.inf, -np.inf, (1, "a"), "text"]
    shown = ["–", "–", "yes", "12,345", "0.0001235", "∞", "−∞", "1, a", "text"]
    floats = {999.96: "1000", 2_732.4: "2,732", -17_700.0: "-17,700", 1.25e7: "1.25e+07"}
    assert [page._text(value) for value in floats] == list(floats.values())
    assert [page._text(cell) for cell in cells] == shown
    order = ["", "", "1.0", "12345.0", "0.000123456", "Infinity", "-Infinity"]
    assert [page._order(cell) for cell in cells[:7]] == order
    table = Table("t", ("a", "b"), [(1, "x"), (None, 2.0)])
    assert [page._is_numeric(table, k) for k in (0, 1)] == [True, False]


def test_a_drawing_that_is_too_large_is_shown_as_pixels(monkeypatch):
    assert page.image(b"<svg/>", b"png").startswith("data:image/svg+xml;base64,")
    monkeypatch.setattr(page, "LARGEST_DRAWING", 3)
    assert page.image(b"<svg/>", b"png") == "data:image/png;base64,cG5n"


def test_identity_is_what_a_file_can_hold():
    found = cache.identity(Path(fake.__file__), fake.Config())
    assert found == json.loads(json.dumps(found))
    assert found["config"] == {"points": 4, "seed": 0}
    assert set(found) == {"config", "versions", "prng", "device", "numerics", "sources"}
    assert found["versions"]["dd-jax"]


def test_a_table_from_its_columns_repeats_single_values_and_appends_groups():
    first = {"name": "a", "n": np.array([1, 2]), "limit": np.array(0.5)}
    second = {"name": "b", "n": (3,), "limit": None}
    rows = [("a", 1, 0.5), ("a", 2, 0.5), ("b", 3, None)]
    found = page.Table.from_columns("T", first, second)
    assert found == page.Table("T", ("name", "n", "limit"), rows)


# --- progress -----------------------------------------------------------------------------------


class Clock:
    """A clock that is set by hand."""

    now = 100.0

    def __call__(self):
        return self.now


def test_time_left_is_what_an_earlier_run_took_at_the_pace_of_this_one():
    time = Clock()
    schedule = report.Schedule({"a": 10.0, "b": 20.0, "c": 30.0}, time)
    assert schedule.left() == 60
    time.now += 4
    assert schedule.left() == 56
    assert schedule.words() == "1/3, 0:04, about 0:56 left"
    time.now += 16
    schedule.finish("a")
    assert schedule.left() == 20 + 30
    time.now += 100  # b takes longer than that: at least c is left
    assert schedule.left() == 30
    assert schedule.words() == "2/3, 2:00, about 0:30 left"


def test_figures_that_never_ran_count_as_the_mean_of_the_others():
    time = Clock()
    schedule = report.Schedule({"a": None, "b": None, "c": None}, time)
    assert schedule.left() is None
    assert schedule.words() == "1/3, 0:00"
    time.now += 10
    schedule.finish("a")
    assert schedule.left() == 20
    assert report.Schedule({"a": None, "b": 6.0}, time).left() == 12


def test_saved_figures_take_no_time_and_teach_nothing():
    time = Clock()
    schedule = report.Schedule({"a": 0.0, "b": None}, time)
    time.now += 1
    schedule.finish("a")
    assert schedule.left() is None
    time.now += 5
    schedule.finish("b")
    assert schedule.left() == 0
    assert schedule.words() == "2/2, 0:06"


def test_clock_reads_in_hours_minutes_and_seconds():
    known = {0.4: "0:00", 59.6: "1:00", 3599: "59:59", 3661: "1:01:01"}
    assert {seconds: report.clock(seconds) for seconds in known} == known
