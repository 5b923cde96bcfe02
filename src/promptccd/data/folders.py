"""A folder of images: which files are images, of which split and category, and why each of the others is left out.

Names of files decide nothing, and names of folders only what a person means by them: a category is a folder at the
first level, and deeper images belong to it. The first level is that of splits only if all its folders are called so.
"""

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from unicodedata import normalize

from promptccd import systems
from promptccd.data.labels import SPLITS
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
from promptccd.disk import CHECKSUMS, EXPORTED, PROJECT
from promptccd.errors import DataError, nothing_at
from promptccd.images.files import first_bytes
from promptccd.images.kinds import FIRST_BYTES, is_heif, why_skipped
from promptccd.images.limits import TOO_MANY_BAD, ByteBudget, IntakeLimits, SkippedFileError

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".ppm", ".pgm", ".avif")
_OUR_FOLDERS = {  # by the names that are all in such a folder
    (EXPORTED,): "made by an export of groups",
    (PROJECT,): "groups that promptccd keeps",
    ("manifest.json", "split.json", "images.json"): "a run of promptccd train",  # data sets have two of them
    ("config.json", CHECKSUMS): "a model",
}


class FolderSource(ImageSource):
    """All files below a folder. Links are followed inside it and into `roots`, and nowhere else.

    Args:
        path: the folder.
        roots: further folders that links may lead into.

    Attributes:
        roots: all folders that links may lead into, links resolved.

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

    def why_no_image(self, entry: Entry) -> str:
        """Why a file is no image, by its first bytes; empty for an image."""
        try:
            head = first_bytes(self._target(entry), FIRST_BYTES)
        except SkippedFileError as skipped:
            return str(skipped)
        # A HEIC that is called a JPEG is reported when it is read: its reader may be installed by then.
        is_later = entry.key.lower().endswith(IMAGE_SUFFIXES) and is_heif(head)
        return "" if is_later else why_skipped(head)

    def _target(self, entry: Entry) -> str:
        path = os.path.join(self._root, *entry.key.split("/"))
        is_linked = self._has_linked_folders or os.path.islink(path)
        return inside(path, self.roots) if is_linked else path

    def _walk(self) -> Iterator[Entry]:
        # Folders to search, each with the resolved places of it and of those above it.
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
                target, reason = self._folder_or_reason(item, above)
                if target:
                    waiting.append((path, (*above, target)))
                    if not item.name.lower().endswith(IMAGE_SUFFIXES):
                        continue  # an ordinary folder is no file; one that looks like a file is explained
                    reason = "a folder, not a file"
                yield Entry(display_name(path), path, reason)

    def _ours(self, place: str) -> str:
        """What of ours a folder is or is part of, whichever link led there; empty for all others."""
        for each in (Path(place), *Path(place).parents):
            if str(each) in self.roots:
                break
            for names, what in _OUR_FOLDERS.items():
                if all((each / name).exists() for name in names):
                    return what
        return ""

    def _folder_or_reason(self, item: os.DirEntry[str], above: tuple[str, ...]) -> tuple[str, str]:
        """The resolved place of a folder to search, or empty; and why an item is left out, or empty."""
        target, is_link = item.path, systems.is_link(item)
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
        # The listing knows the kind of an entry that is no link, which saves a look at each file.
        is_folder = os.path.isdir(target) if is_link else item.is_dir(follow_symlinks=False)
        if is_folder:
            reason = folder_reason(item.name) or left
            return ("", reason) if reason else (os.path.realpath(target), "")
        if not (os.path.isfile(target) if is_link else item.is_file(follow_symlinks=False)):
            return "", "not a regular file"
        return "", system_reason(item.name) or left


@dataclass
class FolderFiles:
    """Files of a folder.

    Attributes:
        images: paths of images, in the order of the source.
        left_out: why each other file is no image, by path.
        damaged: paths of those that have the suffix of an image.
    """

    images: list[str] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    damaged: set[str] = field(default_factory=set)

    def __len__(self) -> int:
        return len(self.images) + len(self.left_out)

    def require_readable(self, folder: str | os.PathLike[str]) -> None:
        """Refuse, with a `DataError`, a folder more than half of whose images are none."""
        called = len(self.images) + len(self.damaged)
        if self.images and len(self.damaged) > TOO_MANY_BAD * called:
            reasons = Counter(self.left_out[path] for path in self.damaged).most_common(3)
            raise DataError(
                f"{len(self.damaged)} of {called} images in {str(folder)!r} cannot be read: "
                f"{'; '.join(f'{reason} ({count})' for reason, count in reasons)}. Get them again, or take them away."
            )


def images_in(source: FolderSource, limits: IntakeLimits) -> FolderFiles:
    """Separate the images of a folder from its other files, by their first bytes."""
    found = FolderFiles()
    entries = source.entries(limits)
    reasons = {entry.key: entry.reason or source.why_no_image(entry) for entry in entries}
    files = [entry for entry in entries if not entry.reason]
    found.damaged = {
        entry.name for entry in files if reasons[entry.key] and entry.key.lower().endswith(IMAGE_SUFFIXES)
    }
    # A damaged file replaces no other file of the same photograph.
    replaced = leftovers(entry.name for entry in files if entry.name not in found.damaged)
    for entry in entries:
        if reason := entry.reason or replaced.get(entry.name) or reasons[entry.key]:
            found.left_out[entry.name] = reason
        else:
            found.images.append(entry.key)
    return found


@dataclass
class LabelledFolder:
    """Images of a folder with their categories.

    Attributes:
        splits: path and category of every image, by split.
        left_out: why each other file is in no split, by path.
        unlabelled: paths of the images of a folder without any sub-folder of images.
        deeper: how many images are deeper than in the folder of their category.
    """

    splits: dict[str, list[tuple[str, str]]]
    left_out: dict[str, str]
    unlabelled: Sequence[str] = ()
    deeper: int = 0

    def __str__(self) -> str:
        images = sum(map(len, self.splits.values()))
        found = images + len(self.unlabelled) + len(self.left_out)
        reasons = [f"{reason} ({count})" for reason, count in Counter(self.left_out.values()).most_common(4)]
        what = f"{len(self.unlabelled)} images" if self.unlabelled else f"{images} images with a category"
        parts = [f"{found} files found: {what}"]
        parts += [f"{len(self.left_out)} left out: {'; '.join(reasons)}"] * bool(self.left_out)
        if self.deeper:
            parts.append(f"{self.deeper} images lie deeper, and count for the folder at the first level")
        parts += [FOLLOWED] * (OUTSIDE in self.left_out.values())
        return "; ".join(parts)


def by_category(folder: Path, files: FolderFiles) -> LabelledFolder:
    """Images of a sub-folder per category, and of splits above them if all folders of the first level are splits.

    Composed and decomposed spellings of a name are one category. A loose image is left out where others have folders.

    Raises:
        DataError: the folder holds splits without categories, or two folders of one split.
    """
    parts = {path: Path(path).parts for path in files.images}
    first_level = sorted({names[0] for names in parts.values() if len(names) > 1})
    found = LabelledFolder({}, dict(files.left_out), () if first_level else files.images)
    splits = {name: SPLITS.get(name.casefold(), "") for name in first_level}
    are_splits = bool(splits) and all(splits.values())
    what = f"{str(folder)!r} holds {', '.join(first_level)}, "
    if are_splits and not any(len(names) > 2 for names in parts.values()):
        raise DataError(
            f"{what}which are parts of a data set and no categories, and no folder in them says which category an "
            "image is of. Put the images of each into a sub-folder per category; if these are categories, give them "
            "other names."
        )
    if are_splits and len(set(splits.values())) < len(splits):
        raise DataError(f"{what}of which two mean the same part of a data set: rename one.")
    for path, names in parts.items() if first_level else ():
        if len(names) < are_splits + 2:
            found.left_out[display_name(path)] = "in no category: it lies beside the folders of categories"
            continue
        found.deeper += len(names) > are_splits + 2
        rows = found.splits.setdefault(splits[names[0]] if are_splits else "train", [])
        rows.append((path, normalize("NFC", names[are_splits])))
    return found
