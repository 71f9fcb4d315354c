import csv
import dataclasses
import io
import json
import time
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from small_comparison import SMALL

from dd_jax.cli.output import json_text
from dd_jax.errors import InputError
from dd_jax.intervals import Estimate, Mean
from experiments.compare import measure, scene, systems, table


@pytest.fixture(scope="module")
def rows():
    return measure.run(SMALL).rows


def test_rows_measure_cost_secret_and_risk(rows):
    perturbed, fixed = rows
    costs = perturbed.costs
    assert costs.gradients % 24 == 0
    # Retraining is measured once for all rows, whatever a system's own learning costs.
    assert perturbed.retrain_ratio == perturbed.reference.retraining / costs.gradients
    assert perturbed.reference.retraining % 24 == 0
    assert fixed.reference == perturbed.reference
    assert costs.secret_bytes == 4 * (scene.SYNTHETIC_DIM + 1)
    assert 0 < perturbed.excess_risk.value < 1e-3 < fixed.excess_risk.value
    assert perturbed.accuracy.value > 0.8
    assert costs.seconds > 0
    assert fixed.costs.gradients == 0
    assert {"accuracy", "retrain_ratio"} <= set(fixed.reasons)


def test_the_secret_state_leaks_to_an_adaptive_requester_and_the_fixed_model_never(rows):
    perturbed, fixed = rows
    assert perturbed.advantages[2].low > 0.6
    assert perturbed.verdict(0) == measure.WITHIN
    assert all(found.value == 0 for found in fixed.advantages)
    assert fixed.attacks == ()


def test_all_limits_hold_together(rows):
    # Three adversaries for two systems, and Gupta et al.'s two.
    assert all(found.confidence == 1 - 0.05 / 8 for row in rows for found in row.advantages)


def test_a_system_that_refuses_is_left_out_with_its_reason_and_the_others_are_measured(
    rows, monkeypatch
):
    monkeypatch.setattr(measure, "_row", lambda *measured: rows[1])
    config = dataclasses.replace(SMALL, epsilon=12.0)
    found = measure.run(config)
    assert [row.system for row in found.rows] == ["fixed-model"]
    why = found.left_out["synthetic", "perturbed-gd"]
    assert "epsilon" in why
    measured, refused = csv.DictReader(io.StringIO(table.to_csv(found)))
    assert (measured["system"], refused["system"]) == ("fixed-model", "perturbed-gd")
    assert refused["gradients"] == refused["one_release"] == f"[{why}]"
    saved = table.to_json(config, found, 1.0, 1.0)["left_out"]
    assert saved == [{"data": "synthetic", "system": "perturbed-gd", "why": why}]
    assert table.left_out(found.left_out, "elsewhere") == []
    with pytest.raises(InputError, match="perturbed-gd"):
        measure.run(dataclasses.replace(config, systems=("perturbed-gd",)))


def test_the_longest_game_is_played_first_and_rows_keep_their_order(rows, monkeypatch):
    perturbed, fixed = rows
    found = {row.system: row for row in rows}
    played, said, clock = [], [], iter(range(0, 100, 30))

    def one(key, scene, name, *measured):
        played.append(name)
        return found[name]

    def affordable(config, contestant, costs, dim):
        return measure.Share(100, 3, 4, 1.0 + 2.0 * (costs.gradients > 0))

    monkeypatch.setattr(measure, "_row", one)
    monkeypatch.setattr(measure, "affordable", affordable)
    ticks = SimpleNamespace(monotonic=lambda: next(clock), perf_counter=time.perf_counter)
    monkeypatch.setattr(measure, "time", ticks)
    in_turn = SimpleNamespace(map=map)
    monkeypatch.setattr(measure, "ThreadPoolExecutor", lambda workers: nullcontext(in_turn))
    config = dataclasses.replace(SMALL, systems=("fixed-model", "perturbed-gd"))
    assert measure.run(config, said.append).rows == [fixed, perturbed]
    assert played == ["perturbed-gd", "fixed-model"]
    # Three quarters of the work and half of the systems took 30 seconds.
    assert "1 of 2 systems, about 18 s left" in said[-2]
    assert said[-1].endswith("2 of 2 systems")


def test_drained_shards_are_named_with_the_confidence_of_every_other_limit(rows, monkeypatch):
    asked = {}

    class Attack:
        def run(self, key, **options):
            asked.update(options)
            lines = tuple({"success": rate, "low": rate - 0.1, "high": 1.0} for rate in (0.9, 0.5))
            return SimpleNamespace(rows=lines)

    monkeypatch.setattr(measure, "find_attack", lambda name: Attack())
    names = ("sisa", "sisa-private", "perturbed-gd")
    made = [dataclasses.replace(rows[0], system=name, data=measure.GUPTA_DATA) for name in names]
    plain, private, other = measure.with_gupta(None, made, 0.99, print)
    # The attack shares its confidence among four curators.
    assert asked["confidence"] == pytest.approx(0.96)
    assert plain.drained == Estimate(0.9, 0.8, 1.0, measure.GUPTA_SEEDS, 0.99)
    assert (any("drain" in attack for attack in plain.attacks), private.drained.value) == (
        True,
        0.5,
    )
    assert other.reasons["drained"] == measure.NO_SHARDS
    elsewhere = measure.with_gupta(None, [dataclasses.replace(made[0], data="here")], 0.99, print)
    assert measure.GUPTA_DATA in elsewhere[0].reasons["drained"]


@pytest.mark.parametrize(
    ("noiseless", "low", "marked"), [(0.9, 0.8, False), (0.9, 0.6, True), (0.65, 0.8, True)]
)
def test_a_model_that_does_not_beat_the_larger_class_is_marked(rows, noiseless, low, marked):
    reference = rows[0].reference._replace(accuracy=noiseless, majority=0.65)
    row = dataclasses.replace(rows[0], reference=reference, accuracy=Mean(0.85, low, 0.9))
    assert row.at_majority == marked
    shown = [line[-1] for line in table.printed([row])[1].rows]
    assert shown[:2] == [f"{noiseless:.3f}", "0.650"]
    assert (table.AT_MAJORITY in shown[2]) == marked


def test_a_hessian_counts_as_a_gradient_for_every_feature(rows):
    costs = rows[0].costs._replace(gradients=10.0, hessians=2.0)
    reference = rows[0].reference._replace(retraining=320.0)
    row = dataclasses.replace(rows[0], costs=costs, reference=reference, dim=11)
    assert row.retrain_ratio == 320 / (10 + 2 * 11)


def make_row(row, low, allowed):
    found = Estimate(low + 0.15, low, low + 0.2, 70, 0.99)
    allowed = tuple("because" if bound is None else bound for bound in allowed)
    return dataclasses.replace(row, advantages=(found,) * 3, allowed=allowed)


@pytest.mark.parametrize(
    ("low", "allowed", "verdict"),
    [
        (0.5, (0.4, 0.4, 0.4), measure.BEYOND),
        (0.3, (0.4, 0.4, 0.4), measure.WITHIN),
        (0.3, (0.4, None, None), measure.LEAKS),
        (0.5, (0.6, None, None), measure.LEAKS),
        (0.5, (0.4, None, None), measure.LEAKS_MORE),
        (0.1, (None, None, None), measure.LEAKS),
        (-0.1, (0.0, None, None), measure.NOT_SHOWN),
    ],
)
def test_verdicts(rows, low, allowed, verdict):
    row = make_row(rows[0], low, allowed)
    assert row.verdict(1) == verdict
    assert any("averag" in attack for attack in row.attacks) == (verdict in measure.SUCCESS)


def test_no_cell_of_the_csv_is_empty_and_missing_ones_carry_a_reason(rows):
    lines = list(csv.DictReader(io.StringIO(table.to_csv(measure.Comparison(rows, {})))))
    assert [line["system"] for line in lines] == ["perturbed-gd", "fixed-model"]
    for line in lines:
        assert all(line.values())
        assert "[None]" not in line.values()
        assert line["drained_low"] == f"[{measure.NO_SHARDS}]"
    for part in ("low", "high"):
        assert float(lines[0][f"excess_risk_{part}"]) == getattr(rows[0].excess_risk, part)
    assert lines[1]["accuracy"].startswith("[")
    assert lines[1]["attacks"] == "none"
    assert lines[0]["many_releases_allowed"] == f"[{systems.ONE_RELEASE}]"


def test_json_text_reads_back_with_reasons(rows):
    found = json.loads(json_text(table.to_json(SMALL, measure.Comparison(rows, {}), 1.0, 1.0)))
    fixed = found["rows"][1]
    for name in ("accuracy", "retrain_ratio", "drained"):
        assert fixed[name] is None
        assert fixed["reasons"][name]
    assert fixed["advantages"]["one release"]["allowed"] == 0
    assert found["config"]["epsilon"] == 1


def test_printed_tables_fit_into_eighty_columns(rows):
    wide = dataclasses.replace(
        make_row(rows[0], -0.25, (0.4, None, None)), system="perturbed-gd-stateless-best"
    )
    for _, columns, lines, _ in table.printed([wide]):
        widest = [
            max(len(part) for cell in cells for part in str(cell).split("\n"))
            for cells in zip(columns, *lines, strict=True)
        ]
        assert sum(widest) + 3 * len(widest) + 1 <= 80
    marked = table.printed([make_row(rows[0], 0.5, (0.4, None, None))])[2].rows[0]
    assert [cell.split()[-1] for cell in marked[1:]] == ["!", "**", "**"]
    assert len(table.footnotes(rows[:1])) == 2
    assert all(len(line) <= 80 for note in table.notes(rows) for line in note.splitlines())


def test_the_figure_shows_every_row_and_every_kind_of_mark(rows):
    # A first row that claims nothing must not take the mark of claims from the legend.
    silent = dataclasses.replace(rows[0], allowed=("because",) * 3)
    figure = table.plot([silent, rows[1]])
    labels = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert sorted(labels) == ["fixed-model", "perturbed-gd"]
    assert len(figure.legends[0].get_texts()) == 6


def test_certificates_that_are_broken_are_named(rows):
    # The third adversary alone, whose bound the others keep to.
    inside, broken = (make_row(rows[1], low, (0.5, 0.5, 0.0)) for low in (-0.1, 0.1))
    assert table.refuted([inside]) == []
    found = table.to_json(SMALL, measure.Comparison([inside, broken], {}), 1.0, 1.0)
    assert found["refuted"] == ["fixed-model (synthetic)"]
