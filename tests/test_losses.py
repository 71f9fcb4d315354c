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
    """At 400 records of every size in the domain, each with a model of its own."""
    case = CATALOGUE[name]
    constants = case.loss.constants
    records, params = random_records_and_params(case, 400)
    shares = np.random.default_rng(1).uniform(size=(400, 1))
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


# Scores along which each constant is approached: a confident wrong class (L), a tie of two (β).
SOFTMAX_DIRECTIONS = [[1.0, -1.0, 0.0, 0.0], [0.0, 1.0, -1.0, 0.0], [1.0, 1.0, -1.0, -1.0]]
TIGHT = ["logistic", "huber", "smoothed-hinge", "linear", "squared", "softmax", "tanh-margin"]


@pytest.mark.parametrize("name", TIGHT)
def test_constants_are_tight(x64, name):
    """A walk along the feature direction reaches every constant, and does not exceed it."""
    case = CATALOGUE[name]
    records, params = random_records_and_params(case, 1, seed=3)
    record, params = jax.tree.map(lambda leaf: leaf[0], (at_the_edge(case, records), params))
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
    lipschitz, smoothness = case.loss.constants.lipschitz, case.loss.constants.smoothness
    if lipschitz is not None:
        assert 0.99 * lipschitz <= max(norms) <= lipschitz * SLACK
    assert 0.95 * smoothness <= max(curvatures) <= smoothness * SLACK + 1e-12


def test_label_sensitivity_of_squared_error_holds(x64):
    loss = dd.losses.squared(feature_norm=2.0, label_bound=1.5)
    features = jnp.array([2.0 * (1 + ROUNDING), 0.0])  # the longest that the domain accepts
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
    with pytest.raises(
        dd.InputError, match="labels have dtype float32; class labels are signed integers"
    ):
        dd.losses.softmax(num_classes=3).domain.check(records)


BAD_ARGUMENTS = [
    (lambda: dd.losses.logistic(feature_norm=0.0), "feature_norm = 0.0 is not a positive finite"),
    (lambda: dd.losses.logistic(feature_norm=float("nan")), "feature_norm = nan is not a positive"),
    (lambda: dd.losses.huber(threshold=-1.0), "threshold = -1.0 is not a positive finite number"),
    (lambda: dd.losses.smoothed_hinge(smoothing=0.0), "smoothing = 0.0 is not a positive finite"),
    (lambda: dd.losses.squared(label_bound=0.0), "label_bound = 0.0 is not a positive finite"),
    (lambda: dd.losses.softmax(num_classes=1), "num_classes = 1 is not a whole number ≥ 2"),
    (lambda: dd.losses.bounded_network(hidden=0), "hidden = 0 is not a whole number ≥ 1"),
    (lambda: dd.losses.bounded_network(hidden=2, output_norm=0.0), "output_norm = 0.0 is not a"),
]


@pytest.mark.parametrize(("make", "message"), BAD_ARGUMENTS)
def test_bad_loss_arguments_are_refused(make, message):
    with pytest.raises(dd.InputError, match=message):
        make()


BAD_TYPES = {
    "whole features": (
        lambda: dd.Labelled(jnp.zeros((2, 2), jnp.int32), jnp.zeros(2)),
        "features have dtype int32; convert them to float32 or float64.",
    ),
    "half precision": (
        lambda: dd.Labelled(jnp.zeros((2, 2), jnp.bfloat16), jnp.zeros(2, jnp.bfloat16)),
        "features have dtype bfloat16; convert them to float32 or float64.",
    ),
    "boolean labels": (
        lambda: dd.Labelled(jnp.zeros((2, 2)), jnp.zeros(2, bool)),
        "labels have dtype bool; convert them to the features' dtype.",
    ),
    "ragged": (
        lambda: dd.Labelled(jnp.zeros((3, 2)), jnp.zeros(2)),
        "the database's leaves have shapes [(3, 2), (2,)]; "
        "give every leaf the same leading axis n.",
    ),
    **BAD_RECORDS,
}
del BAD_TYPES["label"]  # a value, not a type: jit cannot see it


@pytest.mark.parametrize("name", BAD_TYPES)
def test_static_facts_are_refused_inside_jit_too(name):
    make, message = BAD_TYPES[name]
    domain = dd.losses.logistic().domain
    for look in (domain.check, domain.project, jax.jit(domain.project)):
        with pytest.raises(dd.InputError) as error:
            look(make())
        assert str(error.value).split(";")[1:] == message.split(";")[1:]


def test_labels_zero_and_one_are_not_mistaken_for_classes():
    database = signed(4, 2)
    bad = database._replace(label=jnp.array([1.0, 0.0, 1.0, 0.0]))
    with pytest.raises(dd.InputError) as error:
        dd.losses.check_data(dd.losses.logistic(), bad)
    assert str(error.value) == (
        "row 1 has label 0, which marks a deleted row, but its features are not zero; "
        "give classes the labels -1 and 1."
    )
    sparse = dd.Labelled(jnp.array([[0.5, 0.0], [0.0, 0.5]]), jnp.array([0.0, 1.0]))
    with pytest.raises(dd.InputError, match="row 0 has label 0, which marks a deleted row"):
        dd.losses.logistic().domain.check(sparse)
    blanked = dd.apply_edit(database, dd.deletion(dd.losses.logistic(), database, [1]))
    dd.losses.check_data(dd.losses.logistic(), blanked)


@settings(max_examples=50)
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
    with pytest.raises(dd.InputError, match="beyond the declared 1"):
        domain.check(jnp.array([[1.0 + 1e-6]]))


@pytest.mark.parametrize("intercept", [False, True])
def test_constants_cover_every_row_that_the_domain_accepts(x64, intercept):
    longest = 2.0 * (1 + ROUNDING)
    features = jnp.array([longest, 0.0])
    for loss in (
        dd.losses.logistic(feature_norm=2.0, intercept=intercept),
        dd.losses.huber(feature_norm=2.0, intercept=intercept),
    ):
        record = dd.Labelled(features, jnp.array(1.0))
        loss.domain.check(jax.tree.map(lambda leaf: leaf[None], record))
        far = jnp.full(2 + intercept, -1e4)
        gradient = jnp.linalg.norm(jax.grad(loss.value)(far, record))
        assert gradient <= loss.constants.lipschitz * (1 + 1e-12)
        assert gradient > loss.constants.lipschitz * (1 - 1e-9)
        flat = jnp.zeros(2 + intercept)  # Huber's curvature is largest where it fits
        fitted = record._replace(label=jnp.array(1.0 if loss.name == "logistic" else 0.0))
        curvature = jnp.linalg.norm(jax.hessian(loss.value)(flat, fitted), ord=2)
        assert curvature <= loss.constants.smoothness * (1 + 1e-12)
        assert curvature > loss.constants.smoothness * (1 - 1e-9)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_features_that_have_no_norm_are_refused(bad):
    rows = jnp.array([[0.5, 0.0], [bad, 0.0]])
    with pytest.raises(dd.InputError, match=f"row 1 has feature norm {bad}, beyond the declared 1"):
        dd.losses.feature_domain(1.0).check(rows)
    with pytest.raises(dd.InputError, match=f"row 1 has feature norm {bad}, beyond the declared 1"):
        dd.losses.labelled_domain(1.0, -1.0, 1.0).check(dd.Labelled(rows, jnp.ones(2)))


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
        with pytest.raises(dd.InputError, match="beyond the declared"):
            domain.check(rows)


def test_domains_refuse_bad_bounds():
    for low, high in ((1.0, -1.0), (0.0, None), (None, 0.0)):
        with pytest.raises(dd.InputError, match="give label_low ≤ label_high, or neither"):
            dd.losses.labelled_domain(1.0, low, high)
    for norm in (-1.0, float("nan"), "1", True):
        with pytest.raises(
            dd.InputError, match=r"feature_norm = .* is not a positive finite number"
        ):
            dd.losses.feature_domain(norm)


def test_nan_labels_are_projected_and_counted():
    records = dd.Labelled(jnp.zeros((2, 2)), jnp.array([jnp.nan, 1.0]))
    for loss in (dd.losses.logistic(), dd.losses.huber()):
        projected, inside = loss.domain.project(records)
        assert inside.tolist() == [False, True]
        assert bool(jnp.all(jnp.isfinite(projected.label)))


def test_domains_end_where_the_labels_do():
    def labelled(*labels, dtype=jnp.float32):
        return dd.Labelled(jnp.zeros((len(labels), 2)), jnp.array(labels, dtype))

    dd.losses.squared(label_bound=1.5).domain.check(labelled(1.5, -1.5))
    with pytest.raises(dd.InputError, match=r"labels of this loss are in \[-1.5, 1.5\]"):
        dd.losses.squared(label_bound=1.5).domain.check(labelled(1.6))
    classes = dd.losses.softmax(num_classes=3).domain
    classes.check(labelled(0, 2, dtype=jnp.int32))
    with pytest.raises(dd.InputError, match=r"labels of this loss are in \[0, 2\]"):
        classes.check(labelled(3, dtype=jnp.int32))


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


def test_constants_of_a_users_scores_count_as_declared():
    scores = dd.losses.logistic().scores
    proved = dd.losses.logistic().constants
    assert dd.losses.from_scores(scores, proved).constants.established == "declared"
    with pytest.raises(dd.InputError) as error:
        dd.losses.from_scores(scores._replace(num_scores=3), proved)
    assert str(error.value) == (
        "logistic has 3 scores and is declared single-index; declare single_index=False, or "
        "num_scores=None if θ is a vector."
    )


def test_check_data_checks_the_data():
    loss = dd.losses.logistic()
    with pytest.raises(dd.InputError, match="row 0 has feature norm"):
        dd.losses.check_data(loss, signed(3, 2, norm=9.0))


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
