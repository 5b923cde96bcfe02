"""What is kept of a picture, exact copies over stages, and copies under two labels."""

import hashlib
import io
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from promptccd.images.decode import MAX_ASPECT, Decoding, Verdict, decode_image
from promptccd.images.depth import Depth
from promptccd.images.identity import picture_key

if TYPE_CHECKING:
    from torch import Tensor

    from promptccd.data.views import EvaluationView

MINIATURE_SIDE = 32
THUMBNAIL_SIDE = 128
_LOSSLESS_SIDE = 32  # JPEG blurs drawings of this size, and saves nothing


@dataclass(frozen=True)
class SeenImage:
    """What is kept of an image after decoding.

    Attributes:
        size: width and height in pixels, upright.
        key: what the picture is known by, see `promptccd.images.identity`.
        miniature: ``(32, 32)`` uint8, grey; finds images of the same moment.
        thumbnail: a JPEG of at most `THUMBNAIL_SIDE` pixels a side, or a PNG if the image is tiny; no metadata. Strips
            lose their ends first, because their short side would vanish otherwise.
        view: ``(3, S, S)`` uint8, or `None` if no view was asked for.
        taken: when it was taken, see `DecodedImage`.
        depth: what the other values depend on, of a file with more than 8 bits a value.
    """

    size: tuple[int, int]
    key: str
    miniature: np.ndarray
    thumbnail: bytes
    view: "Tensor | None" = None
    taken: str = ""
    depth: Depth | None = None


def view_of(content: bytes, decoding: Decoding, view: "EvaluationView") -> "Tensor | None":
    """The view of an image file alone; `None` if the image is skipped."""
    decoded = decode_image(content, decoding, enough=_enough(view))
    return None if decoded.image is None else view(decoded)


def _enough(view: "EvaluationView") -> int:
    return max(view.enough, 2 * THUMBNAIL_SIDE)


def look_at(
    content: bytes, decoding: Decoding, view: "EvaluationView | None"
) -> tuple[Verdict, SeenImage | None]:
    """Decode the bytes of a file once; a JPEG no larger than the view needs, without a view at full size.

    Returns:
        The verdict, and what is kept of the image, `None` exactly when it is skipped.
    """
    enough = None if view is None else _enough(view)
    decoded = decode_image(content, decoding, enough=enough)
    image = decoded.image
    if image is None:
        return decoded.verdict, None
    key = picture_key(decoded.jpeg or content, decoded.loaded)
    small = _shrunk(image)
    kept = None if view is None else view(decoded)
    seen = SeenImage(
        decoded.size, key, miniature_of(small), _encoded(small), kept, decoded.taken, decoded.depth
    )
    return decoded.verdict, seen


def miniature_of(image: Image.Image) -> np.ndarray:
    """A grey picture ``(32, 32)`` of an RGB image."""
    return np.asarray(image.convert("L").resize((MINIATURE_SIDE, MINIATURE_SIDE), Image.Resampling.BOX))


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


@dataclass(frozen=True)
class Original:
    """The first image with a picture: its sample id, the index of its stage, and what it is called."""

    sample: int
    stage: int
    name: str = ""


def digest_of(pixels: np.ndarray) -> bytes:
    """A digest that equal pictures share and others do not; pixels are ``(H, W, 3)`` uint8."""
    return hashlib.blake2b(pixels.tobytes(), salt=b"%dx%d" % pixels.shape[:2], digest_size=16).digest()


def conflicts(digests: Sequence[bytes], labels: Sequence[int]) -> Mapping[int, int]:
    """Positions of pictures with several labels -> the first position of the same picture with another label.

    Digests and labels (category ids) are one per image, N.
    """
    positions = defaultdict(list)
    for position, digest in enumerate(digests):
        positions[digest].append(position)
    found = {}
    for same in positions.values():
        for position in same if len({labels[each] for each in same}) > 1 else ():
            found[position] = next(each for each in same if labels[each] != labels[position])
    return dict(sorted(found.items()))
