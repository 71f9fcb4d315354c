"""The store of a curator: one SQLite file in which a request is there whole or not at all.

Every row ends in a digest of its own contents, and the row `state` says how many rows the other
tables have, so that opening finds a changed, a lost and an invented row. Deleted contents are
overwritten with zeros (`secure_delete`) and leave the journal with it, which is removed after every
transaction. A digest is no signature: whoever writes the file can write other digests.
"""

import contextlib
import hashlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dd_jax import files
from dd_jax.errors import InputError

FORMAT = 2
# "ddjx", which tells such a store from other SQLite files.
_APPLICATION = 0x64646A78
_NUMBER = _APPLICATION.to_bytes(4, "big")  # bytes 68 to 71 of the file
_DIGEST = 16

# What an owner can be.
PRESENT, DELETED, HELD_OUT = "present", "deleted", "held out"

# The columns of each table; the first is its key, and each table has a digest besides.
TABLES = {
    "settings": ("name TEXT", "value TEXT"),
    "state": (
        "one INTEGER",
        "model BLOB",
        "batch INTEGER",
        "served INTEGER",
        "release BLOB",
        "owners INTEGER",
        "requests INTEGER",
        "receipts INTEGER",
        "head TEXT",
    ),
    "records": ("place INTEGER", "owner INTEGER", "features BLOB", "label BLOB"),
    "owners": (
        "number INTEGER",
        "hash BLOB UNIQUE",
        "status TEXT",
        "since INTEGER",
        "waiting INTEGER",
    ),
    "requests": ("number INTEGER", "name TEXT UNIQUE", "kind TEXT", "asked TEXT", "owners BLOB"),
    "runs": (
        "number INTEGER",
        "kind TEXT",
        "time TEXT",
        "rows INTEGER",
        "published INTEGER",
        "model TEXT",
        "versions TEXT",
    ),
    "receipts": (
        "number INTEGER",
        "request INTEGER",
        "owner INTEGER",
        "run INTEGER",
        "places TEXT",
        "text TEXT",
    ),
}


# What is looked up besides keys, so that a request costs the same after a thousand others.
_LOOKED_UP = {"records": "owner", "owners": "waiting", "receipts": "request, owner"}


def _schema() -> list[str]:
    """The statements that make an empty store."""
    made = []
    for table, (key, *others) in TABLES.items():
        columns = ", ".join((f"{key} PRIMARY KEY", *others, "digest BLOB NOT NULL"))
        made.append(f"CREATE TABLE {table} ({columns})")
    for table, columns in _LOOKED_UP.items():
        for column in columns.split(", "):
            made.append(f"CREATE INDEX {table}_{column} ON {table} ({column})")
    return made


def _name(column: str) -> str:
    return column.split()[0]


def _put(table: str) -> str:
    names = [*map(_name, TABLES[table]), "digest"]
    # An update in place: the old bytes are overwritten, where replacing a row could leave a copy.
    changes = ", ".join(f"{name} = excluded.{name}" for name in names[1:])
    marks = ", ".join("?" * len(names))
    return f"INSERT INTO {table} VALUES ({marks}) ON CONFLICT ({names[0]}) DO UPDATE SET {changes}"


_PUT = {table: _put(table) for table in TABLES}


def _digest(table: str, values: tuple) -> bytes:
    return hashlib.blake2b(repr((table, *values)).encode(), digest_size=_DIGEST).digest()


class Store:
    """An open store. Rows are tuples in the order of `TABLES`, without their digests."""

    def __init__(self, path: Path, connection: sqlite3.Connection):
        self.path, self.connection = path, connection

    # --- rows -------------------------------------------------------------------------------------

    def put(self, table: str, *rows: tuple) -> None:
        """Write rows; one with the same key is overwritten."""
        values = ((*row, _digest(table, row)) for row in rows)
        self.connection.executemany(_PUT[table], values)

    def rows(self, table: str, where: str = "", *values: Any) -> list[tuple]:
        """The rows in the order of their keys, each compared with its digest.

        Raises:
            InputError: a row is damaged.
        """
        key = _name(TABLES[table][0])
        condition = f"WHERE {where}" if where else ""
        found = self.connection.execute(
            f"SELECT * FROM {table} {condition} ORDER BY {key}", values
        ).fetchall()
        for *row, digest in found:
            if digest != _digest(table, tuple(row)):
                raise self.damaged(f"row {row[0]!r} of its {table} does not have its digest")
        return [tuple(row[:-1]) for row in found]

    def row(self, table: str, where: str, *values: Any) -> tuple | None:
        """The only row with this condition, or None."""
        found = self.rows(table, where, *values)
        return found[0] if found else None

    def settings(self) -> dict[str, str]:
        """What was fixed when the store was made."""
        return dict(self.rows("settings"))

    # --- transactions -----------------------------------------------------------------------------

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """Everything inside is written, or nothing; others wait until it is done.

        Raises:
            InputError: the store is busy, full, read-only or damaged; nothing was changed.
        """
        with self._errors():
            self.connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                self.connection.execute("COMMIT")
            except BaseException:
                if self.connection.in_transaction:
                    self.connection.execute("ROLLBACK")
                raise

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """Everything inside is of one moment."""
        with self._errors():
            self.connection.execute("BEGIN")
            try:
                yield
            finally:
                if self.connection.in_transaction:
                    self.connection.execute("ROLLBACK")

    @property
    def version(self) -> int:
        """A number that changes when another process has written."""
        with self._errors():
            return self.connection.execute("PRAGMA data_version").fetchone()[0]

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except UnicodeDecodeError:  # a message of SQLite that quotes damaged text
            raise self.damaged("its names are no text") from None
        except sqlite3.DatabaseError as error:
            said = str(error)
            if "locked" in said:
                raise InputError(
                    f"{self.path} is in use by another process; try again, nothing was changed."
                ) from None
            if getattr(error, "sqlite_errorname", "") == "SQLITE_READONLY_DBMOVED":
                raise InputError(
                    f"{self.path} was moved or replaced while it was open; open it again, nothing "
                    f"was changed."
                ) from None
            if "readonly" in said:
                raise InputError(
                    f"{self.path} cannot be written to; make it and its folder writable, nothing "
                    f"was changed."
                ) from None
            if "full" in said or "disk I/O" in said or "unable to open" in said:
                raise InputError(
                    f"{self.path} cannot be written ({said}); make room, nothing was changed."
                ) from None
            if isinstance(error, sqlite3.IntegrityError | sqlite3.ProgrammingError):
                raise  # an error of this program
            # Of text that is none SQLite shows the bytes, over many lines.
            raise self.damaged(said.partition(" with text ")[0]) from None

    def damaged(self, why: str) -> InputError:
        """The error that refuses the store."""
        return InputError(
            f"{self.path} is damaged: {why}; put back a copy that nothing was asked of since, or "
            f"make a new store."
        )

    # --- whole ------------------------------------------------------------------------------------

    def check(self) -> None:
        """Compare everything with its digests and counts.

        Raises:
            InputError: the store is damaged.
        """
        with self._errors():
            (found,) = self.connection.execute("PRAGMA integrity_check(1)").fetchone()
            if found != "ok":
                raise self.damaged(" ".join(found.split()))
            made = self.connection.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL")
            if sorted(sql for (sql,) in made) != sorted(_schema()):
                raise self.damaged("its tables are others")
            rows = {table: self.rows(table) for table in TABLES}
            state, n = rows["state"], self.settings().get("n")
            if len(state) != 1 or n is None:
                raise self.damaged("its state is missing")
            _, _, _, served, _, owners, requests, receipts, _ = state[0]
            numbers = {
                "records": range(int(n)),
                "owners": range(1, owners + 1),
                "requests": range(1, requests + 1),
                "runs": range(served + 1),
                "receipts": range(1, receipts + 1),
            }
            for table, expected in numbers.items():
                if [row[0] for row in rows[table]] != list(expected):
                    raise self.damaged(f"rows of its {table} are missing")
            # Of a page that was never written, the old rows have their digests.
            present = {row[0] for row in rows["owners"] if row[2] == PRESENT}
            for place, owner, *_ in rows["records"]:
                if owner is not None and owner not in present:
                    raise self.damaged(f"row {place} is of somebody who is not there")

    def close(self) -> None:
        """Close the file."""
        self.connection.close()


def create(path: Path, rows: dict[str, list[tuple]]) -> None:
    """Write a store with these rows of its tables; the file appears whole or not at all.

    Raises:
        InputError: something of this name exists, or it cannot be written.
    """
    exists = InputError(f"{path} exists; name a new store, or open this one.")
    if path.exists() or path.is_symlink():
        raise exists
    journal = path.with_name(f"{path.name}-journal")
    if journal.exists():  # SQLite would write its pages into the new store
        raise InputError(f"{journal} is left of an earlier store; remove it, or name a new store.")
    connection = sqlite3.connect(":memory:", isolation_level=None)
    with contextlib.closing(connection):
        store = Store(path, connection)
        connection.execute(f"PRAGMA application_id = {_APPLICATION}")
        connection.execute(f"PRAGMA user_version = {FORMAT}")
        connection.execute("PRAGMA secure_delete = ON")
        connection.execute("BEGIN")
        for statement in _schema():
            connection.execute(statement)
        for table, contents in rows.items():
            store.put(table, *contents)
        connection.execute("COMMIT")
        content = connection.serialize()
    try:
        with files.whole_file(path, private=True, replace=False) as file:
            file.write(content)
    except FileExistsError:  # made since then by somebody else
        raise exists from None
    except OSError as error:
        raise InputError(f"{path} cannot be written ({error.strerror}); name another.") from None


def is_store(content: bytes) -> bool:
    """Whether bytes are those of a store, as its number or the first of its tables says."""
    return content[68:72] == _NUMBER or _schema()[0].encode() in content[: 1 << 16]


def verify(content: bytes) -> None:
    """Check the bytes of a store that nobody is writing, without opening its file.

    Raises:
        InputError: they are damaged.
    """
    with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        store = Store(Path("it"), connection)
        with store._errors():
            connection.deserialize(content)
        if content[68:72] != _NUMBER:
            raise store.damaged("its beginning has changed")
        store.check()


def connect(path: Path, wait: float) -> Store:
    """An open store, after its kind and version were checked; `Store.check` looks at the contents.

    Args:
        path: the file.
        wait: seconds to wait for other processes that write.

    Raises:
        InputError: no store, or one of another version.
    """
    if not path.is_file():
        raise InputError(f"there is no store {path}; make it first, or check the name.")
    files.remove_leftovers(path.parent)  # what a killed `create` was writing holds records
    address = f"{path.resolve().as_uri()}?mode=rw"
    connection = sqlite3.connect(address, uri=True, timeout=wait, isolation_level=None)
    store = Store(path, connection)
    try:
        with store._errors():
            for setting in (
                "secure_delete = ON",
                "journal_mode = DELETE",
                # The removal of the journal, which is the commit, must survive a power cut too.
                "synchronous = EXTRA",
                "temp_store = MEMORY",
                "cell_size_check = ON",
            ):
                connection.execute(f"PRAGMA {setting}")
            (kind,) = connection.execute("PRAGMA application_id").fetchone()
            (version,) = connection.execute("PRAGMA user_version").fetchone()
        if kind != _APPLICATION:
            raise InputError(f"{path} is not the store of a curator; name one, or make it.")
        if version != FORMAT:
            raise InputError(
                f"{path} has format {version}, but this version reads {FORMAT}; use the version "
                f"that wrote it."
            )
    except BaseException:
        connection.close()
        raise
    return store
