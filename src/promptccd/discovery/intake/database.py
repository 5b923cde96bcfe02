"""A SQLite file that is made again if it is lost or damaged, or if somebody else made it."""

import logging
import os
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from promptccd.database import files_of, open_database, use_wal
from promptccd.disk import make_folder, open_to_change, remove
from promptccd.errors import PromptCCDError, RunError

logger = logging.getLogger(__name__)

_MOST_PARAMETERS = 500  # of a statement


class Database:
    """Tables of a file, for several threads.

    Args:
        path: of the file, in a folder that is created if missing.
        schema: statements that create the tables. A file with any other table, trigger or view is damaged.
        checked: tables whose damage would change results.
        also: paths that are deleted together with a damaged file.
        is_reader: whether nothing is created, and damaged files stay; what they contain is missing.

    Raises:
        RunError: a link is in the way, or another process does not stop writing.
    """

    def __init__(
        self, path: Path, schema: str, checked: Sequence[str], also: Sequence[Path], is_reader: bool
    ):
        self.path, self._schema, self._checked, self._is_reader = path, schema, checked, is_reader
        self._files = [*files_of(path), *also]
        self._lock, self._is_damaged, self._has_warned = threading.RLock(), False, False
        if not is_reader:
            make_folder(path.parent)
        try:
            self._db = self._connected()
        except sqlite3.OperationalError as error:
            raise RunError(f"{path} cannot be opened: {error}. Run the same command again.") from error
        except (sqlite3.DatabaseError, ValueError) as error:
            logger.warning("%s is damaged, and files are read again (%s).", path, error)
            self._delete()
            self._db = self._empty() if is_reader else self._connected()

    def close(self) -> None:
        """Close the file; a damaged one is deleted, so that it is made again."""
        with self._lock:
            self._db.close()
            if self._is_damaged:
                self._delete()

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """A context in which values are read and converted.

        Raises:
            RunError: they are not what was written.
        """
        with self._lock:
            try:
                yield self._db
            except (sqlite3.OperationalError, sqlite3.ProgrammingError) as error:
                raise RunError(f"{self.path} cannot be read: {error}. Run the same command again.") from error
            except (sqlite3.DatabaseError, ValueError, TypeError, AttributeError) as error:
                raise RunError(
                    f"{self.path} is damaged ({error}). Delete it, and files are read again."
                ) from error

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """A transaction; if the disk refuses it, that is only logged."""
        with self._lock:
            try:
                self._db.execute("begin immediate")
                yield self._db
                self._db.execute("commit")
            except (sqlite3.Error, OSError, PromptCCDError) as error:
                level, self._has_warned = (logging.DEBUG if self._has_warned else logging.WARNING), True
                logger.log(
                    level, "%s: results could not be kept, and are computed again: %s", self.path, error
                )
            finally:
                if self._db.in_transaction:
                    self._db.execute("rollback")

    def rows(
        self, columns: str, table: str, hashes: Iterable[str], key: str = "hash", where: str = ""
    ) -> Iterator[tuple[Any, ...]]:
        """Hash and columns of the rows of a table whose key is one of some hashes; `where` limits them further."""
        wanted = [bytes_of(each) for each in hashes]
        for start in range(0, len(wanted), _MOST_PARAMETERS):
            some = wanted[start : start + _MOST_PARAMETERS]
            condition = f"{where}{key} in ({','.join('?' * len(some))})"
            with self.reading() as db:
                found = db.execute(f"select {key}, {columns} from {table} where {condition}", some).fetchall()
            for digest, *values in found:
                yield digest.hex(), *values

    def lossy_rows(self, columns: str, table: str, hashes: Iterable[str]) -> Iterator[tuple[Any, ...]]:
        """The same of a table that may lose rows: damage is logged, and the whole file is made again later."""
        try:
            yield from self.rows(columns, table, hashes)
        except RunError as error:
            logger.warning("%s", error)
            self._is_damaged = True

    def _delete(self) -> None:
        for path in self._files:
            if not self._is_reader:
                remove(path)

    def _connected(self) -> sqlite3.Connection:
        """The database of the file.

        Raises:
            DatabaseError: it is damaged; an `OperationalError` is of the disk, or of a lock.
            ValueError: it has other tables.
        """
        if self._is_reader and not self.path.is_file():
            return self._empty()
        if not self._is_reader:
            os.close(open_to_change(self.path))  # refuses links and pipes
        try:
            return self._checked_database(self.path)
        except sqlite3.OperationalError:
            if not self._is_reader or os.access(self.path.parent, os.W_OK):
                raise
            # SQLite writes next to a file that it only reads.
            return self._checked_database(f"{self.path.absolute().as_uri()}?immutable=1")

    def _checked_database(self, place: Path | str) -> sqlite3.Connection:
        is_new = not self._is_reader and not self.path.stat().st_size
        database = open_database(place, self._schema, create=is_new, synchronous="normal")
        try:
            if is_new:
                use_wal(database, self.path.parent)
            for table in () if self._is_reader else self._checked:
                ((problem,), *_) = database.execute(f"pragma quick_check({table})").fetchall()
                if problem != "ok":
                    raise ValueError(problem)
        except BaseException:
            database.close()
            raise
        return database

    def _empty(self) -> sqlite3.Connection:
        return open_database(":memory:", self._schema, create=True)


def bytes_of(key: str) -> bytes:
    """A hash as it is stored."""
    try:
        return bytes.fromhex(key)
    except ValueError:  # a row of a training run, of which nothing is stored
        return key.encode()
