"""Files that a folder has seen: contents, verdicts, small pictures and features, so that nothing is computed twice.

``files.sqlite`` contains all of it but features, which are in ``features.f32``. Both are made again if they are lost.
"""

import json
import logging
import os
import sqlite3
import threading
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, astuple, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from promptccd import systems
from promptccd.data.names import display_name
from promptccd.data.sources import Stamp
from promptccd.discovery.intake.locations import SeenPicture
from promptccd.disk import append_to, make_folder, open_to_change, refuse_links, remove
from promptccd.errors import PromptCCDError, RunError
from promptccd.images.capture_dates import KEPT
from promptccd.images.decode import Status, Verdict
from promptccd.images.depth import Depth
from promptccd.images.identity import MINIATURE_SIDE, SeenImage, is_edited_file_of

logger = logging.getLogger(__name__)

DecodedFile = tuple[Verdict, SeenImage | None]  # the result of decoding a file
SEEN, FEATURES = "files.sqlite", "features.f32"
SEEN_FILES = (SEEN, f"{SEEN}-journal", f"{SEEN}-wal", f"{SEEN}-shm")  # the last three are SQLite's
# Hashes and keys are 32 bytes. `origin` numbers the settings of decoders and the spaces of features. A feature is
# `width` floats of features.f32, from number `start` on; `sum` is a checksum.
SCHEMA = """
create table origin(id integer primary key, name text unique not null);
create table content(hash blob primary key, key blob, status text, note text, width integer, height integer,
  taken text, depth text, settings integer, had_file integer) without rowid;
create table file(path blob primary key, size integer, mtime integer, ctime integer, links integer, hash blob)
  without rowid;
create table small(hash blob primary key, thumbnail blob, miniature blob, sum integer);
create table cell(hash blob primary key, picture blob);
create table feature(space integer, key blob, start integer, width integer, sum integer, primary key(space, key))
  without rowid;
create table follower(key blob primary key, first blob) without rowid;
create table near_duplicate(source blob primary key, first_of blob);
"""
_CHECKED = ("content", "file", "feature")  # what results depend on and no checksum covers
_ADD_CONTENT = """
insert into content values(?, ?, ?, ?, ?, ?, ?, ?, ?, 0) on conflict(hash) do update set
  (key, status, note, width, height, taken, depth, settings) = (excluded.key, excluded.status, excluded.note,
  excluded.width, excluded.height, excluded.taken, excluded.depth, excluded.settings)
"""
_IMPORT = """
create temp table fresh as select hash from part.content there join part.origin o on o.id = there.settings
  where not exists (select 1 from main.content here join main.origin p on p.id = here.settings
  where here.hash = there.hash and p.name = o.name);
insert or ignore into main.origin(name) select name from part.origin;
insert or replace into main.content select there.hash, coalesce(here.key, there.key), there.status, there.note,
  there.width, there.height, there.taken, there.depth, p.id, coalesce(here.had_file, there.had_file)
  from part.content there join part.origin o on o.id = there.settings join main.origin p on p.name = o.name
  left join main.content here on here.hash = there.hash where there.hash in (select hash from fresh);
insert or replace into main.small select * from part.small where hash in (select hash from fresh);
insert or ignore into main.file select * from part.file;
update main.content set had_file = 1 where hash in (select hash from part.file);
drop table fresh
"""
_MOST_WAITING = 512  # decoded files in memory until they are written
_MOST_PARAMETERS = 500  # of a statement
_WAIT_S = 30.0  # for another process that is writing
_MOST = 2**63 - 1  # SQLite's largest integer: a broken clock gives larger ones
_NO_MINIATURE = np.empty((0, 0), np.uint8)
_DAMAGE = (sqlite3.DatabaseError, ValueError, TypeError, AttributeError)


class SeenFiles:
    """Results of earlier reading and embedding, in a folder. Several threads may use it.

    Args:
        folder: of the files; created if missing.
        made_with: settings of the decoder. A content that was decoded with other settings counts as new, but keeps
            its key.
        is_reader: whether nothing is created, and damaged files stay.

    Raises:
        RunError: a link is in the way, or another process does not stop writing.
    """

    def __init__(
        self, folder: Path, made_with: Mapping[str, int] = MappingProxyType({}), is_reader: bool = False
    ):
        self.folder, self._made_with, self._is_reader = folder, made_with, is_reader
        self._lock, self._end, self._is_damaged = threading.RLock(), -1, False
        self._decoded, self._files = dict[str, DecodedFile](), dict[str, tuple[Stamp, str]]()
        refuse_links(folder if is_reader else make_folder(folder), [*SEEN_FILES, FEATURES])
        try:
            self._db = _connected(folder / SEEN, is_reader)
        except sqlite3.OperationalError as error:
            raise RunError(
                f"{folder / SEEN} cannot be opened: {error}. Run the same command again."
            ) from error
        except (sqlite3.DatabaseError, ValueError) as error:
            logger.warning("%s is damaged, and files are read again (%s).", folder / SEEN, error)
            self._delete()
            self._db = _empty() if is_reader else _connected(folder / SEEN, is_reader)
        settings = json.dumps(dict(made_with), sort_keys=True)
        self._settings = self._number_of(settings)
        if self._settings < 0 and not is_reader:
            with self._writing():
                self._settings = self._number_of(settings, add=True)

    def close(self) -> None:
        """Write what was added and close the files; damaged ones are deleted, so that they are made again."""
        with self._lock:
            self.flush()
            self._db.close()
            if self._is_damaged:
                self._delete()

    def _delete(self) -> None:
        for name in (*SEEN_FILES, FEATURES):
            if not self._is_reader:
                remove(self.folder / name)

    # Files and contents

    def content_of(self, stamp: Stamp) -> str:
        """The content hash of a file that was read and has not changed since; otherwise empty."""
        before, digest, is_ours = self._file_at(stamp.path)
        now = _storable(stamp)
        if before is None or not is_ours or not now.is_unchanged(before):
            return ""
        if now != before:  # another name was linked to the file
            self._files[stamp.path] = now, digest
        return digest

    def hash_at(self, path: str) -> str:
        """The content hash of the file that was read at a path, whatever it contains now; empty if there was none."""
        return self._file_at(path)[1]

    def decoded(self, digest: str) -> DecodedFile | None:
        """The result of decoding a content, without small pictures and view; `None` if the content is new."""
        if (waiting := self._decoded.get(digest)) is not None:
            return waiting
        row = self._content(digest)
        if row is None or row[-1] != self._settings:
            return None
        with self._reading():
            return _decoded_of(row)

    def known_key(self, digest: str) -> str:
        """The key of the picture of a content, whatever the settings; empty if it is new or shows none."""
        if (waiting := self._decoded.get(digest)) is not None:
            return waiting[1].key if waiting[1] is not None else ""
        row = self._content(digest)
        with self._reading():
            return row[0].hex() if row is not None and row[0] is not None else ""

    def key_of(self, digest: str, path: str, image: SeenImage) -> str:
        """The key of the picture of a content: the earlier one, if the content or an edited file had one.

        Args:
            digest: hash of the content.
            path: of its file, which may have shown the same picture before; empty if there is no file.
            image: what decoding the content left.
        """
        if known := self.known_key(digest):
            return known
        content = self.hash_at(path)
        before = self.known_key(content)
        if before in ("", image.key):
            return image.key
        row, miniatures = self._content(content), self.miniatures([content])
        if row is None or content not in miniatures:
            return image.key
        was = (row[3], row[4]), miniatures[content]
        return before if is_edited_file_of(was, (image.size, image.miniature)) else image.key

    def add_decoded(self, digest: str, decoded: DecodedFile) -> None:
        """Store the result of decoding a content, unless there is one."""
        if self.decoded(digest) is None:
            verdict, image = decoded
            self._decoded[digest] = verdict, image and replace(image, view=None)
            if len(self._decoded) >= _MOST_WAITING:
                self.flush()

    def add_file(self, stamp: Stamp, digest: str) -> None:
        """Store the content hash of a file, after the result of decoding that content."""
        self._files[stamp.path] = _storable(stamp), digest

    def replace_decoded(self, decoded: Mapping[str, DecodedFile]) -> None:
        """Store contents that are decoded in another way now, and delete what was made of them before."""
        self.flush()
        with self._writing() as db:
            db.executemany("delete from cell where hash = ?", [(_hash(each),) for each in decoded])
            keys = [(_hash(image.key),) for _, image in decoded.values() if image is not None]
            db.executemany("delete from feature where key = ?", keys)
            self._write(decoded, {})

    @property
    def depths(self) -> list[Depth]:
        """The different depths of files with more than 8 bits a value."""
        waiting = [image.depth for _, image in self._decoded.values() if image is not None and image.depth]
        with self._reading() as db:
            stored = db.execute("select distinct depth from content where depth is not null").fetchall()
            return [*(Depth(**json.loads(each)) for (each,) in stored), *waiting]

    def forget(self, path: str) -> None:
        """Read a file again the next time, because its content is not the expected one."""
        before, digest, _ = self._file_at(path)
        if before is not None:
            self._files[path] = replace(before, size=-1), digest
            self.flush()

    def relocate(self, old: str, new: str) -> None:
        """Follow files whose folder is at another place now."""
        with self._writing() as db:
            paths = [path for (path,) in db.execute("select path from file")]
            moved = [
                (path.replace(_path(old), _path(new), 1), path)
                for path in paths
                if path.startswith(_path(old))
            ]
            db.executemany("update file set path = ? where path = ?", moved)

    def flush(self) -> None:
        """Write what was added; if the disk refuses it, only log it."""
        with self._lock:
            if self._decoded or self._files:
                with self._writing():
                    self._write(self._decoded, self._files)
                self._decoded, self._files = {}, {}

    def _write(self, decoded: Mapping[str, DecodedFile], files: Mapping[str, tuple[Stamp, str]]) -> None:
        self._db.executemany(_ADD_CONTENT, [_row_of(*each, self._settings) for each in decoded.items()])
        images = {digest: image for digest, (_, image) in decoded.items() if image is not None}
        self._db.executemany(
            "insert or replace into small values(?, ?, ?, ?)", map(_small_row, images.items())
        )
        rows = [(_path(path), *astuple(stamp)[1:], _hash(each)) for path, (stamp, each) in files.items()]
        self._db.executemany("insert or replace into file values(?, ?, ?, ?, ?, ?)", rows)
        self._db.executemany("update content set had_file = 1 where hash = ?", [row[-1:] for row in rows])

    def import_from(self, folder: Path) -> None:
        """Add the files, pictures and features of another folder that this one lacks.

        A content that has another key there gets the key that it has here.
        """
        self.flush()
        with closing(SeenFiles(folder, self._made_with)) as other:
            spaces = other._db.execute(
                "select distinct name from feature join origin on id = space"
            ).fetchall()
            self._db.execute("attach ? as part", (str(folder / SEEN),))
            try:
                with self._writing() as db:
                    for statement in _IMPORT.split(";"):
                        db.execute(statement)
                pairs = self._db.execute(
                    "select there.key, here.key from part.content there join main.content here "
                    "using (hash) where there.key is not null"
                ).fetchall()
            finally:
                self._db.execute("detach part")
            key_of = {there.hex(): here.hex() for there, here in pairs}
            for (space,) in spaces:
                rows, there = other.features(space, [*key_of])
                there &= ~self.features(space, [*key_of.values()])[1]
                self.store_features(
                    space,
                    [key for key, is_new in zip(key_of.values(), there, strict=True) if is_new],
                    rows[torch.from_numpy(there)],
                )

    # Pictures

    def thumbnails(self, digests: Iterable[str]) -> dict[str, bytes]:
        """Thumbnails by content; lost ones are missing."""
        return {digest: thumbnail for digest, thumbnail, _ in self._small(digests)}

    def miniatures(self, digests: Iterable[str]) -> dict[str, np.ndarray]:
        """Miniatures by content, see `SeenImage`; lost ones are missing."""
        shape = MINIATURE_SIDE, MINIATURE_SIDE
        return {
            digest: np.frombuffer(each, np.uint8).reshape(shape) for digest, _, each in self._small(digests)
        }

    def _small(self, digests: Iterable[str]) -> Iterator[tuple[str, bytes, bytes]]:
        stored = list[str]()
        for digest in digests:
            _, image = self._decoded.get(digest, (None, None))
            if image is None:
                stored.append(digest)
            else:
                yield digest, image.thumbnail, image.miniature.tobytes()
        for digest, thumbnail, miniature, known in self._pictures(
            "thumbnail, miniature, sum", "small", stored
        ):
            if zlib.crc32(thumbnail + miniature) == known and len(miniature) == MINIATURE_SIDE**2:
                yield digest, thumbnail, miniature

    def add_small(self, made: Mapping[str, SeenImage]) -> None:
        """Store thumbnails and miniatures of contents that were made again."""
        with self._writing() as db:
            db.executemany("insert or replace into small values(?, ?, ?, ?)", map(_small_row, made.items()))

    def cells(self, digests: Iterable[str]) -> dict[str, bytes]:
        """Pictures of the page's grid by content."""
        return {digest: picture for digest, picture in self._pictures("picture", "cell", digests)}

    def add_cells(self, made: Mapping[str, bytes]) -> None:
        """Store pictures of the page's grid."""
        with self._writing() as db:
            rows = [(_hash(digest), picture) for digest, picture in made.items()]
            db.executemany("insert or replace into cell values(?, ?)", rows)

    def _pictures(self, columns: str, table: str, digests: Iterable[str]) -> Iterator[tuple[Any, ...]]:
        try:
            yield from self._rows(columns, table, "hash", digests)
        except RunError as error:  # they are made from the files
            logger.warning("%s", error)
            self._is_damaged = True

    def pictures(self) -> dict[str, SeenPicture]:
        """Every picture by its key."""
        files, contents, dates = dict[bytes, list[str]](), dict[bytes, list[bytes]](), dict[str, str]()
        had_file = set[bytes]()
        with self._reading() as db:
            for path, digest in db.execute("select path, hash from file"):
                files.setdefault(digest, []).append(_text(path))
            for digest, key, taken, had in db.execute("select hash, key, taken, had_file from content"):
                if key is not None:
                    contents.setdefault(key, []).append(digest)
                if had:
                    had_file.add(digest)
                if taken:
                    dates[digest.hex()] = _date(taken)
            return {
                key.hex(): SeenPicture(
                    tuple(sorted((path, each.hex()) for each in digests for path in files.get(each, ()))),
                    tuple(each.hex() for each in digests),
                    not had_file.issuperset(digests),
                    dates,
                )
                for key, digests in contents.items()
            }

    # Features

    def has_feature(self, space: str, key: str) -> bool:
        """Whether a feature of this picture is stored."""
        with self._reading() as db:
            given = self._number_of(space), _hash(key)
            return (
                db.execute("select 1 from feature where space = ? and key = ?", given).fetchone() is not None
            )

    def has_space(self, space: str) -> bool:
        """Whether any feature of a space was stored."""
        return self._number_of(space) >= 0

    def features(self, space: str, keys: Sequence[str]) -> tuple[Tensor, np.ndarray]:
        """Features of pictures ``(N, D)`` float32, zeros where none is stored; and where one is ``(N,)`` bool.

        Args:
            space: name of what they were computed with, see `feature_space`.
            keys: of the pictures.
        """
        row_of = {key: row for row, key in enumerate(keys)}
        found = [
            *self._rows("start, width, sum", "feature", f"space = {self._number_of(space)} and key", row_of)
        ]
        width = found[0][2] if found else 0
        matrix, sums = np.zeros((len(keys), width), np.float32), np.full(len(keys), -1)
        try:
            stored = np.asarray(np.memmap(self.folder / FEATURES, "<f4", "r"))
        except (OSError, ValueError):  # it is missing or empty
            stored = np.empty(0, np.float32)
        for key, start, each, known in found:
            if each == width and 0 <= start <= len(stored) - width:
                row = row_of[key]
                matrix[row], sums[row] = stored[start : start + width], known
        there = (_sums(matrix) == sums) & np.isfinite(matrix).all(1)
        if lost := len(found) - int(there.sum()):
            logger.warning("%s: %d features are damaged, and computed again.", self.folder / FEATURES, lost)
        matrix[~there] = 0
        return torch.from_numpy(matrix), there

    def store_features(self, space: str, keys: Sequence[str], features: Tensor) -> None:
        """Store features ``(N, D)`` of pictures; if the disk refuses them, only log it."""
        rows = features.detach().float().cpu().contiguous().numpy()
        with self._writing() as db:
            if self._end < 0:
                (self._end,) = db.execute("select coalesce(max(start + width), 0) from feature").fetchone()
            # What a killed writer left behind the last row that counts is overwritten.
            append_to(self.folder / FEATURES, 4 * self._end, rows.astype("<f4").tobytes())
            number, width = self._number_of(space, add=True), rows.shape[1]
            places = zip(
                keys, range(self._end, self._end + rows.size, width), _sums(rows).tolist(), strict=True
            )
            values = [(number, _hash(key), start, width, known) for key, start, known in places]
            db.executemany("insert or replace into feature values(?, ?, ?, ?, ?)", values)
            self._end += rows.size

    # Near-duplicates

    def near_duplicates(self, source: str, count: int) -> np.ndarray | None:
        """``(N,)`` near-duplicate groups as `find_near_duplicates` gave them; `None` if they are not stored.

        Args:
            source: SHA-256 of its arguments.
            count: N.
        """
        for _, row in self._rows("first_of", "near_duplicate", "source", [source]):
            found = np.frombuffer(row[: len(row) // 4 * 4], np.uint32).astype(np.int64)
            if len(found) == count and (found <= np.arange(count)).all() and (found[found] == found).all():
                return found
        return None

    def store_near_duplicates(self, source: str, first_of: np.ndarray) -> None:
        """Store near-duplicate groups in place of the earlier ones."""
        with self._writing() as db:
            db.execute("delete from near_duplicate")
            db.execute(
                "insert into near_duplicate values(?, ?)",
                (_hash(source), first_of.astype(np.uint32).tobytes()),
            )

    def store_followers(self, firsts: Mapping[str, str]) -> None:
        """Store the first picture of its near-duplicate group, by key, for pictures that are not the first."""
        with self._writing() as db:
            rows = [(_hash(key), _hash(first)) for key, first in firsts.items()]
            db.executemany("insert or ignore into follower values(?, ?)", rows)

    def followers(self, keys: Iterable[str]) -> dict[str, str]:
        """The stored items of `store_followers` for some pictures."""
        return {key: first.hex() for key, first in self._rows("first", "follower", "key", keys)}

    # The database

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            try:
                yield self._db
            except _DAMAGE as error:
                raise RunError(
                    f"{self.folder / SEEN} is damaged ({error}). Delete it, and files are read again."
                ) from error

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """A transaction; if the disk refuses it, that is only logged."""
        with self._lock:
            try:
                self._db.execute("begin immediate")
                yield self._db
                self._db.execute("commit")
            except (sqlite3.Error, OSError, PromptCCDError) as error:
                self._end = -1
                logger.warning(
                    "%s: results could not be kept, and are computed again: %s", self.folder / SEEN, error
                )
            finally:
                if self._db.in_transaction:
                    self._db.execute("rollback")

    def _rows(self, columns: str, table: str, key: str, digests: Iterable[str]) -> Iterator[tuple[Any, ...]]:
        """Hash and columns of the rows of a table whose key is one of some hashes."""
        wanted = [_hash(each) for each in digests]
        name = key.rpartition(" ")[2]
        for start in range(0, len(wanted), _MOST_PARAMETERS):
            some = wanted[start : start + _MOST_PARAMETERS]
            marks = ",".join("?" * len(some))
            with self._reading() as db:
                rows = db.execute(
                    f"select {name}, {columns} from {table} where {key} in ({marks})", some
                ).fetchall()
            for digest, *values in rows:
                yield digest.hex(), *values

    def _number_of(self, name: str, add: bool = False) -> int:
        """The number of settings or of a space of features; -1 if it is new."""
        if add:
            self._db.execute("insert or ignore into origin(name) values(?)", (name,))
        found = self._db.execute("select id from origin where name = ?", (name,)).fetchone()
        return int(found[0]) if found is not None else -1

    def _content(self, digest: str) -> tuple[Any, ...] | None:
        with self._reading() as db:
            columns = "key, status, note, width, height, taken, depth, settings"
            found = db.execute(f"select {columns} from content where hash = ?", (_hash(digest),)).fetchone()
        return found  # type: ignore[no-any-return]

    def _file_at(self, path: str) -> tuple[Stamp | None, str, bool]:
        """Stamp and content of the file that was read at a path, and whether with these settings."""
        if (waiting := self._files.get(path)) is not None:
            return *waiting, True
        with self._reading() as db:
            found = db.execute(
                "select size, mtime, ctime, links, file.hash, settings from file left join content using (hash) "
                "where path = ?", (_path(path),),
            ).fetchone()  # fmt: skip
            if found is None:
                return None, "", False
            return Stamp(path, *found[:4]), found[4].hex(), found[5] == self._settings


def pictures_in(folder: Path) -> dict[str, SeenPicture]:
    """Every picture that a folder has seen, by its key."""
    with closing(SeenFiles(folder, is_reader=True)) as seen:
        return seen.pictures()


def _empty() -> sqlite3.Connection:
    database = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    database.executescript(SCHEMA)
    return database


def _connected(path: Path, is_reader: bool) -> sqlite3.Connection:
    """The database of a file, which a writer creates.

    Raises:
        DatabaseError: it is damaged; the `OperationalError` among them is of the disk, or of a lock.
        ValueError: it has other tables than ours, or a trigger or a view: somebody else made it.
    """
    if not is_reader:
        os.close(open_to_change(path))
    elif not path.is_file():
        return _empty()
    try:
        database = sqlite3.connect(path, _WAIT_S, isolation_level=None, check_same_thread=False)
        return _checked(database, None if is_reader else path.parent)
    except sqlite3.OperationalError:
        if not is_reader or os.access(path.parent, os.W_OK):
            raise
        place = f"{path.absolute().as_uri()}?immutable=1"  # SQLite writes next to a file that it only reads
        return _checked(sqlite3.connect(place, uri=True, isolation_level=None, check_same_thread=False))


def _checked(database: sqlite3.Connection, folder: Path | None = None) -> sqlite3.Connection:
    """The same database; `folder` is given by a writer, who creates and checks tables."""
    try:
        database.execute("pragma trusted_schema = off")
        tables = _tables_of(database)
        if folder is not None and not tables:
            mode = "wal" if systems.locks_reach(folder) else "truncate"
            database.execute(f"pragma journal_mode = {mode}")
            database.executescript(f"begin immediate;{SCHEMA}commit")
        elif tables != _tables_of(_empty()):
            raise ValueError("its tables are not those of this version")
        for table in _CHECKED * (folder is not None):
            ((problem,), *_) = database.execute(f"pragma quick_check({table})").fetchall()
            if problem != "ok":
                raise ValueError(problem)
        database.execute("pragma synchronous = normal")
    except BaseException:
        database.close()
        raise
    return database


def _tables_of(database: sqlite3.Connection) -> list[tuple[Any, ...]]:
    return database.execute("select type, name, tbl_name, sql from sqlite_master order by name").fetchall()


def _storable(stamp: Stamp) -> Stamp:
    numbers = (max(-_MOST, min(each, _MOST)) for each in astuple(stamp)[1:])
    return Stamp(stamp.path, *numbers)


def _hash(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError:  # a row of a training run, of which nothing is stored
        return text.encode()


def _path(path: str) -> bytes:
    return path.encode(errors="surrogatepass")


def _text(path: bytes) -> str:
    return path.decode(errors="surrogatepass")


def _sums(rows: np.ndarray) -> np.ndarray:
    """A checksum of every row of float32 numbers ``(N,)``, which each single bit changes."""
    return rows.view(np.uint32).sum(1, dtype=np.uint32).astype(np.int64)


def _row_of(digest: str, decoded: DecodedFile, settings: int) -> tuple[Any, ...]:
    verdict, image = decoded
    of_image: tuple[Any, ...] = (None, None, "", None)
    if image is not None:
        depth = json.dumps(asdict(image.depth)) if image.depth is not None else None
        of_image = (*image.size, image.taken, depth)
    key = _hash(image.key) if image is not None else None
    return _hash(digest), key, verdict.status.value, verdict.note, *of_image, settings


def _decoded_of(row: tuple[Any, ...]) -> DecodedFile:
    """The result of decoding, from values that a stranger may have written."""
    key, status, note, width, height, taken, depth, _ = row
    verdict = Verdict(Status(status), display_name(note))
    if key is None or verdict.status is Status.SKIPPED:
        return verdict, None
    shown = Depth(**json.loads(depth)) if depth is not None else None
    return verdict, SeenImage(
        (int(width), int(height)), key.hex(), _NO_MINIATURE, b"", taken=_date(taken), depth=shown
    )


def _date(taken: str) -> str:
    return taken if KEPT.fullmatch(taken) else ""


def _small_row(of: tuple[str, SeenImage]) -> tuple[Any, ...]:
    digest, image = of
    miniature = image.miniature.tobytes()
    return _hash(digest), image.thumbnail, miniature, zlib.crc32(image.thumbnail + miniature)
