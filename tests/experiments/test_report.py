"""The report: what is computed again, what is left out, and what its page holds."""

import csv
import json

import fake_figures as fake
import jax
import numpy as np
import pytest

import dd_jax as dd
from dd_jax import sealed
from dd_jax.cli import style
from experiments import cache, page, points, report
from experiments.page import Table


def statuses(made: report.Report) -> dict[str, str]:
    return {figure.name: figure.status for figure in made.made}


# --- saved arrays -------------------------------------------------------------------------------


def test_what_is_saved_is_drawn_and_not_computed_again(monkeypatch, tmp_path):
    figure = fake.figure("one")
    fake.install(monkeypatch, figure)

    def written():
        status = statuses(fake.write(tmp_path))["one"]
        files = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
        return status, files

    status, first = written()
    assert status == "computed"
    suffixes = (".csv", ".pdf", ".svg", ".png", "-quick.npz", "-table-1.csv")
    assert set(first) == {"report.html", report.LIST, *(f"one{suffix}" for suffix in suffixes)}
    assert first["one-table-1.csv"] == b"points\n4\n"
    assert written() == ("saved", first)
    assert len(figure.calls) == 1


@pytest.mark.parametrize("name", ["versions", "generator", "device", "numerics", "sources_digest"])
def test_nothing_is_used_again_once_something_changed(monkeypatch, tmp_path, name):
    fake.install(monkeypatch, fake.figure("one"))
    fake.write(tmp_path)
    monkeypatch.setattr(cache, name, lambda *_: {"jax": "another"})
    assert statuses(fake.write(tmp_path)) == {"one": "computed"}
    assert statuses(fake.write(tmp_path)) == {"one": "saved"}


def test_numerics_are_what_changes_digits(monkeypatch):
    found = [cache.numerics()]
    monkeypatch.setenv("XLA_FLAGS", "--another")
    found.append(cache.numerics())
    with jax.enable_x64(True):
        found.append(cache.numerics())
    with jax.default_matmul_precision("highest"):
        found.append(cache.numerics())
    assert len({json.dumps(one) for one in found}) == 4


def test_settings_and_scales_have_their_own_arrays_and_chunks(monkeypatch, tmp_path):
    figure = fake.figure("one")
    fake.install(monkeypatch, figure)
    fake.write(tmp_path)
    fake.write(tmp_path, scale="full")
    assert statuses(fake.write(tmp_path)) == {"one": "saved"}
    figure.Config = lambda: fake.Config(points=5)
    fake.write(tmp_path)
    fake.write(tmp_path, recompute=True)
    assert [config.points for config, _ in figure.calls] == [4, 8, 5, 5]
    *_, kept, anew = (runner for _, runner in figure.calls)
    assert kept.folder == tmp_path / "chunks"
    assert kept.config == {"figure": "one", "points": 5, "seed": 0}
    assert anew.folder is None


def test_a_damaged_file_is_computed_again(monkeypatch, tmp_path):
    fake.install(monkeypatch, fake.figure("one"))
    fake.write(tmp_path)
    file = tmp_path / "one-quick.npz"
    whole, said = file.read_bytes(), []
    for content in (whole[:-40], b"", b"PK no archive", whole[:-80], whole[:-1] + b"g"):
        file.write_bytes(content)
        with pytest.raises(ValueError, match="digest"):
            cache.read(file)
    assert statuses(fake.write(tmp_path, said=said)) == {"one": "computed"}
    assert any(file.name in text and "damaged" in text for text in said)
    assert cache.read(file) is not None


def test_edited_arrays_with_sound_checksums_are_not_drawn(monkeypatch, tmp_path):
    """Another writer of NPZ files keeps every checksum of the archive right, but no digest."""
    fake.install(monkeypatch, fake.figure("one"))
    fake.write(tmp_path)
    file = tmp_path / "one-quick.npz"
    with np.load(file) as stored:
        arrays = dict(stored)
    np.savez_compressed(file, **(arrays | {"value": arrays["value"] + 1}))
    assert statuses(fake.write(tmp_path)) == {"one": "computed"}
    np.testing.assert_array_equal(np.load(file)["value"], arrays["value"])


def test_the_list_has_the_digests_of_every_file_but_the_arrays(monkeypatch, tmp_path):
    fake.install(monkeypatch, fake.figure("one"), fake.figure("two"))
    fake.write(tmp_path)
    listed = sealed.unpack_list((tmp_path / report.LIST).read_bytes())
    arrays = {"one-quick.npz", "two-quick.npz", report.LIST}
    assert set(listed) | arrays == {path.name for path in tmp_path.iterdir() if path.is_file()}
    for name, digest in listed.items():
        assert sealed.digest((tmp_path / name).read_bytes()) == digest
    # A report of one figure keeps the lines of the other; a killed one leaves no list.
    fake.write(tmp_path, names=("one",))
    assert set(sealed.unpack_list((tmp_path / report.LIST).read_bytes())) == set(listed)
    figure = fake.figure("one", compute=fake.raising(KeyboardInterrupt()))
    fake.install(monkeypatch, figure)
    with pytest.raises(KeyboardInterrupt):
        fake.write(tmp_path, recompute=True)
    assert not (tmp_path / report.LIST).exists()


def test_a_killed_report_goes_on_where_it_stopped(monkeypatch, tmp_path):
    first, second = fake.figure("first"), fake.figure("second")
    compute, second.compute = second.compute, fake.raising(KeyboardInterrupt())
    fake.install(monkeypatch, first, second)
    with pytest.raises(KeyboardInterrupt):
        fake.write(tmp_path)
    second.compute = compute
    assert statuses(fake.write(tmp_path)) == {"first": "saved", "second": "computed"}


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
    with pytest.raises(ValueError, match="Object"):
        cache.write(tmp_path / "b.npz", given._replace(arrays={"a": np.array([None])}))
    assert not (tmp_path / "b.npz").exists()


def test_sources_are_the_library_and_the_experiments_that_a_figure_imports(tmp_path, monkeypatch):
    monkeypatch.setattr(cache, "ROOT", tmp_path)
    figure = "from experiments import near, page\n"
    files = {"figure.py": figure, "experiments/near.py": "import experiments.far\n"}
    matters = {"dd_jax/erm.py": True, "dd_jax/losses/base.py": True, "dd_jax/cli/run.py": False}
    matters |= {"experiments/far.py": True, "experiments/page.py": False}
    for name, text in (files | dict.fromkeys(matters, "a = 1\n")).items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    before = cache.sources_digest(tmp_path / "figure.py")
    for name, counts in matters.items():
        (tmp_path / name).write_text("a = 2\n")
        assert (cache.sources_digest(tmp_path / "figure.py") != before) == counts, name
        (tmp_path / name).write_text("a = 1\n")


# --- what cannot be made ------------------------------------------------------------------------


def test_missing_data_become_a_card_with_the_command(monkeypatch, tmp_path):
    absent = fake.raising(dd.MissingData("mnist is not downloaded.", "get it"))
    fake.install(monkeypatch, fake.figure("real", compute=absent), fake.figure("two"))
    made = fake.write(tmp_path)
    assert statuses(made) == {"real": "missing data", "two": "computed"}
    assert "<pre>get it</pre>" in made.path.read_text(encoding="utf-8")


@pytest.mark.parametrize("broken", ["compute", "plot", "tables", "Config"])
def test_a_broken_figure_leaves_the_others_whole(monkeypatch, tmp_path, broken):
    bad = fake.figure("bad")
    working = getattr(bad, broken)
    setattr(bad, broken, fake.raising(ZeroDivisionError("not <b>this</b>")))
    fake.install(monkeypatch, bad, fake.figure("good"))
    said = []
    made = fake.write(tmp_path, said=said)
    assert statuses(made) == {"bad": "failed", "good": "computed"}
    assert "not &lt;b&gt;this" in made.path.read_text(encoding="utf-8")
    assert any("Traceback" in text for text in said)
    # Arrays are saved before they are drawn: mending a plot costs no computation.
    setattr(bad, broken, working)
    mended = "saved" if broken in ("plot", "tables") else "computed"
    assert statuses(fake.write(tmp_path)) == {"bad": mended, "good": "saved"}


def test_an_unknown_figure_is_refused_before_anything_is_written(monkeypatch, tmp_path):
    fake.install(monkeypatch, fake.figure("one"))
    with pytest.raises(dd.InputError, match="two"):
        fake.write(tmp_path / "new", names=["two"])
    assert not (tmp_path / "new").exists()


# --- files and the page -------------------------------------------------------------------------


def test_claims_are_rows_of_tables_with_their_columns():
    other = Table("Other", ("claim", "verdict"), [("x", "refuted")])
    made = page.Made("one", "One", "computed", tables=(other, fake.CLAIMS))
    tight, unknown = page.claims([made])
    assert tight == ("tight", 1.0, 1.0, 0.9, "consistent", "one", "divergence")
    assert (unknown.exact, unknown.refuted) == (None, False)


def test_a_refuted_claim_is_always_among_the_cards():
    claims = [
        page.ClaimRow(f"claim {k}", 1.0, None, 0.5, "consistent", "one", "in miles")
        for k in range(14)
    ]
    false = claims[0]._replace(words="was false", verdict="refuted")
    text = page.render([], [*claims, false], "quick")
    assert text.count("in miles") == page.MOST_CLAIMS == 12
    assert text.index("was false") < text.index("claim 0")
    assert "claim 11" not in text


def test_a_claim_s_marks_are_where_its_numbers_are():
    """In percent of an axis that ends 12% beyond the largest number."""
    claim = page.ClaimRow("tight", 5.0, 4.0, 2.0, "consistent", "one")
    text = page.render([], [claim], "quick")
    for name, place in (("certified", "89.3"), ("exact", "71.4"), ("audited", "35.7")):
        assert f'<i class="at {name}" style="left:{place}%"></i>' in text
    assert '<i class="span" style="left:35.7%;width:53.6%"></i>' in text
    assert '"at exact"' not in page.render([], [claim._replace(exact=None)], "quick")


def test_the_page_loads_nothing_and_shows_files_and_certificate(monkeypatch, tmp_path):
    problem = dd.Problem(dd.losses.logistic(), 0.05)
    plan = dd.plan_convex(problem, n=267, dim=64, order=2, eps_dp=1.0, eps_dd=0.1)
    issued = plan.certificate(1, 1)
    fake.install(monkeypatch, fake.figure("one", certificate=lambda config: issued))
    made = fake.write(tmp_path)
    text = made.path.read_text(encoding="utf-8")
    assert "http://" not in text
    assert "https://" not in text
    assert text.count("src=") == text.count('src="data:image/') == 1
    for file in made.made[0].files.values():
        assert f'href="{file}"' in text
        assert (tmp_path / file).stat().st_size > 0
    for number in (issued.eps_dp, issued.eps_dd, issued.eps_dd_adaptive, issued.advantage_bound):
        assert f"<b>≤ {number:.4g}</b>" in text
    assert text.count("<li>") - text.count('<li><a href="#') == len(issued.assumptions)


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


# --- progress -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expected", "events", "left"),
    [
        ({"a": 10.0, "b": 20.0, "c": 30.0}, [4], 56),
        ({"a": 10.0, "b": 20.0, "c": 30.0}, [20, "a", 100], 30),
        # A figure that never ran counts as the mean of the others; a saved one takes no time.
        ({"a": None, "b": None, "c": None}, [10, "a"], 20),
        ({"a": None, "b": 6.0}, [], 12),
        ({"a": 0.0, "b": None}, [1, "a"], None),
    ],
)
def test_time_left_is_what_an_earlier_run_took(expected, events, left):
    now = [100.0]
    schedule = report.Schedule(expected, lambda: now[0])
    for event in events:
        if isinstance(event, str):
            schedule.finish(event)
        else:
            now[0] += event
    assert schedule.left() == left
    assert report.clock(3661) == "1:01:01"


def test_the_page_begins_with_the_figure_that_opens_it(monkeypatch, tmp_path):
    def opening(config, results):
        return [("promised", f"{len(results['value'])} <points>", "words of it")]

    fake.install(monkeypatch, fake.figure("two", tables=lambda *_: [fake.CLAIMS]))
    plain = fake.write(tmp_path).path.read_text(encoding="utf-8")
    assert "tiles opening" not in plain
    second = fake.figure("two", tables=lambda *_: [fake.CLAIMS])
    fake.install(monkeypatch, second, fake.figure("one", opening=opening))
    text = fake.write(tmp_path).path.read_text(encoding="utf-8")
    first = text.split('<main id="content">')[1].split("</section>")[0]
    assert "4 &lt;points&gt;" in first
    assert 'id="one"' in first
    assert text.count('<section id="one">') == 1
    assert text.index('<section id="one">') < text.index('<section id="claims">')
    assert text.index('<section id="claims">') < text.index('<section id="two">')


def test_the_quick_scale_may_depend_on_what_was_fetched(monkeypatch, tmp_path):
    found = fake.figure("one", quick=lambda: fake.Config(points=6))
    fake.install(monkeypatch, found)
    fake.write(tmp_path)
    fake.write(tmp_path, scale="full")
    assert [config.points for config, _ in found.calls] == [6, 8]


# --- points ---------------------------------------------------------------------------------------


def test_the_points_of_a_picture_are_a_table_with_a_row_for_each():
    figure, (axes, bars) = style.panels(1, 2)
    axes.set(xlabel="steps", ylabel="bound", title="left")
    axes.plot([1, 2], [0.5, 0.25], label="certified")
    axes.axhline(3, label="level")
    none = float("nan")
    style.error_bars(axes, [1, 2], [4, none], [3, none], [6, none], label="measured")
    axes.scatter([7], [8])
    bars.barh([0, 1], [5, 6], label="work")
    rows = list(csv.DictReader(points.as_csv(figure).splitlines()))
    assert tuple(rows[0]) == points.COLUMNS
    head = {"panel": "left", "x axis": "steps", "y axis": "bound"}
    assert all(head.items() <= row.items() for row in rows[:5])
    found = [tuple(row[name] for name in ("curve", "x", "y", "y low", "y high")) for row in rows]
    assert sorted(found[:5]) == [
        ("", "7", "8", "", ""),
        ("certified", "1", "0.5", "", ""),
        ("certified", "2", "0.25", "", ""),
        ("level", "", "3", "", ""),
        ("measured", "1", "4", "3", "6"),
    ]
    assert [row[:3] for row in found[5:]] == [("work", "5", "0"), ("work", "6", "1")]
    assert rows[-1]["panel"] == "2"
