"""False alarms, measured: on pairs of known truth each bound keeps its confidence."""

import numpy as np
import pytest

from dd_jax.audit import bounds, power
from dd_jax.audit.power import PAIRS, REPLAYED, atoms, coverage
from dd_jax.errors import InputError
from dd_jax.intervals import clopper_pearson


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "pair"),
    [
        (method, pair)
        for method in REPLAYED
        for pair in ("shift, R₂ = 1", "three atoms")
        # The joint limits' coverage is also proved by enumeration, with atoms of every size.
        if pair != "three atoms" or "independent" not in method
    ],
)
def test_at_most_one_false_alarm_in_twenty(method, pair):
    found = coverage(method, pair, replays=1000, seed=11)
    assert found.trials == 1000
    assert found.high < 0.05


def test_the_replays_notice_a_bound_that_is_too_high(monkeypatch):
    """Part B choosing its own event, at confidence 0.3, is no bound of confidence 0.95."""

    def careless(fit_present, fit_absent, test_present, test_absent, *, confidence):
        arms = (test_present, test_absent) * 2
        return bounds.advantage(*arms, confidence=0.3)

    monkeypatch.setitem(REPLAYED, "advantage", REPLAYED["advantage"]._replace(bound=careless))
    assert coverage("advantage", "equal", replays=300).low > 0.05


def test_the_estimate_is_an_exact_proportion(monkeypatch):
    alarms = iter([True, False] * 20)

    def every_other(*parts, confidence):
        found = bounds.advantage(*parts, confidence=confidence)
        return found._replace(value=1.0 if next(alarms) else 0.0)

    monkeypatch.setitem(REPLAYED, "advantage", REPLAYED["advantage"]._replace(bound=every_other))
    found = coverage("advantage", "shift, R₂ = 1", replays=40)
    assert (found.value, found.low, found.high) == (0.5, *clopper_pearson(20, 40, 0.95))


def test_what_is_no_number_is_a_false_alarm(monkeypatch):
    values = iter([np.nan, np.inf, 0.0, 0.0])

    def broken(*parts, confidence):
        return bounds.advantage(*parts, confidence=confidence)._replace(value=next(values))

    monkeypatch.setitem(REPLAYED, "advantage", REPLAYED["advantage"]._replace(bound=broken))
    assert coverage("advantage", "shift, R₂ = 1", replays=4).value == 0.5


def test_draws_follow_the_stated_laws():
    present, absent = PAIRS["three atoms"].draw((1, 100_000), 0)
    frequencies = [np.bincount(arm[0].astype(int)) / 100_000 for arm in (present, absent)]
    np.testing.assert_allclose(frequencies, [[0.3, 0.3, 0.4], [0.5, 0.3, 0.2]], atol=0.01)
    present, absent = PAIRS["shift, R₂ = 1"].draw((1, 100_000), 0)
    assert np.mean(np.arcsinh(present) / 3) == pytest.approx(1, abs=0.02)
    assert np.mean(np.arcsinh(absent) / 3) == pytest.approx(0, abs=0.02)


@pytest.mark.parametrize(
    ("method", "parameter", "expected"),
    [
        ("advantage", 0.0, 0.2),
        ("hockey_stick", np.log(1.5), 0.1),
        ("epsilon_at", 0.0, np.log(2)),
        ("renyi_bins", 2.0, np.log(0.09 / 0.5 + 0.3 + 0.16 / 0.2)),
    ],
)
def test_the_truth_of_atoms_by_hand(method, parameter, expected):
    pair = atoms([0.3, 0.3, 0.4], [0.5, 0.3, 0.2])
    assert pair.truth(method, parameter) == pytest.approx(expected)


def test_the_truth_of_atoms_is_what_very_many_seeds_approach():
    for method, (bound, name, *_) in REPLAYED.items():
        setting = {} if name is None else {name: power.DEFAULTS[name]}
        truth = PAIRS["three atoms"].truth(method.split(",")[0], setting.get(name, 0.0))
        counts = np.array([3, 3, 4]) * 10**5, np.array([5, 3, 2]) * 10**5
        arms = [np.repeat([0.0, 1.0, 2.0], count) for count in counts]
        found = bound(*arms, *arms, confidence=0.95, **setting).value
        one_event = 0.7 if method.startswith("renyi_binary") else 0.95
        assert one_event * truth < found < truth


def test_the_table_tells_sound_bounds_from_a_plug_in(monkeypatch):
    rows = power.table(replays=20, seeds=400)
    assert len(rows) == len(power.TABLE_PAIRS) * len(REPLAYED) + 1
    assert all(row.sound for row in rows)
    said = {(row.bound, row.pair): row.positive for row in rows}
    assert said["gaussian_mu", "shift, R₂ = 1"] > 0.9  # it is not silent where it may be

    def plug_in(fit_present, fit_absent, test_present, test_absent, *, confidence):
        """The difference of two frequencies, called a lower bound."""
        found = bounds.advantage(
            fit_present, fit_absent, test_present, test_absent, confidence=confidence
        )
        return found._replace(value=np.mean(test_present > 0.5) - np.mean(test_absent > 0.5))

    for name in set(REPLAYED) - {"advantage"}:
        monkeypatch.delitem(REPLAYED, name)
    monkeypatch.setitem(REPLAYED, "advantage", REPLAYED["advantage"]._replace(bound=plug_in))
    rows = power.table(replays=40, seeds=400)
    unsound = {row.pair for row in rows if not row.sound}
    assert {"equal", "shift, R₂ = 1"} <= unsound
    assert "sound" in rows[0].to_dict()


def test_the_table_notices_a_law_that_is_not_the_stated_one(monkeypatch):
    real = power.exact_law.gaussian_law
    monkeypatch.setattr(
        power.exact_law,
        "gaussian_law",
        lambda present, absent, shift, variance, *, confidence: real(
            present, absent, shift + 0.5, variance, confidence=confidence
        ),
    )
    for name in set(REPLAYED) - {"advantage"}:
        monkeypatch.delitem(REPLAYED, name)
    (row,) = [r for r in power.table(replays=20, seeds=400) if r.bound == "gaussian_law"]
    assert not row.sound


@pytest.mark.parametrize("change", [{"replays": 0}, {"seeds": 3}, {"confidence": 1.0}])
def test_a_table_that_cannot_be_made_is_refused(change):
    with pytest.raises(InputError):
        power.table(**change)


def test_unknown_names_are_refused():
    with pytest.raises(InputError, match="choose from"):
        coverage("advantage", "no such pair")
