"""A folder of images: the images, their splits and categories, and why each other file is left out.

A category is a folder at the first level, and deeper images belong to it. The first level contains splits if its
folders have names of splits, or if all of them have equal sub-folders.
"""

import logging
import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Literal
from unicodedata import normalize

from promptccd import systems
from promptccd.data.labels import SPLITS
from promptccd.data.names import IMAGE_SUFFIXES, display_name, folder_reason, leftovers, system_reason
from promptccd.data.sources import FOLLOWED, OUTSIDE, Entry, ImageSource, Stamp, inside
from promptccd.disk import CHECKSUMS, EXPORTED, PROJECT
from promptccd.errors import DataError, nothing_at
from promptccd.images.decode import decode_image
from promptccd.images.files import first_bytes, read_regular_file
from promptccd.images.kinds import FIRST_BYTES, is_heif, why_skipped
from promptccd.images.limits import TOO_MANY_BAD, ByteBudget, IntakeLimits, SkippedFileError

logger = logging.getLogger(__name__)

_OUR_FOLDERS = {  # by the names that are all in such a folder
    (EXPORTED,): "made by an export of groups",
    (PROJECT,): "groups that promptccd keeps",
    ("manifest.json", "split.json", "images.json"): "a run of promptccd train",  # data sets have two of them
    ("config.json", CHECKSUMS): "a model",
}
_MOST_SPLITS = 5
# Names of masks: pictures that mark the parts of other pictures, and are no photographs of their own.
_WORDS = r"(?:cp_)?masks?|seg|segm|segmentations?|gt|groundtruth|ground_truth|labelids|annotations?|annot|outlines?"
_SUFFIX = re.compile(rf"[-_. ](?:{_WORDS})(?:[-_. ]?\d{{1,3}})?$", re.IGNORECASE)
_FOLDER = re.compile(
    rf"(?:[\w-]*[-_. ])?(?:{_WORDS}|labels?|segmentation(?:class|object))(?:[-_. ]?\w{{1,5}})?", re.IGNORECASE
)
_SURE = re.compile(r"_cp_masks$")  # numbers of cells, which may be many
_LOSSLESS = (".png", ".tif", ".tiff", ".bmp", ".gif")
_MOST_LEVELS = 32  # colours of a mask
Row = tuple[str, str, str]  # path, category and split of an image


class FolderSource(ImageSource):
    """All files below a folder. Links are followed inside it and into `roots`, and nowhere else.

    Args:
        path: the folder.
        roots: further folders that links may lead into.

    Attributes:
        roots: all folders that links may lead into, links resolved.

    Raises:
        DataError: a root is no folder.
    """

    def __init__(self, path: str | os.PathLike[str], roots: Sequence[str | os.PathLike[str]] = ()):
        self._root = os.path.realpath(os.path.expanduser(path))
        self.roots = (self._root, *(os.path.realpath(os.path.expanduser(each)) for each in roots))
        if missing := next((each for each in self.roots[1:] if not os.path.isdir(each)), None):
            what = f"{missing!r} is no folder." if os.path.exists(missing) else nothing_at(missing)
            raise DataError(f"{what} Give --image_roots the folders that links lead into.")
        self._has_linked_folders = False
        self.name = f"Folder {display_name(os.fspath(path))!r}"
        if "library" in (reason := folder_reason(os.path.basename(self._root))):
            raise DataError(f"{self.name}: {reason}.")

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

    def head(self, entry: Entry, count: int, limits: IntakeLimits) -> bytes:
        """The first bytes of a file."""
        return first_bytes(self._target(entry), count)

    def stamp(self, entry: Entry) -> Stamp | None:
        """The stamp of a file; for a link, of its target."""
        with suppress(SkippedFileError):
            return Stamp.of(self._target(entry))
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
        # Folders to search, each with the resolved places of it and of its parents.
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
                        continue  # an ordinary folder is no file; a folder that looks like a file is explained
                    reason = "a folder, not a file"
                yield Entry(display_name(path), path, reason)

    def _ours(self, place: str) -> str:
        """The kind of promptccd folder that contains a folder, after resolving links; else empty."""
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
            reason = folder_reason(item.name)
            return ("", reason) if reason else (os.path.realpath(target), "")
        if not (os.path.isfile(target) if is_link else item.is_file(follow_symlinks=False)):
            return "", "not a regular file"
        return "", system_reason(item.name)


@dataclass
class FolderFiles:
    """Files of a folder.

    Attributes:
        images: paths of images, in the order of the source.
        left_out: why each other file is no image, by path.
        damaged: paths with the suffix of an image.
    """

    images: list[str] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    damaged: set[str] = field(default_factory=set)

    def require_readable(self, folder: str | os.PathLike[str]) -> None:
        """Refuse, with a `DataError`, a folder with more than half of its images unusable."""
        called = len(self.images) + len(self.damaged)
        if self.images and len(self.damaged) > TOO_MANY_BAD * called:
            reasons = Counter(self.left_out[path] for path in self.damaged).most_common(3)
            raise DataError(
                f"{len(self.damaged)} of {called} images in {str(folder)!r} cannot be read: "
                f"{'; '.join(f'{reason} ({count})' for reason, count in reasons)}. Download them again, or remove them."
            )

    def summary(self, rows: Sequence[Row]) -> str:
        """What a folder holds, of which these rows are used."""
        reasons = [f"{reason} ({count})" for reason, count in Counter(self.left_out.values()).most_common(4)]
        what = "images with a category" if not rows or rows[0][1] else "images"
        parts = [f"{len(rows) + len(self.left_out)} files found: {len(rows)} {what}"]
        parts += [f"{len(self.left_out)} left out: {'; '.join(reasons)}"] * bool(self.left_out)
        return "; ".join([*parts, *[FOLLOWED] * (OUTSIDE in self.left_out.values())])


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
    replaced |= masks_of(source, [entry for entry in files if not reasons[entry.key]], limits)
    for entry in entries:
        reason = entry.reason or replaced.get(entry.name) or reasons[entry.key]
        if not reason and any("\ud800" <= character <= "\udfff" for character in entry.key):
            reason = "name that is not UTF-8: rename the file or its folder"
        if reason:
            found.left_out[entry.name] = reason
        else:
            found.images.append(entry.key)
    return found


def masks_of(source: ImageSource, entries: Sequence[Entry], limits: IntakeLimits) -> dict[str, str]:
    """Why entries are left out that are masks of other images, by name.

    A mask has few levels of grey or colours, and the name of a picture with another suffix or a word such as ``_mask``
    behind it, or is in a folder with such a name.
    """
    found, by_name = {}, {entry.name: entry for entry in entries}
    for name in _candidates(by_name):
        with suppress(SkippedFileError):
            is_mask = _SURE.search(os.path.splitext(name)[0]) is not None
            if not is_mask:
                image = decode_image(source.read(by_name[name], ByteBudget(limits, source.name))).image
                colours = None if image is None else image.getcolors(_MOST_LEVELS)
                is_mask = colours is not None and len(colours) > 1
            if is_mask:
                found[name] = "looks like the mask of another picture; from a folder of its own it is used"
    return found


def _candidates(names: Iterable[str]) -> Iterator[str]:
    """Names that may be of a mask, because there is a picture to which it may belong."""
    parts = {
        name: (*os.path.split(os.path.splitext(name)[0]), os.path.splitext(name)[1].lower()) for name in names
    }
    at_place, by_stem = defaultdict(list), defaultdict(list)
    for name, (folder, stem, suffix) in parts.items():
        at_place[folder, stem].append(suffix)
        if not _is_of_masks(folder):
            by_stem[stem].append(name)
    for name, (folder, stem, suffix) in parts.items():
        plain = _SUFFIX.sub("", stem)
        others = [each for each in by_stem.get(plain, by_stem.get(stem, [])) if each != name]
        is_beside = suffix in _LOSSLESS and any(each not in _LOSSLESS for each in at_place[folder, stem])
        if is_beside or (others and (plain != stem or _is_of_masks(folder))):
            yield name


def _is_of_masks(folder: str) -> bool:
    return any(_FOLDER.fullmatch(part) for part in folder.split("/"))


def by_category(
    folder: str, files: FolderFiles, top: Literal["splits", "categories"] | None = None
) -> list[Row] | None:
    """Images of a sub-folder per category, and of splits above or below them; `None` without sub-folders of images.

    Composed and decomposed spellings of a name are one category. A loose image is left out where other images have
    folders.

    Args:
        folder: its name, for messages.
        files: what it holds; images that are used in no category are listed with their reasons.
        top: meaning of the folders of the first level; `None` decides by names.

    Raises:
        DataError: the folder contains splits without categories, two folders of one split, or pictures whose
            annotations are in files of their own.
    """
    parts = {path: Path(path).parts for path in files.images}
    first_level = sorted({names[0] for names in parts.values() if len(names) > 1})
    if not first_level:
        return None
    if top is None and (known := _annotated(files)):
        raise DataError(
            f"{folder!r} is a data set in the layout of {known}, with annotations in files next to the "
            "images. Make a table of path,label from these, or group the images without labels: promptccd discover "
            f"photographs {folder} --out groups/"
        )
    what = f"{folder!r} holds {', '.join(map(display_name, first_level))}, "
    category, split, note = _levels_of(first_level, list(parts.values()), top)
    if note:
        logger.info("%s: %s.", display_name(folder), note)
    if split == 0 and not any(len(names) > 2 for names in parts.values()):
        raise DataError(
            f"{what}which are parts of a data set and no categories, and no folder in them says which category an "
            "image is of. Put the images of each into a sub-folder per category; if these are categories, give "
            "--top_folders categories."
        )
    if split == 0 and len({_split_called(name) for name in first_level}) < len(first_level):
        raise DataError(f"{what}and two of them mean the same split of a data set. Rename one of the two.")
    rows, deeper = list[Row](), 0
    depth = max(category, split or 0) + 2
    for path, names in parts.items():
        if len(names) < depth:
            files.left_out[display_name(path)] = "in no category: it lies beside the folders of categories"
        else:
            deeper += len(names) > depth
            part = "train" if split is None else _split_called(names[split])
            rows.append((path, normalize("NFC", names[category]), part))
    if deeper:
        said = "%s: %d images lie deeper, and count for the folder of their category."
        logger.info(said, display_name(folder), deeper)
    return rows


def _split_called(name: str) -> str:
    return SPLITS.get(name.casefold(), normalize("NFC", name))


def _annotated(files: FolderFiles) -> str:
    """The layout of a data set whose annotations are separate files; else empty."""
    others, images = ([*map(PurePosixPath, each)] for each in (files.left_out, files.images))
    folders = {part.casefold() for path in (*others, *images) for part in path.parts[:-1]}
    stems = {path.stem for path in images}
    texts = sum(path.suffix.lower() == ".txt" and path.stem in stems for path in others)
    in_json = any(each.suffix.lower() == ".json" and "annotation" in str(each).casefold() for each in others)
    is_yolo = {"images", "labels"} <= folders or {"data.yaml", "classes.txt"} & {each.name for each in others}
    layouts = {
        "Pascal VOC (JPEGImages)": "jpegimages" in folders,
        "COCO (annotations in JSON)": in_json and not texts and all(len(each.parts) < 3 for each in images),
        "YOLO (a text of boxes for each image)": is_yolo and 2 * texts > len(images),
    }
    return next((name for name, is_so in layouts.items() if is_so), "")


def _levels_of(
    first_level: Sequence[str], parts: Sequence[Sequence[str]], top: Literal["splits", "categories"] | None
) -> tuple[int, int | None, str]:
    """The levels at which folders are categories and splits, by their names; and what to report of that."""
    if top is not None:
        return (1, 0, "") if top == "splits" else (0, None, "")
    are_splits = [name.casefold() in SPLITS for name in first_level]
    if len(first_level) == 1 and not any(are_splits) and all(inner := [names[1:] for names in parts]):
        category, split, note = _levels_of(sorted({names[0] for names in inner}), inner, None)
        if (
            all(len(names) > category + 1 for names in inner)
            and len({names[category] for names in inner}) > 1
        ):
            note = note or f"the only folder, {display_name(first_level[0])}, contains the categories"
            note += " (--top_folders categories reads it as one)"
            return category + 1, None if split is None else split + 1, note
    if all(are_splits):
        return 1, 0, ""
    below: dict[str, set[str]] = {name: set() for name in first_level}
    for first, *deeper in parts:
        if deeper:
            below[first].add(normalize("NFC", deeper[0]))
    # An image that is no deeper than the first level has the category of its folder.
    if any(len(names) == 2 for names in parts):
        return 0, None, ""
    every, shared = set.union(*below.values()), set.intersection(*below.values())
    meant = {SPLITS.get(name.casefold(), "") for name in every}
    if len(meant) > 1 and "" not in meant:
        listed = ", ".join(sorted(every))
        return 0, 1, f"folders {listed} below the categories are read as splits (--split chooses)"
    if len(first_level) < 2 or len(every) < 2 or 2 * len(shared) < len(every):
        return 0, None, ""
    is_few = any(are_splits) or len(first_level) < min(len(every), _MOST_SPLITS + 1)
    read, other = ("splits", "categories") if is_few else ("categories", "splits")
    listed = ", ".join(map(display_name, first_level[:4]))
    note = f"folders {listed} have equal sub-folders and are read as {read} (--top_folders {other} reads {other})"
    return (1, 0, note) if is_few else (0, None, note)
