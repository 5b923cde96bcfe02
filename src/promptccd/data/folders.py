"""A folder of images: which files are images, of which split and category, and why each of the others is left out.

Names of files decide nothing, and names of folders only what a person means by them: a category is a folder at the
first level, and what lies deeper belongs to it. The first level is that of splits only if all folders are called so.
"""

import itertools
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from unicodedata import normalize

from promptccd import system
from promptccd.data.names import display_name, folder_reason, leftovers, library_reason, system_reason
from promptccd.data.sources import (
    FOLLOWED,
    OUTSIDE,
    Entry,
    ImageSource,
    Stamp,
    inside,
    read_regular_file,
)
from promptccd.errors import DataError, nothing_at
from promptccd.images.files import first_bytes
from promptccd.images.heif import is_heif
from promptccd.images.kinds import FIRST_BYTES, why_skipped
from promptccd.images.limits import TOO_MANY_BAD, ByteBudget, IntakeLimits, SkippedFileError
from promptccd.storage import CHECKSUMS, EXPORTED, PROJECT

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".ppm", ".pgm", ".avif")
_OURS = {  # by the names that all lie in such a folder
    (EXPORTED,): "made by an export of groups",
    (PROJECT,): "groups that promptccd keeps",
    ("manifest.json", "split.json", "images.json"): "a run of promptccd train",  # data sets have two of them
    ("config.json", CHECKSUMS): "a model",
}
SPLITS = {
    "train": "train", "training": "train", "test": "test", "val": "validation", "valid": "validation",
    "validation": "validation",
}  # fmt: skip


class FolderSource(ImageSource):
    """All files below a folder. Links are followed inside it and into `roots`, and nowhere else.

    Args:
        path: the folder.
        roots: further folders that links may lead into.

    Attributes:
        roots: all that they may lead into, links resolved.

    Raises:
        DataError: one of the roots is no folder.
    """

    def __init__(self, path: str | os.PathLike[str], roots: Sequence[str | os.PathLike[str]] = ()):
        self._root = os.path.realpath(os.path.expanduser(path))
        self.roots = (self._root, *(os.path.realpath(os.path.expanduser(each)) for each in roots))
        if missing := next((each for each in self.roots[1:] if not os.path.isdir(each)), None):
            what = f"{missing!r} is no folder." if os.path.exists(missing) else nothing_at(missing)
            raise DataError(f"{what} Give --image_roots the folders that links lead into.")
        self._has_linked_folders = False
        self.name = f"Folder {display_name(os.fspath(path))!r}"

    def entries(self, limits: IntakeLimits) -> list[Entry]:
        """Files by path, and folders that are not searched, with the reason."""
        found: list[Entry] = []
        for entry in self._walk():
            found.append(entry)
            if len(found) > limits.max_entries:
                limits.require_files(len(found), self.name)
        found.sort(key=lambda entry: os.fsencode(entry.key).split(b"/"))
        limits.require_files(sum(not entry.reason for entry in found), self.name)
        return found

    def read(self, entry: Entry, budget: ByteBudget) -> bytes:
        """The bytes of a file; a link is resolved again, because it may have changed."""
        return read_regular_file(self._target(entry), budget)

    def stamp(self, entry: Entry) -> Stamp | None:
        """The stamp of a file; for a link, of its target."""
        try:
            return Stamp.of(self._target(entry))
        except SkippedFileError:
            return None

    def first_bytes(self, entry: Entry) -> bytes:
        """What a file begins with.

        Raises:
            SkippedFileError: it cannot be read.
        """
        return first_bytes(self._target(entry), FIRST_BYTES)

    def _target(self, entry: Entry) -> str:
        path = os.path.join(self._root, *entry.key.split("/"))
        is_linked = self._has_linked_folders or os.path.islink(path)
        return inside(path, self.roots) if is_linked else path

    def _walk(self) -> Iterator[Entry]:
        # A folder, and where it and those above it lie.
        waiting: list[tuple[str, tuple[str, ...]]] = [("", (self._root,))]
        while waiting:
            folder, above = waiting.pop()
            try:
                with os.scandir(os.path.join(self._root, *folder.split("/"))) as listed:
                    items = list(listed)
            except OSError as error:
                if not folder:
                    raise DataError(f"{self.name} cannot be listed: {error.strerror}.") from error
                yield Entry(display_name(folder) + "/", folder, f"folder cannot be listed ({error.strerror})")
                continue
            if folder and (ours := self._ours(above[-1])):
                yield Entry(display_name(folder) + "/", folder, f"folder not searched: {ours}")
                continue
            for item in items:
                path = f"{folder}/{item.name}" if folder else item.name  # on every system
                target, reason = self._judged(item, path, above)
                if target:
                    waiting.append((path, (*above, target)))
                    if not item.name.lower().endswith(IMAGE_SUFFIXES):
                        continue  # an ordinary folder is no file; one that looks like a file is explained
                    reason = "a folder, not a file"
                yield Entry(display_name(path), path, reason)

    def _ours(self, place: str) -> str:
        """What of ours a folder lies in or is, whichever link led there; empty for all others."""
        places = itertools.takewhile(
            lambda each: str(each) not in self.roots, (Path(place), *Path(place).parents)
        )
        found = (
            said
            for each in places
            for names, said in _OURS.items()
            if all((each / name).exists() for name in names)
        )
        return next(found, "")

    def _judged(self, item: os.DirEntry[str], path: str, above: tuple[str, ...]) -> tuple[str, str]:
        """Where a folder lies that is searched, or empty; and why an item is left out, or empty."""
        target, is_link = item.path, system.is_link(item)
        left = library_reason(os.path.basename(above[-1]), item.name)
        if is_link:
            try:
                target = inside(item.path, self.roots)
            except SkippedFileError as skipped:
                return "", str(skipped)
            if os.path.isdir(target):
                if any(each == target or each.startswith(f"{target}{os.sep}") for each in above):
                    return "", "link that leads back to itself"
                self._has_linked_folders = True
        # mutant always: the list of names has told it already, which saves a look
        is_folder = os.path.isdir(target) if is_link else item.is_dir(follow_symlinks=False)
        if is_folder:
            reason = folder_reason(item.name) or left
            return ("", reason) if reason else (os.path.realpath(target), "")
        if not (os.path.isfile(target) if is_link else item.is_file(follow_symlinks=False)):
            return "", "not a regular file"
        return "", system_reason(item.name) or left


@dataclass
class LabelledFolder:
    """Images of a folder with their categories.

    Attributes:
        splits: path and category of every image, by split.
        left_out: why each of the other files is in none, by path.
        unlabelled: paths of the images of a folder without any sub-folder of images; nothing says what they show.
        deeper: how many images lie deeper than in the folder of their category.
        found: number of files.
    """

    splits: dict[str, list[tuple[str, str]]]
    left_out: dict[str, str]
    unlabelled: Sequence[str] = ()
    deeper: int = 0
    found: int = 0

    def __str__(self) -> str:
        images = sum(map(len, self.splits.values()))
        reasons = [f"{reason} ({count})" for reason, count in Counter(self.left_out.values()).most_common(4)]
        what = f"{len(self.unlabelled)} images" if self.unlabelled else f"{images} images with a category"
        parts = [f"{self.found} files found: {what}"]
        parts += [f"{len(self.left_out)} left out: {'; '.join(reasons)}"] * bool(self.left_out)
        parts += [f"{self.deeper} images lie deeper, and count for the folder at the first level"] * bool(
            self.deeper
        )
        parts += [FOLLOWED] * (OUTSIDE in self.left_out.values())
        return "; ".join(parts)


@dataclass
class Sorted:
    """Files of a folder.

    Attributes:
        images: paths of images, in the order of the source.
        left_out: why each of the others is none, by path.
        spoilt: paths of those that are called images.
    """

    images: list[str] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    spoilt: set[str] = field(default_factory=set)


def images_in(source: FolderSource, limits: IntakeLimits) -> Sorted:
    """Tell images of a folder from its other files, by what they begin with."""
    found = Sorted()
    entries = source.entries(limits)
    reasons = {entry.key: entry.reason or _reason_in(source, entry) for entry in entries}
    files = [entry for entry in entries if not entry.reason]
    found.spoilt = {
        entry.name for entry in files if reasons[entry.key] and entry.key.lower().endswith(IMAGE_SUFFIXES)
    }
    # They stand for no other file.
    beside = leftovers(entry.name for entry in files if entry.name not in found.spoilt)
    for entry in entries:
        if reason := entry.reason or beside.get(entry.name) or reasons[entry.key]:
            found.left_out[entry.name] = reason
        else:
            found.images.append(entry.key)
    return found


def _reason_in(source: FolderSource, entry: Entry) -> str:
    try:
        head = source.first_bytes(entry)
        # A HEIC that is called a JPEG is said to be one when it is read, unless what reads it was installed by then.
        waits = entry.key.lower().endswith(IMAGE_SUFFIXES) and is_heif(head)
        return "" if waits else why_skipped(head)
    except SkippedFileError as skipped:
        return str(skipped)


def labelled_folder(
    folder: str | os.PathLike[str], roots: Sequence[str | os.PathLike[str]] = (), labelled: bool = True
) -> LabelledFolder:
    """Images of a sub-folder per category, and of splits above them if all folders of the first level are splits.

    Composed and decomposed spellings of a name are one category. A loose image is left out where others have folders.

    Args:
        folder: the folder.
        roots: further folders that links may lead into.
        labelled: whether names of folders are those of categories; if not, no image has one.

    Raises:
        DataError: it cannot be listed, more than half of its images are none, or it holds splits without categories.
    """
    files = images_in(FolderSource(folder, roots), IntakeLimits())
    found, left_out = len(files.images) + len(files.left_out), files.left_out
    called = len(files.images) + len(files.spoilt)
    if files.images and len(files.spoilt) > TOO_MANY_BAD * called:
        reasons = Counter(left_out[path] for path in files.spoilt).most_common(3)
        raise DataError(
            f"{len(files.spoilt)} of {called} images in {str(folder)!r} cannot be read: "
            f"{'; '.join(f'{reason} ({count})' for reason, count in reasons)}. Get them again, or take them away."
        )
    if not labelled:
        return LabelledFolder({}, left_out, files.images, found=found)
    parts = {path: Path(path).parts for path in files.images}
    splits = _splits_of(Path(folder).expanduser(), list(parts.values()))
    if all(len(each) == 1 for each in parts.values()):
        return LabelledFolder({}, left_out, files.images, found=found)
    rows, deeper, level = dict[str, list[tuple[str, str]]](), 0, 1 if splits else 0
    for path, names in parts.items():
        if len(names) < level + 2:
            left_out[display_name(path)] = "in no category: it lies beside the folders of categories"
            continue
        deeper += len(names) > level + 2
        split = splits[names[0]] if splits else "train"
        rows.setdefault(split, []).append((path, normalize("NFC", names[level])))
    return LabelledFolder(rows, left_out, deeper=deeper, found=found)


def _splits_of(folder: Path, images: Sequence[tuple[str, ...]]) -> Mapping[str, str]:
    """The split of every folder at the first level; none if they are categories.

    Raises:
        DataError: all are called like splits, and hold no folders; or two are the same split.
    """
    names = sorted({each[0] for each in images if len(each) > 1})
    splits = {name: SPLITS.get(name.casefold(), "") for name in names}
    if not names or not all(splits.values()):
        return {}
    if not any(len(each) > 2 for each in images):
        raise DataError(
            f"{str(folder)!r} holds {', '.join(names)}, which are parts of a data set and no categories, and no folder "
            "in them says which category an image is of. Put the images of each into a sub-folder per category; if "
            "these are categories, give them other names."
        )
    if len(set(splits.values())) < len(names):
        raise DataError(
            f"{str(folder)!r} holds {', '.join(names)}, of which two mean the same part of a data set: rename one."
        )
    return splits
