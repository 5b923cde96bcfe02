"""Rows of categories, images and corrections in one SQLite database, in a file or in memory.

A change is one transaction. Temporary triggers record each row that it changes, before and after, so that every kind of
correction is undone and redone by the same statements. `Store.revision` counts the transactions: other processes that
have the file open see by it that something changed, and read what that was.
"""

import json
import re
import sqlite3
import time
import weakref
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np

from promptccd.database import close_whole, open_database, use_wal
from promptccd.discovery.project.categories import check_name
from promptccd.disk import newer_format, temporary
from promptccd.errors import DiskError, RegistryError
from promptccd.systems import flush, rename

FORMAT = 1
GROUPING = "grouping"  # kind of the entries that no person made
CATEGORIES = "categories.sqlite"  # name of the file, in a project and in a stage
_AT_ONCE = 10_000  # rows that are read
WAIT_S = 10  # for another process, while the file is replaced
HASH = re.compile("[0-9a-f]{64}")  # a SHA-256; keys of this form are stored as 32 bytes
_OF_DISK = ("SQLITE_FULL", "SQLITE_IOERR", "SQLITE_READONLY", "SQLITE_BUSY", "SQLITE_CANTOPEN")

_SCHEMA = f"""
create table state(
  row integer primary key check(row = 0),
  num_known integer not null check(typeof(num_known) = 'integer' and num_known >= 0),
  stage integer not null check(typeof(stage) = 'integer' and stage >= -1),
  next_id integer not null check(typeof(next_id) = 'integer' and next_id >= 0),
  next_number integer not null check(typeof(next_number) = 'integer' and next_number >= 0),
  revision integer not null, forgotten integer not null);
create table vector(id integer primary key, value blob not null check(typeof(value) = 'blob'));
create table category(
  id integer primary key check(id >= 0),
  name text not null check(typeof(name) = 'text' and length(name) between 1 and 100),
  state text not null check(state in ('known', 'discovered', 'aside', 'retired')),
  born integer not null check(typeof(born) = 'integer' and born >= 0),
  size integer not null check(typeof(size) = 'integer' and size >= 0),
  vector integer not null references vector deferrable initially deferred,
  dormant integer not null check(dormant in (0, 1) and (not dormant or (state = 'discovered' and size = 0))),
  merged_into integer references category deferrable initially deferred
    check(merged_into is null or (merged_into < id and state = 'retired')),
  earlier text not null);
create unique index one_name on category(name) where state <> 'retired';
create table image(
  id integer primary key,
  key not null unique check(typeof(key) in ('text', 'blob') and length(key) between 1 and 1000),
  stage integer not null check(typeof(stage) = 'integer' and stage >= 0),
  category integer references category deferrable initially deferred,
  confidence real check(confidence is null or (typeof(confidence) = 'real' and confidence between 0 and 1)),
  pinned integer not null check(pinned in (0, 1) and (not pinned or category is not null)),
  reviewed integer check(reviewed is null or (typeof(reviewed) = 'integer' and reviewed >= 0)),
  was integer check(was is null or typeof(was) = 'integer'),
  unseen integer not null check(typeof(unseen) = 'integer' and unseen >= 0));
create index members on image(category);
create index pins on image(category) where pinned;
create index reviews on image(reviewed) where reviewed is not null;
create table forbidden(
  image integer references image deferrable initially deferred,
  category integer references category deferrable initially deferred, primary key(image, category)) without rowid;
create table link(
  a integer references image deferrable initially deferred, b integer references image deferrable initially deferred,
  primary key(a, b), check(a <> b)) without rowid;
create table log(
  number integer primary key check(number >= 0), kind text not null check(typeof(kind) = 'text'),
  what text not null check(typeof(what) = 'text'), stage integer not null check(typeof(stage) = 'integer'),
  time text, undone integer not null check(undone in (0, 1)), final integer not null check(final in (0, 1)),
  revision integer not null default 0);
create table change(
  id integer primary key, entry integer not null,
  tab text not null check(tab in ('category', 'image', 'forbidden', 'link')), before text, after text);
create index by_entry on change(entry);
pragma user_version = {FORMAT};
"""
CATEGORY = "id, name, state, born, size, vector, dormant, merged_into, earlier"
# Columns of every table that a correction changes; the first columns, as many as given, identify a row.
ROWS = {
    "category": (1, CATEGORY.split(", ")),
    "image": (1, ["id", "key", "stage", "category", "confidence", "pinned", "reviewed", "was", "unseen"]),
    "forbidden": (2, ["image", "category"]),
    "link": (2, ["a", "b"]),
}


@dataclass(frozen=True)
class LogEntry:
    """One thing that happened to a registry.

    Attributes:
        number: counts up and is never used twice.
        kind: kind of the edit, or ``"grouping"``.
        what: values of the edit or of the grouping.
        stage: the newest stage at that time.
        time: when, in ISO 8601, in a project; no hash includes it.
        final: whether it can no longer be undone, because a new stage came since.
    """

    number: int
    kind: str
    what: Mapping[str, Any]
    stage: int
    time: str | None = None
    final: bool = False


def connect(path: Path, *, is_reader: bool = False) -> sqlite3.Connection:
    """Open a file of categories, which anybody may have written: nothing in it is executed.

    Args:
        path: of the file.
        is_reader: copy it into memory, and check every row. The file stays as it is, and may be a link.

    Raises:
        RegistryError: it is missing or damaged, or a newer version wrote it.
        DiskError: it cannot be opened.
    """
    if not path.is_file():
        raise RegistryError(f"There is no file {path.name} in {str(path.parent)!r}.")
    problems = (
        "select 1 from pragma_integrity_check(1) where integrity_check <> 'ok'",
        "select 1 from pragma_foreign_key_check",
        "select 1 from log where not json_valid(what)",
        "select 1 where 1 <> (select count(*) from state)",
    )
    try:
        place = f"{path.resolve().as_uri()}?mode=ro&immutable=1" if is_reader else path
        database = open_database(place, _SCHEMA)
        if is_reader:  # SQLite does not check constraints of a file that it may only read
            with closing(database) as read:
                database = open_database(":memory:", _SCHEMA, create=True)
                read.backup(database)
            if any(database.execute(problem).fetchone() for problem in problems):
                raise ValueError("its rows contradict each other")
        version = database.execute("pragma user_version").fetchone()[0]
    except sqlite3.OperationalError as error:
        raise DiskError(f"{str(path)!r} cannot be opened ({error}).") from error
    except (sqlite3.Error, ValueError) as error:
        raise RegistryError(
            f"{str(path)!r} is refused: {error}. Copy the checkpoint again, or group the images again with "
            "another --out."
        ) from error
    if (newer := newer_format(version, FORMAT)) is not None:
        raise RegistryError(f"{path.name} {newer}")
    return database


class Store:
    """A database of categories.

    Args:
        database: a connection to it; by default an empty database in memory.
        path: of its file; `None` in memory.
    """

    def __init__(self, database: sqlite3.Connection | None = None, path: Path | None = None):
        self._database, self.path = database or open_database(":memory:", _SCHEMA, create=True), path
        self._transactions = self._resets = 0
        weakref.finalize(self, close_whole, self._database)
        if database is None:
            self.run("insert into state values(0, 0, -1, 0, 0, 0, 0)")

    def read_from(self, other: "Store") -> None:
        """Replace all rows by the rows of another store."""
        with other._reporting():
            other._database.backup(self._database)
        self._resets += 1

    def write_to(self, path: Path) -> None:
        """Replace the rows of a file, which other processes may have open, whole or not at all; or make the file.

        Raises:
            DiskError: it cannot be written; the earlier file stays.
        """
        if path.is_symlink() or not path.is_file():
            self.write_snapshot(path)
            return
        end = time.monotonic() + WAIT_S

        def give_up(status: int, remaining: int, total: int) -> None:
            if remaining and time.monotonic() > end:
                raise sqlite3.OperationalError("another process has locked it")

        with self._reporting(path), closing(sqlite3.connect(path, WAIT_S, isolation_level=None)) as target:
            self._database.backup(target, progress=give_up)

    def write_snapshot(self, path: Path) -> None:
        """Write a file atomically; equal rows give byte-identical files.

        Raises:
            DiskError: it cannot be written; the earlier file stays.
        """
        copied, place = Store(), temporary(path)
        copied.read_from(self)
        copied.run("update state set revision = 0, forgotten = 0")
        copied.run("update log set revision = 0")
        copied.run("create temp table again as select entry, tab, before, after from change order by id")
        copied.run("delete from change")  # whose numbers depend on undone edits
        copied.run("insert into change(entry, tab, before, after) select * from again")
        try:
            copied.run("vacuum into ?", str(place))
            flush(place)  # not every version of SQLite does that
            rename(place, path)
            flush(path.parent)
        finally:
            place.unlink(missing_ok=True)

    # Statements

    def run(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        """Execute a statement, and return its rows."""
        with self._reporting():
            return self._database.execute(sql, values).fetchall()

    def run_each(self, sql: str, rows: Iterable[Sequence[Any]]) -> int:
        """Execute a statement for each of some rows of values; returns how many rows of a table it changed."""
        with self._reporting():
            return self._database.executemany(sql, rows).rowcount

    def one(self, sql: str, *values: Any) -> Any:
        """The first value of a query; `None` without a row."""
        rows = self.run(sql, *values)
        return rows[0][0] if rows else None

    def each(self, query: str) -> Iterator[tuple[Any, ...]]:
        """Rows of a query that may have millions."""
        with self._reporting():
            cursor = self._database.execute(query)
            while rows := cursor.fetchmany(_AT_ONCE):
                yield from rows

    def numbers(self, columns: Sequence[str], source: str, *values: Any) -> list[np.ndarray]:
        """Whole numbers of a query, none of them null, an array for each column.

        SQLite joins them to a text for each column, since a million rows take Python six times as long.
        """
        texts = ", ".join(f"group_concat({each}, ' ')" for each in columns)
        (found,) = self.run(f"select {texts} from {source}", *values)
        return [np.fromstring(text or "", np.int64, sep=" ") for text in found]

    @contextmanager
    def _reporting(self, path: Path | None = None) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, UnicodeEncodeError, OverflowError) as error:
            place = str(path or self.path or "the categories")
            if getattr(error, "sqlite_errorname", "").startswith(_OF_DISK):
                raise DiskError(f"{place!r} cannot be written ({error}); nothing changed.") from error
            raise RegistryError(f"{place!r} would contradict itself, or is damaged ({error}).") from error

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """A transaction is atomic; a nested transaction belongs to the outer one."""
        is_inner = self._database.in_transaction
        if self._transactions == 1 and self.path is not None and not is_inner:
            use_wal(self._database, self.path.parent)  # a command that corrects once has no use for it
        self._transactions += not is_inner
        self.run("savepoint inner" if is_inner else "begin immediate")
        try:
            yield
            self.run("release inner" if is_inner else "commit")
        except BaseException:
            self._resets += 1
            if self._database.in_transaction:
                self.run("rollback to inner" if is_inner else "rollback")
                if is_inner:
                    self.run("release inner")
            raise

    @property
    def token(self) -> tuple[int, ...]:
        """A value that differs after every change of rows, by any process."""
        return self._database.total_changes, self._resets, self.one("pragma data_version")

    # The log

    @property
    def next_number(self) -> int:
        """The number that the next log entry gets."""
        return int(self.one("select next_number from state"))

    @property
    def log(self) -> tuple[LogEntry, ...]:
        """Entries, oldest first, without undone ones."""
        return self.entries("where not undone order by number")

    @property
    def corrections(self) -> tuple[LogEntry, ...]:
        """Entries that people made."""
        return tuple(entry for entry in self.log if entry.kind != GROUPING)

    @property
    def redo_stack(self) -> tuple[LogEntry, ...]:
        """Undone entries that can be redone, the next one last."""
        return self.entries("where undone order by number desc")

    @property
    def newest(self) -> LogEntry | None:
        """The entry that `undo` would undo, or `None`."""
        found = self.entries("where not undone order by number desc limit 1")
        return found[0] if found and not found[0].final else None

    def entries(self, condition: str) -> tuple[LogEntry, ...]:
        """Entries of the log with a condition and an order."""
        rows = self.run(f"select number, kind, what, stage, time, final from log {condition}")
        return tuple(
            LogEntry(number, kind, json.loads(what), stage, time, bool(final))
            for number, kind, what, stage, time, final in rows
        )

    def now(self) -> str | None:
        """The time of new entries, in ISO 8601; `None` where equal edits have to give equal files."""
        return None

    def record(
        self,
        kind: str,
        what: Mapping[str, Any],
        act: Callable[[], Mapping[str, Any] | None],
        *,
        final: bool = False,
    ) -> LogEntry | None:
        """Make a change that the log names, whole or not at all; a grouping that changes nothing is no entry.

        Args:
            kind: of the entry.
            what: its values.
            act: changes rows, and returns further values, if any.
            final: whether the change and all earlier changes are final.
        """
        with self.transaction():
            if not self.run("select 1 from sqlite_temp_master"):  # nor after a first transaction that failed
                for statement in _temporary_schema():
                    self.run(statement)
            ((number, stage),) = self.run("select next_number, stage from state")
            self.run("delete from recording")
            if not final:
                self.run("insert into recording values(?)", number)
            text, time = plain_json({**what, **(act() or {})}).decode(), self.now()
            self.run("delete from recording")
            is_kept = final or kind != GROUPING or self.run("select 1 from change where entry = ?", number)
            if not is_kept:
                return None
            self.run(
                "update state set next_number = next_number + 1, revision = revision + 1, forgotten = iif(?, "
                "revision + 1, max(forgotten, (select coalesce(max(revision), 0) from log where undone)))",
                final,
            )
            gone = "true" if final else "entry in (select number from log where undone)"
            self.run(f"delete from change where {gone}")
            self.run("delete from log where undone")
            values = number, kind, text, stage, time, final
            self.run("insert into log select ?, ?, ?, ?, ?, 0, ?, revision from state", *values)
            if final:
                self.run("update log set final = 1")
        return LogEntry(number, kind, json.loads(text), stage, time, final)

    def undo(self, number: int | None = None) -> LogEntry:
        """Take the newest entry back, and return it. The state is the one before it, hash for hash.

        Args:
            number: of the entry that it has to be; any by default.

        Raises:
            RegistryError: no entry of this stage is left, or something else was corrected meanwhile.
        """
        with self.transaction():
            return self._replay(self.newest, number, undo=True)

    def redo(self, number: int | None = None) -> LogEntry:
        """Redo the entry that was undone last, with the same ids, and return it; arguments and errors as in `undo`."""
        with self.transaction():
            undone = self.entries("where undone order by number limit 1")
            return self._replay(undone[0] if undone else None, number, undo=False)

    def _replay(self, entry: LogEntry | None, number: int | None, *, undo: bool) -> LogEntry:
        if number is not None and (entry is None or entry.number != number):
            raise RegistryError(
                "Another correction was made meanwhile, so nothing was changed. Load the page again, and try again."
            )
        if entry is None:
            why = "undo: nothing was edited yet." if undo else "redo: nothing was undone since the last edit."
            if undo and self.log:
                why = (
                    f"undo: stage {self.one('select stage from state')} was grouped since, so earlier edits are final. "
                    "Rename, merge, split or move what should be different now."
                )
            raise RegistryError(f"There is nothing to {why}")
        sides, order = ("after, before", "desc") if undo else ("before, after", "asc")
        query = f"select tab, {sides} from change where entry = ? order by id {order}"
        try:
            found = self.run(query, entry.number)
            values = json.loads(f"[{','.join(each or 'null' for _, *texts in found for each in texts)}]")
            changes = [*zip((table for table, *_ in found), values[::2], values[1::2], strict=True)]
            touched, steps = _resized(changes), [_restoring(*each) for each in changes]
            for statement, alike in groupby(steps, key=itemgetter(0)):
                rows = [row for _, row in alike]
                if self.run_each(statement, rows) != len(rows):
                    raise ValueError("a row is not as the log says")
        except (ValueError, TypeError, LookupError) as error:
            raise RegistryError(
                "The log is damaged: the file was altered. Use an earlier copy of it."
            ) from error
        self.require_whole({each for each in touched if isinstance(each, int)}, counted=False)
        self.run("update state set revision = revision + 1")
        now = "update log set undone = ?, revision = (select revision from state) where number = ?"
        self.run(now, undo, entry.number)
        return entry

    def require_whole(self, ids: Collection[int] | None = None, *, counted: bool = True) -> None:
        """Refuse categories that contradict themselves, beyond the checks of the tables.

        Args:
            ids: of the categories; by default all.
            counted: whether their images are counted.

        Raises:
            RegistryError: the message names the first such category.
        """
        for (name,) in self.run("select name from category"):
            if not name.isprintable():
                check_name(name)
        those = "true" if ids is None else f"id in ({', '.join(map(str, ids))})"
        sizes = "size <> (select count(*) from image where image.category = each.id)" if counted else "false"
        found = self.one(
            f"select id from category as each, state where {those} and (id >= next_id "
            "or each.state not in ('known', 'discovered', 'aside', 'retired') "
            "or (each.state <> 'retired' and (each.state = 'known') <> (id < num_known)) "
            "or (each.state = 'retired' and size > 0) or merged_into >= id or vector not in (select id from vector) "
            "or exists(select 1 from json_each(earlier) where value not in (select id from vector)) "
            f"or {sizes}) limit 1"
        )
        if found is not None:
            raise RegistryError(
                f"Category {found} contradicts other rows: the file was altered. Copy it again."
            )

    @property
    def revision(self) -> int:
        """Counts transactions that changed something."""
        return int(self.one("select revision from state"))

    def changes_after(self, revision: int) -> set[int] | None:
        """Ids of images that look different since a revision; `None` if all has to be read again.

        That is so where the log lacks the changes, and where images left the store or returned to it.
        """
        if not self.one("select forgotten from state") <= revision <= self.revision:
            return None
        before, after = "json_extract(before, '$", "json_extract(after, '$"
        entries = "from change where entry in (select number from log where revision > ?)"
        images = self.run(f"select {before}[0]'), {after}[0]') {entries} and tab = 'image'", revision)
        if any(None in each for each in images):
            return None
        members = self.run(
            f"select id from image where category in (select {after}[0]') {entries} and tab = 'category' "
            f"and ({before}[2]') = 'aside') <> ({after}[2]') = 'aside'))",
            revision,
        )
        return {each for each, *_ in images + members}


def plain_json(value: Any) -> bytes:
    """Plain values, and those of NumPy, as JSON on one line; equal values give byte-identical text."""
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), allow_nan=False, default=lambda each: each.tolist()
    ).encode()


def stored_key(key: str) -> str | bytes:
    """The key of an image as it is stored."""
    return bytes.fromhex(key) if len(key) == 64 and HASH.fullmatch(key) else key


def text_key(key: str | bytes) -> str:
    """The key of an image from its stored form."""
    return key.hex() if isinstance(key, bytes) else key


def _resized(changes: Iterable[tuple[str, *tuple[Any, ...]]]) -> Collection[Any]:
    """Ids of the categories in changes of rows; a `ValueError` if their sizes do not change as their images do."""
    grown = Counter[Any]()
    for table, here, target in changes:
        for row, sign in ((here, -1), (target, 1)):
            if row is not None and table == "image":
                grown[row[3]] += sign
            elif row is not None and table == "category":
                grown[row[0]] -= sign * row[4]
    del grown[None]
    if any(grown.values()):
        raise ValueError("the sizes of categories are not those of their images")
    return grown


def _restoring(table: str, here: Any, target: Any) -> tuple[str, list[Any]]:
    """The statement that makes a row of a table what it was, and its values; `None` is no row."""
    count, columns = ROWS[table]
    if here is None:
        pairs = zip(columns, target, strict=True)
        row = [stored_key(each) if name == "key" else each for name, each in pairs]
        return f"insert into {table} values({', '.join('?' * len(row))})", row
    if target is None:
        keys = " and ".join(f"{each} = ?" for each in columns[:count])
        return f"delete from {table} where {keys}", here[:count]
    changed = [each for each in zip(columns, here, target, strict=True) if each[1] != each[2]]
    names, old, new = zip(*changed, strict=True)
    return _updating(table, names), [*new, here[0], *old]


@cache
def _updating(table: str, names: tuple[str, ...]) -> str:
    sets, those = ", ".join(f"{each} = ?" for each in names), " and ".join(f"{each} is ?" for each in names)
    return f"update {table} set {sets} where {ROWS[table][1][0]} = ? and {those}"


@cache
def _temporary_schema() -> list[str]:
    """Statements that create tables of the work in progress, and triggers that record changes of rows."""
    statements = [
        "create temp table recording(entry integer)",
        "create temp table chosen(image integer primary key)",
    ]
    for table, (_, columns) in ROWS.items():
        old, new = (
            f"json_array({', '.join(f'{side}.{each}' for each in columns)})".replace(
                f"{side}.key", f"iif(typeof({side}.key) = 'blob', lower(hex({side}.key)), {side}.key)"
            )
            for side in ("old", "new")
        )
        differs = " or ".join(f"old.{each} is not new.{each}" for each in columns)
        statements += [
            f"create temp trigger note_{table}_{verb} after {verb} on main.{table} {condition} begin "
            f"insert into change(entry, tab, before, after) select entry, '{table}', {before}, {after} "
            "from recording; end"
            for verb, condition, before, after in (
                ("insert", "", "null", new),
                ("update", f"when {differs}", old, new),
                ("delete", "", old, "null"),
            )
        ]
    return statements
