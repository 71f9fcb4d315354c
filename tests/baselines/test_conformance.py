"""What every system of the comparison must do, whatever it claims (table in `systems`)."""

import functools
import itertools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from systems import SYSTEMS, Entry
from test_products import careless_products

import dd_jax as dd
from dd_jax import baselines
from dd_jax.audit.bounds import hockey_stick
from dd_jax.audit.samples import paired
from dd_jax.audit.scores import linear
from dd_jax.baselines.base import Guarantee, System, metered, stored_bytes

SEEDS = 1000
NOTIONS = {
    "data-deletion",
    "exact unlearning",
    "(ε,δ)-unlearning",
    "Rényi unlearning",
    "certified removal",
    "none",
}


@functools.cache
def program(system: System):
    """Whole interactions of many seeds: final states, releases and costs; compiled once."""
    mechanism = metered(system)

    def one(key, database, stream):
        requests = stream.index.shape[0]
        curator, transcript = dd.interact(
            key, mechanism, dd.requesters.fixed_stream(stream), database, num_requests=requests
        )
        return curator.params.value, transcript.releases.value, transcript.releases.cost

    def many(keys, database, stream):
        return jax.vmap(one, in_axes=(0, None, None))(keys, database, stream)

    return jax.jit(many)


def play(system: System, database, stream, *, seed=0, seeds=SEEDS):
    """States, releases and costs of many seeds, leading axes (seeds, requests + 1)."""
    keys = jax.random.split(jax.random.key(seed), seeds)
    return program(system)(keys, database, stream)


@pytest.fixture(scope="module", params=SYSTEMS)
def played(request):
    """The name, the entry, its system and one run of it."""
    entry = SYSTEMS[request.param]
    system = entry.make()
    return request.param, entry, system, play(system, entry.database, entry.stream)


def test_every_system_has_a_row():
    """What is in the package is in the table, so that no system goes untested."""
    modules = {getattr(baselines, name) for name in baselines.__all__}
    files = {path.stem for path in Path(baselines.__file__).parent.glob("[a-z]*.py")}
    assert files == set(baselines.__all__)
    systems = {module.__name__ for module in modules if hasattr(module, "system")}
    assert systems == {entry.make().delete.__module__ for entry in SYSTEMS.values()}


def test_releases_are_finite_and_predict_one_label_per_row(played):
    _, entry, system, (_, releases, _) = played
    requests = entry.stream.index.shape[0]
    for leaf in jax.tree.leaves(releases):
        assert leaf.shape[:2] == (SEEDS, requests + 1)
        assert np.all(np.isfinite(leaf))
    rows = entry.database.features if hasattr(entry.database, "features") else entry.database
    release = jax.tree.map(lambda leaf: leaf[0, 0], releases)
    assert system.predict(release, rows).shape == (rows.shape[0],)


def test_without_a_driver_every_product_names_its_precision_too(played):
    _, entry, system, _ = played
    key, database = jax.random.key(0), entry.database
    edit = jax.tree.map(lambda leaf: leaf[0], entry.stream)
    rows = database.features if hasattr(database, "features") else database

    def served(key, database, edit):
        learn, delete, publish = jax.random.split(key, 3)
        state, _ = system.learn(learn, database)
        after = dd.apply_edit(database, edit)
        state, _ = system.delete(delete, database, edit, after, state)
        return system.predict(system.publish(publish, state), rows)

    traced = jax.jit(served).trace(key, database, edit)
    assert careless_products(traced.lower(lowering_platforms=("tpu",)).as_text()) == []


def test_the_claim_is_complete(played):
    name, _, system, _ = played
    guarantee = system.guarantee
    assert system.name == name
    assert guarantee.notion in NOTIONS
    assert guarantee.reference
    assert guarantee.keeps
    if guarantee.notion not in ("exact unlearning", "data-deletion", "none"):
        assert guarantee.epsilon > 0
        assert 0 < guarantee.delta < 1


def leaves_as_bytes(tree) -> list[bytes]:
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(tree) if leaf.size]


def test_what_is_kept_is_what_is_declared(played):
    """Every leaf of the state is secret or released, and the bytes add up.

    Noisy-GD's model is released on a grid, of which its noise is many times the spacing.
    """
    _, entry, system, (states, releases, _) = played
    state = jax.tree.map(lambda leaf: leaf[0], states)
    shown = jax.tree.map(lambda leaf: leaf[0, -1], releases)
    release = leaves_as_bytes(shown)
    if entry.grid:
        rounded = jax.tree.map(lambda leaf: np.round(leaf / entry.grid) * entry.grid, state)
        jax.tree.map(np.testing.assert_array_equal, shown, rounded)
        release = leaves_as_bytes(state)
    secret = leaves_as_bytes(system.secret(state))
    carried = leaves_as_bytes(state)
    public = list(carried)
    for leaf in secret:
        assert leaf in public, "declared secret, but not carried"
        public.remove(leaf)
    assert all(leaf in release for leaf in public), "carried, but neither declared nor released"
    total = sum(map(len, carried))
    assert stored_bytes(system, state) == total - sum(map(len, public))
    assert (stored_bytes(system, state) == 0) == (system.guarantee.keeps == "nothing")


def test_the_meter_is_exact(played):
    _, entry, _, (_, _, costs) = played
    gradients, hessians, solves, retrained = map(np.asarray, costs)
    if entry.learn_gradients is not None:
        assert np.all(gradients[:, 0] == entry.learn_gradients)
    if entry.delete_gradients is not None:
        assert np.all(gradients[:, 1:] == entry.delete_gradients)
    assert np.all(retrained[:, 0] == entry.moves)
    assert np.all(np.isin(retrained, (0, 1)))
    if entry.delete_retrained is not None:
        assert np.all(retrained[:, 1:] == entry.delete_retrained)
    assert np.all((hessians[:, 0] > 0) == entry.learns_newton)
    assert np.all((solves[:, 0] > 0) == entry.learns_newton)
    assert np.all(hessians[:, 1:] == entry.newton[0])
    assert np.all(solves[:, 1:] == entry.newton[1])


def test_an_edit_takes_effect(played):
    """The record that a request brings in is seen from that request on, and not before."""
    _, entry, system, (_, releases, _) = played
    other = jax.tree.map(
        lambda leaf: leaf.at[-1].divide(2) if leaf.dtype.kind == "f" else leaf, entry.stream
    )
    _, changed, _ = play(system, entry.database, other)
    for a, b in zip(jax.tree.leaves(releases), jax.tree.leaves(changed), strict=True):
        a, b = np.asarray(a), np.asarray(b)
        np.testing.assert_array_equal(a[:, :-1], b[:, :-1])
        assert np.array_equal(a[:, -1], b[:, -1]) != entry.moves


def edited(entry: Entry):
    """𝒟 after the whole stream."""
    database = entry.database
    for request in range(entry.stream.index.shape[0]):
        edit = jax.tree.map(lambda leaf, request=request: leaf[request], entry.stream)
        database = dd.apply_edit(database, edit)
    return database


def least_p_value(first, second) -> float:
    """Kolmogorov-Smirnov on coordinates, their products and the norm, Bonferroni.

    Rounding makes atoms of equal value differ in the last bits, so values are rounded first.
    """

    def views(tree):
        flat = np.concatenate(
            [np.asarray(leaf).reshape(leaf.shape[0], -1) for leaf in jax.tree.leaves(tree)], axis=1
        ).astype(np.float64)
        pairs = itertools.combinations(range(min(flat.shape[1], 4)), 2)
        products = [flat[:, i] * flat[:, j] for i, j in pairs]
        return np.round([*flat.T, *products, np.linalg.norm(flat, axis=1)], 4)

    one, two = views(first), views(second)
    return len(one) * min(
        stats.ks_2samp(a, b, method="asymp").pvalue for a, b in zip(one, two, strict=True)
    )


def refuted_delta(system: System, entry: Entry, guarantee: Guarantee) -> float:
    """Lower bound on δ(ε) between the release after request 1 and what the claim compares it with.

    That is the first release on the edited database where the claim is closeness to retraining, and
    the release after the same request where the record was never there otherwise.
    """
    first = jax.tree.map(lambda leaf: leaf[0], entry.stream)
    never_there = dd.apply_edit(entry.database, first)
    retraining = guarantee.notion in ("(ε,δ)-unlearning", "certified removal")
    compared = 0 if retraining and not entry.never_there else 1
    _, present, _ = play(system, entry.database, entry.stream, seed=1)
    _, absent, _ = play(system, never_there, entry.stream, seed=2)
    arms = paired(
        (
            jax.tree.map(lambda leaf: leaf[:, 1], present),
            jax.tree.map(lambda leaf: leaf[:, compared], absent),
        )
    )
    half = SEEDS // 2
    score = linear().fit(arms.present[:half], arms.absent[:half])
    parts = [score(arm[rows]) for rows in (slice(half), slice(half, None)) for arm in arms]
    return hockey_stick(*parts, epsilon=guarantee.epsilon, confidence=0.9999).value


def test_samples_do_not_refute_the_claim(played):
    """Exact systems have the law of retraining; an (ε, δ) claim survives one release.

    A system that left the last request out would be told from retraining by the same seeds.
    """
    _, entry, system, (_, releases, _) = played
    claimed = bool(system.guarantee.delta)
    if entry.exact:
        assert system.guarantee.epsilon == 0
        _, anew, _ = play(system, edited(entry), entry.stream, seed=2)
        before, after, fresh = (
            jax.tree.map(lambda leaf, k=k: leaf[:, k], tree)
            for tree, k in ((releases, -2), (releases, -1), (anew, 0))
        )
        assert least_p_value(after, fresh) > 1e-3
        assert (least_p_value(before, fresh) < 1e-3) == entry.moves
    if claimed:
        assert refuted_delta(system, entry, system.guarantee) <= system.guarantee.delta
    assert entry.exact + claimed + (system.guarantee.notion == "none") == 1


@pytest.mark.parametrize("name", [name for name, entry in SYSTEMS.items() if entry.quiet])
def test_without_noise_a_release_does_not_depend_on_the_key_and_the_claim_is_refuted(name):
    entry = SYSTEMS[name]
    quiet, claim = entry.quiet(), entry.make().guarantee
    _, releases, _ = play(quiet, entry.database, entry.stream)
    for leaf in jax.tree.leaves(releases):
        np.testing.assert_array_equal(leaf, jnp.broadcast_to(leaf[:1], leaf.shape))
    assert (quiet.guarantee.notion, quiet.guarantee.epsilon) == ("none", None)
    if claim.delta:
        assert refuted_delta(quiet, entry, claim) > 0.9
