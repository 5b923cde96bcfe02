"""One decoder for everything: training, evaluation, discovery and the demo.

An image is used, used with a note, or skipped with a reason. Bad data never raises, is never half decoded,
and never gets past the pixel limit, because that is checked on the header.
"""

import io
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, TypeVar

import numpy as np
from PIL import ExifTags, Image, ImageOps

from promptccd import systems
from promptccd.images import kinds
from promptccd.images.camera import camera_raw, capture_date
from promptccd.images.colour import in_srgb
from promptccd.images.files import read_regular_file
from promptccd.images.limits import BYTES_PER_PIXEL, MAX_PIXELS, ByteBudget, IntakeLimits, SkippedFileError
from promptccd.images.rendering import PROBED, Levels, Rendering, deep_values, is_deep

LARGE = 50_000_000  # pixels from which on a picture is decoded alone, and unpacks from many bytes
PIXELS_PER_BYTE = 1000  # of a large picture; a drawing of lines has a hundred
MIN_SIDE = 8  # pixels; the digits data set has 8 x 8, and smaller images are unrecognisable
FITTED_SIDE = 1024  # pixels of the square that a wide or tall image is fitted into; no view needs more
WIDE = 2  # width by height, or the reverse, from which a crop shows half of an image or less
MAX_ASPECT = 20  # beyond it a square crop shows under 5 % of the image

_CONTINUOUS = 0.5  # share of half-transparent pixels from which a fourth band is not transparency
_WHITE = 240  # grey level from which on a picture on white would vanish
_T = TypeVar("_T")
_TURNED = range(2, 9)  # EXIF orientations of pictures that are not stored upright
_ON_ITS_SIDE = range(5, 9)


class Status(StrEnum):
    """Outcome of decoding an image."""

    USED = "used"
    NOTED = "noted"
    SKIPPED = "skipped"


@dataclass(frozen=True)
class Verdict:
    """Outcome of decoding an image, with the reason.

    Attributes:
        status: used, noted or skipped.
        note: reasons without paths, joined by ``"; "``; empty for a used image.
        is_passing: whether it may be otherwise the next time, such as when memory is free again.
    """

    status: Status
    note: str = ""
    is_passing: bool = False


@dataclass(frozen=True)
class Decoding:
    """How files become pixels, the same for all images of a source.

    Attributes:
        max_pixels: largest width times height, checked before decoding.
        rendering: which values and pages are shown.
    """

    max_pixels: int = MAX_PIXELS
    rendering: Rendering = field(default_factory=Rendering)

    def fitted(self, decoded: "DecodedImage") -> "DecodedImage":
        """The image as a model sees it: all of it in a square by the rule, or unchanged where that is a crop."""
        image, fit = decoded.image, self.rendering.fit
        if image is None or fit in (None, "crop") or decoded.size[0] == decoded.size[1]:
            return decoded
        side = min(max(image.size), max(FITTED_SIDE, min(image.size)))
        scale = side / max(decoded.size)
        shown = [side if fit == "squeeze" else max(1, round(scale * each)) for each in decoded.size]
        part = image.resize((shown[0], shown[1]), Image.Resampling.BICUBIC, reducing_gap=3.0)
        whole = Image.new("RGB", (side, side))
        whole.paste(part, ((side - part.width) // 2, (side - part.height) // 2))
        return replace(decoded, image=whole, size=whole.size)


@dataclass(frozen=True)
class DecodedImage:
    """A decoded image, or why it was skipped.

    Attributes:
        image: upright 8-bit RGB in the colours of sRGB, without metadata; `None` exactly when it is skipped.
        verdict: what became of it.
        size: width and height in pixels of the upright picture; `image` is smaller where it was decoded reduced.
        loaded: the stored pixels, which identify the picture; `None` for a JPEG.
        taken: when the camera says it was taken, see `promptccd.images.camera`; empty if it does not.
        jpeg: the JPEG inside of a camera RAW that was used; empty for all other files.
        levels: values of a file with more than 8 bits a value, or `None`.
        pages: how many pages of one size the file has, as far as they are read.
    """

    image: Image.Image | None
    verdict: Verdict
    size: tuple[int, int] = (0, 0)
    loaded: Image.Image | np.ndarray | None = None
    jpeg: bytes = b""
    levels: Levels | None = None
    pages: int = 1
    taken: str = ""


def media_type(content: bytes) -> str:
    """The media type of a picture that was made here: a PNG, a WebP or a JPEG."""
    kind = "png" if content.startswith(b"\x89PNG") else "webp" if content.startswith(b"RIFF") else "jpeg"
    return f"image/{kind}"


_LARGE_PICTURES = threading.Lock()  # large pictures are decoded one at a time: each may take gigabytes
_SAMPLES = 277  # a tag of TIFF


def box_of(size: tuple[int, int]) -> tuple[int, int, int, int]:
    """What is looked at of a picture, from its upper left to its lower right: of a strip, the middle."""
    width, height = (min(side, MAX_ASPECT * min(size)) for side in size)
    left, top = (size[0] - width) // 2, (size[1] - height) // 2
    return left, top, left + width, top + height


def decode_image(
    source: bytes | str | os.PathLike[str] | Image.Image | Mapping[str, Any] | None,
    decoding: Decoding | None = None,
    *,
    enough: int | None = None,
) -> DecodedImage:
    """Decode one image to 8-bit RGB, or say why not.

    Depth is scaled to 8 bit, colours are sRGB, transparency is laid over white, EXIF orientation is applied,
    and the first frame of an animation is used. Of a camera RAW it is the JPEG of full size inside. Global switches
    of Pillow are left alone; where other code has set ``ImageFile.LOAD_TRUNCATED_IMAGES``, Pillow no longer reports
    truncated files, so they cannot be skipped. Pillow's own limit on pixels applies only to images that it has opened.

    Args:
        source: bytes of a file, a path, an image of Pillow, or the ``{"bytes": ..., "path": ...}`` of
            ``datasets.Image(decode=False)``, where bytes win. `None` is a missing image.
        decoding: limits, and the rule for values; by default the limits for a person's own files, each by itself.
        enough: decode 1/2, 1/4 or 1/8 of the width and height of a JPEG file where that leaves at least this many
            pixels a side: for 12 megapixels a quarter of the time.

    Raises:
        TypeError: the source is of another type. Bad data of these types never raises.
    """
    decoding = decoding or Decoding()
    if isinstance(source, Mapping):
        source = source.get("path") if source.get("bytes") is None else source["bytes"]
    try:
        if source is None:
            raise SkippedFileError("no image given")
        if isinstance(source, Image.Image):
            return _decode_opened(source, decoding)
        if isinstance(source, str | os.PathLike):
            limits = IntakeLimits.of_person(max_pixels=decoding.max_pixels)
            source = read_regular_file(source, ByteBudget(limits, "The file"), follow=True)
        if isinstance(source, bytes):
            return _decode_bytes(source, decoding, enough)
    except SkippedFileError as skipped:
        return DecodedImage(None, Verdict(Status.SKIPPED, str(skipped), skipped.is_passing))
    raise TypeError(f"Expected bytes, a path, an image or {{'bytes', 'path'}}, got {type(source).__name__}.")


def decide(decoding: Decoding, deep: Sequence[_T], read: Callable[[_T], bytes]) -> Decoding:
    """As `decode_image`, with one rule for values for all files of a source; decided values stay.

    Args:
        decoding: with a rule that may be undecided.
        deep: the files that may have more than 8 bits a value; `PROBED` of them decide.
        read: gives the bytes of a file; after a `SkippedFileError` it does not count.
    """
    rendering = decoding.rendering
    if not deep or rendering.given or (rendering.integer and rendering.real):
        return decoding

    def levels() -> Iterator[Levels | None]:
        for place in np.unique(np.linspace(0, len(deep) - 1, PROBED).astype(int)).tolist():
            with suppress(SkippedFileError):
                yield decode_image(read(deep[place]), decoding).levels

    return replace(decoding, rendering=rendering.decided_by(levels()))


def _decode_bytes(
    content: bytes, decoding: Decoding, enough: int | None, turned: int | None = None
) -> DecodedImage:
    """Decode a file; `turned` is the EXIF orientation of a file without its own."""
    if not content:
        raise SkippedFileError("empty file")
    if (raw := camera_raw(content)) is not None:
        if not raw.jpeg:
            raise SkippedFileError(
                f"camera RAW ({raw.kind}) without a JPEG of full size inside: {kinds.DEVELOP}"
            )
        found = _decode_bytes(raw.jpeg, decoding, enough, raw.orientation)
        notes = [f"camera RAW ({raw.kind}): the JPEG inside is used", found.verdict.note]
        if found.image is not None:
            found = replace(found, verdict=Verdict(Status.NOTED, "; ".join(filter(None, notes))))
        return replace(found, jpeg=raw.jpeg)
    with _open_picture(content) as image:
        pixels = image.width * image.height
        if pixels > max(LARGE, PIXELS_PER_BYTE * len(content)):  # it is useless, and unpacks to gigabytes
            raise SkippedFileError(
                f"{pixels / 1e6:.0f} million pixels in {len(content)} bytes: a picture of one colour, or made to "
                "exhaust memory"
            )
        return _decode_opened(image, decoding, enough, turned, has_pages=True)


def _open_picture(content: bytes) -> Image.Image:
    """The image, by the plug-in of its format; so Pillow's process-wide limit has no effect."""
    head = content[: kinds.FIRST_BYTES]
    if not (kind := kinds.picture_kind(head)):  # what reads HEIC may be installed later
        raise SkippedFileError(kinds.why_skipped(head), is_passing=kinds.is_heif(head))
    Image.init()
    try:
        plugin = kinds.heif_plugin() if kind == "HEIC" else Image.OPEN[kind][0]
        return plugin(io.BytesIO(content), "")
    except Image.DecompressionBombError as error:  # as those of GIF do, and of WebP since Pillow 13
        raise SkippedFileError(f"more pixels than Pillow opens of a {kind} file") from error
    except Exception as error:  # of a dozen kinds, on hostile headers and too few bytes; may name paths
        remedy = f": save it with one or three bands of 8 or 16 bits, or {kinds.FEATURES}"
        advice = remedy if kind == "TIFF" else ""
        raise SkippedFileError(f"damaged, truncated or unsupported {kind} file{advice}") from error


def _decode_opened(
    image: Image.Image,
    decoding: Decoding,
    enough: int | None = None,
    turned: int | None = None,
    *,
    has_pages: bool = False,
) -> DecodedImage:
    """Decode an image opened from a stream, or by the caller, whose image stays as it is and has one page."""
    width, height = image.size
    if width * height == 0:
        raise SkippedFileError("image without pixels")
    stored_orientation = _orientation(image) if image.format == "TIFF" else None
    if width * height > decoding.max_pixels:
        raise SkippedFileError(
            f"{width} x {height} exceeds the limit of {decoding.max_pixels / 1e6:g} million pixels"
        )
    is_strip = max(image.size) > MAX_ASPECT * min(image.size)  # which would lose its ends
    if enough is not None and image.format in ("JPEG", "MPO") and not is_strip:
        image.draft(None, (enough, enough))
    with _room_for(image.width * image.height):
        pages = _pages_of(image, decoding.max_pixels) if has_pages else []
        rgb, note, loaded, levels = _load_rgb(image, decoding.rendering, pages)
    own_orientation = _orientation(image)
    orientation = turned if own_orientation is None else own_orientation
    is_projected = len(pages) > 1 and decoding.rendering.pages in ("max", "mean")
    notes = [
        note,
        _frame_note(image, rgb) if not is_projected else f"{decoding.rendering.pages} of {len(pages)} pages",
    ]
    size = (height, width) if orientation in _ON_ITS_SIDE else (width, height)
    rgb.info.clear()  # place, time and profile of the photograph stay behind
    if orientation in _TURNED:
        rgb.getexif()[ExifTags.Base.Orientation] = orientation
        rgb = ImageOps.exif_transpose(rgb)
    if {own_orientation, stored_orientation} & {*_TURNED}:  # Pillow itself turns TIFF while loading
        notes.append("turned upright by its EXIF orientation")
    text = "; ".join(filter(None, [*notes, *_shape_notes(size, decoding.rendering)]))
    verdict = Verdict(Status.NOTED if text else Status.USED, text)
    return DecodedImage(
        rgb, verdict, size, loaded, levels=levels, pages=max(1, len(pages)), taken=capture_date(image)
    )


@contextmanager
def _room_for(pixels: int) -> Iterator[None]:
    """Decode a large picture when no other large picture is decoded and there is memory for it."""
    if pixels <= LARGE:
        yield
        return
    with _LARGE_PICTURES:
        needed, free = BYTES_PER_PIXEL * pixels, systems.free_memory()
        if free is not None and needed > free:
            raise SkippedFileError(
                f"{pixels / 1e6:.0f} million pixels take up to {needed / 1e9:.1f} GB of memory, and {free / 1e9:.1f} "
                "GB are free: close other programs and start again, or save it smaller",
                is_passing=True,
            )
        yield


_Loaded = tuple[Image.Image, str, Image.Image | np.ndarray | None, Levels | None]


def _pages_of(image: Image.Image, most: int) -> list[np.ndarray]:
    """The pixels or values of all pages like the first; empty for a single page, or too many pixels."""
    try:
        count, first = getattr(image, "n_frames", 1), image.tell()
        if image.format == "MPO" or count == 1 or first or count * image.width * image.height > most:
            return []
        size, found = image.size, list[np.ndarray]()
        for number in range(count):
            image.seek(number)
            if image.size != size:
                continue
            mode, deep = "RGBA" if image.has_transparency_data else "RGB", deep_values(image)
            found.append(np.asarray(image.convert(mode)) if deep is None else deep.values)
        image.seek(first)
    except Exception:  # a later page is damaged; the first page is intact
        image.seek(0)
        return []
    return [each for each in found if (each.shape, each.dtype) == (found[0].shape, found[0].dtype)]


def _load_rgb(image: Image.Image, rendering: Rendering, pages: Sequence[np.ndarray] = ()) -> _Loaded:
    """All pixels as 8-bit RGB in a new image, a note, its identity, and its levels."""
    try:
        bits = 16 if is_deep(image) else image.info.get("bit_depth", 8) if image.format == "HEIF" else 8
        deep, values = deep_values(image), None
        if len(pages) > 1 and rendering.pages in ("max", "mean"):
            values = np.max(pages, axis=0) if rendering.pages == "max" else np.mean(pages, axis=0)
        if deep is not None and values is not None:
            deep = replace(deep, values=values.astype(deep.values.dtype))
        if deep is None:
            image.load()
            source, levels = image if values is None else Image.fromarray(values.astype(np.uint8)), None
            scaled = f"{bits}-bit colours of which 8 bits can be read" if bits > 8 else ""
        else:
            shown, levels, scaled = deep.shown(rendering)
            source = Image.fromarray(shown)
            source.info = {name: value for name, value in image.info.items() if name == "icc_profile"}
        rgb, profile = in_srgb(source)
        rgb, over = _without_alpha(rgb, image.format == "TIFF")
        bands = getattr(image, "tag_v2", {}).get(_SAMPLES, 1) if image.mode in ("RGB", "RGBX") else 1
        of_bands = f"first 3 of {bands} bands used" if bands > 3 else ""
        notes = "; ".join(filter(None, [scaled, of_bands, profile, over]))
        is_same = rgb is image
        rgb = image.copy() if is_same else rgb  # counting the frames of an animation may load the last
        if len(pages) > 1:  # a picture is the same if all its pages are
            return rgb, notes, np.concatenate(pages), levels
        if deep is not None:
            return rgb, notes, deep.values, levels
        is_jpeg = image.format in ("JPEG", "MPO")  # its coding tells it
        return rgb, notes, None if is_jpeg else rgb if is_same else image.copy(), None
    except SkippedFileError:
        raise
    except MemoryError:
        raise SkippedFileError("not enough memory to decode it", is_passing=True) from None
    except Exception as error:  # as above
        raise SkippedFileError(
            "truncated file" if "truncated" in str(error).lower() else "damaged file"
        ) from None


def _without_alpha(image: Image.Image, is_tiff: bool) -> tuple[Image.Image, str]:
    """The picture over white, or over black if all of it that is seen is white; and a note."""
    if image.mode == "RGB" or image.getchannel("A").getextrema()[0] == 255:
        return image.convert("RGB") if image.mode == "RGBA" else image, ""
    alpha = np.asarray(image.getchannel("A"))
    if is_tiff and np.mean((alpha > 0) & (alpha < 255)) > _CONTINUOUS:  # near infrared, as GDAL stores it
        return image.convert("RGB"), "fourth band is no transparency, and is not shown"
    seen = np.asarray(image)[alpha > 127, :3]
    over = "black" if seen.size and np.percentile(seen, 5) > _WHITE else "white"
    shown = Image.alpha_composite(Image.new("RGBA", image.size, over), image)
    return shown.convert("RGB"), f"transparency laid over {over}"


def _frame_note(image: Image.Image, rgb: Image.Image) -> str:
    try:  # not for a phone's depth map, nor for a frame that the caller chose
        count = 1 if image.format == "MPO" or image.tell() else getattr(image, "n_frames", 1)
    except Exception:  # a later frame is damaged; the first page is intact
        return "first of several frames used"
    is_empty = rgb.getcolors(1) is not None
    return f"first of {count} frames used{', which is empty' if is_empty else ''}" if count > 1 else ""


def _orientation(image: Image.Image) -> int | None:
    try:
        return image.getexif().get(ExifTags.Base.Orientation)
    except Exception:  # metadata that cannot be read does not spoil the pixels
        return None


def _shape_notes(size: tuple[int, int], rendering: Rendering) -> list[str]:
    """Notes on a picture that is small, or that a crop shows less of."""
    short, long, shape = min(size), max(size), f"{size[0]} x {size[1]} pixels"
    notes = [f"strip of {shape}"] * (long > MAX_ASPECT * short) or [f"only {shape}"] * (short < MIN_SIDE)
    if rendering.fit in (None, "crop") and long >= WIDE * short:
        notes.append(f"wider or taller than {WIDE}:1, only the centre is used: --fit pad|squeeze")
    return notes
