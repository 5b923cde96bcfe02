"""SQLite files: the one way to open them. A database may come from a stranger, so nothing in it is executed."""

import sqlite3
from contextlib import closing, suppress
from functools import cache
from pathlib import Path

from promptccd import systems

_WAIT_S = 30.0  # for another process that is writing
_LOG_PAGES = 10_000  # a correction of 500 among a million images changes more than the default of 1,000
_TABLES = "select type, name, tbl_name, sql from sqlite_master"
_CACHE_KIB = 64 * 1024  # with the default of 2 MiB, a lookup in a large file takes half as long again


def open_database(
    place: Path | str, schema: str, *, create: bool = False, synchronous: str = "full"
) -> sqlite3.Connection:
    """Open a database that has exactly the tables of a schema.

    Args:
        place: the file; as text, ``":memory:"`` or a ``file:`` address with options of SQLite.
        schema: statements that create the tables.
        create: whether an empty or missing file gets the tables.
        synchronous: when SQLite waits for the disk.

    Raises:
        sqlite3.DatabaseError: it is damaged; an `OperationalError` is of the disk, or of a lock.
        ValueError: it is a link, or has other tables, a trigger or a view.
    """
    if isinstance(place, Path) and place.is_symlink():
        raise ValueError("it is a link, and nothing is written through links")
    name = (
        place if isinstance(place, str) else f"{place.absolute().as_uri()}?mode={'rwc' if create else 'rw'}"
    )
    database = sqlite3.connect(name, _WAIT_S, isolation_level=None, check_same_thread=False, uri=True)
    try:
        # Without `temp_store = memory`: in a nested transaction, each statement would walk all pages changed so far.
        settings = {"trusted_schema": "off", "foreign_keys": "on", "cache_size": -_CACHE_KIB}
        for setting, value in {**settings, "synchronous": synchronous}.items():
            database.execute(f"pragma {setting} = {value}")
        tables = frozenset(database.execute(_TABLES))
        if create and not tables:
            database.executescript(f"begin immediate;{schema};commit")
        elif tables != _tables_of_schema(schema):
            raise ValueError("its tables are of another version")
    except BaseException:
        database.close()
        raise
    return database


def use_wal(database: sqlite3.Connection, folder: Path) -> None:
    """Let readers and a writer work side by side with a log next to the file, where the disk has what that needs."""
    mode = "truncate" if systems.is_network_drive(folder) else "wal"
    try:
        database.execute(f"pragma journal_mode = {mode}").fetchone()
        database.execute(f"pragma wal_autocheckpoint = {_LOG_PAGES}")
        database.execute("select 1 from sqlite_master limit 1").fetchone()
    except sqlite3.OperationalError:  # the disk has no shared memory, or another process is at work
        with suppress(sqlite3.OperationalError):
            database.execute("pragma journal_mode = truncate").fetchone()


def close_whole(database: sqlite3.Connection) -> None:
    """Close a database so that its one file contains all of it, unless another process has it open."""
    with suppress(sqlite3.Error):
        if database.execute("pragma journal_mode").fetchone() == ("wal",):
            database.execute("pragma busy_timeout = 0")
            database.execute("pragma journal_mode = delete").fetchone()
    database.close()


def files_of(path: Path) -> list[Path]:
    """A database and what SQLite keeps next to it."""
    return [path.with_name(path.name + end) for end in ("", "-journal", "-wal", "-shm")]


@cache
def _tables_of_schema(schema: str) -> frozenset[tuple[str, ...]]:
    with closing(sqlite3.connect(":memory:")) as ours:
        ours.executescript(schema)
        return frozenset(ours.execute(_TABLES))
