"""Where the pictures of a project are, from the project alone, and which of them are there now."""

import io
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from promptccd.data.names import parts_of
from promptccd.discovery.project.file_columns import FileColumns, read_columns
from promptccd.discovery.project.folder import COLUMNS, FILES
from promptccd.disk import parsed_json, read_file

LARGEST_LIST = 4 * 2**30  # bytes, of more lines than are ever written
FEWEST_DIGITS = 6  # of a hash, to stand for all of them
_UNSEEN = b'{"look":null'  # a content that was not looked at since the settings changed
_END_OF_LOOK = re.compile(
    rb'"picture":"([0-9a-f]{64})","sha256":"([0-9a-f]{64})"(?:,"taken":"([0-9T:+-]{19,25})")?\}$'
)
_LENGTH_OF_END = 2 * 64 + 25 + len('"picture":"","sha256":"","taken":""}')


@dataclass(frozen=True, slots=True)
class Seen:
    """Where a picture was seen, from the project alone.

    Attributes:
        files: path and content hash of every file that held it, sorted: a renamed file is there under both names. The
            path of a member of an archive ends in the member's name and is no file.
        contents: hashes of the files that showed it, sorted.
        has_rows: whether some of them never had a path, being rows of a data set.
        dates: when cameras say that pictures were taken, by content hash; of all pictures.
    """

    files: tuple[tuple[str, str], ...]
    contents: tuple[str, ...]
    has_rows: bool
    dates: Mapping[str, str]

    def is_here(self, there: Collection[str]) -> bool:
        """Whether a file of it is there, by the paths that are; rows of a data set are taken to be."""
        return self.has_rows or any(path in there for path, _ in self.files)

    def is_called(self, key: str, name: str, path: str) -> bool:
        """Whether a person may mean it by a name: the beginning of a hash, or a path or its end.

        Args:
            key: of the picture.
            name: what they wrote.
            path: the same as an absolute path.
        """
        is_hash = len(name) >= FEWEST_DIGITS and any(each.startswith(name) for each in (key, *self.contents))
        end = "/" + "/".join(parts_of(name))
        return is_hash or any(
            each == path or ("/" + "/".join(parts_of(each))).endswith(end) for each, _ in self.files
        )

    def chosen(self, there: Collection[str]) -> tuple[str, str]:
        """Path and content hash of the file to look at: one that is there, or else the first; no path for a row."""
        files = self.files or (("", self.contents[0]),)
        return next((each for each in files if each[0] in there), files[0])


def pictures_in(project: Path) -> dict[str, Seen]:
    """Every picture that was seen, by its key.

    Raises:
        RunError: a link stands in the way.
    """
    try:  # first: a discovery that is at work makes columns of it, and then takes it away
        content = read_file(project / FILES, LARGEST_LIST)
    except FileNotFoundError:
        content = b""
    try:
        before = read_columns(project / COLUMNS)
    except ValueError:  # the next discovery makes it again
        before = FileColumns()
    lines = [*before.lines, *io.BytesIO(content)]  # makes no second copy
    # Content by path, and so on; a later line overrules an earlier one, and the columns, in place: they may be large.
    held, were_held, keys, dates = before.holders, before.were_held, before.key_of, before.dates
    for line in lines:
        if line.startswith(b'{"look"'):  # most of the list, and long; only its end is needed
            continue
        try:
            values = parsed_json(line)
            path, digest = values["path"], values["sha256"]
        except (ValueError, KeyError, TypeError):
            continue  # the next discovery makes it again
        if isinstance(path, str) and isinstance(digest, str):
            held[path] = digest
            were_held.add(digest)
    ends = list(_ends_of_looks(line for line in lines if not line.startswith(_UNSEEN)))
    keys |= {digest: key for digest, key, _ in ends}
    dates |= {digest: date for digest, _, date in ends if date}
    files, contents = dict[str, list[tuple[str, str]]](), dict[str, list[str]]()
    for path in sorted(held):
        files.setdefault(keys.get(held[path], ""), []).append((path, held[path]))
    for digest in sorted(keys):
        contents.setdefault(keys[digest], []).append(digest)
    return {
        key: Seen(tuple(files.get(key, ())), tuple(digests), not were_held.issuperset(digests), dates)
        for key, digests in contents.items()
    }


def keys_in(lines: Iterable[bytes]) -> dict[str, str]:
    """The key of the picture of each content, by the hash of that."""
    return {digest: key for digest, key, _ in _ends_of_looks(lines)}


def _ends_of_looks(lines: Iterable[bytes]) -> Iterator[tuple[str, str, str]]:
    """Hash of a content, key of its picture, and when that was taken or nothing."""
    for line in lines:
        if line.startswith(b'{"look"'):
            end = _END_OF_LOOK.search(line.rstrip(b"\n")[-_LENGTH_OF_END:])
            if end is not None:
                yield end[2].decode(), end[1].decode(), (end[3] or b"").decode()


def present(pictures: Iterable[Seen]) -> set[str]:
    """Paths of pictures that are there; a folder is listed once, which is quicker than asking for every file.

    The path of a member of an archive is there as long as the archive has its size.
    """
    by_folder = dict[str, list[str]]()
    for each in pictures:
        for path, _ in each.files:
            by_folder.setdefault(os.path.dirname(path), []).append(path)
    found = set[str]()
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
    """Whether the archive of a member, whose path ends in ``/SIZE-OFFSET-SUM/NAME``, is the one that was read."""
    for parent in Path(path).parents:
        if parent.is_file():
            place = Path(path).relative_to(parent).parts[0]
            return place.partition("-")[0] == str(parent.stat().st_size)
    return False
