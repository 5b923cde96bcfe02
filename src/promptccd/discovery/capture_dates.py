"""When photographs were taken, as their cameras wrote it into the files; kept by content, so each is read once."""

import logging
import os
import re
import warnings
from collections.abc import Mapping
from pathlib import Path

from PIL import ExifTags, Image

from promptccd.discovery.cache import Packs
from promptccd.discovery.project.folder import DATES

logger = logging.getLogger(__name__)

_DATE = re.compile(r"(\d{4})[:-](\d\d)[:-](\d\d)[ T](\d\d):(\d\d):(\d\d)")
_OFFSET = re.compile(r"[+-]\d\d:\d\d")
# The picture was taken, was made digital; of a file without either, the camera wrote it.
_TAGS = (
    (ExifTags.Base.DateTimeOriginal, ExifTags.Base.OffsetTimeOriginal),
    (ExifTags.Base.DateTimeDigitized, ExifTags.Base.OffsetTimeDigitized),
    (ExifTags.Base.DateTime, ExifTags.Base.OffsetTime),
)
_NONE = b"-"


def capture_date(path: str | Path) -> str:
    """``2024-05-01T10:11:12``, with ``+02:00`` behind it where the camera knew; empty if the file says nothing."""
    try:
        with warnings.catch_warnings(), Image.open(path) as image:
            warnings.simplefilter("ignore")
            exif = image.getexif()
            values = {**exif, **exif.get_ifd(ExifTags.IFD.Exif)}
    except Exception:  # Pillow raises whatever a damaged file makes it
        logger.debug("No date can be read from %s.", path, exc_info=True)
        return ""
    for date, offset in _TAGS:
        found = _DATE.match(str(values.get(date, "")))
        if found is not None and found[1] != "0000":
            zone = _OFFSET.fullmatch(str(values.get(offset, "")).strip("\0 "))
            year, month, day, *time = found.groups()
            return f"{year}-{month}-{day}T{':'.join(time)}{zone[0] if zone else ''}"
    return ""


def capture_dates(files: Mapping[str, str], project: Path | None) -> dict[str, str]:
    """Dates by content hash, without those of files that say nothing or are not there.

    Args:
        files: paths by content hash.
        project: the folder that remembers them, if any.
    """
    kept = None if project is None else Packs(project, DATES)
    known = {} if kept is None else kept.load(files)
    there = {digest: path for digest, path in files.items() if digest not in known and os.path.isfile(path)}
    fresh = {digest: capture_date(path).encode() or _NONE for digest, path in there.items()}
    if kept is not None:
        kept.add(fresh)
    return {digest: date.decode() for digest, date in (known | fresh).items() if date != _NONE}
