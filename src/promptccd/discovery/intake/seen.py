"""Files that a folder has seen: contents, verdicts, small pictures and features, so that nothing is computed twice.

``files.sqlite`` contains all of it, and is made again if it is lost or damaged.
"""

import itertools
import json
import logging
import os
import re
import sqlite3
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from promptccd.data.names import display_name, path_parts
from promptccd.data.sources import Stamp
from promptccd.database import files_of, open_database, use_wal
from promptccd.disk import make_folder, open_to_change, remove
from promptccd.errors import RunError
from promptccd.images.camera import CAPTURE_DATE
from promptccd.images.decode import Status, Verdict
from promptccd.images.identity import MINIATURE_SIDE, SeenImage, is_edited_file_of
from promptccd.images.rendering import Rendering

if TYPE_CHECKING:
    from torch import Tensor

logger = logging.getLogger(__name__)

DecodedFile = tuple[Verdict, SeenImage | None]  # the result of decoding a file
SEEN = "files.sqlite"
# A content whose status is null is decoded again, and keeps its key. `is_row`: it came without a path, from a data set.
_SCHEMA = """
create table setting(name text primary key, value text);
create table content(hash text primary key, key text, status text, note text, width integer, height integer,
  taken text, is_rendered integer, is_row integer) without rowid;
create table file(path blob primary key, stamp text, hash text) without rowid;
create table small(hash text primary key, miniature blob, thumbnail blob, cell blob);
create table feature(space text, key text, vector blob, primary key(space, key));
create table follower(key text primary key, first text) without rowid;
"""
_DECODED = "key, status, note, width, height, taken, is_rendered"
_LISTED = "in (select value from json_each(?))"
_UNKNOWN = "[-1, 0]"  # the stamp of no file
FEWEST_DIGITS = 6  # of a hash, to identify it
SOUNDS = (".wav", ".mp3", ".ogg", ".flac")  # that every browser plays
_ITEM = re.compile(r".*?/item-[0-9a-f]{32}/(.+)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class SeenPicture:
    """Where a picture was seen, from the project alone.

    Attributes:
        files: path and content hash of every file that contained it, sorted: a renamed file is there under both names.
            The path of a member of an archive ends in the member's name and is no file.
        dates: by the hash of each content that showed it, when its camera says that it was taken, or nothing.
        has_rows: whether some of them came without a path, being rows of a data set.
    """

    files: tuple[tuple[str, str], ...]
    dates: Mapping[str, str]
    has_rows: bool

    def is_here(self, there: Collection[str]) -> bool:
        """Whether a file of it is there, by the paths that are; rows of a data set are taken to be."""
        return self.has_rows or any(path in there for path, _ in self.files)

    def is_called(self, key: str, name: str, path: str) -> bool:
        """Whether a person may mean it by a name: the beginning of a hash, or a path or its end.

        Args:
            key: of the picture.
            name: their content.
            path: the same as an absolute path.
        """
        is_hash = len(name) >= FEWEST_DIGITS and any(each.startswith(name) for each in (key, *self.dates))
        end = "/" + "/".join(path_parts(name))
        return is_hash or any(
            each == path or ("/" + "/".join(path_parts(each))).endswith(end) for each, _ in self.files
        )

    def chosen(self, there: Collection[str]) -> tuple[str, str]:
        """Path and content hash of the file to show: an existing file, or else the first; no path for a row."""
        files = self.files or (("", min(self.dates)),)
        return next((each for each in files if each[0] in there), files[0])


class SeenFiles:
    """Results of earlier reading and embedding. Several threads may use it.

    Args:
        folder: of the file, created if missing; `None` for results that are deleted with the object.
        made_with: settings of the decoder. Content that was decoded with other settings counts as new, but keeps its
            key.
        is_reader: whether nothing is created, and a damaged file stays.

    Raises:
        RunError: a link is in the way, or another process does not stop writing.
    """

    def __init__(
        self, folder: Path | None = None, made_with: dict[str, int] | None = None, is_reader: bool = False
    ):
        self.path = None if folder is None else folder / SEEN
        self._is_reader, self._lock = is_reader, threading.RLock()
        self._db = self._opened()
        settings = json.dumps(made_with)
        if made_with is not None and not is_reader and self._setting("decoder") != settings:
            with self._writing() as db:
                db.execute("update content set status = null")
                db.execute("insert or replace into setting values('decoder', ?)", (settings,))

    def _opened(self) -> sqlite3.Connection:
        path = self.path
        if path is None or (self._is_reader and not path.is_file()):
            return open_database("", _SCHEMA, create=True)  # SQLite deletes a file without a name
        if not self._is_reader:
            make_folder(path.parent)
            os.close(open_to_change(path))  # refuses links and pipes
        try:
            return self._connected(path)
        except sqlite3.OperationalError as error:
            raise RunError(f"{path} cannot be opened: {error}. Run the same command again.") from error
        except (sqlite3.DatabaseError, ValueError) as error:
            logger.warning("%s is damaged, and files are read again (%s).", path, error)
        if self._is_reader:
            return open_database("", _SCHEMA, create=True)
        for each in files_of(path):
            remove(each)
        return self._connected(path)

    def _connected(self, path: Path) -> sqlite3.Connection:
        if self._is_reader and not os.access(path.parent, os.W_OK):  # SQLite can make no log there
            return open_database(f"{path.absolute().as_uri()}?immutable=1", _SCHEMA)
        is_new = not self._is_reader and (not path.exists() or not path.stat().st_size)
        database = open_database(path, _SCHEMA, create=is_new, synchronous="normal")
        if is_new:
            use_wal(database, path.parent)
        return database

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._db.close()

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        """A context in which values are read, or written, and converted."""
        with self._lock:
            try:
                yield self._db
            except (sqlite3.OperationalError, sqlite3.ProgrammingError) as error:
                raise RunError(f"{self.path} cannot be used: {error}. Run the same command again.") from error
            except (sqlite3.DatabaseError, ValueError, TypeError, AttributeError) as error:
                raise RunError(
                    f"{self.path} is damaged ({error}). Delete it, and files are read again."
                ) from error

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """A transaction."""
        with self._reading() as db:
            db.execute("begin immediate")
            try:
                yield db
                db.execute("commit")
            finally:
                if db.in_transaction:
                    db.execute("rollback")

    def _one(self, statement: str, *given: Any) -> Any:
        """The first value of the first row that a statement finds; `None` for no row."""
        with self._reading() as db:
            found = db.execute(statement, given).fetchone()
        return None if found is None else found[0]

    def _listed(self, statement: str, keys: Iterable[str]) -> list[tuple[Any, ...]]:
        """The rows that a statement finds for a list of hashes or keys."""
        with self._reading() as db:
            return db.execute(statement, (json.dumps([*keys]),)).fetchall()

    def _setting(self, name: str) -> str:
        return self._one("select value from setting where name = ?", name) or ""

    # Files and contents

    def known(self, stamp: Stamp) -> tuple[str, DecodedFile] | None:
        """Hash and decoding, see `decoded`, of a file that has not changed since it was read; `None` for any other."""
        columns = f"stamp, hash, {_DECODED}"
        with self._reading() as db:
            statement = f"select {columns} from file join content using (hash) where path = ?"
            row = db.execute(statement, (_path(stamp.path),)).fetchone()
            if row is None or not stamp.is_unchanged(Stamp(stamp.path, *json.loads(row[0]))):
                return None
            found = _decoded_of(*row[2:])
            return None if found is None else (row[1], found)

    def decoded(self, digest: str) -> DecodedFile | None:
        """The result of decoding a content, without small pictures and view; `None` if the content is new."""
        with self._reading() as db:
            row = db.execute(f"select {_DECODED} from content where hash = ?", (digest,)).fetchone()
            return None if row is None else _decoded_of(*row)

    def add(self, digest: str, decoded: DecodedFile | None, stamp: Stamp | None) -> tuple[str, str]:
        """Store the result of decoding a content, `None` for known content, and the file that contains it.

        Returns:
            The key of the picture: an earlier key, if the content has one or the file was edited; empty without a
            picture. And the key that the file had with another content; empty if there was none.
        """
        path = b"" if stamp is None else _path(stamp.path)
        before = self._one("select hash from file where path = ?", path) or ""
        was = "" if before == digest else self._key_of(before)
        verdict, image = decoded or (None, None)
        key = self._key_of(digest) if decoded is None or image is not None else ""
        if image is not None and not key:
            key = self._key_before([before] if before or stamp is None else self._renamed(stamp.path), image)
        with self._writing() as db:
            if verdict is not None:
                row: tuple[Any, ...] = (None, None, "", False)
                if image is not None:
                    row = *image.size, image.taken, image.is_rendered
                    small = digest, image.miniature.tobytes(), image.thumbnail
                    db.execute("insert or replace into small values(?, ?, ?, null)", small)
                values = digest, key or None, verdict.status.value, verdict.note, *row, stamp is None
                db.execute("insert or replace into content values(?, ?, ?, ?, ?, ?, ?, ?, ?)", values)
            if stamp is not None:
                known = json.dumps([stamp.size, stamp.mtime_ns, stamp.ctime_ns, stamp.links])
                db.execute("insert or replace into file values(?, ?, ?)", (path, known, digest))
        return key, was

    def _key_of(self, digest: str) -> str:
        """The key of the picture of a content, whatever the settings; empty if it is new or shows no image."""
        return self._one("select key from content where hash = ?", digest) or ""

    def _renamed(self, path: str) -> list[str]:
        """Contents of files that are gone and had the name of a new file with another ending."""
        stem = _path(os.path.splitext(path)[0])
        with self._reading() as db:
            # "/" follows "." in ASCII, so these are the paths that begin with the stem and a dot.
            statement = "select path, hash from file where path > ? and path < ?"
            found = db.execute(statement, (stem + b".", stem + b"/"))
            return [digest for each, digest in found if not os.path.lexists(each)]

    def _key_before(self, contents: Iterable[str], image: SeenImage) -> str:
        """The key that an earlier content of a file had if it showed the same image; else the key of the image."""
        for content in contents:
            key = self._key_of(content)
            if key and (key == image.key or self._is_edited(content, image)):
                return key
        return image.key

    def _is_edited(self, content: str, image: SeenImage) -> bool:
        """Whether a picture shows what an earlier content did, scaled, cropped, or with other colours."""
        with self._reading() as db:
            columns = "width, height, miniature, thumbnail"
            statement = f"select {columns} from content join small using (hash) where hash = ?"
            width, height, small, thumbnail = db.execute(statement, (content,)).fetchone()
            miniature = np.frombuffer(small, np.uint8).reshape(MINIATURE_SIDE, MINIATURE_SIDE)
        if is_edited_file_of(((width, height), miniature), (image.size, image.miniature)):
            return True
        from promptccd.discovery.near_duplicates.find import is_edited  # torch is slow to import

        return is_edited(thumbnail, image.thumbnail)

    @property
    def rendering(self) -> Rendering:
        """The rule by which files were shown; undecided in a new folder."""
        with self._reading():
            return Rendering.from_dict(json.loads(self._setting("rendering") or "{}"))

    def use(self, rendering: Rendering) -> None:
        """Show files by a rule from now on; files that were shown by another rule count as new, but keep their key."""
        before = self.rendering
        if rendering == before:
            return
        which = "true" if (rendering.fit or "crop") != (before.fit or "crop") else "is_rendered"
        with self._writing() as db:
            db.execute(f"delete from feature where key in (select key from content where {which})")
            db.execute(f"update content set status = null where {which}")
            value = json.dumps(rendering.to_dict())
            db.execute("insert or replace into setting values('rendering', ?)", (value,))

    def forget(self, path: str) -> None:
        """Read a file again the next time, because its content is not the expected one."""
        with self._writing() as db:
            db.execute("update file set stamp = ? where path = ?", (_UNKNOWN, _path(path)))

    def relocate(self, old: str, new: str) -> None:
        """Follow files whose folder is at another place now."""
        with self._writing() as db:
            paths = [path for (path,) in db.execute("select path from file") if path.startswith(_path(old))]
            moved = [(path.replace(_path(old), _path(new), 1), path) for path in paths]
            db.executemany("update file set path = ? where path = ?", moved)

    # Pictures

    def small(
        self, which: Literal["miniature", "thumbnail", "cell"], digests: Iterable[str]
    ) -> dict[str, bytes]:
        """Small pictures by content: two of `SeenImage`, or the picture of the page's grid."""
        statement = f"select hash, {which} from small where {which} not null and hash {_LISTED}"
        return dict(self._listed(statement, digests))

    def add_cells(self, made: Mapping[str, bytes]) -> None:
        """Store pictures of the page's grid, unless the disk refuses them."""
        with suppress(RunError), self._writing() as db:
            rows = [(picture, digest) for digest, picture in made.items()]
            db.executemany("update small set cell = ? where hash = ?", rows)

    def pictures(self) -> dict[str, SeenPicture]:
        """Every picture by its key."""
        files = dict[str, list[str]]()
        with self._reading() as db:
            for path, digest in db.execute("select path, hash from file"):
                files.setdefault(digest, []).append(path.decode(errors="surrogatepass"))
            statement = "select key, hash, taken, is_row from content where key not null order by key, hash"
            found = dict[str, SeenPicture]()
            for key, rows in itertools.groupby(db.execute(statement), lambda row: row[0]):
                _, hashes, dates, is_row = zip(*rows, strict=True)
                paths = sorted((path, each) for each in hashes for path in files.get(each, ()))
                taken = dict(zip(hashes, map(_date, dates), strict=True))
                found[key] = SeenPicture(tuple(paths), taken, any(is_row))
            return found

    # Features

    def vectors(self, space: str, keys: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Features of pictures ``(N, D)`` float32, zeros if missing; and ``(N,)`` bool, whether it is stored.

        Args:
            space: name of the settings that they were computed with, see `feature_space`.
            keys: of the pictures.
        """
        row_of, there = {key: row for row, key in enumerate(keys)}, np.zeros(len(keys), bool)
        statement = f"select key, vector from feature where space = ? and key {_LISTED}"
        matrix = np.zeros((len(keys), 0), np.float32)
        with self._reading() as db:
            for key, vector in db.execute(statement, (space, json.dumps([*keys]))):
                if not matrix.shape[1]:
                    matrix = np.zeros((len(keys), len(vector) // 4), np.float32)
                matrix[row_of[key]], there[row_of[key]] = np.frombuffer(vector, "<f4"), True
        there &= np.isfinite(matrix).all(1)
        return matrix, there

    def store_features(self, space: str, keys: Sequence[str], features: "Tensor") -> None:
        """Store features ``(N, D)`` of pictures."""
        rows = features.detach().float().cpu().numpy().astype("<f4")
        with self._writing() as db:
            values = ((space, key, row.tobytes()) for key, row in zip(keys, rows, strict=True))
            db.executemany("insert or replace into feature values(?, ?, ?)", values)

    # Near-duplicates

    def store_followers(self, keys: Iterable[str], representatives: Mapping[str, str]) -> None:
        """Store the first picture of its near-duplicate group, by key, for the remaining pictures of the group."""
        with self._writing() as db:
            db.execute(f"delete from follower where key {_LISTED}", (json.dumps([*keys]),))
            db.executemany("insert or ignore into follower values(?, ?)", representatives.items())

    def followers(self, keys: Iterable[str]) -> dict[str, str]:
        """The stored items of `store_followers` for some pictures."""
        return dict(self._listed(f"select key, first from follower where key {_LISTED}", keys))


def pictures_in(folder: Path) -> dict[str, SeenPicture]:
    """Every picture that a folder has seen, by its key."""
    with closing(SeenFiles(folder, is_reader=True)) as seen:
        return seen.pictures()


def _path(path: str) -> bytes:
    return path.encode(errors="surrogatepass")


def _decoded_of(
    key: str | None, status: str | None, note: str, width: int, height: int, taken: str, is_rendered: int
) -> DecodedFile | None:
    """The result of decoding, from values that a stranger may have written; `None` if it must be made again."""
    if status is None:
        return None
    verdict = Verdict(Status(status), display_name(note))
    if key is None or verdict.status is Status.SKIPPED:
        return verdict, None
    nothing, size = np.empty((0, 0), np.uint8), (int(width), int(height))
    return verdict, SeenImage(size, key, nothing, b"", taken=_date(taken), is_rendered=bool(is_rendered))


def _date(taken: str) -> str:
    return taken if CAPTURE_DATE.fullmatch(taken) else ""


# Places of pictures


def item_path(folder: str, digest: str, name: str) -> str:
    """The place of an item without an image file, such as a row of a table in a folder."""
    return f"{folder}/item-{digest[:32]}/{name}"


def item_name(path: str) -> str:
    """The name of the item of an `item_path`; empty for the path of a file."""
    found = _ITEM.fullmatch(path)
    return found[1] if found else ""


def sound_file(path: str) -> str:
    """The audio file whose path below the folder of its table is the name of an item; empty for anything else."""
    name = item_name(path)
    folder = path[: -len(name) - len("item-/") - 32]
    return f"{folder}{name}" if len(folder) > 1 and name.lower().endswith(SOUNDS) else ""


def present(pictures: Iterable[SeenPicture]) -> set[str]:
    """Paths of pictures that are there; a folder is listed once, which is quicker than asking for every file.

    The path of a member of an archive is there as long as the archive has its size; an item always is.
    """
    by_folder, found = dict[str, list[str]](), set[str]()
    for each in pictures:
        for path, _ in each.files:
            if item_name(path):
                found.add(path)
            else:
                by_folder.setdefault(os.path.dirname(path), []).append(path)
    for folder, inside_it in by_folder.items():
        try:
            with os.scandir(folder or ".") as listed:
                names = {item.name for item in listed}
        except NotADirectoryError:
            found.update(path for path in inside_it if _is_in_archive(path))
        except OSError:
            continue  # deleted, or its disk is not plugged in
        else:
            found.update(path for path in inside_it if os.path.basename(path) in names)
    return found


def _is_in_archive(path: str) -> bool:
    """Whether the archive of a member, whose path ends in ``/SIZE-OFFSET-SUM/NAME``, is the archive that was read."""
    for parent in Path(path).parents:
        if parent.is_file():
            place = Path(path).relative_to(parent).parts[0]
            return place.partition("-")[0] == str(parent.stat().st_size)
    return False
