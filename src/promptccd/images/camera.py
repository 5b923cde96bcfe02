"""RAW files of cameras, and the dates that cameras write into photographs.

Camera RAW is a photograph before it is developed, with small pictures of it, and often the JPEG of the camera, inside.
Opened as a TIFF, such a file gives a thumbnail of 160 x 120 pixels.
"""

import calendar
import io
import itertools
import math
import re
import time
from pathlib import PurePosixPath
from typing import Any, NamedTuple

from PIL import ExifTags, Image, TiffImagePlugin

from promptccd.images.jpeg import FRAMES, JPEG, SCAN, jpeg_segments
from promptccd.images.kinds import DEVELOP, FIRST_BYTES, camera_raw_kind

RAW_SUFFIXES = (
    ".3fr", ".arw", ".cr2", ".cr3", ".crw", ".dcr", ".dng", ".erf", ".fff", ".iiq", ".k25", ".kdc", ".mef", ".mos",
    ".mrw", ".nef", ".nrw", ".orf", ".pef", ".raf", ".raw", ".rw2", ".rwl", ".sr2", ".srf", ".srw", ".x3f",
)  # fmt: skip
_LARGE_SIDE = 1000  # pixels of the longer side of a JPEG that is used; a thumbnail has fewer
_CANDIDATES = 64  # JPEGs of a file that are looked at; cameras write a handful
_SUBFILE, _PHOTOMETRIC, _MAKE, _ORIENTATION, _SUB, _DNG = 254, 262, 271, 274, 330, 50706  # tags of TIFF
_OF_A_SENSOR = (32803, 34892)  # a mosaic of colours, or one value each, not yet developed
_REDUCED = 1
_HEADER = 2**17  # bytes of a JPEG in which its size stands, behind a thumbnail of up to 64 KiB
_START = re.compile(rb"\xff\xd8\xff[\xc0-\xfe]")
# A date as `capture_date` gives it.
CAPTURE_DATE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d([+-]\d\d:\d\d)?")
_DATE = re.compile(r"(\d{4})[:-](\d\d)[:-](\d\d)[ T](\d\d):(\d\d):(\d\d)")
_OFFSET = re.compile(r"[+-]\d\d:\d\d")
# The picture was taken, was made digital; of a file without either, the camera wrote it.
_DATE_TAGS = (
    (ExifTags.Base.DateTimeOriginal, ExifTags.Base.OffsetTimeOriginal),
    (ExifTags.Base.DateTimeDigitized, ExifTags.Base.OffsetTimeDigitized),
    (ExifTags.Base.DateTime, ExifTags.Base.OffsetTime),
)


class CameraRaw(NamedTuple):
    """Content of a camera RAW."""

    kind: str  # its format, such as "RAF"; "TIFF" for the many that are TIFF inside
    jpeg: bytes  # the JPEG of full size in it, or empty
    orientation: int | None  # the EXIF orientation of the photograph, if known


def camera_raw(content: bytes) -> CameraRaw | None:
    """Content of a camera RAW, by all bytes of a file; `None` for all other files."""
    kind, tags = camera_raw_kind(content[:FIRST_BYTES]), _first_directory(content)
    # The first picture of a camera is a small copy of another, or values of a sensor.
    is_small = tags.get(_SUBFILE, 0) == _REDUCED or _SUB in tags
    is_raw = _DNG in tags or tags.get(_PHOTOMETRIC) in _OF_A_SENSOR or (_MAKE in tags and is_small)
    if not kind and not is_raw:
        return None
    starts = [each.start() for each in itertools.islice(_START.finditer(content, 1), _CANDIDATES)]
    size, start = max(((_side_of(content[each : each + _HEADER]), each) for each in starts), default=(0, 0))
    jpeg = JPEG + b"".join(each for _, each in jpeg_segments(content[start:]))
    return CameraRaw(kind or "TIFF", jpeg if size >= _LARGE_SIDE else b"", tags.get(_ORIENTATION))


def reason_of_raw(name: str) -> str:
    """Why an unreadable file with the name of a camera RAW is skipped; empty for other names."""
    suffix = PurePosixPath(name).suffix.lower()
    if suffix not in RAW_SUFFIXES:
        return ""
    kind = suffix.removeprefix(".").upper()
    return f"camera RAW ({kind}) without a JPEG of full size inside: {DEVELOP}"


def _first_directory(content: bytes) -> dict[int, Any]:
    """The tags of the first picture in a TIFF file; empty for other files, and where they cannot be read."""
    try:
        header = content[:16] if b"+" in content[2:4] else content[:8]  # that of a BigTIFF is longer
        directory = TiffImagePlugin.ImageFileDirectory_v2(header)
        stream = io.BytesIO(content)
        stream.seek(directory.next)
        directory.load(stream)
        return dict(directory)
    except Exception:  # hostile tags raise a dozen kinds
        return {}


def _side_of(beginning: bytes) -> int:
    """The longer side of a JPEG with several colours, by its header; 0 for anything else."""
    for marker, segment in jpeg_segments(beginning):
        if marker in FRAMES and len(segment) >= 10:
            height, width = (int.from_bytes(segment[at : at + 2], "big") for at in (5, 7))
            return max(height, width) if segment[4] == 8 and segment[9] in (1, 3) else 0
        if marker == SCAN:
            return 0
    return 0


def capture_date(image: Image.Image) -> str:
    """``2024-05-01T10:11:12``, with ``+02:00`` behind it where the camera knew; empty if the file says nothing."""
    try:
        exif = image.getexif()
        values = {**exif, **exif.get_ifd(ExifTags.IFD.Exif)}
    except Exception:  # metadata that cannot be read does not spoil the pixels
        return ""
    for date, offset in _DATE_TAGS:
        found = _DATE.match(str(values.get(date, "")))
        if found is not None and found[1] != "0000":
            zone = _OFFSET.fullmatch(str(values.get(offset, "")).strip("\0 "))
            year, month, day, *clock = found.groups()
            return f"{year}-{month}-{day}T{':'.join(clock)}{zone[0] if zone else ''}"
    return ""


def seconds_of(date: str) -> float:
    """Seconds since 1970 by the clock of the camera; NaN for an invalid date."""
    try:
        return float(calendar.timegm(time.strptime(date[:19], "%Y-%m-%dT%H:%M:%S")))
    except ValueError:
        return math.nan
