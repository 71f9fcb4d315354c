import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.flatten_util import ravel_pytree
from problems import CATALOGUE, signed

import dd_jax as dd
from dd_jax.noisy_gd import standard_normal_like

SLACK = 1 + 1e-9


def random_record_and_params(case, seed, scale):
    """A record of the domain and a model of any size."""
    database = case.make(1, 3, seed, jnp.float64)
    key = jax.random.key(seed)
    params = jax.tree.map(
        lambda leaf: scale * leaf, standard_normal_like(key, case.loss.template(database))
    )
    return jax.tree.map(lambda leaf: leaf[0], database), params


def scale_features(records, scale):
    """The records with `scale` applied to their features."""
    if isinstance(records, dd.Labelled):
        return records._replace(features=scale(records.features))
    return scale(records)


def at_the_edge(case, record):
    """The record with its features scaled up to the declared norm."""
    norm = float(case.loss.domain.describe.split("≤ ")[1].split(",")[0])
    return scale_features(record, lambda a: a * (norm / jnp.linalg.norm(a)))


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
@settings(max_examples=60)
@given(seed=st.integers(0, 10**6), log_scale=st.floats(-2, 2))
def test_declared_constants_hold(x64, name, seed, log_scale):
    case = CATALOGUE[name]
    constants = case.loss.constants
    record, params = random_record_and_params(case, seed, 10**log_scale)
    value, gradient_norm, eigenvalues = derivatives(name)(params, at_the_edge(case, record))
    assert eigenvalues.max() <= constants.smoothness * SLACK + 1e-12
    lowest = 0.0 if constants.convex else -constants.smoothness
    assert eigenvalues.min() >= lowest * SLACK - 1e-9
    if constants.lipschitz is not None:
        assert gradient_norm <= constants.lipschitz * SLACK
    if constants.bound is not None:
        assert abs(value) <= constants.bound * SLACK


# Scores along which each constant is approached: a confident wrong class (L), a tie of two (β).
SOFTMAX_DIRECTIONS = [[1.0, -1.0, 0.0, 0.0], [0.0, 1.0, -1.0, 0.0], [1.0, 1.0, -1.0, -1.0]]
TIGHT = ["logistic", "huber", "smoothed-hinge", "linear", "squared", "softmax", "tanh-margin"]


@pytest.mark.parametrize("name", TIGHT)
def test_constants_are_tight(x64, name):
    """No constant is larger than it need be: a walk along the feature direction reaches it."""
    case = CATALOGUE[name]
    record, params = random_record_and_params(case, 3, 1.0)
    record = at_the_edge(case, record)
    features = record.features if isinstance(record, dd.Labelled) else record
    directions = [features]
    if params.ndim == 2:
        directions = [features[:, None] * jnp.array(scores) for scores in SOFTMAX_DIRECTIONS]
    sizes = jnp.linspace(-20, 20, 801)
    norms, curvatures = [], []
    for direction in directions:
        walk = sizes.reshape(-1, *(1,) * direction.ndim) * direction
        _, norm, eigenvalues = jax.vmap(derivatives(name), in_axes=(0, None))(walk, record)
        norms.append(norm.max())
        curvatures.append(jnp.abs(eigenvalues).max())
    if case.loss.constants.lipschitz is not None:
        assert max(norms) >= 0.99 * case.loss.constants.lipschitz
    assert max(curvatures) >= 0.95 * case.loss.constants.smoothness


def test_label_sensitivity_of_squared_error_holds(x64):
    loss = dd.losses.squared(feature_norm=2.0, label_bound=1.5)
    features = jnp.array([2.0, 0.0])
    theta = jnp.array([0.3, -4.0])
    one = jax.grad(loss.value)(theta, dd.Labelled(features, jnp.array(1.5)))
    other = jax.grad(loss.value)(theta, dd.Labelled(features, jnp.array(-1.5)))
    np.testing.assert_allclose(jnp.linalg.norm(one - other), loss.constants.label_sensitivity)
    assert loss.constants.lipschitz is None


@pytest.mark.parametrize("name", CATALOGUE)
def test_slope_is_the_derivative_of_the_value(x64, name):
    scores = CATALOGUE[name].loss.scores
    if scores is None:
        return
    database = CATALOGUE[name].make(1, 3, 5, jnp.float64)
    label = scores.split(database)[1][0]
    size = () if scores.num_scores is None else (scores.num_scores,)
    for seed in range(20):
        t = 3 * jax.random.normal(jax.random.key(seed), size)
        np.testing.assert_allclose(
            scores.slope(t, label), jax.grad(scores.value)(t, label), atol=1e-12
        )


WITH_NULL = [name for name, case in CATALOGUE.items() if case.loss.null_record is not None]


@pytest.mark.parametrize("name", WITH_NULL)
@settings(max_examples=20)
@given(seed=st.integers(0, 10**6))
def test_null_record_has_zero_gradient_everywhere_and_is_admissible(name, seed):
    case = CATALOGUE[name]
    database = case.make(4, 3, 0, jnp.float32)
    null = case.loss.null_record(database)
    params = standard_normal_like(jax.random.key(seed), case.loss.template(database))
    gradient = jax.grad(case.loss.value)(params, null)
    assert all(bool(jnp.all(leaf == 0)) for leaf in jax.tree.leaves(gradient))
    edit = dd.deletion(case.loss, database, [1, 3])
    dd.check_edit(database, edit, case.loss.domain)
    assert edit.index.tolist() == [1, 3]


def test_losses_without_a_null_record_say_so():
    without = set(CATALOGUE) - set(WITH_NULL)
    assert without == {"huber-intercept", "squared-intercept", "softmax-intercept"}
    with pytest.raises(dd.InputError) as error:
        dd.deletion(dd.losses.huber(intercept=True), signed(4, 2), [0])
    assert str(error.value) == (
        "Huber has no null record (a record whose gradient is zero at every θ), so rows cannot be "
        "blanked; replace them with other records by dd.replacement, or drop the intercept and "
        "append a column of ones to the features instead."
    )


@pytest.mark.parametrize("name", CATALOGUE)
def test_records_outside_the_domain_are_refused_and_projected(name):
    case = CATALOGUE[name]
    good = case.make(3, 2, 0, jnp.float32)
    case.loss.domain.check(good)
    projected, inside = case.loss.domain.project(good)
    assert bool(jnp.all(inside))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), projected, good)

    bad = scale_features(good, lambda a: a.at[1].multiply(10))
    with pytest.raises(dd.InputError, match=r"row 1 has feature norm .* beyond the declared"):
        case.loss.domain.check(bad)
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


BAD_RECORDS = {
    "label": (
        lambda: dd.Labelled(jnp.zeros((2, 2)), jnp.array([1.0, 2.0])),
        "row 1 has label 2.0; labels of this loss are in [-1, 1].",
    ),
    "vector features": (
        lambda: dd.Labelled(jnp.zeros(2), jnp.zeros(2)),
        "features have shape (2,); give an (n, d) matrix.",
    ),
    "matrix labels": (
        lambda: dd.Labelled(jnp.zeros((2, 2)), jnp.zeros((2, 1))),
        "labels have shape (2, 1); give a vector of n labels.",
    ),
    "type": (
        lambda: jnp.zeros((2, 2)),
        "records are of type ArrayImpl; build them as dd.Labelled(features, label).",
    ),
}


@pytest.mark.parametrize("name", BAD_RECORDS)
def test_bad_records_are_refused_in_one_sentence(name):
    make, message = BAD_RECORDS[name]
    with pytest.raises(dd.InputError) as error:
        dd.losses.logistic().domain.check(make())
    assert str(error.value) == message


def test_class_labels_must_be_whole():
    records = dd.Labelled(jnp.zeros((2, 2)), jnp.zeros(2))
    with pytest.raises(dd.InputError, match="labels have dtype float32; class labels are integers"):
        dd.losses.softmax(num_classes=3).domain.check(records)


BAD_ARGUMENTS = [
    (lambda: dd.losses.logistic(feature_norm=0.0), "feature_norm = 0.0 is not a positive finite"),
    (lambda: dd.losses.logistic(feature_norm=float("nan")), "feature_norm = nan is not a positive"),
    (lambda: dd.losses.huber(threshold=-1.0), "threshold = -1.0 is not a positive finite number"),
    (lambda: dd.losses.smoothed_hinge(smoothing=0.0), "smoothing = 0.0 is not a positive finite"),
    (lambda: dd.losses.squared(label_bound=0.0), "label_bound = 0.0 is not a positive finite"),
    (lambda: dd.losses.softmax(num_classes=1), "num_classes = 1; softmax needs at least 2 classes"),
    (lambda: dd.losses.bounded_network(hidden=0), "hidden = 0; the network needs at least one"),
    (lambda: dd.losses.bounded_network(hidden=2, output_norm=0.0), "output_norm = 0.0 is not a"),
]


@pytest.mark.parametrize(("make", "message"), BAD_ARGUMENTS)
def test_bad_loss_arguments_are_refused(make, message):
    with pytest.raises(dd.InputError, match=message):
        make()


def test_the_same_loss_is_the_same_object_so_that_nothing_retraces():
    assert dd.losses.logistic(feature_norm=2.0) is dd.losses.logistic(feature_norm=2.0)
    assert dd.losses.logistic(feature_norm=2.0) is not dd.losses.logistic(feature_norm=1.0)


def test_a_user_loss_declares_its_constants():
    loss = dd.losses.custom(
        lambda theta, x: jnp.sum(jnp.sqrt(1 + (theta - x) ** 2)),
        lambda database: jnp.zeros(database.shape[1]),
        name="pseudo-Huber location",
        convex=True,
        smoothness=1.0,
    )
    assert loss.constants.established == "declared"
    assert loss.constants.lipschitz is None
    with pytest.raises(dd.InputError, match="lipschitz = -1 is not a finite number ≥ 0"):
        dd.losses.custom(lambda t, x: t, lambda d: d, name="bad", lipschitz=-1)
