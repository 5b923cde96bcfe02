"""One decoder for everything: training, evaluation, discovery and the demo.

An image is used, used with a note, or skipped with a reason. Bad data never raises, is never half decoded,
and never gets past the pixel limit, because that is checked on the header.
"""

import calendar
import io
import os
import stat
import time
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, BinaryIO

import numpy as np
from PIL import ExifTags, Image

MAX_PIXELS = 50_000_000
MAX_REDUCED = 4  # a photograph with up to this many times as many pixels is decoded at a reduced size
MIN_SIDE = 8  # pixels; the digits data set has 8 x 8, and nobody recognises anything in less
MAX_ASPECT = 20  # beyond it a square crop shows under 5 % of the image

# Common formats of photographs and drawings; each of Pillow's other thirty is one more parser to attack.
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "AVIF")

_UPRIGHT = {  # EXIF orientation -> the turn that undoes it, and the edges that become left, upper, right and lower
    2: (Image.Transpose.FLIP_LEFT_RIGHT, (2, 1, 0, 3)),
    3: (Image.Transpose.ROTATE_180, (2, 3, 0, 1)),
    4: (Image.Transpose.FLIP_TOP_BOTTOM, (0, 3, 2, 1)),
    5: (Image.Transpose.TRANSPOSE, (1, 0, 3, 2)),
    6: (Image.Transpose.ROTATE_270, (3, 0, 1, 2)),
    7: (Image.Transpose.TRANSVERSE, (3, 2, 1, 0)),
    8: (Image.Transpose.ROTATE_90, (1, 2, 3, 0)),
}

_FIRST_BYTES = (  # after leading blanks, in lower case
    (b"<!doctype html", "HTML"),
    (b"<html", "HTML"),
    (b"<svg", "SVG"),
    (b"<?xml", "XML or SVG"),
    (b"%pdf", "PDF"),
    (b"pk\x03\x04", "a ZIP archive"),
    (b"version https://git-lfs", "a Git LFS pointer, not downloaded"),
    (b"8bps", "PSD"),
    (b"\x00\x00\x00\x0cjp  ", "JPEG 2000"),
    (b"\xff\xd8\xff", "JPEG"),
    (b"\x89png", "PNG"),
    (b"gif8", "GIF"),
    (b"riff", "WEBP"),
    (b"ii*\x00", "TIFF"),
    (b"mm\x00*", "TIFF"),
)


class Status(StrEnum):
    """What became of an image."""

    USED = "used"
    NOTED = "noted"
    SKIPPED = "skipped"


@dataclass(frozen=True)
class Verdict:
    """What became of an image and why: reasons without paths, joined by ``"; "``, empty for a used image."""

    status: Status
    note: str = ""


@dataclass(frozen=True)
class DecodedImage:
    """A decoded image, or why it was skipped.

    Attributes:
        image: upright 8-bit RGB without metadata; `None` exactly when it is skipped.
        verdict: what became of it.
        size: width and height in pixels of the upright picture; `image` is smaller where it was decoded reduced.
        box: left, upper, right and lower edge of the picture in `image`, in its pixels: the last row or column of a
            reduced image may be covered only in part.
        loaded: the picture as its file stores it, which tells it from others; `None` for a JPEG.
        taken: when the camera says it was taken, in seconds since 1970 by its clock; `None` if it does not.
    """

    image: Image.Image | None
    verdict: Verdict
    size: tuple[int, int] = (0, 0)
    box: tuple[float, float, float, float] = (0, 0, 0, 0)
    loaded: Image.Image | None = None
    taken: int | None = None


def media_type(content: bytes) -> str:
    """The media type of a picture that was made here: a PNG, a WebP or a JPEG."""
    kind = "png" if content.startswith(b"\x89PNG") else "webp" if content.startswith(b"RIFF") else "jpeg"
    return f"image/{kind}"


_BASELINE = (b"\xc0", b"\xc1")  # frames whose blocks come whole, one after the other
_TABLES = (b"\xc4", b"\xdb", b"\xdd", b"\xfe", *(bytes([0xE0 + n]) for n in range(16)))  # and metadata
_SEGMENTS = (*_BASELINE, *_TABLES)


class _RefusedError(Exception):
    """The image is skipped for the reason that is the message; never leaves this file."""


def decode_image(
    source: bytes | str | os.PathLike[str] | Image.Image | Mapping[str, Any] | None,
    *,
    max_pixels: int = MAX_PIXELS,
    enough: int | None = None,
) -> DecodedImage:
    """Decode one image to 8-bit RGB, or say why not.

    Depth is scaled to 8 bit, transparency is laid over white, EXIF orientation is applied, and the first
    frame of an animation is taken. Global switches of Pillow are left alone; where other code has set
    ``ImageFile.LOAD_TRUNCATED_IMAGES``, Pillow no longer reports truncated files, so none can be skipped.

    Args:
        source: bytes of a file, a path, an image of Pillow, or the ``{"bytes": ..., "path": ...}`` of
            ``datasets.Image(decode=False)``, where bytes win. `None` is a missing image.
        max_pixels: largest width times height, checked before decoding. A JPEG file as phones write it may have
            `MAX_REDUCED` times as many, and is then decoded at half its width and height, or less.
        enough: decode 1/2, 1/4 or 1/8 of the width and height of a JPEG file where that leaves at least this many
            pixels a side: for 12 megapixels a quarter of the time.

    Raises:
        TypeError: the source is of another type. Bad data of these types never raises.
    """
    if isinstance(source, Mapping):
        source = source.get("path") if source.get("bytes") is None else source["bytes"]
    try:
        if source is None:
            raise _RefusedError("no image given")
        if isinstance(source, Image.Image):
            return _decode_opened(source, max_pixels)
        if isinstance(source, bytes):
            return _decode_stream(io.BytesIO(source), max_pixels, enough)
        if isinstance(source, str | os.PathLike):
            return _decode_file(source, max_pixels, enough)
    except _RefusedError as refused:
        return DecodedImage(None, Verdict(Status.SKIPPED, str(refused)))
    raise TypeError(f"Expected bytes, a path, an image or {{'bytes', 'path'}}, got {type(source).__name__}.")


def _decode_file(path: str | os.PathLike[str], max_pixels: int, enough: int | None) -> DecodedImage:
    try:
        found = os.stat(path)
        if stat.S_ISDIR(found.st_mode):
            raise _RefusedError("a folder, not a file")
        if not stat.S_ISREG(found.st_mode):  # opening a FIFO would wait for its writer
            raise _RefusedError("not a regular file")
        if found.st_size > 8 * max_pixels:  # 16-bit RGBA without compression; some plug-ins read all at once
            raise _RefusedError(f"file of {found.st_size} bytes exceeds the limit of {8 * max_pixels}")
        with open(path, "rb") as stream:
            return _decode_stream(stream, max_pixels, enough)
    except FileNotFoundError:
        reason = "link to a file that does not exist" if os.path.islink(path) else "no such file"
    except PermissionError:
        reason = "no permission to read the file"
    except (OSError, ValueError) as error:  # ValueError: a null byte in the name
        reason = f"file cannot be opened ({getattr(error, 'strerror', None) or 'not a file name'})"
    raise _RefusedError(reason)


def _decode_stream(stream: BinaryIO, max_pixels: int, enough: int | None) -> DecodedImage:
    head = stream.read(512)
    if not head:
        raise _RefusedError("empty file")
    stream.seek(0)
    try:
        image = Image.open(stream, formats=FORMATS)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):  # the latter under python -W error
        limit = min(max_pixels, 2 * (Image.MAX_IMAGE_PIXELS or max_pixels))  # Pillow refuses at twice its own
        raise _RefusedError(f"image exceeds the limit of {limit / 1e6:g} million pixels") from None
    except Exception:  # plug-ins raise a dozen kinds on hostile headers, and their messages may hold paths
        raise _RefusedError(_reason_by_first_bytes(head)) from None
    with image:
        is_large = image.width * image.height > max_pixels and _is_in_one_scan(stream)
        return _decode_opened(image, max_pixels, enough, MAX_REDUCED if is_large else 1)


def _reason_by_first_bytes(head: bytes) -> str:
    start = head.removeprefix(b"\xef\xbb\xbf").lstrip().lower()
    kind = next((kind for first, kind in _FIRST_BYTES if start.startswith(first)), "no known format")
    if head[4:8] == b"ftyp":
        kind = "AVIF" if head[8:11] == b"avi" else "HEIC"
    if kind in FORMATS:
        return f"damaged, truncated or unsupported {kind} file"
    return f"not an image that can be read (starts like {kind})"


def _decode_opened(
    image: Image.Image, max_pixels: int, enough: int | None = None, max_reduced: int = 1
) -> DecodedImage:
    """Decode what Pillow has opened, whether from a stream or by the caller."""
    width, height = image.size
    if width * height == 0:
        raise _RefusedError("image without pixels")
    stored_orientation = _orientation(image) if image.format == "TIFF" else None
    if max_pixels < width * height <= max_reduced * max_pixels:
        enough = min(enough or width, min(width, height) // 2)
    scale = 1 if enough is None else _reduce(image, enough)
    if width * height > max_reduced * max_pixels or image.width * image.height > max_pixels:
        raise _RefusedError(f"{width} x {height} exceeds the limit of {max_pixels / 1e6:g} million pixels")
    rgb, note = _load_rgb(image)
    # A JPEG is known by its coding. Counting the frames of any other may go on to the last.
    loaded = None if image.format in ("JPEG", "MPO") else image.copy()
    orientation = _orientation(image)
    large = f"{width} x {height} pixels, reduced" if width * height > max_pixels else ""
    notes = [large, note, _frame_note(image)]
    cut = [0.0, 0.0, 0.0, 0.0]
    if scale > 1:
        cut[2:] = rgb.width - width / scale, rgb.height - height / scale
    if orientation in _UPRIGHT:
        turn, order = _UPRIGHT[orientation]
        rgb, cut = rgb.transpose(turn), [cut[edge] for edge in order]
    if {orientation, stored_orientation} & _UPRIGHT.keys():  # Pillow itself turns TIFF while loading
        notes.append("turned upright by its EXIF orientation")
    rgb.info.clear()  # place, time and profile of the photograph stay behind
    box = (cut[0], cut[1], rgb.width - cut[2], rgb.height - cut[3])
    size = (round(scale * (box[2] - box[0])), round(scale * (box[3] - box[1])))
    notes.append(_shape_note(*size))
    text = "; ".join(filter(None, notes))
    return DecodedImage(
        rgb, Verdict(Status.NOTED if text else Status.USED, text), size, box, loaded, _taken(image)
    )


def _is_in_one_scan(stream: BinaryIO) -> bool:
    """Whether a JPEG file has all colours of a block side by side, as cameras write them.

    Any other, and any progressive one, has to be in memory as a whole before it is reduced.
    """
    stream.seek(0)
    is_one, colours = stream.read(2) == b"\xff\xd8", b""
    while is_one:
        head = stream.read(4)
        kind, body = head[1:2], stream.read(max(int.from_bytes(head[2:]) - 2, 0))
        if kind == b"\xda":  # the first scan begins
            break
        is_one = len(head) == 4 and head[:1] == b"\xff" and kind in _SEGMENTS
        if kind in _BASELINE:
            colours = body[5:6]
    else:
        body = b""
    stream.seek(0)
    return colours != b"" and body[:1] == colours


def _reduce(image: Image.Image, enough: int) -> int:
    """Ask for fewer pixels of a JPEG file (an MPO is one); returns the factor by which its sides shrink.

    Strips are left alone: they would lose their ends.
    """
    width, height = image.size
    if image.format not in ("JPEG", "MPO") or max(width, height) > MAX_ASPECT * min(width, height):
        return 1
    drafted = image.draft(None, (enough, enough))
    return 1 if drafted is None else round(width / drafted[1][2])


def _load_rgb(image: Image.Image) -> tuple[Image.Image, str]:
    """All pixels as 8-bit RGB in a new image, and a note."""
    try:
        image.load()
        if image.mode == "F":
            return _float_to_rgb(np.asarray(image))
        if image.mode.startswith("I"):
            return _integers_to_rgb(np.asarray(image))
        if image.has_transparency_data:
            return _over_white(image.convert("RGBA"))
        return image.convert("RGB"), ""
    except _RefusedError:
        raise
    except MemoryError:
        raise _RefusedError("not enough memory to decode it") from None
    except Exception as error:  # as above
        kind = "truncated" if "truncated" in str(error).lower() else "damaged"
        raise _RefusedError(f"{kind} file") from None


def _float_to_rgb(values: np.ndarray) -> tuple[Image.Image, str]:
    if not np.isfinite(values).all():
        raise _RefusedError("float image with NaN or infinite values")
    low, high = float(values.min()), float(values.max())
    if low < 0 or high > 1:
        raise _RefusedError(f"float image with values from {low:g} to {high:g}; only 0 to 1 is read")
    grey = (values * 255 + 0.5).astype(np.uint8)
    return Image.fromarray(grey).convert("RGB"), "float values 0 to 1 scaled to 8 bit"


def _integers_to_rgb(values: np.ndarray) -> tuple[Image.Image, str]:
    low, high = int(values.min()), int(values.max())
    if low < 0 or high > 65535:
        raise _RefusedError(f"integer image with values from {low} to {high}; only 0 to 65535 is read")
    # By bit depth, not by the largest value: one rule for all images of a data set keeps them comparable.
    grey = ((values.astype(np.uint32) + 128) // 257).astype(np.uint8)
    return Image.fromarray(grey).convert("RGB"), "16-bit grey scaled to 8 bit"


def _over_white(rgba: Image.Image) -> tuple[Image.Image, str]:
    if rgba.getchannel("A").getextrema()[0] == 255:
        return rgba.convert("RGB"), ""
    white = Image.new("RGBA", rgba.size, "white")
    return Image.alpha_composite(white, rgba).convert("RGB"), "transparency laid over white"


def _frame_note(image: Image.Image) -> str:
    if image.format == "MPO" or image.tell() != 0:  # a phone's depth map; a frame that the caller chose
        return ""
    try:
        count = getattr(image, "n_frames", 1)
    except Exception:  # a later frame is damaged; the first one is not
        return "first of several frames used"
    return f"first of {count} frames used" if count > 1 else ""


def _orientation(image: Image.Image) -> int | None:
    try:
        return image.getexif().get(ExifTags.Base.Orientation)
    except Exception:  # metadata that cannot be read does not spoil the pixels
        return None


def _taken(image: Image.Image) -> int | None:
    try:
        text = image.getexif().get_ifd(ExifTags.IFD.Exif)[ExifTags.Base.DateTimeOriginal]
        return calendar.timegm(time.strptime(text.strip(" \0"), "%Y:%m:%d %H:%M:%S"))
    except Exception:  # as above
        return None


def _shape_note(width: int, height: int) -> str:
    if max(width, height) > MAX_ASPECT * min(width, height):
        return f"strip of {width} x {height} pixels"
    return f"only {width} x {height} pixels" if min(width, height) < MIN_SIDE else ""
