"""Counted rounding against exact laws on a lattice."""

import numpy as np
import pytest
from problems import soak

from dd_jax import InputError
from dd_jax.guarantees import lattice, renyi, schedules
from dd_jax.oracles import lattice as laws


class Case:
    """A random run of the linear loss on the integers, where rounding matters."""

    def __init__(self, rng):
        self.dim, self.order = int(rng.integers(1, 3)), float(rng.choice([1.5, 2.0, 4.0]))
        self.contraction = float(rng.uniform(0.2, 0.98))
        self.deviation = float(np.exp(rng.uniform(np.log(0.8), np.log(8.0))))
        self.present, self.gone = int(rng.integers(1, 6)), int(rng.integers(0, 5))
        self.steps = self.present + self.gone
        # Often less than one spacing, where rounding can make it a whole one.
        direction = rng.normal(size=self.dim)
        self.gap = float(self.deviation * np.exp(rng.uniform(-4, -0.5)))
        self.shift = self.gap * direction / np.linalg.norm(direction)
        self.drift = rng.uniform(-3, 3, size=(self.steps, self.dim))
        self.error = float(rng.choice([0.0, 0.3, 3.0]))
        self.words = rng.integers(1, 2**31, size=(2, self.dim))

    def law(self, world, coordinate, **how):
        drift = self.drift[:, coordinate].copy()
        drift[: self.present] += world * self.shift[coordinate]
        word = int(self.words[world, coordinate])

        def error(k, states):
            """Different in the two runs, at most the stated error in norm."""
            sign = np.where((states * word + k) % 7 < 3, 1.0, -1.0)
            return sign * self.error / np.sqrt(self.dim)

        return laws.linear_law(self.contraction, drift, self.deviation, error=error, **how)

    def exact(self, **how):
        """The larger direction of the exact divergence."""
        pairs = [tuple(self.law(world, k, **how) for world in (0, 1)) for k in range(self.dim)]
        return max(sum(laws.renyi(self.order, *pair[::side]) for pair in pairs) for side in (1, -1))

    def bound(self, extra):
        gaps = np.where(np.arange(self.steps) < self.present, self.gap, 0.0) + extra
        pool = schedules.pooled(self.contraction, gaps, self.deviation**2)
        return renyi.renyi_from_gdp(self.order, np.sqrt(pool.mu_squared))

    @property
    def counted(self):
        return lattice.rounding_gap(1.0, self.dim, 1.0, self.error)


def test_counted_rounding_is_a_bound_and_uncounted_rounding_is_not():
    rng, false = np.random.default_rng(7), 0
    for _ in range(soak(60, 5000)):
        case = Case(rng)
        exact = case.exact()
        assert exact <= case.bound(case.counted) * (1 + 1e-9) + 1e-12
        false += exact > 1.01 * case.bound(0.0)
    assert false >= 5


def test_rounding_towards_zero_obeys_the_same_bound():
    """Two points of one sign are cut apart by less than Δ more; of opposite signs, by nothing."""
    rng = np.random.default_rng(8)
    for _ in range(soak(20, 1000)):
        case = Case(rng)
        exact = case.exact(rounding=np.trunc)
        assert exact <= case.bound(case.counted) * (1 + 1e-9) + 1e-12


def test_the_floor_and_the_sum_bound_are_the_pooled_bound_and_above_it():
    rng = np.random.default_rng(3)
    for _ in range(20):
        case = Case(rng)
        step, l2 = 0.5, (1 - case.contraction) / 0.5
        gap = case.counted
        alone = schedules.pooled(case.contraction, np.full(case.steps, gap), case.deviation**2)
        floor = lattice.floor(gap, case.deviation, step, l2, case.steps)
        assert floor**2 == pytest.approx(alone.mu_squared, rel=1e-9)
        assert floor <= lattice.floor(gap, case.deviation, step, l2)
        assert lattice.counted(case.order, case.bound(0.0), floor) >= case.bound(gap) * (1 - 1e-9)


def test_the_gap_is_that_of_the_proof():
    assert lattice.rounding_gap(0.5, 4, 0.1, 3.0) == pytest.approx(2 * 0.5 * 2 + 2 * 0.1 * 3)


def test_without_rounding_nothing_is_added():
    assert lattice.rounding_gap(0.0, 3, 0.1, 0.0) == 0
    assert lattice.counted(2, 0.37, 0.0) == pytest.approx(0.37)


def test_bad_numbers_are_refused():
    with pytest.raises(InputError, match="spacing"):
        lattice.rounding_gap(-1.0, 3, 0.1, 0.0)
    with pytest.raises(InputError, match="deviation"):
        lattice.floor(1.0, 0.0, 0.1, 1.0)
