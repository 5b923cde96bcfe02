"""Masks: pictures that mark the parts of other pictures, and are no photographs of their own."""

import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator

from PIL import Image

from promptccd.images.decode import decode_image
from promptccd.images.limits import SkippedFileError

_WORDS = r"(?:cp_)?masks?|seg|segm|segmentations?|gt|groundtruth|ground_truth|labelids|annotations?|annot|outlines?"
_SUFFIX = re.compile(rf"[-_. ](?:{_WORDS})(?:[-_. ]?\d{{1,3}})?$", re.IGNORECASE)
_FOLDER = re.compile(
    rf"(?:[\w-]*[-_. ])?(?:{_WORDS}|labels?|segmentation(?:class|object))(?:[-_. ]?\w{{1,5}})?", re.IGNORECASE
)
_SURE = re.compile(r"_cp_masks$")  # numbers of cells, which may be many
_LOSSLESS = (".png", ".tif", ".tiff", ".bmp", ".gif")
_MOST_LEVELS = 32  # colours of a mask


def masks_among(names: Iterable[str], read: Callable[[str], bytes]) -> dict[str, str]:
    """Why pictures are left out that are masks of other pictures: by their names, and by few levels of grey or colours.

    A mask has the name of a picture with another suffix or a word such as ``_mask`` behind it, or is in a folder with
    such a name.

    Args:
        names: paths of pictures, with ``/`` between their parts.
        read: gives the bytes of a file; a `SkippedFileError` is no mask.
    """
    found = {}
    for name in _candidates(names):
        try:
            is_mask = _SURE.search(os.path.splitext(name)[0]) is not None or _has_few_levels(read(name))
        except SkippedFileError:
            continue
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


def _has_few_levels(content: bytes) -> bool:
    image: Image.Image | None = decode_image(content).image
    colours = None if image is None else image.getcolors(_MOST_LEVELS)
    return colours is not None and len(colours) > 1
