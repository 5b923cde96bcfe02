"""Files that a folder has seen: contents, verdicts, small pictures and features, so that nothing is computed twice.

``files.sqlite`` contains all of it but features, which are in ``features.f32``. Both are made again if they are lost.
"""

import json
import logging
import os
import shutil
import tempfile
import weakref
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import compress
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from promptccd.data.names import display_name
from promptccd.data.sources import Stamp
from promptccd.database import files_of
from promptccd.discovery.intake.database import Database, bytes_of
from promptccd.discovery.intake.locations import SeenPicture
from promptccd.disk import append_to
from promptccd.images.capture_dates import CAPTURE_DATE
from promptccd.images.decode import Status, Verdict
from promptccd.images.identity import MINIATURE_SIDE, SeenImage, is_edited_file_of
from promptccd.images.rendering import Rendering

if TYPE_CHECKING:
    from torch import Tensor

logger = logging.getLogger(__name__)

DecodedFile = tuple[Verdict, SeenImage | None]  # the result of decoding a file
SEEN, FEATURES = "files.sqlite", "features.f32"
SEEN_FILES = tuple(each.name for each in files_of(Path(SEEN)))
# Hashes and keys are 32 bytes. `origin` numbers the settings of decoders and the spaces of features. A feature is
# `width` floats of features.f32, from number `start` on. Each `sum` is a checksum.
_SCHEMA = """
create table origin(id integer primary key, name text unique not null);
create table content(hash blob primary key, key blob, status text, note text, width integer, height integer,
  taken text, depth text, settings integer, had_file integer) without rowid;
create table file(path blob primary key, size integer, mtime integer, ctime integer, links integer, hash blob)
  without rowid;
create table small(hash blob primary key, miniature_sum integer, miniature blob, thumbnail_sum integer,
  thumbnail blob);
create table cell(hash blob primary key, picture blob);
create table feature(space integer, key blob, start integer, width integer, sum integer, primary key(space, key))
  without rowid;
create table follower(key blob primary key, first blob) without rowid;
create table near_duplicate(source blob primary key, first_of blob);
"""
_CHECKED = ("content", "file", "feature")
_ADD_CONTENT = """
insert into content values(?, ?, ?, ?, ?, ?, ?, ?, ?, 0) on conflict(hash) do update set
  (key, status, note, width, height, taken, depth, settings) = (excluded.key, excluded.status, excluded.note,
  excluded.width, excluded.height, excluded.taken, excluded.depth, excluded.settings)
"""
_ADD_SMALL = "insert or replace into small values(?, ?, ?, ?, ?)"
_FILE = """
select size, mtime, ctime, links, file.hash, settings from file left join content using (hash) where path = ?
"""
_IMPORT = """
create temp table fresh as select hash from part.content there join part.origin o on o.id = there.settings
  where not exists (select 1 from main.content here join main.origin p on p.id = here.settings
  where here.hash = there.hash and p.name = o.name);
insert or ignore into main.origin(name) select name from part.origin where id > 0;
insert or replace into main.content select there.hash, coalesce(here.key, there.key), there.status, there.note,
  there.width, there.height, there.taken, there.depth, p.id, coalesce(here.had_file, there.had_file)
  from part.content there join part.origin o on o.id = there.settings join main.origin p on p.name = o.name
  left join main.content here on here.hash = there.hash where there.hash in (select hash from fresh);
insert or replace into main.small select * from part.small where hash in (select hash from fresh);
insert or ignore into main.file select * from part.file;
update main.content set had_file = 1 where hash in (select hash from part.file);
drop table fresh
"""
_KEYS = """
select there.key, here.key from part.content there join main.content here using (hash) where there.key is not null
"""
_MOST_WAITING = 512  # decoded files in memory until they are written
_MOST = 2**63 - 1  # SQLite's largest integer: a broken clock gives larger ones


class SeenFiles(Database):
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
        super().__init__(folder / SEEN, _SCHEMA, _CHECKED, [folder / FEATURES], is_reader)
        self.features_file, self._made_with, self._end = folder / FEATURES, made_with, -1
        self._decoded, self._stamps = dict[str, DecodedFile](), dict[str, tuple[Stamp, str]]()
        settings = json.dumps(dict(made_with), sort_keys=True)
        self._settings = self._number_of(settings)
        if self._settings < 0 and not is_reader:
            with self.writing():
                self._settings = self._number_of(settings, add=True)

    @classmethod
    def temporary(cls) -> "SeenFiles":
        """Results in a folder that is deleted with the object, for callers without a project."""
        folder = tempfile.mkdtemp(prefix="promptccd-")
        seen = cls(Path(folder))
        database = seen._db

        def delete() -> None:
            database.close()  # Windows deletes no open file
            shutil.rmtree(folder, ignore_errors=True)

        weakref.finalize(seen, delete)
        return seen

    def close(self) -> None:
        """Write what was added and close the files."""
        self.flush()
        super().close()

    # Files and contents

    def content_of(self, stamp: Stamp) -> str:
        """The content hash of a file that was read and has not changed since; otherwise empty."""
        before, digest, is_ours = self._file_at(stamp.path)
        now = _storable(stamp)
        if before is None or not is_ours or not now.is_unchanged(before):
            return ""
        if now != before:  # another name was linked to the file
            self._stamps[stamp.path] = now, digest
        return digest

    def hash_at(self, path: str) -> str:
        """The content hash of the file that was read at a path, whatever it contains now; empty if there was none."""
        return self._file_at(path)[1]

    def has_file(self, path: str) -> bool:
        """Whether a file was read at a path, and its content was decoded with these settings."""
        return self._file_at(path)[2]

    def decoded(self, digest: str) -> DecodedFile | None:
        """The result of decoding a content, without small pictures and view; `None` if the content is new."""
        if (waiting := self._decoded.get(digest)) is not None:
            return waiting
        row = self._content(digest)
        if row is None or row[-1] != self._settings:
            return None
        with self.reading():
            return _decoded_of(row)

    def known_key(self, digest: str) -> str:
        """The key of the picture of a content, whatever the settings; empty if it is new or shows none."""
        if (waiting := self._decoded.get(digest)) is not None:
            return waiting[1].key if waiting[1] is not None else ""
        row = self._content(digest)
        with self.reading():
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
        for content in self._contents_before(path):
            before = self.known_key(content)
            if before == image.key or (before and self._is_edited(content, image)):
                return before
        return image.key

    def _contents_before(self, path: str) -> list[str]:
        """Earlier contents of a file, and of files that are gone and had its name with another ending."""
        if not path or (content := self.hash_at(path)):
            return [content] if path else []
        self.flush()
        stem = _path(os.path.splitext(path)[0])
        with self.reading() as db:
            # "/" follows "." in ASCII, so these are the paths that begin with the stem and a dot.
            found = db.execute(
                "select path, hash from file where path > ? and path < ?", (stem + b".", stem + b"/")
            )
            return [digest.hex() for each, digest in found if not os.path.lexists(each)]

    def _is_edited(self, content: str, image: SeenImage) -> bool:
        """Whether a picture shows what an earlier content did, scaled, cropped, or with other colours."""
        miniatures, thumbnails, row = (
            self.miniatures([content]),
            self.thumbnails([content]),
            self._content(content),
        )
        if row is None or not miniatures or not thumbnails:
            return False
        was = (row[3], row[4]), miniatures[content]
        if is_edited_file_of(was, (image.size, image.miniature)):
            return True
        from promptccd.discovery.near_duplicates.find import is_edited  # torch is slow to import

        return is_edited(thumbnails[content], image.thumbnail)

    def add_decoded(self, digest: str, decoded: DecodedFile) -> None:
        """Store the result of decoding a new content."""
        verdict, image = decoded
        self._decoded[digest] = verdict, image and replace(image, view=None)
        if len(self._decoded) >= _MOST_WAITING:
            self.flush()

    def add_file(self, stamp: Stamp, digest: str) -> None:
        """Store the content hash of a file, after the result of decoding that content."""
        self._stamps[stamp.path] = _storable(stamp), digest

    @property
    def rendering(self) -> Rendering:
        """The rule by which files were shown; undecided in a new folder."""
        with self.reading() as db:
            found = db.execute("select name from origin where id = 0").fetchone()
            return Rendering.from_dict(json.loads(found[0])) if found is not None else Rendering()

    def use(self, rendering: Rendering) -> None:
        """Show files by a rule from now on; those that were shown by another one count as new, but keep their key."""
        if rendering == self.rendering:
            return
        self.flush()
        is_refitted = (rendering.fit or "crop") != (self.rendering.fit or "crop")
        which = "true" if is_refitted else "depth is not null"
        with self.writing() as db:
            db.execute(f"delete from cell where hash in (select hash from content where {which})")
            db.execute(f"delete from feature where key in (select key from content where {which})")
            db.execute(f"update content set settings = null where {which}")
            db.execute("insert or replace into origin values(0, ?)", (json.dumps(rendering.to_dict()),))

    def forget(self, path: str) -> None:
        """Read a file again the next time, because its content is not the expected one."""
        before, digest, _ = self._file_at(path)
        if before is not None:
            self._stamps[path] = replace(before, size=-1), digest
            self.flush()

    def relocate(self, old: str, new: str) -> None:
        """Follow files whose folder is at another place now."""
        with self.writing() as db:
            paths = [path for (path,) in db.execute("select path from file") if path.startswith(_path(old))]
            moved = [(path.replace(_path(old), _path(new), 1), path) for path in paths]
            db.executemany("update file set path = ? where path = ?", moved)

    def flush(self) -> None:
        """Write what was added; if the disk refuses it, only log it."""
        with self._lock:
            if self._decoded or self._stamps:
                with self.writing():
                    self._write(self._decoded, self._stamps)
                self._decoded, self._stamps = {}, {}

    def _write(self, decoded: Mapping[str, DecodedFile], files: Mapping[str, tuple[Stamp, str]]) -> None:
        self._db.executemany(_ADD_CONTENT, [_row_of(*each, self._settings) for each in decoded.items()])
        images = {digest: image for digest, (_, image) in decoded.items() if image is not None}
        self._db.executemany(_ADD_SMALL, map(_small_row, images.items()))
        rows = [(_path(path), *_numbers_of(stamp), bytes_of(each)) for path, (stamp, each) in files.items()]
        self._db.executemany("insert or replace into file values(?, ?, ?, ?, ?, ?)", rows)
        self._db.executemany("update content set had_file = 1 where hash = ?", [row[-1:] for row in rows])

    def import_from(self, folder: Path) -> None:
        """Add the files, pictures and features of another folder that this one lacks.

        A content that has another key there gets the key that it has here.
        """
        self.flush()
        with closing(SeenFiles(folder, self._made_with)) as other:
            if not self.rendering.is_decided:
                self.use(other.rendering)
            self._db.execute("attach ? as part", (str(other.path),))
            try:
                with self.writing() as db:
                    for statement in _IMPORT.split(";"):
                        db.execute(statement)
                key_of = {there.hex(): here.hex() for there, here in self._db.execute(_KEYS)}
                names = "select distinct name from part.feature join part.origin on id = space"
                spaces = [space for (space,) in self._db.execute(names)]
            finally:
                self._db.execute("detach part")
            for space in spaces:
                rows, there = other.features(space, [*key_of])
                lacking = there & ~self.features(space, [*key_of.values()])[1]
                self.store_features(space, [*compress(key_of.values(), lacking)], rows[lacking])

    # Pictures

    def thumbnails(self, digests: Iterable[str]) -> dict[str, bytes]:
        """Thumbnails by content; lost ones are missing."""
        return dict(self._small("thumbnail", digests))

    def miniatures(self, digests: Iterable[str]) -> dict[str, np.ndarray]:
        """Miniatures by content, see `SeenImage`; lost ones are missing."""
        found, side = self._small("miniature", digests), MINIATURE_SIDE
        return {
            digest: np.frombuffer(row, np.uint8).reshape(side, side)
            for digest, row in found
            if len(row) == side**2
        }

    def _small(self, name: str, digests: Iterable[str]) -> Iterator[tuple[str, bytes]]:
        self.flush()
        for digest, known, content in self.lossy_rows(f"{name}_sum, {name}", "small", digests):
            if zlib.crc32(content) == known:
                yield digest, content

    def add_small(self, made: Mapping[str, SeenImage]) -> None:
        """Store thumbnails and miniatures of contents that were made again."""
        if made:
            with self.writing() as db:
                db.executemany(_ADD_SMALL, map(_small_row, made.items()))

    def cells(self, digests: Iterable[str]) -> dict[str, bytes]:
        """Pictures of the page's grid by content."""
        return dict(self.lossy_rows("picture", "cell", digests))

    def add_cells(self, made: Mapping[str, bytes]) -> None:
        """Store pictures of the page's grid."""
        with self.writing() as db:
            rows = [(bytes_of(digest), picture) for digest, picture in made.items()]
            db.executemany("insert or replace into cell values(?, ?)", rows)

    def pictures(self) -> dict[str, SeenPicture]:
        """Every picture by its key."""
        files, contents, dates = dict[bytes, list[str]](), dict[bytes, list[bytes]](), dict[str, str]()
        had_file = set[bytes]()
        with self.reading() as db:
            for path, digest in db.execute("select path, hash from file"):
                files.setdefault(digest, []).append(path.decode(errors="surrogatepass"))
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

    def has_space(self, space: str) -> bool:
        """Whether any feature of a space was stored."""
        return self._number_of(space) >= 0

    def has_feature(self, space: str, key: str) -> bool:
        """Whether a feature of this picture is stored."""
        return any(self.rows("start", "feature", [key], "key", f"space = {self._number_of(space)} and "))

    def features(self, space: str, keys: Sequence[str]) -> "tuple[Tensor, np.ndarray]":
        """Features of pictures ``(N, D)`` float32, zeros where none is stored; and where one is ``(N,)`` bool.

        Args:
            space: name of what they were computed with, see `feature_space`.
            keys: of the pictures.
        """
        row_of, where = {key: row for row, key in enumerate(keys)}, f"space = {self._number_of(space)} and "
        found = [*self.rows("start, width, sum", "feature", row_of, "key", where)]
        width = found[0][2] if found else 0
        matrix, sums = np.zeros((len(keys), width), np.float32), np.full(len(keys), -1)
        try:
            stored = np.asarray(np.memmap(self.features_file, "<f4", "r"))
        except (OSError, ValueError):  # it is missing or empty
            stored = np.empty(0, np.float32)
        with self.reading():
            for key, start, each, known in found:
                if each == width and 0 <= start <= len(stored) - width:
                    row = row_of[key]
                    matrix[row], sums[row] = stored[start : start + width], known
        there = (_sums(matrix) == sums) & np.isfinite(matrix).all(1)
        if lost := len(found) - int(there.sum()):
            logger.warning("%s: %d features are damaged, and computed again.", self.features_file, lost)
        matrix[~there] = 0
        from torch import from_numpy  # a project is opened and corrected without torch

        return from_numpy(matrix), there

    def store_features(self, space: str, keys: Sequence[str], features: "Tensor") -> None:
        """Store features ``(N, D)`` of pictures; if the disk refuses them, only log it."""
        rows = features.detach().float().cpu().contiguous().numpy()
        with self.writing() as db:
            end, self._end = self._end, -1  # unknown until it is written
            if end < 0:
                (end,) = db.execute("select coalesce(max(start + width), 0) from feature").fetchone()
            # What a killed writer left behind the last row that counts is overwritten.
            append_to(self.features_file, 4 * end, rows.astype("<f4").tobytes())
            number, width = self._number_of(space, add=True), rows.shape[1]
            places = zip(keys, range(end, end + rows.size, width), _sums(rows).tolist(), strict=True)
            values = [(number, bytes_of(key), start, width, known) for key, start, known in places]
            db.executemany("insert or replace into feature values(?, ?, ?, ?, ?)", values)
            self._end = end + rows.size

    # Near-duplicates

    def near_duplicates(self, source: str, count: int) -> np.ndarray | None:
        """``(2, N)`` near-duplicate groups, and those before doubt; `None` if they are not stored.

        Args:
            source: SHA-256 of its arguments.
            count: N.
        """
        for _, row in self.rows("first_of", "near_duplicate", [source], "source"):
            if len(row) == 8 * count:
                found = np.frombuffer(row, np.uint32).astype(np.int64).reshape(2, count)
                if all((each <= np.arange(count)).all() and (each[each] == each).all() for each in found):
                    return found
        return None

    def store_near_duplicates(self, source: str, groups: np.ndarray) -> None:
        """Store near-duplicate groups in place of the earlier ones."""
        with self.writing() as db:
            db.execute("delete from near_duplicate")
            values = bytes_of(source), groups.astype(np.uint32).tobytes()
            db.execute("insert into near_duplicate values(?, ?)", values)

    def store_followers(self, keys: Iterable[str], firsts: Mapping[str, str]) -> None:
        """Store the first picture of its near-duplicate group, by key, for those of some pictures that are not it."""
        with self.writing() as db:
            db.executemany("delete from follower where key = ?", [(bytes_of(key),) for key in keys])
            rows = [(bytes_of(key), bytes_of(first)) for key, first in firsts.items()]
            db.executemany("insert or ignore into follower values(?, ?)", rows)

    def followers(self, keys: Iterable[str]) -> dict[str, str]:
        """The stored items of `store_followers` for some pictures."""
        return {key: first.hex() for key, first in self.rows("first", "follower", keys, "key")}

    # Rows

    def _number_of(self, name: str, add: bool = False) -> int:
        """The number of settings or of a space of features; -1 if it is new."""
        with self._lock:
            if add:
                self._db.execute("insert or ignore into origin(name) values(?)", (name,))
            found = self._db.execute("select id from origin where name = ?", (name,)).fetchone()
        return int(found[0]) if found is not None else -1

    def _content(self, digest: str) -> tuple[Any, ...] | None:
        columns = "key, status, note, width, height, taken, depth, settings"
        with self.reading() as db:
            found = db.execute(
                f"select {columns} from content where hash = ?", (bytes_of(digest),)
            ).fetchone()
        return found

    def _file_at(self, path: str) -> tuple[Stamp | None, str, bool]:
        """Stamp and content of the file that was read at a path, and whether with these settings."""
        if (waiting := self._stamps.get(path)) is not None:
            return *waiting, True
        with self.reading() as db:
            found = db.execute(_FILE, (_path(path),)).fetchone()
            if found is None:
                return None, "", False
            return Stamp(path, *found[:4]), found[4].hex(), found[5] == self._settings


def pictures_in(folder: Path) -> dict[str, SeenPicture]:
    """Every picture that a folder has seen, by its key."""
    with closing(SeenFiles(folder, is_reader=True)) as seen:
        return seen.pictures()


def _numbers_of(stamp: Stamp) -> tuple[int, int, int, int]:
    return stamp.size, stamp.mtime_ns, stamp.ctime_ns, stamp.links


def _storable(stamp: Stamp) -> Stamp:
    numbers = _numbers_of(stamp)
    if max(numbers) <= _MOST and min(numbers) >= -_MOST:
        return stamp
    return Stamp(stamp.path, *(max(-_MOST, min(each, _MOST)) for each in numbers))


def _path(path: str) -> bytes:
    return path.encode(errors="surrogatepass")


def _sums(rows: np.ndarray) -> np.ndarray:
    """A checksum of every row of float32 numbers ``(N,)``, which each single bit changes."""
    return rows.view(np.uint32).sum(1, dtype=np.uint32).astype(np.int64)


def _row_of(digest: str, decoded: DecodedFile, settings: int) -> tuple[Any, ...]:
    verdict, image = decoded
    if image is None:
        return bytes_of(digest), None, verdict.status.value, verdict.note, None, None, "", None, settings
    of_image = *image.size, image.taken, "1" if image.is_rendered else None
    return bytes_of(digest), bytes_of(image.key), verdict.status.value, verdict.note, *of_image, settings


def _decoded_of(row: tuple[Any, ...]) -> DecodedFile:
    """The result of decoding, from values that a stranger may have written."""
    key, status, note, width, height, taken, depth, _ = row
    verdict = Verdict(Status(status), display_name(note))
    if key is None or verdict.status is Status.SKIPPED:
        return verdict, None
    nothing = np.empty((0, 0), np.uint8)
    return verdict, SeenImage(
        (int(width), int(height)), key.hex(), nothing, b"", taken=_date(taken), is_rendered=depth is not None
    )


def _date(taken: str) -> str:
    return taken if CAPTURE_DATE.fullmatch(taken) else ""


def _small_row(of: tuple[str, SeenImage]) -> tuple[Any, ...]:
    digest, image = of
    miniature = image.miniature.tobytes()
    return bytes_of(digest), zlib.crc32(miniature), miniature, zlib.crc32(image.thumbnail), image.thumbnail
