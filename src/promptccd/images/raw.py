"""Camera RAW: a photograph before it is developed, with small pictures of it, and often the JPEG of the camera, inside.

Whoever opens such a file as the TIFF that it mostly is gets a thumbnail of 160 x 120 pixels.
"""

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, BinaryIO

from PIL import TiffImagePlugin

from promptccd.images.jpeg import FRAMES, SCAN, jpeg_segments
from promptccd.images.kinds import DEVELOP, camera_raw_kind

RAW_SUFFIXES = (
    ".3fr", ".arw", ".cr2", ".cr3", ".crw", ".dcr", ".dng", ".erf", ".fff", ".iiq", ".k25", ".kdc", ".mef", ".mos",
    ".mrw", ".nef", ".nrw", ".orf", ".pef", ".raf", ".raw", ".rw2", ".rwl", ".sr2", ".srf", ".srw", ".x3f",
)  # fmt: skip
_LARGE_SIDE = 1000  # pixels of the longer side of a JPEG that is used; a thumbnail has fewer
_DIRECTORIES, _CANDIDATES = 32, 64  # of a file that are looked at; cameras write a handful
_SUBFILE, _WIDTH, _PHOTOMETRIC, _ORIENTATION, _SUB, _DNG = 254, 256, 262, 274, 330, 50706
_BELOW = -1  # no tag: whether a picture belongs to another one, instead of following it as a page
_OF_A_SENSOR = (32803, 34892)  # a mosaic of colours, or one value each, not yet developed
_REDUCED = 1
_HEADER = 2**17  # bytes of a JPEG in which its size stands, behind a thumbnail of up to 64 KiB
_START = re.compile(rb"\xff\xd8\xff[\xc0-\xfe]")


@dataclass(frozen=True)
class CameraRaw:
    """What a camera RAW holds.

    Attributes:
        kind: its format, such as ``"RAF"``; ``"TIFF"`` for the many that are TIFF inside.
        jpeg: the JPEG of full size in it; empty if there is none.
        orientation: the EXIF orientation of the photograph; `None` if nothing is said.
    """

    kind: str
    jpeg: bytes
    orientation: int | None = None


def camera_raw(stream: BinaryIO, head: bytes) -> CameraRaw | None:
    """What a camera RAW holds; `None` for all other files. The stream is left at its start.

    Args:
        stream: the file.
        head: its first bytes.
    """
    kind = camera_raw_kind(head)
    tags = _directories(stream) if head[:4] in (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+") else []
    if not kind and not _is_raw(tags):
        stream.seek(0)
        return None
    stream.seek(0)
    content = stream.read()
    stream.seek(0)
    size, start = max(_jpegs(content), default=(0, 0))
    orientation = next((each[_ORIENTATION] for each in tags if _ORIENTATION in each), None)
    jpeg = (
        b"\xff\xd8" + b"".join(each for _, each in jpeg_segments(content[start:]))
        if size >= _LARGE_SIDE
        else b""
    )
    return CameraRaw(kind or "TIFF", jpeg, orientation)


def reason_of_raw(name: str) -> str:
    """Why a file is skipped that cannot be read and is called like a camera RAW; empty for other names."""
    suffix = PurePosixPath(name).suffix.lower()
    if suffix not in RAW_SUFFIXES:
        return ""
    kind = suffix.removeprefix(".").upper()
    return f"camera RAW ({kind}) without a JPEG of full size inside: {DEVELOP}"


def _directories(stream: BinaryIO) -> list[dict[int, Any]]:
    """The tags of all pictures in a TIFF file, the first one first; as many as can be read."""
    found: list[dict[int, Any]] = []
    try:
        stream.seek(0)
        header = stream.read(16)
        header = header if b"+" in header[2:4] else header[:8]  # that of a BigTIFF is longer
        waiting, seen = [(TiffImagePlugin.ImageFileDirectory_v2(header).next, False)], set[int]()
        while waiting and len(found) < _DIRECTORIES:
            place, is_below = waiting.pop(0)
            if not place or place in seen:
                continue
            seen.add(place)
            directory = TiffImagePlugin.ImageFileDirectory_v2(header)
            stream.seek(place)
            directory.load(stream)
            found.append(
                {tag: directory.get(tag) for tag in _LOOKED_AT if tag in directory} | {_BELOW: is_below}
            )
            below = directory.get(_SUB, ())
            waiting += [(each, True) for each in (below if isinstance(below, tuple) else (below,))]
            waiting.append((directory.next, is_below))
    except Exception:  # hostile tags raise a dozen kinds; what was read before them counts
        pass
    return found


_LOOKED_AT = (_SUBFILE, _WIDTH, _PHOTOMETRIC, _ORIENTATION, _SUB, _DNG)


def _is_raw(tags: list[dict[int, Any]]) -> bool:
    """Whether a TIFF file is a camera's: its first picture is a small one of another, or values of a sensor."""
    if not tags:
        return False
    if any(_DNG in each or each.get(_PHOTOMETRIC) in _OF_A_SENSOR for each in tags):
        return True
    first, *others = tags
    is_small = any(
        each[_BELOW] and _whole_number(each, _WIDTH) > _whole_number(first, _WIDTH) for each in others
    )
    return is_small and (bool(_whole_number(first, _SUBFILE) & _REDUCED) or _SUB in first)


def _whole_number(tags: dict[int, Any], tag: int) -> int:
    value = tags.get(tag, 0)
    return value if isinstance(value, int) else 0


def _jpegs(content: bytes) -> Iterator[tuple[int, int]]:
    """The longer side of every ordinary JPEG inside of a file, and where it begins."""
    for start in itertools.islice(_START.finditer(content, 1), _CANDIDATES):
        if size := _side_of(content[start.start() : start.start() + _HEADER]):
            yield size, start.start()


def _side_of(beginning: bytes) -> int:
    """The longer side of a JPEG with several colours, by its header; 0 for anything else."""
    for marker, segment in jpeg_segments(beginning):
        if marker in FRAMES and len(segment) >= 10:
            height, width = (int.from_bytes(segment[at : at + 2], "big") for at in (5, 7))
            return max(height, width) if segment[4] == 8 and segment[9] in (1, 3) else 0
        if marker == SCAN:
            return 0
    return 0
