"""Fixed maps from images to features: no number in them comes from any record."""

import numpy as np
from numpy.random import PCG64, Generator

SIDE, CHANNELS = 32, 3
_PATCH, _STRIDE, _FILTERS = 6, 2, 64
_THRESHOLD = 0.5
# E max(g - 1/2, 0) for a standard normal g, which is what a filter sees of a unit patch.
_MEAN_RESPONSE = 0.19780
_SEED = 0
_IMAGES_AT_ONCE = 500


def random_patches(images: np.ndarray) -> np.ndarray:
    """Responses of random filters to 6×6 patches, averaged over the four quarters of an image.

    Patches lose their mean and are scaled to norm 1 or less. A Gaussian filter w answers
    max(±⟨w, p⟩ - 1/2, 0) less its mean over filters, in the quarter that the patch is in: 4 × 64 ×
    2 = 512 numbers. The filters come from a fixed seed.

    Args:
        images: (n, 3072) shares of full brightness, pixel by pixel, red, green and blue.
    """
    # A table of constants, the same in every run, written as the generator that makes it.
    generator = Generator(PCG64(_SEED))
    filters = generator.standard_normal((CHANNELS * _PATCH**2, _FILTERS)).astype(np.float32)
    parts = [
        _responses(images[first : first + _IMAGES_AT_ONCE], filters)
        for first in range(0, len(images), _IMAGES_AT_ONCE)
    ]
    return np.concatenate(parts)


def _responses(images: np.ndarray, filters: np.ndarray) -> np.ndarray:
    pixels = images.reshape(-1, SIDE, SIDE, CHANNELS).astype(np.float32)
    windows = np.lib.stride_tricks.sliding_window_view(pixels, (_PATCH, _PATCH), axis=(1, 2))
    windows = windows[:, ::_STRIDE, ::_STRIDE]
    count, places = windows.shape[:2]
    patches = windows.reshape(count, places, places, -1)
    patches = patches - patches.mean(axis=-1, keepdims=True)
    # The constant keeps flat patches, which are noise, from being blown up.
    patches /= np.sqrt(np.sum(patches**2, axis=-1, keepdims=True) + 0.1)
    answers = patches @ filters
    signed = np.concatenate([answers, -answers], axis=-1)
    active = np.maximum(signed - _THRESHOLD, 0) - _MEAN_RESPONSE
    half = places // 2
    quarters = active.reshape(count, 2, half, 2, half, -1)
    return quarters.mean(axis=(2, 4)).reshape(count, -1)
