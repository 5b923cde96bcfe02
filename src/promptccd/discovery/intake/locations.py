"""Where pictures are: the files that showed them, and which of these are there now."""

import os
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from promptccd.data.names import path_parts

FEWEST_DIGITS = 6  # of a hash, to identify it
SOUNDS = (".wav", ".mp3", ".ogg", ".flac")  # that every browser plays
_ITEM = re.compile(r".*?/item-[0-9a-f]{32}/(.+)", re.DOTALL)


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
