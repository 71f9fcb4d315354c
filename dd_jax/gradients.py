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
from collections.abc import Callable
from typing import Any

import chex
import jax
import jax.numpy as jnp
import optax
from jax.custom_batching import custom_vmap
from jax.custom_derivatives import SymbolicZero
from jaxtyping import Array, PyTree

from dd_jax.databases import parts, weighted
from dd_jax.losses.base import LinearScores, Loss
from dd_jax.types import Part, num_records

# Blocks of 1 MB and 2 MB were within 3% of each other on cores with 0.5 to 1 MB of second-level
# cache.
BLOCK_BYTES = 2**21
# Shorter chunks would spend more on starting each turn of the loop than on its products.
LEAST_ROWS = 64
# Rows per pass where the caller gives none and the form cannot see how many models there are.
DEFAULT_ROWS = 1024


def clipped_sum(
    loss: Loss, params: PyTree, database: PyTree, clip_norm=None, row_chunk: int | None = None
) -> PyTree:
    """The sum of clip(∇ℓ(θ; x)) over a database's records, in the fastest form the loss allows.

    Args:
        loss: ℓ.
        params: θ.
        database: 𝒟, in any form.
        clip_norm: C, or None for no clipping.
        row_chunk: rows per pass; None chooses them from the shapes (`chunk_rows`), or takes 1024
            where the loss has no linear scores.
    """
    scores, fast = loss.scores, loss.batch_gradient
    if scores is not None:
        total = sum_over_parts(
            lambda part: _linear_sum(scores, params, part, clip_norm, row_chunk), database
        )
    elif fast is not None:
        total = sum_over_rows(
            lambda rows, weight: fast(params, rows, clip_norm, weight), database, row_chunk
        )
    else:
        total = reference_sum(loss, params, database, clip_norm, row_chunk)
    # A loss written by the caller may return any shapes here. The scan over steps would fail too,
    # but its message would only say that the type of the carry changed.
    chex.assert_trees_all_equal_shapes_and_dtypes(total, params)
    return total


def reference_sum(
    loss: Loss, params: PyTree, database: PyTree, clip_norm=None, row_chunk: int | None = None
) -> PyTree:
    """The same sum from one explicit gradient per record: what `clipped_sum` must equal."""

    def one_chunk(rows, weight):
        gradients = jax.vmap(jax.grad(loss.value), in_axes=(None, 0))(params, rows)
        if clip_norm is not None:
            factor = clip_weight(jax.vmap(optax.tree.norm)(gradients), clip_norm)
            gradients = jax.tree.map(lambda leaf: weighted(leaf, factor), gradients)
        return jax.tree.map(lambda leaf: jnp.sum(weighted(leaf, weight), axis=0), gradients)

    return sum_over_rows(one_chunk, database, row_chunk)


# --- sums over rows -------------------------------------------------------------------------------


def sum_over_parts(one_part: Callable[[Part], Any], database: PyTree) -> PyTree:
    """Sum `one_part(part)` over the parts of a database, with one all-reduce per split part."""
    totals = []
    for part in parts(database):
        total = one_part(part)
        totals.append(total if part.axis is None else jax.lax.psum(total, part.axis))
    return jax.tree.map(lambda *leaves: functools.reduce(jnp.add, leaves), *totals)


def sum_over_rows(one_chunk: Callable[..., Any], database: PyTree, row_chunk: int | None) -> PyTree:
    """Sum `one_chunk(records, weight)` over chunks of a database's rows (None: 1024 per chunk)."""
    rows = DEFAULT_ROWS if row_chunk is None else row_chunk
    return sum_over_parts(lambda part: sum_over_chunks(one_chunk, part, rows), database)


def sum_over_chunks(one_chunk: Callable[..., Any], part: Part, row_chunk: int) -> PyTree:
    """Add up `one_chunk` over consecutive rows; the last, shorter chunk is computed separately."""
    chunks, rest = divmod(num_records(part.records), row_chunk)
    rows = (part.records, part.weight)

    def add(total, chunk):
        here = _cut(rows, chunk * row_chunk, row_chunk)
        return jax.tree.map(jnp.add, total, one_chunk(*here)), None

    # One chunk, the short one if there is one, starts the sum: the carry then has the right shapes
    # and types without zeros that would have to be guessed, and a single chunk needs no loop.
    total = one_chunk(*(_cut(rows, chunks * row_chunk, rest) if rest else _cut(rows, 0, row_chunk)))
    if chunks + bool(rest) <= 1:
        return total
    return jax.lax.scan(add, total, jnp.arange(0 if rest else 1, chunks))[0]


def _cut(rows: PyTree, first: Array | int, count: int) -> PyTree:
    """Take consecutive rows; reshaping the database into chunks could copy all of it."""
    return jax.tree.map(lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, first, count), rows)


def chunk_rows(rows: int, width: int, itemsize: int = 4) -> int:
    """Rows per chunk if a row takes `width` numbers; the chunks are about equally long."""
    most = max(LEAST_ROWS, BLOCK_BYTES // (width * itemsize))
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


def _linear_sum(
    scores: LinearScores, params: Array, part: Part, clip_norm, row_chunk: int | None
) -> Array:
    """The sum of weight · clip(∇ℓ(θ; x)) over a part's records; `vmap` batches it over models.

    Args:
        scores: the loss's linear-score structure.
        params: θ.
        part: records and their weights (None: 1).
        clip_norm: C, or None.
        row_chunk: rows per pass, or None for `chunk_rows`.
    """
    if clip_norm is not None:
        clip_norm = jnp.asarray(clip_norm, params.dtype)
    return _one_or_many(scores, row_chunk)(params, part.records, clip_norm, part.weight)


@functools.lru_cache(maxsize=256)
def _one_or_many(scores: LinearScores, row_chunk: int | None) -> Callable:
    """`(params, records, clip_norm, weight) -> sum`, with a second form for stacked params.

    The cache gives equal arguments the same function object, so that JAX reuses what it compiled.
    Through `custom_vmap` the function sees the number of models: a plain `vmap` of the one-model
    form would put the models first and keep chunks that are sized for one model.
    """
    plain = functools.partial(_sum_of_one, scores, row_chunk)
    one = _with_stacks(custom_vmap(plain), plain, _many(scores, row_chunk))

    @jax.custom_jvp
    def summed(params, records, clip_norm, weight):
        return one(params, records, clip_norm, weight)

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
def _many(scores: LinearScores, row_chunk: int | None) -> Callable:
    """The form for a stack of models; a nested `vmap` is flattened into one longer stack."""
    plain = functools.partial(_sum_of_many, scores, row_chunk)
    many = custom_vmap(plain)

    def flattened(params, records, clip_norm, weight):
        shape = params.shape
        if clip_norm is not None and clip_norm.ndim:
            clip_norm = jnp.broadcast_to(clip_norm.reshape(shape[0], -1), shape[:2]).reshape(-1)
        if weight is not None and weight.ndim > 1:
            rows = weight.shape[-1]
            weight = jnp.broadcast_to(weight.reshape(shape[0], -1, rows), (*shape[:2], rows))
            weight = weight.reshape(-1, rows)
        flat = many(params.reshape(-1, *shape[2:]), records, clip_norm, weight)
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
        in_batch = tuple(batched)
        # A stack of one takes the form for one model, which needs no transposed copy of the rows.
        if size == 1:
            only = jax.tree.map(
                lambda leaf, has_axis: leaf[0] if has_axis else leaf, args, in_batch
            )
            return function(*only)[None], True
        params, records, clip_norm, weight = args
        if any(jax.tree.leaves(in_batch[1])):
            axes = jax.tree.map(lambda has_axis: 0 if has_axis else None, in_batch)
            return jax.vmap(plain, in_axes=axes)(*args), True
        if not in_batch[0]:
            params = jnp.broadcast_to(params, (size, *params.shape))
        if clip_norm is not None and clip_norm.ndim and not in_batch[2]:
            clip_norm = jnp.broadcast_to(clip_norm, (size, *clip_norm.shape))
        if weight is not None and weight.ndim > 1 and not in_batch[3]:
            weight = jnp.broadcast_to(weight, (size, *weight.shape))
        return stacked(params, records, clip_norm, weight), True

    return function


def _sum_of_one(scores: LinearScores, row_chunk, params, records, clip_norm, weight) -> Array:
    # The norms of all rows at once, outside the loop over chunks: they are the same at every step,
    # so the compiler moves them out of the loop over steps.
    norms = None if clip_norm is None else feature_norms(scores, scores.split(records)[0])

    def one_chunk(records, weight_and_norms):
        weight, norms = weight_and_norms
        features, label = scores.split(records)
        slopes = scores.slope(_values(scores, params, features), label)
        if clip_norm is not None:
            slopes = _clip_slopes(scores, slopes, norms, clip_norm)
        slopes = weighted(slopes, weight)
        total = slopes @ features if scores.num_scores is None else features.T @ slopes
        if not scores.intercept:
            return total
        return jnp.concatenate([total, jnp.sum(slopes, axis=0, keepdims=True)], axis=0)

    rows = chunk_rows(num_records(records), params.size, params.dtype.itemsize)
    return sum_over_chunks(one_chunk, Part(records, (weight, norms)), row_chunk or rows)


def _values(scores: LinearScores, params: Array, features: Array) -> Array:
    """The scores Aθ (+ intercept): `losses.base.linear_scores` in the order for one model."""
    if not scores.intercept:
        return features @ params
    return features @ params[:-1] + params[-1]


def _sum_of_many(scores: LinearScores, row_chunk, params, records, clip_norm, weight) -> Array:
    """The sums for models of shape (S, d) or (S, d, C), with rows first and models last.

    Weights of shape (rows,) are shared by all models and multiply the features, which are fewer
    numbers than the slopes. Weights of shape (S, rows) differ between models and multiply the
    slopes.
    """
    models, dim = params.shape[:2]
    last = jnp.moveaxis(params, 0, -1).reshape(dim, -1)  # (d, S) or (d, C·S)
    own = False
    if weight is not None and weight.ndim > 1:
        # The weights are the same at every step. XLA moves work out of the loop over steps only if
        # it is more than a change of layout: a bare transposition stays in the loop and is paid for
        # at every step, while an absolute value (weights are ≥ 0) moves out and takes the
        # transposition with it.
        own, weight = True, jnp.abs(weight.T)

    def one_chunk(records, weight):
        features, label = _signed_features(scores, records)
        slopes = _slopes(scores, features @ last, label, models)
        if clip_norm is not None:
            norms = jnp.sqrt(jnp.sum(features**2, axis=-1))
            slopes = _clip_stack(scores, slopes, norms, clip_norm)
        if own:
            slopes = _weigh_slopes(slopes, weight)
            weight = None
        # The barrier makes XLA transpose the features into an array before the product. Folded into
        # the product, the transposition of a long operand takes several times as long.
        columns = jax.lax.optimization_barrier(weighted(features, weight).T)
        return columns @ slopes.reshape(slopes.shape[0], -1)

    rows = chunk_rows(num_records(records), max(last.shape), params.dtype.itemsize)
    total = sum_over_chunks(one_chunk, Part(records, weight), row_chunk or rows)
    # The models move to the front once, after the last chunk; the barrier keeps XLA from folding
    # this transposition into the products.
    total = jax.lax.optimization_barrier(total).reshape(*params.shape[1:], models)
    return jnp.moveaxis(total, -1, 0)


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


def _clip_stack(scores: LinearScores, slopes, norms, clip_norm) -> Array:
    """The same for slopes (rows, S) or (rows, C, S) and one clip norm, or one for each model."""
    if scores.num_scores is None:
        limit = slope_limit(norms[:, None], clip_norm)
        return jnp.clip(slopes, -limit, limit)
    sizes = norms[:, None] * jnp.sqrt(jnp.sum(slopes**2, axis=1))
    return slopes * clip_weight(sizes, clip_norm)[:, None]


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
