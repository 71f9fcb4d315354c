"""Products are of the precision that they name, on every platform: numbers and lowered programs."""

import functools
import re

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from problems import CATALOGUE, signed
from test_erm import catalogue_case, relative_error

import dd_jax as dd
from dd_jax import databases, ensemble, erm, gradients, noisy_gd, products
from dd_jax.constants import THREE_PASS_ROUNDOFF
from dd_jax.noisy_gd import Schedule

WITH_SCORES = [name for name, case in CATALOGUE.items() if case.loss.scores is not None]
ROUNDOFF = {"full": 2.0**-24, "bfloat16x3": THREE_PASS_ROUNDOFF}


@pytest.fixture
def platform(monkeypatch):
    """Trace the forms of another platform; their numbers are then computed here."""

    def choose(name):
        def chosen(*args, default, **forms):
            return forms.get(name, default)(*args)

        monkeypatch.setattr(jax.lax, "platform_dependent", chosen)
        for kept in (gradients._one_or_many, gradients._many):
            kept.cache_clear()
            monkeypatch.setattr(gradients, kept.__name__, kept.__wrapped__)

    return choose


def random_matrices(rows=300, dim=20, models=7):
    rng = np.random.default_rng(0)
    shapes = (rows, dim), (dim, models), (rows, models)
    return [rng.normal(size=shape).astype(np.float32) for shape in shapes]


def test_three_parts_are_the_number_itself():
    values = np.concatenate([matrix.ravel() for matrix in random_matrices()])
    parts = products.split(jnp.asarray(values), 3)
    assert all(part.dtype == jnp.bfloat16 for part in parts)
    np.testing.assert_array_equal(sum(np.asarray(part, np.float64) for part in parts), values)
    two = sum(np.asarray(part, np.float64) for part in products.split(jnp.asarray(values), 2))
    assert 2.0**-19 < np.max(np.abs(two - values) / np.abs(values)) <= 2.0**-16


@pytest.mark.parametrize("precision", ["full", "bfloat16x3"])
def test_stacked_products_round_as_their_level_says(precision):
    """And one part alone, a plain bfloat16 product, does not."""
    features, params, slopes = random_matrices()
    stacked = products.stack(jnp.asarray(features), precision)
    scores = products.stacked_scores(stacked, params, precision)
    sums = products.stacked_sum(stacked, slopes, features.shape[1], precision)
    # A sum over six passes rounds once for each of its terms.
    allowed = ROUNDOFF[precision] + 6 * features.shape[1] * 2.0**-24
    assert worst_error(scores, features, params) <= allowed
    assert worst_error(sums, features.T, slopes) <= allowed
    # Sums of a single term, where no error averages out.
    column, row = features[:, :1], features[:1]
    alone = products.stacked_scores(products.stack(column, precision), params[:1], precision)
    assert worst_error(alone, column, params[:1]) <= ROUNDOFF[precision] + 6 * 2.0**-24
    alone = products.stacked_sum(products.stack(row, precision), slopes[:1], len(row.T), precision)
    assert worst_error(alone, row.T, slopes[:1]) <= ROUNDOFF[precision] + 6 * 2.0**-24
    one_pass = jnp.asarray(features, jnp.bfloat16).astype(jnp.float32) @ params
    assert worst_error(one_pass, features, params) > 2.0**-12


def test_three_passes_round_as_the_constant_says():
    """Attained by a TPU's parts, rounded to the nearest; a GPU's TF32 parts, cut off, lose less."""
    spread = np.random.default_rng(0).uniform(0, 2.0**-7, 100_000)
    values = np.float32(1 + spread)
    exact = values.astype(np.float64)

    def worst(first, second):
        first, second = (np.asarray(part, np.float64) for part in (first, second))
        return np.max(np.abs(first**2 + 2 * first * second - exact**2) / exact**2)

    found = worst(*products.split(jnp.asarray(values), 2))
    assert 0.9 * THREE_PASS_ROUNDOFF < found <= THREE_PASS_ROUNDOFF

    def cut(values):
        return (values.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)

    assert worst(cut(values), cut(values - cut(values))) < THREE_PASS_ROUNDOFF / 16


def worst_error(found, left, right):
    """The largest error of a product, as a share of the product of absolute values."""
    exact = left.astype(np.float64) @ right
    size = np.abs(left).astype(np.float64) @ np.abs(right)
    return np.max(np.abs(np.asarray(found, np.float64) - exact) / size)


@pytest.mark.parametrize(
    ("target", "name"), [("cuda", "logistic"), *(("tpu", name) for name in WITH_SCORES)]
)
def test_the_forms_of_accelerators_give_the_reference_gradient(platform, target, name):
    """With multiplicities, clipped, in chunks with a shorter last one."""
    loss, rows, params = catalogue_case(name, jnp.float32)
    models = jax.tree.map(lambda leaf: jnp.stack([leaf, -leaf, leaf[::-1]]), params)
    database = databases.counted(rows, 1 + np.arange(len(jax.tree.leaves(rows)[0])) % 3)
    problem = dd.Problem(loss, 0.1, 0.3, row_chunk=32)

    def stacked(form):
        return jax.jit(jax.vmap(lambda theta: form(problem, theta, database)))(models)

    expected = stacked(erm.reference_gradient)
    platform(target)
    assert relative_error(stacked(erm.gradient), expected) <= 1e-6


def test_on_a_tpu_weights_and_clip_norms_may_differ_between_models(platform):
    database, loss = signed(100, 4), dd.losses.logistic()
    models = jax.random.normal(jax.random.key(0), (3, 4))
    clips = jnp.array([0.1, 0.2, 0.3])
    edits = [dd.replacement([row], jax.tree.map(lambda leaf: leaf[:1], database)) for row in (5, 9)]
    slots = databases.overlay(database, 1)
    both_edits = jax.tree.map(lambda *leaves: jnp.stack(leaves), *edits)

    def both(form):
        # Written inside, so that the base is not batched and only its weights are.
        def one(edit, theta, clip):
            return form(dd.Problem(loss, 0.1, clip), theta, slots.write(edit))

        over = jax.vmap(jax.vmap(one, (None, 0, 0)), (0, None, None))
        return jax.jit(over)(both_edits, models, clips)

    expected = both(erm.reference_gradient)
    platform("tpu")
    assert relative_error(both(erm.gradient), expected) <= 1e-6


# --- lowered programs -----------------------------------------------------------------------------


SCHEDULE = Schedule(0.1, 0.01, 1.0, 4, 2)


def interaction(problem, database, key):
    mechanism = noisy_gd.mechanism(problem, SCHEDULE)
    requester = dd.requesters.deletions(problem.loss, database, [1, 2])
    return dd.interact(key, mechanism, requester, database, num_requests=2)[1].releases


def _programs():
    """(name, function of key and database, database, problem): what a platform is given."""
    logistic = dd.Problem(dd.losses.logistic(), 0.1, 0.4)
    softmax = dd.Problem(dd.losses.softmax(num_classes=3), 0.1, 0.4)
    network = dd.Problem(dd.losses.bounded_network(hidden=3), 0.1, 0.4)
    own = dd.Problem(
        dd.losses.custom(logistic.loss.value, logistic.loss.template, name="own"), 0.1, 0.4
    )
    labelled = signed(40, 5)
    classes = CATALOGUE["softmax-intercept"].make(40, 5, 0, jnp.float32)

    def learn(key, rows, problem=logistic):
        return noisy_gd.mechanism(problem, SCHEDULE).learn(key, rows)

    def delete(key, rows):
        mechanism = noisy_gd.mechanism(logistic, SCHEDULE)
        return mechanism.delete(key, rows, dd.deletion(logistic.loss, rows, [1]), rows, jnp.ones(5))

    def both_arms(key, rows):
        edit = dd.deletion(logistic.loss, rows, [1])
        both = ensemble._both_arms(lambda key, rows: interaction(logistic, rows, key))
        return both(jax.random.split(key), rows, edit, ())

    def minimum(key, rows):
        return erm.minimise(logistic, rows).params

    return {
        "learning": (learn, labelled),
        "deletion": (delete, labelled),
        "interaction": (lambda key, rows: interaction(logistic, rows, key), labelled),
        "neighbours": (both_arms, labelled),
        "softmax": (functools.partial(learn, problem=softmax), classes),
        "network": (functools.partial(learn, problem=network), labelled),
        "a loss of one's own": (functools.partial(learn, problem=own), labelled),
        "minimiser": (minimum, labelled),
    }


PROGRAMS = _programs()


def lowered(name, target, seeds=4):
    fn, database = PROGRAMS[name]
    keys = jax.random.split(jax.random.key(0), seeds)
    traced = jax.jit(jax.vmap(fn, in_axes=(0, None))).trace(keys, database)
    return traced.lower(lowering_platforms=(target,)).as_text(debug_info=True)


def careless_products(text):
    """The products of a lowered program that leave their precision to the platform."""
    found = []
    for line in text.splitlines():
        if "stablehlo.dot_general" not in line or "xf64>" in line:
            continue
        named = "precision = [HIGHEST, HIGHEST]" in line or "algorithm" in line
        in_parts = re.search(r": \(tensor<[0-9x]*bf16>, tensor<[0-9x]*bf16>\) -> .*f32>", line)
        if not named and not in_parts:
            found.append(line.strip())
    return found


@pytest.mark.parametrize("target", ["tpu", "cuda"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_every_product_names_its_precision(name, target):
    text = lowered(name, target)
    assert "dot_general" in text
    assert careless_products(text) == []


def test_a_product_that_names_none_is_found():
    matrix = jax.ShapeDtypeStruct((4, 4), jnp.float32)
    traced = jax.jit(lambda a: a @ a).trace(matrix)
    assert careless_products(traced.lower(lowering_platforms=("tpu",)).as_text(debug_info=True))


def test_three_passes_are_an_algorithm_by_name_on_a_gpu_and_parts_on_a_tpu():
    problem = dd.Problem(dd.losses.logistic(), 0.1, precision="bfloat16x3")
    database, models = signed(40, 5), jnp.ones((3, 5))

    stacked = jax.jit(jax.vmap(lambda theta: erm.gradient(problem, theta, database)))

    def text(target):
        return stacked.trace(models).lower(lowering_platforms=(target,)).as_text()

    assert text("cuda").count("num_primitive_operations = 3") >= 2
    assert f"tensor<40x{products.stacked_width('bfloat16x3', 5)}xbf16>" in text("tpu")
    # What a TPU is given leaves no trace here, not even memory.
    assert "bf16" not in stacked.lower(models).compile().as_text()


def test_parts_that_would_take_too_much_memory_are_not_kept(monkeypatch):
    problem = dd.Problem(dd.losses.logistic(intercept=True), 0.1)
    database, models = signed(40, 5), jnp.ones((3, 6))
    size = 2 * 40 * products.stacked_width("full", 6)

    def text(most):
        monkeypatch.setattr(gradients, "MOST_STACKED_BYTES", most)
        one = jax.vmap(lambda theta: erm.gradient(problem, theta, database))
        return jax.jit(one).trace(models).lower(lowering_platforms=("tpu",)).as_text()

    assert "xbf16>" in text(size)
    assert "xbf16>" not in text(size - 1)
    assert "HIGHEST" in text(size - 1)


@pytest.mark.parametrize("name", ["logistic", "network"])
def test_doubles_are_multiplied_in_double_precision_at_every_level(name):
    with jax.enable_x64(True):
        loss, rows, params = catalogue_case(name, jnp.float64)
        problem = dd.Problem(loss, 0.1, 0.3, precision="bfloat16x3")
        models = jax.tree.map(lambda leaf: jnp.stack([leaf, -leaf]), params)
        stacked = jax.jit(jax.vmap(lambda theta: erm.gradient(problem, theta, rows)))
        text = stacked.trace(models).lower(lowering_platforms=("cuda",)).as_text()
    found = [line for line in text.splitlines() if "dot_general" in line]
    assert found
    assert all("HIGHEST, HIGHEST" in line and line.endswith("xf64>") for line in found)


def test_one_exported_program_serves_every_platform():
    """A whole sweep step, serialised and reloaded: no lowering is missing on any platform."""
    problem, database = dd.Problem(dd.losses.logistic(), 0.1, 0.4), signed(40, 5)

    @jax.jit
    def sweep(key, features, label):
        database = dd.Labelled(features, label)
        seeds = jax.vmap(lambda seed: interaction(problem, database, jax.random.fold_in(key, seed)))
        return seeds(jnp.arange(3))

    key = jax.random.key(1)
    platforms = ("cpu", "cuda", "tpu")
    exported = jax.export.export(sweep, platforms=platforms)(key, *database)
    loaded = jax.export.deserialize(exported.serialize())
    assert set(loaded.platforms) == set(platforms)
    found, expected = loaded.call(key, *database), sweep(key, *database)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)
