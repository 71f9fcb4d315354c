"""Looks for the numbers of private rows in the bytes of files, however they are packed or written.

A row is looked for by its runs: neighbouring numbers that together have enough decimal digits that
chance does not write them. They are looked for as float16, float32 and float64, at every offset,
and as text. Numbers of a row that stand far from each other (arrays by columns) are looked for one
by one: float64 where one number has enough digits, float32 where the row's numbers are in one block
of a file more often than chance puts them there.
"""

import hashlib
import io
import re
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dd_jax import files
from dd_jax.errors import InputError

FORMS = ("text", "float16", "float32", "float64")
# Decimal digits of a run. Half precision has few values, which are often the same in other rows.
_DIGITS = {"float16": 24, "float32": 10, "float64": 10}
_TYPES = {"float16": "<f2", "float32": "<f4", "float64": "<f8"}
_BLOCK = 1 << 24
_BITS = 20  # of the table that most words of a file are refused by
_MOST_NUMBERS = 200_000
_NUMBER = re.compile(rb"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")
_CELLS = re.compile(r"[,;|\t]")
_DEEPEST = 4


def read_rows(path: Path) -> np.ndarray:
    """The rows of a CSV or NPZ file, rows × numbers; shorter rows end in zeros.

    Of a CSV file every line with a number counts, and of a line the cells that are numbers. Of an
    NPZ file every array of numbers counts: with two axes its rows, with one axis as one row.

    Raises:
        InputError: the file cannot be read, or has no numbers.
    """
    if path.exists() and not path.is_file():
        raise InputError(f"{path} is no plain file; save the rows to one first.")
    try:
        if path.suffix == ".npz":
            arrays = [
                array for array in files.read_arrays(path).values() if array.dtype.kind in "fiu"
            ]
            found = [
                row for array in arrays if array.ndim in (1, 2) for row in np.atleast_2d(array)
            ]
        else:
            lines = path.read_text(encoding="utf-8-sig").splitlines()
            cells = [[_cell(cell) for cell in _CELLS.split(line)] for line in lines]
            found = [[cell for cell in row if cell is not None] for row in cells]
            found = [row for row in found if row]
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}); name another.") from None
    except ValueError as error:
        raise InputError(
            f"{path} is neither CSV in UTF-8 nor NPZ ({error}); write it anew."
        ) from None
    if not found:
        raise InputError(f"{path} has no row of numbers; give the rows to look for.")
    rows = np.zeros((len(found), max(map(len, found))))
    for place, row in enumerate(found):
        rows[place, : len(row)] = row
    return np.where(np.isfinite(rows), rows, 0.0)


def _cell(text: str) -> float | None:
    try:
        return float(text.strip(' "'))
    except ValueError:
        return None


class Unreadable(ValueError):
    """Content that cannot be unpacked here."""


class Hit(NamedTuple):
    """A row that was found, and how it was written."""

    row: int
    form: str


class _Run(NamedTuple):
    row: int
    form: str
    lead: int  # bytes of the run before the word that is looked up
    content: bytes


class Rows:
    """Rows in the form in which they are looked for."""

    def __init__(self, rows: np.ndarray):
        """Prepare the search.

        Args:
            rows: numbers, rows × columns.
        """
        if rows.size > _MOST_NUMBERS:
            raise InputError(
                f"the record file has {rows.size:,} numbers, but at most {_MOST_NUMBERS:,} can be "
                f"looked for at once; give fewer rows."
            )
        self.rows = np.asarray(rows, np.float64)
        runs = [run for form in _TYPES for run in _runs(self.rows, form)]
        self._of_bytes = _Index(runs)
        texts = [run for run in runs if run.form == "float64"]
        texts += [run for run in runs if run.form == "float32"]
        self._of_text = _Index(texts)
        self._singles = _singles(self.rows)

    def hits(self, content: bytes) -> set[Hit]:
        """The rows that a file holds, in its bytes or in what they unpack to."""
        found = set()
        for part in unpacked(content):
            for start in range(0, max(len(part), 1), _BLOCK):
                # A run across the border is whole in one of two blocks.
                block = part[start : start + _BLOCK + 4096]
                found |= self._of_bytes.hits(block)
                found |= self._scattered(block, "float32")
            numbers = numbers_in(part)
            if numbers is not None:
                with np.errstate(over="ignore"):
                    single = numbers.astype("<f4").tobytes()
                wide = self._of_text.hits(numbers.astype("<f8").tobytes())
                hits = wide | self._of_text.hits(single) | self._scattered(single, "text")
                found |= {hit._replace(form="text") for hit in hits}
        return found

    def _scattered(self, block: bytes, form: str) -> set[Hit]:
        """Rows of which at least half of the numbers, and 4 of them, are in a block; all of 3."""
        words, owners, counts = self._singles
        if not len(words):
            return set()
        present = np.zeros(len(words), bool)
        for offset in range(4):
            view = _words(block, offset, "<u4")
            view = view[_table_of(words)[_hashed(view)]]
            places = np.minimum(np.searchsorted(words, view), len(words) - 1)
            present[places[words[places] == view]] = True
        found = np.bincount(owners[present], minlength=len(self.rows))
        # Chance puts a number into 16 MiB with 2^-8, so that of k numbers it puts j there with at
        # most 2^(k - 8 j).
        rows = np.flatnonzero(
            (found >= np.minimum(counts, 4)) & (2 * found >= counts) & (found > 2)
        )
        return {Hit(int(row), form) for row in rows}


def scan_control(rows: np.ndarray) -> dict[str, int]:
    """How many rows are found in planted copies, by form.

    Copies are planted as text, as arrays by rows and by columns, plain and packed, in noise. The
    same copies of other rows, which differ by a thousandth, must not be found.

    Raises:
        InputError: some rows have too few digits to be told from chance.
    """
    prepared = Rows(rows)
    found = {form: len(rows) for form in FORMS}
    for form, planted in _planted(prepared.rows):
        hits = {hit.row for hit in prepared.hits(planted) if hit.form == form}
        found[form] = min(found[form], len(hits))
    others = prepared.rows * (1 + 1e-3)
    for _, planted in _planted(others):
        if prepared.hits(planted):
            raise InputError("the rows are found where they are not; give rows with more digits.")
    if min(found[form] for form in ("text", "float32", "float64")) < len(rows):
        raise InputError(
            f"some rows of the record file cannot be told from chance: together, neighbouring "
            f"numbers need {_DIGITS['float64']} digits; give rows with more numbers or digits."
        )
    return found


def _planted(rows: np.ndarray) -> Iterator[tuple[str, bytes]]:
    """(form, content) of files that hold the rows."""
    noise = hashlib.shake_128(b"other bytes").digest(1001)  # the numbers lie at odd places
    lines = "\n".join(",".join(map(repr, row)) for row in rows.tolist())
    yield "text", f"id,values\n{lines}\n".encode()
    for form, kind in _TYPES.items():
        with np.errstate(over="ignore"):
            values = rows.astype(kind)
        yield form, noise + values.tobytes() + noise
        yield form, zlib.compress(noise + values.tobytes())
        packed = io.BytesIO()
        np.savez_compressed(packed, a=values)
        yield form, packed.getvalue()


# --- what is looked for ---------------------------------------------------------------------------


def _runs(rows: np.ndarray, form: str) -> Iterator[_Run]:
    """The shortest runs of at least 8 bytes with enough digits, from every number on."""
    kind = np.dtype(_TYPES[form])
    with np.errstate(over="ignore"):
        stored = rows.astype(kind)
    digits = _digits(stored)
    for number, (row, counts) in enumerate(zip(stored, digits, strict=True)):
        total = np.concatenate([[0], np.cumsum(counts)])
        packed = row.tobytes()
        for first in range(len(row)):
            last = int(np.searchsorted(total, total[first] + _DIGITS[form]))
            last = max(last, first + 8 // kind.itemsize)
            if last > len(row) or not counts[first]:
                continue
            # Words of zeros are in every file: the one that is looked up has the most digits.
            wide = 8 // kind.itemsize
            sums = [total[k + wide] - total[k] for k in range(first, last - wide + 1)]
            lead = int(np.argmax(sums)) * kind.itemsize
            content = packed[first * kind.itemsize : last * kind.itemsize]
            yield _Run(number, form, lead, content)


def _digits(values: np.ndarray) -> np.ndarray:
    """Significant decimal digits of each number; 0 for zero."""
    found, places = np.unique(values, return_inverse=True)
    counts = [
        len(np.format_float_scientific(value, trim="-").split("e")[0].strip("-0.").replace(".", ""))
        if np.isfinite(value)
        else 0
        for value in found
    ]
    return np.array(counts, int)[places].reshape(values.shape)


def _singles(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(sorted words, their rows, words of every row): single precision, at least 6 digits."""
    with np.errstate(over="ignore"):
        stored = rows.astype("<f4")
    rich = _digits(stored) >= 6
    owners = np.broadcast_to(np.arange(len(rows))[:, None], rows.shape)[rich]
    words = stored.view("<u4")[rich]
    # A number of several rows would stand for each of them.
    words, first, times = np.unique(words, return_index=True, return_counts=True)
    words, owners = words[times == 1], owners[first][times == 1]
    return words, owners, np.bincount(owners, minlength=len(rows))


class _Index:
    """Runs by the 8-byte word that is looked up."""

    def __init__(self, runs: list[_Run]):
        keys = [int.from_bytes(run.content[run.lead : run.lead + 8], "little") for run in runs]
        order = np.argsort(np.array(keys, np.uint64), kind="stable")
        self._words = np.array(keys, np.uint64)[order]
        self._runs = [runs[place] for place in order]
        self._table = _table_of(self._words)

    def hits(self, block: bytes) -> set[Hit]:
        """The runs that stand in a block, at any offset."""
        found = set()
        for offset in range(8):
            view = _words(block, offset, "<u8")
            places = np.flatnonzero(self._table[_hashed(view)])
            first = np.searchsorted(self._words, view[places], "left")
            last = np.searchsorted(self._words, view[places], "right")
            for place, start, stop in zip(places, first, last, strict=True):
                for run in self._runs[start:stop]:
                    begin = offset + 8 * int(place) - run.lead
                    if begin >= 0 and block.startswith(run.content, begin):
                        found.add(Hit(run.row, run.form))
        return found


def _words(block: bytes, offset: int, kind: str) -> np.ndarray:
    count = max(len(block) - offset, 0) // np.dtype(kind).itemsize
    return np.frombuffer(block, kind, count, offset if count else 0)


def _hashed(words: np.ndarray) -> np.ndarray:
    return (words.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(64 - _BITS)


def _table_of(words: np.ndarray) -> np.ndarray:
    table = np.zeros(1 << _BITS, bool)
    table[_hashed(words)] = True
    return table


# --- what files hold ------------------------------------------------------------------------------


def unpacked(content: bytes, depth: int = 0) -> Iterator[bytes]:
    """The content, and what it unpacks to: ZIP and NPZ, gzip, zlib, Zstandard.

    Raises:
        Unreadable: content of a form that this installation cannot unpack.
    """
    yield content
    if depth == _DEEPEST:
        return
    for inner in _inside(content):
        yield from unpacked(inner, depth + 1)


def _inside(content: bytes) -> Iterator[bytes]:
    if content[:4] == b"PK\x03\x04":
        try:
            with zipfile.ZipFile(io.BytesIO(content)) as archive:
                for name in archive.namelist():
                    yield archive.read(name)
        except (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, EOFError):
            raise Unreadable("a damaged ZIP file") from None
    elif content[:4] == b"\x28\xb5\x2f\xfd":
        yield _unpack_zstandard(content)
    elif content[:2] == b"\x1f\x8b" or _begins_zlib(content):
        # What follows the packed bytes, such as a digest, is part of the plain content.
        unpacker = zlib.decompressobj(wbits=47)
        try:
            yield unpacker.decompress(content)
        except zlib.error:
            if content[:2] == b"\x1f\x8b":
                raise Unreadable("a damaged gzip file") from None


def _begins_zlib(content: bytes) -> bool:
    return len(content) > 2 and content[0] == 0x78 and int.from_bytes(content[:2], "big") % 31 == 0


def _unpack_zstandard(content: bytes) -> bytes:
    try:
        import zstandard  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise Unreadable("packed by Zstandard; install the package zstandard") from None
    try:
        return zstandard.ZstdDecompressor().decompressobj().decompress(content)
    except zstandard.ZstdError:
        raise Unreadable("a damaged Zstandard file") from None


def numbers_in(content: bytes) -> np.ndarray | None:
    """All numbers of a text, in their order; None where the content is no text."""
    if b"\0" in content:
        return None
    try:
        content.decode()
    except UnicodeDecodeError:
        return None
    return np.array([float(found) for found in _NUMBER.findall(content)], np.float64)
