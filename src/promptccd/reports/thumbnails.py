"""Small pictures inside a page: ``data:`` URIs, so that nothing is fetched."""

import base64
import io
from dataclasses import dataclass

from PIL import Image

SIDE = 96
PIXEL_ART = 32  # up to this side an image is kept as it is and shown pixel by pixel


@dataclass(frozen=True)
class Thumbnail:
    """A small picture.

    Attributes:
        uri: ``data:`` URI.
        is_small: whether the image itself is so small that its pixels should stay visible.
    """

    uri: str
    is_small: bool


def thumbnail(image: Image.Image, side: int = SIDE) -> Thumbnail:
    """A picture of at most `side` pixels each way: PNG of tiny images, JPEG of others."""
    is_small = max(image.size) <= PIXEL_ART
    copy = image.convert("RGB")
    copy.thumbnail((side, side))
    stream = io.BytesIO()
    if is_small:
        copy.save(stream, "PNG", optimize=True)
    else:
        copy.save(stream, "JPEG", quality=72, optimize=True)
    kind = "png" if is_small else "jpeg"
    return Thumbnail(f"data:image/{kind};base64,{base64.b64encode(stream.getvalue()).decode()}", is_small)
