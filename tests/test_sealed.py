"""Contents that carry their digest: whole ones come back, and one flipped bit anywhere is found."""

import numpy as np
import pytest
from problems import soak

from dd_jax import sealed

ARRAYS = {"a": np.arange(3.0), "words": np.array(["ε", "no"])}
PACKED = {
    "x.npz": sealed.pack_arrays({"kind": "made", "n": 1}, ARRAYS, compressed=True),
    "x.json": sealed.pack_json({"n": [1, 1e-300, None], "ε": {"b": "", "a": True}}),
    "x.sha256": sealed.pack_list({"a b.svg": "0" * 64, "c.csv": "1" * 64}),
}


def test_what_is_packed_comes_back(tmp_path):
    path = tmp_path / "x.npz"
    path.write_bytes(PACKED["x.npz"])
    about, arrays = sealed.read_arrays(path)
    assert about == {"kind": "made", "n": 1}
    assert list(arrays) == list(ARRAYS)
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(arrays[name], array)
        np.testing.assert_array_equal(np.load(path)[name], array)  # as any reader sees it
    values = {"n": [1, 1e-300, None], "ε": {"b": "", "a": True}}
    assert sealed.unpack_json(PACKED["x.json"]) == values
    assert sealed.pack_json(dict(reversed(values.items()))) == PACKED["x.json"]
    listed = sealed.unpack_list(PACKED["x.sha256"])
    assert listed == {"a b.svg": "0" * 64, "c.csv": "1" * 64}


@pytest.mark.parametrize("name", PACKED)
def test_every_flipped_bit_and_every_cut_is_found(name, tmp_path):
    """Also by somebody who does not know whose file it is."""
    whole, path = PACKED[name], tmp_path / name
    sealed.verify(path, whole)
    for place in range(0, len(whole), soak(7, 1)):
        for bit in range(8):
            flipped = bytearray(whole)
            flipped[place] ^= 1 << bit
            assert sealed.owned(path, bytes(flipped))
            with pytest.raises(ValueError, match="digest"):
                sealed.verify(path, bytes(flipped))
    for length in range(80, len(whole)):
        assert sealed.owned(path, whole[:length])
        with pytest.raises(ValueError, match="digest"):
            sealed.verify(path, whole[:length])


def test_files_of_others_are_left_alone(tmp_path):
    np.savez(tmp_path / "x.npz", **ARRAYS)
    assert not sealed.owned(tmp_path / "x.npz", (tmp_path / "x.npz").read_bytes())
    assert not sealed.owned(tmp_path / "x.json", b'{"sha": 1}')
    with pytest.raises(ValueError, match="Object"):
        sealed.pack_arrays({"kind": "made"}, {"a": np.array([None])})
    for odd in (b"null", b"[]", b"{}", b"[" * 100_000, b'{"written by": 1, "sha256": 2}', b"\xff"):
        with pytest.raises(ValueError, match="digest"):
            sealed.unpack_json(odd)
