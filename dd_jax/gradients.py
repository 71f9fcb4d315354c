"""Sums over records of clipped gradients, in chunks of rows: the cost of every step of Noisy-GD.

`clipped_sum` has three forms with one meaning: linear scores (GLMs, softmax), ghost norms
(networks, `Loss.batch_gradient`), and one gradient per record (`reference_sum`), which the other
two must equal.

With linear scores the gradient of one model is two products of a matrix and a vector. Under `vmap`
the same call sees how many models there are and becomes two matrix products over chunks of rows
(the scores T = A Θᵀ and the sum Aᵀ R), with rows first and models last. In this layout both
products run as fast as one large product:

    rows per chunk = BLOCK_BYTES / (max(d, models · scores) · bytes per number), ≥ LEAST_ROWS

so that the block of slopes R, and for few models the block of features A, stays in cache. No array
grows with n · models (`peak_numbers` has the bound and its one exception).
"""

import functools
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import optax
from jax.custom_batching import custom_vmap
from jax.custom_derivatives import SymbolicZero
from jaxtyping import Array, PyTree

from dd_jax import products
from dd_jax.constants import Precision
from dd_jax.databases import parts, weighted
from dd_jax.errors import InputError
from dd_jax.guarantees.schedules import first_row
from dd_jax.losses.base import LinearScores, Loss
from dd_jax.types import Part, num_records

# Blocks of 1 MB and 2 MB were within 3% of each other on cores with 0.5 to 1 MB of second-level
# cache.
BLOCK_BYTES = 2**21
# On accelerators the block of slopes stays in a TPU's 128 MB of vector memory beside what streams
# through it, and in the 50 MB of a recent GPU's second-level cache.
ACCELERATOR_BLOCK_BYTES = 3 * 2**24
# A TPU keeps the rows in bfloat16 parts up to this size, a quarter of the smallest chip's memory.
# The parts take three times the memory of the rows. Without them a step takes 2.3 times the cycles
# at 50 columns, but only 8% more at 785, which fill the tiles of a TPU by themselves.
MOST_STACKED_BYTES = 2**32
# Shorter chunks would spend more on starting each turn of the loop than on its products.
LEAST_ROWS = 64
# Rows per pass where the caller gives none and the form cannot see how many models there are.
DEFAULT_ROWS = 1024


def clipped_sum(
    loss: Loss,
    params: PyTree,
    database: PyTree,
    clip_norm=None,
    row_chunk: int | None = None,
    precision: Precision = "full",
) -> PyTree:
    """The sum of clip(∇ℓ(θ; x)) over a database's records, in the fastest form the loss allows.

    Args:
        loss: ℓ.
        params: θ.
        database: 𝒟, in any form.
        clip_norm: C, or None for no clipping.
        row_chunk: rows per pass; None chooses them from the shapes (`chunk_rows`), or takes 1024
            where the loss has no linear scores.
        precision: of the matrix products (`dd_jax.products`).
    """
    return clipped_sums(loss, database, clip_norm, row_chunk, precision)(params)


def clipped_sums(
    loss: Loss,
    database: PyTree,
    clip_norm=None,
    row_chunk: int | None = None,
    precision: Precision = "full",
    batches: int = 1,
) -> Callable[..., PyTree]:
    """`clipped_sum` as a function of θ; what depends on the rows alone is computed here, once.

    With several batches it is a function of θ and of the number of a batch, and sums over the rows
    of that batch (`guarantees.schedules.first_row`).
    """
    scores, fast = loss.scores, loss.batch_gradient
    if batches > 1 and any(part.axis is not None for part in parts(database)):
        raise InputError(
            "batches are consecutive rows, which a mesh that splits the rows would leave to one "
            "device at a time; share the seeds over the devices instead, or take batches=1."
        )
    if scores is not None:
        return _checked(_linear_sums(scores, database, clip_norm, row_chunk, precision, batches))

    def summed(params, batch=None):
        def one_chunk(rows, weight):
            assert fast is not None
            return products.computed(precision, fast, params, rows, clip_norm, weight)

        return sum_over_rows(one_chunk, database, row_chunk, batches, batch)

    def explicit(params, batch=None):
        how = (clip_norm, row_chunk, precision, batches, batch)
        return reference_sum(loss, params, database, *how)

    return _checked(explicit if fast is None else summed)


def _checked(summed: Callable[..., PyTree]) -> Callable[..., PyTree]:
    """The sum, refused where it is not of the model's shapes and types.

    A loss written by the caller may return anything. The scan over steps would fail too, but its
    message would only say that the type of the carry changed.
    """

    def checked(params, *batch):
        total = summed(params, *batch)
        chex.assert_trees_all_equal_shapes_and_dtypes(total, params)
        return total

    return checked


def reference_sum(
    loss: Loss,
    params: PyTree,
    database: PyTree,
    clip_norm=None,
    row_chunk: int | None = None,
    precision: Precision = "full",
    batches: int = 1,
    batch: Any = None,
) -> PyTree:
    """The same sum from one explicit gradient per record: what `clipped_sum` must equal."""

    def one_chunk(params, rows, clip_norm, weight):
        gradients = jax.vmap(jax.grad(loss.value), in_axes=(None, 0))(params, rows)
        if clip_norm is not None:
            factor = clip_weight(jax.vmap(optax.tree.norm)(gradients), clip_norm)
            gradients = jax.tree.map(lambda leaf: weighted(leaf, factor), gradients)
        return jax.tree.map(lambda leaf: jnp.sum(weighted(leaf, weight), axis=0), gradients)

    def at_precision(rows, weight):
        return products.computed(precision, one_chunk, params, rows, clip_norm, weight)

    return sum_over_rows(at_precision, database, row_chunk, batches, batch)


# --- sums over rows -------------------------------------------------------------------------------


def _add_parts(totals: Iterable[tuple[str | None, PyTree]]) -> PyTree:
    """Add up the sums over a database's parts, with one all-reduce for each that is split."""
    whole = [total if axis is None else jax.lax.psum(total, axis) for axis, total in totals]
    return jax.tree.map(lambda *leaves: functools.reduce(jnp.add, leaves), *whole)


def sum_over_rows(
    one_chunk: Callable[..., Any],
    database: PyTree,
    row_chunk: int | None,
    batches: int = 1,
    batch: Any = None,
) -> PyTree:
    """Sum `one_chunk(records, weight)` over chunks of a database's rows (None: 1024 per chunk)."""
    rows, size = DEFAULT_ROWS if row_chunk is None else row_chunk, batch_size(database, batches)

    def total(part):
        weight, window = _of_batch(part, num_records(database), batches, batch)
        return sum_over_chunks(one_chunk, part.records, weight, rows, window, size)

    return _add_parts((part.axis, total(part)) for part in parts(database))


class Window(NamedTuple):
    """Consecutive rows of a part, as many as the largest batch has.

    Attributes:
        first: the first of them.
        stop: where the batch ends, if some batches are one row shorter; else None.
    """

    first: Array
    stop: Array | None


def batch_size(database: PyTree, batches: int) -> int:
    """The number of rows of the largest batch."""
    return -(-num_records(database) // batches)


def _of_batch(part: Part, n: int, batches: int, batch) -> tuple[Any, Window | None]:
    """A part's weights in one batch, and the rows to cut out of it; all rows for one batch."""
    if batches == 1:
        return part.weight, None
    first, stop = (first_row(n, batches, batch + k) for k in (0, 1))
    if part.within is not None:
        return part.within(first, stop), None
    return part.weight, Window(first, None if n % batches == 0 else stop)


def sum_over_chunks(
    one_chunk: Callable[..., Any],
    records: PyTree,
    weight: Any,
    row_chunk: int,
    window: Window | None = None,
    size: int = 0,
) -> PyTree:
    """Add up `one_chunk` over consecutive rows; the last, shorter chunk is computed separately.

    With a window only its `size` rows are read; of these the ones after its stop count 0 times.
    """
    count = num_records(records) if window is None else size
    chunks, rest = divmod(count, row_chunk)

    def cut(offset, length):
        if window is None:
            return _cut((records, weight), offset, length)
        rows, own = _cut((records, weight), window.first + offset, length)
        if window.stop is None:
            return rows, own
        inside = window.first + offset + jnp.arange(length, dtype=jnp.int32) < window.stop
        if own is None:
            return rows, inside
        return rows, jnp.where(inside.reshape(-1, *(1,) * (own.ndim - 1)), own, 0)

    def add(total, chunk):
        return jax.tree.map(jnp.add, total, one_chunk(*cut(chunk * row_chunk, row_chunk))), None

    # One chunk, the short one if there is one, starts the sum: the carry then has the right shapes
    # and types without zeros that would have to be guessed, and a single chunk needs no loop.
    total = one_chunk(*(cut(chunks * row_chunk, rest) if rest else cut(0, row_chunk)))
    if chunks + bool(rest) <= 1:
        return total
    numbers = jnp.arange(0 if rest else 1, chunks, dtype=jnp.int32)
    return jax.lax.scan(add, total, numbers)[0]


def _cut(rows: PyTree, first: Array | int, count: int) -> PyTree:
    """Take consecutive rows; reshaping the database into chunks could copy all of it."""
    return jax.tree.map(lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, first, count), rows)


def chunk_rows(rows: int, width: int, itemsize: int = 4, block: int = BLOCK_BYTES) -> int:
    """Rows per chunk if a row takes `width` numbers; the chunks are about equally long."""
    most = max(LEAST_ROWS, block // (width * itemsize))
    chunks = max(1, -(-rows // most))
    return max(1, -(-rows // chunks))


def peak_numbers(rows: int, dim: int, models: int, chunk: int) -> int:
    """Bound how many numbers a gradient holds at once, its arguments and result included.

    For S = `models` (times scores) and chunks of c rows:

        n (d + 4) + 6 d S + 6 c (d + S) + 500

    The term in n is the database with the labels, counts, norms and limits of its rows. The term in
    S is the models, the result, the sums and the noise of a step. Then come six blocks of c rows of
    features and of slopes, and last counters and keys. No term has n · S, except that weights which
    differ between models (an overlay with different edits) take 2 n S bytes more.
    """
    return rows * (dim + 4) + 6 * dim * models + 6 * chunk * (dim + models) + 500


# --- linear scores --------------------------------------------------------------------------------


def _linear_sums(
    scores: LinearScores,
    database: PyTree,
    clip_norm,
    row_chunk: int | None,
    precision: Precision,
    batches: int,
) -> Callable[..., Array]:
    """`θ -> the sum of weight · clip(∇ℓ(θ; x))` over the records; `vmap` batches it over models."""
    n = num_records(database)
    form = _one_or_many(scores, row_chunk, precision, batch_size(database, batches))
    rows = [(part, _tiles(scores, part.records, precision)) for part in parts(database)]

    def summed(params, batch=None):
        clip = None if clip_norm is None else jnp.asarray(clip_norm, params.dtype)

        def total(part, tiled):
            weight, window = _of_batch(part, n, batches, batch)
            return form(params, _Rows(part.records, tiled, window), clip, weight)

        return _add_parts((part.axis, total(part, tiled)) for part, tiled in rows)

    return summed


class _Tiles(NamedTuple):
    """What a TPU's products take of the rows, the same at every step.

    Attributes:
        stacked: the signed features in bfloat16 parts (`products.stack`).
        norms: ‖a‖ of each row.
    """

    stacked: Array
    norms: Array


class _Rows(NamedTuple):
    """The rows that a form sums over: a part's records, a TPU's tiles of them, and which to take.

    Attributes:
        records: of all rows; norms and tiles of all rows are made once, before the steps.
        tiles: `_Tiles`, or None.
        window: the rows of one batch, or None for all.
    """

    records: PyTree
    tiles: _Tiles | None
    window: Window | None


def _tiles(scores: LinearScores, records: PyTree, precision: Precision) -> _Tiles | None:
    """The tiles on a TPU; elsewhere zeros, which nothing reads and the compiler removes.

    None for doubles, and where the tiles would take too much memory.
    """
    features = scores.split(records)[0]
    width = products.stacked_width(precision, features.shape[-1] + scores.intercept)
    too_large = 2 * features.shape[0] * width > MOST_STACKED_BYTES
    if features.dtype != jnp.float32 or too_large:
        return None

    def made(records):
        features, _ = _signed_features(scores, records)
        norms = jnp.sqrt(jnp.sum(features**2, axis=-1))
        return _Tiles(products.stack(features, precision), norms)

    def absent(records):
        return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)

    shapes = jax.eval_shape(made, records)
    return jax.lax.platform_dependent(records, tpu=made, default=absent)


@functools.lru_cache(maxsize=256)
def _one_or_many(
    scores: LinearScores, row_chunk: int | None, precision: Precision, size: int
) -> Callable:
    """`(params, rows, clip_norm, weight) -> sum`, with a second form for stacked params.

    The cache gives equal arguments the same function object, so that JAX reuses what it compiled.
    Through `custom_vmap` the function sees the number of models: a plain `vmap` of the one-model
    form would put the models first and keep chunks that are sized for one model.
    """
    plain = functools.partial(_sum_of_one, scores, row_chunk, precision, size)
    one = _with_stacks(custom_vmap(plain), plain, _many(scores, row_chunk, precision, size))

    @jax.custom_jvp
    def summed(params, rows, clip_norm, weight):
        return one(params, rows, clip_norm, weight)

    # JAX cannot differentiate through a `custom_vmap` in reverse mode; the plain form, which has
    # the same value, can be differentiated. Only arguments with a non-zero tangent are varied: a
    # row of zeros has a norm without a derivative, and would give NaN although the rows are
    # constant.
    @functools.partial(summed.defjvp, symbolic_zeros=True)
    def _(primals, tangents):
        leaves, structure = jax.tree.flatten(primals)
        moves = {
            place: tangent
            for place, tangent in enumerate(jax.tree.leaves(tangents))
            if not isinstance(tangent, SymbolicZero)
        }

        def of_what_moves(moving):
            return plain(*structure.unflatten([moving.get(i, x) for i, x in enumerate(leaves)]))

        at = {place: leaves[place] for place in moves}
        return summed(*primals), jax.jvp(of_what_moves, (at,), (moves,))[1]

    return summed


@functools.lru_cache(maxsize=256)
def _many(scores: LinearScores, row_chunk: int | None, precision: Precision, size: int) -> Callable:
    """The form for a stack of models; a nested `vmap` is flattened into one longer stack."""
    plain = functools.partial(_sum_of_many, scores, row_chunk, precision, size)
    many = custom_vmap(plain)

    def flattened(params, rows, clip_norm, weight):
        shape = params.shape
        if clip_norm is not None and clip_norm.ndim:
            clip_norm = jnp.broadcast_to(clip_norm.reshape(shape[0], -1), shape[:2]).reshape(-1)
        if weight is not None and weight.ndim > 1:
            count = weight.shape[-1]
            weight = jnp.broadcast_to(weight.reshape(shape[0], -1, count), (*shape[:2], count))
            weight = weight.reshape(-1, count)
        flat = many(params.reshape(-1, *shape[2:]), rows, clip_norm, weight)
        return flat.reshape(shape)

    return _with_stacks(many, plain, flattened)


def _with_stacks(function: custom_vmap, plain: Callable, stacked: Callable) -> custom_vmap:
    """Give a function a rule for batches: `stacked` where all models see the same rows.

    Weights may differ between models, one row of weights per model, and so may clip norms. Where
    the records themselves differ between models, their copies are already as large as anything that
    a plain `vmap` makes, so a plain `vmap` is used.
    """

    @function.def_vmap
    def _(size, batched, *args):
        # Where a caller switched 64-bit types on for itself, this rule may run after it returned.
        known = jax.dtypes.canonicalize_dtype(jnp.float64)
        with jax.enable_x64(jnp.float64 in (known, args[0].dtype)):
            return rule(size, batched, *args)

    def rule(size, batched, *args):
        in_batch = tuple(batched)
        # A stack of one takes the form for one model, which needs no transposed copy of the rows.
        if size == 1:
            only = jax.tree.map(
                lambda leaf, has_axis: leaf[0] if has_axis else leaf, args, in_batch
            )
            return function(*only)[None], True
        params, rows, clip_norm, weight = args
        if any(jax.tree.leaves(in_batch[1])):
            axes = jax.tree.map(lambda has_axis: 0 if has_axis else None, in_batch)
            return jax.vmap(plain, in_axes=axes)(*args), True
        if not in_batch[0]:
            params = jnp.broadcast_to(params, (size, *params.shape))
        if clip_norm is not None and clip_norm.ndim and not in_batch[2]:
            clip_norm = jnp.broadcast_to(clip_norm, (size, *clip_norm.shape))
        if weight is not None and weight.ndim > 1 and not in_batch[3]:
            weight = jnp.broadcast_to(weight, (size, *weight.shape))
        return stacked(params, rows, clip_norm, weight), True

    return function


def _sum_of_one(
    scores: LinearScores, row_chunk, precision: Precision, size, params, rows, clip_norm, weight
) -> Array:
    records = rows.records
    dot = functools.partial(products.dot, precision)
    # The norms of all rows at once, outside the loop over chunks: they are the same at every step,
    # so the compiler moves them out of the loop over steps.
    norms = None if clip_norm is None else feature_norms(scores, scores.split(records)[0])

    def one_chunk(rows, weight):
        records, norms = rows
        features, label = scores.split(records)
        values = dot(features, params[:-1] if scores.intercept else params)
        slopes = scores.slope(values + params[-1] if scores.intercept else values, label)
        if clip_norm is not None:
            slopes = _clip_slopes(scores, slopes, norms, clip_norm)
        slopes = weighted(slopes, weight)
        total = dot(slopes, features) if scores.num_scores is None else dot(features.T, slopes)
        if not scores.intercept:
            return total
        return jnp.concatenate([total, jnp.sum(slopes, axis=0, keepdims=True)], axis=0)

    chunk = row_chunk or chunk_rows(_count(rows, size), params.size, params.dtype.itemsize)
    return sum_over_chunks(one_chunk, (records, norms), weight, chunk, rows.window, size)


def _count(rows: _Rows, size: int) -> int:
    """How many rows are taken."""
    return num_records(rows.records) if rows.window is None else size


def _sum_of_many(
    scores: LinearScores, row_chunk, precision: Precision, size, params, rows, clip_norm, weight
) -> Array:
    """The sums for models of shape (S, d) or (S, d, C), with rows first and models last."""
    models, dim = params.shape[:2]
    last = jnp.moveaxis(params, 0, -1).reshape(dim, -1)  # (d, S) or (d, C·S)
    if weight is not None and weight.ndim > 1:
        # The weights are the same at every step. XLA moves work out of the loop over steps only if
        # it is more than a change of layout: a bare transposition stays in the loop and is paid for
        # at every step, while an absolute value (weights are ≥ 0) moves out and takes the
        # transposition with it.
        weight = jnp.abs(weight.T)
    how = {"models": models, "precision": precision, "row_chunk": row_chunk, "size": size}
    forms = {
        "cpu": functools.partial(_chunked_sum, scores, on_cpu=True, **how),
        "default": functools.partial(_chunked_sum, scores, on_cpu=False, **how),
    }
    if rows.tiles is not None:
        forms["tpu"] = functools.partial(_tiled_sum, scores, **how)
    total = jax.lax.platform_dependent(last, rows, clip_norm, weight, **forms)
    # The models move to the front once, after the last chunk; the barrier keeps XLA from folding
    # this transposition into the products, or the step's noise.
    total = jax.lax.optimization_barrier(total).reshape(*params.shape[1:], models)
    return jnp.moveaxis(total, -1, 0)


def _chunked_sum(
    scores, last, rows, clip_norm, weight, *, models, precision, row_chunk, size, on_cpu: bool
) -> Array:
    """The sums as two products per chunk of rows.

    Weights of shape (rows,) are shared by all models and multiply the features, which are fewer
    numbers than the slopes. Weights of shape (rows, S) differ between models and multiply the
    slopes.
    """
    own = weight is not None and weight.ndim > 1
    block = BLOCK_BYTES if on_cpu else ACCELERATOR_BLOCK_BYTES
    chunk = row_chunk or chunk_rows(_count(rows, size), max(last.shape), last.dtype.itemsize, block)

    def one_chunk(records, weight):
        features, label = _signed_features(scores, records)
        slopes = _slopes(scores, products.dot(precision, features, last), label, models)
        if clip_norm is not None:
            norms = jnp.sqrt(jnp.sum(features**2, axis=-1))
            clamp = _clamp_by_choice if on_cpu else jnp.clip
            slopes = _clip_stack(scores, slopes, norms, clip_norm, clamp)
        if own:
            slopes = _weigh_slopes(slopes, weight)
            weight = None
        columns = weighted(features, weight).T
        if on_cpu and chunk > last.shape[0]:
            # The barrier makes XLA transpose the features into an array before the product. Folded
            # into the product, the transposition of a long operand takes a CPU several times as
            # long. That of a wide one costs less than the array (785 columns, 256 models: 0.89 of
            # the time). An accelerator reads it either way.
            columns = jax.lax.optimization_barrier(columns)
        return products.dot(precision, columns, slopes.reshape(slopes.shape[0], -1))

    return sum_over_chunks(one_chunk, rows.records, weight, chunk, rows.window, size)


def _tiled_sum(
    scores, last, rows, clip_norm, weight, *, models, precision, row_chunk, size
) -> Array:
    """The sums as a TPU computes them, from features in bfloat16 parts (`_Tiles`)."""
    one_for_all = jnp.ones((1,), last.dtype)
    label = None if scores.margin else scores.split(rows.records)[1]

    def one_chunk(tiles_and_label, weight):
        tiles, label = tiles_and_label
        values = products.stacked_scores(tiles.stacked, last, precision)
        slopes = _slopes(scores, values, one_for_all if label is None else label, models)
        if clip_norm is not None:
            slopes = _clip_stack(scores, slopes, tiles.norms, clip_norm)
        if weight is not None:
            slopes = _weigh_slopes(slopes, weight if weight.ndim > 1 else weight[:, None])
        columns = slopes.reshape(slopes.shape[0], -1)
        return products.stacked_sum(tiles.stacked, columns, last.shape[0], precision)

    chunk = row_chunk or chunk_rows(
        _count(rows, size), max(last.shape), last.dtype.itemsize, ACCELERATOR_BLOCK_BYTES
    )
    return sum_over_chunks(one_chunk, (rows.tiles, label), weight, chunk, rows.window, size)


def _weigh_slopes(slopes: Array, weight: Array) -> Array:
    """Slopes (rows, S) or (rows, C, S) times weights (rows, S)."""
    weight = weight.astype(slopes.dtype)
    return slopes * (weight if slopes.ndim == weight.ndim else weight[:, None])


def _signed_features(scores: LinearScores, records: PyTree) -> tuple[Array, Array]:
    """Features with the constant 1 of an intercept, and labels.

    For a margin loss φ(y·t) the labels are multiplied into the features, and 1 is the label of all:
    one multiplication per feature vector replaces two per model.
    """
    features, label = scores.split(records)
    if scores.intercept:
        ones = jnp.ones((features.shape[0], 1), features.dtype)
        features = jnp.concatenate([features, ones], axis=1)
    if not scores.margin:
        return features, label
    # One array for both products: without the barrier XLA may multiply again inside each of them.
    signed = jax.lax.optimization_barrier(features * label[:, None])
    return signed, jnp.ones((1,), features.dtype)


def _slopes(scores: LinearScores, values: Array, label: Array, models: int) -> Array:
    """The slopes φ' for scores (rows, S), or for (rows, C·S), returned as (rows, C, S)."""
    if scores.num_scores is None:
        return scores.slope(values, label[:, None])
    by_class = values.reshape(values.shape[0], scores.num_scores, models)
    if scores.slope_takes_models:
        return scores.slope(by_class, label)
    return jax.vmap(scores.slope, in_axes=(2, None), out_axes=2)(by_class, label)


def feature_norms(scores: LinearScores, features: Array) -> Array:
    """The norms ‖a‖, with the constant 1 that an intercept appends."""
    return jnp.sqrt(jnp.sum(features**2, axis=-1) + int(scores.intercept))


def _clip_slopes(scores: LinearScores, slopes, norms, clip_norm) -> Array:
    """Clip records' gradients by their slopes: a clamp at ±C/‖a‖ for one score."""
    if scores.num_scores is None:
        limit = slope_limit(norms, clip_norm)
        return jnp.clip(slopes, -limit, limit)
    sizes = norms * jnp.sqrt(jnp.sum(slopes**2, axis=-1))
    return slopes * clip_weight(sizes, clip_norm)[..., None]


def _clip_stack(scores: LinearScores, slopes, norms, clip_norm, clamp=jnp.clip) -> Array:
    """The same for slopes (rows, S) or (rows, C, S) and one clip norm, or one for each model."""
    if scores.num_scores is None:
        limit = slope_limit(norms[:, None], clip_norm)
        return clamp(slopes, -limit, limit)
    sizes = norms[:, None] * jnp.sqrt(jnp.sum(slopes**2, axis=1))
    return slopes * clip_weight(sizes, clip_norm)[:, None]


def _clamp_by_choice(values: Array, least: Array, most: Array) -> Array:
    """`jnp.clip`, faster on a CPU: a maximum that passes on NaN takes it several instructions."""
    return jnp.where(values < least, least, jnp.where(values > most, most, values))


def slope_limit(norms: Array, clip_norm) -> Array:
    """The largest slope C/‖a‖ whose gradient has norm C.

    For a zero feature vector any finite number is right, since its gradient is zero; an infinite
    one would give 0 · ∞ = NaN in the Huberised objective.
    """
    tiny = jnp.finfo(norms.dtype).tiny
    huge = jnp.finfo(norms.dtype).max
    limit = jnp.asarray(clip_norm, norms.dtype) / jnp.maximum(norms, tiny)
    return jnp.minimum(limit, huge)


def clip_weight(norms: Array, clip_norm) -> Array:
    """The factor min(1, C/‖g‖) of Clip_C, written so that ‖g‖ = 0 does not divide by zero."""
    clip = jnp.asarray(clip_norm, norms.dtype)
    return clip / jnp.maximum(norms, clip)
