"""Networks: a bounded one-hidden-layer network with proved constants, and fast clipping for flax.

The only module of the library that imports flax.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from dd_jax import constants as proved
from dd_jax.constants import LossConstants
from dd_jax.databases import weighted
from dd_jax.errors import InputError
from dd_jax.losses.base import Loss
from dd_jax.losses.domains import labelled_domain
from dd_jax.types import ANY_RECORD, Domain, Labelled


class BoundedNetwork(nn.Module):
    """f(θ; a) = Σ_j v_j tanh(⟨w_j, a⟩ + bias_j) with fixed v_j = output_norm / √hidden."""

    hidden: int
    output_norm: float
    intercept: bool

    @nn.compact
    def __call__(self, features):
        """The score f(θ; a) of one feature vector or of rows of them."""
        units = jnp.tanh(nn.Dense(self.hidden, use_bias=self.intercept)(features))
        return jnp.sum(units, axis=-1) * (self.output_norm / math.sqrt(self.hidden))


@functools.cache
def bounded_network(
    *,
    hidden: int,
    output_norm: float = 1.0,
    feature_norm: float = 1.0,
    intercept: bool = False,
) -> Loss:
    """-tanh(y f(θ; a)) for a one-hidden-layer tanh network with fixed output weights v, ‖v‖ = V.

    For the bound R on the (augmented) feature norm and k = max|tanh''| = 4/(3√3):

        b = 1,   L = V·R,   β = k·(V² + V/√hidden)·R².

    Assumes: labels in [-1, 1]; the output weights are not trained. A fully trained network has no
    finite L and β over all θ, and therefore no such certificate.
    """
    constants = proved.bounded_network(
        hidden=hidden, output_norm=output_norm, feature_norm=feature_norm, intercept=intercept
    )
    domain = labelled_domain(feature_norm, -1.0, 1.0, zero_is_deleted=True)
    module = BoundedNetwork(hidden, output_norm, intercept)
    return _loss_of_flax(module, lambda f, y: -jnp.tanh(y * f), constants, domain, _blank)


def _blank(database: Labelled) -> Labelled:
    """Label 0 makes the margin y·f constant: the all-zero record has zero gradient everywhere."""
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape[1:], leaf.dtype), database)


def from_flax(
    module: nn.Module,
    value: Callable[[Array, Array], Array],
    constants: LossConstants,
    domain: Domain = ANY_RECORD,
    null_record: Callable[[PyTree], PyTree] | None = None,
) -> Loss:
    """The loss value(module(a), y) of a flax module of dense layers, on `Labelled` records.

    Its constants count as declared by the user, even if they say otherwise. Gradients are clipped
    by ghost norms (`ghost_gradient`), for which every parameter must be in an `nn.Dense` layer that
    is called once per record on a vector. Any other module is refused when its first gradient is
    traced; for such a module `dd_jax.losses.custom` takes any function, at the cost of one gradient
    per record.
    """
    declared = dataclasses.replace(constants, established="declared")
    return _loss_of_flax(module, value, declared, domain, null_record)


def _loss_of_flax(module, value, constants, domain, null_record) -> Loss:
    def record_loss(params, record):
        outputs: Any = module.apply(params, record.features)
        return value(outputs, record.label)

    def template(database):
        features = database.features
        # Shapes only: flax creates float32 parameters, the model takes the features' precision.
        row = jax.ShapeDtypeStruct(features.shape[1:], jnp.float32)
        shapes = jax.eval_shape(module.init, jax.random.key(0), row)
        return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, features.dtype), shapes)

    @functools.cache
    def agree_on(features, label):
        _require_agreement(module, value, record_loss, template, features, label)

    def batch_gradient(params, database, clip_norm, weight):
        agree_on(*(jax.ShapeDtypeStruct((2, *a.shape[1:]), a.dtype) for a in database))
        return ghost_gradient(module, value, params, database, clip_norm, weight)

    return Loss(
        record_loss, constants, template, domain, null_record, batch_gradient=batch_gradient
    )


def ghost_gradient(
    module: nn.Module,
    value: Callable[[Array, Array], Array],
    params: PyTree,
    database: Labelled,
    clip_norm,
    weight=None,
) -> PyTree:
    """Sum over records of their clipped gradients, without forming any single gradient.

    A dense layer's gradient for one record is input ⊗ δ, where δ is the derivative of the loss in
    the layer's output. One backward pass with respect to a zero added to each layer's output (a
    "tap") gives every δ. Then ‖∇ℓ‖² = Σ_layers (‖input‖² + bias) ‖δ‖² with bias = 1 for a layer
    that has one, and the clipped sum is inputᵀ(weight · δ).
    """
    inputs, taps = _dense_layers(module, params, database.features)
    _require_dense_parameters(params, inputs)

    def total(taps):
        outputs = _apply_with_taps(module, params, database.features, taps)
        return jnp.sum(jax.vmap(value)(outputs, database.label))

    deltas = jax.grad(total)(taps)
    if clip_norm is not None:
        factor = _clip_weights(params, inputs, deltas, clip_norm)
        deltas = {path: delta * factor[:, None] for path, delta in deltas.items()}
    deltas = {path: weighted(delta, weight) for path, delta in deltas.items()}
    layers = {path: _dense_gradient(params, path, inputs[path], deltas[path]) for path in inputs}
    return {"params": _nest(layers)}


def _require_agreement(module, value, record_loss, template, features, label) -> None:
    """Refuse a module whose ghost gradients differ from its true ones (shared weights).

    Compares them on two random records, once per shape, while the gradient is traced.
    """

    @jax.jit  # without jit every operation would be compiled as its own program, about fifty
    def compare(key):
        row_key, params_key = jax.random.split(key)
        rows = jax.random.normal(row_key, features.shape, features.dtype)
        records = Labelled(rows, jnp.ones(label.shape, label.dtype))
        leaves, treedef = jax.tree.flatten(template(records))
        draws = jax.random.split(params_key, len(leaves))
        params = jax.tree.unflatten(
            treedef,
            [jax.random.normal(k, a.shape, a.dtype) for k, a in zip(draws, leaves, strict=True)],
        )
        ghost = ghost_gradient(module, value, params, records, None)
        gradients = jax.vmap(jax.grad(record_loss), in_axes=(None, 0))(params, records)
        true = jax.tree.map(lambda leaf: jnp.sum(leaf, axis=0), gradients)
        return jax.tree.map(lambda a, b: jnp.allclose(a, b, rtol=1e-3, atol=1e-4), ghost, true)

    with jax.ensure_compile_time_eval():
        agree = compare(jax.random.key(0))
    if not all(bool(leaf) for leaf in jax.tree.leaves(agree)):
        raise InputError(
            "the network's ghost gradients are not its gradients (weights that are shared or "
            "read outside their layer, or records that influence each other); write the loss "
            "with dd.losses.custom, which takes one gradient per record."
        )


def _clip_weights(params, inputs, deltas, clip_norm) -> Array:
    """The factor min(1, C / ‖∇ℓ‖) of each record."""
    squares: Any = 0
    for path, delta in deltas.items():
        scale = jnp.sum(inputs[path] ** 2, axis=-1) + int("bias" in _layer(params, path))
        squares = squares + scale * jnp.sum(delta**2, axis=-1)
    tiny = jnp.finfo(squares.dtype).tiny
    norms = jnp.sqrt(jnp.maximum(squares, tiny))
    return jnp.minimum(1, jnp.asarray(clip_norm, norms.dtype) / norms)


def _dense_gradient(params, path, layer_input, delta) -> dict:
    gradient = {"kernel": layer_input.T @ delta}
    if "bias" in _layer(params, path):
        gradient["bias"] = jnp.sum(delta, axis=0)
    return gradient


def _dense_layers(module, params, features) -> tuple[dict, dict]:
    """Inputs of every dense layer, and zeros in the shape of its output."""
    inputs: dict = {}
    taps: dict = {}

    def record(next_fun, args, kwargs, context):
        output = next_fun(*args, **kwargs)
        if isinstance(context.module, nn.Dense) and context.method_name == "__call__":
            path = context.module.path
            if path in inputs:
                raise InputError(
                    f"layer {'/'.join(path)} is called more than once per record; "
                    f"write the loss with dd.losses.custom, which takes one gradient per record."
                )
            if args[0].ndim != 2:
                raise InputError(
                    f"layer {'/'.join(path)} is applied to inputs of shape {args[0].shape[1:]} per "
                    f"record; write the loss with dd.losses.custom, which takes one gradient per "
                    f"record."
                )
            inputs[path] = args[0]
            taps[path] = jnp.zeros_like(output)
        return output

    with nn.intercept_methods(record):
        module.apply(params, features)
    return inputs, taps


def _apply_with_taps(module, params, features, taps) -> Array:
    """The module's outputs with each tap added to its layer's output."""

    def add(next_fun, args, kwargs, context):
        output = next_fun(*args, **kwargs)
        if isinstance(context.module, nn.Dense) and context.method_name == "__call__":
            return output + taps[context.module.path]
        return output

    with nn.intercept_methods(add):
        return module.apply(params, features)


def _require_dense_parameters(params, inputs) -> None:
    total = len(jax.tree.leaves(params))
    dense = sum(len(jax.tree.leaves(_layer(params, path))) for path in inputs)
    if dense != total:
        raise InputError(
            f"{total - dense} of the network's {total} parameter arrays are not in an nn.Dense "
            f"layer; write the loss with dd.losses.custom, which takes one gradient per record."
        )


def _layer(params, path) -> dict:
    node = params["params"]
    for name in path:
        node = node[name]
    return node


def _nest(layers: dict) -> dict:
    """{('a', 'b'): x} -> {'a': {'b': x}}."""
    tree: dict = {}
    for path, leaf in layers.items():
        node = tree
        for name in path[:-1]:
            node = node.setdefault(name, {})
        node[path[-1]] = leaf
    return tree
