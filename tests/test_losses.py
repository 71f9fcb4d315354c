import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.flatten_util import ravel_pytree
from problems import CATALOGUE, signed, soak

import dd_jax as dd
from dd_jax.constants import ROUNDING
from dd_jax.noisy_gd import standard_normal_like

SLACK = 1 + 1e-9


def random_records_and_params(case, count, seed=0):
    """Records of the domain and models of all sizes from 0.01 to 100."""
    database = case.make(count, 3, seed, jnp.float64)
    keys = jax.random.split(jax.random.key(seed), count)
    scales = 10 ** jnp.linspace(-2, 2, count)

    def draw(key, scale):
        params = standard_normal_like(key, case.loss.template(database))
        return jax.tree.map(lambda leaf: scale * leaf, params)

    return database, jax.jit(jax.vmap(draw))(keys, scales)


def scale_features(records, scale):
    """The records with `scale` applied to their features."""
    if isinstance(records, dd.Labelled):
        return records._replace(features=scale(records.features))
    return scale(records)


def at_the_edge(case, records):
    """The records with their features scaled up to the declared norm."""
    norm = float(case.loss.domain.describe.split("≤ ")[1].split(",")[0])
    return scale_features(
        records, lambda a: a * (norm / jnp.linalg.norm(a, axis=-1, keepdims=True))
    )


@functools.cache
def derivatives(name):
    """Compiled (value, gradient norm, Hessian eigenvalues) of one record's loss."""
    loss = CATALOGUE[name].loss

    def measure(params, record):
        flat, unravel = ravel_pytree(params)

        def value(theta):
            return loss.value(unravel(theta), record)

        hessian = jax.hessian(value)(flat)
        return value(flat), jnp.linalg.norm(jax.grad(value)(flat)), jnp.linalg.eigvalsh(hessian)

    return jax.jit(measure)


@pytest.mark.parametrize("name", CATALOGUE)
def test_declared_constants_hold(x64, name):
    """At records of every size in the domain, each with a model of its own."""
    case, count = CATALOGUE[name], soak(100, 400)
    constants = case.loss.constants
    records, params = random_records_and_params(case, count)
    shares = np.random.default_rng(1).uniform(size=(count, 1))
    shares[::3], shares[1] = 1, 0  # many at the edge, one that is zero
    records = scale_features(at_the_edge(case, records), lambda a: shares * a)
    value, gradient_norm, eigenvalues = jax.vmap(derivatives(name))(params, records)
    assert eigenvalues.max() <= constants.smoothness * SLACK + 1e-12
    lowest = 0.0 if constants.convex else -constants.smoothness
    assert eigenvalues.min() >= lowest * SLACK - 1e-9
    if constants.lipschitz is not None:
        assert gradient_norm.max() <= constants.lipschitz * SLACK
    if constants.bound is not None:
        assert abs(value).max() <= constants.bound * SLACK


# Scores along which each constant is approached: a confident wrong class (L), a tie of two (β), and
# for one versus rest every wrong class (L), whatever the record's own class.
SOFTMAX_DIRECTIONS = [[1.0, -1.0, 0.0, 0.0], [0.0, 1.0, -1.0, 0.0], [1.0, 1.0, -1.0, -1.0]]
REST_DIRECTIONS = list(itertools.product([-1.0, 1.0], repeat=3))
TIGHT = [
    "logistic",
    "huber",
    "smoothed-hinge",
    "linear",
    "squared",
    "softmax",
    "one-vs-rest",
    "tanh-margin",
]


@pytest.mark.parametrize("name", TIGHT)
def test_constants_are_tight(x64, name):
    """A walk along the feature direction reaches every constant, and does not exceed it."""
    case = CATALOGUE[name]
    records, params = random_records_and_params(case, 1, seed=3)
    record, params = jax.tree.map(lambda leaf: leaf[0], (at_the_edge(case, records), params))
    features = record.features if isinstance(record, dd.Labelled) else record
    directions = [features]
    if params.ndim == 2:
        chosen = SOFTMAX_DIRECTIONS if name == "softmax" else REST_DIRECTIONS
        directions = [features[:, None] * jnp.array(scores) for scores in chosen]
    sizes = jnp.linspace(-20, 20, 801)
    norms, curvatures = [], []
    for direction in directions:
        walk = sizes.reshape(-1, *(1,) * direction.ndim) * direction
        _, norm, eigenvalues = jax.vmap(derivatives(name), in_axes=(0, None))(walk, record)
        norms.append(norm.max())
        curvatures.append(jnp.abs(eigenvalues).max())
    lipschitz, smoothness = case.loss.constants.lipschitz, case.loss.constants.smoothness
    if lipschitz is not None:
        assert 0.99 * lipschitz <= max(norms) <= lipschitz * SLACK
    assert 0.95 * smoothness <= max(curvatures) <= smoothness * SLACK + 1e-12


@pytest.mark.parametrize("name", [name for name, case in CATALOGUE.items() if case.loss.scores])
def test_slope_is_the_derivative_of_the_value(x64, name):
    scores = CATALOGUE[name].loss.scores
    database = CATALOGUE[name].make(1, 3, 5, jnp.float64)
    label = scores.split(database)[1][0]
    size = () if scores.num_scores is None else (scores.num_scores,)
    points = 3 * jnp.asarray(np.random.default_rng(0).normal(size=(20, *size)))

    @jax.jit
    @jax.vmap
    def both(t):
        return scores.slope(t, label), jax.grad(scores.value)(t, label)

    np.testing.assert_allclose(*both(points), atol=1e-12)


WITH_NULL = [name for name, case in CATALOGUE.items() if case.loss.null_record is not None]


@pytest.mark.parametrize("name", WITH_NULL)
def test_null_record_has_zero_gradient_everywhere_and_is_admissible(name):
    case = CATALOGUE[name]
    database = case.make(4, 3, 0, jnp.float32)
    null = case.loss.null_record(database)

    @jax.jit
    @jax.vmap
    def gradient_somewhere(key):
        params = standard_normal_like(key, case.loss.template(database))
        return jax.grad(case.loss.value)(params, null)

    for leaf in jax.tree.leaves(gradient_somewhere(jax.random.split(jax.random.key(0), 50))):
        np.testing.assert_array_equal(leaf, 0)
    edit = dd.deletion(case.loss, database, [1, 3])
    dd.check_edit(database, edit, case.loss.domain)
    assert edit.index.tolist() == [1, 3]


def test_losses_without_a_null_record_say_so():
    without = set(CATALOGUE) - set(WITH_NULL)
    assert without == {f"{name}-intercept" for name in ("huber", "squared", "softmax", "rest")}
    with pytest.raises(dd.InputError, match="null record"):
        dd.deletion(dd.losses.huber(intercept=True), signed(4, 2), [0])


@pytest.mark.parametrize("name", CATALOGUE)
def test_records_outside_the_domain_are_refused_and_projected(name):
    case = CATALOGUE[name]
    good = case.make(3, 2, 0, jnp.float32)
    case.loss.domain.check(good)
    projected, inside = case.loss.domain.project(good)
    assert bool(jnp.all(inside))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), projected, good)

    bad = scale_features(good, lambda a: a.at[1].multiply(10))
    with pytest.raises(dd.InputError, match="row 1"):
        dd.losses.check_data(case.loss, bad)
    projected, inside = case.loss.domain.project(bad)
    assert inside.tolist() == [True, False, True]
    case.loss.domain.check(projected)


def test_projection_moves_a_record_no_further_than_needed():
    domain = dd.losses.logistic(feature_norm=2.0).domain
    records = dd.Labelled(
        jnp.array([[3.0, 4.0], [jnp.nan, 1.0], [0.0, 1.0]]), jnp.array([1.0, -1.0, 5.0])
    )
    projected, inside = domain.project(records)
    np.testing.assert_allclose(projected.features[0], [1.2, 1.6], rtol=1e-6)
    np.testing.assert_array_equal(projected.features[1], [0.0, 0.0])
    np.testing.assert_array_equal(projected.label, [1.0, -1.0, 1.0])
    assert inside.tolist() == [False, False, False]


def labelled(features, labels, dtype=jnp.float32):
    return lambda: dd.Labelled(jnp.zeros(features, dtype), labels)


# Static facts: refused inside jit too.
BAD_TYPES = {
    "vector features": (labelled(2, jnp.zeros(2)), "features"),
    "matrix labels": (labelled((2, 2), jnp.zeros((2, 1))), "labels"),
    "bare features": (lambda: jnp.zeros((2, 2)), "Labelled"),
    "whole features": (labelled((2, 2), jnp.zeros(2), jnp.int32), "int32"),
    "half precision": (labelled((2, 2), jnp.zeros(2), jnp.bfloat16), "bfloat16"),
    "boolean labels": (labelled((2, 2), jnp.zeros(2, bool)), "bool"),
    "ragged": (labelled((3, 2), jnp.zeros(2)), "leading axis"),
}


@pytest.mark.parametrize("name", BAD_TYPES)
def test_static_facts_are_refused_inside_jit_too(name):
    make, word = BAD_TYPES[name]
    domain = dd.losses.logistic().domain
    for look in (domain.check, domain.project, jax.jit(domain.project)):
        with pytest.raises(dd.InputError, match=word):
            look(make())


BAD_LABELS = [
    (dd.losses.logistic(), [1.0, -1.0], [1.0, 2.0]),
    (dd.losses.squared(label_bound=1.5), [1.5, -1.5], [0.0, 1.6]),
    (dd.losses.huber(), [1e6, -1e6], [0.0, np.inf]),
    (dd.losses.softmax(num_classes=3), [0, 2], [0, 3]),
]


@pytest.mark.parametrize(("loss", "good", "bad"), BAD_LABELS, ids=lambda x: getattr(x, "name", ""))
def test_domains_end_where_the_labels_do(loss, good, bad):
    loss.domain.check(labelled((2, 2), jnp.array(good))())
    with pytest.raises(dd.InputError, match="row 1"):
        loss.domain.check(labelled((2, 2), jnp.array(bad))())
    _, inside = loss.domain.project(labelled((2, 2), jnp.array(bad))())
    assert inside.tolist() == [True, False]


BAD_ARGUMENTS = {
    "feature_norm": lambda: dd.losses.logistic(feature_norm=0.0),
    "nan": lambda: dd.losses.logistic(feature_norm=float("nan")),
    "threshold": lambda: dd.losses.huber(threshold=-1.0),
    "smoothing": lambda: dd.losses.smoothed_hinge(smoothing=0.0),
    "label_bound": lambda: dd.losses.squared(label_bound=0.0),
    "num_classes": lambda: dd.losses.softmax(num_classes=1),
    "hidden": lambda: dd.losses.bounded_network(hidden=0),
    "output_norm": lambda: dd.losses.bounded_network(hidden=2, output_norm=0.0),
    "signed integers": lambda: dd.losses.softmax(num_classes=3).domain.check(
        labelled((2, 2), jnp.zeros(2))()
    ),
    "label range": lambda: dd.losses.labelled_domain(1.0, 1.0, -1.0),
    "label_low": lambda: dd.losses.labelled_domain(1.0, 0.0, None),
    "label_high": lambda: dd.losses.labelled_domain(1.0, None, 0.0),
    "feature_norm = '1'": lambda: dd.losses.feature_domain("1"),
    "True": lambda: dd.losses.feature_domain(True),
    "single-index": lambda: dd.losses.from_scores(
        dd.losses.softmax(num_classes=3).scores, dd.losses.logistic().constants
    ),
    "lipschitz": lambda: dd.losses.custom(lambda t, x: t, lambda d: d, name="bad", lipschitz=-1),
}


@pytest.mark.parametrize("word", BAD_ARGUMENTS)
def test_bad_arguments_are_refused(word):
    with pytest.raises(dd.InputError, match=word):
        BAD_ARGUMENTS[word]()


def test_labels_zero_and_one_are_not_mistaken_for_classes():
    """A row of label 0 counts as deleted, which the features of any column refute."""
    loss = dd.losses.logistic()
    sparse = dd.Labelled(jnp.array([[0.5, 0.0], [0.0, 0.5]]), jnp.array([1.0, 0.0]))
    for database in (signed(4, 2)._replace(label=jnp.array([1.0, 0.0, 1.0, 0.0])), sparse):
        with pytest.raises(dd.InputError, match="row 1"):
            loss.domain.check(database)
        unlabelled = np.flatnonzero(database.label == 0)
        loss.domain.check(dd.apply_edit(database, dd.deletion(loss, database, unlabelled)))


@settings(max_examples=soak(25, 100))
@given(
    seed=st.integers(0, 10**6), log_scale=st.floats(-1, 4), norm=st.sampled_from([0.3, 1.0, 7.0])
)
def test_projected_rows_are_inside_and_stay_as_they_are(seed, log_scale, norm):
    rows = 10**log_scale * jax.random.normal(jax.random.key(seed), (20, 5))
    projected, _ = dd.losses.feature_domain(norm).project(rows)
    norms = np.linalg.norm(np.asarray(projected, np.float64), axis=1)
    assert (norms <= norm * (1 + 3e-7)).all()
    again, inside = dd.losses.feature_domain(norm).project(projected)
    np.testing.assert_array_equal(again, projected)
    assert bool(inside.all())


def test_rounding_is_all_that_the_domain_forgives():
    domain = dd.losses.feature_domain(1.0)
    domain.check(jnp.array([[1.0 + 4e-7]]))
    with pytest.raises(dd.InputError, match="norm"):
        domain.check(jnp.array([[1.0 + 1e-6]]))


@pytest.mark.parametrize("make", [dd.losses.logistic, dd.losses.huber])
@pytest.mark.parametrize("intercept", [False, True])
def test_constants_cover_every_row_that_the_domain_accepts(x64, intercept, make):
    loss = make(feature_norm=2.0, intercept=intercept)
    record = dd.Labelled(jnp.array([2.0 * (1 + ROUNDING), 0.0]), jnp.array(1.0))
    loss.domain.check(jax.tree.map(lambda leaf: leaf[None], record))
    # The curvature is largest at 0, where Huber's loss must fit.
    fitted = record._replace(label=jnp.array(1.0 if loss.name == "logistic" else 0.0))
    far, near = jnp.full(2 + intercept, -1e4), jnp.zeros(2 + intercept)
    slope = jnp.linalg.norm(jax.jit(jax.grad(loss.value))(far, record))
    curvature = jnp.linalg.norm(jax.jit(jax.hessian(loss.value))(near, fitted), ord=2)
    for reached, bound in (
        (slope, loss.constants.lipschitz),
        (curvature, loss.constants.smoothness),
    ):
        assert bound * (1 - 1e-9) < reached <= bound * (1 + 1e-12)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_features_that_have_no_norm_are_refused(bad):
    rows = jnp.array([[0.5, 0.0], [bad, 0.0]])
    for domain, records in (
        (dd.losses.feature_domain(1.0), rows),
        (dd.losses.labelled_domain(1.0, -1.0, 1.0), dd.Labelled(rows, jnp.ones(2))),
    ):
        with pytest.raises(dd.InputError, match="row 1"):
            domain.check(records)


LOST_IN_SINGLE_PRECISION = {
    "small squares after large ones": (1.0, np.repeat([1 / 32, 3e-5], [1024, 7_000])),
    "squares of nothing": (1e-24, np.array([1e-23])),
}


@pytest.mark.parametrize("name", LOST_IN_SINGLE_PRECISION)
def test_norms_are_taken_in_double_precision(name):
    norm, row = LOST_IN_SINGLE_PRECISION[name]
    single = row.astype(np.float32)[None]
    assert np.cumsum(single[0] ** 2)[-1] <= np.float32(norm**2), "added up one by one, it is inside"
    domain = dd.losses.feature_domain(norm)
    for rows in (single, jnp.asarray(single), row[None]):
        with pytest.raises(dd.InputError, match="norm"):
            domain.check(rows)


@pytest.mark.parametrize("make", [dd.losses.logistic, dd.losses.huber])
def test_nan_labels_are_projected_and_counted(make):
    records = dd.Labelled(jnp.zeros((2, 2)), jnp.array([jnp.nan, 1.0]))
    projected, inside = make().domain.project(records)
    assert inside.tolist() == [False, True]
    assert bool(jnp.all(jnp.isfinite(projected.label)))


@pytest.mark.parametrize("intercept", [False, True])
def test_label_sensitivities_are_attained(x64, intercept):
    """The largest change of a gradient when only the label moves, over all θ."""
    features = jnp.array([0.0, 2.0 * (1 + ROUNDING)])  # the longest that the domain accepts
    for loss, labels in (
        (dd.losses.squared(feature_norm=2.0, label_bound=1.5, intercept=intercept), (1.5, -1.5)),
        (dd.losses.huber(threshold=0.7, feature_norm=2.0, intercept=intercept), (9.0, -9.0)),
    ):
        theta = jnp.zeros(2 + intercept)
        one, other = (
            jax.grad(loss.value)(theta, dd.Labelled(features, jnp.array(y))) for y in labels
        )
        np.testing.assert_allclose(jnp.linalg.norm(one - other), loss.constants.label_sensitivity)


def test_the_networks_smoothness_is_approached(x64):
    """With a small output norm the term V/√hidden dominates and is nearly attained."""
    for hidden, output_norm in ((1, 0.05), (4, 0.05)):
        loss = dd.losses.bounded_network(hidden=hidden, output_norm=output_norm)
        record = dd.Labelled(jnp.array([1.0]), jnp.array(1.0))
        template = loss.template(jax.tree.map(lambda leaf: leaf[None], record))
        _, unravel = ravel_pytree(template)

        def curvature(size, loss=loss, unravel=unravel, hidden=hidden, record=record):
            theta = size * jnp.eye(hidden)[0]
            hessian = jax.hessian(lambda t: loss.value(unravel(t), record))(theta)
            return jnp.max(jnp.abs(jnp.linalg.eigvalsh(hessian)))

        reached = float(jax.jit(jax.vmap(curvature))(jnp.linspace(0, 2, 401)).max())
        assert 0.85 * loss.constants.smoothness <= reached <= loss.constants.smoothness


def test_constants_of_a_users_loss_count_as_declared():
    proved = dd.losses.logistic()
    assert proved.constants.established != "declared"
    own = dd.losses.from_scores(proved.scores, proved.constants)
    assert own.constants.established == "declared"
    custom = dd.losses.custom(
        lambda theta, x: jnp.sum(jnp.sqrt(1 + (theta - x) ** 2)),
        lambda database: jnp.zeros(database.shape[1]),
        name="pseudo-Huber location",
        convex=True,
        smoothness=1.0,
    )
    assert custom.constants.established == "declared"
    assert custom.constants.lipschitz is None


def test_the_same_loss_is_the_same_object_so_that_nothing_retraces():
    assert dd.losses.logistic(feature_norm=2.0) is dd.losses.logistic(feature_norm=2.0)
    assert dd.losses.logistic(feature_norm=2.0) is not dd.losses.logistic(feature_norm=1.0)
