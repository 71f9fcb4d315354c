"""The exact laws on a lattice against independent ways to compute them."""

import numpy as np
import pytest

from dd_jax.oracles import lattice


def test_law_by_hand_and_by_simulation():
    law = lattice.linear_law(0.6, [0.4, -1.3, 0.2], 1.5, start=4)
    rng = np.random.default_rng(0)
    fresh = lattice.noise(1.5)
    values = fresh.first + np.arange(len(fresh.mass))
    state = np.full(200_000, 4)
    for drift in (0.4, -1.3, 0.2):
        state = np.rint(0.6 * state + drift).astype(int)
        state = state + rng.choice(values, size=state.size, p=fresh.mass)
    places = law.first + np.arange(len(law.mass))
    assert law.mass.sum() == pytest.approx(1.0, abs=1e-12)
    assert state.mean() == pytest.approx(places @ law.mass, abs=0.03)
    assert np.mean(state == 0) == pytest.approx(law.mass[-law.first], abs=0.006)


def test_shifted_noise_has_the_divergence_of_a_gaussian():
    noise = lattice.noise(3.0)
    for order in (1.5, 2.0, 5.0):
        found = lattice.renyi(order, noise, lattice.Law(noise.first + 2, noise.mass))
        assert found == pytest.approx(order * 4 / 18, rel=1e-9)
    # With noise of few values it is smaller, as the theorem says.
    noise = lattice.noise(0.3)
    shifted = lattice.Law(noise.first + 1, noise.mass)
    assert 0 < lattice.renyi(2.0, noise, shifted) <= 2 / (2 * 0.09) + 1e-9


def test_a_table_that_is_cut_off_has_no_bound():
    """However far out it is cut, at 6 deviations as here: one value gives the shift away."""
    cut = lattice.noise(20.0, cut=6.0)
    assert lattice.renyi(2.0, cut, lattice.Law(cut.first + 1, cut.mass)) == np.inf
    whole = lattice.noise(20.0)
    found = lattice.renyi(2.0, whole, lattice.Law(whole.first + 1, whole.mass))
    assert found == pytest.approx(2 / 800, rel=1e-9)
    assert lattice.renyi(2.0, lattice.Law(0, np.ones(1)), lattice.Law(5, np.ones(1))) == np.inf
