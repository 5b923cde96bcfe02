"""What is kept of an image that was looked at once: verdict, size, fingerprint, thumbnail."""

import io
from collections.abc import Callable
from dataclasses import dataclass

from PIL import Image
from torch import Tensor

from promptccd.data.duplicates import Fingerprint, fingerprint_of
from promptccd.data.images import MAX_ASPECT, Verdict, decode_image

THUMBNAIL_SIDE = 128
_LOSSLESS_SIDE = 32  # JPEG blurs drawings of this size, and saves nothing


@dataclass(frozen=True)
class SeenImage:
    """What one decoding leaves behind.

    Attributes:
        size: width and height in pixels, upright.
        fingerprint: finds near duplicates.
        thumbnail: see `thumbnail_of`; empty if it was not kept.
        view: ``(3, S, S)`` uint8, or `None` if it was not kept.
    """

    size: tuple[int, int]
    fingerprint: Fingerprint
    thumbnail: bytes = b""
    view: Tensor | None = None


def look_at(
    content: bytes, max_pixels: int, view: Callable[[Image.Image], Tensor] | None
) -> tuple[Verdict, SeenImage | None]:
    """Decode the bytes of a file once.

    Args:
        content: all bytes of the file.
        max_pixels: largest width times height.
        view: makes the view to keep, if any.

    Returns:
        The verdict, and what is kept of the image, `None` exactly when it is skipped.
    """
    decoded = decode_image(content, max_pixels=max_pixels)
    image = decoded.image
    if image is None:
        return decoded.verdict, None
    small = _shrunk(image)
    kept = None if view is None else view(image)
    seen = SeenImage(image.size, fingerprint_of(small), _encoded(small), kept)
    return decoded.verdict, seen


def thumbnail_of(image: Image.Image) -> bytes:
    """A JPEG of at most `THUMBNAIL_SIDE` pixels a side, or a PNG if the image is tiny; no metadata.

    Strips lose their ends first, or their short side would vanish.
    """
    return _encoded(_shrunk(image))


def _shrunk(image: Image.Image) -> Image.Image:
    width, height = (min(side, MAX_ASPECT * min(image.size)) for side in image.size)
    left, top = (image.width - width) // 2, (image.height - height) // 2
    scale = min(1.0, THUMBNAIL_SIDE / max(width, height))
    size = (max(1, round(width * scale)), max(1, round(height * scale)))
    box = (left, top, left + width, top + height)
    return image.resize(size, Image.Resampling.BICUBIC, box, reducing_gap=2.0)


def _encoded(small: Image.Image) -> bytes:
    buffer = io.BytesIO()
    if max(small.size) <= _LOSSLESS_SIDE:
        small.save(buffer, "PNG")
    else:
        small.save(buffer, "JPEG", quality=80)
    return buffer.getvalue()
