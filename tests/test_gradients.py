"""Gradients of a stack of models are those of each model; what is held does not grow with n · S."""

import dataclasses
import functools

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest
from problems import CATALOGUE, signed, soak
from test_erm import catalogue_case, relative_error

import dd_jax as dd
from dd_jax import databases, erm, gradients
from dd_jax.databases import weighted
from dd_jax.gradients import sum_over_rows

WITH_SCORES = [name for name, case in CATALOGUE.items() if case.loss.scores is not None]
MODELS, CHUNK, CLIP = 3, 32, 0.3


def stack_of(params):
    """Different models, each as large as the one given."""
    return jax.tree.map(lambda leaf: jnp.stack([leaf, -leaf, leaf[::-1]]), params)


def over_models(gradient):
    return jax.jit(jax.vmap(gradient, in_axes=(None, 0, None)))


stacked, one_by_one = over_models(erm.gradient), over_models(erm.reference_gradient)


@pytest.mark.parametrize("name", WITH_SCORES)
def test_a_stack_of_models_has_the_reference_gradients(x64, name):
    """Clipped, with multiplicities, in whole chunks and a shorter one."""
    loss, rows, params = catalogue_case(name, jnp.float64)
    database = databases.counted(rows, 1 + np.arange(len(jax.tree.leaves(rows)[0])) % 3)
    problem = dd.Problem(loss, 0.1, CLIP, row_chunk=CHUNK)
    found = stacked(problem, stack_of(params), database)
    expected = one_by_one(problem, stack_of(params), database)
    assert relative_error(found, expected) <= 1e-12


def logistic_case():
    database, loss = signed(100, 4), dd.losses.logistic(intercept=True)
    params = jax.random.normal(jax.random.key(0), (2, MODELS, 5))
    return database, loss, params


@pytest.mark.parametrize("count", [2, MODELS])
def test_clip_norms_and_models_are_mapped_in_any_order(count):
    """As many clip norms as models too, where no shape tells the two axes apart."""
    database, loss, params = logistic_case()
    models, clips = params[0], jnp.array([0.05, 0.2, 0.4])[:count]

    def of(form, clip_norm, theta):
        return form(dd.Problem(loss, 0.1, clip_norm, row_chunk=CHUNK), theta, database)

    @jax.jit
    def all_orders(clips, models, params):
        gradient = functools.partial(of, erm.gradient)
        slow = jax.vmap(functools.partial(of, erm.reference_gradient), (None, 0))
        expected = jax.vmap(slow, (0, None))(clips, models)
        found = [
            jax.vmap(jax.vmap(gradient, (None, 0)), (0, None))(clips, models),
            jnp.swapaxes(jax.vmap(jax.vmap(gradient, (0, None)), (None, 0))(clips, models), 0, 1),
            # Each model of a stack of stacks with a clip norm of its own; one norm for all of them.
            jax.vmap(jax.vmap(gradient), (None, 0))(clips, params[:, :count])[0],
            jax.vmap(jax.vmap(functools.partial(gradient, clips[1])))(params)[0],
            jax.vmap(gradient, (0, None))(clips, models[0]),
        ]
        own = expected[jnp.arange(count), jnp.arange(count)]
        return found, [expected, expected, own, expected[1], expected[:, 0]]

    for found, expected in zip(*all_orders(clips, models, params), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-7)


def test_a_slope_of_many_scores_may_know_one_model_alone(x64):
    """Then it is mapped over the models, to the same gradients."""
    loss, rows, params = catalogue_case("softmax", jnp.float64)
    mapped = loss.scores._replace(slope_takes_models=False)
    alone = dd.losses.from_scores(mapped, loss.constants, loss.domain)
    found, expected = (
        stacked(dd.Problem(each, 0.1, CLIP, row_chunk=CHUNK), stack_of(params), rows)
        for each in (alone, loss)
    )
    assert relative_error(found, expected) <= 1e-12


@pytest.mark.parametrize("counted", [False, True])
def test_rows_wider_than_a_chunk_is_long(x64, counted):
    """Their transposition is left to the product; in whole chunks and a shorter one."""
    rows = jax.tree.map(lambda leaf: leaf.astype(jnp.float64), signed(2 * CHUNK + 3, CHUNK + 1))
    database = databases.counted(rows, 1 + np.arange(2 * CHUNK + 3) % 3) if counted else rows
    models = jnp.asarray(np.random.default_rng(0).normal(size=(MODELS, CHUNK + 1)))
    problem = dd.Problem(dd.losses.logistic(), 0.1, CLIP, row_chunk=CHUNK)
    expected = jax.vmap(lambda theta: erm.reference_gradient(problem, theta, database))(models)
    assert relative_error(stacked(problem, models, database), expected) <= 1e-12


def test_rows_that_differ_between_models():
    database, loss, params = logistic_case()
    problem = dd.Problem(loss, 0.1, 0.2, row_chunk=CHUNK)
    rows = jax.tree.map(lambda leaf: jnp.stack([leaf, -leaf, leaf[::-1]]), database)
    found, expected = (
        jax.jit(jax.vmap(form, in_axes=(None, 0, 0)))(problem, params[0], rows)
        for form in (erm.gradient, erm.reference_gradient)
    )
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-7)


EACH, SHARED_MODEL, SHARED_WEIGHT = (0, 0), (None, 0), (0, None)
NESTED = {  # axes of the inner and of the outer map
    "logistic-intercept": [
        (EACH, EACH),
        (SHARED_MODEL, SHARED_WEIGHT),
        (SHARED_WEIGHT, SHARED_MODEL),
        *soak((), ((EACH, SHARED_MODEL), (EACH, SHARED_WEIGHT))),
    ],
    "softmax": [(EACH, EACH), *soak((), ((SHARED_WEIGHT, SHARED_MODEL),))],
    "squared": [(EACH, EACH)],
}


@pytest.mark.parametrize("name", NESTED)
def test_weights_that_differ_between_models(x64, name):
    """As in an overlay whose edits differ between seeds; in whole chunks and a shorter one."""
    loss, rows, params = catalogue_case(name, jnp.float64)
    n = len(jax.tree.leaves(rows)[0])
    weight = jnp.asarray(np.random.default_rng(0).integers(0, 4, (2, MODELS, n)), jnp.int8)
    models = jnp.stack([stack_of(params), 2 * stack_of(params)])

    def gradient(form, theta, weight):
        database = dataclasses.replace(databases.overlay(rows, 1), left=weight)
        return form(dd.Problem(loss, 0.1, CLIP, row_chunk=CHUNK), theta, database)

    fast, slow = (functools.partial(gradient, f) for f in (erm.gradient, erm.reference_gradient))
    reference = jax.jit(jax.vmap(jax.vmap(slow)))
    for inner, outer in NESTED[name]:
        shared = [
            tuple(0 if axes[i] is None else slice(None) for axes in (outer, inner)) for i in (0, 1)
        ]
        theta, own = models[shared[0]], weight[shared[1]]
        found = jax.jit(jax.vmap(jax.vmap(fast, inner), outer))(theta, own)
        whole = [
            jnp.broadcast_to(jnp.expand_dims(leaf, [k for k in (0, 1) if at[k] == 0]), full.shape)
            for leaf, at, full in zip((theta, own), shared, (models, weight), strict=True)
        ]
        assert relative_error(found, reference(*whole)) <= 1e-12

    # In the form for a stack, which has the models last.
    program = jax.make_jaxpr(jax.vmap(fast))(models[0], weight[0])
    products = [e for e in _equations(program.jaxpr) if e.primitive.name == "dot_general"]
    on_base = [e.outvars[0].aval.shape for e in products if CHUNK in e.invars[1].aval.shape]
    assert (params.shape[0], MODELS * params[0].size) in on_base


def _equations(jaxpr):
    for equation in jaxpr.eqns:
        yield equation
        for inner in jax.extend.core.jaxprs_in_params(equation.params):
            yield from _equations(inner)


def test_a_batch_of_one_is_the_form_for_one_model():
    database, loss, params = logistic_case()
    problem = dd.Problem(loss, 0.1, 0.2)

    def one(theta):
        return erm.gradient(problem, theta, database)

    batch = jax.jit(jax.vmap(one)).lower(params[0, :1])
    assert "tensor<100x1xf32>" not in batch.as_text(), "no matrix with one column"
    found = batch.compile()(params[0, :1])[0]
    np.testing.assert_allclose(found, jax.jit(one)(params[0, 0]), rtol=1e-6)


def test_gradients_can_be_differentiated_both_ways(x64):
    """With a deleted record too: its norm of zero has no derivative, and none is needed."""
    rows, loss = signed(40, 3, dtype=jnp.float64), dd.losses.logistic()
    database = dd.apply_edit(rows, dd.deletion(loss, rows, [5]))
    problem = dd.Problem(loss, 0.1, 0.4)
    theta = jnp.array([0.5, -1.0, 2.0])

    @jax.jit
    def field(theta):
        return erm.gradient(problem, theta, database)

    forward, backward = jax.jacfwd(field)(theta), jax.jacrev(field)(theta)
    np.testing.assert_allclose(forward, backward, rtol=1e-10)
    width = 1e-6
    columns = [(field(theta + width * e) - field(theta - width * e)) for e in np.eye(3)]
    np.testing.assert_allclose(forward, np.stack(columns, 1) / (2 * width), atol=1e-6)


def test_chunks_are_chosen_from_shapes():
    """Blocks of at most 2 MB, chunks about equally long, at least 64 rows."""
    assert gradients.chunk_rows(10_000, 1024) == 500
    assert gradients.chunk_rows(200, 1024) == 200
    assert gradients.chunk_rows(10_000, 1024, itemsize=8) == 250
    assert gradients.chunk_rows(10_000, 10**6) == 64
    assert gradients.chunk_rows(0, 10) == 1


@pytest.mark.parametrize(
    ("rows", "models", "dim"), [(800, 64, 5), (400, 128, 5), (400, 1, 5), (400, 2, 80), (1, 1, 2)]
)
def test_memory_is_bounded_by_its_formula(rows, models, dim):
    """The compiled run of noisy steps holds no more than stated, and no n · S."""
    chunk = min(50, rows)
    problem = dd.Problem(dd.losses.logistic(intercept=True), 0.1, 0.4, row_chunk=chunk)

    def run(key, theta, database):
        return dd.noisy_gd.run(
            key, theta, database, problem, step_size=0.5, noise_variance=1e-3, num_steps=3
        )

    keys = jax.random.split(jax.random.key(0), models)
    compiled = (
        jax.jit(jax.vmap(run, in_axes=(0, 0, None)))
        .lower(keys, jnp.zeros((models, dim)), signed(rows, dim - 1))
        .compile()
    )
    memory = compiled.memory_analysis()
    held = (
        memory.argument_size_in_bytes + memory.output_size_in_bytes + memory.temp_size_in_bytes
    ) / 4
    bound = gradients.peak_numbers(rows, dim, models, chunk)
    assert held <= bound
    if models > dim and rows > chunk:
        assert bound < rows * models, "the bound would not show an n · S block"


@pytest.mark.parametrize("function", [erm.gradient, erm.reference_gradient])
def test_memory_of_a_loss_without_linear_scores_does_not_grow_with_the_rows(function):
    problem = dd.Problem(dd.losses.bounded_network(hidden=3), 0.1, 0.4)

    def held(rows):
        database = signed(rows, 2)
        params = problem.loss.template(database)
        one = jax.jit(functools.partial(function, problem))
        return one.lower(params, database).compile().memory_analysis().temp_size_in_bytes

    assert held(16 * 1024) <= held(4 * 1024)


@pytest.mark.parametrize(
    ("rows", "chunk"), [(20, 32), (32, 32), (96, 32), (100, 32), (2_500, None)]
)
def test_every_row_counts_once(rows, chunk):
    values = jnp.asarray(np.arange(rows) ** 2 % 101, jnp.float32)
    counts = 1 + np.arange(rows) % 3
    seen = []

    def one_chunk(records, weight):
        seen.append(records.shape[0])
        return jnp.sum(weighted(records, weight))

    found = sum_over_rows(one_chunk, databases.counted(values, counts), chunk)
    assert float(found) == float(np.asarray(values) @ counts)
    assert max(seen) == min(rows, chunk or 1024)


def test_a_sum_of_another_shape_than_the_model_is_refused():
    case = CATALOGUE["network"]
    rows = case.make(6, 3, 0, jnp.float32)
    wrong = dataclasses.replace(
        case.loss, batch_gradient=lambda params, *rest: jax.tree.map(jnp.sum, params)
    )
    with pytest.raises(AssertionError):
        gradients.clipped_sum(wrong, case.loss.template(rows), rows)


# --- batches --------------------------------------------------------------------------------------


def edited_forms(rows, edit):
    """Edited rows in every form of a database, each beside its plain rows."""
    plain = dd.apply_edit(rows, edit)
    repeated = jax.tree.map(lambda leaf: jnp.concatenate([leaf[:20], leaf[:20], leaf[40:]]), rows)
    counted = databases.compress(repeated)
    return {
        "plain": (plain, plain),
        "overlay": (databases.overlay(rows, 4).write(edit), plain),
        "counted": (counted, repeated),
        "overlay of counted": (
            databases.overlay(counted, 4).write(edit),
            dd.apply_edit(repeated, edit),
        ),
    }


FORMS = ("plain", "overlay", "counted", "overlay of counted")


@pytest.mark.parametrize(
    ("name", "form"),
    [("softmax", "overlay"), ("network", "overlay"), *(("logistic-intercept", f) for f in FORMS)],
)
def test_a_batch_is_the_database_of_its_rows(x64, name, form):
    """Batches of two sizes, in chunks that do not divide them, for one model and for a stack."""
    loss, rows, params = catalogue_case(name, jnp.float64)
    n, batches = len(jax.tree.leaves(rows)[0]), 7
    # The first row of batch 3, the first row after it, and the last row of all.
    edited = [3 * n // batches, 4 * n // batches, n - 1]
    edit = dd.replacement(edited, jax.tree.map(lambda leaf: leaf[5:8], rows))
    database, plain = edited_forms(rows, edit)[form]
    problem = dd.Problem(loss, 0.1, CLIP, row_chunk=8)
    models = stack_of(params)

    @jax.jit
    def found(batch):
        of_batch = erm.gradient_of(problem, database, batches)
        return of_batch(params, batch), jax.vmap(of_batch, in_axes=(0, None))(models, batch)

    sizes = set()
    for batch in (0, 3, batches - 1):
        cut = slice(batch * n // batches, (batch + 1) * n // batches)
        sizes.add(cut.stop - cut.start)
        own = jax.tree.map(lambda leaf, cut=cut: leaf[cut], plain)
        one, many = found(jnp.int32(batch))
        assert relative_error(many, one_by_one(problem, models, own)) <= 1e-12
        assert relative_error(one, jax.tree.map(lambda leaf: leaf[0], many)) <= 1e-12
    assert len(sizes) == 2


def test_batches_without_rows_are_refused():
    problem, database = dd.Problem(dd.losses.logistic(), 0.1), signed(5, 2)
    for batches in (0, 6, 2.5):
        with pytest.raises(dd.InputError, match="batches"):
            erm.gradient_of(problem, database, batches)
