"""Photographs through a frozen network: its pieces against XLA's, and the file for `dd-jax run`."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from dd_jax import cli
from dd_jax.data import fetch
from dd_jax.data.own_file import load_file
from experiments import embeddings
from experiments.__main__ import PROGRAM


def normals(seed, *shape):
    return jax.random.normal(jax.random.key(seed), shape)


@pytest.mark.parametrize(("side", "size", "stride"), [(8, 3, 1), (8, 3, 2), (7, 5, 2), (6, 5, 1)])
def test_shifted_sums_are_the_convolution_of_every_channel(side, size, stride):
    x, kernel = normals(0, 2, side, side, 3), normals(1, 3, 1, size, size)
    expected = lax.conv_general_dilated(
        x,
        kernel,
        (stride, stride),
        "SAME",
        dimension_numbers=("NHWC", "OIHW", "NHWC"),
        feature_group_count=3,
    )
    found = embeddings._channelwise(x, kernel, stride)
    np.testing.assert_allclose(found, expected, atol=1e-5)


def block(name, inside, outside, before=None):
    """Weights of one block that does nothing to a positive image but filter it."""
    found = {
        f"{name}_depthwise_conv.weight": normals(2, inside, 1, 3, 3),
        f"{name}_project_conv.weight": normals(3, outside, inside, 1, 1),
    }
    widths = {"_bn1": inside, "_bn2": outside}
    if before is not None:
        found[f"{name}_expand_conv.weight"] = normals(4, inside, before, 1, 1)
        widths["_bn0"] = inside
    for norm, width in widths.items():
        found |= normalisation(f"{name}{norm}", width)
    return found


def normalisation(name, width):
    ones, parts = jnp.ones(width), ("weight", "bias", "running_mean", "running_var")
    return {
        f"{name}.{part}": ones * scale for part, scale in zip(parts, (2, 0.5, 1, 4), strict=True)
    }


def test_normalisation_is_the_one_of_training():
    weights = normalisation("n", 3)
    found = embeddings._normed(weights, "n", jnp.array([1.0, 3.0, -1.0]))
    np.testing.assert_allclose(found, [0.5, 2.5, -1.5], rtol=1e-3)


def test_a_block_adds_its_input_where_the_shapes_agree():
    x, weights = normals(0, 1, 4, 4, 3), block("b.", 6, 3, before=3)
    nothing = weights | {"b._bn2.weight": jnp.zeros(3), "b._bn2.bias": jnp.zeros(3)}
    np.testing.assert_array_equal(embeddings._block(nothing, "b.", x, 1), x)
    assert not embeddings._block(nothing, "b.", x, 2).any()


@pytest.fixture
def small_network(monkeypatch):
    """Two blocks and ten images in place of what is downloaded."""
    weights = {
        "_conv_stem.weight": normals(5, 4, 3, 3, 3),
        "_conv_head.weight": normals(6, 7, 5, 1, 1),
    }
    weights |= block("_blocks.0.", 4, 5) | block("_blocks.1.", 10, 5, before=5)
    weights |= normalisation("_bn0", 4) | normalisation("_bn1", 7)
    images = np.random.default_rng(0).integers(0, 256, (10, 3072)).astype(np.uint8)
    classes = np.array([3, 8] * 5, np.uint8)
    photographs = {
        "train_images": images[:6],
        "train_labels": classes[:6],
        "test_images": images[6:],
        "test_labels": classes[6:],
    }
    stored = {"efficientnet-lite0": weights, "cifar-10-cat-ship": photographs}
    monkeypatch.setattr(fetch, "arrays", stored.__getitem__)
    monkeypatch.setattr(embeddings, "STRIDES", (1, 2))
    monkeypatch.setattr(embeddings, "_AT_ONCE", 4)
    return weights, images


def test_the_command_writes_a_file_that_run_reads(small_network, tmp_path, capsys):
    asked = ["embed", "--results", str(tmp_path / "new"), "--side", "32", "--json"]
    assert cli.main(asked, PROGRAM) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["rows"], answer["features"]) == (10, 7)
    with np.load(answer["file"]) as stored:
        assert stored["label"].tolist() == ["cat", "ship"] * 5
        features = stored["features"]
    weights, images = small_network
    alone = embeddings.embed(weights, images[9:].reshape(1, 32, 32, 3), side=32)
    np.testing.assert_allclose(features[9:], alone, rtol=1e-4)  # whatever else is in its batch
    assert np.ptp(features, axis=0).max() > 0
    assert load_file(tmp_path / "new/cifar-cat-vs-ship.npz", test_fraction=0).classes == (
        "cat",
        "ship",
    )


def test_without_the_network_the_command_says_how_to_get_it(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("DD_JAX_DATA", str(tmp_path))
    assert cli.main(["embed", "--results", str(tmp_path)], PROGRAM) == 2
    assert "dd-jax data fetch efficientnet-lite0" in capsys.readouterr().err


def test_sizes_that_make_no_sense_are_refused(tmp_path, capsys):
    assert cli.main(["embed", "--results", str(tmp_path), "--side", "8"], PROGRAM) == 2
    assert "side" in capsys.readouterr().err
