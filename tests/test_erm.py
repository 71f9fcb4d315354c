import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from problems import CATALOGUE, features, signed
from sklearn.datasets import load_digits

import dd_jax as dd
from dd_jax import erm
from dd_jax.constants import LossConstants
from dd_jax.noisy_gd import standard_normal_like

# Compiled once per shape: the same functions, without a new trace for every call.
gradient = jax.jit(erm.gradient)
reference_gradient = jax.jit(erm.reference_gradient)
objective = jax.jit(erm.objective)
excess_risk = jax.jit(erm.excess_risk)
minimise = jax.jit(erm.minimise)
descend = jax.jit(erm.descend, static_argnames="max_steps")

# One shape for all of the catalogue's tests, so that a program serves several of them: 80 rows in
# chunks of 32 are two whole chunks and a shorter one.
ROWS, DIM, CHUNK = 80, 4, 32
CLIP = 0.3
NEVER_CLIPS = 1e3


@functools.cache
def catalogue_case(name, dtype):
    """A loss with a database and a model of order one: float32 numbers, in this precision."""
    loss, make = CATALOGUE[name]
    database = make(ROWS, DIM, 2, jnp.float32)
    params = standard_normal_like(jax.random.key(3), loss.template(database))
    with jax.enable_x64(dtype == jnp.float64):
        return loss, *jax.tree.map(functools.partial(_in_precision, dtype), (database, params))


def _in_precision(dtype, leaf):
    return leaf.astype(dtype) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf


def flat(tree):
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)])


def relative_error(one, other):
    return np.linalg.norm(flat(one) - flat(other)) / np.linalg.norm(flat(other))


@pytest.mark.parametrize("name", CATALOGUE)
def test_fast_gradients_equal_the_reference(name):
    """In float64 to rounding, clipped, unclipped and clipped by nothing; in float32 clipped."""
    with jax.enable_x64(True):
        loss, database, params = catalogue_case(name, jnp.float64)
        reference = {
            clip_norm: flat(
                reference_gradient(
                    dd.Problem(loss, 0.1, clip_norm, row_chunk=CHUNK), params, database
                )
            )
            for clip_norm in (CLIP, NEVER_CLIPS)
        }
        for clip_norm, expected in ((None, NEVER_CLIPS), (CLIP, CLIP), (NEVER_CLIPS, NEVER_CLIPS)):
            problem = dd.Problem(loss, 0.1, clip_norm, row_chunk=CHUNK)
            fast = gradient(problem, params, database)
            assert relative_error(fast, reference[expected]) <= 1e-12
        assert relative_error(reference[CLIP], reference[NEVER_CLIPS]) > 1e-3
    if name.endswith("-intercept"):
        return  # rounding does not depend on a column of ones
    loss, database, params = catalogue_case(name, jnp.float32)
    fast = gradient(dd.Problem(loss, 0.1, CLIP, row_chunk=CHUNK), params, database)
    assert flat(fast).dtype == np.float32
    assert relative_error(fast, reference[CLIP]) <= 1e-6


def test_the_reference_without_clipping_is_its_limit(x64):
    loss, database, params = catalogue_case("logistic", jnp.float64)
    plain, loose = (
        reference_gradient(dd.Problem(loss, 0.1, clip, row_chunk=CHUNK), params, database)
        for clip in (None, NEVER_CLIPS)
    )
    assert relative_error(plain, loose) <= 1e-12


def test_any_row_chunk_gives_the_same_gradient():
    database, loss = signed(100, 4), dd.losses.logistic()
    params = standard_normal_like(jax.random.key(0), loss.template(database))
    whole, *chunked = (
        gradient(dd.Problem(loss, 0.1, 0.2, row_chunk=rows), params, database)
        for rows in (100, 1, 33, 99, 1000)
    )
    for found in chunked:
        np.testing.assert_allclose(found, whole, rtol=1e-5, atol=1e-7)


def test_gradient_by_hand():
    """Two records, logistic: mean of clipped gradients plus an unclipped regulariser."""
    database = dd.Labelled(jnp.array([[1.0, 0.0], [0.0, 0.5]]), jnp.array([1.0, -1.0]))
    theta = jnp.array([2.0, -4.0])
    first = -jax.nn.sigmoid(-2.0) * np.array([1.0, 0.0])
    second = jax.nn.sigmoid(-2.0) * np.array([0.0, 0.5])
    unclipped = (first + second) / 2 + 0.5 * np.asarray(theta)
    loss = dd.losses.logistic()
    np.testing.assert_allclose(
        gradient(dd.Problem(loss, 0.5), theta, database), unclipped, rtol=1e-6
    )
    clip = 0.01
    clipped = (clip * np.array([-1.0, 0.0]) + clip * np.array([0.0, 1.0])) / 2
    np.testing.assert_allclose(
        gradient(dd.Problem(loss, 0.5, clip), theta, database),
        clipped + 0.5 * np.asarray(theta),
        rtol=1e-6,
    )


@pytest.mark.parametrize("name", CATALOGUE)
def test_clipping_bounds_every_records_influence(name):
    """With clipping, replacing one record moves the gradient by at most 2C/n, any λ."""
    loss, database, params = catalogue_case(name, jnp.float32)
    clip = 0.05
    problem = dd.Problem(loss, 5.0, clip, row_chunk=CHUNK)
    other = CATALOGUE[name].make(ROWS, DIM, 9, jnp.float32)
    params = jax.tree.map(lambda leaf: 3 * leaf, params)
    edited = dd.apply_edit(
        database, dd.replacement([4], jax.tree.map(lambda leaf: leaf[4:5], other))
    )
    change = flat(gradient(problem, params, database)) - flat(gradient(problem, params, edited))
    assert np.linalg.norm(change) <= 2 * clip / ROWS * (1 + 1e-4)
    assert np.linalg.norm(flat(gradient(problem, params, database))) > 5 * 2 * clip


HUBERISABLE = [
    name
    for name, case in CATALOGUE.items()
    if case.loss.constants.convex and case.loss.constants.single_index
]


@pytest.mark.parametrize("clip_norm", [None, CLIP])
@pytest.mark.parametrize("name", HUBERISABLE)
def test_gradient_is_the_gradient_of_the_objective(x64, name, clip_norm):
    """Clipping a convex GLM descends the Huberised objective."""
    loss, database, params = catalogue_case(name, jnp.float64)
    problem = dd.Problem(loss, 0.1, clip_norm)
    step = standard_normal_like(jax.random.key(6), params)

    def value(params):
        return objective(problem, params, database)

    width = 1e-5
    rise = (value(params + width * step) - value(params - width * step)) / (2 * width)
    expected = jnp.vdot(gradient(problem, params, database), step)
    np.testing.assert_allclose(rise, expected, rtol=1e-6, atol=1e-8)


# Unclipped losses differ by their values and slopes alone, and the test above compares these.
@pytest.mark.parametrize(
    ("name", "clip_norm"),
    [
        *((name, CLIP) for name in HUBERISABLE),
        *((name, None) for name in ("logistic", "huber-intercept", "smoothed-hinge", "squared")),
    ],
)
def test_minimiser_is_stationary_and_lowest(x64, name, clip_norm):
    loss, database, _ = catalogue_case(name, jnp.float64)
    problem = dd.Problem(loss, 0.05, clip_norm)
    best = minimise(problem, database)
    assert best.gradient_norm <= 1e-12
    for seed in range(3):
        away = best.params + 0.1 * standard_normal_like(jax.random.key(seed), best.params)
        risk = excess_risk(problem, away, database, best.params)
        difference = objective(problem, away, database) - objective(problem, best.params, database)
        np.testing.assert_allclose(risk, difference, rtol=1e-8)
        assert risk >= 0.05 / 2 * jnp.sum((away - best.params) ** 2) * (1 - 1e-9)


def test_excess_risk_survives_rounding():
    """In float32 a tiny excess is still positive and right to a percent."""
    loss, database, _ = catalogue_case("logistic", jnp.float32)
    problem = dd.Problem(loss, 0.1)
    best = minimise(problem, database).params
    direction = jnp.ones(DIM) / jnp.sqrt(DIM)
    scores = np.asarray(database.features @ best)
    slopes = np.asarray(database.features @ direction)
    curvature = np.mean(slopes**2 / (2 * np.cosh(scores / 2)) ** 2) + 0.1
    risk = excess_risk(problem, best + 1e-3 * direction, database, best)
    np.testing.assert_allclose(risk, 0.5e-6 * curvature, rtol=0.02)


@pytest.mark.parametrize("clip_norm", [None, CLIP])
@pytest.mark.parametrize("name", ["logistic", "huber", "smoothed-hinge", "softmax"])
def test_conjugate_gradients_find_the_minimiser_of_the_whole_hessian(
    x64, monkeypatch, name, clip_norm
):
    if name == "softmax" and clip_norm is not None:
        return  # it has no minimiser
    loss, database, _ = catalogue_case(name, jnp.float64)
    problem = dd.Problem(loss, 0.01, clip_norm)
    solved = jax.jit(lambda problem, database: erm.minimise(problem, database))(problem, database)
    monkeypatch.setattr(erm, "MOST_SOLVED", 0)
    found = jax.jit(lambda problem, database: erm.minimise(problem, database))(problem, database)
    assert found.converged
    # The distance of a point to the minimiser is at most its gradient over λ.
    np.testing.assert_allclose(flat(found.params), flat(solved.params), rtol=0, atol=1e-10)


def test_a_minimiser_of_many_columns_forms_no_matrix():
    """The Hessian would be 5,000 × 5,000: the largest array of the program is the database."""
    database = signed(10, 5000)
    program = jax.jit(erm.minimise).lower(dd.Problem(dd.losses.logistic(), 0.1), database)
    assert "5000x5000" not in program.as_text()
    best = program.compile()(dd.Problem(dd.losses.logistic(), 0.1), database)
    assert best.converged


def test_minimise_refuses_what_it_cannot_certify():
    with pytest.raises(dd.InputError, match="convex"):
        minimise(dd.Problem(dd.losses.tanh_margin(), 0.1), signed(5, 2))
    with pytest.raises(dd.InputError, match="clipping"):
        minimise(dd.Problem(dd.losses.softmax(num_classes=3), 0.1, 1.0), signed(5, 2))


def test_without_noise_it_is_gradient_descent_to_the_minimiser(x64):
    """On real data: digits 3 and 8, with rows of unit norm."""
    rows, digit = load_digits(return_X_y=True)
    rows, digit = rows[np.isin(digit, (3, 8))], digit[np.isin(digit, (3, 8))]
    rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    database = dd.Labelled(jnp.asarray(rows), jnp.asarray(np.where(digit == 3, 1.0, -1.0)))
    problem = dd.Problem(dd.losses.logistic(), 0.01)
    optimum = minimise(problem, database).params
    run = functools.partial(dd.noisy_gd.run, num_steps=2000, step_size=1 / 0.26, noise_variance=0.0)
    reached = jax.jit(run)(jax.random.key(0), jnp.zeros_like(optimum), database, problem)
    np.testing.assert_allclose(reached, optimum, atol=1e-5)
    assert float(jnp.linalg.norm(optimum)) > 0.5


BAD_PROBLEMS = [
    *(("l2", {"l2": bad}) for bad in (0.0, -1.0, np.nan, np.inf, "0.1", np.array([0.1, -1.0]))),
    *(("clip_norm", {"clip_norm": bad}) for bad in (0.0, -1.0, np.nan)),
    ("row_chunk", {"row_chunk": 0}),
    ("loss", {"loss": "logistic"}),
]


@pytest.mark.parametrize(("word", "change"), BAD_PROBLEMS)
def test_bad_problems_are_refused(word, change):
    with pytest.raises(dd.InputError, match=word):
        dd.Problem(**{"loss": dd.losses.logistic(), "l2": 0.1} | change)


def test_a_batch_of_problems_can_be_vmapped():
    database, theta = signed(30, 3), jnp.ones(3)
    batch = dd.Problem(dd.losses.logistic(), jnp.array([0.1, 0.2]), jnp.array([0.3, 9.0]))
    both = jax.vmap(erm.gradient, in_axes=(0, None, None))(batch, theta, database)
    for i, (l2, clip_norm) in enumerate([(0.1, 0.3), (0.2, 9.0)]):
        one = gradient(dd.Problem(dd.losses.logistic(), l2, clip_norm), theta, database)
        np.testing.assert_allclose(both[i], one, rtol=1e-5)


@pytest.mark.parametrize("clip_norm", [None, 0.3])
def test_minimiser_of_stiff_hinges_converges(x64, clip_norm):
    """Kinks at every margin: plain Newton steps on the gradient norm get stuck here."""
    loss = dd.losses.smoothed_hinge(smoothing=0.01)
    for seed in range(3):
        problem = dd.Problem(loss, 1e-3, clip_norm)
        best = minimise(problem, signed(60, 4, seed=seed, dtype=jnp.float64))
        assert bool(best.converged)
        assert best.gradient_norm <= 1e-10


def test_minimise_says_when_it_did_not_converge(x64):
    minimise_briefly = jax.jit(functools.partial(erm.minimise, max_steps=1))
    best = minimise_briefly(
        dd.Problem(dd.losses.logistic(), 1e-4), signed(60, 4, dtype=jnp.float64)
    )
    assert not bool(best.converged)


def test_constants_of_a_traced_problem_are_refused():
    with pytest.raises(dd.InputError, match="traced"):
        jax.jit(lambda l2: dd.Problem(dd.losses.logistic(), l2).constants)(0.1)


def test_constants_of_a_problem():
    constants = dd.Problem(dd.losses.squared(), 0.5, 2.0).constants
    assert (constants.l2, constants.clip_norm, constants.lipschitz) == (0.5, 2.0, 2.0)
    assert constants.clips
    loose = dd.Problem(dd.losses.logistic(), 0.5, 2.0).constants
    assert loose.lipschitz == dd.losses.logistic().constants.lipschitz
    assert not loose.clips


def test_a_zero_row_has_zero_gradient_under_clipping():
    database = dd.Labelled(jnp.zeros((3, 2)), jnp.ones(3))
    problem = dd.Problem(dd.losses.logistic(), 0.1, 0.5)
    np.testing.assert_array_equal(gradient(problem, jnp.zeros(2), database), [0.0, 0.0])
    assert bool(jnp.isfinite(objective(problem, jnp.ones(2), database)))


class Scaled(nn.Module):
    """A parameter outside any dense layer."""

    @nn.compact
    def __call__(self, rows):
        scale = self.param("scale", nn.initializers.ones, ())
        return nn.Dense(1)(rows)[..., 0] * scale


class Tied(nn.Module):
    """A dense layer whose kernel is read a second time."""

    @nn.compact
    def __call__(self, rows):
        dense = nn.Dense(1)
        out = dense(rows)[..., 0]
        return out * jnp.sum(dense.variables["params"]["kernel"])


class Twice(nn.Module):
    """The same layer called twice."""

    @nn.compact
    def __call__(self, rows):
        dense = nn.Dense(rows.shape[-1])
        return jnp.sum(dense(jnp.tanh(dense(rows))), axis=-1)


class Mixing(nn.Module):
    """Records that see each other."""

    @nn.compact
    def __call__(self, rows):
        out = nn.Dense(1)(rows)[..., 0]
        return out - jnp.mean(out) if rows.ndim == 2 else out


NOT_GHOST = {Scaled: "1 of", Tied: "ghost gradients", Twice: "Dense_0", Mixing: "ghost gradients"}


@pytest.mark.parametrize("module", NOT_GHOST, ids=lambda module: module.__name__)
def test_networks_beyond_ghost_norms_are_refused(module):
    constants = LossConstants(module.__name__, convex=False, single_index=False)
    loss = dd.losses.from_flax(module(), lambda f, y: (f - y) ** 2, constants)
    database = dd.Labelled(features(4, 2), jnp.zeros(4))
    with pytest.raises(dd.InputError, match=NOT_GHOST[module]):
        gradient(dd.Problem(loss, 0.1, 1.0), loss.template(database), database)


def test_a_users_deep_network_clips_by_ghost_norms():
    class Deep(nn.Module):
        @nn.compact
        def __call__(self, rows):
            hidden = nn.relu(nn.Dense(5)(rows))
            return nn.Dense(1, use_bias=False)(jnp.tanh(nn.Dense(3)(hidden)))[..., 0]

    constants = LossConstants("deep", convex=False, single_index=False)
    loss = dd.losses.from_flax(Deep(), lambda f, y: (f - y) ** 2, constants)
    database = signed(50, 4)
    params = standard_normal_like(jax.random.key(0), loss.template(database))
    reference = {
        clip_norm: reference_gradient(dd.Problem(loss, 0.1, clip_norm), params, database)
        for clip_norm in (0.5, NEVER_CLIPS)
    }
    for clip_norm, expected in ((None, NEVER_CLIPS), (0.5, 0.5)):
        fast = gradient(dd.Problem(loss, 0.1, clip_norm, row_chunk=16), params, database)
        assert relative_error(fast, reference[expected]) <= 1e-6
    assert relative_error(reference[0.5], reference[NEVER_CLIPS]) > 1e-3


def test_descent_ends_at_the_minimiser_of_a_convex_loss_and_where_the_gradient_is_zero():
    database = signed(12, 2)
    convex = dd.Problem(dd.losses.logistic(), 0.5)
    found = descend(convex, database)
    assert found.converged
    np.testing.assert_allclose(found.params, minimise(convex, database).params, atol=1e-4)
    bounded = dd.Problem(dd.losses.tanh_margin(), 0.1)
    found = descend(bounded, database)
    assert found.converged
    assert np.linalg.norm(gradient(bounded, found.params, database)) < 1e-4
    zero = jnp.zeros(2)
    assert objective(bounded, found.params, database) < objective(bounded, zero, database)
    assert not descend(bounded, database, max_steps=2).converged
