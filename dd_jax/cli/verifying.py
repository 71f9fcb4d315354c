"""Which files of a folder this program wrote, and which of them are damaged.

Every kind of file carries a digest: chunks of a sweep in their names; manifests, saved arrays and
curators at their end; files that were written together in a list inside the hidden folder that
holds them; the files of a report in the list beside its page; data sets in this package.
"""

import io
import json
import os
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from dd_jax import files, sealed
from dd_jax.cli import compile_cache
from dd_jax.curator import store as stores
from dd_jax.data import fetch
from dd_jax.errors import InputError
from dd_jax.sweeps import store

DAMAGED = "its bytes do not have their digest"
LOST = "it is missing"
CLOSED = "it cannot be read"
UNFINISHED = "nothing says whether it is whole: its writing did not end, or its list is missing"
ELSEWHERE = "it is a link to a folder elsewhere; check that folder too"
# Written last by a report, with a list beside it.
PAGE = "report.html"
LIST = f"{PAGE}{sealed.LIST}"


class Seen(NamedTuple):
    """A file that this program wrote.

    Attributes:
        file: its path from the folder. kind: what it is, in the plural.
        damage: what is wrong with it, in a few words; None if it is whole.
    """

    file: str
    kind: str
    damage: str | None


class Verified(NamedTuple):
    """What a folder holds.

    Attributes:
        seen: the files of this program. others: files of which nothing can be said.
        unfinished: what killed writers left; the next writer removes it.
    """

    seen: list[Seen]
    others: list[str]
    unfinished: list[str]

    @property
    def damaged(self) -> list[Seen]:
        """The files that are damaged."""
        return [seen for seen in self.seen if seen.damage is not None]


def verify(folder: Path) -> Verified:
    """Verify every file of this program below a folder; nothing is written.

    Raises:
        InputError: the folder does not exist or cannot be read.
    """
    if not folder.is_dir():
        raise InputError(f"there is no folder {folder}; name one that this program wrote to.")
    if not os.access(folder, os.R_OK | os.X_OK):
        raise InputError(f"the folder {folder} cannot be read; run as its owner.")
    seen: dict[str, Seen] = {}
    paths, unfinished, others = [], [], []
    for place, below, names in os.walk(folder):
        here = Path(place)
        for name in below:
            reason = not_entered(here / name, folder)
            if reason == CLOSED:
                seen[str(here / name)] = Seen(name, "folders", CLOSED)
            elif reason == ELSEWHERE:
                others.append(os.path.relpath(here / name, folder))
        hidden = [name for name in below if files.is_group_folder(name)]
        unfinished += [str(here / name) for name in below + names if files.is_unfinished(name)]
        for name in names:  # a store in the middle of a request, and the journal that says so
            if f"{name}-journal" in names:
                unfinished += [str(here / name), str(here / f"{name}-journal")]
        groups = files.groups_in(here)
        below[:] = sorted(
            name
            for name in below
            if name not in hidden and name[1:] not in groups and not files.is_unfinished(name)
        )
        found = [*_groups(here, groups), *_stream(here), *_lists(here, names)]
        seen |= {str(here / name): Seen(name, kind, damage) for name, kind, damage in found}
        links = {f".{group}" for group in groups}
        paths += [here / name for name in sorted(names) if name not in links]
    for path in paths:
        if str(path) in seen or str(path) in unfinished:
            continue
        alone = _alone(path)
        if alone is None:
            others.append(str(path.relative_to(folder)))
        else:
            seen[str(path)] = Seen(path.name, *alone)
    found = [one._replace(file=os.path.relpath(path, folder)) for path, one in seen.items()]
    unfinished = [os.path.relpath(path, folder) for path in unfinished]
    return Verified(sorted(found), sorted(others), unfinished)


def not_entered(path: Path, folder: Path) -> str | None:
    """Why a folder below another one is not walked through; None if it is, here or there."""
    if path.is_symlink():
        return None if leads_inside(path, folder) else ELSEWHERE
    return None if os.access(path, os.R_OK | os.X_OK) else CLOSED


def leads_inside(path: Path, folder: Path) -> bool:
    """Whether a link leads to what lies in the folder."""
    # Path.resolve raises an error where links lead in a circle.
    return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder))


def _groups(here: Path, groups: list[str]) -> Iterator[tuple[str, str, str | None]]:
    """Files that were written together."""
    for group in groups:
        for name, damage in files.examine_together(here, group).items():
            yield name, "files written together", damage


def _stream(here: Path) -> Iterator[tuple[str, str, str | None]]:
    """A folder of chunks and their manifest."""
    if store.is_stream(here.absolute()):
        for name, damage in store.examine(here.absolute()).items():
            yield name, "manifests" if name == store.MANIFEST else "chunks", damage


def _lists(here: Path, names: list[str]) -> Iterator[tuple[str, str, str | None]]:
    """Files that a list beside them names."""
    if PAGE in names and LIST not in names:
        yield PAGE, "pages and figures", UNFINISHED
    for name in names:
        content = _content(here / name) if name.endswith(sealed.LIST) else None
        if content is None or not (name == LIST or sealed.owned(here / name, content)):
            continue
        try:
            listed = sealed.unpack_list(content)
        except ValueError as error:
            yield name, "lists", str(error)
            continue
        yield name, "lists", None
        for file, digest in listed.items():
            found = _content(here / file)
            damage = LOST if found is None else DAMAGED
            yield file, "pages and figures", None if digest == _digest(found) else damage


def _alone(path: Path) -> tuple[str, str | None] | None:
    """(kind, damage) of a file that stands for itself; None if it is not of this program."""
    if path.is_symlink() and not path.exists():
        # `files.place_together` makes its links before what they lead to.
        leads_to = Path(os.readlink(path))
        return ("files written together", UNFINISHED) if _is_of_group(leads_to) else None
    content = _content(path)
    if content is None:
        return ("files", CLOSED) if path.is_file() else None
    try:
        if path.parent.absolute() == _data_sets() and path.stem in fetch.PINNED:
            kind = "data sets"
            fetch.read_pinned(path.stem, path)
            return kind, None
        if path.suffix == compile_cache.SUFFIX:
            whole = compile_cache.verified(path.stem, content) is not None
            return "compiled programs", None if whole else DAMAGED
        if stores.is_store(content):
            kind = "stores of curators"
            stores.verify(content)
            return kind, None
        kind = "arrays, models and curators" if path.suffix == ".npz" else "answers"
        if not sealed.owned(path, content):
            return None if _is_readable(path, content) else (kind, "it cannot be read")
        sealed.verify(path, content)
    except ValueError as error:
        return kind, str(error)
    return kind, None


def _is_readable(path: Path, content: bytes) -> bool:
    """Whether a file has the form that its name promises, whoever wrote it."""
    if path.suffix == ".npz":
        return zipfile.is_zipfile(io.BytesIO(content))
    if path.suffix == ".json":
        try:
            json.loads(content)
        except (ValueError, RecursionError):
            return False
    return True


def _data_sets() -> Path | None:
    """Where data sets are kept, if there is such a place."""
    try:
        return fetch.cache_folder().absolute()
    except InputError:
        return None


def _is_of_group(leads_to: Path) -> bool:
    return len(leads_to.parts) == 2 and leads_to.parts[0].startswith(".")


def _content(path: Path) -> bytes | None:
    """The bytes of a plain file; None where there is none that can be read."""
    try:
        return files.read(path) if path.is_file() else None
    except OSError:
        return None


def _digest(content: bytes | None) -> str | None:
    return None if content is None else sealed.digest(content)
