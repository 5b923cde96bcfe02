"""When a photograph was taken, as its camera wrote it into the file."""

import calendar
import math
import re
import time

from PIL import ExifTags, Image

CAPTURE_DATE = re.compile(
    r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d([+-]\d\d:\d\d)?"
)  # a date as `capture_date` gives it
_DATE = re.compile(r"(\d{4})[:-](\d\d)[:-](\d\d)[ T](\d\d):(\d\d):(\d\d)")
_OFFSET = re.compile(r"[+-]\d\d:\d\d")
# The picture was taken, was made digital; of a file without either, the camera wrote it.
_DATE_TAGS = (
    (ExifTags.Base.DateTimeOriginal, ExifTags.Base.OffsetTimeOriginal),
    (ExifTags.Base.DateTimeDigitized, ExifTags.Base.OffsetTimeDigitized),
    (ExifTags.Base.DateTime, ExifTags.Base.OffsetTime),
)


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
