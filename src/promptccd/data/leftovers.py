"""One photograph in several files: as the camera's RAW, as HEIC, as an edit, as a second of film. One of them is used.

A RAW stands beside the picture that the camera or a person developed, a HEIC beside the JPEG that it was converted to.
Phones put a short film beside a live photo, and what was edited beside what was taken: IMG_E1234 beside IMG_1234.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePosixPath

from promptccd.data.camera_raw import RAW_SUFFIXES
from promptccd.data.heif import SUFFIXES as HEIF_SUFFIXES
from promptccd.data.heif import heif_plugin

_PICTURES = (".jpg", ".jpeg", ".jpe", ".avif", ".png", ".tif", ".tiff", ".webp", *HEIF_SUFFIXES)
_LIVE = (".jpg", ".jpeg", *HEIF_SUFFIXES)
_FILMS = (".mov", ".mp4")
_EDITED = re.compile(r"img_e\d{4,}")
_IN_A_LIBRARY = "_3"  # behind the name of the photograph, in a library of Photos


def leftovers(names: Iterable[str]) -> dict[str, str]:
    """Why a file is left out that shows a photograph of which another file is used, by its name.

    Args:
        names: paths with ``/`` between their parts.
    """
    paths = {name: PurePosixPath(name) for name in names}
    places: dict[tuple[str, str], list[PurePosixPath]] = {}
    for path in paths.values():
        places.setdefault(_place(path), []).append(path)
    found = {name: _reason(path, places) for name, path in paths.items()}
    return {name: reason for name, reason in found.items() if reason}


def _place(path: PurePosixPath) -> tuple[str, str]:
    """What files of one photograph share: a folder and a stem."""
    return str(path.parent), path.stem.casefold()


def _reason(path: PurePosixPath, places: Mapping[tuple[str, str], Sequence[PurePosixPath]]) -> str:
    """Why a file is left out; empty for one that is used, and for one that belongs to no other."""
    (folder, stem), suffix = _place(path), path.suffix.lower()
    if suffix in _FILMS:
        others = [*places[folder, stem], *places.get((folder, stem.removesuffix(_IN_A_LIBRARY)), [])]
        photograph = next((each.name for each in others if each.suffix.lower() in _LIVE), "")
        return f"the film of the live photo {photograph}" if photograph else ""
    edited = stem.replace("img_", "img_e", 1)
    edits = _readable(places.get((folder, edited), [])) if _EDITED.fullmatch(edited) else []
    shown = next(iter([*edits, *_readable(places[folder, stem])]), path)
    if shown == path:
        return ""
    if suffix in RAW_SUFFIXES:
        return f"camera RAW beside {shown.name}, which is used"
    if edits and suffix in _PICTURES:
        return f"taken before the edit {shown.name}, which is used"
    is_converted = suffix in HEIF_SUFFIXES and shown.suffix.lower() not in HEIF_SUFFIXES
    return f"HEIC beside {shown.name}, which is used" if is_converted else ""


def _readable(paths: Sequence[PurePosixPath]) -> list[PurePosixPath]:
    """The pictures that are read, the one to use in front."""
    suffixes = _PICTURES if heif_plugin() else _PICTURES[: -len(HEIF_SUFFIXES)]
    found = [path for path in paths if path.suffix.lower() in suffixes]
    return sorted(found, key=lambda path: (suffixes.index(path.suffix.lower()), path.name))
